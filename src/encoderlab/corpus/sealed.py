"""Files with a checksum of themselves: the manifest, and the intermediate results of an interrupted build.

An intermediate result also names its *origin*, a digest of everything that determines it. One that is damaged, or has
another origin, is named and made again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from encoderlab.corpus.tensors import encode_tensors
from encoderlab.errors import DataError
from encoderlab.files import finite, replace_file, sha256, write_json

CHECKSUM, ORIGIN = "checksum", "origin"
SEAL = "seal.json"  # in a sealed folder
_UNKNOWN = "0" * 64  # replaces the checksum while it is computed


class Damaged(DataError):
    """A file that has changed since it was written, or has another origin."""

    def __init__(self, path: Path, problem: str) -> None:
        super().__init__(f"{path}: {problem}")
        self.path = path


def digest(value: Any) -> str:
    """SHA-256 of plain data, independent of white space and of the order of keys."""
    return hashlib.sha256(json.dumps(finite(value), sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def write_record(path: Path, record: Mapping[str, Any]) -> None:
    """Write plain data as JSON, with its checksum."""
    write_json(path, {**record, CHECKSUM: digest(record)})


def read_record(path: Path) -> dict[str, Any]:
    """The data that :func:`write_record` wrote, without the checksum.

    Raises:
        FileNotFoundError: there is no such file.
        Damaged: it has changed.
    """
    try:
        record = json.loads(path.read_bytes())
        checksum = record.pop(CHECKSUM)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise Damaged(path, f"cannot be read ({error.strerror})") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise Damaged(path, "damaged") from None
    if checksum != digest(record):
        raise Damaged(path, "damaged (its checksum differs)")
    return record


def write_tensors(path: Path, tensors: Mapping[str, np.ndarray], origin: str) -> None:
    """Write one-dimensional tensors as a safetensors file with its checksum and origin in the header."""
    first, *rest = encode_tensors(tensors, {CHECKSUM: _UNKNOWN, ORIGIN: origin})
    checksum = hashlib.sha256(first)
    for part in rest:
        checksum.update(part)
    with replace_file(path) as file:
        file.write(bytes(first).replace(_UNKNOWN.encode(), checksum.hexdigest().encode(), 1))
        for part in rest:
            file.write(part)


def check_tensors(path: Path, origin: str) -> None:
    """Read a file of :func:`write_tensors` once and compare its checksum and its origin.

    Raises:
        Damaged: it differs, or cannot be read.
    """
    empty = bytes(encode_tensors({}, {CHECKSUM: _UNKNOWN, ORIGIN: origin})[0])
    prefix = empty[8:].rstrip(b" }")  # the beginning of every header with this origin, after its length
    start = prefix.index(_UNKNOWN.encode())
    end = start + len(_UNKNOWN)
    try:
        with open(path, "rb") as file:
            head = file.read(8 + len(prefix))
            stated = head[8 + start : 8 + end]
            if head[8:] != prefix.replace(_UNKNOWN.encode(), stated):
                raise Damaged(path, "damaged, or of another origin")
            checksum = hashlib.sha256(head[: 8 + start] + _UNKNOWN.encode() + head[8 + end :])
            while data := file.read(1 << 20):
                checksum.update(data)
    except OSError as error:
        raise Damaged(path, f"cannot be read ({error.strerror})") from None
    if checksum.hexdigest().encode() != stated:
        raise Damaged(path, "damaged (its checksum differs)")


def seal_folder(folder: Path, origin: str) -> None:
    """Record the hashes of a folder's files in :data:`SEAL`."""
    write_record(folder / SEAL, {ORIGIN: origin, "files": {path.name: sha256(path) for path in folder.iterdir()}})


def check_folder(folder: Path, origin: str) -> None:
    """Compare a folder of :func:`seal_folder` with its record.

    Raises:
        Damaged: a file is missing, differs, or was added.
    """
    try:
        record = read_record(folder / SEAL)
    except FileNotFoundError:
        raise Damaged(folder / SEAL, "missing") from None
    if record[ORIGIN] != origin:
        raise Damaged(folder, "of another origin")
    names = {path.name for path in folder.iterdir()} - {SEAL}
    for name in sorted({*names, *record["files"]}):
        if name not in names or name not in record["files"]:
            raise Damaged(folder / name, f"{'missing' if name not in names else 'does not belong there'}")
        if sha256(folder / name) != record["files"][name]:
            raise Damaged(folder / name, "damaged (its checksum differs)")
