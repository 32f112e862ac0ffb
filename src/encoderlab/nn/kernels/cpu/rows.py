"""What works on one position at a time: dropout, the normalised residual sum, GELU and the feed-forward block."""

from __future__ import annotations

import torch
from torch import Tensor

from encoderlab.nn.kernels import functions
from encoderlab.nn.kernels.cpu.native import CHUNKS, call, half, layout, threads
from encoderlab.nn.kernels.operation import operation, scaling


@operation(lambda x, keys, site, p: torch.empty_like(x))
def dropout(x: Tensor, keys: Tensor, site: int, p: float) -> Tensor:
    out = torch.empty_like(x)
    call("dropout", half(x), x, out, keys, *layout(x), site, *scaling(keys, p), threads(x))
    return out


@operation(functions.add_norm_shapes)
def add_norm(
    x: Tensor,
    x_bias: Tensor | None,
    residual: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    keys: Tensor | None,
    site: int,
    p: float,
    eps: float,
) -> tuple[Tensor, Tensor]:
    out, statistics = functions.add_norm_shapes(x)
    x_bias = None if x_bias is None else x_bias.float()
    call(
        "add_norm", half(x), x, x_bias, residual, weight.float(), bias.float(), out, statistics, keys, *layout(x), site,
        *scaling(keys, p), eps, threads(x),
    )  # fmt: skip
    return out, statistics


@operation(functions.add_norm_backward_shapes)
def add_norm_backward(
    grad: Tensor,
    x: Tensor,
    x_bias: Tensor | None,
    residual: Tensor | None,
    weight: Tensor,
    statistics: Tensor,
    keys: Tensor | None,
    site: int,
    p: float,
) -> tuple[Tensor, Tensor, Tensor]:
    dx, dresidual, sums = functions.add_norm_backward_shapes(grad, x, x_bias, residual)
    partial = torch.empty(CHUNKS, 3, x.shape[-1])
    x_bias = None if x_bias is None else x_bias.float()
    call(
        "add_norm_backward", half(x), grad, x, x_bias, residual, weight.float(), statistics, dx,
        None if residual is None else dresidual, partial, sums, keys, *layout(x), site, *scaling(keys, p), threads(x),
    )  # fmt: skip
    return dx, dresidual, sums


@operation(lambda x, *_: torch.empty_like(x))
def gelu(x: Tensor, bias: Tensor, tanh: bool, keys: Tensor | None, site: int, p: float) -> Tensor:
    """dropout(gelu(x + bias))."""
    out = torch.empty_like(x)
    call("gelu", half(x), tanh, x, bias.float(), out, keys, *layout(x), site, *scaling(keys, p), threads(x))
    return out


@operation(functions.gelu_backward_shapes, mutates=("grad", "out"))
def gelu_backward_(
    grad: Tensor, x: Tensor, bias: Tensor, out: Tensor, tanh: bool, keys: Tensor | None, site: int, p: float
) -> Tensor:
    dbias = functions.gelu_backward_shapes(grad, x)
    partial = torch.empty(CHUNKS, x.shape[-1])
    call(
        "gelu_backward", half(x), tanh, grad, x, bias.float(), out, partial, dbias, keys, *layout(x), site,
        *scaling(keys, p), threads(x),
    )  # fmt: skip
    return dbias


Dropout = functions.dropout_function(dropout)
AddNorm = functions.add_norm_function(add_norm, add_norm_backward)
FeedForward = functions.feed_forward_function(gelu, gelu_backward_)
