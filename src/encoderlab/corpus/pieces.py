"""A piece: the tokens of a few megabytes of input, the unit of work of building a corpus.

A piece belongs to one stretch of the input (:mod:`encoderlab.corpus.stretches`), and every stretch has at least one. It
is a file that appears complete or not at all, so a killed build continues with the next one. It has everything that
later steps need to drop duplicates and to split the corpus without the text: for each line (a paragraph) its
tokens, characters, UTF-8 bytes and a 64-bit digest, for each document its lines.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from encoderlab.corpus import sealed
from encoderlab.corpus.blocks import Position, SourceBlock
from encoderlab.corpus.chunks import batched
from encoderlab.corpus.documents import parse_block
from encoderlab.corpus.near_duplicates import document_bands
from encoderlab.corpus.output import PIECES
from encoderlab.corpus.sentences import sentence_starts
from encoderlab.corpus.shards import id_type
from encoderlab.corpus.sources import Reading, Source
from encoderlab.corpus.stretches import SourcePlace, SourceStretch, read_run, runs
from encoderlab.corpus.tensors import map_tensors, read_bits
from encoderlab.corpus.tokenizer import Tokenizer
from encoderlab.corpus.words import are_cjk
from encoderlab.execution.workers import cores
from encoderlab.messages import Progress
from encoderlab.ranges import offsets
from encoderlab.sealed import Damaged

PIECE = 4 << 20  # bytes of input, about
BATCH = 1 << 20  # characters that are tokenized in one call
COUNTS = ("invalid_utf8", "control_characters", "cut_lines", "cut_documents", "skipped_records")


# The characters at which the words of a text start, for languages without spaces.
Segmenter = Callable[[str], Sequence[int]]


class PieceName(NamedTuple):
    """The identity of a piece: its stretch, its place in the stretch from 0, and whether it is the last there."""

    stretch: int
    place: int = 0
    is_last: bool = True

    def __str__(self) -> str:
        return f"{self.stretch:06d}-{self.place:05d}{'-last' if self.is_last else ''}"


@dataclass(frozen=True)
class PieceInput:
    """The input of one piece."""

    name: PieceName
    blocks: tuple[tuple[int, SourceBlock], ...]  # each with the number of its source
    end: SourcePlace


def read_work(
    sources: Sequence[Source], stretches: Sequence[SourceStretch], start: SourcePlace | None = None, place: int = 0
) -> Iterator[PieceInput]:
    """The stretches cut into pieces; the first one from ``start`` on, the beginning of its piece ``place``."""
    for run in runs(stretches):
        blocks = read_run(sources, run, start)
        item = next(blocks, None)
        for stretch in run:
            pending: list[tuple[int, SourceBlock]] = []
            size = 0
            end = start or SourcePlace(stretch.first)
            while item is not None and stretch.holds(item[1]):
                if size >= PIECE:
                    yield PieceInput(PieceName(stretch.number, place, is_last=False), tuple(pending), end)
                    place, pending, size = place + 1, [], 0
                pending.append(item)
                number, block = item
                size += len(block.data)
                end = SourcePlace(number, block.end, end.num_bytes + len(block.data))
                item = next(blocks, None)
            yield PieceInput(PieceName(stretch.number, place), tuple(pending), end)
            start, place = None, 0


def write_piece(
    path: Path,
    work: PieceInput,
    tokenizer: Tokenizer,
    reading: Reading,
    segmenter: Segmenter | None,
    origin: str,
    near_duplicates: float | None = None,
) -> None:
    """Parse, tokenize and mark the input of a piece, and write it to ``path`` with its checksum and ``origin``.

    ``near_duplicates`` is the similarity of those to find; None skips the search.
    """
    counts: Counter[str] = Counter()
    invalid: Counter[int] = Counter()
    documents: list[list[str]] = []
    for source, block in work.blocks:
        parsed, more = parse_block(block, reading)
        documents += parsed
        counts += more
        invalid[source] += more["invalid_utf8"]
    lines = [line for document in documents for line in document]
    encoded = [line.encode() for line in lines]
    digests = b"".join([hashlib.blake2b(data, digest_size=8).digest() for data in encoded])
    kind = id_type(tokenizer.vocab_size)
    parts = [encode_lines(batch, tokenizer, segmenter) for batch in batched(lines, BATCH)]
    empty = EncodedLines(np.zeros(0, kind), np.zeros(0, bool), np.zeros(0, bool), np.zeros(0, np.int64))
    ids, words, sentences, sizes = (np.concatenate(arrays) for arrays in zip(empty, *parts, strict=True))
    sealed.write_tensors(
        path,
        {
            "ids": ids.astype(kind),
            "words": np.packbits(words, bitorder="little"),
            "sentences": np.packbits(sentences, bitorder="little"),
            "line_tokens": sizes.astype(np.uint32),
            "line_chars": np.array([len(line) for line in lines], np.uint32),
            "line_bytes": np.array([len(data) for data in encoded], np.uint32),
            "line_digests": np.frombuffer(digests, np.uint64),
            "document_lines": np.array([len(document) for document in documents], np.uint32),
            **({} if near_duplicates is None else {"bands": document_bands(documents, near_duplicates).reshape(-1)}),
            "counts": np.array([counts[name] for name in COUNTS], np.uint64),
            "invalid": np.array([entry for entry in invalid.items() if entry[1]], np.uint64).reshape(-1),
            "end": np.array([work.end.source, *astuple(work.end.position), work.end.num_bytes], np.uint64),
        },
        origin,
    )


class EncodedLines(NamedTuple):
    """Tokens of several lines, one after the other."""

    ids: np.ndarray  # (n,)
    words: np.ndarray  # (n,) bool: a word starts here
    sentences: np.ndarray  # (n,) bool: a sentence starts here
    sizes: np.ndarray  # (lines,) int64: tokens of each line


def encode_lines(lines: Sequence[str], tokenizer: Tokenizer, segmenter: Segmenter | None = None) -> EncodedLines:
    """Tokens of ``lines`` with the starts of words and sentences, which are found in the text and mapped to the tokens
    by their characters. With a segmenter, a Chinese character starts a word where the segmenter puts a word start.
    """
    tokens = tokenizer.encode_corpus(lines)
    sizes = np.diff(tokens.bounds)
    # A key that orders characters over all lines; the keys of the tokens do not decrease.
    token_keys = (np.repeat(np.arange(len(lines)), sizes) << 32) + tokens.starts
    starts = [sentence_starts(line) for line in lines]
    owners = np.repeat(np.arange(len(lines)), [len(item) for item in starts])
    sentence_keys = (owners << 32) + np.fromiter((start for item in starts for start in item), np.int64, len(owners))
    places = np.searchsorted(token_keys, sentence_keys)
    sentences = np.zeros(len(tokens.ids), bool)
    sentences[places[places < tokens.bounds[owners + 1]]] = True
    words = tokens.word_starts
    if segmenter is not None:
        words = _segmented(lines, tokens.starts, sizes, words, segmenter)
    return EncodedLines(tokens.ids, words, sentences, sizes)


def _segmented(
    lines: Sequence[str], starts: np.ndarray, sizes: np.ndarray, words: np.ndarray, segmenter: Segmenter
) -> np.ndarray:
    """``words``, with the segmenter's word starts for Chinese characters: (n,) bool."""
    lengths = np.array([len(line) for line in lines])
    firsts = offsets(lengths)[:-1]
    marks = np.zeros(int(lengths.sum()) + 1, bool)
    for line, first in zip(lines, firsts, strict=True):
        marks[first + np.asarray(segmenter(line), np.int64)] = True
    codes = np.frombuffer("".join(lines).encode("utf-32-le"), np.uint32)
    characters = np.minimum(np.repeat(firsts, sizes) + starts, max(len(codes) - 1, 0))
    # Byte tokens inside a character, and a character after a space of its own, have the place of the token before.
    repeated = np.zeros(len(starts), bool)
    repeated[1:] = characters[1:] == characters[:-1]
    repeated[offsets(sizes)[:-1][sizes > 0]] = False  # the first token of a line
    return np.where(are_cjk(codes[characters]), marks[characters] & ~repeated, words)


