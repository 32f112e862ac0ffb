"""One fine-tuning run: a model, a task, a seed, in a run folder that holds the scored result."""

from __future__ import annotations

import logging
import math
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast

import safetensors.torch

from encoderlab.config import to_dict
from encoderlab.errors import ConfigError, DataError
from encoderlab.interchange.load import load
from encoderlab.model import Model, weights_hash
from encoderlab.models import FAMILIES
from encoderlab.models.base import resized
from encoderlab.models.convbert import masking_padding
from encoderlab.nn.heads import TaskHead
from encoderlab.tasks.data.splits import check_splits, completed, remarks_of
from encoderlab.tasks.data.task import Split, Task, is_unlabelled
from encoderlab.tasks.forms.base import Form, FormSettings, Predictions
from encoderlab.tasks.forms.batching import Item, ItemSource, Packing, TaskBatch, sorted_batches
from encoderlab.tasks.forms.encodings import Encodings
from encoderlab.tasks.forms.objective import TaskObjective, form_of, with_head
from encoderlab.tasks.forms.table import FORMS, Settings
from encoderlab.tasks.runs.distill import TaughtObjective, Teaching, check_teacher, read_teacher
from encoderlab.tasks.runs.features import Frozen, FrozenForm, FrozenModel, Store
from encoderlab.tasks.runs.folder import (
    HEAD_FILE,
    Result,
    discard,
    hashes_in,
    hashes_of,
    identity_of,
    read_result,
    read_task,
    same_task,
    write_predictions,
    write_run,
    write_score,
    write_submissions,
)
from encoderlab.tasks.runs.predict import Predictor
from encoderlab.tasks.runs.sift import SiFT, SiFTObjective
from encoderlab.tasks.scoring.scores import score
from encoderlab.train import checkpoint
from encoderlab.train.data import Data
from encoderlab.train.distributed import join
from encoderlab.train.folder import hardware
from encoderlab.train.loop import Outcome, train
from encoderlab.train.optim import AdamW, Optim
from encoderlab.train.recipe import Budget, Checkpoints, Evaluation, Phase, Training
from encoderlab.train.schedule import Polynomial, Schedule

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Recipe(Training):
    """Everything that determines a fine-tuning run, but for model and data.

    The fields ``budget``, ``phases`` and ``evaluation`` of :class:`Training` are set from ``epochs``, ``batch`` and the
    size of the data.

    Args:
        form: settings of the task's form; :class:`FormSettings` are taken for those of any form.
        epochs: passes over the training examples; ``steps``, where given, sets the length of training instead.
        batch: examples per step.
        row_length: tokens of a packed row at most; None takes the longest sequence or 256, whichever is more, within
            the model's limit.
        dropout: of the encoder; None keeps the model's.
        head: None is the family's.
        head_dropout: of the head's input; None keeps the head's own.
        frozen: train on the activations of the frozen encoder instead.
        sift: add DeBERTa's adversarial term.
        distill: learn from a fine-tuned teacher too.
        select: keep the weights of the epoch that validates best, or the last ones.
    """

    name: str = "finetune"
    form: Settings = FormSettings()
    epochs: float = 3.0
    steps: int | None = None
    batch: int = 32
    packing: Packing = "packed"
    row_length: int | None = None
    dropout: float | None = None
    head: TaskHead | None = None
    head_dropout: float | None = None
    frozen: Frozen | None = None
    sift: SiFT | None = None
    distill: Teaching | None = None
    select: Literal["best_epoch", "last"] = "best_epoch"
    optim: Optim = AdamW(lr=5e-5, eps=1e-6, weight_decay=0.01)
    schedule: Schedule = Polynomial(warmup=0.1)
    checkpoints: Checkpoints = Checkpoints(minutes=10.0, keep=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("batch", "steps", "row_length"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} {value} is not positive; give at least 1")
        if not 0 < self.epochs < math.inf:
            raise ConfigError(f"epochs {self.epochs:g} is not positive and finite; give a number such as 3")
        for name in ("dropout", "head_dropout"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < 1:
                raise ConfigError(f"{name} {value:g} is no share of what is kept back; give at least 0 and less than 1")

    def suited(self, task: Task, train: Split) -> Recipe:
        """The recipe with the settings of the task's form for these training examples.

        Raises:
            ConfigError: its settings are those of another form, or it asks for what the form does not support.
        """
        form = FORMS[task.form]
        for extra in ("distill", "sift", "frozen"):
            if getattr(self, extra) is not None:
                form.check_supports(extra)
        return replace(self, form=form.suited(form.settings_of(self.form), train))


def finetune(
    model: Model,
    task: Task,
    splits: Mapping[str, Split],
    recipe: Recipe,
    out: Path,
    *,
    about: Mapping[str, Any] | None = None,
    session: Budget | None = None,
    encodings: Encodings | None = None,
    trained: Mapping[str, Any] | None = None,
) -> Result:
    """Fine-tune ``model`` on ``splits["train"]``, choose weights on ``splits["dev"]``, predict every other split.

    The run resumes after an interruption; a finished one is read, not run again, and predicts the splits that it did
    not have.

    Args:
        about: written into the score beside the recipe (the hash of the initial model, intermediate tasks, ...).
        session: limits this call rather than the run, which the next call resumes.
        encodings: keeps encoded examples for further runs.
        trained: what :func:`read_task` says of the folder that the model is from; without it, its head is not kept.

    Raises:
        ConfigError, DataError, Stopped, Diverged, OutOfMemory: as the training loop.
    """
    recipe = recipe.suited(task, splits["train"])
    named = recipe.distill
    recipe, teacher = _read_teacher(recipe)
    about = {"after": [], **(about or {})}
    if "model" not in about:
        about["model"] = weights_hash(model)
    task = completed(task, splits["train"])
    identity = identity_of(task, about)
    check_splits(task, splits)
    if teacher is not None and named is not None:
        check_teacher(teacher, model, task, named.teacher)
        about["teacher"] = named.teacher
    encodings = encodings or Encodings()
    finished = read_result(out, recipe, splits, identity)
    same = same_task(trained, task, recipe.form)
    if finished is not None and finished.damaged:
        finished = _mended(finished, model, task, splits, recipe, encodings, same=same)
    if finished is not None:
        further = {name: split for name, split in splits.items() if name not in finished.record["examples"]}
        return _extended(finished, model, task, splits, further, recipe, encodings) if further else finished
    start, form, said = _assemble(model, task, recipe, out, same=same)
    objective = _objective(start, form, recipe, teacher)
    items = encodings.items(form, splits["train"], train=True)
    cut, too_long = form.cut, form.cut_note("training example", f"{recipe.form.max_length}")
    recipe = resolved(recipe, task, items)
    data = _data(objective, task, splits, recipe, encodings)
    data = replace(data, hashes={**data.hashes, **hashes_of(identity)})
    outcome = train(objective, recipe, data, out, session=session)
    if outcome.best is not None:
        checkpoint.load_weights(objective, outcome.best)
    predictions, scores, notes = _evaluate(objective, task, splits, encodings)
    if too_long:
        notes.append(too_long)
    if model.config.task is not None:
        notes.append(said)
    form.finish(objective.model)
    world = join(recipe.execution.device)
    world.wait()  # every process has read the weights that the first one now deletes
    if world.main:
        notes += write_submissions(task, splits, predictions, out)
    record = {
        **identity,
        **_record(task, splits, recipe, outcome),
        "scores": scores,
        "notes": sorted(set(notes)),
        "head": said,
        "epochs": round(recipe.budget.amount * recipe.batch / len(items), 2),
        "cut": cut,
        "threshold": form.threshold,
        **about,
    }
    if world.main:
        write_run(objective.model, task, form.settings, splits, predictions, record, out)
    world.wait()  # for what others read from here on
    return Result(folder=out, record=record, model=out / "model", predictions=predictions)


def _read_teacher(recipe: Recipe) -> tuple[Recipe, Model | None]:
    """The recipe as its run keeps it, with the hash of the teacher's weights for its folder, and the teacher."""
    if recipe.distill is None:
        return recipe, None
    teacher, known = read_teacher(recipe.distill)
    return replace(recipe, distill=known), teacher


def _record(task: Task, splits: Mapping[str, Split], recipe: Recipe, outcome: Outcome) -> dict[str, Any]:
    """What a score says of the run that it is of: how it was trained, on what, for how long and on which machine."""
    return {
        "metric": task.metric,
        "seed": recipe.seed,
        "best_step": _best_step(outcome.best),
        "steps": outcome.step,
        "examples": {name: len(split) for name, split in splits.items()},
        "data": {name: split.sha256 for name, split in splits.items()},
        "selection": recipe.select + (" on dev" if recipe.select == "best_epoch" else " step"),
        "seconds": outcome.seconds,
        "finished": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "hardware": hardware(),
        "recipe": to_dict(recipe),
        "remarks": remarks_of(splits),
    }


def _mended(
    finished: Result,
    model: Model,
    task: Task,
    splits: Mapping[str, Split],
    recipe: Recipe,
    encodings: Encodings,
    *,
    same: bool,
) -> Result | None:
    """A finished run whose damaged files are made again from its weights; None if these are damaged, so that it has to
    be trained again. Warnings name what is damaged, and what of it cannot be made again.
    """
    out, record, world = finished.folder, finished.record, join(recipe.execution.device)
    before = hashes_in(out)
    log.warning("%s: missing or altered since the run ended: %s", out, ", ".join(finished.damaged))
    world.wait()  # every process has seen the damage
    if any(name.endswith(".safetensors") for name in finished.damaged):
        log.warning("%s: the weights are damaged, so the run is trained again", out)
        if world.main:
            discard(out, record)
        world.wait()
        return None
    network, form, _ = _assemble(model, task, recipe, out, same=same)
    weights = HEAD_FILE if recipe.frozen is not None else "model.safetensors"
    network.load_state_dict(safetensors.torch.load_file(finished.model / weights), strict=False)
    if recipe.frozen is None:
        form = form_of(task, network, FORMS[task.form].as_saved(recipe.form))
    else:
        encodings.items(form, splits["train"], train=True)  # for the scale of the numbers
    form.threshold = record["threshold"]
    again = {
        name: split
        for name, split in splits.items()
        if name in record["examples"]
        and any(f"-{name}." in file or file.startswith("submission") for file in finished.damaged)
    }
    predictions, scores, _ = _evaluate(TaskObjective(network.to(world.device), form), task, again, encodings)
    record = {**record, "scores": {**record["scores"], **scores}}
    if world.main:
        write_submissions(task, again, predictions, out)
        shutil.rmtree(finished.model)  # a damaged configuration is not known as that of a model
        write_run(network, task, form.settings, again, predictions, record, out)
        after = hashes_in(out)
        if lost := [
            name for name in finished.damaged if name in record["files"] and before.get(name) == after.get(name)
        ]:
            log.warning("%s: cannot be made again: %s", out, ", ".join(lost))
            write_score(record, out, {name: finished.record["files"][name] for name in lost})
    world.wait()
    return replace(finished, record=record, damaged=())


def _extended(
    finished: Result,
    model: Model,
    task: Task,
    splits: Mapping[str, Split],
    further: Mapping[str, Split],
    recipe: Recipe,
    encodings: Encodings,
) -> Result:
    """A finished run with predictions and scores of ``further`` splits as well, by the model that it saved."""
    out, kept = finished.folder, read_task(finished.folder)
    if recipe.frozen is None:
        network = load(finished.model)
        form = form_of(task, network, FORMS[task.form].as_saved(recipe.form))
    else:
        network, form, _ = _assemble(model, task, recipe, out)
        encodings.items(form, splits["train"], train=True)  # for the scale of the numbers
        network.load_state_dict(safetensors.torch.load_file(finished.model / HEAD_FILE))
    world = join(recipe.execution.device)
    objective = TaskObjective(network.to(world.device), form)
    if kept is not None:
        form.threshold = kept["threshold"]
    predictions, scores, notes = _evaluate(objective, task, further, encodings)
    record = dict(finished.record)
    record["scores"] = {**record["scores"], **scores}
    record["examples"] = {**record["examples"], **{name: len(split) for name, split in further.items()}}
    record["data"] = {**record["data"], **{name: split.sha256 for name, split in further.items()}}
    if world.main:
        notes += write_submissions(task, further, predictions, out)
        record["notes"] = sorted({*record["notes"], *notes})
        write_predictions(further, predictions, out)
        write_score(record, out)
    return Result(folder=out, record=record, model=finished.model)


def _assemble(model: Model, task: Task, recipe: Recipe, out: Path, *, same: bool = False) -> tuple[Model, Form, str]:
    """The model with the head that is trained, the form of the task, and what was done about the head."""
    start = prepared(model, recipe)
    form = form_of(task, start, recipe.form)
    head = recipe.head
    if head is None and recipe.head_dropout is not None:
        usual = start.config.task if same else None
        head = replace(usual or form.head(FAMILIES[start.config.family], start), dropout=recipe.head_dropout)
    if recipe.frozen is None:
        start, said = with_head(start, form, seed=recipe.seed, head=head, same=same)
        return start, form, said
    start.to(join(recipe.execution.device).device)
    form = FrozenForm(form, Store(out.parent / "features", start, recipe.frozen, weights_hash(start)))
    head = form.head(FAMILIES[start.config.family], start)
    if recipe.head_dropout is not None:
        head = replace(head, dropout=recipe.head_dropout)
    small = FrozenModel(form.store, recipe.frozen, head, form.head_labels(), recipe.seed)
    return cast(Model, small), form, f"trained on {recipe.frozen.layers} of the frozen encoder"


def _objective(model: Model, form: Form, recipe: Recipe, teacher: Model | None) -> TaskObjective:
    """The task, with the further term that the recipe asks for."""
    if teacher is None or recipe.distill is None:
        return TaskObjective(model, form) if recipe.sift is None else SiFTObjective(model, form, recipe.sift)
    if recipe.sift is not None or recipe.frozen is not None:
        raise ConfigError("distill goes with neither sift nor frozen; leave those unset, or train without a teacher")
    return TaughtObjective(model, form, teacher, recipe.distill)


def prepared(model: Model, recipe: Recipe) -> Model:
    """``model`` with the dropout that the recipe wants, reading every text by itself, in memory of its own: training
    leaves the given one as it is.
    """
    config = masking_padding(model.config)
    if recipe.dropout is not None:
        config = resized(config, dropout=recipe.dropout, attention_dropout=recipe.dropout)
    copy = Model(config, model.tokenizer)
    copy.load_state_dict(model.state_dict())
    return copy


def resolved(recipe: Recipe, task: Task, items: Sequence[Item]) -> Recipe:
    """The recipe with the budget and the evaluations that its epochs mean for these training items."""
    if not items:
        raise DataError(f"task {task.name!r}: no training example can be learned from; check labels and answers")
    per_epoch = math.ceil(len(items) / recipe.batch)
    steps = recipe.steps or max(1, round(recipe.epochs * per_epoch))
    longest = max(len(sequence) for item in items for sequence in item.sequences)
    chosen = recipe.select == "best_epoch"  # else one validation at the end is enough
    return replace(
        recipe,
        budget=Budget(amount=steps, unit="steps"),
        phases=(Phase(length=longest, rows=recipe.batch),),
        evaluation=Evaluation(every=min(per_epoch, steps) if chosen else steps, best=task.metric if chosen else None),
    )


def row_length(recipe: Recipe, model: Model, longest: int) -> int:
    """Tokens of a packed row."""
    if recipe.row_length is not None and recipe.row_length < longest:
        raise ConfigError(f"row_length {recipe.row_length} is shorter than the longest sequence, {longest}; raise it")
    wanted = recipe.row_length or max(longest, 256)
    return min(wanted, model.config.encoder.max_length or wanted)


def _data(
    objective: TaskObjective, task: Task, splits: Mapping[str, Split], recipe: Recipe, encodings: Encodings
) -> Data:
    model, world = objective.model, join(recipe.execution.device)
    assert model.tokenizer is not None
    pad = model.tokenizer.special.pad
    predictor, items = Predictor(objective), encodings.items(objective.form, splits["train"], train=True)
    dev = splits.get("dev")
    networks = [model, objective.teacher] if isinstance(objective, TaughtObjective) else [model]

    def source(phase: Phase, rows: int, state: dict[str, int] | None) -> ItemSource:
        room = recipe.form.max_length
        if recipe.packing != "fixed":
            room = min(row_length(recipe, network, phase.length) for network in networks)
        return ItemSource(
            items, batch=rows, room=room, pad=pad, mode=recipe.packing, seed=recipe.seed, world=world, state=state
        )

    hashes = {name: split.sha256 for name, split in splits.items()}
    if dev is None:
        if recipe.select == "best_epoch":
            raise ConfigError(f"task {task.name!r} has no dev data to choose an epoch by; set select=last or give some")
        return Data(source=source, hashes=hashes)
    held_out = encodings.items(objective.form, dev)

    def losses(phase: Phase) -> Iterator[TaskBatch]:
        room = recipe.form.max_length
        return (batch for _, batch in sorted_batches(held_out, pad=pad, room=room, tokens=predictor.tokens))

    def scores() -> dict[str, float]:
        found = objective.form.decode(held_out, predictor.outputs(held_out), dev.examples)
        return score(task, dev.examples, found.values)[0]

    return Data(source=source, validation=losses, score=scores, hashes=hashes)


def _evaluate(
    objective: TaskObjective, task: Task, splits: Mapping[str, Split], encodings: Encodings
) -> tuple[dict[str, Predictions], dict[str, dict[str, float]], list[str]]:
    """Predictions and scores of every split but the training one; the threshold of "no answer" comes from dev alone."""
    predictor, form = Predictor(objective), objective.form
    predictions: dict[str, Predictions] = {}
    scores: dict[str, dict[str, float]] = {}
    notes: list[str] = []
    for name in sorted(splits, key=lambda name: name != "dev"):
        if name == "train":
            continue
        split = splits[name]
        items = encodings.items(form, split)
        outputs = predictor.outputs(items)
        found = form.decode(items, outputs, split.examples)
        if name == "dev" and (said := form.choose_threshold(split.examples, found)):
            notes.append(said)
            found = form.decode(items, outputs, split.examples)
        predictions[name] = found
        missing = sum(map(is_unlabelled, split.examples))
        if not missing:
            scores[name], warnings = score(task, split.examples, found.values)
            notes += [f"{name}: {text}" for text in warnings]
        elif missing < len(split):
            notes.append(f"{name}: {missing:,} of {len(split):,} examples have no label, so it is not scored")
    return predictions, scores, notes


def _best_step(folder: Path | None) -> int | None:
    return None if folder is None else int(checkpoint.read_json(folder / checkpoint.STATE)["step"])
