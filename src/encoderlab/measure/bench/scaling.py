"""``encoderlab bench scaling``: training with several processes of one thread, and a model of what communication costs.

A step takes ``compute + max(0, exchange - overlap)``, where averaging G bytes of gradients over N processes takes
``2 (N - 1) / N * G / bandwidth + 2 (N - 1) * latency`` (a ring). Latency and bandwidth are fitted from exchanges of
several sizes in the same run; the overlap is what the backward pass hid of the measured exchange.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel

from encoderlab.batches.pack import Row
from encoderlab.errors import EncoderlabError
from encoderlab.measure.bench.contenders import LR, Ours
from encoderlab.measure.bench.families import Case
from encoderlab.measure.bench.train import Setting, real_rows
from encoderlab.nn import kernels
from encoderlab.objectives.vocabulary import Vocabulary

SIZES = (1 << 12, 1 << 16, 1 << 20, 1 << 22)  # floats of the exchanges that latency and bandwidth are fitted from


@dataclass(frozen=True)
class Link:
    """Seconds before the first byte arrives, and bytes per second."""

    latency: float
    bandwidth: float

    def seconds(self, size: float, processes: int) -> float:
        """Averaging ``size`` bytes over ``processes`` in a ring."""
        hops = processes - 1
        return 2 * hops / processes * size / self.bandwidth + 2 * hops * self.latency


def run(case: Case, corpus: Path, *, processes: int, rows: int, length: int, steps: int) -> dict[str, Any]:
    """Tokens per second of one process and of ``processes``, each with one thread and ``rows`` rows.

    Also the seconds of a step that communication adds, and what the model predicts for other counts at this link.
    """
    vocabulary, batches = real_rows(case, corpus, Setting(rows=rows, length=length))
    alone = _launch(1, case, vocabulary, batches, steps)
    together = _launch(processes, case, vocabulary, batches, steps)
    link = fit(together["exchanges"], processes)
    exchange = link.seconds(together["gradient_bytes"], processes)
    exposed = max(0.0, together["step"] - together["local_step"])
    hidden = max(0.0, exchange - exposed)
    tokens = rows * length

    def predicted(count: int) -> float:
        return together["local_step"] + max(0.0, link.seconds(together["gradient_bytes"], count) - hidden)

    return {
        "case": case.name,
        "processes": processes,
        "tokens_per_second": {"1": tokens / alone["step"], str(processes): processes * tokens / together["step"]},
        "efficiency": alone["step"] / together["step"],
        "step_seconds": together["step"],
        "compute_seconds": together["local_step"],
        "exposed_communication_seconds": exposed,
        "link": {"latency_seconds": link.latency, "bytes_per_second": link.bandwidth},
        "gradient_bytes": together["gradient_bytes"],
        "model": {
            str(n): {"step_seconds": predicted(n), "efficiency": together["local_step"] / predicted(n)}
            for n in (2, 4, 8, 16, 64)
        },
    }


def fit(exchanges: list[tuple[int, float]], processes: int) -> Link:
    """Latency and bandwidth by least squares from (bytes, seconds) of averaging over ``processes``."""
    hops = processes - 1
    left = np.array([[2 * hops, 2 * hops / processes * size] for size, _ in exchanges])
    weights = 1 / np.array([seconds for _, seconds in exchanges])  # relative errors
    latency, per_byte = np.linalg.lstsq(left * weights[:, None], np.ones(len(exchanges)), rcond=None)[0]
    return Link(max(float(latency), 0.0), 1 / max(float(per_byte), 1e-15))


def _launch(world: int, case: Case, vocabulary: Vocabulary, batches: list[list[Row]], steps: int) -> dict[str, Any]:
    context = mp.get_context("spawn")
    results = context.SimpleQueue()
    with tempfile.TemporaryDirectory() as place:
        meeting = f"file://{place}/meeting"
        workers = [
            context.Process(target=_work, args=(rank, world, meeting, case, vocabulary, batches, steps, results))
            for rank in range(world)
        ]
        for worker in workers:
            worker.start()
        while results.empty():
            if any(worker.exitcode for worker in workers):
                for worker in workers:
                    worker.kill()
                raise EncoderlabError(f"a process of the benchmark of {case.name} failed; its message stands above")
            time.sleep(0.05)
        found: dict[str, Any] = results.get()
        for worker in workers:
            worker.join()
    return found


def _work(
    rank: int,
    world: int,
    meeting: str,
    case: Case,
    vocabulary: Vocabulary,
    rows: list[list[Row]],
    steps: int,
    results: Any,
) -> None:
    torch.set_num_threads(1)
    kernels.keep_memory()  # as our training loop does
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=world)
    player = Ours(case, vocabulary)
    batches = player.batches(rows)
    network = DistributedDataParallel(player.objective)
    optimizer = torch.optim.AdamW(player.parameters, lr=LR, fused=True)

    def step(number: int, *, exchange: bool) -> float:
        dist.barrier()
        started = time.perf_counter()
        network.require_backward_grad_sync = exchange
        network.require_forward_param_sync = exchange
        terms, _ = network(batches[number % len(batches)])
        sum((t.sum * (t.weight / t.count) for t in terms.values()), torch.zeros(())).backward()
        optimizer.step()
        optimizer.zero_grad()
        dist.barrier()
        return time.perf_counter() - started

    step(0, exchange=True)
    pairs = [(step(i, exchange=True), step(i, exchange=False)) for i in range(steps)]
    exchanges = []
    for size in SIZES:
        values = torch.randn(size)
        times = []
        for _ in range(5):
            dist.barrier()
            started = time.perf_counter()
            dist.all_reduce(values)
            times.append(time.perf_counter() - started)
        exchanges.append((4 * size, statistics.median(times)))
    if rank == 0:
        gradient = sum(4 * p.numel() for p in {id(p): p for p in player.parameters}.values())
        with_exchange, without = (statistics.median(column) for column in zip(*pairs, strict=True))
        results.put({"step": with_exchange, "local_step": without, "exchanges": exchanges, "gradient_bytes": gradient})
    dist.destroy_process_group()
