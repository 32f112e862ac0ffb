"""Left-to-right language modelling, with memory of earlier rows (Dai et al., 2019, section 3.2) or without."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from encoderlab.batches.batch import IGNORE, Batch, collate, stack
from encoderlab.batches.loader import Format
from encoderlab.batches.rows import Row
from encoderlab.batches.streams import ContiguousStreams, XLNetStreams
from encoderlab.config import Natural, NonNegative
from encoderlab.errors import ConfigError
from encoderlab.model import Model
from encoderlab.models import flops
from encoderlab.models.base import ModelConfig
from encoderlab.nn.encoder import update_memory
from encoderlab.nn.heads import AdaptiveLMHead, LMHead
from encoderlab.nn.noise import Noise
from encoderlab.objectives.base import Losses, Memory, Objective, Settings, Term, carried, check_continued
from encoderlab.objectives.mlm import lm_term
from encoderlab.objectives.vocabulary import Vocabulary

PER_TOKEN = ("ids", "doc", "segments", "word_starts", "special")  # the arrays of a Row


@dataclass(frozen=True, kw_only=True)
class CausalSettings(Settings):
    """Settings of :class:`Causal`.

    Args:
        memory: number of earlier states that each layer sees in training.
        evaluation_memory: the same in evaluation; None for ``memory``.
        same_length: in evaluation every token sees exactly ``evaluation_memory`` keys, itself included.
        z_loss: adds ``z_loss`` log(Z)^2 to each token's loss, with the denominator Z of its softmax, which keeps logits
            small (Chowdhery et al., 2022, section 5; 1e-4 there). The losses in the metrics are without it.
    """

    kind: Literal["causal"] = "causal"
    memory: Natural = 0
    evaluation_memory: Natural | None = None
    same_length: bool = False
    z_loss: NonNegative = 0.0

    def build(
        self, model: Model, second: Model | None, vocabulary: Vocabulary, *, seed: int = 0, continued: bool = False
    ) -> Causal:
        return Causal(model, self, vocabulary)

    def operations(self, model: ModelConfig, second: ModelConfig | None, length: int) -> float:
        return (1 + flops.BACKWARD) * flops.whole_forward(model, length, predicted=1.0, memory=self.memory)

    def check(self, model: ModelConfig, format: Format, lengths: Sequence[int]) -> None:
        check_continued(self, format, ContiguousStreams, "memory", "evaluation_memory")
        if isinstance(format, XLNetStreams):
            raise ConfigError(
                "xlnet_streams are not plain text but pairs of texts; set format.kind to contiguous_streams"
            )


class Causal(Objective):
    """Predict every token from the tokens before it (Dai et al., 2019, section 3).

    With memory, the rows of a batch continue those of the previous batch. The memory is empty at the start of an epoch,
    as in the original code (``transformers`` starts with zeros, which tokens attend to).
    """

    per_token = ("lm",)

    def __init__(self, model: Model, settings: CausalSettings, vocabulary: Vocabulary) -> None:
        super().__init__()
        if not model.config.encoder.causal:
            raise ConfigError("left-to-right modelling must not see later tokens; set model.encoder.causal=true")
        if model.lm is None:
            raise ConfigError("left-to-right modelling needs an LM head; set model.lm={}")
        if settings.z_loss and not isinstance(model.lm, LMHead):
            raise ConfigError("an adaptive softmax has several denominators; set objective.z_loss to 0")
        remembers = settings.memory or settings.evaluation_memory
        if remembers and not model.config.encoder.position.takes_memory:
            raise ConfigError(
                "memory needs relative positions, because remembered states keep their old absolute positions; "
                "set memory and evaluation_memory to 0"
            )
        self.model, self.settings, self.pad = model, settings, vocabulary.pad

    def make_batch(self, rows: list[Row], *, seed: int) -> Batch:
        shown = [replace(row, **{name: getattr(row, name)[:-1] for name in PER_TOKEN}) for row in rows]
        batch = collate(shown, pad=self.pad)
        targets = [np.where(row.doc[1:] == row.doc[:-1], row.ids[1:], IGNORE) for row in rows]
        batch.labels["targets"] = stack(targets, IGNORE, length=batch.ids.shape[1])
        return batch

    def counts(self, batch: Batch) -> dict[str, int]:
        return {"lm": int((batch.labels["targets"] != IGNORE).sum())}

    def forward(self, batch: Batch, *, noise: Noise | None = None, memory: Memory = None) -> Losses:
        model, settings = self.model, self.settings
        length, window = settings.memory, None
        if not self.training:
            length = settings.memory if settings.evaluation_memory is None else settings.evaluation_memory
            window = length if settings.same_length and length else None
        memory = carried(memory, batch) if length else None
        rows, places = batch.find(lambda known: known.labels["targets"] != IGNORE)
        states = model.encoder(
            batch.ids, doc=batch.documents, segments=batch.segments, memory=memory, window=window, noise=noise
        )
        targets = batch.labels["targets"][rows, places]
        if isinstance(model.lm, AdaptiveLMHead):
            known = batch.on_host.labels["targets"]
            members = [batch.bring(rows) for rows in model.lm.members(known[known != IGNORE])]
            losses = model.lm.losses(states.last[rows, places], targets, model.encoder.embeddings, members)
            term = Term(losses.float().sum(), len(targets))
        else:
            term = lm_term(model, states.last[rows, places], targets, z_loss=settings.z_loss)
        return {"lm": term}, update_memory(memory, states.layers[:-1], length)
