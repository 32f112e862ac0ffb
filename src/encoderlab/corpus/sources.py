"""Sources: files with text, each with its format, its field of text and its delimiter."""

from __future__ import annotations

import codecs
import contextlib
import dataclasses
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from encoderlab.errors import DataError
from encoderlab.records.opening import BLOCK, COMPRESSED, HEAD, File, RowGroup, column_schema, errors_of, row_groups
from encoderlab.records.reading import MAX_RECORD, SEPARATORS, Dialect, TableRow, find_dialect, json_value, rows
from encoderlab.storage.places import info

log = logging.getLogger(__name__)

Format = Literal["text", "markdown", "jsonl", "csv", "tsv", "parquet"]
SUFFIXES: dict[str, Format] = {
    ".txt": "text",
    ".text": "text",
    ".md": "markdown",
    ".markdown": "markdown",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
    ".arrow": "parquet",  # columns too, read by the same functions
}
TEXT_FIELDS = "text content contents body document article paragraphs paragraph passage sentence".split()
_MARKUP = {  # beginnings, in lower case, of files whose names often have no suffix
    b"<mediawiki": "a dump of a wiki",
    b"<doc id=": "output of WikiExtractor (that of its --json is read with --format jsonl)",
    b"<?xml": "XML",
    b"<!doctype html": "HTML",
    b"<html": "HTML",
    b"warc/": "a web archive",
}


@dataclass(frozen=True, kw_only=True)
class Reading:
    """Settings for reading sources.

    Args:
        format: Format of every source. Default: by the name of each file.
        field: JSON field or column that holds the text; a number is a column of a table without a header, from 0.
            Default: it is inferred, and printed.
        invalid_utf8: Whether bytes that are not UTF-8 become U+FFFD and are counted, or are refused.
        invalid_records: Whether a line that is not JSON or lacks the field, and a row with too few or too many columns,
            is refused, or skipped and counted.
        min_line_chars: Leave out lines with fewer characters.
    """

    format: Format | None = None
    field: str | int | None = None
    invalid_utf8: Literal["replace", "refuse"] = "replace"
    invalid_records: Literal["refuse", "skip"] = "refuse"
    min_line_chars: int = 1


@dataclass(frozen=True, kw_only=True)
class Source:
    """One file, or one member of a zip archive. ``field``, ``dialect`` and the row groups of a Parquet file are known
    after :func:`inspect_source`.
    """

    path: Path
    format: Format
    member: str | None = None
    name: str = ""
    field: str | int | None = None
    dialect: Dialect | None = None
    member_bytes: int = 0
    groups: tuple[RowGroup, ...] = ()

    @property
    def file(self) -> File:
        return File(self.path, self.member, self.name)

    def expected_bytes(self) -> int:
        """The approximate number of bytes after decompression; compressed text is assumed to have a third of its
        length.
        """
        size, name = (info(self.path).size, self.path.name) if self.member is None else (self.member_bytes, self.member)
        return size * (3 if Path(name).suffix.lower() in COMPRESSED else 1)


class EmptyFile(DataError):
    """The file is empty; files in folders are then left out."""


def format_of(name: str) -> Format | None:
    """The format by file name, without the suffix of compression; None if unknown. Archives may contain anything."""
    path = Path(name.lower())
    if path.suffix == ".zip":
        return "text"
    return SUFFIXES.get(Path(path.stem).suffix if path.suffix in COMPRESSED else path.suffix)


def inspect_source(source: Source, reading: Reading) -> Source:
    """``source`` with its text field, from its first bytes.

    Raises:
        DataError: binary data, UTF-16 or UTF-32, no such field, or a field that cannot be inferred.
    """
    if source.format == "parquet":
        return _inspect_parquet(source, reading)
    head = source.file.head()
    if not head:
        raise EmptyFile(f"{source.name}: the file is empty; give a file with text")
    if source.format in ("csv", "tsv"):
        return _inspect_table(source, reading)
    if source.format == "jsonl":
        return _inspect_jsonl(source, reading)
    if reading.format is None and format_of(source.path.name) is None:
        _refuse_markup(source, head)
    return source


def _refuse_markup(source: Source, head: bytes) -> None:
    """Refuse a file that begins as another format than text, unless its name or --format says that it is text."""
    start = head.removeprefix(codecs.BOM_UTF8).lstrip()
    kind = next((kind for mark, kind in _MARKUP.items() if start.lower().startswith(mark)), None)
    if kind is not None:
        raise DataError(
            f"{source.name}: begins as {kind}; extract its text first, or give --format text to take it as it is"
        )
    with contextlib.suppress(ValueError):
        if isinstance(json_value(start.split(b"\n", 1)[0].decode()), dict):
            raise DataError(f"{source.name}: begins with a JSON object; give --format jsonl, or text")


