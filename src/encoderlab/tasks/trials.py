"""Carries out a protocol: every run in a folder of its own, the scores of its seeds, the table they make.

Everything that was tried is in ``score.json``; a seed that failed is marked and counted rather than dropped.
"""

from __future__ import annotations

import itertools
import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from encoderlab.config import to_dict
from encoderlab.errors import DataError, Diverged
from encoderlab.files import write_json
from encoderlab.model import Model
from encoderlab.tasks.base import Split, Task
from encoderlab.tasks.encodings import Encodings
from encoderlab.tasks.finetune import Recipe, finetune, remarks_of
from encoderlab.tasks.folder import SCORE_FILE, Result
from encoderlab.tasks.infer import hold_out
from encoderlab.tasks.metrics import mean_interval
from encoderlab.tasks.objective import model_hash
from encoderlab.tasks.protocol import Protocol, at_point
from encoderlab.train.folder import hardware


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a protocol found for one task. ``record`` is what ``score.json`` holds; ``runs`` are those at the chosen
    point.
    """

    task: Task
    record: Mapping[str, Any]
    runs: Sequence[Result]

    @property
    def best(self) -> Result:
        """The run that validates best."""
        return max(self.runs, key=lambda run: run.scores["dev"][self.task.metric])


def run(
    protocol: Protocol,
    model: Model,
    task: Task,
    splits: Mapping[str, Split],
    out: Path,
    *,
    adjust: Callable[[Recipe], Recipe] | None = None,
    after: Sequence[str] = (),
    trained: Mapping[str, Any] | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Outcome:
    """Fine-tune ``model`` on ``task`` as ``protocol`` says; what is finished already is read.

    The grid is searched on the development set alone; every other labelled split is scored once, at the chosen point.
    ``adjust`` changes the recipe last (fields the user sets). ``after`` names the intermediate tasks that the model has
    behind it, ``trained`` what its head was trained for (:func:`encoderlab.tasks.folder.read_task`).

    Raises:
        Diverged: every seed at the chosen point failed.
    """
    start = time.perf_counter()
    base = protocol.recipe_for(task, model)
    base = adjust(base) if adjust is not None else base
    about = {"protocol": protocol.name, "model": model_hash(model), "after": list(after)}
    points = [dict(zip(protocol.grid, values, strict=True)) for values in itertools.product(*protocol.grid.values())]
    recipes = [at_point(base, point, where="--grid") for point in points]  # a wrong one is refused before any training
    encodings = Encodings()

    def attempt(number: int, seed: int, splits: Mapping[str, Split]) -> Result | str:
        recipe = replace(recipes[number], seed=seed)
        say(f"{task.name}: {describe(points[number])} seed {seed}".replace("  ", " "))
        try:
            folder = out / folder_name(points[number]) / f"seed-{seed}"
            return finetune(model, task, splits, recipe, folder, about=about, encodings=encodings, trained=trained)
        except Diverged as error:
            return str(error)

    search: list[dict[str, Any]] = []
    chosen = 0
    if len(points) > 1:
        seen = {name: splits[name] for name in ("train", "dev")}
        for number, point in enumerate(points):
            found = [attempt(number, base.seed + i, seen) for i in range(protocol.search_seeds)]
            scores = [result.scores["dev"][task.metric] for result in found if isinstance(result, Result)]
            search.append({"point": point, "dev": scores, "failed": len(found) - len(scores)})
        usable = [number for number, entry in enumerate(search) if entry["dev"]]
        if not usable:
            raise Diverged(f"{task.name}: every point of the grid failed; lower the rates")
        chosen = max(usable, key=lambda number: statistics.median(search[number]["dev"]))
    attempts = {base.seed + i: attempt(chosen, base.seed + i, splits) for i in range(protocol.seeds)}
    runs = [found for found in attempts.values() if isinstance(found, Result)]
    if not runs:
        raise Diverged(f"{task.name}: all {len(attempts)} seeds failed ({next(iter(attempts.values()))})")
    written = {
        "task": task.name,
        "metric": task.metric,
        "report": protocol.report,
        **about,
        "source": protocol.source,
        "grid": {name: list(values) for name, values in protocol.grid.items()},
        "search": search,
        "chosen": points[chosen],
        "selection": f"{base.select} by {task.metric} of dev",
        "seeds": {str(seed): _entry(found, task, splits["dev"]) for seed, found in attempts.items()},
        "scores": _summaries(runs, splits),
        "data": {name: split.sha256 for name, split in splits.items()},
        "examples": {name: len(split) for name, split in splits.items()},
        "remarks": remarks_of(splits),
        "recipe": to_dict(runs[0].record["recipe"]),
        "hardware": hardware(),
        "seconds": sum(float(found.record["seconds"]) for found in runs),
        "elapsed": time.perf_counter() - start,
    }
    write_json(out / SCORE_FILE, written)
    return Outcome(task=task, record=written, runs=runs)


def best_seed(folder: Path, say: Callable[[str], None]) -> Path:
    """The run that validates best, where a protocol ran several seeds; ``folder`` itself anywhere else."""
    path = folder / SCORE_FILE
    if not path.exists() or "seeds" not in (found := json.loads(path.read_text(encoding="utf-8"))):
        return folder
    scores = {
        seed: entry["scores"]["dev"][found["metric"]] for seed, entry in found["seeds"].items() if "scores" in entry
    }
    best = max(scores, key=lambda seed: scores[seed])
    which = f"the best of {len(scores)} on the development set" if len(scores) > 1 else "the only one with scores"
    say(f"seed {best}, {which}")
    return folder / folder_name(found["chosen"]) / f"seed-{best}"


def describe(point: Mapping[str, Any]) -> str:
    """``lr=0.0001 epochs=3``; nothing for no grid."""
    parts = (f"{value:g}" if isinstance(value, (int, float)) else f"{value}" for value in point.values())
    return " ".join(f"{name.rpartition('.')[2]}={part}" for name, part in zip(point, parts, strict=True))


def folder_name(point: Mapping[str, Any]) -> str:
    return describe(point).replace(" ", ",") or "runs"


def _entry(found: Result | str, task: Task, dev: Split) -> dict[str, Any]:
    """One seed of the record: its scores, or why it failed. A run that predicts one label alone, where there are
    several, counts as failed, and stays.
    """
    if isinstance(found, str):
        return {"failed": found}
    entry: dict[str, Any] = {"scores": found.record["scores"], "best_step": found.record["best_step"]}
    several = len({example.label for example in dev.examples}) > 1 if task.form == "classification" else False
    if several and _constant(found):
        entry["failed"] = "predicts one label for every example"
    return entry


def _constant(found: Result) -> bool:
    path = found.folder / "predictions-dev.jsonl"
    with open(path, encoding="utf-8") as file:
        return len({json.loads(line)["label"] for line in file}) == 1


def _summaries(runs: Sequence[Result], splits: Mapping[str, Split]) -> dict[str, dict[str, dict[str, Any]]]:
    """Statistics over seeds by split and metric."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for name in splits:
        values = [run.scores[name] for run in runs if name in run.scores]
        if values:
            found[name] = {metric: summary([value[metric] for value in values]) for metric in values[0]}
    return found


