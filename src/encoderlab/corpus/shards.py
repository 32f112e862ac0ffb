"""A corpus on disk: memory-mapped token shards with document, sentence and word-start marks, and a manifest.

    DIR/manifest.json                     counts, settings, sources and the sha256 of every file below
    DIR/tokenizer/tokenizer.json ...      what turned the text into the ids
    DIR/counts.npy                        (V,) int64: how often each id occurs in the training split
    DIR/train/shard-00000.safetensors     DIR/validation/shard-00000.safetensors ...

A shard is an ordinary safetensors file, so that every tool of the field can read it. For d documents and n tokens it
holds ``documents`` (d+1,) uint64, the token at which each document starts, and the end; ``bytes`` (d+1,) uint64, the
same for the UTF-8 bytes of the text; ``ids`` (n,) uint16 below 65,536 ids, else uint32; ``sentences`` and ``words``,
one bit per token, little end first: does a sentence, a word start here? That is 2.25 bytes a token and 16 a document.

Opening reads the manifest only; a shard is mapped when one of its documents is first asked for.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import mmap
import os
import struct
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from encoderlab.corpus.workers import cores
from encoderlab.errors import DataError
from encoderlab.files import replace_file, write_json

FORMAT, VERSION = "encoderlab-corpus", 1
MANIFEST = "manifest.json"
COUNTS = "counts.npy"
TOKENIZER = "tokenizer"
WORK = ".work"  # what a corpus is built in, below its folder
PLAN, MERGE = "plan.json", "merge.json"  # what is being built or merged there; a part of a corpus has a plan, too
SPLITS = ("train", "validation")
_TYPES = {"U64": np.uint64, "U32": np.uint32, "U16": np.uint16, "U8": np.uint8}
_ONES = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).sum(1, dtype=np.uint8)
_NAMES = {np.dtype(kind): name for name, kind in _TYPES.items()}


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
        self.path, self.split = Path(path), split
        self.manifest = read_manifest(self.path)
        splits = self.manifest["splits"]
        if split not in splits:
            raise DataError(f"{self.path}: no split {split!r} in this corpus; it has {', '.join(splits)}")
        record = splits[split]
        self.vocab_size: int = self.manifest["vocab_size"]
        self.num_documents: int = record["documents"]
        self.num_tokens: int = record["tokens"]
        self.num_bytes: int = record["bytes"]
        self.tokenizer_path = self.path / TOKENIZER
        self._files = record["shards"]
        starts = np.cumsum([0] + [file["documents"] for file in self._files])
        self._starts: list[int] = starts.tolist()
        self._tokens: list[int] = np.cumsum([0] + [file["tokens"] for file in self._files]).tolist()
        if (self._starts[-1], self._tokens[-1]) != (self.num_documents, self.num_tokens):
            raise DataError(
                f"{self.path / MANIFEST}: {split} has {self.num_documents:,} documents and {self.num_tokens:,} tokens, "
                f"its shards {self._starts[-1]:,} and {self._tokens[-1]:,}; build the corpus again"
            )
        self._shards: list[Shard | None] = [None] * len(self._files)

    def __len__(self) -> int:
        return self.num_documents

    def __repr__(self) -> str:
        size = f"{self.num_documents:,} documents, {self.num_tokens:,} tokens"
        return f"Corpus({str(self.path)!r}, {self.split!r}): {size}"

    def document(self, i: int, start: int = 0, stop: int | None = None) -> Document:
        """Document ``i``, or its tokens ``start:stop`` at the cost of those; ids are a read-only view of the file.

        Raises:
            DataError: the shard is missing, truncated, or no shard at all.
            IndexError: there is no such document.
        """
        shard, place = self._locate(i)
        return shard.document(place, start, stop)

    def gather(self, documents: np.ndarray, starts: np.ndarray, stops: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Tokens ``starts[p]:stops[p]`` of document ``documents[p]``, one piece after the other: ids (n,) int64 and
        word starts (n,) bool. Many pieces at once cost little more than their tokens, about 20 nanoseconds each."""
        lengths = stops - starts
        ends = np.cumsum(lengths)
        size = int(ends[-1]) if len(ends) else 0
        ids, words = np.empty(size, np.int64), np.empty(size, bool)
        numbers = np.searchsorted(self._starts, documents, side="right") - 1
        for number in np.unique(numbers).tolist():
            own = np.flatnonzero(numbers == number)
            first = self._starts[number]
            shard, _ = self._locate(first)
            begin = shard.documents[documents[own] - first].astype(np.int64) + starts[own]
            inside = np.arange(lengths[own].sum()) - np.repeat(np.cumsum(lengths[own]) - lengths[own], lengths[own])
            source = np.repeat(begin, lengths[own]) + inside
            target = np.repeat((ends - lengths)[own], lengths[own]) + inside
            if len(source) and not 0 <= source.min() <= source.max() < len(shard.ids):
                raise shard.damaged()
            ids[target] = found = shard.ids[source]
            if len(found) and found.max() >= self.vocab_size:
                raise shard.damaged()
            words[target] = (shard.words[source >> 3] >> (source & 7).astype(np.uint8)) & 1
        return ids, words

    def document_length(self, i: int) -> int:
        """Tokens of document ``i``, without touching them."""
        shard, place = self._locate(i)
        first, end = shard.bounds(place)
        return end - first

    def document_start(self, i: int) -> int:
        """How many tokens the documents before ``i`` have together."""
        shard, place = self._locate(i)
        return self._tokens[bisect_right(self._starts, i) - 1] + int(shard.documents[place])

    def counts(self) -> np.ndarray:
        """How often each id occurs in the training split: (V,) int64."""
        path = self.path / COUNTS
        try:
            counts = np.load(path, allow_pickle=False)
        except Exception as error:  # numpy reads the header with Python's own parser, which has errors of its own
            raise DataError(f"{path}: cannot be read ({str(error)[:80]}); build the corpus again") from None
        if counts.shape != (self.vocab_size,):
            raise DataError(f"{path}: shape {counts.shape}, expected ({self.vocab_size},); build the corpus again")
        return counts

    def _locate(self, i: int) -> tuple[Shard, int]:
        if not 0 <= i < self.num_documents:
            raise IndexError(f"document {i} of {self.num_documents}")
        number = bisect_right(self._starts, i) - 1
        shard = self._shards[number]
        if shard is None:
            file = self._files[number]
            shard = Shard(self.path / file["file"], file["size"])
            if len(shard.documents) - 1 != file["documents"]:
                raise shard.damaged()
            self._shards[number] = shard
        return shard, i - self._starts[number]


