"""Parts that lie end to end, against loops."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from encoderlab.ranges import aranges, offsets


@given(
    st.lists(st.tuples(st.integers(0, 99), st.integers(0, 9)), max_size=20),
    st.sampled_from([np.int64, np.uint32, np.uint8]),
)
def test_parts_end_to_end(parts: list[tuple[int, int]], kind: type) -> None:
    begins, sizes = np.array([begin for begin, _ in parts], np.int64), np.array([size for _, size in parts], kind)
    assert offsets(sizes).tolist() == [int(sizes[:i].sum()) for i in range(len(parts) + 1)]
    assert aranges(begins, sizes).tolist() == [begin + i for begin, size in parts for i in range(size)]
    assert aranges(0, sizes).tolist() == [i for _, size in parts for i in range(size)]
    assert offsets(sizes).dtype == aranges(begins, sizes).dtype == aranges(0, sizes).dtype == np.int64


@given(st.lists(st.booleans(), max_size=20))
def test_flags_are_sizes_of_one(flags: list[bool]) -> None:
    assert offsets(np.array(flags, bool)).tolist() == [sum(flags[:i]) for i in range(len(flags) + 1)]
