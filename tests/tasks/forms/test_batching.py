from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from encoderlab.errors import DataError
from encoderlab.tasks.forms.batching import Encoded, Item, ItemSource, _bins, _even_bins, pack, sorted_batches
from encoderlab.train.distributed import World


def item(number: int, *lengths: int) -> Item:
    sequences = tuple(
        Encoded(
            np.arange(100 * number, 100 * number + n, dtype=np.int32),
            np.ones(n, np.int8),
            {"target": number},
            {"place": np.arange(n, dtype=np.int32)},
        )
        for n in lengths
    )
    return Item(number, sequences)


def contents(batch) -> dict[tuple[int, int], list[int]]:
    """Token ids by item and option."""
    found = {}
    for row, slot in zip(*batch.sequences(), strict=True):
        labels = {name: int(batch.labels[name][row, slot]) for name in ("begin", "length", "item", "option")}
        part = slice(labels["begin"], labels["begin"] + labels["length"])
        assert (batch.doc[row, part] == slot).all() and (batch.segments[row, part] == 1).all()
        assert batch.labels["place"][row, part].tolist() == list(range(labels["length"]))
        found[labels["item"], labels["option"]] = batch.ids[row, part].tolist()
    return found


@given(
    st.lists(st.lists(st.integers(1, 20), min_size=1, max_size=4), min_size=1, max_size=12),
    st.sampled_from(["packed", "dynamic", "fixed"]),
    st.integers(1, 3),
)
def test_every_sequence_is_in_the_batch_once_and_parts_hold_whole_items(lengths, mode, parts):
    items = [item(i, *sizes) for i, sizes in enumerate(lengths)]
    batch = pack(items, pad=0, room=20, mode=mode, number=7, parts=parts)
    expected = {
        (i, j): list(range(100 * i, 100 * i + n)) for i, sizes in enumerate(lengths) for j, n in enumerate(sizes)
    }
    assert contents(batch) == expected
    assert batch.num_tokens == sum(map(sum, lengths)) == int((batch.doc >= 0).sum())
    longest = int((batch.doc >= 0).sum(1).max())
    assert batch.ids.shape[1] == (20 if mode == "fixed" else min(-(-longest // 8) * 8, 20))  # whole eights that fit
    pieces = [batch.slice(i, i + 1) for i in range(len(batch))]
    joined = [key for piece in pieces for key in contents(piece)]
    assert sorted(joined) == sorted(expected)
    for piece in pieces:  # an item is never in two parts
        assert (
            len({key[0] for key in contents(piece)} & {k[0] for p in pieces if p is not piece for k in contents(p)})
            == 0
        )
    assert len(batch) >= min(parts, len(items))
    assert len(set(batch.rows.tolist())) == len(batch.rows)


def test_packing_leaves_little_padding():
    rng = np.random.default_rng(0)
    items = [item(i, int(n)) for i, n in enumerate(rng.integers(5, 40, 32))]
    packed, dynamic, fixed = (pack(items, pad=0, room=128, mode=mode) for mode in ("packed", "dynamic", "fixed"))
    assert packed.ids.numel() < 1.2 * packed.num_tokens < dynamic.ids.numel() < fixed.ids.numel()


@given(st.lists(st.integers(1, 80), min_size=1, max_size=40), st.integers(8, 96))
def test_even_rows_lose_nothing_and_are_no_more_and_no_longer_than_best_fit_takes(lengths, room):
    even, best = _even_bins(lengths, room), _bins(lengths, room)
    assert sorted(i for row in even for i in row) == list(range(len(lengths)))
    assert len(even) <= len(best)
    sizes = [[sum(lengths[i] for i in row) for row in rows] for rows in (even, best)]
    assert all(size <= room or len(row) == 1 for size, row in zip(sizes[0], even, strict=True))
    assert max(sizes[0]) <= max(sizes[1]) + 7  # rows are padded to whole eights


def test_the_last_row_is_not_mostly_padding():
    batch = pack([item(i, 13) for i in range(32)], pad=0, room=256)  # 416 tokens: 2 x 208 rather than 2 x 256
    assert batch.ids.shape == (2, 208)


def source(items, *, size=1, rank=0, state=None, batch=4):
    world = World(rank, size, torch.device("cpu"))
    return ItemSource(items, batch=batch, room=32, pad=0, mode="packed", seed=3, world=world, state=state)


def test_source_repeats_epochs_in_new_order_and_resumes():
    items = [item(i, 5) for i in range(10)]
    first = source(items)
    batches = [next(first) for _ in range(6)]
    seen = [
        sorted(key[0] // 1 for key in {(ids[0] // 100, 0) for ids in contents(batch).values()}) for batch in batches
    ]
    assert [len(found) for found in seen] == [4, 4, 2, 4, 4, 2]
    assert sorted(sum(seen[:3], [])) == sorted(sum(seen[3:], [])) == list(range(10))
    assert seen[:3] != seen[3:]
    again = source(items)
    for _ in range(4):
        next(again)
    resumed = source(items, state=again.state())
    for expected in batches[4:]:
        assert torch.equal(next(resumed).ids, expected.ids)


def test_processes_share_a_batch():
    items = [item(i, 20) for i in range(5)]
    whole = next(source(items))
    parts = [next(source(items, size=2, rank=rank)) for rank in range(2)]
    assert torch.cat([part.ids for part in parts]).tolist() == whole.ids.tolist()
    assert torch.cat([part.rows for part in parts]).tolist() == whole.rows.tolist()
    lonely = [
        source(items, size=2, rank=rank, batch=4, state={"epoch": 0, "offset": 4, "seen": 4}) for rank in range(2)
    ]
    assert all(len(next(part)) == 1 for part in lonely)


def test_sorted_batches_cover_all_items_within_the_budget():
    items = [item(i, *([n] * (1 + i % 3))) for i, n in enumerate([3, 9, 4, 30, 8, 7])]
    seen = []
    for numbers, batch in sorted_batches(items, pad=0, room=90, tokens=40):
        seen += numbers
        assert batch.ids.numel() <= 64 or len(numbers) == 1
    assert sorted(seen) == list(range(6))


def test_no_items_are_refused():
    with pytest.raises(DataError, match="no examples to train on"):
        source([])
