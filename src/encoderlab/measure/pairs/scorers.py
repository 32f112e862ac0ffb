"""Scores of sentences by language models of every kind.

A sentence of tokens w_1 ... w_n, without special tokens, is scored by

- ``pll``: sum over i of log p(w_i | all other tokens), each token masked by itself (Salazar et al., 2020);
- ``pll_word``: the same with the later tokens of its word masked too, so that they do not give it away
  (PLL-word-l2r; Kauf and Ivanova, 2023);
- ``log_probability``: sum of log p(w_i | earlier tokens), of left-to-right models, and of masked models whose head
  reads the token before (GPT-BERT), which then see only earlier tokens. Convolutions would read later ones, so models
  with them have no such score;
- ``not_replaced``: sum of log(1 - p(w_i was replaced)), of replaced token detection. It is not a probability of
  the sentence, and comparable only with other detectors.

Permutation models (XLNet) predict through the query stream, which sees all tokens but the masked ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from encoderlab.batches.batch import Batch
from encoderlab.corpus.tokenizer import Encoding, Tokenizer
from encoderlab.errors import ConfigError
from encoderlab.inference import (
    batch_tokens,
    batches,
    evaluating,
    fills_masks,
    first_token,
    reading_apart,
    states_at_masks,
    tokenizer_of,
)
from encoderlab.model import Model
from encoderlab.nn.heads import AdaptiveLMHead
from encoderlab.nn.positions import document_starts

Measure = Literal["pll", "pll_word", "log_probability", "not_replaced"]
Framed = tuple[np.ndarray, np.ndarray]
"""Ids and segments of a row."""
HELD = 4_000_000  # ids of masked rows that exist at once, about
PLACES = 512  # places whose logits over the vocabulary exist at once


class Scorer(Protocol):
    """Scores sentences by one or more measures."""

    @property
    def measures(self) -> tuple[str, ...]: ...

    @property
    def longest(self) -> int | None:
        """The most tokens of a sentence that the model reads; None for any number."""

    def __call__(self, sentences: Sequence[Encoding]) -> np.ndarray:
        """(n,) sentences -> (n, measures) float64. Equal tokens have equal scores, to the last bit."""


def scorers_of(model: Model, generator: Model | None = None, *, official: bool = False) -> list[Scorer]:
    """The scorers that fit a model, the usual measure first. ``generator`` is the second network of replaced token
    detection. ``official``: only the measure of the BabyLM challenge.

    Raises:
        ConfigError: the model has neither an LM head nor a detection head.
    """
    predictor = generator if generator is not None else model
    scorers: list[Scorer] = []
    if model.config.encoder.causal and model.lm is not None:
        scorers.append(LeftToRight(model))
    elif fills_masks(predictor):
        scorers.append(Masked(predictor, ("pll",) if official else ("pll", "pll_word")))
        if predictor.config.reads_both_ways and not official:
            scorers.append(LeftToRight(predictor))
    if model.rtd is not None and not (official and scorers):
        scorers.append(Detector(model))
    if not scorers:
        raise ConfigError(
            f"a model of family {model.config.family} without LM head or detection head cannot score sentences; "
            "give a pretrained model"
        )
    return scorers


def scored(sentence: Encoding) -> np.ndarray:
    """Which tokens count, (n,) bool: those with characters of the sentence."""
    return sentence.offsets[:, 1] > 0


def word_ends(sentence: Encoding) -> np.ndarray:
    """One past the last token of the word of each token, (n,)."""
    starts = np.append(np.flatnonzero(sentence.word_starts), len(sentence))
    return starts[np.searchsorted(starts, np.arange(len(sentence)), side="right")]


@dataclass(frozen=True, slots=True)
class _Query:
    """A row with masks: log p of ``target`` at ``place`` counts for ``measure`` of ``sentence``."""

    row: int
    target: int
    sentence: int
    measure: int


class _OnFramedRows:
    """A scorer that reads whole sentences between special tokens."""

    def __init__(self, model: Model) -> None:
        self.model = reading_apart(model)
        self.tokenizer = tokenizer_of(model)

    @property
    def longest(self) -> int | None:
        longest = self._longest_row
        return None if longest is None else longest - _frame_size(self.tokenizer)

    @property
    def _longest_row(self) -> int | None:
        return self.model.config.encoder.max_length


class Masked(_OnFramedRows):
    """Pseudo-log-likelihoods of masked and of permutation models.

    One row per masked place, computed once for all sentences and measures that need it: the two sentences of a pair
    share the row in which the word that distinguishes them is masked. Rows of one length share a batch, so there is
    hardly any padding; the last layer is computed only at the masked places.
    """

    def __init__(self, model: Model, measures: tuple[Measure, ...] = ("pll", "pll_word")) -> None:
        super().__init__(model)
        self.measures = measures

    def __call__(self, sentences: Sequence[Encoding]) -> np.ndarray:
        distinct, back = _distinct(sentences)
        before = np.cumsum([len(sentence) ** 2 for sentence in distinct]) // HELD  # a row for each token
        parts = np.split(np.arange(len(distinct)), np.flatnonzero(np.diff(before)) + 1)
        return np.concatenate([self._scores([distinct[place] for place in part]) for part in parts])[back]

    @property
    def _longest_row(self) -> int | None:
        return self.model.config.longest_masked

    @torch.inference_mode()
    def _scores(self, distinct: Sequence[Encoding]) -> np.ndarray:
        rows, places, queries = self._rows(distinct)
        probabilities = np.empty(len(queries))
        asked: list[list[int]] = [[] for _ in rows]
        for number, query in enumerate(queries):
            asked[query.row].append(number)
        with evaluating(self.model):
            for batch, at in self._batches(rows, places):
                assert batch.on_host.rows is not None
                states = states_at_masks(self.model, batch, at)[:, 0]
                pairs = [(place, n) for place, row in enumerate(batch.on_host.rows.tolist()) for n in asked[row]]
                of_row, numbers = (np.array(part, np.int64) for part in zip(*pairs, strict=True))
                targets = np.array([queries[number].target for number in numbers], np.int64)
                probabilities[numbers] = _log_probabilities(self.model, states, of_row, targets)
        out = np.zeros((len(distinct), len(self.measures)))
        where = np.array([(query.sentence, query.measure) for query in queries], np.int64).reshape(-1, 2)
        np.add.at(out, (where[:, 0], where[:, 1]), probabilities)
        return out

    def _rows(self, sentences: Sequence[Encoding]) -> tuple[list[Framed], list[int], list[_Query]]:
        """Framed rows with masks (ids, segments), the masked place of each, and the queries."""
        tokenizer, mask = self.tokenizer, self.tokenizer.special.mask
        known: dict[tuple[int, bytes], int] = {}
        rows: list[Framed] = []
        places: list[int] = []
        queries: list[_Query] = []
        for number, sentence in enumerate(sentences):
            framed, segments, start = _framed(tokenizer, sentence)
            ends = word_ends(sentence)
            for place in np.flatnonzero(scored(sentence)).tolist():
                for measure, name in enumerate(self.measures):
                    stop = int(ends[place]) if name == "pll_word" else place + 1
                    ids = framed.copy()
                    ids[start + place : start + stop] = mask
                    key = (start + place, ids.tobytes())
                    row = known.setdefault(key, len(rows))
                    if row == len(rows):
                        rows.append((ids, segments))
                        places.append(start + place)
                    queries.append(_Query(row, int(sentence.ids[place]), number, measure))
        return rows, places, queries

    def _batches(self, rows: Sequence[Framed], places: Sequence[int]) -> Iterator[tuple[Batch, Tensor]]:
        """Batches on the model's device, and the masked place (B, 1) of each row."""
        device = next(self.model.parameters()).device
        for batch in batches(self.tokenizer, rows, batch_tokens(device)):
            assert batch.rows is not None
            at = torch.tensor([places[row] for row in batch.rows.tolist()])[:, None]
            yield batch.to(device), (at + _padding_before(self.tokenizer, batch)).to(device)


