"""Linear probes: how well the tags of words can be read from the frozen states of each layer."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from encoderlab.errors import ConfigError
from encoderlab.inference import limit, reading_apart
from encoderlab.model import Model, weights_hash
from encoderlab.tasks.data.examples import Split, TaggedWords
from encoderlab.tasks.data.splits import completed
from encoderlab.tasks.data.task import Task
from encoderlab.tasks.forms.batching import Item
from encoderlab.tasks.forms.features import Frozen, Store
from encoderlab.tasks.forms.objective import form_of
from encoderlab.tasks.forms.scores import baselines, score
from encoderlab.tasks.forms.tagging import TaggingForm, TaggingSettings
from encoderlab.tasks.scoring.linear import LogisticRegression

TRAIN, TEST = 20_000, 10_000  # words at most
LENGTH = 128  # tokens of a sentence


@dataclass(frozen=True, kw_only=True)
class Probed:
    """The scores of a probe on every layer; ``layers[0]`` is that of the embeddings.

    Attributes:
        task: its name.
        labels: number of tags.
        words: numbers of training and of scored words.
        measure: the task's first measure.
        layers: every measure of every layer.
        baselines: the measures of guesses from the word alone (``dictionary``) and of the most frequent tag
            (``majority``).
    """

    task: str
    labels: int
    words: tuple[int, int]
    measure: str
    layers: tuple[dict[str, float], ...]
    baselines: dict[str, dict[str, float]]


def probe(
    model: Model, task: Task, train: Split, dev: Split, *, progress: Callable[[str, int, int], None] | None = None
) -> Probed:
    """Tags of words, read from the states of each layer by logistic regression (Alain and Bengio, 2017).

    A word's state is that of its first token, as in tagging; every number of a state is scaled to mean 0 and
    deviation 1 over the training words. The encoder runs once and is not trained. Costs a regression per layer on at
    most :data:`TRAIN` words: about 100 products of (words, D) and (D, tags).

    Raises:
        ConfigError: the task is not tagging.
    """
    if task.form != "tagging":
        raise ConfigError(f"{task.name} is {task.form}; a probe reads the tags of words, give a file of tagging")
    task = completed(task, train)
    train, dev = _first(train, TRAIN), _first(dev, TEST)
    form = form_of(task, model, TaggingSettings(max_length=min(LENGTH, limit(model))))
    assert isinstance(form, TaggingForm)
    depth = model.encoder.depth
    with tempfile.TemporaryDirectory() as folder:
        frozen = Frozen(lstm_layers=0, dtype="float32")
        store = Store(Path(folder), reading_apart(model), frozen, weights_hash(model), range(depth + 1))
        room = form.settings.max_length
        learned = store.rows_of(form.items(train.examples, train=True), True, room)
        items = form.items(dev.examples)
        asked = store.rows_of(items, True, room)
        rows, targets = _words(learned, "target")
        known = targets >= 0
        layers = []
        for layer in range(depth + 1):
            if progress is not None:
                progress("layers", layer, depth + 1)
            x = store.read(rows[known])[:, layer].astype(np.float64)
            mean, deviation = x.mean(0), np.maximum(x.std(0), 1e-6)
            classifier = LogisticRegression(len(form.index)).fit((x - mean) / deviation, targets[known])
            y = store.read(_words(asked, "word")[0])[:, layer]
            guesses = classifier.scores((y - mean) / deviation)
            ends = np.cumsum([len(item.sequences[0]) for item in asked])[:-1]
            predictions = form.decode(asked, np.split(guesses, ends), dev.examples)
            layers.append(score(task, dev.examples, predictions.values)[0])
    sizes = int(known.sum()), sum(len(example.words) for example in dev.examples if isinstance(example, TaggedWords))
    return Probed(
        task=task.name,
        labels=len(form.index),
        words=sizes,
        measure=task.metrics[0],
        layers=tuple(layers),
        baselines=baselines(task, train, dev),
    )


def _first(split: Split, most: int) -> Split:
    """The first examples of a split with at most so many words, at least one example."""
    ends = np.cumsum([len(example.words) for example in split.examples if isinstance(example, TaggedWords)])
    count = max(1, int((ends <= most).sum()))
    return replace(split, examples=split.examples[:count])


def _words(items: Sequence[Item], mark: str) -> tuple[np.ndarray, np.ndarray]:
    """Rows of the store of all words of the items, and a mark of theirs: (n,) each."""
    sequences = [item.sequences[0] for item in items]
    none = [np.zeros(0, np.int64)]
    return (
        np.concatenate([sequence.ids for sequence in sequences] or none),
        np.concatenate([sequence.marks[mark] for sequence in sequences] or none).astype(np.int64),
    )
