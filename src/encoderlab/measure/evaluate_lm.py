"""Left-to-right language models by the protocol of Transformer-XL: perplexity, bits per byte, effective context.

The text is one line of tokens, cut into parallel streams; windows of a stream follow each other and carry a memory of
states, longer than in training; losses are added up, so that a short last window weighs by its tokens (Dai et al.,
2019, section 4.1, and the evaluation scripts of the release).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from encoderlab.batches.loader import Loader
from encoderlab.batches.rows import Documents
from encoderlab.batches.streams import ContiguousStreams, TokenLine
from encoderlab.errors import ConfigError, DataError
from encoderlab.inference import tokenizer_of
from encoderlab.model import Model
from encoderlab.models.base import resized
from encoderlab.nn.heads import AdaptiveLMHead
from encoderlab.nn.positions import RelativeShift
from encoderlab.objectives.causal import Causal, CausalSettings
from encoderlab.objectives.vocabulary import Vocabulary
from encoderlab.train.corpus_data import row_framing
from encoderlab.train.distributed import World
from encoderlab.train.tally import measure


class MeasuredText(Documents, Protocol):
    """A corpus with the number of bytes of its text."""

    @property
    def num_bytes(self) -> int: ...


@dataclass(frozen=True, kw_only=True)
class LMProtocol:
    """The settings of reading a text.

    Args:
        window: tokens that are read at a time.
        memory: how many earlier states a window sees.
        same_length: each token sees exactly ``memory`` keys, wherever it is in its window.
        clamp: larger distances count as this one; 0 for no limit.
        streams: parts of the text that are read side by side, each starting without memory.
        separator: documents end with a token that is predicted too.
    """

    window: int = 64
    memory: int = 640
    same_length: bool = False
    clamp: int = 0
    streams: int = 8
    separator: bool = True


@dataclass(frozen=True, kw_only=True)
class LMScore:
    """The loss ``nats`` over ``tokens`` predicted tokens, which are ``size`` bytes of text."""

    nats: float
    tokens: int
    size: float

    @property
    def perplexity(self) -> float:
        """Per token; comparable within one tokenizer only."""
        return math.exp(self.nats / self.tokens)

    @property
    def bits_per_token(self) -> float:
        """Bits per character, where tokens are characters."""
        return self.nats / self.tokens / math.log(2)

    @property
    def bits_per_byte(self) -> float:
        """Independent of the tokenizer."""
        return self.nats / self.size / math.log(2)


def evaluate_lm(model: Model, text: MeasuredText, protocol: LMProtocol = LMProtocol()) -> LMScore:
    """The loss of ``model`` on all of ``text``, on the model's device.

    The first token of each stream is given, not predicted, and fewer than ``streams`` tokens at the end are left out.

    Raises:
        ConfigError: the model is not left-to-right, or its positions do not allow memory or clamping.
        DataError: the text is too short for so many streams.
    """
    tokenizer = tokenizer_of(model)
    settings = CausalSettings(memory=protocol.memory, same_length=protocol.same_length)
    objective = Causal(clamped(model, protocol.clamp), settings, Vocabulary.of(tokenizer)).eval()
    batches = Loader(
        text,
        ContiguousStreams(separator=protocol.separator),
        protocol.window,
        framing=row_framing(tokenizer),
        seed=0,
        batch_rows=protocol.streams,
        transform=lambda rows: objective.make_batch(rows, seed=0),
        epochs=1,
    )
    device = next(model.parameters()).device
    total = measure(objective, batches, World(0, 1, device), "fp32")["lm"]
    line = TokenLine.of(text, row_framing(tokenizer), separator=protocol.separator)
    tokens = int(total["count"])
    return LMScore(nats=total["sum"], tokens=tokens, size=text.num_bytes * tokens / line.length)


def clamped(model: Model, clamp: int) -> Model:
    """The model, with the same weights, with distances limited to ``clamp``; 0 leaves it unchanged.

    Raises:
        ConfigError: the model's distances are not sinusoids.
    """
    position = model.config.encoder.position
    if not clamp or isinstance(position, RelativeShift) and position.clamp == clamp:
        return model
    if not isinstance(position, RelativeShift):
        raise ConfigError(
            f"clamp {clamp} limits sinusoidal distances, and this model has {type(position).__name__}; set clamp to 0"
        )
    return model.with_config(resized(model.config, position=replace(position, clamp=clamp)))


# Relative effective context length -----------------------------------------------------------------------------------

STEP = 100  # tokens by which contexts are lengthened
TOKENS_AT_ONCE = 8192  # tokens per batch of positions, each with its own context
Losses = Callable[[int], np.ndarray]
"""Context length -> loss (T,) in nats of each of the same positions, given that many tokens before it."""


def context_losses(model: Model, text: Documents, positions: Sequence[int], *, separator: bool = True) -> Losses:
    """A function from a context length c to the losses of the tokens at ``positions`` of the line, with exactly the c
    tokens before each as context. Costs c tokens a position.

    Raises:
        DataError: a position has fewer than c tokens before it.
    """
    tokenizer = tokenizer_of(model)
    line = TokenLine.of(text, row_framing(tokenizer), separator=separator)
    device = next(model.parameters()).device

    @torch.no_grad()
    def losses(context: int) -> np.ndarray:
        if min(positions) < context:
            raise DataError(
                f"position {min(positions)} has fewer than {context} tokens before it; choose later positions"
            )
        model.eval()
        parts, size = [], max(1, TOKENS_AT_ONCE // context)
        for start in range(0, len(positions), size):
            rows = [line.read(place - context, place + 1).ids for place in positions[start : start + size]]
            ids = torch.from_numpy(np.stack(rows)).to(device)
            last = model.encoder(ids[:, :-1]).last[:, -1]
            parts.append(_losses(model, last, ids[:, -1]).double().cpu())
        return torch.cat(parts).numpy()

    return losses


def relative_effective_context(
    models: Mapping[str, Losses],
    *,
    hardest: float = 0.1,
    most: int = 1000,
    threshold: float = 0.01,
) -> dict[str, int]:
    """The context length of each model beyond which more context no longer helps, relative to a group of models
    (Dai et al., 2019, appendix C).

    With l_i(c, t) the loss of model i at position t given c tokens, and the baseline b(c, t) = min_i l_i(c, t), model i
    gains ``1 - exp(f_i(c, c')) / exp(f_i(c, c))``, where f_i(c, c') is the mean of min(b(c, t), l_i(c', t)) over the
    ``hardest`` share of positions by b(c, t). Its length is the first c, in steps of ``STEP``, at which
    c + STEP gains less than ``threshold``; ``most`` if there is none.
    """
    if not 0 < hardest <= 1:
        raise ConfigError(f"hardest is {hardest}; give a share of the positions above 0 and at most 1")

    @cache
    def losses(name: str, context: int) -> np.ndarray:
        return models[name](context)

    lengths = {}
    for name in models:
        context = STEP
        while context < most:
            baseline = np.min([losses(other, context) for other in models], axis=0)
            chosen = np.argsort(-baseline, kind="stable")[: max(1, round(hardest * len(baseline)))]
            short, long = (
                np.minimum(baseline, losses(name, length))[chosen].mean() for length in (context, context + STEP)
            )
            if 1 - math.exp(long - short) < threshold:
                break
            context += STEP
        lengths[name] = context
    return lengths


def _losses(model: Model, states: Tensor, targets: Tensor) -> Tensor:
    """(S, D), (S,) -> (S,) nats."""
    if isinstance(model.lm, AdaptiveLMHead):
        return model.lm.losses(states, targets, model.encoder.embeddings).float()
    if model.lm is None:
        raise ConfigError("this model has no LM head; give a left-to-right language model")
    return F.cross_entropy(model.lm(states, model.words).float(), targets, reduction="none")
