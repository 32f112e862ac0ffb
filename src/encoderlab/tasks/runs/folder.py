"""The folder of a fine-tuning run: model with ``task.json``, predictions, mistakes, submissions, and ``score.json``.

``score.json`` marks the run as finished and describes it. It has the hashes of all files of the run and of itself, and
a copy in ``model/``: a finished run is verified when it is read, and damaged files are made again
(:func:`encoderlab.tasks.runs.finetune.finetune`).
"""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, cast

from encoderlab.config import from_dict, to_dict
from encoderlab.errors import ConfigError, DataError
from encoderlab.files import json_line, read_json, sha256, write_json, write_text
from encoderlab.interchange import checksums
from encoderlab.interchange import folder as folders
from encoderlab.interchange.finetuned import SCORE_FILE, read_signed, signed
from encoderlab.interchange.places import PROVENANCE
from encoderlab.tasks.data import readers, suites
from encoderlab.tasks.data.readers import Layout
from encoderlab.tasks.data.task import Split, Task, is_unlabelled
from encoderlab.tasks.forms.base import FormSettings, Network, Predictions
from encoderlab.tasks.forms.table import FORMS, form_named
from encoderlab.tasks.runs.predict import record
from encoderlab.tasks.runs.submit import write_submission
from encoderlab.train.checkpoint import put_aside
from encoderlab.train.folder import LOG, METRICS, RECIPE, as_now
from encoderlab.train.recipe import Training

log = logging.getLogger(__name__)

