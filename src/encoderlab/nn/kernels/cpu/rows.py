"""Operations on one position at a time: dropout, normalised residual sum, GELU and the feed-forward block."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from encoderlab.nn.kernels import functions
from encoderlab.nn.kernels.cpu.native import CHUNKS, call, half, sizes, threads
from encoderlab.nn.kernels.operation import operation, scaling


@operation(lambda x, seeds, site, p: torch.empty_like(x))
def dropout(x: Tensor, seeds: Tensor, site: int, p: float) -> Tensor:
    out = torch.empty_like(x)
    call("dropout", half(x), x, out, seeds, *sizes(x), site, *scaling(seeds, p), threads(x))
    return out


@operation(functions.add_norm_shapes, functions.ADD_NORM)
def add_norm(x, x_bias, residual, weight, bias, seeds, site, p, eps, center):
    out, statistics = functions.add_norm_shapes(x)
    call(
        "add_norm", half(x), x, single(x_bias), residual, weight.float(), single(bias), center, out, statistics, seeds,
        *sizes(x), site, *scaling(seeds, p), eps, threads(x),
    )  # fmt: skip
    return out, statistics


def single(x: Tensor | None) -> Tensor | None:
    """x in float32, if given."""
    return None if x is None else x.float()


@operation(functions.add_norm_backward_shapes, functions.ADD_NORM_BACKWARD)
def add_norm_backward(grad, x, x_bias, residual, weight, statistics, seeds, site, p, center):
    dx, dresidual, sums = functions.add_norm_backward_shapes(grad, x, x_bias, residual)
    partial = torch.empty(CHUNKS, 3, x.shape[-1])
    call(
        "add_norm_backward", half(x), grad, x, single(x_bias), residual, weight.float(), center, statistics, dx,
        None if residual is None else dresidual, partial, sums, seeds, *sizes(x), site, *scaling(seeds, p), threads(x),
    )  # fmt: skip
    return dx, dresidual, sums


def _sum_norm_shapes(x: Tensor | None, x_bias: Tensor | None, residual: Tensor, *how: Any) -> tuple[Tensor, ...]:
    """The sum (empty if there is no x), its norm, and mean and 1 / deviation of every position, (positions, 2)."""
    dtype = torch.bfloat16 if how[-1] else torch.float32
    sums = residual.new_empty(0) if x is None else torch.empty_like(residual)
    statistics = residual.new_empty(residual.numel() // residual.shape[-1], 2, dtype=torch.float32)
    return sums, torch.empty_like(residual, dtype=dtype), statistics


@operation(
    _sum_norm_shapes,
    """(Tensor? x, Tensor? x_bias, Tensor residual, Tensor weight, Tensor? bias, Tensor? seeds, int site, float p,
    float eps, bool center, bool half_out) -> (Tensor, Tensor, Tensor)""",
)
def sum_norm(x, x_bias, residual, weight, bias, seeds, site, p, eps, center, half_out):
    sums, out, statistics = _sum_norm_shapes(x, x_bias, residual, half_out)
    call(
        "sum_norm", half_out, not half(residual), x, single(x_bias), residual, weight.float(), single(bias), center,
        sums, out, statistics, seeds, *sizes(residual), site, *scaling(seeds, p), eps, threads(residual),
    )  # fmt: skip
    return sums, out, statistics


def _sum_norm_backward_shapes(grad: Tensor, dsums: Tensor | None, sums: Tensor, *how: Any) -> tuple[Tensor, ...]:
    """Gradients of the residual and of x (empty if there is none), and, in (3, D), of weight, bias and x_bias."""
    dx = torch.empty_like(grad) if how[-1] else grad.new_empty(0)
    return torch.empty_like(sums), dx, sums.new_empty(3, sums.shape[-1], dtype=torch.float32)


@operation(
    _sum_norm_backward_shapes,
    """(Tensor grad, Tensor? dsums, Tensor sums, Tensor weight, Tensor statistics, Tensor? seeds, int site, float p,
    bool center, bool with_x) -> (Tensor, Tensor, Tensor)""",
)
def sum_norm_backward(grad, dsums, sums, weight, statistics, seeds, site, p, center, with_x):
    dresidual, dx, totals = _sum_norm_backward_shapes(grad, dsums, sums, with_x)
    partial = torch.empty(CHUNKS, 3, sums.shape[-1])
    call(
        "sum_norm_backward", half(grad), not half(sums), grad, dsums, sums, weight.float(), center, statistics,
        dresidual, dx if with_x else None, partial, totals, seeds, *sizes(sums), site, *scaling(seeds, p),
        threads(sums),
    )  # fmt: skip
    return dresidual, dx, totals


class SumNorm(Function):
    """residual + dropout(x + x_bias), and its norm. Saves only the sum and its statistics."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor | None,
        x_bias: Tensor | None,
        residual: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        seeds: Tensor | None,
        *how: Any,
    ) -> tuple[Tensor, Tensor] | Tensor:
        """``how`` is site, p, eps, center, and whether the norm is rounded to bfloat16."""
        sums, out, statistics = sum_norm(x, x_bias, residual, weight, bias, seeds, *how)
        ctx.save_for_backward(residual if x is None else sums, weight, statistics, seeds)
        site, p, _, center, _ = how
        ctx.how = site, p, center, x is not None
        ctx.dtypes = [None if one is None else one.dtype for one in (x_bias, bias)]
        ctx.set_materialize_grads(False)
        return out if x is None else (sums, out)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        sums, weight, statistics, seeds = ctx.saved_tensors
        with_x = ctx.how[-1]
        dsums, grad = grads if with_x else (None, grads[0])
        if grad is None:  # the norm is not used
            grad = torch.zeros_like(sums)
        dsums = None if dsums is None else dsums.contiguous()
        dresidual, dx, totals = sum_norm_backward(grad.contiguous(), dsums, sums, weight, statistics, seeds, *ctx.how)
        dweight, dbias, dx_bias = totals.unbind()
        x_bias_dtype, bias_dtype = ctx.dtypes
        return (
            dx if with_x else None,
            None if x_bias_dtype is None else dx_bias.to(x_bias_dtype),
            dresidual,
            dweight.to(weight.dtype),
            None if bias_dtype is None else dbias.to(bias_dtype),
            *[None] * 6,
        )


@operation(functions.gelu_shapes)
def gelu(x: Tensor, bias: Tensor | None, gated: bool, tanh: bool, seeds: Tensor | None, site: int, p: float) -> Tensor:
    """dropout(gelu(x + bias)); ``gated``: dropout of gelu of the first half times the second half."""
    out = functions.gelu_shapes(x, bias, gated)
    name = "geglu" if gated else "gelu"
    call(name, half(x), tanh, x, single(bias), out, seeds, *sizes(out), site, *scaling(seeds, p), threads(x))
    return out


@operation(functions.gelu_backward_shapes, functions.GELU_BACKWARD)
def gelu_backward_(grad, x, bias, out, gated, tanh, seeds, site, p):
    dbias = functions.gelu_backward_shapes(grad, x, bias)
    partial = torch.empty(CHUNKS, x.shape[-1])
    name = "geglu_backward" if gated else "gelu_backward"
    call(
        name, half(x), tanh, grad, x, single(bias), out, partial, dbias, seeds, *sizes(grad), site, *scaling(seeds, p),
        threads(x),
    )  # fmt: skip
    return dbias


Dropout = functions.dropout_function(dropout)
AddNorm = functions.add_norm_function(add_norm, add_norm_backward)
FeedForward = functions.feed_forward_function(gelu, gelu_backward_)
