"""Strip plots: the scores of several methods on a task, each with its seeds, their mean and its interval, on one axis.

Places are shares of the axis as CSS has them; the template of the page (``parts.html``) draws.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from encoderlab.measure.report import MethodScores, TaskScores, difference, interval
from encoderlab.pages.charts import hue, round_values


def strip(task: TaskScores, *, percent: bool = True) -> dict[str, Any]:
    """The plot of the scores of a task; ``percent``: they are shown times 100. ``kind`` of its ``verdict``: ``gain``,
    ``loss`` or neither.
    """
    low, high = _focus(task.methods)
    room = 0.07 * ((high - low) or abs(high) or 1.0)
    axis = _Axis(low - room, high + room, round_values(low - room, high + room, 4))
    colours = iter(range(sum(method.ours for method in task.methods) - 1, -1, -1))  # the last of ours has the first one
    best = max(interval(method.scores)[0] for method in task.methods)
    verdict, kind = _judgement(task)
    return {
        "name": task.name,
        "about": task.about,
        "metric": task.metric,
        "unit": f"{task.metric} × 100".strip() if percent else task.metric,
        "lanes": [
            _lane(method, axis, hue(next(colours)) if method.ours else "var(--muted)", best, percent)
            for method in task.methods
        ],
        "ticks": [(axis.at(tick), f"{100 * tick if percent else tick:.6g}") for tick in axis.ticks],
        "verdict": verdict,
        "kind": kind,
    }


def _lane(method: MethodScores, axis: _Axis, hue: str, best: float, percent: bool) -> dict[str, Any]:
    """The row of one method: places of its mean, its seeds and its interval; ``beyond`` the left end of the axis no
    mean is drawn. ``best``: its mean is the largest of the task.
    """
    middle, half = interval(method.scores)
    score, spread = (f"{100 * middle:.1f}", f"± {100 * half:.1f}") if percent else (f"{middle:.4g}", f"± {half:.2g}")
    return {
        "name": method.name,
        "ours": method.ours,
        "hue": hue,
        "mean": axis.at(middle),
        "seeds": [axis.at(score) for score in method.scores] if len(method.scores) > 1 else [],
        "span": (axis.at(middle - half), axis.at(middle + half)) if half else None,
        "beyond": middle < axis.low,
        "score": score,
        "spread": spread if half else "",
        "best": middle == best,
    }


def _focus(methods: Sequence[MethodScores]) -> tuple[float, float]:
    """The range of our models' scores and of the baselines near them or above; one far below would flatten the rest.
    Shares keep within 0 and 1, however wide their intervals are.
    """
    means, lows, highs = [], [], []  # of each method, with its interval and its seeds
    for method in methods:
        middle, half = interval(method.scores)
        means.append(middle)
        lows.append(min(middle - half, *method.scores))
        highs.append(max(middle + half, *method.scores))
    ours = [i for i, method in enumerate(methods) if method.ours] or range(len(methods))
    low, high = min(lows[i] for i in ours), max(highs[i] for i in ours)
    margin = 4 * max(high - low, 0.01)
    near = [i for i, mean in enumerate(means) if low - margin < mean < high + margin]
    above = [i for i, mean in enumerate(means) if mean > high]
    low, high = min(lows[i] for i in near), max(highs[i] for i in [*near, *above])
    shares = all(0 <= score <= 1 for method in methods for score in method.scores)
    return (max(low, 0.0), min(high, 1.0)) if shares else (low, high)


@dataclass(frozen=True)
class _Axis:
    """The range of a strip plot, and round numbers inside it."""

    low: float
    high: float
    ticks: list[float]

    def at(self, value: float) -> str:
        """The place of ``value`` in CSS; values outside the axis are placed at its end."""
        return f"{100 * (min(max(value, self.low), self.high) - self.low) / (self.high - self.low):.2f}%"


def _judgement(task: TaskScores) -> tuple[str, str]:
    """A sentence about the paired difference, and whether it is a ``gain`` or a ``loss``."""
    gain = difference(task)
    if gain is None or task.compare is None:
        return "", ""
    middle, half = gain
    kind = "gain" if middle - half > 0 else "loss" if middle + half < 0 else ""
    if kind:
        return f"{100 * middle:+.1f} ± {100 * half:.1f} {task.by}", kind
    return f"no clear gain or loss {task.by}", kind
