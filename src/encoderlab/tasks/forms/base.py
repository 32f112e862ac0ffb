"""The interface and common parts of the forms of tasks.

A form is a class. The class defines its name, which files have its examples, how labels are checked, how predictions
are scored, its baselines, and what it supports. An object belongs to one task, one tokenizer and one set of settings:
it encodes examples, computes the losses of the head, and decodes predictions.

Each module has one form; :data:`encoderlab.tasks.forms.table.FORMS` lists them.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from encoderlab.config import Bounded, Count
from encoderlab.corpus.tokenizer import Tokenizer
from encoderlab.errors import ConfigError, DataError
from encoderlab.model import Model
from encoderlab.models.base import Family
from encoderlab.nn.encoder import Chosen, States
from encoderlab.nn.heads import Classification, ClassificationHead, TaskHead
from encoderlab.nn.noise import Noise
from encoderlab.objectives.base import Term
from encoderlab.objectives.distill import soft_term
from encoderlab.tasks.data.examples import Example, GivenPrediction, Remarks, Split
from encoderlab.tasks.data.readers import Layout
from encoderlab.tasks.forms.batching import Item, TaskBatch
from encoderlab.tasks.forms.features import FrozenModel
from encoderlab.tasks.scoring.analysis import WORST, Analysis, Mistake
from encoderlab.tasks.scoring.metrics import MetricWarning
from encoderlab.train.data import Chance

if TYPE_CHECKING:  # a task names its form, so its module imports this one
    from encoderlab.tasks.data.task import Task

Network = Model | FrozenModel
"""A model, or a small network on the features of a frozen one."""
Scores = dict[str, float]
Baseline = Callable[[Sequence[Any], Sequence[Any]], "list[Any] | None"]
"""(training examples, examples to predict) -> predictions; None if it does not apply."""
FLOOR = -1e30  # the score of a missing place: after a window, or of a missing option


@dataclass(frozen=True, kw_only=True)
class FormSettings(Bounded):
    """The settings of all forms: how examples become sequences, and how answers are read.

    Each form has its own type of settings with further fields. Settings of this base type are accepted by any form.

    Args:
        max_length: largest length of a sequence in tokens, special ones included; longer texts are cut.
    """

    kind: str = "any"
    max_length: Count = 128


class Form:
    """A form of task. A subclass sets the class attributes and overrides the methods that differ.

    Class attributes:
        name: its name in tasks, files and on the command line.
        description: the kind of answer to an example.
        settings_type: the settings of this form, whose ``kind`` is its name.
        columns: content of its files: one or two texts, words with tags, passages with questions, or options.
        layouts: possible layouts of its files, for models without a task.
        file_with: a clause about its files, for forms that need more than a text.
        metrics: for a user's own file; the first one selects models.
        baselines: simple predictors for comparison, by name.
        labelled: whether answers are labels that the training data determines.
        least_labels: the smallest number of them.
        extras: fields of a recipe that change training and that this form supports: ``distill``, ``sift``,
            ``frozen``.
        longest: default length of a sequence in tokens.
        summary: the head reads one vector of each sequence, so the last layer is computed at those places only.
        unique_ids: answers are scored by id, so ids must be unique.
        collapses: a run that predicts the same answer for every example counts as failed.
        graded: answers are more or less right, so that none counts as wrong.
        no_label: a further remedy for rows without a label, as the end of a sentence.
        too_long: what happens to texts longer than a sequence; empty if nothing is lost.

    Attributes:
        learned: names of the attributes that :meth:`items` sets from training examples; they are cached with the items.
        index: the place of each label of the task.
        cut: number of examples that were too long for one sequence.
        threshold: for an answer's score, if the form chooses one on the development set.
    """

    name: ClassVar[str]
    description: ClassVar[str]
    settings_type: ClassVar[type[FormSettings]]
    columns: ClassVar[Literal["texts", "words", "passages", "options"]]
    layouts: ClassVar[tuple[Layout, ...]]
    file_with: ClassVar[str] = ""
    metrics: ClassVar[tuple[str, ...]]
    baselines: ClassVar[Mapping[str, Baseline]] = {}
    labelled: ClassVar[bool] = False
    least_labels: ClassVar[int] = 2
    extras: ClassVar[frozenset[str]] = frozenset()
    longest: ClassVar[int] = 512
    summary: ClassVar[bool] = False
    unique_ids: ClassVar[bool] = False
    collapses: ClassVar[bool] = False
    graded: ClassVar[bool] = False
    no_label: ClassVar[str] = ""
    too_long: ClassVar[str] = "cut"

    learned: tuple[str, ...] = ("cut",)
    threshold = 0.0

    # Data

    @classmethod
    def recognises(cls, layout: Layout, examples: Sequence[Example]) -> bool:
        """Whether the first examples show that a file with fitting columns is of this form.

        It must differ from the default form of these columns, which is the first of them in the table.
        """
        return False

    @classmethod
    def inferred(cls, layout: Layout, examples: Sequence[Any]) -> tuple[Layout, tuple[str, ...], str]:
        """How a user's file with columns of ``layout`` is read, its metrics, and a clause about the first examples.

        The clause may be empty.
        """
        return layout, cls.metrics, ""

    @classmethod
    def checked(cls, task: Task, example: Any, place: str, remarks: Remarks) -> Example | None:
        """An example from a file, with its reference converted for the task; None if it is left out.

        ``place`` is file and line.

        Raises:
            DataError: the task cannot have this reference.
        """
        return example

    @classmethod
    def unlabelled(cls, task: Task, examples: Sequence[Any]) -> tuple[list[Example], str] | None:
        """The examples of a test file without their references, and the reason, if the references are placeholders."""
        return None

    @classmethod
    def completed(cls, task: Task, train: Split) -> Task:
        """``task`` with the facts that only its training data determines, such as labels.

        Raises:
            DataError: nothing can be learned from these labels.
        """
        return task

    @classmethod
    def decided(cls, task: Task, settings: FormSettings) -> Task:
        """``task`` with the metrics that the settings need.

        Raises:
            ConfigError: the settings do not fit these labels.
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
        """A line of text as an example to predict; None if there is nothing to predict.

        Raises:
            ConfigError: the form needs more than a text.
        """
        raise ConfigError(
            f"the model's head is for {cls.name} ({cls.description}), which needs more than a text; give a file"
            f"{cls.file_with}"
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
        """As :func:`encoderlab.tasks.forms.scores.score`; ``known`` are further arguments of the form's
        :meth:`measures`.
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
    def score_found(
        cls, task: Task, examples: Sequence[Any], predictions: Predictions
    ) -> tuple[Scores, tuple[str, ...]]:
        """As :meth:`score`, from full predictions."""
        return cls.score(task, examples, predictions.values)

    # Predictions of another program

    @classmethod
    def with_predictions(
        cls, task: Task, examples: Sequence[Any], guesses: Sequence[GivenPrediction]
    ) -> Sequence[Example]:
        """The examples with a prediction each instead of their reference, not yet :meth:`checked`.

        Raises:
            DataError: the examples cannot have such predictions.
        """
        return [
            replace(example, **{example.answer: cls.read_prediction(task, example, guess)})
            for example, guess in zip(examples, guesses, strict=True)
        ]

    @classmethod
    def read_prediction(cls, task: Task, example: Any, guess: GivenPrediction) -> Any:
        """A prediction as the reference of its example.

        Raises:
            DataError: the example cannot have such a prediction.
        """
        raise NotImplementedError

    @classmethod
    def value_of(cls, example: Any) -> Any:
        """The prediction in an example of :meth:`with_predictions`, as the form scores it."""
        return example.reference

    @classmethod
    def agreement(cls, before: Sequence[Any], after: Sequence[Any]) -> float:
        """How far the predictions of two models for the same examples agree: the share that are equal."""
        return float(np.mean([a == b for a, b in zip(before, after, strict=True)]))

    # Mistakes

    @classmethod
    def analysed(cls, task: Task, examples: Sequence[Any], predictions: Predictions) -> Analysis:
        """An analysis of the wrong predictions for labelled examples."""
        off = [
            cls.off(task, example, value, detail)
            for example, value, detail in zip(examples, predictions.values, predictions.details, strict=True)
        ]
        worst = sorted((i for i in range(len(off)) if off[i] > 0), key=lambda i: -off[i])[:WORST]
        return Analysis(
            examples=len(examples),
            wrong=None if cls.graded else tuple(i for i, much in enumerate(off) if much > 0),
            worst=tuple(
                cls.mistake(task, i, examples[i], predictions.values[i], predictions.details[i]) for i in worst
            ),
            **cls.details_of(task, examples, predictions.values),
        )

    @classmethod
    def off(cls, task: Task, example: Any, value: Any, detail: Mapping[str, Any]) -> float:
        """The size of a prediction's error, by which mistakes are ordered; 0 if it is right."""
        raise NotImplementedError

    @classmethod
    def mistake(cls, task: Task, place: int, example: Any, value: Any, detail: Mapping[str, Any]) -> Mistake:
        """A wrong prediction in words."""
        raise NotImplementedError

    @classmethod
    def details_of(cls, task: Task, examples: Sequence[Any], values: Sequence[Any]) -> dict[str, Any]:
        """The fields of an :class:`Analysis`, besides mistakes, that this form fills."""
        return {}

    def chance(self, examples: Sequence[Any]) -> Chance | None:
        """The score of guessing by the frequency of labels; None if unknown."""
        return None

    # Settings

    @classmethod
    def settings_of(cls, settings: FormSettings) -> FormSettings:
        """``settings`` as settings of this form; plain :class:`FormSettings` are completed.

        Raises:
            ConfigError: settings of another form.
        """
        if isinstance(settings, cls.settings_type):
            return settings
        if type(settings) is FormSettings:
            return cls.settings_type(max_length=settings.max_length)
        raise ConfigError(
            f"form.kind is {settings.kind}, and the task is {cls.name}; leave it out, or set it to {cls.name}"
        )

    @classmethod
    def suited(cls, settings: FormSettings, train: Split) -> FormSettings:
        """The settings for a task with these training examples."""
        return settings

    @classmethod
    def as_saved(cls, settings: FormSettings) -> FormSettings:
        """The settings of the saved model's answers, which may differ from those in training."""
        return settings

    # A task, its tokenizer and its settings

    def __init__(self, task: Task, tokenizer: Tokenizer, settings: FormSettings) -> None:
        self.task, self.tokenizer = task, tokenizer
        self.settings: Any = self.settings_of(settings)
        self.index = {label: i for i, label in enumerate(task.labels or ())}
        self.cut = 0

    def head(self, family: Family) -> TaskHead:
        """The head that the family's papers use for this form."""
        raise NotImplementedError

    def head_labels(self) -> tuple[str, ...]:
        """The names of the head's outputs, which the model folder stores."""
        return self.task.labels or ()

    def num_labels(self) -> int:
        """The number of labels.

        Raises:
            ConfigError: the task has none yet.
        """
        if not self.index:
            raise ConfigError(
                f"task {self.task.name!r} has no labels yet; take them from its training data (completed)"
            )
        return len(self.index)

    @property
    def reads_documents(self) -> bool:
        """Whether an example is read with its neighbours, so that many must be encoded together."""
        return False

    def pair_room(self) -> int:
        """Number of tokens for two texts together, without the special tokens of their sequence."""
        framed = self.tokenizer.spans(1, 1, max_length=self.settings.max_length)
        return self.settings.max_length - (framed.length - framed.a - framed.b)

    def kept(self, *sizes: int) -> int:
        """How many tokens of one text, or of two, of so many tokens are left in a sequence."""
        spans = self.tokenizer.spans(*sizes, max_length=self.settings.max_length)
        return spans.a + spans.b

    def items(self, examples: Sequence[Any], *, train: bool = False) -> list[Item]:
        """Encoded examples, with their labels if they have any; for training only those that can be learned from."""
        raise NotImplementedError

    def cut_note(self, whose: str, longest: str) -> str:
        """A sentence about how many texts were too long for a sequence; empty if none was, or nothing is lost.

        ``whose``: "training example", "text"; ``longest``: "128", "the model's 128" tokens.
        """
        if not self.cut or not self.too_long:
            return ""
        what = f"{whose} is" if self.cut == 1 else f"{whose}s are"
        were = "was" if self.cut == 1 else "were"
        return f"{self.cut:,} {what} longer than {longest} tokens and {were} {self.too_long}"

    # Losses

    def counts(self, batch: TaskBatch) -> dict[str, int]:
        """The denominator of each term of :meth:`terms`, from the labels only."""
        raise NotImplementedError

    def terms(self, model: Network, states: States, batch: TaskBatch, noise: Noise | None) -> dict[str, Term]:
        """The losses of a labelled batch."""
        raise NotImplementedError

    # Comparing models: for forms with extras

    def logits(self, model: Network, states: States, batch: TaskBatch, noise: Noise | None) -> Tensor:
        """Logits (n, classes) of n predictions, for losses that compare models."""
        raise NotImplementedError

    def compared(self, counts: Mapping[str, int]) -> int:
        """The n of :meth:`logits`, from :meth:`counts`."""
        return next(iter(counts.values()))

    def divergence(self, first: Tensor, second: Tensor) -> Tensor:
        """Divergence of two sets of logits (n, classes), summed over n.

        The cross-entropies of each distribution under the other, the first side of each without gradient.
        """
        p, q = first.log_softmax(-1), second.log_softmax(-1)
        return -(p.detach().exp() * q + q.detach().exp() * p).sum()

    def imitation(self, logits: Tensor, teacher: Tensor, temperature: float, weight: float) -> Term:
        """The loss of ``logits`` (n, classes) for imitating the logits ``teacher`` of a teacher."""
        return soft_term(logits.clamp(min=FLOOR), teacher.clamp(min=FLOOR), temperature, weight)

    def in_units(self, logits: Tensor) -> Tensor:
        """Scores of a saved model in the units of the training targets."""
        return logits

    @classmethod
    def check_supports(cls, extra: str) -> None:
        """Refuse a way of training that the form does not support.

        Raises:
            ConfigError: it is not in :attr:`extras`.
        """
        if extra not in cls.extras:
            raise ConfigError(f"{cls.name} tasks do not support {extra}; leave {extra} unset")

    @classmethod
    def check_comparable(cls, model: Network, name: str) -> None:
        """Refuse a model whose logits cannot be compared with another's; ``name`` is for messages.

        Raises:
            ConfigError: the head's logits cannot be compared; the message names a head that works.
        """

    # Predictions

    def outputs(self, model: Network, states: States, batch: TaskBatch) -> list[Any]:
        """The head's logits of every item of the batch, as arrays for :meth:`decode`."""
        raise NotImplementedError

    def predicted(self, examples: Sequence[Any], outputs: Callable[[Sequence[Item]], Sequence[Any]]) -> Predictions:
        """Predictions in the order of ``examples``; ``outputs`` computes the head's logits of items."""
        items = self.items(examples)
        return self.decode(items, outputs(items), examples)

    def decode(self, items: Sequence[Item], outputs: Sequence[Any], examples: Sequence[Any]) -> Predictions:
        """Predictions in the order of ``examples``, from their items and the outputs of these."""
        raise NotImplementedError

    def shares(self, logits: np.ndarray) -> np.ndarray:
        """The probability of each label from the logits (classes,) of an example."""
        return softmax(logits)

    def choose_threshold(self, examples: Sequence[Example], predictions: Predictions) -> str:
        """Set :attr:`threshold` to the best value for labelled examples; returns a sentence about it, or ""."""
        return ""

    def allow_no_answer(self) -> bool:
        """Allow "no answer" as a prediction; returns whether the form can, and did not before."""
        return False

    def finish(self, model: Network) -> None:
        """Change the trained head, and this form, if the saved model must answer in other units than in training."""

    # Ensembles

    def reading(self, model: Network) -> Hashable:
        """A key that is equal for models whose outputs can be computed together, batch by batch; None if never."""
        return None

    def joint(self, members: Sequence[tuple[Network, States]], batch: TaskBatch) -> list[Any]:
        """As :meth:`outputs`, for several models with equal :meth:`reading`."""
        raise NotImplementedError

    def average(self, outputs: Sequence[Sequence[Any]]) -> list[Any]:
        """The outputs of an ensemble, one list per member, as those of one model: logs of the mean probabilities."""
        return [np.log(np.mean([softmax(member) for member in item], axis=0)) for item in zip(*outputs, strict=True)]

    def together(self, members: Sequence[Answers], examples: Sequence[Example]) -> Predictions:
        """The ensemble's predictions from the answers of each member.

        Raises:
            ConfigError: the members read different parts of the examples.
        """
        return self.decode(members[0].items, self.average([member.outputs for member in members]), examples)


@dataclass(frozen=True, kw_only=True)
class Predictions:
    """Predictions in the order of the examples.

    Attributes:
        values: the predictions, as :meth:`Form.score` takes them.
        details: for each, scores or probabilities by name.
        null_odds: for answers, by question id: the score of "no answer" minus that of the best span.
        nbest: for answers, by question id: texts with score and probability, the best first.
        threshold: null odds above it mean "no answer".
    """

    values: list[Any]
    details: list[dict[str, Any]]
    null_odds: dict[str, float] | None = None
    nbest: dict[str, list[dict[str, Any]]] | None = None
    threshold: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Answers:
    """What one member of an ensemble makes of the examples: its items, its head's outputs and its predictions."""

    items: Sequence[Item]
    outputs: Sequence[Any]
    predictions: Predictions


def by_frequency(labels: Iterable[Any]) -> Chance | None:
    """The entropy of the distribution of labels and the share of the most frequent; None for a single label."""
    counts = np.array(list(Counter(labels).values()), dtype=float)
    shares = counts / max(counts.sum(), 1)
    return Chance(float(-(shares * np.log(shares)).sum()), float(shares.max())) if len(counts) > 1 else None


def known_label(task: Task, raw: str, place: str, *, indices: bool = True, what: str = "label") -> str:
    """The label that a file gives by name or, if ``indices`` and those of the task allow it, by index.

    Raises:
        DataError: not one of the task's labels.
    """
    if task.labels is None or raw in task.labels:
        return raw
    if indices and task.indices and raw.isascii() and raw.isdigit() and int(raw) < len(task.labels):
        return task.labels[int(raw)]
    remedy = "correct the row" if task.indices else "correct the row, or train on this label (for score: --labels)"
    raise DataError(f"{place}: {what} {raw!r} is not one of {', '.join(task.labels[:20])}; {remedy}")


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


def softmax(logits: np.ndarray) -> np.ndarray:
    """The softmax over the last axis, in double precision."""
    logits = np.asarray(logits, dtype=np.float64)
    logits = logits - logits.max(-1, keepdims=True)
    return np.exp(logits - np.log(np.exp(logits).sum(-1, keepdims=True)))


def takes_means(task: TaskHead | None) -> bool:
    """Whether the head reads the mean over a sequence, for which the last layer is needed everywhere."""
    return isinstance(task, Classification) and task.pooling == "mean"


def summary_logits(
    model: Network, states: States, batch: TaskBatch, tokenizer: Tokenizer, noise: Noise | None
) -> tuple[Tensor, Chosen]:
    """The head's logits (n, labels) of all sequences, and the places (n,) of their summary tokens: first token; last
    token for XLNet and left-to-right models.

    The head reads the vectors (n, D) at these places, or means over the sequences; through the pooler if it has one.
    """
    head = model.task
    assert isinstance(head, ClassificationHead)
    rows, slots = batch.sequences()
    at = batch.labels["begin"]
    if tokenizer.framing == "xlnet" or model.config.encoder.causal:
        at = (at + batch.labels["length"] - 1).clamp(min=0)
    chosen = Chosen(at, rows, slots)
    seeds = None if noise is None else noise.at(rows, chosen.places)
    if takes_means(head.config):
        place = torch.arange(batch.ids.shape[1], device=batch.ids.device)
        begin, length = (batch.labels[name][..., None] for name in ("begin", "length"))
        inside = (place >= begin) & (place < begin + length)  # (B, slots, L)
        x = (torch.bmm(inside.to(states.last.dtype), states.last) / length.clamp(min=1))[rows, slots]
    else:
        x = model.encoder.last_at(states, chosen, noise)
    if head.config.summary == "pooler":
        assert model.pooler is not None
        x = model.pooler(x, seeds)
    return head(x, seeds), chosen
