"""The page of fine-tuning, from its folders (:mod:`encoderlab.measure.finetuning`): one task with everything
about it, or several fine-tunings side by side.
"""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from encoderlab.config import flatten
from encoderlab.files import finite, write_text
from encoderlab.measure.curves import curve_data
from encoderlab.measure.finetuning import PRETRAINED, WITHOUT, Finetuning, read, tasks_in
from encoderlab.measure.report import MethodScores, Metric, Run, TaskScores, Tile, interval
from encoderlab.measure.runs import machine, names, side_by_side, versions
from encoderlab.measure.runs import strips as strips_of
from encoderlab.measure.strips import strip
from encoderlab.pages.charts import Chart, Point, Series, chart, mean_curve
from encoderlab.pages.template import render as fill
from encoderlab.tasks.scoring.analysis import Analysis, Mistake
from encoderlab.train.evidence import is_number
from encoderlab.train.units import duration, quantity

MATRIX = 12  # classes of a confusion matrix; of more, the most frequent confusions are listed
MISTAKES = 20  # that are shown
COUNTS = ("total", "threshold")  # endings of entries that are not scores
POINTS = 60  # of a curve of several seeds
SPLITS = {"dev": "Development set", "test": "Test set"}


@dataclass(frozen=True, kw_only=True)
class Page:
    """A page as HTML, its summary in a sentence, and its table: names of columns, and a row of cells per score."""

    html: str
    verdict: str
    head: Sequence[str]
    rows: Sequence[tuple[str, Sequence[str]]]


def write(folders: Sequence[Path], path: Path, *, title: str | None = None) -> Page:
    """Write the page about the fine-tunings in ``folders``, atomically.

    Raises:
        ConfigError, DataError: a folder is given twice, is not a fine-tuning, or is damaged.
    """
    page = make(folders, title=title)
    write_text(path, page.html)
    return page


def make(folders: Sequence[Path], *, title: str | None = None) -> Page:
    """The page of one task, or of several fine-tunings."""
    runs = {
        name: [read(place) for place in tasks_in(folder)] for name, folder in zip(names(folders), folders, strict=True)
    }
    everything = [tuning for tasks in runs.values() for tuning in tasks]
    if len(everything) == 1:
        return _one(everything[0], title)
    return _several(runs, title)


# Numbers in words


def points(values: Sequence[float]) -> str:
    """Mean and half of the 95% interval, × 100."""
    middle, half = interval(values)
    return f"{100 * middle:.1f}" + (f" ± {100 * half:.1f}" if half else "")


def split_name(split: str) -> str:
    """``test_mismatched`` as ``Test set, mismatched``."""
    first, _, rest = split.partition("_")
    return SPLITS.get(first, first) + (f", {rest}" if rest else "")


def model_name(tuning: Finetuning) -> str:
    """The folder of the initial model: the run, not the folder ``model`` in it."""
    path = Path(tuning.record.get("initial", {}).get("folder") or "fresh weights")
    return path.parent.name if path.name == "model" and path.parent.name else path.name


def verdict(tuning: Finetuning) -> str:
    """The scores of every split, and the best baseline of the development set."""
    parts = [f"{points(tuning.scores(split))} on the {split_name(split).lower()}" for split in tuning.splits]
    ended, tried = len(tuning.ended), len(tuning.seeds)
    over = f"{ended} seed{'s' * (ended > 1)}" if ended == tried else f"{ended} of {tried} seeds"
    words = f"{tuning.metric} {' and '.join(parts)}, over {over}"
    simple = _baselines(tuning, "dev")
    if simple:
        best = max(simple, key=lambda one: one.scores[0])
        words += f"; {best.name} has {100 * best.scores[0]:.1f} on the development set"
    failed = [f"seed {run.seed} ({run.failed})" for run in tuning.seeds if run.failed]
    return words + "." + (f" Failed: {', '.join(failed)}." if failed else "")


def _baselines(tuning: Finetuning, split: str) -> list[MethodScores]:
    scores = tuning.record.get("baselines", {}).get(split, {})
    return [MethodScores(name=name, scores=[of[tuning.metric]]) for name, of in scores.items() if tuning.metric in of]


