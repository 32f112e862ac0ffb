"""What the forms of tasks share: a form encodes examples, computes the losses of its head, and decodes predictions.

The five forms are in ``classify`` (classification, regression), ``tokens`` (tagging), ``span`` and ``choice``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from torch import Tensor

from encoderlab.corpus.tokenizer import Tokenizer
from encoderlab.errors import ConfigError
from encoderlab.model import Model
from encoderlab.models.base import Family
from encoderlab.nn.encoder import Chosen, States
from encoderlab.nn.heads import Classification, TaskHead
from encoderlab.nn.noise import Noise
from encoderlab.objectives.base import Term
from encoderlab.tasks.data.task import Example, Task
from encoderlab.tasks.forms.batching import Item, TaskBatch


@dataclass(frozen=True, kw_only=True)
class FormSettings:
    """How examples become sequences, and how answers are read.

    Args:
        max_length: tokens of a sequence, special ones included; longer texts are cut.
        pairs: whether examples have two texts; a model that learned from one kind refuses the other. None takes any.
        swap: also train on the two texts in the other order, where the task allows it (ELECTRA's MRPC and STS-B).
        context: of tagging: ``document`` puts the neighbouring sentences of its document around a sentence, as many
            tokens as fit (BERT's CoNLL-2003).
        targets: of a regression: ``unit`` trains on numbers scaled to 0..1 (ELECTRA), ``raw`` on those of the file
            (BERT). The saved model predicts numbers of the file either way.
        choice: ``joined`` appends an option to its question and writes masks for a gap in the passage; ``clue`` does
            as CLUE's baselines, with a separator before the option and ``[unused1]`` for the gap.
        stride, query_length, answer_length, n_best, beam: of span tasks, see
            :class:`encoderlab.tasks.forms.span.SpanQA`.
        impossible_weight: of span heads with answerability, the weight of its loss.
    """

    max_length: int = 128
    pairs: bool | None = None
    swap: bool = False
    context: Literal["sentence", "document"] = "sentence"
    targets: Literal["unit", "raw"] = "unit"
    choice: Literal["joined", "clue"] = "joined"
    stride: int = 128
    query_length: int = 64
    answer_length: int = 30
    n_best: int = 20
    beam: int | None = None
    impossible_weight: float = 0.5

    def __post_init__(self) -> None:
        for name in ("max_length", "stride", "query_length", "answer_length", "n_best", "beam"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} {value} is not positive; give at least 1")


class Form:
    """Encodes the examples of a task with a tokenizer, and turns what the task's head says into losses and predictions.

    Attributes:
        learned: names of the attributes that :meth:`items` sets from training examples; they are cached with these.
        summary: the head reads one vector of each sequence, so the last layer is computed at those places alone.
        cut: how many examples were too long for one sequence.
    """

    learned: tuple[str, ...] = ("cut",)
    summary = False

    def __init__(self, task: Task, tokenizer: Tokenizer, settings: FormSettings) -> None:
        self.task, self.tokenizer, self.settings = task, tokenizer, settings
        self.cut = 0

    def head(self, family: Family, model: Model) -> TaskHead:
        """The head that the family's papers put on this form."""
        raise NotImplementedError

    def head_labels(self) -> tuple[str, ...]:
        """The names of the head's outputs, which the model folder keeps."""
        return self.task.labels or ()

    def pair_room(self) -> int:
        """Tokens that two texts may have together, beside the special tokens of their sequence."""
        framed = self.tokenizer.spans(1, 1, max_length=self.settings.max_length)
        return self.settings.max_length - (framed.length - framed.a - framed.b)

    def items(self, examples: Sequence[Example], *, train: bool = False) -> list[Item]:
        """Encoded examples, with their labels where they have any; for training only those that can be learned from."""
        raise NotImplementedError

    def counts(self, batch: TaskBatch) -> dict[str, int]:
        """The denominator of each term of :meth:`terms`, from the labels alone."""
        raise NotImplementedError

    def terms(self, model: Model, states: States, batch: TaskBatch, noise: Noise | None) -> dict[str, Term]:
        """The losses of a labelled batch."""
        raise NotImplementedError

    def scores(self, model: Model, states: States, batch: TaskBatch, noise: Noise | None) -> Tensor:
        """Class scores (n, classes) of the n predictions that :meth:`counts` counts, for losses that compare models."""
        raise NotImplementedError

    def outputs(self, model: Model, states: States, batch: TaskBatch) -> list[Any]:
        """The head's scores of every item of the batch, as arrays that :meth:`decode` takes."""
        raise NotImplementedError

    def decode(self, items: Sequence[Item], outputs: Sequence[Any], examples: Sequence[Example]) -> Predictions:
        """Predictions in the order of ``examples``."""
        raise NotImplementedError

    def average(self, outputs: Sequence[Sequence[Any]]) -> list[Any]:
        """The outputs of an ensemble, one list per member, as those of one model: logs of the mean probabilities."""
        return [
            np.log(np.mean([np.exp(log_softmax(member)) for member in item], axis=0))
            for item in zip(*outputs, strict=True)
        ]

    def finish(self, model: Model) -> None:
        """Change the trained head if the saved model is to answer in other units than it was trained in."""


@dataclass(frozen=True, kw_only=True)
class Predictions:
    """Predictions in the order of the examples.

    Attributes:
        values: what is predicted, as :func:`encoderlab.tasks.scoring.scores.score` takes it.
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


def log_softmax(scores: np.ndarray) -> np.ndarray:
    """The logarithm of the softmax over the last axis, in double precision."""
    scores = np.asarray(scores, dtype=np.float64)
    scores = scores - scores.max(-1, keepdims=True)
    return scores - np.log(np.exp(scores).sum(-1, keepdims=True))


def summary_places(batch: TaskBatch, model: Model, tokenizer: Tokenizer) -> Chosen:
    """The places (n,) of the summary tokens of all sequences: the first token, for XLNet and left-to-right models the
    last.
    """
    rows, slots = batch.sequences()
    at = batch.labels["begin"]
    if tokenizer.framing == "xlnet" or model.config.encoder.causal:
        at = (at + batch.labels["length"] - 1).clamp(min=0)
    return Chosen(at, rows, slots)


def summaries(model: Model, states: States, chosen: Chosen, noise: Noise | None) -> tuple[Tensor, Tensor | None]:
    """The vectors (n, D) at the summary tokens, through the pooler if the head wants it, and the keys of their
    dropout.
    """
    keys = None if noise is None else noise.at(chosen.rows, chosen.places)
    x = model.encoder.last_at(states, chosen, noise)
    task = model.config.task
    if isinstance(task, Classification) and task.summary == "pooler":
        assert model.pooler is not None
        x = model.pooler(x, keys)
    return x, keys
