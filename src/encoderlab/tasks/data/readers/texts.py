"""Layouts of one or two texts with a label or a number."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from encoderlab.errors import DataError
from encoderlab.tasks.data.examples import Remarks, Text
from encoderlab.tasks.data.readers.common import (
    Layout,
    id_of,
    label_of,
    nearest_place,
    nearest_words,
    nested,
    nested_value,
    records,
    text_of,
)
from encoderlab.tasks.data.records import Record


@dataclass(frozen=True, kw_only=True)
class Columns(Layout):
    """One or two texts and a label in columns of a table, of JSON records or of a Parquet file.

    A column is a name, or a number (``"3"``, from 0) for a table without a header.

    Args:
        label: None reads no labels.
        id: None takes the number of the row in the file, from 0.
        quoted: of a tab-separated file, see :func:`encoderlab.tasks.data.records.table`.
        only: a column and its value in the rows that are read.
        several: the separator of the labels in a cell; ``"[]"`` for lists (:func:`nested_value`).
        flags: columns of 0 and 1, one for each label, instead of ``label``.
    """

    text: str
    pair: str | None = None
    label: str | None = "label"
    id: str | None = None
    quoted: bool | None = None
    only: tuple[str, str] | None = None
    several: str | None = None
    flags: tuple[str, ...] = ()

    @property
    def needs(self) -> tuple[str, ...]:
        return (self.text,) if self.pair is None else (self.text, self.pair)

    @property
    def label_column(self) -> str | None:
        """The column of the label; of several, their names with commas between; None without labels."""
        return ",".join(self.flags) or self.label

    def unlabelled(self) -> Self:
        return replace(self, label=None, flags=())

    def has_labels(self, columns: Sequence[str]) -> bool:
        """Whether a file with these columns has those of the labels."""
        return self.positional or set(self.flags or (self.label,)) <= set(columns)

    def read(self, path: Path, remarks: Remarks) -> Iterator[Text]:
        needs = (*self.needs, *self.flags)
        for record in records(
            path, remarks, needs, self.label, self.id, positional=self.positional, quoted=self.quoted
        ):
            if self.only is not None and record.fields.get(self.only[0]) != self.only[1]:
                continue
            text = text_of(record, self.text, path)
            pair = None if self.pair is None else text_of(record, self.pair, path)
            if not text.strip() or pair == "":
                remarks.add("empty text", record.row)
            yield Text(
                id=id_of(record, self.id, remarks),
                text=text,
                pair=pair,
                label=self._label(record, path),
                row=record.row,
            )

    def _label(self, record: Record, path: Path) -> str | tuple[str, ...] | None:
        if self.flags:
            return _flagged(record, self.flags, path)
        return None if self.label is None else _labels_of(record.fields.get(self.label), self.several)


def _flagged(record: Record, names: Sequence[str], path: Path) -> tuple[str, ...] | None:
    """The columns among ``names`` with 1; None where all are empty or -1, as in a test file.

    Raises:
        DataError: another value than 0 or 1.
    """
    values = {name: (label_of(record.fields.get(name)) or "").strip().lower().removesuffix(".0") for name in names}
    if set(values.values()) <= {"", "-1"}:
        return None
    for name, value in values.items():
        if value not in ("0", "1", "false", "true"):
            raise DataError(f"{path}:{record.row}: {name!r} is {value!r}, expected 0 or 1; correct the row")
    return tuple(name for name, value in values.items() if value in ("1", "true"))


def _labels_of(value: Any, several: str | None) -> str | tuple[str, ...] | None:
    """The label in a cell, or several labels in a list or separated by ``several`` (:class:`Columns`)."""
    if isinstance(value, list):
        return tuple(str(label_of(label)) for label in value if label is not None)
    return parts_of(value, several) if several is not None and isinstance(value, str) else label_of(value)


def parts_of(cell: str, several: str) -> tuple[str, ...]:
    """The labels in a cell, separated by ``several`` (:class:`Columns`)."""
    if several == "[]":
        listed = nested_value(cell.strip())
        if isinstance(listed, list):
            parts = [str(part) for part in listed if part is not None]
        else:  # without quotes
            parts = [part.strip("\"' ") for part in cell.strip("[] ").split(",")]
    else:
        parts = cell.split(several)
    return tuple(part.strip() for part in parts if part.strip())


@dataclass(frozen=True, kw_only=True)
class MarkedText(Layout):
    """A text with two spans, and a label that says whether they refer to the same thing (WSC, CLUEWSC).

    The first is marked by underscores and the second by brackets, as in CLUE's baselines. The file gives the first
    character of each (CLUEWSC), or the first of its ``words`` (SuperGLUE), in an object ``target`` or in columns of
    their own (Hugging Face).
    """

    words: bool | None = None
    needs = ("text", "target")

    def matches(self, columns: Sequence[str]) -> bool:
        flat = {f"span{i}_{field}" for i in (1, 2) for field in ("index", "text")}
        return "text" in columns and ("target" in columns or flat <= set(columns))

    def read(self, path: Path, remarks: Remarks) -> Iterator[Text]:
        words = self.words
        for record in nested(path, remarks):
            text, target = text_of(record, "text", path), record.fields.get("target", record.fields)
            spans = [(str(target[f"span{i}_text"]), int(target[f"span{i}_index"])) for i in (1, 2)]
            if words is None:
                words = not all(text.startswith(span, place) for span, place in spans)
            marks: list[tuple[int, int, int, str]] = []  # place, closing before opening, inner before outer
            for (span, place), (opening, closing) in zip(spans, (("_", "_"), ("[", "]")), strict=True):
                start = _start(text, span, place, words, record.row, remarks)
                if start >= 0:
                    end = start + len(span)
                    marks += [(start, 1, -end, opening), (end, 0, -start, closing)]
            for place, _, _, mark in sorted(marks, reverse=True):
                text = text[:place] + mark + text[place:]
            label = label_of(record.fields.get("label"))
            name = "id" if "id" in record.fields else "idx"
            yield Text(id=id_of(record, name, remarks), text=text, label=label, row=record.row)


def _start(text: str, span: str, place: int, words: bool, row: int, remarks: Remarks) -> int:
    """The character where ``span`` begins, given its first character or word; -1 if the text does not contain it."""
    if words:
        place = len(" ".join(text.split(" ")[:place])) + bool(place)
    if text[place : place + len(span)].lower() == span.lower():
        return place
    start = nearest_words(text, span, place) if words else nearest_place(text, span, place)
    then = "; the nearest mention is marked" if start >= 0 else ", nor anywhere else; it is not marked"
    remarks.add(f"a span is not at its offset{then}", row)
    return start


@dataclass(frozen=True, kw_only=True)
class WordInContext(Layout):
    """WiC: does a word mean the same in two sentences? The first text is the word, a colon and the first sentence."""

    needs = ("word", "sentence1", "sentence2")

    def read(self, path: Path, remarks: Remarks) -> Iterator[Text]:
        for record in nested(path, remarks):
            first = f"{text_of(record, 'word', path)}: {text_of(record, 'sentence1', path)}"
            label = label_of(record.fields.get("label"))
            second = text_of(record, "sentence2", path)
            yield Text(id=id_of(record, "idx", remarks), text=first, pair=second, label=label, row=record.row)


@dataclass(frozen=True, kw_only=True)
class Keywords(Layout):
    """CSL: are these the keywords of the abstract? Keywords joined by spaces, then the abstract."""

    needs = ("keyword", "abst")

    def read(self, path: Path, remarks: Remarks) -> Iterator[Text]:
        for record in nested(path, remarks):
            words = record.fields["keyword"]
            words = " ".join(words) if isinstance(words, list) else str(words)
            label = label_of(record.fields.get("label"))
            abstract = text_of(record, "abst", path)
            yield Text(id=id_of(record, "id", remarks), text=words, pair=abstract, label=label, row=record.row)


@dataclass(frozen=True, kw_only=True)
class MultiRC(Layout):
    """MultiRC: every answer option of a question about a passage is right or wrong; one example per option."""

    needs = ("passage",)

    def matches(self, columns: Sequence[str]) -> bool:
        return "passage" in columns or {"paragraph", "question", "answer"} <= set(columns)

    def read(self, path: Path, remarks: Remarks) -> Iterator[Text]:
        for record in nested(path, remarks):
            if "paragraph" in record.fields:  # Hugging Face: one row per option
                fields, index = record.fields, record.fields.get("idx") or {}
                group = f"{index.get('paragraph', fields['paragraph'])}-{index.get('question', fields['question'])}"
                yield Text(
                    id=f"{group}-{index.get('answer', remarks.number)}",
                    text=fields["paragraph"],
                    pair=f"{fields['question']} {fields['answer']}",
                    label=label_of(fields.get("label")),
                    group=group,
                    row=record.row,
                )
                continue
            passage = record.fields["passage"]
            for question in passage["questions"]:
                group = f"{record.fields.get('idx', remarks.number)}-{question.get('idx', question['question'])}"
                for place, answer in enumerate(question["answers"]):
                    yield Text(
                        id=f"{group}-{answer.get('idx', place)}",
                        text=passage["text"],
                        pair=f"{question['question']} {answer['text']}",
                        label=label_of(answer.get("label")),
                        group=group,
                        row=record.row,
                    )
