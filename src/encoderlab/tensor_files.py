"""The header of a safetensors file: name, type, shape and place of every tensor.

A file is the length of the header (8 bytes, little-endian), the header (JSON, padded with spaces to a multiple
of 8 bytes), the tensors' bytes. The library ``safetensors`` can only write tensors that are all in memory; this module
writes a large file part by part, and maps it without a copy.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from typing import IO, NamedTuple

MAX_HEADER = 100_000_000  # bytes; the limit of the format


class TensorEntry(NamedTuple):
    """A tensor: its type in the format's notation (``F32``), its shape, and its bytes ``start:end``
    after the header.
    """

    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


class Header(NamedTuple):
    """The content of a file; its tensors' bytes begin at byte ``begin``."""

    tensors: dict[str, TensorEntry]
    metadata: dict[str, str]
    begin: int


def encode_header(
    tensors: Mapping[str, tuple[str, Sequence[int], int]], metadata: Mapping[str, str] | None = None
) -> bytes:
    """The bytes before the tensors: name -> (type, shape, number of bytes), in the order in which tensors will follow.

    Give the widest types first, so that all tensors are aligned.
    """
    entries: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    end = 0
    for name, (dtype, shape, size) in tensors.items():
        start, end = end, end + size
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def read_header(file: IO[bytes]) -> Header:
    """The header of an open file.

    Raises:
        ValueError: not the header of a safetensors file; the message is a clause such as ``16 bytes are too few``.
    """
    start = file.read(8)
    if len(start) < 8:
        raise ValueError(f"{len(start)} bytes are too few")
    (length,) = struct.unpack("<Q", start)
    if length > MAX_HEADER:
        raise ValueError("the header's length is impossible")
    text = file.read(length)
    if len(text) < length:
        raise ValueError("it ends inside the header")
    try:
        entries = json.loads(text)
        metadata = entries.pop("__metadata__", None) or {}
        tensors = {}
        for name, entry in entries.items():
            first, last = entry["data_offsets"]
            shape = tuple(entry["shape"])
            if not all(type(number) is int and number >= 0 for number in (first, last, *shape)) or first > last:
                raise ValueError(f"tensor {name!r} has an impossible shape or place")
            tensors[name] = TensorEntry(str(entry["dtype"]), shape, first, last)
        return Header(tensors, dict(metadata), 8 + length)
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"the header is not valid ({str(error)[:60]})") from None
