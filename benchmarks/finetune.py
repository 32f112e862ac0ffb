"""Times fine-tuning steps with packed rows against the same model with dynamic padding and padded to 128.

    python -m benchmarks.finetune DATA --vocab VOCAB [--tasks sst2 mrpc] [--layers 12 --width 256]

``DATA`` is a folder with GLUE's folders, ``VOCAB`` one with a vocabulary (vocab.txt or tokenizer.json). A step is what
training does with 32 examples: making the batch, forward, backward, clipping, update. The three contenders take the
same examples of the first steps of an epoch, in turns; it prints the medians over the rounds. One thread is timed by
its processor time, which other processes on the machine disturb less.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from encoderlab import models
from encoderlab.corpus.tokenizer import Tokenizer
from encoderlab.model import Model
from encoderlab.models.base import resized
from encoderlab.tasks.data import suites
from encoderlab.tasks.forms.base import FormSettings
from encoderlab.tasks.forms.batching import Item, ItemSource, Packing
from encoderlab.tasks.forms.objective import TaskObjective, form_of, with_head
from encoderlab.tasks.runs.finetune import FinetuneRecipe, row_length
from encoderlab.train.distributed import join
from encoderlab.train.engine import Engine

MODES: tuple[Packing, ...] = ("packed", "dynamic", "fixed")
LENGTH, BATCH = 128, 32


class Contender:
    """Fine-tuning with one way of packing; ``seconds`` are those of the rounds."""

    def __init__(self, mode: Packing, model: Model, task: str, items: list[Item]) -> None:
        recipe = FinetuneRecipe(packing=mode, form=FormSettings(max_length=LENGTH), batch=BATCH)
        form = form_of(suites.task(task), model, recipe.form)
        self.engine = Engine(TaskObjective(with_head(model, form, seed=1)[0], form), recipe, join("cpu"))
        self.room = LENGTH if mode == "fixed" else row_length(recipe, model, LENGTH)
        self.mode, self.items = mode, items
        self.seconds: list[float] = []
        self.positions = 0

    def run(self, steps: int, clock: Callable[[], float]) -> None:
        """The first ``steps`` steps of an epoch."""
        engine, begin = self.engine, clock()
        source = ItemSource(self.items, batch=BATCH, room=self.room, pad=0, mode=self.mode, seed=1, world=engine.world)
        self.positions = 0
        for number, batch in enumerate(itertools.islice(iter(source.__next__, None), steps)):
            self.positions += batch.ids.numel()
            engine.step(batch, rows=len(batch), counts=engine.objective.counts(batch), lr=1e-5, number=number)
        self.seconds.append(clock() - begin)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--vocab", type=Path, required=True)
    parser.add_argument("--tasks", nargs="+", default=["sst2", "mrpc"])
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    clock = time.process_time if args.threads == 1 else time.perf_counter
    tokenizer = Tokenizer.load(args.vocab)
    config = resized(
        models.config("bert-base"), vocab=tokenizer.vocab_size, layers=args.layers, width=args.width,
        heads=args.width // 64, ff_width=4 * args.width,
    )  # fmt: skip
    model = Model(config, tokenizer).initialize(1)
    for name in args.tasks:
        task = suites.task(name)
        form = form_of(task, model, FormSettings(max_length=LENGTH))
        split = task.load(args.data, "train")
        items = form.items(replace(split, examples=split.examples[:4096]).examples, train=True)
        contenders = [Contender(mode, model, name, items) for mode in MODES]
        for turn in range(args.rounds + 1):
            for contender in contenders:
                contender.run(args.steps if turn else 1, clock)
        tokens = statistics.fmean(map(len, items))
        print(f"{name}: {tokens:.1f} tokens per example, {args.steps} steps of {BATCH}")
        packed = statistics.median(contenders[0].seconds[1:])
        for contender in contenders:
            median = statistics.median(contender.seconds[1:])
            rows = [f"{value / packed:.2f}" for value in contender.seconds[1:]]
            print(
                f"  {contender.mode:<8}{median / args.steps:8.3f} s per step, {contender.positions / args.steps:6.0f} "
                f"positions, {median / packed:.2f} times packed ({' '.join(rows)})",
                flush=True,
            )


if __name__ == "__main__":
    main()
