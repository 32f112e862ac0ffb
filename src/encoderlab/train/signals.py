"""Collect SIGINT and SIGTERM as requests to stop, which a run answers after its step."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def collected_signals() -> Iterator[list[int]]:
    """A context that collects the numbers of :data:`STOP_SIGNALS` instead of ending the process.

    A second signal of the same kind acts as usual. Only the main thread can receive signals; in other threads the list
    stays empty.
    """
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield received
        return
    before = {int(number): signal.getsignal(number) for number in STOP_SIGNALS}

    def note(number: int, frame: object) -> None:
        received.append(number)
        signal.signal(number, before[number])

    for number in before:
        signal.signal(number, note)
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
