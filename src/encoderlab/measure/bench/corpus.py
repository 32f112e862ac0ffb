"""``encoderlab bench corpus``: building a corpus, against the tokenizer library alone with as many processes."""

from __future__ import annotations

import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import tokenizers

from encoderlab.corpus.build import BuildSettings, GivenTokenizer, build_corpus, resolve_sources
from encoderlab.corpus.documents import read_documents
from encoderlab.corpus.sources import Reading
from encoderlab.corpus.tokenizer import Tokenizer

TRAINING_SAMPLE = 32_000_000  # bytes that a tokenizer is trained on
TASK_LINES = 1000  # lines per call of the library


def run(
    sources: Sequence[str], *, tokenizer: str | None, vocab_size: int, megabytes: float, workers: int, turns: int
) -> dict[str, Any]:
    """Megabytes of text per second into shards, and of the library's ``encode_batch`` on the same text.

    The library's side neither reads nor writes files: its text is in memory, cut into lines.
    """
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        text = folder / "text.txt"
        size = _take(sources, text, int(megabytes * 1e6))
        lines = text.read_text(encoding="utf-8").splitlines()
        trained = Tokenizer.load(tokenizer) if tokenizer else Tokenizer.train("wordpiece", _sample(lines), vocab_size)
        trained.save(folder / "tokenizer")
        settings = BuildSettings(sources=(str(text),), tokenizer=GivenTokenizer(path=str(folder / "tokenizer")))
        ours, alone = [], []
        for turn in range(turns):
            started = time.perf_counter()
            build_corpus(settings, folder / f"corpus-{turn}", workers=workers)
            ours.append(size / 1e6 / (time.perf_counter() - started))
            alone.append(size / 1e6 / _library_alone(lines, folder / "tokenizer" / "tokenizer.json", workers))
    ratios = [a / b for a, b in zip(ours, alone, strict=True)]
    return {
        "megabytes": size / 1e6,
        "workers": workers,
        "megabytes_per_second": {"ours": statistics.median(ours), "tokenizers alone": statistics.median(alone)},
        "ratio": {"median": statistics.median(ratios), "min": min(ratios), "max": max(ratios)},
    }


def _take(patterns: Sequence[str], path: Path, size: int) -> int:
    """Copy the first ``size`` bytes of documents into one text file; returns how many it took."""
    reading, written = Reading(), 0
    with path.open("w", encoding="utf-8") as file:
        for source in resolve_sources(patterns, reading):
            for document in read_documents(source, reading):
                text = "\n".join(document) + "\n\n"
                file.write(text)
                written += len(text.encode())
                if written >= size:
                    return written
    return written


def _sample(lines: Sequence[str]) -> Iterator[str]:
    room = TRAINING_SAMPLE
    for line in lines:
        if room <= 0:
            return
        room -= len(line)
        yield line


def _library_alone(lines: Sequence[str], tokenizer: Path, workers: int) -> float:
    """Seconds of ``encode_batch`` on all lines in ``workers`` processes, their start not counted."""
    context = multiprocessing.get_context("spawn")
    tasks = [lines[i : i + TASK_LINES] for i in range(0, len(lines), TASK_LINES)]
    with context.Pool(workers, _start, (str(tokenizer),)) as pool:
        pool.map(_encode, [[]] * workers * 4)  # all processes are up
        started = time.perf_counter()
        for _ in pool.imap_unordered(_encode, tasks):
            pass
        return time.perf_counter() - started


_backend: list[tokenizers.Tokenizer] = []


def _start(path: str) -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    _backend.append(tokenizers.Tokenizer.from_file(path))


def _encode(lines: Sequence[str]) -> int:
    return sum(len(item.ids) for item in _backend[0].encode_batch(list(lines), add_special_tokens=False))
