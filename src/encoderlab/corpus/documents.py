"""Files to documents: text, Markdown, JSON lines, CSV, TSV, Parquet, compressed or not, in bounded memory.

Reading has two halves, so that one process reads (and decompresses) while others parse. :func:`read_blocks` cuts a
source into blocks of about 4 MB that end where a document ends. :func:`parse_block` turns a block into documents, each
a list of cleaned paragraphs. Where the cuts fall depends on the bytes of the source alone.

=========  ==========================================================================================================
text       a paragraph per line, a blank line between documents
markdown   a document per file; markup is removed, a paragraph is what blank lines enclose
jsonl      a document per line: an object with a text field (a string or a list of strings), or a plain string
csv        a document per row, quoted as in RFC 4180; the delimiter is found among ``, ; |`` and tab
tsv        a document per row; a field is what lies between tabs, quotes mean nothing (as in GLUE)
parquet    a document per row
=========  ==========================================================================================================

Two limits keep memory bounded: a line of more than 100,000 characters is cut at white space into paragraphs, and a
document of more than 1,000,000 characters is cut between paragraphs. Both are counted; no text is lost.
"""

from __future__ import annotations

import bz2
import codecs
import contextlib
import csv
import dataclasses
import glob
import gzip
import io
import itertools
import json
import lzma
import re
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal, get_args

from encoderlab.corpus.markdown import markdown_paragraphs
from encoderlab.errors import ConfigError, DataError, MissingDependency

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
COMPRESSED = (".gz", ".xz", ".bz2", ".zst", ".zip")
TEXT_FIELDS = (
    *("text", "content", "contents", "body", "document", "article", "paragraphs", "paragraph", "passage", "sentence"),
)

