"""The content of a page about pretraining: curves, guesses before and after, scores over seeds, cost, provenance.

This module does not depend on runs or models; :mod:`encoderlab.measure.html_page` makes the page.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from encoderlab.tasks.scoring.metrics import mean_interval

Tile = tuple[str, str, str]
"""A key number: label, value, detail."""


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A quantity with a curve. ``kind`` is the format of its values: ``number`` or ``percent``."""

    key: str
    label: str
    kind: str = "number"
    references: tuple[tuple[str, float], ...] = ()  # horizontal lines: name, value
    from_zero: bool = False


@dataclass(frozen=True, kw_only=True)
class Run:
    """The curves of one run: rows of ``metrics.jsonl``, each with ``tokens``, ``time`` (seconds) and metric values."""

    name: str
    train: Sequence[Mapping[str, Any]] = ()
    valid: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True, kw_only=True)
class Fill:
    """A text with one masked word, and the best guesses (word, probability) before and after training."""

    text: str
    mask: str
    answer: str | None = None
    before: Sequence[tuple[str, float]] = ()
    after: Sequence[tuple[str, float]] = ()


@dataclass(frozen=True, kw_only=True)
class MethodScores:
    """A method's scores on a task, one per seed (a baseline without seeds has one). ``ours``: drawn in colour."""

    name: str
    scores: Sequence[float]
    ours: bool = False


@dataclass(frozen=True, kw_only=True)
class TaskScores:
    """A fine-tuning task. ``compare`` names two methods: the verdict is about the first minus the second, paired by
    seed, and ``by`` names the cause of the difference.
    """

    name: str
    about: str
    metric: str
    methods: Sequence[MethodScores]
    compare: tuple[str, str] | None = None
    by: str = "from pretraining"


@dataclass(frozen=True, kw_only=True)
class Pieces:
    """A text and the (start, end) character spans of its tokens."""

    text: str
    spans: Sequence[tuple[int, int]]

    def coloured(self) -> Iterator[tuple[str, int | None]]:
        """The text in parts, each with the number of its colour; None between tokens."""
        end = 0
        for place, (start, stop) in enumerate(self.spans):
            if stop <= start:
                continue
            yield self.text[end:start], None
            yield self.text[start:stop], place % 5
            end = stop
        yield self.text[end:], None


@dataclass(frozen=True, kw_only=True)
class Report:
    """Everything on the page; an empty part is left out of it.

    ``findings`` are the doctor's, as mappings of their fields and ``seeds``. ``tiles`` are the key numbers of one run,
    ``compared`` those of several; ``tokenizer``, ``costs`` and ``provenance`` are tables of name and value; ``limits``
    are sentences about the limits of the numbers.
    """

    title: str
    verdict: str
    findings: Sequence[Mapping[str, str]] = ()
    tiles: Sequence[Tile] = ()
    compared: Mapping[str, Sequence[Tile]] = field(default_factory=dict)
    runs: Sequence[Run] = ()
    metrics: Sequence[Metric] = ()
    strips: Sequence[Metric] = ()
    fills: Sequence[Fill] = ()
    fills_note: str = ""
    tasks: Sequence[TaskScores] = ()
    tasks_note: str = ""
    pieces: Sequence[Pieces] = ()
    tokenizer: Mapping[str, str] = field(default_factory=dict)
    costs: Mapping[str, str] = field(default_factory=dict)
    costs_note: str = ""
    provenance: Mapping[str, str] = field(default_factory=dict)
    commands: Sequence[str] = ()
    limits: Sequence[str] = ()


def interval(scores: Sequence[float]) -> tuple[float, float]:
    """Mean and half width of the 95% interval of the mean over seeds (Student's t); the half is 0 for one score."""
    if len(scores) < 2:
        return scores[0], 0.0
    low, high = mean_interval(scores)
    return (low + high) / 2, (high - low) / 2


def difference(task: TaskScores) -> tuple[float, float] | None:
    """Mean and half width of the 95% interval of the paired difference that ``task.compare`` names."""
    if task.compare is None:
        return None
    scores = {method.name: method.scores for method in task.methods}
    first, second = scores[task.compare[0]], scores[task.compare[1]]
    if len(first) != len(second) or len(first) < 2:
        return None
    return interval([a - b for a, b in zip(first, second, strict=True)])


def columns(compared: Mapping[str, Sequence[Tile]]) -> tuple[list[str], dict[str, list[str]]]:
    """The labels of the key numbers of several runs, and the final numbers of each run, a dash for a missing one."""
    head = list(dict.fromkeys(label for tiles in compared.values() for label, _, _ in tiles))
    values = {run: {label: value.split(" → ")[-1] for label, value, _ in tiles} for run, tiles in compared.items()}
    return head, {run: [values[run].get(label, "–") for label in head] for run in compared}
