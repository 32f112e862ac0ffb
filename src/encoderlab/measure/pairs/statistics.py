"""Accuracies over minimal pairs: by paradigm, by phenomenon and in total, with intervals from the bootstrap."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from encoderlab.seeds import generator

Ties = Literal["half", "right"]
DRAWS = 1000  # of the bootstrap
LEVEL = 0.95  # of the intervals


@dataclass(frozen=True, kw_only=True)
class Accuracy:
    """A share of right pairs, its interval, and the numbers of pairs and ties."""

    accuracy: float
    low: float
    high: float
    pairs: int
    ties: int


@dataclass(frozen=True, kw_only=True)
class Table:
    """Accuracies by one measure. Those of a phenomenon and of all are means over paradigms, each with equal weight."""

    total: Accuracy
    phenomena: dict[str, Accuracy]
    paradigms: dict[str, Accuracy]


def tabulate(
    margins: np.ndarray, numbers: np.ndarray, paradigms: Sequence[tuple[str, str]], *, ties: Ties = "half"
) -> Table:
    """The table of one measure.

    Each interval is the middle 95% of 1,000 resamplings of the pairs within every paradigm. Paradigms are not
    resampled: the interval is about other sentences of the same paradigms. Where all pairs of a paradigm are right,
    or all wrong, resampling would never vary; there its share is drawn from Beta(n + 1/2, 1/2) (Jeffreys' prior).
    Where all are ties that count half, it is one half.

    Args:
        margins: (n,) score of the acceptable sentence minus that of the other; above 0 is right, 0 a tie.
        numbers: (n,) int, the paradigm of each pair.
        paradigms: name and phenomenon of each paradigm; each has at least one pair.
        ties: whether a tie counts as half right, or as right (BabyLM's scorer).
    """
    worth = {"half": 0.5, "right": 1.0}[ties]
    outcomes = np.where(margins > 0, 0, np.where(margins == 0, 1, 2))
    counts = np.zeros((len(paradigms), 3), np.int64)  # right, tied, wrong
    np.add.at(counts, (numbers, outcomes), 1)
    values = np.array([1.0, worth, 0.0])
    alike = counts @ np.array([[1, 0], [int(ties == "right"), 0], [0, 1]])  # right, wrong
    sizes = counts.sum(1)
    means = counts @ values / sizes
    drawn = np.empty((DRAWS, len(paradigms)))
    for place, (name, _) in enumerate(paradigms):
        rng, size = generator(0, "bootstrap", name), sizes[place]
        if alike[place].max() == size:
            surprise = rng.beta(0.5, size + 0.5, size=DRAWS)
            drawn[:, place] = means[place] + surprise * (1 - 2 * means[place])
        else:
            drawn[:, place] = rng.multinomial(size, counts[place] / size, size=DRAWS) @ values / size

    def over(members: list[int]) -> Accuracy:
        low, high = np.quantile(drawn[:, members].mean(1), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
        mean = float(means[members].mean())
        return Accuracy(
            accuracy=mean,
            low=min(float(low), mean),
            high=max(float(high), mean),
            pairs=int(sizes[members].sum()),
            ties=int(counts[members, 1].sum()),
        )

    groups: dict[str, list[int]] = {}
    for place, (_, phenomenon) in enumerate(paradigms):
        if phenomenon:
            groups.setdefault(phenomenon, []).append(place)
    return Table(
        total=over(list(range(len(paradigms)))),
        phenomena={name: over(members) for name, members in groups.items()},
        paradigms={name: over([place]) for place, (name, _) in enumerate(paradigms)},
    )
