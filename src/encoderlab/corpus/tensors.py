"""One-dimensional arrays in safetensors files, memory-mapped; and marks of one bit each, packed little end first."""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from encoderlab import mapped
from encoderlab.errors import DataError
from encoderlab.files import replace_file
from encoderlab.tensor_files import Header, encode_header, read_header

_TYPES = {"U64": np.uint64, "U32": np.uint32, "U16": np.uint16, "U8": np.uint8}
_NAMES = {np.dtype(kind): name for name, kind in _TYPES.items()}
_ONES = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).sum(1, dtype=np.uint8)  # bits set in a byte


class MappedTensors(dict[str, np.ndarray]):
    """Read-only views of a memory-mapped file by tensor name, from :func:`map_tensors`."""

    def __init__(self, path: Path, memory: mmap.mmap, header: Header) -> None:
        self._path, self._memory, self._size = path, memory, len(memory)
        mapped.watch(path, len(memory))
        for name, (dtype, _, start, end) in header.tensors.items():
            kind = np.dtype(_TYPES[dtype])
            self[name] = np.frombuffer(memory, kind, (end - start) // kind.itemsize, header.begin + start)

    def check_size(self) -> None:
        """Refuse a file that was truncated since it was mapped, because reading on would end the process by SIGBUS.
        Costs a system call, about 0.3 microseconds.

        Raises:
            DataError: it was truncated.
        """
        if (now := self._memory.size()) < self._size:
            raise mapped.truncated(self._path, now, self._size)


def map_tensors(path: Path, size: int | None = None) -> MappedTensors:
    """The tensors of a safetensors file; ``size`` is its required size, None for any.

    Raises:
        DataError: the file is missing, has another size, or its header is broken.
    """
    try:
        with open(path, "rb") as file:
            actual = os.fstat(file.fileno()).st_size
            if size is not None and actual != size:
                raise DataError(f"{path}: {actual:,} bytes, expected {size:,}: truncated; build it again")
            header = read_header(file)
            return MappedTensors(path, mmap.mmap(file.fileno(), actual, access=mmap.ACCESS_READ), header)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); build it again") from None
    except (ValueError, KeyError) as error:
        raise DataError(f"{path}: broken header ({str(error)[:80]}); build it again") from None


def tensor_header(shapes: Mapping[str, tuple[np.dtype, int]], metadata: Mapping[str, str] | None = None) -> bytes:
    """The header of a safetensors file of 1-D tensors in this order; widest types first keeps them aligned."""
    return encode_header(
        {name: (_NAMES[kind], (length,), kind.itemsize * length) for name, (kind, length) in shapes.items()}, metadata
    )


def write_tensors(path: Path, tensors: Mapping[str, np.ndarray]) -> None:
    """Write one-dimensional tensors as a safetensors file, atomically."""
    with replace_file(path) as file:
        for part in encode_tensors(tensors):
            file.write(part)


def encode_tensors(
    tensors: Mapping[str, np.ndarray], metadata: Mapping[str, str] | None = None
) -> list[bytes | memoryview]:
    """The bytes of a safetensors file of one-dimensional tensors, in parts; the first is the header."""
    ordered = dict(sorted(tensors.items(), key=lambda item: -item[1].dtype.itemsize))
    header = tensor_header({name: (tensor.dtype, len(tensor)) for name, tensor in ordered.items()}, metadata)
    return [header, *(np.ascontiguousarray(tensor).data.cast("B") for tensor in ordered.values() if len(tensor))]


def read_bits(packed: np.ndarray, start: int, end: int) -> np.ndarray:
    """Bits ``start:end`` of a packed array, as uint8 zeros and ones."""
    first = start >> 3
    return np.unpackbits(packed[first : (end + 7) >> 3], bitorder="little")[start - 8 * first : end - 8 * first]


def count_bits(packed: np.ndarray) -> int:
    """Number of set bits in a packed array."""
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
