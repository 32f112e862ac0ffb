"""Names, states and bytes of files at URLs, with retries; a lasting failure is an error of one line.

A URL is passed as a string or as a :class:`~pathlib.Path`: ``Path("s3://bucket/a")`` becomes ``s3:/bucket/a``, and
:func:`url_of` restores the URL. Functions that also take local paths say so.
"""

from __future__ import annotations

import functools
import glob
import logging
import os
import random
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from encoderlab.errors import ConfigError, DataError, EncoderlabError, MissingDependency

log = logging.getLogger(__name__)
T = TypeVar("T")

PROTOCOLS = "s3 s3a gs gcs az abfs hf http https hdfs webhdfs sftp ftp oss memory".split()
READ_ONLY = ("http", "https", "hf")
OF_OTHERS = {"gs": "gcsfs", "gcs": "gcsfs", "az": "adlfs", "abfs": "adlfs", "oss": "ossfs"}  # packages beyond [scale]
NOT_SUPPORTED = ("hdfs", "webhdfs", "sftp", "ftp")  # their files belong to a host, which fsspec's paths do not name
ATTEMPTS, FIRST_WAIT = 8, 0.25  # tries of one request; seconds before the second try, doubled before each further one
SILENCE = 30.0  # seconds after which an answer that has stopped counts as lost
ABSENT = "no such file or folder; check the URL"
_URL = re.compile(rf"({'|'.join(PROTOCOLS)}):/{{1,2}}([^/].*)")
_NO_CREDENTIALS = ("NoCredentialsError", "PartialCredentialsError", "ProfileNotFound", "DefaultCredentialsError")
_LOG_IN = "log in with: hf auth login (or set HF_TOKEN)"
_OF_HUB = {  # errors of the Hugging Face Hub's library that last
    "GatedRepoError": f"is gated; accept its terms on its page, then {_LOG_IN}",
    "RepositoryNotFoundError": f"the Hub has no such data set or model, or it is private; check the name, or {_LOG_IN}",
    "RevisionNotFoundError": "the Hub has no such revision; give a branch, a tag or a commit after the @",
    "HFValidationError": "is not a name of the Hub; give one such as hf://datasets/org/name",
    "HfUriError": "is not a name of the Hub; give one such as hf://datasets/org/name",
    "OfflineModeIsEnabled": "HF_HUB_OFFLINE forbids fetching it; unset that, or give files on disk",
}


class Absent(DataError):
    """There is no file or folder at a URL."""


class Info(NamedTuple):
    """The size of a file in bytes, and its version, which changes with the file; empty if a web server names none."""

    size: int
    version: str | int


def url_of(place: str | os.PathLike[str]) -> str | None:
    """The URL of ``place``; None for a local path."""
    match = _URL.fullmatch(os.fspath(place))
    return None if match is None else f"{match[1]}://{match[2]}"


def identity(path: Path) -> str:
    """The same for all names of one file: the URL, or the real path."""
    return url_of(path) or str(path.resolve())


def join(url: str, name: str) -> str:
    """The URL of ``name`` in the folder ``url``."""
    return f"{url.rstrip('/')}/{name}"


def file_system(url: str) -> tuple[Any, str]:
    """The fsspec file system of a URL, and the path in it.

    Raises:
        ConfigError: a protocol that is not supported.
        MissingDependency: fsspec, or the package for this protocol, is not installed.
    """
    protocol = url.partition("://")[0]
    if protocol in NOT_SUPPORTED:
        raise ConfigError(
            f"{url}: {protocol} is not supported; mount the folder, or give a URL such as s3://bucket/folder"
        )
    try:
        system = _file_system(protocol)
    except ImportError as error:
        if (package := OF_OTHERS.get(protocol)) is not None:
            raise ConfigError(f"{url}: {package} is not installed; run: pip install {package}") from None
        raise MissingDependency(error.name or protocol, "scale", f"reading {url}") from None
    return system, system._strip_protocol(url)


