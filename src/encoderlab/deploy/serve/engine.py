"""The one thread that computes: it takes batches from the queue and passes results to the event loop.

The thread uses all cores while it computes; several such threads would slow each other down.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from encoderlab.deploy.serve.queue import PADDING, Entry, Queue
from encoderlab.errors import is_out_of_memory

log = logging.getLogger(__name__)

LAST_BATCH = 2.0  # seconds that the current batch gets when the thread is stopped
Compute = Callable[[str, Sequence[Any]], list[Any]]
"""The results of the works of one kind."""


def lanes(models: Mapping[str, Compute]) -> Compute:
    """Several models behind one engine; the kinds of work of each begin with its lane."""
    longest_first = sorted(models, key=len, reverse=True)

    def compute(kind: str, works: Sequence[Any]) -> list[Any]:
        lane = next(name for name in longest_first if kind.startswith(name))
        return models[lane](kind.removeprefix(lane), works)

    return compute


class Overloaded(Exception):
    """A request would wait too long; ``retry_after`` is when it may be sent again, in seconds."""

    def __init__(self, retry_after: float) -> None:
        super().__init__(retry_after)
        self.retry_after = retry_after


class Late(Exception):
    """The deadline of a request passed before it was computed."""


class Failed(Exception):
    """The computation raised an error, or its result means nothing; the message is for the client."""

    @classmethod
    def of(cls, error: Exception) -> Failed:
        """For an ``error`` that is in the server's log."""
        if is_out_of_memory(error):
            return cls("the server is out of memory; send fewer or shorter texts")
        return cls("the model failed on this request; see the server's log")


NAN = "the model's numbers for this request are NaN and mean nothing; serve another checkpoint"


def _has_nan(result: Any) -> bool:
    """Whether a result, whatever holds its numbers, has one that is NaN."""
    if hasattr(result, "dtype"):  # an array, without the import of numpy that --help would wait for
        return bool((result != result).any())
    if isinstance(result, float):
        return math.isnan(result)
    if isinstance(result, dict):
        return any(map(_has_nan, result.values()))
    if dataclasses.is_dataclass(result):
        return any(_has_nan(getattr(result, field.name)) for field in dataclasses.fields(result))
    return isinstance(result, (list, tuple)) and any(map(_has_nan, result))


@dataclass(eq=False)
class PendingRequest:
    """The entries of a request that belong together."""

    future: asyncio.Future[list[Any]]
    loop: asyncio.AbstractEventLoop
    entries: list[Entry]
    arrived: float
    started: float = 0.0  # of its first batch
    ended: float = 0.0
    left: int = 0

    def drop(self) -> None:
        """Drop the request, because no client waits for it."""
        for entry in self.entries:
            entry.dropped = True


class Speed:
    """Tokens per second of the latest batches, each counted with :data:`PADDING` more tokens for its fixed cost.

    So batches of one short text predict the speed of full ones."""

    MEMORY = 0.95  # decay of earlier batches at each new one

    def __init__(self) -> None:
        self.tokens, self.seconds = 20.0, 0.01  # until batches are measured

    def add(self, tokens: int, seconds: float) -> None:
        self.tokens = self.MEMORY * self.tokens + tokens + PADDING
        self.seconds = self.MEMORY * self.seconds + seconds

    @property
    def rate(self) -> float:
        return self.tokens / max(self.seconds, 1e-6)


