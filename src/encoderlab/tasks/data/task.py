"""What a task is: one of five forms of labelled data, the files that hold it, its labels and its metrics.

A task is data: :class:`Task` says which columns of which files are text and label, and the tables in
:mod:`encoderlab.tasks.data.suites` hold one for every benchmark. How a form is encoded, learned and decoded is in
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
from typing import Any, Literal

from encoderlab.errors import DataError, nearest
from encoderlab.tasks.data import readers
from encoderlab.tasks.data import records as tables
from encoderlab.tasks.data.examples import (
    Answer,
    Choice,
    Example,
    Question,
    Remarks,
    Split,
    Text,
    Words,
    is_unlabelled,
    labels_of,
)
from encoderlab.tasks.data.readers import Layout

# Examples can be imported from here; they are in a module of their own for the readers, which this module imports.
__all__ = [
    "DECIMAL_COMMA", "FORM_DESCRIPTIONS", "Answer", "Choice", "Example", "FormName", "Question", "Remarks", "Split",
    "Submission", "Task", "Text", "Words", "is_unlabelled", "labels_of",
]  # fmt: skip

FormName = Literal["classification", "regression", "tagging", "span", "choice"]
FORM_DESCRIPTIONS: dict[str, str] = {
    "classification": "a label for one or two texts",
    "regression": "a number for one or two texts",
    "tagging": "a tag for every word",
    "span": "an answer within a passage",
    "choice": "one of several options",
}

DECIMAL_COMMA = r"[-+]?\d+,\d+"
NO_LABEL = ("", "-1", "-1.0", "None", "null", "nan", "NaN")  # what test files have in the place of a label


@dataclass(frozen=True, kw_only=True)
class Submission:
    """The files that a leaderboard takes; ``format`` names a writer of :mod:`encoderlab.tasks.runs.submit`."""

    format: Literal["glue", "superglue", "squad", "squad2", "clue", "clue_json", "conll"]
    files: Mapping[str, str]  # split -> file name
    rows: Mapping[str, int] = dataclasses.field(default_factory=dict)  # split -> number of examples it must have


@dataclass(frozen=True, kw_only=True)
class Task:
    """Labelled data with a metric.

    Args:
        metrics: names of scores; the first one selects models.
        layouts: ways in which the files may hold examples; the first that fits a file's columns reads it.
        labels: the classes in order, or None to take them from the training split.
        folders: names that the task's folder may have within a data folder.
        files: glob patterns of each split's files within that folder, the first with a match is taken; ``.gz`` copies
            match too.
        sets: where one file holds several splits, the column that tells them apart and its value for each split.
        indices: a number in place of a named label is its index, as in Hugging Face data sets.
        range: smallest and largest number of a regression.
        swap: the two texts may be exchanged (MRPC, STS-B): ELECTRA trains on both orders.
        dropped: labels whose rows are left out ("-": the annotators found no majority).
        answers: the rules by which the answers of a span task are scored. Only ``squad`` has unanswerable questions.
    """

    name: str
    form: FormName
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

    # Files

    def find(self, data: Path, split: str) -> list[Path]:
        """The files of a split in the folder ``data``, or in a folder of the task's name within it.

        Of a file and its ``.gz`` copy, the plain one is taken.

        Raises:
            DataError: there is none; the message names the patterns and folders that were tried.
        """
        found = next(self._candidates(data, split), None)
        if found is not None:
            return found
        patterns = self.files.get(split, ())
        where = ", ".join([str(data), *(str(data / name) for name in self.folders)])
        raise DataError(
            f"{self.name}: no {split} file ({' or '.join(patterns) or 'the task has none'}) in {where}; "
            f"give the folder with --data"
        )

    def _candidates(self, data: Path, split: str) -> Iterator[list[Path]]:
        """The files of a split in every folder that has any, in the order of preference."""
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
        others = [other[0] for other in self._candidates(data, split) if not other[0].samefile(paths[0])]
        unread += tuple(f"{paths[0]}: read; {other} is not, give its folder with --data for it" for other in others)
        return dataclasses.replace(found, remarks=found.remarks + unread)

    def read(self, paths: Sequence[Path], split: str) -> Split:
        """Read ``paths`` as one split and check every label.

        A split named ``test...`` may be unlabelled. If the task gets its labels from training, a test file in which no
        question has an answer counts as unlabelled.

        Raises:
            DataError: a file or row that cannot be used, an unknown label, duplicate ids, no label in ``train`` or
                ``dev``.
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
                _check_id(example, place, seen, notes)
                if not split.startswith("test") and is_unlabelled(example):
                    raise DataError(
                        f"{place}: no label; {split} data needs one in every row, {self._where_labels_are(path)}; "
                        f"give unlabelled examples as test data"
                    )
                examples.append(example)
            remarks += notes.lines()
            first = notes.number + 1
        if not examples:
            why = f" ({'; '.join(remarks)})" if remarks else ""
            raise DataError(f"{', '.join(map(str, paths))}: 0 examples{why}; give a file with at least one row")
        unanswered = [example for example in examples if isinstance(example, Question) and example.answers == ()]
        if split.startswith("test") and self.labels is None and len(unanswered) == len(examples):
            examples = [dataclasses.replace(question, answers=None) for question in unanswered]
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
        if split not in self.sets or self.sets[split][0] not in tables.columns(path, Remarks(path)):
            return self
        layouts: tuple[Any, ...] = self.layouts  # of columns, which alone have ``only``
        layouts = tuple(dataclasses.replace(layout, only=self.sets[split]) for layout in layouts)
        return dataclasses.replace(self, layouts=layouts)

    def stream(self, path: Path, remarks: Remarks) -> Iterator[Example]:
        """The examples of a file one by one, in bounded memory, with checked labels."""
        for example in readers.examples(readers.layout_of(path, self.layouts), path, remarks):
            place = f"{path}:{example.row}"
            if isinstance(example, Text) and example.label is not None:
                label = str(example.label)
                if label in self.dropped:
                    remarks.add(f"label {label!r} means no label here; left out", example.row)
                    continue
                example = dataclasses.replace(example, label=self.parse_label(label, place))
            elif isinstance(example, Words) and example.tags is not None and self.labels is not None:
                tags = (
                    self._parse_tag(tag, f"{path}:{example.row + i * example.by_line}")
                    for i, tag in enumerate(example.tags)
                )
                example = dataclasses.replace(example, tags=tuple(tags))
            elif isinstance(example, Choice):
                wrong = [answer for answer in example.answers or () if not 0 <= answer < len(example.options)]
                if wrong:
                    raise DataError(
                        f"{place}: answer {wrong[0]} is none of the {len(example.options)} options, which count from "
                        f"0; correct the row"
                    )
            yield example

    def _where_labels_are(self, path: Path) -> str:
        """Where labels were looked for, with the nearest name if the file has no such column."""
        columns = tables.columns(path, Remarks(path))
        label = readers.layout_of(path, self.layouts).label_column
        if label in columns or label and not columns:
            return f"in the column {label!r}"
        if label is None:
            shown = ", ".join(map(repr, columns[:12]))
            return f"and no column among {shown} is called as labels are: name it with --label"
        if not label or label.isdigit():
            return "in the column that --label names"
        return f"and there is no column {label!r}{nearest(label, columns).rstrip('?')}"

    # Labels

    def parse_label(self, raw: str, place: str) -> str | float | None:
        """The label that ``raw`` stands for; None where it only fills the column of a test file (:data:`NO_LABEL`).

        Raises:
            DataError: not a number, out of range, or none of the labels.
        """
        raw = raw.strip()
        if self.form == "regression":
            return self._parse_number(raw, place)
        if self.labels is None:
            return None if raw in ("", "nan", "NaN") else raw
        if raw in self.labels:
            return raw
        if raw in NO_LABEL:
            return None
        if raw.lower() in self.labels and raw.lower() in ("true", "false"):
            return raw.lower()
        for other in (raw.removesuffix(".0"), f"{raw}.0"):  # a number that was written as a float, here or in training
            if other in self.labels:
                return other
        raw = raw.removesuffix(".0")
        if not any(label.isdigit() for label in self.labels) and (named := self._label_at(raw)) is not None:
            return named
        raise DataError(f"{place}: label {raw!r} is none of {', '.join(self.labels[:20])}; correct the row or the task")

    def _parse_number(self, raw: str, place: str) -> float | None:
        """As :meth:`parse_label`, for a regression; -1 fills the column of a test file if it is out of range."""
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

    def _parse_tag(self, tag: str, place: str) -> str:
        """The tag that is written in the file by its name or its index."""
        assert self.labels is not None
        if tag in self.labels:
            return tag
        if (named := self._label_at(tag)) is not None:
            return named
        raise DataError(f"{place}: tag {tag!r} is none of {', '.join(self.labels[:20])}; correct the row or the task")

    def _label_at(self, index: str) -> str | None:
        """The label whose index is written in the file; None if it is no index, or if the task has none in files."""
        assert self.labels is not None
        is_index = self.indices and index.isascii() and index.isdigit() and int(index) < len(self.labels)
        return self.labels[int(index)] if is_index else None


def _check_id(example: Example, place: str, seen: dict[str, str], remarks: Remarks) -> None:
    """Refuse a question with an id that occurred before, and count it for other examples, which are not scored by id.
    ``seen`` maps ids to where they stood first.
    """
    first = seen.setdefault(example.id, place)
    if first == place:
        return
    if isinstance(example, Question):
        raise DataError(
            f"{place}: id {example.id!r} is already that of {first}; answers are scored by id, make it unique"
        )
    remarks.add("an id that occurs before", example.row)
