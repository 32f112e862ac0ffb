"""``encoderlab finetune``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from encoderlab.commands import settings
from encoderlab.commands.terminal import note, say, table
from encoderlab.errors import ConfigError, DataError, Diverged

if TYPE_CHECKING:
    from encoderlab.measure.report import Report, TaskScores
    from encoderlab.model import Model
    from encoderlab.tasks.base import Split, Task
    from encoderlab.tasks.distill import Teaching
    from encoderlab.tasks.finetune import Recipe
    from encoderlab.tasks.infer import Given
    from encoderlab.tasks.protocol import Protocol
    from encoderlab.tasks.trials import Adjust, Origin, Outcome, Row
    from encoderlab.tasks.tune import Search


def finetune(
    task: str,
    /,
    *,
    model: Path,
    out: Path,
    data: Path | None = None,
    dev: Path | None = None,
    test: Path | None = None,
    seeds: int | None = None,
    grid: Annotated[list[str] | None, Parameter(consume_multiple=True)] = None,
    tune: Annotated[list[str] | None, Parameter(consume_multiple=True)] = None,
    trials: int = 20,
    protocol: str = "plain",
    after: list[str] | None = None,
    epochs: float | None = None,
    scratch: bool = False,
    teacher: Path | None = None,
    temperature: float | None = None,
    teacher_weight: float | None = None,
    form: str | None = None,
    text: str | None = None,
    pair: str | None = None,
    label: str | None = None,
    set_: settings.Set = None,
    config: settings.Config = None,
) -> dict[str, Any]:
    """Fine-tune a model on a task, over seeds and grids.

    The weights of each seed are chosen on the development set; every score is stored
    with how it came about. Simple baselines stand beside it. Run the same command
    again to resume.

    Example:
        encoderlab finetune mrpc --data data/glue --model runs/wiki \\
            --out runs/mrpc --seeds 5 --grid lr=1e-4,3e-4 epochs=3,10

    Parameters
    ----------
    task
        A file of your own (CSV, TSV, JSON lines, Parquet, CoNLL columns), a benchmark (sst2, squad2,
        conll2003, cmrc2018, ...), or a suite of them (glue, superglue, clue, fewclue).
    model
        Model folder, or run folder.
    out
        Folder to make, or to resume.
    data
        Folder with the benchmark's files.
    dev
        Development file beside a training file of your own; else a tenth of that is held out.
    test
        File to predict, and to score if it has labels.
    seeds
        Runs that differ in nothing but chance; by default as the protocol says (plain: 5).
    grid
        Values to search on the development set: field=value,value ... (lr, weight_decay, epochs, any field).
    tune
        Search by Optuna instead: field=low:high or field=value,value ..., such as lr=1e-5:1e-3 batch=16,32.
    trials
        Runs of that search.
    protocol
        Of a paper: bert, roberta, albert, electra, convbert, distilbert, xlnet, deberta, clue, ...; docs/tasks.md
        lists them.
    after
        Intermediate tasks to train on first (repeatable).
    epochs
        Passes over the training data.
    scratch
        Also train the same architecture from fresh weights, to see what pretraining gave.
    teacher
        Also learn from this model, fine-tuned on the same task: its folder or run folder; of a suite, the
        folder with a run per task. It needs the student's tokenizer and the task's labels.
    temperature
        Of both distributions where teacher and student are compared; by default 2.
    teacher_weight
        The teacher's share of the loss, from 0 to 1; the labels have the rest. By default 0.5.
    form
        Of a file of your own: classification, regression, tagging, span or choice, where it cannot tell.
    text
        Its column of the text, passage or context.
    pair
        Its column of the second text, or of the question.
    label
        Its column of the label, tags or answer.
    """
    from encoderlab.measure.html_page import write
    from encoderlab.tasks.infer import Given
    from encoderlab.tasks.protocol import spelled_out
    from encoderlab.tasks.suites import SUITES
    from encoderlab.tasks.trials import best_seed

    fields = _fields(epochs, config or (), [spelled_out(word) for word in set_ or ()])
    plan = _plan(protocol, seeds, grid, tune, trials, fields)
    _check_folder(out)
    given = Given(form=form, text=text, pair=pair, label=label)  # type: ignore[arg-type]
    jobs = _jobs(task, data, dev, test, given)
    start = _Start.read(best_seed(model, note))
    teaching = _teaching(teacher, temperature, teacher_weight)
    is_suite = task.lower() in SUITES
    lessons = {job.task.name: _lesson(teaching, start.model, job, is_suite) for job in jobs if teaching}
    start = _after(after or (), data, start, plan, out)
    finished, failed = [], []
    for job in jobs:
        taught = plan.taught(lessons.get(job.task.name))
        try:
            finished.append(_compare(taught, start, job, out / job.task.name if is_suite else out, scratch=scratch))
        except Diverged as error:  # the other tasks of a suite still count
            failed.append(str(error))
    if not finished:
        raise Diverged("; ".join(failed))
    _show(finished, plan.protocol)
    averages = _averages([found.pretrained for found in finished])
    for name, value in averages.items():
        say(f"average as {name} has it: {100 * value:.2f}")
    write(_page(f"{model} fine-tuned on {task}", finished, plan.protocol), out / "report.html")
    say(f"models, predictions and score.json in {out}, report in {out / 'report.html'}")
    if failed:
        raise Diverged("; ".join(failed))
    return {
        "out": out,
        "protocol": plan.protocol.name,
        "tasks": {found.task.name: found.pretrained.record for found in finished},
        "baselines": {found.task.name: found.baselines for found in finished},
        "averages": averages,
    }


# What is run


Fields = Sequence[tuple[str, Mapping[str, Any]]]


def _fields(epochs: float | None, files: Sequence[Path], assignments: Sequence[str]) -> Fields:
    """The fields of the recipe that the user sets, and where; what comes later wins."""
    given = list(settings.sources(files, assignments))
    return given if epochs is None else [*given, ("--epochs", {"epochs": epochs})]


def _adjustment(given: Fields) -> Adjust:
    """What sets the user's fields in a protocol's recipe, where epochs count instead of steps."""
    from encoderlab.tasks.protocol import at_point

    def adjust(recipe: Recipe) -> Recipe:
        for where, fields in given:
            recipe = at_point(recipe, fields, where=where)
        return recipe

    return adjust


def _unset(protocol: Protocol, given: Fields) -> dict[str, tuple[Any, ...]]:
    """The protocol's grid without what the user sets, which is said."""
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
    """What sets the field ``name``, or a part or the whole of what it belongs to; steps and epochs are one length."""
    length = {"steps": "epochs"}
    wanted = f"{length.get(name, name)}."
    for where, fields in given:
        for path in (f"{length.get(one, one)}." for one in fields):
            if path.startswith(wanted) or wanted.startswith(path):
                return where
    return ""


