"""Files at URLs as streams: blocks are requested ahead, checked for their length, and hashed as they are read."""

from __future__ import annotations

import hashlib
import io
import os
from concurrent.futures import Future, ThreadPoolExecutor
from typing import IO, Any

from encoderlab.errors import DataError
from encoderlab.storage import places

BLOCK = 4 << 20  # bytes of one request
AHEAD = 4  # blocks requested before they are needed
KEPT = 4  # blocks in memory besides these, for readers that seek
_HASHES: dict[tuple[str, places.Info], str] = {}  # of files that this process read from start to end


def open_file(path: str | os.PathLike[str], stop: int | None = None) -> IO[bytes]:
    """A local file, or one at a URL, for reading; both can seek.

    Memory: 32 MB for a URL. After byte ``stop`` nothing is requested before it is read.

    Raises:
        DataError: it is not there, or cannot be read.
        OSError: of a local file.
    """
    url = places.url_of(path)
    if url is None:
        return open(path, "rb")
    return io.BufferedReader(RemoteFile(url, stop), 1 << 18)


def sha256(path: str | os.PathLike[str]) -> str:
    """SHA-256 of a file, local or not. One that this process has read from start to end is not read again."""
    url = places.url_of(path)
    if url is not None and (known := _HASHES.get((url, places.info(url)))):
        return known
    with open_file(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]


class RemoteFile(io.RawIOBase):
    """A file at a URL. Blocks ahead, up to byte ``stop``, are requested from the second one on that is read in order.

    Raises:
        DataError: it is not there, cannot be read, or changes while it is read.
    """

    def __init__(self, url: str, stop: int | None = None) -> None:
        self.name = self._url = url
        self._stop = stop
        self._place, self._checked = 0, False
        self._system, self._path = places.file_system(url)
        # Otherwise fsspec requests 5 MB after each range, and forgets them.
        self._options = {"cache_type": "none"} if url.startswith("hf://") else {}
        self._info = places.info(url)
        self._whole: bytes | None = None
        if self._info.size < 0:  # a web server without sizes: the whole file must be read at once
            self._whole = places.read_bytes(url)
            self._info = self._info._replace(size=len(self._whole))
        self._pool = ThreadPoolExecutor(AHEAD, thread_name_prefix="storage")
        self._blocks: dict[int, Future[bytes]] = {}
        self._last: int | None = None  # block that was read last
        self._in_order = False  # whether that is the one after the one before
        self._hash, self._hashed = hashlib.sha256(), 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._place

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self._info.size}[whence]
        self._place = max(0, start + offset)
        return self._place

    def readinto(self, buffer: Any) -> int:
        size = min(len(buffer), self._info.size - self._place)
        if size <= 0:
            self._check_unchanged()
            return 0
        number = self._place // BLOCK
        block = self._block(number)
        start = self._place - number * BLOCK
        data = block[start : start + size]
        buffer[: len(data)] = data
        if self._place <= self._hashed < self._place + len(data):
            self._hash.update(data[self._hashed - self._place :])
            self._hashed = self._place + len(data)
        self._place += len(data)
        return len(data)

    def _block(self, number: int) -> bytes:
        last = (min(self._info.size, self._stop or self._info.size) - 1) // BLOCK
        needed = [number]
        if number != self._last:
            self._in_order = self._last is not None and number == self._last + 1
        if self._in_order:
            needed += range(number + 1, min(number + AHEAD, last) + 1)
        self._last = number
        for other in needed:
            if other not in self._blocks:
                self._blocks[other] = self._pool.submit(self._fetch, other)
        block = self._blocks[number].result()
        for old in list(self._blocks)[: max(0, len(self._blocks) - KEPT - AHEAD)]:
            if old not in needed:
                del self._blocks[old]
        return block

    def _fetch(self, number: int) -> bytes:
        start = number * BLOCK
        end = min(start + BLOCK, self._info.size)
        if self._whole is not None:
            return self._whole[start:end]

        def request() -> bytes:
            data = bytes(self._system.cat_file(self._path, start=start, end=end, **self._options))
            if len(data) == self._info.size > end - start:  # a web server without range requests
                return data[start:end]
            if len(data) != end - start:
                raise ConnectionError(f"{len(data)} of {end - start} bytes arrived")
            return data

        return places.attempt(self._url, request)

    def _check_unchanged(self) -> None:
        """At the end: the file is still the one that was opened."""
        if self._checked or self._whole is not None:
            return
        self._checked = True
        if places.info(self._url, fresh=True) != self._info:
            raise DataError(f"{self._url}: has changed while it was read; run the same command again")
        if self._hashed == self._info.size:
            _HASHES[self._url, self._info] = self._hash.hexdigest()

    def close(self) -> None:
        if not self.closed and hasattr(self, "_pool"):
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._blocks.clear()
        super().close()
