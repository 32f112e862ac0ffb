"""Questions answered by a span of a passage: windows, losses of three heads, scores (SQuAD 1.1 and 2.0).

Differs from the reference code in how spans are found: the tokens' offsets into the passage give exactly the tokens
that an answer covers, so no best sub-span is searched for.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from encoderlab.config import Count, NonNegative
from encoderlab.corpus.tokenizer import Encoding, Tokenizer
from encoderlab.errors import ConfigError, DataError
from encoderlab.models.base import Family
from encoderlab.nn.encoder import States
from encoderlab.nn.heads import SpanHead, TaskHead
from encoderlab.nn.noise import Noise
from encoderlab.objectives.base import Term
from encoderlab.tasks.data.examples import Answer, Example, GivenPrediction, Question, Split, in_parts
from encoderlab.tasks.data.readers import Layout, Squad
from encoderlab.tasks.forms.base import Answers, Form, FormSettings, Network, Predictions, Scores
from encoderlab.tasks.forms.baselines import no_answer, overlapping_sentence
from encoderlab.tasks.forms.batching import Item, TaskBatch
from encoderlab.tasks.forms.best_spans import (
    BestSpans,
    Candidates,
    Window,
    answered,
    average_answers,
    best_texts,
)
from encoderlab.tasks.scoring import answers
from encoderlab.tasks.scoring.analysis import Mistake, texts_of

if TYPE_CHECKING:
    from encoderlab.tasks.data.task import Task

NULLABLE = ("answer", "no_answer")  # the labels of a task with unanswerable questions
WINDOWS = 2048  # of which the outputs are in memory at a time
QUESTIONS, CHARACTERS = 2048, 1 << 20  # that are tokenized together


@dataclass(frozen=True)
class _Windows:
    """The n windows of a batch, unpacked and padded to the longest, w tokens, as ``head`` reads them.

    ``x`` (n, w, D) are their states; ``allowed`` (n, w) marks places where answers may start or end, ``real`` (n, w)
    places within a window. ``rows``, ``slots`` and ``seeds`` (n,) are batch row, slot and dropout seed of each window,
    ``summary`` (n,) the place of its summary token.
    """

    head: SpanHead
    x: Tensor
    allowed: Tensor
    real: Tensor
    rows: Tensor
    slots: Tensor
    summary: Tensor
    seeds: Tensor | None

    def starts(self) -> Tensor:
        """Scores (n, w) of the places as starts, -inf in the padding."""
        return torch.where(self.real, self.head.start_logits(self.x, self.allowed).float(), -torch.inf)

    def ends(self, starts: Tensor) -> Tensor:
        """Scores (n, s, w) of the places as ends for each of the ``starts`` (n, s), -inf in the padding."""
        return torch.where(self.real[:, None], self.head.end_logits(self.x, self.allowed, starts).float(), -torch.inf)

    def answerable(self, starts: Tensor) -> Tensor:
        """Log-odds (n,) of "no answer" by a head with answerability, from the scores of the starts (n, w)."""
        summary = self.x[torch.arange(len(self.x), device=self.x.device), self.summary]
        return self.head.answer_logits(self.x, summary, starts.to(self.x.dtype), self.seeds).float()

    def null(self, starts: Tensor, ends: Tensor) -> Tensor:
        """The null scores (n,), see :class:`Candidates`, from the starts (n, w) and the ends (n, s, w)."""
        if self.head.config.variant != "independent":
            return self.answerable(starts)
        which = torch.arange(len(self.x), device=self.x.device)
        return starts[which, self.summary] + ends[which, 0, self.summary]  # the ends are the same for all starts


@dataclass(frozen=True, kw_only=True)
class SpanSettings(FormSettings):
    """Settings of answers within a passage.

    Args:
        stride: tokens between the beginnings of two windows of a passage.
        query_length: largest length of a question in tokens; the rest is cut.
        answer_length: largest length of an answer in tokens.
        n_best: how many answers are kept with their scores.
        beam: how many starts, and ends of each, are considered; None: 20, for XLNet's and ALBERT's head 5.
        impossible_weight: for heads with answerability, the weight of its loss.
    """

    kind: Literal["span"] = "span"
    stride: Count = 128
    query_length: Count = 64
    answer_length: Count = 30
    n_best: Count = 20
    beam: Count | None = None
    impossible_weight: NonNegative = 0.5


class SpanForm(Form):
    """Start and end of an answer among the tokens of a window.

    The question is cut to ``query_length`` tokens. A passage that is too long is read in windows that begin every
    ``stride`` tokens; the target of a window without the whole answer is its summary token. Predictions are the
    ``n_best`` spans among the best ``beam`` starts and as many ends in all windows, none longer than ``answer_length``
    tokens. If training has questions without an answer, "" is predicted if the null odds exceed a threshold, which is
    chosen on the development set.
    """

    name = "span"
    description = "an answer within a passage"
    settings_type = SpanSettings
    columns = "passages"
    no_label = ', or write "" as the answer of a question that has none'
    layouts = (Squad(),)
    file_with = " with the columns question and context, or in SQuAD's form"
    metrics = ("f1", "exact")
    baselines = {"majority": no_answer, "word overlap": overlapping_sentence}
    extras = frozenset({"distill"})
    longest = 384
    unique_ids = True
    too_long = ""  # passages are read in windows
    settings: SpanSettings

    # Data

    @classmethod
    def inferred(cls, layout: Layout, examples: Sequence[Any]) -> tuple[Layout, tuple[str, ...], str]:
        chinese = answers.are_chinese(answer.text for question in examples for answer in question.answers or ())
        return layout, cls.metrics, "in Chinese, so F1 is over characters" if chinese else ""

    @classmethod
    def unlabelled(cls, task: Task, examples: Sequence[Any]) -> tuple[list[Example], str] | None:
        if task.labels is not None or any(question.answers != () for question in examples):
            return None
        return [replace(question, answers=None) for question in examples], "no question has an answer"

    @classmethod
    def completed(cls, task: Task, train: Split) -> Task:
        """The task, with the information whether questions may have no answer (only under SQuAD's rules)."""
        if task.labels is not None or task.answers != "squad":
            return task
        none = any(question.answers == () for question in train.examples)
        return replace(task, labels=NULLABLE) if none else task

    @classmethod
    def fits(cls, model: Network) -> bool:
        return isinstance(model.task, SpanHead)

    @classmethod
    def labels_of_head(cls, labels: tuple[str, ...]) -> tuple[str, ...] | None:
        return labels or None

    # Scores

    @classmethod
    def read_prediction(cls, task: Task, example: Question, guess: GivenPrediction) -> tuple[Answer]:
        if not isinstance(guess.value, str):
            raise DataError(f'{guess.place}: answer {str(guess.value)[:40]!r} is not a text; write "" for no answer')
        return (Answer(guess.value, -1),)

    @classmethod
    def value_of(cls, example: Question) -> str:
        (answer,) = example.answers or ()
        return answer.text

    @classmethod
    def measures(
        cls,
        task: Task,
        examples: Sequence[Any],
        predictions: Sequence[Any],
        *,
        null_odds: Mapping[str, float] | None = None,
        threshold: float = 0.0,
    ) -> Scores:
        """The official scores of answers as shares; :mod:`encoderlab.tasks.scoring.answers` gives them in per cent.

        ``null_odds`` and ``threshold``: see :func:`encoderlab.tasks.scoring.answers.squad`.
        """
        gold: dict[str, list[str]] = {}
        for question in examples:
            if question.answers is None:
                raise DataError(f"question {question.id}: no answer to score against; score labelled data")
            gold[question.id] = [answer.text for answer in question.answers]
        guess = dict(zip(gold, predictions, strict=True))
        if task.answers == "squad":
            scores = answers.squad(gold, guess, null_odds=null_odds, threshold=threshold)
        else:
            scores = {"cmrc": answers.cmrc, "triviaqa": answers.triviaqa}[task.answers](gold, guess)
        counts = ("total", "threshold")
        return {name: value if name.endswith(counts) else value / 100 for name, value in scores.items()}

    @classmethod
    def score_found(
        cls, task: Task, examples: Sequence[Any], predictions: Predictions
    ) -> tuple[Scores, tuple[str, ...]]:
        """Score with the null odds and the threshold, which SQuAD's scorer applies itself."""
        if task.answers != "squad" or predictions.null_odds is None:
            return super().score_found(task, examples, predictions)
        known = {"null_odds": predictions.null_odds, "threshold": predictions.threshold}
        return cls.score(task, examples, best_texts(predictions), **known)

    @classmethod
    def off(cls, task: Task, example: Any, value: Any, detail: Mapping[str, Any]) -> float:
        """The size of a mistake: one minus its F1, times the score of the answer."""
        return (1 - cls.measures(task, [example], [value])["f1"]) * max(detail["score"], 1e-9)

    @classmethod
    def mistake(cls, task: Task, place: int, example: Any, value: Any, detail: Mapping[str, Any]) -> Mistake:
        gold = list(dict.fromkeys(answer.text for answer in example.answers))
        around = example.answers[0].start if example.answers else example.passage.find(value)
        return Mistake(
            place=place,
            id=example.id,
            texts=texts_of({"question": example.question, "passage": example.passage}, around),
            gold=" · ".join(gold) or "no answer",
            predicted=value or "no answer",
            sure=detail["score"],
        )

    # A task, its tokenizer and its settings

    def __init__(self, task: Task, tokenizer: Tokenizer, settings: FormSettings) -> None:
        super().__init__(task, tokenizer, settings)
        self.nullable = task.labels == NULLABLE

    def head(self, family: Family) -> TaskHead:
        return family.span

    def head_labels(self) -> tuple[str, ...]:
        return NULLABLE if self.nullable else ()

    # Windows

    def items(self, examples: Sequence[Example], *, train: bool = False) -> list[Item]:
        return list(self._items(examples, train=train))

    def _items(self, examples: Sequence[Example], *, train: bool = False) -> Iterator[Item]:
        number, encoded = 0, dict[str, Encoding]()
        questions = (example for example in examples if isinstance(example, Question))
        for part in in_parts(questions, most=QUESTIONS, characters=CHARACTERS):
            passages = dict.fromkeys(question.passage for question in part)
            strange = [passage for passage in passages if passage not in encoded]
            encoded = {passage: encoded[passage] for passage in passages if passage in encoded}
            encoded |= zip(strange, self.tokenizer.encode_batch(strange), strict=True)
            asked = self.tokenizer.encode_batch([question.question.strip() for question in part])
            for question, query in zip(part, asked, strict=True):
                yield from self._of_question(number, question, query, encoded[question.passage], train=train)
                number += 1

    def _of_question(
        self, number: int, question: Question, query: Encoding, passage: Encoding, *, train: bool
    ) -> Iterator[Item]:
        """The windows of one question; none if training cannot learn from it."""
        if train and question.answers is None:
            return
        places = (_tokens_of(answer, passage) for answer in question.answers or ())
        span = next((place for place in places if place is not None), None)  # an alias need not be in the passage
        if train and span is None and (question.answers or not self.nullable):
            return  # the passage does not contain the answer; the reader has counted that
        for window, first in self._windows(query, passage):
            yield Item(number, (replace(window, labels=self._target(window, first, span)),))

    def _windows(self, query: Encoding, passage: Encoding) -> Iterator[tuple[Window, int]]:
        """The windows of a passage, each with the number of its first token in the passage."""
        asked = query.ids[: self.settings.query_length]
        room = self.pair_room() - len(asked)
        if room < 2:
            raise ConfigError(
                f"max_length {self.settings.max_length} leaves no room for the passage after a question of "
                f"{len(asked)} tokens; raise it or lower query_length"
            )
        firsts = [0]
        while firsts[-1] + room < len(passage):
            firsts.append(firsts[-1] + min(room, self.settings.stride))
        self.cut += len(firsts) > 1
        # The context of a token in a window: the smaller distance to its ends, and a little for length.
        most, best = np.full(len(passage), -1.0), np.zeros(len(passage), np.int64)
        for number, first in enumerate(firsts):
            part = slice(first, min(first + room, len(passage)))
            places = np.arange(part.stop - first)
            context = np.minimum(places, places[::-1]) + 0.01 * len(places)
            better = context > most[part]  # the first of equal ones
            most[part][better], best[part][better] = context[better], number
        for number, first in enumerate(firsts):
            part = slice(first, min(first + room, len(passage)))
            yield self._window(asked, passage, part, best[part] == number), first

    def _window(self, asked: np.ndarray, passage: Encoding, part: slice, central: np.ndarray) -> Window:
        xlnet = self.tokenizer.framing == "xlnet"  # passage first, as in its release
        texts = (passage.ids[part], asked) if xlnet else (asked, passage.ids[part])
        ids, segments = self.tokenizer.frame(*texts, max_length=self.settings.max_length)
        spans = self.tokenizer.spans(len(texts[0]), len(texts[1]), max_length=self.settings.max_length)
        start, size = (spans.a_start, spans.a) if xlnet else (spans.b_start, spans.b)
        allowed = np.zeros(len(ids), bool)
        allowed[start : start + size] = True
        allowed[-1 if xlnet else 0] = True
        if not xlnet:
            allowed[start + size] = True  # ELECTRA's code allows the separator after the passage
        return Window(
            ids=ids.astype(np.int32),
            segments=segments,
            marks={"allowed": allowed},
            start=start,
            offsets=passage.offsets[part],
            central=central,
        )

    def _target(self, window: Window, first: int, span: tuple[int, int] | None) -> dict[str, float]:
        """Start and end within the sequence; both are the summary token if the window does not contain the whole
        answer.
        """
        if span is not None and first <= span[0] and span[1] < first + len(window.offsets):
            start = window.start - first
            return {"start": start + span[0], "end": start + span[1], "impossible": 0}
        summary = len(window) - 1 if self.tokenizer.framing == "xlnet" else 0
        return {"start": summary, "end": summary, "impossible": 1}

    # Losses

    def counts(self, batch: TaskBatch) -> dict[str, int]:
        windows = int((batch.labels["length"] > 0).sum())
        return {"span": windows} | ({"answerable": windows} if self.nullable else {})

    def terms(self, model: Network, states: States, batch: TaskBatch, noise: Noise | None) -> dict[str, Term]:
        """The mean of the cross-entropies of start and end (given the correct start).

        A head with answerability adds the binary cross-entropy of that.
        """
        windows = self._unpacked(model, states, batch, noise)
        rows, slots = windows.rows, windows.slots
        start, end, impossible = (batch.labels[name][rows, slots] for name in ("start", "end", "impossible"))
        starts, ends = windows.starts(), windows.ends(start[:, None])[:, 0]
        loss = F.cross_entropy(starts, start, reduction="sum") + F.cross_entropy(ends, end, reduction="sum")
        right = (starts.argmax(-1) == start) & (ends.argmax(-1) == end)
        terms = {"span": Term(loss / 2, len(rows), hits=right.sum())}
        if not self.nullable or windows.head.config.variant == "independent":  # its null answer is the summary token
            return terms
        logits = windows.answerable(starts)
        loss = F.binary_cross_entropy_with_logits(logits, impossible.float(), reduction="sum")
        hits = ((logits > 0) == (impossible > 0)).sum()
        return terms | {"answerable": Term(loss, len(rows), self.settings.impossible_weight, hits)}

    def logits(self, model: Network, states: States, batch: TaskBatch, noise: Noise | None) -> Tensor:
        """(2 n, w): the logits of all starts, then of all ends, -inf in the padding.

        Only for heads whose end does not depend on the start.
        """
        windows = self._unpacked(model, states, batch, noise)
        any_start = torch.zeros_like(windows.rows)[:, None]
        return torch.cat([windows.starts(), windows.ends(any_start)[:, 0]])

    def compared(self, counts: Mapping[str, int]) -> int:
        return 2 * counts["span"]

    @classmethod
    def check_comparable(cls, model: Network, name: str) -> None:
        """Refuse an answer head whose end depends on the start."""
        assert isinstance(model.task, SpanHead)
        if model.task.config.variant != "independent":
            raise ConfigError(
                f"{name}: the end of its {model.task.config.variant} answer head depends on the start, so two of them "
                f"cannot be compared; fine-tune with BERT's: --set 'head={{kind: span, variant: independent}}'"
            )

    def _unpacked(self, model: Network, states: States, batch: TaskBatch, noise: Noise | None = None) -> _Windows:
        """The windows of all rows, unpacked."""
        assert isinstance(model.task, SpanHead)
        rows, slots = batch.sequences()
        begin, length = (batch.labels[name][rows, slots] for name in ("begin", "length"))
        places = torch.arange(int(batch.on_host.labels["length"].max()), device=rows.device)
        real = places < length[:, None]
        at = torch.where(real, begin[:, None] + places, 0)
        allowed = batch.labels["allowed"][rows[:, None], at] & real
        if model.task.config.variant == "beam" and self.tokenizer.framing != "xlnet":
            allowed &= places < length[:, None] - 1  # ALBERT's code forbids the separator that ELECTRA's allows
        seeds = None if noise is None else noise.at(rows, begin)
        return _Windows(
            head=model.task,
            x=model.task.dropped(states.last[rows[:, None], at], seeds),
            allowed=allowed,
            real=real,
            rows=rows,
            slots=slots,
            summary=length - 1 if self.tokenizer.framing == "xlnet" else torch.zeros_like(length),
            seeds=seeds,
        )

    # Answers

    def outputs(self, model: Network, states: States, batch: TaskBatch) -> list[Any]:
        return self.joint([(model, states)], batch)

    def joint(self, members: Sequence[tuple[Network, States]], batch: TaskBatch) -> list[Any]:
        """The outputs of one model, or joint ones of several with heads of one kind.

        These are the mean of the members' scores of every start, and of every end for the starts with the best means.
        """
        every = [self._unpacked(model, states, batch) for model, states in members]
        first = every[0]
        variant = first.head.config.variant
        best = min(self.settings.beam or (5 if variant == "beam" else 20), first.x.shape[1])

        def mean(scores: Sequence[Tensor], allowed: Tensor) -> Tensor:
            if variant != "independent":  # scores of ends are comparable between starts only as log-probabilities
                scores = [score - score.logsumexp(-1, keepdim=True) for score in scores]
            return torch.where(allowed, torch.stack(tuple(scores)).mean(0), -torch.inf)

        starts = [windows.starts() for windows in every]
        start_scores, start_places = mean(starts, first.allowed).topk(best)
        ends = [windows.ends(start_places) for windows in every]
        end_scores, end_places = mean(ends, first.allowed[:, None]).topk(best)
        nulls = [windows.null(start, end) for windows, start, end in zip(every, starts, ends, strict=True)]
        fields = (start_places, start_scores, end_places, end_scores, torch.stack(nulls).mean(0))
        arrays = (tensor.detach().cpu().numpy() for tensor in fields)
        candidates = [
            Candidates(s, s_scores, e, e_scores, float(null), absolute=variant != "independent")
            for s, s_scores, e, e_scores, null in zip(*arrays, strict=True)
        ]
        order = np.argsort(batch.labels["item"][first.rows, first.slots].cpu().numpy())
        return [candidates[i] for i in order]

    def predicted(self, examples: Sequence[Any], outputs: Callable[[Sequence[Item]], Sequence[Any]]) -> Predictions:
        """As the base class; windows are made and computed :data:`WINDOWS` at a time, however long a passage is."""
        best, windows = [BestSpans() for _ in examples], self._items(examples)
        while part := list(islice(windows, WINDOWS)):
            self._add(best, part, outputs(part), examples)
        return self._answered(best, examples)

    def decode(self, items: Sequence[Item], outputs: Sequence[Any], examples: Sequence[Example]) -> Predictions:
        best = [BestSpans() for _ in examples]
        self._add(best, items, outputs, examples)
        return self._answered(best, examples)

    def _add(
        self, best: Sequence[BestSpans], items: Sequence[Item], outputs: Sequence[Any], examples: Sequence[Example]
    ) -> None:
        """Add the answers in the windows ``items`` to those found so far."""
        for item, candidates in zip(items, outputs, strict=True):
            window, question = item.sequences[0], examples[item.example]
            assert isinstance(window, Window) and isinstance(question, Question)
            limits = {"count": self.settings.n_best, "answer_length": self.settings.answer_length}
            best[item.example].add(window, question.passage, candidates, **limits)

    def _answered(self, best: Sequence[BestSpans], examples: Sequence[Example]) -> Predictions:
        ids = [example.id for example in examples]
        return answered(best, ids, nullable=self.nullable, threshold=self.threshold)

    # The threshold of "no answer"

    def allow_no_answer(self) -> bool:
        """Allow "no answer" as a prediction; returns whether the form did not before."""
        changed = not self.nullable
        self.nullable = True
        return changed

    def choose_threshold(self, examples: Sequence[Example], predictions: Predictions) -> str:
        if not self.nullable:
            return ""
        self.threshold = best_threshold(self.task, examples, predictions)
        return f'"no answer" is predicted above a null score of {self.threshold:.4f}, chosen on dev'

    # Ensembles

    def reading(self, model: Network) -> Hashable:
        """The windows of passages, the kind of head, and the labels."""
        assert isinstance(model.task, SpanHead)
        settings = self.settings
        windows = self.tokenizer.hash(), settings.max_length, settings.stride, settings.query_length
        return *windows, model.task.config.variant, self.head_labels()

    def together(self, members: Sequence[Answers], examples: Sequence[Example]) -> Predictions:
        predictions = [member.predictions for member in members]
        return average_answers(predictions, float(np.mean([member.threshold for member in predictions])))


def best_threshold(task: Task, examples: Sequence[Example], predictions: Predictions) -> float:
    """The threshold on the null odds with the best F1 of ``examples``.

    The official search returns the odds of a question; here the threshold is half way to the next larger odds, where
    the score is the same and rounding does not matter. If giving no answer at all is best, the official result is 0,
    which would remove only some answers; then the threshold is below all odds.
    """
    assert predictions.null_odds is not None
    scores, _ = SpanForm.score(task, examples, best_texts(predictions), null_odds=predictions.null_odds)
    if scores["best_f1"] <= scores.get("no_answer_total", 0) / scores["total"]:
        return min(predictions.null_odds.values()) - 1
    threshold = scores["best_f1_threshold"]
    above = min((odds for odds in predictions.null_odds.values() if odds > threshold), default=threshold)
    return (threshold + above) / 2


def _tokens_of(answer: Answer, passage: Encoding) -> tuple[int, int] | None:
    """First and last token with characters of the answer; None if the passage does not contain it."""
    text = answer.text.strip()
    if answer.start < 0 or not text:
        return None
    begin = answer.start + len(answer.text) - len(answer.text.lstrip())
    covers = np.flatnonzero((passage.offsets[:, 1] > begin) & (passage.offsets[:, 0] < begin + len(text)))
    return (int(covers[0]), int(covers[-1])) if len(covers) else None
