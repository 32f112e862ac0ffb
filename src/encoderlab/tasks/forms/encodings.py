"""A cache of encoded examples by a hash of everything that determines them: text, tokenizer, settings and code."""

from __future__ import annotations

import functools
import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
from safetensors import SafetensorError, safe_open

import encoderlab
from encoderlab.config import to_dict
from encoderlab.files import cache_folder, write_bytes
from encoderlab.tasks.data.examples import Split, naming_the_longest
from encoderlab.tasks.forms.base import Form
from encoderlab.tasks.forms.batching import Encoded, Item
from encoderlab.tasks.forms.best_spans import Window

LEAST = 1000  # items; for fewer no file is written, because encoding takes a tenth of a second

log = logging.getLogger(__name__)


class Encodings:
    """Encoded splits, in memory for the runs of a protocol and on disk (``encodings`` in the cache folder) for later
    commands.

    A file takes about 110 bytes per example of ten tokens and may be deleted at any time.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = cache_folder() / "encodings" if folder is None else folder
        self.entries: dict[str, tuple[list[Item], dict[str, Any]]] = {}

    def items(self, form: Form, split: Split, *, train: bool = False) -> list[Item]:
        """``form.items`` of the split. Attributes that the form learns from training (``form.learned``) are restored
        too.
        """
        key = _key(form, split, train)
        if key not in self.entries:
            path = self.folder / f"{_key_on_disk(key, split)}.safetensors"
            self.entries[key] = _read(path) or self._encode(form, split, train, path)
        items, learned = self.entries[key]
        if train:
            for name, value in learned.items():
                setattr(form, name, value)
        return items

    @staticmethod
    def _encode(form: Form, split: Split, train: bool, path: Path) -> tuple[list[Item], dict[str, Any]]:
        with naming_the_longest(split.examples):
            items = form.items(split.examples, train=train)
        learned = {name: getattr(form, name) for name in form.learned}
        if len(items) >= LEAST:
            try:
                arrays = _arrays(items)
                about = {"learned": json.dumps(learned), "sha256": _digest(arrays)}
                write_bytes(path, safetensors.numpy.save(arrays, about))
            except OSError as error:
                log.info("encoded examples are not kept: %s cannot be written (%s)", path.parent, error.strerror)
        return items, learned


def _key(form: Form, split: Split, train: bool) -> str:
    """The key in memory: within one command, a file is always read into the same examples."""
    task = form.task
    parts = [task.name, task.form, task.labels, task.range, task.swap, to_dict(form.settings), train]
    parts += [form.tokenizer.hash(), split.sha256, split.name, len(split)]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _key_on_disk(key: str, split: Split) -> str:
    """The key across commands, which may read other columns of the same file, or run other code."""
    digest = hashlib.sha256(f"{key} {_code()}".encode())
    for example in split.examples:
        digest.update(repr(example).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


@functools.cache
def _code() -> str:
    """A hash of the modules that encode: those of tasks, and of the tokenizer."""
    digest = hashlib.sha256()
    for folder in ("tasks", "corpus"):
        for path in sorted((Path(encoderlab.__file__).parent / folder).rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()


def _arrays(items: Sequence[Item]) -> dict[str, np.ndarray]:
    """The items as flat arrays: tokens and marks of all sequences one after the other, every label (sequences,), and
    for windows their fields beyond :class:`Encoded`.
    """
    sequences = [sequence for item in items for sequence in item.sequences]
    first = sequences[0]
    windows = [sequence for sequence in sequences if isinstance(sequence, Window)]
    places = (
        {
            "window.start": np.array([window.start for window in windows]),
            "window.size": np.array([len(window.offsets) for window in windows]),
            "window.offsets": np.concatenate([window.offsets for window in windows]),
            "window.central": np.concatenate([window.central for window in windows]),
        }
        if windows
        else {}
    )
    return places | {
        "example": np.array([item.example for item in items]),
        "sequences": np.array([len(item.sequences) for item in items]),
        "length": np.array([len(sequence) for sequence in sequences]),
        "ids": np.concatenate([sequence.ids for sequence in sequences]),
        "segments": np.concatenate([sequence.segments for sequence in sequences]),
        **{f"label.{name}": np.array([sequence.labels[name] for sequence in sequences]) for name in first.labels},
        **{f"mark.{name}": np.concatenate([sequence.marks[name] for sequence in sequences]) for name in first.marks},
    }


def _read(path: Path) -> tuple[list[Item], dict[str, Any]] | None:
    """The items in a file, and the form's learned attributes; None if the file is missing or damaged, with a warning if
    damaged.
    """
    if not path.exists():
        return None
    try:
        with safe_open(path, "numpy") as file:
            about = file.metadata()
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if _digest(arrays) != about["sha256"]:
            raise SafetensorError("its contents have changed")
    except (OSError, SafetensorError) as error:
        log.info("%s: damaged (%s); the examples are encoded again", path, error)
        return None
    labels = {name.removeprefix("label."): arrays[name].tolist() for name in arrays if name.startswith("label.")}
    marks = {name.removeprefix("mark."): arrays[name] for name in arrays if name.startswith("mark.")}
    ends = np.cumsum(arrays["length"]).tolist()
    sequences = [
        Encoded(
            arrays["ids"][begin:end],
            arrays["segments"][begin:end],
            {name: values[place] for name, values in labels.items()},
            {name: values[begin:end] for name, values in marks.items()},
        )
        for place, (begin, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True))
    ]
    if "window.start" in arrays:
        sequences = _windows(sequences, arrays)
    items, last = [], 0
    for example, count in zip(arrays["example"].tolist(), arrays["sequences"].tolist(), strict=True):
        items.append(Item(example, tuple(sequences[last : last + count])))
        last += count
    return items, json.loads(about["learned"])


def _windows(sequences: Sequence[Encoded], arrays: Mapping[str, np.ndarray]) -> list[Encoded]:
    """The sequences as windows again."""
    starts, ends = arrays["window.start"].tolist(), np.cumsum(arrays["window.size"]).tolist()
    offsets, central = arrays["window.offsets"], arrays["window.central"]
    return [
        Window(one.ids, one.segments, one.labels, one.marks, start, offsets[begin:end], central[begin:end])
        for one, start, begin, end in zip(sequences, starts, [0, *ends[:-1]], ends, strict=True)
    ]


def _digest(arrays: Mapping[str, np.ndarray]) -> str:
    """A hash of the arrays with their names."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        digest.update(name.encode() + np.ascontiguousarray(arrays[name]).tobytes())
    return digest.hexdigest()
