"""Opens plain and compressed files, members of zip archives, Parquet and Arrow, and refuses binary files; every failure
is an error of one line.
"""

from __future__ import annotations

import bz2
import codecs
import contextlib
import functools
import gzip
import io
import json
import lzma
import os
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple

from encoderlab.errors import DataError, optional
from encoderlab.files import read_json
from encoderlab.storage.places import url_of
from encoderlab.storage.streams import open_file

BLOCK = 4 << 20  # bytes read at a time
HEAD = 1 << 16  # bytes that decide what a file is
COMPRESSED = (".gz", ".xz", ".bz2", ".zst", ".zip")
COLUMNAR = (".parquet", ".arrow")  # files of columns, which are not text
INFO, RESTORE = "dataset_info.json", "save the dataset again (save_to_disk)"  # of Hugging Face's datasets

MARKS = {  # byte order marks; that of UTF-32 begins like that of UTF-16
    codecs.BOM_UTF32_LE: "UTF-32",
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}
_COMPRESSION = {  # first bytes of compressed files, for names without the ending
    b"\x1f\x8b": ("gzip", ".gz"),
    b"\xfd7zXZ": ("xz", ".xz"),
    b"BZh": ("bzip2", ".bz2"),
    b"\x28\xb5\x2f\xfd": ("zstd", ".zst"),
}
_BINARY = {
    b"%PDF": "PDF",
    b"PAR1": "Parquet",
    b"\x89PNG": "PNG",
    b"\xff\xd8\xff": "JPEG",
    b"\x7fELF": "program",
    b"SQLite format 3": "SQLite",
    b"\x89HDF": "HDF5",
    b"ARROW1": "Arrow",
}
_CONTROL_BYTES = bytes(code for code in range(32) if code not in b"\t\n\r\f\v\x1b\x08")


@dataclass(frozen=True)
class File:
    """A file, or a member of a zip archive; ``name`` is its name in errors."""

    path: Path
    member: str | None = None
    name: str = ""

    def __str__(self) -> str:
        return self.name or (str(self.path) if self.member is None else f"{self.path}!{self.member}")

    def open(self, stop: int | None = None) -> Any:
        """The decompressed bytes, as a binary file. Of a plain one nothing after byte ``stop`` is read ahead.

        Raises:
            DataError: it is a pipe or a device.
        """
        refuse_pipe(self.path)
        openers: dict[str, Any] = {
            ".gz": gzip.open,
            ".xz": functools.partial(_open_streams, lzma.LZMADecompressor),
            ".bz2": functools.partial(_open_streams, bz2.BZ2Decompressor),
            ".zst": _open_zstd,
        }
        opener = openers.get(Path(self.member or self.path).suffix.lower())
        if self.member is None and opener is None:
            return open_file(self.path, stop)
        place: Any = self.path if url_of(self.path) is None else open_file(self.path)
        file = place if self.member is None else zipfile.ZipFile(place).open(self.member)
        return file if opener is None else opener(file)

    def head(self) -> bytes:
        """The first 64 KB.

        Raises:
            DataError: the file cannot be read, or they are not those of UTF-8 text.
        """
        with errors_of(str(self)), self.open() as file:
            head = file.read(HEAD)
        refuse_binary(str(self), head)
        return head


def suffix(path: Path) -> str:
    """The suffix of the format in lower case, without that of the compression: ``.tsv`` for ``train.tsv.gz``."""
    return Path(path.stem).suffix.lower() if path.suffix.lower() in COMPRESSED else path.suffix.lower()


def refuse_pipe(path: Path) -> None:
    """Refuse what is neither file nor folder: beginnings are read first, and the same bytes would not come again.

    Raises:
        DataError: it is a pipe or a device.
    """
    if not path.is_file() and path.exists() and not path.is_dir():
        raise DataError(f"{path}: a pipe or a device, which cannot be read twice; write it to a file first")


