"""Predict with a fine-tuned model: a list of examples, an ensemble, or a file of any size."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from encoderlab.errors import ConfigError
from encoderlab.files import finite, json_line
from encoderlab.inference import batch_tokens, evaluating, reading_apart
from encoderlab.model import Model, model_hash
from encoderlab.part_files import PartFile
from encoderlab.tasks.data.examples import in_parts, is_unlabelled, naming_the_longest
from encoderlab.tasks.data.task import Example, Question, Remarks, Task, Text
from encoderlab.tasks.forms.base import Answers, FormSettings, Network, Predictions
from encoderlab.tasks.forms.batching import Item, TaskBatch, sorted_batches
from encoderlab.tasks.forms.objective import TaskObjective, form_of
from encoderlab.tasks.forms.table import FORMS

log = logging.getLogger(__name__)

# Number of examples of a file, and of their characters, that are predicted together. It limits the memory and the loss
# by an interruption. Sentences that are read with their document need larger chunks, because they see less of the
# document at the end of a chunk.
CHUNK, DOCUMENTS, CHARACTERS = 2_000, 20_000, 1 << 24


class Predictor:
    """A model with a task head, applied to examples.

    Attributes:
        watch: is told the number of sequences of each batch that is done.
    """

    def __init__(self, objective: TaskObjective) -> None:
        self.objective, self.form = objective, objective.form
        self.watch: Callable[[int], None] = lambda sequences: None

    @property
    def model(self) -> Network:
        return self.objective.model

    @property
    def tokens(self) -> int:
        """Number of tokens per forward pass."""
        return batch_tokens(next(self.objective.parameters()).device)

    @classmethod
    def of(cls, model: Model, task: Task, settings: FormSettings | None = None) -> Predictor:
        """A predictor for ``task``.

        Raises:
            ConfigError: the model's head cannot answer the task (:func:`check_head`).
        """
        check_head(model, task)
        model = reading_apart(model)
        return cls(TaskObjective(model, form_of(task, model, settings or default_settings(model, task))))

    def predict(self, examples: Iterable[Example]) -> Predictions:
        """Predictions in the order of ``examples``; their labels are not read.

        Raises:
            ConfigError: they are no examples.
        """
        examples = list(examples) if isinstance(examples, Iterable) else [examples]
        if strange := [one for one in examples if not isinstance(one, Example)]:
            raise ConfigError(f"predict got {strange[0]!r:.40}, expected examples such as Text(id='0', text='a text')")
        with naming_the_longest(examples):
            return self.form.predicted(examples, self.outputs)

    def outputs(self, items: Sequence[Item]) -> list[Any]:
        """The head's scores of every item."""
        return _outputs([self], items, lambda batch: self.form.outputs(self.model, self.objective.states(batch), batch))


@torch.no_grad()
def _outputs(
    members: Sequence[Predictor], items: Sequence[Item], of_batch: Callable[[TaskBatch], list[Any]]
) -> list[Any]:
    """The result of ``of_batch`` for every item, in order.

    Items of similar length share a batch, so that little padding is computed; all members are in evaluation mode.
    """
    first = members[0]
    device = next(first.model.parameters()).device
    pad, room = first.form.tokenizer.special.pad, first.form.settings.max_length
    outputs: list[Any] = [None] * len(items)
    with evaluating(*(member.model for member in members)):
        for numbers, batch in sorted_batches(items, pad=pad, room=room, tokens=first.tokens):
            moved = batch.to(device)
            assert isinstance(moved, TaskBatch)
            for number, output in zip(numbers, of_batch(moved), strict=True):
                outputs[number] = output
            first.watch(sum(len(items[number].sequences) for number in numbers))
    if wrong := sum(map(_has_nan, outputs)):
        log.warning("%s of %s outputs of the model are NaN: their predictions mean nothing", f"{wrong:,}", len(outputs))
    return outputs


def _has_nan(output: Any) -> bool:
    """Whether a form's output, an array or a dataclass of arrays, has a score that is NaN."""
    holds_arrays = dataclasses.is_dataclass(output) and not isinstance(output, type)
    parts = dataclasses.astuple(output) if holds_arrays else (output,)
    return any(bool(np.isnan(part).any()) for part in parts)


