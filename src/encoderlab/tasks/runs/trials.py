"""Run a protocol: every run in its own folder, and the scores of its seeds.

All points of a search are in ``score.json``; a failed seed is marked and counted, not dropped.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import math
import statistics
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from encoderlab.config import to_dict
from encoderlab.errors import ConfigError, DataError, Diverged
from encoderlab.execution.workers import rank_and_size
from encoderlab.files import write_json
from encoderlab.interchange.finetuned import SCORE_FILE, Point, describe, folder_name, read_signed, signed
from encoderlab.messages import Say, silent
from encoderlab.model import Model, count_parameters, weights_hash
from encoderlab.tasks.data.splits import remarks_of
from encoderlab.tasks.data.task import Split, Task
from encoderlab.tasks.forms.encodings import Encodings
from encoderlab.tasks.forms.table import FORMS
from encoderlab.tasks.runs.finetune import FinetuneRecipe, finetune
from encoderlab.tasks.runs.folder import Result, TrainedTask
from encoderlab.tasks.runs.protocol import Protocol, at_point
from encoderlab.tasks.scoring.metrics import mean_interval
from encoderlab.train.doctor import BEGUN
from encoderlab.train.folder import hardware, session_command

log = logging.getLogger(__name__)

Adjust = Callable[[FinetuneRecipe], FinetuneRecipe]


@dataclass(frozen=True, kw_only=True)
class Origin:
    """The tasks that an initial model was trained for.

    Args:
        after: names of the intermediate tasks, in order.
        trained: the task of its head (:func:`encoderlab.tasks.runs.folder.read_task`); without it the head is not kept.
        folder: the path of the model, for the record.
        system: its name among compared systems.
    """

    after: tuple[str, ...] = ()
    trained: TrainedTask | None = None
    folder: str = ""
    system: str = ""


FRESH = Origin()  # a model that was not fine-tuned before


@dataclass(frozen=True, kw_only=True)
class Runs:
    """The runs of one model on one task, each in its folder in ``out``; ``about`` is written into their scores."""

    model: Model
    task: Task
    out: Path
    about: Mapping[str, Any]
    trained: TrainedTask | None
    encodings: Encodings = field(default_factory=Encodings)

    @classmethod
    def of(cls, protocol: Protocol, model: Model, task: Task, out: Path, origin: Origin, **about: str) -> Runs:
        """The runs of a protocol; ``about`` is also written into their scores."""
        known = {"protocol": protocol.name, "model": weights_hash(model), **about, "after": list(origin.after)}
        return cls(model=model, task=task, out=out, about=known, trained=origin.trained)

    def attempt(self, recipe: FinetuneRecipe, splits: Mapping[str, Split], folder: str, title: str) -> Attempt:
        """A run of ``recipe`` in ``folder``; ``title`` is its name while it trains."""
        return Attempt(runs=self, recipe=recipe, splits=splits, folder=folder, title=title)


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One run of a program."""

    runs: Runs
    recipe: FinetuneRecipe
    splits: Mapping[str, Split]
    folder: str
    title: str

    @property
    def out(self) -> Path:
        return self.runs.out / self.folder

    def run(self, *, shown: bool = True) -> Result | str:
        """Make the run in its folder, or read the finished one; if it diverged, the error message.

        A run with scores that are not finite counts as diverged. ``shown``: with its progress.
        """
        runs = self.runs
        try:
            result = finetune(
                runs.model,
                runs.task,
                self.splits,
                self.recipe,
                self.out,
                about=runs.about,
                encodings=runs.encodings,
                trained=runs.trained,
                title=self.title if shown else None,
            )
        except Diverged as error:
            return str(error)
        wrong = [
            f"{metric} of {split}"
            for split, scores in result.scores.items()
            for metric, value in scores.items()
            if value is None or not math.isfinite(value)
        ]
        return f"scores that are not finite: {', '.join(wrong)}; check the labels" if wrong else result


T = TypeVar("T")
Program = Generator[Sequence[Attempt], Sequence[Result | str], T]
"""Yields runs that do not depend on each other, is sent their results in the same order, and returns what it found."""


def perform(program: Program[T], say: Say = silent) -> T:
    """The result of a program; this process makes its runs, one after the other. ``say`` gets each title.

    :func:`encoderlab.tasks.runs.elsewhere.perform_all` has other processes make them.
    """
    with contextlib.closing(program):
        results: list[Result | str] | None = None
        while True:
            try:
                attempts = program.send(results)  # type: ignore[arg-type]
            except StopIteration as end:
                return end.value
            results = []
            for attempt in attempts:
                say(attempt.title)
                results.append(attempt.run())


@dataclass(frozen=True, kw_only=True)
class ProtocolResult:
    """The result of a protocol for one task: ``record`` is the content of ``score.json``.

    ``runs`` are the finished runs at the chosen point.
    """

    task: Task
    record: Mapping[str, Any]
    runs: Sequence[Result]

    @property
    def failed(self) -> list[str]:
        """Why seeds failed, also those that have scores."""
        return [entry["failed"] for entry in self.record["seeds"].values() if "failed" in entry]

    @property
    def best(self) -> Result:
        """The run with the best development score."""
        return max(self.runs, key=lambda run: run.scores["dev"][self.task.metric])


