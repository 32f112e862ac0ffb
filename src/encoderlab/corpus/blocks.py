"""Cuts sources into blocks that end where a document ends, so that one process reads and others parse.

Cuts depend only on the bytes near them. A plain file of lines can therefore be read from any range on, without the text
before: after every :data:`BLOCK` bytes it is cut at the last end of a document so far. If there was none for
:data:`RANGE` bytes, it is cut at the last line end, but only at multiples of :data:`RANGE`.
"""

from __future__ import annotations

import bisect
import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from encoderlab.corpus.sources import Source, only_column, readable_name, table_rows
from encoderlab.errors import DataError
from encoderlab.records.opening import BLOCK, column_batches, errors_of
from encoderlab.records.reading import MAX_RECORD

RANGE = 4 * BLOCK  # bytes of a file that can be read separately; a multiple of a block
_LOOK = 1 << 16  # bytes in which the end of the last document is searched first
_MARK = 3  # bytes of the longest mark of an end
RECORDS = ("csv", "tsv", "parquet")  # formats that are read by records


@dataclass(frozen=True)
class Position:
    """A place in a source between two blocks, from which reading can continue.

    ``offset`` counts bytes of the decompressed source, or records for CSV, TSV and Parquet. ``read`` is how far the
    source had been read when the cut was made, as far as ``offset`` for records: the next cut is made further on.
    """

    offset: int = 0
    read: int = 0


START = Position()


@dataclass(frozen=True, kw_only=True)
class SourceBlock:
    """A part of a source that ends where a document ends.

    A block of records (CSV, TSV, Parquet) has JSON per line: a text, or ``{"problem": ...}`` for a row without one;
    ``lines`` are the lines of the file on which they start, or the rows of a Parquet file. ``start`` is the offset of
    its position.
    """

    source: Source
    data: bytes
    start: int
    end: Position
    lines: tuple[int, ...] = ()

    def line(self, index: int) -> int:
        """The number in the file of line ``index`` of the block, for messages: the file is read up to here."""
        if self.lines:
            return self.lines[index]
        with errors_of(self.source.name), self.source.file.open() as file:
            left, lines = self.start, 1
            while left > 0 and (data := file.read(min(left, BLOCK))):
                left, lines = left - len(data), lines + data.count(b"\n")
        return lines + index


def read_blocks(source: Source, start: Position = START, stop: int | None = None) -> Iterator[SourceBlock]:
    """The blocks of a source from ``start`` on (the ``end`` of an earlier block, or :func:`range_start`), without those
    that are cut after ``stop`` bytes were read, or rows of Parquet.

    Memory: 32 MB for text, 64 MB for JSON lines. A compressed source is decompressed again up to ``start``.

    Raises:
        DataError: the file cannot be read, is truncated or damaged, or has a record that is too long.
    """
    with errors_of(source.name):
        if source.format in RECORDS:
            yield from _record_blocks(source, start, stop)
        else:
            yield from _byte_blocks(source, start, stop)


def _byte_blocks(source: Source, start: Position, stop: int | None) -> Iterator[SourceBlock]:
    with source.file.open(stop) as file:
        before = min(_MARK, start.offset)  # bytes of an earlier block in which the mark of an end may begin
        _skip(file, start.offset - before)
        pending = file.read(before + start.read - start.offset)
        read = start.read
        while stop is None or read < stop:
            data = file.read(BLOCK)
            if not data:
                break
            pending += data
            read += len(data)
            if (cut := _cut(source, pending, before, read)) > before:
                end = Position(start.offset + cut - before, read)
                yield SourceBlock(source=source, data=pending[before:cut], start=start.offset, end=end)
                pending = pending[max(0, cut - _MARK) :]
                before, start = min(_MARK, cut), end
        else:
            return
    if len(pending) > before:
        yield SourceBlock(source=source, data=pending[before:], start=start.offset, end=Position(read, read))


def _skip(file: Any, size: int) -> None:
    if file.seekable():
        file.seek(size)
        return
    while size > 0 and (data := file.read(min(size, BLOCK))):
        size -= len(data)


def _cut(source: Source, data: bytes, before: int, read: int) -> int:
    """The place in ``data`` at which its block ends, 0 to wait for more; the block begins at ``before``, and ``read``
    bytes of the source were read."""
    if (cut := _document_end(source, data)) > before:
        return cut
    if source.format == "jsonl":
        if len(data) - before > MAX_RECORD:
            raise _too_long(source)
        return 0
    if len(data) - before < RANGE or read % RANGE:
        return 0
    return len(data) - RANGE + _forced_cut(data[-RANGE:])


def _too_long(source: Source) -> DataError:
    return DataError(f"{source.name}: a line of more than {MAX_RECORD >> 20} MB; expected a record per line")


def _document_end(source: Source, data: bytes) -> int:
    """The place after the last end of a document in ``data``, 0 if there is none."""
    if source.format == "jsonl":
        return data.rfind(b"\n") + 1
    if source.format == "text":
        ends = [place + len(mark) for mark in (b"\n\n", b"\n\r\n") if (place := data.rfind(mark)) >= 0]
        return max(ends, default=0)
    return 0


