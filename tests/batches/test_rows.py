"""Reading through the corpus on disk: parts of documents, many pieces at once, and rows of all of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from memory_corpus import BERT, MemoryCorpus, random_corpus

from encoderlab.batches.loader import Loader
from encoderlab.batches.pack import SegmentPairs
from encoderlab.batches.streams import ContiguousStreams
from encoderlab.corpus.shards import Corpus, ShardWriter, shard_record, split_record, write_manifest


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Corpus, MemoryCorpus]:
    """The same documents on disk, in three shards, and in memory."""
    memory, folder = random_corpus(4, 50), tmp_path_factory.mktemp("corpus")
    (folder / "train").mkdir()
    records = []
    for number, part in enumerate((range(0, 20), range(20, 21), range(21, 50))):
        documents = [memory.documents[i] for i in part]
        path: Path = folder / "train" / f"shard-{number:05}.safetensors"
        lengths = np.array([len(document) for document in documents])
        marks = []
        for document in documents:
            marks.append(np.zeros(len(document), bool))
            marks[-1][document.sentences] = True
        with ShardWriter(path, len(documents), int(lengths.sum()), np.uint16) as shard:
            shard.add(
                np.concatenate([document.ids for document in documents]),
                lengths,
                lengths * 4,
                np.concatenate(marks),
                np.concatenate([document.word_starts for document in documents]),
            )
        records.append(shard_record(folder, path))
    counts = np.zeros(memory.vocab_size, np.int64)
    write_manifest(
        folder, vocab_size=memory.vocab_size, splits={"train": split_record(records)}, counts=counts, tokenizer=None
    )
    return Corpus(folder), memory


def test_parts_of_documents(pair: tuple[Corpus, MemoryCorpus]) -> None:
    disk, memory = pair
    rng = np.random.default_rng(0)
    for i in range(50):
        assert disk.document_start(i) == memory.document_start(i)
        start, stop = sorted(rng.integers(0, len(memory.documents[i]) + 1, 2).tolist())
        one, two = disk.document(i, start, stop), memory.document(i, start, stop)
        assert np.array_equal(one.ids, two.ids) and np.array_equal(one.sentences, two.sentences)
        assert np.array_equal(one.word_starts, two.word_starts)


def test_gather(pair: tuple[Corpus, MemoryCorpus]) -> None:
    disk, memory = pair
    rng = np.random.default_rng(1)
    documents = rng.integers(0, 50, 200)
    starts = np.array([rng.integers(0, memory.document_length(i)) for i in documents])
    stops = np.array(
        [rng.integers(a + 1, memory.document_length(i) + 1) for i, a in zip(documents, starts, strict=True)]
    )
    for one, two in zip(disk.gather(documents, starts, stops), memory.gather(documents, starts, stops), strict=True):
        assert np.array_equal(one, two)


@pytest.mark.parametrize("form", [SegmentPairs(length=32), ContiguousStreams(length=32)])
def test_rows_from_disk_are_those_from_memory(
    pair: tuple[Corpus, MemoryCorpus], form: SegmentPairs | ContiguousStreams
) -> None:
    one, two = (list(Loader(corpus, form, framing=BERT, seed=0, batch_rows=4, epochs=1)) for corpus in pair)
    assert len(one) == len(two) > 5
    for a, b in zip(one, two, strict=True):
        assert [row.ids.tolist() for row in a] == [row.ids.tolist() for row in b]
        assert [row.word_starts.tolist() for row in a] == [row.word_starts.tolist() for row in b]
