"""The page of a study: verdicts, quality against cost, curves, the table, what was tuned, and how losses fall."""

from __future__ import annotations

from html import escape
from pathlib import Path

import numpy as np

from encoderlab.files import finite, write_text
from encoderlab.measure.html_page import shell
from encoderlab.measure.report import interval
from encoderlab.measure.runs import RunRecord
from encoderlab.study.charts import STYLE, Point, Series, chart
from encoderlab.study.file import Finetune
from encoderlab.study.results import LOWER, Results, is_finite
from encoderlab.study.run import record
from encoderlab.study.statistics import Comparison
from encoderlab.train.units import duration

POINTS = 40  # of a learning curve


def write(results: Results, path: Path) -> None:
    """Write the page, atomically."""
    write_text(path, render(results))


def render(results: Results) -> str:
    """The page as HTML text."""
    study = results.plan.study
    sections = [
        ("claims", "Claims", _claims(results)),
        ("cost", "Quality against cost", _quality(results)),
        ("curves", "Learning curves", _curves(results)),
        ("scaling", "Loss against FLOPs", _scaling(results)),
        ("table", "All numbers", _table(results)),
        ("tuning", "What was tuned", _tuning(results)),
        ("fairness", "What is equal", _list(results.fairness)),
        ("failed", "What failed or is missing", _list(_troubles(results))),
    ]
    data = {"metrics": [], "strips": [], "runs": [], **finite(record(results))}
    return shell(study.name or "Study", _summary(results), "", sections, data, STYLE)


def _summary(results: Results) -> str:
    study, counts = results.plan.study, {"holds": 0, "does not hold": 0, "cannot be told at this budget": 0}
    for one in results.comparisons:
        counts[one.verdict] += 1
    budgets = " and ".join(f"{amount:.3g}" for amount in study.amounts)
    seeds = len(study.seed_numbers)
    words = (
        f"{len(results.plan.arms)} arms at {budgets} {study.unit}, {seeds} seed{'s' * (seeds > 1)} each. Of "
        f"{len(results.comparisons)} comparisons {counts['holds']} hold, {counts['does not hold']} do not, and "
        f"{counts['cannot be told at this budget']} cannot be told at this budget."
    )
    left = len(results.missing)
    return words + (f" {left} run{'s are' if left > 1 else ' is'} not finished." if left else "")


def _claims(results: Results) -> str:
    rows = "".join(_claim(one) for one in results.comparisons)
    unit = escape(results.plan.study.unit)
    table = (
        '<div class="panel scroll words"><table><thead><tr><th>Claim</th><th>Verdict</th><th>By</th>'
        f'<th class="number">{unit}</th><th class="number">Difference, 95% interval</th>'
        '<th class="number">p, corrected</th></tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
        if rows
        else ""
    )
    note = '<p class="sub">A positive difference speaks for the claim; differences are paired by seed.</p>'
    return (note + table if table else "") + _list(results.not_compared)


def _claim(one: Comparison) -> str:
    kind = {"holds": "verdict-holds", "does not hold": "verdict-not"}.get(one.verdict, "")
    words: str = one.verdict
    if not kind and one.needed is not None and one.seeds > 1:
        words += f" (about {max(one.needed, one.seeds + 1):,} seeds would)" if one.needed < 1000 else ""
    between = "" if one.seeds < 2 else f" ({one.low:+.3g} to {one.high:+.3g})"
    return (
        f'<tr><th>{escape(one.better)} better than {escape(one.than)}</th><td class="{kind}">{escape(words)}</td>'
        f'<td>{escape(one.by)}</td><td class="number">{one.amount:.3g}</td>'
        f'<td class="number">{one.difference:+.3g}{between}</td><td class="number">{one.adjusted:.2g}</td></tr>'
    )


