"""What the forms share whose examples are one or two texts, answered from one vector of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from encoderlab.corpus.tokenizer import Encoding
from encoderlab.errors import DataError
from encoderlab.nn.encoder import States
from encoderlab.nn.heads import ClassificationHead
from encoderlab.nn.noise import Noise
from encoderlab.tasks.data.examples import Example, Split, Text
from encoderlab.tasks.data.readers import Columns
from encoderlab.tasks.forms.base import Form, FormSettings, Network, summaries, summary_places
from encoderlab.tasks.forms.batching import Encoded, Item, TaskBatch, to_numpy


@dataclass(frozen=True, kw_only=True)
class TextSettings(FormSettings):
    """Settings of forms of one or two texts.

    Args:
        pairs: whether examples have two texts; a model that learned from one kind refuses the other. None takes any.
        swap: also train on the two texts in the other order, where the task allows it (ELECTRA's MRPC and STS-B).
    """

    pairs: bool | None = None
    swap: bool = False


class TextForm(Form):
    """Encodes texts and pairs of texts; the head reads the vector of the summary token.

    A subclass says what the target of an example is (:meth:`_target`), which targets are known (:meth:`_known`), and
    what the scores mean.
    """

    columns = "texts"
    layouts = tuple(
        Columns(text=text, pair=pair)
        for text, pair in (("sentence1", "sentence2"), ("text_a", "text_b"), ("text", None), ("sentence", None))
    )
    extras: ClassVar[frozenset[str]] = frozenset({"distill", "sift", "frozen"})
    summary = True
    settings: TextSettings

    @classmethod
    def of_line(cls, id: str, line: str) -> Text:
        first, separator, second = line.partition("[SEP]")
        return Text(id=id, text=first.strip(), pair=second.strip() if separator else None)

    @classmethod
    def suited(cls, settings: FormSettings, train: Split) -> FormSettings:
        assert isinstance(settings, TextSettings)
        return replace(settings, pairs=train.examples[0].pair is not None)

    def _target(self, example: Text) -> Any:
        """What the head is to learn: a number, or an array of numbers."""
        raise NotImplementedError

    def _known(self, batch: TaskBatch) -> Tensor:
        """Which sequences have a target, (n,) bool in the order of rows."""
        raise NotImplementedError

    def items(self, examples: Sequence[Example], *, train: bool = False) -> list[Item]:
        limit = self.settings.max_length  # tokens beyond it are cut, however many there are
        first = self.tokenizer.encode_batch([e.text for e in examples if isinstance(e, Text)], limit=limit)
        pairs = [e.pair for e in examples if isinstance(e, Text) and e.pair is not None]
        if pairs and len(pairs) < len(examples):
            alone = next(e.id for e in examples if isinstance(e, Text) and e.pair is None)
            raise DataError(
                f"{len(examples) - len(pairs)} of {len(examples)} examples have no second text (the first: {alone}); "
                f"give all or none"
            )
        if self.settings.pairs is not None and self.settings.pairs != bool(pairs) and examples:
            learned, given = ("two texts", "one") if self.settings.pairs else ("one text", "two")
            raise DataError(f"the model learned from {learned} per example, here is {given}; give the columns it needs")
        second: Sequence[Encoding | None] = (
            self.tokenizer.encode_batch(pairs, limit=limit) if pairs else [None] * len(examples)
        )
        items = []
        for number, (example, a, b) in enumerate(zip(examples, first, second, strict=True)):
            assert isinstance(example, Text)
            if train and example.label is None:
                continue
            target = self._target(example)
            items.append(Item(number, (self._frame(a, b, target),)))
            if train and self.settings.swap and self.task.swap and b is not None:
                items.append(Item(number, (self._frame(b, a, target),)))
        return items

    def _frame(self, a: Encoding, b: Encoding | None, target: Any) -> Encoded:
        longest = self.settings.max_length
        ids, segments = self.tokenizer.frame(a.ids, None if b is None else b.ids, max_length=longest)
        kept = self.tokenizer.spans(len(a), None if b is None else len(b), max_length=longest)
        self.cut += kept.a + kept.b < len(a) + (0 if b is None else len(b))
        return Encoded(ids.astype(np.int32), segments, {"target": target})

    def counts(self, batch: TaskBatch) -> dict[str, int]:
        return {self.name: int(self._known(batch).sum())}

    def known_scores(
        self, model: Network, states: States, batch: TaskBatch, noise: Noise | None
    ) -> tuple[Tensor, Tensor]:
        """Scores (k, labels) and targets of the k sequences that have a target, in the order of rows."""
        scores, target = self.all_scores(model, states, batch, noise)
        (known,) = batch.find(self._known)
        return scores[known], target[known]

    def all_scores(
        self, model: Network, states: States, batch: TaskBatch, noise: Noise | None
    ) -> tuple[Tensor, Tensor]:
        """Scores (n, labels) and targets of all sequences in the order of rows."""
        assert isinstance(model.task, ClassificationHead)
        chosen = summary_places(batch, model, self.tokenizer)
        x, keys = summaries(model, states, batch, chosen, noise)
        return model.task(x, keys), batch.labels["target"][chosen.rows, chosen.slots]

    def scores(self, model: Network, states: States, batch: TaskBatch, noise: Noise | None) -> torch.Tensor:
        return self.known_scores(model, states, batch, noise)[0]

    def outputs(self, model: Network, states: States, batch: TaskBatch) -> list[Any]:
        scores = to_numpy(self.answered(model, self.all_scores(model, states, batch, None)[0]))
        rows, slots = batch.sequences()
        order = np.argsort(batch.labels["item"][rows, slots].cpu().numpy(), kind="stable")
        return list(scores[order])

    def answered(self, model: Network, scores: Tensor) -> Tensor:
        """The scores of the head as :meth:`decode` takes them."""
        return scores


def one_label(example: Text, place: str) -> str:
    """The label as it is written in the file.

    Raises:
        DataError: there are several.
    """
    if isinstance(example.label, tuple):
        raise DataError(
            f"{place}: the label {list(example.label)} is a list; give one label for each row, or --form multilabel"
        )
    return str(example.label)


def label_of(example: Any) -> Any:
    """The label of a text that is scored.

    Raises:
        DataError: it has none.
    """
    if example.label is None:
        raise DataError(f"example {example.id}: no label to score against; score labelled data")
    return example.label
