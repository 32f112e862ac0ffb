"""The stages of ``encoderlab finetune``: the plan that its options make, the tasks, what precedes them, the runs."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from encoderlab.commands import settings
from encoderlab.commands.finetune_page import Finished
from encoderlab.commands.terminal import note
from encoderlab.errors import ConfigError, DataError
from encoderlab.files import held_folder
from encoderlab.interchange.load import load
from encoderlab.model import Model
from encoderlab.tasks.data import suites
from encoderlab.tasks.data.infer import Given, task_of
from encoderlab.tasks.data.records import is_file_name
from encoderlab.tasks.data.splits import completed, hold_out, remarks_of, usable_splits, without_fillers
from encoderlab.tasks.data.task import Split, Task
from encoderlab.tasks.forms.objective import form_of
from encoderlab.tasks.forms.table import FORMS
from encoderlab.tasks.runs import trials
from encoderlab.tasks.runs.distill import Teaching, check_teacher
from encoderlab.tasks.runs.finetune import Recipe
from encoderlab.tasks.runs.folder import read_task
from encoderlab.tasks.runs.protocol import Protocol, at_point, others_with, parse_grid
from encoderlab.tasks.runs.published import protocol
from encoderlab.tasks.runs.trials import FRESH, Adjust, Origin, Outcome, best_seed
from encoderlab.tasks.runs.tune import Search, parse_space, tune
from encoderlab.tasks.scoring.scores import baselines

Fields = Sequence[tuple[str, Mapping[str, Any]]]


def fields_of(epochs: float | None, files: Sequence[Path], assignments: Sequence[str]) -> Fields:
    """The fields of the recipe that the user sets, and where; what comes later wins."""
    given = list(settings.sources(files, assignments))
    return given if epochs is None else [*given, ("--epochs", {"epochs": epochs})]


def _adjustment(given: Fields, *, suite: bool = False) -> Adjust:
    """A function that sets the user's fields in the recipe of a protocol; given epochs replace its steps. In a
    ``suite``, options of a form are set for tasks of that form alone.
    """

    def adjust(recipe: Recipe) -> Recipe:
        for where, fields in given:
            ours = {path: value for path, value in fields.items() if not (suite and others_with(path, recipe))}
            recipe = at_point(recipe, ours, where=where) if ours else recipe
        return recipe

    return adjust


def _unset(protocol: Protocol, given: Fields) -> dict[str, tuple[Any, ...]]:
    """The protocol's grid without the fields that the user sets; a note names these."""
    left = {name: values for name, values in protocol.grid.items() if not _setter(name, given)}
    if taken := [name for name in protocol.grid if name not in left]:
        note(f"protocol {protocol.name}: {', '.join(taken)} is set, so it is not searched")
    return left


def _check_searched(space: Mapping[str, Any], given: Fields) -> None:
    """Refuse a field that the command line searches and sets; files and environment give way to it."""
    line = [(where, fields) for where, fields in given if where.startswith("--")]
    for name in space:
        if where := _setter(name, line):
            raise ConfigError(f"{name} is searched, and {where} sets it; leave one of them out")


def _setter(name: str, given: Fields) -> str:
    """Where the user sets the field ``name``, a part of it, or all that it is a part of; ``""`` if nowhere. Steps and
    epochs are one field: the length of training.
    """
    length = {"steps": "epochs"}
    wanted = f"{length.get(name, name)}."
    for where, fields in given:
        for path in (f"{length.get(one, one)}." for one in fields):
            if path.startswith(wanted) or wanted.startswith(path):
                return where
    return ""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A protocol with the user's own fields, and the search by Optuna that precedes it, if there is one."""

    protocol: Protocol
    adjust: Adjust
    search: Search | None = None

    def once(self) -> Plan:
        """The same with one seed and no search by Optuna: what an intermediate task gets."""
        return replace(self, protocol=replace(self.protocol, seeds=1), search=None)

    def check(self, start: Start, job: Job) -> None:
        """Refuse a recipe that cannot be used for a task.

        Raises:
            ConfigError: a field that it does not have, or two that exclude each other.
        """
        recipe = self.adjust(self.protocol.recipe_for(job.task, start.model, len(job.splits["train"])))
        recipe.suited(job.task, job.splits["train"])

    def taught(self, teaching: Teaching | None) -> Plan:
        """The plan with a teacher; fields that the user sets are applied after it."""
        if teaching is None:
            return self
        return replace(self, adjust=lambda recipe: self.adjust(replace(recipe, distill=teaching)))

    def run(self, start: Start, job: Job, out: Path) -> Outcome:
        """What the protocol finds, at the point that Optuna chose where it searched. Of several processes the first one
        holds the folder.
        """
        with held_folder(out) if os.environ.get("RANK", "0") == "0" else nullcontext():
            return self._run(start, job, out)

    def _run(self, start: Start, job: Job, out: Path) -> Outcome:
        chosen = self.protocol
        more: dict[str, Any] = {"origin": start.origin, "adjust": self.adjust, "say": note}
        if self.search is not None:
            point = tune(chosen, start.model, job.task, job.splits, out / "tune", self.search, **more)
            chosen = replace(chosen, grid={name: (value,) for name, value in point.items()})
        return trials.run(chosen, start.model, job.task, job.splits, out, **more)


