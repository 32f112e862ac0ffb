"""Scores of predictions against gold labels, and intervals of their means; NumPy only.

Every score has its natural scale (accuracy 0..1, correlations -1..1). If its formula is undefined, a score is 0 with a
:class:`MetricWarning`, because a silent 0 looks like a bad model and a silent NaN spoils every average. The
scores of numbers that are not finite are NaN, also with a warning.
Tags are scored in :mod:`encoderlab.tasks.scoring.entities`, answers in :mod:`encoderlab.tasks.scoring.answers`.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from functools import cache
from typing import Literal

import numpy as np

from encoderlab.errors import DataError

Labels = Sequence | np.ndarray


class MetricWarning(UserWarning):
    """A score is 0 by convention because its formula is undefined for this data, or NaN because the data is."""


def accuracy(gold: Labels, predicted: Labels) -> float:
    """Share of equal entries."""
    gold, predicted = _labels(gold, predicted)
    return float(np.mean(gold == predicted))


def f1(
    gold: Labels,
    predicted: Labels,
    *,
    average: Literal["binary", "macro"] = "binary",
    positive: object = 1,
    undefined: float = 0.0,
) -> float:
    """F1 = 2 TP / (2 TP + FP + FN) of one class (``binary``), or its mean over the classes that occur in ``gold`` or
    ``predicted`` (``macro``), as scikit-learn computes it.

    Args:
        positive: the class of ``binary``.
        undefined: its F1 if it occurs in neither, for an official script that does not count it as 0.
    """
    gold, predicted = _labels(gold, predicted)
    classes = [positive] if average == "binary" else list(np.union1d(gold, predicted))
    right, guess = (np.array([side == label for label in classes]).reshape(-1, len(gold)) for side in (gold, predicted))
    return _f1(right, guess, classes, average, undefined)


def precision_recall(gold: np.ndarray, predicted: np.ndarray) -> tuple[float, float]:
    """TP / (TP + FP) and TP / (TP + FN) of bool arrays; 0 if nothing is predicted, or nothing is positive."""
    both = (gold & predicted).sum()
    return float(both / max(predicted.sum(), 1)), float(both / max(gold.sum(), 1))


def f1_of_sets(
    gold: Sequence[Sequence[str]],
    predicted: Sequence[Sequence[str]],
    labels: Sequence[str],
    *,
    average: Literal["macro", "micro"],
) -> float:
    """As :func:`f1`, for entries with any number of ``labels``."""
    if len(gold) != len(predicted):
        raise DataError(f"{len(predicted)} predictions for {len(gold)} examples; give those of the same file")
    sides = ([[label in one for one in side] for label in labels] for side in (gold, predicted))
    right, guess = (np.array(side, dtype=bool).reshape(len(labels), len(gold)) for side in sides)
    return _f1(right, guess, labels, average)


def _f1(
    right: np.ndarray,
    guess: np.ndarray,
    classes: Sequence,
    average: Literal["binary", "macro", "micro"],
    undefined: float = 0.0,
) -> float:
    """F1 from bool arrays (classes, n): which examples are of a class, and which were predicted to be."""
    hits, total = (right & guess).sum(1).astype(float), right.sum(1) + guess.sum(1).astype(float)
    if average == "micro":
        hits, total = hits.sum(keepdims=True), total.sum(keepdims=True)
    if (total == 0).any() and not undefined:
        absent = [str(label) for label, size in zip(classes, total, strict=False) if size == 0]
        named = ", ".join(absent[:9]) + (f" and {len(absent) - 9:,} more" if len(absent) > 9 else "")
        _warn(f"F1 of {named} is 0 by convention: no such label in gold or predicted")
    return float(np.mean(np.divide(2 * hits, total, out=np.full_like(total, undefined), where=total > 0)))


def matthews(gold: Labels, predicted: Labels) -> float:
    """Matthews correlation, for any number of classes (R_K of Gorodkin, 2004); 0 where gold or predicted is
    constant.
    """
    gold, predicted = _labels(gold, predicted)
    classes = np.union1d(gold, predicted)
    table = np.zeros((len(classes), len(classes)))
    np.add.at(table, (np.searchsorted(classes, gold), np.searchsorted(classes, predicted)), 1)
    n, rows, columns = table.sum(), table.sum(1), table.sum(0)
    spread = (n * n - rows @ rows) * (n * n - columns @ columns)
    if spread == 0:
        constant = "predictions" if np.count_nonzero(columns) == 1 else "gold labels"
        _warn(f"Matthews correlation is 0 by convention: the {constant} are constant")
        return 0.0
    return float((n * np.trace(table) - rows @ columns) / np.sqrt(spread))


def pearson(gold: Labels, predicted: Labels) -> float:
    """Pearson's linear correlation; 0 where one side is constant, NaN where a number is not finite."""
    gold, predicted = _pair(gold, predicted)
    x, y = np.asarray(gold, dtype=float), np.asarray(predicted, dtype=float)
    if not _all_finite(x, y):
        return float("nan")
    if np.ptp(x) == 0 or np.ptp(y) == 0:
        _warn(f"correlation is 0 by convention: the {'gold values' if np.ptp(x) == 0 else 'predictions'} are constant")
        return 0.0
    x, y = (z / np.abs(z).max() for z in (x, y))  # squares of large numbers would overflow
    x, y = x - x.mean(), y - y.mean()
    return float(np.clip(x @ y / (np.linalg.norm(x) * np.linalg.norm(y)), -1, 1))


