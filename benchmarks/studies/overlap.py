"""How many texts of data sets occur in the text that a model was pretrained on: runs of 13 words.

    python -m benchmarks.studies.overlap TEXT DATA/pairs/blimp DATA/glue DATA/ner ...

prints, for every data set, how many of its texts share 13 words in a row with a text below TEXT, and how many texts of
5 to 12 words occur there whole (sentences of minimal pairs are that short). A word is a run of letters and digits in
lower case, and every Chinese character. A text is a string of a JSON line or a cell between tabs; where a file has a
token on each line, it is a block between blank lines. Memory: 80 bytes for each word of the text.
"""

from __future__ import annotations

import argparse
import gzip
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

RUN, SHORTEST = 13, 5
WORD = re.compile(r"[㐀-鿿]|[^\W_㐀-鿿]+")
ONE_PER_LINE = re.compile(r"\S+( \S+){0,3}|\S+\t\S+")


def words(text: str) -> list[str]:
    return WORD.findall(text.lower())


def opened(path: Path) -> str:
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return data.decode("utf-8", errors="replace")


def examples(path: Path) -> Iterator[list[str]]:
    """The words of every line; of every block between blank lines where a file has a token on each line."""
    text = opened(path)
    blocks = re.split(r"\n\s*\n", text)
    lines = text.splitlines()
    if len(blocks) > 2 and all(ONE_PER_LINE.fullmatch(line) for line in lines[:200] if line.strip()):
        for block in blocks:
            yield words(" ".join(line.split()[0] for line in block.splitlines() if line.split()))
    else:
        for line in lines:
            yield from (words(part) for part in fields(line))


def fields(line: str) -> list[str]:
    """The texts of a line: the strings of a JSON object or list, or the cells between tabs."""
    strings = re.findall(r'"((?:[^"\\]|\\.)*)"', line) if line[:1] in "{[" else line.split("\t")
    return [re.sub(r"\\u([0-9a-fA-F]{4})", lambda m: chr(int(m[1], 16)), string) for string in strings]


def hashes(sequence: list[str], length: int) -> np.ndarray:
    """A 64-bit hash of every run of ``length`` words: (n - length + 1,) uint64."""
    if len(sequence) < length:
        return np.zeros(0, np.uint64)
    each = np.array([hash(word) for word in sequence], np.int64).view(np.uint64)
    total = np.zeros(len(each) - length + 1, np.uint64)
    for place in range(length):
        total = total * np.uint64(0x9E3779B97F4A7C15) + each[place : place + len(total)]
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path)
    parser.add_argument("data", type=Path, nargs="+")
    given = parser.parse_args()
    text = [word for path in sorted(given.text.rglob("*.txt*")) for word in words(opened(path))]
    known = {length: np.unique(hashes(text, length)) for length in range(SHORTEST, RUN + 1)}
    print(f"{len(text):,} words of text\n\n| data | texts | with {RUN} words in a row | short texts | of them whole |")
    print("|---|---:|---:|---:|---:|")
    for folder in given.data:
        long = short = shared = whole = 0
        for path in sorted(path for path in [folder, *folder.rglob("*")] if path.is_file()):
            for example in examples(path):
                length = min(len(example), RUN)
                if length < SHORTEST:
                    continue
                asked = hashes(example, length)
                place = np.minimum(np.searchsorted(known[length], asked), len(known[length]) - 1)
                inside = bool((known[length][place] == asked).any())
                long, shared = long + (length == RUN), shared + (length == RUN and inside)
                short, whole = short + (length < RUN), whole + (length < RUN and inside)
        print(f"| {folder.name} | {long:,} | {shared:,} | {short:,} | {whole:,} |", flush=True)


if __name__ == "__main__":
    main()
