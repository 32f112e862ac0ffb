"""``encoderlab bench train``: training speed, alone or against ``transformers``, A B A B."""

from __future__ import annotations

import statistics
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from encoderlab.batches.loader import Format, Loader
from encoderlab.batches.pack import Chunks, PackedDocuments, SegmentPairs
from encoderlab.batches.rows import Row
from encoderlab.corpus.shards import Corpus
from encoderlab.errors import ConfigError, EncoderlabError
from encoderlab.measure.bench.families import Case
from encoderlab.measure.bench.workers import Work, Worker
from encoderlab.models.base import resized
from encoderlab.nn.positions import Absolute
from encoderlab.objectives.permutation import PermutationSettings
from encoderlab.objectives.vocabulary import Vocabulary
from encoderlab.train.corpus_data import row_framing
from encoderlab.train.recipe import Precision, Recipe


@dataclass(frozen=True, kw_only=True)
class TrainSetting:
    """The setting of a benchmark: ``turns`` of ``steps`` steps for each contender, after a turn that is not counted.

    ``compile``: the other contender takes part a second time, under ``torch.compile``.
    ``documents``: rows have several whole documents; the other contender pads each in its own row.
    """

    rows: int = 32
    length: int = 128
    turns: int = 5
    steps: int = 2
    threads: int = 2
    precision: Precision = "fp32"
    compile: bool = False
    documents: bool = False


COMPILED = "compiled"  # suffix of the name of a contender under torch.compile


def run(case: Case, corpus: Path, setting: TrainSetting, against: str | None) -> dict[str, Any]:
    """Time the contenders in turns on the same batches.

    Returns tokens per second, their ratio with its spread, the share of the matrix-product peak and of the rate that
    products sustain between the steps, peak memory, the shares of a step's time by part (on a GPU of its kernels'
    time, and the share of a step in which one runs), and the difference of the losses after 20 steps from equal weights
    without dropout.
    """
    with TrainContest(case, corpus, setting, against) as contest:
        result = contest.measured()
    if against is not None and against not in result.get("failed", ()):
        made = contest.case, contest.vocabulary, contest.rows, setting, against
        result["loss_difference"] = loss_difference(*made)
    return result


class TrainContest:
    """The contenders of one comparison, each in its process, after a turn that is not counted."""

    def __init__(self, case: Case, corpus: Path, setting: TrainSetting, against: str | None) -> None:
        others = [] if against is None else [against, f"{against} {COMPILED}"] if setting.compile else [against]
        case = _adapted(case, setting)
        self.vocabulary, self.rows = real_rows(case, corpus, setting)
        position = case.model.encoder.position
        if isinstance(position, Absolute) and position.offset:  # RoBERTa's positions, from the padding id on
            moved = replace(position, offset=self.vocabulary.pad + 1)
            case = replace(case, model=resized(case.model, position=moved))
        self.case, self.setting, self.others = case, setting, others
        self.failed: dict[str, str] = {}
        self.stack = ExitStack()
        try:
            start = (case, self.vocabulary, self.rows, setting)
            self.workers = {name: _start(self.stack, name, *start) for name in ("ours", *others)}
            for name in self.workers:
                self._steps(name, 1, first=True)
        except BaseException:
            self.stack.close()
            raise

    def __enter__(self) -> TrainContest:
        return self

    def __exit__(self, *_: object) -> None:
        self.stack.close()

    def measured(self) -> dict[str, Any]:
        """The numbers of :func:`run`, without the difference of the losses."""
        setting, took = self.setting, self._turns()
        working = {name: worker for name, worker in self.workers.items() if name not in self.failed}
        parts = {name: worker.call("profile") for name, worker in working.items()}
        memory = {name: worker.call("memory") for name, worker in working.items()}
        result: dict[str, Any] = {
            "case": self.case.name,
            "device": self.workers["ours"].call("device"),
            "precision": setting.precision,
            "compile": setting.compile,
            "rows": setting.rows,
            "length": setting.length,
            "threads": setting.threads,
            "tokens_per_second": {name: statistics.median(took.speed[name]) for name in working},
            "memory": memory,
            "parts": {name: shares(seconds) for name, seconds in parts.items()},
            "padding": padded_share(self.rows),
            **took.against_peak(operations_per_token(self.case, self.rows, setting)),
        }
        if torch.cuda.is_available():
            result["busy"] = {
                name: sum(of_parts.values()) / statistics.median(took.seconds[name]) for name, of_parts in parts.items()
            }
        for name, key in zip(self.others, ("ratio", "ratio_compiled"), strict=False):
            if name in working:
                ratios = [ours / theirs for ours, theirs in zip(took.speed["ours"], took.speed[name], strict=True)]
                result[key] = {setting.precision: statistics.median(ratios), "min": min(ratios), "max": max(ratios)}
        if self.others and self.others[0] in working:
            result["memory_ratio"] = memory["ours"] / max(memory[self.others[0]], 1)
        if self.failed:
            result["failed"] = self.failed
        return result

    def _turns(self) -> _Timing:
        """Let the contenders train in turns."""
        took = _Timing(speed={name: [] for name in self.workers}, seconds={name: [] for name in self.workers}, peaks=[])
        for _ in range(self.setting.turns):
            for name in self.workers:
                if (measured := self._steps(name, self.setting.steps)) is not None:
                    seconds, tokens = measured
                    took.speed[name].append(tokens / seconds)
                    took.seconds[name].append(seconds / self.setting.steps)
            took.peaks.append(self.workers["ours"].call("peak"))
        return took

    def _steps(self, name: str, count: int, *, first: bool = False) -> tuple[float, float] | None:
        """Seconds and tokens of ``count`` steps of a contender; None if it has failed. Ours must not fail."""
        if name in self.failed:
            return None
        before = warming(len(self.rows), first=first, gpu=torch.cuda.is_available(), compiled=name.endswith(COMPILED))
        try:
            seconds, tokens, _ = self.workers[name].call("steps", count, before)
        except EncoderlabError as error:
            if name == "ours":
                raise
            self.failed[name] = str(error)
            self.workers[name].close()  # which gives its memory back
            return None
        return seconds, tokens


