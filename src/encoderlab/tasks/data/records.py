"""Records of a file: rows of a delimited table, lines of JSON, elements of a JSON list, rows of a Parquet file.

A record is a row number (a line of the file, from 1) and its fields by column name; the columns of a table without a
header are called ``0``, ``1``, ... Plain and compressed files are read as a stream, except a JSON document (a list, or
SQuAD's nested form), which is loaded whole. Every reader here raises :class:`DataError` for a file that is missing,
damaged or not UTF-8.
"""

from __future__ import annotations

import csv
import io
import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import IO, Any

from encoderlab.corpus.opening import COMPRESSED, errors_of, open_file, open_parquet
from encoderlab.corpus.sources import MARKS
from encoderlab.errors import DataError
from encoderlab.tasks.data.examples import Remarks

csv.field_size_limit(min(sys.maxsize, 2**31 - 1))  # the default of 128 KiB refuses long texts

RECORDS = (".csv", ".tsv", ".json", ".jsonl", ".parquet")
_NO_TEXT = {  # by the first bytes
    **{mark: f"{encoding} text; save it as UTF-8" for mark, encoding in MARKS.items()},
    b"PK\x03\x04": "a ZIP archive or an Excel sheet; unpack it, or save the sheet as CSV",
    b"\x1f\x8b": "compressed by gzip, which its name does not say; add .gz to it",
}
_SEPARATORS = {"\t": "tab", ",": "comma", ";": "semicolon", "|": "vertical bar"}
_SAMPLE = 200  # records that decide about separator and quoting


@dataclass(frozen=True, slots=True)
class Record:
    """``row`` is a line of the file, from 1; ``number`` counts records from 0, those that are left out included."""

    row: int
    fields: dict[str, Any]
    number: int


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """How a delimited file is written. Unless ``quoted``, a quotation mark is a character like any other (GLUE)."""

    separator: str
    quoted: bool


def is_file_name(text: str) -> bool:
    """Whether ``text`` is meant as the name of a data file, and not as a text."""
    path = Path(text)
    return suffix(path) in (*RECORDS, ".txt") or path.suffix.lower() in COMPRESSED


def suffix(path: Path) -> str:
    """The format's suffix in lower case, without the one of the compression: ``.tsv`` for ``train.tsv.gz``."""
    return Path(path.stem).suffix.lower() if path.suffix.lower() in COMPRESSED else path.suffix.lower()


def open_text(path: Path, newline: str | None = "\n") -> IO[str]:
    """UTF-8 text of a plain or compressed file, without a byte order mark.

    Raises:
        DataError: there is no such file, or its first bytes are not those of UTF-8 text.
    """
    with errors_of(str(path)):
        file = open_file(path)
        start = file.peek(1000)[:1000]
    for mark, found in _NO_TEXT.items():
        if start.startswith(mark):
            raise DataError(f"{path}: {found}")
    if start.count(0) > len(start) / 4:
        raise DataError(f"{path}: every other byte is NUL, as in UTF-16 text; save it as UTF-8")
    return io.TextIOWrapper(file, encoding="utf-8-sig", newline=newline)


def lines(path: Path) -> Iterator[tuple[int, str]]:
    """Lines without line ends, numbered from 1."""
    with errors_of(str(path)), open_text(path) as file:
        try:
            for row, line in enumerate(file, start=1):
                yield row, line.rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise _not_utf8(path, error) from None


def columns(path: Path, remarks: Remarks) -> tuple[str, ...]:
    """Column names of a table (its first row) or keys of the first record; () for other files, as nested JSON or a word
    per line.
    """
    kind = suffix(path)
    if kind in (".csv", ".tsv", ".txt") and not _is_json_text(path):
        first = next(rows(path, dialect(path, remarks)), None)
        return tuple(first[1]) if first else ()
    if kind == ".parquet":
        with errors_of(str(path)):
            return tuple(open_parquet(path).schema_arrow.names)
    if kind in (".json", ".jsonl", ".ndjson", ".txt"):
        first_record = next(iter(records(path)), None) if not is_document(path) else None
        return tuple(first_record.fields) if first_record else ()
    return ()


def records(path: Path) -> Iterator[Record]:
    """Records of a JSON Lines, JSON list or Parquet file.

    Raises:
        DataError: a line or an element that is no JSON object.
    """
    if suffix(path) == ".parquet":
        yield from _parquet_records(path)
    elif starts_with(path, "["):
        yield from _json_elements(path)
    else:
        yield from _json_lines(path)


