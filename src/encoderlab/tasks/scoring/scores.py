"""The scores of a task's predictions, by the names of its metrics, on the scale 0..1 (correlations -1..1).

Predictions have the order of the examples. One is a label, a number, a tuple of tags, the index of an option, or an
answer, by the form of the task. Examples without a reference are refused, so a score covers all predictions.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from encoderlab.errors import DataError
from encoderlab.tasks.data.task import Choice, Example, Question, Task, Text, Words
from encoderlab.tasks.scoring import answers, metrics
from encoderlab.tasks.scoring.entities import score_entities

Scores = dict[str, float]


def score(
    task: Task,
    examples: Sequence[Example],
    predictions: Sequence[Any],
    *,
    null_odds: Mapping[str, float] | None = None,
    threshold: float = 0.0,
) -> tuple[Scores, tuple[str, ...]]:
    """All scores that the task's form has, those of ``task.metrics`` first; and warnings about them (scores that are
    undefined and count 0).

    ``null_odds`` and ``threshold``: see :func:`encoderlab.tasks.scoring.answers.squad`.

    Raises:
        DataError: an example has no reference, or there are more or fewer predictions than examples.
    """
    if len(examples) != len(predictions):
        raise DataError(f"{len(predictions)} predictions for {len(examples)} examples; give those of the same file")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", metrics.MetricWarning)
        if task.form == "span":
            scores = _span(task, examples, predictions, null_odds, threshold)
        else:
            scores = _FORMS[task.form](task, examples, predictions)
    ordered = {name: scores[name] for name in task.metrics if name in scores}
    notes = tuple(dict.fromkeys(str(item.message) for item in caught if item.category is metrics.MetricWarning))
    return ordered | scores, notes


def _classification(task: Task, examples: Sequence[Example], predictions: Sequence[Any]) -> Scores:
    gold = np.array([_label(example) for example in examples])
    guess = np.array([str(label) for label in predictions])
    measures: dict[str, Callable[[], float]] = {
        "accuracy": lambda: metrics.accuracy(gold, guess),
        "exact": lambda: metrics.grouped_exact(gold, guess, [e.group for e in examples if isinstance(e, Text)]),
        "f1": lambda: metrics.f1(gold, guess, positive=_positive(task)),
        "macro_f1": lambda: metrics.f1(gold, guess, average="macro", labels=task.labels),
        "matthews": lambda: metrics.matthews(gold, guess),
    }
    return {name: measures[name]() for name in dict.fromkeys(("accuracy", *task.metrics))}


def _regression(task: Task, examples: Sequence[Example], predictions: Sequence[Any]) -> Scores:
    gold = np.array([float(_label(example)) for example in examples])
    guess = np.array(predictions, dtype=float)
    return {
        "spearman": metrics.spearman(gold, guess),
        "pearson": metrics.pearson(gold, guess),
        "mean_squared_error": float(np.mean((gold - guess) ** 2)),
    }


def _tagging(task: Task, examples: Sequence[Example], predictions: Sequence[Any]) -> Scores:
    gold = [example.tags for example in examples if isinstance(example, Words) and example.tags is not None]
    if len(gold) != len(examples):
        raise DataError(f"{len(examples) - len(gold)} sentences have no tags; score labelled data")
    flat, guess = (np.array([tag for tags in side for tag in tags]) for side in (gold, predictions))
    scores = {"accuracy": metrics.accuracy(flat, guess)}
    if "macro_f1" in task.metrics:
        return scores | {"macro_f1": metrics.f1(flat, guess, average="macro")}
    by_type = score_entities(gold, predictions)
    every = by_type.pop("all")
    scores |= {"f1": every.f1, "precision": every.precision, "recall": every.recall}
    return scores | {f"f1_{kind}": value.f1 for kind, value in by_type.items()}


def _choice(task: Task, examples: Sequence[Example], predictions: Sequence[Any]) -> Scores:
    right = []
    for example, guess in zip(examples, predictions, strict=True):
        assert isinstance(example, Choice)
        if example.answers is None:
            raise DataError(f"example {example.id}: no answer to score against; score labelled data")
        right.append(guess in example.answers)
    scores = {"accuracy": float(np.mean(right))}
    if task.answers == "record":
        gold, guess = {}, {}
        for example, place in zip(examples, predictions, strict=True):
            assert isinstance(example, Choice) and example.answers is not None
            gold[example.id] = [example.options[answer] for answer in example.answers]
            guess[example.id] = example.options[place]
        scores |= {name: value / 100 for name, value in answers.record(gold, guess).items()}
    return scores


def _span(
    task: Task,
    examples: Sequence[Example],
    predictions: Sequence[str],
    null_odds: Mapping[str, float] | None,
    threshold: float,
) -> Scores:
    """The official scores of answers as shares, while :mod:`encoderlab.tasks.scoring.answers` has them in per cent."""
    gold: dict[str, list[str]] = {}
    for example in examples:
        assert isinstance(example, Question)
        if example.answers is None:
            raise DataError(f"question {example.id}: no answer to score against; score labelled data")
        gold[example.id] = [answer.text for answer in example.answers]
    guess = dict(zip(gold, predictions, strict=True))
    if task.answers == "squad":
        scores = answers.squad(gold, guess, null_odds=null_odds, threshold=threshold)
    else:
        scores = {"cmrc": answers.cmrc, "triviaqa": answers.triviaqa}[task.answers](gold, guess)
    kept = ("total", "threshold")
    return {name: value if name.endswith(kept) else value / 100 for name, value in scores.items()}


_FORMS: dict[str, Callable[[Task, Sequence[Example], Sequence[Any]], Scores]] = {
    "classification": _classification,
    "regression": _regression,
    "tagging": _tagging,
    "choice": _choice,
}


def _label(example: Example) -> Any:
    """The label of a text.

    Raises:
        DataError: it has none.
    """
    assert isinstance(example, Text)
    if example.label is None:
        raise DataError(f"example {example.id}: no label to score against; score labelled data")
    return example.label


def _positive(task: Task) -> str:
    """The class whose F1 is reported: the second of two labels (1 of 0 and 1, true of false and true)."""
    return (task.labels or ("0", "1"))[1]
