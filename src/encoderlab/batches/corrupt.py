"""Masking: which tokens of a row are predicted, and what is shown in their place. Pure functions of (row, generator).

A rule is a unit (what is chosen together), a count (how many tokens), and a mix (what a chosen token is replaced by).
The published rules are settings of it:

==================  ==============================================================================================
BERT                ``Masking(most=20)`` at length 128, 77 at 512; whole-word BERT: ``unit=Words()``
RoBERTa             ``Masking(count="stochastic")``; fairseq's own also ``specials=True``
ALBERT, Erlangshen  ``Masking(unit=NGrams(), most=20)``, and without ``most``
ELECTRA, ConvBERT   ``Masking(mask=0.85, random=0)``; the release draws ``unit=Tokens(replacement=True)``
DeBERTa v1, v2      ``Masking(unit=WindowedNGrams())``
DeBERTa v3          ``Masking(unit=WindowedNGrams(longest=1), mask=1, random=0)``
DistilBERT          ``Masking(unit=RareTokens(), count="stochastic")``
SpanBERT            ``Masking(unit=Spans(), draw="unit")``
==================  ==============================================================================================
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from encoderlab.batches.rows import Row
from encoderlab.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """Single tokens, uniformly. ``replacement`` draws a position again and again, as the ELECTRA release does; it is
    then listed (and counts in the loss) as often as it was drawn, and shows [MASK] if one of its draws says so."""

    kind: Literal["tokens"] = "tokens"
    replacement: bool = False


@dataclass(frozen=True, kw_only=True)
class Words:
    """Whole words in random order; one that would exceed the count is skipped (BERT's whole-word masking)."""

    kind: Literal["words"] = "words"


@dataclass(frozen=True, kw_only=True)
class NGrams:
    """Runs of n whole words, n = 1 .. longest with p(n) proportional to 1/n (ALBERT, section 4.1, equation 5;
    Erlangshen).

    Words are visited in random order as starts. An n-gram that would exceed the count is shortened, one that overlaps
    an earlier one is skipped, one that would run over a special token ends before it.
    """

    kind: Literal["ngrams"] = "ngrams"
    longest: int = 3


@dataclass(frozen=True, kw_only=True)
class WindowedNGrams:
    """DeBERTa's rule: one n-gram in each window of n * int(1/rate) words, n as for NGrams, windows from left to right
    until the count is reached. More regular than NGrams; the last tokens of a row are masked less often, since
    1/int(1/rate) is above the rate. ``longest=1`` counts tokens, not words."""

    kind: Literal["windowed_ngrams"] = "windowed_ngrams"
    longest: int = 3


@dataclass(frozen=True, kw_only=True)
class Spans:
    """Runs of whole words, lengths geometric within 1 .. ``longest`` (SpanBERT, Joshi et al. 2020, section 3.1)."""

    kind: Literal["spans"] = "spans"
    success: float = 0.2
    longest: int = 10


@dataclass(frozen=True, kw_only=True)
class RareTokens:
    """Single tokens without replacement, with weights count^-power: rare ones more often (XLM, DistilBERT).

    The original draws over the whole batch; here each row draws its own share, so that a row's masks do not depend on
    its neighbours.
    """

    kind: Literal["rare_tokens"] = "rare_tokens"
    power: float = 0.7


Unit = Tokens | Words | NGrams | WindowedNGrams | Spans | RareTokens


@dataclass(frozen=True, kw_only=True)
class Masking:
    """What is chosen, how much of it, and what is shown there.

    Attributes:
        unit: what is chosen together. rate: share of all tokens of the row, special ones included, that is chosen.
        count: ``"round"``: max(1, round(rate * n)), at most ``most``; ``"stochastic"``: int(rate * n + u), u from [0,
        1). most: upper limit of the count (max_predictions_per_seq). mask, random: shares of [MASK] and of a random
        token among the chosen; the rest is kept as it is. draw: whether each piece draws its replacement (the
        originals), or each word, or each unit as a whole. random_from: whether random tokens may be special ones
        (BERT) or not (RoBERTa). specials: whether special tokens of the framing may be chosen, as in fairseq's
        RoBERTa.
    """

    unit: Unit = Tokens()
    rate: float = 0.15
    count: Literal["round", "stochastic"] = "round"
    most: int | None = None
    mask: float = 0.8
    random: float = 0.1
    draw: Literal["piece", "word", "unit"] = "piece"
    random_from: Literal["all", "ordinary"] = "ordinary"
    specials: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.rate < 1:
            raise ConfigError(f"masking rate {self.rate} is no share; choose a number between 0 and 1, such as 0.15")
        if self.mask < 0 or self.random < 0 or self.mask + self.random > 1 + 1e-9:
            raise ConfigError(
                f"mask {self.mask} and random {self.random} are no shares of one; they may add up to 1 at most"
            )


@dataclass(frozen=True, slots=True)
class Corrupted:
    """What the model is shown, and what it has to predict; positions ascend."""

    ids: np.ndarray  # (n,) int64
    positions: np.ndarray  # (k,) int64
    targets: np.ndarray  # (k,) int64: the ids that were there


class Corruptor:
    """Applies one :class:`Masking` for one vocabulary.

    Args:
        masking: the rule.
        vocab_size: number of ids.
        mask_id: id of [MASK].
        special_ids: ids that are never drawn as random tokens where ``random_from="ordinary"``.
        counts: (V,) how often each id occurs in the corpus; needed by :class:`RareTokens`.
    """

    def __init__(
        self,
        masking: Masking,
        *,
        vocab_size: int,
        mask_id: int,
        special_ids: Sequence[int] = (),
        counts: np.ndarray | None = None,
    ) -> None:
        self.masking, self.mask_id = masking, mask_id
        barred = special_ids if masking.random_from == "ordinary" else ()
        self._random_ids = np.setdiff1d(np.arange(vocab_size), np.array(barred, np.int64))
        self._weights: np.ndarray | None = None
        if isinstance(masking.unit, RareTokens):
            if counts is None:
                raise ConfigError(
                    "masking rare tokens needs the token counts of the corpus; choose another unit, such as tokens"
                )
            self._weights = np.maximum(counts, 1) ** -masking.unit.power

    def __call__(self, row: Row, rng: np.random.Generator) -> Corrupted:
        """The row with some tokens hidden; 20 to 60 microseconds for 128 tokens."""
        positions, unit = self._choose(row, rng)
        mix, shown = self.masking, row.ids.copy()
        if mix.draw == "piece":
            chance = rng.random(len(positions))
        elif mix.draw == "unit":
            chance = rng.random(len(positions))[unit]
        else:
            word = np.cumsum(_opens(row))[positions]
            chance = rng.random(len(row) + 1)[word]
        randomised = positions[(chance >= mix.mask) & (chance < mix.mask + mix.random)]
        shown[randomised] = self._random_ids[rng.integers(0, len(self._random_ids), len(randomised))]
        shown[positions[chance < mix.mask]] = self.mask_id
        positions = np.sort(positions)
        return Corrupted(shown, positions, row.ids[positions])

    def _choose(self, row: Row, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Chosen positions and, for each, the number of the unit that it was chosen with."""
        masking, unit = self.masking, self.masking.unit
        candidates = np.arange(len(row)) if masking.specials else np.flatnonzero(~row.special)
        if masking.count == "round":
            count = max(1, round(masking.rate * len(row)))
        else:
            count = int(masking.rate * len(row) + rng.random())
        count = count if masking.most is None else min(count, masking.most)
        if isinstance(unit, Tokens) and unit.replacement:
            return candidates[rng.integers(0, len(candidates), count)], np.arange(count)
        count = min(count, len(candidates))
        if isinstance(unit, Tokens):
            return rng.permutation(candidates)[:count], np.arange(count)
        if isinstance(unit, RareTokens):
            assert self._weights is not None
            # The smallest of exponential arrival times is a weighted draw without replacement (Efraimidis and
            # Spirakis 2006).
            arrival = rng.standard_exponential(len(candidates)) / self._weights[row.ids[candidates]]
            return candidates[np.argsort(arrival)[:count]], np.arange(count)
        words = WordRuns(candidates, _opens(row)[candidates])
        if isinstance(unit, Words):
            runs = _take_runs(words, count, [1] * len(words), rng)
        elif isinstance(unit, NGrams):
            runs = _take_runs(words, count, _harmonic(unit.longest, len(words), rng), rng)
        elif isinstance(unit, Spans):
            lengths = _lengths((1 - unit.success) ** np.arange(unit.longest), len(words), rng)
            runs = _take_runs(words, count, lengths, rng)
        else:
            if unit.longest == 1:
                words = WordRuns(candidates, np.ones(len(candidates), bool))
            runs = _take_windows(words, count, unit.longest, int(1 / masking.rate), rng)
        starts, stops = np.array(words.bounds)[np.array(runs, np.int64).reshape(-1, 2)].T
        sizes = stops - starts
        number = np.repeat(np.arange(len(runs)), sizes)
        return candidates[np.arange(len(number)) - (np.cumsum(sizes) - stops)[number]], number


def _opens(row: Row) -> np.ndarray:
    """Where a word starts; a token after a special one does, whatever the corpus says."""
    opens = row.word_starts | row.special
    opens[1:] |= row.special[:-1]
    return opens


class WordRuns:
    """Words as runs of candidates: word w holds the candidates ``bounds[w] : bounds[w + 1]``."""

    def __init__(self, candidates: np.ndarray, opens: np.ndarray) -> None:
        opens[:1] = True
        starts = np.flatnonzero(opens)
        self.bounds: list[int] = [*starts.tolist(), len(candidates)]
        # Words on both sides of a special token are not neighbours: reach[w] is the end of the run of words that w is
        # in.
        gaps = np.flatnonzero(np.diff(candidates)[starts[1:] - 1] > 1) + 1
        edges = np.append(gaps, len(starts))
        self.reach: list[int] = edges[np.searchsorted(edges, np.arange(len(starts)), side="right")].tolist()

    def __len__(self) -> int:
        return len(self.bounds) - 1


Runs = list[tuple[int, int]]  # of words: first, one past the last


def _take_runs(words: WordRuns, count: int, lengths: list[int], rng: np.random.Generator) -> Runs:
    """Runs of ``lengths`` words from starts in random order, without overlap, of at most ``count`` tokens together."""
    bounds, reach = words.bounds, words.reach
    covered, runs = bytearray(len(words)), []
    for w, n in zip(rng.permutation(len(words)).tolist(), lengths, strict=True):
        if count <= 0:
            break
        end = min(w + n, reach[w])
        while end > w and bounds[end] - bounds[w] > count:
            end -= 1
        if end > w and not any(covered[w:end]):
            covered[w:end] = b"\1" * (end - w)
            runs.append((w, end))
            count -= bounds[end] - bounds[w]
    return runs


def _take_windows(words: WordRuns, count: int, longest: int, window: int, rng: np.random.Generator) -> Runs:
    """One run in each window of n * ``window`` words, until ``count`` tokens are reached (the last word may exceed
    it)."""
    bounds, total, runs, offset = words.bounds, len(words), [], 0
    for n, place in zip(_harmonic(longest, total, rng), rng.random(total).tolist(), strict=True):
        if count <= 0 or offset >= total:
            break
        size = min(n * window, total - offset)
        start = offset + int(place * size)
        end = start
        while end < min(start + n, total) and count > 0:
            count -= bounds[end + 1] - bounds[end]
            end += 1
        runs.append((start, end))
        offset = max(offset + size, start + n)
    return runs


def _harmonic(longest: int, size: int, rng: np.random.Generator) -> list[int]:
    """Lengths 1 .. ``longest`` with p(n) proportional to 1/n."""
    return _lengths(1 / np.arange(1, longest + 1), size, rng)


def _lengths(weights: np.ndarray, size: int, rng: np.random.Generator) -> list[int]:
    """Numbers n = 1, 2, ... with p(n) proportional to ``weights[n - 1]``."""
    limits = np.cumsum(weights)
    return (np.searchsorted(limits[:-1], rng.random(size) * limits[-1], side="right") + 1).tolist()
