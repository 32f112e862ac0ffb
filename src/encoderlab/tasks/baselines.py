"""What a model has to beat: the most frequent label, TF-IDF with logistic regression, word overlap, a tag dictionary.

Own NumPy implementations; a few thousand examples take seconds.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

import numpy as np

from encoderlab.tasks.base import Choice, Question, Split, Task, Text, Words
from encoderlab.tasks.scores import score

WEIGHTS = 2**23  # of the regression at most: 64 MiB, of which L-BFGS keeps some twenty copies
_WORD = re.compile(r"[一-鿿]|\w+|[^\w\s]")


def baselines(task: Task, train: Split, dev: Split) -> dict[str, dict[str, float]]:
    """Scores on ``dev`` of every baseline that the task's form has, by name."""
    found = {name: predict(train.examples, dev.examples) for name, predict in _BASELINES[task.form].items()}
    return {
        name: score(task, dev.examples, predictions)[0]
        for name, predictions in found.items()
        if predictions is not None
    }


def words(text: str) -> list[str]:
    """Lower-cased words, Han characters one by one, punctuation marks."""
    return _WORD.findall(text.lower())


# Labels and numbers


def _majority(train: Sequence[Any], dev: Sequence[Any]) -> list[Any]:
    most = Counter(example.label for example in train if example.label is not None).most_common(1)[0][0]
    return [most] * len(dev)


def _mean(train: Sequence[Any], dev: Sequence[Any]) -> list[float]:
    return [float(np.mean([float(example.label) for example in train]))] * len(dev)


