from __future__ import annotations

import itertools
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from encoderlab.batches.loader import Format, Loader
from encoderlab.batches.pack import Chunks, FullSentences, PackedDocuments, SegmentPairs, SingleDocuments
from encoderlab.batches.rows import Row
from encoderlab.batches.streams import ContiguousStreams, XLNetStreams
from encoderlab.corpus.shards import Document
from encoderlab.errors import ConfigError, DataError
from tests.batches.memory_corpus import BERT, XLNET, MemoryCorpus, numbered_corpus, random_corpus

BLOCK = 2000  # tokens, so that the small corpora here have several blocks
FORMS: list[Format] = [
    SegmentPairs(),
    FullSentences(),
    PackedDocuments(),
    ContiguousStreams(variable=True),
    XLNetStreams(reuse=16),
]
LENGTHS = {"contiguous_streams": 12, "xlnet_streams": 32}


@pytest.fixture(scope="module")
def corpus() -> MemoryCorpus:
    return random_corpus(11, 120)


def make(corpus: Any, form: Format = FORMS[0], length: int | None = None, **options: Any) -> Loader:
    settings: dict[str, Any] = {"seed": 5, "batch_rows": 8, "block_tokens": BLOCK, "framing": BERT} | options
    if isinstance(form, XLNetStreams):
        settings["framing"] = XLNET
    return Loader(corpus, form, length or LENGTHS.get(form.kind, 40), **settings)


def take(loader: Loader, batches: int) -> list[list[Row]]:
    iterator = iter(loader)
    try:
        return list(itertools.islice(iterator, batches))
    finally:
        iterator.close()  # type: ignore[attr-defined]


def same(one: list[list[Row]], two: list[list[Row]]) -> bool:
    return [[name(row) for row in batch] for batch in one] == [[name(row) for row in batch] for batch in two]


def name(row: Row) -> tuple[Any, ...]:
    return row.key, row.number, row.ids.tobytes(), tuple(row.labels.items())


def test_a_place_that_another_version_wrote_is_refused(corpus: MemoryCorpus) -> None:
    state = make(corpus).state() | {"colour": 1}
    with pytest.raises(DataError, match="place in the text: 'colour' is unknown to this version"):
        make(corpus, state=state)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.kind)
@pytest.mark.parametrize("world", [2, 4])
def test_global_batches_are_the_same_for_any_number_of_ranks(corpus: MemoryCorpus, form: Format, world: int) -> None:
    whole = take(make(corpus, form), 60)
    parts = [take(make(corpus, form, rank=rank, world=world), 60) for rank in range(world)]
    joined = [[row for part in step for row in part] for step in zip(*parts, strict=True)]
    assert same(whole, joined)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.kind)
@settings(max_examples=6, deadline=None)
@given(step=st.integers(0, 60))
def test_resume_equals_no_interruption(corpus: MemoryCorpus, form: Format, step: int) -> None:
    first = make(corpus, form, ahead=3)
    take(first, step)
    assert first.state()["step"] == step
    rest = take(make(corpus, form, state=first.state()), 5)
    assert same(take(make(corpus, form), step + 5)[step:], rest)


def test_state_is_that_of_what_was_handed_out(corpus: MemoryCorpus) -> None:
    """Batches that were prepared ahead but not taken do not count."""
    loader = make(corpus, ahead=8)
    for step, _ in enumerate(itertools.islice(loader, 7), start=1):
        assert loader.state()["step"] == step and loader.state()["rows"] == 8 * step
    again = take(loader, 3)  # iterating again goes on where it was left
    assert same(again, take(make(corpus), 10)[7:])


@pytest.mark.parametrize(("form", "length"), [(SingleDocuments(), 64), (SegmentPairs(relation="order"), 40)])
def test_an_epoch_has_every_row_once(corpus: MemoryCorpus, form: Format, length: int) -> None:
    rows = [row for batch in make(corpus, form, length, epochs=3) for row in batch]
    assert [row.number for row in rows] == list(range(len(rows)))
    epochs = [[row.key for row in rows if row.key[0] == epoch] for epoch in range(3)]
    assert all(len(set(keys)) == len(keys) for keys in epochs)
    if isinstance(form, SingleDocuments):
        texts = [sorted(row.ids.tobytes() for row in rows if row.key[0] == epoch) for epoch in range(3)]
        assert texts[0] == texts[1] == texts[2]
    assert epochs[0] != [(0, *key[1:]) for key in epochs[1]]


