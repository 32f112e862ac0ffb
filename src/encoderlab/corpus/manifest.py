"""The manifest of a corpus: what makes a folder a corpus, with a hash of every file.

It holds the settings and sources of the corpus, counts of what was read and dropped, and for each split its shards.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from encoderlab.corpus.workers import cores
from encoderlab.errors import DataError
from encoderlab.files import replace_file, write_json

FORMAT, VERSION = "encoderlab-corpus", 1
MANIFEST = "manifest.json"
COUNTS = "counts.npy"
TOKENIZER = "tokenizer"
SPLITS = ("train", "validation")
NUMBERS = ("documents", "sentences", "words", "tokens", "bytes")  # what is counted of a shard and of a split

# Shapes, as _misfit compares them with what is there.
_COUNTED = dict.fromkeys(NUMBERS, int)
_FILE = {"file": str, "sha256": str}
_SPLIT = {**_COUNTED, "shards": [{**_COUNTED, **_FILE, "size": int}]}


def split_record(shards: list[dict[str, Any]]) -> dict[str, Any]:
    """What the manifest says of one split."""
    return {name: sum(shard[name] for shard in shards) for name in NUMBERS} | {"shards": shards}


def write_manifest(folder: Path, *, counts: np.ndarray, **fields: Any) -> None:
    """Write ``counts`` and then the manifest, which makes the folder a corpus."""
    with replace_file(folder / COUNTS) as file:
        np.save(file, counts.astype(np.int64), allow_pickle=False)
    record = {"file": COUNTS, "sha256": file_hash(folder / COUNTS)}
    manifest = {"format": FORMAT, "version": VERSION, **fields, "counts": record}
    write_json(folder / MANIFEST, manifest)


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a corpus folder.

    Raises:
        DataError: it is missing, unfinished, broken, or of another version.
    """
    path = folder / MANIFEST
    try:
        manifest = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise DataError(f"{folder}: no corpus here (no {MANIFEST}); make one with: encoderlab corpus build") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise DataError(f"{path}: not valid JSON ({error}); build the corpus again") from None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise DataError(f"{path}: not the manifest of a corpus; make one with: encoderlab corpus build")
    if manifest.get("version") != VERSION:
        raise DataError(f"{path}: format version {manifest.get('version')}, expected {VERSION}; build the corpus again")
    splits = manifest.get("splits")
    shape: dict[str, Any] = {
        "vocab_size": int,
        "counts": _FILE,
        "splits": dict.fromkeys(splits if isinstance(splits, dict) else (), _SPLIT),
    }
    if "settings" in manifest:  # it was built of text
        shape |= {"tokenizer": {"hash": str, "files": [_FILE]}, "sources": [{"name": str, "sha256": str}]}
    if problem := _misfit(manifest, shape, "the manifest"):
        raise DataError(f"{path}: damaged: {problem}; build the corpus again")
    return manifest


def _misfit(value: Any, shape: Any, name: str) -> str | None:
    """The first place where ``value`` does not have ``shape``, as text for an error; None if it has.

    A shape is a type, a list of one shape for all elements, or a dict of the shapes of entries that must be there.
    """
    if isinstance(shape, dict):
        if not isinstance(value, dict):
            return f"{name} {str(value)[:40]!r}, expected an object"
        return next(filter(None, (_misfit(value.get(key), inner, key) for key, inner in shape.items())), None)
    if isinstance(shape, list):
        if not isinstance(value, list):
            return f"{name} {str(value)[:40]!r}, expected a list"
        return next(filter(None, (_misfit(item, shape[0], name) for item in value)), None)
    if type(value) is not shape or (shape is int and not 0 <= value < 2**63):
        return f"{name} {str(value)[:40]!r}, expected {'a count' if shape is int else 'text'}"
    return None


def verify(folder: str | os.PathLike) -> None:
    """Read every file of a corpus, as many at once as there are cores, and compare it with its recorded hash: about a
    second per GB on one core.

    Raises:
        DataError: names the first file that is missing or differs.
    """
    folder = Path(folder)
    manifest = read_manifest(folder)
    files = [manifest["counts"], *(manifest.get("tokenizer") or {}).get("files", [])]
    files += [shard for split in manifest["splits"].values() for shard in split["shards"]]
    with ThreadPoolExecutor(cores()) as pool:
        for _ in pool.map(lambda record: _verify_file(folder, record), files):
            pass


def _verify_file(folder: Path, record: Mapping[str, Any]) -> None:
    path = folder / record["file"]
    try:
        actual = file_hash(path)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); build the corpus again") from None
    if actual != record["sha256"]:
        raise DataError(
            f"{path}: sha256 {actual[:12]}..., expected {record['sha256'][:12]}...: changed or damaged; "
            f"delete {folder} and build the corpus again"
        )


def file_hash(path: Path) -> str:
    """sha256 of a file, as sha256sum prints it."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
