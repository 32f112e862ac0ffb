"""Rows of a batch, the special tokens around them, and the plan from which rows are read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol

import numpy as np

from encoderlab.config import Bounded
from encoderlab.ranges import aranges, offsets

if TYPE_CHECKING:
    from encoderlab.corpus.shards import Document
    from encoderlab.corpus.special_tokens import FramingKind


class Documents(Protocol):
    """The attributes of :class:`encoderlab.corpus.shards.Corpus` that rows are made from."""

    num_documents: int
    num_tokens: int

    def document(self, i: int, start: int = 0, stop: int | None = None) -> Document: ...
    def document_length(self, i: int) -> int: ...
    def document_start(self, i: int) -> int: ...
    def gather(self, documents: np.ndarray, starts: np.ndarray, stops: np.ndarray) -> tuple[np.ndarray, np.ndarray]: ...


class BaseFormat(Bounded):
    """What all formats of rows share."""

    pairs: ClassVar[bool] = False
    """Whether rows have segments A and B."""

    def longest(self, length: int) -> int:
        """Number of tokens in the longest row that ``length`` makes."""
        return length

    def segments(self, kind: FramingKind) -> int:
        """Number of segments in rows with a framing of this kind."""
        return 3 if kind == "xlnet" else 2 if self.pairs and kind == "bert" else 1

    def check(self, length: int) -> None:
        """Refuse lengths that the format cannot make.

        Raises:
            ConfigError: the format cannot make such rows.
        """


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a batch before corruption. Arrays of length n, special tokens included, no padding."""

    ids: np.ndarray  # int64
    doc: np.ndarray  # int32: positions see each other if equal
    segments: np.ndarray  # int8: 0 for A, 1 for B, 2 for XLNet's [CLS]
    word_starts: np.ndarray  # bool; True at special tokens, and where a cut text begins
    special: np.ndarray  # bool: added by the framing
    labels: dict[str, int]
    key: tuple[int, ...] = ()  # names the row for seeding: (epoch, block, index)
    number: int = 0  # number of the row within the run
    progress: float = 1.0  # share of the run before this row; 1 outside training

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True, kw_only=True)
class Framing:
    """The special tokens around one or two texts.

    =======  ========================  ================
    kind     pair                      single
    =======  ========================  ================
    bert     [CLS] A [SEP] B [SEP]     [CLS] A [SEP]
    roberta  <s> A </s></s> B </s>     <s> A </s>
    xlnet    A <sep> B <sep> <cls>     A <sep> <cls>
    =======  ========================  ================

    Segments are 0 for A with its separator, 1 for B with its separator, 2 for XLNet's <cls>; RoBERTa has segment 0
    only.
    """

    kind: FramingKind = "bert"
    cls: int
    sep: int
    eod: int | None = None

    @property
    def single(self) -> int:
        """Number of special tokens around one text."""
        return 2

    @property
    def pair(self) -> int:
        """Number of special tokens around two texts."""
        return 4 if self.kind == "roberta" else 3


# How the pieces of a row become texts:
#   single   all pieces are one text                                          [CLS] p q [SEP]
#   pair     pieces of part 0 are A, those of part 1 are B                    [CLS] A [SEP] B [SEP]
#   joined   a separator after each piece, all in one document                [CLS] p [SEP] q [SEP]
#   packed   each piece is framed on its own and sees only itself             [CLS] p [SEP] [CLS] q [SEP]
Placement = Literal["single", "pair", "joined", "packed"]


