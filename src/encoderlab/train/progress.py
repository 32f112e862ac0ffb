"""The display of progress: one bar on a terminal, plain lines elsewhere; always on standard error."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from encoderlab.errors import optional
from encoderlab.train.units import clock, quantity

PLAIN_SECONDS = 10.0  # between two plain lines


def adding(show: Callable[[str, int, int | None], None], what: str) -> Callable[[int], None]:
    """A function that adds to a count of ``what``, which is shown once it takes longer than :data:`PLAIN_SECONDS`."""
    begin, done = time.monotonic(), 0

    def add(number: int) -> None:
        nonlocal done
        done += number
        if time.monotonic() - begin >= PLAIN_SECONDS:
            show(what, done, None)

    return add


class Display:
    """Shows lines of metrics, or counts; ``visible`` False shows nothing (processes other than the first).

    Respects ``NO_COLOR`` and ``CI``.
    """

    def __init__(self, title: str, *, visible: bool = True) -> None:
        self.title, self.visible = title, visible
        self._named, self._shown, self._text = set[str](), -PLAIN_SECONDS, ""
        self._bar: Progress | None = None
        self._tasks: dict[str, TaskID] = {}
        if visible and sys.stderr.isatty() and not os.environ.get("CI"):
            columns = (
                TextColumn("{task.description}"),
                BarColumn(bar_width=24),
                TextColumn("{task.fields[facts]}"),
                TimeElapsedColumn(),
            )
            console = Console(stderr=True, highlight=False, markup=False)
            self._bar = Progress(*columns, console=console, transient=False, refresh_per_second=4)
            self._bar.start()

    def update(self, line: Mapping[str, Any], *, done: float, left: float) -> None:
        """Show a line of training metrics; ``done`` share of the budget, ``left`` seconds to its end."""
        text = f"{facts(line)}  {clock(left)} left"
        self._show(self.title, text, min(done, 1.0), 1.0, plain=f"{self.title} {done:4.0%}  {text}")

    def count(self, what: str, done: int, total: int | None) -> None:
        """Show that ``done`` of ``total`` are done; each ``what`` has its own bar."""
        text = f"{done:,}" if total is None else f"{done:,} of {total:,}"
        self._show(f"{self.title}: {what}", text, done, total, plain=f"{self.title}: {what} {text}")

    def overview(self, done: int, begun: int, running: Mapping[str, tuple[float, str]]) -> None:
        """Show how many started runs are done, and for each running one its share and its facts.

        The same plain line is not printed twice.
        """
        count = f"{done:,} of {begun:,} runs"
        if self._bar is None:
            text = "; ".join([f"{self.title}: {count}", *(f"{name} {one[0]:.0%}" for name, one in running.items())])
            if text != self._text and time.monotonic() - self._shown >= PLAIN_SECONDS:
                self._shown, self._text = time.monotonic(), text
                self.say(text)
            return
        for name in [name for name in self._tasks if name not in running and name != self.title]:
            self._bar.remove_task(self._tasks.pop(name))
        self._show(self.title, count, done, begun, plain="")
        for name, (share, text) in running.items():
            self._show(name, text, share, 1.0, plain="")

    def _show(self, name: str, text: str, done: float, total: float | None, *, plain: str) -> None:
        """Update a bar, or print a plain line: the first and the last of a name, and occasional ones between."""
        if self._bar is not None:
            if name not in self._tasks:
                self._tasks[name] = self._bar.add_task(name, total=total, facts="")
            self._bar.update(self._tasks[name], completed=done, total=total, facts=text)
        elif name not in self._named or time.monotonic() - self._shown >= PLAIN_SECONDS or done == total:
            self._named.add(name)
            self._shown = time.monotonic()
            self.say(plain)

    def say(self, text: str) -> None:
        """Print a line that stays on the terminal."""
        if self._bar is not None:
            self._bar.console.print(text)
        elif self.visible:
            print(text, file=sys.stderr, flush=True)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()


class Board:
    """Writes every number of the metrics as a TensorBoard curve, from ``step`` on."""

    def __init__(self, folder: Path, step: int) -> None:
        with optional("tensorboard", "track", "execution.tensorboard"):
            from torch.utils.tensorboard import SummaryWriter
        self._writer = SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1)

    def write(self, line: Mapping[str, Any]) -> None:
        for key, value in line.items():
            for name, number in value.items() if isinstance(value, Mapping) else [("", value)]:
                if isinstance(number, (int, float)) and key not in ("step", "tokens"):
                    self._writer.add_scalar(f"{line['split']}/{key}{'/' if name else ''}{name}", number, line["step"])

    def close(self) -> None:
        self._writer.close()


def facts(line: Mapping[str, Any]) -> str:
    """``step 1200  loss 2.31  mlm 2.10 (45.3%)  lr 1.0e-04  8.1k tokens/s  62% of peak``."""
    words = [f"step {line['step']}"] + ([f"loss {line['loss']:.3f}"] if "loss" in line else [])
    accuracy, losses = line.get("accuracy", {}), line.get("losses", {})
    for name, loss in losses.items():
        share = f" ({accuracy[name]:.1%})" if name in accuracy else ""
        if len(losses) > 1 or share:
            words.append(f"{name}{f' {loss:.3f}' if loss else ''}{share}")  # terms that are only counted have no loss
    words += [f"{name} {value:.4f}" for name, value in list(line.get("scores", {}).items())[:3]]
    if "lr" in line:
        words.append(f"lr {line['lr']:.1e}")
    if "tokens_per_second" in line:
        words.append(f"{quantity(line['tokens_per_second'], '')} tokens/s")
    if "peak_share" in line:
        words.append(f"{line['peak_share']:.0%} of peak")
    return "  ".join(words)
