"""``SHA256SUMS`` in a model folder: a line per file, as ``sha256sum`` writes and checks it. Other libraries ignore it.

Checking costs about 2 s per GB of weights on a processor without SHA-256 instructions. The first line gives the number
of files, so that a truncated record is noticed.
"""

from __future__ import annotations

import functools
import logging
import re
from pathlib import Path

from encoderlab.errors import DataError
from encoderlab.files import sha256, write_text

log = logging.getLogger(__name__)

NAME = "SHA256SUMS"
FREE = ("README.md",)  # users may edit it: a difference is logged, not refused
_LINE = re.compile(r"([0-9a-f]{64})  ([^/\\\s][^/\\]*)")
_MEANT = f"restore it, or delete {NAME} if you changed it yourself"


def write(folder: Path) -> None:
    """Record every file of ``folder``."""
    sums = {path.name: sha256(path) for path in folder.iterdir() if path.is_file() and path.name != NAME}
    write_text(folder / NAME, _text(sums))


def add(folder: Path, name: str) -> None:
    """Record the file ``name``, which was added to a folder with checksums."""
    if (folder / NAME).exists():
        write_text(folder / NAME, _text(_read(folder) | {name: sha256(folder / name)}))


def verify(folder: Path) -> None:
    """Compare every recorded file; if the folder has no record, log that.

    Raises:
        DataError: a file is missing or differs, or the record itself is damaged.
    """
    if not (folder / NAME).exists():
        _say_unrecorded(folder.resolve())
        return
    try:
        for name, expected in _read(folder).items():
            path = folder / name
            if not path.is_file():
                raise DataError(f"{path}: is missing, although {NAME} lists it; {_MEANT}")
            if sha256(path) != expected:
                if name not in FREE:
                    raise DataError(f"{path}: does not match its checksum in {NAME}; {_MEANT}")
                log.warning("%s: does not match its checksum in %s; the model does not depend on it", path, NAME)
    except OSError as error:
        where = error.filename or folder
        raise DataError(f"{where}: cannot be read ({error.strerror}); check its permissions") from None


@functools.cache
def _say_unrecorded(folder: Path) -> None:
    log.info("%s: has no %s, so damage to its files may go unnoticed", folder, NAME)


def _read(folder: Path) -> dict[str, str]:
    path = folder / NAME
    text = path.read_text(encoding="utf-8", errors="replace")
    sums = {match[2]: match[1] for match in map(_LINE.fullmatch, text.split("\n")) if match is not None}
    if text != _text(sums):
        raise DataError(f"{path}: is damaged; restore it, or delete it if the other files are intact")
    return sums


def _text(sums: dict[str, str]) -> str:
    lines = [f"# files: {len(sums)}", *(f"{digest}  {name}" for name, digest in sorted(sums.items()))]
    return "\n".join(lines) + "\n"
