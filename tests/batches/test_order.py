from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from encoderlab.batches.order import KeyedPermutation


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 3000), st.integers(0, 2**60))
def test_every_item_once(n: int, seed: int) -> None:
    order = KeyedPermutation(n, seed)(np.arange(n))
    assert np.array_equal(np.sort(order), np.arange(n))


def test_keys_name_the_order() -> None:
    first, again, other = (KeyedPermutation(1000, 7, "documents", epoch)(np.arange(1000)) for epoch in (0, 0, 1))
    assert np.array_equal(first, again)
    assert (first == other).sum() < 12
    assert KeyedPermutation(1000, 7, "documents", 0)[17] == first[17]


def test_neighbours_are_unrelated() -> None:
    n = 100_003
    order = KeyedPermutation(n, 3)(np.arange(n)).astype(float)
    assert abs(np.corrcoef(order[:-1], order[1:])[0, 1]) < 0.02
    assert abs(np.corrcoef(np.arange(n), order)[0, 1]) < 0.02
    # A block of places draws from everywhere: counts in 16 equal parts of the range, chi-squared with 15 degrees of
    # freedom.
    counts = np.bincount((order[:16_000] * 16 // n).astype(int), minlength=16)
    assert ((counts - 1000) ** 2 / 1000).sum() < 40


@pytest.mark.parametrize("place", [0, 10**11])
def test_any_place_at_once(place: int) -> None:
    items = KeyedPermutation(10**12, 5)(np.arange(place, place + 1000))  # what grows with 10^12 would not end
    assert len(np.unique(items)) == 1000 and items.min() >= 0 and items.max() < 10**12
