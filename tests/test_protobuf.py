"""Messages are read back as they were written; whatever else is an error, never a loop or another exception."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from encoderlab.protobuf import fields, varint


def written(number: int) -> bytes:
    """``number`` as a base-128 integer."""
    found = bytearray()
    while number >= 128:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes([*found, number])


VALUES = st.one_of(st.integers(0, 2**64 - 1), st.binary(max_size=300))


@given(st.lists(st.tuples(st.integers(1, 2**20), VALUES)))
def test_fields_come_back_in_order(message):
    data = b""
    for number, value in message:
        if isinstance(value, int):
            data += written(number << 3) + written(value)
        else:
            data += written(number << 3 | 2) + written(len(value)) + value
    assert list(fields(data)) == message


def test_numbers_of_fixed_width_are_bytes():
    data = written(6 << 3 | 5) + b"abcd" + written(7 << 3 | 1) + b"abcdefgh"
    assert list(fields(data)) == [(6, b"abcd"), (7, b"abcdefgh")]
    with pytest.raises(ValueError, match="ends beyond the file"):
        list(fields(data[:-1]))


@given(st.binary(max_size=40))
def test_other_bytes_are_refused_or_read(data):
    try:
        list(fields(data))
    except ValueError as error:
        assert "at byte" in str(error)


@pytest.mark.parametrize("data", [b"", b"\x80", b"\xff" * 12])
def test_integers_that_do_not_end(data):
    with pytest.raises(ValueError, match="a broken number at byte"):
        varint(data, 0)
