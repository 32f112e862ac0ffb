"""From pieces to the corpus: drop duplicates and documents of unwanted length, split, write the final shards.

All of it needs the whole corpus but none of its text: only digests and lengths of lines are read, piece by piece.

*Duplicates.* Two lines, or documents, count as equal if their 64-bit digests are equal; among a billion different
ones about 0.03 pairs are expected to collide. The first occurrence stays. Memory is bounded
(:mod:`encoderlab.corpus.duplicates`); disk: 16 bytes a line.

*Near duplicates.* A document is dropped if it shares a number of a band with an earlier one of the same length limits,
even if that one was dropped; so the first of several stays. Memory is bounded as above.
Documents are compared as they were read, repeated lines included. Disk: 16 bytes a document and band.

*Split.* A document belongs to the validation split if a hash of its lines is below the given fraction; its place in the
input does not matter, and equal documents are in the same split. If fewer than two are below, those with the two
smallest hashes are taken, because pairs of segments need two documents; with fewer than 20 documents one is enough.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from encoderlab.config import Bounded, PositiveShare, to_dict
from encoderlab.corpus import sealed
from encoderlab.corpus.duplicates import find_repeated
from encoderlab.corpus.manifest import SPLITS, ShardRecord
from encoderlab.corpus.pieces import Piece
from encoderlab.corpus.shards import create_shard, id_type, shard_record
from encoderlab.corpus.tensors import map_tensors, write_tensors
from encoderlab.files import sha256
from encoderlab.ranges import offsets
from encoderlab.seeds import mix

log = logging.getLogger(__name__)

SHARD_TOKENS = 1 << 26  # tokens after which a shard ends
TWO_HELD_OUT = 20  # documents of the smallest corpus that gives two for validation
DROPPED, TRAIN, VALIDATION = range(3)
_PLACE, _SPLIT = 0x9E3779B97F4A7C15, 0x5EED0F5A11D0C5  # distinguish hashes of lines at different places, and splits


@dataclass(frozen=True, kw_only=True)
class Selection(Bounded):
    """Which documents stay, and in which split.

    Args:
        min_chars, max_chars: documents with fewer or more characters are dropped.
        drop_documents: drop a document whose lines equal those of an earlier one.
        near_duplicates: drop a document that resembles an earlier one: the similarity of their runs of five words at
            which half of the pairs are found (:mod:`encoderlab.corpus.near_duplicates`); None keeps them.
        drop_lines: drop a line that occurred before anywhere in the corpus.
        validation: the fraction of documents held out.
    """

    min_chars: int = 1
    max_chars: int | None = None
    drop_documents: bool = True
    near_duplicates: PositiveShare | None = None
    drop_lines: bool = False
    validation: float = 0.01


@dataclass(frozen=True)
class ShardWork:
    """One shard to write: the documents of ``split`` in some consecutive pieces."""

    path: Path
    split: int
    pieces: tuple[tuple[Path, Path], ...]  # the piece and what :func:`plan` decided about it
    documents: int
    tokens: int
    vocab_size: int

    def record_path(self, scratch: Path) -> Path:
        """The file for this shard's part of the manifest, written after the shard; counts of ids are next to it."""
        return scratch / f"{self.path.parent.name}-{self.path.stem}.json"


def plan(
    pieces: Sequence[Path], selection: Selection, scratch: Path, out: Path, vocab_size: int
) -> tuple[list[ShardWork], dict[str, int], Counter[int]]:
    """Decide about every line and document; returns the shards to write, counts of read and dropped items, and the
    number of characters that were not valid UTF-8 by source.

    Decisions are files in ``scratch``; the same pieces give the same decisions.
    """
    scratch.mkdir(exist_ok=True)
    counts: Counter[str] = Counter()
    plans = _judge_each_alone(pieces, selection, scratch, counts)
    if selection.drop_documents:
        counts["duplicate_documents"] = _drop_repeated(plans, plans, "digests", scratch)
    if selection.near_duplicates is not None:
        counts["near_duplicate_documents"] = _drop_repeated(plans, pieces, "bands", scratch)
    _split(plans, selection)
    invalid: Counter[int] = Counter()
    shards = _shards(pieces, plans, counts, invalid, out, vocab_size)
    return shards, dict(counts), invalid


