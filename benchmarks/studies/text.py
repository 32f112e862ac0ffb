"""The text of the studies: ten million English words, half of Wikipedia and half of public-domain books.

    python -m benchmarks.studies.text DATA/pretrain_en runs/text/en [--words 10000000]

reads ``wiki_en.txt.gz`` and ``books_en.txt.gz``, with a blank line between documents, and writes whole documents. They
are drawn by the hash of their text, so that the choice depends on nothing else. Words are counted between white space.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
from collections.abc import Callable
from pathlib import Path

SOURCES = ("wiki_en", "books_en")
CLOSE = 200  # words that may be missing


def count(text: str) -> int:
    """Words between white space."""
    return len(text.split())


def choose(documents: list[str], words: int, count: Callable[[str], int] = count) -> list[str]:
    """Documents with at most ``words`` words together, in their own order."""
    order = sorted(range(len(documents)), key=lambda i: hashlib.sha256(documents[i].encode()).digest())
    total, kept = 0, []
    for i in order:
        size = count(documents[i])
        if total + size <= words:
            total += size
            kept.append(i)
        if total > words - CLOSE:
            break
    return [documents[i] for i in sorted(kept)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--words", type=int, default=10_000_000, help="of both sources together")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    for name in SOURCES:
        text = gzip.open(given.data / f"{name}.txt.gz", "rt", encoding="utf-8").read()
        documents = [document.strip() for document in text.split("\n\n") if document.strip()]
        kept = choose(documents, given.words // len(SOURCES))
        (given.out / f"{name}.txt").write_text("\n\n".join(kept) + "\n", encoding="utf-8")
        print(f"{name}: {len(kept):,} of {len(documents):,} documents, {sum(map(count, kept)):,} words")


if __name__ == "__main__":
    main()
