"""Opens what text lies in: plain and compressed files, members of archives, Parquet; what goes wrong is one line."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import io
import lzma
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from encoderlab.errors import DataError, MissingDependency

BLOCK = 4 << 20  # bytes read at a time
COMPRESSED = (".gz", ".xz", ".bz2", ".zst", ".zip")


def open_file(path: Path, member: str | None = None) -> Any:
    """The decompressed bytes of a file, or of one member of a zip archive, as a binary file."""
    suffix = path.suffix.lower()
    if member is not None:
        return _open_member(path, member)
    if suffix == ".gz":
        return gzip.open(path)
    if suffix == ".xz":
        return lzma.open(path)
    if suffix == ".bz2":
        return bz2.open(path)
    if suffix == ".zst":
        return _open_zstd(path)
    return open(path, "rb")


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


def open_parquet(path: Path, member: str | None = None) -> Any:
    """A ``pyarrow.parquet.ParquetFile``."""
    name = path if member is None else f"{path}!{member}"
    try:
        import pyarrow.parquet
    except ImportError:
        raise MissingDependency("pyarrow", "data", f"reading {name}") from None
    if member or path.suffix.lower() in COMPRESSED:
        raise DataError(f"{name}: Parquet within an archive; unpack it first (Parquet is compressed itself)")
    return pyarrow.parquet.ParquetFile(path, pre_buffer=False)


@contextlib.contextmanager
def errors_of(name: str) -> Iterator[None]:
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
