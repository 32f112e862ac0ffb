"""The loss of a changed graph on the user's own texts: its agreement with the original, and its score."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from encoderlab.deploy.graph import Arrays, Graph, Run
from encoderlab.deploy.reading import TaskReader, inputs_of
from encoderlab.inference import BATCH_TOKENS, Pooling, by_length, pooled, tokenizer_of
from encoderlab.seeds import generator
from encoderlab.tasks.data.examples import Example
from encoderlab.tasks.data.task import Task, is_unlabelled
from encoderlab.tasks.forms.table import FORMS
from encoderlab.tasks.runs.predict import Predictor

DRAWS = 200  # of the bootstrap
LEVEL = 0.95
MASKED = 0.15  # share of the tokens that are guessed
SCORES = 2**26  # numbers of one output that are held at a time
ROWS = 256  # vectors that are compared with all at a time


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The loss of a changed graph.

    Args:
        agreement: with the original, from 0 to 1: the share of equal answers; the correlation of numbers; the mean
            cosine of vectors.
        metric: what ``before`` and ``after`` are scores by; None where the file has no labels.
        fall: before less after; without labels 1 less the agreement.
        low, high: the 95 % interval of ``fall`` over resamplings of the texts.
        texts: number of texts.
        more: further numbers by name.
    """

    agreement: float
    metric: str | None
    before: float | None
    after: float | None
    fall: float
    low: float
    high: float
    texts: int
    more: dict[str, float]


class Check:
    """Texts on which two graphs are compared. ``size`` is their number, ``metric`` the metric of labelled texts."""

    size: int
    metric: str | None = None

    def answers(self, run: Run, first: int | None = None) -> Any:
        """A graph's answers for the texts, or for the ``first`` of them."""
        raise NotImplementedError

    def raw(self, run: Run, first: int) -> np.ndarray:
        """The numbers that a graph gives for the first texts, in one array."""
        raise NotImplementedError

    def agreement(self, before: Any, after: Any, chosen: np.ndarray) -> float:
        """The agreement of two sets of answers on the chosen texts, from 0 to 1."""
        raise NotImplementedError

    def score(self, answers: Any, chosen: np.ndarray) -> float:
        """The score of the chosen texts, which need labels."""
        raise NotImplementedError

    def more(self, before: Any, after: Any) -> dict[str, float]:
        return {}

    def verdict(self, before: Any, after: Any) -> Verdict:
        """The loss from the answers ``before`` to those ``after``."""

        def fall(chosen: np.ndarray) -> float:
            if self.metric is None:
                return 1 - self.agreement(before, after, chosen)
            return self.score(before, chosen) - self.score(after, chosen)

        every, rng = np.arange(self.size), generator("fidelity", self.size)
        drawn = [fall(rng.integers(self.size, size=self.size)) for _ in range(DRAWS)]
        low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
        known = self.metric is not None
        return Verdict(
            agreement=self.agreement(before, after, every),
            metric=self.metric,
            before=self.score(before, every) if known else None,
            after=self.score(after, every) if known else None,
            fall=fall(every),
            low=float(low),
            high=float(high),
            texts=self.size,
            more=self.more(before, after),
        )


class TaskCheck(Check):
    """Examples of a task, scored by its first metric if all of them have labels."""

    def __init__(self, predictor: Predictor, task: Task, examples: Sequence[Example]) -> None:
        self.predictor, self.task, self.examples = predictor, task, list(examples)
        self.size = len(self.examples)
        labelled = not any(map(is_unlabelled, self.examples))
        self.metric = task.metrics[0] if labelled else None
        self._items = predictor.form.items(self.examples)

    def _outputs(self, run: Run, first: int | None) -> tuple[Any, list[Any]]:
        items = [item for item in self._items if first is None or item.example < first]
        return items, TaskReader(run, self.predictor.model, self.predictor.form).outputs(items)  # type: ignore[arg-type]

    def answers(self, run: Run, first: int | None = None) -> list[Any]:
        items, outputs = self._outputs(run, first)
        return list(self.predictor.form.decode(items, outputs, self.examples[:first]).values)

    def raw(self, run: Run, first: int) -> np.ndarray:
        _, outputs = self._outputs(run, first)
        numbers = [np.ravel(output if isinstance(output, np.ndarray) else output.start_scores) for output in outputs]
        return np.concatenate(numbers)

    def agreement(self, before: list[Any], after: list[Any], chosen: np.ndarray) -> float:
        return self.predictor.form.agreement([before[i] for i in chosen], [after[i] for i in chosen])

    def score(self, answers: list[Any], chosen: np.ndarray) -> float:
        # Answers are scored by id, and a resampling contains some of them twice.
        examples = [replace(self.examples[i], id=str(n)) for n, i in enumerate(chosen)]
        scores, _ = FORMS[self.task.form].score(self.task, examples, [answers[i] for i in chosen])
        assert self.metric is not None
        return scores[self.metric]


