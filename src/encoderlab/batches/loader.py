"""Loader: the rows of a run in an order that depends only on the seed, prepared ahead in a thread.

Epoch e visits the documents in the order of a :class:`~encoderlab.batches.order.KeyedPermutation` keyed by (seed, e),
in blocks of about 4 million tokens. A generator keyed by (seed, e, block) plans each block as a whole (``pack.py``) and
shuffles its rows. So a few integers are the loader's whole state (:class:`LoaderPlace`), and starting anywhere in an
epoch only plans one block. The global batch of a step is the same for any number of ranks, threads and micro-batches; a
rank reads only its slice.
"""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from encoderlab.batches.order import KeyedPermutation
from encoderlab.batches.pack import FullSentences, RowFormat, check_length
from encoderlab.batches.rows import Documents, Framing, Plan, Row
from encoderlab.batches.streams import StreamFormat, TokenLine, parallel_streams
from encoderlab.errors import ConfigError, DataError, check_known
from encoderlab.seeds import generator

BLOCK_TOKENS = 1 << 22

Format = RowFormat | StreamFormat


@dataclass(frozen=True)
class LoaderPlace:
    """The position of a loader: which batch comes next."""

    epoch: int = 0
    block: int = 0  # for streams: the position of the window
    offset: int = 0  # rows of the block that were already returned
    rows: int = 0  # rows returned since the start of the run, on all ranks
    step: int = 0  # batches returned


