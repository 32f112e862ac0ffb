"""The splits of a task: find, hold out, compare with each other and report; and labels from the training data."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from encoderlab.errors import DataError
from encoderlab.tasks.data.task import Example, Split, Task, Text, is_unlabelled, labels_of
from encoderlab.tasks.forms.table import FORMS

HELD_OUT = 0.1  # share of the texts of a training file that become development data
ROUGH = 30  # with fewer examples a score has an interval of a quarter of its range


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
    """Training and development part of a training file without a development file, with remarks.

    The tenth of the texts with the lowest hashes is held out. So equal texts are never in both parts, and the choice
    does not depend on the order.

    Raises:
        DataError: fewer than ten texts.
    """
    hashes = [text_hash(example) for example in split.examples]
    texts = sorted(set(hashes))
    names = ", ".join(Path(file).name for file in split.files[:2])
    if len(texts) * HELD_OUT < 1:
        dropped = f" ({'; '.join(split.remarks)})" if split.remarks else ""
        raise DataError(
            f"{', '.join(split.files)}: {len(split):,} examples with {len(texts):,} different texts are too few to "
            f"hold out a development part; give one with --dev{dropped}"
        )
    last = texts[int(len(texts) * HELD_OUT) - 1]
    held, kept = (
        tuple(example for example, place in zip(split.examples, hashes, strict=True) if (place <= last) == apart)
        for apart in (True, False)
    )
    said = [
        f"{names}: no development file; {len(held):,} of {len(split):,} training examples are held out "
        f"as the development set"
    ]
    if len(held) < ROUGH:
        said.append(f"{names}: {len(held):,} held-out examples measure little; give more with --dev")
    return replace(split, examples=kept), replace(split, name="dev", examples=held, remarks=tuple(said))


def text_hash(example: Example) -> int:
    """A number that depends on the text of an example alone (without one, on all that a model sees): an order that no
    order of the rows can bias.
    """
    key = example.source or repr(example.content)
    return int.from_bytes(hashlib.blake2b(key.encode(errors="surrogatepass"), digest_size=8).digest(), "big")


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
