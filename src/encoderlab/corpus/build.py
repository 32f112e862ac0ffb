"""Sources to a corpus: read, tokenize piece by piece in parallel, drop duplicates, split, write shards.

    OUT/.work/plan.json           the settings, so that a build with others is not continued by mistake
    OUT/.work/tokenizer/          trained or copied
    OUT/.work/pieces/000000-...   tokens of about 4 MB of input each (:mod:`encoderlab.corpus.pieces`)
    OUT/.work/part.json           written when all pieces are there
    OUT/.work/assembly/...        decisions and records (:mod:`encoderlab.corpus.assemble`)
    OUT/train/, validation/ ...   the corpus (:mod:`encoderlab.corpus.shards`); with its manifest the corpus is complete

Each of these appears complete or not at all. A killed build continues where it was, and ends with the same
bytes, as does a build with any number of workers or machines: with ``num_shards`` n a machine reads every n-th stretch
of the input (:mod:`encoderlab.corpus.stretches`), and :func:`encoderlab.corpus.merge.merge_corpora` assembles them.

Memory does not depend on the size of the input: one piece per worker, about 200 MB each.
"""

from __future__ import annotations

import functools
import itertools
import logging
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from encoderlab.config import to_dict
from encoderlab.corpus.assemble import Selection
from encoderlab.corpus.blocks import RECORDS, read_blocks
from encoderlab.corpus.documents import parse_block, sample_texts
from encoderlab.corpus.find import find_sources
from encoderlab.corpus.manifest import MANIFEST, TOKENIZER, Manifest, SourceRecord, read_manifest, verify
from encoderlab.corpus.merge import MAX_UNKNOWN, PartRecord, check_max_unknown, join_parts, read_part, too_many_unknown
from encoderlab.corpus.output import ASSEMBLY, PART, PIECES, PLAN, WORK, begun, differences, held
from encoderlab.corpus.pieces import (
    Piece,
    PieceInput,
    Segmenter,
    damaged_pieces,
    is_complete,
    piece_origin,
    piece_path,
    pieces_made,
    read_work,
    write_piece,
)
from encoderlab.corpus.python.text import PREFIX, python_source
from encoderlab.corpus.sealed import check_folder, seal_folder
from encoderlab.corpus.segment import make_segmenter
from encoderlab.corpus.sources import Reading, Source
from encoderlab.corpus.stretches import SourceStretch, divide
from encoderlab.corpus.tokenizer import Kind, Tokenizer
from encoderlab.errors import ConfigError, DataError
from encoderlab.execution.workers import Tasks, Workers
from encoderlab.messages import Progress
from encoderlab.records.opening import COMPRESSED, errors_of
from encoderlab.sealed import Damaged, digest, write_record
from encoderlab.storage.places import identity, info, url_of
from encoderlab.storage.streams import sha256

log = logging.getLogger(__name__)

VERSION = 3  # of how the input is divided into pieces and sampled; a build of another version is refused


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

    def train(self, sources: Sequence[Source], reading: Reading, progress: Progress) -> Tokenizer:
        texts = sample_texts(sources, reading, self.sample_bytes, progress)
        return Tokenizer.train(self.kind, texts, self.vocab_size, family=self.family, lowercase=self.lowercase)