def _point(results: Results, arm: str, amount: float, measure: str) -> Point | None:
    """The mean of a measure over the FLOPs that it cost, with its interval."""
    found, cost = results.mean(arm, amount, measure), results.number(arm, amount, "flops")
    if found is None or not cost:
        return None
    middle, half = found
    seeds = list(results.scores(arm, amount, measure).values())
    shown = ", ".join(f"{score:.4g}" for score in seeds)
    title = f"{arm}: {measure} {middle:.4g} ± {half:.2g} at {cost:.3g} FLOPs (seeds: {shown})"
    if len(seeds) < 3:  # the interval of two seeds is too wide to draw
        return Point(cost, middle, min(seeds), max(seeds), title)
    return Point(cost, middle, middle - half, middle + half, title)


def _quality(results: Results) -> str:
    """A chart for each measure, of arms whose losses compare."""
    several = len(results.plan.study.amounts) > 1
    panels = []
    for measure in results.measures:
        if measure == "loss" and "bits per byte" in results.measures:
            continue
        series = []
        for colour, arm in enumerate(results.plan.arms):
            points = [_point(results, arm, amount, measure) for amount in results.plan.study.amounts]
            kept = [point for point in points if point is not None]
            series.append(Series(name=arm, colour=colour, points=kept, line=several))
        better = "less is better" if measure in LOWER else "more is better"
        body = chart(series, x="FLOPs", y=measure, x_log=several)
        panels.append(f'<div class="panel"><h3>{escape(measure)} <small>{better}</small></h3>{body}</div>')
    note = "Means over seeds with 95% intervals; of two seeds, the line joins them. Point at a mark to read it."
    return f'<p class="sub">{note}</p>{"".join(panels)}' if panels else ""


def _curves(results: Results) -> str:
    """Held-out loss over training, at the largest budget that is done: mean and range over seeds."""
    runs = results.curves()
    if not runs:
        return ""
    amount = max(cell.amount for cell in runs)
    series = []
    for colour, arm in enumerate(results.plan.arms):
        curves = [_curve(run) for cell, run in runs.items() if (cell.arm, cell.amount) == (arm, amount)]
        curves = [curve for curve in curves if len(curve[0]) > 1]
        if not curves:
            continue
        start, end = max(x[0] for x, _ in curves), min(x[-1] for x, _ in curves)
        places = np.unique(np.concatenate([x for x, _ in curves]))
        places = places[(places >= start) & (places <= end)]
        places = places[np.unique(np.linspace(0, len(places) - 1, min(POINTS, len(places))).astype(int))]
        values = np.array([np.interp(places, x, y) for x, y in curves])
        points = [
            Point(float(x), float(v.mean()), float(v.min()), float(v.max()), f"{arm}: {v.mean():.4g} at {x:.3g} FLOPs")
            for x, v in zip(places, values.T, strict=True)
        ]
        series.append(Series(name=arm, colour=colour, points=points, line=True, band=True))
    body = chart(series, x="FLOPs", y="held-out loss")
    unit = results.plan.study.unit
    note = f"Held-out loss at {amount:.3g} {unit}: mean over seeds, and a band from the lowest to the highest."
    return f'<p class="sub">{escape(note)}</p><div class="panel">{body}</div>' if body else ""


def _curve(run: RunRecord) -> tuple[np.ndarray, np.ndarray]:
    """FLOPs and held-out losses of the main term."""
    key = f"losses.{run.term}"
    held = [(line["tokens"], line[key]) for line in run.valid if is_finite(line.get(key))]
    train = [(line["tokens"], line["flops"]) for line in run.train if is_finite(line.get("flops"))]
    if not held or not train:
        return np.zeros(0), np.zeros(0)
    tokens, flops = np.array([(0.0, 0.0), *train]).T
    at, losses = np.array(held).T
    return np.interp(at, tokens, flops), losses


