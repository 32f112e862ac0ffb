"""Local copies of files at URLs: fetched once, checked, shared between processes, limited in size.

    CACHE/storage/files/HASH/NAME        one file
    CACHE/storage/folders/HASH/NAME/     a folder, such as a model
    CACHE/storage/corpora/HASH/NAME/     a corpus: its shards are fetched when they are first read

Next to each file is its hash, which is compared whenever the file is used (about a second per GB); shards have
theirs in the manifest, and training verifies them.

The names have a hash of the URL and of the state of the remote file, so a changed file is fetched again. So is one of a
web server that names no version of it (ETag or Last-Modified), whenever a command asks for it. Above the limit
(``ENCODERLAB_CACHE_GB``, 50 by default) the least recently used files are deleted.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import logging
import os
import shutil
import time
from pathlib import Path

from encoderlab.errors import ConfigError, DataError
from encoderlab.files import CACHE_GB, fcntl, made_cache_folder, remove_leftovers, replace_file, write_bytes
from encoderlab.files import sha256 as sha256_of
from encoderlab.storage import places
from encoderlab.storage.mirror import INDEX, WRITER
from encoderlab.storage.streams import open_file

log = logging.getLogger(__name__)

URL_FILE, COMPLETE = ".url", ".complete"
MANIFEST, COUNTS = "manifest.json", "counts.npy"
DEFAULT_GB = 50.0
IN_USE = 600.0  # seconds for which a used file is not deleted
CHUNK = 1 << 20


def local(place: str | os.PathLike[str]) -> Path:
    """The local path of a file, a folder or a corpus; those at URLs are fetched.

    Raises:
        DataError: there is nothing at the URL, or it cannot be read.
    """
    url = places.url_of(place)
    if url is None:
        return Path(place)
    if not places.is_folder(url):
        return file(url)
    names = {name.removeprefix(url.rstrip("/") + "/"): name for name in places.find(url)}
    names = {name: place for name, place in names.items() if name not in (INDEX, WRITER)}  # only of an upload
    if {MANIFEST, COUNTS} <= names.keys():
        return _corpus(url, names)
    return _folder(url, names)


def file(url: str) -> Path:
    """The file at a URL, in the cache.

    Raises:
        DataError: it is not there, or cannot be read.
    """
    state = places.info(url, fresh=True)
    path = _root() / "files" / _key(url, str(state)) / _name(url)
    _supply(path, url, state.size if state.size >= 0 else None, None, again=not state.version)
    return path


def supply(folder: Path, name: str, size: int, sha256: str, *, damaged: bool = False) -> None:
    """Fetch a file of a cached corpus that is not there, or is ``damaged``; for any other folder this does nothing.

    Raises:
        DataError: it cannot be read, or its hash differs from the manifest's.
    """
    path = folder / name
    if path.exists() and not damaged:
        if (folder / URL_FILE).exists():
            os.utime(path)
        return
    with contextlib.suppress(FileNotFoundError):
        url = (folder / URL_FILE).read_text(encoding="utf-8")
        _supply(path, places.join(url, name), size, sha256)


def _corpus(url: str, names: dict[str, str]) -> Path:
    """A corpus whose shards are fetched later (:func:`supply`)."""
    manifest = places.read_bytes(names[MANIFEST])
    folder = _root() / "corpora" / _key(url, hashlib.sha256(manifest).hexdigest()) / _name(url)
    for name, place in sorted(names.items()):
        if name == COUNTS or name.startswith("tokenizer/"):
            _supply(folder / name, place, places.info(place).size, None)
    write_bytes(folder / URL_FILE, url.encode())
    write_bytes(folder / MANIFEST, manifest)
    return folder


def _folder(url: str, names: dict[str, str]) -> Path:
    """A whole folder; a run with a model comes without its checkpoints."""
    if not names:
        raise places.Absent(f"{url}: {places.ABSENT}")
    if any(name.startswith("model/") for name in names):
        names = {name: place for name, place in names.items() if not name.startswith("checkpoints/")}
    states = {name: places.info(place) for name, place in sorted(names.items())}
    folder = _root() / "folders" / _key(url, repr(states)) / _name(url)
    for name, state in states.items():
        _supply(folder / name, names[name], state.size, None)
    if not (folder / COMPLETE).exists():
        write_bytes(folder / COMPLETE, b"")
    os.utime(folder / COMPLETE)
    return folder


def _supply(path: Path, url: str, size: int | None, sha256: str | None, *, again: bool = False) -> None:
    """Fetch ``url`` to ``path`` unless an intact copy is there, or ``again``; if several processes ask, one fetches and
    the others wait.
    """
    if not again and _is_whole(path):
        os.utime(path)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path.with_name(f".{path.name}.lock"), "ab") as lock:
        if fcntl is not None:
            fcntl.flock(lock, fcntl.LOCK_EX)
        if not again and _is_whole(path):
            return
        remove_leftovers(path.parent.glob(f".{glob.escape(path.name)}.*.tmp"))
        if not again and path.exists() and _hash_file(path).exists():
            log.warning("%s: has changed since it was fetched; %s is fetched again", path, url)
        digest, count = hashlib.sha256(), 0
        with open_file(url) as source, replace_file(path) as target:
            while data := source.read(CHUNK):
                target.write(data)
                digest.update(data)
                count += len(data)
            if size is not None and count != size:
                raise DataError(f"{url}: {count:,} bytes, expected {size:,}; write it again")
            if sha256 is not None and digest.hexdigest() != sha256:
                raise DataError(
                    f"{url}: sha256 {digest.hexdigest()[:12]}..., the manifest says {sha256[:12]}...: changed or "
                    "damaged; write the corpus again"
                )
        write_bytes(_hash_file(path), digest.hexdigest().encode())
    _shrink()


def _hash_file(path: Path) -> Path:
    return path.with_name(f".{path.name}.sha256")


def _is_whole(path: Path) -> bool:
    """Whether a file of the cache is intact."""
    try:
        return _hash_file(path).read_bytes() == sha256_of(path).encode()
    except FileNotFoundError:
        return False


def limit() -> int:
    """Bytes that the cache may hold.

    Raises:
        ConfigError: the variable is not a positive number.
    """
    value = os.environ.get(CACHE_GB) or DEFAULT_GB
    try:
        size = float(value)
    except ValueError:
        size = -1.0
    if not 0 < size < float("inf"):
        raise ConfigError(f"{CACHE_GB} is {value!r}; set it to the gigabytes that the cache may hold, such as 50")
    return int(size * 1e9)


def _shrink() -> None:
    """Delete the least recently used files until the cache is within its limit."""
    root, now = _root(), time.time()
    units = []  # when it was used, its size, and what to delete
    for path in [*root.glob("files/*/[!.]*"), *root.glob("corpora/*/*/*/*.safetensors")]:
        with contextlib.suppress(FileNotFoundError):
            state = path.stat()
            units.append((state.st_mtime, state.st_size, path))
    for mark in root.glob(f"folders/*/*/{COMPLETE}"):
        with contextlib.suppress(FileNotFoundError):
            sizes = [item.stat().st_size for item in mark.parent.rglob("*") if item.is_file()]
            units.append((mark.stat().st_mtime, sum(sizes), mark.parent))
    total, most = sum(size for _, size, _ in units), limit()
    for used, size, path in sorted(units):
        if total <= most:
            break
        if now - used < IN_USE:
            continue
        if path.is_dir():
            (path / COMPLETE).unlink(missing_ok=True)  # first, so that a partly deleted folder is not used
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
        total -= size


def _root() -> Path:
    return made_cache_folder("storage")


def _name(url: str) -> str:
    return url.rstrip("/").rpartition("/")[2].partition("?")[0] or "data"


def _key(url: str, state: str) -> str:
    return hashlib.sha256(f"{url}\n{state}".encode()).hexdigest()[:24]
