"""Distillation during fine-tuning (Sanh et al., 2019, section 4.1, "DistilBERT (D)"): also learn a teacher's
predictions.

    loss = a T^2 KL(softmax(t / T) || softmax(s / T)) + (1 - a) task loss        (nats; Hinton et al., 2015, section 2)

t are the teacher's logits and s the student's: for classes, tags, the options of an example, or the places of a window,
where start and end count half each. T^2 keeps the size of the gradient independent of T. For numbers the term is a (s -
t)^2, in the units of the training targets. The teacher reads the student's packed batch, in evaluation mode and without
gradient. Costs one forward pass of the teacher; the student's head runs twice.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from encoderlab.batches.batch import Batch
from encoderlab.config import Bounded, Positive, Share
from encoderlab.errors import ConfigError
from encoderlab.inference import reading_apart
from encoderlab.interchange.load import load
from encoderlab.model import Model, weights_hash
from encoderlab.nn.noise import Noise
from encoderlab.objectives.base import Memory, Term
from encoderlab.tasks.data.task import Task
from encoderlab.tasks.forms.base import Form
from encoderlab.tasks.forms.batching import TaskBatch
from encoderlab.tasks.forms.objective import TaskObjective
from encoderlab.tasks.forms.table import FORMS
from encoderlab.tasks.runs.predict import task_of_model


@dataclass(frozen=True, kw_only=True)
class Teaching(Bounded):
    """The teacher, and its share of the loss. Defaults are those of DistilBERT's code for SQuAD.

    Args:
        teacher: a fine-tuned model folder; in the run's stored recipe, the hash of the teacher's weights and labels.
        temperature: T, for both distributions.
        weight: a, the teacher's share of the loss.
    """

    teacher: str = ""
    temperature: Positive = 2.0
    weight: Share = 0.5


class TaughtObjective(TaskObjective):
    """A task with the teacher's term; without noise (evaluation) it is the plain task.

    Raises:
        ConfigError: an answer head whose end depends on its start, or a teacher that reads too few tokens.
    """

    def __init__(self, model: Model, form: Form, teacher: Model, settings: Teaching) -> None:
        super().__init__(model, form)
        self.settings = settings
        form.check_comparable(model, "the model")
        limit, length = teacher.config.encoder.max_length, form.settings.max_length
        if limit is not None and length > limit:
            raise ConfigError(f"max_length {length} exceeds the teacher's {limit} positions; set it to {limit} or less")
        # The tuple hides the teacher from training and saving.
        self._teacher = (TaskObjective(teacher, form).eval().requires_grad_(False),)
        own, theirs = form.head_labels(), teacher.config.labels
        named = form.labelled and own != theirs
        self.columns = [theirs.index(label) for label in own] if named else None

    @property
    def teacher(self) -> Model:
        model = self._teacher[0].model
        assert isinstance(model, Model)
        return model

    def _apply(self, *args: Any, **kwargs: Any) -> TaughtObjective:
        self._teacher[0]._apply(*args, **kwargs)  # follow .to(device)
        return super()._apply(*args, **kwargs)

    def counts(self, batch: Batch) -> dict[str, int]:
        counts = super().counts(batch)
        if not self.settings.weight:
            return counts
        return counts | {"teacher": self.form.compared(counts)}

    def forward(
        self, batch: Batch, *, noise: Noise | None = None, memory: Memory = None
    ) -> tuple[dict[str, Term], Memory]:
        share = self.settings.weight
        if noise is None or not share:
            return super().forward(batch, noise=noise)
        assert isinstance(batch, TaskBatch)
        states = self.states(batch, noise)
        terms = self.form.terms(self.model, states, batch, noise)
        logits = self.form.logits(self.model, states, batch, noise)
        terms = {name: replace(term, weight=term.weight * (1 - share)) for name, term in terms.items()}
        how = self.settings.temperature, self.settings.weight
        return terms | {"teacher": self.form.imitation(logits.float(), self.taught(batch).float(), *how)}, None

    @torch.no_grad()
    def taught(self, batch: TaskBatch) -> Tensor:
        """The teacher's logits, as the student's :meth:`Form.logits`: in the student's order of labels and units."""
        logits = self.form.logits(self.teacher, self._teacher[0].states(batch), batch, None)
        if self.columns is not None:
            return logits[:, self.columns]
        return self.form.in_units(logits)


def read_teacher(settings: Teaching) -> tuple[Model, Teaching]:
    """The teacher, and the settings with its hash instead of its folder, so that a run resumes if the folder has moved.

    Raises:
        ConfigError, DataError: no folder is given, or it has no model.
    """
    if not settings.teacher:
        raise ConfigError("distillation needs a teacher; give the folder of a fine-tuned model: --teacher FOLDER")
    teacher = reading_apart(load(settings.teacher))
    parts = f"{weights_hash(teacher)} {teacher.config.labels}"
    return teacher, replace(settings, teacher=hashlib.sha256(parts.encode()).hexdigest())


def check_teacher(teacher: Model, student: Model, task: Task, name: str) -> None:
    """Refuse a teacher that cannot teach ``student`` the ``task``, whose labels are known; ``name`` is for messages.

    Raises:
        ConfigError: it has no head, a head of another form, other labels, or another tokenizer.
    """
    if teacher.task is None:
        raise ConfigError(f"teacher {name}: has no task head; give a model fine-tuned on {task.name}")
    own = task_of_model(teacher)
    if not FORMS[task.form].fits(teacher):
        raise ConfigError(
            f"teacher {name}: its head is for {own.form}, {task.name} is {task.form}; give one fine-tuned on it"
        )
    if FORMS[task.form].labelled and sorted(own.labels or ()) != sorted(task.labels or ()):
        raise ConfigError(
            f"teacher {name}: its labels are {_short(own)}, but {task.name} has {_short(task)}; give a teacher with "
            f"the same labels (id2label in a Hugging Face config.json)"
        )
    FORMS[task.form].check_comparable(teacher, f"teacher {name}")
    if teacher.tokenizer is None:
        raise ConfigError(f"teacher {name}: has no tokenizer to compare; copy the student's tokenizer.json there")
    if student.tokenizer is not None and teacher.tokenizer.hash() != student.tokenizer.hash():
        raise ConfigError(
            f"teacher {name}: its tokenizer differs from the student's, so it cannot read its batches; give both "
            f"the same vocabulary"
        )


def _short(task: Task) -> str:
    return ", ".join(task.labels or ())[:200] or "none"
