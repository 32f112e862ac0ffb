"""Multiple choice: one score per option from its summary vector, a softmax over the options (Devlin et al., 2019,
4.4).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from encoderlab.errors import ConfigError
from encoderlab.model import Model
from encoderlab.models.base import Family
from encoderlab.nn.encoder import States
from encoderlab.nn.heads import ClassificationHead, TaskHead
from encoderlab.nn.noise import Noise
from encoderlab.objectives.base import Term
from encoderlab.tasks.base import Choice, Example
from encoderlab.tasks.form import Form, Predictions, log_softmax, summaries, summary_places
from encoderlab.tasks.rows import Encoded, Item, TaskBatch, to_numpy

MASKS = 4  # an idiom has four characters
GAP = re.compile(r"#idiom\d*#")  # ChID's, with a number (CLUE) or without (FewCLUE)


class MultipleChoice(Form):
    """The options of an example are one item and batched together.

    The first text is the context (or the question if there is none), the second the question and the option; the
    context is cut first. With a gap in the question the option fills it; with a gap in the context (ChID) the option
    comes first and the text around the gap, held open by mask tokens, second.

    ``choice=clue`` writes what CLUE's baselines read: "[CLS] document [SEP] question [SEP] option [SEP]" (C3), and
    "[CLS] option [SEP] left [unused1] right [SEP]" in one segment, other gaps held open by mask tokens (ChID).
    """

    summary = True

    def head(self, family: Family, model: Model) -> TaskHead:
        return replace(family.classification, labels=1)

    def head_labels(self) -> tuple[str, ...]:
        return ("choice",)

    def items(self, examples: Sequence[Example], *, train: bool = False) -> list[Item]:
        items = []
        mask = self.tokenizer.token(self.tokenizer.special.mask)
        for number, example in enumerate(examples):
            assert isinstance(example, Choice)
            if train and not example.answers:
                continue
            if example.gap and example.gap in example.context:
                sequences = self._cloze(example, mask)
            else:
                sequences = self._options(example)
            labels = [int(i in (example.answers or ())) for i in range(len(example.options))]
            items.append(
                Item(
                    number,
                    tuple(
                        Encoded(ids.astype(np.int32), segments, {"right": right})
                        for (ids, segments), right in zip(sequences, labels, strict=True)
                    ),
                )
            )
        return items

    def _options(self, example: Choice) -> list[tuple[np.ndarray, np.ndarray]]:
        begin = np.empty(0, np.int64)  # of every second text
        if example.gap:
            seconds = [example.question.replace(example.gap, option) for option in example.options]
        elif not example.context:
            seconds = list(example.options)
        elif self.settings.choice == "clue":
            seconds = list(example.options)
            begin = np.append(self.tokenizer.encode(example.question).ids, self.tokenizer.special.sep)
        else:
            seconds = [f"{example.question} {option}".strip() for option in example.options]
        context, *encoded = self.tokenizer.encode_batch([example.context or example.question, *seconds])
        options = [np.concatenate([begin, option.ids]) for option in encoded]
        longest = max(map(len, options))
        room = self.settings.max_length - 4
        # The context gives way, down to a quarter of the room; what is still too much is cut from the longer side.
        kept = context.ids[: max(room - longest, room // 4)]
        self.cut += len(kept) < len(context)
        return [self.tokenizer.frame(kept, option, max_length=self.settings.max_length) for option in options]

    def _cloze(self, example: Choice, mask: str) -> list[tuple[np.ndarray, np.ndarray]]:
        place = example.context.index(example.gap)
        around = (example.context[:place], example.context[place + len(example.gap) :])
        # Other gaps of the passage are held open too; the text begins and ends half a sequence away from this one.
        texts = [GAP.sub(mask * MASKS, part) for part in around]
        left, right, *options = self.tokenizer.encode_batch([*texts, *example.options])
        clue = self.settings.choice == "clue"
        middle = np.array([self._gap_token()]) if clue else np.full(MASKS, self.tokenizer.special.mask)
        room = self.settings.max_length - 3 - max(map(len, options)) - len(middle)
        share = min(len(left), max(room // 2, room - len(right)))
        text = np.concatenate([left.ids[len(left) - share :], middle, right.ids[: max(room - share, 0)]])
        self.cut += len(left) + len(right) > room
        framed = [self.tokenizer.frame(option.ids, text, max_length=self.settings.max_length) for option in options]
        return [(ids, np.zeros_like(segments)) for ids, segments in framed] if clue else framed

    def _gap_token(self) -> int:
        found = self.tokenizer.id("[unused1]")
        if found is None:
            raise ConfigError("the vocabulary has no [unused1], with which choice=clue marks a gap; set choice=joined")
        return found

    def counts(self, batch: TaskBatch) -> dict[str, int]:
        return {"choice": _groups(batch)[1]}

    def terms(self, model: Model, states: States, batch: TaskBatch, noise: Noise | None) -> dict[str, Term]:
        """-log of the probability of the right options together, summed over the examples."""
        scores, rows, slots = self._scores(model, states, batch, noise)
        group, groups = _groups(batch)
        right = batch.labels["right"][rows, slots] == 1
        everything = _logsumexp(scores, group, groups, torch.ones_like(right))
        answers = _logsumexp(scores, group, groups, right)
        best = scores.new_full((groups,), -torch.inf).scatter_reduce(0, group, scores.detach(), "amax")
        best_right = scores.new_full((groups,), -torch.inf).scatter_reduce(
            0, group, torch.where(right, scores.detach(), -torch.inf), "amax"
        )
        return {"choice": Term((everything - answers).sum(), groups, hits=(best_right >= best).sum())}

    def scores(self, model: Model, states: States, batch: TaskBatch, noise: Noise | None) -> Tensor:
        """(examples, most options), filled up with the least number where an example has fewer."""
        scores, rows, slots = self._scores(model, states, batch, noise)
        group, groups = _groups(batch)
        most = int(batch.on_host.labels["option"].max()) + 1
        table = scores.new_full((groups, most), torch.finfo(scores.dtype).min / 2)
        return table.index_put((group, batch.labels["option"][rows, slots]), scores)

    def _scores(
        self, model: Model, states: States, batch: TaskBatch, noise: Noise | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Score of every sequence, in the order of rows, and its row and slot; (n,) each."""
        assert isinstance(model.task, ClassificationHead)
        chosen = summary_places(batch, model, self.tokenizer)
        x, keys = summaries(model, states, chosen, noise)
        return model.task(x, keys)[:, 0].float(), chosen.rows, chosen.slots

    def outputs(self, model: Model, states: States, batch: TaskBatch) -> list[Any]:
        scores, rows, slots = self._scores(model, states, batch, None)
        items, options = (batch.labels[name][rows, slots].tolist() for name in ("item", "option"))
        by_item: list[Any] = [[] for _ in range(len(batch))]
        for item, _, score in sorted(zip(items, options, to_numpy(scores).tolist(), strict=True)):
            by_item[item].append(score)
        return [np.array(found) for found in by_item]

    def decode(self, items: Sequence[Item], outputs: Sequence[Any], examples: Sequence[Example]) -> Predictions:
        probabilities = [np.exp(log_softmax(scores)) for scores in outputs]
        values = [int(probability.argmax()) for probability in probabilities]
        details = [
            {"score": float(probability[value]), "probabilities": probability}
            for value, probability in zip(values, probabilities, strict=True)
        ]
        return Predictions(values=values, details=details)


def _groups(batch: TaskBatch) -> tuple[Tensor, int]:
    """The number of its example within the batch for every sequence, (n,) in the order of rows, and of how many."""
    known = batch.on_host
    found, group = torch.unique(known.labels["item"][known.sequences()], return_inverse=True)
    return batch.bring(group), len(found)


def _logsumexp(scores: Tensor, group: Tensor, groups: int, chosen: Tensor) -> Tensor:
    """log sum exp of the chosen scores of each group, (groups,)."""
    shown = torch.where(chosen, scores, -torch.inf)
    top = scores.new_full((groups,), -torch.inf).scatter_reduce(0, group, shown.detach(), "amax")
    sums = scores.new_zeros(groups).index_add(0, group, torch.exp(shown - top[group]))
    return top + sums.log()