def _forced_cut(data: bytes) -> int:
    """The place to cut bytes without the end of a document."""
    cut = data.rfind(b"\n") + 1 or data.rfind(b" ") + 1
    if not cut:  # no white space at all: between two characters
        cut = len(data)
        while cut > len(data) - 4 and 0x80 <= data[cut - 1] < 0xC0:
            cut -= 1
        cut -= 1
    return cut


def range_start(source: Source, read: int) -> Position:
    """The start of the first block, in a plain file of lines, that is cut after more than ``read`` bytes (a multiple of
    :data:`BLOCK`); only a little of the file before it is read. Of a Parquet file, row ``read``.

    Raises:
        DataError: the file cannot be read, or has a record that is too long.
    """
    if source.format == "parquet":
        return Position(read, read)
    if read == 0:
        return START
    last = read // RANGE * RANGE  # where a text was cut for want of an end, if it was
    lowest = max(0, last - RANGE if source.format != "jsonl" else read - MAX_RECORD - 1)
    with errors_of(source.name), source.file.open() as file:
        size = _LOOK
        while True:
            size = min(size, read - lowest)
            begin = max(0, read - size - _MARK)
            file.seek(begin)
            end = begin + _document_end(source, file.read(read - begin))
            if end > max(begin, lowest):
                return Position(end, read)
            if size == read - lowest:
                break
            size *= 8
        if source.format == "jsonl" and lowest:
            raise _too_long(source)
        if source.format == "jsonl" or last == 0:
            return Position(0, read)
        file.seek(last - RANGE)
        return Position(last - RANGE + _forced_cut(file.read(RANGE)), read)


def range_starts(source: Source) -> list[int]:
    """The rows at which the ranges of a Parquet file begin."""
    starts, row, size = [0], 0, 0
    for group in source.groups:
        if size >= RANGE and group.rows and row > starts[-1]:
            starts.append(row)
            size = 0
        row, size = row + group.rows, size + group.num_bytes
    return starts


def _record_blocks(source: Source, start: Position, stop: int | None) -> Iterator[SourceBlock]:
    if source.format == "parquet":
        records, ends = _parquet_texts(source, start.offset, stop), set(range_starts(source))
    else:
        records, ends = itertools.islice(_table_texts(source), start.offset, None), set()
    lines: list[bytes] = []
    numbers: list[int] = []
    size, begin = 0, start.offset

    def block() -> SourceBlock:
        end = Position(begin + len(lines), begin + len(lines))
        return SourceBlock(source=source, data=b"\n".join(lines), start=begin, end=end, lines=tuple(numbers))

    for record, (number, text) in enumerate(records, begin + 1):
        data = json.dumps(text).encode()
        lines.append(data)
        numbers.append(number)
        size += len(data) + 1
        if size >= BLOCK or record in ends:
            yield block()
            lines, numbers, size, begin = [], [], 0, record
    if lines:
        yield block()


def _table_texts(source: Source) -> Iterator[tuple[int, str | dict[str, str]]]:
    """The line and the text of each row, or its problem."""
    rows = table_rows(source)
    column, width = source.field or 0, 0  # of a row, where a header says so
    if isinstance(column, str):
        header = next((row.cells for row in rows if row.cells), [])
        named = [readable_name(name) for name in header]
        column, width = named.index(only_column(column, named, source)), len(header)
    for line, cells, problem in rows:
        is_cut = len(cells) < width or width and any(cells[width:])  # by a line end or a separator in the text
        if problem:
            yield line, {"problem": f"line {line}: {problem}"}
        elif len(cells) <= column:
            yield line, {"problem": f"line {line} has {len(cells)} columns, the text is in column {column} (from 0)"}
        elif is_cut:
            yield line, {"problem": f"line {line} has {len(cells)} columns, the header has {width}"}
        else:
            yield line, cells[column]


def _parquet_texts(source: Source, start: int, stop: int | None) -> Iterator[tuple[int, Any]]:
    """The number and text of each row from ``start`` to ``stop``, counted from 0; only their row groups are read."""
    edges = list(itertools.accumulate((group.rows for group in source.groups), initial=0))
    first = bisect.bisect_right(edges, start) - 1 if source.groups else 0
    last = bisect.bisect_left(edges, stop) if stop is not None else len(source.groups)
    groups = range(first, last) if source.groups else None
    end = source.groups[last - 1].end if stop is not None else None
    batches = column_batches(source.file, [str(source.field)], groups, end)
    texts = itertools.chain.from_iterable(_column_texts(batch.column(0)) for batch in batches)
    rows = enumerate(texts, edges[first] + 1)
    yield from ((number, text or "") for number, text in itertools.islice(rows, start - edges[first], None))


def _column_texts(column: Any) -> list[Any]:
    """The texts of a column; bytes that are not UTF-8, which Arrow allows, become halves of surrogate pairs."""
    try:
        return column.to_pylist()
    except UnicodeDecodeError:
        return [_scalar_text(scalar) for scalar in column]


def _scalar_text(scalar: Any) -> Any:
    if not scalar.is_valid:
        return None
    if hasattr(scalar, "values"):
        return [_scalar_text(item) for item in scalar.values]
    text = getattr(scalar, "value", scalar)  # of a category
    return text.as_buffer().to_pybytes().decode(errors="surrogateescape")
