"""Files that are there as a whole or not at all, and where those go that can be made again."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO


def write_text(path: Path, text: str) -> None:
    """Replace the file at ``path`` by ``text`` in one step: a reader, or a crash, sees the old or the new file."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, data: bytes) -> None:
    """As :func:`write_text`."""
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
    finally:
        aside.unlink(missing_ok=True)


def cache_folder() -> Path:
    """``$ENCODERLAB_HOME``, else ``encoderlab`` in the user's cache folder."""
    if home := os.environ.get("ENCODERLAB_HOME"):
        return Path(home).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "encoderlab"