@functools.cache
def _file_system(protocol: str) -> Any:
    import fsspec

    options: dict[str, Any] = {}
    if protocol in ("s3", "s3a"):
        # Retries are ours alone: those of botocore would multiply them.
        options["config_kwargs"] = {"retries": {"max_attempts": 1}, "connect_timeout": 10, "read_timeout": SILENCE}
    system = fsspec.filesystem(protocol, use_listings_cache=False, **options)
    if hasattr(system, "retries"):  # those of s3fs, too
        system.retries = 1
    return system


def attempt(url: str, request: Callable[[], T]) -> T:
    """``request()``, repeated with exponential back-off after temporary errors.

    Raises:
        DataError: no such file or bucket, access refused, no credentials, or a connection that keeps failing.
    """
    wait = FIRST_WAIT
    for number in range(1, ATTEMPTS + 1):
        try:
            return request()
        except EncoderlabError:
            raise
        except Exception as error:
            if (reason := _final(error)) is not None:
                raise (Absent if reason == ABSENT else DataError)(f"{url}: {reason}") from None
            said = " ".join(f"{type(error).__name__}: {error}".split())[:160]
            if number == ATTEMPTS:
                raise DataError(
                    f"{url}: the connection failed {ATTEMPTS} times ({said}); check the network, and run the same "
                    "command again"
                ) from None
            log.debug("%s: %s; trying again in %.2g s", url, said, wait)
            time.sleep(wait * (1 + random.random() / 4))  # not all workers at the same time
            wait *= 2
    raise AssertionError


def _final(error: Exception) -> str | None:
    """Why a request can never succeed; None for a temporary error."""
    cause = error.__cause__
    if (known := _OF_HUB.get(type(error).__name__) or _OF_HUB.get(type(cause).__name__)) is not None:
        return known
    if isinstance(error, FileNotFoundError) and isinstance(cause, Exception):  # fsspec's error for any server error
        if isinstance(cause, OSError) or getattr(cause, "status", 404) != 404:
            return _final(cause)
    name, said = type(error).__name__, " ".join(str(error).split())[:160]
    status = getattr(error, "status", None) or getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(error, FileNotFoundError) or name == "EntryNotFoundError" or status == 404:
        if "bucket does not exist" in said or "NoSuchBucket" in f"{said} {error.__cause__}":
            return "no such bucket; check its name"
        return ABSENT
    if isinstance(error, PermissionError) or status in (401, 403):
        return f"access is refused ({said}); check the credentials and their rights"
    if name in _NO_CREDENTIALS:
        return f"no credentials ({said}); set them, for example AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
    if isinstance(error, IsADirectoryError):
        return "is a folder; give a file"
    if isinstance(error, (ImportError, TypeError, NotImplementedError)) or name in (
        "ValueError",
        "ParamValidationError",
    ):
        return f"cannot be used ({name}: {said}); check the URL"
    return None


_KNOWN: dict[str, Info] = {}  # the last version that this process saw


def look(url: str, *, fresh: bool = False) -> dict[str, Any]:
    """The entry of a file or a folder, as fsspec describes it; ``fresh`` ignores what the file system has cached.

    Raises:
        DataError: there is none, or it cannot be read.
    """
    system, path = file_system(url)

    def request() -> dict[str, Any]:
        if fresh:
            system.invalidate_cache(path)
        return system.info(path)

    return attempt(url, request)


def info(path: str | os.PathLike[str], *, fresh: bool = False) -> Info:
    """The size and the version of a file, local or not; ``fresh`` ignores what this process has cached.

    Raises:
        DataError: it is not there, or cannot be read.
        OSError: of a local file.
    """
    url = url_of(path)
    if url is None:
        state = os.stat(path)
        return Info(state.st_size, state.st_mtime_ns)
    if fresh or url not in _KNOWN:
        entry = look(url, fresh=fresh)
        if entry["type"] == "directory":
            raise DataError(f"{url}: is a folder; give a file")
        _KNOWN[url] = _info(entry)
    return _KNOWN[url]


