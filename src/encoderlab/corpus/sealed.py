"""Intermediate results of an interrupted build: files of tensors and folders with a checksum.

Each also names its *origin*, a digest of everything that determines it. One that is damaged, or has another origin, is
named and made again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from encoderlab.corpus.tensors import encode_tensors
from encoderlab.files import replace_file, sha256
from encoderlab.sealed import CHECKSUM, Damaged, read_record, write_record

ORIGIN = "origin"
SEAL = "seal.json"  # in a sealed folder
_UNKNOWN = "0" * 64  # replaces the checksum while it is computed


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
