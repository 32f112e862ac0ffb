"""The text of an adaptation: documents of any source, some held out, and a share of general text to replay.

A hash of each document decides whether it is held out or replayed, so the choice depends neither on the order of the
documents nor on other documents. Equal documents count once.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from encoderlab.corpus.build import resolve_sources
from encoderlab.corpus.documents import read_documents
from encoderlab.corpus.manifest import MANIFEST, verify
from encoderlab.corpus.shards import Corpus
from encoderlab.corpus.sources import Reading
from encoderlab.corpus.tokenizer import Tokenizer
from encoderlab.errors import DataError
from encoderlab.files import replace_file

LEAST = 20_000  # characters of a domain; a model memorises less text after a few passes
FEW = 40  # documents; fewer are cut into pieces
PIECE = 2_000  # characters of such a piece, about
HELD_OUT = 0.05  # share of the documents


@dataclass(frozen=True, kw_only=True)
class TextAmount:
    """Number of documents and characters of a text."""

    documents: int
    characters: int


def documents(places: Sequence[str]) -> Iterator[str]:
    """The different documents of files, folders, globs, ``python:all`` and built corpora, which are decoded.

    Raises:
        ConfigError, DataError: no file, or none that can be read.
    """
    seen: set[bytes] = set()
    for place in places:
        for text in _of_corpus(Path(place)) if (Path(place) / MANIFEST).exists() else _of_sources(place):
            key = hashlib.sha256(text.encode("utf-8", "replace")).digest()[:16]
            if text and key not in seen:
                seen.add(key)
                yield text


def _of_sources(place: str) -> Iterator[str]:
    reading = Reading()
    for source in resolve_sources([place], reading):
        for paragraphs in read_documents(source, reading):
            yield "\n".join(paragraphs)


def _of_corpus(folder: Path) -> Iterator[str]:
    verify(folder)
    for split in ("train", "validation"):
        corpus = Corpus(folder, split)
        tokenizer = Tokenizer.load(corpus.tokenizer_path)
        for number in range(corpus.num_documents):
            yield tokenizer.decode(corpus.document(number).ids.tolist())


class SourceText:
    """The documents of ``places``; fewer than :data:`FEW` documents are cut into pieces of about :data:`PIECE`
    characters.
    """

    def __init__(self, places: Sequence[str]) -> None:
        self.places = tuple(places)
        count = characters = 0
        self.sample: list[str] = []  # the first 2,000 characters of up to 500 documents
        for text in documents(self.places):
            count, characters = count + 1, characters + len(text)
            if len(self.sample) < 500:
                self.sample.append(text[:PIECE])
        self.amount = TextAmount(documents=count, characters=characters)
        self.pieces = count < FEW

    def __iter__(self) -> Iterator[str]:
        for text in documents(self.places):
            yield from _pieces(text) if self.pieces else (text,)

    @property
    def name(self) -> str:
        return ", ".join(self.places)

    def check(self) -> None:
        """Refuse text that is too little to adapt to.

        Raises:
            DataError: fewer than :data:`LEAST` characters.
        """
        if self.amount.characters < LEAST:
            raise DataError(
                f"{self.name}: has {self.amount.characters:,} characters, too few to adapt to; give at least {LEAST:,} "
                "(about ten pages), or fine-tune the model as it is"
            )


def _pieces(text: str) -> Iterator[str]:
    """Consecutive lines of ``text``, about :data:`PIECE` characters together."""
    taken: list[str] = []
    for line in text.split("\n"):
        taken.append(line)
        if sum(map(len, taken)) >= PIECE:
            yield "\n".join(taken)
            taken = []
    if taken:
        yield "\n".join(taken)


def chance(kind: str, text: str) -> float:
    """A number in [0, 1) that depends only on the document and the ``kind`` of decision."""
    digest = hashlib.sha256(f"{kind}\n{text}".encode("utf-8", "replace")).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


def split(text: SourceText, train: Path, held_out: Path, *, share: float = 1.0) -> tuple[TextAmount, TextAmount]:
    """Write the documents of ``text`` as JSON lines: the held-out share :data:`HELD_OUT`, and a ``share`` of the
    others.

    Raises:
        DataError: one of the two parts is empty.
    """
    counts = [[0, 0], [0, 0]]
    train.parent.mkdir(parents=True, exist_ok=True)
    with replace_file(train) as kept, replace_file(held_out) as apart:
        for document in text:
            side = chance("held out", document) < HELD_OUT
            if not side and chance("train", document) >= share:
                continue
            counts[side][0] += 1
            counts[side][1] += len(document)
            (apart if side else kept).write(json.dumps({"text": document}).encode() + b"\n")
    if not counts[1][0] or share and not counts[0][0]:
        raise DataError(f"{text.name}: has too few different documents to hold some out; give more text")
    trained, left = (TextAmount(documents=number, characters=characters) for number, characters in counts)
    return trained, left


def read(path: Path) -> list[str]:
    """The documents that :func:`split` wrote."""
    with path.open(encoding="utf-8") as lines:
        return [json.loads(line)["text"] for line in lines]