def _judge_each_alone(pieces: Sequence[Path], selection: Selection, scratch: Path, counts: Counter[str]) -> list[Path]:
    """Drop repeated lines, then documents by their own length; one file of decisions per piece, in the same order."""
    repeated = np.zeros(0, bool)
    if selection.drop_lines:
        total = sum(len(Piece(path).line_digests) for path in pieces)
        repeated = find_repeated((Piece(path).line_digests for path in pieces), total, scratch / "lines")
    first = 0  # line of the piece, among the lines of all
    plans = []
    for path in pieces:
        piece = Piece(path)
        kept = np.ones(len(piece.line_tokens), bool)
        if selection.drop_lines:
            kept = ~repeated[first : first + len(kept)]
            first += len(kept)
        codes, digests = _judge(piece, kept, selection, counts)
        plans.append(scratch / f"{path.stem}.plan")
        write_tensors(plans[-1], {"codes": codes, "digests": digests, "lines": kept.view(np.uint8)})
    return plans


def _drop_repeated(plans: Sequence[Path], files: Sequence[Path], name: str, scratch: Path) -> int:
    """Of the documents that are not dropped yet, drop each that shares a number with an earlier one.

    Args:
        plans: files of decisions, which are written again.
        files, name: for each of them a file, whose tensor of this name has equally many numbers for every document.

    Returns:
        the number of dropped documents.
    """

    def candidates() -> Iterator[np.ndarray]:
        for path, file in zip(plans, files, strict=True):
            codes = map_tensors(path)["codes"]
            yield map_tensors(file)[name].reshape(max(len(codes), 1), -1)[: len(codes)][codes != DROPPED]

    total = sum(rows.size for rows in candidates())
    repeated = find_repeated((rows.reshape(-1) for rows in candidates()), total, scratch / name)
    first = dropped = 0  # of the numbers of all
    for path, rows in zip(plans, candidates(), strict=True):
        again = repeated[first : first + rows.size].reshape(rows.shape).any(1)
        first, dropped = first + rows.size, dropped + int(again.sum())
        _mark(path, np.flatnonzero(map_tensors(path)["codes"])[again], DROPPED)
    return dropped


def _split(plans: Sequence[Path], selection: Selection) -> None:
    """Hold some of the documents out."""
    limit = int(selection.validation * 2**64)
    smallest: list[int] = []  # hashes of three different documents
    documents = 0
    for path in plans:
        hashes = _hashes(path)[1]
        documents += len(hashes)
        smallest = sorted({*smallest, *np.unique(hashes)[:3].tolist()})[:3]
    held_out = min(2 if documents >= TWO_HELD_OUT else 1, len(smallest) - 1)
    if selection.validation and held_out > 0:
        limit = max(limit, smallest[held_out - 1] + 1)
    for path in plans:
        places, hashes = _hashes(path)
        _mark(path, places[hashes < limit], VALIDATION)


