"""Join parts to a corpus: those of several machines, or the single part of one machine.

A part is a folder with ``part.json``, written when all its pieces are there, ``tokenizer/`` and ``pieces/``. With n
parts, the part of index i has every n-th stretch of the input from stretch i on.
"""

from __future__ import annotations

import functools
import logging
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from encoderlab import __version__
from encoderlab.config import from_dict
from encoderlab.corpus.assemble import TRAIN, Selection, ShardWork, collect, plan, shard_is_written, write_shard
from encoderlab.corpus.manifest import (
    MANIFEST,
    TOKENIZER,
    FileRecord,
    Manifest,
    SourceRecord,
    TokenizerRecord,
    read_manifest,
    split_record,
    verify,
    write_manifest,
)
from encoderlab.corpus.output import ASSEMBLY, MERGE, PART, PLAN, WORK, begun, differences, held
from encoderlab.corpus.pieces import PieceName, damaged_pieces, piece_path
from encoderlab.corpus.sealed import check_folder
from encoderlab.corpus.tokenizer import Tokenizer
from encoderlab.errors import ConfigError, DataError
from encoderlab.execution.workers import Tasks, Workers
from encoderlab.files import sha256
from encoderlab.messages import Progress
from encoderlab.sealed import Damaged, read_record

log = logging.getLogger(__name__)

MAX_UNKNOWN = 0.2  # share of unknown tokens above which a corpus is refused
MANY_UNKNOWN = 0.01  # and above which there is a warning


@dataclass(frozen=True, kw_only=True)
class PartRecord:
    """The content of ``part.json``.

    Args:
        settings: the :class:`~encoderlab.corpus.build.BuildSettings` as plain data.
        tokenizer: hash of the tokenizer.
        tokenizer_origin, pieces_origin: digests of everything that determines the tokenizer and the pieces
            (:mod:`.sealed`).
        sources: of all parts; SHA-256 is empty for those that another part hashes.
        stretches: number of stretches in all parts together.
        pieces: number of pieces of each stretch of this part.
    """

    settings: dict[str, Any]
    sources: tuple[SourceRecord, ...]
    tokenizer: str
    tokenizer_origin: str
    pieces_origin: str
    shard_index: int
    num_shards: int
    stretches: int
    pieces: tuple[int, ...]

    def common(self) -> dict[str, Any]:
        """The fields that all parts of a corpus share."""
        record = asdict(self)
        sources = [{**source, "sha256": ""} for source in record["sources"]]
        names = ("settings", "tokenizer", "num_shards", "stretches")
        return {"sources": sources, **{name: record[name] for name in names}}

    def names(self) -> list[PieceName]:
        """Its pieces, in order."""
        numbers = zip(range(self.shard_index, self.stretches, self.num_shards), self.pieces, strict=True)
        return [PieceName(number, index, index == count - 1) for number, count in numbers for index in range(count)]


def merge_corpora(
    parts: Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    *,
    workers: int = 1,
    max_unknown: float = MAX_UNKNOWN,
    progress: Progress = lambda what, done, total: None,
) -> Manifest:
    """Join the parts that ``num_shards`` machines built; the same bytes as one machine would have written.

    Raises:
        ConfigError: a part is missing, given twice, or was built with other settings; ``out`` is not empty.
        DataError: a part is incomplete, is damaged, or has other sources or another tokenizer.
    """
    Workers(workers)  # refuses a wrong number before any work
    check_max_unknown(max_unknown)
    out = Path(out)
    folders, records = _in_order([Path(part) for part in parts])
    first, sources = records[0], _sources(records)
    with held(out):
        if (out / MANIFEST).exists():
            manifest = read_manifest(out)
            there = [(source.name, source.sha256) for source in manifest.sources]
            same = (manifest.settings, there) == (first.settings, [(item.name, item.sha256) for item in sources])
            if not same or manifest.tokenizer is None or manifest.tokenizer.hash != first.tokenizer:
                raise ConfigError(f"{out}: has another corpus; choose another output folder, or delete it")
            verify(out)
            shutil.rmtree(out / WORK, ignore_errors=True)
            return manifest
        asked = {**first.common(), "sources": [asdict(source) for source in sources]}
        if begun(out / WORK, out, MERGE, asked) != asked:
            raise ConfigError(f"{out}: a merge of other parts was started here; choose another folder, or delete it")
        try:
            check_folder(folders[0] / TOKENIZER, first.tokenizer_origin)
            for folder, record in zip(folders, records, strict=True):
                paths = [piece_path(folder, name) for name in record.names()]
                for problem in damaged_pieces(paths, record.pieces_origin, progress):
                    raise problem
        except Damaged as problem:
            raise DataError(f"{problem}; run the build of this part again, which repairs it") from None
        return join_parts(folders, out, functools.partial(Workers, workers), max_unknown, progress)


def check_max_unknown(share: float) -> None:
    if not 0 <= share <= 1:
        raise ConfigError(f"max_unknown {share}, expected a share from 0 to 1, such as {MAX_UNKNOWN}")