class Shard:
    """One memory-mapped shard file.

    Raises:
        DataError: it is missing, or its size is not the one expected, or its header is broken.
    """

    def __init__(self, path: Path, size: int | None = None) -> None:
        self.path = path
        tensors = map_tensors(path, size)
        try:
            self.documents, self.bytes, self.ids = tensors["documents"], tensors["bytes"], tensors["ids"]
            self.sentences, self.words = tensors["sentences"], tensors["words"]
        except KeyError as error:
            raise DataError(f"{path}: holds no tensor {error}: no token shard; build it again") from None
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
        """Where document ``i`` starts among the tokens, and where it ends."""
        first, end = int(self.documents[i]), int(self.documents[i + 1])
        if not first <= end <= len(self.ids):
            raise self.damaged()
        return first, end

    def damaged(self) -> DataError:
        """The error to raise where an offset points outside the file or an id outside the vocabulary.

        Reading notices only these; :func:`verify` finds all damage.
        """
        return DataError(f"{self.path}: damaged; delete the corpus and build it again")


def read_bits(packed: np.ndarray, start: int, end: int) -> np.ndarray:
    """Bits ``start:end`` of a packed array, as uint8 zeros and ones."""
    first = start >> 3
    return np.unpackbits(packed[first : (end + 7) >> 3], bitorder="little")[start - 8 * first : end - 8 * first]


def count_bits(packed: np.ndarray) -> int:
    """How many bits of a packed array are set."""
    return int(_ONES[packed].sum(dtype=np.int64))


