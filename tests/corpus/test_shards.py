from __future__ import annotations

import json
import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file

from encoderlab.corpus.manifest import COUNTS, MANIFEST, ShardRecord, split_record, verify, write_manifest
from encoderlab.corpus.shards import Corpus, Document, id_type
from encoderlab.corpus.tensors import map_tensors, tensor_header, write_tensors
from encoderlab.errors import DataError
from tests.corpus.corpora import write_corpus


def make(lengths, vocab=1000, seed=0):
    rng = np.random.default_rng(seed)
    documents = []
    for length in lengths:
        starts = np.unique(np.append(rng.integers(0, length, 3), 0))
        documents.append(
            Document(rng.integers(0, vocab, length), starts, rng.random(length) < 0.5, int(rng.integers(99)))
        )
    return documents


def same(left, right):
    np.testing.assert_array_equal(left.ids, right.ids)
    np.testing.assert_array_equal(left.sentences, right.sentences)
    np.testing.assert_array_equal(left.word_starts, right.word_starts)
    assert left.num_bytes == right.num_bytes


@given(st.lists(st.integers(1, 70), min_size=1, max_size=20), st.sampled_from([100, 65_536, 65_537, 200_000]))
def test_documents_come_back(tmp_path_factory, lengths, vocab):
    folder = tmp_path_factory.mktemp("corpus")
    documents = make(lengths, vocab)
    corpus = write_corpus(folder, {"train": [documents], "validation": [documents[:1]]}, vocab)
    assert len(corpus) == corpus.num_documents == len(documents)
    assert corpus.num_tokens == sum(lengths)
    assert corpus.num_bytes == sum(document.num_bytes for document in documents)
    for number, document in enumerate(documents):
        same(corpus.document(number), document)
        assert corpus.document(number).ids.dtype == (np.uint16 if vocab <= 65_536 else np.uint32)
        assert corpus.document_length(number) == len(document)
    counts = np.bincount(np.concatenate([document.ids for document in documents]), minlength=vocab)
    np.testing.assert_array_equal(corpus.counts(), counts)
    same(Corpus(folder, "validation").document(0), documents[0])
    verify(folder)


def test_several_shards(tmp_path):
    documents = make([5, 1, 17, 300, 8, 3, 64, 1])
    groups = [documents[:3], documents[3:4], [], documents[4:]]
    corpus = write_corpus(tmp_path, {"train": groups}, 1000)
    splits = corpus.manifest.splits
    for number, document in enumerate(documents):
        same(corpus.document(number), document)
    assert splits["train"].sentences == sum(len(document.sentences) for document in documents)
    assert splits["train"].words == sum(int(document.word_starts.sum()) for document in documents)
    chosen = np.array([7, 0, 3, 2, 3])
    ids, words = corpus.gather(chosen, np.array([0, 1, 250, 16, 0]), np.array([1, 5, 300, 17, 2]))
    parts = [
        documents[7].ids[:1],
        documents[0].ids[1:],
        documents[3].ids[250:],
        documents[2].ids[16:],
        documents[3].ids[:2],
    ]
    np.testing.assert_array_equal(ids, np.concatenate(parts))
    assert words.dtype == bool
    for place in (-1, 8):
        with pytest.raises(IndexError, match="of 8"):
            corpus.document(place)


def test_a_shard_is_a_safetensors_file(tmp_path):
    documents = make([3, 9])
    write_corpus(tmp_path, {"train": [documents]}, 1000)
    tensors = load_file(tmp_path / "train" / "shard-00000.safetensors")
    np.testing.assert_array_equal(tensors["documents"], [0, 3, 12])
    np.testing.assert_array_equal(tensors["ids"], np.concatenate([document.ids for document in documents]))
    mapped = map_tensors(tmp_path / "train" / "shard-00000.safetensors")
    assert all(array.ctypes.data % array.itemsize == 0 for array in mapped.values())


@given(st.integers(0, 2**20), st.data())
def test_a_changed_or_missing_byte_is_found_and_named(tmp_path_factory, place, data):
    folder = tmp_path_factory.mktemp("corpus")
    write_corpus(folder, {"train": [make([5, 40])], "validation": [make([7])]}, 1000)
    names = [COUNTS, "train/shard-00000.safetensors", "validation/shard-00000.safetensors"]
    path = folder / data.draw(st.sampled_from(names))
    content = bytearray(path.read_bytes())
    if data.draw(st.booleans()):
        content[place % len(content)] ^= 1 << (place % 8)
    else:
        del content[place % len(content) :]
    path.write_bytes(content)
    with pytest.raises(DataError, match=path.name):
        verify(folder)