@dataclass(frozen=True, kw_only=True)
class _Plan:
    """A protocol with the user's own fields, and the search by Optuna that precedes it, if there is one."""

    protocol: Protocol
    adjust: Adjust
    search: Search | None = None

    def once(self) -> _Plan:
        """The same with one seed and no search by Optuna: what an intermediate task gets."""
        return replace(self, protocol=replace(self.protocol, seeds=1), search=None)

    def taught(self, teaching: Teaching | None) -> _Plan:
        """The plan with a teacher; fields that the user sets are applied after it."""
        if teaching is None:
            return self
        return replace(self, adjust=lambda recipe: self.adjust(replace(recipe, distill=teaching)))

    def run(self, start: _Start, job: _Job, out: Path) -> Outcome:
        """What the protocol finds, at the point that Optuna chose where it searched."""
        from encoderlab.tasks.trials import run
        from encoderlab.tasks.tune import tune

        protocol = self.protocol
        more: dict[str, Any] = {"origin": start.origin, "adjust": self.adjust, "say": note}
        if self.search is not None:
            point = tune(protocol, start.model, job.task, job.splits, out / "tune", self.search, **more)
            protocol = replace(protocol, grid={name: (value,) for name, value in point.items()})
        return run(protocol, start.model, job.task, job.splits, out, **more)