def points_of(protocol: Protocol) -> list[Point]:
    """The points of a protocol's grid; without a grid a single one, which sets nothing.

    Raises:
        ConfigError: one is given twice.
    """
    values = itertools.product(*protocol.grid.values())
    points: list[Point] = [dict(zip(protocol.grid, one, strict=True)) for one in values]
    if twice := next((point for point in points if points.count(point) > 1), None):
        raise ConfigError(f"--grid: {describe(twice)} is given twice; give each value once")
    return points


def run(
    protocol: Protocol,
    model: Model,
    task: Task,
    splits: Mapping[str, Split],
    out: Path,
    *,
    say: Say = silent,
    **more: Any,
) -> ProtocolResult:
    """Run :func:`program` in this process, one run after the other."""
    return perform(program(protocol, model, task, splits, out, say=say, **more), say)


def program(
    protocol: Protocol,
    model: Model,
    task: Task,
    splits: Mapping[str, Split],
    out: Path,
    *,
    origin: Origin = FRESH,
    adjust: Adjust = lambda recipe: recipe,
    say: Say = silent,
    searched: Sequence[Mapping[str, Any]] = (),
    baselines: Mapping[str, Mapping[str, Mapping[str, float]]] | None = None,
) -> Program[ProtocolResult]:
    """Fine-tune ``model`` on ``task`` by ``protocol``; finished runs in ``out`` are read instead of repeated.

    The grid is searched on the development set only; every other labelled split is scored once, at the chosen point.
    ``adjust`` changes the protocol's recipe last (fields that the user sets).

    ``searched`` are the points of a search that came before, and ``baselines`` the scores of simple predictors by split
    and name; both are kept in the record.

    Raises:
        Diverged: every point of the grid failed, or every seed at the chosen point.
    """
    start = time.perf_counter()
    base = adjust(protocol.recipe_for(task, model, len(splits["train"])))
    points = points_of(protocol)
    recipes = [at_point(base, point, where="--grid") for point in points]  # refuse a wrong one before any training
    kept = set(out.rglob(SCORE_FILE))  # of what had ended before this call
    runs = Runs.of(protocol, model, task, out, origin)
    named = " ".join(filter(None, (task.name, origin.system)))

    def attempts(number: int, seeds: int, splits: Mapping[str, Split]) -> list[Attempt]:
        """The runs at one point of the grid, by seed."""
        made = []
        for seed in range(base.seed, base.seed + seeds):
            title = " ".join(filter(None, (f"{named}:", describe(points[number]), f"seed {seed}")))
            recipe = replace(recipes[number], seed=seed)
            made.append(runs.attempt(recipe, splits, f"{folder_name(points[number])}/seed-{seed}", title))
        return made

    said = protocol.says(base, model, len(splits["train"]))
    say(f"{named}: {said}")
    search: list[dict[str, Any]] = []
    if len(points) > 1:
        seen = {name: splits[name] for name in ("train", "dev")}
        size = protocol.search_seeds
        results = yield [one for number in range(len(points)) for one in attempts(number, size, seen)]
        for number, point in enumerate(points):
            tried = _finished(results[number * size : (number + 1) * size])
            scores = [result.scores["dev"][task.metric] for result in tried]
            search.append({"point": point, "dev": scores, "failed": size - len(scores)})
    chosen = _best_point(search, task)
    if search:
        said = protocol.says(recipes[chosen], model, len(splits["train"]))
        say(f"{named}: {describe(points[chosen])} is taken: {said}")
    asked = attempts(chosen, protocol.seeds, splits)
    ended = kept.issuperset(one.out / SCORE_FILE for one in asked)
    results = yield asked
    by_seed = dict(zip(range(base.seed, base.seed + protocol.seeds), results, strict=True))
    finished = _finished(results)
    if not finished:
        raise Diverged(f"{task.name}: all {len(by_seed)} seeds failed ({next(iter(by_seed.values()))})")
    record = {
        "task": task.name,
        "metric": task.metric,
        "report": protocol.report,
        **runs.about,
        "source": protocol.source,
        "said": said,
        "form": task.form,
        "initial": {"folder": origin.folder, "parameters": count_parameters(model.config)["total"]}
        | {"family": model.config.family, "layers": model.config.encoder.layers, "width": model.config.encoder.width},
        "command": session_command(),
        "grid": {name: list(values) for name, values in protocol.grid.items()},
        "search": [*searched, *search],
        "chosen": points[chosen],
        "selection": f"{base.select} by {task.metric} of dev",
        "seeds": {str(seed): _entry(one, task, splits["dev"]) for seed, one in by_seed.items()},
        "scores": _summaries(finished, splits, task.metric),
        "baselines": baselines or {},
        "sources": {name: list(split.files) for name, split in splits.items()},
        "data": {name: split.sha256 for name, split in splits.items()},
        "examples": {name: len(split) for name, split in splits.items()},
        "remarks": remarks_of(splits),
        "recipe": to_dict(finished[0].record["recipe"]),
        "hardware": hardware(),
        "seconds": sum(float(result.record["seconds"]) for result in finished),
        "elapsed": time.perf_counter() - start,
    }
    if rank_and_size()[0] == 0:  # of several processes, the first one writes
        _name_damage(out / SCORE_FILE, ended=ended)
        write_json(out / SCORE_FILE, signed(record))
    return ProtocolResult(task=task, record=record, runs=finished)