def _in_order(folders: Sequence[Path]) -> tuple[list[Path], list[PartRecord]]:
    """The folders and records of all parts of one corpus, by their index."""
    if not folders:
        raise ConfigError("no part; give the output folders of: encoderlab corpus build --shard-index i --num-shards n")
    parts = [(folder, _record_of(folder)) for folder in folders]
    first = parts[0][1].common()
    for folder, record in parts:
        if (common := record.common()) != first:
            changed = differences(first, common)
            raise ConfigError(f"{folder} differs from {folders[0]}: {changed}; build all parts alike")
    parts.sort(key=lambda part: part[1].shard_index)
    indices, number = [record.shard_index for _, record in parts], parts[0][1].num_shards
    if indices != list(range(number)):
        raise ConfigError(f"parts {indices} given, expected each of 0 to {number - 1} once")
    return [folder for folder, _ in parts], [record for _, record in parts]


def _sources(records: Sequence[PartRecord]) -> tuple[SourceRecord, ...]:
    """The sources of all parts, each with the hash that one of the parts has."""
    same = zip(*(record.sources for record in records), strict=True)
    return tuple(max(sources, key=lambda source: source.sha256) for sources in same)


def _record_of(folder: Path) -> PartRecord:
    if folder.is_file():
        raise DataError(f"{folder}: is a file; give the folder of a part (encoderlab corpus build --shard-index i)")
    try:
        return read_part(folder)
    except FileNotFoundError:
        unfinished = (folder / PLAN).exists()
        what = "an unfinished part; run its build again to complete it" if unfinished else "not a part of a corpus"
        raise DataError(f"{folder}: {what} (encoderlab corpus build --shard-index i --num-shards n)") from None
    except Damaged as problem:
        raise DataError(f"{problem}; run the build of this part again, which repairs it") from None


def read_part(folder: Path) -> PartRecord:
    """``part.json`` of a part.

    Raises:
        FileNotFoundError: the part is incomplete.
        Damaged: the file is damaged.
    """
    try:
        return from_dict(PartRecord, read_record(folder / PART))
    except ConfigError as error:
        raise Damaged(folder / PART, f"damaged ({error})") from None


def join_parts(
    parts: Sequence[Path], out: Path, pool: Callable[[], Tasks], max_unknown: float, progress: Progress
) -> Manifest:
    """Make the corpus ``out`` from the pieces of all parts, given by index, and delete ``out/.work``.

    Returns:
        the manifest.

    Raises:
        DataError: no text is left, or more than the share ``max_unknown`` of its tokens is unknown.
    """
    for leftover in out.rglob(".*.tmp"):
        leftover.unlink()
    part_records = [read_part(part) for part in parts]
    record = part_records[0]
    tokenizer = Tokenizer.load(parts[0] / TOKENIZER)
    selection = Selection(**record.settings["selection"])
    scratch = out / WORK / ASSEMBLY
    progress("duplicates", 0, None)
    names = sorted(name for each in part_records for name in each.names())
    pieces = [piece_path(parts[name.stretch % len(parts)], name) for name in names]
    shards, read, invalid = plan(pieces, selection, scratch, out, tokenizer.vocab_size)
    _require_text(record, read, shards)
    with pool() as tasks:
        for number, shard in enumerate(shards):
            progress("shards", number, len(shards))
            if not shard_is_written(shard, scratch):
                tasks.submit(write_shard, shard, out, scratch)
        tasks.finish()
    progress("shards", len(shards), len(shards))
    records, counts = collect(shards, scratch, tokenizer.vocab_size)
    unknown = float(counts[tokenizer.special.unk] / counts.sum())
    if unknown > max_unknown:
        raise too_many_unknown(unknown, max_unknown)
    if unknown > MANY_UNKNOWN:
        log.warning("%.1f%% of the tokens are unknown: the tokenizer does not cover this text well", 100 * unknown)
    shutil.rmtree(out / TOKENIZER, ignore_errors=True)
    tokenizer.save(out / TOKENIZER)
    files = [
        FileRecord(file=f"{TOKENIZER}/{path.name}", sha256=sha256(path)) for path in sorted((out / TOKENIZER).iterdir())
    ]
    sources = enumerate(_sources(part_records))
    manifest = write_manifest(
        out,
        vocab_size=tokenizer.vocab_size,
        tokenizer=TokenizerRecord(
            hash=record.tokenizer, kind=tokenizer.kind, framing=tokenizer.framing, files=tuple(files)
        ),
        splits={split: split_record(records[split]) for split in records},
        read=read,
        settings=record.settings,
        sources=tuple(replace(source, invalid_utf8=invalid[number]) for number, source in sources),
        made_by=f"encoderlab {__version__}",
        counts=counts,
    )
    shutil.rmtree(out / WORK)
    return manifest


def _require_text(record: PartRecord, read: dict[str, int], shards: Sequence[ShardWork]) -> None:
    if any(shard.split == TRAIN for shard in shards):
        return
    names = ", ".join(source.name for source in record.sources[:3])
    dropped = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in read.items() if count)
    remedy = "hold nothing out: --validation 0" if shards else "filter less"
    raise DataError(f"{names}: no text left for training ({dropped or 'nothing read'}); give more text, or {remedy}")


def too_many_unknown(share: float, limit: float) -> DataError:
    return DataError(
        f"{share:.1%} of the tokens are unknown, more than {limit:.0%}: the tokenizer does not cover this text; give "
        f"another, have one trained (--tokenizer wordpiece), or allow it: --max-unknown {min(1.0, share + 0.01):.2f}"
    )
