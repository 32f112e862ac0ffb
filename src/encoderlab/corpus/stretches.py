"""The input as stretches, each of which can be read without the others: whole sources, or a range of one.

The division depends only on the names and sizes of the sources and the row groups of Parquet, so all machines divide
them in the same way before reading. Plain text, Markdown and JSON lines are divided into ranges of bytes, Parquet into
ranges of row groups. Compressed files must be read from the beginning, and so must CSV and TSV, because a quoted cell
may have line ends, and Arrow.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from encoderlab.corpus import blocks
from encoderlab.corpus.blocks import START, Position, SourceBlock, range_start, range_starts, read_blocks
from encoderlab.corpus.sources import Source
from encoderlab.records.opening import COMPRESSED


@dataclass(frozen=True)
class SourcePlace:
    """A place in a stretch between two blocks; ``num_bytes`` of its text are before it."""

    source: int
    position: Position = START
    num_bytes: int = 0


@dataclass(frozen=True)
class SourceStretch:
    """Sources ``first`` to ``end``, or a range of one, from ``start`` to ``stop``: bytes, or rows of Parquet.

    ``stop`` is None for the last range. ``size`` is its approximate number of bytes.
    """

    number: int
    first: int
    end: int
    size: int
    start: int | None = None
    stop: int | None = None

    @property
    def is_long(self) -> bool:
        """Whether it is longer than a range, because it must be read from the beginning."""
        return self.start is None and self.size > blocks.RANGE

    def follows(self, other: SourceStretch) -> bool:
        """Whether the other is the range before this one."""
        return self.start is not None and other.stop == self.start and other.first == self.first

    def holds(self, block: SourceBlock) -> bool:
        """Whether a block of its first source is in it, or before it."""
        return self.stop is None or block.end.read <= self.stop


def is_divisible(source: Source) -> bool:
    """Whether a source can be read from any range on."""
    plain = source.member is None and source.path.suffix.lower() not in COMPRESSED
    return plain and source.format in ("text", "markdown", "jsonl")


def divide(sources: Sequence[Source]) -> list[SourceStretch]:
    """The sources in stretches, in their order; small ones share a stretch."""
    stretches: list[SourceStretch] = []
    for index, source in enumerate(sources):
        size = max(0, source.expected_bytes())
        number, last = len(stretches), stretches[-1] if stretches else None
        starts = list(range(0, size, blocks.RANGE)) if is_divisible(source) else range_starts(source)
        if len(starts) > 1:
            end = size if is_divisible(source) else sum(group.rows for group in source.groups)
            for part, (start, stop) in enumerate(itertools.pairwise([*starts, end])):
                length = size * (stop - start) // end
                range_stop = stop if stop < end else None
                stretches.append(SourceStretch(number + part, index, index + 1, length, start, range_stop))
        elif last and last.start is None and last.size + size <= blocks.RANGE:
            stretches[-1] = replace(last, end=index + 1, size=last.size + size)
        else:
            stretches.append(SourceStretch(number, index, index + 1, size))
    return stretches


def runs(stretches: Sequence[SourceStretch]) -> Iterator[list[SourceStretch]]:
    """The stretches in groups that are read in one pass: adjacent ranges together, every other stretch alone."""
    run: list[SourceStretch] = []
    for stretch in stretches:
        if run and not stretch.follows(run[-1]):
            yield run
            run = []
        run.append(stretch)
    if run:
        yield run


def read_run(
    sources: Sequence[Source], run: Sequence[SourceStretch], start: SourcePlace | None = None
) -> Iterator[tuple[int, SourceBlock]]:
    """The blocks of a group of :func:`runs`, from ``start`` on, each with the number of its source."""
    first, last = run[0], run[-1]
    if first.start is not None:
        source = sources[first.first]
        position = start.position if start else range_start(source, first.start)
        yield from ((first.first, block) for block in read_blocks(source, position, last.stop))
        return
    for index in range(start.source if start else first.first, first.end):
        position = start.position if start and index == start.source else START
        yield from ((index, block) for block in read_blocks(sources[index], position))
