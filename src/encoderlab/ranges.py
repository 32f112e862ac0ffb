"""Arithmetic of concatenated parts: documents of tokens, rows of pieces, texts of chunks."""

from __future__ import annotations

import numpy as np


def offsets(sizes: np.ndarray) -> np.ndarray:
    """Start of each part, and the end of the last: (n,) sizes -> (n + 1,) int64. Sizes 3, 0, 2 give 0, 3, 3, 5."""
    starts = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, dtype=np.int64, out=starts[1:])
    return starts


def aranges(begins: np.ndarray | int, sizes: np.ndarray) -> np.ndarray:
    """``np.arange(begin, begin + size)`` of every part, concatenated: (n,), (n,) -> (sum of sizes,) int64.

    ``aranges(0, sizes)`` is the index of every item within its part.
    """
    edges = offsets(sizes)
    return np.repeat(begins - edges[:-1], sizes) + np.arange(edges[-1])
