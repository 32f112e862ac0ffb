"""Write files whole or not at all, lock outputs of a process, and find the cache folder."""

from __future__ import annotations

import contextlib
import glob
import hashlib
import json
import logging
import math
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from encoderlab.errors import ConfigError, DataError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

log = logging.getLogger(__name__)

_NO_LOCKS = "%s: cannot be locked (%s); make sure that no other process writes there"

SEEN = 60.0  # seconds in which files of another node must be visible here

HOME, KERNELS, CACHE_GB = "ENCODERLAB_HOME", "ENCODERLAB_KERNELS", "ENCODERLAB_CACHE_GB"
VARIABLES = (HOME, KERNELS, CACHE_GB)
"""The environment variables of this package that are not fields of a recipe: the cache folder, ``off`` for plain
kernels (:mod:`encoderlab.nn.kernels.build`), and the size of the cache of files at URLs (:mod:`encoderlab.storage`).
"""


def kernels_wanted() -> bool:
    """Whether ``ENCODERLAB_KERNELS`` allows the compiled kernels.

    Raises:
        ConfigError: its value is neither ``on`` nor ``off``.
    """
    value = os.environ.get(KERNELS) or "on"
    if value not in ("on", "off"):
        raise ConfigError(f"{KERNELS} is {value!r}; set it to off for the plain kernels, or unset it")
    return value == "on"


def write_text(path: Path, text: str) -> None:
    r"""Replace the file at ``path`` by ``text`` in one step: a reader, or a crash, sees the old or the new file.

    Characters that UTF-8 cannot encode, as in names of some files, are written as JSON escapes: ``\udcfc``.
    """
    write_bytes(path, text.encode(errors="backslashreplace"))


