"""Classification and regression of one or two texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from encoderlab.batches.batch import IGNORE
from encoderlab.corpus.tokenizer import Encoding, Tokenizer
from encoderlab.errors import ConfigError, DataError
from encoderlab.interchange.heads import NUMBER
from encoderlab.model import Model
from encoderlab.models.base import Family
from encoderlab.nn.encoder import States
from encoderlab.nn.heads import ClassificationHead, TaskHead
from encoderlab.nn.noise import Noise
from encoderlab.objectives.base import Term
from encoderlab.tasks.data.task import Example, Task, Text
from encoderlab.tasks.forms.base import Form, FormSettings, Predictions, log_softmax, summaries, summary_places
from encoderlab.tasks.forms.batching import Encoded, Item, TaskBatch, to_numpy


class Classify(Form):
    """Cross-entropy over the classes of a classification, squared error of the one output of a regression.

    The output of a regression learns ``(number - offset) / factor``.
    """

    learned = ("cut", "offset", "factor")
    summary = True

    def __init__(self, task: Task, tokenizer: Tokenizer, settings: FormSettings) -> None:
        super().__init__(task, tokenizer, settings)
        self.numbers = task.form == "regression"
        self.index = {label: i for i, label in enumerate(task.labels or ())}
        self.offset, self.factor = 0.0, 1.0
        if self.numbers and settings.targets == "unit" and task.range is not None:
            self.offset, self.factor = task.range[0], task.range[1] - task.range[0]

    def head(self, family: Family, model: Model) -> TaskHead:
        labels = 1 if self.numbers else len(self.index)
        if labels < 1:
            raise ConfigError(
                f"task {self.task.name!r} has no labels yet; take them from its training data (with_labels)"
            )
        return replace(family.classification, labels=labels)

    def head_labels(self) -> tuple[str, ...]:
        return NUMBER if self.numbers else tuple(self.index)

    def items(self, examples: Sequence[Example], *, train: bool = False) -> list[Item]:
        if train and self.numbers and self.settings.targets == "unit" and self.task.range is None:
            self._scale([float(e.label) for e in examples if isinstance(e, Text) and e.label is not None])
        first = self.tokenizer.encode_batch([e.text for e in examples if isinstance(e, Text)])
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
        second: Sequence[Encoding | None] = self.tokenizer.encode_batch(pairs) if pairs else [None] * len(examples)
        items = []
        for number, (example, a, b) in enumerate(zip(examples, first, second, strict=True)):
            assert isinstance(example, Text)
            if train and example.label is None:
                continue
            label = self._target(example)
            items.append(Item(number, (self._frame(a, b, label),)))
            if train and self.settings.swap and self.task.swap and b is not None:
                items.append(Item(number, (self._frame(b, a, label),)))
        return items

    def _frame(self, a: Encoding, b: Encoding | None, label: float | int) -> Encoded:
        longest = self.settings.max_length
        ids, segments = self.tokenizer.frame(a.ids, None if b is None else b.ids, max_length=longest)
        kept = self.tokenizer.spans(len(a), None if b is None else len(b), max_length=longest)
        self.cut += kept.a + kept.b < len(a) + (0 if b is None else len(b))
        return Encoded(ids.astype(np.int32), segments, {"target": label})

    def _target(self, example: Text) -> float | int:
        if self.numbers:
            return float("nan") if example.label is None else (float(example.label) - self.offset) / self.factor
        return IGNORE if example.label is None else self.index.get(str(example.label), IGNORE)

    def _scale(self, numbers: Sequence[float]) -> None:
        """Learn numbers without a known range with mean 0 and standard deviation 1."""
        self.offset, self.factor = float(np.mean(numbers)), float(np.std(numbers)) or 1.0

    def counts(self, batch: TaskBatch) -> dict[str, int]:
        return {self.task.form: int(self._known(batch).sum())}

    def _known(self, batch: TaskBatch) -> torch.Tensor:
        """Which sequences have a target, (n,) bool in the order of rows."""
        target = batch.labels["target"][batch.sequences()]
        return target.isfinite() if self.numbers else target != IGNORE

    def terms(self, model: Model, states: States, batch: TaskBatch, noise: Noise | None) -> dict[str, Term]:
        scores, target = self._scores(model, states, batch, noise)
        (known,) = batch.find(self._known)
        scores, target = scores[known], target[known]
        if self.numbers:
            loss = ((scores[:, 0].float() - target) ** 2).sum()
            return {self.task.form: Term(loss, len(target))}
        loss = F.cross_entropy(scores.float(), target, reduction="sum")
        return {self.task.form: Term(loss, len(target), hits=(scores.argmax(-1) == target).sum())}

    def _scores(
        self, model: Model, states: States, batch: TaskBatch, noise: Noise | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Scores (n, labels) and targets (n,) of all sequences in the order of rows."""
        assert isinstance(model.task, ClassificationHead)
        chosen = summary_places(batch, model, self.tokenizer)
        x, keys = summaries(model, states, chosen, noise)
        return model.task(x, keys), batch.labels["target"][chosen.rows, chosen.slots]

    def scores(self, model: Model, states: States, batch: TaskBatch, noise: Noise | None) -> torch.Tensor:
        (known,) = batch.find(self._known)
        return self._scores(model, states, batch, noise)[0][known]

    def outputs(self, model: Model, states: States, batch: TaskBatch) -> list[Any]:
        found = self._scores(model, states, batch, None)[0]
        if self.numbers and model.config.labels != NUMBER:  # a probability, as of transformers' rankers and detectors
            found = found.float().sigmoid()
        scores = to_numpy(found)
        rows, slots = batch.sequences()
        order = np.argsort(batch.labels["item"][rows, slots].cpu().numpy(), kind="stable")
        return list(scores[order])

    def decode(self, items: Sequence[Item], outputs: Sequence[Any], examples: Sequence[Example]) -> Predictions:
        values: list[Any] = []
        details: list[dict[str, Any]] = []
        for scores in outputs:
            if self.numbers:
                values.append(self.offset + self.factor * float(scores[0]))
                details.append({"score": values[-1]})
            else:
                probability = np.exp(log_softmax(scores))
                best = int(probability.argmax())
                values.append(tuple(self.index)[best])
                details.append({"score": float(probability[best]), "probabilities": probability})
        return Predictions(values=values, details=details)

    def average(self, outputs: Sequence[Sequence[Any]]) -> list[Any]:
        if self.numbers:
            return [np.mean(item, axis=0) for item in zip(*outputs, strict=True)]
        return super().average(outputs)

    def finish(self, model: Model) -> None:
        """Fold the scale of the numbers into the output layer, so that the saved model answers in those of the file."""
        if not self.numbers:
            return
        assert isinstance(model.task, ClassificationHead)
        with torch.no_grad():
            model.task.out.weight.mul_(self.factor)
            model.task.out.bias.mul_(self.factor).add_(self.offset)
