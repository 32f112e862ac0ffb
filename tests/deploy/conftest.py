from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module")
def pretrained() -> Iterator[object]:
    """A served tiny BERT with small limits, as :class:`tests.deploy.served.Asked`."""
    from encoderlab.deploy.serve.http import Limits
    from tests.deploy.served import serving
    from tests.tasks.tiny import model

    with serving(model("bert-tiny").eval(), limits=Limits(body=20_000, texts=40, characters=500)) as asked:
        yield asked