def predict_ensemble(
    members: Sequence[Predictor], examples: Sequence[Example]
) -> tuple[Predictions, list[Predictions]]:
    """The ensemble's predictions and those of each member.

    Averages probabilities, the numbers of a regression, and for answers the scores of starts and ends, or, if
    :func:`joint_windows` is false, the probabilities of n-best texts. Members must have the same labels; for tagging
    also the same tokenizer and length, which determine the words of a sequence.

    Raises:
        ConfigError: no members, or members that do not fit together.
    """
    if not members:
        raise ConfigError("the ensemble has no models; give at least one")
    if len(members) == 1:
        alone = members[0].predict(examples)
        return alone, [alone]
    forms = dict.fromkeys(member.form.name for member in members)
    if len(forms) > 1:
        raise ConfigError(
            f"the models of the ensemble have heads of different forms ({', '.join(forms)}); give models of one form"
        )
    labels = {member.form.head_labels() for member in members}
    if len(labels) > 1:
        raise ConfigError(
            f"the models of the ensemble have different labels ({' / '.join(map(str, labels))[:200]}); give "
            "models with the same"
        )
    if joint_windows(members):
        return _joint_answers(members, examples), [member.predict(examples) for member in members]
    each = []
    for member in members:
        items = member.form.items(examples)
        outputs = member.outputs(items)
        predictions = member.form.decode(items, outputs, examples)
        each.append(Answers(items=items, outputs=outputs, predictions=predictions))
    return members[0].form.together(each, examples), [answers.predictions for answers in each]


def joint_windows(members: Sequence[Predictor]) -> bool:
    """Whether the outputs of all members can be computed together, batch by batch.

    True if they read the same windows of passages, with heads of one kind and the same labels.
    """
    readings = {member.form.reading(member.model) for member in members}
    return len(readings) == 1 and None not in readings


def _joint_answers(members: Sequence[Predictor], examples: Sequence[Example]) -> Predictions:
    """Answers from the mean of the members' scores of every start and end, and of their thresholds."""
    form = copy.copy(members[0].form)
    form.threshold = float(np.mean([member.form.threshold for member in members]))

    def joint(batch: TaskBatch) -> list[Any]:
        return form.joint([(member.model, member.objective.states(batch)) for member in members], batch)

    return form.predicted(examples, lambda items: _outputs(members, items, joint))


def task_of_model(model: Model, name: str = "the model") -> Task:
    """A task for a model without a task: its head's form, with usual columns. ``name`` is the model's in the error.

    Raises:
        ConfigError: the model has no task head.
    """
    form = next((form for form in FORMS.values() if form.fits(model)), None)
    if form is None:
        raise ConfigError(f"{name} has no task head; fine-tune it first (encoderlab finetune)")
    labels = form.labels_of_head(model.config.labels)
    return Task(name=form.name, form=form.name, layouts=form.layouts, metrics=form.metrics, labels=labels)


def check_head(model: Model, task: Task) -> None:
    """Refuse a model whose head cannot answer ``task``.

    Raises:
        ConfigError: it has no head, a head of another form, or other labels.
    """
    own, form = task_of_model(model), FORMS[task.form]
    if not form.fits(model):
        raise ConfigError(
            f"the model's head is for {own.form}, task {task.name!r} is {task.form}; give a model fine-tuned for it"
        )
    if form.labelled and set(task.labels or ()) - set(own.labels or ()):
        strange = ", ".join(sorted(set(task.labels or ()) - set(own.labels or ())))
        raise ConfigError(
            f"the model knows the labels {', '.join(own.labels or ())[:200]}, task {task.name!r} has {strange[:200]} "
            f"besides; give a model fine-tuned for it"
        )


def default_settings(model: Model, task: Task) -> FormSettings:
    """Settings for a model without any: sequences up to its limit, at most 512 tokens (answers 384)."""
    form = FORMS[task.form]
    longest = min(form.longest, model.config.encoder.max_length or form.longest)
    return form.as_saved(form.settings_type(max_length=longest))


