"""Lines of text, rows of delimited files and values of JSON; the dialect of a delimited file is detected.

A line ends with ``\\n`` or ``\\r\\n``; with ``\\r`` if the beginning of the file has no ``\\n``. In a quoted file cells
are as in RFC 4180: a line end within quotes is part of the cell, two quotation marks mean one.
"""

from __future__ import annotations

import csv
import functools
import io
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import IO, Any, Literal, NamedTuple

from encoderlab.errors import DataError
from encoderlab.records.opening import File, errors_of

SEPARATORS = {"\t": "tab", ",": "comma", ";": "semicolon", "|": "vertical bar"}
MAX_RECORD = 64 << 20  # characters of the longest cell
SAMPLE, SAMPLE_SIZE = 200, 4 << 20  # rows that decide about the separator, and characters of them
SURE = 0.8  # share of these rows that must agree on another separator than the usual one

_REMEDY = "close the quotation or double the quotation marks in it"
csv.field_size_limit(MAX_RECORD)  # the default of 128 KiB refuses long texts
Errors = Literal["strict", "surrogateescape"]


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """The dialect of a delimited file. Unless ``quoted``, a quotation mark is an ordinary character (GLUE)."""

    separator: str
    quoted: bool


class TableRow(NamedTuple):
    """The cells of a row, and the line of the file on which it starts, from 1. An unreadable row has a ``problem`` and
    no cells; later rows are still read.
    """

    line: int
    cells: list[str]
    problem: str = ""


def open_text(file: File, newline: str | None = None, errors: Errors = "strict") -> IO[str]:
    """UTF-8 text, without a byte order mark; ``newline`` None chooses the end of lines by the file's beginning.

    Raises:
        DataError: the file cannot be read, or its first bytes are not those of UTF-8 text.
    """
    head = file.head()
    if newline is None:
        newline = "\r" if b"\r" in head and b"\n" not in head else "\n"
    with errors_of(str(file)):
        return io.TextIOWrapper(file.open(), encoding="utf-8-sig", errors=errors, newline=newline)


def lines(file: File) -> Iterator[tuple[int, str]]:
    """Lines without line ends, numbered from 1.

    Raises:
        DataError: the file cannot be read, or a line is not UTF-8.
    """
    with errors_of(str(file)), open_text(file) as text:
        try:
            for number, line in enumerate(text, start=1):
                yield number, line.rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise _not_utf8(file, error) from None


