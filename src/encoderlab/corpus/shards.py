"""A corpus on disk: memory-mapped token shards with document, sentence and word-start marks, and a manifest.

    DIR/manifest.json                     counts, settings, sources and the sha256 of every file below
    DIR/tokenizer/tokenizer.json ...      the tokenizer that made the ids
    DIR/counts.npy                        (V,) int64: how often each id occurs in the training split
    DIR/train/shard-00000.safetensors     DIR/validation/shard-00000.safetensors ...

A shard is an ordinary safetensors file, so any tool can read it. For d documents and n tokens it
has ``documents`` (d+1,) uint64, the token at which each document starts, and the end; ``bytes`` (d+1,) uint64, the
same for the UTF-8 bytes of the text; ``ids`` (n,) uint16 up to 65,536 ids, else uint32; ``sentences`` and ``words``,
one bit per token, little end first: does a sentence, a word start here? That is 2.25 bytes a token and 16 a document.

Opening reads the manifest only; a shard is mapped when one of its documents is first read.
"""

from __future__ import annotations

import contextlib
import os
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import IO

import numpy as np

from encoderlab.corpus.manifest import COUNTS, TOKENIZER, ShardRecord, read_manifest, verify_file
from encoderlab.corpus.tensors import BitWriter, count_bits, map_tensors, read_bits, tensor_header
from encoderlab.corpus.tokenizer import Tokenizer
from encoderlab.errors import DataError
from encoderlab.files import replace_file, sha256
from encoderlab.ranges import aranges, offsets
from encoderlab.storage.cache import local, supply


@dataclass(frozen=True)
class Document:
    """The tokens of one document, without special tokens."""

    ids: np.ndarray  # (n,) uint16 | uint32
    sentences: np.ndarray  # (s,) int64: where sentences start within ids; the first is 0
    word_starts: np.ndarray  # (n,) bool
    num_bytes: int = 0  # UTF-8 bytes of its text

    def __len__(self) -> int:
        return len(self.ids)


