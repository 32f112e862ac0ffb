"""Common parts of the forms that answer from one vector per example of one or two texts."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from encoderlab.corpus.tokenizer import Encoding
from encoderlab.errors import DataError
from encoderlab.nn.encoder import States
from encoderlab.nn.noise import Noise
from encoderlab.tasks.data.examples import Example, GivenPrediction, Split, Text
from encoderlab.tasks.data.readers import Columns
from encoderlab.tasks.forms.base import Answers, Form, FormSettings, Network, Predictions, summary_logits
from encoderlab.tasks.forms.batching import OPTIONS, Encoded, Item, TaskBatch, groups, to_numpy
from encoderlab.tasks.scoring.analysis import Mistake, texts_of

if TYPE_CHECKING:
    from encoderlab.tasks.data.task import Task


@dataclass(frozen=True, kw_only=True)
class TextSettings(FormSettings):
    """Settings of forms with one or two texts.

    A text of n windows costs n sequences, and training keeps all of them in memory at once.

    Args:
        pairs: whether examples have two texts; a model trained on one kind refuses the other. None takes any.
        swap: also train on the two texts in the other order, if the task allows it (ELECTRA's MRPC and STS-B).
        windows: largest number of windows of ``max_length`` tokens for a longer text; the means of their logits are the
            logits of the text, in training, validation and prediction. 1 cuts the text. Windows are at equal distances
            from the first token to the last, and neighbours overlap by at least a quarter. Of two texts the longer is
            read in windows; the other takes at most half of the room.
    """

    pairs: bool | None = None
    swap: bool = False
    windows: Annotated[int, Field(ge=1, lt=OPTIONS)] = 1


class TextForm(Form):
    """Encodes texts and pairs of texts; the head reads the vector of the summary token.

    A subclass defines the target of an example (:meth:`_target`), which targets are known (:meth:`_known`), and what
    the logits mean. The logits of an example are the means over its sequences; a long text read in windows has several.
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

    @classmethod
    def read_prediction(cls, task: Task, example: Any, guess: GivenPrediction) -> Any:
        if guess.value is None or not str(guess.value).strip():
            raise DataError(f"{guess.place}: no prediction; give one for every example")
        return str(guess.value).strip()

    @classmethod
    def mistake(cls, task: Task, place: int, example: Any, value: Any, detail: Mapping[str, Any]) -> Mistake:
        texts = texts_of({"text": example.text, "second text": example.pair})
        gold, guess = cls.in_words(label_of(example)), cls.in_words(value)
        return Mistake(place=place, id=example.id, texts=texts, gold=gold, predicted=guess)

    @staticmethod
    def in_words(label: Any) -> str:
        """A label, gold or predicted, as a reader of mistakes sees it."""
        return str(label)

    def _target(self, example: Text) -> Any:
        """The target of the head: a number, or an array of numbers."""
        raise NotImplementedError

    def _known(self, target: Tensor) -> Tensor:
        """Which targets (n, ...) are known, (n,) bool."""
        raise NotImplementedError

    def items(self, examples: Sequence[Any], *, train: bool = False) -> list[Item]:
        limit = self.settings.max_length * self.settings.windows  # more tokens than are read of a text
        first = self.tokenizer.encode_batch([e.text for e in examples], limit=limit)
        pairs = [e.pair for e in examples if e.pair is not None]
        if pairs and len(pairs) < len(examples):
            alone = next(e.id for e in examples if e.pair is None)
            raise DataError(
                f"{len(examples) - len(pairs)} of {len(examples)} examples have no second text (the first: {alone}); "
                f"give all or none"
            )
        if self.settings.pairs is not None and self.settings.pairs != bool(pairs) and examples:
            learned, here = ("two texts", "here is one") if self.settings.pairs else ("one text", "here are two")
            remedy = f"give {learned}, in a table by --text and --pair"
            raise DataError(f"the model was trained on {learned} per example, {here}; {remedy}")
        second: Sequence[Encoding | None] = (
            self.tokenizer.encode_batch(pairs, limit=limit) if pairs else [None] * len(examples)
        )
        items = []
        for number, (example, a, b) in enumerate(zip(examples, first, second, strict=True)):
            if train and example.label is None:
                continue
            target = self._target(example)
            items.append(Item(number, self._sequences(a, b, target)))
            if train and self.settings.swap and self.task.swap and b is not None:
                items.append(Item(number, self._sequences(b, a, target)))
        return items

    def cut_note(self, whose: str, longest: str) -> str:
        windows = self.settings.windows
        return super().cut_note(whose, longest if windows == 1 else f"{windows} windows of {longest}")

    def most(self, sizes: Sequence[int]) -> int:
        """The number of tokens that are read of one or two texts of these sizes, in all windows together."""
        read = self.kept(*sizes)
        if self.settings.windows == 1 or read >= sum(sizes):
            return read
        beside = min(min(sizes), read // 2) if len(sizes) > 1 else 0  # the part in every window
        size = read - beside
        return beside + min(max(sizes), size + (self.settings.windows - 1) * (size - size // 4))

    def _sequences(self, a: Encoding, b: Encoding | None, target: Any) -> tuple[Encoded, ...]:
        """One sequence, cut if it is too long, or the windows of a long text."""
        longest = self.settings.max_length
        texts = [a.ids] if b is None else [a.ids, b.ids]
        windows, read = [texts], self.kept(*map(len, texts))
        if self.settings.windows > 1 and read < sum(map(len, texts)):
            windows, read = self._windows(texts, read)
        self.cut += read < sum(map(len, texts))
        framed = [self.tokenizer.frame(w[0], w[1] if len(w) > 1 else None, max_length=longest) for w in windows]
        return tuple(Encoded(ids.astype(np.int32), segments, {"target": target}) for ids, segments in framed)

    def _windows(self, texts: list[np.ndarray], room: int) -> tuple[list[list[np.ndarray]], int]:
        """The windows of texts with more than ``room`` tokens together, and the number of their tokens that are
        read.
        """
        long = max(range(len(texts)), key=lambda i: len(texts[i]))
        others = [text if i == long else text[: room // 2] for i, text in enumerate(texts)]
        beside = sum(map(len, others)) - len(texts[long])
        size = room - beside
        step = size - size // 4
        end = min(len(texts[long]), size + (self.settings.windows - 1) * step)
        starts = np.linspace(0, end - size, 1 - (size - end) // step).round().astype(int)
        windows = [
            [texts[long][start : start + size] if i == long else text for i, text in enumerate(others)]
            for start in starts
        ]
        return windows, end + beside

    def counts(self, batch: TaskBatch) -> dict[str, int]:
        return {self.name: int(self._known(_targets(batch)).sum())}

    def known_logits(
        self, model: Network, states: States, batch: TaskBatch, noise: Noise | None
    ) -> tuple[Tensor, Tensor]:
        """Logits (k, labels) and targets of the k examples that have a target, in their order."""
        (known,) = batch.find(lambda batch: self._known(_targets(batch)))
        return self.all_logits(model, states, batch, noise)[known], _targets(batch)[known]

    def all_logits(self, model: Network, states: States, batch: TaskBatch, noise: Noise | None) -> Tensor:
        """Logits (n, labels) of all examples in their order."""
        logits, _ = summary_logits(model, states, batch, self.tokenizer, noise)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        group, sizes = groups(batch)
        return logits.new_zeros(len(sizes), logits.shape[1]).index_add(0, group, logits) / sizes[:, None]

    def logits(self, model: Network, states: States, batch: TaskBatch, noise: Noise | None) -> torch.Tensor:
        return self.known_logits(model, states, batch, noise)[0]

    def outputs(self, model: Network, states: States, batch: TaskBatch) -> list[Any]:
        return list(to_numpy(self.answered(model, self.all_logits(model, states, batch, None))))

    def answered(self, model: Network, logits: Tensor) -> Tensor:
        """The head's logits as :meth:`decode` takes them."""
        return logits

    def together(self, members: Sequence[Answers], examples: Sequence[Example]) -> Predictions:
        form = copy.copy(self)
        thresholds = [member.predictions.threshold for member in members]
        if any(thresholds):  # a member without one decides by 1/2
            form.threshold = float(np.mean([threshold or 0.5 for threshold in thresholds]))
        return form.decode(members[0].items, self.average([member.outputs for member in members]), examples)


def _targets(batch: TaskBatch) -> Tensor:
    """The targets (n, ...) of all examples in order, on the batch's device."""
    rows, slots = batch.sequences()
    group, sizes = groups(batch)
    targets = batch.labels["target"][rows, slots]
    return targets.new_empty(len(sizes), *targets.shape[1:]).index_copy(0, group, targets)  # equal in all windows


GAPS = ("", "None", "null", "nan", "NaN")  # where other tools had no value


def one_label(example: Text, place: str) -> str:
    """The label as written in the file.

    Raises:
        DataError: there are several.
    """
    if isinstance(example.label, tuple):
        raise DataError(
            f"{place}: the label {list(example.label)} is a list; give one label for each row, or --form multilabel"
        )
    return str(example.label)


def label_of(example: Any) -> Any:
    """The gold label of a text.

    Raises:
        DataError: the text has no label.
    """
    if example.label is None:
        raise DataError(f"example {example.id}: no label to score against; score labelled data")
    return example.label
