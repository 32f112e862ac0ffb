"""One fine-tuning run: a model, a task and a seed, in a run folder with the scored result."""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from encoderlab.config import Count, Natural, Positive, Rate, to_dict
from encoderlab.errors import ConfigError, DataError
from encoderlab.files import read_json
from encoderlab.interchange import folder as folders
from encoderlab.interchange.files import SAFE, read_weights
from encoderlab.model import Model, weights_hash
from encoderlab.models import FAMILIES, flops
from encoderlab.models.base import resized
from encoderlab.models.convbert import masking_padding
from encoderlab.nn.heads import TaskHead
from encoderlab.tasks.data.splits import check_splits, completed, remarks_of
from encoderlab.tasks.data.task import Split, Task, is_unlabelled
from encoderlab.tasks.forms.base import Form, FormSettings, Network, Predictions
from encoderlab.tasks.forms.batching import Item, ItemSource, Packing, TaskBatch, sorted_batches
from encoderlab.tasks.forms.encodings import Encodings
from encoderlab.tasks.forms.features import HEAD_FILE, Frozen, FrozenModel, Store
from encoderlab.tasks.forms.objective import TaskObjective, form_of, with_head
from encoderlab.tasks.forms.scores import score
from encoderlab.tasks.forms.table import FORMS, Settings
from encoderlab.tasks.runs.distill import TaughtObjective, Teaching, check_teacher, read_teacher
from encoderlab.tasks.runs.folder import (
    Result,
    TrainedTask,
    delete_checkpoints,
    discard,
    hashes_in,
    hashes_of,
    identity_of,
    read_result,
    same_task,
    write_predictions,
    write_run,
    write_score,
    write_submissions,
)
from encoderlab.tasks.runs.predict import Predictor
from encoderlab.tasks.runs.sift import SiFT, SiFTObjective
from encoderlab.train import checkpoint
from encoderlab.train.data import Data
from encoderlab.train.distributed import join
from encoderlab.train.doctor import diagnose
from encoderlab.train.evidence import of_lines, read_lines
from encoderlab.train.folder import METRICS, hardware, peak_memory
from encoderlab.train.loop import Outcome, train
from encoderlab.train.optim import AdamW, Optim
from encoderlab.train.recipe import Budget, Checkpoints, Evaluation, Phase, Training
from encoderlab.train.schedule import Polynomial, Schedule

log = logging.getLogger(__name__)

EXTRAS = ("distill", "sift", "frozen")  # fields of a recipe that change training, for forms that support them
MOST_EPOCHS = 20  # to which ``least_updates`` raises them (Mosbach et al., 2021)
EXCLUSIVE = (("distill", "sift"), ("distill", "frozen"), ("sift", "frozen"), ("frozen", "head"))