class Corpus:
    """One split of a corpus folder. Opening costs the same for any size; ``document(i)`` costs microseconds.

    Raises:
        DataError: no corpus there, another format version, or an unknown split.
    """

    def __init__(self, path: str | os.PathLike, split: str = "train") -> None:
        self.path, self.split = local(path), split
        self.manifest = read_manifest(self.path)
        splits = self.manifest.splits
        if split not in splits:
            raise DataError(f"{self.path}: no split {split!r} in this corpus; it has {', '.join(splits)}")
        record = splits[split]
        self.vocab_size = self.manifest.vocab_size
        self.num_documents = record.documents
        self.num_tokens = record.tokens
        self.num_bytes = record.bytes
        self._files = record.shards
        # Documents and tokens in the shards before each, and in all.
        self._starts: list[int] = list(accumulate((file.documents for file in self._files), initial=0))
        self._tokens: list[int] = list(accumulate((file.tokens for file in self._files), initial=0))
        self._shards: list[Shard | None] = [None] * len(self._files)

    def __len__(self) -> int:
        return self.num_documents

    def __repr__(self) -> str:
        size = f"{self.num_documents:,} documents, {self.num_tokens:,} tokens"
        return f"Corpus({str(self.path)!r}, {self.split!r}): {size}"

    def tokenizer(self) -> Tokenizer:
        """The tokenizer that made the ids.

        Raises:
            DataError: one of its files is missing or differs from its hash, or the corpus was made of ids alone.
        """
        if self.manifest.tokenizer is not None:
            for file in self.manifest.tokenizer.files:
                verify_file(self.path, file)
        return Tokenizer.load(self.path / TOKENIZER)

    def document(self, i: int, start: int = 0, stop: int | None = None) -> Document:
        """Document ``i``, or its tokens ``start:stop`` at the cost of those; ids are a read-only view of the file.

        Raises:
            DataError: the shard is missing, truncated, or not a shard.
            IndexError: there is no such document.
        """
        shard, place = self._locate(i)
        return shard.document(place, start, stop)

    def gather(self, documents: np.ndarray, starts: np.ndarray, stops: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Tokens ``starts[p]:stops[p]`` of document ``documents[p]``, one piece after the other: ids (n,) int64 and
        word starts (n,) bool. Many pieces at once cost little more than their tokens, about 20 nanoseconds each."""
        lengths = stops - starts
        edges = offsets(lengths)
        ids, words = np.empty(edges[-1], np.int64), np.empty(edges[-1], bool)
        numbers = np.searchsorted(self._starts, documents, side="right") - 1  # of shards
        for number in np.unique(numbers).tolist():
            own = np.flatnonzero(numbers == number)
            first = self._starts[number]
            shard, _ = self._locate(first)
            begin = shard.documents[documents[own] - first].astype(np.int64) + starts[own]
            source, target = aranges(begin, lengths[own]), aranges(edges[own], lengths[own])
            if len(source) and not 0 <= source.min() <= source.max() < len(shard.ids):
                raise shard.damaged()
            ids[target] = chosen = shard.ids[source]
            if len(chosen) and chosen.max() >= self.vocab_size:
                raise shard.damaged()
            words[target] = (shard.words[source >> 3] >> (source & 7).astype(np.uint8)) & 1
        return ids, words

    def document_length(self, i: int) -> int:
        """Number of tokens of document ``i``, without reading them."""
        shard, place = self._locate(i)
        first, end = shard.bounds(place)
        return end - first

    def document_start(self, i: int) -> int:
        """Number of tokens in all documents before ``i``."""
        shard, place = self._locate(i)
        return self._tokens[bisect_right(self._starts, i) - 1] + int(shard.documents[place])

    def counts(self) -> np.ndarray:
        """How often each id occurs in the training split: (V,) int64."""
        path = self.path / COUNTS
        try:
            if sha256(path) != self.manifest.counts.sha256:
                raise ValueError("its hash differs from that in the manifest")
            return np.load(path, allow_pickle=False)
        except Exception as error:  # numpy reads the header with Python's own parser, which has errors of its own
            raise DataError(
                f"{path}: cannot be read ({str(error)[:80]}); delete the corpus and build it again"
            ) from None

    def _locate(self, i: int) -> tuple[Shard, int]:
        if not 0 <= i < self.num_documents:
            raise IndexError(f"document {i} of {self.num_documents}")
        number = bisect_right(self._starts, i) - 1
        shard = self._shards[number]
        if shard is None:
            file = self._files[number]
            supply(self.path, file.file, file.size, file.sha256)
            shard = Shard(self.path / file.file, file.size)
            if (len(shard.documents) - 1, int(shard.bytes[-1])) != (file.documents, file.bytes):
                raise shard.damaged()
            self._shards[number] = shard
        shard.check_size()
        return shard, i - self._starts[number]


class Shard:
    """One memory-mapped shard file.

    Raises:
        DataError: it is missing, its size differs from the expected one, or its header is broken.
    """

    def __init__(self, path: Path, size: int | None = None) -> None:
        self.path = path
        tensors = map_tensors(path, size)
        self.check_size = tensors.check_size
        try:
            self.documents, self.bytes, self.ids = tensors["documents"], tensors["bytes"], tensors["ids"]
            self.sentences, self.words = tensors["sentences"], tensors["words"]
        except KeyError as error:
            raise DataError(f"{path}: has no tensor {error}, so it is not a token shard; build it again") from None
        bits = (len(self.ids) + 7) // 8
        ends = len(self.documents) and int(self.documents[0]) == 0 and int(self.documents[-1]) == len(self.ids)
        if not ends or (len(self.bytes), len(self.sentences), len(self.words)) != (len(self.documents), bits, bits):
            raise self.damaged()

    def document(self, i: int, start: int = 0, stop: int | None = None) -> Document:
        first, end = self.bounds(i)
        start, end = first + start, end if stop is None else min(first + stop, end)
        return Document(
            self.ids[start:end],
            np.flatnonzero(read_bits(self.sentences, start, end)),
            read_bits(self.words, start, end).view(bool),
            int(self.bytes[i + 1]) - int(self.bytes[i]),
        )

    def bounds(self, i: int) -> tuple[int, int]:
        """The index of the first token of document ``i``, and one past its last."""
        first, end = int(self.documents[i]), int(self.documents[i + 1])
        if not first <= end <= len(self.ids):
            raise self.damaged()
        return first, end

    def damaged(self) -> DataError:
        """The error if an offset points outside the file or an id outside the vocabulary.

        Reading notices only these; :func:`verify` finds all damage.
        """
        return DataError(f"{self.path}: damaged; delete the corpus and build it again")


@contextlib.contextmanager
def create_shard(path: Path, num_documents: int, num_tokens: int, kind: np.dtype | type) -> Iterator[ShardWriter]:
    """Write a shard of known size document by document; it appears under its name when it is complete, or not at all.

    Memory: the marks and the tables of documents, 0.25 bytes a token and 16 a document; ids go straight to the file.
    """
    with replace_file(path) as file:
        writer = ShardWriter(file, num_documents, num_tokens, np.dtype(kind))
        yield writer
        writer.finish()


class ShardWriter:
    """The writer of :func:`create_shard`."""

    def __init__(self, file: IO[bytes], num_documents: int, num_tokens: int, kind: np.dtype) -> None:
        self._file, self._kind = file, kind
        self._starts = np.zeros(num_documents + 1, np.uint64)
        self._byte_starts = np.zeros(num_documents + 1, np.uint64)
        self._sentences, self._words = BitWriter(num_tokens), BitWriter(num_tokens)
        self._num_tokens, self._added_documents, self._added_tokens = num_tokens, 0, 0
        table, bits = (np.dtype(np.uint64), num_documents + 1), (np.dtype(np.uint8), (num_tokens + 7) // 8)
        header = tensor_header(
            {"documents": table, "bytes": table, "ids": (kind, num_tokens), "sentences": bits, "words": bits}
        )
        file.write(header)
        self._tables = len(header)  # where the tables go, which are complete only at the end
        file.seek(self._tables + self._starts.nbytes + self._byte_starts.nbytes)

    def add(
        self, ids: np.ndarray, lengths: np.ndarray, num_bytes: np.ndarray, sentences: np.ndarray, words: np.ndarray
    ) -> None:
        """Append documents: ``lengths`` and ``num_bytes`` (d,), marks (n,) bool, n the sum of ``lengths``."""
        self._file.write(np.ascontiguousarray(ids, self._kind).data)
        span = slice(self._added_documents + 1, self._added_documents + 1 + len(lengths))
        self._starts[span] = self._added_tokens + np.cumsum(lengths)
        self._byte_starts[span] = int(self._byte_starts[self._added_documents]) + np.cumsum(num_bytes)
        self._sentences.add(sentences)
        self._words.add(words)
        self._added_documents += len(lengths)
        self._added_tokens += len(ids)

    def finish(self) -> None:
        """Write the marks after the ids, and the tables before them."""
        assert (self._added_tokens, self._added_documents) == (self._num_tokens, len(self._starts) - 1), self._file.name
        self._file.write(self._sentences.packed.data)
        self._file.write(self._words.packed.data)
        self._file.seek(self._tables)
        self._file.write(self._starts.data)
        self._file.write(self._byte_starts.data)


def id_type(vocab_size: int) -> np.dtype:
    """The narrowest type that holds every id: uint16 up to 65,536 ids, else uint32."""
    return np.dtype(np.uint16 if vocab_size <= 1 << 16 else np.uint32)


def shard_record(folder: Path, path: Path) -> ShardRecord:
    """The manifest's record of one shard; reads the file once for its hash."""
    shard = Shard(path)
    return ShardRecord(
        file=path.relative_to(folder).as_posix(),
        size=path.stat().st_size,
        sha256=sha256(path),
        documents=len(shard.documents) - 1,
        tokens=len(shard.ids),
        bytes=int(shard.bytes[-1]),
        sentences=count_bits(shard.sentences),
        words=count_bits(shard.words),
    )


def unigram_entropy(counts: np.ndarray) -> float:
    """Entropy in nats of token frequencies: the loss of a model that knows only these."""
    share = counts[counts > 0] / counts.sum()
    return float(-(share * np.log(share)).sum())
