"""A small language model and batch source of its own, so that the loop is tested without corpus, tokenizer or encoder.

Run as a script it trains in a folder, for the tests that kill processes or start several:
    python toy.py OUT '{"recipe field": value}' [--die-at STEP [--stored STEP]] [--fail-at STEP] [--slow SECONDS]
        [--scores 1]
A process dies once the checkpoint ``stored`` is whole. The last process fails; with scores, each has others. A slow
run is fast as soon as there is a file ``fast`` next to OUT.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from encoderlab import config
from encoderlab.batches.batch import Batch
from encoderlab.errors import DataError, EncoderlabError
from encoderlab.nn import kernels
from encoderlab.nn.noise import Noise
from encoderlab.objectives.base import Memory, Objective, Term
from encoderlab.seeds import generator
from encoderlab.train import checkpoint
from encoderlab.train.data import Data
from encoderlab.train.folder import METRICS
from encoderlab.train.loop import Outcome, train
from encoderlab.train.recipe import Budget, Checkpoints, Evaluation, Phase, Training
from encoderlab.train.stored import StoredTensors

VOCAB, WIDTH = 37, 16
TIMING = ("seconds", "tokens_per_second", "waiting", "peak_share")  # what a line of metrics has from the clock


class Toy(Objective):
    """Next-token prediction by a gated mixture of the last tokens and a memory, with dropout and a tied output table; a
    second term counts rows."""

    per_token = ("lm",)

    def __init__(self, seed: int = 0, remember: bool = True) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.table = nn.Embedding(VOCAB, WIDTH)
        self.mix = nn.Linear(2 * WIDTH, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.out = nn.Linear(WIDTH, VOCAB)
        self.out.weight = self.table.weight
        self.sort = nn.Linear(WIDTH, 2)
        self.remember = remember

    def counts(self, batch: Batch) -> dict[str, int]:
        return {"lm": int((batch.labels["next"] >= 0).sum()), "sort": len(batch)}

    def forward(
        self, batch: Batch, *, noise: Noise | None = None, memory: Memory = None
    ) -> tuple[dict[str, Term], Memory]:
        x = self.table(batch.ids)
        before = x.new_zeros(len(x), 1, WIDTH) if memory is None or len(memory[0]) != len(x) else memory[0]
        x = kernels.dropout(x, 0.2, None if noise is None else noise.seeds, 0)
        x = self.norm(F.gelu(self.mix(torch.cat([x, torch.cat([before, x[:, :-1]], 1)], -1))))
        targets = batch.labels["next"]
        logits = self.out(x)
        loss = F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), ignore_index=-100, reduction="sum")
        hits = (logits.argmax(-1) == targets).sum()
        sort = self.sort(x.mean(1))
        terms = {
            "lm": Term(loss, int((targets >= 0).sum()), hits=hits),
            "sort": Term(F.cross_entropy(sort.float(), batch.labels["sort"], reduction="sum"), len(x), 0.5),
        }
        return terms, (x[:, -1:].detach(),) if self.remember else None


class Rows:
    """Synthetic rows, a pure function of their number; batch t of n rows follows batch t - 1."""

    def __init__(self, phase: Phase, rows: int, state: dict[str, int] | None, rank: int = 0, world: int = 1) -> None:
        self.length, self.rows, self.rank, self.world = phase.length, rows, rank, world
        self.next_row = state["rows"] if state else 0

    def __next__(self) -> Batch:
        first = self.next_row
        self.next_row += self.rows
        return batch_of(
            first + self.rows * self.rank // self.world, first + self.rows * (self.rank + 1) // self.world, self.length
        )

    def state(self) -> dict[str, int]:
        return {"rows": self.next_row}

    def close(self) -> None: ...


def batch_of(start: int, stop: int, length: int) -> Batch:
    """Rows ``start:stop`` of a text in which a token is three times the one before, most of the time; every third row
    is padded."""
    ids = torch.zeros(stop - start, length + 1, dtype=torch.long)
    doc = torch.zeros(stop - start, length, dtype=torch.int32)
    for i, row in enumerate(range(start, stop)):
        rng = generator("toy", row)
        ids[i, 0] = int(rng.integers(VOCAB))
        for j in range(length):
            ids[i, j + 1] = int(rng.integers(VOCAB)) if rng.random() < 0.3 else (3 * ids[i, j] + row % 2) % VOCAB
        if row % 3 == 0:
            doc[i, length // 2 :] = -1
    targets = ids[:, 1:].masked_fill(doc < 0, -100)
    numbers = torch.arange(start, stop)
    return Batch(ids=ids[:, :-1], doc=doc, labels={"next": targets, "sort": numbers % 2}, rows=numbers)


def validation(phase: Phase) -> Iterator[Batch]:
    for start in range(10**6, 10**6 + 20, 8):  # the last batch is smaller
        yield batch_of(start, min(start + 8, 10**6 + 19), phase.length)


RECIPE = Training(
    budget=Budget(amount=24),
    phases=(Phase(length=8, rows=8, share=0.5), Phase(length=12, rows=6, share=0.5)),
    evaluation=Evaluation(every=10),
    checkpoints=Checkpoints(minutes=None, steps=5),
    log_every=3,
)


def toy_data(**changes: Any) -> Data:
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    data = Data(
        source=lambda phase, rows, state: Rows(phase, rows, state, rank, world),
        validation=validation,
        hashes={"corpus": "toy"},
        bytes_per_token={"train": 4.0, "valid": 5.0},
    )
    return replace(data, **changes)


def run(out: Path, recipe: Training = RECIPE, **options: Any) -> Outcome:
    """Train the toy in this process, on one thread as :func:`start` does, so that sums have the same order."""
    torch.set_num_threads(1)
    data = options.pop("data", None) or toy_data()
    return train(Toy(), recipe, data, out, **options)


def start(
    out: Path,
    changes: dict[str, Any] | None = None,
    *options: object,
    processes: int = 1,
    node: tuple[str, ...] = (),
    variables: dict[str, str] | None = None,
) -> subprocess.Popen[str]:
    """This script training in ``out``, alone, under torchrun, as a ``node`` with these options of torchrun, or with
    ``variables``.
    """
    script = [__file__, str(out), json.dumps(changes or {}), *map(str, options)]
    node = node or (("--standalone",) if processes > 1 else ())
    torchrun = ["-m", "torch.distributed.run", *node, f"--nproc-per-node={processes}"] if node else []
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CI": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    environment |= variables or {}
    return subprocess.Popen(
        [sys.executable, *torchrun, *script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )


def metrics(out: Path) -> list[dict[str, Any]]:
    """The metrics of a run without what depends on the clock."""
    lines = [json.loads(line) for line in (out / METRICS).read_text().splitlines()]
    return [{key: value for key, value in line.items() if key not in TIMING} for line in lines]


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    """Everything a checkpoint holds in tensors."""
    return dict(StoredTensors(folder))


def assert_same_run(one: Path, other: Path, step: int) -> None:
    """Bitwise equal weights, optimiser state and metrics."""
    left, right = (tensors(out / "checkpoints" / checkpoint.name(step)) for out in (one, other))
    assert left.keys() == right.keys()
    for name, tensor in left.items():
        assert torch.equal(tensor, right[name]), name
    assert metrics(one) == metrics(other)


def main() -> int:
    out, changes, *rest = sys.argv[1:]
    options = dict(zip(rest[::2], map(float, rest[1::2]), strict=True))
    recipe = config.override(RECIPE, json.loads(changes))
    die_at, stored, fail_at = (options.get(name) for name in ("--die-at", "--stored", "--fail-at"))
    slow = options.get("--slow", 0.0)
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    step = validated = 0

    class Doomed(Rows):
        def __next__(self) -> Batch:
            nonlocal step
            if step == die_at:
                while stored and not (Path(out) / "checkpoints" / checkpoint.name(int(stored))).exists():
                    time.sleep(0.01)  # checkpoints are written behind training, which may be slow elsewhere
                os.kill(os.getpid(), signal.SIGKILL)
            if step == fail_at and rank == world - 1:
                raise DataError("shard 7 is damaged")
            step += 1
            time.sleep(0 if (Path(out).parent / "fast").exists() else slow)
            return super().__next__()

    data = toy_data(source=lambda phase, rows, state: Doomed(phase, rows, state, rank, world))

    def score() -> dict[str, float]:
        nonlocal validated
        validated += rank  # the score of the first process does not change, those of others get better
        return {"score": float(validated)}

    if "--scores" in options:
        data = replace(data, score=score)
    torch.set_num_threads(1)
    try:
        outcome = train(Toy(), recipe, data, Path(out))
    except EncoderlabError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.code
    if rank == 0:
        print(json.dumps({"step": outcome.step, "tokens": outcome.tokens}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
