"""Opens plain and compressed files, members of zip archives and Parquet; what goes wrong is an error of one line."""

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
from typing import IO, Any

from encoderlab.errors import DataError, MissingDependency

BLOCK = 4 << 20  # bytes read at a time
COMPRESSED = (".gz", ".xz", ".bz2", ".zst", ".zip")


def open_file(path: Path, member: str | None = None) -> Any:
    """The decompressed bytes of a file, or of one member of a zip archive, as a binary file."""
    openers: dict[str, Any] = {".gz": gzip.open, ".xz": lzma.open, ".bz2": bz2.open, ".zst": _open_zstd}
    opener = openers.get(Path(member or path).suffix.lower())
    if member is None:
        return opener(path) if opener else open(path, "rb")
    file = zipfile.ZipFile(path).open(member)
    return opener(file) if opener else file


def _open_zstd(source: Path | IO[bytes]) -> Any:
    try:
        import zstandard
    except ImportError:
        name = source if isinstance(source, Path) else source.name
        raise MissingDependency("zstandard", "data", f"reading {name}") from None
    file = open(source, "rb") if isinstance(source, Path) else source
    return io.BufferedReader(_ZstdFile(file, zstandard.ZstdDecompressor()), BLOCK)


class _ZstdFile(io.RawIOBase):
    """A zstd file of any number of frames (pzstd writes several), which fails where it is truncated; the reader of
    ``zstandard`` itself stops after the first frame, and ends in silence at a truncated one."""

    def __init__(self, file: IO[bytes], decompressor: Any) -> None:
        self._file = file
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
    return pyarrow.parquet.ParquetFile(path, pre_buffer=False, buffer_size=BLOCK)


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
        reason = error.strerror or f"damaged: {' '.join(str(error).split())[:120]}"
        raise DataError(f"{name}: cannot be read ({reason}); check the file and its permissions") from None
    except Exception as error:  # zstandard and pyarrow have errors of their own, zipfile raises RuntimeError
        if type(error).__module__.split(".")[0] in ("zstandard", "pyarrow") or isinstance(error, RuntimeError):
            raise DataError(f"{name}: cannot be read ({' '.join(str(error).split())[:120]})") from None
        raise