def _parquet_records(path: Path) -> Iterator[Record]:
    for row, fields in enumerate(_parquet_rows(path), start=1):
        try:
            texts = {name: value.decode() if isinstance(value, bytes) else value for name, value in fields.items()}
        except UnicodeDecodeError as error:
            raise DataError(f"{path}:{row}: not UTF-8 ({error.reason}); convert the column to text") from None
        yield Record(row, texts, row - 1)


def _json_elements(path: Path) -> Iterator[Record]:
    for row, item in enumerate(document(path), start=1):
        if not isinstance(item, dict):
            raise DataError(f"{path}: element {row} is {type(item).__name__}, expected an object with fields")
        yield Record(row, item, row - 1)


def _json_lines(path: Path) -> Iterator[Record]:
    number = 0
    for row, line in lines(path):
        if not line.strip():
            continue
        try:
            item = json.loads(line)
        except ValueError as error:
            raise DataError(f"{path}:{row}: not valid JSON ({error}); write one object per line") from None
        if not isinstance(item, dict):
            raise DataError(f"{path}:{row}: {type(item).__name__}, expected an object with named fields")
        yield Record(row, item, number)
        number += 1


def document(path: Path) -> Any:
    """A file that is one JSON value."""
    text = "\n".join(line for _, line in lines(path))
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise DataError(f"{path}:{error.lineno}: not valid JSON ({error.msg})") from None


def is_document(path: Path) -> bool:
    """Whether a JSON file is one value over any number of lines, or a list of lists, rather than records. A name that
    ends in .jsonl or .ndjson promises records.
    """
    if suffix(path) in (".jsonl", ".ndjson"):
        return False
    if starts_with(path, "["):
        return not isinstance((document(path) or [None])[0], dict)
    first = next((line for _, line in lines(path) if line.strip()), "")
    try:
        item = json.loads(first)
    except ValueError:
        return True
    return isinstance(item, dict) and isinstance(item.get("data"), list)


def table(
    path: Path, names: Sequence[str] | None, remarks: Remarks, *, needed: int = 0, quoted: bool | None = None
) -> Iterator[Record]:
    """Rows of a delimited file.

    Args:
        names: the columns if the first row is a header, None if it is data.
        needed: columns that a row of a file without a header must have.
        quoted: of a tab-separated file; None finds out. With other separators quotation marks always quote.

    Columns beyond the header are dropped; rows with too few columns are left out. Both are counted in ``remarks``.

    Raises:
        DataError: more than half of the rows are too long, more than one in a hundred are too short, or a quotation is
            never closed.
    """
    style = dialect(path, remarks, quoted)
    total, long, short, first_short = 0, 0, 0, ""
    start = 1 if names is not None else 0
    for number, (row, cells) in enumerate(rows(path, style), start=-start):
        if number < 0:
            continue
        total += 1
        width = len(names) if names is not None else needed
        if len(cells) < width:
            short += 1
            first_short = first_short or f"{path}:{row}: {len(cells)} columns, expected {width}"
            remarks.add(f"fewer than {width} columns; left out", row)
            continue
        if names is not None and len(cells) > width:
            long += 1
            remarks.add(f"more than {width} columns; the rest is dropped", row)
        yield Record(row, dict(zip(names or map(str, range(len(cells))), cells, strict=False)), number)
    if long > total / 2:
        raise DataError(
            f"{path}: {long:,} of {total:,} rows have more columns than the {width} of the header; check the separator "
            f"({_SEPARATORS[style.separator]}) and the quotes, or name every column"
        )
    if short > (total + start) / 100:
        more = f" (and {short - 1:,} more rows)" if short > 1 else ""
        raise DataError(f"{first_short}{more}; check the separator ({_SEPARATORS[style.separator]}) and the quotes")


def rows(path: Path, style: Dialect) -> Iterator[tuple[int, list[str]]]:
    """Cells of every row that is not empty, with the line on which it starts."""
    if not style.quoted:
        for row, line in lines(path):
            if line:
                yield row, line.split(style.separator)
        return
    with errors_of(str(path)), open_text(path, newline="") as file:
        reader = csv.reader(file, delimiter=style.separator, strict=True)
        row = 1
        try:
            for cells in reader:
                if cells:
                    yield row, cells
                row = reader.line_num + 1
        except csv.Error as error:
            raise DataError(f"{path}:{row}: {error}; close the quotation or double the quotation marks in it") from None
        except UnicodeDecodeError as error:
            raise _not_utf8(path, error) from None


