"""Charts as SVG inside a page: lines, bands and points with intervals, on linear or logarithmic axes.

A chart is drawn twice, for wide and for narrow windows, and the page's style shows one of them: letters keep their size
where a picture that shrinks would make them unreadable. What a point stands for is shown when one points at it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

STYLE = """
.svg { display: block; width: 100%; height: auto; overflow: visible; }
.svg text { fill: var(--muted); font-size: 12.5px; font-family: inherit; }
.svg .grid { stroke: var(--grid); } .svg .hit { fill: transparent; }
.svg.narrow { display: none; }
.keys { display: flex; flex-wrap: wrap; gap: 4px 18px; margin: 8px 0 0; font-size: 14px; color: var(--soft); }
.keys i { display: inline-block; width: 11px; height: 11px; border-radius: 50%; margin-right: 7px; }
.verdict-holds { color: var(--good); font-weight: 600; } .verdict-not { color: var(--bad); font-weight: 600; }
.words td, .words th { overflow-wrap: normal; } .words td:nth-child(2) { min-width: 9em; } .words th { min-width: 8em; }
@media (max-width: 720px) { .svg.wide { display: none; } .svg.narrow { display: block; } }
"""


@dataclass(frozen=True)
class Point:
    """A value with the ends of its interval, and what is shown when one points at it."""

    x: float
    y: float
    low: float
    high: float
    title: str = ""


@dataclass(frozen=True, kw_only=True)
class Series:
    """Points of one colour, by number; ``line`` joins them, ``band`` fills what lies between their intervals."""

    name: str
    colour: int
    points: Sequence[Point]
    line: bool = False
    band: bool = False
    dashed: bool = False


def chart(series: Sequence[Series], *, x: str, y: str, x_log: bool = False, y_log: bool = False) -> str:
    """Both drawings and the key; nothing without points."""
    if not any(one.points for one in series):
        return ""
    names = {one.name: one.colour for one in series if not one.dashed}
    keys = "".join(
        f'<span><i style="background:var(--series-{colour % 10})"></i>{escape(name)}</span>'
        for name, colour in names.items()
    )
    drawings = "".join(
        _draw(series, x, y, x_log, y_log, width, height, kind)
        for kind, width, height in (("wide", 860, 320), ("narrow", 340, 260))
    )
    return f'{drawings}<div class="keys">{keys}</div>'


def _draw(
    series: Sequence[Series], x: str, y: str, x_log: bool, y_log: bool, width: int, height: int, kind: str
) -> str:
    points = [point for one in series for point in one.points]
    left, right, top, bottom = 52, 14, 12, 44
    across, x_ticks = _scale([p.x for p in points], x_log, left, width - right, 7 if kind == "wide" else 3)
    ends = [value for p in points for value in (p.low, p.y, p.high)]
    up, y_ticks = _scale(ends, y_log, height - bottom, top, 5)
    parts = []
    for tick in y_ticks:
        at = up(tick)
        parts.append(f'<line class="grid" x1="{left}" x2="{width - right}" y1="{at:.1f}" y2="{at:.1f}"/>')
        parts.append(f'<text x="{left - 8}" y="{at + 4:.1f}" text-anchor="end">{_short(tick)}</text>')
    for tick in x_ticks:
        parts.append(
            f'<text x="{across(tick):.1f}" y="{height - bottom + 18}" text-anchor="middle">{_short(tick)}</text>'
        )
    middle = (left + width - right) / 2
    parts.append(f'<text x="{middle:.0f}" y="{height - 6}" text-anchor="middle">{escape(x)}</text>')
    for one in series:
        hue = f"var(--series-{one.colour % 10})"
        placed = [(across(p.x), up(p.y), up(p.low), up(p.high), p.title) for p in one.points]
        if one.band and len(placed) > 1:
            edge = [f"{px:.1f},{low:.1f}" for px, _, low, _, _ in placed]
            edge += [f"{px:.1f},{high:.1f}" for px, _, _, high, _ in reversed(placed)]
            parts.append(f'<polygon points="{" ".join(edge)}" fill="{hue}" opacity=".16"/>')
        if one.line and len(placed) > 1:
            path = " ".join(f"{px:.1f},{py:.1f}" for px, py, *_ in placed)
            dash = ' stroke-dasharray="5 5"' if one.dashed else ""
            parts.append(f'<polyline points="{path}" fill="none" stroke="{hue}" stroke-width="2"{dash}/>')
        if one.dashed:
            continue
        for px, py, low, high, title in placed:
            if not one.band and abs(high - low) > 0.5:
                parts.append(
                    f'<line x1="{px:.1f}" x2="{px:.1f}" y1="{low:.1f}" y2="{high:.1f}" stroke="{hue}" '
                    'stroke-width="2" opacity=".55"/>'
                )
            parts.append(
                f'<circle cx="{px:.1f}" cy="{py:.1f}" r="{3 if one.band else 4.5}" fill="{hue}"/>'
                f'<circle class="hit" cx="{px:.1f}" cy="{py:.1f}" r="12"><title>{escape(title)}</title></circle>'
            )
    label = escape(f"{y} against {x}")
    return (
        f'<svg class="svg {kind}" viewBox="0 0 {width} {height}" role="img" aria-label="{label}">{"".join(parts)}</svg>'
    )


def _scale(
    values: Sequence[float], log: bool, start: float, end: float, count: int
) -> tuple[Callable[[float], float], list[float]]:
    """From values to places between ``start`` and ``end``, and about ``count`` round values."""
    low, high = min(values), max(values)
    if log:
        low, high = math.log10(low), math.log10(high)
    room = 0.06 * ((high - low) or abs(high) or 1.0)
    low, high = low - room, high + room

    def place(value: float) -> float:
        value = math.log10(value) if log else value
        return start + (value - low) / (high - low) * (end - start)

    if not log:
        return place, _round_values(low, high, count)
    for digits in ((1,), (1, 3), (1, 2, 5), (1, 2, 3, 4, 6, 8)):
        ticks = [
            digit * 10.0**power
            for power in range(math.floor(low), math.ceil(high) + 1)
            for digit in digits
            if low <= math.log10(digit * 10.0**power) <= high
        ]
        if len(ticks) >= min(3, count):
            return place, ticks[:: math.ceil(len(ticks) / (count + 1))]
    return place, [float(f"{one:.3g}") for one in _round_values(10**low, 10**high, count)]


def _round_values(low: float, high: float, count: int) -> list[float]:
    raw = (high - low) / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * 0.999)
    first = math.ceil(low / step)
    return [round(n * step, 12) for n in range(first, math.floor(high / step) + 1)]


def _short(value: float) -> str:
    if value and not 1e-3 <= abs(value) < 1e5:
        return f"{value:.0e}".replace("e+0", "e").replace("e+", "e").replace("e-0", "e-")
    return f"{value:g}"
