"""Read TensorFlow V2 checkpoints (``model.ckpt.index`` and ``model.ckpt.data-00000-of-00001``) with NumPy.

The index is a sorted string table of the LevelDB kind: data blocks of prefix-compressed keys, an index block that lists
them, a footer. Its values are protocol buffers, of which a checkpoint uses two: ``BundleHeaderProto`` under the empty
key and ``BundleEntryProto`` (type, shape, shard, offset, size, checksum) under each tensor's name. The data files are
the raw tensors. Format: ``tensorflow/core/util/tensor_bundle`` and ``tensorflow/core/lib/io/format.cc`` of the
TensorFlow sources.

Every block and every tensor that is read is checked against its CRC-32C if ``google-crc32c`` is installed (the extra
``tf``); otherwise only sizes are checked.
"""

from __future__ import annotations

import functools
import logging
import math
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from encoderlab.errors import DataError, nearest
from encoderlab.protobuf import fields, varint

log = logging.getLogger(__name__)

FOOTER_BYTES = 48
MAGIC = 0xDB4775248B80FB57
MASK_DELTA = 0xA282EAD8
BFLOAT16 = 14
DTYPES: dict[int, np.dtype] = {
    1: np.dtype("<f4"),
    2: np.dtype("<f8"),
    3: np.dtype("<i4"),
    4: np.dtype("u1"),
    5: np.dtype("<i2"),
    6: np.dtype("i1"),
    9: np.dtype("<i8"),
    10: np.dtype("?"),
    BFLOAT16: np.dtype("<u2"),
    17: np.dtype("<u2"),
    19: np.dtype("<f2"),
    22: np.dtype("<u4"),
    23: np.dtype("<u8"),
}


@dataclass(frozen=True, kw_only=True)
class BundleEntry:
    """The place of one tensor: ``size`` bytes at ``offset`` of data file ``shard``."""

    dtype: int
    shape: tuple[int, ...]
    shard: int
    offset: int
    size: int
    crc: int


class Checkpoint:
    """A checkpoint, given by its prefix (``.../model.ckpt``), its index file, or a folder with one checkpoint.

    Opening reads only the index; :meth:`read` reads one tensor.

    Raises:
        DataError: a missing file, or a truncated or damaged index.
    """

    def __init__(self, path: Path) -> None:
        self.prefix = find_prefix(path)
        self.index_path = self.prefix.with_name(self.prefix.name + ".index")
        data = _read_index(self.index_path)
        try:
            table = _table(data)
            if b"" not in table:
                raise self._damaged("has no header entry")
            values = _fields(table.pop(b""))
            if values.get(2, [0])[0] != 0:
                raise DataError(f"{self.index_path}: written on a big-endian machine, which is not supported")
            self.num_shards = int(values.get(1, [1])[0])
            self.entries = {key.decode(): self._entry(key.decode(), value) for key, value in table.items()}
        except (IndexError, TypeError, ValueError) as error:  # of bytes that are something else than expected there
            raise self._damaged(f"cannot be read ({error})") from None

    def __contains__(self, name: str) -> bool:
        return name in self.entries

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def read(self, name: str) -> np.ndarray:
        """The tensor ``name``, owned by the caller; bfloat16 comes as float32 (exact).

        Raises:
            DataError: unknown name, unsupported type, or bytes that are missing or do not match their checksum.
        """
        if name not in self.entries:
            raise DataError(f"{self.index_path}: no tensor {name!r}{nearest(name, self.entries)}")
        entry = self.entries[name]
        if entry.dtype not in DTYPES:
            raise DataError(f"{self.index_path}: tensor {name!r} has the unsupported type number {entry.dtype}")
        dtype = DTYPES[entry.dtype]
        expected = math.prod(entry.shape) * dtype.itemsize
        if entry.size != expected:
            raise self._damaged(f"gives {name!r} {entry.size} bytes, but its shape {entry.shape} needs {expected}")
        path = self.prefix.with_name(f"{self.prefix.name}.data-{entry.shard:05d}-of-{self.num_shards:05d}")
        try:
            with open(path, "rb") as file:
                if file.seek(0, os.SEEK_END) < entry.offset + entry.size:
                    raise DataError(
                        f"{path}: ends inside tensor {name!r} (needs bytes up to {entry.offset + entry.size}); copy it "
                        "again"
                    )
                file.seek(entry.offset)
                data = file.read(entry.size)
        except OSError as error:
            raise DataError(
                f"{path}: cannot be read ({error.strerror}); it belongs to {self.index_path.name}"
            ) from None
        if _differs(data, entry.crc):
            raise DataError(f"{path}: tensor {name!r} does not match its checksum; the file is damaged, copy it again")
        array = np.frombuffer(data, dtype=dtype).reshape(entry.shape)
        if entry.dtype == BFLOAT16:
            return (array.astype(np.uint32) << 16).view(np.float32)
        return array.copy()

    def _entry(self, name: str, value: bytes) -> BundleEntry:
        values = _fields(value)
        if 7 in values:
            raise DataError(
                f"{self.index_path}: tensor {name!r} is stored in slices (a partitioned variable), "
                "which is not supported; save the checkpoint again without a partitioner"
            )
        dims = [dim for message in values.get(2, []) for dim in _fields(message).get(2, [])]
        return BundleEntry(
            dtype=int(values.get(1, [0])[0]),
            shape=tuple(int(_fields(dim).get(1, [0])[0]) for dim in dims),
            shard=int(values.get(3, [0])[0]),
            offset=int(values.get(4, [0])[0]),
            size=int(values.get(5, [0])[0]),
            crc=int.from_bytes(values.get(6, [b""])[0], "little"),
        )

    def _damaged(self, what: str) -> DataError:
        return DataError(f"{self.index_path}: {what}; the file is damaged, copy it again")


