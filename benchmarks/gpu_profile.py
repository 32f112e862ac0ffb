"""Where the time of a training step goes on a GPU, kernel by kernel, and how long the device waits for the processor.

    python -m benchmarks.gpu_profile bert electra:512:64 bert-768 --corpus CORPUS

trains each family as the training loop does (its engine and its optimizer, batches from the corpus) and prints one JSON
object per line: seconds of a step, tokens per second, the share of the measured peak of bf16 products, the seconds in
which a kernel ran and in which the processor was busy, microseconds by kernel and by operator of the processor.
FAMILY[-WIDTH][:LENGTH[:ROWS]]; 12 layers. All compile their kernels side by side, then one after the other is measured.
On a CPU only operators are listed.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
from collections import Counter
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.gpu_speed import Shape
from encoderlab.batches.batch import Batch
from encoderlab.measure.bench.contenders import objective_of
from encoderlab.measure.bench.families import case
from encoderlab.measure.bench.train import TrainSetting, operations_per_token, real_rows
from encoderlab.measure.bench.workers import LR
from encoderlab.train.distributed import join
from encoderlab.train.engine import Engine
from encoderlab.train.recipe import Execution, Phase, Training

WARM, TIMED, PROFILED = 8, 20, 5


def peak() -> float:
    """Operations per second of a large bf16 product; 0 on a CPU."""
    if not torch.cuda.is_available():
        return 0.0
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for turn in range(13):
        if turn == 3:
            start.record()
        a @ b
    stop.record()
    torch.cuda.synchronize()
    return 2 * 8192**3 * 10 / (start.elapsed_time(stop) / 1e3)


class Subject:
    """A family under training; ``steps`` of it are measured."""

    def __init__(self, name: str, given: argparse.Namespace) -> None:
        shape, self.small = Shape.of(name, given.rows), given.small
        rows = 2 if self.small else shape.rows
        self.setting = TrainSetting(rows=rows, length=shape.length, precision="bf16")
        self.case = case(shape.family, layers=given.layers, width=shape.width)
        vocabulary, self.rows = real_rows(self.case, given.corpus, self.setting)
        self.objective = objective_of(self.case, vocabulary)
        begun = time.perf_counter()
        self.batches = [self.objective.make_batch(part, seed=0) for part in self.rows]
        self.making = (time.perf_counter() - begun) / len(self.batches)
        self.counts = [self.objective.counts(batch) for batch in self.batches]
        world = join("auto")
        self.gpu = world.device.type == "cuda"
        if self.gpu:
            self.batches = [batch.pin() for batch in self.batches]
        phases = (Phase(length=self.setting.length, rows=self.setting.rows),)
        execution = Execution(record=not given.no_record)
        self.engine = Engine(self.objective, Training(precision="bf16", phases=phases, execution=execution), world)
        self.number = 0

    def steps(self, count: int) -> tuple[float, float]:
        """Seconds of a step, and seconds in which the processor queued it."""
        begun = time.perf_counter()
        for _ in range(count):
            place = self.number % len(self.batches)
            batch: Batch = self.batches[place]
            self.engine.step(batch, rows=len(batch), counts=self.counts[place], lr=LR, number=self.number)
            self.number += 1
        queued = time.perf_counter() - begun
        if self.gpu:
            torch.cuda.synchronize()
        return (time.perf_counter() - begun) / count, queued / count

    def measure(self, top: float) -> dict[str, Any]:
        took, queued = min(self.steps(1 if self.small else TIMED) for _ in range(1 if self.small else 3))
        counted = 1 if self.small else PROFILED
        with profile(activities=[ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if self.gpu else [])) as profiler:
            self.steps(counted)
        kernels: Counter[str] = Counter()
        operators: Counter[str] = Counter()
        for event in profiler.events():
            if event.device_type == torch.autograd.DeviceType.CUDA:
                kernels[event.name[:100]] += event.time_range.elapsed_us() / counted
            else:
                operators[event.name[:100]] += event.self_cpu_time_total / counted
        rate = sum(batch.num_tokens for batch in self.batches) / len(self.batches) / took
        return {
            "rows": self.setting.rows,
            "length": self.setting.length,
            "seconds": took,
            "queued": queued,
            "busy": sum(kernels.values()) / 1e6,
            "making": self.making,
            "tokens_per_second": rate,
            "of_peak": rate * operations_per_token(self.case, self.rows, self.setting) / top if top else None,
            "memory": torch.cuda.max_memory_allocated() if self.gpu else None,
            "kernels": dict(kernels.most_common(40)),
            "operators": dict(operators.most_common(40)),
        }


def serve(pipe: Connection, name: str, given: argparse.Namespace) -> None:
    """Make the subject ready, and measure it when asked."""
    try:
        subject = Subject(name, given)
        subject.steps(1 if given.small else WARM)
        pipe.send({})
        pipe.send(subject.measure(pipe.recv()))
    except Exception as error:  # the others may still be measured
        pipe.send({"failed": f"{type(error).__name__}: {error}"[:1000]})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+")
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--no-record", action="store_true", help="launch every kernel by itself")
    parser.add_argument("--small", action="store_true", help="2 rows, 1 step: to try the script on a CPU")
    given = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    pipes: dict[str, Connection] = {}
    for name in given.names:
        pipes[name], other = context.Pipe()
        context.Process(target=serve, args=(other, name, given), daemon=True).start()
    ready = {name: pipe.recv() for name, pipe in pipes.items()}
    top = peak()
    device = torch.cuda.get_device_name() if top else "cpu"
    for name, pipe in pipes.items():
        found = ready[name]
        if not found:
            pipe.send(top)
            found = pipe.recv()
        print(json.dumps({"name": name, "device": device, "peak": top} | found), flush=True)


if __name__ == "__main__":
    main()
