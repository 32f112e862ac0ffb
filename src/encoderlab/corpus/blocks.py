"""Cuts sources into blocks that end where a document ends, so that one process reads and others parse.

Where the cuts fall depends on the bytes of the source alone, not on where reading began.
"""

from __future__ import annotations

import csv
import io
import itertools
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from encoderlab.corpus.opening import BLOCK, errors_of, open_parquet
from encoderlab.corpus.sources import MAX_RECORD, Source, table_rows
from encoderlab.errors import DataError

MAX_PENDING = 4 * BLOCK  # bytes after which a text is cut even where no document ends


@dataclass(frozen=True)
class Position:
    """A place in a source between two blocks, from which reading can go on.

    ``offset`` counts bytes of the decompressed source, or records for CSV, TSV and Parquet. ``line`` is the number of
    the line that starts here. ``read`` is how far the source had been read when the cut was made; where the next cuts
    fall depends on it.
    """

    offset: int = 0
    line: int = 1
    read: int = 0


START = Position()


@dataclass(frozen=True, kw_only=True)
class Block:
    """A part of a source that ends where a document ends.

    A block of records (CSV, TSV, Parquet) holds JSON per line: a text, or ``{"problem": ...}`` for a row without one.
    """

    source: Source
    data: bytes
    start: Position
    end: Position


def read_blocks(source: Source, start: Position = START) -> Iterator[Block]:
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


def _byte_blocks(source: Source, start: Position) -> Iterator[Block]:
    with source.open() as file:
        _skip(file, start.offset)
        pending = file.read(start.read - start.offset)
        while data := file.read(BLOCK):
            pending += data
            if cut := _cut(source, pending):
                read = start.offset + len(pending)
                data, pending = pending[:cut], pending[cut:]
                end = Position(start.offset + cut, start.line + data.count(b"\n"), read)
                yield Block(source=source, data=data, start=start, end=end)
                start = end
    if pending:
        read = start.offset + len(pending)
        end = Position(read, start.line + pending.count(b"\n"), read)
        yield Block(source=source, data=pending, start=start, end=end)


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


def _record_blocks(source: Source, start: Position) -> Iterator[Block]:
    records = _parquet_texts(source) if source.format == "parquet" else _table_texts(source)
    lines: list[bytes] = []
    size = 0
    for number, text in enumerate(itertools.islice(records, start.offset, None), start.offset + 1):
        data = json.dumps(text).encode()
        lines.append(data)
        size += len(data) + 1
        if size >= BLOCK:
            end = Position(number, number + 1)
            yield Block(source=source, data=b"\n".join(lines), start=start, end=end)
            lines, size, start = [], 0, end
    if lines:
        end = Position(start.offset + len(lines), start.line + len(lines))
        yield Block(source=source, data=b"\n".join(lines), start=start, end=end)


def _table_texts(source: Source) -> Iterator[str | dict[str, str]]:
    with source.open() as binary:
        rows = table_rows(source, io.TextIOWrapper(binary, "utf-8-sig", errors="surrogateescape", newline=""))
        try:
            width = sys.maxsize  # of a row, where a header says so
            if isinstance(source.field, str):
                header: list[str] = next(filter(None, rows), [])
                names = [name.encode(errors="surrogateescape").decode(errors="replace") for name in header]
                column, width = [name.strip() for name in names].index(source.field), len(names)
            else:
                column = source.field or 0
            for number in itertools.count(1):
                try:
                    if (row := next(rows, None)) is None:
                        return
                except csv.Error as error:
                    if "expected after" not in str(error):  # a quote that is left open may have swallowed any number
                        raise
                    yield {"problem": f"line {rows.line_num}: {error}; within quotes a quote is written twice"}
                    continue
                cut = any(row[width:])  # by a delimiter in the text
                if len(row) > column and not cut:
                    yield row[column]
                elif row:
                    expected = f"the header has {width}" if cut else f"the text is in column {column} (from 0)"
                    yield {"problem": f"row {number} has {len(row)} columns, {expected}"}
        except csv.Error as error:
            raise DataError(f"{source.name}: row near {rows.line_num}: {error}; is a quote left open?") from None


def _parquet_texts(source: Source) -> Iterator[Any]:
    file = open_parquet(source.path, source.member)
    groups = map(file.metadata.row_group, range(file.metadata.num_row_groups))
    row_bytes = sum(group.total_byte_size for group in groups) / max(file.metadata.num_rows, 1)
    rows = max(1, min(1024, int(BLOCK / max(row_bytes, 1))))  # of books, a thousand would not fit into memory
    for batch in file.iter_batches(batch_size=rows, columns=[source.field], use_threads=False):
        for text in batch.column(0).to_pylist():
            yield text or ""
