"""The reports of a run: metrics, notes, progress, and the doctor's findings."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from encoderlab import config
from encoderlab.train.doctor import Watch
from encoderlab.train.folder import RunFolder
from encoderlab.train.progress import Board, Display
from encoderlab.train.recipe import Training

log = logging.getLogger(__name__)
SHOWN = {"shown": True}  # marks log records that the display shows, so that other handlers skip them


class Journal:
    """Writes metrics and notes.

    Metrics go to the run folder, to TensorBoard if the recipe asks for it, and to the doctor, whose findings become
    notes. Notes go to ``run.log`` and to the terminal. Only the first process has a ``folder``; other processes write
    nothing. Without a ``title`` (None) nothing is shown.
    """

    def __init__(self, recipe: Training, folder: RunFolder | None, title: str | None = "") -> None:
        self.folder, self.wants_board = folder, recipe.execution.tensorboard
        shown = folder is not None and title is not None
        self.display = Display(title or str(getattr(recipe, "name", "train")), visible=shown)
        self.watch = Watch(config.to_dict(recipe))
        self.board: Board | None = None

    def resume(self, step: int, size: int, digest: str | None) -> None:
        """Start to write after ``step``, see :meth:`RunFolder.open_metrics`."""
        if self.folder is not None:
            self.folder.open_metrics(step, size, digest)
            self.board = Board(self.folder.path, step) if self.wants_board else None

    def write(self, line: Mapping[str, Any]) -> None:
        """Write a line of metrics."""
        if self.folder is None:
            return
        self.folder.write_metrics(line)
        if self.board is not None:
            self.board.write(line)
        for finding in self.watch.see(line):
            self.note(f"doctor: {finding}")

    def note(self, text: str) -> None:
        """Write a note, which stays on the terminal."""
        if self.folder is not None:
            log.info(text, extra=SHOWN)
            self.display.say(text)

    def warn(self, text: str) -> None:
        """Write a warning, as :meth:`note`."""
        if self.folder is not None:
            log.warning(text, extra=SHOWN)
            self.display.say(f"warning: {text}")

    def close(self) -> None:
        if self.board is not None:
            self.board.close()
        self.display.close()
