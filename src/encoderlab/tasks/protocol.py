"""How a published number is made: seeds, a grid, what is selected on validation data, what is reported; named, as data.

A protocol turns (model, task) into scores that can be compared: every run of it lies in a folder of its own, everything
that was tried is in ``score.json``, a seed that failed is marked and counted rather than dropped.
"""

from __future__ import annotations

import itertools
import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from encoderlab.config import override, parse_value, to_dict
from encoderlab.errors import ConfigError, Diverged, nearest
from encoderlab.files import write_text
from encoderlab.model import Model
from encoderlab.tasks.base import Split, Task
from encoderlab.tasks.finetune import SCORE_FILE, Encodings, Recipe, Result, finetune
from encoderlab.tasks.form import FormSettings
from encoderlab.tasks.metrics import mean_interval
from encoderlab.tasks.objective import model_hash
from encoderlab.train.folder import hardware
from encoderlab.train.optim import AdamW, BertAdam, LayerDecay
from encoderlab.train.schedule import Bert, Electra

Report = Literal["median", "mean", "best"]
SHORT = {"lr": "optim.lr", "weight_decay": "optim.weight_decay", "dropout": "dropout", "max_length": "form.max_length"}


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """A way of fine-tuning and reporting.

    Args:
        recipe: what holds for every task.
        tasks: fields of the recipe that differ by task name, or by ``"form:span"``.
        widths: fields that differ by the width of the model; the widest entry that is not wider than the model holds.
        grid: fields and the values to try for each, on the development set with the first ``search_seeds`` seeds.
        seeds: runs at the chosen point. report: the number of them that is given first.
    """

    name: str
    source: str
    recipe: Recipe = Recipe()
    tasks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    widths: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    grid: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    search_seeds: int = 1
    seeds: int = 1
    report: Report = "median"

    def recipe_for(self, task: Task, model: Model) -> Recipe:
        """The recipe of one task for a model of this width; sequences no longer than the model can read."""
        narrower = [width for width in self.widths if width <= model.config.encoder.width]
        fields: dict[str, Any] = {
            **(self.widths[max(narrower)] if narrower else {}),
            **self.tasks.get(f"form:{task.form}", {}),
            **self.tasks.get(task.name, {}),
        }
        recipe = override(self.recipe, fields) if fields else self.recipe
        limit = model.config.encoder.max_length
        if limit is not None and recipe.form.max_length > limit:
            recipe = replace(recipe, form=replace(recipe.form, max_length=limit))
        return recipe


_LONG = {"form.max_length": 384, "epochs": 2.0}
_ADAM = AdamW(lr=5e-5, eps=1e-6, weight_decay=0.01)
_BERT_ADAM = BertAdam(lr=5e-5, eps=1e-6, weight_decay=0.01)  # the release fine-tunes without bias correction too
_ELECTRA = Recipe(
    name="electra",
    epochs=3.0,
    optim=BertAdam(lr=1e-4, eps=1e-6, weight_decay=0.0, layer_decay=LayerDecay(decay=0.8, offset=2)),
    schedule=Electra(warmup=0.1),
    form=FormSettings(max_length=128, swap=True),
    select="last",
)
_SIZES = {1: {"optim.lr": 3e-4}, 768: {"optim.lr": 1e-4}, 1024: {"optim.lr": 5e-5, "optim.layer_decay.decay": 0.9}}
_ELECTRA_TASKS: dict[str, Mapping[str, Any]] = {
    "rte": {"epochs": 10.0},
    "stsb": {"epochs": 10.0},
    "form:span": {"epochs": 2.0, "form.max_length": 512},
}


def _albert(lr: float, batch: int, steps: int, warmup: int, length: int = 512, **more: Any) -> dict[str, Any]:
    fields = {"optim.lr": lr, "batch": batch, "steps": steps, "schedule.warmup": warmup, "form.max_length": length}
    return fields | {key.replace("__", "."): value for key, value in more.items()}


def _deberta(length: int, batch: int, lr: float, epochs: float, warmup: int, dropout: float) -> dict[str, Any]:
    return {"form.max_length": length, "batch": batch, "optim.lr": lr, "epochs": epochs, "schedule.warmup": warmup,
            "head_dropout": dropout}  # fmt: skip