@dataclass(frozen=True, kw_only=True)
class GivenTokenizer:
    """A tokenizer folder, or a ``tokenizer.json``, ``vocab.txt`` (...) file."""

    path: str
    family: str | None = None
    lowercase: bool | None = None

    def load(self) -> Tokenizer:
        return Tokenizer.load(self.path, family=self.family, lowercase=self.lowercase)


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

    def given_hash(self) -> str | None:
        """The hash of the tokenizer; None if it is to be trained."""
        return self.tokenizer.load().hash() if isinstance(self.tokenizer, GivenTokenizer) else None


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
    pool: Callable[[], Tasks] = functools.partial(Workers, workers)
    pool()  # refuses a wrong number before any work
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
        pool = functools.partial(cluster, [out, *first.values()])
    whole = num_shards == 1
    with held(out):
        if whole and (out / MANIFEST).exists():
            return _complete(settings, sources, out)
        if cluster is not None:
            with pool():  # which checks its nodes, before any work
                pass
        folder = out / WORK if whole else out
        part = Part(folder, settings, sources, shard_index, num_shards, pool, cluster is not None, progress)
        part.claim(out)
        tokenizer = part.tokenizer()
        if isinstance(settings.tokenizer, GivenTokenizer):
            _require_covered(tokenizer, sources, settings.reading, max_unknown)
        record = part.make_pieces(tokenizer)
        return join_parts([part.folder], out, pool, max_unknown, progress) if whole else record


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
    if settings.given_hash() not in (None, manifest.tokenizer.hash):
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
    """The part of a corpus that one machine or cluster builds: every ``num_shards``-th stretch of the input.

    A corpus that is not divided is one part, in ``OUT/.work``.
    """

    folder: Path
    settings: BuildSettings
    sources: Sequence[Source]
    shard_index: int
    num_shards: int
    pool: Callable[[], Tasks]
    on_cluster: bool  # whose nodes see the sources
    progress: Progress

    def claim(self, out: Path) -> None:
        """Record the settings of the build, or check that they are the same; ``out`` is the folder that the user named.

        Raises:
            ConfigError: the folder has other content, or another build was started there.
        """
        earlier = begun(self.folder, out, PLAN, self.plan)
        if earlier != self.plan:
            if (self.folder / TOKENIZER).exists():
                raise ConfigError(
                    f"{out}: another build was started here: {differences(earlier, self.plan)}; "
                    "give the same settings to continue it, or delete the folder"
                )
            write_record(self.folder / PLAN, self.plan)  # nothing was made yet; its tokenizer may have been refused
        for leftover in self.folder.rglob(".*.tmp"):
            leftover.unlink(missing_ok=True)

    @functools.cached_property
    def plan(self) -> dict[str, Any]:
        """The part of the corpus's description that is known before the sources are read."""
        return {
            "settings": to_dict(self.settings),
            "sources": {source.name: list(info(source.path)) for source in self.sources},
            "tokenizer": self.settings.given_hash(),
            "shard_index": self.shard_index,
            "num_shards": self.num_shards,
            "version": VERSION,
        }

    @functools.cached_property
    def stretches(self) -> list[SourceStretch]:
        """Those of all parts together."""
        return divide(self.sources)

    @functools.cached_property
    def own(self) -> list[SourceStretch]:
        return self.stretches[self.shard_index :: self.num_shards]

    @functools.cached_property
    def hashed(self) -> dict[int, Path]:
        """The sources that this part hashes, by number: those that it reads from their beginning."""
        begin = (stretch for stretch in self.own if not stretch.start)
        return {number: self.sources[number].path for one in begin for number in range(one.first, one.end)}

    def tokenizer(self) -> Tokenizer:
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
        wanted = self.settings.tokenizer
        if isinstance(wanted, GivenTokenizer):
            tokenizer = wanted.load()
        else:
            tokenizer = wanted.train(self.sources, self.settings.reading, self.progress)
        temporary = self.folder / f"{TOKENIZER}.tmp"
        shutil.rmtree(temporary, ignore_errors=True)
        tokenizer.save(temporary)
        seal_folder(temporary, digest(self.plan))
        os.replace(temporary, folder)
        return Tokenizer.load(folder)

    def make_pieces(self, tokenizer: Tokenizer) -> PartRecord:
        """Make the missing or damaged pieces, and return the record of the part."""
        (self.folder / PIECES).mkdir(exist_ok=True)
        make_piece = PieceMaker(self.folder, self.settings, tokenizer.hash(), digest([self.plan, tokenizer.hash()]))
        if (record := self._finished(make_piece.origin)) is not None:
            return record
        hashes = self._make_on_cluster(make_piece) if self.on_cluster else self._make_here(make_piece)
        for source in self.sources:
            if list(info(source.path)) != self.plan["sources"][source.name]:
                raise DataError(f"{source.name}: has changed while it was read; delete {self.folder}, and build again")
        record = PartRecord(
            settings=to_dict(self.settings),
            sources=tuple(
                SourceRecord(
                    name=source.name,
                    size=info(source.path).size,
                    sha256=hashes[str(source.path)] if number in self.hashed else "",
                    format=source.format,
                    field=source.field,
                )
                for number, source in enumerate(self.sources)
            ),
            tokenizer=make_piece.tokenizer_hash,
            tokenizer_origin=digest(self.plan),
            pieces_origin=make_piece.origin,
            shard_index=self.shard_index,
            num_shards=self.num_shards,
            stretches=len(self.stretches),
            pieces=tuple(len(pieces_made(self.folder, stretch.number)) for stretch in self.own),
        )
        write_record(self.folder / PART, to_dict(record))
        return record

    def _finished(self, origin: str) -> PartRecord | None:
        """The record of an earlier session if all pieces are there. Else damaged pieces, the record, and decisions that
        were made from them, are named and removed.
        """
        removed = set()
        for problem in damaged_pieces(sorted((self.folder / PIECES).glob("*.safetensors")), origin, self.progress):
            log.warning("%s; made again", problem)
            problem.path.unlink(missing_ok=True)
            removed.add(problem.path)
        try:
            record = read_part(self.folder)
        except FileNotFoundError:
            if self.own and all(is_complete(pieces_made(self.folder, stretch.number)) for stretch in self.own):
                log.warning("%s: missing although all pieces are there; it is written from them", self.folder / PART)
        except Damaged as problem:
            log.warning("%s; written again", problem)
        else:
            missing = [path for path in (piece_path(self.folder, name) for name in record.names()) if not path.exists()]
            if not missing:
                return record
            for path in missing:
                if path not in removed:
                    log.warning("%s: missing; made again", path)
        (self.folder / PART).unlink(missing_ok=True)
        shutil.rmtree(self.folder / ASSEMBLY, ignore_errors=True)
        return None

    def _make_here(self, make_piece: PieceMaker) -> dict[str, str]:
        """This process reads and hashes; each task makes a piece of what was read."""
        missing, done = self._missing()
        with self.pool() as tasks:
            self._read(missing, done, tasks, make_piece)
            hashes = _hash(dict.fromkeys(self.hashed.values()))  # while the last pieces are made
            tasks.finish()
        return hashes

    def _make_on_cluster(self, make_piece: PieceMaker) -> dict[str, str]:
        """Each task reads a stretch, makes its pieces, and hashes the files that nobody else reads. Long stretches are
        read here, if there are too few of them for all cores.
        """
        missing, done = self._missing()
        hashes: dict[str, str] = {}
        with self.pool() as tasks:
            tasks.ended = lambda name, result: hashes.update(result or {})
            long = [stretch for stretch in missing if stretch.is_long]
            here = long if len(long) < tasks.cores else []
            there = [stretch for stretch in missing if not (here and stretch.is_long)]
            read_whole = {path for stretch in there for path in _files_read_whole(stretch, self.sources)}
            for path in dict.fromkeys(self.hashed.values()):
                if path not in read_whole:
                    tasks.submit(_hash, [path])  # first: of a long file it takes longer than anything else
            sources = tasks.share(self.sources)
            for stretch in there:
                tasks.submit(_make_stretch, stretch, sources, self.folder, make_piece)
                self._report(done := done + stretch.size)
            self._read(here, done, tasks, make_piece)
            tasks.finish()
        return hashes

    def _missing(self) -> tuple[list[SourceStretch], int]:
        """The stretches that lack pieces, and the bytes of the others, which earlier sessions read."""
        missing = [stretch for stretch in self.own if not is_complete(pieces_made(self.folder, stretch.number))]
        if done := sum(stretch.size for stretch in self.own) - sum(stretch.size for stretch in missing):
            self._report(done)
        return missing, done

    def _read(self, stretches: Sequence[SourceStretch], done: int, tasks: Tasks, make_piece: PieceMaker) -> None:
        """Read stretches in this process, after ``done`` bytes of others, and submit their pieces."""
        sizes = {stretch.number: stretch.size for stretch in stretches}
        for work in _read_missing(stretches, self.sources, self.folder):
            tasks.submit(make_piece, piece_path(self.folder, work.name), work)
            size = sizes[work.name.stretch]
            self._report(done + (size if work.name.is_last else min(size, work.end.num_bytes)))
            done += size if work.name.is_last else 0

    @functools.cached_property
    def _report(self) -> Callable[[int], None]:
        """Reports the bytes that were read; with their total, unless some text is much longer than its file."""
        unlike = (one.format in RECORDS or one.path.suffix.lower() in COMPRESSED for one in self.sources)
        total = None if any(unlike) else sum(stretch.size for stretch in self.own)
        return lambda done: self.progress("bytes of text", done, total)


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


