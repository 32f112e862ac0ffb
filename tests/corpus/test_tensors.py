"""Arrays of bits, whole and in parts."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from encoderlab.corpus.tensors import BitWriter, count_bits, read_bits


@given(st.lists(st.booleans(), max_size=40), st.data())
def test_bits(bits, data):
    packed = np.packbits(np.array(bits, bool), bitorder="little")
    start = data.draw(st.integers(0, len(bits)))
    end = data.draw(st.integers(start, len(bits)))
    np.testing.assert_array_equal(read_bits(packed, start, end), bits[start:end])
    assert count_bits(packed) == sum(bits)


@given(st.lists(st.lists(st.booleans(), max_size=20), max_size=8))
def test_bits_appended_in_parts(parts):
    together = np.array([bit for part in parts for bit in part], bool)
    writer = BitWriter(len(together))
    for part in parts:
        writer.add(np.array(part, bool))
    np.testing.assert_array_equal(writer.packed, np.packbits(together, bitorder="little"))