class _TextCheck(Check):
    """Texts without labels, framed."""

    budget = BATCH_TOKENS

    def __init__(self, graph: Graph, texts: Sequence[str], longest: int) -> None:
        tokenizer = tokenizer_of(graph.model)
        room = tokenizer.spans(longest, max_length=longest).a
        encoded = tokenizer.encode_batch(list(texts), limit=room)
        framed = [tokenizer.frame(encoding.ids, max_length=longest) for encoding in encoded]
        self.ids, self.segments = [ids.astype(np.int64) for ids, _ in framed], [segments for _, segments in framed]
        self.special, self.size = tokenizer.special, len(framed)

    def _batches(self, first: int | None) -> Iterator[tuple[list[int], Arrays]]:
        count = self.size if first is None else min(first, self.size)
        for index in by_length([len(self.ids[i]) for i in range(count)], self.budget):
            yield index, inputs_of([self.ids[i] for i in index], [self.segments[i] for i in index], self.special.pad)


class VectorCheck(_TextCheck):
    """Vectors of texts: the cosine of each with the original's. ``prompt`` is put before each text."""

    def __init__(self, graph: Graph, texts: Sequence[str], longest: int, pooling: Pooling, prompt: str = "") -> None:
        super().__init__(graph, [prompt + text for text in texts], longest)
        self.pooling = pooling

    def answers(self, run: Run, first: int | None = None) -> np.ndarray:
        vectors_by_text: dict[int, np.ndarray] = {}
        for index, inputs in self._batches(first):
            states = torch.from_numpy(run(inputs)["last_hidden_state"])
            vectors = pooled(states, torch.from_numpy(inputs["attention_mask"]) > 0, self.pooling).numpy()
            vectors_by_text |= dict(zip(index, vectors, strict=True))
        whole = np.stack([vectors_by_text[i] for i in range(len(vectors_by_text))])
        unit: np.ndarray = whole / np.maximum(np.linalg.norm(whole, axis=1, keepdims=True), 1e-12)
        return unit

    def raw(self, run: Run, first: int) -> np.ndarray:
        return self.answers(run, first)

    def agreement(self, before: np.ndarray, after: np.ndarray, chosen: np.ndarray) -> float:
        return float((before[chosen] * after[chosen]).sum(1).mean())

    def more(self, before: np.ndarray, after: np.ndarray) -> dict[str, float]:
        facts = {"least cosine": float((before * after).sum(1).min())}
        if self.size > 2:
            facts["same nearest text"] = float(np.mean(_nearest(before) == _nearest(after)))
        return facts


def _nearest(vectors: np.ndarray) -> np.ndarray:
    """The number of the nearest other vector to each; some rows at a time, because all products of many texts do not
    fit into memory.
    """
    nearest = np.empty(len(vectors), np.int64)
    for start in range(0, len(vectors), ROWS):
        cosines = vectors[start : start + ROWS] @ vectors.T
        rows = np.arange(len(cosines))
        cosines[rows, start + rows] = -2  # less than any cosine
        nearest[start : start + ROWS] = cosines.argmax(1)
    return nearest


class MaskCheck(_TextCheck):
    """Masked words: 15 % of every text are hidden; the score is the share of correct guesses."""

    metric = "accuracy"

    def __init__(self, graph: Graph, texts: Sequence[str], longest: int) -> None:
        super().__init__(graph, texts, longest)
        self.budget = max(1, SCORES // graph.model.config.encoder.vocab)
        self.places, self.hidden = [], []
        for number, ids in enumerate(self.ids):
            rng, words = generator("fidelity", "mask", number), np.flatnonzero(~np.isin(ids, self.special.all_special))
            count = min(len(words), max(1, round(MASKED * len(words))))
            places = np.sort(rng.choice(words, count, replace=False))
            self.places.append(places)
            self.hidden.append(ids[places])
            ids[places] = self.special.mask

    def _hidden_logits(self, run: Run, first: int | None) -> Iterator[tuple[int, np.ndarray]]:
        """Texts by number, batch by batch, with the scores at their hidden places."""
        for index, inputs in self._batches(first):
            logits = run(inputs)["logits"]
            yield from ((i, logits[row, self.places[i]]) for row, i in enumerate(index))

    def answers(self, run: Run, first: int | None = None) -> list[np.ndarray]:
        guesses = {i: logits.argmax(-1) for i, logits in self._hidden_logits(run, first)}
        return [guesses[i] for i in range(len(guesses))]

    def raw(self, run: Run, first: int) -> np.ndarray:
        return np.concatenate([np.ravel(logits) for _, logits in self._hidden_logits(run, first)])

    def agreement(self, before: list[np.ndarray], after: list[np.ndarray], chosen: np.ndarray) -> float:
        return float(np.mean(np.concatenate([before[i] == after[i] for i in chosen])))

    def score(self, answers: list[np.ndarray], chosen: np.ndarray) -> float:
        return float(np.mean(np.concatenate([answers[i] == self.hidden[i] for i in chosen])))
