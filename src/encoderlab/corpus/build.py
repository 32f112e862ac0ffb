"""Sources to a corpus: read, tokenize piece by piece in parallel, drop duplicates, split, write shards.

    OUT/.work/plan.json           the settings, so that a build with others is not continued by mistake
    OUT/.work/tokenizer/          trained or copied
    OUT/.work/pieces/000000-...   tokens of about 4 MB of input each (:mod:`encoderlab.corpus.pieces`)
    OUT/.work/part.json           written when all pieces are there
    OUT/.work/assembly/...        decisions and records (:mod:`encoderlab.corpus.assemble`)
    OUT/train/, validation/ ...   the corpus (:mod:`encoderlab.corpus.shards`); with its manifest the corpus is complete

Each of these appears complete or not at all. A killed build continues where it was, and ends with the same
bytes, as does a build with any number of workers or machines: with ``num_shards`` n a machine reads every n-th stretch
of the input (:mod:`encoderlab.corpus.stretches`), and :func:`encoderlab.corpus.merge.merge_corpora` assembles them. On
a cluster, a task reads a stretch and makes its pieces.

Memory does not depend on the size of the input: one piece per worker, about 200 MB each.
"""

from __future__ import annotations

import functools
import itertools
import logging
import math
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from encoderlab.config import to_dict
from encoderlab.corpus import blocks
from encoderlab.corpus.assemble import Selection
from encoderlab.corpus.blocks import SourceBlock, range_start, read_blocks
from encoderlab.corpus.documents import parse_block
from encoderlab.corpus.find import find_sources
from encoderlab.corpus.manifest import MANIFEST, TOKENIZER, Manifest, SourceRecord, read_manifest, verify
from encoderlab.corpus.merge import (
    MAX_UNKNOWN,
    PartRecord,
    Progress,
    check_max_unknown,
    damaged_pieces,
    is_complete,
    join_parts,
    piece_origin,
    piece_path,
    pieces_made,
    pieces_of,
    read_part,
    too_many_unknown,
)
from encoderlab.corpus.output import ASSEMBLY, PART, PIECES, PLAN, WORK, begun, differences, held
from encoderlab.corpus.pieces import Piece, PieceInput, Segmenter, read_work, write_piece
from encoderlab.corpus.python.text import PREFIX, python_source
from encoderlab.corpus.sealed import check_folder, seal_folder
from encoderlab.corpus.segment import make_segmenter
from encoderlab.corpus.sources import Reading, Source
from encoderlab.corpus.stretches import SourceStretch, divide, is_divisible
from encoderlab.corpus.tokenizer import Kind, Tokenizer
from encoderlab.errors import ConfigError
from encoderlab.execution.workers import Tasks, Workers
from encoderlab.records.opening import COMPRESSED, errors_of
from encoderlab.sealed import Damaged, digest, write_record
from encoderlab.storage.places import identity, info, url_of
from encoderlab.storage.streams import sha256

log = logging.getLogger(__name__)

VERSION = 3  # of how the input is divided into pieces and sampled; a build of another version is refused
LOOK = 128  # times the bytes of the sample: the most to read for it of files that must be read from the beginning


@dataclass(frozen=True, kw_only=True)
class NewTokenizer:
    """A tokenizer to train on a sample of the text.

    Args:
        kind: ``wordpiece``, ``bpe`` (byte-level) or ``unigram``.
        vocab_size: tokens, special ones included.
        family: family of the special tokens and framing; None for the usual one of the kind.
        lowercase: None for the usual value of the kind.
        sample_bytes: approximate size of the training text, taken evenly from all sources.
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
    """The settings that determine the bytes of a corpus, together with the sources.

    Args:
        sources: files, folders, globs, or ``python:stdlib`` and ``python:all``, the text in every Python installation.
        segmenter: marks words in Chinese text (:mod:`encoderlab.corpus.segment`); with None every Chinese character is
            a word.
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
    cluster: Callable[[Sequence[Path]], Tasks] | None = None,
    progress: Progress = lambda what, done, total: None,
) -> Manifest | PartRecord:
    """Build a corpus, or part ``shard_index`` of ``num_shards`` of one; returns its manifest, or the part's record.

    Called again after an interruption, it continues; damaged results of earlier sessions are named and made again. A
    complete corpus of the same settings and sources is verified and not changed.

    Args:
        workers: number of processes besides this one, which reads; with 1, this process does everything.
        max_unknown: the share of unknown tokens above which the tokenizer is refused for this text.
        cluster: makes the cluster that reads stretches and makes shards instead; it takes what all nodes must see.

    Raises:
        ConfigError: wrong settings, or an output folder that is in use or has other content.
        DataError: sources that are missing, unreadable, without text, or not covered by the tokenizer.
    """
    out = Path(out) if cluster is None else Path(out).resolve()  # a cluster's workers are in other folders
    tasks: Callable[[], Tasks] = functools.partial(Workers, workers)
    tasks()  # refuses a wrong number before any work
    check_max_unknown(max_unknown)
    if num_shards < 1:
        raise ConfigError(f"num_shards {num_shards}, expected at least 1")
    if not 0 <= shard_index < num_shards:
        raise ConfigError(f"shard index {shard_index} of {num_shards} shards, expected 0 to {num_shards - 1}")
    _check(settings)
    sources = resolve_sources(settings.sources, settings.reading)
    if cluster is not None:
        sources = [replace(one, path=one.path if url_of(one.path) else one.path.resolve()) for one in sources]
        first = {one.path.parent: one.path for one in reversed(sources) if url_of(one.path) is None}  # of each folder
        tasks = functools.partial(cluster, [out, *first.values()])
    whole = num_shards == 1
    with held(out):
        if whole and (out / MANIFEST).exists():
            return _complete(settings, sources, out)
        if cluster is not None:
            with tasks():  # which checks its nodes, before any work
                pass
        part = Part(out / WORK if whole else out, settings, sources, shard_index, num_shards, cluster is not None)
        part.claim(out)
        tokenizer = part.tokenizer(progress)
        if isinstance(settings.tokenizer, GivenTokenizer):
            _require_covered(tokenizer, sources, settings.reading, max_unknown)
        record = part.make_pieces(tokenizer, tasks, progress)
        return join_parts([part.folder], out, tasks, max_unknown, progress) if whole else record


