"""Parts to a corpus: what several machines built is joined; what one machine built is one part, joined alike.

A part is a folder with ``part.json``, written when all its pieces are there, ``tokenizer/`` and ``pieces/``. With n
parts, the part of index i holds every n-th piece from piece i on.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from encoderlab import __version__
from encoderlab.corpus.assemble import TRAIN, Selection, ShardWork, collect, plan, shard_is_written, write_shard
from encoderlab.corpus.manifest import MANIFEST, TOKENIZER, file_hash, read_manifest, split_record, write_manifest
from encoderlab.corpus.output import MERGE, PLAN, WORK, begin, differences, held
from encoderlab.corpus.tokenizer import Tokenizer
from encoderlab.corpus.workers import Workers
from encoderlab.errors import ConfigError, DataError

PART, PIECES, ASSEMBLY = "part.json", "pieces", "assembly"
COMMON = ("settings", "sources", "tokenizer", "num_shards")  # what all parts of a corpus have in common
Progress = Callable[[str, int, int | None], None]  # what is done, how much of it, of how much where that is known


def merge_corpora(
    parts: Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    *,
    workers: int = 1,
    progress: Progress = lambda what, done, total: None,
) -> dict[str, Any]:
    """Join the parts that ``num_shards`` machines built; the same bytes as one machine would have written.

    Raises:
        ConfigError: a part is missing, given twice, or was built with other settings; ``out`` is not empty.
        DataError: a part is no complete part of a corpus, or saw other sources or another tokenizer.
    """
    Workers(workers)  # refuses a wrong number before anything is done
    out = Path(out)
    folders, common = _parts_in_order([Path(part) for part in parts])
    with held(out):
        if (out / MANIFEST).exists():
            manifest = read_manifest(out)
            if [manifest.get("settings"), manifest.get("sources")] != [common["settings"], common["sources"]]:
                raise ConfigError(f"{out}: holds another corpus; choose another output folder, or delete it")
            shutil.rmtree(out / WORK, ignore_errors=True)
            return manifest
        if not (out / WORK / MERGE).exists():
            begin(out / WORK, out, MERGE, common)
        elif json.loads((out / WORK / MERGE).read_bytes()) != common:
            raise ConfigError(f"{out}: a merge of other parts was begun here; choose another folder, or delete it")
        return join_parts(folders, out, workers, progress)


def _parts_in_order(folders: Sequence[Path]) -> tuple[list[Path], dict[str, Any]]:
    """The folders by their index, all parts of one corpus, and what they have in common."""
    if not folders:
        raise ConfigError("no part; give the output folders of: encoderlab corpus build --shard-index i --num-shards n")
    records = [_part_record(folder) for folder in folders]
    first = records[0]
    for folder, record in zip(folders, records, strict=True):
        for name in (*COMMON, "pieces"):
            if record[name] != first[name]:
                changed = differences(first[name], record[name], name)
                raise ConfigError(f"{folder} differs from {folders[0]}: {changed}; build all parts alike")
    number, given = first["num_shards"], [record["shard_index"] for record in records]
    if sorted(given) != list(range(number)):
        raise ConfigError(f"parts {sorted(given)} given, expected each of 0 to {number - 1} once")
    ordered = [folder for _, folder in sorted(zip(given, folders, strict=True))]
    return ordered, {name: first[name] for name in COMMON}


def _part_record(folder: Path) -> dict[str, Any]:
    try:
        record = json.loads((folder / PART).read_bytes())
        return {name: record[name] for name in (*COMMON, "shard_index", "pieces")}
    except FileNotFoundError:
        unfinished = (folder / PLAN).exists()
        what = "an unfinished part; run its build again to complete it" if unfinished else "no part of a corpus"
        raise DataError(f"{folder}: {what} (encoderlab corpus build --shard-index i --num-shards n)") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{folder / PART}: cannot be read ({error}); build the part again") from None


def piece_path(part: Path, number: int) -> Path:
    """The file of a piece in the folder of its part."""
    return part / PIECES / f"{number:06d}.safetensors"


def join_parts(parts: Sequence[Path], out: Path, workers: int, progress: Progress) -> dict[str, Any]:
    """Make the corpus ``out`` of the pieces of all parts, given by their index, and delete ``out/.work``.

    Returns:
        the manifest.

    Raises:
        DataError: no text is left.
    """
    for leftover in out.rglob(".*.tmp"):
        leftover.unlink()
    record = json.loads((parts[0] / PART).read_bytes())
    pieces = [piece_path(parts[number % len(parts)], number) for number in range(record["pieces"])]
    tokenizer = Tokenizer.load(parts[0] / TOKENIZER)
    selection = Selection(**record["settings"]["selection"])
    scratch = out / WORK / ASSEMBLY
    progress("duplicates", 0, None)
    shards, read = plan(pieces, selection, scratch, out, tokenizer.vocab_size)
    _require_text(record, read, shards)
    with Workers(workers) as tasks:
        for number, shard in enumerate(shards):
            progress("shards", number, len(shards))
            if not shard_is_written(shard, scratch):
                tasks.submit(write_shard, shard, out, scratch)
        tasks.finish()
    progress("shards", len(shards), len(shards))
    records, counts = collect(shards, scratch, tokenizer.vocab_size)
    shutil.rmtree(out / TOKENIZER, ignore_errors=True)
    tokenizer.save(out / TOKENIZER)
    write_manifest(
        out,
        vocab_size=tokenizer.vocab_size,
        tokenizer=_tokenizer_record(tokenizer, record["tokenizer"], out),
        splits={split: split_record(records[split]) for split in records},
        read=read,
        settings=record["settings"],
        sources=record["sources"],
        made_by=f"encoderlab {__version__}",
        counts=counts,
    )
    shutil.rmtree(out / WORK)
    return read_manifest(out)


def _require_text(record: dict[str, Any], read: dict[str, int], shards: Sequence[ShardWork]) -> None:
    if any(shard.split == TRAIN for shard in shards):
        return
    names = ", ".join(source["name"] for source in record["sources"][:3])
    dropped = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in read.items() if count)
    remedy = "hold nothing out: --validation 0" if shards else "filter less"
    raise DataError(f"{names}: no text left for training ({dropped or 'nothing read'}); give more text, or {remedy}")


def _tokenizer_record(tokenizer: Tokenizer, digest: str, out: Path) -> dict[str, Any]:
    """What the manifest says of the tokenizer, which lies in ``out`` already."""
    files = sorted((out / TOKENIZER).iterdir())
    return {
        "hash": digest,
        "kind": tokenizer.kind,
        "framing": tokenizer.framing,
        "files": [{"file": f"{TOKENIZER}/{path.name}", "sha256": file_hash(path)} for path in files],
    }