@dataclass(frozen=True)
class PieceMaker:
    """Makes pieces of a part, in any process that sees its folder; ``origin`` is a digest of all they depend on."""

    part: Path
    settings: BuildSettings
    tokenizer_hash: str
    origin: str

    def __call__(self, path: Path, work: PieceInput) -> None:
        """Write the piece to ``path``, unless it is there."""
        if not path.exists():
            tokenizer = _load_tokenizer(self.part / TOKENIZER, self.tokenizer_hash)
            segmenter, reading = _load_segmenter(self.settings.segmenter), self.settings.reading
            origin, near = piece_origin(self.origin, path), self.settings.selection.near_duplicates
            write_piece(path, work, tokenizer, reading, segmenter, origin, near)


@functools.lru_cache(maxsize=1)
def _load_tokenizer(folder: Path, tokenizer_hash: str) -> Tokenizer:
    """Load the tokenizer once for all pieces. Its hash is part of the key, because a process may build in the same
    folder again with another tokenizer.
    """
    return Tokenizer.load(folder)


@functools.cache
def _load_segmenter(name: str | None) -> Segmenter | None:
    return None if name is None else make_segmenter(name)


def _make_stretch(
    stretch: SourceStretch, sources: Sequence[Source], folder: Path, make_piece: Callable[[Path, PieceInput], None]
) -> dict[str, str]:
    """Make the missing pieces of a stretch, and hash the files that only its reader reads."""
    if not is_complete(pieces_made(folder, stretch.number)):  # by a task whose node was lost before it could report
        for work in _read_missing([stretch], sources, folder):
            make_piece(piece_path(folder, work.name), work)
    return _hash(_files_read_whole(stretch, sources))


def _read_missing(stretches: Sequence[SourceStretch], sources: Sequence[Source], folder: Path) -> Iterator[PieceInput]:
    """The pieces of these stretches, each from its first missing one on."""
    for is_begun, group in itertools.groupby(stretches, lambda stretch: bool(pieces_made(folder, stretch.number))):
        if not is_begun:
            yield from read_work(sources, list(group))  # those that follow each other in one pass
            continue
        for stretch in group:
            made = pieces_made(folder, stretch.number)
            yield from read_work(sources, [stretch], Piece(made[-1]).end, len(made))


def _files_read_whole(stretch: SourceStretch, sources: Sequence[Source]) -> list[Path]:
    """The files that nobody reads but the reader of this stretch."""
    inside = () if stretch.start is not None else sources[stretch.first : stretch.end]
    return [source.path for source in inside if source.member is None]


def _hash(paths: Iterable[Path]) -> dict[str, str]:
    """SHA-256 of files by name."""
    hashes = {}
    for path in paths:
        with errors_of(str(path)):
            hashes[str(path)] = sha256(path)
    return hashes
