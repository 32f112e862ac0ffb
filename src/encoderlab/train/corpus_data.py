"""The batches of a pretraining run: rows from the splits of a corpus, converted to the objective's batches."""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterator
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import cast

from encoderlab.batches.batch import Batch
from encoderlab.batches.loader import Loader
from encoderlab.batches.rows import Framing, Row
from encoderlab.batches.streams import StreamFormat
from encoderlab.corpus.manifest import MANIFEST
from encoderlab.corpus.shards import Corpus
from encoderlab.corpus.tokenizer import Tokenizer
from encoderlab.errors import DataError
from encoderlab.files import sha256
from encoderlab.model import weights_hash
from encoderlab.objectives.base import Objective
from encoderlab.objectives.distill import Distill
from encoderlab.train.data import Data
from encoderlab.train.distributed import join
from encoderlab.train.networks import full_operations
from encoderlab.train.recipe import Phase, Recipe

log = logging.getLogger(__name__)

VALIDATION_SEED = 20181011  # validation rows and masks are the same in every run, whatever its seed
VALIDATION_BATCH = 32  # rows


def row_framing(tokenizer: Tokenizer) -> Framing:
    """The special tokens that the packers put around text."""
    special = tokenizer.special
    return Framing(kind=tokenizer.framing, cls=special.cls, sep=special.sep, eod=special.eod)


def corpus_data(recipe: Recipe, objective: Objective, path: Path, tokenizer: Tokenizer) -> Data:
    """Batches of the corpus's training split for the loop, and of its validation split."""
    splits = _Splits(recipe, objective, path, row_framing(tokenizer))
    for phase in recipe.phases:  # refuse text that gives no rows now, before there is a run folder
        source = splits.training(phase, phase.rows, None)
        next(source)
        source.close()
    if (problem := splits.why_no_validation()) and splits.world.main:
        log.warning("no validation: %s; build the corpus with a larger validation share", problem)
    hashes = {"corpus": sha256(path / MANIFEST), "tokenizer": tokenizer.hash()}
    if isinstance(objective, Distill):
        hashes["teacher"] = weights_hash(objective.teacher)
    return Data(
        source=splits.training,
        validation=None if problem else splits.validation,
        hashes=hashes,
        bytes_per_token={
            name: text.num_bytes / max(text.num_tokens, 1)
            for name, text in (("train", splits.text), ("valid", splits.held_out))
        },
        operations=cache(lambda phase: recipe.operations(phase.length, splits.teacher)),
        tokenizer=tokenizer,
    )


class _Splits:
    """The training and validation splits of the corpus at ``path``, as batches for an objective."""

    def __init__(self, recipe: Recipe, objective: Objective, path: Path, framing: Framing) -> None:
        self.recipe, self.objective, self.path, self.framing = recipe, objective, path, framing
        self.text, self.held_out = Corpus(path), Corpus(path, split="validation")
        self.world = join(recipe.execution.device)
        self.teacher = objective.teacher.config if isinstance(objective, Distill) else None
        self.cost = cache(lambda phase: full_operations(recipe, phase, self.teacher))

    def training(self, phase: Phase, rows: int, state: dict[str, int] | None) -> LoaderSource:
        """This process's part of batches of ``rows`` rows, from ``state`` or from the start."""
        loader = Loader(
            self.text,
            self.recipe.format,
            phase.length,
            framing=self.framing,
            seed=self.recipe.seed,
            batch_rows=rows,
            rank=self.world.rank,
            world=self.world.size,
            state=state,
            transform=self._training_batch,
            duplicates=self.recipe.duplicates,
        )
        return LoaderSource(loader)

    def validation(self, phase: Phase) -> Iterator[Batch]:
        """The same batches at every call, until they have the rows that an evaluation needs."""
        done = 0
        for batch in self._validation_loader(phase):
            yield batch
            done += len(batch)
            if done >= self.recipe.evaluation.rows:
                return

    def why_no_validation(self) -> str | None:
        """Why the validation split cannot be used, or None; asked before training, not at the first evaluation."""
        split = f"the validation split of {self.path}"
        if self.held_out.num_documents < 2:
            return f"{split} has {self.held_out.num_documents} documents; at least 2 are needed"
        for phase in self.recipe.phases:
            try:
                source = LoaderSource(self._validation_loader(phase))
                next(source)
                source.close()
            except (DataError, StopIteration) as error:
                return f"{split} gives no rows of {phase.length} tokens ({error})"
        return None

    def _validation_loader(self, phase: Phase) -> Loader:
        rows = min(phase.rows, VALIDATION_BATCH)
        while True:
            try:
                return Loader(
                    self.held_out,
                    self.recipe.format,
                    phase.length,
                    framing=self.framing,
                    seed=VALIDATION_SEED,
                    batch_rows=rows,
                    transform=partial(self._batch, seed=VALIDATION_SEED),
                    epochs=1,
                )
            except DataError:
                if not isinstance(self.recipe.format, StreamFormat) or rows <= 2:
                    raise
                rows = max(2, rows // 4 * 2)  # a short split has fewer streams, in pairs for XLNet

    def _training_batch(self, rows: list[Row]) -> Batch:
        if self.recipe.objective.masking_changes:
            rows = [replace(row, progress=self.recipe.progress(row.number, self.cost)) for row in rows]
        return self._batch(rows, self.recipe.seed)

    def _batch(self, rows: list[Row], seed: int) -> Batch:
        batch = self.objective.make_batch(rows, seed=seed)
        return batch.pin() if self.world.device.type == "cuda" else batch  # a copy from other memory waits for the GPU


class LoaderSource:
    """Adapts a :class:`Loader` to the loop: one batch at a time, and the place after the last batch returned."""

    def __init__(self, loader: Loader) -> None:
        self.loader = loader
        self.batches = cast(Generator[Batch, None, None], iter(loader))

    def __next__(self) -> Batch:
        return next(self.batches)

    def state(self) -> dict[str, int]:
        return self.loader.state()

    def close(self) -> None:
        self.batches.close()
