"""Products of 8-bit numbers with sums of 32 bits, for processors with VNNI."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from encoderlab.nn.kernels import build
from encoderlab.nn.kernels.cpu.native import SMALL, call, threads


@functools.cache
def panel() -> int:
    """The number of columns in a panel of :func:`pack`; 0 where the processor has no instructions for 8 bits."""
    if not build.available():
        return 0
    columns = torch.zeros(1, dtype=torch.int64)
    call("int8_panel", columns)
    return int(columns)


def pack(weight: Tensor) -> Tensor:
    """A weight (N, K) int8 in the order in which :func:`product` reads it: (panels, K / 4, columns, 4)."""
    rows, depth = weight.shape
    padded = torch.nn.functional.pad(weight, (0, -depth % 4, 0, -rows % panel()))
    return padded.view(-1, panel(), padded.shape[1] // 4, 4).transpose(1, 2).contiguous()


def quantise_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """As :func:`encoderlab.nn.kernels.plain.quantise_rows`, with rows padded to whole groups of four."""
    rows, width = x.shape
    values, scales = torch.empty(rows, width + -width % 4, dtype=torch.uint8), torch.empty(rows)
    call("quantise_rows", x, values, scales, rows, width, threads(x))
    return values, scales


def product(
    values: Tensor,
    scales: Tensor,
    packed: Tensor,
    weight_scales: Tensor,
    offsets: Tensor,
    columns: slice,
    bias: Tensor | None,
) -> Tensor:
    """As :func:`encoderlab.nn.kernels.plain.int8_product`, of the rows ``columns`` of a weight from :func:`pack`.

    ``weight_scales`` and ``offsets`` have room for whole panels.
    """
    rows, depth = values.shape
    first, rest = divmod(columns.start, panel())
    if rest and bias is not None:
        bias = torch.nn.functional.pad(bias, (rest, 0))
    out = torch.empty(rows, columns.stop - first * panel())
    work = 1 if rows * depth * out.shape[1] < 256 * SMALL else torch.get_num_threads()
    call(
        "int8_product", values, scales, packed, weight_scales, offsets, first, bias, out, rows, out.shape[1], depth,
        work,
    )  # fmt: skip
    return out[:, rest:]
