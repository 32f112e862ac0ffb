"""Which of many 64-bit numbers occurred before, in bounded memory.

The numbers are spread over files of about 4 million each by their value, and each file is sorted by itself.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from encoderlab import mapped

BUCKET = 1 << 22  # numbers sorted at a time


def find_repeated(columns: Iterable[np.ndarray], total: int, scratch: Path) -> np.ndarray:
    """For each of ``total`` numbers in ``columns``, one after the other, whether it occurred before: (total,) bool.

    Cost: 16 bytes of disk per number while it runs and 1 afterwards (the result is a mapped file); memory for a few
    times ``BUCKET`` numbers.
    """
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    buckets = max(1, -(-total // BUCKET))
    marks = scratch / "repeated"
    with open(marks, "wb") as file:  # not a sparse file, which a full disk would end in a signal
        for start in range(0, max(total, 1), BUCKET):
            file.write(bytes(min(BUCKET, max(total, 1) - start)))
    flags = np.memmap(marks, bool, "r+")
    mapped.watch(marks, len(flags))
    held: list[np.ndarray] = []
    size = first = 0
    for column in columns:
        held.append(np.stack([column, np.arange(first, first + len(column), dtype=np.uint64)], axis=1))
        size, first = size + len(column), first + len(column)
        if size >= BUCKET and buckets > 1:
            # Drop repetitions first, so that a line with millions of copies does not fill its bucket.
            _spread(_mark_repeated(np.concatenate(held), flags), buckets, scratch)
            held, size = [], 0
    rest = np.concatenate(held) if held else np.zeros((0, 2), np.uint64)
    rest = _mark_repeated(rest, flags)
    if buckets > 1:
        _spread(rest, buckets, scratch)
        for bucket in range(buckets):
            path = scratch / f"{bucket}.bucket"
            _mark_repeated(np.fromfile(path, np.uint64).reshape(-1, 2), flags)
            path.unlink()
    return flags[:total]


def _spread(entries: np.ndarray, buckets: int, scratch: Path) -> None:
    """Append each entry to the file that its number belongs to, in the order of places."""
    entries = entries[np.argsort(entries[:, 1])]
    owners = entries[:, 0] % np.uint64(buckets)
    order = np.argsort(owners, kind="stable")
    edges = np.searchsorted(owners[order], np.arange(buckets + 1, dtype=np.uint64))
    for bucket in range(buckets):
        with open(scratch / f"{bucket}.bucket", "ab") as file:
            file.write(np.ascontiguousarray(entries[order[edges[bucket] : edges[bucket + 1]]]).data)


def _mark_repeated(entries: np.ndarray, flags: np.ndarray) -> np.ndarray:
    """Set the flags of ``entries`` (n, 2), a number and its place in rising order, that repeat an earlier one; returns
    the others."""
    entries = entries[np.argsort(entries[:, 0], kind="stable")]
    again = np.zeros(len(entries), bool)
    again[1:] = entries[1:, 0] == entries[:-1, 0]
    flags[entries[again, 1].astype(np.int64)] = True
    return entries[~again]
