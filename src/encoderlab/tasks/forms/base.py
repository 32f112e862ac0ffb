"""What the forms of tasks share.

A form is a class. The class says what it is called, which files hold its examples, how labels are checked, how
predictions are scored, what a model has to beat, what it supports. An object of it belongs to one task, one tokenizer
and one set of settings: it encodes examples, computes the losses of the head, and decodes predictions.

One module holds one form; :data:`encoderlab.tasks.forms.table.FORMS` lists them.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from encoderlab.config import check_least
from encoderlab.corpus.tokenizer import Tokenizer
from encoderlab.errors import ConfigError, DataError
from encoderlab.model import Model
from encoderlab.models.base import Family
from encoderlab.nn.encoder import Chosen, States
from encoderlab.nn.heads import Classification, TaskHead
from encoderlab.nn.noise import Noise
from encoderlab.objectives.base import Term
from encoderlab.objectives.distill import soft_term
from encoderlab.tasks.data.examples import Example, Remarks, Split
from encoderlab.tasks.data.readers import Layout
from encoderlab.tasks.forms.batching import Item, TaskBatch
from encoderlab.tasks.forms.features import FrozenModel
from encoderlab.tasks.scoring.metrics import MetricWarning

if TYPE_CHECKING:  # a task names its form, so its module imports this one
    from encoderlab.tasks.data.task import Task

Network = Model | FrozenModel
"""What a form reads: a model, or what is trained on the features of a frozen one."""
Scores = dict[str, float]
Baseline = Callable[[Sequence[Any], Sequence[Any]], "list[Any] | None"]
"""(training examples, examples to predict) -> predictions; None where it does not apply."""
FLOOR = -1e30  # the score of what does not exist: a place behind a window, an option that an example lacks


@dataclass(frozen=True, kw_only=True)
class FormSettings:
    """How examples become sequences, and how answers are read. These are the settings that all forms have; each form
    has settings of its own type, with further fields. Settings of this type are taken for those of any form.

    Args:
        max_length: tokens of a sequence, special ones included; longer texts are cut.
    """

    kind: str = "any"
    max_length: int = 128

    def __post_init__(self) -> None:
        check_least(self, 1, "max_length")


class Form:
    """A form of task. A subclass sets the class attributes and overrides the methods that differ.

    Class attributes:
        name: the word for it in tasks, files and on the command line.
        description: what an example asks for.
        settings_type: the settings of this form, whose ``kind`` is its name.
        columns: what its files hold: one or two texts, words with a tag each, passages with questions, or options.
        layouts: how files hold its examples, where the model comes without a task that says so.
        metrics: of a file of the user's own; the first one selects models.
        baselines: simple predictors that a model has to beat, by name.
        labelled: whether answers are labels that training data tells.
        extras: fields of a recipe that train in another way, and that this form supports: ``distill``, ``sift``,
            ``frozen``.
        longest: tokens of a sequence where nobody says how many.
        summary: the head reads one vector of each sequence, so the last layer is computed at those places alone.
        unique_ids: answers are scored by id, so that no two examples may have the same.
        collapses: a run that predicts the same answer for every example has failed.
        too_long: what happens to a text that is longer than a sequence; empty where nothing is lost.

    Attributes:
        learned: names of the attributes that :meth:`items` sets from training examples; they are cached with these.
        cut: how many examples were too long for one sequence.
        threshold: what an answer is compared with, where one is chosen on the development set; 0 where none is.
    """

    name: ClassVar[str]
    description: ClassVar[str]
    settings_type: ClassVar[type[FormSettings]]
    columns: ClassVar[Literal["texts", "words", "passages", "options"]]
    layouts: ClassVar[tuple[Layout, ...]]
    metrics: ClassVar[tuple[str, ...]]
    baselines: ClassVar[Mapping[str, Baseline]] = {}
    labelled: ClassVar[bool] = False
    extras: ClassVar[frozenset[str]] = frozenset()
    longest: ClassVar[int] = 512
    summary: ClassVar[bool] = False
    unique_ids: ClassVar[bool] = False
    collapses: ClassVar[bool] = False
    too_long: ClassVar[str] = "cut"

    learned: tuple[str, ...] = ("cut",)
    threshold = 0.0

    # Data

    @classmethod
    def recognises(cls, layout: Layout, examples: Sequence[Example]) -> bool:
        """Whether a file whose columns fit is of this form, as the first examples tell, and not of the form that comes
        first of those with these columns.
        """
        return False

    @classmethod
    def inferred(cls, layout: Layout, examples: Sequence[Any]) -> tuple[Layout, tuple[str, ...], str]:
        """How a file of the user's own is read whose columns have ``layout``, its metrics, and a clause that says what
        the first examples tell about it; the clause may be empty.
        """
        return layout, cls.metrics, ""

    @classmethod
    def checked(cls, task: Task, example: Example, place: str, remarks: Remarks) -> Example | None:
        """An example as it was read from a file, with its reference as the task has it; None if it is left out.
        ``place`` is file and line.

        Raises:
            DataError: the reference is none that the task can have.
        """
        return example

    @classmethod
    def unlabelled(cls, task: Task, examples: Sequence[Any]) -> tuple[list[Example], str] | None:
        """The examples of a test file without their references, and why, if these only fill their column."""
        return None

    @classmethod
    def completed(cls, task: Task, train: Split) -> Task:
        """``task`` with what only its training data says, such as labels.

        Raises:
            DataError: nothing can be learned from these labels.
        """
        return task

    @classmethod
    def decided(cls, task: Task, settings: FormSettings) -> Task:
        """``task`` with the metrics of what the settings ask for.

        Raises:
            ConfigError: the settings are not for these labels.
        """
        return task

    @classmethod
    def fits(cls, model: Network) -> bool:
        """Whether the model's head is of this form."""
        raise NotImplementedError

    @classmethod
    def labels_of_head(cls, labels: tuple[str, ...]) -> tuple[str, ...] | None:
        """The labels of a task from the names of a head's outputs."""
        return labels if cls.labelled else None

    @classmethod
    def of_line(cls, id: str, line: str) -> Example | None:
        """A line of text as an example to predict; None if it holds nothing that could be predicted.

        Raises:
            ConfigError: the form needs more than a text.
        """
        raise ConfigError(
            f"the model's head is for {cls.name} ({cls.description}), which needs more than a text; give a file"
        )

    # Scores

    @classmethod
    def measures(cls, task: Task, examples: Sequence[Any], predictions: Sequence[Any]) -> Scores:
        """All scores by name, on the scale 0..1 (correlations -1..1).

        Raises:
            DataError: an example has no reference.
        """
        raise NotImplementedError

    @classmethod
    def score(
        cls, task: Task, examples: Sequence[Any], predictions: Sequence[Any], **known: Any
    ) -> tuple[Scores, tuple[str, ...]]:
        """As :func:`encoderlab.tasks.scoring.scores.score`; ``known`` is what :meth:`measures` of the form takes
        besides.
        """
        if len(examples) != len(predictions):
            raise DataError(f"{len(predictions)} predictions for {len(examples)} examples; give those of the same file")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", MetricWarning)
            scores = cls.measures(task, examples, predictions, **known)
        ordered = {name: scores[name] for name in task.metrics if name in scores}
        notes = tuple(dict.fromkeys(str(item.message) for item in caught if item.category is MetricWarning))
        return ordered | scores, notes

    @classmethod
    def score_found(cls, task: Task, examples: Sequence[Any], found: Predictions) -> tuple[Scores, tuple[str, ...]]:
        """As :meth:`score`, from all that is known of the predictions."""
        return cls.score(task, examples, found.values)

    def chance(self, examples: Sequence[Any]) -> float | None:
        """The loss of a model that has learnt how often each label occurs and nothing else, in nats; None if it is not
        known.
        """
        return None

    # Settings

    @classmethod
    def settings_of(cls, given: FormSettings) -> FormSettings:
        """``given`` as settings of this form; those of :class:`FormSettings` itself are completed.

        Raises:
            ConfigError: they are those of another form.
        """
        if isinstance(given, cls.settings_type):
            return given
        if type(given) is FormSettings:
            return cls.settings_type(max_length=given.max_length)
        raise ConfigError(
            f"form.kind is {given.kind}, and the task is {cls.name}; leave it out, or set it to {cls.name}"
        )

    @classmethod
    def read_settings(cls, plain: Mapping[str, Any]) -> dict[str, Any]:
        """Settings as plain data, as a version of this library wrote them: before 0.3 they had no kind, and the fields
        of all forms.
        """
        if "kind" in plain:
            return dict(plain)
        names = {field.name for field in fields(cls.settings_type)}
        return {"kind": cls.name} | {name: value for name, value in plain.items() if name in names}

    @classmethod
    def suited(cls, settings: FormSettings, train: Split) -> FormSettings:
        """The settings for a task with these training examples."""
        return settings

    @classmethod
    def as_saved(cls, settings: FormSettings) -> FormSettings:
        """The settings with which the saved model answers, which may differ from those in which it was trained."""
        return settings

    # A task, its tokenizer and its settings

    def __init__(self, task: Task, tokenizer: Tokenizer, settings: FormSettings) -> None:
        self.task, self.tokenizer = task, tokenizer
        self.settings: Any = self.settings_of(settings)
        self.cut = 0

    def head(self, family: Family, model: Model) -> TaskHead:
        """The head that the family's papers put on this form."""
        raise NotImplementedError

    def head_labels(self) -> tuple[str, ...]:
        """The names of the head's outputs, which the model folder keeps."""
        return self.task.labels or ()

    @property
    def reads_documents(self) -> bool:
        """Whether an example is shown with its neighbours, so that many have to be encoded together."""
        return False

    def pair_room(self) -> int:
        """Tokens that two texts may have together, besides the special tokens of their sequence."""
        framed = self.tokenizer.spans(1, 1, max_length=self.settings.max_length)
        return self.settings.max_length - (framed.length - framed.a - framed.b)

    def items(self, examples: Sequence[Example], *, train: bool = False) -> list[Item]:
        """Encoded examples, with their labels where they have any; for training only those that can be learned from."""
        raise NotImplementedError

    def cut_note(self, whose: str, longest: str) -> str:
        """A sentence that says how many texts (``whose``: "training example", "text") were longer than a sequence so
        far, whose tokens are ``longest`` ("128", "the model's 128"); empty if none was, or nothing is lost.
        """
        if not self.cut or not self.too_long:
            return ""
        what = f"{whose} is" if self.cut == 1 else f"{whose}s are"
        were = "was" if self.cut == 1 else "were"
        return f"{self.cut:,} {what} longer than {longest} tokens and {were} {self.too_long}"

    # Losses

    def counts(self, batch: TaskBatch) -> dict[str, int]:
        """The denominator of each term of :meth:`terms`, from the labels alone."""
        raise NotImplementedError

    def terms(self, model: Network, states: States, batch: TaskBatch, noise: Noise | None) -> dict[str, Term]:
        """The losses of a labelled batch."""
        raise NotImplementedError

    # Comparing models: for forms with extras

    def scores(self, model: Network, states: States, batch: TaskBatch, noise: Noise | None) -> Tensor:
        """Scores (n, classes) of n predictions, for losses that compare models."""
        raise NotImplementedError

    def compared(self, counts: Mapping[str, int]) -> int:
        """The n of :meth:`scores`, from :meth:`counts`."""
        return next(iter(counts.values()))

    def divergence(self, first: Tensor, second: Tensor) -> Tensor:
        """How far two sets of scores (n, classes) are from each other, summed over n: the cross-entropies of either
        distribution under the other, the first side of each without gradient.
        """
        p, q = first.log_softmax(-1), second.log_softmax(-1)
        return -(p.detach().exp() * q + q.detach().exp() * p).sum()

    def imitation(self, scores: Tensor, wanted: Tensor, temperature: float, weight: float) -> Term:
        """The loss of ``scores`` (n, classes) that are to become a teacher's, ``wanted``."""
        return soft_term(scores.clamp(min=FLOOR), wanted.clamp(min=FLOOR), temperature, weight)

    def in_units(self, scores: Tensor) -> Tensor:
        """Scores of a saved model in the units of the training targets."""
        return scores

    @classmethod
    def check_supports(cls, extra: str) -> None:
        """Refuse a way of training that the form does not support.

        Raises:
            ConfigError: it is none of :attr:`extras`.
        """
        if extra not in cls.extras:
            raise ConfigError(f"{cls.name} tasks do not support {extra}; leave {extra} unset")

    @classmethod
    def check_comparable(cls, model: Network, name: str) -> None:
        """Refuse a model whose scores cannot be compared with another's. ``name`` is for messages.

        Raises:
            ConfigError: with the head that could be.
        """

    # Predictions

    def outputs(self, model: Network, states: States, batch: TaskBatch) -> list[Any]:
        """The head's scores of every item of the batch, as arrays that :meth:`decode` takes."""
        raise NotImplementedError

    def decode(self, items: Sequence[Item], outputs: Sequence[Any], examples: Sequence[Any]) -> Predictions:
        """Predictions in the order of ``examples``."""
        raise NotImplementedError

    def shares(self, scores: np.ndarray) -> np.ndarray:
        """The probability of each label from the scores (classes,) of an example."""
        return np.exp(log_softmax(scores))

    def choose_threshold(self, examples: Sequence[Example], found: Predictions) -> str:
        """Set :attr:`threshold` to what is best for labelled examples; a sentence that says so, empty if the form has
        none.
        """
        return ""

    def allow_no_answer(self) -> bool:
        """Withhold answers too; returns whether the form can, and did not do so before."""
        return False

    def finish(self, model: Network) -> None:
        """Change the trained head if the saved model is to answer in other units than it was trained in."""

    # Ensembles

    def reading(self, model: Network) -> Hashable:
        """What models must share for their outputs to be computed together, batch by batch; None if they never are."""
        return None

    def joint(self, members: Sequence[tuple[Network, States]], batch: TaskBatch) -> list[Any]:
        """As :meth:`outputs`, of several models whose :meth:`reading` is the same."""
        raise NotImplementedError

    def average(self, outputs: Sequence[Sequence[Any]]) -> list[Any]:
        """The outputs of an ensemble, one list per member, as those of one model: logs of the mean probabilities."""
        return [
            np.log(np.mean([np.exp(log_softmax(member)) for member in item], axis=0))
            for item in zip(*outputs, strict=True)
        ]

    def together(
        self,
        items: Sequence[Sequence[Item]],
        outputs: Sequence[Sequence[Any]],
        own: Sequence[Predictions],
        examples: Sequence[Example],
    ) -> Predictions:
        """The ensemble's predictions from the items, outputs and predictions of each member.

        Raises:
            ConfigError: the members read different parts of the examples.
        """
        return self.decode(items[0], self.average(outputs), examples)


