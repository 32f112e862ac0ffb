"""Worker processes for independent units of work."""

from __future__ import annotations

import contextlib
import importlib.metadata
import logging
import multiprocessing
import os
import platform
import signal
import sys
import threading
import types
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.synchronize import Event
from typing import Any, Self

from encoderlab import __version__
from encoderlab.errors import ConfigError, OutOfMemory, Stopped


def cores() -> int:
    """The processors that this process may use, as set by ``taskset`` or a batch system."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def versions() -> dict[str, str]:
    """The versions that can change a result: of Python, of this package and of the libraries that compute."""
    packages = ("torch", "numpy", "tokenizers", "safetensors")
    return {"encoderlab": __version__, "python": platform.python_version()} | {
        package: importlib.metadata.version(package) for package in packages
    }


def rank_and_size() -> tuple[int, int]:
    """The number of this process and the number of all, which torchrun sets as RANK and WORLD_SIZE; (0, 1) without it.

    Raises:
        ConfigError: one of them is not a number, or they do not fit together.
    """
    size = variable("WORLD_SIZE", "1")
    rank = variable("RANK", "0" if size == 1 else "")
    if rank >= size:
        raise ConfigError(f"RANK is {rank} and WORLD_SIZE is {size}; {_START}")
    return rank, size


def variable(name: str, default: str = "") -> int:
    """The whole number that torchrun sets as the environment variable ``name``.

    Raises:
        ConfigError: it is not a number, or is not set and has no ``default``.
    """
    text = os.environ.get(name) or default
    if not text.isdecimal():
        raise ConfigError(f"{name} is {repr(text) if text else 'not set'}, expected a whole number; {_START}")
    return int(text)


_START = "start processes with torchrun, or unset RANK and WORLD_SIZE for a single one"


class Tasks:
    """Runs independent calls somewhere: :class:`Workers` here, :class:`encoderlab.execution.cluster.RayTasks` on a
    cluster. Functions are at module level, and write large results to files; ``ended`` gets the name and the result
    of each finished call. ``cores`` is the number of calls that can run at once, ``threads`` those of each, if set.
    """

    def __init__(self, cores: int, threads: int | None = None) -> None:
        self.cores, self.threads = cores, threads
        self.ended: Callable[[str, Any], None] = lambda name, result: None
        self._pending: dict[Any, str] = {}  # what is waited for, and the name of its call
        self._entered = contextlib.ExitStack()

    def __enter__(self) -> Self:
        self._entered.enter_context(stopped_by_sigterm())
        return self

    def __exit__(self, *error: Any) -> None:
        raise NotImplementedError

    def submit(self, function: Callable[..., Any], *args: Any, name: str = "") -> None:
        """Run ``function(*args)`` now or soon; an error of an earlier call is raised here."""
        raise NotImplementedError

    def share(self, value: Any) -> Any:
        """A reference to a large value for the arguments of several calls; the functions get the value itself."""
        return value

    def wait(self) -> None:
        """Wait until at least one call is done, if any was submitted; an error of a call is raised here."""
        raise NotImplementedError

    def finish(self) -> None:
        """Wait until everything is done."""
        while self._pending:
            self.wait()


class Workers(Tasks):
    """Runs functions in ``number`` processes; with one, in this process, unless ``always``.

    At most two units more than workers are submitted at a time, so that the reader of the input does not run ahead.
    The workers are spawned, because threads of libraries do not survive a fork. They do not import the main program,
    so it needs no ``if __name__ == "__main__":``. They end with this process, however it ends. Each computes with
    ``threads`` threads, if given.

    Raises:
        ConfigError: ``number`` is below 1.
        OutOfMemory: a worker was killed, as the system does when memory is short.
        Stopped: SIGTERM. (A process that dies without this leaves the semaphores of its workers behind, with a
            warning.)
    """

    def __init__(self, number: int, *, always: bool = False, threads: int | None = None) -> None:
        if number < 1:
            raise ConfigError(f"workers {number}, expected at least 1; leave it out for one per core")
        super().__init__(number, threads)
        self._here = number == 1 and not always
        self._pool: ProcessPoolExecutor | None = None
        self._stop: Event

    def submit(self, function: Callable[..., Any], *args: Any, name: str = "") -> None:
        if self._here:
            self.ended(name, function(*args))
            return
        if self._pool is None:
            context = multiprocessing.get_context("spawn")
            self._stop = context.Event()
            given = (self._stop, self.threads)
            self._pool = ProcessPoolExecutor(self.cores, mp_context=context, initializer=_start, initargs=given)
        while len(self._pending) >= self.cores + 2:
            self.wait()
        try:
            with _spawning():
                self._pending[self._pool.submit(_unit, function, *args)] = name
        except BrokenProcessPool:
            raise self._killed() from None

    def wait(self) -> None:
        done, _ = wait(self._pending, return_when=FIRST_COMPLETED)
        for future in done:
            name = self._pending.pop(future)
            try:
                result = future.result()
            except BrokenProcessPool:
                raise self._killed() from None
            self.ended(name, result)

    def _killed(self) -> OutOfMemory:
        fewer = max(1, self.cores // 2)
        return OutOfMemory(f"a worker was killed, probably for lack of memory; continue with fewer: --workers {fewer}")

    def __exit__(self, *error: Any) -> None:
        with self._entered:
            if self._pool is not None:
                if self._pending and error[0] is not None:
                    self._stop.set()  # for units already in a process's pipe, which cannot be withdrawn
                    for process in list((self._pool._processes or {}).values()):
                        process.terminate()
                self._pool.shutdown(wait=True, cancel_futures=True)


_STOPS = (signal.SIGINT, signal.SIGTERM)
_stop: Event | None = None  # in a worker: whether its parent wants no more work


def _start(stop: Event | None = None, threads: int | None = None) -> None:
    global _stop
    _stop = stop
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    if threads is not None:
        os.environ["OMP_NUM_THREADS"] = str(threads)  # torch reads it when it is imported
    for number in _STOPS:  # they reach the whole group; this process is told by its parent
        signal.signal(number, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPS)  # as in the parent while it started this process
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


def _unit(function: Callable[..., Any], *args: Any) -> Any:
    """``function(*args)`` in a worker. If the parent is stopped, this stops too: training ends with a checkpoint."""
    with stopped_by_sigterm():
        if _stop is not None and _stop.is_set():
            raise Stopped("stopped before it began; run the same command again to continue")
        return function(*args)


def run_all(function: Callable[[Any], Any], items: Sequence[Any], *, workers: int) -> Iterator[Any]:
    """``function`` of every item, in the order of the items, by ``workers`` processes.

    Raises:
        OutOfMemory: a worker was killed.
    """
    if workers == 1 or len(items) < 2:
        yield from map(function, items)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(workers, len(items)), mp_context=context, initializer=_start) as executor:
        with _spawning():
            results = executor.map(function, items)
        try:
            yield from results
        except BrokenProcessPool:
            raise OutOfMemory(
                "a worker was killed, probably for lack of memory; close other programs, and run again"
            ) from None


@contextlib.contextmanager
def _spawning() -> Iterator[None]:
    """A context in which a process starts.

    It hides the main module, which the new process would import and run, and blocks signals, which would end the new
    process with a traceback before :func:`_start`."""
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
def stopped_by_sigterm() -> Iterator[None]:
    """A context in which SIGTERM raises :class:`encoderlab.errors.Stopped` in the main thread."""

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


@contextlib.contextmanager
def logged(lines: list[str], level: int = logging.INFO) -> Iterator[None]:
    """A context in which log messages of the package, from ``level`` on, are added to ``lines`` instead of being
    shown.
    """
    logger = logging.getLogger("encoderlab")
    handler = logging.Handler(level)
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    before, usual, passes = logger.handlers, logger.level, logger.propagate
    logger.handlers, logger.propagate = [handler], False
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.handlers, logger.propagate = before, passes
        logger.setLevel(usual)