def _adapted(case: Case, setting: TrainSetting) -> Case:
    """The case adapted to the setting's rows."""
    if setting.documents:
        case = replace(case, model=replace(case.model, pooler=None, pair=False))  # which reads pairs
    if isinstance(case.objective, PermutationSettings):  # a sixth of a row is predicted, as published
        targets = replace(case.objective.targets, count=max(1, setting.length // 6))
        case = replace(case, objective=replace(case.objective, targets=targets))
    return case


@dataclass(frozen=True, kw_only=True)
class _Timing:
    """The measurements of all turns, one number per counted turn.

    Args:
        speed: tokens per second by contender.
        seconds: of a step, by contender.
        peaks: operations per second of matrix products, the best and the sustained, in each turn.
    """

    speed: dict[str, list[float]]
    seconds: dict[str, list[float]]
    peaks: list[tuple[float, float]]

    def against_peak(self, work: float) -> dict[str, float]:
        """The rates of products in operations per second, and ours as a share of them; a token costs ``work``."""
        speed, peak = statistics.median(self.speed["ours"]), statistics.median(best for best, _ in self.peaks)
        beside = zip(self.speed["ours"], self.peaks, strict=True)
        return {
            "peak": peak,
            "sustained": statistics.median(rate for _, rate in self.peaks),
            "peak_share": speed * work / peak,
            "sustained_share": statistics.median(tokens * work / rate for tokens, (_, rate) in beside),
        }


def operations_per_token(case: Case, rows: list[list[Row]], setting: TrainSetting) -> float:
    """Floating-point operations of training per real token, as :func:`operations` counts them.

    Tokens attend within their own document, so the operations depend on the documents' lengths.
    """
    recipe = Recipe(model=case.model, generator=case.second, objective=case.objective)
    if not setting.documents:
        return recipe.operations(setting.length, case.second)
    lengths = Counter(int(n) for part in rows for row in part for n in np.unique(row.doc, return_counts=True)[1])
    work = sum(count * n * recipe.operations(n, case.second) for n, count in lengths.items())
    return work / sum(count * n for n, count in lengths.items())


def warming(batches: int, *, first: bool, gpu: bool, compiled: bool) -> int:
    """Steps of a turn that are not counted.

    Allocator, autotuner and compiler must see every batch shape once; on a GPU again after the other contender's turn,
    because each frees its memory after a turn.
    """
    if first:
        return batches * (2 if gpu or compiled else 1)
    return batches * gpu


def loss_difference(
    case: Case, vocabulary: Vocabulary, rows: list[list[Row]], setting: TrainSetting, against: str
) -> float:
    """Largest difference of the two losses over 20 steps in single precision without dropout, relative to the loss."""
    few = [part[: min(8, len(part))] for part in rows]
    plain = TrainSetting(threads=setting.threads)
    with ExitStack() as stack:
        one, two = (
            _start(stack, name, case.with_dropout(0.0), vocabulary, few, plain).call("steps", 20)[2]
            for name in ("ours", against)
        )
    return max(abs(a - b) / abs(b) for a, b in zip(one, two, strict=True))


def real_rows(case: Case, path: Path, setting: TrainSetting) -> tuple[Vocabulary, list[list[Row]]]:
    """Batches of rows from a corpus, in the ids of its tokenizer.

    The model's vocabulary may be larger, as its family's is.
    """
    if setting.documents and isinstance(case.objective, PermutationSettings):
        raise ConfigError(f"{case.name} reads streams, not documents side by side; leave documents out")
    corpus = Corpus(path)
    tokenizer = corpus.tokenizer()
    case.check_ids(tokenizer.vocab_size)
    size = case.model.encoder.vocab
    vocabulary = replace(Vocabulary.of(tokenizer, np.ones(size)), size=size)
    format: Format
    if setting.documents:
        format = PackedDocuments()
    elif case.model.pair:
        format = SegmentPairs(short_share=0.0)
    else:
        format = Chunks()
    loader = Loader(corpus, format, setting.length, framing=row_framing(tokenizer), seed=0, batch_rows=setting.rows)
    return vocabulary, list(islice(loader, 4))


def shares(seconds: dict[str, float]) -> dict[str, float]:
    """Each part's share of all seconds."""
    total = sum(seconds.values())
    return {part: value / total for part, value in seconds.items()}


def padded_share(rows: list[list[Row]]) -> float:
    """Share of the batches' positions that is padding."""
    tokens = sum(len(row) for part in rows for row in part)
    places = sum(len(part) * max(len(row) for row in part) for part in rows)
    return 1 - tokens / places


def _start(
    stack: ExitStack, name: str, case: Case, vocabulary: Vocabulary, rows: list[list[Row]], setting: TrainSetting
) -> Worker:
    library = name.removesuffix(f" {COMPILED}")
    work = Work(
        contender=library,
        case=case,
        vocabulary=vocabulary,
        rows=rows,
        threads=setting.threads,
        precision=setting.precision,
        compile=setting.compile and library != name,
    )
    worker = Worker(work)
    stack.callback(worker.close)
    return worker
