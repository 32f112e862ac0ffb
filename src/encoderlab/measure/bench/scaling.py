"""``encoderlab bench scaling``: training with several processes of one thread, and a model of communication time.

Latency and bandwidth of :mod:`encoderlab.measure.many_processes` are fitted from exchanges of several sizes in the same
run. The model is checked in the same run against an artificially slow link: buckets then arrive when the ring formula
says, not earlier. Under torchrun the processes are those of its nodes.
"""

from __future__ import annotations

import atexit
import os
import statistics
import sys
import tempfile
import time
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
from encoderlab.errors import ConfigError, EncoderlabError
from encoderlab.measure.bench.contenders import LR, Ours
from encoderlab.measure.bench.families import Case
from encoderlab.measure.bench.train import TrainSetting, operations_per_token, real_rows
from encoderlab.measure.many_processes import Link, Step
from encoderlab.nn import kernels
from encoderlab.objectives.vocabulary import Vocabulary

SIZES = (1 << 12, 1 << 16, 1 << 20, 1 << 22)  # floats of the exchanges to which latency and bandwidth are fitted
SLOW_LATENCY = 1e-3  # seconds, of the slow link


@dataclass(frozen=True)
class ScalingWork:
    """The work of the processes of a measurement; ``link`` is a slow link to imitate, None the machine's own."""

    case: Case
    vocabulary: Vocabulary
    rows: list[list[Row]]
    steps: int
    link: Link | None = None


def run(case: Case, corpus: Path, *, processes: int, rows: int, length: int, steps: int) -> dict[str, Any]:
    """Tokens per second of one process and of ``processes``, each with one thread and ``rows`` rows.

    Also the seconds that communication adds to a step, predictions for other numbers of processes at this link, and
    prediction and measurement at a link whose exchange takes half as long as a step or more. Under torchrun its
    processes are measured (``processes`` is ignored), and only the first one returns.
    """
    setting = TrainSetting(rows=rows, length=length)
    vocabulary, batches = real_rows(case, corpus, setting)
    work = ScalingWork(case, vocabulary, batches, steps)
    nodes = Nodes() if "TORCHELASTIC_RUN_ID" in os.environ else None
    processes = processes if nodes is None else nodes.size

    def measured(count: int, work: ScalingWork) -> dict[str, Any]:
        return _launch(count, work) if nodes is None else nodes.measured(count, work)

    alone, together = measured(1, work), measured(processes, work)
    link, step = fit(together["exchanges"], processes), together["local"]
    local = step.computed + step.update
    half = 2 * (processes - 1) / processes * step.size / (local / 2)
    slow = Link(SLOW_LATENCY, min(half, link.bandwidth / 2))  # slower than the machine's own, which it includes
    throttled = measured(processes, replace(work, link=slow))
    if nodes is not None:
        nodes.end()
    tokens, real = rows * length, statistics.mean(sum(len(row.ids) for row in batch) for batch in batches)
    expected, measured = throttled["local"].seconds(slow, processes), throttled["step"]
    return {
        "case": case.name,
        "processes": processes,
        "tokens_per_second": {"1": tokens / alone["step"], str(processes): processes * tokens / together["step"]},
        "efficiency": alone["step"] / together["step"],
        "step_seconds": together["step"],
        "compute_seconds": local,
        "update_seconds": step.update,
        "flops_per_second": real * operations_per_token(case, batches, setting) / step.computed,
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


class Nodes:
    """The processes that torchrun started, this one included.

    Raises:
        ConfigError: there is only one.
    """

    def __init__(self) -> None:
        self.rank, self.size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        if self.size < 2:
            raise ConfigError("torchrun started one process; start at least 2 to compare with one")
        torch.set_num_threads(1)
        dist.init_process_group("gloo")
        self.groups = {1: dist.new_group([0]), self.size: dist.new_group()}

    def measured(self, count: int, work: ScalingWork) -> dict[str, Any]:
        """The measurement of the first process with ``count`` processes: one, while the others wait, or all."""
        measured = [_measure(count, work, self.groups[count]) if self.rank < count else None]
        dist.broadcast_object_list(measured)
        assert measured[0] is not None
        return measured[0]

    def end(self) -> None:
        """End all processes but the first, and that one without destroying the groups, see :func:`_serve`."""
        dist.barrier()
        if self.rank:
            os._exit(0)
        atexit.register(_leave)


def _leave() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


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

    def __init__(self, link: Link | None, world: int, group: Any) -> None:
        self.link, self.world, self.group = link, world, group
        self.waiting: SimpleQueue[tuple[Tensor, float, Future[Tensor]] | None] = SimpleQueue()
        self.thread = Thread(target=self._carry, daemon=True)  # which does not keep a failed process alive
        self.thread.start()
        self.begin()

    def begin(self) -> None:
        """Start to measure a step."""
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
            dist.all_reduce(values.div_(self.world), group=self.group)
            if self.link is not None:
                free = max(free, filled) + self.link.seconds(values.numel() * values.element_size(), self.world)
                time.sleep(max(0.0, free - time.perf_counter()))
            average.set_result(values)


def _launch(world: int, work: ScalingWork) -> dict[str, Any]:
    """Run ``world`` processes of :func:`_serve`; returns the measurements of the first one."""
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
                raise EncoderlabError(f"a process of the benchmark of {work.case.name} failed; its message is above")
            time.sleep(0.05)
        result: dict[str, Any] = results.get()
        for worker in workers:
            worker.join()
    return result


def _serve(rank: int, world: int, meeting: str, work: ScalingWork, results: Any) -> None:
    """The main function of a process that :func:`_launch` started."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=world)
    measured = _measure(world, work, dist.group.WORLD)
    if rank == 0:
        results.put(measured)
    dist.barrier()
    os._exit(0)  # destroying the group may wait forever for a thread that waits for the interpreter to free a tensor


def _measure(world: int, work: ScalingWork, group: Any) -> dict[str, Any]:
    """Time steps with and without the exchange of gradients in ``group``, in turns, and exchanges alone."""
    kernels.keep_memory()  # as our training loop does
    player = Ours(work.case, work.vocabulary)
    batches = player.batches(work.rows)
    network = DistributedDataParallel(player.objective, process_group=group)
    wire = _Wire(work.link, world, group)
    network.register_comm_hook(None, lambda _, bucket: wire.send(bucket))
    optimizer = torch.optim.AdamW(player.parameters, lr=LR, fused=True)

    def step(number: int, *, exchanged: bool) -> tuple[float, float]:
        """Seconds of the step, and of its update."""
        dist.barrier(group)
        wire.begin()
        network.require_backward_grad_sync = exchanged
        network.require_forward_param_sync = exchanged
        terms, _ = network(batches[number % len(batches)])
        sum((t.sum * (t.weight / t.count) for t in terms.values()), torch.zeros(())).backward()
        computed = time.perf_counter()
        optimizer.step()
        optimizer.zero_grad()
        dist.barrier(group)
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
    filled = [(statistics.median(bucket[i][0] for bucket in buckets), size) for i, (_, size) in enumerate(buckets[0])]
    exchanges = [(4 * size, _seconds_of_exchange(size, group)) for size in SIZES]
    return {"step": statistics.median(whole), "local": Step(filled, computed, update), "exchanges": exchanges}


def _seconds_of_exchange(size: int, group: Any) -> float:
    """The median of five sums of ``size`` floats over the processes of ``group``."""
    values, times = torch.randn(size), []
    for _ in range(5):
        dist.barrier(group)
        started = time.perf_counter()
        dist.all_reduce(values, group=group)
        times.append(time.perf_counter() - started)
    return statistics.median(times)