def _info(entry: dict[str, Any]) -> Info:
    marks = ("ETag", "etag", "blob_id", "LastModified", "Last-Modified", "mtime", "created")
    mark = next((entry[key] for key in marks if key in entry), "")
    size = entry.get("size")
    return Info(-1 if size is None else int(size), str(mark).strip('"'))


def is_folder(url: str) -> bool:
    """Whether there is a folder at the URL; no folder is a pattern of files, or the web.

    Raises:
        DataError: there is nothing.
    """
    if url.partition("://")[0] in ("http", "https"):
        return False
    try:
        return look(url)["type"] == "directory"
    except Absent:
        if glob.has_magic(url):
            return False
        raise


def exists(url: str) -> bool:
    """Whether there is a file or a folder at the URL.

    Raises:
        DataError: no answer, no access, or no such bucket.
    """
    try:
        look(url)
    except Absent:
        return False
    return True


def find(url: str) -> list[str]:
    """The URLs of the files below a folder, or those that match a pattern, by name; hidden ones are left out. A folder
    that is called like a pattern, such as ``run[1]``, is that folder.

    Raises:
        DataError: no such folder, it cannot be read, or a file has a name that no file on disk can have.
    """
    system, path = file_system(url)
    protocol = url.partition("://")[0]
    if glob.has_magic(path) and not is_folder(url):
        entries = attempt(url, lambda: system.glob(path, detail=True))
    else:
        entries = attempt(url, lambda: system.find(path, detail=True))
    start = path.rstrip("/") + "/"
    places = []
    for name, entry in entries.items():
        inside = name.removeprefix(start) if name.startswith(start) else name.rpartition("/")[2]
        if name.endswith("/"):
            continue  # marks a folder, as the web pages of stores make them
        if entry["type"] == "file" and not any(part.startswith(".") for part in inside.split("/")):
            place = f"{protocol}://{name.lstrip('/')}" if "://" not in name else name
            if "" in inside.split("/"):  # on disk, run//x would be /x
                raise DataError(f"{place}: two slashes in a row cannot be in the name of a file on disk; rename it")
            _KNOWN[place] = _info(entry)
            places.append(place)
    return sorted(places)


def read_bytes(url: str) -> bytes:
    """The bytes of a small file.

    Raises:
        DataError: it cannot be read.
    """
    system, path = file_system(url)

    def read() -> bytes:
        size = system.info(path)["size"]
        data = bytes(system.cat_file(path))
        if size is not None and len(data) != size:
            raise ConnectionError(f"{len(data)} of {size} bytes arrived")
        return data

    return attempt(url, read)


def upload(path: Path, url: str) -> None:
    """Write the file at ``path`` to the URL, where it appears whole or not at all.

    Raises:
        DataError: it cannot be written.
    """
    system, place = file_system(url)

    def put() -> None:
        size = path.stat().st_size
        system.put_file(os.fspath(path), place)
        if (there := system.info(place)["size"]) != size:
            raise ConnectionError(f"{there} of {size} bytes arrived")

    attempt(url, put)


def write_bytes(url: str, data: bytes) -> None:
    """Write a small file to the URL.

    Raises:
        DataError: it cannot be written.
    """
    system, path = file_system(url)
    attempt(url, lambda: system.pipe_file(path, data))


def delete(url: str) -> None:
    """Delete a file; a missing file is not an error.

    Raises:
        DataError: it cannot be deleted.
    """
    system, path = file_system(url)
    if exists(url):
        attempt(url, lambda: system.rm_file(path))


def check_writable(url: str) -> None:
    """Refuse a URL to which nothing can be written.

    Raises:
        ConfigError: a protocol that only reads.
    """
    protocol = url.partition("://")[0]
    if protocol in READ_ONLY:
        raise ConfigError(f"{url}: {protocol} can only be read; give a folder, or a URL such as s3://bucket/folder")
