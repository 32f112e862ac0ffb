"""The stages of ``encoderlab finetune``: the plan from its options, the tasks, intermediate tasks, the runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from encoderlab.commands import settings
from encoderlab.commands.terminal import note
from encoderlab.errors import ConfigError, DataError, Diverged
from encoderlab.execution.workers import Tasks, rank_and_size
from encoderlab.files import held_folder, read_json
from encoderlab.interchange.finetuned import best_seed
from encoderlab.interchange.load import load
from encoderlab.measure.finetuning import PRETRAINED, SCRATCH, WITHOUT
from encoderlab.model import Model
from encoderlab.tasks.data.infer import Given
from encoderlab.tasks.data.sources import Benchmark, Files, described_source, folder_of
from encoderlab.tasks.data.splits import completed, remarks_of, usable_splits
from encoderlab.tasks.data.task import Split, Task
from encoderlab.tasks.forms.objective import form_of
from encoderlab.tasks.forms.scores import baselines_by_split
from encoderlab.tasks.forms.table import FORMS
from encoderlab.tasks.runs import trials
from encoderlab.tasks.runs.distill import Teaching, check_teacher
from encoderlab.tasks.runs.elsewhere import perform_all
from encoderlab.tasks.runs.finetune import FinetuneRecipe
from encoderlab.tasks.runs.folder import read_task
from encoderlab.tasks.runs.protocol import Protocol, at_point, is_computed, others_with, parse_grid
from encoderlab.tasks.runs.published import protocol
from encoderlab.tasks.runs.trials import FRESH, Origin, Program, ProtocolResult
from encoderlab.tasks.runs.tune import Search, parse_space, tune

Fields = Sequence[tuple[str, Mapping[str, Any]]]
Baselines = Mapping[str, Mapping[str, Mapping[str, float]]]  # scores by split and predictor


def fields_of(epochs: float | None, files: Sequence[Path], assignments: Sequence[str]) -> Fields:
    """The fields of the recipe that the user sets, and their sources; later ones take precedence.

    Environment variables are for every verb, so those of pretraining are ignored.
    """
    changes = [
        (where, {path: value for path, value in fields.items() if where != "environment" or not is_computed(path)})
        for where, fields in settings.sources(files, assignments)
    ]
    return changes if epochs is None else [*changes, ("--epochs", {"epochs": epochs})]


def _unset(protocol: Protocol, changes: Fields) -> dict[str, tuple[Any, ...]]:
    """The protocol's grid without the fields that the user sets; a note lists these."""
    left = {name: values for name, values in protocol.grid.items() if not _setter(name, changes)}
    if taken := [name for name in protocol.grid if name not in left]:
        note(f"protocol {protocol.name}: {', '.join(taken)} is set, so it is not searched")
    return left


def _check_searched(space: Mapping[str, Any], changes: Fields) -> None:
    """Refuse a field that the command line both searches and sets; a search overrides files and environment."""
    line = [(where, fields) for where, fields in changes if where.startswith("--")]
    for name in space:
        if where := _setter(name, line):
            raise ConfigError(f"{name} is both searched and set ({where}); leave one of them out")


def _setter(name: str, changes: Fields) -> str:
    """Where the user sets the field ``name``, a part of it, or a field that contains it; ``""`` if nowhere.

    Steps and epochs count as one field: the length of training.
    """
    length = {"steps": "epochs"}
    searched = f"{length.get(name, name)}."
    for where, fields in changes:
        for path in (f"{length.get(field, field)}." for field in fields):
            if path.startswith(searched) or searched.startswith(path):
                return where
    return ""


