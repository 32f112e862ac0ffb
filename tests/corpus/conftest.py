from __future__ import annotations

import pytest

from encoderlab.corpus.tokenizer import Tokenizer
from tests.corpus.trained import TRAINED, sample


@pytest.fixture(scope="session")
def trained() -> dict[str, Tokenizer]:
    """A small tokenizer of every kind, by name."""
    made = {}
    for name, arguments in TRAINED.items():
        if arguments["kind"] == "unigram":
            pytest.importorskip("sentencepiece")
        made[name] = Tokenizer.train(texts=sample(), vocab_size=800, **arguments)  # type: ignore[arg-type]
    return made