TASK_FILE = "task.json"
FILES = (
    *(RECIPE, METRICS, LOG, PROVENANCE, "tensorboard/*", "model/**/*"),
    *("predictions-*.jsonl", "analysis-*.json", "submission*/**/*"),
)
"""What a run makes; the folder may also have a page about it, and files of users."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """A finished run. ``record`` is the content of ``score.json``.

    ``predictions`` by split are None for a run that was read from its folder. ``damaged`` lists files that have changed
    since they were written.
    """

    folder: Path
    record: Mapping[str, Any]
    model: Path
    predictions: Mapping[str, Predictions] | None = None
    damaged: tuple[str, ...] = ()

    @property
    def scores(self) -> Mapping[str, Mapping[str, float]]:
        """Scores by split and metric."""
        return self.record["scores"]


def write_run(
    model: Network,
    task: Task,
    settings: FormSettings,
    splits: Mapping[str, Split],
    predictions: Mapping[str, Predictions],
    score: Mapping[str, Any],
    out: Path,
) -> None:
    """Write the model folder with its task, the predictions, and finally the score, which marks the run as finished;
    then delete checkpoints.
    """
    model.save(out / "model")
    write_task(task, settings, out / "model", score["threshold"])
    write_json(out / RECIPE, score["recipe"])
    write_predictions(task, splits, predictions, out)
    write_score(score, out)
    delete_checkpoints(out)


def delete_checkpoints(out: Path) -> None:
    """Delete the checkpoints of a finished run; one that is not finished could not continue from the rest of them.

    The optimiser state is three times as large as the model and no longer needed. If the weights are damaged later, the
    run is trained again.
    """
    shutil.rmtree(out / "checkpoints", ignore_errors=True)


def write_submissions(
    task: Task, splits: Mapping[str, Split], predictions: Mapping[str, Predictions], out: Path
) -> list[str]:
    """Write the leaderboards' files into ``submission/`` (for other splits than test ``submission-SPLIT/``).

    Returns a note for every file that is not written because its number of rows is not the leaderboard's.
    """
    notes = []
    for name, of_split in predictions.items():
        if task.submission is not None and name in task.submission.files:
            folder = out / "submission" if name.startswith("test") else out / f"submission-{name}"
            try:
                write_submission(task, name, splits[name].examples, of_split, folder)
            except DataError as error:
                notes.append(f"no submission: {error}")
    return notes


def write_predictions(
    task: Task, splits: Mapping[str, Split], predictions: Mapping[str, Predictions], out: Path
) -> None:
    """Write ``predictions-SPLIT.jsonl`` for every split, and ``analysis-SPLIT.json``
    (:class:`encoderlab.tasks.scoring.analysis.Analysis`) where all of it is labelled.
    """
    for name, of_split in predictions.items():
        examples = splits[name].examples
        if not any(map(is_unlabelled, examples)):
            analysis = FORMS[task.form].analysed(task, examples, of_split)
            write_json(out / analysis_file(name), to_dict(analysis))
        lines = [
            json_line(record(example, value, detail, task.labels))
            for example, value, detail in zip(examples, of_split.values, of_split.details, strict=True)
        ]
        write_text(out / f"predictions-{name}.jsonl", "".join(lines))


def analysis_file(split: str) -> str:
    """The file of a run folder with the analysis of the predictions for a split."""
    return f"analysis-{split}.json"


def write_score(score: Mapping[str, Any], out: Path, lost: Mapping[str, str] | None = None) -> None:
    """Write ``score.json`` with the hashes of the run's files, and a copy into ``model/``; ``lost`` files keep their
    old hash.
    """
    files = dict(sorted((hashes_in(out) | dict(lost or {})).items()))
    record = signed({**score, "files": files})
    write_json(out / "model" / SCORE_FILE, record)
    write_json(out / SCORE_FILE, record)


def hashes_in(out: Path) -> dict[str, str]:
    """The hash of every file that a finished run has made, except ``score.json``, by its path in the folder."""
    files = sorted({path for pattern in FILES for path in out.glob(pattern) if path.is_file()})
    return {path.relative_to(out).as_posix(): sha256(path) for path in files if path.name != SCORE_FILE}


def _score_of(out: Path) -> dict[str, Any] | None:
    """The record of the run in ``out``, from ``score.json`` or its copy; None without both.

    Raises:
        DataError: both are damaged.
    """
    score, copy = out / SCORE_FILE, out / "model" / SCORE_FILE
    if not score.exists() and not copy.exists():
        return None
    try:
        return read_signed(score, "")
    except DataError:
        if not copy.exists():
            raise DataError(f"{score}: is damaged and has no copy in model/; delete {out} to train it again") from None
        return read_signed(copy, f"delete {out} to train it again")


def record_of(folder: Path) -> dict[str, Any] | None:
    """The fine-tuning record of a run folder, a protocol's folder or a model folder; None if there is none.

    Raises:
        DataError: it is damaged.
    """
    path = folder / SCORE_FILE
    return read_signed(path, "run finetune again to write it") if path.exists() else None


def check_intact(path: Path) -> None:
    """Refuse a file of a finished run that has changed since the run ended; other files are not checked.

    Raises:
        DataError: it has changed, or the run's score is damaged.
    """
    recorded = (record_of(path.parent) or {}).get("files", {}).get(path.name)
    if recorded is not None and sha256(path) != recorded:
        raise DataError(f"{path}: has changed since the run ended; run finetune again, which makes it again")


def damaged(out: Path, record: Mapping[str, Any]) -> list[str]:
    """The files of a finished run that are missing or have changed, by their paths in ``out``."""

    def intact(name: str) -> bool:
        if not (out / name).is_file():
            return False
        if name in record["files"]:
            return sha256(out / name) == record["files"][name]
        try:
            return read_signed(out / name, "") == record
        except DataError:
            return False

    return [name for name in (*record["files"], SCORE_FILE, f"model/{SCORE_FILE}") if not intact(name)]


def discard(out: Path, record: Mapping[str, Any]) -> None:
    """Delete the result of a run whose weights are lost, so that it is trained again. A model folder in which a user
    has written is put aside.
    """
    made = (*out.glob("predictions-*.jsonl"), *out.glob(analysis_file("*")))
    if folders.own_card(out / "model") is not None:
        kept = put_aside(out / "model")
        log.warning("%s: has the model's folder with the card that you wrote; copy the card from there", kept)
    for path in (out / "model", out / METRICS, out / SCORE_FILE, *made):
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    write_json(out / RECIPE, record["recipe"])


@dataclass(frozen=True, kw_only=True)
class TrainedTask:
    """The task that a head was trained for, the content of ``task.json``: ``layouts`` as :func:`plain_layouts`,
    ``settings`` of the form's type.
    """

    name: str
    form: str
    labels: tuple[str, ...] | None
    metrics: tuple[str, ...]
    layouts: tuple[dict[str, Any], ...]
    benchmark: bool
    settings: Any
    threshold: float


def write_task(task: Task, settings: FormSettings, folder: Path, threshold: float = 0.0) -> None:
    """Store in a model folder the task that its head was trained for."""
    form = FORMS[task.form]
    trained = TrainedTask(
        name=task.name,
        form=task.form,
        labels=task.labels,
        metrics=task.metrics,
        layouts=tuple(plain_layouts(task)),
        benchmark=is_benchmark(task),
        settings=form.as_saved(form.settings_of(settings)),
        threshold=threshold,
    )
    write_json(folder / TASK_FILE, to_dict(trained))
    checksums.add(folder, TASK_FILE)


def plain_layouts(task: Task) -> list[dict[str, Any]]:
    """The task's layouts as plain data: the name of each, and its fields without defaults."""
    plain = []
    for layout in cast("tuple[Any, ...]", task.layouts):
        values = {one.name: getattr(layout, one.name) for one in fields(layout)}
        changed = {one.name: to_dict(values[one.name]) for one in fields(layout) if values[one.name] != one.default}
        plain.append({"layout": type(layout).__name__} | changed)
    return plain