def _clue(lr: float, batch: int, epochs: float, length: int = 128, **more: Any) -> dict[str, Any]:
    fields = {"optim.lr": lr, "batch": batch, "epochs": epochs, "form.max_length": length}
    return fields | {key.replace("__", "."): value for key, value in more.items()}


PROTOCOLS: dict[str, Protocol] = {
    protocol.name: protocol
    for protocol in (
        Protocol(
            name="plain",
            source="this project: three epochs, five seeds, the best epoch of each on the development set",
            recipe=Recipe(name="plain", optim=_ADAM),
            tasks={"form:span": _LONG, "form:choice": {"form.max_length": 256}, "form:regression": {"epochs": 6.0}},
            seeds=5,
        ),
        Protocol(
            name="bert",
            source="Devlin et al., 2019, appendix A.3 and sections 4.1-4.4: best of four rates on the development set",
            recipe=Recipe(name="bert", optim=_BERT_ADAM, schedule=Bert(warmup=0.1), select="last"),
            tasks={
                "squad1": {"form.max_length": 384, "optim.lr": 5e-5, "batch": 32, "epochs": 3.0},
                "squad2": {"form.max_length": 384, "optim.lr": 5e-5, "batch": 48, "epochs": 2.0},
                "swag": {"optim.lr": 2e-5, "batch": 16},
                "conll2003": {"form.context": "document", "form.max_length": 512},
                "form:span": _LONG,
                "form:regression": {"form.targets": "raw"},
            },
            grid={"optim.lr": (5e-5, 4e-5, 3e-5, 2e-5)},
            report="best",
        ),
        Protocol(
            name="roberta",
            source="fairseq, examples/roberta/config/finetuning: weight decay 0.1, no clipping, absolute steps",
            recipe=Recipe(
                name="roberta",
                optim=AdamW(lr=1e-5, betas=(0.9, 0.98), eps=1e-6, weight_decay=0.1),
                clip=None,
                epochs=10.0,
                form=FormSettings(max_length=512),
            ),
            tasks={
                "cola": {"batch": 16, "steps": 5336, "schedule.warmup": 320},
                "mnli": {"steps": 123873, "schedule.warmup": 7432},
                "mrpc": {"batch": 16, "steps": 2296, "schedule.warmup": 137},
                "qnli": {"steps": 33112, "schedule.warmup": 1986},
                "qqp": {"steps": 113272, "schedule.warmup": 28318},
                "rte": {"optim.lr": 2e-5, "batch": 16, "steps": 2036, "schedule.warmup": 122},
                "sst2": {"steps": 20935, "schedule.warmup": 1256},
                "stsb": {"optim.lr": 2e-5, "batch": 16, "steps": 3598, "schedule.warmup": 214},
            },
            seeds=5,
        ),
        Protocol(
            name="albert",
            source="google-research/albert and Lan et al., 2020, appendix A.4: no dropout but in the classifier",
            recipe=Recipe(
                name="albert",
                optim=_BERT_ADAM,
                schedule=Bert(warmup=0.1),
                dropout=0.0,
                form=FormSettings(max_length=512, targets="raw"),
            ),
            tasks={
                "cola": _albert(1e-5, 16, 5336, 320),
                "stsb": _albert(2e-5, 16, 3598, 214),
                "sst2": _albert(1e-5, 32, 20935, 1256),
                "mnli": _albert(3e-5, 128, 10000, 1000),
                "qnli": _albert(1e-5, 32, 33112, 1986),
                "qqp": _albert(5e-5, 128, 14000, 1000, dropout=0.1),
                "rte": _albert(3e-5, 32, 800, 200, dropout=0.1),
                "mrpc": _albert(2e-5, 32, 800, 200),
                "wnli": _albert(2e-5, 16, 2000, 250, dropout=0.1),
                "squad1": _albert(5e-5, 48, 3649, 365, 384),
                "squad2": _albert(3e-5, 48, 8144, 814),
                "race": _albert(2e-5, 32, 12000, 1000, dropout=0.1),
            },
            seeds=5,
        ),
        Protocol(
            name="electra",
            source="Clark et al., 2020, table 7: median of ten runs, last step, layer-wise rates, no weight decay",
            recipe=_ELECTRA,
            tasks=_ELECTRA_TASKS,
            widths=_SIZES,
            seeds=10,
        ),
        Protocol(
            name="convbert",
            source="Jiang et al., 2020, section 6.3: ELECTRA's, searched over rate, weight decay and epochs",
            recipe=replace(_ELECTRA, name="convbert", optim=replace(_ELECTRA.optim, weight_decay=0.01)),
            tasks=_ELECTRA_TASKS,
            widths=_SIZES,
            grid={"optim.lr": (5e-5, 1e-4, 2e-4, 3e-4), "optim.weight_decay": (0.01, 0.1), "epochs": (10.0, 3.0)},
            seeds=1,
            report="best",
        ),
        Protocol(
            name="distilbert",
            source="Sanh et al., 2019, section 4: median of five runs",
            recipe=Recipe(name="distilbert", optim=_ADAM),
            tasks={"form:span": _LONG},
            seeds=5,
        ),
        Protocol(
            name="deberta",
            source="microsoft/DeBERTa, experiments/glue: the v3-large scripts; mean of five seeds",
            recipe=Recipe(
                name="deberta",
                optim=AdamW(lr=1e-5, eps=1e-6, weight_decay=0.01),
                form=FormSettings(max_length=256, targets="raw"),
            ),
            tasks={
                "cola": _deberta(64, 32, 5.5e-6, 10, 50, 0.1),
                "mnli": _deberta(256, 64, 7e-6, 2, 500, 0.3),
                "mrpc": _deberta(128, 32, 6e-6, 6, 50, 0.2),
                "qnli": _deberta(512, 64, 7e-6, 6, 200, 0.2),
                "qqp": _deberta(320, 64, 1e-5, 6, 1000, 0.2),
                "rte": _deberta(320, 32, 1e-5, 6, 50, 0.3),
                "sst2": _deberta(128, 32, 6e-6, 8, 500, 0.1),
                "stsb": _deberta(128, 32, 7e-6, 4, 50, 0.1),
                "race": _deberta(320, 32, 2e-5, 6, 100, 0.2),
                "copa": _deberta(136, 32, 1e-5, 3, 50, 0.1),
                "record": _deberta(512, 64, 2e-5, 3, 1000, 0.2),
                "conll2003": {"form.max_length": 512, "batch": 16, "optim.lr": 2e-5, "epochs": 15.0},
                "form:span": _LONG,
            },
            seeds=5,
            report="mean",
        ),
        Protocol(
            name="clue",
            source="CLUEbenchmark/CLUE, baselines/models_pytorch",
            recipe=Recipe(name="clue", optim=AdamW(lr=2e-5, eps=1e-6, weight_decay=0.01), batch=16),
            tasks={
                "afqmc": _clue(2e-5, 16, 3),
                "tnews": _clue(2e-5, 16, 3),
                "iflytek": _clue(2e-5, 16, 3),
                "cmnli": _clue(3e-5, 16, 3),
                "ocnli": _clue(3e-5, 16, 2),
                "csl": _clue(1e-5, 8, 5, 256),
                "cluewsc": _clue(2e-5, 16, 50),
                "cmrc2018": _clue(3e-5, 32, 2, 512),
                "drcd": _clue(3e-5, 32, 2, 512),
                "c3": _clue(2e-5, 24, 8, 512, schedule__warmup=0.05),
                "chid": _clue(2e-5, 24, 3, 64, schedule__warmup=0.06),
            },
            seeds=1,
        ),
    )
}


