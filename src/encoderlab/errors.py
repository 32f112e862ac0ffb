"""Errors that a user can cause, each with the exit code of the command line.

The message is one line: the value, what was expected, and what to do. Every other exception is a bug (exit code 1).
"""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Iterable, Iterator


class EncoderlabError(Exception):
    """Base of the errors below; ``code`` is the exit code of the command line."""

    code = 1

    def __str__(self) -> str:
        return " ".join(super().__str__().splitlines())  # names in a user's data may have line breaks


class ConfigError(EncoderlabError):
    """A wrong option, recipe, or combination of options."""

    code = 2


class DataError(EncoderlabError):
    """A missing, broken or unusable corpus, task file, model folder or checkpoint."""

    code = 3


class MissingDependency(EncoderlabError):
    """An optional package is not installed; the message has the install command."""

    code = 4

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(package, extra, purpose)  # so that it can be pickled and leave a process

    def __str__(self) -> str:
        package, extra, purpose = self.args
        return f"{purpose} needs {package}, which is not installed; run: pip install 'encoderlab[{extra}]'"


@contextlib.contextmanager
def optional(package: str, extra: str, purpose: str) -> Iterator[None]:
    """A context for the imports of an optional package; without it they raise :class:`MissingDependency`."""
    try:
        yield
    except ImportError:
        raise MissingDependency(package, extra, purpose) from None


class OutOfMemory(EncoderlabError):
    """The device has too little memory for the batch; the message names a batch size that fits."""

    code = 5


class Diverged(EncoderlabError):
    """The loss or the gradient is not finite."""

    code = 6


class Stopped(EncoderlabError):
    """The run stopped early after writing a checkpoint; the same command resumes it.

    ``signal``: the number of the signal that requested it; the exit code is then 128 + number (SIGINT 130, SIGTERM
    143).
    """

    code = 75

    def __init__(self, message: str, *, signal: int | None = None) -> None:
        super().__init__(message)
        if signal is not None:
            self.code = 128 + signal


NO_MEMORY = (
    "out of memory",
    "allocate memory",
    "alloc_failed",
    "std::bad_alloc",
    "failed to map segment",
    "can't start new thread",
)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether ``error`` is a lack of memory; libraries of CPUs and GPUs have no exception type for it."""
    return isinstance(error, MemoryError) or any(sign in str(error).lower() for sign in NO_MEMORY)


def check_known(fields: Iterable[str], known: Iterable[str], where: object) -> None:
    """Refuse a run's record with a field that this version does not know: without it, the run would be another one.

    Raises:
        DataError: there is one.
    """
    if strangers := sorted(set(fields) - set(known)):
        raise DataError(
            f"{where}: {strangers[0]!r} is unknown to this version of encoderlab; continue with the version that wrote "
            "it, which provenance.json of the run names"
        )


def nearest(name: str, known: Iterable[str], *, inside: str = "") -> str:
    """A clause with the closest known name, ``"; did you mean 'width'?"``, or with the choices if none is close.

    ``inside`` is the path of the names (``"encoder."``), so that the user can copy the answer.
    """
    known = sorted(known)
    close = difflib.get_close_matches(name, known, n=1)
    if close:
        return f"; did you mean {inside + close[0]!r}?"
    shown = ", ".join(known[:12]) + (", ..." if len(known) > 12 else "")
    return f"; choose from: {shown}"
