"""``encoderlab bench scaling``: training with several processes of one thread, and a model of what communication costs.

Averaging S bytes over N processes in a ring takes ``2 (N - 1) / N * S / bandwidth + 2 (N - 1) * latency``; latency and
bandwidth are fitted from exchanges of several sizes in the same run. Gradients travel in buckets, one after another,
each as soon as the backward pass has filled it, so that a step ends with the later of computing and the last bucket,
and the update. The model is checked in the same run against a link that is made slow on purpose: buckets then arrive
when the ring formula says, and not before.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from encoderlab.batches.rows import Row
from encoderlab.errors import EncoderlabError
from encoderlab.measure.bench.contenders import LR, Ours
from encoderlab.measure.bench.families import Case
from encoderlab.measure.bench.train import TrainSetting, real_rows
from encoderlab.nn import kernels
from encoderlab.objectives.vocabulary import Vocabulary

SIZES = (1 << 12, 1 << 16, 1 << 20, 1 << 22)  # floats of the exchanges that latency and bandwidth are fitted from
SLOW_LATENCY = 1e-3  # seconds, of the link that is made slow


@dataclass(frozen=True)
class Link:
    """Seconds before the first byte arrives, and bytes per second."""

    latency: float
    bandwidth: float

    def seconds(self, size: float, processes: int) -> float:
        """Averaging ``size`` bytes over ``processes`` in a ring."""
        hops = processes - 1
        return 2 * hops / processes * size / self.bandwidth + 2 * hops * self.latency


@dataclass(frozen=True)
class Step:
    """The times of a step without communication, in seconds.

    Args:
        buckets: of each bucket of gradients, when it is filled, counted from the start of the step, and its bytes.
        computed: when the backward pass ends.
        update: how long the optimiser takes after that.
    """

    buckets: Sequence[tuple[float, int]]
    computed: float
    update: float

    @property
    def size(self) -> int:
        """Bytes of all gradients."""
        return sum(size for _, size in self.buckets)

    def seconds(self, link: Link, processes: int) -> float:
        """The whole step with ``processes`` on ``link``."""
        arrived = 0.0
        for filled, size in self.buckets:
            arrived = max(arrived, filled) + link.seconds(size, processes)
        return max(self.computed, arrived) + self.update


@dataclass(frozen=True)
class ScalingWork:
    """What the processes of a measurement do; ``link`` is a slow one to pretend, None is the machine's own."""

    case: Case
    vocabulary: Vocabulary
    rows: list[list[Row]]
    steps: int
    link: Link | None = None


def run(case: Case, corpus: Path, *, processes: int, rows: int, length: int, steps: int) -> dict[str, Any]:
    """Tokens per second of one process and of ``processes``, each with one thread and ``rows`` rows.

    Also the seconds of a step that communication adds, what the model predicts for other counts at this link, and what
    it predicted and what was measured at a link whose exchange takes half as long as a step.
    """
    vocabulary, batches = real_rows(case, corpus, TrainSetting(rows=rows, length=length))
    work = ScalingWork(case, vocabulary, batches, steps)
    alone, together = _launch(1, work), _launch(processes, work)
    link, step = fit(together["exchanges"], processes), together["local"]
    local = step.computed + step.update
    slow = Link(SLOW_LATENCY, 2 * (processes - 1) / processes * step.size / (local / 2))
    throttled = _launch(processes, replace(work, link=slow))
    tokens = rows * length
    expected, measured = throttled["local"].seconds(slow, processes), throttled["step"]
    return {
        "case": case.name,
        "processes": processes,
        "tokens_per_second": {"1": tokens / alone["step"], str(processes): processes * tokens / together["step"]},
        "efficiency": alone["step"] / together["step"],
        "step_seconds": together["step"],
        "compute_seconds": local,
        "exposed_communication_seconds": max(0.0, together["step"] - local),
        "link": {"latency_seconds": link.latency, "bytes_per_second": link.bandwidth},
        "gradient_bytes": step.size,
        "model": {
            str(n): {"step_seconds": step.seconds(link, n), "efficiency": local / step.seconds(link, n)}
            for n in (2, 4, 8, 16, 64)
        },
        "throttled": {
            "bytes_per_second": slow.bandwidth,
            "predicted_seconds": expected,
            "measured_seconds": measured,
            "error": expected / measured - 1,
        },
    }


def fit(exchanges: list[tuple[int, float]], processes: int) -> Link:
    """Latency and bandwidth by least squares from (bytes, seconds) of averaging over ``processes``."""
    hops = processes - 1
    left = np.array([[2 * hops, 2 * hops / processes * size] for size, _ in exchanges])
    weights = 1 / np.array([seconds for _, seconds in exchanges])  # relative errors
    latency, per_byte = np.linalg.lstsq(left * weights[:, None], np.ones(len(exchanges)), rcond=None)[0]
    return Link(max(float(latency), 0.0), 1 / max(float(per_byte), 1e-15))