def dialect(path: Path, remarks: Remarks, quoted: bool | None = None) -> Dialect:
    """Separator and quoting of a delimited file, from its name and its rows.

    The separator is that of the suffix, unless more of the rows agree on their number of columns with another one. A
    tab-separated file is as ``quoted`` says; if that is None, it is quoted if more of its rows agree then, if all of
    its first row is in quotes, or if a quoted cell holds doubled quotation marks.
    """
    usual = "," if suffix(path) == ".csv" else "\t"
    best = max(_SEPARATORS, key=lambda separator: (round(_agreement(path, separator), 1), separator == usual))
    if best != usual:
        remarks.note(f"columns are separated by {_SEPARATORS[best]}, not by {_SEPARATORS[usual]} as the name says")
    if best != "\t":
        return Dialect(separator=best, quoted=True)
    return Dialect(separator=best, quoted=_is_quoted(path, path.stat().st_mtime_ns) if quoted is None else quoted)


def _agreement(path: Path, separator: str) -> float:
    """Share of the first rows with at least the most frequent number of columns; 0 if that number is one, or if the
    first row has fewer.
    """
    sizes = _sizes(path, Dialect(separator=separator, quoted=separator != "\t"), _SAMPLE)
    most = Counter(sizes).most_common(1)[0][0] if sizes else 1
    return sum(size >= most for size in sizes) / len(sizes) if 1 < most <= sizes[0] else 0.0


def _sizes(path: Path, style: Dialect, count: int | None = None) -> list[int]:
    """Numbers of columns of the first ``count`` rows, up to one that cannot be read."""
    sizes = []
    try:
        for _, cells in islice(rows(path, style), count):
            sizes.append(len(cells))
    except DataError:
        pass
    return sizes


@lru_cache(maxsize=16)
def _is_quoted(path: Path, modified: int) -> bool:
    """Whether a tab-separated file is quoted, by the rules of :func:`dialect`. It is read as a whole, since the first
    line end within quotes may come late; ``modified`` is the time of its last change, for the cache.
    """
    plain, quoted = (Dialect(separator="\t", quoted=flag) for flag in (False, True))
    if not any(cell.startswith('"') for _, cells in rows(path, plain) for cell in cells):
        return False
    try:
        sizes = [Counter(len(cells) for _, cells in rows(path, style)) for style in (plain, quoted)]
    except DataError:
        return False  # not written with quotes throughout: the marks are characters
    strange = [found.total() - found[next(iter(found))] for found in sizes]  # rows unlike the first
    if strange[0] != strange[1]:
        return strange[1] < strange[0]
    if all(len(cell) > 1 and cell[0] == cell[-1] == '"' for cell in next(rows(path, plain))[1]):
        return True
    cells = (cell for _, row in rows(path, plain) for cell in row)
    return any(len(cell) > 3 and cell[0] == cell[-1] == '"' and '""' in cell[1:-1] for cell in cells)


def starts_with(path: Path, char: str) -> bool:
    """Whether ``char`` is the first character of a text file that is no white space."""
    return next((line.lstrip()[:1] for _, line in lines(path) if line.strip()), "") == char


def _is_json_text(path: Path) -> bool:
    """Whether a ``.txt`` file holds a JSON object, as RACE's do."""
    if suffix(path) != ".txt" or not starts_with(path, "{"):
        return False
    try:
        return isinstance(json.loads(next(line for _, line in lines(path) if line.strip())), dict)
    except ValueError:
        return False


def _not_utf8(path: Path, error: UnicodeDecodeError) -> DataError:
    with open_file(path) as file:  # again from the start, since text is decoded ahead of the line that is read
        row = next((row for row, line in enumerate(file, start=1) if not _is_utf8(line)), 0)
    return DataError(f"{path}:{row}: not UTF-8 ({error.reason}); convert the file to UTF-8")


def _is_utf8(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True


def _parquet_rows(path: Path) -> Iterator[dict[str, Any]]:
    with errors_of(str(path)):
        for group in open_parquet(path).iter_batches(1024):
            yield from group.to_pylist()
