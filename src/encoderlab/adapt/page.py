"""The page about an adaptation: gains on the domain, losses on general text, cost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from encoderlab.files import finite
from encoderlab.measure.report import MethodScores, TaskScores
from encoderlab.measure.strips import strip
from encoderlab.pages.charts import Point, Series, chart
from encoderlab.pages.template import render
from encoderlab.train.units import duration

NAMES = {"domain": "Domain", "general": "General text"}
MEASURES = {
    "pll_word": "pseudo bits per byte",
    "log_probability": "bits per byte",
    "not_replaced": "bits of replaced token detection per byte (not a probability of the text)",
}


def page(record: Mapping[str, Any]) -> str:
    """The page as HTML, from the record that :meth:`encoderlab.adapt.run.Adaptation.run` returns."""
    training, gains = record["training"], record["gains"]
    rows = [
        (
            f"{NAMES[kind]}, held out",
            [
                f"{gain['before']:.3f}",
                f"{gain['after']:.3f}",
                f"{gain['after'] - gain['before']:+.3f} ± {gain['half']:.3f}",
                f"{gain['tokens'][0]:,} → {gain['tokens'][1]:,}",
                f"{gain['unknown'][0]:.2%} → {gain['unknown'][1]:.2%}",
            ],
        )
        for kind, gain in gains.items()
    ]
    tiles = [
        (NAMES[kind], f"{gain['before']:.2f}→{gain['after']:.2f}", MEASURES[gain["measure"]])
        for kind, gain in gains.items()
    ]
    tiles.append(
        ("Cost", duration(training["training_seconds"]), f"{training['steps']:,} steps, {training['tokens']:,} tokens")
    )
    curve = [Point(x=step, y=loss, low=loss, high=loss) for step, loss in training["held"]]
    return render(
        "adapt.html",
        data=finite(dict(record)),
        title=f"{record['plan']['model']} adapted",
        verdict=verdict(record),
        tiles=tiles,
        measure=MEASURES[gains["domain"]["measure"]],
        rows=rows,
        pairs=_pairs(record),
        plots=[strip(task) for task in _tasks(record)],
        curve=chart([Series(name="", colour=0, points=curve, line=True)], x="steps", y="held-out loss"),
        cost=_cost(record),
        limits=_limits(record),
    )


def verdict(record: Mapping[str, Any]) -> str:
    """The result in two or three sentences."""
    said = []
    for kind, one in record["gains"].items():
        change = one["after"] - one["before"]
        if abs(change) <= one["half"]:
            said.append(f"{NAMES[kind]}: no clear change ({change:+.3f} ± {one['half']:.3f}).")
        else:
            share = abs(change) / one["before"]
            said.append(
                f"{NAMES[kind]}: {share:.1%} {'more' if change > 0 else 'fewer'} {MEASURES[one['measure']]} "
                f"({one['before']:.3f} to {one['after']:.3f})."
            )
    if "general" not in record["gains"]:
        said.append("Without general text (--replay) it is not known what was forgotten.")
    if "task" in record["before"]:
        one, two = record["before"]["task"], record["after"]["task"]
        said.append(f"Fine-tuned: {one['metric']} {100 * one['mean']:.1f} before, {100 * two['mean']:.1f} after.")
    return " ".join(said)


def _pairs(record: Mapping[str, Any]) -> list[tuple[str, list[str]]]:
    if "pairs" not in record["before"]:
        return []
    one, two = (record[when]["pairs"]["measures"] for when in ("before", "after"))
    cell = "{accuracy:.1%} ({low:.1%} to {high:.1%})"
    return [(name, [cell.format(**one[name]), cell.format(**two[name])]) for name in one if name in two]


def _tasks(record: Mapping[str, Any]) -> list[TaskScores]:
    if "task" not in record["before"]:
        return []
    one, two = record["before"]["task"], record["after"]["task"]
    methods = [
        MethodScores(name=name, scores=side["seeds"], ours=name == "adapted")
        for name, side in (("as it was", one), ("adapted", two))
    ]
    return [TaskScores(name=str(record["plan"]["task"]), metric=one["metric"], methods=methods, about="")]


def _cost(record: Mapping[str, Any]) -> dict[str, str]:
    training, text, recipe = record["training"], record["text"], record["training"]["recipe"]
    rows = {
        "Text of the domain": f"{text['domain']['documents']:,} documents, {text['domain']['characters']:,} characters",
        "Held out": f"{text['domain held out']['documents']:,} documents",
    }
    if "general" in text:
        rows["General text, replayed"] = (
            f"{text['general']['documents']:,} documents, {text['general']['characters']:,} characters"
        )
    rows |= {
        "Objective": training["objective"],
        "Rate": _rate(recipe),
        "Steps": _steps(training),
        "Tokens": f"{training['tokens']:,}",
        "Time": duration(training["training_seconds"]),
        "Parameters": f"{record['parameters']:,}",
    }
    if training.get("flops"):
        rows["FLOPs"] = f"{training['flops']:.3g}"
    vocabulary = record["vocabulary"]
    if vocabulary["kind"] != "keep":
        rows["Vocabulary"] = (
            f"{vocabulary['tokens'][0]:,} → {vocabulary['tokens'][1]:,} tokens: {vocabulary['kept']:,} kept, "
            f"{vocabulary['neighbours']:,} from neighbours, {vocabulary['pieces']:,} from pieces"
        )
    if vocabulary.get("words"):
        rows["First words added"] = ", ".join(vocabulary["words"])
    return rows


def _rate(recipe: Mapping[str, Any]) -> str:
    schedule = recipe["schedule"]
    warmup, usual = schedule["warmup"], schedule["kind"] == "polynomial" and not schedule["end"]
    over = f"{warmup:g} steps" if warmup >= 1 else f"{warmup:.0%} of the budget"
    return f"{recipe['optim']['lr']:g}, warmed up over {over}, then {'to 0' if usual else schedule['kind']}"


def _steps(training: Mapping[str, Any]) -> str:
    planned = f" of {training['planned']:,.0f}" if training["recipe"]["budget"]["unit"] == "steps" else ""
    return f"{training['steps']:,}{planned}; the weights are of step {training['best']:,}"


def _limits(record: Mapping[str, Any]) -> list[str]:
    one = record["gains"]["domain"]
    said = [
        f"Bits are measured on {one['pieces']} pieces of held-out text ({one['bytes']:,} bytes), the same before "
        "and after; ± is the 95% interval of the difference over pieces.",
    ]
    if one["measure"].startswith("pll"):
        said.append(
            "Pseudo bits compare masked models with each other, and not with models that read from left to right."
        )
    if one["measure"] == "not_replaced" and record["vocabulary"]["kind"] != "keep":
        said.append(
            "Bits of replaced token detection depend on how many tokens a text has, so they do not show whether the "
            "other vocabulary is better."
        )
    if max(one["unknown"]) > 0.001:
        said.append("Unknown tokens are cheap to guess, so a vocabulary with more of them looks better than it is.")
    return said