class LeftToRight:
    """Sums of log probabilities of the next token.

    The first token is predicted from the token before a text in training (:func:`encoderlab.inference.first_token`).
    """

    measures: tuple[Measure, ...] = ("log_probability",)

    def __init__(self, model: Model) -> None:
        self.model = model
        self.tokenizer = tokenizer_of(model)
        self.start = first_token(model)

    @property
    def longest(self) -> int | None:
        return self.model.config.encoder.max_length

    @torch.inference_mode()
    def __call__(self, sentences: Sequence[Encoding]) -> np.ndarray:
        distinct, back = _distinct(sentences)
        out = np.zeros((len(distinct), 1))
        rows = []
        for sentence in distinct:  # the last token is only a target
            ids = np.append(self.start, sentence.ids[:-1]).astype(np.int64)
            rows.append((ids, np.zeros(len(ids), np.int8)))
        device = next(self.model.parameters()).device
        with evaluating(self.model):
            for batch in batches(self.tokenizer, rows, batch_tokens(device)):
                assert batch.rows is not None
                numbers = batch.rows.numpy()
                real = batch.doc >= 0
                batch = batch.to(device)
                visible = None  # of a model that is causal anyway
                if not self.model.config.encoder.causal:
                    length = batch.ids.shape[1]
                    visible = torch.ones(1, length, length, dtype=torch.bool, device=device).tril()
                states = self.model.encoder(
                    batch.ids, doc=batch.documents, segments=batch.segments, visible=visible
                ).last
                of_row, _ = (index.numpy() for index in real.nonzero(as_tuple=True))
                targets = np.concatenate([distinct[number].ids for number in numbers]).astype(np.int64)
                counted = np.concatenate([scored(distinct[number]) for number in numbers])
                scores = _log_probabilities(self.model, states[real.to(device)], np.arange(len(targets)), targets)
                np.add.at(out[:, 0], numbers[of_row[counted]], scores[counted])
        return out[back]


