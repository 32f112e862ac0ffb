"""``SHA256SUMS`` in a model folder: a line per file, as ``sha256sum`` writes and checks it. Other libraries ignore it.

Checking costs about 2 s per GB of weights on a processor without SHA-256 instructions, so files in subfolders, such as
graphs, are checked when they are opened. The first line gives the number of files, so that a truncated record is
noticed. A record without it is the output of ``sha256sum`` itself, which somebody else wrote: listed files that are
there are compared.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import re
from collections.abc import Iterator
from pathlib import Path

from encoderlab.errors import DataError
from encoderlab.files import sha256, write_text

log = logging.getLogger(__name__)

NAME = "SHA256SUMS"
FREE = ("README.md",)  # users may edit it: a difference is logged, not refused
UNREAD = ("export.json", "model.pt2")  # of an export: not fetched from the Hub, and no model is read from them
_LINE = re.compile(r"([0-9a-f]{64})  ([^/\\\s][^\\]*)")
_FOREIGN = re.compile(r"([0-9a-f]{64}) [ *](?:\./)?(.+)")  # text or binary mode, from any pattern of files
_MEANT = f"restore it, or delete {NAME} if you changed it yourself"


def write(folder: Path) -> None:
    """Record every file of ``folder``, those in subfolders included."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != NAME]
    write_text(folder / NAME, _text({path.relative_to(folder).as_posix(): sha256(path) for path in files}))


def add(folder: Path, name: str) -> None:
    """Record the file ``name``, which was added to a folder with checksums."""
    if (folder / NAME).exists():
        sums, own = _read(folder)
        if own:
            write_text(folder / NAME, _text(sums | {name: sha256(folder / name)}))


def verify(folder: Path, *, subfolders: bool = False) -> None:
    """Compare the recorded files, those in ``subfolders`` only if asked for (:func:`verify_file`); if the folder has no
    record, log that.

    Raises:
        DataError: a file is missing or differs, or the record itself is damaged.
    """
    if not (folder / NAME).exists():
        _say_unrecorded(folder.resolve())
        return
    with _readable(folder):
        sums, own = _read(folder)
        if own and any("/" in name and not (folder / name).is_file() for name in sums):
            # Such a file may be left out, unless damage made a name of this folder one of a subfolder.
            strange = sorted(path for path in folder.iterdir() if path.is_file() and path.name not in (NAME, *sums))
            if strange:
                raise DataError(f"{strange[0]}: is not listed in {NAME}, which lists missing files; {_MEANT}")
        for name, expected in sums.items():
            needed = own and name not in UNREAD
            if ("/" not in name or subfolders) and (needed or (folder / name).is_file()):
                _compare(folder, name, expected)


def verify_file(folder: Path, name: str) -> None:
    """Compare the file ``name`` of a subfolder, such as ``onnx/model.onnx``, if it is recorded.

    Raises:
        DataError: it is missing or differs, or the record itself is damaged.
    """
    if (folder / NAME).exists():
        with _readable(folder):
            expected = _read(folder)[0].get(name)
            if expected is not None:
                _compare(folder, name, expected)


def _compare(folder: Path, name: str, expected: str) -> None:
    path = folder / name
    wrong = "does not match its checksum in" if path.is_file() else "is missing, although it is listed in"
    if path.is_file() and sha256(path) == expected:
        return
    if name not in FREE:
        raise DataError(f"{path}: {wrong} {NAME}; {_MEANT}")
    log.warning("%s: %s %s; the model does not depend on it", path, wrong, NAME)


@contextlib.contextmanager
def _readable(folder: Path) -> Iterator[None]:
    """A context in which a file that cannot be read is an error of the folder."""
    try:
        yield
    except OSError as error:
        where = error.filename or folder
        raise DataError(f"{where}: cannot be read ({error.strerror}); check its permissions") from None


@functools.cache
def _say_unrecorded(folder: Path) -> None:
    log.info("%s: has no %s, so damage to its files may go unnoticed", folder, NAME)


def _read(folder: Path) -> tuple[dict[str, str], bool]:
    """The checksums by name, and whether the record is ours."""
    path = folder / NAME
    text = path.read_text(encoding="utf-8", errors="replace")
    sums = {match[2]: match[1] for match in map(_LINE.fullmatch, text.split("\n")) if match is not None}
    if text == _text(sums):
        return sums, True
    lines = [_FOREIGN.fullmatch(line) for line in text.splitlines()]
    if not lines or None in lines:
        raise DataError(f"{path}: is damaged; restore it, or delete it if the other files are intact")
    return {match[2]: match[1] for match in lines if match is not None}, False


def _text(sums: dict[str, str]) -> str:
    lines = [f"# files: {len(sums)}", *(f"{digest}  {name}" for name, digest in sorted(sums.items()))]
    return "\n".join(lines) + "\n"
