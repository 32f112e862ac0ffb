"""Fine-tuning runs in other processes, or on a cluster: several programs at once, with the results of one process."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from encoderlab.errors import Diverged
from encoderlab.execution.workers import Tasks, logged
from encoderlab.files import wait_for
from encoderlab.interchange.finetuned import SCORE_FILE
from encoderlab.messages import Say, silent
from encoderlab.tasks.data.task import Split
from encoderlab.tasks.forms.encodings import Encodings
from encoderlab.tasks.runs.finetune import FinetuneRecipe
from encoderlab.tasks.runs.folder import Result
from encoderlab.tasks.runs.trials import Attempt, Program, Runs, perform
from encoderlab.train.folder import METRICS, RECIPE
from encoderlab.train.progress import Display, facts

log = logging.getLogger(__name__)
K = TypeVar("K")
T = TypeVar("T")

LOOK = 1.0  # seconds between two checks of running tasks
TAIL = 1 << 16  # bytes of metrics with the last line


def perform_all(
    programs: Mapping[K, Program[T]], tasks: Tasks | None = None, say: Say = silent
) -> dict[K, T | Diverged]:
    """The result of each program, or its divergence; runs of all programs are tasks side by side.

    Each run is in its folder, which its task and this process see; this process reads finished runs, so the results
    are those of one process. Without ``tasks``, this process makes the runs, program after program, and ``say`` gets
    the title of each.

    Raises:
        EncoderlabError: the error of a run, unless it diverged. Runs in progress are asked to stop, and the same
            call continues.
    """
    if tasks is None:
        return {key: _or_diverged(program, say) for key, program in programs.items()}
    with contextlib.ExitStack() as stack:
        for program in programs.values():
            stack.enter_context(contextlib.closing(program))
        return _Driver(programs, tasks).run()


def _or_diverged(program: Program[T], say: Say) -> T | Diverged:
    try:
        return perform(program, say)
    except Diverged as error:
        return error


@dataclass(kw_only=True)
class _Waiting:
    """Runs that a program waits for, and their results so far."""

    attempts: Sequence[Attempt]
    results: dict[int, Result | str] = field(default_factory=dict)


class _Driver(Generic[K, T]):
    def __init__(self, programs: Mapping[K, Program[T]], tasks: Tasks) -> None:
        self.programs, self.tasks, self.display = programs, tasks, Display("finetune")
        self.outcomes: dict[K, T | Diverged] = {}
        self.waiting: dict[K, _Waiting] = {}
        self.queue: deque[tuple[K, int]] = deque()
        self.flying: dict[str, tuple[K, int]] = {}
        self.ended: deque[tuple[str, dict[str, Any]]] = deque()
        self.shared: dict[int, tuple[Any, Any]] = {}
        self.done = 0

    def run(self) -> dict[K, T | Diverged]:
        self.tasks.ended = lambda name, result: self.ended.append((name, result))
        with _view(self):
            for key in self.programs:
                self._send(key, None)
            while self.queue or self.flying:
                if self.queue:
                    self._submit(*self.queue.popleft())
                else:
                    self.tasks.wait()
                while self.ended:
                    self._take(*self.ended.popleft())
        return {key: self.outcomes[key] for key in self.programs}

    def attempt(self, key: K, number: int) -> Attempt:
        return self.waiting[key].attempts[number]

    def _send(self, key: K, results: list[Result | str] | None) -> None:
        """Resume a program, and queue its next runs."""
        try:
            attempts = self.programs[key].send(results)  # type: ignore[arg-type]
        except StopIteration as end:
            self.outcomes[key] = end.value
        except Diverged as error:
            self.outcomes[key] = error
        else:
            self.waiting[key] = _Waiting(attempts=attempts)
            self.queue.extend((key, number) for number in range(len(attempts)))

    def _submit(self, key: K, number: int) -> None:
        attempt = self.attempt(key, number)
        self.flying[name := str(attempt.out)] = (key, number)
        runs, splits = self._share(attempt.runs), self._share(attempt.splits)
        self.tasks.submit(_run, runs, splits, attempt.recipe, attempt.folder, name=name)

    def _share(self, value: Any) -> Any:
        if id(value) not in self.shared:
            sent = replace(value, out=value.out.resolve(), encodings=Encodings()) if isinstance(value, Runs) else value
            self.shared[id(value)] = (value, self.tasks.share(sent))  # the value too, so that its id is not reused
        return self.shared[id(value)][1]

    def _take(self, name: str, result: dict[str, Any]) -> None:
        key, number = self.flying.pop(name)
        attempt, waiting = self.attempt(key, number), self.waiting[key]
        for line in result["warnings"]:
            log.warning("%s: %s", attempt.title, line)
        if result["failed"] is None:
            wait_for(attempt.out / SCORE_FILE)
        waiting.results[number] = attempt.run() if result["failed"] is None else result["failed"]
        self.done += 1
        self.display.say(f"{attempt.title}: {_said(attempt, waiting.results[number])}")
        if len(waiting.results) == len(waiting.attempts):
            self._send(key, [waiting.results[n] for n in range(len(waiting.attempts))])


def _said(attempt: Attempt, result: Result | str) -> str:
    """A run's result in a few words."""
    metric = attempt.runs.task.metric
    if isinstance(result, str):
        return f"failed: {result}"
    score = result.scores.get("dev", {}).get(metric)
    return "done" if score is None else f"dev {metric} {score:.4g}"


def _run(runs: Runs, splits: Mapping[str, Split], recipe: FinetuneRecipe, folder: str) -> dict[str, Any]:
    """Make one run in a task; its results are in its folder."""
    lines: list[str] = []
    with logged(lines, logging.WARNING):
        result = Attempt(runs=runs, recipe=recipe, splits=splits, folder=folder, title="").run(shown=False)
    return {"failed": result if isinstance(result, str) else None, "warnings": lines}


@contextlib.contextmanager
def _view(driver: _Driver) -> Iterator[None]:
    """A context that shows the progress of all runs in one view, read from their folders."""
    over, begin = threading.Event(), time.time()

    def look() -> None:
        while not over.wait(LOOK):
            running: dict[str, tuple[float, str]] = {}
            for key, number in list(driver.flying.values()):
                attempt = driver.attempt(key, number)
                if (state := _state(attempt.out, begin)) is not None:
                    running[attempt.title] = state
            driver.display.overview(driver.done, driver.done + len(driver.flying) + len(driver.queue), running)

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        driver.display.close()


def _state(out: Path, begin: float) -> tuple[float, str] | None:
    """The share of a run that is done, and facts, by its last line of metrics since ``begin``; None without one."""
    try:
        if (out / METRICS).stat().st_mtime < begin:
            return None
        with (out / METRICS).open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL))
            lines = [line for line in file.read().splitlines() if b'"train"' in line]
        line = json.loads(lines[-1])
        amount = json.loads((out / RECIPE).read_bytes())["budget"]["amount"]
        return min(line["step"] / amount, 1.0), facts(line)
    except (OSError, ValueError, LookupError, TypeError, ZeroDivisionError):
        return None  # it has not started, or is being written
