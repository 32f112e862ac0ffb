"""Printing for verbs: results on standard output, notes and progress on standard error.

With ``--json`` everything printed here goes to standard error, because standard output then has one JSON object.
Respects ``NO_COLOR`` (no colours) and ``CI`` (plain progress lines, as without a terminal).
"""

from __future__ import annotations

import io
import logging
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from encoderlab.train.progress import Display

_state = {"json": False, "verbose": False}
_names: dict[str, str] = {}  # of paths in local copies, which are shown by their URLs


def configure(*, json: bool, verbose: bool) -> None:
    """Set by the command line before a verb runs; from then on, log messages of the package are shown.

    Characters that the output cannot encode (in names of files, or on a terminal without UTF-8) are escaped.
    """
    _state.update(json=json, verbose=verbose)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    log = logging.getLogger("encoderlab")
    log.setLevel(logging.INFO)
    log.addHandler(_NOTES)


def json_mode() -> bool:
    return _state["json"]


def verbose() -> bool:
    return _state["verbose"]


@contextmanager
def naming(path: str, url: str) -> Iterator[None]:
    """Whatever is printed shows ``url`` for ``path``."""
    _names[path] = url
    try:
        yield
    finally:
        del _names[path]


def named(text: str) -> str:
    """``text`` with URLs for the paths of :func:`naming`."""
    for path, url in _names.items():
        text = text.replace(path, url)
    return text


def url_of_copy(path: Path) -> str | None:
    """The URL of an output of :func:`naming`; None for other paths."""
    return _names.get(str(path))


def _plain(text: str) -> str:
    """``text`` with control characters as escapes, because a message may quote a file that would command a terminal."""
    return re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", lambda match: repr(match[0])[1:-1], named(text))


def console(*, stderr: bool = False) -> Console:
    """A rich console; 110 columns wide if the output is not a terminal."""
    stderr = stderr or json_mode()
    terminal = (sys.stderr if stderr else sys.stdout).isatty()
    width = None if terminal else 110
    return Console(stderr=stderr, highlight=False, markup=False, emoji=False, soft_wrap=True, width=width)


def say(text: str = "", *, style: str | None = None) -> None:
    """Print a line of the result. Without a style, rich does not see it, because it would replace tabs."""
    text = named(text)
    if style is None:
        print(text, file=sys.stderr if json_mode() else sys.stdout)
    else:
        console().print(text, style=style)


def note(text: str) -> None:
    """Print a note on standard error."""
    console(stderr=True).print(_plain(text), style="dim")


def complain(message: str) -> None:
    """Print the one line of an error on standard error."""
    console(stderr=True).print(Text("error: ", style="bold red") + Text(_plain(message)))


class _Notes(logging.Handler):
    """Shows the package's log messages on standard error.

    Leaves out messages that a training run shows next to its bar (:data:`encoderlab.train.journal.SHOWN`). Of several
    processes, only the first shows messages below warnings.
    """

    def emit(self, record: logging.LogRecord) -> None:
        if getattr(record, "shown", False):
            return
        if record.levelno < logging.WARNING:
            if os.environ.get("RANK", "0") == "0":
                note(record.getMessage())
        else:
            console(stderr=True).print(_plain(f"warning: {record.getMessage()}"), style="yellow")


_NOTES = _Notes()


@contextmanager
def progress(title: str) -> Iterator[Callable[[str, int, int | None], None]]:
    """A function ``(what, done, total or None)`` that shows progress: bars on a terminal, otherwise some lines."""
    display = Display(title)
    try:
        yield display.count
    finally:
        display.close()


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], *, caption: str | None = None) -> None:
    """Print a table of the result; columns after the first are aligned right if their first value is a number."""
    rows = [list(row) for row in rows]
    picture = Table(title=title or None, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    picture.caption, picture.caption_justify = caption, "left"
    for place, name in enumerate(columns):
        first = str(rows[0][place]).lstrip("-+.") if rows else ""
        picture.add_column(name, justify="right" if place and first[:1].isdigit() else "left", overflow="fold")
    for row in rows:
        picture.add_row(*("" if cell is None else _plain(str(cell)) for cell in row))
    output = console()
    if not output.is_terminal:
        output.width = 10_000  # in a pipe or a file, each row is one line
    output.print(picture)