def test_a_truncated_shard_is_named_when_it_is_read(tmp_path):
    corpus = write_corpus(tmp_path, {"train": [make([5, 40])]}, 1000)
    path = tmp_path / "train" / "shard-00000.safetensors"
    content = path.read_bytes()
    for broken in (content[:-1], content[:4], b""):
        path.write_bytes(broken)
        with pytest.raises(DataError, match="shard-00000.safetensors: .*expected"):
            Corpus(tmp_path).document(0)
    path.unlink()
    with pytest.raises(DataError, match="cannot be read"):
        Corpus(tmp_path).document(0)
    for start in (b"\xff", b"\x01" + bytes(7) + b"7"):  # no length of a header; a number for a header
        path.write_bytes(start + b"\xff" * (len(content) - len(start)))
        with pytest.raises(DataError, match="broken header"):
            Corpus(tmp_path).document(0)
    write_tensors(path, {"x": np.zeros(len(content), np.uint8)})
    with pytest.raises(DataError, match="truncated"):
        Corpus(tmp_path).document(0)
    assert corpus.num_documents == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda path: path.unlink(), "no corpus here"),
        (lambda path: path.write_text("{"), "not valid JSON"),
        (lambda path: path.write_text("[]"), "not the manifest of a corpus"),
        (
            lambda path: path.write_text(json.dumps({"format": "encoderlab-corpus", "version": 99})),
            "version 99, expected 1",
        ),
    ],
)
def test_a_wrong_manifest(tmp_path, change, message):
    write_corpus(tmp_path, {"train": [make([5])]}, 1000)
    change(tmp_path / MANIFEST)
    with pytest.raises(DataError, match=message):
        Corpus(tmp_path)


@pytest.mark.parametrize("value", [None, -1, 1.5, "x", [], {}, True, 10**30])
def test_any_entry_of_a_manifest_that_makes_no_sense_is_named(tmp_path, value):
    write_corpus(tmp_path, {"train": [make([5, 40])], "validation": [make([3])]}, 1000)
    manifest = json.loads((tmp_path / MANIFEST).read_text())
    shard = manifest["splits"]["validation"]["shards"][0]
    places = [(manifest, name) for name in ("vocab_size", "splits", "counts")]
    places += [(manifest["splits"], "validation"), (manifest["splits"]["validation"], "shards")]
    places += [(shard, name) for name in ("file", "size", "sha256", "documents", "tokens")]
    for entries, name in places:
        kept, entries[name] = entries[name], value
        (tmp_path / MANIFEST).write_text(json.dumps(manifest))
        with pytest.raises(DataError, match=rf"{name}|manifest.json|cannot be read|sha256|no split|damaged|expected"):
            verify(tmp_path)
            Corpus(tmp_path, "validation").document(0)
        entries[name] = kept


def test_tables_and_ids_that_lead_nowhere_are_named(tmp_path):
    """Without the hashes, which are compared by ``verify``: what would else be an error of numpy or of the model."""
    corpus = write_corpus(tmp_path, {"train": [make([5, 40, 7])]}, 1000)
    path = tmp_path / "train" / "shard-00000.safetensors"
    whole = map_tensors(path)

    def read(**changes):
        write_tensors(path, {name: np.array(changes.get(name, whole[name])) for name in whole})
        corpus = Corpus(tmp_path)
        everything = np.arange(3), np.zeros(3, np.int64), np.array([corpus.document_length(i) for i in range(3)])
        return [corpus.document(i) for i in range(3)], corpus.gather(*everything)

    read()
    ids = whole["ids"].copy()
    ids[3] = 1000
    for changes in (
        {"documents": np.array([0, 2**63 + 5, 45, 52], np.uint64)},
        {"documents": np.array([0, 50, 45, 52], np.uint64)},
        {"documents": np.array([1, 5, 45, 52], np.uint64)},
        {"ids": ids},
    ):
        with pytest.raises(DataError, match="shard-00000.safetensors: damaged"):
            read(**changes)
    assert corpus.num_documents == 3


def test_wrong_split_and_counts(tmp_path):
    corpus = write_corpus(tmp_path, {"train": [make([5])]}, 1000)
    with pytest.raises(DataError, match="no split 'test' in this corpus; it has train"):
        Corpus(tmp_path, "test")
    np.save(tmp_path / COUNTS, np.zeros(7))
    with pytest.raises(DataError, match="its hash differs"):
        corpus.counts()
    (tmp_path / COUNTS).write_bytes(b"")
    with pytest.raises(DataError, match="counts.npy"):
        corpus.counts()


def test_opening_a_large_corpus_costs_nothing(tmp_path):
    """A billion tokens in a sparse file: opening and reading the last document take milliseconds."""
    path = tmp_path / "train" / "shard-00000.safetensors"
    path.parent.mkdir()
    tokens, documents = 1_000_000_000, 1000
    starts = np.linspace(0, tokens, documents + 1).astype(np.uint64)
    table, ids, bits = (
        (np.dtype(np.uint64), documents + 1),
        (np.dtype(np.uint16), tokens),
        (np.dtype(np.uint8), tokens // 8),
    )
    header = tensor_header({"documents": table, "bytes": table, "ids": ids, "sentences": bits, "words": bits})
    with open(path, "wb") as file:
        file.write(header + starts.tobytes() + starts.tobytes())
        file.truncate(file.tell() + 2 * tokens + tokens // 4)
    record = ShardRecord(
        file="train/shard-00000.safetensors",
        size=path.stat().st_size,
        sha256="",
        documents=documents,
        tokens=tokens,
        bytes=tokens,
        sentences=0,
        words=0,
    )
    write_manifest(
        tmp_path, vocab_size=10, tokenizer=None, splits={"train": split_record([record])}, counts=np.zeros(10)
    )
    corpus = Corpus(tmp_path)
    assert len(corpus.document(documents - 1)) == tokens // documents
    assert os.stat(path).st_blocks * 512 < 10_000_000


def test_id_type():
    assert id_type(65_536) == np.uint16
    assert id_type(65_537) == np.uint32