@pytest.mark.parametrize("block_tokens", [BLOCK, 10**9])
def test_static_rows_come_once_in_each_epoch(corpus: MemoryCorpus, block_tokens: int) -> None:
    """Also where a batch holds rows of two epochs, whose blocks are the same in another order."""
    loader = make(corpus, SingleDocuments(), 64, duplicates=1, epochs=3, block_tokens=block_tokens)
    rows = [row for batch in loader for row in batch]
    size, rest = divmod(len(rows), 3)
    assert not rest and size % 8
    epochs = [[row.key for row in rows[start : start + size]] for start in range(0, len(rows), size)]
    assert all(len(set(keys)) == size for keys in epochs) and epochs[0] != epochs[1]
    assert sorted(epochs[0]) == sorted(epochs[1]) == sorted(epochs[2])


def test_row_numbers_and_ramp(corpus: MemoryCorpus) -> None:
    batches, state = [], None
    for size in range(2, 14):  # a ramp opens a loader for each number of rows
        loader = make(corpus, batch_rows=size, state=state)
        batches += take(loader, 1)
        state = loader.state()
    assert [len(batch) for batch in batches] == list(range(2, 14))
    flat = [row for batch in batches for row in batch]
    assert [row.number for row in flat] == list(range(len(flat)))
    constant = [row for batch in take(make(corpus), 12) for row in batch]
    assert all(np.array_equal(a.ids, b.ids) for a, b in zip(flat, constant, strict=False))  # only the cuts differ


def test_batches_in_tokens(corpus: MemoryCorpus) -> None:
    form = FullSentences(cross_documents=False, batch="tokens")
    batches = take(make(corpus, form, 60, batch_rows=7), 60)
    sizes = [sum(map(len, batch)) for batch in batches]
    assert max(sizes) <= 420 and np.mean(sizes) > 365
    assert max(map(len, batches)) > 7
    for batch, following in zip(batches, batches[1:], strict=False):
        assert sum(map(len, batch)) + len(following[0]) > 420  # as many as fit
    loader = make(corpus, form, 60, batch_rows=7)
    take(loader, 31)
    assert same(take(make(corpus, form, 60, batch_rows=7, state=loader.state()), 9), batches[31:40])


def test_duplicates_repeat_rows_in_another_order(corpus: MemoryCorpus) -> None:
    """Static masking: masks are keyed by the row's key, and so repeat with it."""
    rows = [row for batch in make(corpus, epochs=4, duplicates=2) for row in batch]
    keys = [row.key for row in rows]
    assert {key[0] for key in keys} == {0, 1}
    half = len(rows) // 2
    assert sorted(keys[:half]) == sorted(keys[half:]) and keys[:half] != keys[half:]
    by_key: dict[tuple[int, ...], bytes] = {}
    for row in rows:
        assert by_key.setdefault(row.key, row.ids.tobytes()) == row.ids.tobytes()


def test_rows_of_another_length_from_the_same_place(corpus: MemoryCorpus) -> None:
    """A second phase with longer rows has fewer of them in a block: it goes on with the next block."""
    loader = make(corpus, SegmentPairs(), 24)
    take(loader, 9)
    rows = take(make(corpus, SegmentPairs(), 120, state=loader.state()), 3)
    assert rows[0][0].number == 72 and rows[0][0].key[:2] != (0, loader.state()["block"])


def test_longer_windows_where_they_no_longer_fit_start_the_next_epoch(corpus: MemoryCorpus) -> None:
    form = XLNetStreams(reuse=8)
    loader = make(corpus, form, 20, epochs=1)
    windows = len(list(loader))
    loader = make(corpus, form, 20)
    take(loader, windows - 1)  # one window of the epoch is left
    state = loader.state()
    assert state["epoch"] == 0
    first, second = take(make(corpus, form, 64, state=state), 2)
    assert [len(row) for row in first] == [64] * 8
    assert {(row.key[:2], row.labels["continues"]) for row in first} == {((1, 0), 0)}
    assert {(row.key[:2], row.labels["continues"]) for row in second} == {((1, 8), 1)}
    assert first[0].number == 8 * (windows - 1)
    assert list(make(corpus, form, 64, state=state, epochs=1)) == []


