"""Read protocol buffers, as SentencePiece and TensorFlow write them, field by field without a schema."""

from __future__ import annotations

from collections.abc import Iterator


def fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Field numbers and values of a message: integers of varint fields, raw bytes of the others.

    Raises:
        ValueError: the bytes are not a message; says at which byte.
    """
    position = 0
    while position < len(data):
        key, position = varint(data, position)
        number, wire = key >> 3, key & 7
        if wire == 0:
            value, position = varint(data, position)
            yield number, value
            continue
        if wire == 2:
            size, position = varint(data, position)
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
        else:
            raise ValueError(f"wire type {wire} at byte {position}")
        if number == 0 or position + size > len(data):
            raise ValueError(f"a field ends beyond the file at byte {position}")
        yield number, data[position : position + size]
        position += size


def varint(data: bytes, position: int) -> tuple[int, int]:
    """The base-128 integer at ``position``, and the position after it.

    Raises:
        ValueError: it does not end, or has more than 64 bits.
    """
    value = shift = 0
    while True:
        if position >= len(data) or shift > 63:
            raise ValueError(f"a broken number at byte {position}")
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
