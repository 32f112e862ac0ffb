"""Regression: a number for one or two texts."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor

from encoderlab.corpus.tokenizer import Tokenizer
from encoderlab.errors import ConfigError, DataError
from encoderlab.interchange.heads import CHOICES, NUMBER
from encoderlab.models.base import Family
from encoderlab.nn.encoder import States
from encoderlab.nn.heads import ClassificationHead, TaskHead
from encoderlab.nn.noise import Noise
from encoderlab.objectives.base import Term
from encoderlab.tasks.data.examples import Example, Remarks
from encoderlab.tasks.data.readers import Columns, Layout
from encoderlab.tasks.forms.base import FormSettings, Network, Predictions, Scores
from encoderlab.tasks.forms.baselines import mean_number, overlap_number
from encoderlab.tasks.forms.batching import Item, TaskBatch
from encoderlab.tasks.forms.texts import GAPS, TextForm, TextSettings, label_of, one_label
from encoderlab.tasks.scoring import metrics
from encoderlab.tasks.scoring.analysis import POINTS

if TYPE_CHECKING:
    from encoderlab.tasks.data.task import Task

DECIMAL_COMMA = r"[-+]?\d+,\d+"


@dataclass(frozen=True, kw_only=True)
class RegressionSettings(TextSettings):
    """Settings of regression.

    Args:
        targets: ``unit`` trains on numbers scaled to 0..1 (ELECTRA), ``raw`` on the file's numbers (BERT). In both
            cases the saved model predicts numbers in the file's units.
    """

    kind: Literal["regression"] = "regression"
    targets: Literal["unit", "raw"] = "unit"


class RegressionForm(TextForm):
    """Squared error of one output, which learns ``(number - offset) / factor``."""

    name = "regression"
    description = "a number for one or two texts"
    settings_type = RegressionSettings
    metrics = ("spearman", "pearson")
    baselines = {"mean": mean_number, "word overlap": overlap_number}
    learned = ("cut", "offset", "factor")
    graded = True
    settings: RegressionSettings

    # Data

    @classmethod
    def recognises(cls, layout: Layout, examples: Sequence[Example]) -> bool:
        """Whether labels are fractions, or more than 20 different numbers in a column called score.

        Numbers with a decimal comma count too; reading them gives an error that says how to write them.
        """
        if not isinstance(layout, Columns):
            return False
        raw = {label for example in examples for label in example.labels if label not in GAPS}
        raw = {label.replace(",", ".") if re.fullmatch(DECIMAL_COMMA, label) else label for label in raw}
        try:
            numbers = {float(label) for label in raw}
        except ValueError:
            return False
        whole = all(number.is_integer() for number in numbers)
        named = (layout.label or "").lower() in ("score", "rating", "target", "y")
        return bool(numbers) and (not whole or (named and len(numbers) > 20))

    @classmethod
    def checked(cls, task: Task, example: Any, place: str, remarks: Remarks) -> Example:
        raw = None if example.label is None else one_label(example, place).strip()
        return replace(example, label=None if raw is None or raw in GAPS else _parsed(task, raw, place))

    @classmethod
    def agreement(cls, before: Sequence[Any], after: Sequence[Any]) -> float:
        return metrics.pearson(np.array(before), np.array(after)) if len(before) > 1 else 1.0

    @classmethod
    def fits(cls, model: Network) -> bool:
        head = model.task
        one = isinstance(head, ClassificationHead) and head.config.labels == 1 and not head.config.several
        return one and model.config.labels != CHOICES

    # Settings

    @classmethod
    def as_saved(cls, settings: FormSettings) -> FormSettings:
        """The saved head answers in the numbers of the file."""
        return replace(settings, targets="raw")  # type: ignore[call-arg]

    # Scores

    @classmethod
    def measures(cls, task: Task, examples: Sequence[Any], predictions: Sequence[Any]) -> Scores:
        gold = np.array([float(label_of(example)) for example in examples])
        guess = np.array(predictions, dtype=float)
        return {
            "spearman": metrics.spearman(gold, guess),
            "pearson": metrics.pearson(gold, guess),
            "mean_squared_error": float(np.mean((gold - guess) ** 2)),
        }

    @classmethod
    def off(cls, task: Task, example: Any, value: Any, detail: Mapping[str, Any]) -> float:
        """The distance to the gold number; infinite for predictions that are not finite."""
        return abs(float(label_of(example)) - value) if math.isfinite(value) else math.inf

    @staticmethod
    def in_words(label: Any) -> str:
        return f"{float(label):.4g}"

    @classmethod
    def details_of(cls, task: Task, examples: Sequence[Any], values: Sequence[Any]) -> dict[str, Any]:
        """Gold and predicted numbers, taken evenly from the split if there are more than :data:`POINTS`."""
        pairs = [(float(label_of(example)), float(value)) for example, value in zip(examples, values, strict=True)]
        finite = [(round(gold, 4), round(guess, 4)) for gold, guess in pairs if math.isfinite(guess)]
        return {"points": tuple(finite[:: -(-len(finite) // POINTS) or 1])}

    # Encoding and losses

    def __init__(self, task: Task, tokenizer: Tokenizer, settings: FormSettings) -> None:
        super().__init__(task, tokenizer, settings)
        self.offset, self.factor = 0.0, 1.0
        if self.settings.targets == "unit" and task.range is not None:
            self.offset, self.factor = task.range[0], task.range[1] - task.range[0]

    def head(self, family: Family) -> TaskHead:
        return replace(family.classification, labels=1)

    def head_labels(self) -> tuple[str, ...]:
        return NUMBER

    def items(self, examples: Sequence[Any], *, train: bool = False) -> list[Item]:
        if train and self.settings.targets == "unit" and self.task.range is None:
            # Numbers without a known range are learned with mean 0 and standard deviation 1.
            numbers = [float(e.label) for e in examples if e.label is not None]
            self.offset, self.factor = float(np.mean(numbers)), float(np.std(numbers)) or 1.0
        return super().items(examples, train=train)

    def _target(self, example: Any) -> float:
        return float("nan") if example.label is None else (float(example.label) - self.offset) / self.factor

    def _known(self, target: Tensor) -> Tensor:
        return target.isfinite()

    def terms(self, model: Network, states: States, batch: TaskBatch, noise: Noise | None) -> dict[str, Term]:
        logits, target = self.known_logits(model, states, batch, noise)
        return {self.name: Term(((logits[:, 0].float() - target) ** 2).sum(), len(target))}

    # Comparing models

    def divergence(self, first: Tensor, second: Tensor) -> Tensor:
        return ((first - second) ** 2).sum()

    def imitation(self, logits: Tensor, teacher: Tensor, temperature: float, weight: float) -> Term:
        return Term((logits - teacher).square().sum(), len(logits), weight)

    def in_units(self, logits: Tensor) -> Tensor:
        return (logits - self.offset) / self.factor

    @classmethod
    def check_comparable(cls, model: Network, name: str) -> None:
        if model.config.labels != NUMBER:
            raise ConfigError(
                f"{name}: its one output is a probability, not a number; give a regression "
                f"(problem_type of a Hugging Face config.json)"
            )

    # Predictions

    def answered(self, model: Network, logits: Tensor) -> Tensor:
        """The number; a probability if the output was not trained as a number (rankers and detectors)."""
        return logits if model.config.labels == NUMBER else logits.float().sigmoid()

    def shares(self, logits: np.ndarray) -> np.ndarray:
        return 1 / (1 + np.exp(-np.asarray(logits, dtype=np.float64)))

    def decode(self, items: Sequence[Item], outputs: Sequence[Any], examples: Sequence[Any]) -> Predictions:
        values = [self.offset + self.factor * float(logits[0]) for logits in outputs]
        return Predictions(values=values, details=[{"score": value} for value in values])

    def average(self, outputs: Sequence[Sequence[Any]]) -> list[Any]:
        return [np.mean(item, axis=0) for item in zip(*outputs, strict=True)]

    def finish(self, model: Network) -> None:
        """Fold the scale of the numbers into the output layer, so that the saved model answers in the file's units."""
        assert isinstance(model.task, ClassificationHead)
        with torch.no_grad():
            model.task.out.weight.mul_(self.factor)
            model.task.out.bias.mul_(self.factor).add_(self.offset)
        self.offset, self.factor = 0.0, 1.0


def _parsed(task: Task, raw: str, place: str) -> float | None:
    """The number for ``raw``; None for -1 in a test file if it is out of range.

    Raises:
        DataError: not a finite number, or out of range.
    """
    try:
        value = float(raw)
    except ValueError:
        comma = re.fullmatch(DECIMAL_COMMA, raw)
        remedy = "write it with a decimal point" if comma else "correct the row, or leave its label empty"
        raise DataError(
            f"{place}: label {raw!r} is not a number, but the task is a regression; {remedy}, or give another --form"
        ) from None
    if not math.isfinite(value):
        raise DataError(f"{place}: label {raw!r} is not a finite number; leave the row out")
    if task.range is None or task.range[0] <= value <= task.range[1]:
        return value
    if value == -1:
        return None
    raise DataError(f"{place}: label {raw} is outside {task.range[0]:g} to {task.range[1]:g}; correct the row")
