"""Batch: rows as tensors of one shape, the form in which everything else of the project sees data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from encoderlab.batches.rows import Row

IGNORE = -100  # a label that no loss counts, as in torch.nn.functional.cross_entropy


@dataclass(frozen=True)
class Batch:
    """B rows, padded to length L. Every tensor has the rows as its first dimension, so a batch can be sliced.

    Two positions see each other, in attention and in convolution, iff their ``doc`` is equal and not -1.
    """

    ids: Tensor  # (B, L) int64
    doc: Tensor  # (B, L) int32, -1 at padding
    segments: Tensor | None = None  # (B, L) int64
    labels: dict[str, Tensor] = field(default_factory=dict)
    rows: Tensor | None = None  # (B,) int64: number of each row within the run, which keys dropout

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def num_tokens(self) -> int:
        """Tokens that are not padding."""
        return int((self.doc >= 0).sum())

    def to(self, device: torch.device | str) -> Batch:
        """The batch on ``device``; a copy from pinned memory does not wait."""
        return self._map(lambda tensor: tensor.to(device, non_blocking=True))

    def pin(self) -> Batch:
        """The batch in page-locked memory, from which a GPU copies while it computes."""
        return self._map(lambda tensor: tensor.pin_memory())

    def slice(self, start: int, stop: int) -> Batch:
        """Rows ``start:stop``, as views."""
        return self._map(lambda tensor: tensor[start:stop])

    def _map(self, function: Any) -> Batch:
        changed: dict[str, Any] = {}
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(value, dict):
                changed[item.name] = {name: function(tensor) for name, tensor in value.items()}
            elif value is not None:
                changed[item.name] = function(value)
        return Batch(**changed)


def collate(
    rows: Sequence[Row],
    *,
    pad: int,
    ids: Sequence[np.ndarray] | None = None,
) -> Batch:
    """Rows as one batch, padded on the right to the longest, with the labels of the rows as (B,) int64.

    Args:
        rows: at least one row.
        pad: id of the padding token.
        ids: what to show instead of the rows' own ids, one array per row (after corruption, say).
    """
    shown = [row.ids for row in rows] if ids is None else ids
    names = rows[0].labels
    return Batch(
        ids=stack(shown, pad),
        doc=stack([row.doc for row in rows], -1, dtype=np.int32),
        segments=stack([row.segments for row in rows], 0),
        labels={name: torch.tensor([row.labels[name] for row in rows]) for name in names},
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
    """One-dimensional arrays as the rows of a tensor (B, length), filled up with ``fill``."""
    length = max(map(len, arrays)) if length is None else length
    padded: np.ndarray = np.full((len(arrays), length), fill, dtype)
    for row, array in zip(padded, arrays, strict=True):
        if side == "right":
            row[: len(array)] = array
        else:
            row[length - len(array) :] = array
    return torch.from_numpy(padded)
