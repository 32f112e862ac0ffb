"""The data inside a page, as values for JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from encoderlab.measure.report import Metric, Report, Run

MAX_POINTS = 500  # per curve, as many as a screen can show; keeps a page of many runs below a megabyte


def curve_data(metrics: Sequence[Metric], strips: Sequence[Metric], runs: Sequence[Run]) -> dict[str, Any]:
    """The data that the page's script draws, with curves as columns."""
    keys = [metric.key for metric in (*metrics, *strips)]
    return {
        "metrics": [_metric(metric) for metric in metrics],
        "strips": [_metric(metric) for metric in strips],
        "runs": [
            {"name": run.name, "train": _columns(run.train, keys, smooth=True), "valid": _columns(run.valid, keys)}
            for run in runs
        ],
    }


def page_data(report: Report) -> dict[str, Any]:
    """The data that the page's script draws, and readers may copy."""
    return {
        "title": report.title,
        "verdict": report.verdict,
        **curve_data(report.metrics, report.strips, report.runs),
        "fill_mask": [
            {"text": f.text, "answer": f.answer, "before": list(f.before), "after": list(f.after)} for f in report.fills
        ],
        "tasks": [
            {"name": t.name, "metric": t.metric, "methods": {m.name: list(m.scores) for m in t.methods}}
            for t in report.tasks
        ],
        "tokenizer": dict(report.tokenizer),
        "costs": dict(report.costs),
        "provenance": dict(report.provenance),
        "commands": list(report.commands),
        "limits": list(report.limits),
    }


def _metric(metric: Metric) -> dict[str, Any]:
    return vars(metric) | {"references": [{"name": name, "value": value} for name, value in metric.references]}


def _columns(
    rows: Sequence[Mapping[str, Any]], keys: Sequence[str], *, smooth: bool = False
) -> dict[str, list[float | None]]:
    """``rows`` as columns, thinned to :data:`MAX_POINTS`; ``key~`` is the running mean of ``key`` before thinning.

    The mean is over a window centred on the row, a twentieth of the run wide, narrower at both ends: it has no lag.
    """
    keys = [key for key in keys if any(_number(row.get(key)) is not None for row in rows)]
    columns: dict[str, list[float | None]] = {
        key: [_number(row.get(key)) for row in rows] for key in ("step", "tokens", "time", *keys)
    }
    if smooth and len(rows) > 20:
        columns |= {f"{key}~": _running_mean(columns[key], len(rows) // 40) for key in keys}
    if len(rows) > MAX_POINTS:
        chosen = sorted({round(place * (len(rows) - 1) / (MAX_POINTS - 1)) for place in range(MAX_POINTS)})
        columns = {key: [column[place] for place in chosen] for key, column in columns.items()}
    return {
        key: [value if value is None else float(f"{value:.5g}") for value in column] for key, column in columns.items()
    }


def _running_mean(values: Sequence[float | None], reach: int) -> list[float | None]:
    """The mean of the values at most ``reach`` rows away, on both sides alike; None if there are no values."""
    sums, counts = [0.0], [0]
    for value in values:
        sums.append(sums[-1] + (value or 0.0))
        counts.append(counts[-1] + (value is not None))
    means: list[float | None] = []
    for place in range(len(values)):
        near = min(reach, place, len(values) - 1 - place)
        total, count = sums[place + near + 1] - sums[place - near], counts[place + near + 1] - counts[place - near]
        means.append(total / count if count else None)
    return means


def _number(value: Any) -> float | None:
    """A finite number, or None, so that a diverged run still gets its page."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    return None
