"""Classification: one label for one or two texts."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
import torch.nn.functional as F

from encoderlab.batches.batch import IGNORE
from encoderlab.config import PositiveShare, Rate
from encoderlab.corpus.tokenizer import Tokenizer
from encoderlab.errors import ConfigError
from encoderlab.models.base import Family
from encoderlab.nn.encoder import States
from encoderlab.nn.heads import ClassificationHead, TaskHead
from encoderlab.nn.noise import Noise
from encoderlab.objectives.base import Term
from encoderlab.tasks.data.examples import Example, Remarks, Split, Text, labels_of
from encoderlab.tasks.data.readers import Layout
from encoderlab.tasks.forms.base import (
    FormSettings,
    Network,
    Predictions,
    Scores,
    by_frequency,
    check_number_of_labels,
    known_label,
)
from encoderlab.tasks.forms.baselines import bag_of_words, majority, threshold_on_overlap
from encoderlab.tasks.forms.batching import Item, TaskBatch
from encoderlab.tasks.forms.texts import GAPS, TextForm, TextSettings, label_of, one_label
from encoderlab.tasks.scoring import metrics
from encoderlab.tasks.scoring.analysis import Mistake, by_class, confusion
from encoderlab.tasks.scoring.thresholds import Goal, threshold_for
from encoderlab.train.data import Chance

if TYPE_CHECKING:
    from encoderlab.tasks.data.task import Task

NO_LABEL = (*GAPS, "-1", "-1.0")  # values of test files instead of a label


@dataclass(frozen=True, kw_only=True)
class LabelSettings(TextSettings):
    """Settings of learning one label per text, also for forms that derive from classification.

    Args:
        balance: for rare classes in training: ``weights`` multiplies the loss of an example by n / (C n_c), for n
            examples of C classes and n_c examples of its class; ``sampling`` repeats examples until all classes have as
            many as the most frequent one.
        smoothing: the share of the target that is spread evenly over all classes (Szegedy et al., 2016, section 7).
    """

    balance: Literal["none", "weights", "sampling"] = "none"
    smoothing: Rate = 0.0


@dataclass(frozen=True, kw_only=True)
class ClassificationSettings(LabelSettings):
    """Settings of classification.

    Args:
        precision: of two labels, the second one (1 of 0 and 1, pos of neg and pos) is predicted if its probability
            exceeds a threshold, which is chosen on the development set to reach this precision there.
        recall: the same for a recall; one of the two can be set.
    """

    kind: Literal["classification"] = "classification"
    precision: PositiveShare | None = None
    recall: PositiveShare | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        Goal.of(self)


class ClassificationForm(TextForm):
    """Cross-entropy over the classes.

    ``weights`` of the classes are computed in training; None for equal weights.
    """

    name = "classification"
    description = "a label for one or two texts"
    settings_type = ClassificationSettings
    metrics = ("accuracy", "macro_f1")
    baselines = {
        "majority": majority,
        "TF-IDF + logistic regression": bag_of_words,
        "word overlap": threshold_on_overlap,
    }
    labelled = True
    collapses = True
    no_label = ", or give --form multilabel if it means no label"
    learned = ("cut", "weights")
    settings: LabelSettings

    # Data

    @classmethod
    def inferred(cls, layout: Layout, examples: Sequence[Any]) -> tuple[Layout, tuple[str, ...], str]:
        grouped = any(example.group for example in examples)
        return (layout, ("f1", "exact"), "exact by question") if grouped else (layout, cls.metrics, "")

    @classmethod
    def checked(cls, task: Task, example: Any, place: str, remarks: Remarks) -> Example | None:
        if example.label is None:
            return example
        label = one_label(example, place)
        if label in task.dropped:
            remarks.add(f"label {label!r} means no label here; left out", example.row)
            return None
        return replace(example, label=_parsed(task, label.strip(), place))

    @classmethod
    def completed(cls, task: Task, train: Split) -> Task:
        labels = labels_of(train.examples)
        if task.labels is not None and len(labels) != 1:
            return task
        check_number_of_labels(labels, train)
        names = task.metrics
        if len(labels) == 2 and "macro_f1" in names:
            names = ("accuracy", "f1", "matthews")
        return replace(task, labels=labels, metrics=names, indices=False)

    @classmethod
    def decided(cls, task: Task, settings: FormSettings) -> Task:
        if not isinstance(settings, ClassificationSettings) or Goal.of(settings) is None:
            return task
        if len(task.labels or ()) != 2:
            raise ConfigError(
                f"form.precision and form.recall are for two labels, {task.name} has {len(task.labels or ())}; leave "
                f"them unset, or use --form multilabel"
            )
        return replace(task, metrics=tuple(dict.fromkeys((*task.metrics, "precision", "recall"))))

    @classmethod
    def fits(cls, model: Network) -> bool:
        head = model.task
        return isinstance(head, ClassificationHead) and head.config.labels > 1 and not head.config.several

    # Scores

    @classmethod
    def measures(cls, task: Task, examples: Sequence[Any], predictions: Sequence[Any]) -> Scores:
        gold = np.array([label_of(example) for example in examples])
        guess = np.array([str(label) for label in predictions])
        positive = (task.labels or ("0", "1"))[1]  # 1 of 0 and 1, true of false and true
        named: dict[str, Callable[[], float]] = {
            "accuracy": lambda: metrics.accuracy(gold, guess),
            "exact": lambda: metrics.grouped_exact(gold, guess, [example.group for example in examples]),
            # MultiRC, which alone has groups, counts precision and recall 1 where there is nothing to find.
            "f1": lambda: metrics.f1(gold, guess, positive=positive, undefined=float("exact" in task.metrics)),
            "macro_f1": lambda: metrics.f1(gold, guess, average="macro"),
            "matthews": lambda: metrics.matthews(gold, guess),
            "precision": lambda: metrics.precision_recall(gold == positive, guess == positive)[0],
            "recall": lambda: metrics.precision_recall(gold == positive, guess == positive)[1],
        }
        return {name: named[name]() for name in dict.fromkeys(("accuracy", *task.metrics))}

    @classmethod
    def off(cls, task: Task, example: Any, value: Any, detail: Mapping[str, Any]) -> float:
        """The negative log-probability of the gold label, in nats."""
        gold = label_of(example)
        if value == gold:
            return 0.0
        share = detail["probabilities"][(task.labels or ()).index(gold)]
        return -math.log(max(float(share), 1e-30))

    @classmethod
    def mistake(cls, task: Task, place: int, example: Any, value: Any, detail: Mapping[str, Any]) -> Mistake:
        sure = float(detail["probabilities"][(task.labels or ()).index(value)])
        return replace(super().mistake(task, place, example, value, detail), sure=sure)

    @classmethod
    def details_of(cls, task: Task, examples: Sequence[Any], values: Sequence[Any]) -> dict[str, Any]:
        gold, guess = [label_of(example) for example in examples], [str(value) for value in values]
        classes = by_class([[label] for label in gold], [[label] for label in guess], task.labels or ())
        return {"kind": "class", "classes": classes, "confusion": confusion(gold, guess)}

    def chance(self, examples: Sequence[Any]) -> Chance | None:
        plain = self.settings.balance == "none" and not self.settings.smoothing
        return by_frequency(example.label for example in examples) if plain else None

    # Encoding and losses

    def __init__(self, task: Task, tokenizer: Tokenizer, settings: FormSettings) -> None:
        super().__init__(task, tokenizer, settings)
        self.weights: list[float] | None = None

    def items(self, examples: Sequence[Any], *, train: bool = False) -> list[Item]:
        items = super().items(examples, train=train)
        if not train or self.settings.balance == "none":
            return items
        of_class: dict[int, list[Item]] = {i: [] for i in self.index.values()}
        for item in items:
            of_class[item.sequences[0].labels["target"]].append(item)
        counts = {i: len(some) for i, some in of_class.items()}
        if self.settings.balance == "weights":
            classes = sum(count > 0 for count in counts.values())
            self.weights = [len(items) / (classes * count) if count else 0.0 for count in counts.values()]
            return items
        most = max(counts.values())
        return [some[i % len(some)] for some in of_class.values() if some for i in range(most)]

    def head(self, family: Family) -> TaskHead:
        return replace(family.classification, labels=self.num_labels())

    def _target(self, example: Text) -> int:
        return IGNORE if example.label is None else self.index.get(str(example.label), IGNORE)

    def _known(self, target: torch.Tensor) -> torch.Tensor:
        return target != IGNORE

    def terms(self, model: Network, states: States, batch: TaskBatch, noise: Noise | None) -> dict[str, Term]:
        logits, target = self.known_logits(model, states, batch, noise)
        smoothing = 0.0 if noise is None else self.settings.smoothing  # validation is plain
        losses = F.cross_entropy(logits.float(), target, reduction="none", label_smoothing=smoothing)
        if noise is not None and self.weights is not None:  # by example; torch weights every smoothed class
            losses = losses * torch.tensor(self.weights, device=logits.device)[target]
        return {self.name: Term(losses.sum(), len(target), hits=(logits.argmax(-1) == target).sum())}

    # Predictions

    def decode(self, items: Sequence[Item], outputs: Sequence[Any], examples: Sequence[Any]) -> Predictions:
        values, details = [], []
        for logits in outputs:
            probability = self.shares(logits)
            best = int(probability[1] > self.threshold) if self.threshold else int(probability.argmax())
            values.append(tuple(self.index)[best])
            details.append({"score": float(probability[best]), "probabilities": probability})
        return Predictions(values=values, details=details, threshold=self.threshold)

    def choose_threshold(self, examples: Sequence[Example], predictions: Predictions) -> str:
        if not isinstance(self.settings, ClassificationSettings) or (goal := Goal.of(self.settings)) is None:
            return ""
        positive = tuple(self.index)[1]
        probabilities = np.array([detail["probabilities"][1] for detail in predictions.details])
        right = np.array([getattr(example, "label", None) == positive for example in examples])
        chosen = threshold_for(probabilities, right, goal)
        self.threshold = chosen.threshold
        return chosen.told(goal, f"{positive} is predicted")


def _parsed(task: Task, raw: str, place: str) -> str | None:
    """The label for ``raw``; None for a placeholder in a test file (:data:`NO_LABEL`).

    Raises:
        DataError: not one of the task's labels.
    """
    if task.labels is None:
        return None if raw in ("", "nan", "NaN") else raw
    if raw in task.labels:
        return raw
    if raw in NO_LABEL:
        return None
    if raw.lower() in task.labels and raw.lower() in ("true", "false"):
        return raw.lower()
    for other in (raw.removesuffix(".0"), f"{raw}.0"):  # a number that was written as a float, here or in training
        if other in task.labels:
            return other
    return known_label(task, raw.removesuffix(".0"), place, indices=not any(label.isdigit() for label in task.labels))
