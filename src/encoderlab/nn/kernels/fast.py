"""The compiled kernels as torch operations: raw calls, their forms for ``torch.compile``, and their gradients.

Every raw function takes and returns tensors and mutates nothing (or says so). ``@operation`` gives it a second form, a
``torch.library`` custom operation with shapes for tracing, which is used inside ``torch.compile``; eager code calls the
function itself, which costs 5 rather than 30 microseconds.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from encoderlab.nn import noise
from encoderlab.nn.kernels import build

CHUNKS = 32  # as in ops.cpp: rows of partial sums
SMALL = 1 << 15  # elements below which one thread does the work


def operation(shapes: Callable[..., Any], mutates: tuple[str, ...] = ()) -> Callable[[Callable], Callable]:
    """Registers a raw function as ``encoderlab::NAME``, ``shapes`` its meta version; returns the function to call."""

    def wrap(function: Callable) -> Callable:
        custom = torch.library.custom_op(f"encoderlab::{function.__name__}", function, mutates_args=mutates)
        custom.register_fake(shapes)

        def call(*args: Any) -> Any:
            return custom(*args) if torch.compiler.is_compiling() else function(*args)

        return call

    return wrap


def call(name: str, *args: Any) -> None:
    """Calls ``encoderlab_NAME``: tensors go as pointers, None as null, floats as C floats, ints as 64-bit integers."""
    library = build.load()
    assert library is not None
    getattr(library, f"encoderlab_{name}")(*map(argument, args))


def argument(value: Any) -> Any:
    if value is None:
        return None
    if isinstance(value, Tensor):
        return ctypes.c_void_p(value.data_ptr())
    if isinstance(value, float):
        return ctypes.c_float(value)
    if isinstance(value, int):
        return ctypes.c_int64(value)
    return ctypes.byref(value)


def threads(x: Tensor) -> int:
    return 1 if x.numel() < SMALL else torch.get_num_threads()


def layout(x: Tensor) -> tuple[int, int, int]:
    """Rows of the batch, positions of a row, width."""
    batch, width = x.shape[0], x.shape[-1]
    return batch, x.numel() // (batch * width), width


def half(x: Tensor) -> bool:
    return x.dtype == torch.bfloat16


def dense(x: Tensor) -> Tensor:
    """x with its last dimension dense, as the attention kernels need it."""
    return x if x.stride(-1) == 1 else x.contiguous()


def full_rows(x: Tensor, columns: int) -> Tensor:
    """x (..., M or 1) of four dimensions with dense rows of all ``columns``."""
    if x.dim() < 4:
        x = x[(None,) * (4 - x.dim())]
    return dense(x if x.shape[-1] == columns else x.expand(*x.shape[:-1], columns))


def scaling(keys: Tensor | None, p: float) -> tuple[int, float]:
    return (0, 1.0) if keys is None else (noise.threshold(p), 1.0 / (1.0 - p))


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
    call("add_norm", half(x), x, x_bias, residual, weight, bias, out, statistics, keys, *layout(x), site,
         *scaling(keys, p), eps, threads(x))
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
    call("add_norm_backward", half(x), grad, x, x_bias, residual, weight, statistics, dx, dresidual, partial, sums,
         keys, *layout(x), site, *scaling(keys, p), threads(x))
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
        keys: Tensor | None,
        site: int,
        p: float,
        eps: float,
    ) -> Tensor:
        wide = None if x_bias is None else x_bias.float()
        out, statistics = add_norm(x, wide, residual, weight.float(), bias.float(), keys, site, p, eps)
        ctx.save_for_backward(x, x_bias, residual, weight, statistics, keys)
        ctx.site, ctx.p, ctx.bias_dtype = site, p, bias.dtype
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


# ---------------------------------------------------------------------------------------------------------- bias + GELU


@operation(lambda x, bias, tanh: torch.empty_like(x))
def gelu(x: Tensor, bias: Tensor | None, tanh: bool) -> Tensor:
    out = torch.empty_like(x)
    width = x.shape[-1]
    call("gelu", half(x), tanh, x, bias, out, x.numel() // width, width, threads(x))
    return out


@operation(lambda grad, x, bias, tanh: (torch.empty_like(x), x.new_empty(x.shape[-1], dtype=torch.float32)))
def gelu_backward(grad: Tensor, x: Tensor, bias: Tensor | None, tanh: bool) -> tuple[Tensor, Tensor]:
    """Gradients of x and of the bias; the second is undefined where there is no bias."""
    width = x.shape[-1]
    dx, dbias, partial = torch.empty_like(x), torch.empty(width), torch.empty(CHUNKS, width)
    call("gelu_backward", half(x), tanh, grad, x, bias, dx, None, partial, dbias, x.numel() // width, width, threads(x))
    return dx, dbias


class BiasGelu(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor | None, tanh: bool) -> Tensor:
        ctx.save_for_backward(x, bias)
        ctx.tanh = tanh
        return gelu(x, None if bias is None else bias.float(), tanh)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, bias = ctx.saved_tensors
        dx, dbias = gelu_backward(grad.contiguous(), x, None if bias is None else bias.float(), ctx.tanh)
        return dx, None if bias is None else dbias.to(bias.dtype), None


# ------------------------------------------------------------------------------------------------------------ attention


class AttentionArguments(ctypes.Structure):
    """``Attention`` of ops.cpp."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("batch", "heads", "queries", "keys", "width", "value_width")),
        *((name, ctypes.c_int64 * 3) for name in ("q", "k", "v", "out", "bias", "visible")),
        *((name, ctypes.c_int64) for name in ("site", "threshold", "threads")),
        *((name, ctypes.c_float) for name in ("scale", "keep_scale")),
    ]


