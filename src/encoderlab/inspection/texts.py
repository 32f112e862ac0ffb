"""The texts of an inspection: a text itself, a file with one per line, or a treebank."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

from encoderlab.errors import DataError
from encoderlab.records.opening import refuse_pipe
from encoderlab.tasks.data.records import RECORDS, is_file_name, lines, suffix

FIELDS = 10  # columns of CoNLL-U


@dataclass(frozen=True)
class Sentence:
    """A text with words between spaces. From a treebank, ``heads`` has for each word the number of the word that it
    depends on, -1 for the root.
    """

    text: str
    heads: tuple[int, ...] | None = None


def sentences(source: str, count: int) -> list[Sentence]:
    """The first ``count`` texts of ``source``: a file with one text per line, a ``.conllu`` file, or a text itself.

    Raises:
        DataError: the file is missing, a pipe, a folder or a table, has no text, is not UTF-8, or a tree refers to a
            missing word.
    """
    if not source.strip():
        raise DataError("the text is empty; give a text, or a file with one text per line")
    path = Path(source)
    try:
        refuse_pipe(path)
        is_file, is_folder = path.is_file(), path.is_dir()
    except OSError:  # too long for the name of a file
        is_file = is_folder = False
    if is_folder or is_file and suffix(path) in RECORDS:
        kind = "folder" if is_folder else "table"
        raise DataError(f"{path}: is a {kind}; give a file with one text per line")
    if not is_file:
        if is_file_name(source) and len(source.split()) == 1:
            raise DataError(f"{source}: no such file; give a file with one text per line, or a text")
        return [Sentence(source)]
    plain = (Sentence(line) for _, line in lines(path) if line.strip())
    read = list(islice(_treebank(path) if suffix(path) == ".conllu" else plain, count))
    if not read:
        raise DataError(f"{path}: has no text; give a file with one text per line")
    return read


def _treebank(path: Path) -> Iterator[Sentence]:
    """The sentences of a CoNLL-U file with their trees."""
    words: list[str] = []
    heads: list[int] = []
    last = 0
    for number, line in chain(lines(path), [(0, "")]):
        if line.startswith("#"):
            continue
        if not line.strip():
            if words:
                if max(heads) >= len(words):
                    raise DataError(f"{path}, line {last}: a word depends on word {max(heads) + 1} of {len(words)}")
                yield Sentence(" ".join(words), tuple(heads))
            words, heads = [], []
            continue
        last = number
        cells = line.split("\t")
        if len(cells) != FIELDS:
            raise DataError(f"{path}, line {number}: has {len(cells)} columns, expected the {FIELDS} of CoNLL-U")
        if not cells[0].isdecimal():  # words of several tokens, and words that are left out
            continue
        if not cells[6].isdecimal():
            raise DataError(f"{path}, line {number}: the head is {cells[6]!r}, expected a number")
        if not (word := "".join(cells[1].split())):  # no white space within words, which it separates here
            raise DataError(f"{path}, line {number}: the word is {cells[1]!r}, expected letters; complete the line")
        words.append(word)
        heads.append(int(cells[6]) - 1)