def plots(named: Sequence[tuple[str, Finetuning]], *, by: str = "") -> list[TaskScores]:
    """A strip plot for every split of one task, one for each data of the split. Two systems with the same seeds are
    compared.
    """
    made = []
    for split in dict.fromkeys(split for _, one in named for split in one.splits):
        with_it = [(name, one) for name, one in named if split in one.splits]
        for digest in dict.fromkeys(one.record["data"][split] for _, one in with_it):
            made.append(_plot(split, [pair for pair in with_it if pair[1].record["data"][split] == digest], by))
    return made


def _plot(split: str, named: Sequence[tuple[str, Finetuning]], by: str) -> TaskScores:
    """The strip plot of systems with scores on the same data."""
    (first, _), (last, tuning) = named[0], named[-1]
    seeds = {tuple(run.seed for run in one.ended) for _, one in named}
    sizes = sorted({one.record["examples"]["train"] for _, one in named})
    return TaskScores(
        name=split_name(split),
        about=f"{' or '.join(f'{size:,}' for size in sizes)} training examples, "
        f"{tuning.record['examples'][split]:,} here.",
        metric=tuning.metric,
        methods=_baselines(tuning, split)
        + [MethodScores(name=name, scores=one.scores(split), ours=True) for name, one in named],
        compare=(last, first) if len(named) == 2 and len(seeds) == 1 else None,
        by=by or (f"of {last} over {first}" if len(named) == 2 else ""),
    )


# One task


def _one(tuning: Finetuning, title: str | None) -> Page:
    best = tuning.best
    analysis = best.analysis.get("dev")
    analyses = [run.analysis["dev"] for run in tuning.ended if "dev" in run.analysis]
    said = verdict(tuning)
    drawn = plots(list(tuning.systems()), by="from pretraining")
    head = [split_name(split) for split in tuning.splits]
    table = _all_scores(tuning)
    runs = [
        Run(name=f"seed {run.seed}" + (f", {WITHOUT}" if one is tuning.fresh else ""), train=run.train, valid=run.valid)
        for _, one in reversed(list(tuning.systems()))
        for run in one.seeds
    ]
    metrics = _metrics(tuning)
    strips = strips_of(runs)
    # Without the doctor's findings, which stand at the top.
    notes = [note for run in tuning.ended for note in run.record.get("notes", []) if not note.startswith("doctor: ")]
    return Page(
        html=fill(
            "finetuning.html",
            data=curve_data(metrics, strips, runs)
            | {"title": title or tuning.task, "verdict": said, "record": finite(tuning.record)},
            title=title or f"{tuning.task}: {model_name(tuning)} fine-tuned",
            verdict=said,
            findings=_findings(tuning),
            tiles=_tiles(tuning),
            plots=[strip(task) for task in drawn],
            protocol=protocol_note(tuning),
            scores={"head": head, "rows": table},
            seeds=_seeds(tuning),
            search=_search(tuning),
            metrics=metrics,
            strips=strips,
            best=best.seed,
            several=len(tuning.ended) > 1,
            analysis=analysis,
            classes=_classes(analyses),
            matrix=_matrix(analysis.confusion) if analysis else None,
            scatter=_scatter(analysis.points) if analysis else None,
            mistakes=[_mistake(one, analyses) for one in analysis.worst[:MISTAKES]] if analysis else [],
            settings=settings(tuning),
            every=flatten(tuning.record["recipe"]),
            costs=costs(tuning),
            provenance=provenance(tuning),
            remarks=list(dict.fromkeys([*tuning.record.get("remarks", []), *notes])),
            commands=[command(tuning)] if "command" in tuning.record else [],
        ),
        verdict=said,
        head=head,
        rows=table,
    )


def _tiles(tuning: Finetuning) -> list[Tile]:
    ended, tiles, name = tuning.ended, [], tuning.record["report"]
    for split in tuning.splits:
        scores = tuning.scores(split)
        value = tuning.record["scores"][split][tuning.metric][name]
        spread = f"{name} {100 * value:.1f}, " if len(scores) > 1 else ""
        tiles.append((f"{tuning.metric}, {split_name(split).lower()}", points(scores), f"{spread}n = {len(scores)}"))
    examples = tuning.record["examples"]
    tiles.append(("Training examples", f"{examples['train']:,}", f"{examples['dev']:,} for development"))
    first = ended[0].record
    tiles.append(("Updates", f"{first['steps']:,}", f"batches of {first['recipe']['batch']}"))
    count = "1 run" if len(ended) == 1 else f"{len(ended)} runs"
    tiles.append(("Time", duration(sum(run.record["seconds"] for run in ended)), count))
    return tiles[:6]


