"""Errors that a user can cause, each with the exit code that the command line returns for it.

The message is one line: the value, what was expected, and what to do. Everything else that is raised is a bug (exit
code 1).
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class EncoderlabError(Exception):
    """Base of the errors below; ``code`` is the exit code of the command line."""

    code = 1

    def __str__(self) -> str:
        return " ".join(super().__str__().splitlines())  # names in a user's data may hold line ends


class ConfigError(EncoderlabError):
    """A wrong option, recipe, or combination of options."""

    code = 2


class DataError(EncoderlabError):
    """A missing, broken or unusable corpus, task file, model folder or checkpoint."""

    code = 3


class MissingDependency(EncoderlabError):
    """An optional package is not installed; the message holds the install line."""

    code = 4

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(package, extra, purpose)  # so that it survives pickling, on its way out of a process

    def __str__(self) -> str:
        package, extra, purpose = self.args
        return f"{purpose} needs {package}, which is not installed; run: pip install 'encoderlab[{extra}]'"


class OutOfMemory(EncoderlabError):
    """The device has too little memory for the batch; the message names a batch size that fits."""

    code = 5


class Diverged(EncoderlabError):
    """The loss is not a finite number any more."""

    code = 6


class Stopped(EncoderlabError):
    """The run was stopped early after a checkpoint was written; run the same command again to resume.

    ``signal``: the number of the signal that asked for it; the exit code is then 128 + number (SIGINT 130, SIGTERM
    143).
    """

    code = 75

    def __init__(self, message: str, *, signal: int | None = None) -> None:
        super().__init__(message)
        if signal is not None:
            self.code = 128 + signal


def nearest(name: str, known: Iterable[str], *, inside: str = "") -> str:
    """A clause that names the closest known name: ``"; did you mean 'width'?"``, or the choices where none is close.

    ``inside`` is the path at which the names lie (``"encoder."``), so that the answer can be copied.
    """
    known = sorted(known)
    close = difflib.get_close_matches(name, known, n=1)
    if close:
        return f"; did you mean {inside + close[0]!r}?"
    shown = ", ".join(known[:12]) + (", ..." if len(known) > 12 else "")
    return f"; choose from: {shown}"
