"""Charts inside a page: lines, bands and points with intervals, on linear or logarithmic axes.

A chart is drawn twice, for wide and for narrow windows, and the page's style shows one of them, because letters in a
scaled picture would become unreadable. Hovering over a point shows its values. This module computes the places of
everything; the template (``parts.html``) draws.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Point:
    """A value with the ends of its interval, and the text of its tooltip."""

    x: float
    y: float
    low: float
    high: float
    title: str = ""


@dataclass(frozen=True, kw_only=True)
class Series:
    """Points of one colour, by number; ``line`` joins them, ``band`` fills the area between their intervals, ``faint``
    ones may overlap.
    """

    name: str
    colour: int
    points: Sequence[Point]
    line: bool = False
    band: bool = False
    dashed: bool = False
    faint: bool = False


@dataclass(frozen=True, kw_only=True)
class Chart:
    """Both drawings, which only the template reads; ``keys`` are the names of the series and their colours."""

    x: str
    label: str
    drawings: Sequence[dict[str, Any]]
    keys: Sequence[tuple[str, str]] = ()


def chart(series: Sequence[Series], *, x: str, y: str, x_log: bool = False, y_log: bool = False) -> Chart | None:
    """The chart of the ``series``; None without points."""
    if not any(one.points for one in series):
        return None
    return Chart(
        x=x,
        label=f"{y} against {x}",
        drawings=[
            _draw(series, x_log, y_log, width, height, kind)
            for kind, width, height in (("wide", 860, 320), ("narrow", 340, 260))
        ],
        keys=list({one.name: hue(one.colour) for one in series if one.name and not one.dashed}.items()),
    )


def mean_curve(
    curves: Sequence[np.ndarray], *, most: int, title: Callable[[float, float], str], scale: float = 1.0
) -> list[Point]:
    """The mean and the range of several curves (2, n), times ``scale``, at up to ``most`` of the x that all reach;
    ``title`` makes the text of a tooltip of x and mean.
    """
    start, end = max(x[0] for x, _ in curves), min(x[-1] for x, _ in curves)
    places = np.unique(np.concatenate([x for x, _ in curves]))
    places = places[(places >= start) & (places <= end)]
    places = places[np.unique(np.linspace(0, len(places) - 1, min(most, len(places))).astype(int))]
    values = np.array([np.interp(places, x, y) for x, y in curves]) * scale
    return [
        Point(float(x), float(v.mean()), float(v.min()), float(v.max()), title(x, v.mean()))
        for x, v in zip(places, values.T, strict=True)
    ]


def hue(colour: int) -> str:
    """A colour of the page's style by its number; there are twenty."""
    return f"var(--series-{colour % 20})"


def _draw(series: Sequence[Series], x_log: bool, y_log: bool, width: int, height: int, kind: str) -> dict[str, Any]:
    """One of the two pictures, ``wide`` or ``narrow``: its size, its frame, its ticks and what is in it."""
    points = [point for one in series for point in one.points]
    left, right, top, bottom = 52, width - 14, 12, height - 44
    across, x_ticks = _scale([p.x for p in points], x_log, left, right, 7 if kind == "wide" else 3)
    ends = [value for p in points for value in (p.low, p.y, p.high)]
    up, y_ticks = _scale(ends, y_log, bottom, top, 5)
    return {
        "kind": kind,
        "width": width,
        "height": height,
        "left": left,
        "right": right,
        "bottom": bottom,
        "middle": (left + right) / 2,
        "x_ticks": [(round(across(tick), 1), _short(tick)) for tick in x_ticks],
        "y_ticks": [(round(up(tick), 1), _short(tick)) for tick in y_ticks],
        "shapes": [_shape(one, across, up) for one in series],
    }


def _shape(one: Series, across: Callable[[float], float], up: Callable[[float], float]) -> dict[str, Any]:
    """A drawn series: the points of its ``band`` and of its ``line`` as SVG has them, (x, low, high) of its ``bars``,
    and (x, y, title) of its ``marks``.
    """

    def path(places: Sequence[tuple[float, float]]) -> str:
        return " ".join(f"{across(x):.1f},{up(y):.1f}" for x, y in places) if len(one.points) > 1 else ""

    edge = [(p.x, p.low) for p in one.points] + [(p.x, p.high) for p in reversed(one.points)]
    marks = [] if one.dashed else one.points
    bars = [(round(across(p.x), 1), round(up(p.low), 1), round(up(p.high), 1)) for p in marks if not one.band]
    return {
        "hue": hue(one.colour),
        "band": path(edge) if one.band else "",
        "line": path([(p.x, p.y) for p in one.points]) if one.line else "",
        "dashed": one.dashed,
        "faint": one.faint,
        "radius": 3 if one.band or one.faint else 4.5,
        "bars": [bar for bar in bars if abs(bar[2] - bar[1]) > 0.5],
        "marks": [(round(across(p.x), 1), round(up(p.y), 1), p.title) for p in marks],
    }


def _scale(
    values: Sequence[float], log: bool, start: float, end: float, count: int
) -> tuple[Callable[[float], float], list[float]]:
    """From values to places between ``start`` and ``end``, and about ``count`` round values."""
    if log:  # an interval may reach below 0
        values = [math.log10(value) for value in values if value > 0]
    low, high = min(values), max(values)
    room = 0.06 * ((high - low) or abs(high) or 1.0)
    low, high = low - room, high + room

    def place(value: float) -> float:
        if log:
            value = math.log10(value) if value > 0 else low
        return start + (value - low) / (high - low) * (end - start)

    if not log:
        return place, round_values(low, high, count)
    for digits in ((1,), (1, 3), (1, 2, 5), (1, 2, 3, 4, 6, 8)):
        ticks = [
            digit * 10.0**power
            for power in range(math.floor(low), math.ceil(high) + 1)
            for digit in digits
            if low <= math.log10(digit * 10.0**power) <= high
        ]
        if len(ticks) >= min(3, count):
            return place, ticks[:: math.ceil(len(ticks) / (count + 1))]
    return place, [float(f"{one:.3g}") for one in round_values(10**low, 10**high, count)]


def round_values(low: float, high: float, count: int) -> list[float]:
    """About ``count`` round numbers between ``low`` and ``high``."""
    raw = (high - low) / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * 0.999)
    first = math.ceil(low / step)
    return [round(n * step, 12) for n in range(first, math.floor(high / step) + 1)]


def _short(value: float) -> str:
    shown = f"{value:.3g}" if abs(value) < 1e-3 or abs(value) >= 1e5 else f"{value:g}"
    return shown.replace("e+0", "e").replace("e+", "e").replace("e-0", "e-")
