"""Thresholds of probabilities: the best F1, or a wanted precision or recall."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from encoderlab.errors import ConfigError


class Goal(NamedTuple):
    """The precision or the recall that a threshold must reach on development data; one of them is None."""

    precision: float | None
    recall: float | None

    @classmethod
    def of(cls, settings: Any) -> Goal | None:
        """The goal in the fields ``precision`` and ``recall`` of settings; None if both are unset.

        Raises:
            ConfigError: both are given.
        """
        goal = cls(settings.precision, settings.recall)
        if goal == (None, None):
            return None
        if None not in goal:
            raise ConfigError("form.precision and form.recall: a threshold has one of them; leave the other unset")
        return goal


class Threshold(NamedTuple):
    """A threshold, and its precision and recall on the data by which it was chosen."""

    threshold: float
    precision: float
    recall: float

    def told(self, goal: Goal, what: str) -> str:
        """A sentence about the threshold, which starts with ``what``."""
        name = "recall" if goal.precision is None else "precision"
        least, reached = getattr(goal, name), getattr(self, name)
        short = f"; {name} {least:g} is not reached" if reached < least else ""
        return (
            f"{what} where its probability is above {self.threshold:.4f}, chosen on dev for {name} {least:g} "
            f"(precision {self.precision:.4f}, recall {self.recall:.4f}{short})"
        )


def threshold_for(probabilities: np.ndarray, right: np.ndarray, goal: Goal) -> Threshold:
    """The threshold with the highest recall among those that reach the precision of ``goal``, or the other way round.

    If none reaches it, the one with the highest precision; 0.5 if nothing is right.

    Args:
        probabilities: of any shape; an answer is predicted if its probability exceeds the threshold.
        right: bool of the same shape: whether that answer is right.
    """
    if not right.any():
        return Threshold(0.5, 0.0, 0.0)
    thresholds, given, hits = thresholds_of(probabilities, right)
    precision, recall = hits / given, hits / hits[-1]
    first, second = (precision, recall) if goal.recall is None else (recall, precision)
    least = goal.precision if goal.recall is None else goal.recall
    assert least is not None
    enough = first >= least
    if not enough.any():
        enough = first == first.max()
    best = max(np.flatnonzero(enough), key=lambda i: (second[i], first[i]))
    return Threshold(float(thresholds[best]), float(precision[best]), float(recall[best]))


def thresholds_of(probabilities: np.ndarray, right: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The thresholds (n,) that lie half way between a probability and the next lower one, the highest first; how many
    answers exceed each, and how many of these are right. Arguments as of :func:`threshold_for`.
    """
    order = np.argsort(-probabilities, axis=None, kind="stable")
    ranked, hits = probabilities.ravel()[order], np.cumsum(right.ravel()[order])
    places = np.flatnonzero(ranked > np.append(ranked[1:], -1.0))  # equal probabilities are given together
    return (ranked + np.append(ranked[1:], 0.0))[places] / 2, places + 1, hits[places]