def _bag_of_words(train: Sequence[Any], dev: Sequence[Any]) -> list[str]:
    """Logistic regression on TF-IDF of words and word pairs; of two texts, on both and on their common words."""
    names = sorted({str(example.label) for example in train})
    features = TfIdf((_terms(example) for example in train), most=WEIGHTS // len(names))
    target = np.array([names.index(str(example.label)) for example in train])
    model = LogisticRegression(len(names)).fit(features(_terms(example) for example in train), target)
    scores = model.scores(features(_terms(example) for example in dev))
    return [names[i] for i in scores.argmax(1)]


def _terms(example: Text) -> list[str]:
    first = words(example.text)
    terms = [*first, *(f"{a} {b}" for a, b in zip(first, first[1:], strict=False))]
    if example.pair is not None:
        second = words(example.pair)
        common = set(first) & set(second)
        share = round(5 * _overlap(example.text, example.pair))
        terms += [f"2 {word}" for word in second] + [f"12 {word}" for word in common] + [f"overlap {share}"] * 3
    return terms


def _threshold_on_overlap(train: Sequence[Any], dev: Sequence[Any]) -> list[str] | None:
    """The share of common words, cut where it separates two labels best in training; for more labels, or one, cut
    into fifths.
    """
    if train[0].pair is None:
        return None
    shares = np.array([_overlap(example.text, example.pair) for example in train])
    labels = np.array([str(example.label) for example in train])
    names = sorted(set(labels.tolist()))
    edges = np.unique(np.quantile(shares, np.linspace(0, 1, 21)))
    if len(names) != 2:
        return [_vote(shares, labels, edges[::4], _overlap(e.text, e.pair)) for e in dev]
    best = max(
        ((edge, low, high) for edge in edges for low, high in (names, names[::-1])),
        key=lambda rule: np.mean(np.where(shares < rule[0], rule[1], rule[2]) == labels),
    )
    return [best[1] if _overlap(example.text, example.pair) < best[0] else best[2] for example in dev]


def _vote(shares: np.ndarray, labels: np.ndarray, edges: np.ndarray, share: float) -> str:
    near = labels[np.digitize(shares, edges) == np.digitize(share, edges)]
    return Counter((near if len(near) else labels).tolist()).most_common(1)[0][0]


def _overlap_number(train: Sequence[Any], dev: Sequence[Any]) -> list[float] | None:
    if train[0].pair is None:
        return None
    return [_overlap(example.text, example.pair) for example in dev]


def _overlap(a: str, b: str) -> float:
    """Dice coefficient of the sets of words."""
    first, second = set(words(a)), set(words(b))
    return 2 * len(first & second) / max(len(first) + len(second), 1)


# Tags, options, answers


def _most_frequent_tag(train: Sequence[Words], dev: Sequence[Words]) -> list[tuple[str, ...]]:
    """The tag that a word had most often; an unknown word has the most frequent tag of all."""
    by_word: dict[str, Counter[str]] = {}
    every: Counter[str] = Counter()
    for sentence in train:
        for word, tag in zip(sentence.words, sentence.tags or (), strict=True):
            by_word.setdefault(word, Counter())[tag] += 1
            every[tag] += 1
    usual = every.most_common(1)[0][0]
    table = {word: counts.most_common(1)[0][0] for word, counts in by_word.items()}
    return [tuple(table.get(word, usual) for word in sentence.words) for sentence in dev]


def _all_outside(train: Sequence[Words], dev: Sequence[Words]) -> list[tuple[str, ...]]:
    usual = Counter(tag for sentence in train for tag in sentence.tags or ()).most_common(1)[0][0]
    return [(usual,) * len(sentence.words) for sentence in dev]


def _usual_place(train: Sequence[Choice], dev: Sequence[Choice]) -> list[int]:
    most = Counter(answer for example in train for answer in example.answers or ()).most_common(1)[0][0]
    return [min(most, len(example.options) - 1) for example in dev]


def _overlapping_option(train: Sequence[Choice], dev: Sequence[Choice]) -> list[int]:
    """The option that shares most words with context and question."""
    return [
        int(np.argmax([_overlap(f"{example.context} {example.question}", option) for option in example.options]))
        for example in dev
    ]


def _overlapping_sentence(train: Sequence[Question], dev: Sequence[Question]) -> list[str]:
    """The sentence of the passage that shares most words with the question."""
    found = []
    for question in dev:
        sentences = re.split(r"(?<=[.!?。！？])\s*", question.passage)
        found.append(max(sentences, key=lambda sentence: _overlap(sentence, question.question)))
    return found


def _no_answer(train: Sequence[Question], dev: Sequence[Question]) -> list[str]:
    return [""] * len(dev)


_BASELINES: dict[str, dict[str, Any]] = {
    "classification": {
        "majority": _majority,
        "TF-IDF + logistic regression": _bag_of_words,
        "word overlap": _threshold_on_overlap,
    },
    "regression": {"mean": _mean, "word overlap": _overlap_number},
    "tagging": {"majority": _all_outside, "dictionary": _most_frequent_tag},
    "choice": {"majority": _usual_place, "word overlap": _overlapping_option},
    "span": {"majority": _no_answer, "word overlap": _overlapping_sentence},
}


class TfIdf:
    """Term frequencies 1 + log tf, inverse document frequencies as scikit-learn smooths them, rows of length 1; sparse
    rows. Terms of at least two documents are kept, of more than ``most`` those of most documents.
    """

    def __init__(self, documents: Iterable[Sequence[str]], *, most: int | None = None) -> None:
        counts: Counter[str] = Counter()
        size = 0
        for document in documents:
            counts.update(set(document))
            size += 1
        common = (term for term, count in sorted(counts.items(), key=lambda pair: (-pair[1], pair[0])) if count > 1)
        kept = sorted(islice(common, most))
        self.index = {term: i for i, term in enumerate(kept)}
        df = np.array([counts[term] for term in kept], dtype=float)
        self.idf = np.log((1 + size) / (1 + df)) + 1

    def __call__(self, documents: Iterable[Sequence[str]]) -> list[tuple[np.ndarray, np.ndarray]]:
        """(columns, values) of each document."""
        rows = []
        for document in documents:
            counts = Counter(self.index[term] for term in document if term in self.index)
            columns = np.fromiter(counts, np.int64, len(counts))
            values = (1 + np.log(np.fromiter(counts.values(), float, len(counts)))) * self.idf[columns]
            rows.append((columns, values / max(float(np.linalg.norm(values)), 1e-12)))
        return rows


class LogisticRegression:
    """Multinomial logistic regression with an L2 penalty, on sparse rows, by L-BFGS (Liu and Nocedal, 1989).

    Minimises ``sum of cross-entropies + |W|^2 / 2``; the biases are free, as in scikit-learn, whose ``C`` is 1 here.
    """

    def __init__(self, classes: int, *, steps: int = 100) -> None:
        self.classes, self.steps = classes, steps
        self.weights = np.zeros((1, classes))
        self.bias = np.zeros(classes)

    def fit(self, rows: Sequence[tuple[np.ndarray, np.ndarray]], target: np.ndarray) -> LogisticRegression:
        """Learn from sparse rows and the class of each."""
        row, column, value = _coordinates(rows)
        width = int(column.max(initial=0)) + 1
        onehot = np.eye(self.classes)[target]

        def loss(theta: np.ndarray) -> tuple[float, np.ndarray]:
            weights, bias = theta[:-1], theta[-1]
            scores = _times(row, column, value, weights, len(rows)) + bias
            scores -= scores.max(1, keepdims=True)
            log_p = scores - np.log(np.exp(scores).sum(1, keepdims=True))
            error = np.exp(log_p) - onehot
            gradient = np.vstack([_times(column, row, value, error, width) + weights, error.sum(0)])
            return float((weights**2).sum() / 2 - (log_p * onehot).sum()), gradient

        theta = _lbfgs(loss, np.zeros((width + 1, self.classes)), self.steps)
        self.weights, self.bias = theta[:-1], theta[-1]
        return self

    def scores(self, rows: Sequence[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
        """Unnormalised log-probabilities (n, classes)."""
        row, column, value = _coordinates(rows)
        known = column < len(self.weights)
        return _times(row[known], column[known], value[known], self.weights, len(rows)) + self.bias


def _coordinates(rows: Sequence[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    sizes = [len(columns) for columns, _ in rows]
    row = np.repeat(np.arange(len(rows)), sizes)
    none = [np.zeros(0, np.int64)]
    return row, np.concatenate([columns for columns, _ in rows] or none), np.concatenate([v for _, v in rows] or none)


def _times(into: np.ndarray, source: np.ndarray, value: np.ndarray, dense: np.ndarray, size: int) -> np.ndarray:
    """Sparse times dense: row ``into[k]`` of the result gathers ``value[k] * dense[source[k]]``."""
    return np.stack(
        [np.bincount(into, value * dense[source, c], minlength=size) for c in range(dense.shape[1])], axis=1
    )


def _lbfgs(function: Any, start: np.ndarray, steps: int, memory: int = 10) -> np.ndarray:
    """Minimise a smooth function (value, gradient) with limited-memory BFGS and backtracking."""
    x, (value, gradient) = start, function(start)
    pairs: list[tuple[np.ndarray, np.ndarray, float]] = []
    for _ in range(steps):
        if np.abs(gradient).max() < 1e-4:
            break
        direction = -gradient
        alphas = []
        for s, y, rho in reversed(pairs):
            alphas.append(rho * float((s * direction).sum()))
            direction = direction - alphas[-1] * y
        if pairs:
            s, y, rho = pairs[-1]
            direction = direction / (rho * float((y * y).sum()))
        else:
            direction = direction / max(float(np.linalg.norm(gradient)), 1.0)
        for (s, y, rho), alpha in zip(pairs, reversed(alphas), strict=True):
            direction = direction + s * (alpha - rho * float((y * direction).sum()))
        slope, size = float((gradient * direction).sum()), 1.0
        while True:
            candidate = x + size * direction
            new_value, new_gradient = function(candidate)
            if new_value <= value + 1e-4 * size * slope or size < 1e-10:
                break
            size /= 2
        s, y = candidate - x, new_gradient - gradient
        curvature = float((s * y).sum())
        if curvature > 1e-10:
            pairs = [*pairs[-memory + 1 :], (s, y, 1 / curvature)]
        x, value, gradient = candidate, new_value, new_gradient
    return x