def layouts_of(plain: Sequence[Mapping[str, Any]]) -> tuple[Layout, ...]:
    """The inverse of :func:`plain_layouts`."""
    layouts = []
    for entry in plain:
        values = {
            key: tuple(value) if isinstance(value, list) else value for key, value in entry.items() if key != "layout"
        }
        layouts.append(getattr(readers, entry["layout"])(**values))
    return tuple(layouts)


def is_benchmark(task: Task) -> bool:
    """Whether this is a benchmark, and not a user's file with a benchmark's name."""
    known = suites.TASKS.get(task.name)
    return known is not None and known.form == task.form and known.layouts == task.layouts


def find_task(folder: Path) -> Path | None:
    """The ``task.json`` of a model folder, or of the model in a run folder; None without one."""
    return next((place / TASK_FILE for place in (folder, folder / "model") if (place / TASK_FILE).exists()), None)


def read_task(folder: Path) -> TrainedTask | None:
    """Read the file of :func:`write_task`; None for a folder without it.

    Raises:
        DataError: it is damaged.
    """
    path = find_task(folder)
    if path is None:
        return None
    remedy = "restore it, or run finetune again"
    data = read_json(path, remedy)
    try:
        trained = from_dict(TrainedTask, data)
        layouts_of(trained.layouts)
        form = form_named(trained.form)
        settings = from_dict(form.settings_type, trained.settings)
    except (AttributeError, ConfigError, KeyError, TypeError) as error:
        raise DataError(f"{path}: is damaged ({error}); {remedy}") from None
    if form.labelled and not trained.labels:
        raise DataError(f"{path}: is damaged (it names no labels); {remedy}")
    return replace(trained, settings=form.as_saved(settings))


def same_task(trained: TrainedTask | None, task: Task, settings: FormSettings) -> bool:
    """Whether a head trained for ``trained`` (:func:`read_task`) can be trained further on ``task``.

    Name, form, labels and columns must be equal, and the settings must be those of saved heads (a regression answers in
    the numbers of the file).
    """
    if trained is None or FORMS[task.form].as_saved(settings) != settings:
        return False
    here = (task.name, task.form, task.labels, tuple(plain_layouts(task)))
    return here == (trained.name, trained.form, trained.labels, trained.layouts)


def identity_of(task: Task, about: Mapping[str, Any]) -> dict[str, Any]:
    """The identity of a run besides recipe and data: the task with its labels and columns, and the initial model."""
    return {
        "task": task.name,
        "labels": None if task.labels is None else list(task.labels),
        "layouts": plain_layouts(task),
        "model": about["model"],
        "after": list(about["after"]),
    }


_MEANINGS = {  # descriptions of the keys of an identity, for messages
    "task": "task",
    "labels": "labels",
    "layouts": "columns",
    "model": "an initial model with hash",
    "after": "intermediate tasks",
}


def hashes_of(identity: Mapping[str, Any]) -> dict[str, str]:
    """The identity as hashes, which the run folder stores, so that a run is only resumed with the same
    model and task.
    """
    task = json.dumps([identity[key] for key in ("task", "labels", "layouts")])
    return {"model": identity["model"], "task": hashlib.sha256(task.encode()).hexdigest()}


def read_result(out: Path, recipe: Training, splits: Mapping[str, Split], identity: Mapping[str, Any]) -> Result | None:
    """The finished run in ``out``, with its damaged files; None if there is none.

    Raises:
        ConfigError: it was run with another recipe, data, model or task.
        DataError: the score and its copy are damaged.
    """
    record = _score_of(out)
    if record is None:
        return None
    for key, value in identity.items():
        if record.get(key) != value:
            had, now = (str(one)[:120] for one in (record.get(key), value))
            raise ConfigError(f"{out}: has a run with {_MEANINGS[key]} {had}, now {now}; choose another --out")
    settings, before = to_dict(recipe), as_now(record["recipe"], type(recipe))
    # These follow from other fields, or do not change the result.
    ignored = ("budget", "phases", "evaluation", "execution", "checkpoints", "log_every")
    for key, value in settings.items():
        if key not in ignored and before.get(key) != value:
            raise ConfigError(
                f"{out}: has a finished run with {key} {before.get(key)}, now {value}; choose another folder"
            )
    for name, split in splits.items():
        if record["data"].get(name, split.sha256) != split.sha256:
            raise ConfigError(f"{out}: has a finished run on other {name} data; choose another folder")
    return Result(folder=out, record=record, model=out / "model", damaged=tuple(damaged(out, record)))
