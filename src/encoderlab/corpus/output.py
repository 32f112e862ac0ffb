"""The output folder of a build: held by one process, begun once, and never continued with something else."""

from __future__ import annotations

import contextlib
import errno
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from encoderlab.errors import ConfigError, DataError
from encoderlab.files import locked, write_json

WORK = ".work"  # what a corpus is built in, below its folder
PLAN, MERGE = "plan.json", "merge.json"  # what is being built or merged there; a part of a corpus has a plan, too


@contextlib.contextmanager
def held(out: Path) -> Iterator[None]:
    """Make and hold the folder; what goes wrong with writing there is one line.

    Raises:
        ConfigError: another process holds it, or it cannot be written.
        DataError: the disk is full.
    """
    with contextlib.ExitStack() as lock:
        try:
            out.mkdir(parents=True, exist_ok=True)
            lock.enter_context(locked(out))
        except BlockingIOError:
            raise ConfigError(f"{out}: in use by another process; wait for it, or choose another folder") from None
        except OSError as error:
            raise ConfigError(f"{out}: cannot be used as output folder ({error.strerror}); choose another") from None
        try:
            yield
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                reason = "no space left" if error.errno != errno.EFBIG else "a limit on the size of files is reached"
                raise DataError(f"{out}: {reason}; free some space and run again to continue") from None
            if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
                place = error.filename or out
                raise ConfigError(f"{place}: cannot be written ({error.strerror}); choose another folder") from None
            raise


def begin(folder: Path, out: Path, name: str, value: Any) -> None:
    """Write the first file of ``folder``, which is ``out`` or below it.

    Raises:
        ConfigError: something else is there.
    """
    for leftover in folder.glob(f".{name}.*.tmp"):  # killed before the file was complete
        leftover.unlink()
    if folder != out and folder.exists() and not any(folder.iterdir()):
        folder.rmdir()
    if any(out.iterdir()):
        raise ConfigError(f"{out}: not empty, and holds no corpus; choose another folder, or delete it")
    folder.mkdir(exist_ok=True)
    write_json(folder / name, value)


def differences(old: Any, new: Any, name: str = "") -> str:
    """What differs, by dotted path: ``tokenizer.vocab_size is 8192 there, 16384 here``."""
    if isinstance(old, dict) and isinstance(new, dict):
        keys = [*old, *(key for key in new if key not in old)]
        parts = [
            differences(old.get(key), new.get(key), f"{name}.{key}".lstrip("."))
            for key in keys
            if old.get(key) != new.get(key)
        ]
        return ", ".join(parts[:4]) + (f" and {len(parts) - 4} more" if len(parts) > 4 else "")
    return f"{name} is {_short(old)} there, {_short(new)} here"


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."
