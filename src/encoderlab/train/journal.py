"""What a run tells while it goes on: metrics, notes, its progress, and what the doctor sees in them."""

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
SHOWN = {"shown": True}  # marks a record of the log that the display shows, and no other handler has to


class Journal:
    """Lines of metrics go to the run folder, to TensorBoard where the recipe asks for it, and to the doctor, whose
    findings are notes; notes go to ``run.log`` and to the terminal.

    Processes other than the first have no ``folder``; their journals say nothing.
    """

    def __init__(self, recipe: Training, folder: RunFolder | None) -> None:
        self.folder, self.wants_board = folder, recipe.execution.tensorboard
        self.display = Display(getattr(recipe, "name", "train"), visible=folder is not None)
        self.watch = Watch(config.to_dict(recipe))
        self.board: Board | None = None

    def resume(self, step: int, size: int = 0, digest: str | None = None) -> None:
        """Begin to write after ``step``, as :meth:`RunFolder.open_metrics` says."""
        if self.folder is not None:
            self.folder.open_metrics(step, size, digest)
            self.board = Board(self.folder.path, step) if self.wants_board else None

    def write(self, line: Mapping[str, Any]) -> None:
        """A line of metrics."""
        if self.folder is None:
            return
        self.folder.write_metrics(line)
        if self.board is not None:
            self.board.write(line)
        for finding in self.watch.see(line):
            self.note(f"doctor: {finding}")

    def note(self, text: str) -> None:
        """A line that stays."""
        if self.folder is not None:
            log.info(text, extra=SHOWN)
            self.display.say(text)

    def warn(self, text: str) -> None:
        """A :meth:`note` of something that is wrong."""
        if self.folder is not None:
            log.warning(text, extra=SHOWN)
            self.display.say(f"warning: {text}")

    def close(self) -> None:
        if self.board is not None:
            self.board.close()
        self.display.close()