def refuse_binary(name: str, head: bytes) -> None:
    """Refuse a file whose first bytes are not those of UTF-8 text.

    Raises:
        DataError: the file is not text.
    """
    for mark, encoding in MARKS.items():
        if head.startswith(mark):
            raise DataError(f"{name}: {encoding}, expected UTF-8; convert it: iconv -f {encoding} -t UTF-8")
    for magic, (kind, ending) in _COMPRESSION.items():
        if head.startswith(magic):
            raise DataError(f"{name}: compressed with {kind}, but its name does not end in {ending}; rename it")
    if head.startswith(b"PK\x03\x04"):
        raise DataError(f"{name}: a ZIP archive or an Excel sheet; unpack it, or save the sheet as CSV")
    if head.count(0) > len(head) / 4:
        raise DataError(f"{name}: every other byte is NUL, as in UTF-16, expected UTF-8; convert it with iconv")
    kind = next((kind for magic, kind in _BINARY.items() if head.startswith(magic)), "")
    kind = "tar" if head[257:262] == b"ustar" else kind
    controls = len(head) - len(head.translate(None, _CONTROL_BYTES))
    if kind or controls > max(3, len(head) / 100):
        what = f"binary data ({kind or f'{controls} control bytes in the first {len(head)}'})"
        raise DataError(f"{name}: {what}, expected text; leave the file out, or unpack or convert it first")


def _open_zstd(source: Path | IO[bytes]) -> Any:
    name = source if isinstance(source, Path) else source.name
    with optional("zstandard", "data", f"reading {name}"):
        import zstandard
    return _open_streams(zstandard.ZstdDecompressor().decompressobj, source)


def _open_streams(start: Callable[[], Any], source: Path | IO[bytes]) -> Any:
    file = open(source, "rb") if isinstance(source, Path) else source
    return io.BufferedReader(_Streams(file, start), BLOCK)


class _Streams(io.RawIOBase):
    """A file of any number of compressed streams, with zeros between them or none (pzstd, pbzip2 and Wikipedia write
    several). Truncation, and bytes after a stream that begin no other, are errors. The readers of ``bz2`` and ``lzma``
    end silently where a stream begins with damage, that of ``zstandard`` after the first stream.

    Args:
        start: makes the decompressor of one stream.
    """

    def __init__(self, file: IO[bytes], start: Callable[[], Any]) -> None:
        self._file, self._start = file, start
        self._stream: Any = None
        self._left = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._left:
            if self._stream is None or self._stream.eof:
                data = b"" if self._stream is None else self._stream.unused_data.lstrip(b"\0")
                while not data and (more := self._file.read(1 << 14)):
                    data = more.lstrip(b"\0")
                if not data:
                    return 0
                self._stream = self._start()
            elif getattr(self._stream, "needs_input", True):
                data = self._file.read(1 << 14)
                if not data:
                    raise EOFError
            else:
                data = b""
            bounded = (BLOCK,) if hasattr(self._stream, "needs_input") else ()  # zstandard gives all that there is
            self._left = memoryview(self._stream.decompress(data, *bounded))
        size = min(len(buffer), len(self._left))
        buffer[:size] = self._left[:size]
        self._left = self._left[size:]
        return size

    def close(self) -> None:
        self._file.close()
        super().close()


class RowGroup(NamedTuple):
    """A row group of a Parquet file: its rows, the bytes of one column of them, and the byte of the file at which that
    ends.
    """

    rows: int
    num_bytes: int
    end: int


def column_schema(file: File) -> Any:
    """The ``pyarrow.Schema`` of a Parquet or Arrow file."""
    with _open_columns(file) as opened:
        return getattr(opened, "schema_arrow", None) or opened.schema


def row_groups(file: File, column: str) -> tuple[RowGroup, ...]:
    """The row groups of a Parquet file; none of an Arrow file."""
    with _open_columns(file) as opened:
        if not hasattr(opened, "iter_batches"):
            return ()
        groups = [opened.metadata.row_group(number) for number in range(opened.metadata.num_row_groups)]
    groups_read = []
    for group in groups:
        inside = [group.column(number) for number in range(group.num_columns)]
        inside = [one for one in inside if one.path_in_schema == column or one.path_in_schema.startswith(f"{column}.")]
        begin = (one.dictionary_page_offset or one.data_page_offset for one in inside)
        end = max((start + one.total_compressed_size for start, one in zip(begin, inside, strict=True)), default=0)
        groups_read.append(RowGroup(group.num_rows, sum(one.total_uncompressed_size for one in inside), end))
    return tuple(groups_read)