def spearman(gold: Labels, predicted: Labels) -> float:
    """Spearman's rank correlation: Pearson's correlation of the ranks, ties sharing their mean rank; NaN where a number
    is not finite.
    """
    gold, predicted = _pair(gold, predicted)
    if not _all_finite(np.asarray(gold, dtype=float), np.asarray(predicted, dtype=float)):
        return float("nan")
    return pearson(ranks(gold), ranks(predicted))


def ranks(values: Labels) -> np.ndarray:
    """Ranks 1..n of ``values``; equal values share the mean of their ranks."""
    _, group, size = np.unique(np.asarray(values, dtype=float), return_inverse=True, return_counts=True)
    last = np.cumsum(size)
    return (last - (size - 1) / 2)[group]


def grouped_exact(gold: Labels, predicted: Labels, groups: Labels) -> float:
    """MultiRC's exact match (Khashabi et al., 2018): share of questions with all answer options judged correctly."""
    gold, predicted = _labels(gold, predicted)
    _, group = np.unique(np.asarray(groups), return_inverse=True)
    wrong = np.bincount(group, weights=gold != predicted)
    return float(np.mean(wrong == 0))


def two_sided(t: float, freedom: int) -> float:
    """P(|T| > |t|) of Student's distribution (Abramowitz and Stegun, 26.7.3 and 26.7.4)."""
    angle = math.atan(abs(t) / math.sqrt(freedom))
    sine, cosine = math.sin(angle), math.cos(angle)
    term, total = (cosine, cosine) if freedom % 2 else (1.0, 1.0)
    for k in range(3 if freedom % 2 else 2, freedom - 1, 2):
        term *= (k - 1) / k * cosine**2
        total += term
    inside = sine * total if freedom % 2 == 0 else 2 / math.pi * (angle + (sine * total if freedom > 1 else 0.0))
    return min(1.0, max(0.0, 1.0 - inside))


@cache
def t_quantile(freedom: int, tails: float = 0.05) -> float:
    """The t beyond which, on both sides, ``tails`` of Student's distribution lie, by bisection."""
    low, high = 0.0, 1e3
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if two_sided(middle, freedom) > tails else (low, middle)
    return high


def mean_interval(values: Sequence[float]) -> tuple[float, float]:
    """The 95% interval of a mean over seeds (Student's t); infinitely wide for one value."""
    n = len(values)
    if n < 2:
        return float("-inf"), float("inf")
    half = t_quantile(n - 1) * float(np.std(values, ddof=1)) / n**0.5
    return float(np.mean(values)) - half, float(np.mean(values)) + half


def _all_finite(gold: np.ndarray, predicted: np.ndarray) -> bool:
    """Whether all numbers are finite; a warning counts those that are not."""
    for name, values in (("predictions", predicted), ("gold values", gold)):
        if wrong := int(np.sum(~np.isfinite(values))):
            first = int(np.argmin(np.isfinite(values))) + 1
            _warn(f"{wrong:,} of {len(values):,} {name} are not finite (first: number {first}): their scores are NaN")
            return False
    return True


def _labels(gold: Labels, predicted: Labels) -> tuple[np.ndarray, np.ndarray]:
    """As :func:`_pair`, for classes: numbers that are not finite count as predictions of no class, with a warning."""
    gold, predicted = _pair(gold, predicted)
    if predicted.dtype.kind == "f" and (wrong := ~np.isfinite(predicted)).any():
        _warn(
            f"{wrong.sum():,} of {len(wrong):,} predictions are not finite (first: number {wrong.argmax() + 1}): "
            "they count as wrong"
        )
        predicted = np.where(wrong, np.inf, predicted)  # NaN is unequal to itself, which a class may not be
    return gold, predicted


def _pair(gold: Labels, predicted: Labels) -> tuple[np.ndarray, np.ndarray]:
    """Both as arrays.

    Raises:
        DataError: they are empty, or differ in length.
    """
    gold, predicted = np.asarray(gold), np.asarray(predicted)
    if len(gold) != len(predicted):
        raise DataError(f"{len(predicted)} predictions for {len(gold)} examples; give those of the same file")
    if not len(gold):
        raise DataError("0 labelled examples to score; give a file with labels")
    return gold, predicted


def _warn(message: str) -> None:
    warnings.warn(message, MetricWarning, stacklevel=3)
