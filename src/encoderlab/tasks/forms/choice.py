"""Multiple choice: one score per option from its summary vector, a softmax over them (Devlin et al., 2019, 4.4)."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor

from encoderlab.errors import ConfigError, DataError
from encoderlab.interchange.heads import CHOICES, chooses
from encoderlab.models.base import Family
from encoderlab.nn.encoder import States
from encoderlab.nn.heads import TaskHead
from encoderlab.nn.noise import Noise
from encoderlab.objectives.base import Term
from encoderlab.tasks.data.examples import Choice, Example, GivenPrediction, Remarks
from encoderlab.tasks.data.readers import Options
from encoderlab.tasks.data.readers.choices import letter_place
from encoderlab.tasks.forms.base import (
    Form,
    FormSettings,
    Network,
    Predictions,
    Scores,
    softmax,
    summary_logits,
)
from encoderlab.tasks.forms.baselines import overlapping_option, usual_place
from encoderlab.tasks.forms.batching import Encoded, Item, TaskBatch, groups, to_numpy
from encoderlab.tasks.scoring import answers
from encoderlab.tasks.scoring.analysis import Mistake, texts_of
from encoderlab.train.data import Chance

if TYPE_CHECKING:
    from encoderlab.tasks.data.task import Task

MASKS = 4  # an idiom has four characters
GAP = re.compile(r"#idiom\d*#")  # ChID's, with a number (CLUE) or without (FewCLUE)


@dataclass(frozen=True, kw_only=True)
class ChoiceSettings(FormSettings):
    """Settings of multiple choice.

    Args:
        choice: ``joined`` appends an option to its question and writes masks for a gap in the passage; ``clue`` follows
            CLUE's baselines, with a separator before the option and ``[unused1]`` for the gap.
    """

    kind: Literal["choice"] = "choice"
    choice: Literal["joined", "clue"] = "joined"


class ChoiceForm(Form):
    """Scores the options of an example against each other; they are one item, so that they are in the same batch.

    An option is a sequence of two texts: the context (or the question, if there is no context), then the question with
    the option. Texts that are too long lose tokens of the context first. An option fills a gap in the question. With a
    gap in the context (ChID) the option comes first, then the text around the gap, with mask tokens for the gap.

    ``choice=clue`` writes the input of CLUE's baselines: "[CLS] document [SEP] question [SEP] option [SEP]" (C3), and
    "[CLS] option [SEP] left [unused1] right [SEP]" in one segment, with mask tokens for other gaps (ChID).
    """

    name = "choice"
    description = "one of several options"
    settings_type = ChoiceSettings
    columns = "options"
    layouts = (Options(context="context", question="question", options=("options",), answer="answer"),)
    file_with = " with the columns context, question and options"
    metrics = ("accuracy",)
    baselines = {"majority": usual_place, "word overlap": overlapping_option}
    extras = frozenset({"distill", "sift"})
    summary = True
    settings: ChoiceSettings

    # Data

    @classmethod
    def checked(cls, task: Task, example: Any, place: str, remarks: Remarks) -> Example:
        wrong = [answer for answer in example.answers or () if not 0 <= answer < len(example.options)]
        if wrong:
            raise DataError(
                f"{place}: answer {wrong[0]} is not one of the {len(example.options)} options, which count from 0; "
                f"correct the row"
            )
        return example

    @classmethod
    def fits(cls, model: Network) -> bool:
        return chooses(model.config)

    # Scores

    @classmethod
    def read_prediction(cls, task: Task, example: Choice, guess: GivenPrediction) -> tuple[int]:
        """The index of an option that is given as a number, by its text, or by its letter.

        If an option is itself a number, ReCoRD's predictions are texts; others are numbers of options if there are so
        many.
        """
        value, options = guess.value, example.options
        if isinstance(value, int) and not isinstance(value, bool):
            return (value,)
        text = str(value).strip()
        if text.isascii() and text.isdigit():
            number = int(text)
            if value not in options or (task.answers != "record" and number < len(options)):
                return (number,)
        if value in options:
            return (options.index(value),)
        if (place := letter_place(text)) >= 0:
            return (place,)
        raise DataError(
            f"{guess.place}: {text[:40]!r} is none of the {len(options)} options; give the number, which counts from "
            f"0, the text or the letter of one"
        )

    @classmethod
    def value_of(cls, example: Choice) -> int:
        (place,) = example.answers or ()
        return place

    @classmethod
    def measures(cls, task: Task, examples: Sequence[Any], predictions: Sequence[Any]) -> Scores:
        right = []
        for example, guess in zip(examples, predictions, strict=True):
            if example.answers is None:
                raise DataError(f"example {example.id}: no answer to score against; score labelled data")
            right.append(guess in example.answers)
        scores = {"accuracy": float(np.mean(right))}
        if task.answers == "record":
            gold = {example.id: [example.options[answer] for answer in example.answers] for example in examples}
            guesses = {example.id: example.options[place] for example, place in zip(examples, predictions, strict=True)}
            scores |= {name: value / 100 for name, value in answers.record(gold, guesses).items()}
        return scores

    @classmethod
    def off(cls, task: Task, example: Any, value: Any, detail: Mapping[str, Any]) -> float:
        """The negative log-probability of the right options, in nats."""
        if value in example.answers:
            return 0.0
        share = sum(float(detail["probabilities"][answer]) for answer in example.answers)
        return -math.log(max(share, 1e-30))

    @classmethod
    def mistake(cls, task: Task, place: int, example: Any, value: Any, detail: Mapping[str, Any]) -> Mistake:
        others = (option for i, option in enumerate(example.options) if i != value and i not in example.answers)
        texts = {"context": example.context, "question": example.question, "other options": " · ".join(others)}
        return Mistake(
            place=place,
            id=example.id,
            texts=texts_of(texts, example.context.find(example.gap) if example.gap else 0),
            gold=" · ".join(example.options[answer] for answer in example.answers),
            predicted=example.options[value],
            sure=float(detail["score"]),
        )

    def chance(self, examples: Sequence[Any]) -> Chance | None:
        options = np.array([len(example.options) for example in examples])
        return Chance(float(np.log(options).mean()), float((1 / options).mean()))

    # Encoding and losses

    def head(self, family: Family) -> TaskHead:
        return replace(family.classification, labels=1)

    def head_labels(self) -> tuple[str, ...]:
        return CHOICES

    def items(self, examples: Sequence[Any], *, train: bool = False) -> list[Item]:
        items = []
        mask = self.tokenizer.token(self.tokenizer.special.mask)
        for number, example in enumerate(examples):
            if train and not example.answers:
                continue
            in_context = example.gap and example.gap in example.context
            framed = self._cloze(example, mask) if in_context else self._options(example)
            sequences = (
                Encoded(ids.astype(np.int32), segments, {"right": int(option in (example.answers or ()))})
                for option, (ids, segments) in enumerate(framed)
            )
            items.append(Item(number, tuple(sequences)))
        return items

    def _options(self, example: Choice) -> list[tuple[np.ndarray, np.ndarray]]:
        """Ids and segments of the sequence of every option."""
        begin = np.empty(0, np.int64)  # of every second text
        limit = self.settings.max_length  # more tokens than are read of a text
        if example.gap:
            seconds = [example.question.replace(example.gap, option) for option in example.options]
        elif not example.context:
            seconds = list(example.options)
        elif self.settings.choice == "clue":
            seconds = list(example.options)
            (question,) = self.tokenizer.encode_batch([example.question], limit=limit)
            begin = np.append(question.ids, self.tokenizer.special.sep)
        else:
            seconds = [f"{example.question} {option}".strip() for option in example.options]
        context, *encoded = self.tokenizer.encode_batch([example.context or example.question, *seconds], limit=limit)
        options = [np.concatenate([begin, option.ids]) for option in encoded]
        longest = max(map(len, options))
        room = self.pair_room()
        # The context is cut first, down to a quarter of the room; after that the longer side is cut.
        kept = context.ids[: max(room - longest, room // 4)]
        self.cut += any(self.kept(len(kept), len(option)) < len(context) + len(option) for option in options)
        return [self.tokenizer.frame(kept, option, max_length=self.settings.max_length) for option in options]

    def _cloze(self, example: Choice, mask: str) -> list[tuple[np.ndarray, np.ndarray]]:
        """As :meth:`_options` for a gap in the context; in a long text the gap is in the middle of the part that is
        read.
        """
        place = example.context.index(example.gap)
        around = (example.context[:place], example.context[place + len(example.gap) :])
        texts = [GAP.sub(mask * MASKS, part) for part in around]  # masks for the other gaps of the passage
        limit = self.settings.max_length  # more tokens than are read of a text
        left = self.tokenizer.encode_end(texts[0], limit)
        right, *options = self.tokenizer.encode_batch([texts[1], *example.options], limit=limit)
        clue = self.settings.choice == "clue"
        middle = np.array([self._gap_token()]) if clue else np.full(MASKS, self.tokenizer.special.mask)
        room = self.pair_room() - max(map(len, options)) - len(middle)
        share = min(len(left), max(room // 2, room - len(right)))
        text = np.concatenate([left[len(left) - share :], middle, right.ids[: max(room - share, 0)]])
        self.cut += len(left) + len(right) > room
        framed = [self.tokenizer.frame(option.ids, text, max_length=self.settings.max_length) for option in options]
        return [(ids, np.zeros_like(segments)) for ids, segments in framed] if clue else framed

    def _gap_token(self) -> int:
        token = self.tokenizer.id("[unused1]")
        if token is None:
            raise ConfigError("choice=clue marks gaps with [unused1], which the vocabulary lacks; set choice=joined")
        return token

    def counts(self, batch: TaskBatch) -> dict[str, int]:
        return {"choice": len(groups(batch)[1])}

    def terms(self, model: Network, states: States, batch: TaskBatch, noise: Noise | None) -> dict[str, Term]:
        """Negative log of the total probability of the correct options, summed over the examples."""
        logits, rows, slots = self._logits(model, states, batch, noise)
        group, sizes = groups(batch)
        right = batch.labels["right"][rows, slots] == 1
        everything = _logsumexp(logits, group, len(sizes), torch.ones_like(right))
        correct = _logsumexp(logits, group, len(sizes), right)
        best = _largest(logits, group, len(sizes))
        best_right = _largest(torch.where(right, logits, -torch.inf), group, len(sizes))
        return {"choice": Term((everything - correct).sum(), len(sizes), hits=(best_right >= best).sum())}

    def logits(self, model: Network, states: States, batch: TaskBatch, noise: Noise | None) -> Tensor:
        """(examples, most options), with a very small number for missing options."""
        logits, rows, slots = self._logits(model, states, batch, noise)
        group, sizes = groups(batch)
        most = int(batch.on_host.labels["option"].max()) + 1
        table = logits.new_full((len(sizes), most), torch.finfo(logits.dtype).min / 2)
        return table.index_put((group, batch.labels["option"][rows, slots]), logits)

    def _logits(
        self, model: Network, states: States, batch: TaskBatch, noise: Noise | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The score of every sequence, in the order of rows, its row and its slot; (n,) each."""
        logits, chosen = summary_logits(model, states, batch, self.tokenizer, noise)
        return logits[:, 0].float(), chosen.rows, chosen.slots

    # Predictions

    def outputs(self, model: Network, states: States, batch: TaskBatch) -> list[Any]:
        logits, rows, slots = self._logits(model, states, batch, None)
        items, options = (batch.labels[name][rows, slots].tolist() for name in ("item", "option"))
        by_item: list[Any] = [[] for _ in range(len(batch))]
        for item, _, score in sorted(zip(items, options, to_numpy(logits).tolist(), strict=True)):
            by_item[item].append(score)
        return [np.array(of_item) for of_item in by_item]

    def decode(self, items: Sequence[Item], outputs: Sequence[Any], examples: Sequence[Example]) -> Predictions:
        probabilities = [softmax(logits) for logits in outputs]
        values = [int(probability.argmax()) for probability in probabilities]
        details = [
            {"score": float(probability[value]), "probabilities": probability}
            for value, probability in zip(values, probabilities, strict=True)
        ]
        return Predictions(values=values, details=details)


def _largest(logits: Tensor, group: Tensor, count: int) -> Tensor:
    """The largest score of each of ``count`` groups, (count,), without gradient."""
    return logits.new_full((count,), -torch.inf).scatter_reduce(0, group, logits.detach(), "amax")


def _logsumexp(logits: Tensor, group: Tensor, count: int, chosen: Tensor) -> Tensor:
    """log sum exp of the chosen logits of each of ``count`` groups, (count,)."""
    shown = torch.where(chosen, logits, -torch.inf)
    top = _largest(shown, group, count)
    sums = logits.new_zeros(count).index_add(0, group, torch.exp(shown - top[group]))
    return top + sums.log()
