"""One-dimensional arrays in safetensors files, memory-mapped; and marks of one bit each, packed little end first."""

from __future__ import annotations

import json
import mmap
import os
import struct
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from encoderlab.errors import DataError
from encoderlab.files import replace_file

_TYPES = {"U64": np.uint64, "U32": np.uint32, "U16": np.uint16, "U8": np.uint8}
_NAMES = {np.dtype(kind): name for name, kind in _TYPES.items()}
_ONES = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).sum(1, dtype=np.uint8)  # bits set in a byte


def map_tensors(path: Path, size: int | None = None) -> dict[str, np.ndarray]:
    """The tensors of a safetensors file as read-only views of the memory-mapped file."""
    try:
        with open(path, "rb") as file:
            actual = os.fstat(file.fileno()).st_size
            if size is not None and actual != size:
                raise DataError(f"{path}: {actual:,} bytes, expected {size:,}: truncated; build it again")
            if actual < 8:
                raise DataError(f"{path}: {actual} bytes, too short for a shard; build it again")
            memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); build it again") from None
    try:
        (length,) = struct.unpack_from("<Q", memory, 0)
        header = json.loads(memory[8 : 8 + length])
        header.pop("__metadata__", None)
        tensors = {}
        for name, entry in header.items():
            (begin, end), kind = entry["data_offsets"], np.dtype(_TYPES[entry["dtype"]])
            if end > actual - 8 - length:
                raise ValueError(f"tensor {name!r} ends after the file")
            tensors[name] = np.frombuffer(memory, kind, (end - begin) // kind.itemsize, 8 + length + begin)
        return tensors
    except (ValueError, KeyError, TypeError, AttributeError, struct.error) as error:
        raise DataError(f"{path}: broken header ({str(error)[:80]}); build it again") from None


def tensor_header(shapes: Mapping[str, tuple[np.dtype, int]]) -> bytes:
    """The header of a safetensors file of 1-D tensors in this order; widest types first keeps them aligned."""
    entries, offset = {}, 0
    for name, (kind, length) in shapes.items():
        end = offset + kind.itemsize * length
        entries[name] = {"dtype": _NAMES[kind], "shape": [length], "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def write_tensors(path: Path, tensors: Mapping[str, np.ndarray]) -> None:
    """Write one-dimensional tensors as a safetensors file, atomically."""
    ordered = dict(sorted(tensors.items(), key=lambda item: -item[1].dtype.itemsize))
    with replace_file(path) as file:
        file.write(tensor_header({name: (tensor.dtype, len(tensor)) for name, tensor in ordered.items()}))
        for tensor in ordered.values():
            file.write(np.ascontiguousarray(tensor).data)


def read_bits(packed: np.ndarray, start: int, end: int) -> np.ndarray:
    """Bits ``start:end`` of a packed array, as uint8 zeros and ones."""
    first = start >> 3
    return np.unpackbits(packed[first : (end + 7) >> 3], bitorder="little")[start - 8 * first : end - 8 * first]


def count_bits(packed: np.ndarray) -> int:
    """How many bits of a packed array are set."""
    return int(_ONES[packed].sum(dtype=np.int64))


class BitWriter:
    """Appends bits to a packed array that need not end on a byte."""

    def __init__(self, num_bits: int) -> None:
        self.packed = np.zeros((num_bits + 7) // 8, np.uint8)
        self._bit = 0

    def add(self, bits: np.ndarray) -> None:
        if not len(bits):
            return
        shift = self._bit & 7
        padded = np.concatenate([np.zeros(shift, bool), bits]) if shift else bits
        packed = np.packbits(padded, bitorder="little")
        first = self._bit >> 3
        self.packed[first : first + len(packed)] |= packed
        self._bit += len(bits)
