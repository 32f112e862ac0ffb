"""A few trials of every kind that needs no process of its own; ``make fuzz`` makes many."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.fuzz.kinds import KINDS
from tests.fuzz.world import prepare

TRIALS = {"verbs": 12, "settings": 12, "config files": 12, "runs": 4, "models": 4, "labels": 4, "corpora": 2}
TRIALS |= {"results": 3, "predictions": 6, "pieces": 3, "adaptations": 3, "studies": 1, "inspections": 2}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare(tmp_path_factory.mktemp("fuzz") / "prepared")


@pytest.mark.parametrize("kind", TRIALS)
def test_trials_find_nothing(kind: str, place: Path, tmp_path: Path) -> None:
    for number in range(TRIALS[kind]):
        KINDS[kind](random.Random(f"test {kind} {number}"), place, tmp_path / "aside")