def _inspect_jsonl(source: Source, reading: Reading) -> Source:
    """The source with its field of text: the given one, else one of a known name, else the longest of the first line.

    Raises:
        DataError: the first line is not JSON, or has no such field.
    """
    with errors_of(source.name), source.file.open() as file:
        head = file.read(HEAD)
        while b"\n" not in head.lstrip() and len(head) < MAX_RECORD and (more := file.read(BLOCK)):
            head += more
    if not head.removeprefix(codecs.BOM_UTF8).strip():
        raise EmptyFile(f"{source.name}: nothing but blank lines; give a file with text")
    if reading.field is not None and reading.invalid_records == "skip":
        return dataclasses.replace(source, field=reading.field)
    line = head.removeprefix(codecs.BOM_UTF8).lstrip().split(b"\n", 1)[0]
    hint = "; a JSON array: write one object per line" if line.startswith(b"[") else ""
    try:
        record = json_value(line.decode("utf-8", "replace"))
    except ValueError:
        raise DataError(
            f"{source.name}: the first line is not JSON, expected one object per line, as jq -c writes it{hint}"
        ) from None
    if isinstance(record, str):
        if reading.field is not None:
            raise DataError(
                f"{source.name}: no field {reading.field!r}, as the first line is a string; leave --field out"
            )
        return source
    if not isinstance(record, dict):
        kind = type(record).__name__
        raise DataError(f"{source.name}: the first line is a JSON {kind}, expected an object or a string{hint}")
    if reading.field is not None:
        if reading.field not in record:
            raise DataError(f"{source.name}: no field {reading.field!r} in the first line; it has {listed(record)}")
        return dataclasses.replace(source, field=reading.field)
    known = next((name for name in TEXT_FIELDS if name in record), None)  # even if this record has no text in it
    lengths = {name: len(text) for name, value in record.items() if (text := text_of(value)) is not None}
    if not known and not lengths:
        raise DataError(f"{source.name}: no field with text in the first line; it has {listed(record)}; give --field")
    field = known or max(lengths, key=lambda name: lengths[name])
    return dataclasses.replace(source, field=field)


def _inspect_table(source: Source, reading: Reading) -> Source:
    """The source with its dialect and column of text: the given one, else one of a known name, else the one with the
    most text in the first 50 rows (by number if the first row is not a header).

    Raises:
        DataError: no rows, or no such column.
    """
    usual = "\t" if source.format == "tsv" else ","
    dialect = find_dialect(source.file, usual)
    if dialect.separator != usual:
        separator, expected = SEPARATORS[dialect.separator], SEPARATORS[usual]
        log.info("%s: columns are separated by %s, not by %s", source.name, separator, expected)
    source = dataclasses.replace(source, dialect=dialect)
    table: list[list[str]] = []
    with contextlib.suppress(DataError):  # which reading it will meet
        for row in table_rows(source):
            table += [row.cells] if row.cells else []
            if len(table) == 50 or sum(len(cell) for cells in table for cell in cells) > HEAD:
                break
    if not table:
        raise EmptyFile(f"{source.name}: no rows; give a file with text")
    if isinstance(reading.field, int) or (isinstance(reading.field, str) and reading.field.isdecimal()):
        if int(reading.field) >= len(table[0]):
            raise DataError(f"{source.name}: no column {reading.field} (from 0); the first row has {len(table[0])}")
        return dataclasses.replace(source, field=int(reading.field))
    header = [readable_name(name) for name in table[0]]
    if reading.field is not None:
        if reading.field not in header:
            raise DataError(f"{source.name}: no column {reading.field!r} in the header; it has {listed(header)}")
        return dataclasses.replace(source, field=reading.field)
    lower = [name.lower() for name in header]
    known = next((name for name in TEXT_FIELDS if name in lower), None)
    if known:
        return dataclasses.replace(source, field=header[lower.index(known)])
    sizes = [sum(len(row[column]) for row in table[1:] if column < len(row)) for column in range(len(header))]
    column = max(range(len(header)), key=lambda column: (sizes[column], len(header[column])))
    named = all(0 < len(name) <= 40 for name in header) and len(set(header)) == len(header)
    return dataclasses.replace(source, field=header[column] if named else column)


def _inspect_parquet(source: Source, reading: Reading) -> Source:
    with errors_of(source.name):
        field = _parquet_field(source, reading)
        return dataclasses.replace(source, field=field, groups=row_groups(source.file, field))


def _parquet_field(source: Source, reading: Reading) -> str:
    """The column of text: the given one, else one of a known name, else the only one.

    Raises:
        DataError: no such column, or several.
    """
    schema = column_schema(source.file)
    names = [item.name for item in schema]
    kinds = ("string", "large_string", "string_view")
    columns = listed([f"{item.name} ({item.type})" for item in schema])
    strings = [item.name for item in schema if str(item.type) in kinds]
    # Of dictionaries (categories of pandas) and lists, the type of their values.
    texts = [item.name for item in schema if str(getattr(item.type, "value_type", item.type)) in kinds]
    if reading.field is not None:
        if reading.field not in texts:
            raise DataError(f"{source.name}: no text column {reading.field!r}; it has {columns}")
        return only_column(str(reading.field), names, source)
    known = next((name for name in TEXT_FIELDS if name in texts), None)
    only = strings or texts
    if known is None and len(only) != 1:
        remedy = "give --field" if texts else "text is of type string, or a list of strings"
        raise DataError(f"{source.name}: which column holds the text? it has {columns}; {remedy}")
    return only_column(known or only[0], names, source)


def only_column(column: str, names: Sequence[str], source: Source) -> str:
    """``column``, which must not be among the names of a table's columns twice."""
    if names.count(column) > 1:
        raise DataError(f"{source.name}: two columns are called {column!r}; rename one of them")
    return column


def table_rows(source: Source) -> Iterator[TableRow]:
    """The rows of a CSV or TSV source; bytes that are not UTF-8 become halves of surrogate pairs."""
    assert source.dialect is not None, source
    return rows(source.file, source.dialect, "surrogateescape")


def readable_name(name: str) -> str:
    """The name of a column, with U+FFFD for bytes that are not UTF-8."""
    return name.encode(errors="surrogateescape").decode(errors="replace").strip()


def text_of(value: Any) -> str | None:
    """The text of a JSON value: a string, or the lines of a list of strings; None for other values."""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and value and all(isinstance(item, str) for item in value):
        return "\n".join(value)
    return None


def listed(names: Any) -> str:
    """The first names, for a message of one line."""
    names = [" ".join(str(name).split())[:40] for name in names]
    return ", ".join(names[:12]) + (", ..." if len(names) > 12 else "")


assert set(SUFFIXES.values()) == set(get_args(Format))
