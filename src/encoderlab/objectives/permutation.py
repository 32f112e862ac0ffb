"""Permutation language modelling with two streams and memory (Yang et al., 2019, sections 2.2 to 2.6)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from encoderlab.batches.batch import IGNORE, Batch, collate, stack
from encoderlab.batches.loader import Format
from encoderlab.batches.permutation import Targets, permute
from encoderlab.batches.rows import Row
from encoderlab.batches.streams import XLNetStreams
from encoderlab.config import Natural
from encoderlab.errors import ConfigError
from encoderlab.model import Model
from encoderlab.models import flops
from encoderlab.models.base import ModelConfig
from encoderlab.nn import kernels
from encoderlab.nn.encoder import update_memory
from encoderlab.nn.heads import LMHead
from encoderlab.nn.noise import Noise
from encoderlab.nn.positions import RelativeShift
from encoderlab.objectives.base import Losses, Memory, Objective, Settings, carried, check_continued
from encoderlab.objectives.mlm import asked, lm_term
from encoderlab.objectives.vocabulary import Vocabulary
from encoderlab.seeds import generator


@dataclass(frozen=True, kw_only=True)
class PermutationSettings(Settings):
    """Settings of :class:`Permutation`.

    Args:
        targets: which tokens are predicted, and in what order.
        memory: number of states of earlier rows that each layer sees.
        reuse: tokens at the start of a row that continue the stream, and whose states become memory: the ``reuse`` of
            the rows, 0 for rows that are not streams.
    """

    kind: Literal["permutation"] = "permutation"
    targets: Targets = Targets(block=256)
    reads_backwards: ClassVar[bool] = True
    memory: Natural = 384
    reuse: Natural = 256

    def build(
        self, model: Model, second: Model | None, vocabulary: Vocabulary, *, seed: int = 0, continued: bool = False
    ) -> Permutation:
        return Permutation(model, self, vocabulary)

    def operations(self, model: ModelConfig, second: ModelConfig | None, length: int) -> float:
        return flops.training(model, length, predicted=self.targets.count / length, memory=self.memory)

    def check(self, model: ModelConfig, format: Format, lengths: Sequence[int]) -> None:
        check_continued(self, format, XLNetStreams, "memory")
        super().check(model, format, lengths)
        reuse = format.reuse if isinstance(format, XLNetStreams) else 0
        if reuse != self.reuse:
            raise ConfigError(
                f"the rows ({format.kind}) reuse {reuse} tokens and the objective {self.reuse}, but both must "
                f"be equal; set objective.reuse to {reuse}"
            )
        for length in lengths:
            self.targets.check(length, reuse)


class Permutation(Objective):
    """Predict chosen tokens in a random order, each from the context and from the earlier tokens of that order.

    The content stream runs once over the row with the order as its mask. The query stream runs on the targets only,
    starts from one learned vector, and reads the content stream's keys and values, so it adds a sixth of the cost
    instead of doubling it. Nothing reads the content stream's last layer, so it is not computed.
    """

    per_token = ("plm",)

    def __init__(self, model: Model, settings: PermutationSettings, vocabulary: Vocabulary) -> None:
        super().__init__()
        encoder = model.config.encoder
        if not isinstance(encoder.position, RelativeShift) or encoder.causal:
            raise ConfigError(
                "permutation language modelling needs relative_shift positions and attention to both sides: with "
                "absolute positions a query cannot know a target's position without its token; use a recipe of xlnet"
            )
        if model.mask_vector is None or not isinstance(model.lm, LMHead):
            raise ConfigError(
                "permutation language modelling needs mask_vector and an LM head; use a model of family xlnet"
            )
        self.model, self.settings, self.pad = model, settings, vocabulary.pad

    def make_batch(self, rows: list[Row], *, seed: int) -> Batch:
        settings = self.settings
        orders = [permute(row, settings.targets, settings.reuse, generator(seed, "order", *row.key)) for row in rows]
        batch = collate(rows, pad=self.pad)
        # As many queries in every batch, because a recorded query stream belongs to one number of them.
        length, queries = batch.ids.shape[1], settings.targets.count
        batch.labels["positions"] = stack([o.positions for o in orders], -1, length=queries)
        batch.labels["targets"] = stack([o.targets for o in orders], IGNORE, length=queries)
        # ``doc`` hides padding, so its ranks do not matter.
        batch.labels["query_rank"] = stack([o.query_rank for o in orders], 0, length=length)
        batch.labels["key_rank"] = stack([o.key_rank for o in orders], 0, length=length)
        return batch

    def counts(self, batch: Batch) -> dict[str, int]:
        return {"plm": int(asked(batch).sum())}

    def forward(self, batch: Batch, *, noise: Noise | None = None, memory: Memory = None) -> Losses:
        model, settings, labels = self.model, self.settings, batch.labels
        assert model.mask_vector is not None
        memory = carried(memory, batch) if settings.memory else None
        reverse = labels["backwards"].bool() if "backwards" in labels else None
        query_rank, key_rank = labels["query_rank"], labels["key_rank"]
        itself = torch.eye(query_rank.shape[1], dtype=torch.bool, device=query_rank.device)
        states = model.encoder(
            batch.ids,
            doc=batch.documents,
            segments=batch.segments,
            visible=(query_rank[:, :, None] > key_rank[:, None, :]) | itself,
            memory=memory,
            reverse=reverse,
            noise=noise,
            depth=model.encoder.depth - 1,
            keep_keyed=True,
        )
        positions = labels["positions"]
        at = positions.clamp(min=0)
        together = (batch.doc.gather(1, at)[:, :, None] == batch.doc[:, None, :]) & (batch.doc >= 0)[:, None, :]
        queries = model.mask_vector.expand(*at.shape, -1)
        if noise is not None:
            queries = kernels.dropout(queries, model.config.encoder.dropout, noise.branch(2).seeds, 0)
        predicted = model.encoder.query_stream(
            states,
            queries,
            at,
            layers=range(model.encoder.depth),
            visible=(query_rank.gather(1, at)[:, :, None] > key_rank[:, None, :]) & together,
            memory=memory,
            noise=noise,
        )
        rows, slots = batch.find(asked)
        term = lm_term(model, predicted[rows, slots], labels["targets"][rows, slots])
        return {"plm": term}, update_memory(memory, states.layers, settings.memory, reuse=settings.reuse or None)