class _Wire:
    """DDP's communication hook: a thread that averages buckets one after another, notes when each was filled, and
    delivers it no sooner than ``link`` would.
    """

    def __init__(self, link: Link | None, world: int) -> None:
        self.link, self.world = link, world
        self.waiting: SimpleQueue[tuple[Tensor, float, Future[Tensor]] | None] = SimpleQueue()
        self.thread = Thread(target=self._carry, daemon=True)  # which does not keep a process that failed alive
        self.thread.start()
        self.begin()

    def begin(self) -> None:
        """A step starts."""
        self.started = time.perf_counter()
        self.buckets: list[tuple[float, int]] = []

    def send(self, bucket: dist.GradBucket) -> Future[Tensor]:
        """The average of the bucket, later."""
        filled, values, average = time.perf_counter(), bucket.buffer(), Future[Tensor]()
        self.buckets.append((filled - self.started, values.numel() * values.element_size()))
        self.waiting.put((values, filled, average))
        return average

    def close(self) -> None:
        self.waiting.put(None)
        self.thread.join()

    def _carry(self) -> None:
        free = 0.0
        while (sent := self.waiting.get()) is not None:
            values, filled, average = sent
            dist.all_reduce(values.div_(self.world))
            if self.link is not None:
                free = max(free, filled) + self.link.seconds(values.numel() * values.element_size(), self.world)
                time.sleep(max(0.0, free - time.perf_counter()))
            average.set_result(values)


def _launch(world: int, work: ScalingWork) -> dict[str, Any]:
    """Run ``world`` processes of :func:`_serve`; returns what the first one measured."""
    context = mp.get_context("spawn")
    results = context.SimpleQueue()
    with tempfile.TemporaryDirectory() as place:
        meeting = f"file://{place}/meeting"
        workers = [context.Process(target=_serve, args=(rank, world, meeting, work, results)) for rank in range(world)]
        for worker in workers:
            worker.start()
        while results.empty():
            if any(worker.exitcode for worker in workers):
                for worker in workers:
                    worker.kill()
                raise EncoderlabError(
                    f"a process of the benchmark of {work.case.name} failed; its message stands above"
                )
            time.sleep(0.05)
        result: dict[str, Any] = results.get()
        for worker in workers:
            worker.join()
    return result


def _serve(rank: int, world: int, meeting: str, work: ScalingWork, results: Any) -> None:
    """Time steps with and without the exchange of gradients, in turns, and exchanges alone; what a process runs."""
    torch.set_num_threads(1)
    kernels.keep_memory()  # as our training loop does
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=world)
    player = Ours(work.case, work.vocabulary)
    batches = player.batches(work.rows)
    network = DistributedDataParallel(player.objective)
    wire = _Wire(work.link, world)
    network.register_comm_hook(None, lambda _, bucket: wire.send(bucket))
    optimizer = torch.optim.AdamW(player.parameters, lr=LR, fused=True)

    def step(number: int, *, exchanged: bool) -> tuple[float, float]:
        """Seconds of the step, and of its update."""
        dist.barrier()
        wire.begin()
        network.require_backward_grad_sync = exchanged
        network.require_forward_param_sync = exchanged
        terms, _ = network(batches[number % len(batches)])
        sum((t.sum * (t.weight / t.count) for t in terms.values()), torch.zeros(())).backward()
        computed = time.perf_counter()
        optimizer.step()
        optimizer.zero_grad()
        dist.barrier()
        ended = time.perf_counter()
        return ended - wire.started, ended - computed

    step(0, exchanged=True)
    whole, local, buckets = [], [], []
    for number in range(work.steps):
        whole.append(step(number, exchanged=True)[0])
        buckets.append(wire.buckets)
        local.append(step(number, exchanged=False))
    wire.close()
    update = statistics.median(update for _, update in local)
    computed = statistics.median(seconds for seconds, _ in local) - update
    filled = [(statistics.median(one[i][0] for one in buckets), size) for i, (_, size) in enumerate(buckets[0])]
    exchanges = [(4 * size, _seconds_of_exchange(size)) for size in SIZES]
    if rank == 0:
        results.put({"step": statistics.median(whole), "local": Step(filled, computed, update), "exchanges": exchanges})
    dist.barrier()
    os._exit(0)  # destroying the group may wait for ever, for a thread that waits for the interpreter to free a tensor


def _seconds_of_exchange(size: int) -> float:
    """The median of five sums of ``size`` floats over all processes."""
    values, times = torch.randn(size), []
    for _ in range(5):
        dist.barrier()
        started = time.perf_counter()
        dist.all_reduce(values)
        times.append(time.perf_counter() - started)
    return statistics.median(times)
