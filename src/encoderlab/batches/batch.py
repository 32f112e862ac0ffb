"""Batch: rows as tensors of one shape, the only form in which models and objectives see data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Self

import numpy as np
import torch
from torch import Tensor

from encoderlab.batches.rows import Row

IGNORE = -100  # a label that no loss counts, as in torch.nn.functional.cross_entropy


@dataclass(frozen=True)
class Batch:
    """B rows, padded to length L. The first dimension of every tensor is the rows, so a batch can be sliced.

    Two positions see each other, in attention and in convolution, if their ``doc`` is equal and not -1.
    """

    ids: Tensor  # (B, L) int64
    doc: Tensor  # (B, L) int32, -1 at padding
    segments: Tensor | None = None  # (B, L) int64
    labels: dict[str, Tensor] = field(default_factory=dict)
    rows: Tensor | None = None  # (B,) int64: number of each row within the run, which keys dropout
    host: Self | None = None  # for a batch on an accelerator: its copy in host memory

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def num_tokens(self) -> int:
        """Number of tokens that are not padding."""
        return int((self.doc >= 0).sum())

    @property
    def documents(self) -> Tensor | None:
        """``doc`` (B, L) for an encoder: None if every row is one document without padding."""
        return self.doc if bool(self.on_host.doc.any()) else None

    @property
    def on_host(self) -> Self:
        """The batch in host memory, where reading values does not wait for an accelerator."""
        return self if self.host is None else self.host

    def to(self, device: torch.device | str) -> Self:
        """A copy on ``device``; does not wait for the transfer."""
        moved = self._map(lambda tensor: send(tensor, device))
        return replace(moved, host=self if self.ids.device.type == "cpu" else self.host)

    def pin(self) -> Self:
        """A copy in page-locked memory, from which a GPU can copy while it computes."""
        return self._map(lambda tensor: tensor.pin_memory())

    def slice(self, start: int, stop: int) -> Self:
        """Rows ``start:stop``, as views."""
        rows = self._map(lambda tensor: tensor[start:stop])
        return rows if self.host is None else replace(rows, host=self.host.slice(start, stop))

    def find(self, mark: Callable[[Self], Tensor]) -> tuple[Tensor, ...]:
        """The indices at which ``mark(batch)`` is True, (S,) for each of its axes.

        Computed on the host's copy: S is a shape, so computing it on a device would wait for the device.
        """
        return self.bring(mark(self.on_host).nonzero().T.contiguous()).unbind()

    def bring(self, tensor: Tensor) -> Tensor:
        """``tensor``, computed from :attr:`on_host`, on this batch's device."""
        return send(tensor, self.ids.device)

    def _map(self, function: Callable[[Tensor], Tensor]) -> Self:
        return replace(
            self,
            ids=function(self.ids),
            doc=function(self.doc),
            segments=None if self.segments is None else function(self.segments),
            labels={name: function(tensor) for name, tensor in self.labels.items()},
            rows=None if self.rows is None else function(self.rows),
            host=None,
        )


def send(tensor: Tensor, device: torch.device | str) -> Tensor:
    """``tensor`` on ``device``. A copy to a GPU goes through page-locked memory and does not wait; other
    copies wait.
    """
    if torch.device(device).type == "cuda" and not tensor.is_cuda and not tensor.is_pinned():
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


def collate(rows: Sequence[Row], *, pad: int, ids: Sequence[np.ndarray] | None = None) -> Batch:
    """Rows as one batch, padded on the right to the longest, with the labels of the rows as (B,) int64.

    Args:
        rows: at least one row.
        pad: id of the padding token.
        ids: ids to show instead of the rows' own, one array per row (for example after corruption).
    """
    shown = [row.ids for row in rows] if ids is None else ids
    return Batch(
        ids=stack(shown, pad),
        doc=stack([row.doc for row in rows], -1, dtype=np.int32),
        segments=stack([row.segments for row in rows], 0),
        labels={name: torch.tensor([row.labels[name] for row in rows]) for name in rows[0].labels},
        rows=torch.tensor([row.number for row in rows]),
    )


def stack(
    arrays: Sequence[np.ndarray],
    fill: int,
    *,
    length: int | None = None,
    side: Literal["left", "right"] = "right",
    dtype: type = np.int64,
) -> Tensor:
    """One-dimensional arrays as the rows of a tensor (B, length), padded with ``fill``."""
    length = max(map(len, arrays)) if length is None else length
    padded: np.ndarray = np.full((len(arrays), length), fill, dtype)
    for row, array in zip(padded, arrays, strict=True):
        if side == "right":
            row[: len(array)] = array
        else:
            row[length - len(array) :] = array
    return torch.from_numpy(padded)
