"""Sources: files with text, and what is needed to read each: its format, its field of text, its delimiter."""

from __future__ import annotations

import codecs
import contextlib
import csv
import dataclasses
import io
import itertools
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal, get_args

from encoderlab.corpus.opening import BLOCK, COMPRESSED, errors_of, open_file, open_parquet
from encoderlab.errors import DataError

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
}
TEXT_FIELDS = "text content contents body document article paragraphs paragraph passage sentence".split()
MAX_RECORD = 64 << 20  # bytes of the longest JSON line or CSV field
MARKS = {  # that of UTF-32 begins like that of UTF-16
    codecs.BOM_UTF32_LE: "UTF-32",
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}
BINARY = {
    b"%PDF": "PDF",
    b"PK\x03\x04": "zip",
    b"\x1f\x8b": "gzip",
    b"\xfd7zXZ": "xz",
    b"BZh": "bzip2",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"PAR1": "Parquet",
    b"\x89PNG": "PNG",
    b"\xff\xd8\xff": "JPEG",
    b"\x7fELF": "program",
    b"SQLite format 3": "SQLite",
    b"\x89HDF": "HDF5",
    b"ARROW1": "Arrow",
}
_MARKUP = {  # how files begin, in small letters, whose names often have no suffix of their own
    b"<mediawiki": "a dump of a wiki",
    b"<doc id=": "output of WikiExtractor (that of its --json is read with --format jsonl)",
    b"<?xml": "XML",
    b"<!doctype html": "HTML",
    b"<html": "HTML",
    b"warc/": "a web archive",
}
_CONTROL_BYTES = bytes(code for code in range(32) if code not in b"\t\n\r\f\v\x1b\x08")


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How sources are read.

    Args:
        format: Format of every source. Default: by the name of each file.
        field: JSON field or column that holds the text; a number is a column of a table without a header, from 0.
            Default: it is inferred, and said.
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
    """One file, or one member of a zip archive. ``field`` and ``delimiter`` are known after :func:`inspect_source`."""

    path: Path
    format: Format
    member: str | None = None
    name: str = ""
    field: str | int | None = None
    delimiter: str = ","
    member_bytes: int = 0

    def open(self) -> Any:
        """Its decompressed bytes, a binary file."""
        return open_file(self.path, self.member)

    def expected_bytes(self) -> int:
        """About how many bytes :meth:`open` gives; compressed text is taken to be a third of its length."""
        size, name = (
            (self.path.stat().st_size, self.path.name) if self.member is None else (self.member_bytes, self.member)
        )
        return size * (3 if Path(name).suffix.lower() in COMPRESSED else 1)


class EmptyFile(DataError):
    """Nothing to read; passed over where the file is not named itself."""


def format_of(name: str) -> Format | None:
    """The format that a file name says, without the suffix of compression; archives may hold anything."""
    path = Path(name.lower())
    if path.suffix == ".zip":
        return "text"
    return SUFFIXES.get(Path(path.stem).suffix if path.suffix in COMPRESSED else path.suffix)


def inspect_source(source: Source, reading: Reading) -> Source:
    """``source`` with its text field known, after a look at its first bytes.

    Raises:
        DataError: binary data, UTF-16 or UTF-32, no such field, or a field that cannot be inferred.
    """
    if source.format == "parquet":
        return _inspect_parquet(source, reading)
    with errors_of(source.name), source.open() as file:
        head = file.read(1 << 16)
        if not head:
            raise EmptyFile(f"{source.name}: the file is empty; give a file with text")
        _refuse_binary(source, head)
        if source.format in ("text", "markdown"):
            if reading.format is None and format_of(source.path.name) is None:
                _refuse_markup(source, head)
            return source
        if source.format == "jsonl":
            while b"\n" not in head.lstrip() and len(head) < MAX_RECORD and (more := file.read(BLOCK)):
                head += more
            if not head.removeprefix(codecs.BOM_UTF8).strip():
                raise EmptyFile(f"{source.name}: nothing but blank lines; give a file with text")
            return _inspect_jsonl(source, reading, head)
        return _inspect_table(source, reading, head.decode("utf-8-sig", "replace"))


def _refuse_binary(source: Source, head: bytes) -> None:
    for mark, encoding in MARKS.items():
        if head.startswith(mark):
            raise DataError(f"{source.name}: {encoding}, expected UTF-8; convert it: iconv -f {encoding} -t UTF-8")
    kind = next((kind for magic, kind in BINARY.items() if head.startswith(magic)), None)
    kind = "tar" if head[257:262] == b"ustar" else kind
    controls = len(head) - len(head.translate(None, _CONTROL_BYTES))
    if kind or controls > max(3, len(head) / 100):
        what = f"binary data ({kind or f'{controls} control bytes in the first {len(head)}'})"
        raise DataError(f"{source.name}: {what}, expected text; leave the file out, or unpack or convert it first")


def _refuse_markup(source: Source, head: bytes) -> None:
    """Refuse what begins as another format than text, where nothing said that it is text."""
    start = head.removeprefix(codecs.BOM_UTF8).lstrip()
    kind = next((kind for mark, kind in _MARKUP.items() if start.lower().startswith(mark)), None)
    if kind is not None:
        raise DataError(
            f"{source.name}: begins as {kind}; extract its text first, or give --format text to take it as it is"
        )
    with contextlib.suppress(ValueError):
        if isinstance(json.loads(start.split(b"\n", 1)[0]), dict):
            raise DataError(f"{source.name}: begins with a JSON object; give --format jsonl, or text")


