"""Masked language modelling, with a sentence-pair term if the rows are pairs (Devlin et al., 2019, section 3.1)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from encoderlab.batches.batch import IGNORE, Batch, collate, stack
from encoderlab.batches.corrupt import Corrupted, Corruptor, Masking
from encoderlab.batches.loader import Format
from encoderlab.batches.pack import SegmentPairs
from encoderlab.batches.rows import Row
from encoderlab.config import NonNegative
from encoderlab.errors import ConfigError
from encoderlab.model import Model
from encoderlab.models.base import ModelConfig
from encoderlab.nn.encoder import Chosen
from encoderlab.nn.heads import LMHead
from encoderlab.nn.noise import Noise
from encoderlab.objectives.base import Losses, Memory, Objective, Settings, Term, masked_operations
from encoderlab.objectives.vocabulary import Vocabulary

log = logging.getLogger(__name__)
PAIR_LABELS = ("next_sentence", "sentence_order")


@dataclass(frozen=True, kw_only=True)
class MLMSettings(Settings):
    """Settings of :class:`MLM`.

    Args:
        masking: which tokens are hidden; drawn again for every row of every epoch.
        pair_weight: of the sentence-pair term.
        z_loss: adds ``z_loss`` log(Z)^2 to each token's loss, with the denominator Z of its softmax, which keeps logits
            small (Chowdhery et al., 2022, section 5; 1e-4 there). The losses in the metrics are without it.
    """

    kind: Literal["mlm"] = "mlm"
    masking: Masking = Masking()
    pair_weight: NonNegative = 1.0
    z_loss: NonNegative = 0.0

    def build(
        self, model: Model, second: Model | None, vocabulary: Vocabulary, *, seed: int = 0, continued: bool = False
    ) -> MLM:
        return MLM(model, self, vocabulary)

    def operations(self, model: ModelConfig, second: ModelConfig | None, length: int) -> float:
        return masked_operations(model, length, self.masking.mean_share(length))

    def check(self, model: ModelConfig, format: Format, lengths: Sequence[int]) -> None:
        super().check(model, format, lengths)
        if model.pair and model.mask_decoder:
            raise ConfigError(
                "the pair head reads the last layer, as in fine-tuning, but a mask decoder takes its place in "
                "pretraining; set model.pair to false, or model.mask_decoder to 0"
            )
        if isinstance(format, SegmentPairs) and not model.pair:
            log.info("rows are pairs, but the model has no sentence-pair head: the pair label is not trained")


def require_weight(settings: object, *names: str) -> None:
    """Refuse settings whose weights are all zero.

    Raises:
        ConfigError: all weights are zero.
    """
    if not any(getattr(settings, name) for name in names):
        raise ConfigError(f"all of {', '.join(names)} are 0, which trains nothing; set one of them")


def check_stem(model: Model) -> None:
    """Refuse a stem convolution that no loss reaches.

    The mask decoder reads the last layer's input; with one layer it reads nothing of the first layer's output, where
    the stem is added.

    Raises:
        ConfigError: there is a stem convolution, and nothing trains it.
    """
    if model.mask_positions is not None and model.encoder.stem is not None and model.encoder.depth == 1:
        raise ConfigError(
            "with 1 layer the mask decoder never reads the stem convolution, which would not train; "
            "set layers to at least 2, stem_conv to null, or mask_decoder to 0"
        )


class Masker:
    """Make a batch from rows, with some tokens hidden.

    Labels ``positions`` and ``targets`` (B, T) list the hidden tokens, padded with -1 and -100.
    """

    def __init__(self, masking: Masking, vocabulary: Vocabulary) -> None:
        self.pad = vocabulary.pad
        self.corruptor = Corruptor(
            masking,
            vocab_size=vocabulary.size,
            mask_id=vocabulary.mask,
            special_ids=vocabulary.special,
            counts=vocabulary.counts,
        )

    def __call__(self, rows: list[Row], seed: int) -> Batch:
        return self.batch(rows, self.corruptor(rows, seed))

    def batch(self, rows: list[Row], hidden: list[Corrupted]) -> Batch:
        """The batch that shows ``hidden``, one for each of the ``rows``, and asks for its targets."""
        batch = collate(rows, pad=self.pad, ids=[c.ids for c in hidden])
        batch.labels["positions"] = stack([c.positions for c in hidden], -1)
        batch.labels["targets"] = stack([c.targets for c in hidden], IGNORE)
        return batch


def asked(batch: Batch) -> Tensor:
    """Which slots of the label ``positions`` are predicted tokens and not padding, (B, T)."""
    return batch.labels["positions"] >= 0


def predicted(batch: Batch, mark: Callable[[Batch], Tensor] = asked) -> tuple[Chosen, Tensor]:
    """The places of the predicted tokens that ``mark`` marks (B, T), and their targets (S,)."""
    rows, slots = batch.find(mark)
    chosen = Chosen(batch.labels["positions"].clamp(min=0), rows, slots)
    return chosen, batch.labels["targets"][rows, slots]


def tokens(batch: Batch) -> Chosen:
    """The places of all tokens that are not padding."""
    rows, places = batch.find(lambda known: known.doc >= 0)
    return Chosen.among_all(rows, places, *batch.doc.shape)


def lm_term(model: Model, states: Tensor, targets: Tensor, *, z_loss: float = 0.0) -> Term:
    """Cross-entropy of the LM head at chosen places, from states (S, D); ``z_loss`` is only in the gradient."""
    assert isinstance(model.lm, LMHead)
    loss, hits, _ = model.lm.losses(states, model.words, targets, z_loss=z_loss)
    return Term(loss, len(targets), 1.0, hits)


def token_term(logits: Tensor, targets: Tensor, *, weight: float = 1.0) -> Term:
    """Cross-entropy in nats over logits (S, V), computed in float32."""
    loss = F.cross_entropy(logits.float(), targets, reduction="sum")
    return Term(loss, len(targets), weight, (logits.argmax(-1) == targets).sum())


class MLM(Objective):
    """Predict the hidden tokens of each row, and for pairs whether B belongs to A.

    Terms: ``mlm``, and for pairs the name of the pair label. The LM head runs at hidden places only, and
    :meth:`encoderlab.nn.heads.LMHead.losses` computes product and cross-entropy in one.
    """

    per_token = ("mlm",)

    def __init__(self, model: Model, settings: MLMSettings, vocabulary: Vocabulary) -> None:
        super().__init__()
        if not isinstance(model.lm, LMHead):
            adaptive = model.config.encoder.adaptive is not None
            raise ConfigError(
                "masked language modelling needs an LM head over one word table, and this model has "
                + ("several; set model.encoder.adaptive to null" if adaptive else "no LM head; set model.lm={}")
            )
        if model.config.encoder.causal:
            raise ConfigError(
                "masked language modelling needs attention to both sides; choose the causal objective for this model"
            )
        check_stem(model)
        self.model, self.settings = model, settings
        self.masker = Masker(settings.masking, vocabulary)

    def make_batch(self, rows: list[Row], *, seed: int) -> Batch:
        return self.masker(rows, seed)

    def counts(self, batch: Batch) -> dict[str, int]:
        counts = {"mlm": int(asked(batch).sum())}
        if self.model.pair is not None and (label := pair_label(batch)):
            counts[label] = len(batch)
        return counts

    def forward(self, batch: Batch, *, noise: Noise | None = None, memory: Memory = None) -> Losses:
        model, z_loss = self.model, self.settings.z_loss
        chosen, targets = predicted(batch)
        states = model.encoder(
            batch.ids, doc=batch.documents, segments=batch.segments, noise=noise, depth=model.lm_depth
        )
        label = None if model.pair is None else pair_label(batch)
        if label is None:
            return {"mlm": lm_term(model, model.token_states(states, chosen, noise), targets, z_loss=z_loss)}, None
        size = len(batch)
        first = torch.arange(size, device=targets.device)  # slot 0 also holds the first token of every row
        rows, slots = torch.cat([first, chosen.rows]), torch.cat([torch.zeros_like(first), chosen.slots + 1])
        x = model.token_states(states, Chosen(F.pad(chosen.at, (1, 0)), rows, slots), noise)
        assert model.pair is not None and model.pooler is not None
        logits = model.pair(model.pooler(x[:size]))
        pair = token_term(logits, batch.labels[label], weight=self.settings.pair_weight)
        return {"mlm": lm_term(model, x[size:], targets, z_loss=z_loss), label: pair}, None


def pair_label(batch: Batch) -> str | None:
    """The name of the batch's sentence-pair label, or None."""
    return next((name for name in PAIR_LABELS if name in batch.labels), None)
