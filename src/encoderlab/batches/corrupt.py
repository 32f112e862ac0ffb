"""Masking: which tokens of a row are predicted, and what replaces them. Pure functions of a row and a seed.

A rule has a unit (which tokens are chosen together), a count (how many tokens), and a mix (what replaces a chosen
token). The published rules are settings of it:

==================  ==============================================================================================
BERT                ``Masking(most=20)`` at length 128, 77 at 512; whole-word BERT: ``unit=Words()``
RoBERTa             ``Masking(count="stochastic")``; fairseq's own also ``specials=True``
ALBERT, Erlangshen  ``Masking(unit=NGrams(), most=20)``, and without ``most``
ELECTRA, ConvBERT   ``Masking(mask=0.85, random=0)``; the release draws ``unit=Tokens(replacement=True)``
DeBERTa v1, v2      ``Masking(unit=WindowedNGrams())``
DeBERTa v3          ``Masking(unit=WindowedNGrams(longest=1), mask=1, random=0)``
DistilBERT          ``Masking(unit=RareTokens(), count="stochastic", random_from="all")``
SpanBERT            ``Masking(unit=Spans(), draw="unit")``
==================  ==============================================================================================
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from encoderlab.batches.rows import Row
from encoderlab.config import Bounded, Count, NonNegative, OpenShare, Short
from encoderlab.errors import ConfigError
from encoderlab.ranges import aranges, offsets
from encoderlab.seeds import derive, uniform


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """Single tokens, uniformly (Devlin et al. 2019, section 3.1).

    With ``replacement`` a position may be drawn several times, as in the ELECTRA release; it is then listed, and counts
    in the loss, once per draw, and shows [MASK] if one of its draws says so.
    """

    kind: Literal["tokens"] = "tokens"
    replacement: bool = False


@dataclass(frozen=True, kw_only=True)
class Words:
    """Whole words in random order; a word that would exceed the count is skipped (BERT's whole-word masking)."""

    kind: Literal["words"] = "words"


@dataclass(frozen=True, kw_only=True)
class NGrams(Bounded):
    """Runs of n whole words, n = 1 .. longest with p(n) proportional to 1/n (ALBERT, section 4.1, equation 5;
    Erlangshen).

    Words are visited in random order as starts. An n-gram that would exceed the count is shortened; one that overlaps
    an earlier n-gram is skipped; one that would cross a special token ends before it.
    """

    kind: Literal["ngrams"] = "ngrams"
    longest: Short = 3


@dataclass(frozen=True, kw_only=True)
class WindowedNGrams(Bounded):
    """DeBERTa's rule: one n-gram in each window of n * int(1/rate) words, n as for :class:`NGrams`.

    Windows run from left to right until the count is reached. More regular than NGrams, but the last tokens of a row
    are masked less often, because 1/int(1/rate) is above the rate. Above a rate of one half a window is as long as its
    n-gram, so the first tokens of a row are masked without a gap and the others not at all, as in the original; use
    another unit for such rates. ``longest=1`` counts tokens, not words.
    """

    kind: Literal["windowed_ngrams"] = "windowed_ngrams"
    longest: Short = 3


@dataclass(frozen=True, kw_only=True)
class Spans(Bounded):
    """Runs of whole words, lengths geometric within 1 .. ``longest`` (SpanBERT, Joshi et al. 2020, section 3.1).

    ``success`` is the parameter of the geometric distribution.
    """

    kind: Literal["spans"] = "spans"
    success: OpenShare = 0.2
    longest: Short = 10


@dataclass(frozen=True, kw_only=True)
class RareTokens(Bounded):
    """Single tokens without replacement, with weights count^-power: rare tokens more often (XLM, DistilBERT).

    The original draws over the whole batch; here each row draws its own share, so that a row's masks do not depend on
    other rows.
    """

    kind: Literal["rare_tokens"] = "rare_tokens"
    power: Annotated[float, Field(ge=0, le=10)] = 0.7


Unit = Tokens | Words | NGrams | WindowedNGrams | Spans | RareTokens


@dataclass(frozen=True, kw_only=True)
class Masking(Bounded):
    """Which tokens are chosen, how many, and what replaces them.

    Args:
        unit: what is chosen together.
        rate: share of all tokens of the row, special ones included, that is chosen.
        final_rate: the rate at the end of a training; it changes linearly over the rows (30% to 15% in Charpentier and
            Samuel, 2024), and validation uses the final rate. None for a constant rate.
        count: ``"round"``: max(1, round(rate * n)); ``"stochastic"``: int(rate * n + u) with u from [0, 1).
        most: upper limit of the count (max_predictions_per_seq).
        mask, random: shares of the chosen tokens that become [MASK] or a random token; the rest stays.
        draw: a replacement is drawn for each ``piece`` (the originals), each ``word``, or each ``unit`` as a whole.
        random_from: whether random tokens may be special ones (``all``, BERT) or not (``ordinary``, RoBERTa).
        specials: whether special tokens of the framing may be chosen, as in fairseq's RoBERTa.

    Raises:
        ConfigError: rates outside 0 to 1, shares that add up to more than 1, or a limit below 1.
    """

    unit: Unit = Tokens()
    rate: OpenShare = 0.15
    final_rate: OpenShare | None = None
    count: Literal["round", "stochastic"] = "round"
    most: Count | None = None
    mask: NonNegative = 0.8
    random: NonNegative = 0.1
    draw: Literal["piece", "word", "unit"] = "piece"
    random_from: Literal["all", "ordinary"] = "ordinary"
    specials: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mask + self.random > 1 + 1e-9:
            raise ConfigError(f"mask {self.mask} and random {self.random} add up to more than 1; give less of one")

    @property
    def last_rate(self) -> float:
        """The rate at the end of a training."""
        return self.rate if self.final_rate is None else self.final_rate

    def mean_share(self, length: int) -> float:
        """The share of the tokens of full rows of ``length`` that is chosen, on average over a training."""
        low, high = sorted((self.rate, self.last_rate))
        limit = high if self.most is None else self.most / length
        if limit >= high:
            return (low + high) / 2
        return limit if limit <= low else limit - (limit - low) ** 2 / 2 / (high - low)

    def rates(self, progress: np.ndarray) -> np.ndarray:
        """The rate of each row, from the share of the training before it, (n,)."""
        return self.rate + (self.last_rate - self.rate) * progress


@dataclass(frozen=True, slots=True)
class Corrupted:
    """The ids that the model sees, and its targets; positions ascend."""

    ids: np.ndarray  # (n,) int64
    positions: np.ndarray  # (k,) int64
    targets: np.ndarray  # (k,) int64: the original ids


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

    def __call__(self, rows: Sequence[Row], seed: int) -> list[Corrupted]:
        """The rows with some tokens hidden; takes 15 to 40 microseconds per 128 tokens.

        All random numbers of a row come from ``(seed, *row.key)``: they do not depend on other rows.
        """
        text, masking = _Text(rows, seed, self.masking.specials), self.masking
        chosen, unit, draw = self._choose(text)
        decided = draw
        if masking.draw == "unit":
            decided = draw[np.searchsorted(unit, unit)]  # the first token of the unit decides
        elif masking.draw == "word":
            decided = np.maximum.accumulate(np.where(text.opens, np.arange(len(text.ids)), 0))[chosen]
        chance = text.uniform(_MIX, decided)
        randomised = (chance >= masking.mask) & (chance < masking.mask + masking.random)
        token = text.uniform(_TOKEN, draw[randomised]) * len(self._random_ids)
        shown = text.ids.copy()
        shown[chosen[randomised]] = self._random_ids[token.astype(np.int64)]
        shown[chosen[chance < masking.mask]] = self.mask_id
        return text.split(shown, np.sort(chosen))

    def _choose(self, text: _Text) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The chosen tokens; for each, the number of its unit (ascending), and the token whose random numbers decide
        what replaces it.
        """
        unit, candidates, count = self.masking.unit, text.candidates, self._counts(text)
        row = text.row[candidates]
        available = np.bincount(row, minlength=len(text.lengths))  # number of candidates per row
        first = offsets(available)[:-1]  # first candidate of each row
        if isinstance(unit, Tokens) and unit.replacement:
            count = count * (available > 0)
            draw = aranges(text.starts, count)
            of = text.row[draw]
            chosen = candidates[first[of] + (text.uniform(_ORDER, draw) * available[of]).astype(np.int64)]
            return chosen, np.arange(len(draw)), draw
        count = np.minimum(count, available)
        if isinstance(unit, Tokens | RareTokens):
            chosen = candidates[self._shuffled(text, row)[aranges(first, count)]]
            return chosen, np.arange(len(chosen)), chosen
        opens = text.opens[candidates]
        if isinstance(unit, WindowedNGrams) and unit.longest == 1:
            opens[:] = True
        words = WordRuns(candidates, opens, row)
        runs = self._runs(text, words, count)
        bounds = np.append(words.first, len(candidates))
        begin, end = bounds[runs[:, 0]], bounds[runs[:, 1]]
        chosen = candidates[aranges(begin, end - begin)]
        return chosen, np.repeat(np.arange(len(runs)), end - begin), chosen

    def _counts(self, text: _Text) -> np.ndarray:
        """The number of tokens to choose in each row, from the rate and its limit."""
        masking, rates = self.masking, self.masking.rates(text.progress)
        if masking.count == "round":
            count = np.maximum(np.rint(rates * text.lengths), 1).astype(np.int64)
        else:
            count = (rates * text.lengths + text.uniform(_COUNT, text.starts)).astype(np.int64)
        return count if masking.most is None else np.minimum(count, masking.most)

    def _shuffled(self, text: _Text, row: np.ndarray) -> np.ndarray:
        """The indices of the candidates, row after row, in random order within a row; weights make rare tokens come
        early.
        """
        score = text.uniform(_ORDER, text.candidates)
        if self._weights is None:
            return np.argsort(row + score)
        # The smallest of exponential arrival times is a weighted draw without replacement (Efraimidis and
        # Spirakis 2006). Times of frequent tokens can be so long that a sum with the row would make them equal.
        return np.lexsort((-np.log1p(-score) / self._weights[text.ids[text.candidates]], row))

    def _runs(self, text: _Text, words: WordRuns, count: np.ndarray) -> np.ndarray:
        """The chosen runs of words, (r, 2): first word, one past the last word."""
        unit, heads = self.masking.unit, text.candidates[words.first]
        if isinstance(unit, WindowedNGrams):
            lengths = _lengths(1 / np.arange(1, unit.longest + 1), text.uniform(_LENGTH, heads))
            windows = (1 / self.masking.rates(text.progress)).astype(np.int64)
            return _take_windows(words, count, lengths, text.uniform(_ORDER, heads), windows)
        order = np.argsort(words.row + text.uniform(_ORDER, heads))
        if isinstance(unit, Words):
            return _take_words(words, count, order)
        assert isinstance(unit, NGrams | Spans)
        if isinstance(unit, Spans):
            weights = (1 - unit.success) ** np.arange(unit.longest)  # geometric
        else:
            weights = 1 / np.arange(1, unit.longest + 1)
        return _take_runs(words, count, order, _lengths(weights, text.uniform(_LENGTH, heads)))


# Uses of a token's random numbers.
_COUNT, _ORDER, _LENGTH, _MIX, _TOKEN = range(5)


class _Text:
    """The tokens of several rows concatenated, with random numbers for each token."""

    def __init__(self, rows: Sequence[Row], seed: int, specials: bool) -> None:
        self.ids = np.concatenate([row.ids for row in rows])
        self.lengths = np.array([len(row) for row in rows])
        self.progress = np.array([row.progress for row in rows])
        self.edges = offsets(self.lengths)
        self.starts = self.edges[:-1]
        self.row = np.repeat(np.arange(len(rows)), self.lengths)
        self._place = aranges(0, self.lengths)
        self._keys = np.array([derive(seed, "mask", *row.key) for row in rows], np.uint64)
        special = np.concatenate([row.special for row in rows])
        # A word starts after a special token, even if the corpus does not mark it.
        self.opens = np.concatenate([row.word_starts for row in rows]) | special
        self.opens[1:] |= special[:-1]
        self.opens[self.starts] = True
        self.candidates = np.arange(len(self.ids)) if specials else np.flatnonzero(~special)

    def uniform(self, purpose: int, tokens: np.ndarray) -> np.ndarray:
        """Numbers in [0, 1), one per token; a token has a different number for each purpose."""
        return uniform(self._keys[self.row[tokens]], self._place[tokens] * 8 + purpose)

    def split(self, shown: np.ndarray, chosen: np.ndarray) -> list[Corrupted]:
        """Split into rows again: ``shown`` (n,), and the ``chosen`` tokens, which ascend."""
        edges, parts = self.edges.tolist(), np.searchsorted(chosen, self.edges).tolist()
        place, targets = self._place[chosen], self.ids[chosen]
        rows = zip(edges[:-1], edges[1:], parts[:-1], parts[1:], strict=True)
        return [Corrupted(shown[start:end], place[a:b], targets[a:b]) for start, end, a, b in rows]


class WordRuns:
    """Words in a sequence of candidates.

    Attributes:
        first: (W,) the first candidate of each word.
        row: (W,) the word's row.
        size: (W,) number of candidates in the word.
        reach: (W,) the word before which a run that contains this word must end, because runs do not cross special
            tokens.
    """

    def __init__(self, candidates: np.ndarray, opens: np.ndarray, row: np.ndarray) -> None:
        self.first = np.flatnonzero(opens)
        self.row = row[self.first]
        self.size = np.diff(self.first, append=len(candidates))
        heads, before = self.first[1:], self.first[1:] - 1
        apart = (candidates[heads] - candidates[before] > 1) | (self.row[1:] != self.row[:-1])
        edges = np.append(np.flatnonzero(apart) + 1, len(self.first))
        self.reach = edges[np.searchsorted(edges, np.arange(len(self.first)), side="right")]

    def spans(self, rows: int) -> tuple[list[int], list[int]]:
        """First word of each row, and one past its last."""
        edges = np.searchsorted(self.row, np.arange(rows + 1)).tolist()
        return edges[:-1], edges[1:]


# Runs of words (r, 2): first, one past the last. ``count`` (B,) limits the chosen tokens of each row.


def _take_words(words: WordRuns, count: np.ndarray, order: np.ndarray) -> np.ndarray:
    """Words in ``order`` (by row, random within a row); a word that would exceed the count is skipped."""
    size, row = words.size[order], words.row[order]
    total = np.cumsum(size)
    begins, ends = words.spans(len(count))
    before = np.append(0, total)[begins]
    fits = total - before[row] <= count[row]
    left = count - np.bincount(row, size * fits, len(count)).astype(np.int64)
    number, sizes = np.bincount(row, fits, len(count)).astype(np.int64), size.tolist()
    for r in np.flatnonzero(left).tolist():
        room = int(left[r])
        for i in range(begins[r] + int(number[r]), ends[r]):
            if sizes[i] <= room:
                fits[i] = True
                room -= sizes[i]
                if not room:
                    break
    chosen = order[fits]
    return np.stack([chosen, chosen + 1], axis=1)


def _take_runs(words: WordRuns, count: np.ndarray, order: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Runs of ``lengths`` words from starts in ``order``, without overlap; a run that exceeds the count
    is shortened.
    """
    starts, ends = order.tolist(), np.minimum(order + lengths[order], words.reach[order]).tolist()
    bounds = np.append(words.first, words.first[-1:] + words.size[-1:]).tolist()
    covered, runs = bytearray(len(starts)), []
    for left, begin, end in zip(count.tolist(), *words.spans(len(count)), strict=True):
        for i in range(begin, end):
            if left <= 0:
                break
            a, b = starts[i], ends[i]
            while b > a and bounds[b] - bounds[a] > left:
                b -= 1
            if b > a and not any(covered[a:b]):
                covered[a:b] = b"\1" * (b - a)
                runs.append((a, b))
                left -= bounds[b] - bounds[a]
    return np.array(runs, np.int64).reshape(-1, 2)


def _take_windows(
    words: WordRuns, count: np.ndarray, lengths: np.ndarray, places: np.ndarray, windows: np.ndarray
) -> np.ndarray:
    """One run in each window of n * ``windows`` (of the row) words, until the count is reached (the last word may
    exceed it).
    """
    sizes, draws, runs = words.size.tolist(), list(zip(lengths.tolist(), places.tolist(), strict=True)), []
    for left, window, begin, end in zip(count.tolist(), windows.tolist(), *words.spans(len(count)), strict=True):
        offset = number = begin
        while left > 0 and offset < end:
            n, place = draws[number]
            size = min(n * window, end - offset)
            a = b = offset + int(place * size)
            while b < min(a + n, end) and left > 0:
                left -= sizes[b]
                b += 1
            runs.append((a, b))
            offset, number = max(offset + size, a + n), number + 1
    return np.array(runs, np.int64).reshape(-1, 2)


def _lengths(weights: np.ndarray, uniform: np.ndarray) -> np.ndarray:
    """Random n = 1, 2, ... with p(n) proportional to ``weights[n - 1]``, from uniform numbers in [0, 1)."""
    limits = np.cumsum(weights)
    return np.searchsorted(limits[:-1], uniform * limits[-1], side="right") + 1