def _check(settings: BuildSettings) -> None:
    """Refuse wrong settings before any work, beyond what the types of the fields refuse."""
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
    """The manifest of an existing corpus, if it has the same settings and is intact."""
    manifest = read_manifest(out)
    asked = to_dict(settings)
    if manifest.settings != asked or manifest.tokenizer is None:
        changed = differences(manifest.settings or {}, asked)
        raise ConfigError(f"{out}: has a corpus with other settings: {changed}; choose another folder, or delete it")
    if _given_hash(settings) not in (None, manifest.tokenizer.hash):
        raise ConfigError(f"{out}: the tokenizer has changed since; choose another folder, or delete this one")
    recorded = {source.name: source.sha256 for source in manifest.sources}
    hashes = {path: sha256(path) for path in {source.path: None for source in sources}}
    for source in sources:
        if recorded.get(source.name) != hashes[source.path]:
            raise ConfigError(f"{out}: {source.name} has changed since; choose another folder, or delete this one")
    if len(recorded) != len(sources):
        raise ConfigError(f"{out}: built from {len(recorded)} sources, not {len(sources)}; choose another folder")
    verify(out)
    shutil.rmtree(out / WORK, ignore_errors=True)
    return manifest


@dataclass(frozen=True)
class Part:
    """The part of a corpus that one machine builds, in its own folder: every ``num_shards``-th stretch of the input.

    A corpus built by one machine is one part, in ``OUT/.work``.
    """

    folder: Path
    settings: BuildSettings
    sources: Sequence[Source]
    shard_index: int
    num_shards: int
    on_cluster: bool = False  # of a cluster that sees the sources

    def claim(self, out: Path) -> None:
        """Record the settings of the build, or check that they are the same; ``out`` is the folder that the user named.

        Raises:
            ConfigError: the folder has other content, or another build was started there.
        """
        earlier = begun(self.folder, out, PLAN, self.plan)
        if earlier != self.plan and not (self.folder / TOKENIZER).exists():
            write_record(self.folder / PLAN, self.plan)  # nothing was made yet; its tokenizer may have been refused
        elif earlier != self.plan:
            raise ConfigError(
                f"{out}: another build was started here: {differences(earlier, self.plan)}; "
                "give the same settings to continue it, or delete the folder"
            )
        for leftover in self.folder.rglob(".*.tmp"):
            leftover.unlink(missing_ok=True)

    @functools.cached_property
    def plan(self) -> dict[str, Any]:
        """The part of the corpus's description that is known before the sources are read."""
        return {
            "settings": to_dict(self.settings),
            "sources": {source.name: list(info(source.path)) for source in self.sources},
            "tokenizer": _given_hash(self.settings),
            "shard_index": self.shard_index,
            "num_shards": self.num_shards,
            "version": VERSION,
        }

    def tokenizer(self, progress: Progress) -> Tokenizer:
        """The tokenizer: given, trained now, or from an earlier session."""
        folder = self.folder / TOKENIZER
        if folder.exists():
            try:
                check_folder(folder, digest(self.plan))
                return Tokenizer.load(folder)
            except Damaged as problem:
                log.warning("%s; made again", problem)
                shutil.rmtree(folder)
        elif any((self.folder / PIECES).glob("*")):
            log.warning("%s: missing; made again", folder)
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
        """Make the missing or damaged pieces, and return the record of the part."""
        tokenizer_hash = tokenizer.hash()
        origin = digest([self.plan, tokenizer_hash])
        (self.folder / PIECES).mkdir(exist_ok=True)
        recorded = (self.folder / PART).exists()
        if (record := self._finished(origin, progress)) is not None:
            return record
        stretches = divide(self.sources)
        own = stretches[self.shard_index :: self.num_shards]
        task = functools.partial(
            _make_piece,
            tokenizer=self.folder / TOKENIZER,
            tokenizer_hash=tokenizer_hash,
            reading=self.settings.reading,
            segmenter=self.settings.segmenter,
            origin=origin,
            near_duplicates=self.settings.selection.near_duplicates,
        )
        made = pieces_made(self.folder)
        waiting = [stretch for stretch in own if not is_complete(made[stretch.number])]
        if own and not waiting and not recorded:
            log.warning("%s: missing although all pieces are there; it is written from them", self.folder / PART)
        done = sum(stretch.size for stretch in own) - sum(stretch.size for stretch in waiting)
        total = sum(stretch.size for stretch in own) if all(map(_has_known_size, self.sources)) else None
        if done:
            progress("bytes of text", done, total)  # pieces of earlier sessions
        firsts = {index for stretch in own if not stretch.start for index in range(stretch.first, stretch.end)}
        to_hash = {self.sources[index].path: None for index in firsts}  # a machine hashes what it starts to read
        hashes: dict[str, str] = {}
        with pool() as tasks:
            there = _read_there(waiting, tasks.cores) if self.on_cluster else []
            if self.on_cluster:
                tasks.ended = lambda name, result: hashes.update(result or {})
                shared = tasks.share(self.sources)
                read_there = {path for stretch in there for path in _read_whole(stretch, self.sources)}
                for path in to_hash:
                    if path not in read_there:
                        tasks.submit(_hash, [path])  # first: of a long file it takes longer than anything else
            for stretch in there:
                tasks.submit(_make_stretch, stretch, shared, self.folder, task)
                progress("bytes of text", done := done + stretch.size, total)
            for work in _read(self.sources, [stretch for stretch in waiting if stretch not in there], made):
                if not (path := piece_path(self.folder, work.name)).exists():
                    tasks.submit(task, path, work)
                size = stretches[work.name.stretch].size
                progress("bytes of text", done + (size if work.name.is_last else min(size, work.end.num_bytes)), total)
                done += size if work.name.is_last else 0
            if not self.on_cluster:
                hashes = _hash(to_hash)  # while the last pieces are made
            tasks.finish()
        made = pieces_made(self.folder)
        record = PartRecord(
            settings=to_dict(self.settings),
            sources=tuple(
                _source_record(source, hashes[str(source.path)] if index in firsts else "")
                for index, source in enumerate(self.sources)
            ),
            tokenizer=tokenizer_hash,
            tokenizer_origin=digest(self.plan),
            pieces_origin=origin,
            shard_index=self.shard_index,
            num_shards=self.num_shards,
            stretches=len(stretches),
            pieces=tuple(len(made[stretch.number]) for stretch in own),
        )
        write_record(self.folder / PART, to_dict(record))
        return record

    def _finished(self, origin: str, progress: Progress) -> PartRecord | None:
        """The record of the part if all its pieces are there. Damaged pieces are named and removed, and so are the
        shards that were written from them.
        """
        paths = sorted((self.folder / PIECES).glob("*.safetensors"))
        problems = damaged_pieces(paths, origin, progress)
        for problem in problems:
            log.warning("%s; made again", problem)
            problem.path.unlink(missing_ok=True)
        try:
            record = read_part(self.folder)
            removed = {problem.path for problem in problems}
            missing = [path for path in (piece_path(self.folder, name) for name in record.names()) if not path.exists()]
            for path in missing:
                if path not in removed:
                    log.warning("%s: missing; made again", path)
            if not missing:
                return record
        except FileNotFoundError:
            pass
        except Damaged as problem:
            log.warning("%s; written again", problem)
        (self.folder / PART).unlink(missing_ok=True)
        shutil.rmtree(self.folder / ASSEMBLY, ignore_errors=True)
        return None