def summary(values: Sequence[float]) -> dict[str, Any]:
    """Median, mean, standard deviation (over n - 1), extremes, the 95% interval of the mean, and n."""
    low, high = mean_interval(values)
    return {
        "median": statistics.median(values),
        "mean": statistics.fmean(values),
        "sd": statistics.stdev(values) if len(values) > 1 else None,
        "best": max(values),
        "worst": min(values),
        "interval": [low, high] if len(values) > 1 else None,
        "n": len(values),
    }


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of a table: a task and a system, with a score over ``n`` seeds (0: a baseline, which has no chance in
    it); of all its seeds, ``failed`` did.
    """

    task: str
    metric: str
    system: str
    median: float
    mean: float
    best: float
    sd: float | None = None
    interval: tuple[float, float] | None = None
    n: int = 0
    failed: int = 0


def rows(outcomes: Sequence[Outcome], system: str, split: str = "dev") -> list[Row]:
    """The table's lines of what a protocol found."""
    found = []
    for outcome in outcomes:
        stats = outcome.record["scores"].get(split, {}).get(outcome.task.metric)
        if stats is None:
            continue
        found.append(
            Row(
                task=outcome.task.name,
                metric=outcome.task.metric,
                system=system,
                failed=sum("failed" in entry for entry in outcome.record["seeds"].values()),
                interval=stats["interval"] and tuple(stats["interval"]),
                **{key: stats[key] for key in ("median", "mean", "best", "sd", "n")},
            )
        )
    return found


def baseline_rows(task: Task, scores: Mapping[str, Mapping[str, float]]) -> list[Row]:
    """The table's lines of what :func:`encoderlab.tasks.baselines.baselines` found."""
    return [
        Row(task=task.name, metric=task.metric, system=name, median=value, mean=value, best=value)
        for name, found in scores.items()
        for value in [found.get(task.metric)]
        if value is not None
    ]


def table(lines: Sequence[Row]) -> str:
    """A Markdown table, scores times 100: median, mean with the 95% interval, standard deviation, n; failed seeds are
    marked.
    """
    out = ["| task | metric | system | median | mean | sd | seeds |", "|---|---|---|---:|---:|---:|---:|"]
    for line in lines:
        half = "" if line.interval is None else f" ± {100 * (line.interval[1] - line.mean):.1f}"
        sd = "" if line.sd is None else f"{100 * line.sd:.1f}"
        seeds = f"{line.n or ''}" + (f" ({line.failed} failed)" if line.failed else "")
        out.append(
            f"| {line.task} | {line.metric} | {line.system} | {100 * line.median:.1f} | {100 * line.mean:.1f}{half} | "
            f"{sd} | {seeds} |"
        )
    return "\n".join(out)


def usable_splits(task: Task, data: Path) -> dict[str, Split]:
    """Every split of a task that lies in ``data``: train, dev, and further ones that have labels or can be submitted.

    A training file without a validation file gives up a tenth of it, which the remarks say.
    """
    splits = {"train": task.load(data, "train")}
    for name in task.files:
        if name == "train":
            continue
        try:
            task.find(data, name)
        except DataError:
            continue
        splits[name] = task.load(data, name)
    if "dev" not in splits:
        splits["train"], splits["dev"] = held_out(splits["train"])
    return splits


def held_out(split: Split) -> tuple[Split, Split]:
    """Training and development part of a training file, with a remark that says so."""
    train, dev = hold_out(split)
    names = ", ".join(Path(file).name for file in split.files[:2])
    said = (
        f"{names}: no development file; {len(dev):,} of {len(split):,} training examples are held out "
        f"as the development set"
    )
    return train, replace(dev, remarks=(said,))