@dataclass(frozen=True, kw_only=True)
class FinetunePlan:
    """A protocol with the user's fields, and the search by Optuna before it, if there is one.

    With ``several`` tasks, options of a form are set only for tasks of that form.
    """

    protocol: Protocol
    fields: Fields = ()
    several: bool = False
    teaching: Teaching | None = None
    search: Search | None = None

    def adjust(self, recipe: FinetuneRecipe) -> FinetuneRecipe:
        """The protocol's recipe with the teacher, then the user's fields; epochs of the user replace its steps."""
        if self.teaching is not None:
            recipe = replace(recipe, distill=self.teaching)
        for where, fields in self.fields:
            ours = {path: value for path, value in fields.items() if not (self.several and others_with(path, recipe))}
            recipe = at_point(recipe, ours, where=where) if ours else recipe
        return recipe

    def recipe(self, start: Start, job: TaskWithSplits) -> FinetuneRecipe:
        """The recipe of a task before any search."""
        return self.adjust(self.protocol.recipe_for(job.task, start.model, len(job.splits["train"])))

    def check(self, start: Start, job: TaskWithSplits) -> None:
        """Refuse a recipe that cannot be used for a task, also at a single point of the grid or the search.

        Raises:
            ConfigError: a field that it does not have, two that exclude each other, or a value that does not fit.
        """
        base, where = self.recipe(start, job), "--grid" if self.search is None else "--tune"
        for point in trials.points_of(self.protocol) if self.search is None else self.search.points():
            at_point(base, point, where=where).check(job.task, start.model, job.splits["train"])

    def of_one_seed(self) -> FinetunePlan:
        """The plan of intermediate tasks: one seed, and no search by Optuna."""
        return replace(self, protocol=replace(self.protocol, seeds=1), search=None, several=True)

    def program(
        self, start: Start, job: TaskWithSplits, out: Path, baselines: Baselines | None = None
    ) -> Program[ProtocolResult]:
        """The protocol as a program, at the point that Optuna chose if it searched.

        The first of several processes locks the folder, and writes. ``baselines`` are kept in the record.
        """
        first = rank_and_size()[0] == 0
        with held_folder(out) if first else nullcontext():
            chosen, searched = self.protocol, []
            more: dict[str, Any] = {"origin": start.origin, "adjust": self.adjust, "say": note}
            if self.search is not None:
                point = yield from tune(chosen, start.model, job.task, job.splits, out / "tune", self.search, **more)
                chosen = replace(chosen, grid={name: (value,) for name, value in point.items()})
                searched = [
                    {"point": one["point"], "dev": [one["dev"]] if "dev" in one else [], "failed": int("failed" in one)}
                    for one in (read_json(out / "tune" / "tune.json")["trials"] if first else ())
                ]
            more |= {"searched": searched, "baselines": baselines}
            return (yield from trials.program(chosen, start.model, job.task, job.splits, out, **more))


def plan_of(
    name: str,
    seeds: int | None,
    grid: list[str] | None,
    space: list[str] | None,
    num_trials: int | None,
    fields: Fields,
    *,
    several: bool = False,
) -> FinetunePlan:
    """The protocol ``name`` with the user's seeds, grid or search ``space``, and fields, for one task or ``several``.

    Raises:
        ConfigError: an impossible option, or a field that is both searched and set.
    """
    chosen = protocol(name)
    if seeds is not None:
        chosen = replace(chosen, seeds=seeds)
    if grid is not None and space is not None:
        raise ConfigError("--grid and --tune both search; give one of them")
    if num_trials is not None and not space:
        raise ConfigError("--trials is the number of runs of --tune; give --tune too")
    search = None
    if grid is not None:
        chosen = replace(chosen, grid=parse_grid(grid))
        _check_searched(chosen.grid, fields)
    elif space:
        search = Search(space=parse_space(space), trials=20 if num_trials is None else num_trials)
        _check_searched(search.space, fields)
    else:
        chosen = replace(chosen, grid=_unset(chosen, fields))
    return FinetunePlan(protocol=chosen, fields=fields, several=several, search=search)