@dataclass(frozen=True, kw_only=True)
class FinetuneRecipe(Training):
    """Everything that determines a fine-tuning run, except model and data.

    The fields ``budget``, ``phases`` and ``evaluation`` of :class:`Training` are computed from ``epochs``, ``batch``
    and the size of the data.

    Args:
        form: settings of the task's form; plain :class:`FormSettings` fit any form.
        epochs: passes over the training examples; ``steps``, if given, sets the length of training instead.
        least_updates: on small data, add epochs to reach this many updates, up to :data:`MOST_EPOCHS` epochs.
        batch: examples per step.
        row_length: largest length of a packed row in tokens; None takes the longest sequence or 256, whichever is more,
            within the model's limit.
        dropout: of the encoder; None keeps the model's.
        head: None for the family's head.
        head_dropout: of the head's input; None keeps the head's own.
        frozen: train on the activations of the frozen encoder instead.
        sift: add DeBERTa's adversarial term.
        distill: also learn from a fine-tuned teacher.
        patience: stop after this many epochs without a better development score; the schedule is that of all epochs.
        select: keep the weights of the epoch with the best validation, or the last ones.

    Raises:
        ConfigError: values out of range, or that exclude each other.
    """

    name: str = "finetune"
    form: Settings = FormSettings()
    epochs: Positive = 3.0
    steps: Count | None = None
    least_updates: Natural = 0
    batch: Count = 32
    packing: Packing = "packed"
    row_length: Count | None = None
    dropout: Rate | None = None
    head: TaskHead | None = None
    head_dropout: Rate | None = None
    frozen: Frozen | None = None
    sift: SiFT | None = None
    distill: Teaching | None = None
    select: Literal["best_epoch", "last"] = "best_epoch"
    patience: Count | None = None
    optim: Optim = AdamW(lr=5e-5, eps=1e-6, weight_decay=0.01)
    schedule: Schedule = Polynomial(warmup=0.1)
    checkpoints: Checkpoints = Checkpoints(minutes=10.0, keep=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.patience is not None and self.select != "best_epoch":
            raise ConfigError("patience needs select=best_epoch; set it, or leave patience unset")
        for first, second in EXCLUSIVE:
            if getattr(self, first) is not None and getattr(self, second) is not None:
                raise ConfigError(f"{first} and {second} exclude each other; leave one of them unset")
        if self.execution.parallel == "fsdp":
            raise ConfigError("fine-tuning divides no weights among processes; set execution.parallel=ddp")

    def updates(self, items: int) -> int:
        """The number of steps for this number of training items."""
        if self.steps is not None:
            return self.steps
        per_epoch = self.updates_per_epoch(items)
        updates = max(1, round(self.epochs * per_epoch))
        return max(updates, min(self.least_updates, MOST_EPOCHS * per_epoch))

    def updates_per_epoch(self, items: int) -> int:
        """The number of steps in which all of so many training items are seen once."""
        return math.ceil(items / self.batch)

    def suited(self, task: Task, train: Split) -> FinetuneRecipe:
        """The recipe with the settings of the task's form for these training examples.

        Raises:
            ConfigError: settings of another form, or an extra that the form does not support.
        """
        form = FORMS[task.form]
        for extra in EXTRAS:
            if getattr(self, extra) is not None:
                form.check_supports(extra)
        settings = form.suited(form.settings_of(self.form), train)
        if self.frozen is not None and getattr(settings, "windows", 1) > 1:
            raise ConfigError("the features of a frozen encoder have no windows; leave form.windows unset, or frozen")
        return replace(self, form=settings)

    def check(self, task: Task, model: Model, train: Split) -> None:
        """Refuse settings that do not fit the task or the model.

        Raises:
            ConfigError, DataError: as :meth:`suited`; or a threshold for other than two labels, too few labels, or
                sequences that are longer than the model reads.
        """
        settings, whole = self.suited(task, train).form, completed(task, train)
        form_of(FORMS[whole.form].decided(whole, settings), model, settings)


def finetune(
    model: Model,
    task: Task,
    splits: Mapping[str, Split],
    recipe: FinetuneRecipe,
    out: str | os.PathLike[str],
    *,
    about: Mapping[str, Any] | None = None,
    session: Budget | None = None,
    encodings: Encodings | None = None,
    trained: TrainedTask | None = None,
    title: str | None = "",
) -> Result:
    """Fine-tune ``model`` on ``splits["train"]``, choose weights on ``splits["dev"]``, predict all other splits.

    An interrupted run resumes. A finished run is read, not repeated, and predicts splits that are new.

    Args:
        model: the pretrained model; it is not changed.
        task: its form, labels and metrics.
        splits: examples by name; "dev" is needed to choose an epoch.
        recipe: how to train.
        out: the run folder.
        about: further entries of the score (the hash of the initial model, intermediate tasks, ...).
        session: limits this call, not the run, which the next call resumes.
        encodings: caches encoded examples for further runs.
        trained: the result of :func:`read_task` for the model's folder; without it, the model's head is not kept.
        title: the name shown while it trains; None shows nothing.

    Raises:
        ConfigError, DataError, Stopped, Diverged, OutOfMemory: as the training loop.
    """
    encodings = encodings or Encodings()
    return FineTuning(model, task, splits, recipe, Path(out), about or {}, encodings, trained, title).result(session)


@dataclass(eq=False)
class FineTuning:
    """A fine-tuning run: to be trained (from the start or from a checkpoint), finished, or finished and damaged.

    Construction, with the arguments of :func:`finetune`, checks everything that can be checked before any work.

    Attributes:
        task: with the labels of its training data.
        recipe: as the run folder stores it, with settings of the task's form.
        identity: distinguishes this run from others, besides recipe and data.

    Raises:
        ConfigError, DataError: task, recipe, data and teacher do not fit together.
    """

    model: Model
    task: Task
    splits: Mapping[str, Split]
    recipe: FinetuneRecipe
    out: Path
    about: Mapping[str, Any]
    encodings: Encodings
    trained: TrainedTask | None
    title: str | None

    def __post_init__(self) -> None:
        self.recipe = self.recipe.suited(self.task, self.splits["train"])
        whole = completed(self.task, self.splits["train"])
        self.task = FORMS[whole.form].decided(whole, self.recipe.form)
        check_splits(self.task, self.splits)
        if self.task != whole and "dev" not in self.splits:
            raise ConfigError("form.precision and form.recall choose a threshold on dev data; give some")
        about = {"after": [], "model": None, **self.about}
        self.about = {**about, "model": about["model"] or weights_hash(self.model)}
        self.identity = identity_of(self.task, self.about)
        self.same = same_task(self.trained, self.task, self.recipe.form)
        self.teacher: Model | None = None
        if self.recipe.distill is not None:
            self.about = {**self.about, "teacher": self.recipe.distill.teacher}
            self.teacher, known = read_teacher(self.recipe.distill)
            check_teacher(self.teacher, self.model, self.task, self.recipe.distill.teacher)
            self.recipe = replace(self.recipe, distill=known)  # with the teacher's hash instead of its folder
        self.world = join(self.recipe.execution.device)

    def result(self, session: Budget | None = None) -> Result:
        """The finished run; trains it, repairs it or adds further splits if necessary."""
        finished = self.resume()
        if finished is None:
            return self.train(session)
        further = {name: split for name, split in self.splits.items() if name not in finished.record["examples"]}
        return self.extend(finished, further) if further else finished

    def resume(self) -> Result | None:
        """The finished run in the folder, after repair of damaged files; None if it must be trained."""
        finished = self.world.everywhere(lambda: read_result(self.out, self.recipe, self.splits, self.identity))
        seen = None if finished is None else [finished.damaged, sorted(finished.record["examples"])]
        self.world.same({f"in {self.out} the run": seen}, "give a folder on storage that all nodes share")
        if finished is not None and self.world.main:
            delete_checkpoints(self.out)  # it may have been killed while it did
        return self.mend(finished) if finished is not None and finished.damaged else finished

    # Network, objective and data

    def assemble(self) -> tuple[Network, Form, str]:
        """The network with its head, the form of the task, and a sentence about the head."""
        recipe, start = self.recipe, prepared(self.model, self.recipe)
        form = form_of(self.task, start, recipe.form)
        head, family = recipe.head, FAMILIES[start.config.family]
        if head is None and recipe.head_dropout is not None:
            own = start.config.task if self.same and recipe.frozen is None else None
            head = replace(own or form.head(family), dropout=recipe.head_dropout)
        if recipe.frozen is None:
            network, said = with_head(start, form, seed=recipe.seed, head=head, same=self.same)
            return network, form, said
        store = Store(self.out.parent / "features", start.to(self.world.device), recipe.frozen, weights_hash(start))
        head = head or form.head(family)
        small = FrozenModel(store, recipe.frozen, head, form.head_labels(), recipe.seed)
        return small, form, f"trained on {recipe.frozen.layers} of the frozen encoder"

    def objective(self, network: Network, form: Form) -> TaskObjective:
        """The task's objective, with the further term that the recipe asks for."""
        if self.teacher is not None and self.recipe.distill is not None:
            assert isinstance(network, Model)
            return TaughtObjective(network, form, self.teacher, self.recipe.distill)
        if self.recipe.sift is not None:
            assert isinstance(network, Model)
            return SiFTObjective(network, form, self.recipe.sift)
        return TaskObjective(network, form)

    def items(self, objective: TaskObjective, name: str) -> list[Item]:
        """The encoded examples of a split; for a frozen encoder, the places of their stored activations."""
        form = objective.form
        items = self.encodings.items(form, self.splits[name], train=name == "train")
        if isinstance(objective.model, Model):
            return items
        store = objective.model.encoder.store
        return store.rows_of(items, form.columns == "words", form.settings.max_length)

    def data(self, objective: TaskObjective, recipe: FinetuneRecipe, items: Sequence[Item]) -> Data:
        """The training ``items`` and the development examples, for the training loop."""
        assert objective.model.tokenizer is not None
        pad, form, predictor = objective.model.tokenizer.special.pad, objective.form, Predictor(objective)
        seed, world = recipe.seed, self.world
        networks = [objective.model, *([self.teacher] if self.teacher is not None else [])]

        def source(phase: Phase, rows: int, state: dict[str, int] | None) -> ItemSource:
            room = form.settings.max_length
            if recipe.packing != "fixed":
                room = min(row_length(recipe, network, phase.length) for network in networks)
            return ItemSource(
                items, batch=rows, room=room, pad=pad, mode=recipe.packing, seed=seed, world=world, state=state
            )

        hashes = {name: split.sha256 for name, split in self.splits.items()} | hashes_of(self.identity)
        data = Data(source=source, hashes=hashes, operations=self._operations(objective, items))
        dev = self.splits.get("dev")
        if dev is None:
            if recipe.select == "best_epoch":
                raise ConfigError(
                    f"task {self.task.name!r} has no dev data to choose an epoch; set select=last or give a dev split"
                )
            return data
        held_out = self.items(objective, "dev")

        def losses(phase: Phase) -> Iterator[TaskBatch]:
            room = form.settings.max_length
            return (batch for _, batch in sorted_batches(held_out, pad=pad, room=room, tokens=predictor.tokens))

        def scores() -> dict[str, float]:
            guesses = form.decode(held_out, predictor.outputs(held_out), dev.examples)
            return score(self.task, dev.examples, guesses.values)[0]

        chance = form.chance(dev.examples)
        known = {} if chance is None else {form.name: chance}
        return replace(data, validation=losses, score=scores, chance=known)

    def _operations(self, objective: TaskObjective, items: Sequence[Item]) -> Callable[[Phase], float] | None:
        """Floating-point operations of training per token, heads aside; None if the loss needs several forward passes,
        or none of the encoder.

        The cost of attention is proportional to the length of a token's sequence, so the mean length over tokens is
        used.
        """
        if not isinstance(objective.model, Model) or self.recipe.sift is not None:
            return None
        lengths = [len(sequence) for item in items for sequence in item.sequences]
        length = round(sum(n * n for n in lengths) / max(sum(lengths), 1)) or 1
        cost = flops.training(objective.model.config, length, predicted=0.0)
        if self.teacher is not None:
            cost += sum(flops.forward(self.teacher.config, length, predicted=0.0).values())
        return lambda phase: cost

    # Train, repair, extend

    def train(self, session: Budget | None = None) -> Result:
        """Train, evaluate and write the run. ``session`` limits this call."""
        network, form, said = self.assemble()
        objective = self.objective(network, form)
        items = self.items(objective, "train")
        # Now, because the form also counts the long examples of the other splits.
        cut, too_long = form.cut, form.cut_note("training example", f"{form.settings.max_length}")
        recipe = resolved(self.recipe, self.task, items)
        data = self.data(objective, recipe, items)
        outcome = train(objective, recipe, data, self.out, session=session, title=self.title)
        if outcome.best is not None:
            checkpoint.verify(outcome.best, f"restore it, or delete {outcome.best.parent} to train again")
            checkpoint.load_weights(objective, outcome.best)
        if isinstance(network, Model):
            form.finish(network)  # first, so that predictions are those of the saved model
        evaluated = self.evaluate(objective, self.splits)
        findings = diagnose(of_lines(read_lines(self.out / METRICS), to_dict(recipe))) if self.world.main else []
        notes = [*evaluated.notes, *filter(None, (too_long,)), *(f"doctor: {finding}" for finding in findings)]
        if self.model.config.task is not None:
            notes.append(said)
        if outcome.step < recipe.budget.amount:
            planned = f"{outcome.step:,} of {recipe.budget.amount:,.0f}"
            notes.append(f"stopped at step {planned}: no better development score for {recipe.patience} epochs")
        self.world.wait()  # every process has read the weights that the first one deletes next
        record = {
            **self.identity,
            **self._record(recipe, outcome),
            "scores": evaluated.scores,
            "notes": notes,
            "findings": [vars(finding) for finding in findings],
            "head": said,
            "epochs": round(outcome.step * recipe.batch / len(items), 2),
            "cut": cut,
            "threshold": form.threshold,
            **self.about,
        }
        self.write(objective, record, evaluated)
        return Result(folder=self.out, record=record, model=self.out / "model", predictions=evaluated.predictions)

    def mend(self, finished: Result) -> Result | None:
        """A finished run whose damaged files are made again from its weights; None if the weights are damaged.

        In that case it must be trained again. Warnings list damaged files, and those that cannot be made again. The
        model's card is kept, because users may write it.
        """
        record, before, card = finished.record, hashes_in(self.out), f"model/{folders.CARD}"
        if finished.damaged == (card,) and card in before:
            log.warning("%s: %s has changed since the run ended; it is kept", self.out, card)
            return replace(finished, damaged=())
        log.warning("%s: missing or changed since the run ended: %s", self.out, ", ".join(finished.damaged))
        self.world.wait()  # every process has seen the damage
        if any(name.endswith(".safetensors") for name in finished.damaged):
            log.warning("%s: the weights are damaged, so the run is trained again", self.out)
            if self.world.main:
                discard(self.out, record)
            self.world.wait()
            return None
        objective = self._saved(finished)
        again = {
            name: split
            for name, split in self.splits.items()
            if name in record["examples"]
            and any(f"-{name}." in file or file.startswith("submission") for file in finished.damaged)
        }
        evaluated = self.evaluate(objective, again, choose=False)
        mended = {**record, "scores": {**record["scores"], **evaluated.scores}}
        if self.world.main and isinstance(objective.model, Model) and not folders.is_ours(finished.model):
            # Otherwise a damaged configuration would not count as a model's. The weights stay until all is made again.
            folders.write_fields(finished.model / "config.json", folders.FORMAT)
        self.write(objective, mended, evaluated)
        if self.world.main:
            after = hashes_in(self.out)
            files = [name for name in finished.damaged if name in record["files"] and name != card]
            if lost := [name for name in files if before.get(name) == after.get(name)]:
                log.warning("%s: cannot be made again: %s", self.out, ", ".join(lost))
                write_score(mended, self.out, {name: record["files"][name] for name in lost})
        self.world.wait()
        return replace(finished, record=mended, damaged=())

    def extend(self, finished: Result, further: Mapping[str, Split]) -> Result:
        """A finished run with predictions and scores of ``further`` splits, by the saved model."""
        evaluated = self.evaluate(self._saved(finished), further)
        record = dict(finished.record)
        record["scores"] = {**record["scores"], **evaluated.scores}
        record["examples"] = {**record["examples"], **{name: len(split) for name, split in further.items()}}
        record["data"] = {**record["data"], **{name: split.sha256 for name, split in further.items()}}
        if self.world.main:
            notes = write_submissions(self.task, further, evaluated.predictions, self.out)
            record["notes"] = sorted({*record["notes"], *evaluated.notes, *notes})
            write_predictions(self.task, further, evaluated.predictions, self.out)
            write_score(record, self.out)
        return replace(finished, record=record)

    def _saved(self, finished: Result) -> TaskObjective:
        """The task's objective with the saved weights and threshold of a finished run."""
        network, form, _ = self.assemble()
        if isinstance(network, Model):
            network.load_state_dict(read_weights(finished.model / SAFE), strict=False)
            form = form_of(self.task, network, form.as_saved(form.settings))
        else:
            network.load_state_dict(read_weights(finished.model / HEAD_FILE))
            self.encodings.items(form, self.splits["train"], train=True)  # sets the scale of the numbers
        form.threshold = finished.record["threshold"]
        return TaskObjective(network.to(self.world.device), form)

    # Evaluation and record

    def evaluate(self, objective: TaskObjective, splits: Mapping[str, Split], *, choose: bool = True) -> Evaluated:
        """Predictions and scores of every split except training. With ``choose``, a threshold is chosen on dev."""
        predictor, form = Predictor(objective), objective.form
        evaluated = Evaluated()
        for name in sorted(splits, key=lambda name: name != "dev"):
            if name == "train":
                continue
            split, items = splits[name], self.items(objective, name)
            outputs = predictor.outputs(items)
            predictions = form.decode(items, outputs, split.examples)
            if choose and name == "dev" and (said := form.choose_threshold(split.examples, predictions)):
                evaluated.notes.append(said)
                predictions = form.decode(items, outputs, split.examples)
            evaluated.predictions[name] = predictions
            missing = sum(map(is_unlabelled, split.examples))
            if not missing:
                scores, warnings = score(self.task, split.examples, predictions.values)
                evaluated.scores[name] = self.world.gather(scores)[0]  # all must choose alike
                evaluated.notes += [f"{name}: {text}" for text in warnings]
            elif missing < len(split):
                evaluated.notes.append(
                    f"{name}: {missing:,} of {len(split):,} examples have no label, so it is not scored"
                )
        return evaluated

    def _record(self, recipe: FinetuneRecipe, outcome: Outcome) -> dict[str, Any]:
        """The score's description of the run: recipe, data, time and machine."""
        best = outcome.best
        return {
            "metric": self.task.metric,
            "seed": recipe.seed,
            "best_step": None if best is None else int(read_json(best / checkpoint.STATE)["step"]),
            "steps": outcome.step,
            "examples": {name: len(split) for name, split in self.splits.items()},
            "data": {name: split.sha256 for name, split in self.splits.items()},
            "selection": recipe.select + (" on dev" if recipe.select == "best_epoch" else " step"),
            "seconds": outcome.seconds,
            "tokens": outcome.tokens,
            "flops": outcome.flops or None,
            "memory": peak_memory(self.world.device),
            "finished": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "hardware": hardware(),
            "recipe": to_dict(recipe),
            "remarks": remarks_of(self.splits),
        }

    def write(self, objective: TaskObjective, record: dict[str, Any], evaluated: Evaluated) -> None:
        """Write submissions, model, predictions and finally the score, which marks the run as finished.

        Notes about the submissions are added to the record.
        """
        if self.world.main:
            notes = write_submissions(self.task, self.splits, evaluated.predictions, self.out)
            record["notes"] = sorted({*record["notes"], *notes})
            settings = objective.form.settings
            write_run(objective.model, self.task, settings, self.splits, evaluated.predictions, record, self.out)
        self.world.wait()  # for what others read from here on


@dataclass
class Evaluated:
    """Predictions and scores by split, and notes about them."""

    predictions: dict[str, Predictions] = field(default_factory=dict)
    scores: dict[str, dict[str, float]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def prepared(model: Model, recipe: FinetuneRecipe) -> Model:
    """A copy of ``model`` with the recipe's dropout, whose convolutions stop at the end of a text.

    Training leaves the given model unchanged.
    """
    config = masking_padding(model.config)
    if recipe.dropout is not None:
        config = resized(config, dropout=recipe.dropout, attention_dropout=recipe.dropout)
    copy = Model(config, model.tokenizer)
    copy.load_state_dict(model.state_dict())
    return copy


def resolved(recipe: FinetuneRecipe, task: Task, items: Sequence[Item]) -> FinetuneRecipe:
    """The recipe with the budget and the evaluations that follow from its epochs for these training items."""
    if not items:
        raise DataError(f"task {task.name!r}: no training example can be learned from; check labels and answers")
    steps = recipe.updates(len(items))
    longest = max(len(sequence) for item in items for sequence in item.sequences)
    chosen = recipe.select == "best_epoch"  # otherwise one validation at the end suffices
    return replace(
        recipe,
        budget=Budget(amount=steps, unit="steps"),
        phases=(Phase(length=longest, rows=recipe.batch),),
        evaluation=Evaluation(
            every=min(recipe.updates_per_epoch(len(items)), steps) if chosen else steps,
            best=task.metric if chosen else None,
            patience=recipe.patience,
        ),
    )


def row_length(recipe: FinetuneRecipe, model: Network, longest: int) -> int:
    """Length of a packed row in tokens, for sequences of up to ``longest``.

    Raises:
        ConfigError: the recipe's rows are shorter.
    """
    if recipe.row_length is not None and recipe.row_length < longest:
        raise ConfigError(f"row_length {recipe.row_length} is shorter than the longest sequence, {longest}; raise it")
    length = recipe.row_length or max(longest, 256)
    return min(length, model.config.encoder.max_length or length)