def _plan(
    name: str, seeds: int | None, grid: list[str] | None, tune: list[str] | None, trials: int, fields: Fields
) -> _Plan:
    """The protocol ``name`` with what the user wants instead: seeds, a grid or a search, fields of the recipe.

    Raises:
        ConfigError: an option that cannot be, or a field that is searched and set.
    """
    from encoderlab.tasks.protocol import parse_grid
    from encoderlab.tasks.protocols import protocol
    from encoderlab.tasks.tune import Search, parse_space

    chosen = protocol(name)
    if seeds is not None:
        if seeds < 1:
            raise ConfigError(f"--seeds {seeds} is not positive; give at least 1")
        chosen = replace(chosen, seeds=seeds)
    if grid is not None and tune is not None:
        raise ConfigError("--grid and --tune both search; give one of them")
    search = None
    if grid is not None:
        chosen = replace(chosen, grid=parse_grid(grid))
        _check_searched(chosen.grid, fields)
    elif tune:
        search = Search(space=parse_space(tune), trials=trials)
        _check_searched(search.space, fields)
    else:
        chosen = replace(chosen, grid=_unset(chosen, fields))
    return _Plan(protocol=chosen, adjust=_adjustment(fields), search=search)


def _check_folder(out: Path) -> None:
    """Refuse a folder of something else, which the run would be scattered in: the data, or the pretraining itself.

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
class _Job:
    """A task to train on, with its splits."""

    task: Task
    splits: dict[str, Split]


def _jobs(name: str, data: Path | None, dev: Path | None, test: Path | None, given: Given) -> list[_Job]:
    """The task of a file, the benchmark ``name``, or the tasks of a suite; remarks about their files are said.

    Raises:
        ConfigError: options that do not belong to what ``name`` is, or no such file.
        DataError: a file that cannot be used, or a folder without any.
    """
    from encoderlab.tasks.finetune import remarks_of
    from encoderlab.tasks.infer import Given
    from encoderlab.tasks.tables import is_file_name

    path = Path(name)
    if path.is_file():
        if data is not None:
            raise ConfigError(f"{name} is a file and --data {data} the folder of a benchmark; leave one of them out")
        jobs = [_job_of_file(path, dev, test, given)]
    elif is_file_name(name) or "/" in name:
        if path.is_dir():
            raise ConfigError(f"{name}: is a folder; give a file in it, or the name of a benchmark with --data {name}")
        raise ConfigError(f"{name}: no such file; give labelled texts, or the name of a benchmark")
    else:
        if dev is not None or test is not None or given != Given():
            raise ConfigError(f"{name} is a benchmark with files and columns of its own; leave out those of a file")
        jobs = _jobs_of_benchmark(name, data)
    for job in jobs:
        for remark in remarks_of(job.splits):
            note(remark)
    return jobs


def _job_of_file(train: Path, dev: Path | None, test: Path | None, given: Given) -> _Job:
    """The task that a file of the user's own holds. Without ``dev``, a part of it is held out."""
    from encoderlab.tasks.finetune import completed
    from encoderlab.tasks.infer import hold_out, task_of, without_fillers

    task, said = task_of(train, given)
    note(said)
    splits = {"train": task.read([train], "train")}
    task = completed(task, splits["train"])  # other files have the labels of this one, or none
    if dev is None:
        splits["train"], splits["dev"] = hold_out(splits["train"])
    else:
        splits["dev"] = task.read([dev], "dev")
    if test is not None:
        splits["test"] = without_fillers(task.read([test], "test"), splits["train"])
    return _Job(task=task, splits=splits)


def _jobs_of_benchmark(name: str, data: Path | None) -> list[_Job]:
    """A benchmark, or the tasks of a suite whose training files are in ``data``."""
    from encoderlab.tasks import suites
    from encoderlab.tasks.trials import usable_splits

    names = suites.SUITES.get(name.lower(), (name,))
    tasks = [suites.task(one) for one in names]
    if data is None:
        raise ConfigError(f"{name} is a benchmark; give the folder of its files with --data")
    if name.lower() in suites.SUITES:
        tasks = [one for one in tasks if _lies_in(one, data)]
        if not tasks:
            raise DataError(f"{data}: holds no training file of {name} ({', '.join(names)})")
    return [_Job(task=one, splits=usable_splits(one, data)) for one in tasks]