def write_json(path: Path, value: Any) -> None:
    """Write ``value`` as indented JSON, as :func:`write_text` does; null for numbers that are not finite."""
    write_text(path, json.dumps(finite(value), indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def json_line(value: Any) -> str:
    """``value`` as one line of JSON; null for numbers that are not finite."""
    return json.dumps(finite(value), ensure_ascii=False, allow_nan=False) + "\n"


def read_json(path: Path, remedy: str = "restore it, or make it again") -> dict[str, Any]:
    """Read a JSON object that this package wrote.

    Raises:
        DataError: it is missing or damaged; the message ends with ``remedy``.
    """
    try:
        data = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise DataError(f"{path}: is missing; {remedy}") from None
    except (ValueError, RecursionError):
        raise DataError(f"{path}: is damaged (not valid JSON); {remedy}") from None
    if not isinstance(data, dict):
        raise DataError(f"{path}: is damaged ({type(data).__name__} instead of a JSON object); {remedy}")
    return data


def sha256(path: Path) -> str:
    """The hash of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def hashed_name(stem: str, file: Path) -> str:
    """The name of a file in a cache: ``stem``, which says what it was made from, and the hash of its bytes."""
    return f"{stem}-{sha256(file)[:16]}{file.suffix}"


def find_hashed(folder: Path, stem: str, suffix: str) -> Path | None:
    """The file in a cache that was made from ``stem`` and still has the hash in its name; None if there is none.

    Takes about a second per GB. Damaged files are deleted.
    """
    for path in sorted(folder.glob(f"{stem}-*{suffix}")):
        if path.name == hashed_name(stem, path):
            return path
        log.warning("%s: has changed since it was written; it is made again", path)
        path.unlink(missing_ok=True)
    return None


def finite(value: Any) -> Any:
    """``value`` with null for infinities and NaN, which JSON does not have."""
    if isinstance(value, Mapping):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_bytes(path: Path, data: bytes) -> None:
    """Replace the file at ``path`` by ``data``, as :func:`write_text` does; makes its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replace_file(path) as file:
        file.write(data)


@contextlib.contextmanager
def replace_file(path: Path) -> Iterator[IO[bytes]]:
    """A file that appears under its name complete and on disk, or not at all."""
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with aside.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    except OSError as error:
        if error.filename in (None, str(aside)):  # do not show the temporary name
            error.filename, error.filename2 = str(path), None
        raise
    finally:
        with contextlib.suppress(OSError):  # on a read-only file system even this check fails
            aside.unlink()


def remove_leftovers(paths: Iterable[Path]) -> None:
    """Delete those of ``paths`` that are temporary files or folders (``.NAME.PID.tmp``) of killed processes."""
    for path in list(paths):
        name = re.fullmatch(r"\..+\.(\d+)\.tmp", path.name)
        if name is None or int(name[1]) != os.getpid() and is_running(int(name[1])):
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def is_running(pid: int) -> bool:
    """Whether a process of this machine has this number."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return True


@contextlib.contextmanager
def locked(path: Path) -> Iterator[int | None]:
    """Lock the file or folder at ``path``; gives its handle. The lock ends with the process, even if it is killed.

    Without locks (Windows, some network file systems) a warning is logged, and work continues.

    Raises:
        BlockingIOError: another process holds the lock.
        OSError: the path cannot be opened.
    """
    if fcntl is None:
        log.warning(_NO_LOCKS, path, "this system has none")
        yield None
        return
    # Open files for writing, because exclusive locks on NFS need that; folders cannot be opened so.
    handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise
        except OSError as error:
            log.warning(_NO_LOCKS, path, error.strerror)
        yield handle
    finally:
        os.close(handle)


def wait_for(path: Path) -> None:
    """Wait until a file that a task on another node wrote is visible here.

    Raises:
        DataError: it does not appear.
    """
    end = time.monotonic() + SEEN
    while not path.exists():
        if time.monotonic() > end:
            raise DataError(
                f"{path}: was written by a task, but is not visible here; give an --out that all nodes share"
            )
        time.sleep(0.2)


def check_new(folder: Path) -> None:
    """Refuse an output folder that is a file, or has files.

    Raises:
        ConfigError: it is or has.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder}: exists and is not empty; choose another folder")


def check_own(folder: Path, *marks: str) -> None:
    """Refuse an output folder with files of somebody else.

    Raises:
        ConfigError: it has files, and none of ``marks``, which that of an earlier command would have.
    """
    there = sorted(entry.name for entry in folder.iterdir() if not entry.name.startswith("."))
    if there and not set(marks) & set(there):
        raise ConfigError(f"{folder}: is not empty (it has {there[0]!r}) and has no {marks[0]}; give another --out")


@contextlib.contextmanager
def held_folder(out: Path) -> Iterator[int | None]:
    """Make and lock an output folder while it is written; if it was made here and is empty at the end, it is removed.

    Gives the handle of the lock, as :func:`locked` does: processes that inherit it hold the lock too. Temporary files
    of processes that were killed are deleted first.

    Raises:
        ConfigError: another process is writing it, or it cannot be made.
    """
    with contextlib.ExitStack() as stack:
        try:
            there = out.is_dir()
            out.mkdir(parents=True, exist_ok=True)
            lock = stack.enter_context(locked(out))
        except BlockingIOError:
            raise ConfigError(f"{out}: another process is writing it; wait for it, or choose another folder") from None
        except OSError as error:
            raise ConfigError(f"{out}: cannot be used as output folder ({error.strerror}); choose another") from None
        try:
            remove_leftovers(out.rglob(".*.tmp"))
            yield lock
        finally:
            if not there:
                with contextlib.suppress(OSError):  # not empty, or already removed
                    out.rmdir()


@contextlib.contextmanager
def held_file(out: Path, *, called: str | None = None) -> Iterator[None]:
    """Lock the name of an output file while it is written, with a file ``.NAME.lock`` that is deleted at the end.

    Errors are about ``called``, by default ``out``. Temporary files of processes that were killed while they wrote it
    are deleted first.

    Raises:
        ConfigError: another process is writing it, or its folder cannot be made.
    """
    lock = out.with_name(f".{out.name}.lock")
    with contextlib.ExitStack() as stack:
        try:
            out.parent.mkdir(parents=True, exist_ok=True)
            while not _holds(stack, lock):
                pass  # the previous holder deleted its lock after we opened it
        except BlockingIOError:
            raise ConfigError(
                f"{called or out}: another process is writing it; wait for it, or name another file"
            ) from None
        except OSError as error:
            raise ConfigError(f"{out}: cannot be written ({error.strerror}); name another file") from None
        try:
            remove_leftovers(out.parent.glob(f".{glob.escape(out.name)}.*.tmp"))
            yield
        finally:
            lock.unlink(missing_ok=True)


def _holds(stack: contextlib.ExitStack, lock: Path) -> bool:
    """Lock the file ``lock`` until ``stack`` ends; returns whether the file still has its name."""
    lock.touch()
    try:
        handle = stack.enter_context(locked(lock))
        return handle is None or os.path.samestat(os.fstat(handle), lock.stat())
    except FileNotFoundError:
        return False


def cache_folder() -> Path:
    """``$ENCODERLAB_HOME``, else ``encoderlab`` in the user's cache folder."""
    if home := os.environ.get(HOME):
        return Path(home).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "encoderlab"


def made_cache_folder(*names: str) -> Path:
    """The folder of these names in :func:`cache_folder`, made if it is not there.

    Raises:
        ConfigError: nothing can be written there.
    """
    folder = cache_folder().joinpath(*names)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise ConfigError(
            f"{folder}: cannot be written ({error.strerror}); set {HOME} to a folder that can be"
        ) from None
    return folder
