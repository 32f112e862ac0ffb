"""A few worker processes for work that is cut into independent units."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import types
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Any, Protocol

from encoderlab.errors import ConfigError, OutOfMemory, Stopped


def cores() -> int:
    """The processors that this process may use, as ``taskset`` or a batch system says."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Tasks(Protocol):
    """Runs independent calls somewhere: :class:`Workers` here, :class:`encoderlab.execution.cluster.RayTasks` on a
    cluster. Functions are those of modules, and write their results to files; ``ended`` is told the name of each call
    that is done.
    """

    ended: Callable[[str], None]

    def __enter__(self) -> Any: ...

    def __exit__(self, *error: Any) -> None: ...

    def submit(self, function: Callable[..., Any], *args: Any, name: str = "") -> None:
        """Run ``function(*args)`` now or soon; an error of an earlier call is raised here."""

    def finish(self) -> None:
        """Wait until everything is done."""


class Workers:
    """Runs functions in ``number`` processes; with one, in this process, unless ``always``.

    At most two units more than there are workers are submitted at a time, so that the one who reads does not run ahead.
    The workers are spawned, as threads of libraries do not survive a fork, and import nothing of the program that runs,
    so that it needs no ``if __name__ == "__main__":``. They end with this process, however it ends.

    Raises:
        ConfigError: ``number`` is below 1.
        OutOfMemory: a worker was killed, which only the system does.
        Stopped: SIGTERM. A process that just dies leaves the semaphores of its workers behind, with a warning.
    """

    def __init__(self, number: int, *, always: bool = False) -> None:
        if number < 1:
            raise ConfigError(f"workers {number}, expected at least 1; leave it out for one per core")
        self._number, self._here = number, number == 1 and not always
        self._pending: dict[Future, str] = {}
        self.ended: Callable[[str], None] = lambda name: None
        self._pool: ProcessPoolExecutor | None = None
        self._entered = contextlib.ExitStack()

    def __enter__(self) -> Workers:
        self._entered.enter_context(_stopped_by_sigterm())
        return self

    def submit(self, function: Callable[..., Any], *args: Any, name: str = "") -> None:
        """Run ``function(*args)`` now or soon; an error of an earlier unit is raised here."""
        if self._here:
            function(*args)
            self.ended(name)
            return
        if self._pool is None:
            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(self._number, mp_context=context, initializer=_start)
        while len(self._pending) >= self._number + 2:
            self._collect()
        try:
            with _spawning():
                self._pending[self._pool.submit(function, *args)] = name
        except BrokenProcessPool:
            raise self._killed() from None

    def finish(self) -> None:
        """Wait until everything is done."""
        while self._pending:
            self._collect()

    def _collect(self) -> None:
        done, _ = wait(self._pending, return_when=FIRST_COMPLETED)
        for future in done:
            name = self._pending.pop(future)
            try:
                future.result()
            except BrokenProcessPool:
                raise self._killed() from None
            self.ended(name)

    def _killed(self) -> OutOfMemory:
        fewer = max(1, self._number // 2)
        return OutOfMemory(f"a worker was killed, probably for lack of memory; continue with fewer: --workers {fewer}")

    def __exit__(self, *error: Any) -> None:
        with self._entered:
            if self._pool is not None:
                if self._pending and error[0] is not None:  # training stops at this with a checkpoint
                    for process in list((self._pool._processes or {}).values()):
                        process.terminate()
                self._pool.shutdown(wait=True, cancel_futures=True)


_STOPS = (signal.SIGINT, signal.SIGTERM)


def _start() -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    for number in _STOPS:  # they reach the whole group; this process is told by its parent
        signal.signal(number, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


def run_all(function: Callable[[Any], Any], items: Sequence[Any], *, workers: int) -> Iterator[Any]:
    """``function`` of every item, in the order of the items, by ``workers`` processes."""
    if workers == 1 or len(items) < 2:
        yield from map(function, items)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(workers, len(items)), mp_context=context, initializer=_start) as executor:
        with _spawning():
            results = executor.map(function, items)
        yield from results


@contextlib.contextmanager
def _spawning() -> Iterator[None]:
    """While a process starts: hide the main module, which it would import, with all that a script loads and does; and
    have both processes wait with signals, by which the new one would end with a traceback before :func:`_start`."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _STOPS) if hasattr(signal, "pthread_sigmask") else None
    try:
        yield
    finally:
        sys.modules["__main__"] = main
        if before is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def _stopped_by_sigterm() -> Iterator[None]:
    def stop(number: int, frame: object) -> None:
        raise Stopped("stopped by SIGTERM; run the same command again to continue", signal=number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