def predict_file(
    predictor: Predictor,
    path: Path,
    out: Path,
    *,
    task: Task,
    remarks: Remarks,
    chunk: int | None = None,
    besides: Sequence[str] = (),
) -> Iterator[int]:
    """Predict every example of ``path`` into ``out``, one JSON object per line; yields the number done after each
    chunk.

    A ``chunk`` of examples, or :data:`CHARACTERS` of text, limits the memory. ``besides`` is as in :func:`record`.

    Until the end the lines are in a :class:`PartFile` ``out.part-...``, whose name depends on model and file: after an
    interruption the same call continues after the last whole chunk, and the result has
    the same bytes. Lines that have changed are reported in a warning and made again.
    """
    if chunk is None:
        chunk = DOCUMENTS if predictor.form.reads_documents else CHUNK
    part = PartFile(out.with_name(f"{out.name}.part-{_key(predictor, path, task, chunk, besides)}"))
    examples, labels = task.stream(path, remarks), predictor.form.head_labels()
    deque(islice(examples, part.lines), maxlen=0)
    for some in in_parts(examples, most=chunk, characters=CHARACTERS):
        for example in filter(is_unlabelled, some) if "gold" in besides else ():
            remarks.add("no label, so gold is null", example.row)
        predictions = predictor.predict(some)
        lines = [
            json_line(record(example, value, detail, labels, besides))
            for example, value, detail in zip(some, predictions.values, predictions.details, strict=True)
        ]
        part.add("".join(lines).encode(errors="backslashreplace"))  # as write_text does
        yield part.lines
    part.finish(out)


def record(
    example: Example,
    value: Any,
    detail: dict[str, Any],
    labels: Sequence[str] | None = None,
    besides: Sequence[str] = (),
) -> dict[str, Any]:
    """One prediction as plain data: the id, the prediction, and its scores or probabilities; null for NaN.

    Probabilities are by label if there is one per label. ``besides`` lists further fields: ``text``, the example's text
    (with its second text, question or options), and ``gold``, its label.
    """
    name = {Text: "label", Question: "answer"}.get(type(example), "prediction")
    plain: dict[str, Any] = {"id": example.id, name: list(value) if isinstance(value, tuple) else value}
    for key, item in detail.items():
        if isinstance(item, float):
            plain[key] = round(item, 6)
        elif isinstance(item, dict):
            plain[key] = {label: round(float(x), 6) for label, x in item.items()}
        elif isinstance(item, (np.ndarray, list)):
            numbers = [round(float(x), 6) for x in item]
            named = key == "probabilities" and labels is not None and len(labels) == len(numbers)
            plain[key] = dict(zip(labels or (), numbers, strict=True)) if named else numbers
    if "text" in besides:
        names = ("id", "row", "label", "tags", "answers", "group", "document", "by_line", "gap")
        plain |= {
            field.name: getattr(example, field.name)
            for field in dataclasses.fields(example)
            if field.name not in names and getattr(example, field.name) not in (None, "")
        }
    if "gold" in besides:
        gold = example.reference
        plain["gold"] = [answer.text for answer in gold] if gold and isinstance(example, Question) else gold
    return finite(plain)


def identity(predictor: Predictor) -> str:
    """A hash of the model with its tokenizer and settings: the same identity gives the same predictions for a text."""
    return hashlib.sha256(repr(_identity(predictor)).encode()).hexdigest()


def _identity(predictor: Predictor) -> list[Any]:
    model, form = predictor.model, predictor.form
    known = model_hash(model, model.config, form.tokenizer)
    return [known, form.settings, form.threshold, form.head_labels()]


def _key(predictor: Predictor, path: Path, task: Task, chunk: int, besides: Sequence[str]) -> str:
    """A hash of everything that determines the predictions of a file; for the file itself, path, size and time of
    change.
    """
    size, changed = path.stat().st_size, path.stat().st_mtime_ns
    parts = [*_identity(predictor), task.layouts]
    return hashlib.sha256(repr([*parts, str(path.resolve()), size, changed, chunk, *besides]).encode()).hexdigest()[:12]
