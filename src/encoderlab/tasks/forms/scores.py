"""The scores of a task's predictions by the names of its metrics, and those of simple baselines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from encoderlab.tasks.data.examples import Example, Split, is_unlabelled
from encoderlab.tasks.forms.base import Scores
from encoderlab.tasks.forms.table import FORMS

if TYPE_CHECKING:
    from encoderlab.tasks.data.task import Task


def score(
    task: Task, examples: Sequence[Example], predictions: Sequence[Any], **known: Any
) -> tuple[Scores, tuple[str, ...]]:
    """All scores of the task's form, those of ``task.metrics`` first, on the scale 0..1 (correlations -1..1); and
    warnings about them (undefined scores, which count as 0).

    The form computes them (:meth:`encoderlab.tasks.forms.base.Form.measures`). Predictions have the order of the
    examples; the form decides what a prediction is (a label, a number, a tuple of tags, the index of an option, an
    answer). Examples without a reference are refused, so a score covers all
    predictions.

    Args:
        known: of answers, ``null_odds`` and ``threshold``: see :meth:`encoderlab.tasks.forms.span.SpanForm.measures`.

    Raises:
        DataError: an example has no reference, or there are more or fewer predictions than examples.
    """
    return FORMS[task.form].score(task, examples, predictions, **known)


def baselines(task: Task, train: Split, dev: Split) -> dict[str, Scores]:
    """Scores on ``dev`` of every baseline of the task's form, by name; one that does not apply (word overlap of single
    texts) is left out.
    """
    guesses = {name: predict(train.examples, dev.examples) for name, predict in FORMS[task.form].baselines.items()}
    return {
        name: score(task, dev.examples, predictions)[0]
        for name, predictions in guesses.items()
        if predictions is not None
    }


def baselines_by_split(task: Task, splits: Mapping[str, Split]) -> dict[str, dict[str, Scores]]:
    """The scores of :func:`baselines` on every labelled split except the training split."""
    return {
        name: baselines(task, splits["train"], split)
        for name, split in splits.items()
        if name != "train" and not any(map(is_unlabelled, split.examples))
    }