def _lies_in(task: Task, data: Path) -> bool:
    """Whether a task of a suite has its training file in ``data``; says so if not."""
    try:
        task.find(data, "train")
    except DataError:
        note(f"{task.name}: no training file in {data}; left out")
        return False
    return True


@dataclass(frozen=True, kw_only=True)
class _Start:
    """The model that training starts from, and what it was trained for before."""

    model: Model
    origin: Origin

    @classmethod
    def read(cls, folder: Path, after: tuple[str, ...] = ()) -> _Start:
        from encoderlab.interchange.load import load
        from encoderlab.tasks.folder import read_task
        from encoderlab.tasks.trials import Origin

        return cls(model=load(folder), origin=Origin(after=after, trained=read_task(folder)))


def _after(names: Sequence[str], data: Path | None, start: _Start, plan: _Plan, out: Path) -> _Start:
    """The model after it was trained on intermediate tasks, one after the other."""
    from encoderlab.tasks.infer import Given

    places = [(name, None if Path(name).is_file() else data) for name in names]
    for job in [job for name, place in places for job in _jobs(name, place, None, None, Given())]:
        found = plan.once().run(start, job, out / f"after-{job.task.name}")
        start = _Start.read(found.best.model, (*start.origin.after, job.task.name))
    return start


def _teaching(teacher: Path | None, temperature: float | None, weight: float | None) -> Teaching | None:
    """What the user says about a teacher; None without one.

    Raises:
        ConfigError: its temperature or weight is given, but no teacher.
    """
    from encoderlab.tasks.distill import Teaching

    given = {"temperature": temperature, "weight": weight}
    fields = {name: value for name, value in given.items() if value is not None}
    if teacher is None and fields:
        raise ConfigError("--temperature and --teacher-weight belong to a teacher; give --teacher FOLDER too")
    return None if teacher is None else Teaching(teacher=str(teacher), **fields)


def _lesson(teaching: Teaching, student: Model, job: _Job, is_suite: bool) -> Teaching:
    """``teaching`` with the folder of the teacher for one task, which is checked before any training.

    Raises:
        ConfigError: the teacher cannot teach ``student`` this task.
    """
    from encoderlab.interchange.load import load
    from encoderlab.tasks.distill import check_teacher
    from encoderlab.tasks.finetune import completed
    from encoderlab.tasks.trials import best_seed

    folder = Path(teaching.teacher)
    folder = best_seed(folder / job.task.name if is_suite else folder, note)
    check_teacher(load(folder), student, completed(job.task, job.splits["train"]), str(folder))
    return replace(teaching, teacher=str(folder))


# What is found


@dataclass(frozen=True, kw_only=True)
class _Finished:
    """One task: scores of simple baselines on the development set by metric, and what the protocol found by system."""

    task: Task
    about: str
    baselines: Mapping[str, Mapping[str, float]]
    systems: Mapping[str, Outcome]

    @property
    def pretrained(self) -> Outcome:
        return self.systems["pretrained"]

    def rows(self) -> list[Row]:
        from encoderlab.tasks.trials import baseline_rows, system_row

        ours = [system_row(outcome, system) for system, outcome in self.systems.items()]
        return baseline_rows(self.task, self.baselines) + ours

    def scores(self) -> TaskScores:
        """The section of the report. Systems are compared where the same seeds have scores; failed ones are named."""
        from encoderlab.measure.report import Score, TaskScores

        metric = self.task.metric
        simple = [Score(name=row.system, scores=[row.mean]) for row in self.rows() if row.system in self.baselines]
        ours = [
            Score(name=system, scores=[run.scores["dev"][metric] for run in outcome.runs], ours=True)
            for system, outcome in self.systems.items()
        ]
        seeds = {system: outcome.record["seeds"] for system, outcome in self.systems.items()}
        scored = {tuple(seed for seed, entry in tried.items() if "scores" in entry) for tried in seeds.values()}
        failed: dict[str, list[str]] = {}
        for system, tried in seeds.items():
            for seed, entry in tried.items():
                if "failed" in entry:
                    failed.setdefault(f"{system} ({entry['failed']}), seeds", []).append(seed)
        return TaskScores(
            name=self.task.name,
            about=self.about + "".join(f" Failed: {what} {', '.join(which)}." for what, which in failed.items()),
            metric=metric,
            methods=simple + ours,
            compare=("pretrained", "without pretraining") if len(ours) > 1 and len(scored) == 1 else None,
        )


