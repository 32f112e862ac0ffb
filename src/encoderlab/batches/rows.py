"""Rows: what a batch is made of, how special tokens frame them, and the plan from which they are read when needed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np

if TYPE_CHECKING:
    from encoderlab.corpus.shards import Document


class Documents(Protocol):
    """The part of :class:`encoderlab.corpus.shards.Corpus` that rows are made from."""

    num_documents: int
    num_tokens: int

    def document(self, i: int, start: int = 0, stop: int | None = None) -> Document: ...
    def document_length(self, i: int) -> int: ...
    def document_start(self, i: int) -> int: ...
    def gather(self, documents: np.ndarray, starts: np.ndarray, stops: np.ndarray) -> tuple[np.ndarray, np.ndarray]: ...


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a batch before corruption. Arrays of length n, special tokens included, no padding."""

    ids: np.ndarray  # int64
    doc: np.ndarray  # int32: positions see each other iff equal
    segments: np.ndarray  # int8: 0 for A, 1 for B, 2 for XLNet's [CLS]
    word_starts: np.ndarray  # bool; true at special tokens, and where a cut text begins
    special: np.ndarray  # bool: added by the framing
    labels: dict[str, int]
    key: tuple[int, ...]  # names the row for seeding: (epoch, block, index)
    number: int = 0  # counts the rows of the run from its start

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

    Segments are 0 for A with its separator, 1 for B with its separator, 2 for XLNet's <cls>; RoBERTa has no second one.
    """

    kind: Literal["bert", "roberta", "xlnet"] = "bert"
    cls: int
    sep: int
    eod: int | None = None

    @property
    def single(self) -> int:
        """Special tokens around one text."""
        return 2

    @property
    def pair(self) -> int:
        """Special tokens around two texts."""
        return 4 if self.kind == "roberta" else 3


# How the pieces of a row become texts:
#   single   all pieces are one text                                          [CLS] p q [SEP]
#   pair     pieces of part 0 are A, those of part 1 are B                    [CLS] A [SEP] B [SEP]
#   joined   a separator after each piece, all in one document                [CLS] p [SEP] q [SEP]
#   packed   each piece is framed on its own and sees only itself             [CLS] p [SEP] [CLS] q [SEP]
Layout = Literal["single", "pair", "joined", "packed"]


@dataclass(frozen=True)
class Plan:
    """The rows of a block as ranges of tokens: row r holds the pieces ``first[r] : first[r + 1]``, at least one.

    Piece p is the tokens ``start[p] : stop[p]`` of document ``document[p]``.
    """

    layout: Layout
    first: np.ndarray  # (R + 1,) int64
    document: np.ndarray  # (P,) int64
    start: np.ndarray  # (P,) int64, within the document
    stop: np.ndarray  # (P,) int64
    part: np.ndarray  # (P,) int8
    labels: dict[str, np.ndarray] = field(default_factory=dict)  # name -> (R,) int8

    def __len__(self) -> int:
        return len(self.first) - 1

    def lengths(self, framing: Framing) -> np.ndarray:
        """Tokens of every row, special tokens included: (R,) int64."""
        pieces = np.arange(len(self.start))
        special = self._special(pieces, np.repeat(np.arange(len(self)), np.diff(self.first)), framing)
        ends = np.concatenate([[0], np.cumsum(self.stop - self.start + special.sum(axis=0))])
        return ends[self.first[1:]] - ends[self.first[:-1]]

    def rows(
        self,
        index: np.ndarray,
        corpus: Documents,
        framing: Framing,
        key: tuple[int, ...] = (),
        numbers: Sequence[int] | None = None,
    ) -> list[Row]:
        """Some rows of the plan, read from the corpus now: all at once, about 10 microseconds each.

        Args:
            index: (r,), which rows.
            key: with the row's index behind it, the key of its random numbers (:attr:`Row.key`).
            numbers: of the rows within the run, for :attr:`Row.number`; None for 0.
        """
        counts = self.first[index + 1] - self.first[index]
        row = np.repeat(np.arange(len(index)), counts)
        place = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
        pieces = self.first[index][row] + place

        lengths = self.stop[pieces] - self.start[pieces]
        special = self._special(pieces, row, framing)
        cls_before, sep_before, _, cls_after = special
        sizes = lengths + special.sum(axis=0)
        ends = np.cumsum(sizes)
        begins = ends - sizes + cls_before + sep_before  # of the text of each piece
        text = np.arange(lengths.sum()) + np.repeat(begins - (np.cumsum(lengths) - lengths), lengths)

        ids = np.full(int(ends[-1]) if len(ends) else 0, framing.sep)
        word_starts, is_special = np.ones(len(ids), bool), np.ones(len(ids), bool)
        ids[text], word_starts[text] = corpus.gather(self.document[pieces], self.start[pieces], self.stop[pieces])
        word_starts[begins] = True
        is_special[text] = False
        ids[(ends - sizes)[cls_before > 0]] = ids[ends[cls_after > 0] - 1] = framing.cls
        part = (
            self.part[pieces] if self.layout == "pair" and framing.kind != "roberta" else np.zeros(len(pieces), np.int8)
        )
        segments = np.repeat(part, sizes)
        for p in np.flatnonzero(sep_before):  # an empty A has its special tokens all the same
            segments[ends[p] - sizes[p] : begins[p]] = 0
        segments[ends[cls_after > 0] - 1] = 2
        doc = np.repeat((place * (self.layout == "packed")).astype(np.int32), sizes)

        bounds = [0, *ends[np.cumsum(counts) - 1].tolist()]
        labels = {name: values[index].tolist() for name, values in self.labels.items()}
        made = []
        for r, (number, a, b) in enumerate(zip(index.tolist(), bounds[:-1], bounds[1:], strict=True)):
            made.append(
                Row(
                    ids[a:b],
                    doc[a:b],
                    segments[a:b],
                    word_starts[a:b],
                    is_special[a:b],
                    {name: values[r] for name, values in labels.items()},
                    (*key, number),
                    numbers[r] if numbers is not None else 0,
                )
            )
        return made

    def _special(self, pieces: np.ndarray, row: np.ndarray, framing: Framing) -> np.ndarray:
        """Special tokens around each piece: (4, p) counts of cls before, sep before, sep after, cls after."""
        opens, closes = np.ones(len(row), bool), np.ones(len(row), bool)
        opens[1:] = closes[:-1] = row[1:] != row[:-1]
        apart, last = self.layout == "packed", framing.kind == "xlnet"
        cls_before, cls_after = (opens | apart) & (not last), (closes | apart) & last
        sep_before, sep_after = np.zeros(len(row), np.int64), np.ones(len(row), np.int64)
        if self.layout == "single":
            sep_after[:] = closes
        elif self.layout == "pair":
            between = 2 if framing.kind == "roberta" else 1
            part = self.part[pieces]
            sep_after[:-1] = np.where(closes[:-1], 1, between * (part[:-1] != part[1:]))
            sep_before[opens & (part == 1)] = between
        return np.stack([cls_before, sep_before, sep_after, cls_after]).astype(np.int64)
