"""The interface between the training loop and its data."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from encoderlab.batches.batch import Batch
from encoderlab.corpus.tokenizer import Tokenizer
from encoderlab.train.recipe import Phase


class BatchSource(Protocol):
    """An endless supply of this process's parts of global batches."""

    def __next__(self) -> Batch: ...

    def state(self) -> dict[str, int]:
        """The state from which a new source continues after the last returned batch."""

    def close(self) -> None: ...


OpenSource = Callable[[Phase, int, "dict[str, int] | None"], BatchSource]
"""(phase, rows of a global batch, state of the previous source or None) -> source; that state may be from another
phase.
"""


class Chance(NamedTuple):
    """The result of guessing by label frequencies: the loss in nats, and the share of right guesses."""

    loss: float
    accuracy: float


class Scores(NamedTuple):
    """A function that gives further validation numbers, and the hash of the data that it reads."""

    score: Callable[[], Mapping[str, float]]
    hash: str


@dataclass(frozen=True, kw_only=True)
class Data:
    """The batches of a run, and facts about them.

    Args:
        source: opens the training batches.
        validation: returns the same whole batches at each call, on every process.
        score: further validation numbers of a task; called with the objective in evaluation mode.
        chance: by term, the result of guessing in validation.
        hashes: identify the data in the run folder.
        bytes_per_token: of the splits ``train`` and ``valid``: turns the losses in ``Objective.per_token`` into bits
            per byte.
        operations: training FLOPs per token, needed for a budget in FLOPs.
        tokenizer: written into the run folder.
    """

    source: OpenSource
    validation: Callable[[Phase], Iterable[Batch]] | None = None
    score: Callable[[], Mapping[str, float]] | None = None
    chance: Mapping[str, Chance] = field(default_factory=dict)
    hashes: Mapping[str, str] = field(default_factory=dict)
    bytes_per_token: Mapping[str, float] = field(default_factory=dict)
    operations: Callable[[Phase], float] | None = None
    tokenizer: Tokenizer | None = None


class Feed:
    """The batches of one source after another; ``waiting`` adds up the seconds spent waiting for them.

    ``resumed`` is the state of the source in the checkpoint, if the run resumes.
    """

    def __init__(self, open_source: OpenSource, resumed: dict[str, int] | None) -> None:
        self._open, self._resumed = open_source, resumed
        self._source: BatchSource | None = None
        self.waiting = 0.0

    def next(self, phase: Phase, rows: int, *, moved: bool) -> Batch:
        """The next batch. If the run has ``moved`` to a new phase or number of rows, a new source is opened.

        Raises:
            StopIteration: there is no more data.
        """
        if self._source is None or moved:
            state = self.state()
            self.close()
            self._source = self._open(phase, rows, state)
        begin = time.perf_counter()
        batch = next(self._source)
        self.waiting += time.perf_counter() - begin
        return batch

    def state(self) -> dict[str, int] | None:
        """The state of the current source; None before the first batch of a run."""
        return self._resumed if self._source is None else self._source.state()

    def close(self) -> None:
        if self._source is not None:
            self._source.close()
        self._source = None