@dataclass(frozen=True, kw_only=True)
class Predictions:
    """Predictions in the order of the examples.

    Attributes:
        values: what is predicted, as :meth:`Form.score` takes it.
        details: for each, scores or probabilities by name.
        null_odds: of answers, by question id: the score of "no answer" minus that of the best span.
        nbest: of answers, by question id: texts with score and probability, the best first.
        threshold: an answer is withdrawn where its null odds exceed it.
    """

    values: list[Any]
    details: list[dict[str, Any]]
    null_odds: dict[str, float] | None = None
    nbest: dict[str, list[dict[str, Any]]] | None = None
    threshold: float = 0.0


def entropy(labels: Iterable[Any]) -> float | None:
    """The entropy of how often labels occur, in nats; None where there is nothing to guess."""
    counts = np.array(list(Counter(labels).values()), dtype=float)
    shares = counts / max(counts.sum(), 1)
    return float(-(shares * np.log(shares)).sum()) if len(counts) > 1 else None


def label_at(task: Task, index: str) -> str | None:
    """The label whose index is written in the file; None if it is no index, or if the task has none in files."""
    assert task.labels is not None
    is_index = task.indices and index.isascii() and index.isdigit() and int(index) < len(task.labels)
    return task.labels[int(index)] if is_index else None


