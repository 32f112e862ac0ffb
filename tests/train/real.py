"""The project's own objectives at toy size over a corpus in memory, as the loop trains them.

Run as a script, under torchrun, it trains all of them with DDP and with FSDP2, each in ``OUT/OBJECTIVE-ENGINE``:
    torchrun --nproc-per-node=2 -m tests.train.real OUT
With an objective and a number it trains that one alone, and is killed at that batch.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from encoderlab import recipes
from encoderlab.batches.batch import Batch
from encoderlab.batches.loader import Loader
from encoderlab.batches.permutation import Targets
from encoderlab.batches.rows import Framing
from encoderlab.batches.streams import ContiguousStreams, StreamFormat, XLNetStreams
from encoderlab.corpus.shards import Document
from encoderlab.objectives.base import Objective
from encoderlab.objectives.causal import Causal, CausalSettings
from encoderlab.objectives.distill import Distill, DistillSettings
from encoderlab.objectives.hybrid import Hybrid, HybridSettings
from encoderlab.objectives.mlm import MLM
from encoderlab.objectives.permutation import Permutation, PermutationSettings
from encoderlab.objectives.rtd import ReplacedTokenDetection
from encoderlab.objectives.vocabulary import Vocabulary
from encoderlab.train.corpus_data import LoaderSource
from encoderlab.train.data import Data
from encoderlab.train.loop import train
from encoderlab.train.optim import Lamb, Muon, StableAdamW
from encoderlab.train.recipe import Budget, Checkpoints, Execution, Phase, Recipe, WeightAverage
from encoderlab.train.schedule import Constant
from tests.batches.memory_corpus import MemoryCorpus
from tests.objectives.small import build, reading_the_token_before, small

VOCAB, STEPS = 40, 5
VOCABULARY = Vocabulary(size=VOCAB, pad=0, mask=4, special=(0, 1, 2, 3, 4), counts=np.arange(VOCAB))


def corpus() -> MemoryCorpus:
    """Sixty documents of sentences over ids 5 to 39."""
    rng = np.random.default_rng(0)
    documents = []
    for _ in range(60):
        sizes = rng.integers(3, 9, rng.integers(2, 6))
        ids = rng.integers(5, VOCAB, sizes.sum()).astype(np.uint16)
        documents.append(Document(ids, np.cumsum(sizes) - sizes, rng.random(len(ids)) < 0.7))
    return MemoryCorpus(documents, VOCAB)


def _mlm(recipe: Recipe) -> Objective:
    return MLM(build(recipe.name), recipe.objective, VOCABULARY)  # type: ignore[arg-type]


def _hybrid(recipe: Recipe) -> Objective:
    return Hybrid(reading_the_token_before(recipe.name), HybridSettings(causal=0.3), VOCABULARY)


def _rtd(recipe: Recipe) -> Objective:
    generator = build(f"{recipe.name}-generator", 1)
    return ReplacedTokenDetection(generator, build(recipe.name), recipe.objective, VOCABULARY)  # type: ignore[arg-type]


def _permutation(recipe: Recipe) -> Objective:
    settings = PermutationSettings(targets=Targets(count=6, longest=3, context=2), memory=6, reuse=8)
    return Permutation(build(recipe.name), settings, VOCABULARY)


def _causal(recipe: Recipe) -> Objective:
    return Causal(build(recipe.name), CausalSettings(memory=12, evaluation_memory=24), VOCABULARY)


def _distill(recipe: Recipe) -> Objective:
    return Distill(build(recipe.name), build("bert-tiny", 1), DistillSettings(student_from=(1,)), VOCABULARY)


ALTERNATING = replace(recipes.recipe("deberta-v3-tiny").objective, updates="alternating")  # type: ignore[call-arg]
CASES: dict[str, tuple[str, Callable[[Recipe], Objective], dict[str, Any]]] = {
    "mlm": ("bert-tiny", _mlm, {}),
    "hybrid": ("roberta-tiny", _hybrid, {}),
    "average": ("bert-tiny", _mlm, {"average": WeightAverage(decay=0.7)}),
    "muon": ("bert-tiny", _mlm, {"optim": Muon(lr=1e-3, eps=1e-4)}),
    "lamb": ("bert-tiny", _mlm, {"optim": Lamb(lr=1e-3)}),
    "stable": ("bert-tiny", _mlm, {"optim": StableAdamW(lr=1e-3, eps=1e-4)}),
    "rtd": ("electra-tiny", _rtd, {}),
    "rtd-gdes": ("deberta-v3-tiny", _rtd, {}),
    "rtd-alternating": ("deberta-v3-tiny", _rtd, {"objective": ALTERNATING}),
    "permutation": ("xlnet-tiny", _permutation, {"format": XLNetStreams(reuse=8, separator=False)}),
    "causal": ("transformer-xl-tiny", _causal, {"format": ContiguousStreams(separator=False)}),
    "distill": ("distilbert-tiny", _distill, {}),
}


SHARDED = [case for case in CASES if case != "muon"]  # Muon needs whole matrices


class Doomed(LoaderSource):
    """Kills the process, as a power cut would, instead of giving batch ``die_at``."""

    def __init__(self, loader: Loader, die_at: int | None) -> None:
        super().__init__(loader)
        self.left = die_at

    def __next__(self) -> Batch:
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self.left = None if self.left is None else self.left - 1
        return super().__next__()


def run(
    case: str,
    out: Path,
    *,
    parallel: Literal["ddp", "fsdp"] = "ddp",
    micro_rows: int | None = None,
    compile: bool = False,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    die_at: int | None = None,
    **options: Any,
) -> None:
    """Train one objective for a few steps of 8 rows, dropout on; the process is killed at its batch ``die_at``."""
    torch.set_num_threads(1)
    name, make, changes = CASES[case]
    changes = dict(changes)
    recipe = recipes.recipe(name)
    recipe = replace(
        recipe,
        model=small(name),
        generator=None if recipe.generator is None else small(f"{name}-generator"),
        budget=Budget(amount=STEPS),
        phases=(Phase(length=24, rows=8),),
        schedule=Constant(),
        # An eps so that gradients of rounding size (key biases) stay small.
        optim=changes.pop("optim", replace(recipe.optim, lr=1e-3, eps=1e-4)),
        checkpoints=Checkpoints(minutes=None, steps=3),
        execution=Execution(device=device, parallel=parallel, micro_rows=micro_rows, compile=compile),
        log_every=1,
        **changes,
    )
    objective = make(recipe)
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    text, framing = corpus(), Framing(kind="xlnet" if case == "permutation" else "bert", cls=2, sep=3, eod=3)

    def source(phase: Phase, rows: int, state: dict[str, int] | None) -> LoaderSource:
        shared: dict[str, Any] = {"framing": framing, "seed": 3, "batch_rows": rows, "rank": rank, "world": world}
        loader = Loader(
            text,
            recipe.format,
            phase.length,
            state=state,
            transform=lambda r: objective.make_batch(r, seed=3),
            **shared,
        )
        return Doomed(loader, die_at)

    assert isinstance(recipe.format, StreamFormat) == (case in ("permutation", "causal"))
    train(objective, recipe, Data(source=source), out, **options)


if __name__ == "__main__":
    out = Path(sys.argv[1])
    if len(sys.argv) > 2:
        run(sys.argv[2], out, die_at=int(sys.argv[3]))
    else:
        for case in CASES:
            for engine in ("ddp", "fsdp") if case in SHARDED else ("ddp",):
                run(case, out / f"{case}-{engine}", parallel=engine, micro_rows=3)  # type: ignore[arg-type]