def protocol_note(tuning: Finetuning) -> str:
    """The protocol, and the number of seeds that were run."""
    record, tried = tuning.record, len(tuning.seeds)
    seeds = f"{tried} seed{'s' * (tried > 1)}"
    return (
        f"Dots are seeds, the line is their mean, the band its 95% interval. Protocol {record['protocol']} "
        f"({record['source']}); here {seeds}, of which the {record['report']} counts."
    )


def _all_scores(tuning: Finetuning) -> list[tuple[str, list[str]]]:
    """Every metric of every split: of the model, of fresh weights, of the baselines."""
    baselines = tuning.record.get("baselines", {})
    several = tuning.fresh is not None or bool(baselines)
    values: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(dict)  # by metric and system, then split
    for system, one in tuning.systems():
        for split in tuning.splits:
            for metric in one.record["scores"].get(split, {}):
                values[metric, system][split] = one.scores(split, metric)
    for name in dict.fromkeys(name for scores in baselines.values() for name in scores):
        for split, scores in baselines.items():
            for metric, score in scores.get(name, {}).items():
                values[metric, name][split] = [score]
    return [
        (f"{metric}, {who}" if several else metric, [_cell(metric, of.get(split, [])) for split in tuning.splits])
        for (metric, who), of in values.items()
    ]


def _cell(metric: str, values: Sequence[float]) -> str:
    """A score as text: shares in points, other numbers unchanged."""
    if not values:
        return "–"
    if metric.endswith((*COUNTS, "error")):
        return f"{fmean(values):.4g}"
    return points(values)


def _seeds(tuning: Finetuning) -> dict[str, Any]:
    """A row per seed."""
    head = [split_name(split) for split in tuning.splits] + ["best at update", "updates", "time"]
    rows = []
    for run in tuning.seeds:
        scores = [
            f"{100 * run.scores[split][tuning.metric]:.1f}" if split in run.scores else "–" for split in tuning.splits
        ]
        record = run.record
        place = "–" if record.get("best_step") is None else f"{record['best_step']:,}"
        end = [place, f"{record['steps']:,}", duration(record["seconds"])] if record else ["–"] * 3
        best = " (best)" if run.scores and run is tuning.best and len(tuning.ended) > 1 else ""
        rows.append((f"seed {run.seed}{best}", [*scores, *end], run.failed))
    return {"head": head, "rows": rows}


def _search(tuning: Finetuning) -> dict[str, Any] | None:
    """The settings that were tried before the seeds, the best first."""
    tried = tuning.record.get("search") or []
    if not tried:
        return None
    fields = list(dict.fromkeys(field for entry in tried for field in entry["point"]))
    rows = []
    for entry in sorted(tried, key=lambda entry: -max(entry["dev"], default=-1e9)):
        score = f"{100 * fmean(entry['dev']):.1f}" if entry["dev"] else "failed"
        values = [_plain(entry["point"].get(field)) for field in fields]
        rows.append((score, values, entry["point"] == tuning.record["chosen"]))
    return {"fields": fields, "rows": rows, "metric": tuning.metric}


def _plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _metrics(tuning: Finetuning) -> list[Metric]:
    """The losses, and three of the scores that validations measured; the task's own metric first."""
    lines = [line for run in tuning.seeds for line in (*run.train, *run.valid)]
    keys = list(dict.fromkeys(key for line in lines for key in line))
    losses = [key for key in keys if key.startswith("losses.")]
    scores = [key for key in keys if key.startswith("scores.") and not key.endswith(COUNTS)]
    scores.sort(key=lambda key: key != f"scores.{tuning.metric}")
    return [
        *(
            Metric(key=key, label="Loss" if len(losses) == 1 else f"Loss, {key.removeprefix('losses.')}")
            for key in losses
        ),
        *(Metric(key=key, label=f"{key.removeprefix('scores.')}, development set") for key in scores[:3]),
    ]


def _findings(tuning: Finetuning) -> list[dict[str, str]]:
    """The doctor's findings, each once with the seeds that have it."""
    said: dict[str, dict[str, Any]] = {}
    for run in tuning.ended:
        for finding in run.record.get("findings", []):
            said.setdefault(finding["name"], {**finding, "seeds": []})["seeds"].append(run.seed)
    return [
        {
            **one,
            "seeds": "every seed" if len(one["seeds"]) == len(tuning.ended) > 1 else f"seed {', '.join(one['seeds'])}",
        }
        for one in said.values()
    ]