def strides(x: Tensor) -> Any:
    return (ctypes.c_int64 * 3)(*x.stride()[:3])


def strides_broadcast(x: Tensor | None) -> Any:
    if x is None:
        return (ctypes.c_int64 * 3)()
    return (ctypes.c_int64 * 3)(*(0 if x.shape[i] == 1 else x.stride(i) for i in range(3)))


def attention_arguments(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, bias: Tensor | None, visible: Tensor | None, keys: Tensor | None,
    scale: float, p: float, site: int,
) -> AttentionArguments:
    batch, heads, queries, width = q.shape
    threshold, keep_scale = scaling(keys, p)
    work = threads(q) if k.shape[2] < 64 else torch.get_num_threads()
    return AttentionArguments(
        batch, heads, queries, k.shape[2], width, v.shape[-1], strides(q), strides(k), strides(v), strides(out),
        strides_broadcast(bias), strides_broadcast(visible), site, threshold, work, scale, keep_scale,
    )  # fmt: skip


def _heads_last(x: Tensor, width: int) -> Tensor:
    """An empty (B, H, L, width) whose memory is (B, L, H, width), so that merging the heads copies nothing."""
    batch, heads, length, _ = x.shape
    return x.new_empty(batch, length, heads, width).transpose(1, 2)


def _attend_shapes(q: Tensor, k: Tensor, v: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return _heads_last(q, v.shape[-1]), q.new_empty(q.shape[:3], dtype=torch.float32)


@operation(_attend_shapes)
def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    visible: Tensor | None,
    keys: Tensor | None,
    scale: float,
    p: float,
    site: int,
) -> tuple[Tensor, Tensor]:
    """The attended values (B, H, L, V) and the log of every row's softmax denominator (B, H, L)."""
    out, normalisers = _attend_shapes(q, k, v)
    at = attention_arguments(q, k, v, out, bias, visible, keys, scale, p, site)
    call("attend", half(q), at, q, k, v, bias, visible, keys, out, normalisers)
    return out, normalisers


def _attend_backward_shapes(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, *_: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    dbias = q.new_empty(0 if bias is None else (*q.shape[:3], k.shape[2]))
    return _heads_last(q, q.shape[-1]), _heads_last(k, k.shape[-1]), _heads_last(v, v.shape[-1]), dbias


@operation(_attend_backward_shapes)
def attend_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    visible: Tensor | None,
    keys: Tensor | None,
    normalisers: Tensor,
    scale: float,
    p: float,
    site: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k, v and of the bias for every batch row (B, H, L, M) (empty where there is no bias)."""
    dq, dk, dv, dbias = _attend_backward_shapes(grad, q, k, v, bias)
    at = attention_arguments(q, k, v, grad, bias, visible, keys, scale, p, site)
    to = attention_arguments(dq, dk, dv, grad, None, None, None, scale, p, site)
    call("attend_backward", half(q), at, to, grad, q, k, v, bias, visible, keys, normalisers, dq, dk, dv,
         None if bias is None else dbias)
    return dq, dk, dv, dbias


class Attend(Function):
    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        bias: Tensor | None,
        visible: Tensor | None,
        keys: Tensor | None,
        scale: float,
        p: float,
        site: int,
    ) -> Tensor:
        out, normalisers = attend(q, k, v, bias, visible, keys, scale, p, site)
        ctx.save_for_backward(q, k, v, bias, visible, keys, normalisers)
        ctx.rest = scale, p, site
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        bias = ctx.saved_tensors[3]
        dq, dk, dv, dbias = attend_backward(dense(grad), *ctx.saved_tensors, *ctx.rest)
        if bias is None:
            return dq, dk, dv, *[None] * 6
        return dq, dk, dv, dbias.sum_to_size(bias.shape), *[None] * 5
