"""Operations on one position at a time: dropout, normalised residual sum, GELU and the feed-forward block."""

from __future__ import annotations

import torch
from torch import Tensor

from encoderlab.nn.kernels import functions
from encoderlab.nn.kernels.cpu.native import CHUNKS, call, half, layout, threads
from encoderlab.nn.kernels.operation import operation, scaling


@operation(lambda x, seeds, site, p: torch.empty_like(x))
def dropout(x: Tensor, seeds: Tensor, site: int, p: float) -> Tensor:
    out = torch.empty_like(x)
    call("dropout", half(x), x, out, seeds, *layout(x), site, *scaling(seeds, p), threads(x))
    return out


@operation(functions.add_norm_shapes)
def add_norm(
    x: Tensor,
    x_bias: Tensor | None,
    residual: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    seeds: Tensor | None,
    site: int,
    p: float,
    eps: float,
    center: bool,
) -> tuple[Tensor, Tensor]:
    out, statistics = functions.add_norm_shapes(x)
    call(
        "add_norm", half(x), x, single(x_bias), residual, weight.float(), single(bias), center, out, statistics, seeds,
        *layout(x), site, *scaling(seeds, p), eps, threads(x),
    )  # fmt: skip
    return out, statistics


def single(x: Tensor | None) -> Tensor | None:
    """x in float32, if given."""
    return None if x is None else x.float()


@operation(functions.add_norm_backward_shapes)
def add_norm_backward(
    grad: Tensor,
    x: Tensor,
    x_bias: Tensor | None,
    residual: Tensor | None,
    weight: Tensor,
    statistics: Tensor,
    seeds: Tensor | None,
    site: int,
    p: float,
    center: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    dx, dresidual, sums = functions.add_norm_backward_shapes(grad, x, x_bias, residual)
    partial = torch.empty(CHUNKS, 3, x.shape[-1])
    call(
        "add_norm_backward", half(x), grad, x, single(x_bias), residual, weight.float(), center, statistics, dx,
        None if residual is None else dresidual, partial, sums, seeds, *layout(x), site, *scaling(seeds, p), threads(x),
    )  # fmt: skip
    return dx, dresidual, sums


@operation(functions.sum_norm_shapes)
def sum_norm(
    x: Tensor | None,
    x_bias: Tensor | None,
    residual: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    seeds: Tensor | None,
    site: int,
    p: float,
    eps: float,
    center: bool,
    half_out: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    sums, out, statistics = functions.sum_norm_shapes(
        x, x_bias, residual, weight, bias, seeds, site, p, eps, center, half_out
    )
    call(
        "sum_norm", half_out, not half(residual), x, single(x_bias), residual, weight.float(), single(bias), center,
        sums, out, statistics, seeds, *layout(residual), site, *scaling(seeds, p), eps, threads(residual),
    )  # fmt: skip
    return sums, out, statistics


@operation(functions.sum_norm_backward_shapes)
def sum_norm_backward(
    grad: Tensor,
    dsums: Tensor | None,
    sums: Tensor,
    weight: Tensor,
    statistics: Tensor,
    seeds: Tensor | None,
    site: int,
    p: float,
    center: bool,
    with_x: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    dresidual, dx, totals = functions.sum_norm_backward_shapes(
        grad, dsums, sums, weight, statistics, seeds, site, p, center, with_x
    )
    partial = torch.empty(CHUNKS, 3, sums.shape[-1])
    call(
        "sum_norm_backward", half(grad), not half(sums), grad, dsums, sums, weight.float(), center, statistics,
        dresidual, dx if with_x else None, partial, totals, seeds, *layout(sums), site, *scaling(seeds, p),
        threads(sums),
    )  # fmt: skip
    return dresidual, dx, totals


@operation(functions.gelu_shapes)
def gelu(x: Tensor, bias: Tensor | None, gated: bool, tanh: bool, seeds: Tensor | None, site: int, p: float) -> Tensor:
    """dropout(gelu(x + bias)); ``gated``: dropout of gelu of the first half times the second half."""
    out = functions.gelu_shapes(x, bias, gated)
    name = "geglu" if gated else "gelu"
    call(name, half(x), tanh, x, single(bias), out, seeds, *layout(out), site, *scaling(seeds, p), threads(x))
    return out


@operation(functions.gelu_backward_shapes, mutates=("grad", "out"))
def gelu_backward_(
    grad: Tensor,
    x: Tensor,
    bias: Tensor | None,
    out: Tensor,
    gated: bool,
    tanh: bool,
    seeds: Tensor | None,
    site: int,
    p: float,
) -> Tensor:
    dbias = functions.gelu_backward_shapes(grad, x, bias)
    partial = torch.empty(CHUNKS, x.shape[-1])
    name = "geglu_backward" if gated else "gelu_backward"
    call(
        name, half(x), tanh, grad, x, single(bias), out, partial, dbias, seeds, *layout(grad), site, *scaling(seeds, p),
        threads(x),
    )  # fmt: skip
    return dbias


Dropout = functions.dropout_function(dropout)
AddNorm = functions.add_norm_function(add_norm, add_norm_backward)
SumNorm = functions.sum_norm_function(sum_norm, sum_norm_backward)
FeedForward = functions.feed_forward_function(gelu, gelu_backward_)
