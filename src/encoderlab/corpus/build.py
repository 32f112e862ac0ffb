"""Sources to a corpus: read, tokenize piece by piece in parallel, drop duplicates, split, write shards.

    OUT/.work/plan.json           what is being built, so that nothing else is continued by mistake
    OUT/.work/tokenizer/          trained or copied
    OUT/.work/pieces/000000...    tokens of about 4 MB of input each (:mod:`encoderlab.corpus.pieces`)
    OUT/.work/part.json           all pieces are there
    OUT/.work/assembly/...        decisions and records (:mod:`encoderlab.corpus.assemble`)
    OUT/train/, validation/ ...   the corpus (:mod:`encoderlab.corpus.shards`); with its manifest the corpus is complete

Each of these appears complete or not at all. A build that was killed continues where it was, and ends with the same
bytes; so does one with any number of workers, or of machines: with ``num_shards`` n a machine makes every n-th piece,
and :func:`merge_corpora` assembles them.

Memory does not depend on the size of the input: one piece a worker, about 200 MB each.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from encoderlab import __version__
from encoderlab.config import to_dict
from encoderlab.corpus.assemble import TRAIN, Selection, ShardWork, collect, plan, shard_is_written, write_shard
from encoderlab.corpus.documents import parse_block
from encoderlab.corpus.opening import COMPRESSED
from encoderlab.corpus.pieces import Piece, Place, Segmenter, Work, read_work, write_piece
from encoderlab.corpus.python_text import PREFIX, python_source
from encoderlab.corpus.segment import make_segmenter
from encoderlab.corpus.shards import (
    MANIFEST,
    MERGE,
    PLAN,
    TOKENIZER,
    WORK,
    file_hash,
    read_manifest,
    split_record,
    write_manifest,
)
from encoderlab.corpus.sources import Reading, Source, find_sources
from encoderlab.corpus.tokenizer import Kind, Tokenizer
from encoderlab.corpus.workers import Workers
from encoderlab.errors import ConfigError, DataError
from encoderlab.files import locked, write_json

PART, PIECES, ASSEMBLY = "part.json", "pieces", "assembly"
PART_FIELDS = ("settings", "sources", "tokenizer", "shard_index", "num_shards", "pieces")
Progress = Callable[[str, int, int | None], None]  # what is done, how much of it, of how much where that is known


@dataclass(frozen=True, kw_only=True)
class NewTokenizer:
    """A tokenizer to train on a sample of the text.

    Args:
        kind: ``wordpiece``, ``bpe`` (byte-level) or ``unigram``.
        vocab_size: tokens, special ones included.
        family: whose special tokens and framing; None goes by the kind.
        lowercase: None goes by the kind.
        sample_bytes: about how much text to learn from, taken evenly from all sources.
    """

    kind: Kind = "wordpiece"
    vocab_size: int = 16384
    family: str | None = None
    lowercase: bool | None = None
    sample_bytes: int = 32_000_000


@dataclass(frozen=True, kw_only=True)
class GivenTokenizer:
    """A tokenizer folder, or a ``tokenizer.json``, ``vocab.txt`` (...) file."""

    path: str
    family: str | None = None
    lowercase: bool | None = None


@dataclass(frozen=True, kw_only=True)
class BuildSettings:
    """What determines the bytes of a corpus, together with the sources.

    Args:
        sources: files, folders, globs, or ``python:stdlib`` and ``python:all``, the text that Python itself carries.
        segmenter: what marks words in Chinese text (:mod:`encoderlab.corpus.segment`); None leaves every Chinese
            character a word of its own.
    """

    sources: tuple[str, ...]
    tokenizer: NewTokenizer | GivenTokenizer = field(default_factory=NewTokenizer)
    reading: Reading = field(default_factory=Reading)
    selection: Selection = field(default_factory=Selection)
    segmenter: str | None = None


def build_corpus(
    settings: BuildSettings,
    out: str | os.PathLike[str],
    *,
    workers: int = 1,
    shard_index: int = 0,
    num_shards: int = 1,
    progress: Progress = lambda what, done, total: None,
) -> dict[str, Any]:
    """Build a corpus, or part ``shard_index`` of ``num_shards`` of one; returns its manifest, or the part's.

    Run again after an interruption it continues; on a complete corpus of the same settings and sources it does nothing.

    Args:
        workers: processes besides this one, which reads; 1 does everything in this process.

    Raises:
        ConfigError: wrong settings, an output folder that is in use, not empty, or holds something else.
        DataError: sources that are missing, unreadable, or without text.
    """
    out = Path(out)
    _check(settings, workers, shard_index, num_shards)
    sources = resolve_sources(settings.sources, settings.reading)
    with _locked(out), _file_errors(out):
        part = out if num_shards > 1 else out / WORK
        if num_shards == 1 and (out / MANIFEST).exists():
            return _complete(settings, sources, out)
        _claim(part, out, settings, sources, shard_index, num_shards)
        tokenizer = _tokenizer(settings, sources, part, progress)
        record = _make_pieces(settings, sources, part, tokenizer, workers, shard_index, num_shards, progress)
        if num_shards > 1:
            return record
        return _assemble([part], out, workers, progress)


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
    Workers(workers)
    folders = [Path(path) for path in parts]
    if not folders:
        raise ConfigError("no part; give the output folders of: encoderlab corpus build --shard-index i --num-shards n")
    out = Path(out)
    records = [_part_record(folder) for folder in folders]
    first = records[0]
    for folder, record in zip(folders, records, strict=True):
        for name in ("settings", "sources", "tokenizer", "num_shards", "pieces"):
            if record[name] != first[name]:
                changed = _differences(first[name], record[name], name)
                raise ConfigError(f"{folder} differs from {folders[0]}: {changed}; build all parts alike")
    number = first["num_shards"]
    given = [record["shard_index"] for record in records]
    if sorted(given) != list(range(number)):
        raise ConfigError(f"parts {sorted(given)} given, expected each of 0 to {number - 1} once")
    ordered = [folder for _, folder in sorted(zip(given, folders, strict=True))]
    with _locked(out), _file_errors(out):
        if (out / MANIFEST).exists():
            manifest = read_manifest(out)
            if [manifest.get("settings"), manifest.get("sources")] != [first["settings"], first["sources"]]:
                raise ConfigError(f"{out}: holds another corpus; choose another output folder, or delete it")
            shutil.rmtree(out / WORK, ignore_errors=True)
            return manifest
        merged = {name: first[name] for name in ("settings", "sources", "tokenizer", "num_shards")}
        if not (out / WORK / MERGE).exists():
            _begin(out / WORK, out, MERGE, merged)
        elif json.loads((out / WORK / MERGE).read_bytes()) != merged:
            raise ConfigError(f"{out}: a merge of other parts was begun here; choose another folder, or delete it")
        return _assemble(ordered, out, workers, progress)


# Before the work.


def _check(settings: BuildSettings, workers: int, shard_index: int, num_shards: int) -> None:
    Workers(workers)  # refuses a wrong number before anything is done
    if num_shards < 1:
        raise ConfigError(f"num_shards {num_shards}, expected at least 1")
    if not 0 <= shard_index < num_shards:
        raise ConfigError(f"shard index {shard_index} of {num_shards} shards, expected 0 to {num_shards - 1}")
    _load_segmenter(settings.segmenter)
    selection = settings.selection
    if not 0 <= selection.validation < 1:
        raise ConfigError(f"validation {selection.validation}, expected a fraction from 0 to below 1, such as 0.01")
    if selection.max_chars is not None and selection.max_chars < selection.min_chars:
        raise ConfigError(f"max_chars {selection.max_chars} is below min_chars {selection.min_chars}; raise it")


def resolve_sources(patterns: Sequence[str], reading: Reading) -> list[Source]:
    """:func:`~encoderlab.corpus.sources.find_sources` that also knows ``python:stdlib`` and ``python:all``."""
    sources: list[Source] = []
    for pattern in patterns or [""]:
        if pattern.startswith(PREFIX):
            sources.append(python_source(pattern))
        else:
            sources += find_sources([pattern] if pattern else [], reading)
    unique = {(source.path.resolve(), source.member): source for source in reversed(sources)}
    return list(reversed(unique.values()))


@contextlib.contextmanager
def _locked(out: Path) -> Iterator[None]:
    """Hold the output folder; the lock goes with the process, however it ends."""
    lock = contextlib.ExitStack()
    try:
        out.mkdir(parents=True, exist_ok=True)
        lock.enter_context(locked(out))
    except BlockingIOError:
        raise ConfigError(f"{out}: in use by another process; wait for it, or choose another folder") from None
    except OSError as error:
        raise ConfigError(f"{out}: cannot be used as output folder ({error.strerror}); choose another") from None
    with lock:
        yield


@contextlib.contextmanager
def _file_errors(out: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            reason = "no space left" if error.errno != errno.EFBIG else "a limit on the size of files is reached"
            raise DataError(f"{out}: {reason}; free some space and run again to continue") from None
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            place = error.filename or out
            raise ConfigError(f"{place}: cannot be written ({error.strerror}); choose another folder") from None
        raise


def _claim(
    part: Path, out: Path, settings: BuildSettings, sources: list[Source], shard_index: int, num_shards: int
) -> None:
    """Write down what is built in this folder, or check that it is the same."""
    fingerprints = {}
    for source in sources:
        status = source.path.stat()
        fingerprints[source.name] = [status.st_size, status.st_mtime_ns]
    asked = {
        "settings": json.loads(json.dumps(to_dict(settings))),
        "sources": fingerprints,
        "tokenizer": _given_hash(settings),
        "shard_index": shard_index,
        "num_shards": num_shards,
    }
    if (part / PLAN).exists():
        begun = json.loads((part / PLAN).read_bytes())
        if begun != asked and not (part / TOKENIZER).exists():
            write_json(part / PLAN, asked)  # nothing was made yet: the settings of its tokenizer were refused, perhaps
        elif begun != asked:
            changed = _differences(begun, asked)
            raise ConfigError(
                f"{out}: another build was begun here: {changed}; ask for the same to continue it, or delete the folder"
            )
        for leftover in part.rglob(".*.tmp"):
            leftover.unlink(missing_ok=True)
        return
    _begin(part, out, PLAN, asked)


def _begin(folder: Path, out: Path, name: str, value: Any) -> None:
    """Write the first file of ``folder``, which is ``out`` or below it; nothing else may be there."""
    for leftover in folder.glob(f".{name}.*.tmp"):  # killed before the file was complete
        leftover.unlink()
    if folder != out and folder.exists() and not any(folder.iterdir()):
        folder.rmdir()
    if any(out.iterdir()):
        raise ConfigError(f"{out}: not empty, and holds no corpus; choose another folder, or delete it")
    folder.mkdir(exist_ok=True)
    write_json(folder / name, value)


def _complete(settings: BuildSettings, sources: list[Source], out: Path) -> dict[str, Any]:
    """The manifest of a corpus that is there already, if it is the one asked for."""
    manifest = read_manifest(out)
    asked = json.loads(json.dumps(to_dict(settings)))
    if manifest.get("settings") != asked:
        changed = _differences(manifest.get("settings"), asked)
        raise ConfigError(f"{out}: holds a corpus built otherwise: {changed}; choose another folder, or delete it")
    if _given_hash(settings) not in (None, manifest["tokenizer"]["hash"]):
        raise ConfigError(f"{out}: the tokenizer has changed since; choose another folder, or delete this one")
    recorded = {record["name"]: record["sha256"] for record in manifest["sources"]}
    for record in _source_records(sources):
        if recorded.get(record["name"]) != record["sha256"]:
            raise ConfigError(f"{out}: {record['name']} has changed since; choose another folder, or delete this one")
    if len(recorded) != len(sources):
        raise ConfigError(f"{out}: built of {len(recorded)} sources, not {len(sources)}; choose another folder")
    shutil.rmtree(out / WORK, ignore_errors=True)
    return manifest


def _differences(old: Any, new: Any, name: str = "") -> str:
    """What differs, by dotted path: ``tokenizer.vocab_size is 8192 there, 16384 here``."""
    if isinstance(old, dict) and isinstance(new, dict):
        keys = [*old, *(key for key in new if key not in old)]
        parts = [
            _differences(old.get(key), new.get(key), f"{name}.{key}".lstrip("."))
            for key in keys
            if old.get(key) != new.get(key)
        ]
        return ", ".join(parts[:4]) + (f" and {len(parts) - 4} more" if len(parts) > 4 else "")
    return f"{name} is {_short(old)} there, {_short(new)} here"


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."


# Tokenizer.


def _tokenizer(settings: BuildSettings, sources: list[Source], part: Path, progress: Progress) -> Tokenizer:
    """The part's tokenizer: given, trained now, or there from an earlier session."""
    folder = part / TOKENIZER
    if folder.exists():
        return Tokenizer.load(folder)
    wanted = settings.tokenizer
    if isinstance(wanted, GivenTokenizer):
        tokenizer = _load_given(wanted)
    else:
        tokenizer = Tokenizer.train(
            wanted.kind,
            _sample(sources, settings.reading, wanted.sample_bytes, progress),
            wanted.vocab_size,
            family=wanted.family,
            lowercase=wanted.lowercase,
        )
    temporary = part / f"{TOKENIZER}.tmp"
    shutil.rmtree(temporary, ignore_errors=True)
    tokenizer.save(temporary)
    os.replace(temporary, folder)
    return Tokenizer.load(folder)