def _compare(plan: _Plan, start: _Start, job: _Job, out: Path, *, scratch: bool) -> _Finished:
    """One task: simple baselines, the same architecture from fresh weights if asked for, and the model."""
    from encoderlab.model import Model as Network
    from encoderlab.tasks.baselines import baselines
    from encoderlab.tasks.finetune import completed
    from encoderlab.tasks.trials import FRESH

    train, dev = job.splits["train"], job.splits["dev"]
    job = replace(job, task=completed(job.task, train))
    simple = baselines(job.task, train, dev)
    systems = {}
    if scratch:
        fresh = Network(start.model.config, start.model.tokenizer).initialize(1)
        systems["without pretraining"] = plan.run(_Start(model=fresh, origin=FRESH), job, out / "scratch")
    systems["pretrained"] = plan.run(start, job, out)
    about = f"{len(train):,} training and {len(dev):,} development examples."
    return _Finished(task=job.task, about=about, baselines=simple, systems=systems)


def _show(finished: Sequence[_Finished], protocol: Protocol) -> None:
    """Scores on the development sets; a seed that failed is counted and named."""
    lines = [row for found in finished for row in found.rows()]
    cells = [
        [
            row.task,
            row.metric,
            row.system,
            f"{100 * row.median:.1f}",
            f"{100 * row.mean:.1f}",
            *([f"{100 * row.best:.1f}"] if protocol.report == "best" else []),
            "" if row.sd is None else f"{100 * row.sd:.1f}",
            f"{row.n or ''}" + (f" ({row.failed} failed)" if row.failed else ""),
        ]
        for row in lines
    ]
    title = f"development sets, × 100; protocol {protocol.name}"
    best = ["best"] if protocol.report == "best" else []
    table(title, ["task", "metric", "system", "median", "mean", *best, "sd", "seeds"], cells)
    for found in finished:
        for system, outcome in found.systems.items():
            for seed, entry in outcome.record["seeds"].items():
                if "failed" in entry:
                    note(f"{found.task.name}, {system}: seed {seed} failed: {entry['failed']}")
        for remark in dict.fromkeys(remark for run in found.pretrained.runs for remark in run.record["notes"]):
            note(f"{found.task.name}: {remark}")


def _averages(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """The averages of the literature that these tasks are enough for, of the numbers that the protocol reports."""
    from encoderlab.tasks.averages import AVERAGES

    reported = {
        (outcome.task.name if split == "dev" else f"{outcome.task.name}_{split.removeprefix('dev_')}", metric): stats[
            outcome.record["report"]
        ]
        for outcome in outcomes
        for split, scores in outcome.record["scores"].items()
        for metric, stats in scores.items()
    }
    found = {name: average.of(reported) for name, average in AVERAGES.items()}
    return {name: value for name, value in found.items() if value is not None}


def _page(title: str, finished: Sequence[_Finished], protocol: Protocol) -> Report:
    """The report of all tasks."""
    from encoderlab.measure.report import Report

    tables = [found.scores() for found in finished]
    return Report(
        title=title,
        verdict=_verdict(tables),
        tasks=tables,
        tasks_note="Scores on the development sets. Dots are seeds, the line is their mean, the band its 95% interval. "
        f"Protocol: {protocol.name} ({protocol.source}).",
    )


def _verdict(tables: Sequence[TaskScores]) -> str:
    """A sentence for each task: the model's score, and that of the best baseline."""
    from encoderlab.measure.report import interval

    sentences = []
    for scores in tables:
        middle, half = interval(scores.methods[-1].scores)
        best = max((m for m in scores.methods if not m.ours), key=lambda m: m.scores[0], default=None)
        words = f"{scores.name}: {scores.metric} {100 * middle:.1f}" + (f" ± {100 * half:.1f}" if half else "")
        sentences.append(words + (f", against {100 * best.scores[0]:.1f} of {best.name}." if best else "."))
    return " ".join(sentences)
