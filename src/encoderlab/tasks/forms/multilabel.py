"""Multi-label classification: any number of labels, or none, for one or two texts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from encoderlab.config import PositiveShare
from encoderlab.errors import DataError
from encoderlab.models.base import Family
from encoderlab.nn.encoder import States
from encoderlab.nn.heads import ClassificationHead, TaskHead
from encoderlab.nn.noise import Noise
from encoderlab.objectives.base import Term
from encoderlab.tasks.data.examples import Example, GivenPrediction, Remarks, Split, Text, labels_of
from encoderlab.tasks.data.readers import Columns, Layout
from encoderlab.tasks.data.readers.texts import parts_of
from encoderlab.tasks.forms.base import FormSettings, Network, Predictions, Scores, by_frequency, known_label
from encoderlab.tasks.forms.baselines import bags_of_words, most_frequent_labels
from encoderlab.tasks.forms.batching import Item, TaskBatch
from encoderlab.tasks.forms.texts import TextForm, TextSettings, label_of
from encoderlab.tasks.scoring import metrics
from encoderlab.tasks.scoring.analysis import by_class
from encoderlab.tasks.scoring.thresholds import Goal, threshold_for, thresholds_of
from encoderlab.train.data import Chance

if TYPE_CHECKING:
    from encoderlab.tasks.data.task import Task

SEPARATORS = ("|", ";", ",")  # of labels in one cell, the least ambiguous first


@dataclass(frozen=True, kw_only=True)
class MultiLabelSettings(TextSettings):
    """Settings of multi-label classification.

    Args:
        precision: choose the threshold so that this share of the predicted labels is right (micro precision);
            without it and ``recall``, choose the one with the best micro F1.
        recall: choose it so that this share of the right labels is predicted; one of the two can be set.
    """

    kind: Literal["multilabel"] = "multilabel"
    precision: PositiveShare | None = None
    recall: PositiveShare | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        Goal.of(self)


class MultiLabelForm(TextForm):
    """Binary cross-entropy of every label, averaged over texts and labels.

        loss = -sum over labels of y log sigmoid(s) + (1 - y) log(1 - sigmoid(s))        (nats; ln 2 per label at first)

    A label is predicted if its probability, sigmoid(s), exceeds a threshold, the same for all labels: 0.5, or the value
    chosen on the development set.
    """

    name = "multilabel"
    description = "any number of labels for one or two texts"
    settings_type = MultiLabelSettings
    settings: MultiLabelSettings
    metrics = ("micro_f1", "macro_f1", "exact")
    baselines = {"majority": most_frequent_labels, "TF-IDF + logistic regression": bags_of_words}
    labelled = True
    least_labels = 1
    collapses = True
    threshold = 0.5

    # Data

    @classmethod
    def recognises(cls, layout: Layout, examples: Sequence[Example]) -> bool:
        """Whether labels are lists, or cells with a separator, most of whose parts also occur in other cells."""
        if any(isinstance(example.reference, tuple) for example in examples):
            return True
        cells = {label.strip() for example in examples for label in example.labels}
        separator = _separator(cells)
        if separator is None or separator == ",":  # commas occur in the names of classes
            return False
        cells_of = Counter(part for cell in cells for part in set(parts_of(cell, separator)))
        return separator == "[]" or 2 * sum(count > 1 for count in cells_of.values()) > len(cells_of)

    @classmethod
    def inferred(cls, layout: Layout, examples: Sequence[Any]) -> tuple[Layout, tuple[str, ...], str]:
        cells = {label.strip() for example in examples for label in example.labels}
        lists = [example.reference for example in examples if isinstance(example.reference, tuple)]
        separator = None if lists else _separator(cells)
        if separator is not None:
            lists = [parts_of(cell, separator) for cell in cells if cell]
        values = {name.lower().removesuffix(".0") for names in lists for name in names}
        if values <= {"0", "1", "false", "true"} and lists and all(len(names) > 1 for names in lists):
            raise DataError("labels are vectors of 0 and 1, expected lists of names; write the names of the labels")
        characters = all(len(example.text) == len(example.reference or ()) for example in examples)
        if lists and characters and any(len({*names}) < len(names) for names in lists):
            raise DataError(
                "every text has as many labels as characters, some of them repeated, as tags have; for tags of "
                "characters write the text as a list of them"
            )
        if not isinstance(layout, Columns) or separator is None:
            return layout, cls.metrics, ""
        said = "labels are lists" if separator == "[]" else f"labels separated by {separator!r}"
        return replace(layout, several=separator), cls.metrics, said

    @classmethod
    def checked(cls, task: Task, example: Any, place: str, remarks: Remarks) -> Example:
        if example.label is None:
            return example
        names = example.label if isinstance(example.label, tuple) else (str(example.label),)
        labels = (known_label(task, label.strip(), place) for label in names if label.strip())
        return replace(example, label=tuple(dict.fromkeys(labels)))

    @classmethod
    def unlabelled(cls, task: Task, examples: Sequence[Any]) -> tuple[list[Example], str] | None:
        if any(example.label for example in examples):
            return None
        return [replace(example, label=None) for example in examples], "no text has a label"

    @classmethod
    def completed(cls, task: Task, train: Split) -> Task:
        if task.labels is not None:
            return task
        labels = labels_of(train.examples)
        if not labels:
            raise DataError(f"{', '.join(train.files)}: no text has a label; training needs at least one")
        return replace(task, labels=labels, indices=False)

    @classmethod
    def decided(cls, task: Task, settings: FormSettings) -> Task:
        if Goal.of(settings) is None:
            return task
        return replace(task, metrics=tuple(dict.fromkeys((*task.metrics, "micro_precision", "micro_recall"))))

    @classmethod
    def fits(cls, model: Network) -> bool:
        return isinstance(model.task, ClassificationHead) and model.task.config.several

    # Scores

    @classmethod
    def read_prediction(cls, task: Task, example: Any, guess: GivenPrediction) -> tuple[str, ...]:
        """Several labels: a list, or a text with the gold data's separator, or a usual one; none if it is empty."""
        if isinstance(guess.value, list):
            return tuple(map(str, guess.value))
        text = guess.value.strip() if isinstance(guess.value, str) else super().read_prediction(task, example, guess)
        if text in (task.labels or ()):
            return (text,)
        if text.startswith("["):
            return parts_of(text, "[]")
        several = getattr(task.layouts[0], "several", None)
        usual = next((mark for mark in SEPARATORS if mark in text), SEPARATORS[0])
        return parts_of(text, several if several not in (None, "[]") else usual)

    @classmethod
    def measures(cls, task: Task, examples: Sequence[Any], predictions: Sequence[Any]) -> Scores:
        gold = [label_of(example) for example in examples]
        labels = task.labels or tuple(sorted({label for one in (*gold, *predictions) for label in one}))
        exact = np.mean([set(one) == set(guess) for one, guess in zip(gold, predictions, strict=True)])
        scores = {
            f"{average}_f1": metrics.f1_of_sets(gold, predictions, labels, average=average)
            for average in ("micro", "macro")
        }
        if {"micro_precision", "micro_recall"} & set(task.metrics):
            sides = (np.array([[label in one for label in labels] for one in side]) for side in (gold, predictions))
            precision, recall = metrics.precision_recall(*sides)
            scores |= {"micro_precision": precision, "micro_recall": recall}
        return scores | {"exact": float(exact)}

    @classmethod
    def off(cls, task: Task, example: Any, value: Any, detail: Mapping[str, Any]) -> float:
        """The negative log-probability of the gold labels, and of no others, in nats."""
        gold = set(label_of(example))
        if gold == set(value):
            return 0.0
        shares = [share if label in gold else 1 - share for label, share in detail["probabilities"].items()]
        return -float(np.log(np.clip(shares, 1e-30, 1)).sum())

    @staticmethod
    def in_words(label: Any) -> str:
        return ", ".join(label) or "none"

    @classmethod
    def details_of(cls, task: Task, examples: Sequence[Any], values: Sequence[Any]) -> dict[str, Any]:
        return {"kind": "label", "classes": by_class(map(label_of, examples), values, task.labels or ())}

    def chance(self, examples: Sequence[Any]) -> Chance | None:
        certain = Chance(0.0, 1.0)
        labels = labels_of(examples)
        each = [by_frequency(label in example.labels for example in examples) or certain for label in labels]
        return Chance(*(float(mean) for mean in np.mean(each, axis=0))) if each else None

    # Encoding and losses

    def head(self, family: Family) -> TaskHead:
        return replace(family.classification, labels=self.num_labels(), several=True)

    def _target(self, example: Text) -> list[float]:
        if example.label is None:
            return [float("nan")] * len(self.index)
        return [float(label in example.labels) for label in self.index]

    def _known(self, target: Tensor) -> Tensor:
        return target.isfinite().all(-1)

    def counts(self, batch: TaskBatch) -> dict[str, int]:
        return {name: count * len(self.index) for name, count in super().counts(batch).items()}

    def terms(self, model: Network, states: States, batch: TaskBatch, noise: Noise | None) -> dict[str, Term]:
        logits, target = self.known_logits(model, states, batch, noise)
        loss = F.binary_cross_entropy_with_logits(logits.float(), target, reduction="sum")
        return {self.name: Term(loss, target.numel(), hits=((logits > 0) == (target > 0)).sum())}

    # Comparing models: every label by itself

    def divergence(self, first: Tensor, second: Tensor) -> Tensor:
        return _crossed(second, first.detach()) + _crossed(first, second.detach())

    def imitation(self, logits: Tensor, teacher: Tensor, temperature: float, weight: float) -> Term:
        """``T^2 KL(sigmoid(teacher / T) || sigmoid(logits / T))``."""
        ours, theirs = logits / temperature, teacher / temperature
        loss = (_crossed(ours, theirs) - _crossed(theirs, theirs)) * temperature**2
        return Term(loss, logits.numel(), weight, ((logits > 0) == (teacher > 0)).sum())

    # Predictions

    def shares(self, logits: np.ndarray) -> np.ndarray:
        return 1 / (1 + np.exp(-np.asarray(logits, dtype=np.float64)))

    def decode(self, items: Sequence[Item], outputs: Sequence[Any], examples: Sequence[Any]) -> Predictions:
        names, values, details = tuple(self.index), [], []
        for logits in outputs:
            probability = self.shares(logits)
            values.append(tuple(names[i] for i in np.flatnonzero(probability > self.threshold)))
            details.append({"probabilities": dict(zip(names, map(float, probability), strict=True))})
        return Predictions(values=values, details=details, threshold=self.threshold)

    def choose_threshold(self, examples: Sequence[Example], predictions: Predictions) -> str:
        gold = [example.labels for example in examples]
        right = np.array([[label in labels for label in self.index] for labels in gold])
        probabilities = np.array([list(detail["probabilities"].values()) for detail in predictions.details])
        goal = Goal.of(self.settings)
        if goal is not None:
            chosen = threshold_for(probabilities, right, goal)
            self.threshold = chosen.threshold
            return chosen.told(goal, "a label is given")
        self.threshold = best_threshold(probabilities, right)
        return f"labels are predicted above probability {self.threshold:.4f}, chosen on dev"

    # Ensembles

    def average(self, outputs: Sequence[Sequence[Any]]) -> list[Any]:
        means = (np.mean([self.shares(one) for one in item], axis=0) for item in zip(*outputs, strict=True))
        return [np.log(mean) - np.log1p(-mean) for mean in (np.clip(mean, 1e-300, 1 - 1e-16) for mean in means)]


def best_threshold(probabilities: np.ndarray, labels: np.ndarray) -> float:
    """The threshold for probabilities (n, labels) with the best micro F1 of ``labels`` (n, labels) bool.

    It lies half way between two probabilities; among equally good ones it is the nearest to 0.5. Without labels
    it is 0.5.
    """
    if not labels.any():
        return 0.5
    thresholds, given, hits = thresholds_of(probabilities, labels)
    f1 = 2 * hits / (given + hits[-1])
    return float(min(thresholds[f1 == f1.max()], key=lambda threshold: abs(threshold - 0.5)))


def _crossed(logits: Tensor, targets: Tensor) -> Tensor:
    """The cross-entropy between the labels' probabilities and those for the logits ``targets``, summed."""
    return F.binary_cross_entropy_with_logits(logits, targets.sigmoid(), reduction="sum")


def _separator(cells: set[str]) -> str | None:
    """The separator of the labels in a cell: ``"[]"`` for JSON lists; None if every cell has one label."""
    full = [cell for cell in cells if cell]
    if full and all(cell.startswith("[") and cell.endswith("]") for cell in full):
        return "[]"
    return next((mark for mark in SEPARATORS if any(mark in cell for cell in full)), None)