def json_value(text: str) -> Any:
    """The value of a JSON text.

    Raises:
        ValueError: it is not JSON, or nested too deeply.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def rows(file: File, dialect: Dialect, errors: Errors = "strict") -> Iterator[TableRow]:
    """The rows that are not empty, without Excel's first line that names the separator (``sep=;``).

    Args:
        errors: ``surrogateescape`` turns bytes that are not UTF-8 into halves of surrogate pairs.

    Raises:
        DataError: the file cannot be read, a byte is not UTF-8, a quotation is never closed, or a cell is too long.
    """
    separator = dialect.separator
    with errors_of(str(file)):
        try:
            every = _quoted(file, dialect, errors) if dialect.quoted else _unquoted(file, dialect, errors)
            first = next(every, None)
            if first is not None and (first.line > 1 or separator.join(first.cells).strip('"') != f"sep={separator}"):
                yield first
            yield from every
        except UnicodeDecodeError as error:
            raise _not_utf8(file, error) from None


def _unquoted(file: File, dialect: Dialect, errors: Errors) -> Iterator[TableRow]:
    with open_text(file, errors=errors) as text:
        for number, line in enumerate(iter(functools.partial(text.readline, MAX_RECORD + 1), ""), start=1):
            if len(line) > MAX_RECORD:
                raise DataError(f"{file}: line {number}: more than {MAX_RECORD >> 20} MB; expected a row per line")
            if line := line.rstrip("\r\n"):
                yield TableRow(number, line.split(dialect.separator))


def _quoted(file: File, dialect: Dialect, errors: Errors) -> Iterator[TableRow]:
    with open_text(file, "", errors) as text:
        reader = csv.reader(text, delimiter=dialect.separator, strict=True)
        while True:
            start = reader.line_num + 1
            try:
                cells = next(reader, None)
            except csv.Error as error:
                if "expected after" not in str(error):  # an open quote may have swallowed any number of rows
                    raise DataError(f"{file}:{start}: {error}; is a quote left open? {_REMEDY}") from None
                yield TableRow(start, [], f"{error}; {_REMEDY}")
                continue
            if cells is None:
                return
            if cells:
                yield TableRow(start, cells)


def find_dialect(file: File, usual: str) -> Dialect:
    """The dialect of a delimited file.

    The separator is ``usual`` unless more of the first rows agree on their number of columns with another one. A file
    with tabs is quoted if more of its rows agree then, if all of its first row is in quotes, or if a quoted cell has
    doubled quotation marks; with other separators, quotation marks always quote. With tabs the whole file is read,
    because the first line end within quotes may come late.

    Raises:
        DataError: the file cannot be read, or its first bytes are not those of UTF-8 text.
    """
    state = file.path.stat() if file.path.exists() else None
    return _find_dialect(file, usual, None if state is None else (state.st_size, state.st_mtime_ns))


@functools.lru_cache(maxsize=64)
def _find_dialect(file: File, usual: str, state: object) -> Dialect:
    """:func:`find_dialect`, once for a file; ``state`` is its size and time."""
    agreement = {separator: _agreement(file, separator, quoted=True) for separator in SEPARATORS}
    agreement["\t"] = max(agreement["\t"], _agreement(file, "\t", quoted=False))
    best = max(SEPARATORS, key=lambda separator: (round(agreement[separator], 1), separator == usual))
    best = best if agreement[best] >= SURE or agreement[best] > agreement[usual] > 0 else usual
    return Dialect(separator=best, quoted=best != "\t" or _is_quoted(file))


def _agreement(file: File, separator: str, *, quoted: bool) -> float:
    """Share of the first rows with at least the most frequent number of columns; 0 if that number is one, or if the
    first row has fewer.
    """
    sizes: list[int] = []
    characters = 0
    for row in islice(_readable(file, Dialect(separator=separator, quoted=quoted)), SAMPLE):
        sizes.append(len(row.cells))
        characters += sum(map(len, row.cells))
        if characters > SAMPLE_SIZE:
            break
    most = Counter(sizes).most_common(1)[0][0] if sizes else 1
    return sum(size >= most for size in sizes) / len(sizes) if 1 < most <= sizes[0] else 0.0


def _readable(file: File, dialect: Dialect) -> Iterator[TableRow]:
    """The rows up to the first that cannot be read."""
    file.head()  # refuse binary files
    try:
        for row in rows(file, dialect, "surrogateescape"):
            if row.problem:
                return
            yield row
    except DataError:
        return


def _is_quoted(file: File) -> bool:
    """Whether a file with tabs is quoted, by the rules of :func:`find_dialect`."""
    plain, quoted = (Dialect(separator="\t", quoted=flag) for flag in (False, True))
    if not any(cell.startswith('"') for row in rows(file, plain, "surrogateescape") for cell in row.cells):
        return False
    sizes = {dialect: Counter[int]() for dialect in (plain, quoted)}
    try:
        for dialect, counts in sizes.items():
            for row in rows(file, dialect, "surrogateescape"):
                if row.problem:
                    return False  # not written with quotes throughout: the marks are characters
                counts[len(row.cells)] += 1
    except DataError:
        return False
    unlike_first = [counts.total() - counts[next(iter(counts))] for counts in sizes.values()]
    if unlike_first[0] != unlike_first[1]:
        return unlike_first[1] < unlike_first[0]
    if all(len(cell) > 1 and cell[0] == cell[-1] == '"' for cell in next(rows(file, plain, "surrogateescape")).cells):
        return True
    cells = (cell for row in rows(file, plain, "surrogateescape") for cell in row.cells)
    return any(len(cell) > 3 and cell[0] == cell[-1] == '"' and '""' in cell[1:-1] for cell in cells)


def _not_utf8(file: File, error: UnicodeDecodeError) -> DataError:
    with file.open() as opened:  # again from the start, since text is decoded ahead of the line that is read
        lines = enumerate(opened, start=1)
        number = next((number for number, line in lines if line.decode(errors="ignore").encode() != line), 0)
    return DataError(f"{file}:{number}: not UTF-8 ({error.reason}); convert the file to UTF-8")
