"""The manifest of a corpus, which makes a folder a corpus: a hash of every file and a checksum of itself.

It has the settings and sources of the corpus, counts of read and dropped items, and the shards of each split.
"""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, StrictInt, StrictStr

from encoderlab.config import from_dict, to_dict
from encoderlab.errors import ConfigError, DataError
from encoderlab.execution.workers import cores
from encoderlab.files import replace_file, sha256
from encoderlab.sealed import CHECKSUM, RECORD, digest, write_record
from encoderlab.storage.cache import local, supply

MANIFEST = "manifest.json"
COUNTS = "counts.npy"
TOKENIZER = "tokenizer"
SPLITS = ("train", "validation")

Count = Annotated[StrictInt, Field(ge=0, lt=2**63)]


@dataclass(frozen=True, kw_only=True)
class FileRecord:
    """A file of the corpus, by its path below the corpus's folder."""

    file: StrictStr
    sha256: StrictStr


@dataclass(frozen=True, kw_only=True)
class Counted:
    """Counts of a shard or a split; bytes are those of the text in UTF-8."""

    documents: Count
    sentences: Count
    words: Count
    tokens: Count
    bytes: Count


NUMBERS = tuple(Counted.__dataclass_fields__)


@dataclass(frozen=True, kw_only=True)
class ShardRecord(Counted, FileRecord):
    """A shard; ``size`` in bytes."""

    size: Count


@dataclass(frozen=True, kw_only=True)
class SplitRecord(Counted):
    """A split: its shards, and the sums of what they count."""

    shards: tuple[ShardRecord, ...]


@dataclass(frozen=True, kw_only=True)
class TokenizerRecord:
    """The tokenizer that made the tokens; ``hash`` covers everything that determines ids and framing."""

    hash: StrictStr
    kind: StrictStr
    framing: StrictStr
    files: tuple[FileRecord, ...]


@dataclass(frozen=True, kw_only=True)
class SourceRecord:
    """A source as it was read; ``invalid_utf8`` characters of it became U+FFFD."""

    name: StrictStr
    size: Count
    sha256: StrictStr
    format: StrictStr
    field: StrictStr | StrictInt | None
    invalid_utf8: Count = 0


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The content of ``manifest.json``.

    Args:
        read: counts of read and dropped items.
        settings: the :class:`~encoderlab.corpus.build.BuildSettings` as plain data; None for a corpus that was made
            from tokens, which has no tokenizer and no sources either.
        made_by: the version of this package.
    """

    format: Literal["encoderlab-corpus"] = "encoderlab-corpus"
    version: Literal[1] = 1
    vocab_size: Count
    tokenizer: TokenizerRecord | None = None
    splits: dict[str, SplitRecord]
    read: dict[str, Count] = field(default_factory=dict)
    settings: dict[str, Any] | None = None
    sources: tuple[SourceRecord, ...] = ()
    made_by: StrictStr = ""
    counts: FileRecord

    def files(self, split: str | None = None) -> list[FileRecord | ShardRecord]:
        """All files of the corpus besides the manifest, with shards of all splits or of one."""
        tokenizer = () if self.tokenizer is None else self.tokenizer.files
        shards = (shard for name, its in self.splits.items() if split in (None, name) for shard in its.shards)
        return [self.counts, *tokenizer, *shards]

    @property
    def content(self) -> str:
        """SHA-256 of the tokens and the tokenizer: the same wherever the corpus was built."""
        shards = {name: [shard.sha256 for shard in split.shards] for name, split in self.splits.items()}
        return digest({"tokenizer": self.tokenizer and self.tokenizer.hash, "shards": shards})


def split_record(shards: tuple[ShardRecord, ...] | list[ShardRecord]) -> SplitRecord:
    """The manifest's record of one split."""
    return SplitRecord(
        **{name: sum(getattr(shard, name) for shard in shards) for name in NUMBERS}, shards=tuple(shards)
    )


def write_manifest(folder: Path, *, counts: np.ndarray, **fields: Any) -> Manifest:
    """Write ``counts`` and then the manifest, which makes the folder a corpus."""
    with replace_file(folder / COUNTS) as file:
        np.save(file, counts.astype(np.int64), allow_pickle=False)
    manifest = Manifest(counts=FileRecord(file=COUNTS, sha256=sha256(folder / COUNTS)), **fields)
    write_record(folder / MANIFEST, to_dict(manifest))
    return manifest


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a corpus folder, with its checksum verified: 5 microseconds a shard.

    Raises:
        DataError: it is missing, unfinished, damaged, or of another version.
    """
    path, remedy = folder / MANIFEST, f"delete {folder} and build the corpus again"
    try:
        record = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise DataError(f"{folder}: no corpus here (no {MANIFEST}); make one with: encoderlab corpus build") from None
    except NotADirectoryError:
        raise DataError(f"{folder}: is a file; give the folder of a corpus (encoderlab corpus build)") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); check its permissions") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not valid JSON ({error}); {remedy}") from None
    if not isinstance(record, dict) or record.get("format") != "encoderlab-corpus":
        raise DataError(f"{path}: not the manifest of a corpus; give another folder (encoderlab corpus build)")
    if record.get("version") != 1:
        raise DataError(f"{path}: format version {record.get('version')}, expected 1; {remedy}")
    rest = {key: value for key, value in record.items() if key != CHECKSUM}
    try:
        manifest = from_dict(Manifest, rest, where=f"{path}: damaged")
    except ConfigError as error:
        raise DataError(f"{error}; {remedy}") from None
    try:
        RECORD.opened(record)
    except ValueError:
        raise DataError(f"{path}: damaged: its checksum differs; {remedy}") from None
    if (manifest.settings is None) != (manifest.tokenizer is None):
        raise DataError(f"{path}: damaged: settings without tokenizer, or the other way round; {remedy}")
    for split, there in manifest.splits.items():
        for name in NUMBERS:
            total, summed = getattr(there, name), sum(getattr(shard, name) for shard in there.shards)
            if total != summed:
                raise DataError(f"{path}: damaged: {split} has {total:,} {name}, its shards {summed:,}; {remedy}")
    return manifest


def verify(folder: str | os.PathLike, split: str | None = None) -> None:
    """Read every file of a corpus, as many at once as there are cores, and compare it with its recorded hash: about a
    second per GB on one core. With ``split``, only the shards of that split, and the files that belong to no split.

    Raises:
        DataError: a file is missing or differs; the message names the first.
    """
    folder = local(folder)
    with ThreadPoolExecutor(cores()) as pool:
        for _ in pool.map(lambda record: verify_file(folder, record), read_manifest(folder).files(split)):
            pass


def verify_file(folder: Path, record: FileRecord) -> None:
    """Compare a file of a corpus with its recorded hash.

    Raises:
        DataError: it is missing, cannot be read, or differs.
    """
    path = folder / record.file
    if isinstance(record, ShardRecord):
        supply(folder, record.file, record.size, record.sha256)
    try:
        actual = sha256(path)
        if actual != record.sha256 and isinstance(record, ShardRecord):
            supply(folder, record.file, record.size, record.sha256, damaged=True)
            actual = sha256(path)
    except FileNotFoundError:
        raise DataError(f"{path}: is missing; restore it, or delete {folder} and build the corpus again") from None
    except OSError as error:
        raise DataError(
            f"{path}: cannot be read ({error.strerror}); make it readable, "
            f"or delete {folder} and build the corpus again"
        ) from None
    if actual != record.sha256:
        raise DataError(
            f"{path}: sha256 {actual[:12]}..., expected {record.sha256[:12]}...: changed or damaged; "
            f"delete {folder} and build the corpus again"
        )