def find_prefix(path: Path) -> Path:
    """The checkpoint prefix for ``path``: the prefix itself, a file of the checkpoint, or a folder with one checkpoint.

    In a folder with several, TensorFlow's text file ``checkpoint`` names the latest.
    """
    path = Path(path)
    if path.is_dir():
        indexes = sorted(path.glob("*.index"))
        latest = path / "checkpoint"
        if len(indexes) > 1 and latest.is_file():
            match = re.search(r'^model_checkpoint_path: "(.+)"', latest.read_text(encoding="utf-8"), re.MULTILINE)
            indexes = [file for file in indexes if match and file.name == Path(match[1]).name + ".index"] or indexes
        if len(indexes) == 1:
            return indexes[0].with_suffix("")
        names = ", ".join(file.name for file in indexes[:4])
        raise DataError(
            f"{path}: {'has several checkpoints (' + names + '); name one' if indexes else 'has no *.index file'}"
        )
    prefix = path.with_name(re.sub(r"\.(index|meta|data-\d{5}-of-\d{5})$", "", path.name))
    if not prefix.with_name(prefix.name + ".index").is_file():
        raise DataError(
            f"{prefix}.index: no such file; give a TensorFlow checkpoint such as .../model.ckpt or its folder"
        )
    return prefix


# The index table ------------------------------------------------------------------------------------------------------


def _read_index(path: Path) -> bytes:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); check its permissions") from None
    if len(data) < FOOTER_BYTES or int.from_bytes(data[-8:], "little") != MAGIC:
        raise DataError(f"{path}: not a TensorFlow checkpoint index, or a truncated one; copy it again")
    return data


def _table(data: bytes) -> dict[bytes, bytes]:
    """All keys and values of a sorted string table, in key order."""
    footer = data[-FOOTER_BYTES:-8]
    _, position = _block_handle(footer, 0)  # the meta index: always empty in a checkpoint
    index, _ = _block_handle(footer, position)
    table: dict[bytes, bytes] = {}
    for _, value in _block(data, *index):
        block, _ = _block_handle(value, 0)
        table.update(_block(data, *block))
    return table


def _block(data: bytes, offset: int, size: int) -> Iterator[tuple[bytes, bytes]]:
    """The entries of one block; each key is stored as the length shared with the key before it and the rest."""
    block, kind, stored = data[offset : offset + size], data[offset + size], data[offset + size + 1 : offset + size + 5]
    if _differs(data[offset : offset + size + 1], int.from_bytes(stored, "little")):
        raise ValueError(f"block at byte {offset} does not match its checksum")
    if kind != 0:
        raise ValueError(
            f"block at byte {offset} is compressed (kind {kind}), which TensorFlow does not do for checkpoints"
        )
    num_restarts = int.from_bytes(block[-4:], "little")
    end = size - 4 * (num_restarts + 1)
    key, position = b"", 0
    while position < end:
        shared, position = varint(block, position)
        rest, position = varint(block, position)
        length, position = varint(block, position)
        key = key[:shared] + block[position : position + rest]
        position += rest
        yield key, block[position : position + length]
        position += length


def _block_handle(data: bytes, position: int) -> tuple[tuple[int, int], int]:
    offset, position = varint(data, position)
    size, position = varint(data, position)
    return (offset, size), position


def _fields(message: bytes) -> dict[int, list]:
    """The values of every field of a message by its number. Integers that may be negative never occur here."""
    values: dict[int, list] = {}
    for number, value in fields(message):
        values.setdefault(number, []).append(value)
    return values


def _differs(data: bytes, stored: int) -> bool:
    """Whether ``data`` does not match its CRC-32C; False if that cannot be checked, see :func:`_checksum`.

    LevelDB and TensorFlow store a checksum rotated and shifted, because the data may itself contain checksums.
    """
    checksum = _checksum()
    if checksum is None:
        return False
    crc = checksum(data)
    return (((crc >> 15) | (crc << 17)) + MASK_DELTA) & 0xFFFFFFFF != stored


@functools.cache
def _checksum() -> Callable[[bytes], int] | None:
    """CRC-32C of the package ``google-crc32c``; without it None, with one warning."""
    try:
        import google_crc32c
    except ImportError:
        log.info(
            "google-crc32c is not installed: sizes of TensorFlow checkpoints are checked, but not checksums; "
            "pip install 'encoderlab[tf]'"
        )
        return None
    return google_crc32c.value  # type: ignore[no-any-return]
