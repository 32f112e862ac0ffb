"""The input as stretches, each of which can be read without the others: whole sources, or a range of one.

The division depends only on the names and sizes of the sources, so all machines divide them in the same way before
reading. Plain text, Markdown and JSON lines are divided into ranges of bytes. Compressed files must be read from the
beginning, and so must CSV and TSV, because a quoted cell may have line ends, and Parquet and Arrow.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from encoderlab.corpus import blocks
from encoderlab.corpus.blocks import START, Position, SourceBlock, range_start, read_blocks
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
    """Sources ``first`` to ``end``, or range ``part`` of :data:`~encoderlab.corpus.blocks.RANGE` bytes of one.

    ``size`` is its approximate number of bytes.
    """

    number: int
    first: int
    end: int
    size: int
    part: int | None = None
    is_last: bool = True  # of the ranges of its source

    @property
    def is_long(self) -> bool:
        """Whether it is longer than a range, because it must be read from the beginning."""
        return self.part is None and self.size > blocks.RANGE

    def follows(self, other: SourceStretch) -> bool:
        """Whether the other is the range before this one."""
        return self.part is not None and other.part == self.part - 1 and other.first == self.first

    def holds(self, block: SourceBlock) -> bool:
        """Whether a block of its first source is in it, or before it."""
        return self.part is None or self.is_last or block.end.read <= (self.part + 1) * blocks.RANGE


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
        if size > blocks.RANGE and is_divisible(source):
            starts = range(0, size, blocks.RANGE)
            for part, start in enumerate(starts):
                is_last, length = part == len(starts) - 1, min(blocks.RANGE, size - start)
                stretches.append(SourceStretch(number + part, index, index + 1, length, part, is_last))
        elif last and last.part is None and last.size + size <= blocks.RANGE:
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
    if first.part is not None:
        source = sources[first.first]
        position = start.position if start else range_start(source, first.part * blocks.RANGE)
        stop = None if last.is_last or last.part is None else (last.part + 1) * blocks.RANGE
        yield from ((first.first, block) for block in read_blocks(source, position, stop))
        return
    for index in range(start.source if start else first.first, first.end):
        position = start.position if start and index == start.source else START
        yield from ((index, block) for block in read_blocks(sources[index], position))
