"""Make rows from documents: the input formats of the published pretraining runs.

A format plans a block of documents at once: :class:`Plan` lists, as index ranges, which tokens of which documents make
up each row; a row is read from the corpus only when it is used. Planning a block of 4 million tokens takes about a
second and a few megabytes. A plan is a pure function of (corpus, documents, generator, format), so a run that resumes
plans one block again and gets the same rows.

Contiguous streams (Transformer-XL, XLNet) are in ``streams.py``: their rows follow each other and are never shuffled.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.random import Generator

from encoderlab.batches.rows import BaseFormat, Documents, Framing, Placement, Plan
from encoderlab.config import Share
from encoderlab.errors import ConfigError, DataError
from encoderlab.ranges import aranges

LONG = 1 << 16  # tokens that are read of a longer document for a random B


def _uniforms(rng: Generator) -> Callable[[], float]:
    """Draws from [0, 1) at 40 nanoseconds each, a tenth of what a call of the generator takes."""

    def draw() -> Iterator[float]:
        while True:
            yield from rng.random(1024).tolist()

    return draw().__next__


# --- pairs


@dataclass(frozen=True, kw_only=True)
class SegmentPairs(BaseFormat):
    """BERT's and ALBERT's rows: two spans of whole sentences (Devlin et al. 2019, A.2; ``create_pretraining_data.py``).

    Sentences are collected until they fill the row (with probability ``short_share`` a shorter target, drawn once per
    document) and cut in two at a random sentence. ``relation="next"``: with probability one half, sentences of another
    document replace B, and the replaced sentences are used again later; label ``next_sentence``, 1 = random.
    ``relation="order"`` (ALBERT): with probability one half, A and B are swapped; label ``sentence_order``, 1 =
    swapped. In both, a chunk of one sentence gets a random B with label 1, so the share of ones is above one half for
    long sentences. A pair that is too long loses tokens of the longer side, from either end with equal probability; the
    rest of a sentence longer than the row is not used in this epoch.
    """

    kind: Literal["segment_pairs"] = "segment_pairs"
    pairs: ClassVar[bool] = True
    relation: Literal["next", "order"] = "next"
    short_share: Share = 0.1

    @property
    def label(self) -> str:
        return "next_sentence" if self.relation == "next" else "sentence_order"

    def plan(self, corpus: Documents, documents: np.ndarray, rng: Generator, framing: Framing, length: int) -> Plan:
        _require_two_documents(corpus, self.label)
        room, uniform = length - framing.pair, _uniforms(rng)
        rows: list[tuple[int, ...]] = []
        for number in documents.tolist():
            document = corpus.document(number)
            bounds = [*document.sentences.tolist(), len(document.ids)]
            last = len(bounds) - 1
            target = 2 + int(uniform() * (room - 1)) if uniform() < self.short_share else room
            begin = 0
            while begin < last:
                end = bisect_left(bounds, bounds[begin] + target, begin + 1, last)
                alone = end == begin + 1
                cut = end if alone else begin + 1 + int(uniform() * (end - begin - 1))
                a = (number, bounds[begin], bounds[cut])
                if alone or (self.relation == "next" and uniform() < 0.5):
                    rows.append((*a, *_random_text(corpus, number, target - (a[2] - a[1]), uniform), 1))
                    begin = cut
                    continue
                b = (number, bounds[cut], bounds[end])
                swap = self.relation == "order" and uniform() < 0.5
                rows.append((*b, *a, 1) if swap else (*a, *b, 0))
                begin = end
        return _pair_plan(rows, room, rng, self.label)


@dataclass(frozen=True, kw_only=True)
class SentencePairs(BaseFormat):
    """Two single sentences, adjacent or, with probability one half, of two documents (RoBERTa, section 4.2,
    SENTENCE-PAIR+NSP).

    Rows are far shorter than ``length``: raise the number of rows in a batch. Label ``next_sentence``, 1 = random.
    """

    kind: Literal["sentence_pairs"] = "sentence_pairs"
    pairs: ClassVar[bool] = True

    def plan(self, corpus: Documents, documents: np.ndarray, rng: Generator, framing: Framing, length: int) -> Plan:
        _require_two_documents(corpus, "next_sentence")
        uniform = _uniforms(rng)
        rows: list[tuple[int, ...]] = []
        for number in documents.tolist():
            document = corpus.document(number)
            bounds = [*document.sentences.tolist(), len(document.ids)]
            begin, last = 0, len(bounds) - 1
            while begin < last:
                a = (number, bounds[begin], bounds[begin + 1])
                if begin + 1 == last or uniform() < 0.5:
                    rows.append((*a, *_random_text(corpus, number, 1, uniform), 1))
                    begin += 1
                else:
                    rows.append((*a, number, bounds[begin + 1], bounds[begin + 2], 0))
                    begin += 2
        return _pair_plan(rows, length - framing.pair, rng, "next_sentence")


def _require_two_documents(corpus: Documents, label: str) -> None:
    if corpus.num_documents < 2:
        raise DataError(
            f"{label} needs at least 2 documents, the corpus has {corpus.num_documents}; "
            f"separate documents by blank lines, or use rows without pairs (full_sentences)"
        )


def _random_text(corpus: Documents, other_than: int, room: int, uniform: Callable[[], float]) -> tuple[int, int, int]:
    """Sentences from a random place of another document until ``room`` tokens are reached: (document, start, stop)."""
    number = other_than
    while number == other_than:
        number = int(uniform() * corpus.num_documents)
    length = corpus.document_length(number)
    # Read a random part of a very long document, to bound the cost.
    begin = int(uniform() * (length - LONG)) if length > LONG else 0
    sentences = corpus.document(number, begin, begin + LONG).sentences + begin
    start = int(sentences[int(uniform() * len(sentences))]) if len(sentences) else begin
    end = int(np.searchsorted(sentences, start + max(room, 1)))
    return number, start, int(sentences[end]) if end < len(sentences) else min(length, begin + LONG)


def _pair_plan(rows: list[tuple[int, ...]], room: int, rng: Generator, label: str) -> Plan:
    """The plan of rows (document A, start, stop, document B, start, stop, label), each cut to ``room`` tokens.

    BERT drops one token at a time, from the longer side (from B if they are equal) and from its front or back with
    probability one half. The lengths determine how many tokens each side loses; how many of them in front is binomial.
    """
    columns: np.ndarray = np.array(rows, np.int64).reshape(-1, 7)
    document, start, stop = columns[:, [0, 3]], columns[:, [1, 4]], columns[:, [2, 5]]
    a, b = (stop - start).T
    excess = np.maximum(a + b - room, 0)
    uneven = np.minimum(excess, np.abs(a - b))
    even = excess - uneven
    cut = np.stack([np.where(a > b, uneven, 0) + even // 2, np.where(a < b, uneven, 0) + (even + 1) // 2], axis=1)
    front = np.asarray(rng.binomial(cut, 0.5), np.int64)
    start, stop = start + front, stop - (cut - front)
    part = np.tile(np.array([0, 1], np.int8), len(columns))
    first = np.arange(0, 2 * len(columns) + 1, 2)
    labels = {label: columns[:, 6].astype(np.int8)}
    return Plan("pair", first, document.reshape(-1), start.reshape(-1), stop.reshape(-1), part, labels)


@dataclass(frozen=True, kw_only=True)
class ElectraSegments(BaseFormat):
    """ELECTRA's rows: one or two segments of one document, no label (``build_pretraining_dataset.py``).

    Sentences are collected until they reach a target: the full length, or with probability ``short_share`` a length
    drawn from 5 .. length for the next row. With probability ``single_share`` all of them are segment A; otherwise
    sentences go to A up to half of the room, the sentence that crosses the middle with probability one half, and the
    others to B. The target does not count special tokens, so the last sentence is usually cut.

    ``rule="convbert_release"`` is the split of the ConvBERT release, where the two tests for an empty segment are
    inverted: nearly all rows have one segment, and a few have an empty A.
    """

    kind: Literal["electra_segments"] = "electra_segments"
    pairs: ClassVar[bool] = True
    rule: Literal["electra", "convbert_release"] = "electra"
    single_share: Share = 0.1
    short_share: Share = 0.05
    cross_documents: bool = False

    def plan(self, corpus: Documents, documents: np.ndarray, rng: Generator, framing: Framing, length: int) -> Plan:
        uniform = _uniforms(rng)
        rows: list[list[tuple[int, int, int, int]]] = []
        target, size = length, 0
        chunk: list[tuple[int, int, int]] = []
        for number in documents.tolist():
            document = corpus.document(number)
            bounds = [*document.sentences.tolist(), len(document.ids)]
            begin, last = 0, len(bounds) - 1
            while begin < last:
                end = bisect_left(bounds, bounds[begin] + target - size, begin + 1, last)
                chunk += [(number, bounds[s], bounds[s + 1]) for s in range(begin, end)]
                size += bounds[end] - bounds[begin]
                begin = end
                if size >= target or (begin == last and not self.cross_documents):
                    rows.append(self._split(chunk, target, framing, length, uniform))
                    target = 5 + int(uniform() * (length - 4)) if uniform() < self.short_share else length
                    chunk, size = [], 0
        if chunk:
            rows.append(self._split(chunk, target, framing, length, uniform))
        first = np.cumsum([0, *map(len, rows)])
        columns = np.array([piece for row in rows for piece in row], np.int64).reshape(-1, 4).T
        return Plan("pair", first, columns[0], columns[1], columns[2], columns[3].astype(np.int8))

    def _split(
        self,
        chunk: list[tuple[int, int, int]],
        target: int,
        framing: Framing,
        length: int,
        uniform: Callable[[], float],
    ) -> list[tuple[int, int, int, int]]:
        """The sentences of a chunk as pieces (document, start, stop, part), A before B, each cut to what fits."""
        middle = 1 << 62 if uniform() < self.single_share else (target - framing.pair) // 2
        inverted = self.rule == "convbert_release"
        sizes: list[int] = [0, 0]
        sides: list[list[tuple[int, int, int]]] = [[], []]
        for sentence in chunk:
            size = sentence[2] - sentence[1]
            first = (
                (sizes[0] == 0) != inverted
                or sizes[0] + size < middle
                or ((sizes[1] == 0) != inverted and sizes[0] < middle and uniform() < 0.5)
            )
            side = 0 if first else 1
            sizes[side] += size
            sides[side].append(sentence)
        a = _head(sides[0], length - framing.single)
        b = _head(sides[1], length - framing.pair - sum(stop - start for _, start, stop in a))
        return [(*piece, 0) for piece in a] + [(*piece, 1) for piece in b]


def _head(pieces: list[tuple[int, int, int]], room: int) -> list[tuple[int, int, int]]:
    """The first ``room`` tokens of the pieces; adjacent pieces are joined."""
    kept: list[tuple[int, int, int]] = []
    for number, start, stop in pieces:
        stop = min(stop, start + room)
        if stop <= start:
            break
        room -= stop - start
        if kept and kept[-1][0] == number and kept[-1][2] == start:
            kept[-1] = (number, kept[-1][1], stop)
        else:
            kept.append((number, start, stop))
    return kept


# --- whole sentences


@dataclass(frozen=True, kw_only=True)
class FullSentences(BaseFormat):
    """As many consecutive whole sentences as fit (RoBERTa, section 4.2, FULL-SENTENCES).

    A row may hold several documents, with a separator between them; they see each other unless ``separate``, which
    frames each as its own text. ``cross_documents=False`` is DOC-SENTENCES: a row ends with its document, so rows are
    shorter; with ``batch="tokens"`` a batch of n rows then holds as many rows as have n * ``length`` tokens together,
    as in the original. A sentence longer than the row is cut into several rows.
    """

    kind: Literal["full_sentences"] = "full_sentences"
    cross_documents: bool = True
    separate: bool = False
    batch: Literal["rows", "tokens"] = "rows"

    def plan(self, corpus: Documents, documents: np.ndarray, rng: Generator, framing: Framing, length: int) -> Plan:
        # Special tokens per piece, and per row.
        per_piece, per_row = (framing.single, 0) if self.separate else (1, 1)
        room = length - per_row
        index, start, stop = _sentences(corpus, documents, room - per_piece)
        # Positions if all sentences were concatenated, with the cost of a piece before the first sentence of each
        # document.
        opens = np.ones(len(index), bool)
        opens[1:] = index[1:] != index[:-1]
        ends = np.cumsum(stop - start + per_piece * opens)
        bodies = (ends - (stop - start)).tolist()
        limits = [*(np.flatnonzero(opens)[1:]).tolist(), len(index)]
        line = ends.tolist()
        firsts, begin, document = [], 0, 0
        while begin < len(line):
            firsts.append(begin)
            limit = len(line)
            if not self.cross_documents:
                while limits[document] <= begin:
                    document += 1
                limit = limits[document]
            begin = bisect_left(line, bodies[begin] + room - per_piece + 1, begin + 1, limit)
        row = np.zeros(len(index), np.int64)
        row[firsts] = 1
        return _join(np.cumsum(row) - 1, documents[index], start, stop, "packed" if self.separate else "joined")


def _sentences(corpus: Documents, documents: np.ndarray, longest: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """All sentences of the documents, cut to ``longest``: (index into documents, start, stop), each (s,) int64."""
    starts, stops, counts = [], [], []
    for number in documents.tolist():
        document = corpus.document(number)
        starts.append(document.sentences)
        stops.append(document.sentences[1:])
        stops.append(np.array([len(document.ids)]))
        counts.append(len(document.sentences))
    start, stop = np.concatenate(starts), np.concatenate(stops)
    index = np.repeat(np.arange(len(documents)), counts)
    parts = np.maximum(-(-(stop - start) // longest), 1)
    if parts.max(initial=1) > 1:
        start, stop, index = np.repeat(start, parts), np.repeat(stop, parts), np.repeat(index, parts)
        start += aranges(0, parts) * longest
        stop = np.minimum(stop, start + longest)
    return index, start, stop


def _join(row: np.ndarray, document: np.ndarray, start: np.ndarray, stop: np.ndarray, placement: Placement) -> Plan:
    """A plan of ranges in order, (n,) each with its row; adjacent ranges of one row and document become one piece."""
    opens = np.ones(len(row), bool)
    opens[1:] = (row[1:] != row[:-1]) | (document[1:] != document[:-1]) | (start[1:] != stop[:-1])
    first = np.flatnonzero(opens)
    last = np.append(first[1:], len(row))[: len(first)] - 1
    pieces = np.searchsorted(row[first], np.arange(row[-1] + 2 if len(row) else 1))
    return Plan(placement, pieces, document[first], start[first], stop[last], np.zeros(len(first), np.int8))


# --- whole documents


@dataclass(frozen=True, kw_only=True)
class Chunks(BaseFormat):
    """All text concatenated and cut into rows of exactly the same length, one segment (DeBERTa's data preparation).

    Ignores the limits of sentences and documents: no padding and no separator. The short rest of a block is dropped.
    """

    kind: Literal["chunks"] = "chunks"

    def plan(self, corpus: Documents, documents: np.ndarray, rng: Generator, framing: Framing, length: int) -> Plan:
        room = length - framing.single
        lengths = _lengths(corpus, documents)
        ends = np.cumsum(lengths)
        total = int(ends[-1]) // room * room if len(ends) else 0
        cuts = np.union1d(ends[ends < total], np.arange(0, total + 1, room))
        start, stop = cuts[:-1], cuts[1:]
        index = np.searchsorted(ends, start, side="right")
        origin = (ends - lengths)[index]
        return _join(start // room, documents[index], start - origin, stop - origin, "single")


@dataclass(frozen=True, kw_only=True)
class SingleDocuments(BaseFormat):
    """One document per row, one segment.

    A document that is too long is cropped, from either end with equal probability for each token (``overlong="crop"``,
    Erlangshen), or makes several rows (``"split"``, DistilBERT). Texts and parts of texts with fewer than ``shortest``
    tokens are dropped; special tokens do not count, so a row needs room for as many.
    """

    kind: Literal["single_documents"] = "single_documents"
    overlong: Literal["crop", "split"] = "split"
    shortest: int = 1

    def plan(self, corpus: Documents, documents: np.ndarray, rng: Generator, framing: Framing, length: int) -> Plan:
        room, lengths = length - framing.single, _lengths(corpus, documents)
        if room < self.shortest:
            raise ConfigError(
                f"rows of {length} tokens have room for {room} of a text, and format.shortest drops texts of fewer "
                f"than {self.shortest}; choose rows of at least {self.shortest + framing.single} tokens, or lower "
                "format.shortest"
            )
        if self.overlong == "split":
            index, start, stop = _cut(lengths, room)
        else:
            excess = np.maximum(lengths - room, 0)
            index, start = np.arange(len(lengths)), rng.binomial(excess, 0.5)
            stop = start + lengths - excess
        keep = stop - start >= self.shortest
        index, start, stop = index[keep], start[keep], stop[keep]
        return Plan("single", np.arange(len(index) + 1), documents[index], start, stop, np.zeros(len(index), np.int8))


@dataclass(frozen=True, kw_only=True)
class PackedDocuments(BaseFormat):
    """Several short documents in one row, each framed separately and invisible to the others; little padding remains.

    Best fit, longest first, over the documents of a block (Krell et al. 2021, "Efficient sequence packing"); a document
    longer than the row is cut first.
    """

    kind: Literal["packed_documents"] = "packed_documents"

    def plan(self, corpus: Documents, documents: np.ndarray, rng: Generator, framing: Framing, length: int) -> Plan:
        index, start, stop = _cut(_lengths(corpus, documents), length - framing.single)
        row = _best_fit(stop - start + framing.single, length)
        order = np.argsort(row, kind="stable")
        first = np.searchsorted(row[order], np.arange(row.max(initial=-1) + 2))
        index = index[order]
        return Plan("packed", first, documents[index], start[order], stop[order], np.zeros(len(index), np.int8))


def _lengths(corpus: Documents, documents: np.ndarray) -> np.ndarray:
    return np.fromiter(map(corpus.document_length, documents.tolist()), np.int64, len(documents))


def _cut(lengths: np.ndarray, room: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Texts of these lengths cut into parts of at most ``room``: (index of the text, start, stop)."""
    parts = -(-lengths // room)
    index, start = np.repeat(np.arange(len(lengths)), parts), aranges(0, parts) * room
    return index, start, np.minimum(start + room, lengths[index])


def _best_fit(sizes: np.ndarray, room: int) -> np.ndarray:
    """The row of each size, best fit and longest first: (n,) int64. Takes about a microsecond each."""
    row = np.zeros(len(sizes), np.int64)
    left: list[list[int]] = [[] for _ in range(room + 1)]  # rows by the room that is left
    used, rows = 0, 0  # bit r of used: left[r] is not empty
    for item in np.argsort(-sizes, kind="stable").tolist():
        size = int(sizes[item])
        fitting = used >> size
        if fitting:
            free = size + (fitting & -fitting).bit_length() - 1
            place = left[free].pop()
            if not left[free]:
                used ^= 1 << free
        else:
            place, free = rows, room
            rows += 1
        row[item] = place
        left[free - size].append(place)
        used |= 1 << (free - size)
    return row


RowFormat = SegmentPairs | SentencePairs | ElectraSegments | FullSentences | Chunks | SingleDocuments | PackedDocuments
"""A format of shuffled rows. Its ``plan(corpus, documents, rng, framing, length)`` makes the rows of one block from the
documents with numbers ``documents`` (n,): it draws from ``rng`` only, and no row has more than ``length`` tokens,
special tokens included.
"""


def check_length(length: int, framing: Framing) -> None:
    """Refuse rows without room for text between their special tokens.

    Raises:
        ConfigError: the length does not fit the special tokens and one token of each text.
    """
    if length < framing.pair + 2:
        raise ConfigError(f"row length {length} leaves no room for text; choose at least {framing.pair + 2}")
