"""The page of a study: verdicts, quality against cost, curves, the table, tuning, and scaling laws."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from encoderlab.files import finite
from encoderlab.measure.report import MethodScores, TaskScores
from encoderlab.measure.strips import strip
from encoderlab.pages.charts import Chart, Point, Series, chart, mean_curve
from encoderlab.pages.template import render as fill
from encoderlab.study.file import Finetune
from encoderlab.study.results import LOWER, Results, at_edge
from encoderlab.study.run import record
from encoderlab.study.statistics import Comparison
from encoderlab.train.units import duration

POINTS = 40  # of a learning curve


def render(results: Results) -> str:
    """The page as HTML text."""
    study = results.plan.study
    return fill(
        "study.html",
        data=finite(record(results)),
        title=study.name or "Study",
        verdict=_summary(results),
        unit=study.unit_name,
        several=len(study.amounts) > 1,
        claims=_claims(results),
        not_compared=results.not_compared,
        seeds=_seeds(results),
        quality=_quality(results),
        curves=_curves(results),
        scaling=_scaling(results),
        exponents=_exponents(results),
        table=_table(results),
        tuning=_tuning(results),
        fairness=results.fairness,
        troubles=[
            *(f"{name}: {why}" for name, why in results.failed.items()),
            *(f"{name}: missing" for name in results.missing),
        ],
    )


def _summary(results: Results) -> str:
    study, counts = results.plan.study, Counter(one.verdict for one in results.comparisons)
    budgets = ", ".join(f"{amount:.3g}" for amount in study.amounts)
    seeds = len(study.seed_numbers)
    words = f"{len(results.plan.arms)} arms at {budgets} {study.unit_name}, {seeds} seed{'s' * (seeds > 1)} each."
    if results.comparisons:
        words += (
            f" Comparisons in which the claim holds: {counts['holds']}; does not hold: {counts['does not hold']}; "
            f"cannot be told at this budget: {counts['cannot be told at this budget']}."
        )
    left = len(results.missing)
    return words + (f" {left} run{'s are' if left > 1 else ' is'} not finished." if left else "")


def _claims(results: Results) -> list[dict[str, Any]]:
    """Every pair of arms that is compared, with a row for each measure and budget."""
    claims = {(claim.better, claim.than, claim.by): claim for claim in results.plan.study.claims}
    rows: dict[tuple[str, str, str, str], list[dict[str, str]]] = {}
    for one in results.comparisons:
        pair = (one.better, one.than)
        claim = claims.get((*pair, one.by)) or claims.get((*pair, None))
        about = (claim.text, claim.source) if claim else ("", "")
        rows.setdefault((*pair, *about), []).append(_comparison(one))
    return [
        {"text": text, "source": source, "arms": f"{better} better than {than}", "rows": table}
        for (better, than, text, source), table in rows.items()
    ]


def _comparison(one: Comparison) -> dict[str, str]:
    """A row of the table of claims."""
    kind = {"holds": "verdict-holds", "does not hold": "verdict-not"}.get(one.verdict, "")
    known = not kind and one.seeds > 1 and one.needed is not None and one.needed < 1000
    unit = _unit(one.by)
    return {
        "kind": kind,
        "verdict": one.verdict if kind else "cannot be told",
        "needs": f"about {max(one.needed or 0, one.seeds + 1)} seeds would" if known else "",
        "by": one.by,
        "amount": f"{one.amount:.3g}",
        "difference": f"{unit * one.difference:+.3g}",
        "interval": one.interval(unit),
        "p": f"{one.adjusted:.2g}",
    }


def _points(results: Results, arm: str, measure: str) -> list[Point]:
    """The mean of a measure over the FLOPs that it cost, with its interval, at every budget that has scores."""
    points = []
    for amount in results.plan.study.amounts:
        mean, cost = results.mean(arm, amount, measure), results.number(arm, amount, "flops")
        if mean is None or not cost:
            continue
        middle, half = (_unit(measure) * value for value in mean)
        seeds = [_unit(measure) * score for score in results.scores(arm, amount, measure).values()]
        shown = ", ".join(f"{score:.4g}" for score in seeds)
        title = f"{arm}: {measure} {middle:.4g} ± {half:.2g} at {cost:.3g} FLOPs (seeds: {shown})"
        # The interval of two seeds is too wide to draw.
        low, high = (min(seeds), max(seeds)) if len(seeds) < 3 else (middle - half, middle + half)
        points.append(Point(cost, middle, low, high, title))
    return points


def _shown(results: Results) -> list[str]:
    """The measures that are drawn: a loss only where there are no bits per byte, which compare vocabularies."""
    return [name for name in results.measures if not (name == "loss" and "bits per byte" in results.measures)]


def _budgets(results: Results, measure: str) -> list[float]:
    """The budgets that have scores by a measure."""
    plan = results.plan
    return [amount for amount in plan.study.amounts if any(results.scores(arm, amount, measure) for arm in plan.arms)]


def _seeds(results: Results) -> list[dict[str, Any]]:
    """A strip plot for each measure that a single budget has, with every arm and its seeds."""
    plots, study = [], results.plan.study
    for name in _shown(results):
        budgets = _budgets(results, name)
        if len(budgets) != 1:
            continue
        scores = {arm: list(results.scores(arm, budgets[0], name).values()) for arm in results.plan.arms}
        # The first colour goes to the last method: reversed, an arm has the colour of its learning curve.
        methods = [
            MethodScores(name=arm, scores=values, ours=True) for arm, values in reversed(scores.items()) if values
        ]
        at = f", at {budgets[0]:.3g} {study.unit_name}" if len(study.amounts) > 1 else ""
        task = TaskScores(name=name, about=_better(name) + at, metric="", methods=methods)
        plot = strip(task, percent=name not in LOWER)
        plots.append(plot | {"lanes": plot["lanes"][::-1]})  # in the order of the file
    return plots


def _quality(results: Results) -> list[tuple[str, str, Chart | None]]:
    """A chart for each measure that several budgets have; its label says which direction is better."""
    panels = []
    for measure in _shown(results):
        if len(_budgets(results, measure)) < 2:
            continue
        series = [
            Series(name=arm, colour=colour, points=_points(results, arm, measure), line=True)
            for colour, arm in enumerate(results.plan.arms)
        ]
        panels.append((measure, _better(measure), chart(series, x="FLOPs", y=measure, x_log=True)))
    return panels


def _unit(measure: str) -> int:
    """By which a measure is multiplied: scores are shares and shown times 100, losses as they are."""
    return 1 if measure in LOWER else 100


def _better(measure: str) -> str:
    return "less is better" if measure in LOWER else "more is better"


def _curves(results: Results) -> tuple[str, Chart] | None:
    """Held-out loss over training, at the largest budget that is done: mean and range over seeds."""
    if not results.done:
        return None
    amount = max(cell.amount for cell in results.done)
    series = []
    for colour, arm in enumerate(results.plan.arms):
        cells = [one for cell, one in results.done.items() if (cell.arm, cell.amount) == (arm, amount)]
        curves = [np.array(cell["curve"]).T for cell in cells if len(cell["curve"]) > 1]
        if not curves:
            continue
        title = lambda x, mean, arm=arm: f"{arm}: {mean:.4g} at {x:.3g} FLOPs"  # noqa: E731
        points = mean_curve(curves, most=POINTS, title=title)
        series.append(Series(name=arm, colour=colour, points=points, line=True, band=True))
    drawn = chart(series, x="FLOPs", y="held-out loss")
    unit = results.plan.study.unit_name
    note = f"Held-out loss at {amount:.3g} {unit}: mean over seeds, and a band from the lowest to the highest."
    return None if drawn is None else (note, drawn)


def _scaling(results: Results) -> Chart | None:
    """Losses against FLOPs, and the law that is fitted to them."""
    series = []
    for colour, arm in enumerate(results.plan.arms):
        law = results.scaling.get(arm)
        if law is None:
            continue
        points = _points(results, arm, "loss")
        series.append(Series(name=arm, colour=colour, points=points))
        ends = np.geomspace(points[0].x, points[-1].x, 12).tolist()
        fit = [Point(x, law(x), law(x), law(x)) for x in ends]
        series.append(Series(name=arm, colour=colour, points=fit, line=True, dashed=True))
    return chart(series, x="FLOPs", y="held-out loss", x_log=True, y_log=True)


def _exponents(results: Results) -> list[tuple[str, list[str]]]:
    """The exponent of each arm, with its interval."""
    laws = ((arm, results.scaling.get(arm)) for arm in results.plan.arms)
    return [(arm, [f"{law.exponent:.4f}", f"{law.low:.4f} to {law.high:.4f}"]) for arm, law in laws if law is not None]


def _table(results: Results) -> dict[str, Any]:
    """All numbers: the head of the columns, the rows, and a note."""
    sets = {
        measure.title: f"{measure.task}, {measure.protocol}"
        for measure in results.plan.study.measures
        if isinstance(measure, Finetune)
    }
    about = "; ".join(f"{title}: {words}, development set" for title, words in sets.items())
    return {
        "note": "Means over seeds with half their 95% intervals, scores times 100. Time, speed and memory are those of "
        "this machine. " + about,
        "head": [*results.measures, "parameters", "tokens", "FLOPs", "time", "tokens/s", "memory"],
        "rows": [
            {
                "arm": arm,
                "amount": f"{amount:.3g}",
                "scores": [_score(results, arm, amount, name) for name in results.measures],
                "numbers": [_number(results.number(arm, amount, name), name) for name in NUMBERS],
            }
            for arm, amount in results.plan.places
        ],
    }


NUMBERS = ("parameters", "tokens", "flops", "seconds", "tokens_per_second", "memory")


def _score(results: Results, arm: str, amount: float, name: str) -> tuple[str, str]:
    """Mean, half interval, and number of seeds."""
    if (mean := results.mean(arm, amount, name)) is None:
        return "–", ""
    middle, half = (_unit(name) * value for value in mean)
    count = len(results.scores(arm, amount, name))
    return f"{middle:.4g}" + (f" ± {half:.2g}" if half else ""), f"({count})" if half else ""


def _number(value: float | None, name: str) -> str:
    if value is None:
        return "–"
    if name == "seconds":
        return duration(value)
    if name == "memory":
        return f"{value / 1e9:.2f} GB"
    return f"{value:,.0f}" if value < 1e7 else f"{value:.3g}"


def _tuning(results: Results) -> dict[str, Any] | None:
    """The values tried for each arm, and the one chosen."""
    tune = results.plan.study.tune
    if tune is None or not results.tried:
        return None
    rows = []
    for (arm, amount), tried in results.tried.items():
        chosen = results.chosen.get((arm, amount))
        rows.append(
            {
                "arm": arm,
                "amount": f"{amount:.3g}",
                "tried": [
                    (f"{value:g}: {'failed' if loss is None else f'{loss:.4f}'}", value == chosen)
                    for value, loss in tried
                ],
                "edge": at_edge(chosen, tried),
            }
        )
    note = f"{tune.field}: held-out loss of each trial at {tune.share:g} of the budget; the value in bold was taken."
    return {"note": note, "rows": rows}
