"""What the layouts share: records of a file by columns, and single fields."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from encoderlab.errors import DataError
from encoderlab.tasks import tables
from encoderlab.tasks.base import Remarks
from encoderlab.tasks.tables import Record

TABLES = (".csv", ".tsv", ".txt")


def records(
    path: Path,
    remarks: Remarks,
    needs: Sequence[str],
    label: str | None = None,
    *,
    positional: bool = False,
    quoted: bool | None = None,
) -> Iterator[Record]:
    """Records of a table, JSON or Parquet file; the header of a table is read first.

    ``needs`` and ``label`` name the columns that are read, by their numbers where ``positional``. ``quoted``: see
    :func:`encoderlab.tasks.tables.table`.

    Raises:
        DataError: two columns of one name, or as the readers of the format.
    """
    if tables.suffix(path) not in TABLES:
        yield from nested(path, remarks)
    elif positional:
        numbers = [int(name) for name in (*needs, label) if name is not None]
        yield from _known(tables.table(path, None, remarks, needed=max(numbers) + 1, quoted=quoted), remarks)
    else:
        names = tables.columns(path, Remarks(path))
        twice = [name for name in (*needs, label) if name is not None and names.count(name) > 1]
        if twice:
            raise DataError(f"{path}:1: two columns are called {twice[0]!r}; rename one of them")
        yield from _known(tables.table(path, names, remarks, quoted=quoted), remarks)


def nested(path: Path, remarks: Remarks) -> Iterator[Record]:
    """Records of a JSON or Parquet file; ``remarks`` knows which one is being read."""
    yield from _known(tables.records(path), remarks)


def _known(records: Iterator[Record], remarks: Remarks) -> Iterator[Record]:
    for record in records:
        remarks.row, remarks.number = record.row, remarks.first + record.number
        if any("\0" in value for value in record.fields.values() if isinstance(value, str)):
            remarks.add("a NUL character in a field; kept", record.row)
        yield record


def holds(columns: Sequence[str], needs: Sequence[str], positional: bool, label: str | None) -> bool:
    if positional:
        return len(columns) > max(int(name) for name in (*needs, label or needs[0]))
    return set(needs) <= set(columns)


def text_of(record: Record, column: str, path: Path) -> str:
    value = record.fields.get(column)
    if column in record.fields and (value is None or value != value):  # NaN is not equal to itself
        kind = "null" if value is None else "NaN"
        raise DataError(f"{path}:{record.row}: {column!r} is {kind}, expected text; leave the row out")
    if value is None:
        raise DataError(
            f"{path}:{record.row}: no {column!r} among {', '.join(map(str, record.fields))}; correct the row"
        )
    if isinstance(value, (list, dict)):
        raise DataError(
            f"{path}:{record.row}: {column!r} is a {type(value).__name__}, expected text; join it to one text"
        )
    return value if isinstance(value, str) else str(value)


def id_of(record: Record, column: str | None, remarks: Remarks) -> str:
    """The id in ``column``, or the number of the row where there is none."""
    value = None if column is None else record.fields.get(column)
    return str(remarks.number if value is None else value)


def label_of(value: Any) -> str | None:
    """A label as text: true, 3, 3.5, entailment; an integral float from a Parquet file is an integer."""
    if value is None:
        return None
    if isinstance(value, (list, dict)):
        raise TypeError(f"the label {value!r} is a {type(value).__name__}; give one label for each row")
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def nearest_place(text: str, wanted: str, start: int) -> int:
    """The mention of ``wanted`` nearest to ``start``, of those in its case if there are any; -1 if there is none."""
    if not wanted:
        return -1
    mention = f"(?={re.escape(wanted)})"
    found = _nearest(mention, text, start)
    return found if found >= 0 else _nearest(f"(?i){mention}", text, start)


def nearest_words(text: str, wanted: str, start: int) -> int:
    """The mention nearest to ``start`` that is no part of a longer word, in any case; -1 if there is none."""
    return _nearest(rf"(?i)(?<!\w){re.escape(wanted)}(?!\w)", text, start) if wanted else -1


def _nearest(pattern: str, text: str, start: int) -> int:
    places = (match.start() for match in re.finditer(pattern, text))
    return min(places, key=lambda place: abs(place - start), default=-1)