def _inspect_jsonl(source: Source, reading: Reading, head: bytes) -> Source:
    """The source with its field of text: the given one, else one of a known name, else the longest of the first line.

    Raises:
        DataError: the first line is no JSON, or has no such field.
    """
    if reading.field is not None and reading.invalid_records == "skip":
        return dataclasses.replace(source, field=reading.field)
    line = head.removeprefix(codecs.BOM_UTF8).lstrip().split(b"\n", 1)[0]
    hint = "; a JSON array: write one object per line" if line.startswith(b"[") else ""
    try:
        record = json.loads(line.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        raise DataError(
            f"{source.name}: the first line is no JSON, expected one object per line (or give --format){hint}"
        ) from None
    if isinstance(record, str):
        return source
    if not isinstance(record, dict):
        kind = type(record).__name__
        raise DataError(f"{source.name}: the first line is a JSON {kind}, expected an object or a string{hint}")
    if reading.field is not None:
        if reading.field not in record:
            raise DataError(f"{source.name}: no field {reading.field!r} in the first line; it has {listed(record)}")
        return dataclasses.replace(source, field=reading.field)
    known = next((name for name in TEXT_FIELDS if name in record), None)  # even where this record has no text in it
    lengths = {name: len(text) for name, value in record.items() if (text := text_of(value)) is not None}
    if not known and not lengths:
        raise DataError(f"{source.name}: no field with text in the first line; it has {listed(record)}; give --field")
    field = known or max(lengths, key=lambda name: lengths[name])
    return dataclasses.replace(source, field=field)


def _inspect_table(source: Source, reading: Reading, head: str) -> Source:
    """The source with its delimiter and column of text: the given one, else one of a known name, else the one with the
    most text in the first 50 rows, by its number where the first row is no header.

    Raises:
        DataError: no rows, or no such column.
    """
    unquoted = re.sub('"[^"]*"', "", head.lstrip("\r\n")).split("\n", 1)[0]
    delimiter = "\t" if source.format == "tsv" else max(",;|\t", key=unquoted.count)
    source = dataclasses.replace(source, delimiter=delimiter)
    rows = []
    with contextlib.suppress(csv.Error):  # the head may end within a quoted field
        for row in itertools.islice(table_rows(source, io.StringIO(head, newline="")), 50):
            rows += [row] if row else []
    if not rows:
        raise EmptyFile(f"{source.name}: no rows; give a file with text")
    if isinstance(reading.field, int) or (isinstance(reading.field, str) and reading.field.isdecimal()):
        if int(reading.field) >= len(rows[0]):
            raise DataError(f"{source.name}: no column {reading.field} (from 0); the first row has {len(rows[0])}")
        return dataclasses.replace(source, field=int(reading.field))
    header = [name.strip() for name in rows[0]]
    if reading.field is not None:
        if reading.field not in header:
            raise DataError(f"{source.name}: no column {reading.field!r} in the header; it has {listed(header)}")
        return dataclasses.replace(source, field=reading.field)
    lower = [name.lower() for name in header]
    known = next((name for name in TEXT_FIELDS if name in lower), None)
    if known:
        return dataclasses.replace(source, field=header[lower.index(known)])
    sizes = [sum(len(row[column]) for row in rows[1:] if column < len(row)) for column in range(len(header))]
    column = max(range(len(header)), key=lambda column: (sizes[column], len(header[column])))
    named = all(0 < len(name) <= 40 for name in header) and len(set(header)) == len(header)
    return dataclasses.replace(source, field=header[column] if named else column)


def _inspect_parquet(source: Source, reading: Reading) -> Source:
    with errors_of(source.name):
        schema = open_parquet(source.path, source.member).schema_arrow
    kinds = ("string", "large_string", "string_view")
    columns = listed([f"{item.name} ({item.type})" for item in schema])
    strings = [item.name for item in schema if str(item.type) in kinds]
    # Of dictionaries (categories of pandas) and lists, the type of their values.
    texts = [item.name for item in schema if str(getattr(item.type, "value_type", item.type)) in kinds]
    if reading.field is not None:
        if reading.field not in texts:
            raise DataError(f"{source.name}: no text column {reading.field!r}; it has {columns}")
        return dataclasses.replace(source, field=reading.field)
    known = next((name for name in TEXT_FIELDS if name in texts), None)
    only = strings or texts
    if known is None and len(only) != 1:
        remedy = "give --field" if texts else "text is of type string, or a list of strings"
        raise DataError(f"{source.name}: which column holds the text? it has {columns}; {remedy}")
    return dataclasses.replace(source, field=known or only[0])


def table_rows(source: Source, text: IO[str]) -> Any:
    """A ``csv.reader`` of a CSV or TSV source."""
    csv.field_size_limit(MAX_RECORD)
    if source.format == "tsv":
        return csv.reader(text, delimiter=source.delimiter, quoting=csv.QUOTE_NONE)
    return csv.reader(text, delimiter=source.delimiter, strict=True)  # strict: an open quote is an error


def text_of(value: Any) -> str | None:
    """The text that a JSON value holds: a string, or the lines of a list of strings."""
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
