"""The output of a long job, stored part by part, so that an interrupted job continues after its last whole part."""

from __future__ import annotations

import glob
import hashlib
import logging
import os
import re
from pathlib import Path

log = logging.getLogger(__name__)


class PartFile:
    """Lines at ``path``, added in parts, with the length and the hash of every part in ``path.sums``.

    Opening it cuts off everything after the last unchanged part (a changed one is reported); ``lines`` counts the rest.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.sums = path, path.with_name(f"{path.name}.sums")
        self.lines = self._resumed()

    def add(self, data: bytes) -> None:
        """Add whole lines."""
        for path, content in (
            (self.path, data),
            (self.sums, f"{len(data)} {hashlib.sha256(data).hexdigest()}\n".encode()),
        ):
            try:
                with open(path, "ab") as file:
                    file.write(content)
            except OSError as error:
                error.filename = str(path)  # a full disk does not say which
                raise
        self.lines += data.count(b"\n")

    def finish(self, out: Path | None = None) -> None:
        """Move the lines to ``out`` when they are on disk, or delete them.

        Of part files called ``NAME.part-HASH``, the others of the same ``NAME`` are deleted: of jobs that were
        interrupted and then asked with another input or other settings.
        """
        if out is None:
            self.path.unlink(missing_ok=True)
        else:
            with open(self.path, "ab") as file:
                os.fsync(file.fileno())
            os.replace(self.path, out)
        self.sums.unlink(missing_ok=True)
        name, mark, _ = self.path.name.rpartition(".part-")
        for other in self.path.parent.glob(f"{glob.escape(name + mark)}*") if mark else ():
            if re.fullmatch(r"[0-9a-f]+(\.sums)?", other.name.removeprefix(name + mark)):
                other.unlink()

    def _resumed(self) -> int:
        """Truncate both files after the last unchanged part, and return the number of lines left."""
        lines = size = kept = 0
        if self.path.exists() and self.sums.exists():
            with open(self.path, "rb") as file, open(self.sums, "rb") as sums:
                for entry in sums:
                    length, _, digest = entry.partition(b" ")
                    data = file.read(int(length)) if length.isdigit() else b""
                    if not entry.endswith(b"\n"):
                        break  # killed while writing this line
                    if hashlib.sha256(data).hexdigest().encode() != digest.strip():
                        log.warning("%s: lines from %d on have changed; they are made again", self.path, lines + 1)
                        break
                    lines, size, kept = lines + data.count(b"\n"), size + len(data), kept + len(entry)
        elif self.path.exists() and self.path.stat().st_size:
            log.warning("%s: its hashes (%s) are missing; its lines are made again", self.path, self.sums.name)
        for path, end in ((self.path, size), (self.sums, kept)):
            if path.exists():  # a job that fails before its first part leaves nothing behind
                os.truncate(path, end)
        return lines
