"""Pruning and its report: heads are chosen on one half of the data, scores before and after are of the other half."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from encoderlab.batches.batch import Batch
from encoderlab.errors import DataError
from encoderlab.files import write_json, write_text
from encoderlab.inference import usual_device
from encoderlab.inspection.heads import importance, losses
from encoderlab.inspection.language import batches_of, objective_of
from encoderlab.model import Model
from encoderlab.tasks.data.examples import Example
from encoderlab.tasks.data.splits import text_hash
from encoderlab.tasks.data.task import Task
from encoderlab.tasks.forms.batching import sorted_batches
from encoderlab.tasks.forms.objective import TaskObjective
from encoderlab.tasks.forms.table import FORMS
from encoderlab.tasks.runs.predict import Predictor


@dataclass(frozen=True)
class OnText:
    """A pretrained model under its own objective."""

    model: Model
    generator: Model | None
    chosen_by: Sequence[Batch]
    held_out: Sequence[Batch]

    @classmethod
    def of(cls, model: Model, generator: Model | None, source: str, count: int) -> OnText:
        """On ``count`` rows of ``source``: see :func:`encoderlab.inspection.language.batches_of`."""
        device = usual_device()
        model, generator = model.to(device), None if generator is None else generator.to(device)
        batches = batches_of(objective_of(model, generator), model, source, count)
        halves = [(batch, (len(batch) + 1) // 2) for batch in batches]
        chosen_by = [batch.slice(0, middle) for batch, middle in halves]
        held_out = [batch.slice(middle, len(batch)) for batch, middle in halves if middle < len(batch)]
        return cls(model, generator, chosen_by, held_out)

    def importance(self) -> np.ndarray:
        """Of every head, on the first half: (layers, H)."""
        return importance(objective_of(self.model, self.generator), self.model.encoder, self.chosen_by)

    def scores(self, model: Model) -> dict[str, float]:
        """The losses of the model, or of a smaller one instead, on the other half, in nats."""
        return losses(objective_of(model, self.generator), self.held_out)


@dataclass(frozen=True)
class OnTask:
    """A fine-tuned model on labelled examples of the task that it was trained for."""

    predictor: Predictor
    task: Task
    examples: Sequence[Example]

    @property
    def model(self) -> Model:
        model = self.predictor.model
        assert isinstance(model, Model)
        return model

    def importance(self) -> np.ndarray:
        """Of every head, on the first half: (layers, H)."""
        return importance(self.predictor.objective, self.model.encoder, self._batches(self.predictor, 0))

    def scores(self, model: Model) -> dict[str, float]:
        """Loss and measures of the model, or of a smaller one instead, on the other half."""
        predictor = Predictor(TaskObjective(model.to(usual_device()), self.predictor.form))
        examples = self._half(1)
        scores, _ = FORMS[self.task.form].score_found(self.task, examples, predictor.predict(examples))
        return {"loss": losses(predictor.objective, self._batches(predictor, 1))["loss"], **scores}

    def _half(self, half: int) -> Sequence[Example]:
        """The examples of every other text, in an order in which alternating labels are not apart. Copies of a text,
        and the questions about a passage, are in one half.
        """
        texts = [text_hash(example) for example in self.examples]
        chosen = {*sorted({*texts})[half::2]}
        return [example for example, text in zip(self.examples, texts, strict=True) if text in chosen]

    def _batches(self, predictor: Predictor, half: int) -> list[Batch]:
        form = predictor.form
        items = form.items(self._half(half), train=True)
        if not items:
            raise DataError(f"{self.task.name}: no labelled example to choose heads by; give labelled data")
        device = next(predictor.model.parameters()).device
        pad, room = form.tokenizer.special.pad, form.settings.max_length
        return [batch.to(device) for _, batch in sorted_batches(items, pad=pad, room=room)]


def record(
    name: str,
    scores: np.ndarray,
    kept: Sequence[Sequence[int]],
    before: Mapping[str, float],
    after: Mapping[str, float],
    sizes: tuple[int, int],
) -> dict[str, Any]:
    """The report as plain data. ``sizes``: parameters before and after."""
    layers, heads = scores.shape
    gone = [sorted(set(range(heads)) - set(row)) for row in kept]
    return {
        "model": name,
        "layers": layers,
        "heads": {"before": heads, "after": len(kept[0])},
        "parameters": {"before": sizes[0], "after": sizes[1]},
        "scores": {"before": dict(before), "after": dict(after)},
        "importance": scores.tolist(),
        "removed": gone,
    }


def write(report: Mapping[str, Any], out: Path) -> None:
    """Write ``pruning.json`` and, for people, ``pruning.md``."""
    write_json(out / "pruning.json", dict(report))
    before, after = report["scores"]["before"], report["scores"]["after"]
    heads, parameters = report["heads"], report["parameters"]
    lines = [
        f"# {report['model']} with {heads['after']} of {heads['before']} heads per layer",
        "",
        f"{parameters['before']:,} parameters before, {parameters['after']:,} after. Heads were chosen on one half of",
        "the data by the gradient of the loss by a factor on their output (Michel et al., 2019); the scores are those",
        "of the other half.",
        "",
        "| score | before | after |",
        "|---|---|---|",
        *(f"| {name} | {before[name]:.4f} | {after[name]:.4f} |" for name in before),
        "",
        "Importance of every head, in units of the layer's largest; removed heads in brackets.",
        "",
        "| layer | " + " | ".join(f"head {head}" for head in range(heads["before"])) + " |",
        "|---|" + "---|" * heads["before"],
    ]
    for layer, (row, gone) in enumerate(zip(report["importance"], report["removed"], strict=True)):
        most = max(row) or 1.0
        cells = [f"({value / most:.2f})" if head in gone else f"{value / most:.2f}" for head, value in enumerate(row)]
        lines.append(f"| {layer} | " + " | ".join(cells) + " |")
    write_text(out / "pruning.md", "\n".join(lines) + "\n")
