"""Paired comparisons over seeds, and the power law of a loss in the budget."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

import numpy as np

from encoderlab.tasks.scoring.metrics import mean_interval, t_quantile, two_sided

Verdict = Literal["holds", "does not hold", "cannot be told at this budget"]
LEVEL = 0.05  # of errors, over the family of comparisons
POWER = 0.8  # with which a difference is to be shown
ROUNDING = 1e-9  # deviations up to this share are of floating-point numbers


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Whether arm ``better`` is better ``than`` another by a measure at one budget.

    ``difference`` is the mean over seeds, positive if the claim is right, with its 95% interval; ``p`` the two-sided p
    value of the paired t test, ``adjusted`` after Holm's correction. ``needed``: see :func:`seeds_needed`.
    """

    better: str
    than: str
    by: str
    amount: float
    seeds: int
    difference: float
    low: float
    high: float
    p: float
    adjusted: float = 1.0
    verdict: Verdict = "cannot be told at this budget"
    needed: int | None = None

    def interval(self, unit: int = 1) -> str:
        """The 95% interval times ``unit``; empty where one seed, or equal differences, say nothing of it."""
        return f"{unit * self.low:+.3g} to {unit * self.high:+.3g}" if math.isfinite(self.high) else ""


def compare(differences: Sequence[float], comparisons: int = 1) -> dict[str, float | int | None]:
    """Mean, interval and p value of paired differences over seeds (Student's t), one of so many ``comparisons``."""
    n = len(differences)
    mean = float(np.mean(differences))
    deviation = float(np.std(differences, ddof=1)) if n > 1 else 0.0
    if deviation <= ROUNDING * max(1.0, abs(mean)):  # equal differences of few seeds say nothing of their spread
        return {"difference": mean, "low": -math.inf, "high": math.inf, "p": 1.0, "needed": None}
    low, high = mean_interval(differences)
    p = two_sided(mean / (deviation / n**0.5), n - 1)
    needed = seeds_needed(abs(mean) / deviation, comparisons) if mean else None
    return {"difference": mean, "low": low, "high": high, "p": p, "needed": needed}


def seeds_needed(effect: float, comparisons: int) -> int:
    """About how many seeds show a difference of ``effect`` standard deviations with a power of 80%, as one of so many
    comparisons, each at an equal part of :data:`LEVEL`. At most a million.
    """
    tails, beyond = LEVEL / comparisons, 2 * (1 - POWER)
    normal = NormalDist()
    least = (normal.inv_cdf(1 - tails / 2) + normal.inv_cdf(POWER)) / effect  # root of the number for a known spread
    if least > 1000:
        return 10**6
    n = max(2, math.ceil(least**2))
    while n < 1000 and n**0.5 * effect < t_quantile(n - 1, tails) + t_quantile(n - 1, beyond):
        n += 1
    return n


def holm(values: Sequence[float]) -> list[float]:
    """p values corrected for the number of comparisons (Holm, 1979), in their order."""
    order = np.argsort(values, kind="stable")
    adjusted, largest = [0.0] * len(values), 0.0
    for place, index in enumerate(order.tolist()):
        largest = max(largest, min(1.0, (len(values) - place) * values[index]))
        adjusted[index] = largest
    return adjusted


def verdict(difference: float, high: float, adjusted: float, margin: float | None = None) -> Verdict:
    """Does not hold: worse beyond chance, or the 95% interval excludes an improvement of ``margin``. Else holds:
    better, beyond chance over the whole family.
    """
    if margin is not None and high < margin:
        return "does not hold"
    if adjusted < LEVEL:
        return "holds" if difference > 0 else "does not hold"
    return "cannot be told at this budget"


@dataclass(frozen=True, kw_only=True)
class PowerLaw:
    """``y = factor x^-exponent``, fitted to logarithms, and the 95% interval of the exponent."""

    factor: float
    exponent: float
    low: float
    high: float

    def __call__(self, x: float) -> float:
        return self.factor * x**-self.exponent


def power_law(x: Sequence[float], y: Sequence[float]) -> PowerLaw | None:
    """The least-squares line through log y over log x; None for fewer than three different x."""
    if len(set(x)) < 3 or min(*x, *y) <= 0:
        return None
    u, v = np.log(np.asarray(x, float)), np.log(np.asarray(y, float))
    slope, offset = np.polyfit(u - u.mean(), v, 1)
    rest = v - offset - slope * (u - u.mean())
    freedom = len(u) - 2
    error = math.sqrt(float(rest @ rest) / freedom / float(((u - u.mean()) ** 2).sum()))
    half = t_quantile(freedom) * error
    factor = math.exp(offset - slope * u.mean())
    return PowerLaw(factor=factor, exponent=-float(slope), low=-float(slope) - half, high=-float(slope) + half)
