"""Records of a file: rows of a table (CSV, Parquet, Arrow), lines of JSON, elements of a JSON list.

A record is a row number (a line of the file, from 1) and its fields by column name; the columns of a table without a
header are called ``0``, ``1``, ... Plain and compressed files are read as a stream, except a JSON document (a list, or
SQuAD's nested form), which is loaded whole. Every reader here raises :class:`DataError` for a file that is missing,
damaged or not UTF-8.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from json import JSONDecodeError
from pathlib import Path
from typing import Any

from encoderlab.errors import DataError
from encoderlab.records import reading
from encoderlab.records.opening import (
    COLUMNAR,
    COMPRESSED,
    File,
    class_names,
    column_batches,
    column_schema,
    errors_of,
    suffix,
)
from encoderlab.records.reading import SEPARATORS, Dialect, json_value
from encoderlab.tasks.data.examples import Remarks

FIRST = 100  # records whose keys are the columns, because any of them may lack some
RECORDS = (".csv", ".tsv", ".json", ".jsonl", ".ndjson", *COLUMNAR)
WORDS_BY_LINE = (".bio", ".iob", ".iob2", ".conll", ".conllu", ".bmes", ".bioes")


@dataclass(frozen=True, slots=True)
class Record:
    """``row`` is a line of the file, from 1; ``number`` counts records from 0, including those that are left out."""

    row: int
    fields: dict[str, Any]
    number: int


def is_file_name(text: str) -> bool:
    """Whether ``text`` looks like the name of a data file rather than a text."""
    path = Path(text)
    return suffix(path) in (*RECORDS, *WORDS_BY_LINE, ".txt") or path.suffix.lower() in COMPRESSED


def lines(path: Path) -> Iterator[tuple[int, str]]:
    """Lines without line ends, numbered from 1."""
    return reading.lines(File(path))


def columns(path: Path, remarks: Remarks) -> tuple[str, ...]:
    """Column names of a table (its first row) or keys of the first records; () for other files.

    Raises:
        DataError: two columns of a Parquet or Arrow file have one name.
    """
    kind = suffix(path)
    if kind in (".csv", ".tsv", ".txt") and not _is_json_text(path):
        first = next(rows(path, dialect(path, remarks)), None)
        return tuple(first[1]) if first else ()
    if kind in COLUMNAR:
        with errors_of(str(path)):
            names = tuple(column_schema(File(path)).names)
        check_once(path, names, names)
        return names
    if kind in (".json", ".jsonl", ".ndjson", ".txt"):
        first_records = () if is_document(path) else islice(records(path), FIRST)
        return tuple(dict.fromkeys(name for record in first_records for name in record.fields))
    return ()


def check_once(path: Path, names: Sequence[str], used: Iterable[str]) -> None:
    """Refuse a table with two columns of one of the ``used`` names.

    Raises:
        DataError: names the column.
    """
    for name in used:
        if names.count(name) > 1:
            raise DataError(f"{path}:1: two columns are called {name!r}; rename one of them")


def records(path: Path) -> Iterator[Record]:
    """Records of a JSON Lines, JSON list, Parquet or Arrow file. Classes of an Arrow file have their names.

    Raises:
        DataError: a line or an element is not a JSON object.
    """
    if suffix(path) in COLUMNAR:
        yield from _column_records(path)
    elif (value := _one_value(path)) is not None:
        yield from _json_elements(path, value)
    else:
        yield from _json_lines(path)


def _column_records(path: Path) -> Iterator[Record]:
    with errors_of(str(path)):
        classes = class_names(File(path)) if suffix(path) == ".arrow" else {}
        rows = (fields for batch in column_batches(File(path)) for fields in batch.to_pylist())
        for row, fields in enumerate(rows, start=1):
            fields |= {name: _named(fields[name], known) for name, known in classes.items() if name in fields}
            try:
                texts = {name: value.decode() if isinstance(value, bytes) else value for name, value in fields.items()}
            except UnicodeDecodeError as error:
                raise DataError(f"{path}:{row}: not UTF-8 ({error.reason}); convert the column to text") from None
            yield Record(row, texts, row - 1)


def _named(value: Any, names: Sequence[str]) -> Any:
    """The name of a class for its number, or the names for a list of numbers; -1 means no label."""
    if isinstance(value, list):
        return [_named(one, names) for one in value]
    return names[value] if isinstance(value, int) and 0 <= value < len(names) else None if value == -1 else value


def _json_elements(path: Path, value: Any) -> Iterator[Record]:
    items = _listed(value)
    if items is None:
        raise DataError(f"{path}: is one JSON object; give a list of objects, an object per line, or a list 'data'")
    for row, item in enumerate(items, start=1):
        if not isinstance(item, dict):
            raise DataError(f"{path}: element {row} is {type(item).__name__}, expected an object with fields")
        yield Record(row, item, row - 1)


def _json_lines(path: Path) -> Iterator[Record]:
    for number, (row, item) in enumerate(json_lines(path)):
        if not isinstance(item, dict):
            raise DataError(f"{path}:{row}: {type(item).__name__}, expected an object with named fields")
        yield Record(row, item, number)


def json_lines(path: Path) -> Iterator[tuple[int, Any]]:
    """The values of the lines that are not empty, with their numbers, from 1."""
    for row, line in lines(path):
        if line.strip():
            try:
                value = json_value(line)
            except ValueError as error:
                raise DataError(f"{path}:{row}: not valid JSON ({error}); write one object per line") from None
            yield row, value


def document(path: Path) -> Any:
    """Read a file that is one JSON value."""
    try:
        return json_value("\n".join(line for _, line in lines(path)))
    except ValueError as error:
        line = f":{error.lineno}" if isinstance(error, JSONDecodeError) else ""
        raise DataError(f"{path}{line}: not valid JSON ({getattr(error, 'msg', error)}); correct it") from None


def is_document(path: Path) -> bool:
    """Whether a JSON file is one value that does not list records: SQuAD's nested form, another object, or a list of
    lists.

    A file named .jsonl or .ndjson has records.
    """
    if suffix(path) in (".jsonl", ".ndjson") or (value := _one_value(path)) is None:
        return False
    first = (_listed(value) or [None])[0]
    return not isinstance(first, dict) or isinstance(value, dict) and "paragraphs" in first


def _one_value(path: Path) -> Any:
    """The value of a JSON file that is a list, or an object over many lines or with a list ``data``; None if each line
    has a value.
    """
    if not starts_with(path, "["):
        if suffix(path) in (".jsonl", ".ndjson"):
            return None
        first = next((line for _, line in lines(path) if line.strip()), "")
        try:
            if _listed(json_value(first)) is None:
                return None
        except ValueError:
            pass  # the object goes on in the next line
    return document(path)


def _listed(value: Any) -> list[Any] | None:
    """The elements of a JSON list, or of the list ``data`` of an object."""
    value = value.get("data") if isinstance(value, dict) else value
    return value if isinstance(value, list) else None


def table(
    path: Path, names: Sequence[str] | None, remarks: Remarks, *, needed: int = 0, quoted: bool | None = None
) -> Iterator[Record]:
    """Rows of a delimited file.

    Columns beyond the header are dropped; rows with too few columns are left out. Both are counted in ``remarks``.

    Args:
        names: the columns if the first row is a header, None if it is data.
        needed: columns that a row of a file without a header must have.
        quoted: whether a tab-separated file is quoted; None detects it. With other separators quotation marks always
            quote.

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
            separator = SEPARATORS[style.separator]
            remarks.add(f"more than {width} columns; the rest is dropped (texts with a {separator} need quotes)", row)
        yield Record(row, dict(zip(names or map(str, range(len(cells))), cells, strict=False)), number)
    if long > total / 2:
        raise DataError(
            f"{path}: {long:,} of {total:,} rows have more columns than the {width} of the header; check the separator "
            f"({SEPARATORS[style.separator]}) and the quotes, or name every column"
        )
    if short > (total + start) / 100:
        more = f" (and {short - 1:,} more rows)" if short > 1 else ""
        raise DataError(f"{first_short}{more}; check the separator ({SEPARATORS[style.separator]}) and the quotes")


