"""Simple predictors that a model should beat: the most frequent label, TF-IDF with logistic regression, word overlap, a
tag dictionary.

Each takes training examples and those to predict, and returns predictions; None if it does not apply. Each form of
task lists its own. A few thousand examples take seconds.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from encoderlab.tasks.data.examples import Choice, Question, TaggedWords, Text, labels_of
from encoderlab.tasks.scoring.linear import LogisticRegression, TfIdf

WEIGHTS = 2**23  # largest regression: 64 MiB, of which L-BFGS keeps some twenty copies
_WORD = re.compile(r"[一-鿿]|\w+|[^\w\s]")


def words(text: str) -> Iterator[str]:
    """Lower-cased words, Han characters one by one, punctuation marks; one after the other, for texts of any size."""
    return (match.group() for match in _WORD.finditer(text.lower()))


# Labels and numbers


def majority(train: Sequence[Any], dev: Sequence[Any]) -> list[Any]:
    most = Counter(example.label for example in train if example.label is not None).most_common(1)[0][0]
    return [most] * len(dev)


def mean_number(train: Sequence[Any], dev: Sequence[Any]) -> list[float]:
    return [float(np.mean([float(example.label) for example in train]))] * len(dev)


def bag_of_words(train: Sequence[Any], dev: Sequence[Any]) -> list[str]:
    """Logistic regression on TF-IDF of words and word pairs; of two texts, on both and on their common words."""
    names = sorted({str(example.label) for example in train})
    target = np.array([names.index(str(example.label)) for example in train])
    return [names[i] for i in _regressed(LogisticRegression(len(names)), train, target, dev).argmax(1)]


def most_frequent_labels(train: Sequence[Any], dev: Sequence[Any]) -> list[tuple[str, ...]]:
    """The set of labels that is the most frequent one."""
    most = Counter(tuple(sorted(example.label)) for example in train).most_common(1)[0][0]
    return [most] * len(dev)


def bags_of_words(train: Sequence[Any], dev: Sequence[Any]) -> list[tuple[str, ...]]:
    """As :func:`bag_of_words`, a regression for every label; those with a probability above one half."""
    names = labels_of(train)
    target = np.array([[name in example.label for name in names] for example in train], dtype=float)
    scores = _regressed(LogisticRegression(len(names), several=True), train, target, dev)
    return [tuple(names[i] for i in np.flatnonzero(row > 0)) for row in scores]


def _regressed(model: LogisticRegression, train: Sequence[Any], target: np.ndarray, dev: Sequence[Any]) -> np.ndarray:
    """The scores (n, classes) of ``dev`` by the ``model`` of the terms of ``train``."""
    features = TfIdf(map(_terms, train), most=WEIGHTS // model.classes)
    return model.fit(features(map(_terms, train)), target).scores(features(map(_terms, dev)))


def _terms(example: Text) -> Iterator[str]:
    yield from words(example.text)
    yield from (f"{a} {b}" for a, b in pairwise(words(example.text)))
    if example.pair is not None:
        yield from (f"2 {word}" for word in words(example.pair))
        yield from (f"12 {word}" for word in sorted(set(words(example.text)) & set(words(example.pair))))
        yield from [f"overlap {round(5 * _overlap(example.text, example.pair))}"] * 3


def threshold_on_overlap(train: Sequence[Any], dev: Sequence[Any]) -> list[str] | None:
    """The label from the share of common words: of two labels, by the threshold that is best in training; of any other
    number, the most frequent one among training examples in the same fifth.
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
    """The most frequent label among ``shares`` between the same ``edges`` as ``share``; of all labels if there is
    none.
    """
    near = labels[np.digitize(shares, edges) == np.digitize(share, edges)]
    return Counter((near if len(near) else labels).tolist()).most_common(1)[0][0]


def overlap_number(train: Sequence[Any], dev: Sequence[Any]) -> list[float] | None:
    if train[0].pair is None:
        return None
    return [_overlap(example.text, example.pair) for example in dev]


def _overlap(a: str, b: str) -> float:
    """Dice coefficient of the sets of words."""
    first, second = set(words(a)), set(words(b))
    return 2 * len(first & second) / max(len(first) + len(second), 1)


# Tags, options, answers


def tag_dictionary(train: Sequence[TaggedWords], dev: Sequence[TaggedWords]) -> list[tuple[str, ...]]:
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


def most_frequent_tag_of_all(train: Sequence[TaggedWords], dev: Sequence[TaggedWords]) -> list[tuple[str, ...]]:
    usual = Counter(tag for sentence in train for tag in sentence.tags or ()).most_common(1)[0][0]
    return [(usual,) * len(sentence.words) for sentence in dev]


def usual_place(train: Sequence[Choice], dev: Sequence[Choice]) -> list[int]:
    most = Counter(answer for example in train for answer in example.answers or ()).most_common(1)[0][0]
    return [min(most, len(example.options) - 1) for example in dev]


def overlapping_option(train: Sequence[Choice], dev: Sequence[Choice]) -> list[int]:
    """The option that shares most words with context and question."""
    return [
        int(np.argmax([_overlap(f"{example.context} {example.question}", option) for option in example.options]))
        for example in dev
    ]


def overlapping_sentence(train: Sequence[Question], dev: Sequence[Question]) -> list[str]:
    """The sentence of the passage that shares most words with the question."""
    sentences_chosen = []
    for question in dev:
        sentences = re.split(r"(?<=[.!?。！？])\s*", question.passage)
        sentences_chosen.append(max(sentences, key=lambda sentence: _overlap(sentence, question.question)))
    return sentences_chosen


def no_answer(train: Sequence[Question], dev: Sequence[Question]) -> list[str]:
    return [""] * len(dev)