class Detector(_OnFramedRows):
    """Sums of log(1 - p replaced), of discriminators."""

    measures: tuple[Measure, ...] = ("not_replaced",)

    @torch.inference_mode()
    def __call__(self, sentences: Sequence[Encoding]) -> np.ndarray:
        model, tokenizer = self.model, self.tokenizer
        assert model.rtd is not None
        distinct, back = _distinct(sentences)
        out = np.zeros((len(distinct), 1))
        rows, marks = [], []
        for sentence in distinct:
            ids, segments, start = _framed(tokenizer, sentence)
            rows.append((ids, segments))
            marks.append(start + np.flatnonzero(scored(sentence)))
        device = next(model.parameters()).device
        with evaluating(model):
            for batch in batches(tokenizer, rows, batch_tokens(device)):
                assert batch.rows is not None
                numbers = batch.rows.numpy()
                shift = _padding_before(tokenizer, batch).squeeze(1).numpy()
                of_row = np.repeat(np.arange(len(numbers)), [len(marks[number]) for number in numbers])
                places = np.concatenate([marks[n] + s for n, s in zip(numbers, shift, strict=True)])
                batch = batch.to(device)
                last = model.encoder(batch.ids, doc=batch.documents, segments=batch.segments).last
                at = torch.from_numpy(of_row).to(device), torch.from_numpy(places).to(device)
                first = None
                if model.rtd.norm is not None:
                    first = last[at[0], document_starts(batch.doc)[at]]
                scores = F.logsigmoid(-model.rtd(last[at], first).float()).double().cpu().numpy()
                np.add.at(out[:, 0], numbers[of_row], scores)
        return out[back]


def _frame_size(tokenizer: Tokenizer) -> int:
    """Number of special tokens around one text."""
    return tokenizer.spans(1, max_length=8).length - 1


def _framed(tokenizer: Tokenizer, sentence: Encoding) -> tuple[np.ndarray, np.ndarray, int]:
    """The whole sentence with special tokens: ids, segments, and the place of its first token."""
    length = len(sentence) + _frame_size(tokenizer)
    ids, segments = tokenizer.frame(sentence.ids, max_length=length)
    return ids, segments, tokenizer.spans(len(sentence), max_length=length).a_start


def _padding_before(tokenizer: Tokenizer, batch: Batch) -> Tensor:
    """Number of padding tokens before each row's own tokens, (B, 1)."""
    padding = (batch.doc < 0).sum(1, keepdim=True)
    return padding if tokenizer.padding_side == "left" else torch.zeros_like(padding)


def _distinct(sentences: Sequence[Encoding]) -> tuple[list[Encoding], np.ndarray]:
    """The different sentences by their tokens, and the index of each sentence among them, (n,)."""
    known: dict[bytes, int] = {}
    back = np.array([known.setdefault(sentence.ids.tobytes(), len(known)) for sentence in sentences], np.int64)
    _, first = np.unique(back, return_index=True)
    return [sentences[place] for place in first], back


def _log_probabilities(model: Model, states: Tensor, rows: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """log p of ``targets`` (n,) from states (S, D) at ``rows`` (n,), in ascending order: (n,) float64, in nats."""
    device = states.device
    if isinstance(model.lm, AdaptiveLMHead):
        classes = torch.from_numpy(targets).to(device)
        losses = model.lm.losses(states[torch.from_numpy(rows).to(device)], classes, model.encoder.embeddings)
        return -losses.double().cpu().numpy()
    assert model.lm is not None
    parts = []
    for start in range(0, len(states), PLACES):
        first, last = np.searchsorted(rows, [start, start + PLACES])
        logits = model.lm(states[start : start + PLACES], model.words).float()
        own = torch.from_numpy(rows[first:last] - start).to(device)
        classes = torch.from_numpy(targets[first:last]).to(device)
        parts.append((logits[own, classes] - logits.logsumexp(-1)[own]).double().cpu())
    return torch.cat(parts).numpy()