def _load_given(given: GivenTokenizer) -> Tokenizer:
    return Tokenizer.load(given.path, family=given.family, lowercase=given.lowercase)


def _given_hash(settings: BuildSettings) -> str | None:
    return _load_given(settings.tokenizer).hash() if isinstance(settings.tokenizer, GivenTokenizer) else None


def _sample(sources: list[Source], reading: Reading, budget: int, progress: Progress) -> Iterator[str]:
    """Documents of about ``budget`` bytes of the input: of every k-th block, all if there is less."""
    share = min(1.0, budget / max(sum(source.expected_bytes() for source in sources), 1))
    number = taken = 0
    for work in read_work(sources):
        for block in work.blocks:
            number += 1
            if int(number * share) == int((number - 1) * share) and number > 1:
                continue
            taken += len(block.data)
            progress("bytes for the tokenizer", taken, None)
            for document in parse_block(block, reading)[0]:
                yield "\n".join(document)
            if taken >= 2 * budget:
                return


# Pieces.


def _make_pieces(
    settings: BuildSettings,
    sources: list[Source],
    part: Path,
    tokenizer: Tokenizer,
    workers: int,
    shard_index: int,
    num_shards: int,
    progress: Progress,
) -> dict[str, Any]:
    """Make this part's pieces, but for those that are there, and return the part's record."""
    if (part / PART).exists():
        return json.loads((part / PART).read_bytes())
    folder = part / PIECES
    folder.mkdir(exist_ok=True)
    number, place = _resume(folder, shard_index, num_shards)
    # Compressed sources and tables are read as other bytes than the files have.
    plain = all(
        source.format in ("text", "markdown", "jsonl") and source.path.suffix.lower() not in COMPRESSED
        for source in sources
    )
    total = sum(source.path.stat().st_size for source in sources) if plain else None
    done = 0
    digest = tokenizer.hash()
    with Workers(workers) as tasks:
        for work in read_work(sources, place, number):
            number = work.number + 1
            path = _piece_path(folder, work.number)
            if work.number % num_shards == shard_index and not path.exists():
                tasks.submit(_make_piece, path, work, part / TOKENIZER, digest, settings.reading, settings.segmenter)
            done += work.num_bytes
            progress("bytes of text", done, total)
        source_records = _source_records(sources)  # while the last pieces are made
        tasks.finish()
    record = {
        "settings": json.loads(json.dumps(to_dict(settings))),
        "sources": source_records,
        "tokenizer": digest,
        "shard_index": shard_index,
        "num_shards": num_shards,
        "pieces": number,
    }
    write_json(part / PART, record)
    return record