class Shuffled:
    """Rows of planned blocks in random order.

    With ``batch="tokens"`` in the row format, :meth:`take` counts tokens: for each requested row it allows ``length``
    tokens, and returns as many rows as fit.

    Args:
        duplicates: repeat the rows, and so their masks, of the first epochs: epoch e has the rows of epoch
            e % duplicates, in another order. This is static masking: ``duplicates=10`` over 40 epochs shows each mask
            4 times.
    """

    def __init__(
        self,
        corpus: Documents,
        format: RowFormat,
        length: int,
        framing: Framing,
        seed: int,
        *,
        duplicates: int | None = None,
        block_tokens: int = BLOCK_TOKENS,
    ) -> None:
        check_length(length, framing)
        self.corpus, self.format, self.length, self.framing, self.seed = corpus, format, length, framing, seed
        self.duplicates = duplicates
        self.in_tokens = isinstance(format, FullSentences) and format.batch == "tokens"
        self.num_blocks = max(1, min(round(corpus.num_tokens / block_tokens), corpus.num_documents))
        self._planner = ThreadPoolExecutor(1, "plan")
        self._planned: dict[tuple[int, int], Future[PlannedBlock]] = {}

    def take(self, place: LoaderPlace, size: int, until: int | None = None) -> tuple[list[Any], LoaderPlace]:
        """References to the next ``size`` rows from ``place`` on, and the place after them; fewer at the start of epoch
        ``until``.
        """
        taken: list[tuple[PlannedBlock, int]] = []
        left, empty = size * self.length if self.in_tokens else size, 0
        while True:
            block = self.block(place.epoch, place.block, until)
            empty = 0 if len(block.order) else empty + 1
            if empty > self.num_blocks:
                raise self._no_row()
            offset = min(place.offset, len(block.order))  # an earlier phase with other lengths may have had more rows
            count, used, full = _fitting(block.costs, offset, len(block.order), left)
            taken += [(block, offset + i) for i in range(count)]
            left -= used
            place = replace(place, offset=offset + count)
            if place.offset == len(block.order):
                last = place.block + 1 == self.num_blocks
                place = replace(place, epoch=place.epoch + last, block=0 if last else place.block + 1, offset=0)
            if full or left == 0 or place.epoch == until:
                if not taken and not place.rows:
                    raise self._no_row()
                return taken, replace(place, rows=place.rows + len(taken), step=place.step + 1)

    def _no_row(self) -> DataError:
        return DataError(
            f"a corpus of {self.corpus.num_tokens:,} tokens gives no row of {self.format.kind}; "
            "choose shorter rows or add text"
        )

    def read(self, references: list[tuple[PlannedBlock, int]], number: int) -> list[Row]:
        """The rows of ``references``; ``number`` is the number of the first row within the run."""
        rows: list[Row] = []
        # Compare by identity: blocks of two epochs may have the same key and different orders.
        for _, group in itertools.groupby(references, key=lambda reference: id(reference[0])):
            members = list(group)
            block, offsets = members[0][0], [offset for _, offset in members]
            first = number + len(rows)
            rows += block.plan.rows(block.order[offsets], self.corpus, self.framing, block.key, first)
        return rows

    def documents(self, cycle: int, number: int) -> np.ndarray:
        """The numbers of the documents in block ``number``."""
        total = self.corpus.num_documents
        places = np.arange(number * total // self.num_blocks, (number + 1) * total // self.num_blocks)
        return KeyedPermutation(total, self.seed, "documents", cycle)(places)

    def block(self, epoch: int, place: int, until: int | None = None) -> PlannedBlock:
        """A block; meanwhile the next block is planned, unless it belongs to epoch ``until``."""
        following = (epoch, place + 1) if place + 1 < self.num_blocks else (epoch + 1, 0)
        blocks = [(epoch, place)] if following[0] == until else [(epoch, place), following]
        self._planned = {key: self._planned.get(key) or self._planner.submit(self._plan, *key) for key in blocks}
        return self._planned[epoch, place].result()

    def _plan(self, epoch: int, place: int) -> PlannedBlock:
        cycle = epoch % self.duplicates if self.duplicates else epoch
        number = KeyedPermutation(self.num_blocks, self.seed, "blocks", epoch)[place]
        documents = self.documents(cycle, number)
        rng = generator(self.seed, "plan", cycle, number)
        plan = self.format.plan(self.corpus, documents, rng, self.framing, self.length)
        order = generator(self.seed, "order", epoch, number).permutation(len(plan))
        costs = np.cumsum(plan.lengths(self.framing)[order]) if self.in_tokens else None
        return PlannedBlock(plan, order, costs, (cycle, number))


@dataclass(frozen=True)
class PlannedBlock:
    """A planned block of an epoch."""

    plan: Plan
    order: np.ndarray  # (R,) rows of the plan in the order of use
    costs: np.ndarray | None  # (R,) cumulative tokens of the rows, if tokens are counted
    key: tuple[int, int]  # names its rows for seeding


def _fitting(costs: np.ndarray | None, offset: int, total: int, left: int) -> tuple[int, int, bool]:
    """Number of rows from ``offset`` that fit into ``left``, their cost, and whether the batch is then full."""
    if costs is None:
        count = min(left, total - offset)
        return count, count, count == left
    before = int(costs[offset - 1]) if offset else 0
    count = int(np.searchsorted(costs, before + left, side="right")) - offset
    used = int(costs[offset + count - 1]) - before if count else 0
    return count, used, offset + count < total


class Streams:
    """Rows of parallel streams, window after window; a batch has one row per stream. Read as :class:`Shuffled` is."""

    def __init__(
        self, corpus: Documents, format: StreamFormat, length: int, framing: Framing, seed: int, count: int
    ) -> None:
        self.format, self.length, self.framing, self.seed = format, length, framing, seed
        line = TokenLine.of(corpus, framing, separator=format.separator)
        self.streams = parallel_streams(line, count, format, length)

    def take(self, place: LoaderPlace, size: int, until: int | None = None) -> tuple[list[Any], LoaderPlace]:
        available = self.streams[0].length
        if place.block + self.format.shortest(self.length) > available:  # an earlier phase had shorter windows
            place = replace(place, epoch=place.epoch + 1, block=0)
            if place.epoch == until:
                return [], place
        length, following = self.format.window(self.length, available, place.block, self.seed, place.epoch)
        taken = [(place, length, stream) for stream in range(size)]
        epoch = place.epoch + (following is None)
        return taken, replace(place, epoch=epoch, block=following or 0, rows=place.rows + size, step=place.step + 1)

    def read(self, references: list[tuple[LoaderPlace, int, int]], number: int) -> list[Row]:
        return [self._read(*reference, number + i) for i, reference in enumerate(references)]

    def _read(self, place: LoaderPlace, length: int, stream: int, number: int) -> Row:
        key = (place.epoch, place.block, stream)
        rng = generator(self.seed, "split", *key)
        row = self.format.row(self.streams[stream], place.block, length, self.framing, rng)
        return replace(row, key=key, number=number)


class Loader:
    """Iterates over a rank's batches of a run, each a list of rows or the result of ``transform``.

    Args:
        corpus: the source of the text.
        format: how rows are made of it.
        length: of a row, in tokens.
        framing: the special tokens around texts.
        seed: of the run; it alone determines the rows and their order.
        batch_rows: rows of the global batch.
        rank, world: this process and the number of processes; rank r has the rows from ``n * r // world`` up to
            ``n * (r + 1) // world`` of a batch of n.
        state: of an earlier loader, to continue from there.
        transform: applied to the rows in the thread that prepares them, such as ``objective.make_batch``.
        epochs: stop after this many; None for no end. The last batch is then smaller; it is left out if it has fewer
            rows than ranks.
        ahead: number of batches that are prepared in advance.
        duplicates, block_tokens: see :class:`Shuffled`.

    Raises:
        DataError: the corpus is shorter than one row, or gives no row at all; another version wrote the ``state``.
    """

    def __init__(
        self,
        corpus: Documents,
        format: Format,
        length: int,
        *,
        framing: Framing,
        seed: int,
        batch_rows: int,
        rank: int = 0,
        world: int = 1,
        state: dict[str, int] | None = None,
        transform: Callable[[list[Row]], Any] | None = None,
        epochs: int | None = None,
        ahead: int = 4,
        duplicates: int | None = None,
        block_tokens: int = BLOCK_TOKENS,
    ) -> None:
        assert 0 <= rank < world, (rank, world)
        self.rank, self.world, self.epochs, self.ahead, self.transform = rank, world, epochs, ahead, transform
        self.batch_rows, self._place = batch_rows, LoaderPlace()
        if state:
            check_known(state, asdict(self._place), "the checkpoint's place in the text")
            self._place = LoaderPlace(**state)
        if corpus.num_tokens == 0 or (epochs is None and corpus.num_tokens < length - framing.pair):
            raise DataError(
                f"corpus of {corpus.num_tokens:,} tokens is shorter than one row of {length}; "
                f"add text, or choose a shorter row"
            )
        self.order: Shuffled | Streams
        if isinstance(format, StreamFormat):
            self.order = Streams(corpus, format, length, framing, seed, batch_rows)
        else:
            self.order = Shuffled(
                corpus, format, length, framing, seed, duplicates=duplicates, block_tokens=block_tokens
            )

    def state(self) -> dict[str, int]:
        """The position after the batches that were returned; a few integers."""
        return asdict(self._place)

    def __iter__(self) -> Iterator[Any]:
        ready: queue.Queue[tuple[Any, LoaderPlace | None]] = queue.Queue(max(1, self.ahead))
        stop = threading.Event()
        thread = threading.Thread(target=self._produce, args=(ready, stop, self._place), name="loader", daemon=True)
        thread.start()
        try:
            while True:
                item, place = ready.get()
                if isinstance(item, BaseException):
                    raise item
                if place is None:
                    return
                self._place = place
                yield item
        finally:
            stop.set()
            thread.join()

    def _produce(
        self, ready: queue.Queue[tuple[Any, LoaderPlace | None]], stop: threading.Event, place: LoaderPlace
    ) -> None:
        def put(item: Any, after: LoaderPlace | None) -> None:
            while not stop.is_set():
                try:
                    return ready.put((item, after), timeout=0.1)
                except queue.Full:
                    continue

        try:
            while not stop.is_set() and (self.epochs is None or place.epoch < self.epochs):
                rows, after = self._batch(place)
                if rows:
                    put(self.transform(rows) if self.transform else rows, after)
                place = after
            put(None, None)
        except BaseException as error:  # passed to the consumer, which raises it
            put(error, None)

    def _batch(self, place: LoaderPlace) -> tuple[list[Row], LoaderPlace]:
        """This rank's rows of the next batch; empty if the last batch has fewer rows than ranks."""
        references, after = self.order.take(place, self.batch_rows, self.epochs)
        total = len(references)
        if total < self.world:
            if self.epochs is None:
                raise ConfigError(
                    f"a batch of {total} rows cannot be shared by {self.world} processes; choose a larger batch"
                )
            return [], after
        start, stop = total * self.rank // self.world, total * (self.rank + 1) // self.world
        return self.order.read(references[start:stop], place.rows + start), after