def _name_damage(path: Path, *, ended: bool) -> None:
    """Warn if the record that is made again is damaged, or is missing although all its runs had ``ended``."""
    try:
        if path.exists() or ended:
            read_signed(path, "it is made again")
    except DataError as error:
        log.warning("%s", error)


def _best_point(search: Sequence[Mapping[str, Any]], task: Task) -> int:
    """The index of the point with the best median score on the development set; 0 if none was searched.

    Raises:
        Diverged: all runs of all points failed.
    """
    medians = {number: statistics.median(entry["dev"]) for number, entry in enumerate(search) if entry["dev"]}
    if search and not medians:
        raise Diverged(f"{task.name}: every point of the grid failed; lower the rates")
    return max(medians, key=lambda number: medians[number], default=0)


def _finished(results: Sequence[Result | str]) -> list[Result]:
    """The runs that did not diverge."""
    return [result for result in results if isinstance(result, Result)]


def _entry(result: Result | str, task: Task, dev: Split) -> dict[str, Any]:
    """One seed of the record: its scores, or why it failed.

    A run of :data:`BEGUN` updates or more that predicts a single label for a development set with several is marked as
    failed, but keeps its scores.
    """
    if isinstance(result, str):
        return {"failed": result}
    entry: dict[str, Any] = {"scores": result.record["scores"], "best_step": result.record["best_step"]}
    several = len({example.reference for example in dev.examples}) > 1
    begun = result.record["steps"] >= BEGUN
    if FORMS[task.form].collapses and begun and several and _constant(result):
        entry["failed"] = "predicts one label for every example"
    return entry


def _constant(result: Result) -> bool:
    """Whether all predictions for the development set are one label."""
    path = result.folder / "predictions-dev.jsonl"
    with open(path, encoding="utf-8") as file:
        return len({json.dumps(json.loads(line)["label"]) for line in file}) == 1


def _summaries(
    runs: Sequence[Result], splits: Mapping[str, Split], metric: str
) -> dict[str, dict[str, dict[str, Any]]]:
    """Statistics over seeds by split and metric. The best and the worst seed are those by ``metric`` of the development
    set; the best on a test set would be chosen by its answers.
    """

    def on_dev(scores: Mapping[str, Mapping[str, float]]) -> float:
        return scores["dev"][metric]

    summaries: dict[str, dict[str, dict[str, Any]]] = {}
    for name in splits:
        scored = [run.scores for run in runs if name in run.scores]
        if scored:
            best, worst = max(scored, key=on_dev)[name], min(scored, key=on_dev)[name]
            summaries[name] = {
                one: summary([scores[name][one] for scores in scored]) | {"best": best[one], "worst": worst[one]}
                for one in scored[0][name]
            }
    return summaries


def summary(values: Sequence[float]) -> dict[str, Any]:
    """Median, mean, standard deviation (over n - 1), the 95% interval of the mean, and n."""
    low, high = mean_interval(values)
    return {
        "median": statistics.median(values),
        "mean": statistics.fmean(values),
        "sd": statistics.stdev(values) if len(values) > 1 else None,
        "interval": [low, high] if len(values) > 1 else None,
        "n": len(values),
    }


@dataclass(frozen=True, kw_only=True)
class ResultRow:
    """One line of a table: the score of a system on a split of a task over ``n`` seeds.

    ``failed`` seeds are counted separately. ``n`` is 0 for a baseline, which has no seeds.
    """

    task: str
    split: str
    metric: str
    system: str
    median: float
    mean: float
    best: float
    sd: float | None = None
    interval: tuple[float, float] | None = None
    n: int = 0
    failed: int = 0


def system_row(outcome: ProtocolResult, system: str, split: str = "dev") -> ResultRow:
    """The line of a protocol's scores on a split."""
    stats = outcome.record["scores"][split][outcome.task.metric]
    return ResultRow(
        task=outcome.task.name,
        split=split,
        metric=outcome.task.metric,
        system=system,
        failed=len(outcome.failed),
        interval=stats["interval"] and tuple(stats["interval"]),
        **{key: stats[key] for key in ("median", "mean", "best", "sd", "n")},
    )


def baseline_rows(task: Task, scores: Mapping[str, Mapping[str, float]], split: str = "dev") -> list[ResultRow]:
    """The lines of baselines on a split (:func:`encoderlab.tasks.forms.scores.baselines`)."""
    return [
        ResultRow(task=task.name, split=split, metric=task.metric, system=name, median=value, mean=value, best=value)
        for name, of_baseline in scores.items()
        if (value := of_baseline.get(task.metric)) is not None
    ]