def _make_piece(path: Path, work: Work, tokenizer: Path, digest: str, reading: Reading, segmenter: str | None) -> None:
    write_piece(path, work, _load_tokenizer(tokenizer, digest), reading, _load_segmenter(segmenter))


@functools.lru_cache(maxsize=1)
def _load_tokenizer(folder: Path, digest: str) -> Tokenizer:
    """Once for all pieces. A process may build in the same folder again, with another tokenizer: hence ``digest``."""
    return Tokenizer.load(folder)


@functools.cache
def _load_segmenter(name: str | None) -> Segmenter | None:
    return None if name is None else make_segmenter(name)


def _piece_path(folder: Path, number: int) -> Path:
    return folder / f"{number:06d}.safetensors"


def _resume(folder: Path, shard_index: int, num_shards: int) -> tuple[int, Place]:
    """The first piece to read for, and where it starts."""
    last = None
    number = shard_index
    while (path := _piece_path(folder, number)).exists():
        last, number = path, number + num_shards
    return (0, Place()) if last is None else (number - num_shards + 1, Piece(last).end)


def _source_records(sources: Sequence[Source]) -> list[dict[str, Any]]:
    hashes = {path: file_hash(path) for path in {source.path: None for source in sources}}
    return [
        {
            "name": source.name,
            "size": source.path.stat().st_size,
            "sha256": hashes[source.path],
            "format": source.format,
            "field": source.field,
        }
        for source in sources
    ]


