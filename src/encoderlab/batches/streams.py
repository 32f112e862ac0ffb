"""Rows that continue each other: the corpus as one long line of tokens, cut into parallel streams.

With B rows in a batch, row b of every batch belongs to stream b, which is the b-th part of the line; each batch is the
next window of all streams. A memory of earlier hidden states needs that order, so windows are never shuffled. The
position of a window depends only on the windows before it, so a run resumes from that position.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import Literal

import numpy as np

from encoderlab.batches.rows import BaseFormat, Documents, Framing, Row
from encoderlab.corpus.special_tokens import FramingKind
from encoderlab.errors import ConfigError, DataError
from encoderlab.seeds import generator


class TokenLine:
    """All documents of a corpus in order as one line, each followed by ``eod`` if it is given.

    Reading costs O(log documents) to find the place, plus the tokens read.
    """

    def __init__(self, corpus: Documents, eod: int | None) -> None:
        self.corpus, self.eod = corpus, eod
        self.length = corpus.num_tokens + (corpus.num_documents if eod is not None else 0)

    @classmethod
    def of(cls, corpus: Documents, framing: Framing, *, separator: bool) -> TokenLine:
        """The line of a corpus; with ``separator`` the framing's end-of-document token follows each document.

        Raises:
            ConfigError: the framing has no such token.
        """
        if separator and framing.eod is None:
            raise ConfigError("this tokenizer has no end-of-document token; add one (<eod>), or set separator=false")
        return cls(corpus, framing.eod if separator else None)

    def read(self, start: int, stop: int) -> Stretch:
        """Tokens ``start:stop`` of the line."""
        parts: list[Stretch] = []
        number = bisect_right(range(self.corpus.num_documents), start, key=self._start) - 1
        place = start - self._start(number)
        missing = stop - start
        while missing > 0:
            length = self.corpus.document_length(number)
            if place < length:
                document = self.corpus.document(number, place, min(length, place + missing))
                sentences = np.zeros(len(document.ids), bool)
                sentences[document.sentences] = True
                parts.append(Stretch(document.ids, sentences, document.word_starts, np.zeros(len(document.ids), bool)))
                missing -= len(document.ids)
            if missing and self.eod is not None:
                parts.append(Stretch.of_token(self.eod, special=False))
                missing -= 1
            number, place = number + 1, 0
        return Stretch.join(parts)

    def _start(self, number: int) -> int:
        """Where document ``number`` begins in the line."""
        return self.corpus.document_start(number) + (number if self.eod is not None else 0)


@dataclass(frozen=True, slots=True)
class Stretch:
    """Adjacent tokens of a line, and properties of each: (n,)."""

    ids: np.ndarray  # int64
    sentences: np.ndarray  # bool: the first token of a sentence
    word_starts: np.ndarray  # bool
    special: np.ndarray  # bool: added by the framing, except end-of-document tokens, which are text

    @classmethod
    def of_token(cls, token: int, *, special: bool) -> Stretch:
        return cls(np.array([token]), np.zeros(1, bool), np.ones(1, bool), np.full(1, special))

    @classmethod
    def join(cls, parts: list[Stretch]) -> Stretch:
        ids = np.concatenate([part.ids for part in parts] or [np.zeros(0)], dtype=np.int64, casting="unsafe")
        marks = (
            np.concatenate([getattr(part, name) for part in parts] or [np.zeros(0, bool)])
            for name in ("sentences", "word_starts", "special")
        )
        return cls(ids, *marks)


@dataclass(frozen=True, kw_only=True)
class ContiguousStreams(BaseFormat):
    """Windows of ``length`` tokens for a language model with memory (Transformer-XL, section 3.2).

    A row holds one token more than its window: position i predicts token i + 1, and the last token is only a target.
    Label ``continues``: 1 if the row follows the previous one of its stream, 0 if memory must start empty.
    ``separator`` puts the end-of-document token after each document. ``variable`` draws the length of each window:
    around ``length`` (95%) or half of it (5%), normal with deviation 5, at least 5, at most ``length`` + 15. The last
    window of an epoch is short.
    """

    kind: Literal["contiguous_streams"] = "contiguous_streams"
    separator: bool = True
    variable: bool = False

    def window(self, length: int, stream_length: int, position: int, seed: int, epoch: int) -> tuple[int, int | None]:
        """Length of the window at ``position``, and the position of the next window, or None at the end
        of the epoch.
        """
        if self.variable:
            rng = generator(seed, "window", epoch, position)
            centre = length if rng.random() < 0.95 else length / 2
            length = min(max(5, int(rng.normal(centre, 5))), self.longest(length))
        length = min(length, stream_length - 1 - position)
        following = position + length
        return length, following if following < stream_length - 1 else None

    def longest(self, length: int) -> int:
        """Number of tokens in the longest window."""
        return length + 15 * self.variable

    def shortest(self, length: int) -> int:
        """Number of tokens that a stream needs for one window."""
        return 2

    def row(self, stream: Stream, position: int, length: int, framing: Framing, rng: np.random.Generator) -> Row:
        """The window of ``length`` tokens at ``position``, without special tokens; nothing is random."""
        stretch = stream.read(position, position + length + 1)
        return Row(
            ids=stretch.ids,
            doc=np.zeros(len(stretch.ids), np.int32),
            segments=np.zeros(len(stretch.ids), np.int8),
            word_starts=stretch.word_starts,
            special=stretch.special,
            labels={"continues": int(position > 0)},
        )


@dataclass(frozen=True, kw_only=True)
class XLNetStreams(BaseFormat):
    """XLNet's instances (Yang et al. 2019, section 2.5; ``data_utils.py``).

    A row of ``length`` tokens is ``reuse`` tokens that continue the stream (their hidden states become the memory of
    the next window) and then A <sep> B <sep> <cls>, where A follows the reused part up to a random end of a sentence,
    and B is the text after A or, with probability one half, text from another place of the stream. The window advances
    by ``reuse``. Segments are 0 for the reused part and A, 1 for B, 2 for <cls>. With ``both_directions``, rows 2s and
    2s + 1 read the same stream forwards and backwards, so that any even slice of a batch has both directions.

    Labels: ``next_sentence``, 1 = random as in other pairs (the release has 1 = B follows A, and no loss on it);
    ``backwards``; ``continues``.
    """

    kind: Literal["xlnet_streams"] = "xlnet_streams"
    reuse: int = 256
    both_directions: bool = True
    separator: bool = True

    def segments(self, kind: FramingKind) -> int:
        return 3

    def check(self, length: int) -> None:
        most = length - 5
        if most < 1:
            raise ConfigError(
                f"row length {length} leaves no room for text: xlnet_streams need a reused token, two texts and three "
                "special tokens; choose at least 6"
            )
        if not 0 < self.reuse <= most:
            raise ConfigError(
                f"rows of {length} tokens cannot reuse {self.reuse}: a stream advances by the reused tokens, "
                f"and two texts with three special tokens follow it; set format.reuse to {min(length // 2, most)}"
            )

    def shortest(self, length: int) -> int:
        """Number of tokens that a stream needs for one window."""
        return length

    def window(self, length: int, stream_length: int, position: int, seed: int, epoch: int) -> tuple[int, int | None]:
        """Length of the window at ``position``, and the position of the next window, or None at the end
        of the epoch.
        """
        following = position + self.reuse
        return length, following if following + length <= stream_length else None

    def row(self, stream: Stream, position: int, length: int, framing: Framing, rng: np.random.Generator) -> Row:
        """The window at ``position``, with A and B drawn from ``rng``."""
        begin = position + self.reuse
        a, b, follows = self._split(stream, begin, length - self.reuse - 3, rng)
        sep, cls = Stretch.of_token(framing.sep, special=True), Stretch.of_token(framing.cls, special=True)
        stretch = Stretch.join([stream.read(position, begin), stream.read(*a), sep, stream.read(*b), sep, cls])
        a_length, b_length = a[1] - a[0], b[1] - b[0]
        return Row(
            ids=stretch.ids,
            doc=np.zeros(length, np.int32),
            segments=np.repeat(np.array([0, 1, 2], np.int8), [self.reuse + a_length + 1, b_length + 1, 1]),
            word_starts=stretch.word_starts,
            special=stretch.special,
            labels={
                "next_sentence": int(not follows),
                "backwards": int(stream.backwards),
                "continues": int(position > 0),
            },
        )

    def _split(
        self, stream: Stream, begin: int, room: int, rng: np.random.Generator
    ) -> tuple[tuple[int, int], tuple[int, int], bool]:
        """Places in the stream of A, which begins at ``begin``, and of B, and whether B follows A.

        Both end with a sentence and are then cut to ``room`` tokens together, the longer one first.
        """
        last = stream.length
        ends = np.flatnonzero(stream.read(begin, begin + room).sentences[1:]) + 1
        follows = len(ends) > 0 and rng.random() >= 0.5
        a_end = begin + (int(ends[int(rng.integers(len(ends)))]) if len(ends) else room)
        if follows:
            b_begin = a_end
            b_end = self._sentence_end(stream, max(begin + room, b_begin + 1), last, room)
        else:
            b_length = max(1, room - (a_end - begin))
            b_begin = int(rng.integers(last - b_length))
            b_end = self._sentence_end(stream, b_begin + b_length, last - 1, room)
            b_begin = self._sentence_begin(stream, b_begin)
        a_length, b_length = a_end - begin, b_end - b_begin
        excess = max(0, a_length + b_length - room)
        uneven = min(excess, abs(a_length - b_length))
        even = excess - uneven
        a_end -= (uneven if a_length > b_length else 0) + even // 2
        b_end -= (uneven if a_length <= b_length else 0) + (even + 1) // 2
        return (begin, a_end), (b_begin, b_end), follows

    @staticmethod
    def _sentence_end(stream: Stream, place: int, last: int, room: int) -> int:
        """The first start of a sentence at or after ``place``, but at most ``room`` tokens on, where the text is cut
        anyway.
        """
        limit = min(place + room, last)
        if place >= limit:
            return min(place, last)
        starts = np.flatnonzero(stream.read(place, limit).sentences)
        return place + int(starts[0]) if len(starts) else limit

    @staticmethod
    def _sentence_begin(stream: Stream, place: int) -> int:
        """The last start of a sentence at or before ``place``; searches parts of doubling size."""
        stop, size = place + 1, 64
        while True:
            start = max(0, stop - size)
            starts = np.flatnonzero(stream.read(start, stop).sentences)
            if len(starts) and start + int(starts[-1]) > 0:
                return start + int(starts[-1])
            if start == 0:
                return 0
            stop, size = start, 2 * size


StreamFormat = ContiguousStreams | XLNetStreams
"""A format of rows that follow each other. ``window(length, stream_length, position, seed, epoch)`` returns the length
of the window at a position and the position of the next, and ``row(stream, position, length, framing, rng)`` makes its
row of one stream.
"""


@dataclass(frozen=True, slots=True)
class Stream:
    """One part of a line, read forwards or backwards."""

    line: TokenLine
    start: int  # first token in the line
    length: int
    backwards: bool = False

    def read(self, begin: int, end: int) -> Stretch:
        """Tokens ``begin:end`` of the stream. Backwards, a sentence starts where the next sentence of the text ends."""
        if not self.backwards:
            return self.line.read(self.start + begin, self.start + end)
        stop = self.start + self.length
        text = self.line.read(stop - end, min(stop - begin + 1, stop))
        size = end - begin
        sentences = np.ones(size, bool)
        sentences[size - (len(text.ids) - 1) :] = text.sentences[:0:-1]
        return Stretch(text.ids[:size][::-1], sentences, text.word_starts[:size][::-1], text.special[:size][::-1])


def parallel_streams(line: TokenLine, count: int, format: StreamFormat, length: int) -> list[Stream]:
    """The streams of a batch of ``count`` rows of ``length`` tokens; tokens beyond equal parts are left out.

    Raises:
        ConfigError: an odd count with two directions.
        DataError: too little text for one window of each.
    """
    both = isinstance(format, XLNetStreams) and format.both_directions
    if both and count % 2:
        raise ConfigError(
            f"{count} rows cannot be half forwards and half backwards; choose an even number of rows in a batch"
        )
    parts = count // 2 if both else count
    size, needed = line.length // parts, format.shortest(length)
    if size < needed:
        raise DataError(
            f"corpus of {line.length:,} tokens gives {parts} streams of {size} tokens, shorter than one window of "
            f"{needed}; add text, or choose fewer rows in a batch or a shorter window"
        )
    directions = (False, True) if both else (False,)
    return [Stream(line, part * size, size, backwards) for part in range(parts) for backwards in directions]
