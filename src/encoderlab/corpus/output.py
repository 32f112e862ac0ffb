"""The output folder of a build: locked by one process, and never continued with other settings."""

from __future__ import annotations

import contextlib
import errno
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from encoderlab.corpus.manifest import MANIFEST, TOKENIZER
from encoderlab.corpus.sealed import SEAL
from encoderlab.errors import ConfigError, DataError
from encoderlab.files import held_folder
from encoderlab.sealed import Damaged, read_record, write_record

log = logging.getLogger(__name__)

WORK = ".work"  # the working folder of a build, below the corpus's folder
PLAN, MERGE = "plan.json", "merge.json"  # records of a build or merge; a part of a corpus has a plan, too
PART, PIECES, ASSEMBLY = "part.json", "pieces", "assembly"
RESULTS = {TOKENIZER, f"{TOKENIZER}.tmp", PIECES, PART, ASSEMBLY}  # of a plan and of a merge


@contextlib.contextmanager
def held(out: Path) -> Iterator[None]:
    """Make and lock the folder; a failure to write there is an error of one line.

    Raises:
        ConfigError: another process has locked it, or it cannot be written.
        DataError: the disk is full.
    """
    with held_folder(out):
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


def begun(folder: Path, out: Path, name: str, asked: dict[str, Any]) -> dict[str, Any]:
    """The record ``name`` of an earlier session, the first file of ``folder``, which is ``out`` or below it.

    If it is missing or damaged, ``asked`` is written: other files in the folder name their own origin.

    Raises:
        ConfigError: the folder has other content.
    """
    for leftover in folder.glob(f".{name}.*.tmp"):  # killed before the file was complete
        leftover.unlink()
    try:
        return read_record(folder / name)
    except Damaged as problem:
        log.warning("%s; written again", problem)
    except FileNotFoundError:
        inside = {item.name for item in folder.iterdir()} if folder.exists() else set()
        ours = (folder / PIECES).exists() or (folder / ASSEMBLY).exists() or (folder / TOKENIZER / SEAL).exists()
        if ours and inside <= RESULTS:
            log.warning("%s: missing; written again", folder / name)
        elif inside or any(item != folder for item in out.iterdir()):
            content = "has a whole corpus, not a part" if (out / MANIFEST).exists() else "not empty, and has no corpus"
            raise ConfigError(f"{out}: {content}; choose another folder, or delete it") from None
    folder.mkdir(exist_ok=True)
    write_record(folder / name, asked)
    return asked


def differences(old: Any, new: Any, name: str = "") -> str:
    """The differences by dotted path: ``tokenizer.vocab_size is 8192 there, 16384 here``."""
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
