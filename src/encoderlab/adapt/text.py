"""The text of an adaptation: documents of any source, some held out, and a share of general text to replay.

A hash of each document decides whether it is held out, and how early it is replayed, so the choice does not depend on
the order of the documents. Equal documents count once.
"""

from __future__ import annotations

import hashlib
import json
import math
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from encoderlab.corpus.assemble import TWO_HELD_OUT
from encoderlab.corpus.blocks import read_blocks
from encoderlab.corpus.build import resolve_sources
from encoderlab.corpus.documents import parse_block
from encoderlab.corpus.manifest import MANIFEST, verify
from encoderlab.corpus.shards import Corpus
from encoderlab.corpus.sources import Reading
from encoderlab.errors import ConfigError, DataError
from encoderlab.files import replace_file

LEAST = 20_000  # characters of a domain; a model memorises less text after a few passes
FEW = 40  # documents; fewer are cut into pieces
PIECE, MANY = 2_000, 60  # characters of such a piece, or less so that there are about so many pieces
APART = -1  # mark of a document that is held out
TRAINED = TWO_HELD_OUT  # documents to train on, at least, so that the corpus can validate on two of them
HELD_OUT = 0.05  # share of the documents


@dataclass(frozen=True, kw_only=True)
class TextAmount:
    """Number of documents and characters of a text."""

    documents: int
    characters: int


def documents(places: Sequence[str], invalid: Counter[str]) -> Iterator[str]:
    """The different documents of files, folders, globs, ``python:all`` and built corpora, which are decoded.

    ``invalid`` counts the characters of each file that were not UTF-8 and became U+FFFD.

    Raises:
        ConfigError, DataError: no file, or none that can be read.
    """
    yield from _different(
        text
        for place in places
        for text in (_of_corpus(Path(place)) if (Path(place) / MANIFEST).exists() else _of_sources(place, invalid))
    )


def _different(texts: Iterable[str]) -> Iterator[str]:
    """Each text once, and none that is empty."""
    seen: set[bytes] = set()
    for text in texts:
        key = hashlib.sha256(text.encode("utf-8", "replace")).digest()[:16]
        if text and key not in seen:
            seen.add(key)
            yield text


def _of_sources(place: str, invalid: Counter[str]) -> Iterator[str]:
    reading = Reading()
    with remedies_of("an option of corpus build; give the corpus that it makes"):
        for source in resolve_sources([place], reading):
            for block in read_blocks(source):
                parsed, counts = parse_block(block, reading)
                if number := counts["invalid_utf8"]:
                    invalid[source.name] += number
                yield from map("\n".join, parsed)


@contextmanager
def remedies_of(whose: str) -> Iterator[None]:
    """A context in which errors that recommend options, which ``adapt`` lacks, say ``whose`` they are."""
    try:
        yield
    except (ConfigError, DataError) as error:
        if " --" not in str(error):
            raise
        raise DataError(f"{error} ({whose})") from None


def _of_corpus(folder: Path) -> Iterator[str]:
    verify(folder)
    for split in ("train", "validation"):
        corpus = Corpus(folder, split)
        tokenizer = corpus.tokenizer()
        for number in range(corpus.num_documents):
            yield tokenizer.decode(corpus.document(number).ids.tolist())


