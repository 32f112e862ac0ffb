"""Matrix products of bfloat16 with float32 arithmetic, for processors whose bfloat16 instructions are slower."""

from __future__ import annotations

import torch
from torch import Tensor

from encoderlab.nn.kernels.cpu.native import call


def product(
    a: Tensor, b: Tensor, *, bias: Tensor | None = None, out: Tensor | None = None, add: bool = False
) -> Tensor:
    """a (M, K) times b (K, N), plus ``bias`` (N,), written to ``out`` (M, N) or, with ``add``, added to it.

    All are bfloat16; sums are float32 and rounded once. An operand with no dense axis is copied; ``out`` needs dense
    rows.

    Raises:
        ValueError: shapes or types do not fit.
    """
    out = a.new_empty(len(a), b.shape[1]) if out is None else out
    (rows, depth), columns = a.shape, b.shape[1]
    fits = len(b) == depth and out.shape == (rows, columns) and (bias is None or bias.shape == (columns,))
    if not fits or not a.dtype == b.dtype == out.dtype == torch.bfloat16 or (columns > 1 and out.stride(1) != 1):
        operands = ", ".join(f"{x.dtype} {tuple(x.shape)}" for x in (a, b, bias, out) if x is not None)
        raise ValueError(f"product of {operands}; give bfloat16 (M, K), (K, N), (N,) and (M, N) with dense rows")
    a, b = (x if 1 in x.stride() else x.contiguous() for x in (a, b))
    call(
        "product", a, *a.stride(), b, *b.stride(), out, out.stride(0), None if bias is None else bias.float(), rows,
        columns, depth, add, torch.get_num_threads(),
    )  # fmt: skip
    return out
