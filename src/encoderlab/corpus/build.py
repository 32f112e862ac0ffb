"""Sources to a corpus: read, tokenize piece by piece in parallel, drop duplicates, split, write shards.

    OUT/.work/plan.json           what is being built, so that nothing else is continued by mistake
    OUT/.work/tokenizer/          trained or copied
    OUT/.work/pieces/000000...    tokens of about 4 MB of input each (:mod:`encoderlab.corpus.pieces`)
    OUT/.work/part.json           all pieces are there
    OUT/.work/assembly/...        decisions and records (:mod:`encoderlab.corpus.assemble`)
    OUT/train/, validation/ ...   the corpus (:mod:`encoderlab.corpus.shards`); with its manifest the corpus is complete

Each of these appears complete or not at all. A build that was killed continues where it was, and ends with the same
bytes; so does one with any number of workers, or of machines: with ``num_shards`` n a machine makes every n-th piece,
and :func:`encoderlab.corpus.merge.merge_corpora` assembles them.

Memory does not depend on the size of the input: one piece a worker, about 200 MB each.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from encoderlab.config import to_dict
from encoderlab.corpus.assemble import Selection
from encoderlab.corpus.blocks import read_blocks
from encoderlab.corpus.documents import parse_block
from encoderlab.corpus.find import find_sources
from encoderlab.corpus.manifest import MANIFEST, TOKENIZER, Manifest, SourceRecord, read_manifest, verify
from encoderlab.corpus.merge import (
    MAX_UNKNOWN,
    PartRecord,
    Progress,
    check_max_unknown,
    damaged_pieces,
    join_parts,
    piece_origin,
    piece_path,
    read_part,
    too_many_unknown,
)
from encoderlab.corpus.output import ASSEMBLY, PART, PIECES, PLAN, WORK, begun, differences, held
from encoderlab.corpus.pieces import Piece, PieceInput, Segmenter, SourcePlace, read_work, write_piece
from encoderlab.corpus.python.text import PREFIX, python_source
from encoderlab.corpus.sealed import Damaged, check_folder, digest, seal_folder, write_record
from encoderlab.corpus.segment import make_segmenter
from encoderlab.corpus.sources import Reading, Source
from encoderlab.corpus.tokenizer import Kind, Tokenizer
from encoderlab.errors import ConfigError
from encoderlab.execution.workers import Tasks, Workers
from encoderlab.records.opening import COMPRESSED
from encoderlab.storage.places import identity, info
from encoderlab.storage.streams import sha256

log = logging.getLogger(__name__)


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
    max_unknown: float = MAX_UNKNOWN,
    tasks: Callable[[], Tasks] | None = None,
    progress: Progress = lambda what, done, total: None,
) -> Manifest | PartRecord:
    """Build a corpus, or part ``shard_index`` of ``num_shards`` of one; returns its manifest, or the part's record.

    Run again after an interruption it continues; what is damaged of the results of earlier sessions is named and made
    again. On a complete corpus of the same settings and sources it verifies that corpus and changes nothing.

    Args:
        workers: processes besides this one, which reads; 1 does everything in this process.
        max_unknown: the share of unknown tokens above which the tokenizer is refused for this text.
        tasks: where pieces and shards are made instead, such as a cluster whose nodes all see ``out``.

    Raises:
        ConfigError: wrong settings, an output folder that is in use, not empty, or holds something else.
        DataError: sources that are missing, unreadable, without text, or not covered by the tokenizer.
    """
    out = Path(out) if tasks is None else Path(out).resolve()  # a cluster's workers are in other folders
    if tasks is None:
        tasks = functools.partial(Workers, workers)
        tasks()  # refuses a wrong number before anything is done
    check_max_unknown(max_unknown)
    if num_shards < 1:
        raise ConfigError(f"num_shards {num_shards}, expected at least 1")
    if not 0 <= shard_index < num_shards:
        raise ConfigError(f"shard index {shard_index} of {num_shards} shards, expected 0 to {num_shards - 1}")
    _check(settings)
    sources = resolve_sources(settings.sources, settings.reading)
    whole = num_shards == 1
    with held(out):
        if whole and (out / MANIFEST).exists():
            return _complete(settings, sources, out)
        part = Part(out / WORK if whole else out, settings, sources, shard_index, num_shards)
        part.claim(out)
        tokenizer = part.tokenizer(progress)
        if isinstance(settings.tokenizer, GivenTokenizer):
            _require_covered(tokenizer, sources, settings.reading, max_unknown)
        record = part.make_pieces(tokenizer, tasks, progress)
        return join_parts([part.folder], out, tasks, max_unknown, progress) if whole else record


def _check(settings: BuildSettings) -> None:
    """Refuse wrong settings before any work; what the types of their fields exclude is refused already."""
    _load_segmenter(settings.segmenter)
    selection = settings.selection
    if not 0 <= selection.validation < 1:
        raise ConfigError(f"validation {selection.validation}, expected a fraction from 0 to below 1, such as 0.01")
    if selection.max_chars is not None and selection.max_chars < selection.min_chars:
        raise ConfigError(f"max_chars {selection.max_chars} is below min_chars {selection.min_chars}; raise it")


def resolve_sources(patterns: Sequence[str], reading: Reading) -> list[Source]:
    """:func:`~encoderlab.corpus.find.find_sources` that also knows ``python:stdlib`` and ``python:all``.

    Raises:
        ConfigError: a field is given, and all sources are plain text, without fields.
    """
    sources: list[Source] = []
    for pattern in patterns or [""]:
        if pattern.startswith(PREFIX):
            sources.append(python_source(pattern))
        else:
            sources += find_sources([pattern] if pattern else [], reading)
    if sources and reading.field is not None and all(source.format in ("text", "markdown") for source in sources):
        raise ConfigError(
            f"--field {reading.field!r}: {sources[0].name} is text, which has no fields; leave --field out, or say "
            f"with --format what the file is"
        )
    unique = {(identity(source.path), source.member): source for source in reversed(sources)}
    return list(reversed(unique.values()))


def _complete(settings: BuildSettings, sources: Sequence[Source], out: Path) -> Manifest:
    """The manifest of a corpus that is there already, if it is the one asked for and whole."""
    manifest = read_manifest(out)
    asked = _plain(settings)
    # What corpora of earlier versions do not record has its default.
    recorded = manifest.settings or {}
    built = {**recorded, "selection": {**to_dict(Selection()), **recorded.get("selection", {})}}
    if built != asked or manifest.tokenizer is None:
        changed = differences(built, asked)
        raise ConfigError(f"{out}: has a corpus with other settings: {changed}; choose another folder, or delete it")
    if _given_hash(settings) not in (None, manifest.tokenizer.hash):
        raise ConfigError(f"{out}: the tokenizer has changed since; choose another folder, or delete this one")
    recorded = {source.name: source.sha256 for source in manifest.sources}
    for source in _source_records(sources):
        if recorded.get(source.name) != source.sha256:
            raise ConfigError(f"{out}: {source.name} has changed since; choose another folder, or delete this one")
    if len(recorded) != len(sources):
        raise ConfigError(f"{out}: built of {len(recorded)} sources, not {len(sources)}; choose another folder")
    verify(out)
    shutil.rmtree(out / WORK, ignore_errors=True)
    return manifest


@dataclass(frozen=True)
class Part:
    """What one machine builds of a corpus, in a folder of its own: every ``num_shards``-th piece of the input.

    A corpus that one machine builds is one part, in ``OUT/.work``.
    """

    folder: Path
    settings: BuildSettings
    sources: Sequence[Source]
    shard_index: int
    num_shards: int

    def claim(self, out: Path) -> None:
        """Write down what is built here, or check that it is the same; ``out`` is the folder that the user named.

        Raises:
            ConfigError: something else lies or was begun there.
        """
        earlier = begun(self.folder, out, PLAN, self.plan)
        if earlier != self.plan and not (self.folder / TOKENIZER).exists():
            write_record(self.folder / PLAN, self.plan)  # nothing was made yet: its tokenizer was refused, perhaps
        elif earlier != self.plan:
            raise ConfigError(
                f"{out}: another build was begun here: {differences(earlier, self.plan)}; "
                "ask for the same to continue it, or delete the folder"
            )
        for leftover in self.folder.rglob(".*.tmp"):
            leftover.unlink(missing_ok=True)

    @functools.cached_property
    def plan(self) -> dict[str, Any]:
        """The description of the corpus that is known before the sources are read."""
        return {
            "settings": _plain(self.settings),
            "sources": {source.name: list(info(source.path)) for source in self.sources},
            "tokenizer": _given_hash(self.settings),
            "shard_index": self.shard_index,
            "num_shards": self.num_shards,
        }

    def tokenizer(self, progress: Progress) -> Tokenizer:
        """The tokenizer: given, trained now, or there from an earlier session."""
        folder = self.folder / TOKENIZER
        if folder.exists():
            try:
                check_folder(folder, digest(self.plan))
                return Tokenizer.load(folder)
            except Damaged as problem:
                log.warning("%s; made again", problem)
                shutil.rmtree(folder)
        settings = self.settings.tokenizer
        if isinstance(settings, GivenTokenizer):
            tokenizer = _load_given(settings)
        else:
            sample = _sample(self.sources, self.settings.reading, settings.sample_bytes, progress)
            tokenizer = Tokenizer.train(
                settings.kind, sample, settings.vocab_size, family=settings.family, lowercase=settings.lowercase
            )
        temporary = self.folder / f"{TOKENIZER}.tmp"
        shutil.rmtree(temporary, ignore_errors=True)
        tokenizer.save(temporary)
        seal_folder(temporary, digest(self.plan))
        os.replace(temporary, folder)
        return Tokenizer.load(folder)

    def make_pieces(self, tokenizer: Tokenizer, pool: Callable[[], Tasks], progress: Progress) -> PartRecord:
        """Make the pieces, but for those that are there and whole, and return the record of the part."""
        tokenizer_hash = tokenizer.hash()
        origin = digest([self.plan, tokenizer_hash])
        (self.folder / PIECES).mkdir(exist_ok=True)
        if (record := self._finished(origin, progress)) is not None:
            return record
        number, place = self._resume()
        total = _plain_bytes(self.sources)
        task = functools.partial(
            _make_piece,
            tokenizer=self.folder / TOKENIZER,
            tokenizer_hash=tokenizer_hash,
            reading=self.settings.reading,
            segmenter=self.settings.segmenter,
            origin=origin,
            near_duplicates=self.settings.selection.near_duplicates,
        )
        if place.num_bytes:
            progress("bytes of text", place.num_bytes, total)  # those of earlier sessions
        with pool() as tasks:
            for work in read_work(self.sources, place, number):
                number = work.number + 1
                path = piece_path(self.folder, work.number)
                if work.number % self.num_shards == self.shard_index and not path.exists():
                    tasks.submit(task, path, work)
                progress("bytes of text", work.end.num_bytes, total)
            source_records = _source_records(self.sources)  # while the last pieces are made
            tasks.finish()
        record = PartRecord(
            settings=_plain(self.settings),
            sources=tuple(source_records),
            tokenizer=tokenizer_hash,
            tokenizer_origin=digest(self.plan),
            pieces_origin=origin,
            shard_index=self.shard_index,
            num_shards=self.num_shards,
            pieces=number,
        )
        write_record(self.folder / PART, to_dict(record))
        return record

    def _finished(self, origin: str, progress: Progress) -> PartRecord | None:
        """The record of the part if all its pieces are there. What is damaged is named and removed; the shards that
        were written of such pieces are removed, too."""
        paths = sorted((self.folder / PIECES).glob("*.safetensors"))
        problems = damaged_pieces(paths, origin, progress)
        for problem in problems:
            log.warning("%s; made again", problem)
            problem.path.unlink(missing_ok=True)
        try:
            record = read_part(self.folder)
            numbers = range(self.shard_index, record.pieces, self.num_shards)
            if not problems and all(piece_path(self.folder, number).exists() for number in numbers):
                return record
            if not problems:
                log.warning("%s: pieces are missing; made again", self.folder / PIECES)
        except FileNotFoundError:
            pass
        except Damaged as problem:
            log.warning("%s; written again", problem)
        (self.folder / PART).unlink(missing_ok=True)
        shutil.rmtree(self.folder / ASSEMBLY, ignore_errors=True)
        return None

    def _resume(self) -> tuple[int, SourcePlace]:
        """The first piece to read for, and where it starts."""
        last = None
        number = self.shard_index
        while (path := piece_path(self.folder, number)).exists():
            last, number = path, number + self.num_shards
        return (0, SourcePlace()) if last is None else (number - self.num_shards + 1, Piece(last).end)


def _plain(settings: BuildSettings) -> Any:
    """The settings as JSON has them."""
    return json.loads(json.dumps(to_dict(settings)))


def _load_given(settings: GivenTokenizer) -> Tokenizer:
    return Tokenizer.load(settings.path, family=settings.family, lowercase=settings.lowercase)


def _given_hash(settings: BuildSettings) -> str | None:
    return _load_given(settings.tokenizer).hash() if isinstance(settings.tokenizer, GivenTokenizer) else None


def _sample(sources: Sequence[Source], reading: Reading, budget: int, progress: Progress) -> Iterator[str]:
    """Documents of about ``budget`` bytes of the input: of every k-th block, all if there is less."""
    share = min(1.0, budget / max(sum(source.expected_bytes() for source in sources), 1))
    number = taken = 0
    for work in read_work(sources):
        for _, block in work.blocks:
            number += 1
            if int(number * share) == int((number - 1) * share) and number > 1:
                continue
            taken += len(block.data)
            progress("bytes for the tokenizer", taken, None)
            for document in parse_block(block, reading)[0]:
                yield "\n".join(document)
            if taken >= 2 * budget:
                return


def _plain_bytes(sources: Sequence[Source]) -> int | None:
    """Bytes of the text that will be read; None where that is not the size of the files."""
    if any(source.format in ("csv", "tsv", "parquet") for source in sources):
        return None
    if any(source.path.suffix.lower() in COMPRESSED for source in sources):
        return None
    return sum(info(source.path).size for source in sources)


def _require_covered(tokenizer: Tokenizer, sources: Sequence[Source], reading: Reading, limit: float) -> None:
    """Refuse, before any work, a tokenizer that does not cover how some of the sources begin; what it covers of all the
    text is judged at the end.

    Raises:
        DataError: more than the share ``limit`` of the tokens is unknown.
    """
    unknown = total = 0
    for source in sources[:: max(1, len(sources) // 16)]:
        block = next(read_blocks(source), None)
        documents = parse_block(block, reading)[0] if block else []
        ids = tokenizer.encode_corpus(["\n".join(document)[:10_000] for document in documents[:10]]).ids
        unknown, total = unknown + int((ids == tokenizer.special.unk).sum()), total + len(ids)
    if total and unknown / total > limit:
        raise too_many_unknown(unknown / total, limit)


def _make_piece(
    path: Path,
    work: PieceInput,
    tokenizer: Path,
    tokenizer_hash: str,
    reading: Reading,
    segmenter: str | None,
    origin: str,
    near_duplicates: float | None,
) -> None:
    loaded = _load_tokenizer(tokenizer, tokenizer_hash)
    origin = piece_origin(origin, path)
    write_piece(path, work, loaded, reading, _load_segmenter(segmenter), origin, near_duplicates)


@functools.lru_cache(maxsize=1)
def _load_tokenizer(folder: Path, tokenizer_hash: str) -> Tokenizer:
    """Once for all pieces. A process may build in the same folder again, with another tokenizer: hence its hash."""
    return Tokenizer.load(folder)


@functools.cache
def _load_segmenter(name: str | None) -> Segmenter | None:
    return None if name is None else make_segmenter(name)


def _source_records(sources: Sequence[Source]) -> list[SourceRecord]:
    hashes = {path: sha256(path) for path in {source.path: None for source in sources}}
    return [
        SourceRecord(
            name=source.name,
            size=info(source.path).size,
            sha256=hashes[source.path],
            format=source.format,
            field=source.field,
        )
        for source in sources
    ]