def map_tensors(path: Path, size: int | None = None) -> dict[str, np.ndarray]:
    """The tensors of a safetensors file as read-only views of the memory-mapped file."""
    try:
        with open(path, "rb") as file:
            actual = os.fstat(file.fileno()).st_size
            if size is not None and actual != size:
                raise DataError(f"{path}: {actual:,} bytes, expected {size:,}: truncated; build it again")
            if actual < 8:
                raise DataError(f"{path}: {actual} bytes, too short for a shard; build it again")
            memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); build it again") from None
    try:
        (length,) = struct.unpack_from("<Q", memory, 0)
        header = json.loads(memory[8 : 8 + length])
        header.pop("__metadata__", None)
        tensors = {}
        for name, entry in header.items():
            (begin, end), kind = entry["data_offsets"], np.dtype(_TYPES[entry["dtype"]])
            if end > actual - 8 - length:
                raise ValueError(f"tensor {name!r} ends after the file")
            tensors[name] = np.frombuffer(memory, kind, (end - begin) // kind.itemsize, 8 + length + begin)
        return tensors
    except (ValueError, KeyError, TypeError, AttributeError, struct.error) as error:
        raise DataError(f"{path}: broken header ({str(error)[:80]}); build it again") from None


class ShardWriter:
    """Writes one shard of known size piece by piece; the file appears under its name when it is complete.

    Memory: the marks and the table of documents, 0.25 bytes a token and 16 a document; ids go straight to the file.
    """

    def __init__(self, path: Path, num_documents: int, num_tokens: int, kind: np.dtype | type) -> None:
        self.path, self.kind = path, np.dtype(kind)
        self.documents = np.zeros(num_documents + 1, np.uint64)
        self.bytes = np.zeros(num_documents + 1, np.uint64)
        self.sentences, self.words = _BitWriter(num_tokens), _BitWriter(num_tokens)
        self._num_tokens, self._document, self._token = num_tokens, 0, 0
        self._entered = contextlib.ExitStack()

    def __enter__(self) -> ShardWriter:
        bits = (self._num_tokens + 7) // 8
        shapes = {
            "documents": (np.dtype(np.uint64), len(self.documents)),
            "bytes": (np.dtype(np.uint64), len(self.bytes)),
            "ids": (self.kind, self._num_tokens),
            "sentences": (np.dtype(np.uint8), bits),
            "words": (np.dtype(np.uint8), bits),
        }
        header = tensor_header(shapes)
        self._file = self._entered.enter_context(replace_file(self.path))
        self._file.write(header)
        self._tables = len(header)
        self._file.seek(len(header) + self.documents.nbytes + self.bytes.nbytes)
        return self

    def add(
        self, ids: np.ndarray, lengths: np.ndarray, num_bytes: np.ndarray, sentences: np.ndarray, words: np.ndarray
    ) -> None:
        """Append documents: ``lengths`` and ``num_bytes`` (d,), marks (n,) bool, n the sum of ``lengths``."""
        self._file.write(np.ascontiguousarray(ids, self.kind).data)
        span = slice(self._document + 1, self._document + 1 + len(lengths))
        self.documents[span] = self._token + np.cumsum(lengths)
        self.bytes[span] = int(self.bytes[self._document]) + np.cumsum(num_bytes)
        self.sentences.add(sentences)
        self.words.add(words)
        self._document += len(lengths)
        self._token += len(ids)

    def __exit__(self, *error: Any) -> None:
        with self._entered:
            if error[0] is not None:
                self._entered.__exit__(*error)
                return
            assert self._token == self._num_tokens and self._document == len(self.documents) - 1, self.path
            self._file.write(self.sentences.packed.data)
            self._file.write(self.words.packed.data)
            self._file.seek(self._tables)
            self._file.write(self.documents.data)
            self._file.write(self.bytes.data)


class _BitWriter:
    """Appends bits to a packed array that need not end on a byte."""

    def __init__(self, num_bits: int) -> None:
        self.packed = np.zeros((num_bits + 7) // 8, np.uint8)
        self._bit = 0

    def add(self, bits: np.ndarray) -> None:
        if not len(bits):
            return
        shift = self._bit & 7
        padded = np.concatenate([np.zeros(shift, bool), bits]) if shift else bits
        packed = np.packbits(padded, bitorder="little")
        first = self._bit >> 3
        self.packed[first : first + len(packed)] |= packed
        self._bit += len(bits)


def tensor_header(shapes: Mapping[str, tuple[np.dtype, int]]) -> bytes:
    """The header of a safetensors file of 1-D tensors in this order; widest types first keeps them aligned."""
    entries, offset = {}, 0
    for name, (kind, length) in shapes.items():
        end = offset + kind.itemsize * length
        entries[name] = {"dtype": _NAMES[kind], "shape": [length], "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def write_tensors(path: Path, tensors: Mapping[str, np.ndarray]) -> None:
    """Write one-dimensional tensors as a safetensors file, atomically."""
    ordered = dict(sorted(tensors.items(), key=lambda item: -item[1].dtype.itemsize))
    with replace_file(path) as file:
        file.write(tensor_header({name: (tensor.dtype, len(tensor)) for name, tensor in ordered.items()}))
        for tensor in ordered.values():
            file.write(np.ascontiguousarray(tensor).data)


def id_type(vocab_size: int) -> np.dtype:
    """The narrowest type that holds every id: uint16 up to 65,536 ids, else uint32."""
    return np.dtype(np.uint16 if vocab_size <= 1 << 16 else np.uint32)


def write_corpus(
    folder: str | os.PathLike,
    splits: Mapping[str, Iterable[Document]],
    vocab_size: int,
    tokenizer: Mapping[str, Any] | None = None,
) -> Corpus:
    """A corpus of documents that are tokens already, one shard a split: for experiments on synthetic data."""
    folder = Path(folder)
    counts, records = np.zeros(vocab_size, np.int64), {}
    for split, iterable in splits.items():
        documents = list(iterable)
        ids = np.concatenate([document.ids for document in documents] or [np.zeros(0, np.int64)])
        if len(ids) and int(ids.max()) >= vocab_size:
            raise DataError(f"{folder}: id {int(ids.max())} is not below the vocabulary size {vocab_size}")
        sentences = np.zeros(len(ids), bool)
        lengths = np.array([len(document.ids) for document in documents], np.int64)
        for start, document in zip(np.cumsum(lengths) - lengths, documents, strict=True):
            sentences[start + np.asarray(document.sentences)] = True
        num_bytes = np.array([document.num_bytes for document in documents], np.int64)
        words = np.concatenate([document.word_starts for document in documents] or [np.zeros(0, bool)])
        path = folder / split / "shard-00000.safetensors"
        path.parent.mkdir(parents=True, exist_ok=True)
        with ShardWriter(path, len(documents), len(ids), id_type(vocab_size)) as shard:
            shard.add(ids, lengths, num_bytes, sentences, words)
        if split == "train":
            counts += np.bincount(ids, minlength=vocab_size)
        records[split] = split_record([shard_record(folder, path)])
    write_manifest(folder, vocab_size=vocab_size, splits=records, counts=counts, tokenizer=tokenizer)
    return Corpus(folder, next(iter(splits)))


def shard_record(folder: Path, path: Path) -> dict[str, Any]:
    """What the manifest says of one shard; reads the file once for its hash."""
    shard = Shard(path)
    return {
        "file": path.relative_to(folder).as_posix(),
        "size": path.stat().st_size,
        "sha256": file_hash(path),
        "documents": len(shard.documents) - 1,
        "tokens": len(shard.ids),
        "bytes": int(shard.bytes[-1]),
        "sentences": count_bits(shard.sentences),
        "words": count_bits(shard.words),
    }


def split_record(shards: list[dict[str, Any]]) -> dict[str, Any]:
    """What the manifest says of one split."""
    names = ("documents", "sentences", "words", "tokens", "bytes")
    return {name: sum(shard[name] for shard in shards) for name in names} | {"shards": shards}


def write_manifest(folder: Path, *, counts: np.ndarray, **fields: Any) -> None:
    """Write ``counts`` and then the manifest, which makes the folder a corpus."""
    with replace_file(folder / COUNTS) as file:
        np.save(file, counts.astype(np.int64), allow_pickle=False)
    record = {"file": COUNTS, "sha256": file_hash(folder / COUNTS)}
    manifest = {"format": FORMAT, "version": VERSION, **fields, "counts": record}
    write_json(folder / MANIFEST, manifest)


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a corpus folder.

    Raises:
        DataError: it is missing, unfinished, broken, or of another version.
    """
    path = folder / MANIFEST
    try:
        manifest = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise DataError(f"{folder}: no corpus here (no {MANIFEST}); make one with: encoderlab corpus build") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise DataError(f"{path}: not valid JSON ({error}); build the corpus again") from None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise DataError(f"{path}: not the manifest of a corpus; make one with: encoderlab corpus build")
    if manifest.get("version") != VERSION:
        raise DataError(f"{path}: format version {manifest.get('version')}, expected {VERSION}; build the corpus again")
    splits = manifest.get("splits")
    shape = {
        "vocab_size": int,
        "counts": _FILE,
        "splits": dict.fromkeys(splits if isinstance(splits, dict) else (), _SPLIT),
    }
    if problem := _misfit(manifest, shape, "the manifest"):
        raise DataError(f"{path}: damaged: {problem}; build the corpus again")
    return manifest


_NUMBERS = dict.fromkeys(("documents", "sentences", "words", "tokens", "bytes"), int)
_FILE = {"file": str, "sha256": str}
_SPLIT = {**_NUMBERS, "shards": [{**_NUMBERS, **_FILE, "size": int}]}


def _misfit(value: Any, shape: Any, name: str) -> str | None:
    """The first place where ``value`` does not have ``shape``, as text for an error; None if it has.

    A shape is a type, a list of one shape for all elements, or a dict of the shapes of entries that must be there.
    """
    if isinstance(shape, dict):
        if not isinstance(value, dict):
            return f"{name} {str(value)[:40]!r}, expected an object"
        return next(filter(None, (_misfit(value.get(key), inner, key) for key, inner in shape.items())), None)
    if isinstance(shape, list):
        if not isinstance(value, list):
            return f"{name} {str(value)[:40]!r}, expected a list"
        return next(filter(None, (_misfit(item, shape[0], name) for item in value)), None)
    if type(value) is not shape or (shape is int and not 0 <= value < 2**63):
        return f"{name} {str(value)[:40]!r}, expected {'a count' if shape is int else 'text'}"
    return None


def verify(folder: str | os.PathLike) -> None:
    """Read every file of a corpus, as many at once as there are cores, and compare it with its recorded hash: about a
    second per GB on one core.

    Raises:
        DataError: names the first file that is missing or differs.
    """
    folder = Path(folder)
    manifest = read_manifest(folder)
    files = [manifest["counts"], *((manifest.get("tokenizer") or {}).get("files") or [])]
    files += [shard for split in manifest["splits"].values() for shard in split["shards"]]
    for record in files:
        if problem := _misfit(record, _FILE, "a file"):
            raise DataError(f"{folder / MANIFEST}: damaged: {problem}; build the corpus again")

    def check(record: Mapping[str, Any]) -> None:
        path = folder / record["file"]
        try:
            actual = file_hash(path)
        except OSError as error:
            raise DataError(f"{path}: cannot be read ({error.strerror}); build the corpus again") from None
        if actual != record["sha256"]:
            raise DataError(
                f"{path}: sha256 {actual[:12]}..., expected {record['sha256'][:12]}...: changed or damaged; "
                f"delete {folder} and build the corpus again"
            )

    with ThreadPoolExecutor(cores()) as pool:
        for _ in pool.map(check, files):
            pass


def file_hash(path: Path) -> str:
    """sha256 of a file, as sha256sum prints it."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def unigram_entropy(counts: np.ndarray) -> float:
    """Entropy in nats of word frequencies: the loss of a model that knows them and nothing else."""
    share = counts[counts > 0] / counts.sum()
    return float(-(share * np.log(share)).sum())