def plan_of(
    name: str,
    seeds: int | None,
    grid: list[str] | None,
    space: list[str] | None,
    num_trials: int,
    fields: Fields,
    *,
    suite: bool = False,
) -> Plan:
    """The protocol ``name`` with what the user wants instead: seeds, a grid, or a search of ``space``; and fields, also
    for a ``suite`` of tasks.

    Raises:
        ConfigError: an impossible option, or a field that is both searched and set.
    """
    chosen = protocol(name)
    if seeds is not None:
        if seeds < 1:
            raise ConfigError(f"--seeds {seeds} is not positive; give at least 1")
        chosen = replace(chosen, seeds=seeds)
    if grid is not None and space is not None:
        raise ConfigError("--grid and --tune both search; give one of them")
    search = None
    if grid is not None:
        chosen = replace(chosen, grid=parse_grid(grid))
        _check_searched(chosen.grid, fields)
    elif space:
        search = Search(space=parse_space(space), trials=num_trials)
        _check_searched(search.space, fields)
    else:
        chosen = replace(chosen, grid=_unset(chosen, fields))
    return Plan(protocol=chosen, adjust=_adjustment(fields, suite=suite), search=search)


def check_folder(out: Path) -> None:
    """Refuse a folder of something else, such as the data or the pretraining run, among whose files the run would lie.

    Raises:
        ConfigError: it holds a pretraining run, or files and no fine-tuning run.
    """
    if not out.is_dir():
        return
    if (out / "recipe.json").exists():
        raise ConfigError(f"{out}: holds another run; give a folder of its own with --out")
    strangers = sorted(entry.name for entry in out.iterdir() if not entry.name.startswith("."))
    ours = [f"{'*/' * depth}{name}" for name in ("tune", "seed-*", "features") for depth in range(4)]
    if strangers and not any(any(out.glob(pattern)) for pattern in ("score.json", *ours)):
        raise ConfigError(
            f"{out}: is not empty and holds no fine-tuning (found {strangers[0]!r}); choose another --out"
        )


@dataclass(frozen=True, kw_only=True)
class Job:
    """A task to train on, with its splits."""

    task: Task
    splits: dict[str, Split]


def jobs_of(name: str, data: Path | None, dev: Path | None, test: Path | None, given: Given) -> list[Job]:
    """The task of a file, the benchmark ``name``, or the tasks of a suite. Remarks about their files are printed.

    Raises:
        ConfigError: options that do not belong to what ``name`` is, or no such file.
        DataError: a file that cannot be used, or a folder without any.
    """
    path = Path(name)
    if path.is_file():
        if data is not None:
            raise ConfigError(f"{name} is a file and --data {data} the folder of a benchmark; leave one of them out")
        jobs = [_file_job(path, dev, test, given)]
    elif is_file_name(name) or "/" in name:
        if path.is_dir():
            raise ConfigError(f"{name}: is a folder; give a file in it, or the name of a benchmark with --data {name}")
        raise ConfigError(f"{name}: no such file; give labelled texts, or the name of a benchmark")
    else:
        if dev is not None or test is not None or given != Given():
            raise ConfigError(f"{name} is a benchmark with files and columns of its own; leave out those of a file")
        jobs = _benchmark_jobs(name, data)
    for job in jobs:
        for remark in remarks_of(job.splits):
            note(remark)
    return jobs


def _file_job(train: Path, dev: Path | None, test: Path | None, given: Given) -> Job:
    """The task that a file of the user's own holds. Without ``dev``, a part of it is held out."""
    task, said = task_of(train, given)
    note(said)
    skip = given.skip_unlabelled
    splits = {"train": task.read([train], "train", skip_unlabelled=skip)}
    task = completed(task, splits["train"])  # other files have the labels of this one, or none
    if dev is None:
        splits["train"], splits["dev"] = hold_out(splits["train"])
    else:
        splits["dev"] = task.read([dev], "dev", skip_unlabelled=skip)
    if test is not None:
        splits["test"] = without_fillers(task.read([test], "test"), splits["train"])
    return Job(task=task, splits=splits)


def _benchmark_jobs(name: str, data: Path | None) -> list[Job]:
    """A benchmark, or the tasks of a suite whose training files are in ``data``."""
    names = suites.SUITES.get(name.lower(), (name,))
    tasks = [suites.task(one) for one in names]
    if data is None:
        raise ConfigError(f"{name} is a benchmark; give the folder of its files with --data")
    if name.lower() in suites.SUITES:
        tasks = [one for one in tasks if _lies_in(one, data)]
        if not tasks:
            raise DataError(f"{data}: holds no training file of {name} ({', '.join(names)})")
    return [Job(task=one, splits=usable_splits(one, data)) for one in tasks]


