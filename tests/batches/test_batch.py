from __future__ import annotations

import numpy as np
import pytest
import torch

from encoderlab.batches.batch import IGNORE, Batch, collate, stack
from encoderlab.batches.pack import SingleDocuments
from encoderlab.batches.rows import Row
from encoderlab.seeds import generator
from tests.batches.memory_corpus import BERT, PAD, numbered_corpus


@pytest.fixture
def rows() -> list[Row]:
    corpus = numbered_corpus([[3], [7], [5]])
    plan = SingleDocuments().plan(corpus, np.arange(3), generator(0), BERT, 16)
    return plan.rows(np.arange(3), corpus, BERT, (0, 0), 10)


def test_collate_pads_to_the_right(rows: list[Row]) -> None:
    batch = collate(rows, pad=PAD)
    assert batch.ids.shape == (3, 9) and batch.ids.dtype == torch.int64
    assert batch.doc.tolist()[0] == [0] * 5 + [-1] * 4 and batch.doc.dtype == torch.int32
    assert batch.ids[0, 5:].tolist() == [PAD] * 4
    assert batch.num_tokens == 5 + 9 + 7
    assert batch.rows is not None and batch.rows.tolist() == [10, 11, 12]


def test_stack_pads_to_the_left_and_to_a_length(rows: list[Row]) -> None:
    ids = stack([row.ids for row in rows], PAD, length=16, side="left")
    assert ids.shape == (3, 16)
    assert ids[0].tolist() == [PAD] * 11 + rows[0].ids.tolist()


def test_labels_and_shown_ids(rows: list[Row]) -> None:
    labelled = [
        Row(row.ids, row.doc, row.segments, row.word_starts, row.special, {"next_sentence": r % 2}, row.key)
        for r, row in enumerate(rows)
    ]
    batch = collate(labelled, pad=PAD, ids=[np.full(len(row), 99) for row in rows])
    assert batch.labels["next_sentence"].tolist() == [0, 1, 0]
    assert (batch.ids[batch.doc >= 0] == 99).all()


def test_slices_are_views_of_everything(rows: list[Row]) -> None:
    batch = collate(rows, pad=PAD)
    batch.labels["targets"] = stack([np.array([1]), np.array([2, 3]), np.array([4])], IGNORE)
    part = batch.slice(1, 3)
    assert len(part) == 2 and part.labels["targets"].tolist() == [[2, 3], [4, IGNORE]]
    assert part.rows is not None and part.rows.tolist() == [11, 12]
    assert part.ids.untyped_storage().data_ptr() == batch.ids.untyped_storage().data_ptr()


def test_device_keeps_what_is_missing_missing() -> None:
    batch = Batch(torch.zeros(2, 3, dtype=torch.int64), torch.zeros(2, 3, dtype=torch.int32)).to("cpu")
    assert batch.segments is None and batch.rows is None and batch.labels == {}


def test_what_is_asked_of_a_moved_batch_is_asked_on_the_host(rows: list[Row]) -> None:
    """Indices of marks, without a value of the device that the batch lies on, also after it was cut."""
    batch = collate(rows, pad=PAD)
    batch.labels["targets"] = stack([np.array([1]), np.array([2, 3]), np.array([4])], IGNORE)
    want = [(batch.slice(*part).labels["targets"] >= 0).nonzero(as_tuple=True) for part in ((0, 3), (1, 3))]
    moved = batch.to("meta")
    for part, indices in zip((moved, moved.slice(1, 3)), want, strict=True):
        found = part.find(lambda known: known.labels["targets"] >= 0)
        assert [index.shape for index in found] == [index.shape for index in indices]
        assert all(index.is_meta and index.is_contiguous() for index in found)
        assert all(map(torch.equal, part.on_host.find(lambda known: known.labels["targets"] >= 0), indices))
    assert batch.on_host is batch and moved.on_host is batch and moved.to("meta").on_host is batch
