"""Products with weights that lie in panels, as the kernels' register tile reads them."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from encoderlab.nn.kernels.cpu.native import SMALL, call


@functools.cache
def panel() -> int:
    """The number of columns in a panel."""
    columns = torch.zeros(1, dtype=torch.int64)
    call("panel", columns)
    return int(columns)


def pack(weight: Tensor) -> Tensor:
    """A weight (N, K) float32 in the order in which :func:`product` reads it: (panels, K, columns)."""
    padded = torch.nn.functional.pad(weight, (0, 0, 0, -len(weight) % panel()))
    return padded.view(-1, panel(), weight.shape[1]).transpose(1, 2).contiguous()


def product(x: Tensor, packed: Tensor, columns: slice, bias: Tensor | None) -> Tensor:
    """x (M, K) times the rows ``columns`` of a weight from :func:`pack`, plus bias."""
    rows, depth = x.shape
    first, rest = divmod(columns.start, panel())
    if bias is not None:
        bias = torch.nn.functional.pad(bias, (rest, 0)) if rest else bias.contiguous()
    out = torch.empty(rows, columns.stop - first * panel())
    work = 1 if rows * depth * out.shape[1] < 256 * SMALL else torch.get_num_threads()
    call("packed_product", x, packed[first:] if first else packed, bias, out, rows, out.shape[1], depth, work)
    return out[:, rest:]
