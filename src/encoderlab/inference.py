"""Use a model on texts: fill masks and encode.

Texts of similar length share a batch, so little padding is computed.
"""

from __future__ import annotations

import functools
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn

from encoderlab.batches.batch import Batch, stack
from encoderlab.corpus.tokenizer import Tokenizer
from encoderlab.errors import ConfigError
from encoderlab.models.convbert import masking_padding
from encoderlab.nn import int8, kernels
from encoderlab.nn.encoder import Chosen
from encoderlab.nn.heads import LMHead
from encoderlab.nn.packed import pack

if TYPE_CHECKING:
    from encoderlab.model import Model

log = logging.getLogger(__name__)

Pooling = Literal["mean", "first", "last"]
Precision = Literal["fp32", "int8"]
"""Of the products of layers: single precision, or 8 bits (:mod:`encoderlab.nn.int8`)."""
_CHINESE = "[\u3000-\u303f\u3400-\u9fff\uff00-\uffef]"  # characters and punctuation
_CHINESE_GAP = re.compile(f"(?<={_CHINESE}) (?={_CHINESE})")
LONGEST = 512
PART = 8192  # texts in memory at a time
BATCH_TOKENS = 4096  # per forward pass; enough to keep a processor busy, few enough for its cache
GPU_BATCH_TOKENS = 16384  # with fewer, launching kernels takes longer than the GPU's work


def usual_device() -> torch.device:
    """A GPU if there is one, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def placed(model: Model, precision: Precision = "fp32") -> Model:
    """``model`` ready to predict: on a GPU if there is one; on a CPU with its layers' matrices packed, or in 8 bits.

    The matrices are replaced in place, so the model cannot be trained any more, and in int8 not saved.

    Raises:
        ConfigError: int8, and there is a GPU.
    """
    device = usual_device()
    if precision == "fp32":
        model = reading_apart(model).to(device)
        pack(model.encoder.blocks)
        return model
    if device.type != "cpu":
        raise ConfigError(
            "--precision int8 computes on the processor, and this machine has a GPU, which is faster; leave it out, or "
            "hide the GPU with CUDA_VISIBLE_DEVICES="
        )
    if not int8.fast():
        _warn_of_slow_int8()
    model = reading_apart(model)
    int8.quantise(model.encoder.blocks)
    return model


@functools.cache
def _warn_of_slow_int8() -> None:
    """Once in a process: ``--check`` and a pair of networks place several models."""
    log.warning(
        "int8 saves memory here but no time: this processor has no instructions for products of 8 bits (VNNI), or "
        "there is no C++ compiler for the kernels"
    )


def device_name(device: torch.device) -> str:
    """The device's description in measurements."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"{torch.get_num_threads()} threads"


@dataclass(frozen=True)
class Guess:
    """One candidate for a masked place: probability, token id, token, and the text with the token filled in."""

    score: float
    token: int
    token_str: str
    sequence: str


@contextmanager
def evaluating(*models: nn.Module) -> Iterator[None]:
    """A context in which models run without dropout; afterwards every part is in its earlier mode."""
    training = [part for model in models for part in model.modules() if part.training]
    for model in models:
        model.eval()
    try:
        yield
    finally:
        for part in training:
            part.training = True


def reading_apart(model: Model) -> Model:
    """``model``, with the same weights, with convolutions that stop at the end of a text."""
    config = masking_padding(model.config)
    return model if config == model.config else model.with_config(config)


def tokenizer_of(model: Model) -> Tokenizer:
    """The model's tokenizer.

    Raises:
        ConfigError: the model has none.
    """
    if model.tokenizer is None:
        raise ConfigError(
            "the model has no tokenizer; load it from a folder with tokenizer.json, or set model.tokenizer"
        )
    return model.tokenizer


def batch_tokens(device: torch.device) -> int:
    """Number of tokens per forward pass on ``device``."""
    return BATCH_TOKENS if device.type == "cpu" else GPU_BATCH_TOKENS


