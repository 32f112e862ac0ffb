"""Synthetic text and small corpora for the tests of this folder."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from pydoc_data import topics

import numpy as np

from encoderlab.cli import main
from encoderlab.corpus.assemble import Selection
from encoderlab.corpus.build import BuildSettings, NewTokenizer
from encoderlab.corpus.manifest import split_record, write_manifest
from encoderlab.corpus.shards import Corpus, Document, create_shard, id_type, shard_record
from encoderlab.corpus.sources import Reading


def sample_text(num_documents: int, seed: int = 0, words: int = 400) -> str:
    """English-like documents of one to five paragraphs, as in a text source, from a Zipf vocabulary."""
    rng = np.random.default_rng(seed)
    letters = np.array(list("etaoinshrdlucmfwypvbgk"))
    vocabulary = ["".join(rng.choice(letters, rng.integers(1, 9))) for _ in range(words)]
    weights = 1 / np.arange(1, words + 1)
    documents = []
    for number in range(num_documents):
        paragraphs = []
        for _ in range(rng.integers(1, 6)):
            sentences = []
            for _ in range(rng.integers(1, 5)):
                chosen = rng.choice(words, rng.integers(3, 15), p=weights / weights.sum())
                sentence = " ".join(vocabulary[place] for place in chosen)
                sentences.append(sentence.capitalize() + rng.choice([".", "?", "!", '."']))
            paragraphs.append(" ".join(sentences))
        documents.append("\n".join([f"Document {number}.", *paragraphs]))
    return "\n\n".join(documents) + "\n"


def settings(*sources: Path | str, vocab_size: int = 300, **changes) -> BuildSettings:
    """Settings of a small corpus; ``reading`` and ``selection`` may be given as dictionaries."""
    changes = {
        "tokenizer": NewTokenizer(vocab_size=vocab_size),
        **changes,
        "reading": Reading(**changes.get("reading", {})),
        "selection": Selection(**{"validation": 0.1, **changes.get("selection", {})}),
    }
    return BuildSettings(sources=tuple(map(str, sources)), **changes)


def digests(folder: Path) -> dict[str, str]:
    """A hash of every file below ``folder`` by its name."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def write_corpus(folder: Path, splits: Mapping[str, Sequence[Sequence[Document]]], vocab_size: int) -> Corpus:
    """A corpus without a tokenizer, of documents that are tokens already: a sequence of them for each shard."""
    counts, records = np.zeros(vocab_size, np.int64), {}
    for split, shards in splits.items():
        (folder / split).mkdir(parents=True)
        paths = [folder / split / f"shard-{number:05d}.safetensors" for number in range(len(shards))]
        for path, documents in zip(paths, shards, strict=True):
            with create_shard(path, len(documents), sum(map(len, documents)), id_type(vocab_size)) as shard:
                for document in documents:
                    marks = np.zeros(len(document), bool)
                    marks[document.sentences] = True
                    sizes = np.array([len(document)]), np.array([document.num_bytes])
                    shard.add(document.ids, *sizes, marks, document.word_starts)
                    if split == "train":
                        counts += np.bincount(document.ids, minlength=vocab_size)
        records[split] = split_record([shard_record(folder, path) for path in paths])
    write_manifest(folder, vocab_size=vocab_size, splits=records, counts=counts, tokenizer=None)
    return Corpus(folder, next(iter(splits)))


def build_topics(folder: Path, documents: int, vocabulary: int = 500) -> None:
    """``folder/corpus`` from Python's help topics, by the command line."""
    (folder / "text").mkdir()
    for name in sorted(topics.topics)[:documents]:
        (folder / "text" / f"{name}.txt").write_text(topics.topics[name], encoding="utf-8")
    sizes = ["--vocab-size", str(vocabulary), "--workers", "1"]
    assert main(["corpus", "build", str(folder / "text"), "--out", str(folder / "corpus"), *sizes]) == 0