BLOCK = 4 << 20  # bytes read at a time, and the usual size of a block
MAX_PENDING = 4 * BLOCK  # bytes after which a text is cut even where no document ends
MAX_RECORD = 64 << 20  # bytes of the longest JSON line or CSV field
MAX_LINE = 100_000  # characters
MAX_DOCUMENT = 1_000_000  # characters
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
}
_CONTROL_BYTES = bytes(code for code in range(32) if code not in b"\t\n\r\f\v\x1b\x08")
# Control characters, soft hyphens, zero-width spaces, byte order marks and halves of surrogate pairs.
_DROPPED = re.compile("[\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f\u00ad\u200b\u2060\ufeff\ufff9-\ufffb\ud800-\udfff]")
_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How sources are read.

    Args:
        format: the format of every source; None goes by the name of each file.
        field: the JSON field or the CSV or Parquet column that holds the text; a number counts the columns of a CSV or
            TSV without a header from 0. None infers it.
        invalid_utf8: ``replace`` puts U+FFFD for bytes that are no UTF-8, and counts them; ``refuse`` stops.
        invalid_records: what to do with a line that is no JSON or has no such field: ``refuse`` stops, ``skip`` counts.
        min_line_chars: shorter lines are left out.
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
    inferred: bool = False


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

    A block of records (CSV, TSV, Parquet) holds a JSON string per line.
    """

    source: Source
    data: bytes
    start: Position
    end: Position


# Sources.


def find_sources(patterns: Sequence[str], reading: Reading) -> list[Source]:
    """Files, folders (searched to any depth) and globs, in the order given, the files of a folder or glob by name.

    A file that is named is read whatever it is called; within folders only names with a known suffix count.

    Raises:
        ConfigError: no pattern is given.
        DataError: nothing there, an empty file, a folder without readable files, or binary data.
    """
    if not patterns:
        raise ConfigError("no source; give files, folders or globs, for example: encoderlab corpus build wiki.txt.gz")
    sources: dict[tuple[Path, str | None], Source] = {}
    for pattern in patterns:
        for source in _expand(str(pattern), reading):
            sources.setdefault((source.path.resolve(), source.member), source)
    return [inspect_source(source, reading) for source in sources.values()]


def _expand(pattern: str, reading: Reading) -> Iterator[Source]:
    path = Path(pattern).expanduser()
    if path.is_dir():
        files = sorted(item for item in path.rglob("*") if item.is_file())
        hidden = {item for item in files if any(part.startswith(".") for part in item.relative_to(path).parts)}
        found = [item for item in files if item not in hidden and _format_of(item.name) and item.stat().st_size]
        if not found:
            known = f"{len(files)} files, none of {' '.join(SUFFIXES)}"
            raise DataError(f"{path}: a folder without readable files ({known}); give the files by name")
        for item in found:
            yield from _members(item, reading, named=False)
    elif path.exists():
        yield from _members(path, reading, named=True)
    elif glob.has_magic(pattern):
        found = sorted(Path(name) for name in glob.glob(str(path), recursive=True))
        found = [item for item in found if item.is_file()]
        if not found:
            raise DataError(f"{pattern}: no file matches; check the pattern (** stands for any folders)")
        for item in found:
            yield from _members(item, reading, named=True)
    else:
        raise DataError(f"{pattern}: no such file or folder; give existing files, folders or globs")


def _members(path: Path, reading: Reading, *, named: bool) -> Iterator[Source]:
    if path.stat().st_size == 0:
        raise DataError(f"{path}: the file is empty; give a file with text")
    if path.suffix.lower() != ".zip":
        yield Source(path=path, format=reading.format or _format_of(path.name) or "text", name=str(path))
        return
    with _errors_of(str(path)), zipfile.ZipFile(path) as archive:
        members = [item.filename for item in archive.infolist() if not item.is_dir() and item.file_size]
    known = sorted(name for name in members if _format_of(name) and "__MACOSX" not in name)
    if not known:
        raise DataError(f"{path}: none of the {len(members)} files in the archive ends in {' '.join(SUFFIXES)}")
    for name in known:
        kind = reading.format or _format_of(name) or "text"
        yield Source(path=path, format=kind, member=name, name=f"{path}!{name}")


def _format_of(name: str) -> Format | None:
    """The format that a file name says, without the suffix of compression; archives may hold anything."""
    path = Path(name.lower())
    if path.suffix == ".zip":
        return "text"
    return SUFFIXES.get(Path(path.stem).suffix if path.suffix in COMPRESSED else path.suffix)


def inspect_source(source: Source, reading: Reading) -> Source:
    """``source`` with its text field known, after a look at its first bytes.

    Raises:
        DataError: binary data, UTF-16, no such field, or a field that cannot be inferred.
    """
    if source.format == "parquet":
        return _inspect_parquet(source, reading)
    with _errors_of(source.name), open_source(source) as file:
        head = file.read(1 << 16)
        if not head:
            raise DataError(f"{source.name}: the file is empty; give a file with text")
        _refuse_binary(source, head)
        if source.format in ("text", "markdown"):
            return source
        if source.format == "jsonl":
            while b"\n" not in head.lstrip() and len(head) < MAX_RECORD and (more := file.read(BLOCK)):
                head += more
            return _inspect_jsonl(source, reading, head)
        return _inspect_table(source, reading, head.decode("utf-8-sig", "replace"))


def _refuse_binary(source: Source, head: bytes) -> None:
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise DataError(f"{source.name}: UTF-16, expected UTF-8; convert it: iconv -f UTF-16 -t UTF-8")
    kind = next((kind for magic, kind in BINARY.items() if head.startswith(magic)), None)
    controls = len(head) - len(head.translate(None, _CONTROL_BYTES))
    if kind or controls > max(3, len(head) / 100):
        what = f"binary data ({kind or f'{controls} control bytes in the first {len(head)}'})"
        raise DataError(f"{source.name}: {what}, expected text; leave the file out, or unpack or convert it first")


def _inspect_jsonl(source: Source, reading: Reading, head: bytes) -> Source:
    line = head.removeprefix(codecs.BOM_UTF8).lstrip().split(b"\n", 1)[0]
    try:
        record = json.loads(line.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        hint = "; a JSON array: write one object per line" if line.startswith(b"[") else ""
        raise DataError(
            f"{source.name}: the first line is no JSON, expected one object per line (or give --format){hint}"
        ) from None
    if isinstance(record, str):
        return source
    if not isinstance(record, dict):
        kind = type(record).__name__
        raise DataError(f"{source.name}: the first line is a JSON {kind}, expected an object or a string")
    if reading.field is not None:
        if reading.field not in record:
            raise DataError(f"{source.name}: no field {reading.field!r} in the first line; it has {_list(record)}")
        return dataclasses.replace(source, field=reading.field)
    lengths = {name: len(text) for name, value in record.items() if (text := _text_of(value)) is not None}
    if not lengths:
        raise DataError(f"{source.name}: no field with text in the first line; it has {_list(record)}; give --field")
    known = next((name for name in TEXT_FIELDS if name in lengths), None)
    field = known or max(lengths, key=lambda name: lengths[name])
    return dataclasses.replace(source, field=field, inferred=True)


def _inspect_table(source: Source, reading: Reading, head: str) -> Source:
    first = head.split("\n", 1)[0]
    delimiter = "\t" if source.format == "tsv" else max(",;|\t", key=first.count)
    source = dataclasses.replace(source, delimiter=delimiter)
    rows = []
    with contextlib.suppress(csv.Error):  # the head may end within a quoted field
        for row in itertools.islice(_rows(source, io.StringIO(head, newline="")), 50):
            rows += [row] if row else []
    if not rows:
        raise DataError(f"{source.name}: no rows; give a file with text")
    if isinstance(reading.field, int) or (isinstance(reading.field, str) and reading.field.isdigit()):
        if int(reading.field) >= len(rows[0]):
            raise DataError(f"{source.name}: no column {reading.field} (from 0); the first row has {len(rows[0])}")
        return dataclasses.replace(source, field=int(reading.field))
    header = [name.strip() for name in rows[0]]
    if reading.field is not None:
        if reading.field not in header:
            raise DataError(f"{source.name}: no column {reading.field!r} in the header; it has {_list(header)}")
        return dataclasses.replace(source, field=reading.field)
    lower = [name.lower() for name in header]
    known = next((name for name in TEXT_FIELDS if name in lower), None)
    if known:
        return dataclasses.replace(source, field=header[lower.index(known)], inferred=True)
    sizes = [sum(len(row[column]) for row in rows[1:] if column < len(row)) for column in range(len(header))]
    column = max(range(len(header)), key=lambda column: (sizes[column], len(header[column])))
    named = len(rows) > 1 and all(0 < len(name) <= 40 for name in header) and len(set(header)) == len(header)
    return dataclasses.replace(source, field=header[column] if named else column, inferred=True)


def _inspect_parquet(source: Source, reading: Reading) -> Source:
    with _errors_of(source.name):
        schema = _parquet(source).schema_arrow
    strings = [item.name for item in schema if str(item.type) in ("string", "large_string", "string_view")]
    if reading.field is not None:
        if reading.field not in strings:
            raise DataError(f"{source.name}: no text column {reading.field!r}; it has {_list(strings)}")
        return dataclasses.replace(source, field=reading.field)
    known = [name for name in TEXT_FIELDS if name in strings] or strings
    if not strings or (len(known) > 1 and known == strings):
        raise DataError(f"{source.name}: which column holds the text? it has {_list(strings)}; give --field")
    return dataclasses.replace(source, field=known[0], inferred=True)


# Blocks.


def read_blocks(source: Source, start: Position = START) -> Iterator[Block]:
    """The blocks of a source from ``start`` (the ``end`` of an earlier block) on.

    Memory: 16 MB for text, 64 MB for JSON lines. A compressed source is decompressed again up to ``start``.

    Raises:
        DataError: the file cannot be read, is truncated or damaged, or holds a record that is too long.
    """
    with _errors_of(source.name):
        if source.format in ("csv", "tsv", "parquet"):
            yield from _record_blocks(source, start)
        else:
            yield from _byte_blocks(source, start)


def _byte_blocks(source: Source, start: Position) -> Iterator[Block]:
    with open_source(source) as file:
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
    cut = max(data.rfind(b"\n\n"), data.rfind(b"\n")) + 1 or data.rfind(b" ") + 1
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


def _table_texts(source: Source) -> Iterator[str]:
    with open_source(source) as binary:
        rows = _rows(source, io.TextIOWrapper(binary, "utf-8-sig", errors="surrogateescape", newline=""))
        try:
            if isinstance(source.field, str):
                column = [name.strip() for name in next(rows, [])].index(source.field)
            else:
                column = source.field or 0
            for number, row in enumerate(rows, 1):
                if len(row) > column:
                    yield row[column]
                elif row:
                    raise DataError(
                        f"{source.name}: row {number} has {len(row)} columns, the text is in column {column} (from 0); "
                        "correct the row, or convert the file to JSON lines"
                    )
        except csv.Error as error:
            raise DataError(f"{source.name}: row near {rows.line_num}: {error}; is a quote left open?") from None


def _rows(source: Source, text: IO[str]) -> Any:
    csv.field_size_limit(MAX_RECORD)
    if source.format == "tsv":
        return csv.reader(text, delimiter=source.delimiter, quoting=csv.QUOTE_NONE)
    return csv.reader(text, delimiter=source.delimiter, strict=True)  # strict: an open quote is an error


def _parquet_texts(source: Source) -> Iterator[str]:
    for batch in _parquet(source).iter_batches(batch_size=1024, columns=[source.field], use_threads=False):
        for text in batch.column(0).to_pylist():
            yield text or ""


def _parquet(source: Source) -> Any:
    try:
        import pyarrow.parquet
    except ImportError:
        raise MissingDependency("pyarrow", "data", f"reading {source.name}") from None
    if source.member or source.path.suffix != ".parquet":
        raise DataError(f"{source.name}: Parquet within an archive; unpack it first (Parquet is compressed itself)")
    return pyarrow.parquet.ParquetFile(source.path, pre_buffer=False)


def open_source(source: Source) -> Any:
    """The decompressed bytes of a source, a binary file."""
    suffix = source.path.suffix.lower()
    if source.member is not None:
        return _open_member(source.path, source.member)
    if suffix == ".gz":
        return gzip.open(source.path)
    if suffix == ".xz":
        return lzma.open(source.path)
    if suffix == ".bz2":
        return bz2.open(source.path)
    if suffix == ".zst":
        return _open_zstd(source.path)
    return open(source.path, "rb")


def _open_member(path: Path, member: str) -> Any:
    file = zipfile.ZipFile(path).open(member)
    inner = Path(member).suffix.lower()
    openers: dict[str, Any] = {".gz": gzip.open, ".xz": lzma.open, ".bz2": bz2.open}
    return openers[inner](file) if inner in openers else file


def _open_zstd(path: Path) -> Any:
    try:
        import zstandard
    except ImportError:
        raise MissingDependency("zstandard", "data", f"reading {path}") from None
    return io.BufferedReader(_ZstdFile(path, zstandard.ZstdDecompressor()), BLOCK)


class _ZstdFile(io.RawIOBase):
    """A zstd file of any number of frames (pzstd writes several), which fails where it is truncated; the reader of
    ``zstandard`` itself stops after the first frame, and ends in silence at a truncated one."""

    def __init__(self, path: Path, decompressor: Any) -> None:
        self._file = open(path, "rb")
        self._decompressor = decompressor
        self._frame: Any = None
        self._left = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._left:
            data = self._frame.unused_data if self._frame is not None and self._frame.eof else b""
            data = data or self._file.read(1 << 14)
            if not data:
                if self._frame is not None and not self._frame.eof:
                    raise EOFError
                return 0
            if self._frame is None or self._frame.eof:
                self._frame = self._decompressor.decompressobj()
            self._left = memoryview(self._frame.decompress(data))
        size = min(len(buffer), len(self._left))
        buffer[:size] = self._left[:size]
        self._left = self._left[size:]
        return size

    def close(self) -> None:
        self._file.close()
        super().close()


@contextlib.contextmanager
def _errors_of(name: str) -> Iterator[None]:
    """What goes wrong while reading ``name``, as one line."""
    try:
        yield
    except DataError:
        raise
    except EOFError:
        raise DataError(f"{name}: the compressed data ends too early; the file is truncated, fetch it again") from None
    except (zlib.error, lzma.LZMAError, zipfile.BadZipFile, gzip.BadGzipFile) as error:
        raise DataError(f"{name}: damaged ({error}); fetch the file again") from None
    except OSError as error:
        reason = error.strerror or f"damaged: {error}"
        raise DataError(f"{name}: cannot be read ({reason}); check the file and its permissions") from None
    except Exception as error:  # zstandard and pyarrow have errors of their own, zipfile raises RuntimeError
        if type(error).__module__.split(".")[0] in ("zstandard", "pyarrow") or isinstance(error, RuntimeError):
            raise DataError(f"{name}: cannot be read ({' '.join(str(error).split())[:120]})") from None
        raise


# Documents.


def parse_block(block: Block, reading: Reading) -> tuple[list[list[str]], Counter[str]]:
    """The documents of a block, each a list of clean paragraphs, and what was counted on the way.

    A paragraph has single spaces, no white space at its ends, no line end and no control character. Counted are
    ``invalid_utf8``, ``control_characters`` (removed), ``cut_lines``, ``cut_documents`` and ``skipped_records``.

    Raises:
        DataError: invalid UTF-8 or an invalid record, where these are refused; the message names the line.
    """
    counts: Counter[str] = Counter()
    text = _decode(block, reading, counts)
    source = block.source
    if source.format == "text":
        documents = _text_documents(_clean(text, block, reading, counts))
    elif source.format == "markdown":
        clean = _clean(text, block, reading, counts)
        documents = iter([markdown_paragraphs(clean, front_matter=block.start.offset == 0)])
    else:
        records = _records(text, block, reading, counts)
        documents = ((_clean(record, block, reading, counts)).split("\n") for record in records)
    result = []
    for lines in documents:
        paragraphs = list(_paragraphs(lines, reading.min_line_chars, counts))
        result += _cut_document(paragraphs, counts) if paragraphs else []
    return result, counts


def read_documents(source: Source, reading: Reading) -> Iterator[list[str]]:
    """All documents of a source, one after the other."""
    for block in read_blocks(source):
        yield from parse_block(block, reading)[0]


def _decode(block: Block, reading: Reading, counts: Counter[str]) -> str:
    data = block.data.removeprefix(codecs.BOM_UTF8) if block.start.offset == 0 else block.data
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        if reading.invalid_utf8 == "refuse":
            line = block.start.line + data.count(b"\n", 0, error.start)
            raise DataError(
                f"{block.source.name}: line {line}: invalid UTF-8 (byte 0x{data[error.start]:02x}); convert the file "
                "with iconv, or have such bytes replaced: --invalid-utf8 replace"
            ) from None
    text = data.decode(errors="replace")
    counts["invalid_utf8"] += text.count("\ufffd") - data.count(b"\xef\xbf\xbd")
    return text


def _clean(text: str, block: Block, reading: Reading, counts: Counter[str]) -> str:
    """Line ends become ``\\n``; control characters go."""
    text = text.replace("\r\n", "\n")
    for end in ("\r", "\x0b", "\x0c", "\x85", "\u2028", "\u2029"):
        text = text.replace(end, "\n")
    if _SURROGATE.search(text):  # from JSON escapes, and from bytes of a CSV that are no UTF-8
        if reading.invalid_utf8 == "refuse":
            raise DataError(
                f"{block.source.name}: line {block.start.line} or later: invalid UTF-8, or half of a surrogate pair; "
                "convert the file with iconv, or have them replaced: --invalid-utf8 replace"
            )
        text, number = _SURROGATE.subn("\ufffd", text)
        counts["invalid_utf8"] += number
    text, number = _DROPPED.subn("", text)
    counts["control_characters"] += number
    return text


def _text_documents(text: str) -> Iterator[list[str]]:
    lines: list[str] = []
    for line in text.split("\n"):
        if line and not line.isspace():
            lines.append(line)
        elif lines:
            yield lines
            lines = []
    yield lines


def _records(text: str, block: Block, reading: Reading, counts: Counter[str]) -> Iterator[str]:
    source = block.source
    whole = source.format != "jsonl"  # a JSON string per line, written by _record_blocks
    for number, line in enumerate(text.split("\n"), block.start.line):
        if not line or line.isspace():
            continue
        problem = None
        try:
            record = json.loads(line)
            value = record if whole or isinstance(record, str) else record[source.field]
            value = _text_of("" if value is None else value)
            if value is None:
                problem = f"field {source.field!r} holds no text"
        except (ValueError, RecursionError):
            problem = "no JSON"
        except (KeyError, TypeError):
            has = _list(record) if isinstance(record, dict) else f"a JSON {type(record).__name__}"
            problem = f"no field {source.field!r}; it has {has}"
        if problem is None:
            yield value
        elif reading.invalid_records == "skip":
            counts["skipped_records"] += 1
        else:
            raise DataError(f"{source.name}: line {number}: {problem}; correct it, or --invalid-records skip")


def _text_of(value: Any) -> str | None:
    if isinstance(value, str):
        return value
    if isinstance(value, list) and value and all(isinstance(item, str) for item in value):
        return "\n".join(value)
    return None


def _paragraphs(lines: list[str], min_chars: int, counts: Counter[str]) -> Iterator[str]:
    for line in lines:
        line = " ".join(line.split())
        if len(line) < min_chars or not line:
            continue
        if len(line) <= MAX_LINE:
            yield line
            continue
        counts["cut_lines"] += 1
        start = 0
        while start < len(line):
            end = start + MAX_LINE
            if end < len(line):
                space = line.rfind(" ", start, end)
                end = space if space > start else end
            yield line[start:end]
            start = end + (line[end : end + 1] == " ")


def _cut_document(paragraphs: list[str], counts: Counter[str]) -> list[list[str]]:
    if sum(map(len, paragraphs)) <= MAX_DOCUMENT:
        return [paragraphs]
    counts["cut_documents"] += 1
    parts: list[list[str]] = [[]]
    size = 0
    for paragraph in paragraphs:
        if size + len(paragraph) > MAX_DOCUMENT:
            parts.append([])
            size = 0
        parts[-1].append(paragraph)
        size += len(paragraph)
    return parts


def _list(names: Any) -> str:
    names = [str(name)[:40] for name in names]
    return ", ".join(names[:12]) + (", ..." if len(names) > 12 else "")


assert set(SUFFIXES.values()) == set(get_args(Format))
