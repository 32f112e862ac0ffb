"""Masked and causal prediction in one model (GPT-BERT; Charpentier and Samuel, 2024)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from encoderlab.batches.batch import Batch
from encoderlab.batches.corrupt import Corrupted, Masking
from encoderlab.batches.rows import Row
from encoderlab.config import NonNegative, OpenShare
from encoderlab.errors import ConfigError
from encoderlab.model import Model
from encoderlab.models import flops
from encoderlab.models.base import ModelConfig
from encoderlab.nn.heads import LMHead
from encoderlab.nn.noise import Noise
from encoderlab.objectives.base import Losses, Memory, Objective, Settings
from encoderlab.objectives.mlm import Masker, asked, lm_term, predicted
from encoderlab.objectives.vocabulary import Vocabulary


@dataclass(frozen=True, kw_only=True)
class HybridSettings(Settings):
    """Settings of :class:`Hybrid`.

    Args:
        masking: what is hidden in the masked rows.
        causal: the share of rows that are read from left to right: 1/16 in the release; 1/2 weighs both losses equally.
        z_loss: adds ``z_loss`` log(Z)^2 to each token's loss, with the denominator Z of its softmax, which keeps logits
            small (Chowdhery et al., 2022, section 5; 1e-4 there). The losses in the metrics are without it.
    """

    kind: Literal["hybrid"] = "hybrid"
    masking: Masking = Masking()
    causal: OpenShare = 0.0625
    z_loss: NonNegative = 0.0

    def build(
        self, model: Model, second: Model | None, vocabulary: Vocabulary, *, seed: int = 0, continued: bool = False
    ) -> Hybrid:
        return Hybrid(model, self, vocabulary)

    def operations(self, model: ModelConfig, second: ModelConfig | None, length: int) -> float:
        predicted = self.causal + (1 - self.causal) * self.masking.mean_share(length)
        return flops.training(model, length, predicted=predicted)


class Hybrid(Objective):
    """Causal rows predict each token from those before it; the other rows predict masked tokens from both sides. In
    both, a token is predicted from the state of the token before it (masked next token prediction), so one network and
    one head serve both.

    The loss is ``(1 - c) mlm + c lm``, each a mean over its own tokens, with the share c of causal rows, as in the
    release (``train_10m.py``, where each device holds rows of one kind). Row n of the run is causal if n c passes a
    whole number, so every batch has its share of causal rows. Special tokens are not predicted. Unlike in masked
    language modelling, the last layer is computed at all places.
    """

    per_token = ("mlm", "lm")

    def __init__(self, model: Model, settings: HybridSettings, vocabulary: Vocabulary) -> None:
        super().__init__()
        encoder, lm = model.config.encoder, model.config.lm
        if not isinstance(model.lm, LMHead) or lm is None or not lm.next_token:
            raise ConfigError(
                "masked and causal rows share an LM head that reads the state of the token before; "
                "set model.lm.next_token=true, in a family with one word table"
            )
        if encoder.causal:
            raise ConfigError("masked rows need attention to both sides; set model.encoder.causal=false")
        if encoder.convolves:
            raise ConfigError(
                "convolutions read later tokens, which causal rows must not see; set encoder.conv and "
                "encoder.stem_conv to null, or choose the objective mlm"
            )
        if model.pair is not None:
            raise ConfigError("causal rows have no summary of a pair of texts; set model.pair to false")
        self.model, self.settings, self.masker = model, settings, Masker(settings.masking, vocabulary)

    def is_causal(self, row: Row) -> bool:
        """Whether the row is read from left to right."""
        share = self.settings.causal
        return math.floor((row.number + 1) * share) > math.floor(row.number * share)

    def make_batch(self, rows: list[Row], *, seed: int) -> Batch:
        causal = [self.is_causal(row) for row in rows]
        hidden = [
            _with_token_before(row, _every_token(row) if left_to_right else masked)
            for row, left_to_right, masked in zip(rows, causal, self.masker.corruptor(rows, seed), strict=True)
        ]
        batch = self.masker.batch(rows, hidden)
        batch.labels["causal"] = torch.tensor(causal)
        return batch

    def counts(self, batch: Batch) -> dict[str, int]:
        return {name: int(_asked(batch, causal=name == "lm").sum()) for name in self.per_token}

    def forward(self, batch: Batch, *, noise: Noise | None = None, memory: Memory = None) -> Losses:
        model, causal, length = self.model, batch.labels["causal"], batch.ids.shape[1]
        visible = None
        if bool(batch.on_host.labels["causal"].any()):
            earlier = torch.ones(length, length, dtype=torch.bool, device=causal.device).tril()
            visible = earlier | ~causal[:, None, None]
        states = model.encoder(batch.ids, doc=batch.documents, segments=batch.segments, visible=visible, noise=noise)
        terms = {}
        for name, weight in (("mlm", 1 - self.settings.causal), ("lm", self.settings.causal)):
            chosen, targets = predicted(batch, partial(_asked, causal=name == "lm"))
            term = lm_term(model, model.token_states(states, chosen, noise), targets, z_loss=self.settings.z_loss)
            terms[name] = replace(term, weight=weight)
        return terms, None


def _asked(batch: Batch, *, causal: bool) -> Tensor:
    """Which slots of ``positions`` (B, T) are predicted places of rows of one kind."""
    return asked(batch) & (batch.labels["causal"] == causal)[:, None]


def _every_token(row: Row) -> Corrupted:
    """The unchanged row, with all its tokens except special ones as targets."""
    positions = np.flatnonzero(~row.special)
    return Corrupted(row.ids, positions, row.ids[positions])


def _with_token_before(row: Row, hidden: Corrupted) -> Corrupted:
    """``hidden`` without the places that have no token of the same document before them."""
    follows = np.append(False, row.doc[1:] == row.doc[:-1])[hidden.positions]
    return replace(hidden, positions=hidden.positions[follows], targets=hidden.targets[follows])
