"""Answers from the scores of windows: n-best decoding, the null score, and ensembles.

A window's best starts and ends come in as numbers; the tokens' offsets into the passage give the text of a span, so no
decoded text is aligned with the passage.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from encoderlab.tasks.forms.base import Predictions, softmax
from encoderlab.tasks.forms.batching import Encoded


@dataclass(frozen=True, slots=True)
class Window(Encoded):
    """A sequence of a question and k tokens of its passage.

    Attributes:
        start: place of the first token of the passage in the sequence.
        offsets: (k, 2) first character of each token in the passage, and one past its last.
        central: (k,) whether this window gives a token the most context; answers start only at such tokens.
    """

    start: int = 0
    offsets: np.ndarray = field(default_factory=lambda: np.zeros((0, 2), np.int32))
    central: np.ndarray = field(default_factory=lambda: np.zeros(0, bool))


@dataclass(frozen=True, slots=True)
class Candidates:
    """A head's result for a window: places of the best starts (s,), of the best ends for each (s, e), and their scores.

    With ``absolute`` the null score is the log-odds of "no answer" (heads with answerability), otherwise the score of
    the summary token as a span, which means "no answer".
    """

    starts: np.ndarray
    start_scores: np.ndarray
    ends: np.ndarray
    end_scores: np.ndarray
    null: float
    absolute: bool


@dataclass
class BestSpans:
    """The best answers to a question in the windows read so far.

    Attributes:
        spans: by text, the best first: negative score, first character, and one past the last.
        null: the smallest null score; None before the first window.
        absolute: as in :class:`Candidates`.
    """

    spans: dict[str, tuple[float, int, int]] = field(default_factory=dict)
    null: float | None = None
    absolute: bool = False

    def add(self, window: Window, passage: str, candidates: Candidates, *, count: int, answer_length: int) -> None:
        """Keep the ``count`` best distinct texts of these and a further window; a text counts where its score is best.

        ``answer_length``: the largest length of an answer in tokens.
        """
        self.null = candidates.null if self.null is None else min(self.null, candidates.null)
        self.absolute = candidates.absolute
        starts, ends = candidates.starts - window.start, candidates.ends - window.start
        size = len(window.offsets)
        legal = (starts >= 0) & (starts < size)
        legal &= window.central[np.where(legal, starts, 0)] if size else False
        length = ends - starts[:, None] + 1
        i, j = np.nonzero(legal[:, None] & (ends < size) & (length >= 1) & (length <= answer_length))
        scores = candidates.start_scores[i] + candidates.end_scores[i, j]
        begins, stops = window.offsets[starts[i], 0], window.offsets[ends[i, j], 1]
        best, texts = dict(self.spans), set[str]()
        last = [*best.values()][-1] if len(best) == count else (np.inf,)
        for k in np.lexsort((stops, begins, -scores)):
            key = -float(scores[k]), int(begins[k]), int(stops[k])
            if key > last or len(texts) == count:
                break
            text = passage[key[1] : key[2]].strip()
            if text and text not in texts:
                texts.add(text)
                best[text] = min(key, best.get(text, key))
        self.spans = dict(sorted(best.items(), key=lambda item: item[1])[:count])


def answered(answers: Sequence[BestSpans], ids: Sequence[str], *, nullable: bool, threshold: float) -> Predictions:
    """The best answers to the questions ``ids``; "" above the ``threshold`` where an answer may be missing
    (``nullable``).
    """
    values, details, odds, nbest = [], [], {}, {}
    for id, answer in zip(ids, answers, strict=True):
        spans: list[dict[str, Any]] = [
            {"text": text, "score": -negative, "start": begin, "end": end}
            for text, (negative, begin, end) in answer.spans.items()
        ]
        null, best = answer.null or 0.0, spans[0]["score"] if spans else 0.0
        odds[id] = null if answer.absolute else null - best
        if nullable or not spans:
            spans.append({"text": "", "score": best + null if answer.absolute else null})
        probability = softmax(np.array([span["score"] for span in spans]))
        for span, share in zip(spans, probability, strict=True):
            span["probability"] = float(share)
        empty = nullable and odds[id] > threshold
        values.append("" if empty else spans[0]["text"])
        details.append({"score": float(probability[-1 if empty else 0])})
        nbest[id] = spans
    return Predictions(
        values=values,
        details=details,
        null_odds=odds if nullable else None,
        nbest=nbest,
        threshold=threshold,
    )


def average_answers(members: Sequence[Predictions], threshold: float = 0.0) -> Predictions:
    """An ensemble's answers from the mean of the members' probabilities of each text, and of their null odds."""
    values, details, nbest, odds = [], [], {}, {}
    for key in members[0].nbest or {}:
        total: dict[str, float] = {}
        for member in members:
            for span in (member.nbest or {})[key]:
                total[span["text"]] = total.get(span["text"], 0.0) + span["probability"] / len(members)
        ranked = sorted(total.items(), key=lambda pair: -pair[1])
        nbest[key] = [{"text": text, "score": float(np.log(p + 1e-30)), "probability": p} for text, p in ranked]
        best = next(((text, p) for text, p in ranked if text), ("", 0.0))
        if members[0].null_odds is not None:
            odds[key] = float(np.mean([(member.null_odds or {})[key] for member in members]))
            if odds[key] > threshold:
                best = ("", total.get("", 0.0))
        values.append(best[0])
        details.append({"score": best[1]})
    null_odds = odds if members[0].null_odds is not None else None
    return Predictions(values=values, details=details, nbest=nbest, null_odds=null_odds, threshold=threshold)


def best_texts(predictions: Predictions) -> list[str]:
    """The best answer to every question, ignoring the threshold, for a search for thresholds."""
    return [next((span["text"] for span in spans if span["text"]), "") for spans in (predictions.nbest or {}).values()]
