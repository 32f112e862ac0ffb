"""What a task is: examples of one of five forms, the files that hold them, its labels and its metrics.

A task is data: :class:`Task` says which columns of which files are text and label, and the tables in
:mod:`encoderlab.tasks.suites` hold one for every benchmark. How a form is encoded, learned and decoded is in
``classify``, ``tokens``, ``span`` and ``choice``.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from encoderlab.errors import DataError, nearest

Form = Literal["classification", "regression", "tagging", "span", "choice"]
FORMS: dict[str, str] = {
    "classification": "a label for one or two texts",
    "regression": "a number for one or two texts",
    "tagging": "a tag for every word",
    "span": "an answer within a passage",
    "choice": "one of several options",
}

DECIMAL_COMMA = r"[-+]?\d+,\d+"


@dataclass(frozen=True, kw_only=True, slots=True)
class Text:
    """One or two texts with a label: a name (classification), a number (regression), or None where there is none."""

    id: str
    text: str
    pair: str | None = None
    label: str | float | None = None
    group: str = ""  # examples that are scored together: the question of a MultiRC answer
    row: int = 0  # line of the file, from 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Words:
    """A sentence of words, each with a tag; ``document`` counts the documents of the file."""

    id: str
    words: tuple[str, ...]
    tags: tuple[str, ...] | None = None
    document: int = 0
    row: int = 0
    by_line: bool = False  # every word has a line of its own, from ``row`` on


@dataclass(frozen=True, slots=True)
class Answer:
    """A reference answer and the character of the passage where it starts; -1 if it is not to be found there."""

    text: str
    start: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """A question about a passage. ``answers`` is empty if there is none in the passage, None in a test file."""

    id: str
    question: str
    passage: str
    answers: tuple[Answer, ...] | None = None
    row: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """A context, a question (each may be empty) and options; ``answers`` are the indices of the right ones.

    ``answers`` is None in a test file. ``gap`` marks the place in context or question that the options are for.
    """

    id: str
    context: str
    question: str
    options: tuple[str, ...]
    answers: tuple[int, ...] | None = None
    gap: str = ""
    row: int = 0


Example = Text | Words | Question | Choice


class Remarks:
    """What a reader met and carried on from: counted by kind, with the first row of each.

    ``row`` is being read; ``number`` counts the rows before it, those of the files read before (``first``) included.
    """

    def __init__(self, path: Path, first: int = 0) -> None:
        self.path = path
        self.row = 0
        self.first = first
        self.number = first - 1
        self.found: dict[str, tuple[int, int]] = {}

    def add(self, message: str, row: int) -> None:
        count, first = self.found.get(message, (0, row))
        self.found[message] = (count + 1, first)

    def note(self, message: str) -> None:
        """Something about the file as a whole."""
        self.found[message] = (0, 0)

    def lines(self) -> tuple[str, ...]:
        """One line per kind: ``"train.tsv: 3 rows: no text (first: row 17)"``."""
        return tuple(
            f"{self.path.name}: {count:,} row{'s' * (count > 1)}: {message} (first: row {row})"
            if count
            else f"{self.path.name}: {message}"
            for message, (count, row) in self.found.items()
        )


class Layout(Protocol):
    """How a file holds examples; the layouts are in :mod:`encoderlab.tasks.readers`."""

    def matches(self, columns: Sequence[str]) -> bool:
        """Whether a file with these columns (a table's header or a record's keys; empty for other files) has this
        layout."""

    def read(self, path: Path, remarks: Remarks) -> Iterator[Example]:
        """The examples in order, labels as they stand in the file."""


@dataclass(frozen=True, kw_only=True)
class Split:
    """The examples of one file (or of several that belong together), and where they came from."""

    name: str
    examples: tuple[Any, ...]
    files: tuple[str, ...]
    sha256: str
    remarks: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.examples)


@dataclass(frozen=True, kw_only=True)
class Submission:
    """The file a leaderboard takes: ``format`` names a writer of :mod:`encoderlab.tasks.submit`, ``rows`` its line
    count."""

    format: Literal["glue", "superglue", "squad", "squad2", "clue", "clue_json", "conll"]
    files: Mapping[str, str]  # split -> file name
    rows: Mapping[str, int] = dataclasses.field(default_factory=dict)  # split -> number of examples


@dataclass(frozen=True, kw_only=True)
class Task:
    """Labelled data with a metric.

    Args:
        labels: the classes in order, or None to take them from the training split.
        indices: a number in a file of a task with named labels is the index of its label, as in Hugging Face data sets.
        metrics: names; the first one selects models.
        folders: names of the task's folder below a data folder.
        files: patterns of the files of each split within that folder; the first that matches counts, ``.gz`` or not.
        layouts: the first whose columns are in the file reads it.
        sets: where one file may hold several splits, the column that tells them apart and its value for each split.
        range: smallest and largest number of a regression.
        swap: the two texts may be exchanged (MRPC, STS-B): ELECTRA trains on both orders.
        dropped: labels of rows to leave out ("-": the annotators found no majority).
        answers: how answers of a span task are scored. Only ``squad`` knows questions without an answer.
    """

    name: str
    form: Form
    metrics: tuple[str, ...]
    layouts: tuple[Layout, ...]
    labels: tuple[str, ...] | None = None
    folders: tuple[str, ...] = ()
    files: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    sets: Mapping[str, tuple[str, str]] = dataclasses.field(default_factory=dict)
    indices: bool = True
    range: tuple[float, float] | None = None
    swap: bool = False
    dropped: tuple[str, ...] = ()
    answers: Literal["squad", "triviaqa", "cmrc", "record"] = "squad"
    submission: Submission | None = None
    language: Literal["en", "zh"] = "en"

    @property
    def metric(self) -> str:
        """The metric that selects models."""
        return self.metrics[0]

    def find(self, data: Path, split: str) -> list[Path]:
        """The files of a split below the folder ``data``, or below a folder of the task's name in it.

        Of a file and its compressed copy, the plain one is taken.

        Raises:
            DataError: there is none; the message names the patterns and folders that were tried.
        """
        found = next(self._places(data, split), None)
        if found is not None:
            return found
        patterns = self.files.get(split, ())
        where = ", ".join([str(data), *(str(data / name) for name in self.folders)])
        raise DataError(
            f"{self.name}: no {split} file ({' or '.join(patterns) or 'the task has none'}) in {where}; "
            f"give the folder with --data"
        )

    def _places(self, data: Path, split: str) -> Iterator[list[Path]]:
        """The files of a split in every folder where they may lie."""
        for folder in (data, *(data / name for name in self.folders)):
            for pattern in self.files.get(split, ()):
                plain = set(folder.glob(pattern))
                found = plain | {path for path in folder.glob(pattern + ".gz") if path.with_suffix("") not in plain}
                if found:
                    yield sorted(found)
                    break

    def load(self, data: Path, split: str) -> Split:
        """Read a split (``train``, ``dev``, ``test``, ...) from ``data``, a folder or one file."""
        if not data.exists():
            raise DataError(f"{data}: does not exist; give the file of the {split} split, or the folder of the task")
        if data.is_file():
            return self.read([data], split)
        paths = self.find(data, split)
        copies = [path for path in paths if path.with_name(path.name + ".gz").exists()]
        found = self.read(paths, split)
        unread = tuple(f"{path.name}: read; {path.name}.gz beside it is not" for path in copies)
        others = [other[0] for other in self._places(data, split) if not other[0].samefile(paths[0])]
        unread += tuple(f"{paths[0]}: read; {other} is not, give its folder with --data for it" for other in others)
        return dataclasses.replace(found, remarks=found.remarks + unread)

    def read(self, paths: Sequence[Path], split: str) -> Split:
        """Read ``paths`` as one split and check every label. A test file without any answer has no labels, unless the
        task knows questions that have none.

        Raises:
            DataError: a file or row that cannot be used, a label that is none, duplicate ids, no label in ``train``
            or ``dev``.
        """
        examples: list[Example] = []
        remarks: list[str] = []
        digest = hashlib.sha256()
        seen: dict[str, str] = {}
        first = 0
        for path in paths:
            digest.update(path.read_bytes())
            notes = Remarks(path, first)
            for example in self._of(split, path).stream(path, notes):
                place = f"{path}:{example.row}"
                self._check_id(example, place, seen, notes)
                if not split.startswith("test") and is_unlabelled(example):
                    raise DataError(
                        f"{place}: no label; {split} data needs one in every row, {self._label_column(path)}; "
                        f"give unlabelled examples as test data"
                    )
                examples.append(example)
            remarks += notes.lines()
            first = notes.number + 1
        if not examples:
            why = f" ({'; '.join(remarks)})" if remarks else ""
            raise DataError(f"{', '.join(map(str, paths))}: 0 examples{why}; give a file with at least one row")
        questions = [example for example in examples if isinstance(example, Question) and example.answers == ()]
        if split.startswith("test") and self.labels is None and len(questions) == len(examples):
            examples = [dataclasses.replace(question, answers=None) for question in questions]
            remarks.append(f"{paths[0].name}: no question has an answer; read as a test file without labels")
        return Split(
            name=split,
            examples=tuple(examples),
            files=tuple(str(path) for path in paths),
            sha256=digest.hexdigest(),
            remarks=tuple(remarks),
        )

    def _of(self, split: str, path: Path) -> Task:
        """This task with layouts that read only ``split`` from a file that holds several."""
        from encoderlab.tasks import tables

        if split not in self.sets or self.sets[split][0] not in tables.columns(path, Remarks(path)):
            return self
        layouts: tuple[Any, ...] = self.layouts
        layouts = tuple(dataclasses.replace(layout, only=self.sets[split]) for layout in layouts)
        return dataclasses.replace(self, layouts=layouts)

    def stream(self, path: Path, remarks: Remarks) -> Iterator[Example]:
        """The examples of a file one by one, in bounded memory, with checked labels."""
        from encoderlab.tasks import readers

        for example in readers.examples(readers.layout_of(path, self.layouts), path, remarks):
            if isinstance(example, Text) and example.label is not None:
                label = str(example.label)
                if label in self.dropped:
                    remarks.add(f"label {label!r} means no label here; left out", example.row)
                    continue
                example = dataclasses.replace(example, label=self.parse_label(label, f"{path}:{example.row}"))
            elif isinstance(example, Words) and example.tags is not None and self.labels is not None:
                tags = (
                    self._tag(tag, f"{path}:{example.row + i * example.by_line}") for i, tag in enumerate(example.tags)
                )
                example = dataclasses.replace(example, tags=tuple(tags))
            elif isinstance(example, Choice):
                wrong = [answer for answer in example.answers or () if not 0 <= answer < len(example.options)]
                if wrong:
                    raise DataError(
                        f"{path}:{example.row}: answer {wrong[0]} is none of the {len(example.options)} options, which "
                        f"count from 0; correct the row"
                    )
            yield example

    def _label_column(self, path: Path) -> str:
        """Where the label is looked for, with the nearest name if the file has no such column."""
        from encoderlab.tasks import readers, tables

        columns = tables.columns(path, Remarks(path))
        layout = readers.layout_of(path, self.layouts)
        label = next((getattr(layout, name) for name in ("label", "answer", "tags") if hasattr(layout, name)), "")
        if label in columns or label and not columns:
            return f"in the column {label!r}"
        if label is None:
            shown = ", ".join(map(repr, columns[:12]))
            return f"and no column among {shown} is called as labels are: name it with --label"
        if not label or label.isdigit():
            return "in the column that --label names"
        return f"and there is no column {label!r}{nearest(label, columns).rstrip('?')}"

    def parse_label(self, raw: str, place: str) -> str | float | None:
        """The label that ``raw`` stands for; None for the fillers of test files (nothing, -1, a number that is none).

        Raises:
            DataError: not a number, out of range, or none of the labels.
        """
        raw = raw.strip()
        if self.form == "regression":
            return self._number(raw, place)
        if self.labels is None:
            return None if raw in ("", "nan", "NaN") else raw
        if raw in self.labels:
            return raw
        if raw in ("", "-1", "-1.0", "None", "null", "nan", "NaN"):
            return None
        if raw.lower() in self.labels and raw.lower() in ("true", "false"):
            return raw.lower()
        for other in (raw.removesuffix(".0"), f"{raw}.0"):  # a number that was written as a float, here or in training
            if other in self.labels:
                return other
        raw = raw.removesuffix(".0")
        if (
            self.indices
            and raw.isascii()
            and raw.isdigit()
            and int(raw) < len(self.labels)
            and not any(x.isdigit() for x in self.labels)
        ):
            return self.labels[int(raw)]
        raise DataError(f"{place}: label {raw!r} is none of {', '.join(self.labels[:20])}; correct the row or the task")

    def _number(self, raw: str, place: str) -> float | None:
        if raw in ("", "None", "null"):
            return None
        try:
            value = float(raw)
        except ValueError:
            comma = ", or write it with a decimal point" if re.fullmatch(DECIMAL_COMMA, raw) else ""
            raise DataError(
                f"{place}: label {raw!r} is not a number, and the task is a regression; give its --form{comma}"
            ) from None
        if not math.isfinite(value):
            raise DataError(f"{place}: label {raw!r} is not a finite number; leave the row out")
        if self.range is None or self.range[0] <= value <= self.range[1]:
            return value
        if value == -1:
            return None
        raise DataError(f"{place}: label {raw} is outside {self.range[0]:g} to {self.range[1]:g}; correct the row")

    def _tag(self, tag: str, place: str) -> str:
        assert self.labels is not None
        if tag in self.labels:
            return tag
        if self.indices and tag.isdigit() and int(tag) < len(self.labels):
            return self.labels[int(tag)]
        raise DataError(f"{place}: tag {tag!r} is none of {', '.join(self.labels[:20])}; correct the row or the task")

    def _check_id(self, example: Example, place: str, seen: dict[str, str], remarks: Remarks) -> None:
        first = seen.setdefault(example.id, place)
        if first == place:
            return
        if isinstance(example, Question):
            raise DataError(
                f"{place}: id {example.id!r} is already that of {first}; answers are scored by id, make it unique"
            )
        remarks.add("an id that occurs before", example.row)


def is_unlabelled(example: Example) -> bool:
    """Whether the example has no reference, as in a test file."""
    if isinstance(example, Text):
        return example.label is None
    return (example.tags if isinstance(example, Words) else example.answers) is None


def labels_of(examples: Sequence[Example]) -> tuple[str, ...]:
    """The labels that occur: sorted as numbers where all are numbers, tags with ``O`` first, else by name."""
    found: set[str] = set()
    for example in examples:
        if isinstance(example, Text) and example.label is not None:
            found.add(str(example.label))
        elif isinstance(example, Words):
            found.update(example.tags or ())
    try:
        return tuple(sorted(found, key=float))
    except ValueError:
        return tuple(sorted(found, key=lambda label: (label != "O", label)))
