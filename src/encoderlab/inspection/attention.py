"""The weights with which every head of a model reads a text: attention probabilities and convolution kernels."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from encoderlab.corpus.tokenizer import Encoding
from encoderlab.errors import ConfigError
from encoderlab.inference import evaluating, first_token, limit, list_of_texts, reading_apart, tokenizer_of
from encoderlab.nn.positions import RelativeShift

if TYPE_CHECKING:
    from encoderlab.model import Model

log = logging.getLogger(__name__)

NO_WORD = -1


@dataclass(frozen=True, kw_only=True)
class Attended:
    """One text as a model read it; M tokens, special ones included; the last L are the queries.

    Attributes:
        tokens: the M tokens.
        words: (M,), the number of the word that each token belongs to, -1 for special tokens.
        memory: M - L, tokens that were read before the row and are only keys (Transformer-XL).
        layers: of each layer (H, L, M) float32: the weight of key j for query i in head h. Attention heads come
            first; their rows add up to 1. Convolution heads follow: their kernels, laid out over the tokens.
    """

    tokens: tuple[str, ...]
    words: np.ndarray
    memory: int
    layers: tuple[np.ndarray, ...]


def attention(model: Model, texts: Iterable[str], *, memory: int = 0) -> list[Attended]:
    """What every head reads in each of ``texts``, in double the time and H times the memory of reading them: see
    :func:`each_attention`.
    """
    return list(each_attention(model, list_of_texts(texts, "attention"), memory=memory))


@torch.inference_mode()
def each_attention(model: Model, texts: Sequence[str], *, memory: int = 0) -> Iterator[Attended]:
    """What every head reads in each of ``texts``, one after the other.

    Args:
        memory: number of first tokens that are read as memory; for left-to-right models with relative positions.

    Raises:
        ConfigError: an empty text, a model without tokenizer, or memory for a model that has none.
    """
    tokenizer = tokenizer_of(model)
    config = model.config.encoder
    if memory < 0 or memory and not (config.causal and isinstance(config.position, RelativeShift)):
        raise ConfigError(
            f"memory {memory}: only left-to-right models with relative positions have memory; set it to 0"
        )
    longest, model = limit(model), reading_apart(model)
    device = next(model.parameters()).device
    cut = 0
    for number, text in enumerate(texts):
        encoding = tokenizer.encode(text)
        if not len(encoding):
            raise ConfigError(f"text {number + 1} has no token; give a text with words")
        ids, segments, own = _read(model, encoding, longest + memory)
        cut += len(encoding) > own.stop - own.start
        words = np.full(len(ids), NO_WORD)
        words[own] = _words(text, encoding)[: own.stop - own.start]
        if memory >= len(ids):
            raise ConfigError(
                f"memory of {memory} tokens takes all of text {number + 1} ({len(ids)}); give a longer text"
            )
        row = torch.as_tensor(np.asarray(ids, np.int64), device=device)[None]
        kinds = torch.as_tensor(np.asarray(segments, np.int64), device=device)[None]
        with evaluating(model):
            layers = _weights(model, row, kinds, memory)
        yield Attended(tokens=tuple(tokenizer.token(int(i)) for i in ids), words=words, memory=memory, layers=layers)
    if cut:
        log.warning("%d of %d texts are longer than %d tokens: only their beginning is used", cut, len(texts), longest)


def _read(model: Model, encoding: Encoding, longest: int) -> tuple[np.ndarray, np.ndarray, slice]:
    """Ids and segments of a text as the model was trained to read it, and the place of its tokens.

    A left-to-right model without a fine-tuned head knows no special tokens around a text, but the one before it.
    """
    tokenizer = tokenizer_of(model)
    if model.config.encoder.causal and model.task is None:
        ids = np.append(first_token(model), encoding.ids[: longest - 1]).astype(np.int64)
        return ids, np.zeros(len(ids), np.int8), slice(1, len(ids))
    spans = tokenizer.spans(len(encoding), max_length=longest)
    ids, segments = tokenizer.frame(encoding.ids[: spans.a], max_length=longest)
    return ids, segments, slice(spans.a_start, spans.a_start + spans.a)


def _words(text: str, encoding: Encoding) -> np.ndarray:
    """The number of the word (between white space) that each token starts in; in text without spaces, the tokenizer's
    words (Chinese characters are words).
    """
    if " " not in text.strip():
        return np.cumsum(encoding.word_starts) - 1
    starts = [match.start() for match in re.finditer(r"\S+", text)]
    firsts = encoding.offsets[:, 0] + [len(text[a:b]) - len(text[a:b].lstrip()) for a, b in encoding.offsets]
    return np.maximum(np.searchsorted(starts, firsts, side="right") - 1, 0)


def _weights(model: Model, ids: Tensor, segments: Tensor, memory: int) -> tuple[np.ndarray, ...]:
    """The weights of every layer for one row (1, M)."""
    encoder = model.encoder
    kept = None
    if memory:
        kept = encoder(ids[:, :memory], segments=segments[:, :memory]).layers[:-1]
    states = encoder(ids[:, memory:], segments=segments[:, memory:], memory=kept)
    return tuple(
        encoder.attention_weights(states, layer, kept)[0].float().cpu().numpy() for layer in range(encoder.depth)
    )
