"""Baselines without a trained model: sums of log word frequencies, and a trigram model, from the counts of a corpus.

Both count tokens of the corpus' tokenizer in its training split. Only the n-grams of the pairs are counted, so memory
follows the pairs and not the corpus; counting reads the corpus once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from encoderlab.corpus.manifest import MANIFEST, verify
from encoderlab.corpus.shards import Corpus
from encoderlab.corpus.tokenizer import Encoding, Tokenizer
from encoderlab.files import sha256
from encoderlab.measure.pairs.evaluate import Survey, encoded, evaluate_files
from encoderlab.measure.pairs.statistics import Table

WEIGHTS = (0.1, 0.3, 0.6)  # of one, two and three tokens, if their contexts occur
BLOCK = 1 << 20  # tokens that are counted together


class Baselines:
    """A scorer (see :mod:`encoderlab.measure.pairs.scorers`) by counts.

    ``frequency``: sum of log p(w_i) with p(w) = (count(w) + 1) / (tokens + vocabulary). ``trigram``: sum of
    log p(w_i | w_i-2 w_i-1), a mixture of relative frequencies of three, two and one token with :data:`WEIGHTS`
    (Jelinek and Mercer, 1980); the weight of a context that does not occur goes to the shorter ones. Sums are exactly
    rounded, so that sentences with the same tokens in any order tie.

    Args:
        sentences: all that will be scored; may be an iterator.
    """

    measures = ("frequency", "trigram")
    longest = None

    def __init__(self, corpus: Corpus, tokenizer: Tokenizer, sentences: Iterable[Encoding]) -> None:
        self.tokenizer, self.base = tokenizer, max(corpus.vocab_size, tokenizer.vocab_size)
        counts = np.zeros(self.base, np.int64)
        counts[: corpus.vocab_size] = corpus.counts()
        self.shares = (counts + 1) / (counts.sum() + self.base)
        self.known = _Counts(corpus, self.base, sentences)

    def __call__(self, sentences: Sequence[Encoding]) -> np.ndarray:
        """(n,) sentences -> (n, 2) float64, in nats."""
        out = np.empty((len(sentences), 2))
        for row, sentence in zip(out, sentences, strict=True):
            ids = sentence.ids.astype(np.int64)
            row[0] = math.fsum(np.log(self.shares[ids]))
            row[1] = math.fsum(np.log(self._conditional(ids)))
        return out

    def _conditional(self, ids: np.ndarray) -> np.ndarray:
        """p of each token given the two before it, (n,)."""
        total = WEIGHTS[0] * self.shares[ids]
        weights = np.full(len(ids), WEIGHTS[0])
        for order, weight in ((2, WEIGHTS[1]), (3, WEIGHTS[2])):
            if len(ids) < order:
                continue
            gram = self.known(ids, order)
            context = self.known(ids[:-1], order - 1)
            seen = context > 0
            total[order - 1 :] += np.where(seen, weight * gram / np.maximum(context, 1), 0.0)
            weights[order - 1 :] += np.where(seen, weight, 0.0)
        return total / weights


def baselines_of(
    path: Path, files: Sequence[Path], surveyed: Survey, *, progress: Callable[[str, int, int], None], **settings: Any
) -> dict[str, Table]:
    """Accuracies by the :class:`Baselines` of the corpus at ``path``, on the pairs that a survey ``surveyed``."""
    corpus = Corpus(path)
    verify(path, "train")
    tokenizer = corpus.tokenizer()
    rows = encoded(files, tokenizer, bad_first=settings.get("bad_first", False))
    scorer = Baselines(corpus, tokenizer, (sentence for _, good, bad in rows for sentence in (good, bad)))
    return evaluate_files(
        [scorer],
        files,
        tokenizer,
        surveyed,
        key=sha256(path / MANIFEST),
        progress=lambda done, total: progress("scored by counts", done, total),
        **settings,
    )


class _Counts:
    """How often the n-grams (n = 1 to 3) of some sentences occur in a corpus, within documents."""

    def __init__(self, corpus: Corpus, base: int, sentences: Iterable[Encoding]) -> None:
        self.base = base
        needed: dict[int, set[int]] = {1: set(), 2: set(), 3: set()}
        for sentence in sentences:
            for order, known in needed.items():
                known.update(_grams(sentence.ids.astype(np.int64), order, base).tolist())
        self.keys = {order: np.array(sorted(known), np.int64) for order, known in needed.items()}
        self.counts = {order: np.zeros(len(keys), np.int64) for order, keys in self.keys.items()}
        for ids, documents in _blocks(corpus):
            for order, keys in self.keys.items():
                whole = documents[order - 1 :] == documents[: len(documents) - order + 1]
                grams = _grams(ids, order, base)[whole]
                place = np.searchsorted(keys, grams)
                inside = place < len(keys)
                inside[inside] = keys[place[inside]] == grams[inside]
                self.counts[order] += np.bincount(place[inside], minlength=len(keys))

    def __call__(self, ids: np.ndarray, order: int) -> np.ndarray:
        """Counts of every n-gram of ``ids``, a counted sentence: (n - order + 1,)."""
        return self.counts[order][np.searchsorted(self.keys[order], _grams(ids, order, self.base))]


def _grams(ids: np.ndarray, order: int, base: int) -> np.ndarray:
    """Every run of ``order`` ids as one number: (n,) -> (max(n - order + 1, 0),) int64."""
    size = max(len(ids) - order + 1, 0)
    grams = np.zeros(size, np.int64)
    for place in range(order):
        grams = grams * base + ids[place : place + size]
    return grams


def _blocks(corpus: Corpus) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Tokens of whole documents, about :data:`BLOCK` at a time, and the document of each."""
    ids: list[np.ndarray] = []
    size = 0
    for number in range(corpus.num_documents):
        ids.append(corpus.document(number).ids)
        size += len(ids[-1])
        if size >= BLOCK or number == corpus.num_documents - 1:
            yield np.concatenate(ids).astype(np.int64), np.repeat(np.arange(len(ids)), [len(part) for part in ids])
            ids, size = [], 0
