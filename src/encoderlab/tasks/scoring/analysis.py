"""The analysis of predictions: scores by class, the confusion matrix, and the worst mistakes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

WORST = 30  # mistakes to store with their texts
SHOWN = 600  # characters of a text to store
POINTS = 2000  # numbers of a regression to store


@dataclass(frozen=True, kw_only=True)
class ClassScore:
    """Counts of one class, label or entity type, or of all."""

    correct: int
    predicted: int
    gold: int

    @property
    def precision(self) -> float:
        return self.correct / self.predicted if self.predicted else 0.0

    @property
    def recall(self) -> float:
        return self.correct / self.gold if self.gold else 0.0

    @property
    def f1(self) -> float:
        both = self.precision + self.recall
        return 2 * self.precision * self.recall / both if both else 0.0


@dataclass(frozen=True, kw_only=True)
class Mistake:
    """One example that was predicted wrongly.

    Attributes:
        place: its number among the examples, from 0; ``id`` is its own.
        texts: its texts by name, each cut to :data:`SHOWN` characters.
        gold, predicted: in words.
        sure: the probability of the prediction, if known.
        words: for tagging, each word with its gold and its predicted tag.
    """

    place: int
    id: str
    texts: dict[str, str]
    gold: str
    predicted: str
    sure: float | None = None
    words: tuple[tuple[str, str, str], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Analysis:
    """The predictions of one run for the labelled examples of a split.

    Attributes:
        examples: number of examples.
        wrong: the places of wrong predictions; None if answers are more or less right.
        worst: the largest mistakes, the worst first.
        kind: of ``classes``: class, label, tag or entity type.
        classes: counts of each.
        confusion: (gold, predicted, count) of single labels, the most frequent first.
        points: (gold, predicted) of numbers.
    """

    examples: int
    wrong: tuple[int, ...] | None = None
    worst: tuple[Mistake, ...] = ()
    kind: str = ""
    classes: dict[str, ClassScore] = field(default_factory=dict)
    confusion: tuple[tuple[str, str, int], ...] = ()
    points: tuple[tuple[float, float], ...] = ()


def by_class(
    gold: Iterable[Iterable[Any]],
    predicted: Iterable[Iterable[Any]],
    classes: Sequence[str] = (),
    of: Callable[[Any], str] = str,
) -> dict[str, ClassScore]:
    """The counts of each class from the gold and predicted items of every example; ``of`` gives an item's class, and
    ``classes`` come first.
    """
    counts: dict[str, Counter[str]] = {"correct": Counter(), "predicted": Counter(), "gold": Counter()}
    for right, guess in zip(gold, predicted, strict=True):
        a, b = set(right), set(guess)
        for name, some in (("gold", a), ("predicted", b), ("correct", a & b)):
            counts[name].update(map(of, some))
    names = dict.fromkeys([*classes, *sorted({*counts["gold"], *counts["predicted"]})])
    return {name: ClassScore(**{kind: counter[name] for kind, counter in counts.items()}) for name in names}


def confusion(gold: Iterable[str], predicted: Iterable[str]) -> tuple[tuple[str, str, int], ...]:
    """How often each gold label was predicted as each label, the most frequent pair first."""
    counts = Counter(zip(gold, predicted, strict=True))
    return tuple((right, guess, count) for (right, guess), count in counts.most_common())


def shortened(text: str, around: int = 0) -> str:
    """At most :data:`SHOWN` characters of ``text``, with the one at ``around`` among them."""
    if len(text) <= SHOWN:
        return text
    start = min(max(0, around - SHOWN // 2), len(text) - SHOWN)
    return ("… " if start else "") + text[start : start + SHOWN] + (" …" if start + SHOWN < len(text) else "")


def texts_of(texts: Mapping[str, str | None], around: int = 0) -> dict[str, str]:
    """The non-empty texts, shortened (:func:`shortened`)."""
    return {name: shortened(text, around) for name, text in texts.items() if text}