def _classes(analyses: Sequence[Analysis]) -> dict[str, Any] | None:
    """Scores by class on the development set: means over seeds, with their standard deviation."""
    analyses = [one for one in analyses if one.classes]
    if not analyses:
        return None
    rows = []
    for name in dict.fromkeys(name for one in analyses for name in one.classes):
        counts = [one.classes[name] for one in analyses if name in one.classes]
        f1 = [one.f1 for one in counts]
        spread = f" ± {100 * float(np.std(f1, ddof=1)):.1f}" if len(f1) > 1 else ""
        rows.append(
            {
                "name": name,
                "gold": f"{counts[0].gold:,}",
                "predicted": f"{fmean(one.predicted for one in counts):,.0f}",
                "precision": f"{100 * fmean(one.precision for one in counts):.1f}",
                "recall": f"{100 * fmean(one.recall for one in counts):.1f}",
                "f1": f"{100 * fmean(f1):.1f}{spread}",
                "share": f"{100 * fmean(f1):.1f}%",
            }
        )
    return {"kind": analyses[0].kind, "rows": rows}


def _matrix(confusion: Sequence[tuple[str, str, int]]) -> dict[str, Any] | None:
    """The confusion matrix with its shading, or for many classes the most frequent confusions."""
    if not confusion:
        return None
    labels = sorted({label for gold, guess, _ in confusion for label in (gold, guess)})
    if len(labels) > MATRIX:
        wrong = [(gold, guess, f"{count:,}") for gold, guess, count in confusion if gold != guess]
        return {"labels": [], "rows": [], "pairs": wrong[:20]}
    counts = {(gold, guess): count for gold, guess, count in confusion}
    rows = []
    for gold in labels:
        row = [counts.get((gold, guess), 0) for guess in labels]
        total = max(sum(row), 1)
        cells = [
            {"count": f"{count:,}", "share": f"{100 * count / total:.0f}%", "right": guess == gold}
            for count, guess in zip(row, labels, strict=True)
        ]
        rows.append((gold, cells))
    return {"labels": labels, "rows": rows, "pairs": []}


def _scatter(pairs: Sequence[tuple[float, float]]) -> Chart | None:
    """A chart of predicted against gold numbers, with the line where they are equal."""
    if not pairs:
        return None
    low, high = min(min(pair) for pair in pairs), max(max(pair) for pair in pairs)
    dots = [Point(gold, guess, guess, guess) for gold, guess in pairs]
    line = [Point(end, end, end, end) for end in (low, high)]
    series = [
        Series(name="", colour=7, points=line, line=True, dashed=True),
        Series(name="", colour=0, points=dots, faint=True),
    ]
    return chart(series, x="gold", y="predicted")


def _mistake(one: Mistake, analyses: Sequence[Analysis]) -> dict[str, Any]:
    """A mistake for the page, with the number of seeds that made it."""
    made = sum(one.place in (analysis.wrong or ()) for analysis in analyses)
    often = f"wrong with {made} of {len(analyses)} seeds" if len(analyses) > 1 and analyses[0].wrong is not None else ""
    sure = "" if one.sure is None else f"{one.sure:.0%} sure"
    return {"mistake": one, "about": ", ".join(filter(None, (f"id {one.id}", sure, often)))}


