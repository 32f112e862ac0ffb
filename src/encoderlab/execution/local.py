"""Jobs as processes of this machine.

:data:`Execute` is the interface: any function that takes jobs and yields how each ended can replace this one, such as a
cluster's queue. A job is a module to run with arguments, which name the files that it reads and writes.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

POLL = 0.1  # seconds between two looks at the processes
STOPPED = (75, 130, 143, -signal.SIGINT, -signal.SIGTERM)  # exit codes of a job that can be continued


@dataclass(frozen=True, kw_only=True)
class Job:
    """``python -m MODULE ARGUMENTS``, computed by ``threads`` threads, with its output in ``log``."""

    name: str
    module: str
    arguments: tuple[str, ...]
    log: Path
    threads: int = 1


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a job ended: its exit code, negative for a signal. ``stopped``: it was asked to stop and can be continued;
    ``killed``: by the system, or by hand.
    """

    job: Job
    code: int

    @property
    def stopped(self) -> bool:
        return self.code in STOPPED

    @property
    def killed(self) -> bool:
        return self.code == -signal.SIGKILL


Execute = Callable[[Sequence[Job]], Iterator[Ended]]
"""Runs jobs in any order and yields each as it ends. Jobs that had not started when time was up are not yielded."""


def local(
    *,
    workers: int,
    deadline: float | None = None,
    begun: Callable[[Job], None] = lambda job: None,
    lock: int | None = None,
) -> Execute:
    """Up to ``workers`` processes side by side.

    At ``deadline`` (of :func:`time.monotonic`) no further job starts, and running ones are asked to stop (SIGTERM); so
    they are if this process is interrupted. If it is killed they stop too, because their standard input ends. Until
    then they hold ``lock``, the handle of a lock of this process.
    """

    def execute(jobs: Sequence[Job]) -> Iterator[Ended]:
        waiting, running = list(jobs), dict[Job, subprocess.Popen[bytes]]()
        asked = False  # to stop
        try:
            while waiting or running:
                if not asked and deadline is not None and time.monotonic() >= deadline:
                    waiting.clear()
                    _ask_to_stop(running.values())
                    asked = True
                while waiting and len(running) < workers:
                    job = waiting.pop(0)
                    running[job] = start(job, lock)
                    begun(job)
                ended = [job for job, process in running.items() if process.poll() is not None]
                for job in ended:
                    yield Ended(job=job, code=running.pop(job).returncode)
                if not ended and running:
                    time.sleep(POLL)
        finally:
            if not asked:
                _ask_to_stop(running.values())
            for process in running.values():
                process.wait()

    return execute


def start(job: Job, lock: int | None = None) -> subprocess.Popen[bytes]:
    """The process of a job; it stops when this process ends, and shares the ``lock``."""
    job.log.parent.mkdir(parents=True, exist_ok=True)
    environment = os.environ | {"OMP_NUM_THREADS": str(job.threads)}
    with job.log.open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", job.module, *job.arguments],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            env=environment,
            pass_fds=() if lock is None else (lock,),
            process_group=0,  # Ctrl-C is this process's to pass on; a session of its own would lose `nice` on Linux
        )


def _ask_to_stop(processes: Iterable[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        if process.poll() is None:
            process.terminate()


def stop_with_parent() -> None:
    """Called by a job: it receives SIGTERM when the process that started it is gone."""

    def watch() -> None:
        while os.read(0, 1):  # not through sys.stdin, whose lock this thread would hold at the end of the process
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()