def _lies_in(task: Task, data: Path) -> bool:
    """Whether a task of a suite has its training file in ``data``; says so if not."""
    try:
        task.find(data, "train")
    except DataError:
        note(f"{task.name}: no training file in {data}; left out")
        return False
    return True


@dataclass(frozen=True, kw_only=True)
class Start:
    """The model that training starts from, and what it was trained for before."""

    model: Model
    origin: Origin

    @classmethod
    def read(cls, folder: Path, after: tuple[str, ...] = ()) -> Start:
        """The model in ``folder``; ``after`` names the intermediate tasks that it was trained on."""
        return cls(model=load(folder), origin=Origin(after=after, trained=read_task(folder)))


def after_tasks(names: Sequence[str], data: Path | None, start: Start, plan: Plan, out: Path) -> Start:
    """The model after it was trained on intermediate tasks, one after the other."""
    places = [(name, None if Path(name).is_file() else data) for name in names]
    for job in [job for name, place in places for job in jobs_of(name, place, None, None, Given())]:
        found = plan.once().run(start, job, out / f"after-{job.task.name}")
        start = Start.read(found.best.model, (*start.origin.after, job.task.name))
    return start


def teaching_of(teacher: Path | None, temperature: float | None, weight: float | None) -> Teaching | None:
    """What the user says about a teacher; None without one.

    Raises:
        ConfigError: its temperature or weight is given, but no teacher.
    """
    given = {"temperature": temperature, "weight": weight}
    fields = {name: value for name, value in given.items() if value is not None}
    if teacher is None and fields:
        raise ConfigError("--temperature and --teacher-weight belong to a teacher; give --teacher FOLDER too")
    return None if teacher is None else Teaching(teacher=str(teacher), **fields)


def lesson_of(teaching: Teaching, student: Model, job: Job, is_suite: bool) -> Teaching:
    """``teaching`` with the folder of the teacher for one task, which is checked before any training.

    Raises:
        ConfigError: the teacher cannot teach ``student`` this task.
    """
    folder = Path(teaching.teacher)
    folder = best_seed(folder / job.task.name if is_suite else folder, note)
    check_teacher(load(folder), student, completed(job.task, job.splits["train"]), str(folder))
    return replace(teaching, teacher=str(folder))


def compare(plan: Plan, start: Start, job: Job, out: Path, *, scratch: bool) -> Finished:
    """One task: simple baselines, the same architecture from fresh weights if asked for, and the model."""
    train, dev = job.splits["train"], job.splits["dev"]
    job = replace(job, task=completed(job.task, train))
    simple = baselines(job.task, train, dev)
    systems = {}
    if scratch:
        fresh = Model(start.model.config, start.model.tokenizer).initialize(1)
        systems["without pretraining"] = plan.run(Start(model=fresh, origin=FRESH), job, out / "scratch")
    systems["pretrained"] = plan.run(start, job, out)
    recipe = systems["pretrained"].runs[0].record["recipe"]
    about = (
        f"{len(train):,} training and {len(dev):,} development examples; {recipe['budget']['amount']:,.0f} updates in "
        f"batches of {recipe['batch']} at rate {recipe['optim']['lr']:g}."
    )
    return Finished(task=job.task, about=about, baselines=simple, systems=systems)


def statistics(plan: Plan, start: Start, job: Job) -> dict[str, Any]:
    """What a task's splits hold, as training would read them: examples, how often each label occurs, tokens of all
    texts of an example without special ones (median, 95th percentile, longest), and how many examples are too long for
    a sequence of ``max_length`` tokens. Nothing is trained.
    """
    train = job.splits["train"]
    job = replace(job, task=completed(job.task, train))
    recipe = plan.adjust(plan.protocol.recipe_for(job.task, start.model, len(train))).suited(job.task, train)
    found: dict[str, Any] = {}
    for name, split in job.splits.items():
        form = form_of(job.task, start.model, recipe.form)
        form.items(split.examples)
        lengths = [
            sum(map(len, form.tokenizer.encode_batch([str(text) for text in example.texts or (example.source,)])))
            for example in split.examples
        ]
        labels = Counter(label for example in split.examples for label in example.labels)
        median, most = np.percentile(lengths, (50, 95), method="higher")
        found[name] = {
            "examples": len(split),
            "labels": dict(labels.most_common()) if FORMS[job.task.form].labelled else {},
            "tokens": {"median": int(median), "95%": int(most), "longest": max(lengths)},
            "max_length": form.settings.max_length,
            "cut": form.cut,
        }
    return found
