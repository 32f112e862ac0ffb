"""TF-IDF features and multinomial logistic regression, in NumPy: the bag-of-words baseline."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np

MEMORY = 10  # steps that L-BFGS keeps
SparseRow = tuple[np.ndarray, np.ndarray]  # columns and values, (k,) each


class TfIdf:
    """Sparse rows (1 + log tf) idf of Euclidean length 1, with scikit-learn's smooth idf = ln((1 + n) / (1 + df)) + 1.

    n is the number of documents, df the number of those with the term. Terms of a single document are dropped, and of
    the others all but the ``most`` frequent.
    """

    def __init__(self, documents: Iterable[Iterable[str]], *, most: int | None = None) -> None:
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

    def __call__(self, documents: Iterable[Iterable[str]]) -> list[SparseRow]:
        """The row of each document: its columns and their values, (k,) each."""
        rows = []
        for document in documents:
            counts = Counter(self.index[term] for term in document if term in self.index)
            columns = np.fromiter(counts, np.int64, len(counts))
            values = (1 + np.log(np.fromiter(counts.values(), float, len(counts)))) * self.idf[columns]
            rows.append((columns, values / max(float(np.linalg.norm(values)), 1e-12)))
        return rows


class LogisticRegression:
    """Multinomial logistic regression with an L2 penalty, by L-BFGS (Liu and Nocedal, 1989).

    Minimises ``sum of cross-entropies + |W|^2 / 2``; the biases are free, as in scikit-learn, whose ``C`` is 1 here.
    With ``several``, each class is a regression of its own: yes or no.
    """

    def __init__(self, classes: int, *, several: bool = False, steps: int = 100) -> None:
        self.classes, self.several, self.steps = classes, several, steps
        self.weights = np.zeros((1, classes))
        self.bias = np.zeros(classes)

    def fit(self, rows: Sequence[SparseRow] | np.ndarray, target: np.ndarray) -> LogisticRegression:
        """Learn from sparse rows, or an array (n, D), and the class of each, (n,); with ``several``, whether it has
        each class, (n, classes).
        """
        matrix = rows if isinstance(rows, np.ndarray) else _Sparse.of(rows)
        truth = target if self.several else np.eye(self.classes)[target]

        def loss(theta: np.ndarray) -> tuple[float, np.ndarray]:
            weights, bias = theta[:-1], theta[-1]
            scores = matrix @ weights + bias
            if self.several:
                error = 0.5 + 0.5 * np.tanh(scores / 2) - truth
                loss = (np.logaddexp(0, scores) - scores * truth).sum()
            else:
                scores -= scores.max(1, keepdims=True)
                log_p = scores - np.log(np.exp(scores).sum(1, keepdims=True))
                error = np.exp(log_p) - truth
                loss = -(log_p * truth).sum()
            gradient = np.vstack([matrix.T @ error + weights, error.sum(0)])
            return float((weights**2).sum() / 2 + loss), gradient

        theta = _lbfgs(loss, np.zeros((matrix.shape[1] + 1, self.classes)), self.steps)
        self.weights, self.bias = theta[:-1], theta[-1]
        return self

    def scores(self, rows: Sequence[SparseRow] | np.ndarray) -> np.ndarray:
        """Unnormalised log-probabilities (n, classes)."""
        matrix = rows if isinstance(rows, np.ndarray) else _Sparse.of(rows, len(self.weights))
        return matrix @ self.weights + self.bias


class _Sparse(NamedTuple):
    """A matrix by its entries, (k,) each; a product costs as many operations as there are entries."""

    row: np.ndarray
    column: np.ndarray
    value: np.ndarray
    shape: tuple[int, int]

    @classmethod
    def of(cls, rows: Sequence[SparseRow], width: int | None = None) -> _Sparse:
        """The matrix (n, D) of n rows; columns beyond the ``width`` D, by default of the widest row, are left out."""
        none = [np.zeros(0, np.int64)]
        row = np.repeat(np.arange(len(rows)), [len(columns) for columns, _ in rows])
        column = np.concatenate([columns for columns, _ in rows] or none)
        value = np.concatenate([values for _, values in rows] or none)
        width = int(column.max(initial=0)) + 1 if width is None else width
        known = column < width
        return cls(row[known], column[known], value[known], (len(rows), width))

    @property
    def T(self) -> _Sparse:  # noqa: N802 as NumPy's
        return _Sparse(self.column, self.row, self.value, self.shape[::-1])

    def __matmul__(self, dense: np.ndarray) -> np.ndarray:
        """(D, columns) -> (n, columns)."""
        columns = (self.value * dense[self.column, c] for c in range(dense.shape[1]))
        return np.stack([np.bincount(self.row, column, minlength=self.shape[0]) for column in columns], axis=1)


def _lbfgs(function: Callable[[np.ndarray], tuple[float, np.ndarray]], start: np.ndarray, steps: int) -> np.ndarray:
    """Minimise a function that returns value and gradient, by limited-memory BFGS with backtracking line search.

    ``pairs`` are the last ``MEMORY`` steps s, changes of the gradient y, and rho = 1 / (s . y); the direction is the
    two-loop recursion of Nocedal and Wright, 2006, algorithm 7.4.
    """
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
            pairs = [*pairs[-MEMORY + 1 :], (s, y, 1 / curvature)]
        x, value, gradient = candidate, new_value, new_gradient
    return x