def _load_given(settings: GivenTokenizer) -> Tokenizer:
    return Tokenizer.load(settings.path, family=settings.family, lowercase=settings.lowercase)


def _given_hash(settings: BuildSettings) -> str | None:
    return _load_given(settings.tokenizer).hash() if isinstance(settings.tokenizer, GivenTokenizer) else None


def _sample(sources: Sequence[Source], reading: Reading, budget: int, progress: Progress) -> Iterator[str]:
    """Documents of about ``budget`` bytes of the input, taken evenly; all if there is less.

    Only these are read. Files that must be read from their beginning are read up to :data:`LOOK` times as far."""
    sizes = [max(source.expected_bytes(), 1) for source in sources]
    share = min(1.0, budget / max(sum(sizes), 1))
    long = sum(size for source, size in zip(sources, sizes, strict=True) if not is_divisible(source))
    looked = min(1.0, LOOK * budget / max(long, 1))
    due = 0.0
    taken = 0
    for source, size in zip(sources, sizes, strict=True):
        part = 1.0 if is_divisible(source) else looked
        places = range(math.ceil(size * part / blocks.BLOCK))
        ends = list(itertools.accumulate(itertools.repeat(min(1.0, share / part), len(places)), initial=due))
        due = ends[-1]
        chosen = [n for n in places if int(ends[n]) != int(ends[n + 1]) or ends[n] == 0]
        for block in read_blocks(source) if share == 1.0 else _blocks_at(source, chosen, len(places)):
            taken += len(block.data)
            progress("bytes for the tokenizer", taken, None)
            for document in parse_block(block, reading)[0]:
                yield "\n".join(document)
            if taken >= 2 * budget:
                return