def settings(tuning: Finetuning) -> dict[str, str]:
    """The settings of the runs."""
    record = tuning.record
    recipe, optim, schedule = record["recipe"], record["recipe"]["optim"], record["recipe"]["schedule"]
    first = tuning.ended[0].record
    off = {"kind": recipe["form"]["kind"], "max_length": recipe["form"]["max_length"], "windows": 1}
    form = {
        name: _plain(value)
        for name, value in recipe["form"].items()
        if value not in (None, False, "none") and value != off.get(name)
    }
    chosen = ", ".join(f"{field} {_plain(value)}" for field, value in record["chosen"].items())
    rows = {
        "Protocol": f"{record['protocol']}: {record['source']}",
        "Seeds": ", ".join(run.seed for run in tuning.seeds),
        "Reported": f"{record['report']} over seeds; weights of the {record['selection'].replace('_', ' ')}",
        "Training": record.get("said", ""),
        "Updates": f"{first['recipe']['budget']['amount']:,.0f}, validated every {recipe['evaluation']['every']:,}",
        "Batch": f"{recipe['batch']} examples, rows {recipe['packing']}",
        "Optimiser": f"{optim['kind']}, rate {optim['lr']:g}, weight decay {optim.get('weight_decay', 0):g}",
        "Layer-wise rates": str((optim.get("layer_decay") or {}).get("decay", "")),
        "Schedule": f"{schedule['kind']}, warm-up {schedule.get('warmup', 0):g}",
        "Clipping": "none" if recipe.get("clip") is None else f"{recipe['clip']:g}",
        "Dropout": "the model's own" if recipe["dropout"] is None else f"{recipe['dropout']:g}",
        "Longest sequence": f"{recipe['form']['max_length']} tokens",
        "Form": f"{recipe['form']['kind']}" + "".join(f", {name} {value}" for name, value in form.items()),
        "Head": first.get("head", ""),
        "Precision": str(recipe["precision"]),
        "Chosen by the search": chosen if record.get("search") else "",
    }
    return {name: value for name, value in rows.items() if value}


def costs(tuning: Finetuning) -> dict[str, str]:
    """Time, tokens, operations and memory of all runs."""
    rows = {}
    for system, one in tuning.systems():
        ended = [run.record for run in one.ended]
        seconds, tokens = sum(record["seconds"] for record in ended), _sum(ended, "tokens")
        parts = [f"{len(ended)} run{'s' * (len(ended) > 1)}, {sum(record['steps'] for record in ended):,} updates"]
        parts += [f"{quantity(tokens)} tokens"] if tokens else []
        parts.append(duration(seconds))
        rows["Training" if one is tuning and tuning.fresh is None else f"Training, {system}"] = ", ".join(parts)
        if flops := _sum(ended, "flops"):
            rate = f", {flops / seconds / 1e9:,.0f} GFLOP/s" if seconds else ""
            rows["FLOPs" if one is tuning else f"FLOPs, {system}"] = f"{flops:.3g}{rate}"
    tried = len(tuning.record.get("search") or [])
    if tried:
        rows["Search"] = f"{tried} points tried"
    memory = max((run.record.get("memory") or 0 for run in tuning.ended), default=0)
    if memory:
        rows["Largest memory of the process"] = f"{memory / 1e9:.2f} GB"
    if parameters := tuning.record.get("initial", {}).get("parameters"):
        rows["Parameters"] = f"{parameters:,} in the initial model"
    rows["Everything"] = f"{duration(tuning.record['elapsed'])} in the last session"
    return rows


def _sum(records: Sequence[Mapping[str, Any]], key: str) -> float:
    """The sum over runs; 0 if a run has no value."""
    values = [record.get(key) or 0 for record in records]
    return sum(values) if all(values) else 0


def provenance(tuning: Finetuning) -> dict[str, str]:
    """Model, data, versions and machine."""
    record, initial = tuning.record, tuning.record.get("initial", {})
    shape = f" ({initial['family']}, {initial['layers']} layers × {initial['width']})" if initial else ""
    rows = {
        "Model": f"{initial.get('folder') or 'fresh weights'}{shape}",
        "Hash of its weights": record["model"] or "",
        "Fine-tuned before on": ", ".join(record["after"]),
    }
    for split, digest in record["data"].items():
        files = ", ".join(record.get("sources", {}).get(split, []))
        rows[f"{split} data"] = f"{files} ({record['examples'][split]:,} examples), sha256 {digest}".strip()
    first = next((run.sessions[0] for run in tuning.ended if run.sessions), {})
    rows |= {
        "Started": str(first.get("started", "")),
        "Finished": str(tuning.ended[-1].record.get("finished", "")),
        "Versions": versions(first),
        "Commit": str(first.get("commit") or ""),
        "Hardware": machine(record["hardware"]),
        "System": str(record["hardware"].get("system", "")),
    }
    return {name: value for name, value in rows.items() if value}


def command(tuning: Finetuning) -> str:
    """The command line that made the folder."""
    first, *words = tuning.record["command"]
    return shlex.join(["encoderlab" if first == "__main__.py" else first, *words])


# Several