def _hashes(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """The places of the documents that are not dropped, in a file of decisions, and the hashes that decide about the
    split: (n,) each.
    """
    tensors = map_tensors(path)
    places = np.flatnonzero(tensors["codes"])
    return places, mix(tensors["digests"][places] ^ np.uint64(_SPLIT))


def _mark(path: Path, places: np.ndarray, code: int) -> None:
    """Give the documents at ``places`` of a file of decisions another code."""
    if not len(places):
        return
    tensors = map_tensors(path)
    codes = tensors["codes"].copy()
    codes[places] = code
    write_tensors(path, {**tensors, "codes": codes})


def _judge(piece: Piece, kept: np.ndarray, selection: Selection, counts: Counter[str]) -> tuple[np.ndarray, np.ndarray]:
    """For each document of a piece its code, DROPPED or TRAIN, (d,) uint8, and its digest, (d,) uint64."""
    edges, number = piece.document_edges, offsets(kept)
    chars, tokens, lines = (_sums(values * kept, edges) for values in (piece.line_chars, piece.line_tokens, kept))
    places = number[1:] - np.repeat(number[edges[:-1]], piece.document_lines)  # of a kept line in its document, from 1
    digests = mix(_sums(mix(piece.line_digests + places.astype(np.uint64) * np.uint64(_PLACE)) * kept, edges))
    short = (chars < selection.min_chars) & (lines > 0)
    long = chars > (np.inf if selection.max_chars is None else selection.max_chars)
    blank = (tokens == 0) & (lines > 0) & ~short
    counts["documents"] += len(lines)
    counts["duplicate_lines"] += int((~kept).sum())
    counts["emptied_documents"] += int((lines == 0).sum())
    counts["short_documents"] += int(short.sum())
    counts["long_documents"] += int(long.sum())
    counts["documents_without_tokens"] += int((blank & ~long).sum())
    stays = ~(short | long | (tokens == 0))
    return stays.astype(np.uint8) * np.uint8(TRAIN), digests


def _sums(values: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Sums of ``values[edges[i]:edges[i + 1]]``, modulo 2**64 for uint64."""
    kind = np.int64 if values.dtype == bool else values.dtype
    totals = np.concatenate([np.zeros(1, kind), np.cumsum(values, dtype=kind)])
    return totals[edges[1:]] - totals[edges[:-1]]


def _shards(
    pieces: Sequence[Path],
    plans: Sequence[Path],
    counts: Counter[str],
    invalid: Counter[int],
    out: Path,
    vocab_size: int,
) -> list[ShardWork]:
    """Divide the kept documents of both splits among shards. A shard ends with the piece that fills it."""
    work: list[ShardWork] = []
    open_pieces: dict[int, list[tuple[Path, Path]]] = {TRAIN: [], VALIDATION: []}
    totals = {TRAIN: [0, 0], VALIDATION: [0, 0]}
    numbers = {TRAIN: 0, VALIDATION: 0}

    def close(split: int) -> None:
        name = SPLITS[split - TRAIN]
        path = out / name / f"shard-{numbers[split]:05d}.safetensors"
        documents, tokens = totals[split]
        work.append(ShardWork(path, split, tuple(open_pieces[split]), documents, tokens, vocab_size))
        open_pieces[split], totals[split], numbers[split] = [], [0, 0], numbers[split] + 1

    for path, plan_path in zip(pieces, plans, strict=True):
        piece, decided = Piece(path), map_tensors(plan_path)
        counts.update(piece.counts)
        invalid.update(piece.invalid)
        tokens = _sums(piece.line_tokens * decided["lines"], piece.document_edges)
        for split in open_pieces:
            chosen = decided["codes"] == split
            if chosen.any():
                open_pieces[split].append((path, plan_path))
                totals[split][0] += int(chosen.sum())
                totals[split][1] += int(tokens[chosen].sum())
                if totals[split][1] >= SHARD_TOKENS:
                    close(split)
    for split, left in open_pieces.items():
        if left:
            close(split)
    return work


def write_shard(work: ShardWork, out: Path, scratch: Path) -> None:
    """Write one final shard, and next to the plans its record for the manifest and, for training, its counts of ids."""
    record_path = work.record_path(scratch)
    work.path.parent.mkdir(exist_ok=True)
    counts = np.zeros(work.vocab_size, np.int64)
    with create_shard(work.path, work.documents, work.tokens, id_type(work.vocab_size)) as shard:
        for path, plan_path in work.pieces:
            piece, decided = Piece(path), map_tensors(plan_path)
            chosen = decided["codes"] == work.split
            lines = decided["lines"].view(bool) & np.repeat(chosen, piece.document_lines)
            tokens = np.repeat(lines, piece.line_tokens)
            ids = piece.ids[tokens]
            shard.add(
                ids,
                _sums(piece.line_tokens * lines, piece.document_edges)[chosen],
                _sums(piece.line_bytes * lines, piece.document_edges)[chosen],
                piece.sentences[tokens],
                piece.words[tokens],
            )
            if work.split == TRAIN:
                counts += np.bincount(ids, minlength=work.vocab_size)
    if work.split == TRAIN:
        sealed.write_tensors(record_path.with_suffix(".counts"), {"counts": counts.view(np.uint64)}, work.path.stem)
    sealed.write_record(record_path, to_dict(shard_record(out, work.path)))


def shard_is_written(work: ShardWork, scratch: Path) -> bool:
    """Whether an interrupted build completed this shard. A damaged shard is named, and must be written again."""
    record_path = work.record_path(scratch)
    try:
        record = sealed.read_record(record_path)
        if work.split == TRAIN:
            sealed.check_tensors(record_path.with_suffix(".counts"), work.path.stem)
        if (record["documents"], record["tokens"]) != (work.documents, work.tokens):
            raise sealed.Damaged(record_path, "of another origin")
        if not work.path.exists() or sha256(work.path) != record["sha256"]:
            raise sealed.Damaged(work.path, "damaged" if work.path.exists() else "missing")
    except FileNotFoundError:
        if work.path.exists():
            log.warning("%s: missing; %s is written again", record_path, work.path)
        return False
    except sealed.Damaged as problem:
        log.warning("%s; written again", problem)
        return False
    return True


def collect(
    work: Sequence[ShardWork], scratch: Path, vocab_size: int
) -> tuple[dict[str, list[ShardRecord]], np.ndarray]:
    """The records of all shards by split, and how often each id occurs in the training split, (V,) int64."""
    records: dict[str, list[ShardRecord]] = {split: [] for split in SPLITS}
    counts = np.zeros(vocab_size, np.int64)
    for item in work:
        record_path = item.record_path(scratch)
        records[item.path.parent.name].append(ShardRecord(**sealed.read_record(record_path)))
        if item.split == TRAIN:
            counts += map_tensors(record_path.with_suffix(".counts"))["counts"].view(np.int64)
    return records, counts