def rows(path: Path, style: Dialect) -> Iterator[tuple[int, list[str]]]:
    """Cells of every row that is not empty, with the line on which it starts."""
    for line, cells, problem in reading.rows(File(path), style):
        if problem:
            raise DataError(f"{path}:{line}: {problem}")
        yield line, cells


def dialect(path: Path, remarks: Remarks, quoted: bool | None = None) -> Dialect:
    """Separator and quoting of a delimited file, detected by :func:`encoderlab.records.reading.find_dialect`.

    Whether a file with tabs is quoted is detected unless ``quoted`` is given.
    """
    usual = "," if suffix(path) == ".csv" else "\t"
    style = reading.find_dialect(File(path), usual)
    if style.separator != usual:
        remarks.note(
            f"columns are separated by {SEPARATORS[style.separator]}, not by {SEPARATORS[usual]} as the name says"
        )
    return style if quoted is None or style.separator != "\t" else replace(style, quoted=quoted)


def starts_with(path: Path, char: str) -> bool:
    """Whether ``char`` is the first character of a text file after white space."""
    return next((line.lstrip()[:1] for _, line in lines(path) if line.strip()), "") == char


def _is_json_text(path: Path) -> bool:
    """Whether a ``.txt`` file is a JSON object, as RACE's files are."""
    if suffix(path) != ".txt" or not starts_with(path, "{"):
        return False
    try:
        return isinstance(json_value(next(line for _, line in lines(path) if line.strip())), dict)
    except ValueError:
        return False
