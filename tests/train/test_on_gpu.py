"""Training on a real GPU: two runs are equal, a resumed run too, and losses are those of the CPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from encoderlab.errors import Stopped
from encoderlab.train.recipe import Budget
from tests.train.real import CASES, STEPS, run
from tests.train.toy import assert_same_run, metrics

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.mark.parametrize("case", CASES)
def test_twice_and_resumed_to_the_bit(case: str, tmp_path: Path) -> None:
    for name in ("one", "two"):
        run(case, tmp_path / name, device="cuda")
    assert_same_run(tmp_path / "one", tmp_path / "two", STEPS)
    with pytest.raises(Stopped):
        run(case, tmp_path / "parted", device="cuda", session=Budget(amount=4))
    run(case, tmp_path / "parted", device="cuda")
    assert_same_run(tmp_path / "one", tmp_path / "parted", STEPS)


@pytest.mark.parametrize("case", CASES)
def test_losses_are_those_of_a_cpu(case: str, tmp_path: Path) -> None:
    for device in ("cpu", "cuda"):
        run(case, tmp_path / device, device=device)  # type: ignore[arg-type]
    for here, there in zip(metrics(tmp_path / "cpu"), metrics(tmp_path / "cuda"), strict=True):
        assert there["loss"] == pytest.approx(here["loss"], rel=1e-4)
        assert there["counts"] == here["counts"] and there["tokens"] == here["tokens"]
