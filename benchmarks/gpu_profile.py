"""Where the device's time of pretraining goes, kernel by kernel, and how long the device waits for the processor.

    python -m benchmarks.gpu_profile bert-mini --corpus CORPUS

prints one JSON object: microseconds of a step by kernel, the span of the steps, and the share of it in which the device
had nothing to do (what launches cost, and what CUDA graphs could gain). On a CPU the operators are listed instead.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from encoderlab import recipes
from encoderlab.corpus.shards import Corpus
from encoderlab.corpus.tokenizer import Tokenizer
from encoderlab.train.corpus_data import corpus_data
from encoderlab.train.distributed import join
from encoderlab.train.engine import Engine
from encoderlab.train.networks import build_objective, fit
from encoderlab.train.recipe import Phase

WARM, COUNTED = 5, 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe")
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--small", action="store_true", help="2 rows, 1 step: to try the script on a CPU")
    given = parser.parse_args()
    text = Corpus(given.corpus)
    tokenizer = Tokenizer.load(text.tokenizer_path)
    phase = Phase(length=128, rows=2 if given.small else given.rows)
    recipe = replace(fit(recipes.recipe(given.recipe), tokenizer), phases=(phase,), ramp=None, precision="bf16")
    objective = build_objective(recipe, tokenizer, text)
    source = corpus_data(recipe, objective, given.corpus, tokenizer).source(phase, phase.rows, None)
    world = join("auto")
    engine = Engine(objective, recipe, world)
    warm, counted = (0, 1) if given.small else (WARM, COUNTED)
    batches = [next(source) for _ in range(warm + counted)]
    source.close()

    def steps(first: int, last: int) -> None:
        for number in range(first, last):
            batch = batches[number]
            engine.step(batch, rows=len(batch), counts=objective.counts(batch), lr=1e-4, number=number)
        if world.device.type == "cuda":
            torch.cuda.synchronize()

    steps(0, warm)
    gpu = world.device.type == "cuda"
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if gpu else [])
    with profile(activities=activities) as profiler:
        steps(warm, warm + counted)
    times: Counter[str] = Counter()
    spans: list[tuple[float, float]] = []
    for event in profiler.events():
        on_device = event.device_type == torch.autograd.DeviceType.CUDA
        if gpu and on_device:
            times[event.name] += event.time_range.elapsed_us()
            spans.append((event.time_range.start, event.time_range.end))
        elif not gpu:
            times[event.name] += event.self_cpu_time_total
    busy, end = 0.0, 0.0
    for start, stop in sorted(spans):
        busy += max(0.0, stop - max(start, end))
        end = max(end, stop)
    span = end - min(start for start, _ in spans) if spans else sum(times.values())
    print(
        json.dumps(
            {
                "recipe": given.recipe,
                "device": torch.cuda.get_device_name() if gpu else "cpu",
                "rows": phase.rows,
                "microseconds_per_step": span / counted,
                "idle_share": 1 - busy / span if spans else None,
                "kernels": {name: time / counted for name, time in times.most_common(40)},
            },
            indent=1,
        )
    )


if __name__ == "__main__":
    main()