class ComputeThread:
    """Runs ``compute`` on batches until it is stopped.

    Args:
        compute: the results of a batch.
        budget: tokens of a batch, padding included.
        max_wait: seconds; a request that would wait longer is refused.

    Attributes:
        batch_done: is told the entries of every batch (:mod:`encoderlab.deploy.serve.metrics`).
    """

    def __init__(self, compute: Compute, *, budget: int, max_wait: float) -> None:
        self.compute, self.max_wait = compute, max_wait
        self.queue = Queue(budget=budget)
        self.batch_done: Callable[[Sequence[Entry]], None] = lambda entries: None
        self.last_progress = time.monotonic()
        self.speed = Speed()
        self._running = 0  # tokens of the current batch
        self._jobs: dict[Entry, PendingRequest] = {}
        self._wake = threading.Condition()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="compute", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread after its current batch. Requests that are still queued get no answer."""
        with self._wake:
            self._stopped = True
            self._wake.notify()
        self._thread.join(timeout=LAST_BATCH)

    @property
    def waiting(self) -> int:
        """Tokens in the queue."""
        return self.queue.tokens

    @property
    def stuck(self) -> bool:
        """Whether work has waited for 30 seconds without being done."""
        return bool(self._jobs) and time.monotonic() - self.last_progress > 30.0

    def check_wait(self, own: int = 0, within: float | None = None) -> None:
        """Refuse a request that would wait too long. If nothing waits, any request is accepted.

        Args:
            own: tokens of the request, if they are known.
            within: seconds until its deadline.

        Raises:
            Overloaded: it would wait longer than ``max_wait``, or miss its deadline behind the others' entries.
        """
        waiting = self.queue.before(math.inf)
        if not waiting:
            return
        rate = self.speed.rate
        after = (self._running + self.queue.before(time.monotonic())) / rate - self.max_wait
        if within is not None:
            after = max(after, (self._running + waiting + own) / rate - within)
        if after > 0:
            raise Overloaded(after)

    def submit(self, kind: str, works: Sequence[Any], tokens: Sequence[int], *, within: float) -> PendingRequest:
        """Queue the works of a request; :attr:`PendingRequest.future` gets their results in order.

        Raises:
            Overloaded: they would wait too long.
        """
        now, loop = time.monotonic(), asyncio.get_running_loop()
        entries, before = list[Entry](), 0
        for work, size in zip(works, tokens, strict=True):
            due = now + before / self.speed.rate
            entries.append(Entry(kind=kind, tokens=size, work=work, due=due, deadline=now + within))
            before += size
        job = PendingRequest(loop.create_future(), loop, entries, now, left=len(entries))
        # Take the error of a request whose client has gone, which asyncio would report as forgotten.
        job.future.add_done_callback(lambda future: future.cancelled() or future.exception())
        if not entries:
            job.future.set_result([])
            return job
        with self._wake:
            if not self._jobs:
                self.last_progress = now
            self.check_wait(before, within)
            self.queue.add(entries)
            self._jobs |= dict.fromkeys(entries, job)
            self._wake.notify()
        return job

    def _run(self) -> None:
        while True:
            with self._wake:
                while not self.queue.entries and not self._stopped:
                    self._wake.wait()
                if self._stopped:
                    return
                batch, late = self.queue.take(time.monotonic())
                self._running = sum(entry.tokens for entry in batch)
            for entry in late:
                self._settle(entry, Late())
            if batch:
                self._do(batch)

    def _do(self, batch: list[Entry]) -> None:
        started = time.monotonic()
        for entry in batch:
            job = self._jobs[entry]
            job.started = job.started or started
        try:
            computed = self.compute(batch[0].kind, [entry.work for entry in batch])
            results: list[Any] = [Failed(NAN) if _has_nan(result) else result for result in computed]
        except Exception as error:
            log.exception("a batch of %d failed", len(batch))
            results = [Failed.of(error)] * len(batch)
        self.speed.add(self._running, time.monotonic() - started)
        self.last_progress = time.monotonic()
        self.batch_done(batch)
        for entry, result in zip(batch, results, strict=True):
            self._settle(entry, result)

    def _settle(self, entry: Entry, result: Any) -> None:
        """Store the result of an entry; the last result of a request wakes its waiter."""
        job = self._jobs.pop(entry)
        entry.result = result
        job.left -= 1
        if isinstance(result, Exception):
            job.drop()
        if job.left == 0:
            job.ended = time.monotonic()
            with contextlib.suppress(RuntimeError):  # the loop has ended, because --drain ran out
                job.loop.call_soon_threadsafe(_finish, job)


def _finish(job: PendingRequest) -> None:
    if job.future.done():  # cancelled: the client has gone
        return
    errors = [entry.result for entry in job.entries if isinstance(entry.result, Exception)]
    if errors:
        job.future.set_exception(next((error for error in errors if not isinstance(error, Late)), errors[0]))
    else:
        job.future.set_result([entry.result for entry in job.entries])