# Assembly.


def _part_record(folder: Path) -> dict[str, Any]:
    try:
        record = json.loads((folder / PART).read_bytes())
        return {name: record[name] for name in PART_FIELDS}
    except FileNotFoundError:
        unfinished = (folder / PLAN).exists()
        what = "an unfinished part; run its build again to complete it" if unfinished else "no part of a corpus"
        raise DataError(f"{folder}: {what} (encoderlab corpus build --shard-index i --num-shards n)") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{folder / PART}: cannot be read ({error}); build the part again") from None


def _assemble(parts: Sequence[Path], out: Path, workers: int, progress: Progress) -> dict[str, Any]:
    """Make the corpus ``out`` of the pieces of all parts, and delete what it was made from; returns its manifest."""
    for leftover in out.rglob(".*.tmp"):
        leftover.unlink()
    record = json.loads((parts[0] / PART).read_bytes())
    pieces = [_piece_path(parts[number % len(parts)] / PIECES, number) for number in range(record["pieces"])]
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
        tokenizer={
            "hash": record["tokenizer"],
            "kind": tokenizer.kind,
            "framing": tokenizer.framing,
            "files": [
                {"file": f"{TOKENIZER}/{path.name}", "sha256": file_hash(path)}
                for path in sorted((out / TOKENIZER).iterdir())
            ],
        },
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
