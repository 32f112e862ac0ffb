"""Encoded examples as batches: several per row for training, sorted by length for prediction.

An :class:`Item` is a unit of training or prediction: one sequence of tokens, or one per option of a choice. ``doc``
separates the sequences of a row, so packing changes neither attention nor positions; it saves padding.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Self

import numpy as np
import torch
from torch import Tensor

from encoderlab.batches.batch import IGNORE, Batch
from encoderlab.batches.order import KeyedPermutation
from encoderlab.errors import DataError
from encoderlab.train.distributed import World

OPTIONS = 1024  # more than any example has; row numbers are item * OPTIONS + option
Packing = Literal["packed", "dynamic", "fixed"]


@dataclass(frozen=True, slots=True)
class Encoded:
    """A sequence of n tokens, special ones included."""

    ids: np.ndarray  # (n,)
    segments: np.ndarray  # (n,)
    labels: dict[str, Any] = field(default_factory=dict)  # of the sequence: numbers, or lists of numbers
    marks: dict[str, np.ndarray] = field(default_factory=dict)  # (n,) of its tokens

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True, slots=True)
class Item:
    """Sequences that belong together."""

    example: int  # index of their example
    sequences: tuple[Encoded, ...]

    def __len__(self) -> int:
        return sum(map(len, self.sequences))


@dataclass(frozen=True)
class TaskBatch(Batch):
    """A batch of packed sequences; a row has S slots for them.

    It is only cut between ``parts``: groups of rows with all sequences of their items.

    ``labels`` has for each slot, (B, S): ``begin`` and ``length`` of the sequence (length 0 in an empty slot), ``item``
    and ``option``, and the labels of the sequences, (B, S, ...) for lists; and for each token, (B, L), the marks.
    """

    parts: tuple[int, ...] = (0,)  # the first row of each part, then the number of rows

    def __len__(self) -> int:
        return len(self.parts) - 1

    def slice(self, start: int, stop: int) -> Self:
        first, last = self.parts[start], self.parts[stop]
        return dataclasses.replace(
            self._map(lambda tensor: tensor[first:last]),
            parts=tuple(row - first for row in self.parts[start : stop + 1]),
            host=None if self.host is None else self.host.slice(start, stop),
        )

    def sequences(self) -> tuple[Tensor, Tensor]:
        """Row and slot of every sequence, (n,) each, in the order of rows."""
        rows, slots = self.find(lambda batch: batch.labels["length"] > 0)
        return rows, slots


def pack(
    items: Sequence[Item], *, pad: int, room: int, mode: Packing = "packed", number: int = 0, parts: int = 1
) -> TaskBatch:
    """``items`` as one batch, whose rows are padded to a multiple of 8, but not beyond ``room``.

    Args:
        items: what to pack.
        pad: id of the padding token.
        room: largest length of a row in tokens.
        mode: ``packed`` fills rows evenly up to ``room``, the longest item first and each where it fits best (Krell et
            al., 2021); an item with more tokens gets its own rows. ``dynamic`` has one sequence per row, padded to the
            longest; ``fixed`` the same, padded to ``room``.
        number: of the first item within the run; a row's number, which keys dropout, is that of its first item.
        parts: the least number of parts, so that every process gets one.
    """
    bins = _even_bins([len(item) for item in items], room) if mode == "packed" else [[i] for i in range(len(items))]
    if len(bins) < parts:
        bins = [[i] for i in range(len(items))]
    rows: list[list[tuple[int, int]]] = []  # (item, option) side by side
    starts = [0]
    for members in bins:
        pairs = [(i, option) for i in members for option in range(len(items[i].sequences))]
        if mode == "packed" and sum(len(items[i]) for i in members) <= room:
            rows.append(pairs)
        else:
            lengths = [len(items[i].sequences[option]) for i, option in pairs]
            own = _bins(lengths, room) if mode == "packed" else [[k] for k in range(len(pairs))]
            rows += [[pairs[k] for k in row] for row in own]
        starts.append(len(rows))
    longest = max(sum(len(items[i].sequences[option]) for i, option in row) for row in rows)
    length = max(longest, room if mode == "fixed" else min(-(-longest // 8) * 8, room))
    return _tensors(items, rows, tuple(starts), pad, length, number)


def _even_bins(lengths: Sequence[int], room: int) -> list[list[int]]:
    """As many rows as :func:`_bins` needs, with the smallest length (a multiple of 8) that suffices.

    Otherwise the last row would be mostly padding.
    """
    bins = _bins(lengths, room)
    least = max(max(lengths), -(-sum(lengths) // len(bins)))
    for length in range(-(-least // 8) * 8, room, 8):
        tighter = _bins(lengths, length)
        if len(tighter) == len(bins):
            return tighter
    return bins


def _bins(lengths: Sequence[int], room: int) -> list[list[int]]:
    """Group lengths into rows: the longest first, each where it fits best; one longer than ``room`` is alone."""
    bins: list[list[int]] = []
    left: list[int] = []
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        fitting = [(space, k) for k, space in enumerate(left) if space >= lengths[i]]
        if fitting:
            k = min(fitting)[1]
            bins[k].append(i)
            left[k] -= lengths[i]
        else:
            bins.append([i])
            left.append(room - lengths[i])
    return bins


def _tensors(
    items: Sequence[Item],
    rows: Sequence[Sequence[tuple[int, int]]],
    parts: tuple[int, ...],
    pad: int,
    length: int,
    number: int,
) -> TaskBatch:
    """The batch of rows of (item, option) pairs, padded to ``length``; ``number`` as in :func:`pack`."""
    slots = max(map(len, rows))
    first = items[rows[0][0][0]].sequences[0]
    ids = np.full((len(rows), length), pad, np.int64)
    doc = np.full((len(rows), length), -1, np.int32)
    segments = np.zeros((len(rows), length), np.int64)
    labels: dict[str, np.ndarray] = {
        name: np.zeros((len(rows), slots), np.int64) for name in ("begin", "length", "item", "option")
    }
    for name, value in first.labels.items():
        kind = np.float32 if np.asarray(value).dtype.kind == "f" else np.int64
        labels[name] = np.full((len(rows), slots, *np.shape(value)), IGNORE, kind)
    for name, mark in first.marks.items():
        labels[name] = np.full((len(rows), length), False if mark.dtype == bool else IGNORE, mark.dtype)
    for r, row in enumerate(rows):
        begin = 0
        for slot, (i, option) in enumerate(row):
            sequence = items[i].sequences[option]
            end = begin + len(sequence)
            ids[r, begin:end], segments[r, begin:end], doc[r, begin:end] = sequence.ids, sequence.segments, slot
            labels["begin"][r, slot], labels["length"][r, slot] = begin, len(sequence)
            labels["item"][r, slot], labels["option"][r, slot] = i, option
            for name, value in sequence.labels.items():
                labels[name][r, slot] = value
            for name, mark in sequence.marks.items():
                labels[name][r, begin:end] = mark
            begin = end
    return TaskBatch(
        ids=torch.from_numpy(ids),
        doc=torch.from_numpy(doc),
        segments=torch.from_numpy(segments),
        labels={name: torch.from_numpy(value) for name, value in labels.items()},
        rows=torch.tensor([min((number + i) * OPTIONS + option for i, option in row) for row in rows]),
        parts=parts,
    )


class ItemSource:
    """Batches of items for the training loop, epoch after epoch in a new order; its state is three integers.

    The order of an epoch depends on (seed, epoch); the last batch of an epoch is smaller. Every process packs the same
    global batch and takes its parts.
    """

    def __init__(
        self,
        items: Sequence[Item],
        *,
        batch: int,
        room: int,
        pad: int,
        mode: Packing,
        seed: int,
        world: World,
        state: dict[str, int] | None = None,
    ) -> None:
        if not items:
            raise DataError("no examples to train on; give a training file with at least one usable example")
        self.items, self.batch, self.room, self.pad, self.mode = items, batch, room, pad, mode
        self.seed, self.world = seed, world
        self.place = state or {"epoch": 0, "offset": 0, "seen": 0}
        self._order: tuple[int, KeyedPermutation] | None = None

    def __next__(self) -> TaskBatch:
        epoch, offset, seen = self.place["epoch"], self.place["offset"], self.place["seen"]
        if self._order is None or self._order[0] != epoch:
            self._order = (epoch, KeyedPermutation(len(self.items), self.seed, "examples", epoch))
        stop = min(offset + self.batch, len(self.items))
        chosen = [self.items[i] for i in self._order[1](np.arange(offset, stop))]
        size = self.world.size
        packed = pack(chosen, pad=self.pad, room=self.room, mode=self.mode, number=seen, parts=size)
        if len(packed) < size:  # repeat a remainder that is too small to share, one item per process
            packed = pack((chosen * size)[:size], pad=self.pad, room=self.room, mode="dynamic", number=seen, parts=size)
        done = stop == len(self.items)
        self.place = {"epoch": epoch + done, "offset": 0 if done else stop, "seen": seen + stop - offset}
        return packed.slice(*self.world.share(len(packed)))

    def state(self) -> dict[str, int]:
        return dict(self.place)

    def close(self) -> None:
        pass


def sorted_batches(
    items: Sequence[Item], *, pad: int, room: int, tokens: int = 4096
) -> Iterator[tuple[list[int], TaskBatch]]:
    """Items in batches of similar length, the longest first, each with the indices of its items. A batch has at most
    ``tokens`` tokens with its padding, unless one item has more; no row is longer than ``room``.
    """
    order = sorted(range(len(items)), key=lambda i: -_longest(items[i]))
    start = 0
    while start < len(order):
        widest = _longest(items[order[start]])
        stop, rows = start, 0
        while stop < len(order) and (stop == start or (rows + len(items[order[stop]].sequences)) * widest <= tokens):
            rows += len(items[order[stop]].sequences)
            stop += 1
        numbers = order[start:stop]
        yield numbers, pack([items[i] for i in numbers], pad=pad, room=room, mode="dynamic")
        start = stop


def _longest(item: Item) -> int:
    return max(map(len, item.sequences))


def groups(batch: TaskBatch) -> tuple[Tensor, Tensor]:
    """The item index of every sequence, (n,) in the order of rows, and the number of sequences per item."""
    known = batch.on_host
    _, group, sizes = torch.unique(known.labels["item"][known.sequences()], return_inverse=True, return_counts=True)
    return batch.bring(group), batch.bring(sizes)


def to_numpy(tensor: Tensor) -> Any:
    """As a float32 array on the host."""
    return tensor.detach().float().cpu().numpy()
