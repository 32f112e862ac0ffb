"""What works on one position at a time: dropout, the normalised residual sum, GELU and the feed-forward block."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from encoderlab.nn.kernels.cpu.native import CHUNKS, call, half, layout, threads
from encoderlab.nn.kernels.operation import operation, scaling

# ------------------------------------------------------------------------------------------------------------- dropout


@operation(lambda x, keys, site, p: torch.empty_like(x))
def dropout(x: Tensor, keys: Tensor, site: int, p: float) -> Tensor:
    out = torch.empty_like(x)
    call("dropout", half(x), x, out, keys, *layout(x), site, *scaling(keys, p), threads(x))
    return out


class Dropout(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, keys: Tensor, site: int, p: float) -> Tensor:
        ctx.save_for_backward(keys)
        ctx.site, ctx.p = site, p
        return dropout(x, keys, site, p)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return dropout(grad.contiguous(), *ctx.saved_tensors, ctx.site, ctx.p), None, None, None


# ------------------------------------------------------------------------------------------- dropout + add + LayerNorm


def _add_norm_shapes(x: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), x.new_empty(x.numel() // x.shape[-1], 2, dtype=torch.float32)


@operation(_add_norm_shapes)
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
    """The normalised sum, and mean and 1 / deviation of every position (positions, 2)."""
    out, statistics = _add_norm_shapes(x)
    call(
        "add_norm", half(x), x, x_bias, residual, weight, bias, out, statistics, keys, *layout(x), site,
        *scaling(keys, p), eps, threads(x),
    )  # fmt: skip
    return out, statistics


def _add_norm_backward_shapes(grad: Tensor, x: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(x), x.new_empty(3, x.shape[-1], dtype=torch.float32)


@operation(_add_norm_backward_shapes)
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
    """Gradients of x and residual, and (3, D) those of weight, bias and x_bias (the last only where there is one)."""
    dx, dresidual, sums = _add_norm_backward_shapes(grad, x)
    partial = torch.empty(CHUNKS, 3, x.shape[-1])
    call(
        "add_norm_backward", half(x), grad, x, x_bias, residual, weight, statistics, dx, dresidual, partial, sums,
        keys, *layout(x), site, *scaling(keys, p), threads(x),
    )  # fmt: skip
    return dx, dresidual, sums


class AddNorm(Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        x_bias: Tensor | None,
        residual: Tensor | None,
        weight: Tensor,
        bias: Tensor,
        *drawn: Any,
    ) -> Tensor:
        """Of the arguments of :func:`add_norm`."""
        wide = None if x_bias is None else x_bias.float()
        out, statistics = add_norm(x, wide, residual, weight.float(), bias.float(), *drawn)
        keys, ctx.site, ctx.p, _ = drawn
        ctx.save_for_backward(x, x_bias, residual, weight, statistics, keys)
        ctx.bias_dtype = bias.dtype
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, x_bias, residual, weight, statistics, keys = ctx.saved_tensors
        wide = None if x_bias is None else x_bias.float()
        dx, dresidual, sums = add_norm_backward(
            grad.contiguous(), x, wide, residual, weight.float(), statistics, keys, ctx.site, ctx.p
        )
        dweight, dbias, dx_bias = sums.unbind()
        return (
            dx,
            None if x_bias is None else dx_bias.to(x_bias.dtype),
            None if residual is None else dresidual,
            dweight.to(weight.dtype),
            dbias.to(ctx.bias_dtype),
            *[None] * 4,
        )


# -------------------------------------------------------------------------------------------------------- feed-forward


@operation(lambda x, *_: torch.empty_like(x))
def gelu(x: Tensor, bias: Tensor, tanh: bool, keys: Tensor | None, site: int, p: float) -> Tensor:
    """dropout(gelu(x + bias))."""
    out = torch.empty_like(x)
    call("gelu", half(x), tanh, x, bias, out, keys, *layout(x), site, *scaling(keys, p), threads(x))
    return out


def _gelu_backward_shapes(grad: Tensor, x: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), x.new_empty(x.shape[-1], dtype=torch.float32)


@operation(_gelu_backward_shapes, mutates=("grad",))
def gelu_backward_(
    grad: Tensor, x: Tensor, bias: Tensor, tanh: bool, keys: Tensor | None, site: int, p: float
) -> tuple[Tensor, Tensor]:
    """The result of :func:`gelu` again and the gradient of the bias; the gradient of x replaces ``grad``."""
    out, dbias = _gelu_backward_shapes(grad, x)
    partial = torch.empty(CHUNKS, x.shape[-1])
    call(
        "gelu_backward", half(x), tanh, grad, x, bias, out, partial, dbias, keys, *layout(x), site, *scaling(keys, p),
        threads(x),
    )  # fmt: skip
    return out, dbias


class FeedForward(Function):
    """dropout(gelu(x up^T + up_bias)) down^T; x (B, ..., D). Keeps x up^T only: the rest is computed again."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, up: Tensor, up_bias: Tensor, down: Tensor, *how: Any) -> Tensor:
        """``how`` is tanh, keys, site, p of :func:`gelu`."""
        inner = x @ up.T
        tanh, keys, site, p = how
        ctx.save_for_backward(x, up, up_bias, down, inner, keys)
        ctx.tanh, ctx.site, ctx.p = tanh, site, p
        return gelu(inner, up_bias.float(), *how) @ down.T

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, up, up_bias, down, inner, keys = ctx.saved_tensors
        dinner = grad @ down
        activated, dbias = gelu_backward_(dinner, inner, up_bias.float(), ctx.tanh, keys, ctx.site, ctx.p)
        need_x, need_up, _, need_down = ctx.needs_input_grad[:4]
        return (
            dinner @ up if need_x else None,
            dinner.flatten(0, -2).T @ x.flatten(0, -2) if need_up else None,
            dbias.to(up_bias.dtype),
            grad.flatten(0, -2).T @ activated.flatten(0, -2) if need_down else None,
            *[None] * 4,
        )