def check_number_of_labels(labels: Sequence[str], train: Split) -> None:
    """Refuse labels from which nothing can be learned.

    Raises:
        DataError: a single label, or a number that is written in two ways.
    """
    files = ", ".join(train.files)
    if len(labels) < 2:
        raise DataError(f"{files}: only one label ({', '.join(labels)}); training needs at least two")
    twice = next((label for label in labels if f"{label}.0" in labels), None)
    if twice is not None:
        raise DataError(f"{files}: labels {twice!r} and '{twice}.0' are one number; write it in one way")


def log_softmax(scores: np.ndarray) -> np.ndarray:
    """The logarithm of the softmax over the last axis, in double precision."""
    scores = np.asarray(scores, dtype=np.float64)
    scores = scores - scores.max(-1, keepdims=True)
    return scores - np.log(np.exp(scores).sum(-1, keepdims=True))


def takes_means(task: TaskHead | None) -> bool:
    """Whether the head reads the mean over a sequence, for which the last layer is needed at every place."""
    return isinstance(task, Classification) and task.pooling == "mean"


def summary_places(batch: TaskBatch, model: Network, tokenizer: Tokenizer) -> Chosen:
    """The places (n,) of the summary tokens of all sequences: the first token, for XLNet and left-to-right models the
    last.
    """
    rows, slots = batch.sequences()
    at = batch.labels["begin"]
    if tokenizer.framing == "xlnet" or model.config.encoder.causal:
        at = (at + batch.labels["length"] - 1).clamp(min=0)
    return Chosen(at, rows, slots)


def summaries(
    model: Network, states: States, batch: TaskBatch, chosen: Chosen, noise: Noise | None
) -> tuple[Tensor, Tensor | None]:
    """The vectors (n, D) at the summary tokens, or the means over the sequences, through the pooler if the head wants
    it, and the keys of their dropout.
    """
    keys = None if noise is None else noise.at(chosen.rows, chosen.places)
    task = model.config.task
    if takes_means(task):
        place = torch.arange(batch.ids.shape[1], device=batch.ids.device)
        begin, length = (batch.labels[name][..., None] for name in ("begin", "length"))
        inside = (place >= begin) & (place < begin + length)  # (B, slots, L)
        x = (torch.bmm(inside.to(states.last.dtype), states.last) / length.clamp(min=1))[chosen.rows, chosen.slots]
    else:
        x = model.encoder.last_at(states, chosen, noise)
    if isinstance(task, Classification) and task.summary == "pooler":
        assert model.pooler is not None
        x = model.pooler(x, keys)
    return x, keys
