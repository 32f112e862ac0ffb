"""The splits of a task: found in a folder, held out, checked against each other, and remarked upon; the labels of a
task, which its training data tells."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from encoderlab.errors import DataError
from encoderlab.tasks.data.task import Example, Question, Split, Task, Text, Words, is_unlabelled, labels_of


def usable_splits(task: Task, data: Path) -> dict[str, Split]:
    """Every split of a task that has files in ``data``. Without a development file, a tenth of training is held out."""
    splits = {"train": task.load(data, "train")}
    for name in task.files:
        if name == "train":
            continue
        try:
            task.find(data, name)
        except DataError:
            continue
        splits[name] = task.load(data, name)
    if "dev" not in splits:
        splits["train"], splits["dev"] = hold_out(splits["train"])
    return splits


def hold_out(split: Split, share: float = 0.1) -> tuple[Split, Split]:
    """Training and development part of a training file without a development file, which a remark says.

    A hash of its text decides the part of an example, so equal texts are never in both, and the cut depends neither on
    the order nor on what else is in the file.

    Raises:
        DataError: one of the parts would be empty.
    """
    kept: list[Example] = []
    held: list[Example] = []
    for example in split.examples:
        key = _source(example) or example.id
        digest = hashlib.blake2b(key.encode(errors="surrogatepass"), digest_size=8).digest()
        fraction = int.from_bytes(digest, "big") / 2**64
        (held if fraction < share else kept).append(example)
    if not held or not kept:
        raise DataError(
            f"{', '.join(split.files)}: {len(split)} examples, those of one text together, are too few to hold out a "
            f"validation part; give one with --dev"
        )
    names = ", ".join(Path(file).name for file in split.files[:2])
    said = (
        f"{names}: no development file; {len(held):,} of {len(split):,} training examples are held out "
        f"as the development set"
    )
    train = replace(split, examples=tuple(kept))
    return train, replace(split, name="dev", examples=tuple(held), remarks=(said,))


def _source(example: Example) -> str:
    """The text that an example is about."""
    if isinstance(example, Text):
        return example.text
    if isinstance(example, Words):
        return " ".join(example.words)
    return example.passage if isinstance(example, Question) else example.context


def without_fillers(test: Split, train: Split) -> Split:
    """``test`` without labels if they are numbers that are all -1, while training has none below 0."""
    numbers, learned = (
        [example.label for example in split.examples if isinstance(example, Text) and isinstance(example.label, float)]
        for split in (test, train)
    )
    if set(numbers) != {-1.0} or len(numbers) < len(test) or min(learned, default=-1.0) < 0:
        return test
    said = f"{Path(test.files[0]).name}: every label is -1; read as a test file without labels"
    examples = tuple(replace(example, label=None) for example in test.examples)
    return replace(test, examples=examples, remarks=(*test.remarks, said))


def completed(task: Task, train: Split) -> Task:
    """``task`` with what only its training data says: labels, and whether questions may have no answer.

    Raises:
        DataError: all of it has one label.
    """
    if task.form == "span" and task.labels is None:
        none = any(isinstance(example, Question) and example.answers == () for example in train.examples)
        return replace(task, labels=("answer", "no_answer")) if none and task.answers == "squad" else task
    if task.form == "classification" and len(labels := labels_of(train.examples)) == 1:
        raise DataError(f"{', '.join(train.files)}: only one label ({labels[0]}); training needs at least two")
    return with_labels(task, train)


def with_labels(task: Task, train: Split) -> Task:
    """``task`` with the labels of its training data, spelled as there, unless it names its own.

    Raises:
        DataError: a single label, from which nothing can be learned, or a number that is written in two ways.
    """
    if task.labels is not None or task.form not in ("classification", "tagging"):
        return task
    labels = labels_of(train.examples)
    if len(labels) < 2:
        raise DataError(f"{', '.join(train.files)}: only one label ({', '.join(labels)}); training needs at least two")
    twice = next((label for label in labels if f"{label}.0" in labels), None)
    if twice is not None:
        raise DataError(
            f"{', '.join(train.files)}: labels {twice!r} and '{twice}.0' are one number; write it in one way"
        )
    if task.form == "tagging":
        labels = _completed(labels)
    metrics = task.metrics
    if task.form == "classification" and len(labels) == 2 and "macro_f1" in metrics:
        metrics = ("accuracy", "f1", "matthews")
    return replace(task, labels=labels, metrics=metrics, indices=False)


def _completed(tags: tuple[str, ...]) -> tuple[str, ...]:
    """BIO tags with both B and I of every type and ``O``, since a development file may hold one that training lacks."""
    if not all(tag == "O" or tag[:2] in ("B-", "I-") for tag in tags):
        return tags
    kinds = sorted({tag[2:] for tag in tags if tag != "O"})
    return ("O", *(f"{prefix}-{kind}" for kind in kinds for prefix in "BI"))


def has_pairs(split: Split) -> bool | None:
    """Whether the examples have two texts; None for other forms of task."""
    first = split.examples[0]
    return first.pair is not None if isinstance(first, Text) else None


def check_splits(task: Task, splits: Mapping[str, Split]) -> None:
    """Refuse labels that training never shows.

    Raises:
        DataError: with file, row and label.
    """
    if task.form not in ("classification", "tagging"):
        return
    known = set(task.labels or ())
    for split in splits.values():
        for example in split.examples:
            labels = (example.label,) if isinstance(example, Text) else example.tags or ()
            strange = next((label for label in labels if label is not None and label not in known), None)
            if strange is not None:
                raise DataError(
                    f"{split.files[0]}:{example.row}: label {strange!r} never occurs in the training data "
                    f"({', '.join(sorted(known))[:200]}); correct the row or train on it"
                )


def remarks_of(splits: Mapping[str, Split]) -> list[str]:
    """What a user should know of the splits, each remark once: the remarks of their files, labels that differ in case
    alone, and how many examples to be scored are in the training data too.
    """
    said = [remark for split in splits.values() for remark in split.remarks]
    alike: dict[str, str] = {}
    for label in labels_of(splits["train"].examples):
        if (other := alike.setdefault(label.casefold(), label)) != label:
            said.append(f"train: labels {other!r} and {label!r} differ in case alone and count as two")
    learned = {_content(example) for example in splits["train"].examples}
    for name, split in splits.items():
        seen = sum(_content(example) in learned for example in split.examples if not is_unlabelled(example))
        if seen and name != "train":
            said.append(f"{name}: {seen:,} of {len(split):,} examples stand in the training data too")
    return list(dict.fromkeys(said))


def _content(example: Example) -> tuple[Any, ...]:
    """What a model sees of an example."""
    if isinstance(example, Text):
        return example.text, example.pair
    if isinstance(example, Words):
        return example.words
    if isinstance(example, Question):
        return example.passage, example.question
    return example.context, example.question, example.options
