"""Cuts sources into blocks that end where a document ends, so that one process reads and others parse.

Where the cuts fall depends on the bytes of the source alone, not on where reading began.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from encoderlab.corpus.sources import Source, readable_name, table_rows
from encoderlab.errors import DataError
from encoderlab.records.opening import BLOCK, column_batches, errors_of
from encoderlab.records.reading import MAX_RECORD

MAX_PENDING = 4 * BLOCK  # bytes after which a text is cut even where no document ends


@dataclass(frozen=True)
class Position:
    """A place in a source between two blocks, from which reading can continue.

    ``offset`` counts bytes of the decompressed source, or records for CSV, TSV and Parquet. ``line`` is the number of
    the line that starts here. ``read`` is how far the source had been read when the cut was made; where the next cuts
    fall depends on it.
    """

    offset: int = 0
    line: int = 1
    read: int = 0


START = Position()


@dataclass(frozen=True, kw_only=True)
class SourceBlock:
    """A part of a source that ends where a document ends.

    A block of records (CSV, TSV, Parquet) holds JSON per line: a text, or ``{"problem": ...}`` for a row without one;
    ``lines`` are the lines of the file on which they start, or the rows of a Parquet file.
    """

    source: Source
    data: bytes
    start: Position
    end: Position
    lines: tuple[int, ...] = ()


def read_blocks(source: Source, start: Position = START) -> Iterator[SourceBlock]:
    """The blocks of a source from ``start`` (the ``end`` of an earlier block) on.

    Memory: 16 MB for text, 64 MB for JSON lines. A compressed source is decompressed again up to ``start``.

    Raises:
        DataError: the file cannot be read, is truncated or damaged, or holds a record that is too long.
    """
    with errors_of(source.name):
        if source.format in ("csv", "tsv", "parquet"):
            yield from _record_blocks(source, start)
        else:
            yield from _byte_blocks(source, start)


def _byte_blocks(source: Source, start: Position) -> Iterator[SourceBlock]:
    with source.file.open() as file:
        _skip(file, start.offset)
        pending = file.read(start.read - start.offset)
        while data := file.read(BLOCK):
            pending += data
            if cut := _cut(source, pending):
                read = start.offset + len(pending)
                data, pending = pending[:cut], pending[cut:]
                end = Position(start.offset + cut, start.line + data.count(b"\n"), read)
                yield SourceBlock(source=source, data=data, start=start, end=end)
                start = end
    if pending:
        read = start.offset + len(pending)
        end = Position(read, start.line + pending.count(b"\n"), read)
        yield SourceBlock(source=source, data=pending, start=start, end=end)


def _skip(file: Any, size: int) -> None:
    if file.seekable():
        file.seek(size)
        return
    while size > 0 and (data := file.read(min(size, BLOCK))):
        size -= len(data)


def _cut(source: Source, data: bytes) -> int:
    """How many of these bytes can be released: up to the last end of a document, 0 to wait for more."""
    if source.format == "jsonl":
        cut = data.rfind(b"\n") + 1
        if not cut and len(data) > MAX_RECORD:
            raise DataError(f"{source.name}: a line of more than {MAX_RECORD >> 20} MB; expected a record per line")
        return cut
    if source.format == "text":
        cut = max(data.rfind(b"\n\n") + 2, data.rfind(b"\n\r\n") + 3)
        if cut > 2:
            return cut
    if len(data) < MAX_PENDING:
        return 0
    cut = data.rfind(b"\n") + 1 or data.rfind(b" ") + 1
    if not cut:  # no white space at all: between two characters
        cut = len(data)
        while cut > len(data) - 4 and 0x80 <= data[cut - 1] < 0xC0:
            cut -= 1
        cut -= 1
    return cut


def _record_blocks(source: Source, start: Position) -> Iterator[SourceBlock]:
    records = _parquet_texts(source) if source.format == "parquet" else _table_texts(source)
    lines: list[bytes] = []
    numbers: list[int] = []
    size = 0
    for record, (number, text) in enumerate(itertools.islice(records, start.offset, None), start.offset + 1):
        data = json.dumps(text).encode()
        lines.append(data)
        numbers.append(number)
        size += len(data) + 1
        if size >= BLOCK:
            end = Position(record, record + 1)
            yield SourceBlock(source=source, data=b"\n".join(lines), start=start, end=end, lines=tuple(numbers))
            lines, numbers, size, start = [], [], 0, end
    if lines:
        end = Position(start.offset + len(lines), start.line + len(lines))
        yield SourceBlock(source=source, data=b"\n".join(lines), start=start, end=end, lines=tuple(numbers))


def _table_texts(source: Source) -> Iterator[tuple[int, str | dict[str, str]]]:
    """The line and the text of each row, or what is wrong with it."""
    rows = table_rows(source)
    column, width = source.field or 0, sys.maxsize  # of a row, where a header says so
    if isinstance(column, str):
        header = next((row.cells for row in rows if row.cells), [])
        column, width = [readable_name(name) for name in header].index(column), len(header)
    for line, cells, problem in rows:
        cut = any(cells[width:])  # by a separator in the text
        if problem:
            yield line, {"problem": f"line {line}: {problem}"}
        elif len(cells) > column and not cut:
            yield line, cells[column]
        else:
            expected = f"the header has {width}" if cut else f"the text is in column {column} (from 0)"
            yield line, {"problem": f"line {line} has {len(cells)} columns, {expected}"}


def _parquet_texts(source: Source) -> Iterator[tuple[int, Any]]:
    batches = column_batches(source.file, [str(source.field)])
    texts = itertools.chain.from_iterable(batch.column(0).to_pylist() for batch in batches)
    yield from ((number, text or "") for number, text in enumerate(texts, 1))
