"""A task: labelled data of one form, its files, labels and metrics.

A task is data: :class:`Task` says which columns of which files are text and label, and the tables in
:mod:`encoderlab.tasks.data.suites` have one for every benchmark. The form checks, encodes, learns, decodes and scores
its examples: :data:`encoderlab.tasks.forms.table.FORMS`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from encoderlab.corpus.documents import SURROGATE
from encoderlab.errors import DataError, OutOfMemory, nearest
from encoderlab.tasks.data import readers
from encoderlab.tasks.data import records as tables
from encoderlab.tasks.data.examples import (
    Answer,
    Choice,
    Example,
    Question,
    Remarks,
    Split,
    TaggedWords,
    Text,
    is_unlabelled,
    labels_of,
)
from encoderlab.tasks.data.readers import Layout
from encoderlab.tasks.forms.table import FORMS, form_named

# Examples can be imported from here; they have their own module because the readers, which this module imports, need
# them.
__all__ = [
    "Answer", "Choice", "Example", "Question", "Remarks", "Split", "Submission", "TaggedWords", "Task", "Text",
    "is_unlabelled", "labels_of",
]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Submission:
    """The files that a leaderboard expects; ``format`` names a writer of :mod:`encoderlab.tasks.runs.submit`."""

    format: Literal["glue", "superglue", "squad", "clue", "clue_json", "conll"]
    files: Mapping[str, str]  # split -> file name
    rows: Mapping[str, int] = dataclasses.field(default_factory=dict)  # split -> required number of examples


@dataclass(frozen=True, kw_only=True)
class Task:
    """Labelled data with a metric.

    Args:
        form: its name in the table of forms.
        metrics: names of scores; the first one selects models.
        layouts: possible layouts of the files; the first that fits a file's columns reads it.
        labels: the classes in order, or None to take them from the training split.
        folders: possible names of the task's folder within a data folder.
        files: glob patterns of each split's files within that folder; the first pattern with a match is used; ``.gz``
            copies match too.
        sets: if one file has several splits, the column that distinguishes them and its value for each split.
        indices: a number instead of a named label is its index, as in Hugging Face data sets.
        range: smallest and largest number of a regression.
        swap: the two texts may be exchanged (MRPC, STS-B): ELECTRA trains on both orders.
        dropped: labels whose rows are left out ("-": the annotators found no majority).
        answers: the rules by which the answers of a span task are scored. Only ``squad`` has unanswerable questions.
        submission: the files of its leaderboard.
    """

    name: str
    form: str
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

    def __post_init__(self) -> None:
        form_named(self.form)

    @property
    def metric(self) -> str:
        """The metric that selects models."""
        return self.metrics[0]

    # Files

    def find(self, data: Path, split: str) -> list[Path]:
        """The files of a split in the folder ``data``, or in a folder of the task's name within it.

        A plain file is preferred to its ``.gz`` copy.

        Raises:
            DataError: there is none; the message lists the patterns and folders that were tried.
        """
        paths = next(self._candidates(data, split), None)
        if paths is not None:
            return paths
        patterns = dict.fromkeys(self.files.get(split, ()))
        where = ", ".join([str(data), *(str(data / name) for name in self.folders)])
        raise DataError(
            f"{self.name}: no {split} file ({' or '.join(patterns) or 'the task has none'}) in {where}; "
            f"give the folder with --data"
        )

    def _candidates(self, data: Path, split: str) -> Iterator[list[Path]]:
        """The files of a split in every folder that has any, the preferred first."""
        for folder in (data, *(data / name for name in self.folders)):
            for pattern in self.files.get(split, ()):
                plain = set(folder.glob(pattern))
                paths = plain | {path for path in folder.glob(pattern + ".gz") if path.with_suffix("") not in plain}
                if paths:
                    yield sorted(paths)
                    break

    def load(self, data: Path, split: str) -> Split:
        """Read a split (``train``, ``dev``, ``test``, ...) from ``data``, a folder or one file."""
        if not data.exists():
            raise DataError(f"{data}: does not exist; give the file of the {split} split, or the folder of the task")
        if data.is_file():
            return self.read([data], split)
        paths = self.find(data, split)
        copies = [path for path in paths if path.with_name(path.name + ".gz").exists()]
        loaded = self.read(paths, split)
        unread = tuple(f"{path.name}: read, but not {path.name}.gz" for path in copies)
        others = [other[0] for other in self._candidates(data, split) if not other[0].samefile(paths[0])]
        unread += tuple(f"{paths[0]}: read, but not {other}; give its folder with --data" for other in others)
        return dataclasses.replace(loaded, remarks=loaded.remarks + unread)

    def read(self, paths: Sequence[str | os.PathLike[str]], split: str, *, skip_unlabelled: bool = False) -> Split:
        """Read ``paths`` as one split and check every label.

        A split named ``test...`` may be unlabelled, or count as unlabelled (:meth:`Form.unlabelled`). In other splits
        an example without a label is an error, or, with ``skip_unlabelled``, left out and counted.

        Raises:
            DataError: a file or row that cannot be used, an unknown label, duplicate ids, no label in ``train`` or
                ``dev``.
        """
        files = [Path(path) for path in paths]
        examples: list[Example] = []
        remarks: list[str] = []
        digest = hashlib.sha256()
        seen: dict[str, str] = {}
        first = 0
        for path in files:
            digest.update(path.read_bytes())
            notes = Remarks(path, first)
            for example in self._read(split, path, notes):
                place = f"{path}:{example.row}"
                self._check_id(example, place, seen, notes)
                _check_characters(example, place)
                if not split.startswith("test") and is_unlabelled(example):
                    if skip_unlabelled:
                        notes.add("no label; left out", example.row)
                        continue
                    raise DataError(
                        f"{place}: no label; {split} data needs one in every row, {self._where_labels_are(path)}; "
                        f"give unlabelled examples as test data, or leave such rows out (for finetune and evaluate: "
                        f"--skip-unlabelled)"
                        f"{FORMS[self.form].no_label if split == 'train' else ''}"
                    )
                examples.append(example)
            remarks += notes.lines()
            first = notes.number + 1
        if not examples:
            why = f" ({'; '.join(remarks)})" if remarks else ""
            remedy = "correct these rows" if first else "give a file with at least one row"
            raise DataError(f"{', '.join(map(str, files))}: 0 examples{why}; {remedy}")
        if split.startswith("test") and (without := FORMS[self.form].unlabelled(self, examples)) is not None:
            examples, why = without
            remarks.append(f"{files[0].name}: {why}; read as a test file without labels")
        elif split.startswith("test") and all(map(is_unlabelled, examples)):
            remarks.append(f"{files[0].name}: no label in any row, {self._where_labels_are(files[0])}")
        return Split(
            name=split,
            examples=tuple(examples),
            files=tuple(map(str, files)),
            sha256=digest.hexdigest(),
            remarks=tuple(remarks),
        )

    def _read(self, split: str, path: Path, remarks: Remarks) -> Iterator[Example]:
        """The examples of a file of a split; a lack of memory names the row.

        Raises:
            OutOfMemory: a row does not fit, or all rows before it take the memory.
        """
        try:
            yield from self._of(split, path).stream(path, remarks)
        except MemoryError:
            raise OutOfMemory(
                f"{path}:{remarks.row}: out of memory at this row or the next; shorten its text, or give fewer rows"
            ) from None

    def _of(self, split: str, path: Path) -> Task:
        """This task with layouts that read only ``split`` from a file with several splits."""
        if split not in self.sets or self.sets[split][0] not in tables.columns(path, Remarks(path)):
            return self
        layouts: tuple[Any, ...] = self.layouts  # of columns, which alone have ``only``
        layouts = tuple(dataclasses.replace(layout, only=self.sets[split]) for layout in layouts)
        return dataclasses.replace(self, layouts=layouts)

    def stream(self, path: Path, remarks: Remarks) -> Iterator[Example]:
        """The examples of a file one by one, in bounded memory, with checked labels."""
        for example in readers.examples(readers.layout_of(path, self.layouts), path, remarks):
            checked = FORMS[self.form].checked(self, example, f"{path}:{example.row}", remarks)
            if checked is not None:
                yield checked

    def _where_labels_are(self, path: Path) -> str:
        """The column in which labels were expected, with the nearest name if the file has no such column."""
        columns = tables.columns(path, Remarks(path))
        layout = readers.layout_of(path, self.layouts)
        if isinstance(layout, readers.Conll):
            return "in a column behind the word, after a tab or a space"
        label = layout.label_column
        if label in columns or label and not columns:
            return f"in the column {label!r}"
        if label and set(label.split(",")) <= set(columns):
            return f"in the columns {label}"
        if label is None and layout.positional:
            return "in the column whose number --label gives"
        if label is None:
            shown = ", ".join(map(repr, columns[:12]))
            return f"and no column among {shown} has a usual name for labels: name it with --label"
        if not label or label.isdigit():
            return "in the column that --label names"
        return f"and there is no column {label!r}{nearest(label, columns).rstrip('?')}"

    def _check_id(self, example: Example, place: str, seen: dict[str, str], remarks: Remarks) -> None:
        """Refuse or count an id that occurred before; answers scored by id need unique ids.

        ``seen`` maps ids to their first place.
        """
        first = seen.setdefault(example.id, place)
        if first == place:
            return
        if FORMS[self.form].unique_ids:
            raise DataError(
                f"{place}: id {example.id!r} was used before at {first}; answers are scored by id, so make it unique"
            )
        remarks.add("an id that occurs before", example.row)


def _check_characters(example: Example, place: str) -> None:
    """Refuse a label that cannot be encoded as UTF-8.

    Raises:
        DataError: it contains half of a surrogate pair.
    """
    for label in example.labels:
        if not label.isascii() and SURROGATE.search(label):
            raise DataError(f"{place}: label {label!a} contains half of a surrogate pair; correct it")
