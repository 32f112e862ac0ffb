"""The outputs of an exported graph for the items of a task, in the form that fine-tuning's code decodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from encoderlab.batches.batch import stack
from encoderlab.deploy.graph import Arrays, Run, summary_is_last
from encoderlab.inference import BATCH_TOKENS, by_length
from encoderlab.model import Model
from encoderlab.tasks.forms.base import Form
from encoderlab.tasks.forms.batching import Encoded, Item
from encoderlab.tasks.forms.best_spans import Candidates
from encoderlab.tasks.forms.span import SpanForm
from encoderlab.tasks.forms.texts import TextForm


def inputs_of(ids: Sequence[np.ndarray], segments: Sequence[np.ndarray], pad: int) -> Arrays:
    """Rows of token ids as the inputs of a graph, int64 (B, L), padded on the right."""
    return {
        "input_ids": stack(ids, pad).numpy(),
        "attention_mask": stack([np.ones(len(row)) for row in ids], 0).numpy(),
        "token_type_ids": stack(segments, 0).numpy(),
    }


class TaskReader:
    """A runtime that replaces a model with a task head.

    Args:
        run: the graph of ``model`` with its task head.
        model: gives the configuration; its weights are not read.
        form: encodes and decodes.
    """

    def __init__(self, run: Run, model: Model, form: Form) -> None:
        self.run, self.model, self.form = run, model, form
        self._last = summary_is_last(model, "span")

    def outputs(self, items: Sequence[Item], budget: int = BATCH_TOKENS) -> list[Any]:
        """What :meth:`encoderlab.tasks.runs.predict.Predictor.outputs` gives for the items."""
        scores = self.scores(items, budget)
        if not isinstance(self.form, TextForm):
            return scores
        return [self.form.answered(self.model, torch.from_numpy(one)[None])[0].numpy() for one in scores]

    def scores(self, items: Sequence[Item], budget: int = BATCH_TOKENS) -> list[Any]:
        """The head's scores of every item as they are."""
        sequences = [sequence for item in items for sequence in item.sequences]
        results: list[Any] = [None] * len(sequences)
        for index in by_length([len(sequence) for sequence in sequences], budget):
            outputs = self.run(self._inputs([sequences[i] for i in index]))
            for row, i in enumerate(index):
                results[i] = self._output({name: array[row] for name, array in outputs.items()}, sequences[i])
        by_item, left = [], iter(results)
        for item in items:
            own = [next(left) for _ in item.sequences]
            by_item.append(self._joined(own))
        return by_item

    def _joined(self, own: list[Any]) -> Any:
        """The output of an item from those of its sequences: windows of a text, or options."""
        if isinstance(self.form, TextForm):
            return np.mean(own, axis=0)
        return np.concatenate(own) if self.form.columns == "options" else own[0]

    def _inputs(self, sequences: Sequence[Encoded]) -> Arrays:
        inputs = inputs_of(
            [sequence.ids for sequence in sequences],
            [sequence.segments for sequence in sequences],
            self.form.tokenizer.special.pad,
        )
        if isinstance(self.form, SpanForm):
            inputs["p_mask"] = stack([~self._allowed(sequence) for sequence in sequences], 1).numpy()
        return inputs

    def _allowed(self, sequence: Encoded) -> np.ndarray:
        """Where an answer may start or end; ALBERT's code forbids the last separator, which ELECTRA's allows."""
        allowed = np.array(sequence.marks["allowed"], bool)
        if getattr(self.model.config.task, "variant", "") == "beam" and not self._last:
            allowed[-1] = False
        return allowed

    def _output(self, output: Arrays, sequence: Encoded) -> Any:
        size = len(sequence)
        if self.form.columns in ("texts", "options"):
            return output["logits"]
        if self.form.columns == "words":
            return output["logits"][:size][sequence.marks["word"] >= 0]
        if "start_top_log_probs" in output:
            return Candidates(
                output["start_top_index"],
                output["start_top_log_probs"],
                output["end_top_index"],
                output["end_top_log_probs"],
                float(output["cls_logits"]),
                absolute=True,
            )
        starts, ends = output["start_logits"][:size], output["end_logits"][:size]
        allowed = self._allowed(sequence)
        best = min(self.form.settings.beam or 20, size)
        start, end = (np.argsort(-np.where(allowed, side, -np.inf), kind="stable")[:best] for side in (starts, ends))
        summary = size - 1 if self._last else 0
        return Candidates(
            start,
            np.where(allowed, starts, -np.inf)[start],
            np.tile(end, (best, 1)),
            np.tile(np.where(allowed, ends, -np.inf)[end], (best, 1)),
            float(starts[summary] + ends[summary]),
            absolute=False,
        )
