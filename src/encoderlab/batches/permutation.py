"""Targets and orders of XLNet's permutation language model (Yang et al. 2019, sections 2.2-2.3; XLNet's data code).

A row has one or two parts: with memory reuse, the tokens that become the memory of the next row, and the rest. Each
part has its own number of targets and its own order; a part sees everything in earlier parts and nothing in later
parts. The order of all parts fits into two numbers per position, so no (L, L) mask is made here:

    i may see j   iff   query_rank[i] > key_rank[j]
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from encoderlab.batches.rows import Row
from encoderlab.config import Bounded, Count, Short
from encoderlab.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Targets(Bounded):
    """Which tokens are predicted, and in what order.

    Args:
        count: targets per row, divided among its parts (85 of 512: one in K = 6, the paper's partial prediction). At
            most half of the tokens of a short row are targets.
        longest: spans have n = 1 .. longest tokens, p(n) proportional to 1/n.
        context: a span of n is at a random place within n * context tokens (mask_alpha / mask_beta of the release).
        block: positions of a part are permuted within blocks of this size, by one permutation for all blocks; blocks
            stay in reading order (perm_size). None: the whole part.
        whole_words: count the length of a span in words. The release was meant to, but counts pieces, and its models
            were trained that way.
    """

    count: Count = 85
    longest: Short = 5
    context: Short = 6
    block: Count | None = None
    whole_words: bool = False

    def check(self, length: int, reuse: int) -> None:
        """Refuse settings that leak or that rows cannot meet.

        Raises:
            ConfigError: a block longer than the reused part (the next row's memory would have seen that row's targets),
            or more targets than half of a part's tokens.
        """
        if self.block is not None and reuse and self.block > reuse:
            raise ConfigError(
                f"permutation block {self.block} is longer than the {reuse} reused tokens; choose at most {reuse}"
            )

        def fits(count: int) -> bool:
            return all(2 * quota <= size for size, quota in zip(*_parts(length, reuse, count), strict=True))

        if not fits(self.count):
            most = max(filter(fits, range(self.count)))
            parts = f"the {reuse} reused and the {length - reuse} other" if reuse else f"{length}"
            remedy = f"set objective.targets.count to at most {most}" if most else "set format.reuse to at least 2"
            raise ConfigError(
                f"{self.count} targets among {parts} tokens of a row leave too little context: at most half of each "
                f"may be targets; {remedy}"
            )


@dataclass(frozen=True, slots=True)
class Permuted:
    """A row's targets and order. Targets ascend; there may be fewer than ``count``, because special tokens are never
    targets.
    """

    positions: np.ndarray  # (k,) int64
    targets: np.ndarray  # (k,) int64: the ids at these positions
    query_rank: np.ndarray  # (n,) int32
    key_rank: np.ndarray  # (n,) int32


def permute(row: Row, targets: Targets, reuse: int, rng: np.random.Generator) -> Permuted:
    """Targets and order of a row whose first ``reuse`` tokens are a separate part; takes about 100 microseconds.

    In a row that is read backwards (label ``backwards``), spans are drawn in reading order.
    """
    sizes, quotas = _parts(len(row), reuse, targets.count)
    backwards = bool(row.labels.get("backwards", 0))
    chosen, orders, start = [], [], 0
    for size, quota in zip(sizes, quotas, strict=True):
        starts = row.word_starts[start : start + size]
        chosen.append(sample_spans(starts, min(quota, size // 2), targets, rng, backwards=backwards))
        orders.append(rng.permutation(min(targets.block or size, size)))
        start += size
    return arrange(row.ids, np.concatenate(chosen), row.special, sizes, orders)


def sample_spans(
    word_starts: np.ndarray, quota: int, targets: Targets, rng: np.random.Generator, *, backwards: bool = False
) -> np.ndarray:
    """Exactly ``quota`` positions, (n,) bool.

    Spans from left to right, each in a context ``context`` times as long, then single positions anywhere until the
    quota is reached. A span begins at the start of a word.
    """
    size = len(word_starts)
    if backwards:
        word_starts = word_starts[::-1]
    begins = np.flatnonzero(word_starts).tolist()
    weights = [1 / n for n in range(1, targets.longest + 1)]
    limits = [limit / sum(weights) for limit in accumulate(weights)][:-1]
    chosen = np.zeros(size, bool)
    place = taken = 0
    while place < size and taken < quota:
        n = min(bisect_right(limits, rng.random()) + 1, quota - taken)
        context = n * targets.context
        left = int(rng.integers(context))
        word = bisect_right(begins, place + left - 1)
        if word == len(begins):
            break
        begin = begins[word]
        if targets.whole_words:
            end = begins[word + n] if word + n < len(begins) else size
            end = min(end, begin + quota - taken)
        else:
            end = begin + n
        if end >= size:
            break
        chosen[begin:end] = True
        taken += end - begin
        place = end + context - left
    while taken < quota:
        place = int(rng.integers(size))
        taken += not chosen[place]
        chosen[place] = True
    return chosen[::-1] if backwards else chosen


def arrange(
    ids: np.ndarray, chosen: np.ndarray, special: np.ndarray, sizes: Sequence[int], orders: Sequence[np.ndarray]
) -> Permuted:
    """The order in which the ``chosen`` tokens, (n,) bool, are predicted.

    Tokens that are neither chosen nor special are context: all of them come first and see each other. Chosen tokens
    follow in the given order (``orders``: for each part a permutation, repeated for every block of its length); each
    sees the context and earlier chosen tokens, but not itself. Special tokens also have a place in that order, and see
    themselves.
    """
    later = chosen | special
    target = chosen & ~special
    ranks, floors, floor = [], [], 0
    for size, order in zip(sizes, orders, strict=True):
        index = np.arange(size)
        ranks.append(order[index % len(order)] + index // len(order) * len(order))
        floors.append(np.full(size, floor))
        # The highest rank of a query in this part is floor + size, so queries do not see the next part's context.
        floor += (-(-size // len(order)) * len(order)) + 1
    rank, base = np.concatenate(ranks), np.concatenate(floors)
    key_rank = np.where(later, base + rank, base - 1)
    query_rank = np.where(target, base + rank, np.where(special, base + rank + 1, base))
    positions = np.flatnonzero(target)
    return Permuted(positions, ids[positions], query_rank.astype(np.int32), key_rank.astype(np.int32))


def _parts(length: int, reuse: int, count: int) -> tuple[list[int], list[int]]:
    """Sizes of the parts of a row, and the number of targets in each."""
    if not reuse:
        return [length], [count]
    return [reuse, length - reuse], [count - count // 2, count // 2]
