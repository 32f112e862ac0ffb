from __future__ import annotations

import numpy as np
import pytest

from encoderlab.batches.rows import Row
from encoderlab.objectives.vocabulary import Vocabulary

VOCAB = 40


@pytest.fixture
def vocabulary() -> Vocabulary:
    return Vocabulary(size=VOCAB, pad=0, mask=4, special=(0, 1, 2, 3, 4), counts=np.arange(VOCAB))


def make_rows(count: int, length: int = 16, *, labels: dict[str, int] | None = None, seed: int = 0) -> list[Row]:
    """Rows ``[2] text [3]`` of different lengths, without padding."""
    rng = np.random.default_rng(seed)
    rows = []
    for i in range(count):
        n = length - i % 3
        ids = rng.integers(5, VOCAB, n)
        ids[0], ids[-1] = 2, 3
        special = np.zeros(n, bool)
        special[[0, -1]] = True
        starts = rng.random(n) < 0.7
        starts[[0, 1, -1]] = True
        segments = (np.arange(n) >= n // 2).astype(np.int8)
        rows.append(Row(ids, np.zeros(n, np.int32), segments, starts, special, dict(labels or {}), (0, 0, i), i))
    return rows


@pytest.fixture
def rows() -> list[Row]:
    return make_rows(6)
