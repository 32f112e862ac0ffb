"""Collect SIGINT, SIGTERM and SIGUSR1 as requests to stop, which a run answers after its step.

Schedulers of clusters send SIGUSR1 before the time of a job ends: a run that it stops has exit code 75, which means
that the same command continues it.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator

ENDING = getattr(signal, "SIGUSR1", None)  # Windows has none
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM) + (() if ENDING is None else (ENDING,))


class Interrupted(BaseException):
    """A signal came while nothing was at stake; ``number`` is its number."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Signals(list[int]):
    """The numbers of the signals received so far."""

    raises = False

    @contextlib.contextmanager
    def at_once(self) -> Iterator[None]:
        """A context that a signal ends at once with :class:`Interrupted`, also one that came before."""
        if self:
            raise Interrupted(self[0])
        self.raises = True
        try:
            yield
        finally:
            self.raises = False


@contextlib.contextmanager
def collected_signals() -> Iterator[Signals]:
    """A context that collects the numbers of :data:`STOP_SIGNALS` instead of ending the process.

    A second signal of the same kind acts as usual. Only the main thread can receive signals; in other threads the list
    stays empty.
    """
    received = Signals()
    if threading.current_thread() is not threading.main_thread():
        yield received
        return
    before = {int(number): signal.getsignal(number) for number in STOP_SIGNALS}

    def note(number: int, frame: object) -> None:
        received.append(number)
        signal.signal(number, before[number])
        if received.raises:
            raise Interrupted(number)

    for number in before:
        signal.signal(number, note)
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