def _scaling(results: Results) -> str:
    if not results.scaling:
        return ""
    series, rows = [], []
    for colour, arm in enumerate(results.plan.arms):
        law = results.scaling.get((arm, "loss"))
        if law is None:
            continue
        points = [_point(results, arm, amount, "loss") for amount in results.plan.study.amounts]
        kept = [point for point in points if point is not None]
        series.append(Series(name=arm, colour=colour, points=kept))
        ends = np.geomspace(kept[0].x, kept[-1].x, 12).tolist()
        fit = [Point(x, law(x), law(x), law(x)) for x in ends]
        series.append(Series(name=arm, colour=colour, points=fit, line=True, dashed=True))
        rows.append(
            f'<tr><th>{escape(arm)}</th><td class="number">{law.exponent:.4f}</td>'
            f'<td class="number">{law.low:.4f} to {law.high:.4f}</td></tr>'
        )
    head = '<th></th><th class="number">Exponent b</th><th class="number">95% interval</th>'
    return (
        '<p class="sub">Dashed: loss = a · FLOPs<sup>−b</sup>, fitted to all runs of an arm. Of arms that predict '
        "different things the exponents compare, and not the losses.</p>"
        f'<div class="panel">{chart(series, x="FLOPs", y="held-out loss", x_log=True, y_log=True)}</div>'
        f'<div class="panel scroll"><table><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'
    )


def _table(results: Results) -> str:
    names = results.measures
    head = "".join(f'<th class="number">{escape(name)}</th>' for name in names)
    more = ("parameters", "tokens", "FLOPs", "time", "tokens/s", "memory")
    head += "".join(f'<th class="number">{name}</th>' for name in more)
    rows = []
    for arm, amount in results.plan.places:
        cells = [_score(results, arm, amount, name) for name in names]
        cells += [_number(results.number(arm, amount, name), name) for name in NUMBERS]
        body = "".join(f'<td class="number">{cell}</td>' for cell in cells)
        rows.append(f"<tr><th>{escape(arm)}<br><small>{amount:.3g} {results.plan.study.unit}</small></th>{body}</tr>")
    sets = {
        one.title: f"{one.task}, {one.protocol}" for one in results.plan.study.measures if isinstance(one, Finetune)
    }
    about = "; ".join(f"{title}: {words}, development set" for title, words in sets.items())
    note = "Means over seeds with half their 95% intervals. Time, speed and memory are those of this machine."
    return (
        f'<p class="sub">{note} {escape(about)}</p><div class="panel scroll"><table>'
        f"<thead><tr><th></th>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


NUMBERS = ("parameters", "tokens", "flops", "seconds", "tokens_per_second", "memory")


def _score(results: Results, arm: str, amount: float, name: str) -> str:
    found = list(results.scores(arm, amount, name).values())
    if not found:
        return "–"
    middle, half = interval(found)
    return f"{middle:.4g}" + (f" ± {half:.2g} <small>({len(found)})</small>" if half else "")


def _number(value: float | None, name: str) -> str:
    if value is None:
        return "–"
    if name == "seconds":
        return duration(value)
    if name == "memory":
        return f"{value / 1e9:.2f} GB"
    return f"{value:,.0f}" if value < 1e7 else f"{value:.3g}"


def _tuning(results: Results) -> str:
    tune = results.plan.study.tune
    if tune is None or not results.tried:
        return ""
    rows = []
    for (arm, amount), tried in results.tried.items():
        chosen = results.chosen.get((arm, amount))
        cells = ", ".join(
            f"{'<b>' if value == chosen else ''}{value:g}: {'failed' if loss is None else f'{loss:.4f}'}"
            f"{'</b>' if value == chosen else ''}"
            for value, loss in tried
        )
        edge = chosen is not None and len(tried) > 1 and chosen in (min(tried)[0], max(tried)[0])
        remark = "at the edge of what was tried" if edge else ""
        rows.append(
            f"<tr><th>{escape(arm)}<br><small>{amount:.3g} {results.plan.study.unit}</small></th><td>{cells}</td>"
            f"<td><small>{remark}</small></td></tr>"
        )
    note = f"{tune.field}: held-out loss of each trial at {tune.share:g} of the budget; the value in bold was taken."
    table = f'<div class="panel scroll"><table><tbody>{"".join(rows)}</tbody></table></div>'
    return f'<p class="sub">{escape(note)}</p>{table}'


def _troubles(results: Results) -> list[str]:
    return [
        *(f"{name}: {why}" for name, why in results.failed.items()),
        *(f"{name}: missing" for name in results.missing),
    ]


def _list(lines: list[str]) -> str:
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return f'<div class="panel"><ul class="limits">{items}</ul></div>' if items else ""
