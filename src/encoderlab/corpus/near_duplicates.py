"""Documents that resemble each other, by MinHash and bands (Broder 1997; Leskovec, Rajaraman and Ullman, chapter 3).

A document is the set of its shingles, runs of five words. Two documents are alike by the Jaccard similarity of their
sets, J = |A ∩ B| / |A ∪ B|. A hash function orders all shingles at random; the smallest of A is the smallest of B with
probability J. Of ``bands * rows`` such functions, each band joins ``rows`` smallest hashes into one number. Two
documents share a number with probability 1 - (1 - J^rows)^bands: a steep curve, which is at one half near the
requested similarity.

Words are runs of letters and digits in lower case, and every other character, such as a Chinese one.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence

import numpy as np

from encoderlab.corpus.words import are_cjk
from encoderlab.ranges import aranges, offsets
from encoderlab.seeds import derive, mix

SHINGLE = 5  # words
HASHES = 256  # at most: bands * rows
BATCH = 1 << 20  # characters, about, that are hashed at once
_CHARACTER, _WORD, _ROW = (np.uint64(derive("near duplicates", name) | 1) for name in ("character", "word", "row"))


def banding(similarity: float) -> tuple[int, int]:
    """Numbers of bands and of hash functions in each, whose curve is at one half nearest to ``similarity``."""

    def middle(rows: int) -> float:
        return float((1 - 0.5 ** (1 / (HASHES // rows))) ** (1 / rows))

    rows = min(range(1, HASHES + 1), key=lambda rows: abs(middle(rows) - similarity))
    return HASHES // rows, rows


def document_bands(documents: Sequence[Sequence[str]], similarity: float) -> np.ndarray:
    """The numbers of each document, given as lines: (d, bands) uint64. Documents that resemble each other share one.

    Cost: about 0.8 seconds per 4 MB of English text; memory about 50 bytes a character of :data:`BATCH` characters.
    """
    bands, rows = banding(similarity)
    result = np.empty((len(documents), bands), np.uint64)
    begins = offsets(np.array([sum(map(len, lines)) for lines in documents], np.int64))[:-1]
    edges = [0, *(np.flatnonzero(np.diff(begins // BATCH)) + 1).tolist(), len(documents)]
    for begin, end in itertools.pairwise(edges if documents else []):
        shingles, sizes = _shingles(documents[begin:end])
        firsts = offsets(sizes)[:-1]
        for band in range(bands):
            joined = np.full(end - begin, derive("near duplicates", "band", band), np.uint64)
            for row in range(rows):
                function = np.uint64(derive("near duplicates", band, row) | 1)
                joined = mix(joined * _ROW + np.minimum.reduceat(shingles * function, firsts))
            result[begin:end, band] = joined
    return result


def _shingles(documents: Sequence[Sequence[str]]) -> tuple[np.ndarray, np.ndarray]:
    """A hash of each run of five words, document after document, and how many each has; one, if it has fewer words."""
    hashes, words = _words(["\n".join(lines) for lines in documents])
    sizes = np.maximum(words - SHINGLE + 1, 1)
    begins = np.repeat(offsets(words)[:-1], sizes) + aranges(0, sizes)
    ends = np.repeat(offsets(words)[1:], sizes)
    shingles = np.zeros(len(begins), np.uint64)
    hashes = np.append(hashes, np.uint64(0))
    for place in range(SHINGLE):
        inside = begins + place < ends
        word = hashes[np.where(inside, begins + place, -1)]
        shingles = mix(shingles * _WORD + word)
    return shingles, sizes


def _words(texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """A hash of each word, text after text, and how many each text has."""
    lowered = [text.lower() for text in texts]
    lengths = np.array([len(text) for text in lowered], np.int64)
    codes = np.frombuffer("".join(lowered).encode("utf-32-le", "surrogatepass"), np.uint32)
    classes = _classes()[codes]
    starts = classes != _SPACE
    starts[1:] &= (classes[1:] == _ALONE) | (classes[:-1] != _LETTER)
    firsts = offsets(lengths)[:-1]
    starts[firsts[lengths > 0]] = classes[firsts[lengths > 0]] != _SPACE
    begins = np.flatnonzero(starts)
    per_text = np.diff(np.append(np.searchsorted(begins, firsts), len(begins)))
    if not len(begins):
        return np.zeros(0, np.uint64), per_text
    # Spaces after a word belong to its run of characters, without effect on its hash.
    owners = np.cumsum(starts) - 1
    places = (np.arange(len(codes)) - begins[owners]).astype(np.uint64)
    hashed = np.where(classes == _SPACE, np.uint64(0), mix(codes.astype(np.uint64) + places * _CHARACTER))
    return mix(np.add.reduceat(hashed, begins)), per_text


_SPACE, _LETTER, _ALONE = range(3)


@functools.cache
def _classes() -> np.ndarray:
    """The class of each code point: white space, part of a word, or a word of its own."""
    table = np.full(0x110000, _ALONE, np.uint8)
    for code in range(len(table)):
        char = chr(code)
        if char.isspace():
            table[code] = _SPACE
        elif char.isalnum():
            table[code] = _LETTER
    table[are_cjk(np.arange(len(table)))] = _ALONE
    return table