def check_folder(out: Path) -> None:
    """Refuse a folder with other content, such as the data or the pretraining run.

    Raises:
        ConfigError: it has a pretraining run, or files but no fine-tuning run.
    """
    if not out.is_dir():
        return
    if (out / "recipe.json").exists():
        raise ConfigError(f"{out}: has another run; give a new folder with --out")
    shown = (entry for entry in out.iterdir() if not entry.name.startswith("."))
    # Folders without files are what a run leaves that was killed while it made its own.
    strangers = sorted(entry.name for entry in shown if not entry.is_dir() or any(map(Path.is_file, entry.rglob("*"))))
    ours = [f"{'*/' * depth}{name}" for name in ("tune", "seed-*", "features") for depth in range(4)]
    if strangers and not any(any(out.glob(pattern)) for pattern in ("score.json", *ours)):
        raise ConfigError(
            f"{out}: is not empty and not a fine-tuning run (found {strangers[0]!r}); choose another --out"
        )


@dataclass(frozen=True, kw_only=True)
class TaskWithSplits:
    """A task to train on, with its splits."""

    task: Task
    splits: dict[str, Split]


def jobs_of(name: str, data: Path | None, dev: Path | None, test: Path | None, given: Given) -> list[TaskWithSplits]:
    """The task of a file, the benchmark ``name``, or the tasks of a suite. Prints remarks about their files.

    Raises:
        ConfigError: options that do not fit ``name``, or no such file.
        DataError: a file that cannot be used, or a folder without data.
    """
    source = described_source(name, data, given)
    if isinstance(source, Files):
        jobs = [files_job(source, dev, test, given)]
    elif dev is not None or test is not None:
        raise ConfigError(f"{name} is a benchmark with known files; leave out --dev and --test")
    else:
        jobs = _benchmark_jobs(source)
    for job in jobs:
        for remark in remarks_of(job.splits):
            note(remark)
    return jobs


def files_job(source: Files, dev: Path | None, test: Path | None, given: Given) -> TaskWithSplits:
    """The task in the user's own files. ``dev`` and ``test`` replace its splits. Prints what was inferred."""
    task, splits = source.training(given, note, dev=dev, test=test)
    return TaskWithSplits(task=task, splits=splits)


def _benchmark_jobs(source: Benchmark) -> list[TaskWithSplits]:
    """A benchmark, or the tasks of a suite whose training files are there."""
    tasks, data = source.tasks, source.folder
    if len(tasks) > 1:
        tasks = tuple(task for task in tasks if _lies_in(task, data))
        if not tasks:
            names = ", ".join(task.name for task in source.tasks)
            raise DataError(f"{data}: has no training file of {source.name} ({names}); give the folder that has them")
    return [TaskWithSplits(task=task, splits=usable_splits(task, data)) for task in tasks]


def _lies_in(task: Task, data: Path) -> bool:
    """Whether ``data`` has the training file of a suite's task; prints a note if not."""
    try:
        task.find(data, "train")
    except DataError:
        note(f"{task.name}: no training file in {data}; left out")
        return False
    return True


@dataclass(frozen=True, kw_only=True)
class Start:
    """The model to start from, and the tasks it was trained on before."""

    model: Model
    origin: Origin

    @classmethod
    def read(cls, folder: Path, after: tuple[str, ...] = ()) -> Start:
        """The model in ``folder``; ``after`` names the intermediate tasks that it was trained on."""
        return cls(model=load(folder), origin=Origin(after=after, trained=read_task(folder), folder=str(folder)))

    def named(self, system: str) -> Start:
        """The same start with another name, as it is shown next to others."""
        return replace(self, origin=replace(self.origin, system=system))


def intermediate(names: Sequence[str], data: Path | None) -> list[TaskWithSplits]:
    """The intermediate tasks of these names: files, or benchmarks whose files are in ``data``."""
    return [job for name in names for job in jobs_of(name, folder_of(name, data), None, None, Given())]


