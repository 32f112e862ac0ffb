"""Precision and recall of near duplicates in real text: ``python -m benchmarks.near_duplicates SOURCE ...``.

For every document the similarity of its runs of five words to the earlier documents is counted exactly, by an index of
all runs. A document is a near duplicate if one of them reaches the similarity. Precision is the share of near
duplicates among what ``corpus build --near-duplicates`` drops, recall the share of near duplicates that it drops. Equal
documents are left out first, as a build does it.
"""

from __future__ import annotations

import argparse
from collections import Counter, defaultdict

import numpy as np

from encoderlab.corpus.build import resolve_sources
from encoderlab.corpus.documents import read_documents
from encoderlab.corpus.near_duplicates import _shingles, document_bands
from encoderlab.corpus.sources import Reading
from encoderlab.ranges import offsets

COMMON = 200  # a run of words in more documents is skipped: a licence text would link them all


def nearest_earlier(sets: list[set[int]]) -> np.ndarray:
    """The largest Jaccard similarity of each document, a set of runs of words, to an earlier one: (d,)."""
    holders: dict[int, list[int]] = defaultdict(list)
    nearest = np.zeros(len(sets))
    for number, runs in enumerate(sets):
        shared: Counter[int] = Counter()
        for run in runs:
            if len(holders[run]) < COMMON:
                shared.update(holders[run])
                holders[run].append(number)
        for other, _ in shared.most_common(20):
            nearest[number] = max(nearest[number], jaccard(runs, sets[other]))
    return nearest


def jaccard(left: set[int], right: set[int]) -> float:
    return len(left & right) / len(left | right)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.near_duplicates", description=__doc__.split("\n")[0])
    parser.add_argument("sources", nargs="+")
    parser.add_argument("--most", type=int, default=30_000, help="documents to read")
    options = parser.parse_args()
    unique: dict[tuple[str, ...], None] = {}
    for source in resolve_sources(options.sources, Reading()):
        for document in read_documents(source, Reading()):
            if len(unique) < options.most:
                unique.setdefault(tuple(document))
    documents = list(unique)
    hashes, sizes = _shingles(documents)
    edges = offsets(sizes)
    sets = [set(hashes[begin:end].tolist()) for begin, end in zip(edges[:-1], edges[1:], strict=True)]
    nearest = nearest_earlier(sets)
    print(f"{len(documents):,} different documents")
    for similarity in (0.5, 0.7, 0.8, 0.9):
        seen: dict[int, int] = {}
        dropped = np.zeros(len(documents), bool)
        for number, bands in enumerate(document_bands(documents, similarity).tolist()):
            earlier = {seen[band] for band in bands if band in seen}
            dropped[number] = bool(earlier)
            nearest[number] = max([nearest[number], *(jaccard(sets[number], sets[other]) for other in earlier)])
            seen.update((band, number) for band in bands if band not in seen)
        near = nearest >= similarity
        right = int((dropped & near).sum())
        close = int((dropped & (nearest >= similarity - 0.1)).sum())
        print(
            f"similarity {similarity}: {near.sum():,} near duplicates, {dropped.sum():,} dropped; "
            f"precision {right / max(dropped.sum(), 1):.1%} ({close / max(dropped.sum(), 1):.1%} within 0.1), "
            f"recall {right / max(near.sum(), 1):.1%}"
        )


if __name__ == "__main__":
    main()