def column_batches(
    file: File, columns: Sequence[str] | None = None, groups: range | None = None, stop: int | None = None
) -> Iterator[Any]:
    """The rows of a Parquet or Arrow file as record batches of about 4 MB, at most 1,024 rows.

    Of a Parquet file, those of the row groups ``groups``, which end at byte ``stop``; None for all.
    """
    with _open_columns(file, stop) as opened:
        if hasattr(opened, "iter_batches"):
            sizes = map(opened.metadata.row_group, range(opened.metadata.num_row_groups))
            row_bytes = sum(group.total_byte_size for group in sizes) / max(opened.metadata.num_rows, 1)
            rows = max(1, min(1024, int(BLOCK / max(row_bytes, 1))))  # a thousand books would not fit into memory
            chosen = None if groups is None else list(groups)
            yield from opened.iter_batches(batch_size=rows, columns=columns, row_groups=chosen, use_threads=False)
            return
        whole = hasattr(opened, "get_batch")
        for batch in map(opened.get_batch, range(opened.num_record_batches)) if whole else opened:
            rows = max(1, min(1024, int(BLOCK / max(batch.nbytes / max(batch.num_rows, 1), 1))))
            chosen = batch if columns is None else batch.select(columns)
            yield from (chosen.slice(begin, rows) for begin in range(0, batch.num_rows, rows))


def class_names(file: File) -> dict[str, list[str]]:
    """The names of classes by column, as ``datasets`` keeps them in the schema of its files, or else in
    ``dataset_info.json`` next to them; its rows have numbers.
    """
    written, beside = (column_schema(file).metadata or {}).get(b"huggingface", b""), file.path.with_name(INFO)
    info = read_json(beside, RESTORE) if not written and beside.is_file() else None
    try:
        features = (json.loads(written)["info"] if info is None else info)["features"]
        inner = {name: one[0] if isinstance(one, list) else one.get("feature", one) for name, one in features.items()}
        return {name: list(one["names"]) for name, one in inner.items() if one.get("_type") == "ClassLabel"}
    except (AttributeError, IndexError, KeyError, TypeError, ValueError, RecursionError):
        return {}


def _open_columns(file: File, stop: int | None = None) -> Any:
    """A ``pyarrow.parquet.ParquetFile``, or a reader of Arrow's formats for files or streams, by its last bytes; near
    them a Parquet file has its table of contents.
    """
    with optional("pyarrow", "data", f"reading {file}"):
        import pyarrow.ipc
        import pyarrow.parquet
    if file.member or file.path.suffix.lower() in COMPRESSED:
        raise DataError(f"{file}: Parquet or Arrow within an archive; unpack it first (Parquet is compressed itself)")
    remote = url_of(file.path) is not None
    source = open_file(file.path, stop) if remote else pyarrow.OSFile(str(file.path))
    source.seek(0, os.SEEK_END)
    source.seek(max(0, source.tell() - 6))
    mark = source.read(6)
    source.seek(0)
    if mark == b"ARROW1":
        return pyarrow.ipc.open_file(source)
    if file.path.suffix.lower() == ".arrow" and mark[2:] != b"PAR1":
        return pyarrow.ipc.open_stream(source)
    return pyarrow.parquet.ParquetFile(source, pre_buffer=False, buffer_size=BLOCK)


@contextlib.contextmanager
def errors_of(name: str) -> Iterator[None]:
    """A context in which every failure to read ``name`` is an error of one line."""
    try:
        yield
    except DataError:
        raise
    except EOFError:
        raise DataError(f"{name}: the compressed data ends too early; the file is truncated, fetch it again") from None
    except gzip.BadGzipFile as error:
        raise DataError(f"{name}: no gzip, or damaged ({error}); rename the file, or fetch it again") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{name}: not UTF-8 ({error.reason}); convert the file to UTF-8") from None
    except (zlib.error, lzma.LZMAError, zipfile.BadZipFile) as error:
        raise DataError(f"{name}: damaged ({error}); fetch the file again") from None
    except OSError as error:
        reason = error.strerror or f"damaged: {' '.join(str(error).split())[:120]}"
        raise DataError(f"{name}: cannot be read ({reason}); check the file and its permissions") from None
    except Exception as error:  # zipfile raises RuntimeError for a password or an unknown method
        of_library = type(error).__module__.split(".")[0] in ("zstandard", "pyarrow")  # they have errors of their own
        if not of_library and not isinstance(error, RuntimeError):
            raise
        remedy = "fetch the file again" if of_library else "unpack it, and give what was in it"
        reason = " ".join(str(error).split())[:120]
        raise DataError(f"{name}: cannot be read ({reason}); {remedy}") from None