def _several(runs: Mapping[str, Sequence[Finetuning]], title: str | None) -> Page:
    """Strip plots by task and data, a table, curves, and what differs."""
    single = len(runs) == 1
    groups: dict[tuple[str, str, str], list[tuple[str, Finetuning]]] = {}
    for name, tasks in runs.items():
        for tuning in tasks:
            key = (tuning.task, tuning.metric, tuning.record["data"]["dev"])
            for system, one in tuning.systems():
                called = system if single else name if system == PRETRAINED else f"{name}, {system}"
                groups.setdefault(key, []).append((called, one))
    alike = [(task, metric) for task, metric, _ in groups]
    notes = [
        f"{task}: the development data of these runs differ, so their scores cannot be compared."
        for task, metric in dict.fromkeys(alike)
        if alike.count((task, metric)) > 1
    ]
    drawn = {key: plots(named, by="from pretraining" if single else "") for key, named in groups.items()}
    for (task, _, _), made in drawn.items():
        splits = [one.name for one in made]
        notes += [
            f"{task}: the data of the {split.lower()} differ, so their scores on it cannot be compared."
            for split in dict.fromkeys(splits)
            if splits.count(split) > 1
        ]
    panels = [
        strip(replace(one, name=f"{task}, {one.name.lower()}")) for (task, _, _), made in drawn.items() for one in made
    ]
    head = ["metric", *dict.fromkeys(one.name for made in drawn.values() for one in made)]
    rows = []
    for (task, metric, _), named in groups.items():
        for called, one in named:
            cells = {split_name(split): points(one.scores(split)) for split in one.splits}
            rows.append((f"{task}, {called}", [metric, *(cells.get(column, "–") for column in head[1:])]))
    every = {
        one.task if single else name if len(tasks) == 1 else f"{name}, {one.task}": one
        for name, tasks in runs.items()
        for one in tasks
    }
    said = " ".join(_sentence(task, metric, named) for (task, metric, _), named in groups.items())
    called = " and ".join(runs) if len(runs) < 4 else f"{len(runs)} fine-tunings"
    html = fill(
        "finetunings.html",
        data=finite({"title": title, "verdict": said, "records": {name: one.record for name, one in every.items()}}),
        title=title or (f"{next(iter(runs))}: {len(every)} tasks" if single else f"{called} compared"),
        verdict=said,
        notes=notes,
        findings=[(name, finding) for name, one in every.items() for finding in _findings(one)],
        plots=panels,
        table={"head": head, "rows": rows},
        curves=[
            (f"{task}: {metric}", drawing)
            for (task, metric, _), named in groups.items()
            if (drawing := _curves(metric, named))
        ],
        settings=side_by_side({name: settings(one) for name, one in every.items()}),
        costs=side_by_side({name: costs(one) for name, one in every.items()}),
        provenance=side_by_side({name: provenance(one) for name, one in every.items()}),
        commands=list(dict.fromkeys(command(one) for one in every.values() if "command" in one.record)),
    )
    return Page(html=html, verdict=said, head=head, rows=rows)


def _sentence(task: str, metric: str, named: Sequence[tuple[str, Finetuning]]) -> str:
    """The best fine-tuning of a task."""
    name, best = max(named, key=lambda pair: fmean(pair[1].scores("dev")))
    words = f"{task}: {metric} {points(best.scores('dev'))}"
    others = [fmean(one.scores("dev")) for other, one in named if other != name]
    return words + (f" of {name}, before {100 * max(others):.1f}." if others else ".")


def _curves(metric: str, named: Sequence[tuple[str, Finetuning]]) -> Chart | None:
    """The development score over updates: mean and range over the seeds of each run."""
    series = []
    for colour, (name, tuning) in enumerate(named):
        key = f"scores.{metric}"
        scores = ([(line["step"], line[key]) for line in run.valid if is_number(line.get(key))] for run in tuning.ended)
        curves = [np.array(of_run).T for of_run in scores if len(of_run) > 1]
        if not curves:
            continue
        title = lambda x, mean, name=name: f"{name}: {mean:.1f} at update {x:,.0f}"  # noqa: E731
        drawn = mean_curve(curves, most=POINTS, title=title, scale=100)
        series.append(Series(name=name, colour=len(named) - 1 - colour, points=drawn, line=True, band=True))
    return chart(series, x="updates", y=f"{metric} × 100")
