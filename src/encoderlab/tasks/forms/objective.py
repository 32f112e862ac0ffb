"""A task as an objective, for fine-tuning with the one training loop."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from encoderlab.batches.batch import Batch
from encoderlab.errors import ConfigError
from encoderlab.inference import tokenizer_of
from encoderlab.model import Model
from encoderlab.models import FAMILIES
from encoderlab.nn.encoder import States
from encoderlab.nn.heads import Classification, Tagging, TaskHead
from encoderlab.nn.noise import Noise
from encoderlab.objectives.base import Memory, Objective, Term
from encoderlab.tasks.forms.base import Form, FormSettings, Network, takes_means
from encoderlab.tasks.forms.batching import TaskBatch
from encoderlab.tasks.forms.table import FORMS

if TYPE_CHECKING:
    from encoderlab.tasks.data.task import Task


class TaskObjective(Objective):
    """The losses of a labelled task under a model with a task head."""

    def __init__(self, model: Network, form: Form) -> None:
        super().__init__()
        self.model, self.form = model, form

    def counts(self, batch: Batch) -> dict[str, int]:
        assert isinstance(batch, TaskBatch)
        return self.form.counts(batch)

    def forward(
        self, batch: Batch, *, noise: Noise | None = None, memory: Memory = None
    ) -> tuple[dict[str, Term], Memory]:
        assert isinstance(batch, TaskBatch)
        return self.form.terms(self.model, self.states(batch, noise), batch, noise), None

    def states(self, batch: Batch, noise: Noise | None = None) -> States:
        """The encoder's states.

        For a form that reads one vector per sequence, the last layer is left out if
        :func:`encoderlab.tasks.forms.base.summary_logits` can compute it at those places only.
        """
        encoder = self.model.encoder
        at_places = self.form.summary and encoder.splits_last_layer and not takes_means(self.model.config.task)
        less = {"depth": encoder.depth - 1} if at_places else {}
        return encoder(batch.ids, doc=batch.documents, segments=batch.segments, noise=noise, **less)

    def models(self) -> dict[str, Any]:
        return {"model": self.model}


def form_of(task: Task, model: Model, settings: FormSettings) -> Form:
    """The form of ``task`` with the model's tokenizer.

    Raises:
        ConfigError: the model has no tokenizer, or fewer positions than the settings need.
    """
    tokenizer = tokenizer_of(model)
    form = FORMS[task.form]
    settings = form.settings_of(settings)
    limit = model.config.encoder.max_length
    if limit is not None and settings.max_length > limit:
        raise ConfigError(
            f"max_length {settings.max_length} exceeds the model's {limit} positions; set it to {limit} or less"
        )
    return form(task, tokenizer, settings)


def with_head(
    model: Model, form: Form, *, seed: int, head: TaskHead | None = None, same: bool = False
) -> tuple[Model, str]:
    """``model`` with a head for ``form``, and a sentence about the origin of the head.

    The model's own head is kept if it was trained for the same task, has its labels, and is configured as ``head``; if
    only dropout differs, its weights are kept. Otherwise it is replaced by a new head.

    Args:
        seed: initialises a new head.
        head: the configuration, by default the family's; its number of labels is taken from the task.
        same: the model's own head was trained for this task (:func:`encoderlab.tasks.runs.folder.same_task`).

    Raises:
        ConfigError: ``head`` is of another kind than the task needs.
    """
    own = model.config.task
    usual = form.head(FAMILIES[model.config.family])
    chosen = head or usual
    if chosen.kind != usual.kind:
        raise ConfigError(
            f"a head of kind {chosen.kind!r} does not fit {form.task.name}, which is {form.name}; "
            f"set head.kind to {usual.kind}"
        )
    if isinstance(chosen, Classification) and isinstance(usual, Classification):
        chosen = replace(chosen, labels=usual.labels, several=usual.several)
    elif isinstance(chosen, Tagging) and isinstance(usual, Tagging):
        chosen = replace(chosen, labels=usual.labels)
    if own is not None and same and model.config.labels == form.head_labels():
        if head is None or chosen == own:
            return model, "the model's task head is kept: it was trained for this task"
        if type(chosen) is type(own) and replace(own, dropout=chosen.dropout) == chosen:
            changed = model.with_task(chosen, form.head_labels(), seed)
            changed.load_state_dict(model.state_dict(), strict=False)
            return changed, f"the model's task head is kept, with dropout {chosen.dropout:g}"
    if isinstance(chosen, Classification) and chosen.summary == "pooler" and model.config.pooler is None:
        chosen = replace(chosen, summary="dense")  # a model that was pretrained without a pooler learns one here
    why = "it has other labels or another kind" if same else "it was not trained for this task"
    had = "" if own is None else f" (the model's own is dropped: {why})"
    return model.with_task(chosen, form.head_labels(), seed), f"the task head is new{had}"
