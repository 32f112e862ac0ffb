"""Common parts of the layouts: their interface, records of a file by columns, and single fields."""

from __future__ import annotations

import ast
import contextlib
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

from encoderlab.errors import DataError
from encoderlab.tasks.data import records as tables
from encoderlab.tasks.data.examples import Example, Remarks
from encoderlab.tasks.data.records import Record

TABLES = (".csv", ".tsv", ".txt")


class Layout:
    """How a file stores examples. Subclasses are frozen dataclasses whose fields name columns."""

    @property
    def needs(self) -> Sequence[str]:
        """The columns that every example needs."""
        return ()

    @property
    def positional(self) -> bool:
        """Whether columns are given by number, as in a table without a header."""
        return bool(self.needs) and all(name.isdecimal() for name in self.needs)

    @property
    def label_column(self) -> str | None:
        """The column of the label: None if none was found, ``""`` if the format of the file fixes it."""
        return ""

    def matches(self, columns: Sequence[str]) -> bool:
        """Whether a file with these columns has this layout.

        ``columns`` are a table's header or a record's keys; empty for other files.
        """
        if self.positional:
            return reaches(columns, (*self.needs, self.label_column))
        return set(self.needs) <= set(columns)

    def read(self, path: Path, remarks: Remarks) -> Iterator[Example]:
        """The examples in order, with labels as they are written in the file."""
        raise NotImplementedError

    def unlabelled(self) -> Self:
        """This layout for files to predict: labels in the file are not read."""
        return self


def records(
    path: Path,
    remarks: Remarks,
    needs: Sequence[str],
    label: str | None = None,
    id: str | None = None,
    *,
    positional: bool = False,
    quoted: bool | None = None,
) -> Iterator[Record]:
    """Records of a table, JSON or Parquet file; ``remarks`` tracks which record is being read.

    Args:
        needs, label: the columns that will be read, as numbers if ``positional``.
        id: the column of ids, if there is one.
        positional: the table has no header.
        quoted: see :func:`encoderlab.tasks.data.records.table`.

    Raises:
        DataError: two of the columns have the same name, or the file cannot be read.
    """
    if tables.suffix(path) not in TABLES:
        yield from nested(path, remarks)
    elif positional:
        numbers = [int(name) for name in (*needs, label) if name is not None]
        yield from _followed(tables.table(path, None, remarks, needed=max(numbers) + 1, quoted=quoted), remarks)
    else:
        names = tables.columns(path, Remarks(path))
        tables.check_once(path, names, [name for name in (*needs, label, id) if name is not None])
        yield from _followed(tables.table(path, names, remarks, quoted=quoted), remarks)


def nested(path: Path, remarks: Remarks) -> Iterator[Record]:
    """Records of a JSON or Parquet file; ``remarks`` tracks which record is being read."""
    yield from _followed(tables.records(path), remarks)


def _followed(records: Iterator[Record], remarks: Remarks) -> Iterator[Record]:
    """The records; writes the row and the number of each into ``remarks``, and counts NUL characters."""
    for record in records:
        remarks.row, remarks.number = record.row, remarks.first + record.number
        if any("\0" in value for value in record.fields.values() if isinstance(value, str)):
            remarks.add("a NUL character in a field; kept", record.row)
        yield record


def reaches(columns: Sequence[str], numbers: Sequence[str | None]) -> bool:
    """Whether a table without a header has all columns of these numbers, counted from 0; None is ignored."""
    return len(columns) > max(int(number) for number in numbers if number is not None)


def text_of(record: Record, column: str, path: Path) -> str:
    """The text in a column; numbers are read as text.

    Raises:
        DataError: the record has no such column, or it contains null, NaN, a list or an object.
    """
    value = record.fields.get(column)
    if column in record.fields and (value is None or value != value):  # NaN is not equal to itself
        kind = "null" if value is None else "NaN"
        raise DataError(f"{path}:{record.row}: {column!r} is {kind}, expected text; leave the row out")
    if value is None:
        raise DataError(
            f"{path}:{record.row}: no {column!r} among {', '.join(map(str, record.fields))}; correct the row"
        )
    if isinstance(value, (list, dict)):
        kind = "a list" if isinstance(value, list) else "an object"
        raise DataError(f"{path}:{record.row}: {column!r} is {kind}, expected text; join it to one text")
    return value if isinstance(value, str) else str(value)


def id_of(record: Record, column: str | None, remarks: Remarks) -> str:
    """The id in ``column``, or the number of the row if there is none."""
    value = None if column is None else record.fields.get(column)
    return str(remarks.number if value is None else value)


def label_of(value: Any) -> str | None:
    """A label as text: true, 3, 3.5, entailment; None stays None. A whole float, as in Parquet columns with gaps, is
    an integer.

    Raises:
        TypeError: a list or an object.
    """
    if value is None:
        return None
    if isinstance(value, (list, dict)):
        raise TypeError(f"the label {value!r} is a {type(value).__name__}; give one label for each row")
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def nested_value(cell: str) -> list[Any] | dict[str, Any] | None:
    """The list or object in a cell, as JSON, Python or NumPy write it (pandas, in a CSV); None for another text."""
    if cell[:1] + cell[-1:] not in ("[]", "{}"):
        return None
    # NumPy writes no commas, and without them Python would join the texts; in an object it names its arrays.
    between = r"""(?<=['"])\s+(?=['"])""" if "'" in cell or '"' in cell else r"(?<=[\d.])\s+(?=[-\d])"
    array = r"array\((\[[-\d\s,.]*\])(?:, dtype=\w+)?\)|array\((\[.*?\]), dtype=\w+\)"  # int64 has no dtype
    plain = re.sub(array, r"\1\2", re.sub(between, ", ", cell), flags=re.DOTALL)
    for read, written in ((json.loads, cell), (ast.literal_eval, plain)):
        with contextlib.suppress(ValueError, SyntaxError, RecursionError, MemoryError):
            value = read(written)
            if isinstance(value, list | dict):
                return value
    return None


def nearest_place(text: str, mention: str, start: int) -> int:
    """Start of the ``mention`` nearest to ``start``, -1 if there is none; ignores case only if necessary."""
    if not mention:
        return -1
    pattern = f"(?={re.escape(mention)})"
    place = _nearest(pattern, text, start)
    return place if place >= 0 else _nearest(f"(?i){pattern}", text, start)


def nearest_words(text: str, mention: str, start: int) -> int:
    """Start of the mention nearest to ``start``, ignoring case, that is not part of a longer word; -1 if
    there is none.
    """
    return _nearest(rf"(?i)(?<!\w){re.escape(mention)}(?!\w)", text, start) if mention else -1


def _nearest(pattern: str, text: str, start: int) -> int:
    places = (match.start() for match in re.finditer(pattern, text))
    return min(places, key=lambda place: abs(place - start), default=-1)