def test_validation_is_fixed_and_ends(corpus: MemoryCorpus) -> None:
    once, again = (list(make(corpus, epochs=1)) for _ in range(2))
    assert same(once, again)
    assert {row.key[0] for batch in once for row in batch} == {0}
    assert all(len(batch) == 8 for batch in once[:-1])
    for world in (2, 3):
        parts = [list(make(corpus, epochs=1, rank=rank, world=world)) for rank in range(world)]
        assert len({len(part) for part in parts}) == 1
        assert abs(sum(len(batch) for part in parts for batch in part) - sum(map(len, once))) < world


def test_short_corpora_are_refused() -> None:
    small = numbered_corpus([[3, 4], [5]])
    with pytest.raises(DataError, match="shorter than one row of 40"):
        make(small)
    with pytest.raises(DataError, match="no row of single_documents"):
        next(iter(make(random_corpus(0, 20), SingleDocuments(shortest=390), 400)))
    with pytest.raises(DataError, match="no row of chunks"):
        next(iter(make(random_corpus(0, 1), Chunks(), 5000, block_tokens=10**9, epochs=1)))
    with pytest.raises(ConfigError, match="no room for text"):
        make(random_corpus(0, 20), SegmentPairs(), 4)
    with pytest.raises(ConfigError, match="shared by 4 processes"):
        next(iter(make(random_corpus(0, 20), batch_rows=3, rank=0, world=4)))


def test_transform_runs_ahead_and_its_errors_arrive(corpus: MemoryCorpus) -> None:
    threads = set()

    def transform(rows: list[Row]) -> int:
        threads.add(threading.current_thread().name)
        if rows[0].number >= 40:
            raise ValueError("row 40")
        return rows[0].number

    iterator = iter(make(corpus, transform=transform, ahead=2))
    assert [next(iterator) for _ in range(5)] == [0, 8, 16, 24, 32]
    with pytest.raises(ValueError, match="row 40"):
        next(iterator)
    assert threads == {"loader"}


def test_no_thread_is_left_behind(corpus: MemoryCorpus) -> None:
    take(make(corpus), 3)
    assert not any(thread.name == "loader" for thread in threading.enumerate())


class SparseCorpus:
    """10^9 tokens on a sparse file: 2 million documents of 500 tokens in sentences of 25."""

    num_documents, length = 2_000_000, 500
    num_tokens = num_documents * length

    def __init__(self, path: Path) -> None:
        self.ids = np.memmap(path, np.uint16, "w+", shape=(self.num_tokens,))
        self.asked = 0  # how often anything was asked for

    def document(self, i: int, start: int = 0, stop: int | None = None) -> Document:
        self.asked += 1
        stop = self.length if stop is None else min(stop, self.length)
        sentences = np.arange(-(-start // 25) * 25, stop, 25) - start
        ids = self.ids[i * self.length + start : i * self.length + stop]
        return Document(ids, sentences, np.ones(stop - start, bool))

    def gather(self, documents: np.ndarray, starts: np.ndarray, stops: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        pieces = [self.document(*piece).ids for piece in zip(documents, starts, stops, strict=True)]
        ids = np.concatenate(pieces, dtype=np.int64)
        return ids, np.ones(len(ids), bool)

    def document_length(self, i: int) -> int:
        self.asked += 1
        return self.length

    def document_start(self, i: int) -> int:
        self.asked += 1
        return i * self.length


@pytest.mark.parametrize("form", [SegmentPairs(), FullSentences(), ContiguousStreams()])
def test_resume_costs_the_same_at_any_step(tmp_path: Path, form: Format) -> None:
    """Step 10 and step 10 million of a run over 10^9 tokens; planning one block is what both cost."""
    sparse = SparseCorpus(tmp_path / "ids")

    def asked(state: dict[str, int]) -> int:
        before = sparse.asked
        rows = take(make(sparse, form, 128, state=state, block_tokens=1 << 18, batch_rows=64, ahead=1), 2)
        assert rows[0][0].number == state["rows"]
        return sparse.asked - before

    early = {"epoch": 0, "block": 0, "offset": 640, "rows": 640, "step": 10}
    late = {"epoch": 79, "block": 1234, "offset": 640, "rows": 640_000_000, "step": 10_000_000}
    if isinstance(form, ContiguousStreams):
        early, late = early | {"block": 1280, "offset": 0}, late | {"block": 12_800_000, "offset": 0}
    first, last = asked(early), asked(late)
    assert last < 3 * first and last < sparse.num_documents / 100
