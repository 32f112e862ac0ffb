"""Reading through the corpus on disk: parts of documents, many pieces at once, and rows of all of it."""

from __future__ import annotations

import numpy as np
import pytest

from encoderlab.batches.loader import Loader
from encoderlab.batches.pack import SegmentPairs
from encoderlab.batches.streams import ContiguousStreams
from encoderlab.corpus.shards import Corpus
from tests.batches.memory_corpus import BERT, MemoryCorpus, random_corpus
from tests.corpus.corpora import write_corpus


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Corpus, MemoryCorpus]:
    """The same documents on disk, in three shards, and in memory."""
    memory, folder = random_corpus(4, 50), tmp_path_factory.mktemp("corpus")
    parts = [memory.documents[:20], memory.documents[20:21], memory.documents[21:]]
    return write_corpus(folder, {"train": parts}, memory.vocab_size), memory


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


@pytest.mark.parametrize("form", [SegmentPairs(), ContiguousStreams()])
def test_rows_from_disk_are_those_from_memory(
    pair: tuple[Corpus, MemoryCorpus], form: SegmentPairs | ContiguousStreams
) -> None:
    one, two = (list(Loader(corpus, form, 32, framing=BERT, seed=0, batch_rows=4, epochs=1)) for corpus in pair)
    assert len(one) == len(two) > 5
    for a, b in zip(one, two, strict=True):
        assert [row.ids.tolist() for row in a] == [row.ids.tolist() for row in b]
        assert [row.word_starts.tolist() for row in a] == [row.word_starts.tolist() for row in b]
