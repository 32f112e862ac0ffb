"""Matrix products of bfloat16 in float32 arithmetic, for processors whose own instructions are slower than that."""

from __future__ import annotations

import torch
from torch import Tensor

from encoderlab.nn.kernels.cpu.native import call


def product(
    a: Tensor, b: Tensor, *, bias: Tensor | None = None, out: Tensor | None = None, add: bool = False
) -> Tensor:
    """a (M, K) times b (K, N), plus ``bias`` (N,), in ``out`` (M, N), to which it is added with ``add``.

    All are bfloat16; of each operand one axis is dense. Sums are float32 and rounded once.
    """
    a, b = dense(a), dense(b)
    if out is None:
        out = a.new_empty(len(a), b.shape[1])
    call(
        "product", a, *a.stride(), b, *b.stride(), out, out.stride(0), None if bias is None else bias.float(),
        len(a), b.shape[1], a.shape[1], add, torch.get_num_threads(),
    )  # fmt: skip
    return out


def dense(x: Tensor) -> Tensor:
    return x if 1 in x.stride() else x.contiguous()