class Piece:
    """A piece read back. Arrays are views of the file.

    Raises:
        DataError: the file is missing or truncated.
    """

    def __init__(self, path: Path) -> None:
        tensors = map_tensors(path)
        self.ids = tensors["ids"]
        self._words, self._sentences = tensors["words"], tensors["sentences"]
        self.line_tokens = tensors["line_tokens"].astype(np.int64)
        self.line_chars = tensors["line_chars"].astype(np.int64)
        self.line_bytes = tensors["line_bytes"].astype(np.int64)
        self.line_digests = tensors["line_digests"]
        self.document_lines = tensors["document_lines"].astype(np.int64)
        self.document_edges = offsets(self.document_lines)  # the lines of document i: edges[i] to edges[i + 1]
        self.counts = Counter(dict(zip(COUNTS, tensors["counts"].tolist(), strict=True)))
        self.invalid = Counter(dict(tensors["invalid"].reshape(-1, 2).tolist()))  # by the number of the source
        source, *position, num_bytes = tensors["end"].tolist()
        self.end = SourcePlace(source, Position(*position), num_bytes)

    @property
    def words(self) -> np.ndarray:
        """(n,) bool."""
        return read_bits(self._words, 0, len(self.ids)).view(bool)

    @property
    def sentences(self) -> np.ndarray:
        """(n,) bool."""
        return read_bits(self._sentences, 0, len(self.ids)).view(bool)


def piece_path(part: Path, name: PieceName) -> Path:
    """The file of a piece in the folder of its part."""
    return part / PIECES / f"{name}.safetensors"


def pieces_made(part: Path, stretch: int) -> list[Path]:
    """The pieces of a stretch in the folder of a part, up to the first missing one. The folder, which may have millions
    of files, is not listed.
    """
    made: list[Path] = []
    while not is_complete(made):
        names = (PieceName(stretch, len(made), is_last) for is_last in (False, True))
        if (path := next(filter(Path.exists, (piece_path(part, name) for name in names)), None)) is None:
            break
        made.append(path)
    return made


def is_complete(pieces: Sequence[Path]) -> bool:
    """Whether these are all pieces of their stretch."""
    return bool(pieces) and pieces[-1].stem.endswith("-last")


def piece_origin(origin: str, path: Path) -> str:
    """The origin of one piece; it contains the piece's name, so that no other file is used for it."""
    return f"{origin}/{path.stem}"


def damaged_pieces(paths: Sequence[Path], origin: str, progress: Progress) -> list[Damaged]:
    """The damage of these pieces, in their order; each is read once, as many at a time as there are cores."""

    def check(path: Path) -> Damaged | None:
        try:
            sealed.check_tensors(path, piece_origin(origin, path))
        except Damaged as problem:
            return problem
        return None

    problems = []
    with ThreadPoolExecutor(cores()) as pool:
        for number, problem in enumerate(pool.map(check, paths), 1):
            progress("pieces checked", number, len(paths))
            problems += [problem] if problem else []
    return problems