def after_tasks(
    jobs: Sequence[TaskWithSplits], start: Start, plan: FinetunePlan, out: Path, tasks: Tasks | None
) -> Start:
    """The model after training on intermediate tasks, one after the other, with one seed each.

    The grid is searched for each; Optuna searches for the last task only.
    """
    plan = plan.of_one_seed()
    for job in jobs:
        program = plan.program(start, job, out / f"after-{job.task.name}")
        result = perform_all({"": program}, tasks, note)[""]
        if isinstance(result, Diverged):
            raise result
        start = Start.read(result.best.model, (*start.origin.after, job.task.name))
    return start


def teaching_of(teacher: Path | None, temperature: float | None, weight: float | None) -> Teaching | None:
    """The user's settings of a teacher; None without a teacher.

    Raises:
        ConfigError: temperature or weight without a teacher.
    """
    options = {"temperature": temperature, "weight": weight}
    fields = {name: value for name, value in options.items() if value is not None}
    if teacher is None and fields:
        raise ConfigError("--temperature and --teacher-weight belong to a teacher; give --teacher FOLDER too")
    return None if teacher is None else Teaching(teacher=str(teacher), **fields)


def lesson_of(teaching: Teaching, student: Model, job: TaskWithSplits, is_suite: bool) -> Teaching:
    """``teaching`` with the teacher's folder for one task; the teacher is checked before any training.

    Raises:
        ConfigError: the teacher cannot teach ``student`` this task.
    """
    folder = Path(teaching.teacher)
    folder = best_seed(folder / job.task.name if is_suite else folder, note)
    check_teacher(load(folder), student, completed(job.task, job.splits["train"]), str(folder))
    return replace(teaching, teacher=str(folder))


def programs_of(
    plan: FinetunePlan, start: Start, job: TaskWithSplits, out: Path, *, scratch: bool
) -> dict[str, Program[ProtocolResult]]:
    """The programs of one task by system: the model and, with --scratch, the same architecture from fresh weights."""
    job = replace(job, task=completed(job.task, job.splits["train"]))
    simple = baselines_by_split(job.task, job.splits)
    programs = {}
    if scratch:
        fresh = Start(model=Model(start.model.config, start.model.tokenizer).initialize(1), origin=FRESH)
        programs[WITHOUT] = plan.program(fresh.named(WITHOUT), job, out / SCRATCH, simple)
        start = start.named(PRETRAINED)
    programs[PRETRAINED] = plan.program(start, job, out, simple)
    return programs


def statistics(plan: FinetunePlan, start: Start, job: TaskWithSplits) -> dict[str, Any]:
    """Statistics of a task's splits, as training would read them. Nothing is trained.

    Number of examples, how often each label occurs, tokens of all texts of an example without special tokens (median,
    95th percentile, longest), and the number of examples that are too long for ``max_length`` tokens.
    """
    train = job.splits["train"]
    job = replace(job, task=completed(job.task, train))
    recipe = plan.recipe(start, job)
    note(f"{job.task.name}: {plan.protocol.says(recipe, start.model, len(train))}")
    recipe = recipe.suited(job.task, train)
    by_split: dict[str, Any] = {}
    for name, split in job.splits.items():
        form = form_of(job.task, start.model, recipe.form)
        form.items(split.examples)
        lengths = [
            sum(map(len, form.tokenizer.encode_batch([str(text) for text in example.texts or (example.source,)])))
            for example in split.examples
        ]
        labels = Counter(label for example in split.examples for label in example.labels)
        median, most = np.percentile(lengths, (50, 95), method="higher")
        by_split[name] = {
            "examples": len(split),
            "labels": dict(labels.most_common()) if FORMS[job.task.form].labelled else {},
            "tokens": {"median": int(median), "95%": int(most), "longest": max(lengths)},
            "max_length": form.settings.max_length,
            "cut": form.cut,
        }
    return by_split