class SourceText:
    """The documents of ``places``. Fewer than :data:`FEW` documents are cut into pieces (:func:`_pieces`), of which
    equal ones count once.
    """

    def __init__(self, places: Sequence[str]) -> None:
        self.places = tuple(places)
        self.invalid: Counter[str] = Counter()  # of the last reading, see :func:`documents`
        self.sample: list[str] = []  # the first 2,000 characters of up to 500 documents
        self.piece: int | None = None  # characters of a piece, at least
        self.lots = self._draw()
        count, characters = len(self.lots), int(self.lots[:, 2].sum())
        self.amount = TextAmount(documents=count, characters=characters)
        if count < FEW:
            self.piece = min(PIECE, max(LEAST, characters) // MANY)
            self.lots = self._draw()

    def _draw(self) -> np.ndarray:
        """For each document its chances to be held out and to be trained on, and its characters, (d, 3) float64."""
        lots = array("d")
        for number, text in enumerate(self):
            lots.extend((chance("held out", text), chance("train", text), len(text)))
            if self.piece is None and number < 500:
                self.sample.append(text[:PIECE])
        return np.array(lots).reshape(-1, 3)

    def __iter__(self) -> Iterator[str]:
        self.invalid.clear()
        texts = documents(self.places, self.invalid)
        if (size := self.piece) is not None:
            yield from _different(piece for text in texts for piece in _pieces(text, size))
        else:
            yield from texts

    @property
    def name(self) -> str:
        return ", ".join(self.places)

    def check(self) -> None:
        """Refuse text that is too little to adapt to.

        Raises:
            DataError: fewer than :data:`LEAST` characters, or the same few again and again.
        """
        if self.amount.characters < LEAST:
            raise DataError(
                f"{self.name}: has {self.amount.characters:,} characters, too few to adapt to; give at least {LEAST:,} "
                "(about ten pages), or fine-tune the model as it is"
            )
        if len(self.lots) <= TRAINED:
            raise DataError(
                f"{self.name}: repeats itself, with {len(self.lots)} different pieces of {self.piece} characters; give "
                f"text with more than {TRAINED}"
            )

    def check_general(self, *, replayed: bool) -> None:
        """Refuse general text that cannot be held out, or not be ``replayed`` besides.

        Raises:
            DataError: too little.
        """
        if not self.amount.characters:
            raise DataError(f"{self.name}: has no text to replay; give other text, or leave out --replay")
        if replayed and len(self.lots) < 2:
            raise DataError(f"{self.name}: has too little text to replay some and hold some out; give more")


def _pieces(text: str, size: int) -> list[str]:
    """Consecutive lines of ``text``, together about ``size`` characters, and at most three times as many; long lines
    are cut.
    """
    pieces: list[str] = []
    taken: list[str] = []
    for line in text.split("\n"):
        first, *others = _parts(line, size)
        taken.append(first)
        if others or sum(map(len, taken)) >= size:
            pieces += ["\n".join(taken), *others]
            taken = []
    if taken and pieces:
        taken.insert(0, pieces.pop())
    return [*pieces, "\n".join(taken)] if taken else pieces


def _parts(line: str, size: int) -> Iterator[str]:
    """A line in equal parts of about ``size`` characters."""
    for left in range(max(1, round(len(line) / size)), 1, -1):
        part = beginning(line, len(line) // left)
        yield part
        line = line[len(part) :].lstrip()
    yield line


def beginning(text: str, characters: int) -> str:
    """The first ``characters`` of a text, up to the end of the word; a very long word is cut."""
    if characters >= len(text):
        return text
    rest = text[characters : characters + 100]
    end = next((number for number, char in enumerate(rest) if char.isspace()), 0)
    return text[: characters + end]


def chance(kind: str, text: str) -> float:
    """A number in [0, 1) that depends only on the document and the ``kind`` of decision."""
    digest = hashlib.sha256(f"{kind}\n{text}".encode("utf-8", "replace")).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


def choose(lots: np.ndarray, wanted: float | None = None) -> np.ndarray:
    """How many characters of each document to train on, (d,) int64: all, 0, or :data:`APART` for held-out ones.

    Held out are the documents whose chance is below :data:`HELD_OUT`: at least the one of the smallest chance, and not
    so many that fewer than :data:`TRAINED` are left. Of ``wanted`` characters to train on, documents are taken in the
    order of their chances, and of the last one only as much as is wanted.

    Args:
        lots: see :attr:`SourceText.lots`, (d, 3).
        wanted: None takes all that are not held out.
    """
    chances, order, sizes = lots[:, 0], np.argsort(lots[:, 1], kind="stable"), lots[:, 2].astype(np.int64)
    apart = max(1, min(int((chances < HELD_OUT).sum()), len(lots) - TRAINED))
    held_out = np.zeros(len(lots), bool)
    held_out[np.argsort(chances, kind="stable")[:apart]] = True
    taken = np.where(held_out, APART, sizes)
    if wanted is not None:
        order = order[~held_out[order]]
        before = np.cumsum(sizes[order]) - sizes[order]
        taken[order] = np.clip(math.ceil(wanted) - before, 0, sizes[order])
    return taken


def chosen(text: SourceText, taken: np.ndarray) -> Iterator[str]:
    """What of ``text`` is trained on, as :func:`choose` says."""
    for document, characters in zip(text, taken.tolist(), strict=False):
        if characters > 0:
            yield beginning(document, characters)


def split(text: SourceText, taken: np.ndarray, train: Path, held_out: Path) -> tuple[TextAmount, TextAmount]:
    """Write what of ``text`` is trained on, and what is held out, as JSON lines; returns both amounts."""
    counts = [[0, 0], [0, 0]]
    train.parent.mkdir(parents=True, exist_ok=True)
    with replace_file(train) as kept, replace_file(held_out) as apart:
        for document, characters in zip(text, taken.tolist(), strict=False):
            if not characters:
                continue
            side = characters == APART
            part = document if side else beginning(document, characters)
            counts[side][0] += 1
            counts[side][1] += len(part)
            (apart if side else kept).write(json.dumps({"text": part}).encode() + b"\n")
    trained, left = (TextAmount(documents=number, characters=size) for number, size in counts)
    return trained, left


def read(path: Path) -> list[str]:
    """The documents that :func:`split` wrote."""
    with path.open(encoding="utf-8") as lines:
        return [json.loads(line)["text"] for line in lines]