@dataclass(frozen=True)
class Plan:
    """The rows of a block as ranges of tokens: row r has the pieces ``first[r] : first[r + 1]``, at least one.

    Piece p is the tokens ``start[p] : stop[p]`` of document ``document[p]``.
    """

    placement: Placement
    first: np.ndarray  # (R + 1,) int64
    document: np.ndarray  # (P,) int64
    start: np.ndarray  # (P,) int64, within the document
    stop: np.ndarray  # (P,) int64
    part: np.ndarray  # (P,) int8
    labels: dict[str, np.ndarray] = field(default_factory=dict)  # name -> (R,) int8

    def __len__(self) -> int:
        return len(self.first) - 1

    def lengths(self, framing: Framing) -> np.ndarray:
        """Number of tokens of every row, special tokens included: (R,) int64."""
        line = self._line(np.arange(len(self)), framing)
        return np.diff(line.row_edges)

    def rows(
        self, index: np.ndarray, corpus: Documents, framing: Framing, key: tuple[int, ...] = (), number: int = 0
    ) -> list[Row]:
        """Read some rows of the plan from the corpus, all at once; about 10 microseconds each.

        Args:
            index: (r,), which rows.
            key: with the row's index appended, the key of its random numbers (:attr:`Row.key`).
            number: of the first of these rows within the run (:attr:`Row.number`); the others count on.
        """
        line = self._line(index, framing)
        ids, word_starts, special = self._tokens(line, corpus, framing)
        segments = self._segments(line, framing)
        doc = np.zeros(len(ids), np.int32)
        if self.placement == "packed":
            doc[:] = np.repeat(line.place, line.ends - line.begins)
        labels = {name: values[index].tolist() for name, values in self.labels.items()}
        edges = line.row_edges.tolist()
        return [
            Row(
                ids=ids[begin:end],
                doc=doc[begin:end],
                segments=segments[begin:end],
                word_starts=word_starts[begin:end],
                special=special[begin:end],
                labels={name: values[place] for name, values in labels.items()},
                key=(*key, row),
                number=number + place,
            )
            for place, (row, begin, end) in enumerate(zip(index.tolist(), edges[:-1], edges[1:], strict=True))
        ]

    def _line(self, index: np.ndarray, framing: Framing) -> _Line:
        """Where the tokens of these rows are when the rows are concatenated.

        A piece is its text with the special tokens that its place in the row and the framing require: [CLS] and
        separators before the text, separators and [CLS] after it.
        """
        counts = self.first[index + 1] - self.first[index]  # number of pieces
        pieces, place = aranges(self.first[index], counts), aranges(0, counts)
        opens, closes = place == 0, place == np.repeat(counts, counts) - 1
        apart = self.placement == "packed"
        cls_first = (opens | apart) & (framing.kind != "xlnet")
        cls_last = (closes | apart) & (framing.kind == "xlnet")
        sep_first, sep_last = np.zeros(len(pieces), np.int64), np.ones(len(pieces), np.int64)
        if self.placement == "single":
            sep_last[:] = closes
        elif self.placement == "pair":
            between = 2 if framing.kind == "roberta" else 1
            part = self.part[pieces]
            sep_last[:-1] = np.where(closes[:-1], 1, between * (part[:-1] != part[1:]))
            sep_first[opens & (part == 1)] = between  # an empty A still has its special tokens
        before, after = cls_first + sep_first, sep_last + cls_last
        edges = offsets(before + self.stop[pieces] - self.start[pieces] + after)
        return _Line(
            pieces=pieces,
            place=place,
            begins=edges[:-1],
            texts=edges[:-1] + before,
            ends=edges[1:],
            cls_first=cls_first,
            cls_last=cls_last,
            row_edges=edges[offsets(counts)],
        )

    def _tokens(self, line: _Line, corpus: Documents, framing: Framing) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Ids, word starts and marks of special tokens: (n,) each."""
        start, stop = self.start[line.pieces], self.stop[line.pieces]
        text = aranges(line.texts, stop - start)
        ids = np.full(line.row_edges[-1], framing.sep)
        word_starts, special = np.ones(len(ids), bool), np.ones(len(ids), bool)
        ids[text], word_starts[text] = corpus.gather(self.document[line.pieces], start, stop)
        ids[line.begins[line.cls_first]] = ids[line.ends[line.cls_last] - 1] = framing.cls
        word_starts[line.texts] = True
        special[text] = False
        return ids, word_starts, special

    def _segments(self, line: _Line, framing: Framing) -> np.ndarray:
        """(n,) int8: see :class:`Framing`."""
        if self.placement == "pair" and framing.kind != "roberta":
            part = self.part[line.pieces]
        else:
            part = np.zeros(len(line.pieces), np.int8)
        segments = np.repeat(part, line.ends - line.begins)
        for piece in np.flatnonzero((line.place == 0) & (part == 1)):  # the special tokens of an empty A
            segments[line.begins[piece] : line.texts[piece]] = 0
        segments[line.ends[line.cls_last] - 1] = 2
        return segments


@dataclass(frozen=True, slots=True)
class _Line:
    """Concatenated rows, as places of tokens: (p,) for the pieces, each with its special tokens around it."""

    pieces: np.ndarray  # index in the plan
    place: np.ndarray  # index within the row
    begins: np.ndarray  # the first token, special tokens included
    texts: np.ndarray  # the first token of the text
    ends: np.ndarray  # one past the last token, special tokens included
    cls_first: np.ndarray  # bool: begins with [CLS]
    cls_last: np.ndarray  # bool: ends with [CLS]
    row_edges: np.ndarray  # (r + 1,): where each row begins, and the end of the last