def _blocks_at(source: Source, places: Sequence[int], number: int) -> Iterator[SourceBlock]:
    """The blocks of a source that are cut in the chosen ones of the first ``number`` blocks of its bytes."""
    if is_divisible(source):
        for place in places:
            stop = (place + 1) * blocks.BLOCK if place < number - 1 else None
            yield from read_blocks(source, range_start(source, place * blocks.BLOCK), stop)
    elif places:
        wanted = set(places)
        for index, block in enumerate(read_blocks(source)):
            place = index if source.format in blocks.RECORDS else (block.end.read - 1) // blocks.BLOCK
            if place > places[-1]:
                return
            if place in wanted:
                yield block


def _has_known_size(source: Source) -> bool:
    """Whether the source's text is about as long as its file."""
    return source.format not in ("csv", "tsv", "parquet") and source.path.suffix.lower() not in COMPRESSED


def _require_covered(tokenizer: Tokenizer, sources: Sequence[Source], reading: Reading, limit: float) -> None:
    """Refuse, before any work, a tokenizer that does not cover the beginnings of some sources; the whole text is
    checked at the end.

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


def _read_there(stretches: Sequence[SourceStretch], cores: int) -> list[SourceStretch]:
    """The stretches that tasks of a cluster read. Long ones are read here, with their pieces as tasks, if there are too
    few for all cores.
    """
    long = sum(stretch.is_long for stretch in stretches)
    return [stretch for stretch in stretches if not stretch.is_long or long >= cores]


def _read(
    sources: Sequence[Source], stretches: Sequence[SourceStretch], made: Mapping[int, Sequence[Path]]
) -> Iterator[PieceInput]:
    """The pieces of these stretches, each from its first missing one on."""
    for is_begun, group in itertools.groupby(stretches, lambda stretch: bool(made[stretch.number])):
        if not is_begun:
            yield from read_work(sources, list(group))
            continue
        for stretch in group:
            pieces = made[stretch.number]
            yield from read_work(sources, [stretch], Piece(pieces[-1]).end, len(pieces))


def _make_stretch(
    stretch: SourceStretch, sources: Sequence[Source], folder: Path, make_piece: Callable[[Path, PieceInput], None]
) -> dict[str, str]:
    """Make the missing pieces of a stretch, and hash the files that it reads whole."""
    made = pieces_of(folder, stretch.number)
    if not is_complete(made):  # by a task whose node was lost before it could report
        for work in _read(sources, [stretch], {stretch.number: made}):
            if not (path := piece_path(folder, work.name)).exists():
                make_piece(path, work)
    return _hash(_read_whole(stretch, sources))


def _read_whole(stretch: SourceStretch, sources: Sequence[Source]) -> list[Path]:
    """The files that nobody reads but the reader of this stretch."""
    inside = () if stretch.start is not None else sources[stretch.first : stretch.end]
    return [source.path for source in inside if source.member is None]


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
    """Load the tokenizer once for all pieces. Its hash is part of the key, because a process may build in the same
    folder again with another tokenizer.
    """
    return Tokenizer.load(folder)


@functools.cache
def _load_segmenter(name: str | None) -> Segmenter | None:
    return None if name is None else make_segmenter(name)


def _hash(paths: Iterable[Path]) -> dict[str, str]:
    """SHA-256 of files by name."""
    hashes = {}
    for path in paths:
        with errors_of(str(path)):
            hashes[str(path)] = sha256(path)
    return hashes


def _source_record(source: Source, sha256: str) -> SourceRecord:
    size = info(source.path).size
    return SourceRecord(name=source.name, size=size, sha256=sha256, format=source.format, field=source.field)
