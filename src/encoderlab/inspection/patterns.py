"""Statistics of heads, averaged over texts: entropy, distance, and the tokens that they attend to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from encoderlab.inspection.attention import NO_WORD, Attended

NEAR = 4  # tokens on each side that count as the diagonal (Jiang et al., 2020, table 8)
MAP = 64  # tokens of the average map
RELATIONS = {
    "itself": "the token itself",
    "previous": "the token before",
    "next": "the token after",
    "first": "the first token of the row",
    "special": "special tokens (separators among them)",
    "word": "other pieces of the same word",
    "same": "the same token elsewhere",
    "head": "the word that it depends on",
    "dependents": "the words that depend on it",
}
SYNTAX = ("head", "dependents")


class Patterns:
    """Sums over texts, of every layer (N) and head (H); queries are the tokens of words.

    ``entropy`` in nats, of attention heads; ``distance`` in tokens; ``near`` and ``far``: weight within :data:`NEAR` of
    the diagonal and outside; ``relations``: weight on the tokens of each of :data:`RELATIONS`. ``map`` (N, H, 64, 64)
    over the first tokens, with the number of texts ``seen`` (64, 64) that are long enough.
    """

    def __init__(self, layers: int, heads: int, attending: int) -> None:
        self.layers, self.heads, self.attending = layers, heads, attending
        self.queries = self.parsed = 0
        shape = layers, heads
        self.entropy, self.distance, self.near, self.far = (np.zeros(shape) for _ in range(4))
        self.relations = {name: np.zeros(shape) for name in RELATIONS}
        self.map, self.seen = np.zeros((*shape, MAP, MAP), np.float32), np.zeros((MAP, MAP))

    def add(self, text: Attended, heads: Sequence[int] | None = None) -> None:
        """Add one text; ``heads`` has for every word the number of the word that it depends on, -1 for the root."""
        if heads is not None and len(heads) == 1:  # without white space its tokens may count as several words
            text = replace(text, words=np.minimum(text.words, 0))
        rows = np.flatnonzero(text.words[text.memory :] != NO_WORD)
        places = rows + text.memory
        masks = _relations(text, places, heads)
        away = np.abs(places[:, None] - np.arange(len(text.tokens)))
        near = away <= NEAR
        shown = min(MAP, len(text.tokens) - text.memory)
        for layer, whole in enumerate(text.layers):
            weights = whole[:, rows].astype(np.float64)
            safe = np.where(weights[: self.attending] > 0, weights[: self.attending], 1.0)
            self.entropy[layer, : self.attending] += -(safe * np.log(safe)).sum((1, 2))
            total = np.maximum(weights.sum(-1), 1e-12)
            self.distance[layer] += ((weights * away).sum(-1) / total).sum(-1)
            self.near[layer] += (weights * near).sum((1, 2))
            self.far[layer] += (weights * ~near).sum((1, 2))
            for name, mask in masks.items():
                self.relations[name][layer] += (weights * mask).sum((1, 2))
            if not text.memory:
                self.map[layer, :, :shown, :shown] += whole[:, :shown, :shown]
        if not text.memory:
            self.seen[:shown, :shown] += 1
        self.queries += len(rows)
        self.parsed += 0 if heads is None else len(rows)

    def shares(self) -> dict[str, np.ndarray]:
        """The mean weight (N, H) on each relation; those of syntax only over texts with trees."""
        counts = {name: self.parsed if name in SYNTAX else self.queries for name in RELATIONS}
        return {name: sums / counts[name] for name, sums in self.relations.items() if counts[name]}

    def summary(self) -> dict[str, list[list[float | None]]]:
        """Every number of every layer and head: entropy, distance, diagonal concentration, and the relations."""
        queries = max(self.queries, 1)
        entropy = self.entropy / queries
        sums = zip(self.near.tolist(), self.far.tolist(), strict=True)
        return {
            "entropy": [[float(x) if head < self.attending else None for head, x in enumerate(row)] for row in entropy],
            "distance": (self.distance / queries).tolist(),
            "diagonal": [[concentration(*of_head) for of_head in zip(*layer, strict=True)] for layer in sums],
            **{name: shares.tolist() for name, shares in self.shares().items()},
        }

    def diagonal(self, first: int, last: int) -> float | None:
        """Diagonal concentration of all maps of heads ``first`` up to ``last``."""
        return concentration(float(self.near[:, first:last].sum()), float(self.far[:, first:last].sum()))

    def average(self) -> np.ndarray:
        """The average map (N, H, 64, 64); 0 where no text is long enough."""
        return self.map / np.maximum(self.seen, 1).astype(np.float32)


def concentration(near: float, far: float) -> float | None:
    """``near`` over ``far``; None if nothing far is read: by kernels of up to 9 taps, or in short texts."""
    return near / far if far else None


def _relations(text: Attended, places: np.ndarray, heads: Sequence[int] | None) -> dict[str, np.ndarray]:
    """The tokens in each relation to a query: (queries, M) bool."""
    keys = np.arange(len(text.tokens))
    words = text.words
    _, kinds = np.unique(np.asarray(text.tokens, object).astype(str), return_inverse=True)
    itself = places[:, None] == keys
    same_word = (words[places][:, None] == words) & ~itself
    masks = {
        "itself": itself,
        "previous": keys == places[:, None] - 1,
        "next": keys == places[:, None] + 1,
        "first": np.broadcast_to(keys == 0, itself.shape),
        "special": np.broadcast_to(words == NO_WORD, itself.shape),
        "word": same_word,
        "same": (kinds[places][:, None] == kinds) & ~itself & ~same_word,
    }
    if heads is not None:
        tree = np.append(np.asarray(heads, np.int64), NO_WORD)  # the last entry serves special tokens
        above = tree[words]
        masks["head"] = (above[places][:, None] == words) & (above[places] != NO_WORD)[:, None]
        masks["dependents"] = (above == words[places][:, None]) & (words != NO_WORD)
    return masks