def protocol(name: str) -> Protocol:
    """The protocol of that name.

    Raises:
        ConfigError: there is none; the nearest is named.
    """
    if name not in PROTOCOLS:
        raise ConfigError(f"unknown protocol {name!r}{nearest(name, PROTOCOLS)}")
    return PROTOCOLS[name]


def parse_grid(words: Sequence[str]) -> dict[str, tuple[Any, ...]]:
    """``["lr=5e-5,1e-4", "epochs=3,10"]`` as the grid of a protocol.

    Raises:
        ConfigError: a word without ``=`` or values.
    """
    grid = {}
    for word in words:
        name, equals, values = word.partition("=")
        if not equals or not name or not values:
            raise ConfigError(f"--grid {word}: expected field=value,value, such as lr=5e-5,1e-4")
        grid[SHORT.get(name, name)] = tuple(parse_value(value) for value in values.split(","))
    return grid


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
    say: Callable[[str], None] = lambda text: None,
) -> Outcome:
    """Fine-tune ``model`` on ``task`` as ``protocol`` says; what is finished already is read.

    The grid is searched on the development set alone; every other labelled split is scored once, at the chosen point.
    ``adjust`` changes the recipe last (fields the user sets). ``after`` names the intermediate tasks that the model has
    behind it.

    Raises:
        Diverged: every seed at the chosen point failed.
    """
    start = time.perf_counter()
    base = protocol.recipe_for(task, model)
    base = adjust(base) if adjust is not None else base
    about = {"protocol": protocol.name, "model": model_hash(model), "after": list(after)}
    points = [dict(zip(protocol.grid, values, strict=True)) for values in itertools.product(*protocol.grid.values())]

    def attempt(point: Mapping[str, Any], seed: int) -> Result | str:
        recipe = replace(override(base, dict(point)) if point else base, seed=seed)
        say(f"{task.name}: {describe(point)} seed {seed}".replace("  ", " "))
        try:
            folder = out / folder_name(point) / f"seed-{seed}"
            return finetune(model, task, splits, recipe, folder, about=about, encodings=encodings)
        except Diverged as error:
            return str(error)

    encodings = Encodings()
    search: list[dict[str, Any]] = []
    chosen: Mapping[str, Any] = {}
    if len(points) > 1:
        for point in points:
            found = [attempt(point, base.seed + i) for i in range(protocol.search_seeds)]
            scores = [result.scores["dev"][task.metric] for result in found if isinstance(result, Result)]
            search.append({"point": point, "dev": scores, "failed": len(found) - len(scores)})
        usable = [entry for entry in search if entry["dev"]]
        if not usable:
            raise Diverged(f"{task.name}: every point of the grid failed; lower the rates")
        chosen = max(usable, key=lambda entry: statistics.median(entry["dev"]))["point"]
    elif points:
        chosen = points[0]
    attempts = {base.seed + i: attempt(chosen, base.seed + i) for i in range(protocol.seeds)}
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
        "chosen": dict(chosen),
        "selection": f"{base.select} by {task.metric} of dev",
        "seeds": {str(seed): _entry(found, task, splits) for seed, found in attempts.items()},
        "scores": _summaries(runs, splits),
        "data": {name: split.sha256 for name, split in splits.items()},
        "examples": {name: len(split) for name, split in splits.items()},
        "recipe": to_dict(runs[0].record["recipe"]),
        "hardware": hardware(),
        "seconds": sum(float(found.record["seconds"]) for found in runs),
        "elapsed": time.perf_counter() - start,
    }
    write_text(out / SCORE_FILE, json.dumps(written, indent=1, ensure_ascii=False) + "\n")
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
    say(f"seed {best} of {len(found['seeds'])}, the best on the development set")
    return folder / folder_name(found["chosen"]) / f"seed-{best}"


def describe(point: Mapping[str, Any]) -> str:
    """``lr=0.0001 epochs=3``; nothing for no grid."""
    parts = (f"{value:g}" if isinstance(value, (int, float)) else f"{value}" for value in point.values())
    return " ".join(f"{name.rpartition('.')[2]}={part}" for name, part in zip(point, parts, strict=True))


def folder_name(point: Mapping[str, Any]) -> str:
    return describe(point).replace(" ", ",") or "runs"


def _entry(found: Result | str, task: Task, splits: Mapping[str, Split]) -> dict[str, Any]:
    """One seed of the record: its scores, or why it failed. A run that predicts one label alone counts as failed,
    and stays.
    """
    if isinstance(found, str):
        return {"failed": found}
    entry: dict[str, Any] = {"scores": found.record["scores"], "best_step": found.record["best_step"]}
    if task.form == "classification" and _constant(found):
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

    A training file without a validation file gives up a tenth of it.
    """
    from encoderlab.errors import DataError
    from encoderlab.tasks.infer import hold_out

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
        splits["train"], splits["dev"] = hold_out(splits["train"])
    return splits
