"""The splits of a task: find, hold out, compare with each other and report; and labels from the training data."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from encoderlab.errors import DataError
from encoderlab.tasks.data.task import Example, Split, Task, Text, is_unlabelled, labels_of
from encoderlab.tasks.forms.table import FORMS

HELD_OUT = 0.1  # share of the training file that becomes development data


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


def hold_out(split: Split) -> tuple[Split, Split]:
    """Training and development part of a training file without a development file, with a remark.

    A hash of its text decides the part of an example, so equal texts are never in both parts, and the choice depends
    neither on the order nor on other examples.

    Raises:
        DataError: one of the parts would be empty.
    """
    kept: list[Example] = []
    held: list[Example] = []
    for example in split.examples:
        key = example.source or example.id
        digest = hashlib.blake2b(key.encode(errors="surrogatepass"), digest_size=8).digest()
        fraction = int.from_bytes(digest, "big") / 2**64
        (held if fraction < HELD_OUT else kept).append(example)
    if not held or not kept:
        texts = len({example.source or example.id for example in split.examples})
        raise DataError(
            f"{', '.join(split.files)}: {len(split):,} examples with {texts:,} different texts are too few to hold out "
            "a development part; give one with --dev"
        )
    names = ", ".join(Path(file).name for file in split.files[:2])
    said = (
        f"{names}: no development file; {len(held):,} of {len(split):,} training examples are held out "
        f"as the development set"
    )
    train = replace(split, examples=tuple(kept))
    return train, replace(split, name="dev", examples=tuple(held), remarks=(said,))


def without_fillers(test: Split, train: Split) -> Split:
    """``test`` without labels if they are all -1 and training has no labels below 0."""
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
    """``task`` with the facts that only its training data determines: labels, and whether questions may have no answer.

    Raises:
        DataError: nothing can be learned from these labels.
    """
    return FORMS[task.form].completed(task, train)


def check_splits(task: Task, splits: Mapping[str, Split]) -> None:
    """Refuse labels that do not occur in training.

    Raises:
        DataError: a label does not occur; the message names file, row and label.
    """
    if not FORMS[task.form].labelled:
        return
    known = set(task.labels or ())
    for split in splits.values():
        for example in split.examples:
            strange = next((label for label in example.labels if label not in known), None)
            if strange is not None:
                raise DataError(
                    f"{split.files[0]}:{example.row}: label {strange!r} never occurs in the training data "
                    f"({', '.join(sorted(known))[:200]}); correct the row or train on it"
                )


def remarks_of(splits: Mapping[str, Split]) -> list[str]:
    """Remarks on the splits, each once: the files' remarks, labels that differ only in case, and overlap
    with training.
    """
    said = [remark for split in splits.values() for remark in split.remarks]
    alike: dict[str, str] = {}
    for label in labels_of(splits["train"].examples):
        if (other := alike.setdefault(label.casefold(), label)) != label:
            said.append(f"train: labels {other!r} and {label!r} differ only in case and count as two")
    learned = {example.content for example in splits["train"].examples}
    for name, split in splits.items():
        seen = sum(example.content in learned for example in split.examples if not is_unlabelled(example))
        if seen and name != "train":
            said.append(f"{name}: {seen:,} of {len(split):,} examples are also in the training data")
    return list(dict.fromkeys(said))