def by_length(lengths: Sequence[int], budget: int = BATCH_TOKENS) -> Iterator[list[int]]:
    """Places of sequences in batches of at most ``budget`` tokens with padding, longest first."""
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    while order:
        count = max(1, budget // max(1, lengths[order[0]]))
        yield order[:count]
        order = order[count:]


def batches(
    tokenizer: Tokenizer, framed: Sequence[tuple[np.ndarray, np.ndarray]], budget: int = BATCH_TOKENS
) -> Iterator[Batch]:
    """Framed texts (ids, segments) in batches of at most ``budget`` tokens, longest first.

    ``rows`` of a batch are the indices of its texts.
    """
    side = tokenizer.padding_side
    for index in by_length([len(ids) for ids, _ in framed], budget):
        ids = [framed[i][0] for i in index]
        yield Batch(
            ids=stack(ids, tokenizer.special.pad, side=side),
            doc=stack([np.zeros(len(x), np.int32) for x in ids], -1, side=side, dtype=np.int32),
            segments=stack([framed[i][1] for i in index], 0, side=side),
            rows=torch.tensor(index),
        )


def limit(model: Model) -> int:
    """The longest row for the model, special tokens included: 512 tokens, or its number of positions if that is
    smaller.

    Attention over longer texts would need memory that grows with the square of their length.
    """
    return min(LONGEST, model.config.encoder.max_length or LONGEST)


def limit_of_masks(model: Model) -> int:
    """:func:`limit` for a row in which masked tokens are predicted."""
    return min(LONGEST, model.config.longest_masked or LONGEST)


def first_token(model: Model) -> int:
    """The token from which a model predicts the first one of a text left to right.

    A left-to-right model was trained on documents that follow each other, so it is the end-of-document token if the
    tokenizer has one; otherwise, and for a model trained on framed rows, the classification token.
    """
    special = tokenizer_of(model).special
    return special.cls if special.eod is None or not model.config.encoder.causal else special.eod


def list_of_texts(texts: Iterable[str], what: str) -> list[str]:
    """``texts`` as a list, from any series or array of strings; ``what`` got them, for messages.

    Raises:
        ConfigError: one text instead of several, a table, no texts at all, or an entry that is not a text.
    """
    if isinstance(texts, str):
        raise ConfigError(f"{what} got one text, expected a list of texts; write {what}([text])")
    if isinstance(texts, Mapping) or hasattr(texts, "columns") or not isinstance(texts, Iterable):
        kind = type(texts).__name__
        raise ConfigError(f"{what} got {kind}, expected a list of texts; give one, such as a column of a table")
    listed = list(texts)
    for number, text in enumerate(listed):
        if not isinstance(text, str):
            raise ConfigError(
                f"{what} got {text!r:.40} as text {number} of {len(listed)}, expected a string; convert it, or leave "
                "it out"
            )
    return listed


def encode(model: Model, texts: Iterable[str], *, pooling: Pooling = "mean") -> np.ndarray:
    """One vector per text, (n, D) float32.

    ``pooling``: the mean over the tokens of the last layer, or the vector of the first or the last token. A text with
    more than 512 tokens, special ones included, or more than the model has positions, is cut to its beginning; a
    warning gives the number of cut texts.

    Freed memory stays with the process from then on, as in training (``nn.kernels.keep_memory`` changes the settings of
    the C library's ``malloc``): the next batch is faster, and the process does not shrink.

    Raises:
        ConfigError: something else than texts (:func:`list_of_texts`), an unknown ``pooling``, or a model without
            tokenizer.
    """
    texts = list_of_texts(texts, "encode")
    out = np.empty((len(texts), model.config.encoder.width), np.float32)
    done = 0
    for vectors in encode_parts(model, texts, pooling=pooling):
        out[done : done + len(vectors)] = vectors
        done += len(vectors)
    return out


@torch.inference_mode()
def encode_parts(
    model: Model,
    texts: Iterable[str],
    *,
    pooling: Pooling = "mean",
    normalize: bool = False,
    longest: int | None = None,
    prompt: str = "",
) -> Iterator[np.ndarray]:
    """As :func:`encode`, for more texts than fit into memory: the vectors of :data:`PART` texts at a time.

    ``normalize``: scaled to length 1; ``longest``: read at most so many tokens of a text, special ones included;
    ``prompt`` is put before each text.
    """
    if pooling not in get_args(Pooling):
        raise ConfigError(f"pooling {pooling!r} is unknown; choose mean, first or last")
    kernels.keep_memory()
    tokenizer = tokenizer_of(model)
    model = reading_apart(model)
    longest = limit(model) if longest is None else min(longest, limit(model))
    device = next(model.parameters()).device
    room = tokenizer.spans(longest, max_length=longest).a
    left, cut, number, wrong = iter(texts), 0, 0, 0
    while part := list(islice(left, PART)):
        encodings = tokenizer.encode_batch([prompt + text for text in part], limit=room)
        cut += sum(len(encoding) > room for encoding in encodings)
        number += len(part)
        framed = [tokenizer.frame(encoding.ids, max_length=longest) for encoding in encodings]
        vectors = np.empty((len(framed), model.config.encoder.width), np.float32)
        with evaluating(model):
            for batch in batches(tokenizer, framed, batch_tokens(device)):
                batch = batch.to(device)
                last = model.encoder(batch.ids, doc=batch.documents, segments=batch.segments).last.float()
                assert batch.on_host.rows is not None
                made = pooled(last, batch.doc >= 0, pooling)
                made = torch.nn.functional.normalize(made, dim=-1) if normalize else made
                vectors[batch.on_host.rows.numpy()] = made.cpu().numpy()
        wrong += int((~np.isfinite(vectors)).any(1).sum())
        yield vectors
    if wrong:
        log.warning("%d of %d vectors are not finite: they mean nothing; use another checkpoint", wrong, number)
    if cut:
        log.warning("%d of %d texts are longer than %d tokens: only their beginning is used", cut, number, room)


def pooled(states: Tensor, real: Tensor, pooling: Pooling) -> Tensor:
    """The vectors (B, D) of rows from states (B, L, D); ``real`` (B, L) bool marks tokens that are not padding."""
    if pooling == "mean":
        return (states * real[..., None]).sum(1) / real.sum(1, keepdim=True)
    places = torch.arange(real.shape[1], device=real.device)
    place = torch.where(real, places, -1).amax(1) if pooling == "last" else real.long().argmax(1)
    return states[torch.arange(len(states), device=states.device), place]


def fills_masks(model: Model) -> bool:
    """Whether a model predicts masked tokens: it has an LM head over the vocabulary, and sees both sides."""
    return isinstance(model.lm, LMHead) and not model.config.encoder.causal


def check_fills_masks(model: Model) -> None:
    """Refuse a model that predicts no masked tokens.

    Raises:
        ConfigError: see :func:`fills_masks`.
    """
    if model.config.encoder.causal:
        raise ConfigError(
            "a left-to-right model cannot fill masks, because it does not see what follows; use a masked model"
        )
    if not fills_masks(model):
        raise ConfigError(
            f"a model of family {model.config.family} without LM head cannot fill masks; use a pretrained model "
            "(of a discriminator, its generator)"
        )


@torch.inference_mode()
def fill_mask(
    model: Model,
    text: str,
    *,
    top: int = 5,
    targets: Sequence[str] | None = None,
    probabilities_of: Callable[[Model, Batch, Tensor], Tensor] | None = None,
) -> list[list[Guess]]:
    """The ``top`` candidates for every mask token in ``text``, best first, one list per mask.

    With ``targets``, each a single token, only these are candidates, each once; their probabilities are those among all
    tokens. ``probabilities_of`` (model, batch, places (S,)) -> (S, V) replaces the model's own computation.

    Every token of the vocabulary is a candidate, special ones too, as in the ``transformers`` pipeline. Filled texts
    are more readable than there: special tokens and other masks are written out, Chinese characters have no spaces
    between them. If a text is too long for the model, only the part around the masks is read, with a warning.

    Raises:
        ConfigError: the model predicts no masked tokens, the text has no mask token or masks too far apart, ``top`` is
            below 1, or ``targets`` is not a list of words of one token each.
    """
    if not isinstance(top, int) or top < 1:
        raise ConfigError(f"top {top}, expected at least 1 guess for a mask")
    if targets is not None and (isinstance(targets, str) or not targets):
        raise ConfigError(f"targets {targets!r:.40}, expected a list of words")
    tokenizer = tokenizer_of(model)
    check_fills_masks(model)
    if not isinstance(text, str):
        raise ConfigError(f"fill_mask got {type(text).__name__}, expected one text; call it for each")
    mask = tokenizer.special.mask
    encoding, longest = tokenizer.encode(text), limit_of_masks(model)
    masked = np.flatnonzero(np.asarray(encoding.ids) == mask)
    if not len(masked):
        raise ConfigError(f"{text!r:.80} has no {tokenizer.token(mask)}; write it where a word is to be predicted")
    inside = tokenizer.spans(len(encoding), max_length=longest)
    begin = _window(masked, len(encoding), inside.a)
    ids, segments = tokenizer.frame(encoding.ids[begin : begin + inside.a], max_length=longest)
    own = slice(inside.a_start, inside.a_start + inside.a)
    places = np.flatnonzero(ids == mask)
    batch = next(batches(tokenizer, [(ids, segments)])).to(next(model.parameters()).device)
    at = torch.as_tensor(places, device=batch.ids.device)
    with evaluating(model):
        probabilities = (probabilities_of or _token_probabilities)(model, batch, at)
    known = probabilities[:, : tokenizer.vocab_size]  # a word table may be padded to a round number of rows
    if targets is None:
        scores, tokens = known.topk(min(top, known.shape[1]))
    else:
        words = dict.fromkeys(single_token(tokenizer, target) for target in targets)
        allowed = torch.tensor([*words], device=known.device)
        scores, order = known[:, allowed].topk(min(top, len(allowed)))
        tokens = allowed[order]

    def guesses(place: int, tokens: list[int], scores: list[float]) -> list[Guess]:
        filled = _filler(tokenizer, ids[own], place - own.start)
        words = [tokenizer.decode([token], skip_special=False).strip() for token in tokens]
        return [
            Guess(score, token, word or tokenizer.token(token), filled(token))
            for token, score, word in zip(tokens, scores, words, strict=True)
        ]

    return [
        guesses(int(place), of_place, their_scores)
        for place, of_place, their_scores in zip(places, tokens.tolist(), scores.tolist(), strict=True)
    ]


NEAR = 8  # tokens on each side of a mask whose text may depend on the token in its place: the bytes of one character


def _filler(tokenizer: Tokenizer, ids: np.ndarray, place: int) -> Callable[[int], str]:
    """The text of ``ids`` as a function of the token at ``place``, equal to the text that is decoded as a whole.

    Only the tokens near the place are decoded for each; the text before and after them is decoded once.
    """

    def decoded(part: np.ndarray) -> str:
        return tokenizer.decode(part, skip_special=False)

    def is_byte(index: int) -> bool:  # those of byte fallback are decoded run by run
        return tokenizer.token(int(ids[index])).startswith("<0x")

    left, right = max(0, place - NEAR), min(len(ids), place + 1 + NEAR)
    while left > 0 and is_byte(left):
        left -= 1
    while right < len(ids) and is_byte(right - 1):
        right += 1
    # The near tokens read alone differ from the same tokens inside the text only at their two ends.
    before, near_before = decoded(ids[: place + 1]), decoded(ids[left : place + 1])
    after, near_after = decoded(ids).removeprefix(before), decoded(ids[left:right]).removeprefix(near_before)
    same_before = len(os.path.commonprefix([before[::-1], near_before[::-1]]))
    same_after = len(os.path.commonprefix([after, near_after]))
    head, tail = before[: len(before) - same_before], after[same_after:]
    extra_left, extra_right = len(near_before) - same_before, len(near_after) - same_after

    def filled(token: int) -> str:
        near = decoded(np.concatenate([ids[left:place], [token], ids[place + 1 : right]]))
        whole = head + near[extra_left : len(near) - extra_right] + tail
        # WordPiece leaves spaces between Chinese characters.
        return _CHINESE_GAP.sub("", whole).strip()

    return filled


def single_token(tokenizer: Tokenizer, target: str) -> int:
    """The token that a word is; byte-level BPE and Unigram have words with a space before them."""
    for written in (f" {target.strip()}", target):
        ids = tokenizer.encode(written).ids
        if len(ids) == 1 and ids[0] != tokenizer.special.unk:
            return int(ids[0])
    raise ConfigError(f"target {target!r} is not one token of this model; give a word that is")


def _window(masked: np.ndarray, length: int, room: int) -> int:
    """The first of the ``room`` tokens to read from ``length``: the beginning if it has all masks, else around the
    masks.
    """
    first, last = int(masked[0]), int(masked[-1])
    if last - first >= room:
        raise ConfigError(
            f"the masks are {last - first} tokens apart, expected fewer than {room}; give a separate text for each"
        )
    begin = 0 if last < room else min((first + last + 1 - room) // 2, length - room)
    if length > room:
        log.warning("the text has %d tokens: only tokens %d to %d are used", length, begin + 1, begin + room)
    return begin


def _token_probabilities(model: Model, batch: Batch, places: Tensor) -> Tensor:
    """Probabilities (S, V) at ``places`` of the one row of ``batch``."""
    assert isinstance(model.lm, LMHead)
    return model.lm(states_at_masks(model, batch, places[None])[0], model.words).float().softmax(-1)


def states_at_masks(model: Model, batch: Batch, at: Tensor) -> Tensor:
    """The states that the LM head reads at masked places ``at`` (B, T) of a batch: (B, T, D).

    A permutation model predicts from its query stream; neither the content stream nor the queries see mask tokens.
    """
    depth = model.encoder.depth
    if model.mask_vector is None:
        states = model.encoder(batch.ids, doc=batch.documents, segments=batch.segments, depth=model.lm_depth)
        rows, slots = (index.flatten() for index in torch.ones_like(at).nonzero(as_tuple=True))
        return model.token_states(states, Chosen(at, rows, slots)).unflatten(0, at.shape)
    hidden = batch.ids == tokenizer_of(model).special.mask
    itself = torch.eye(batch.ids.shape[1], dtype=torch.bool, device=hidden.device)
    states = model.encoder(
        batch.ids,
        doc=batch.documents,
        segments=batch.segments,
        visible=~hidden[:, None, :] | itself,
        depth=depth - 1,
        keep_keyed=True,
    )
    seen = (~hidden & (batch.doc >= 0))[:, None, :].expand(-1, at.shape[1], -1)
    queries = model.mask_vector.expand(*at.shape, -1)
    return model.encoder.query_stream(states, queries, at, layers=range(depth), visible=seen)
