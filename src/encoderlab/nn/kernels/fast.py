"""The compiled kernels as torch operations: raw calls, their forms for ``torch.compile``, and their gradients.

Every raw function takes and returns tensors and mutates nothing (or says so). ``@operation`` gives it a second form, a
custom operation of torch with shapes for tracing, which is used inside ``torch.compile``; eager code calls the function
itself, which costs 5 rather than 30 microseconds.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from encoderlab.nn import noise
from encoderlab.nn.kernels import build
from encoderlab.nn.kernels.plain import Relative

CHUNKS = 32  # as in vectors.h: rows of partial sums
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


functions: dict[str, Any] = {}


def call(name: str, *args: Any) -> None:
    """Calls ``encoderlab_NAME``: tensors, bytes and None are pointers, floats C floats, ints and bools int64."""
    values = [x.data_ptr() if isinstance(x, Tensor) else x for x in args]
    function = functions.get(name)
    if function is None:
        library = build.load()
        assert library is not None
        function = functions[name] = getattr(library, f"encoderlab_{name}")
        function.argtypes, function.restype = [argument_type(x) for x in args], None
    function(*values)


def argument_type(value: Any) -> Any:
    if isinstance(value, float):
        return ctypes.c_float
    return ctypes.c_int64 if isinstance(value, int) else ctypes.c_void_p


class Unrecorded:
    """Stands for the context of a Function whose result needs no gradient."""

    needs_input_grad = (False,) * 16

    def save_for_backward(self, *tensors: Tensor | None) -> None: ...

    def mark_non_differentiable(self, *tensors: Tensor) -> None: ...


def apply(function: type[Function], *args: Any) -> Any:
    """``function.apply``, without its cost where nothing is recorded."""
    return function.apply(*args) if torch.is_grad_enabled() else function.forward(Unrecorded(), *args)


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


@operation(
    lambda grad, x, bias, tanh: (torch.empty_like(x), x.new_empty(x.shape[-1], dtype=torch.float32)), mutates=("grad",)
)
def gelu_backward_(grad: Tensor, x: Tensor, bias: Tensor | None, tanh: bool) -> tuple[Tensor, Tensor]:
    """The activations again and the gradient of the bias; the gradient of x replaces ``grad``."""
    width = x.shape[-1]
    out, dbias, partial = torch.empty_like(x), torch.empty(width), torch.empty(CHUNKS, width)
    rows = x.numel() // width
    call("gelu_backward", half(x), tanh, grad, x, bias, grad, out, partial, dbias, rows, width, threads(x))
    return out, dbias


class FeedForward(Function):
    """gelu(x up^T + up_bias) down^T; x (T, D). Keeps x up^T only: the activations are computed again."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, up: Tensor, up_bias: Tensor, down: Tensor, tanh: bool) -> Tensor:
        inner = x @ up.T
        ctx.save_for_backward(x, up, up_bias, down, inner)
        ctx.tanh = tanh
        return gelu(inner, up_bias.float(), tanh) @ down.T

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, up, up_bias, down, inner = ctx.saved_tensors
        dinner = grad @ down
        activated, dbias = gelu_backward_(dinner, inner, up_bias.float(), ctx.tanh)
        need_x, need_up, _, need_down, _ = ctx.needs_input_grad
        return (
            dinner @ up if need_x else None,
            dinner.T @ x if need_up else None,
            dbias.to(up_bias.dtype),
            grad.T @ activated if need_down else None,
            None,
        )


# ------------------------------------------------------------------------------------------------------------ attention


ATTENTION = struct.Struct("39q2f")  # ``Attention`` of arguments.h
RELATIVE = struct.Struct("10P")  # ``Pointers`` of arguments.h


def strides(x: Tensor | None) -> tuple[int, ...]:
    """Of (batch, head, position); 0 where x is broadcast."""
    if x is None:
        return 0, 0, 0
    (a, b, c, _), (i, j, k, _) = x.shape, x.stride()
    return 0 if a == 1 else i, 0 if b == 1 else j, 0 if c == 1 else k


def attention_arguments(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    bias: Tensor | None,
    visible: Tensor | None,
    keys: Tensor | None,
    scale: float,
    p: float,
    site: int,
    query_rows: Tensor | None = None,
    key_rows: Tensor | None = None,
    position_query: Tensor | None = None,
    different: Tensor | None = None,
) -> bytes:
    batch, heads, queries, width = q.shape
    threshold, keep_scale = scaling(keys, p)
    work = torch.get_num_threads() if q.numel() * k.shape[2] >= 32 * SMALL else 1
    rows = query_rows if query_rows is not None else key_rows
    tables, positions = (1, 0) if rows is None else rows.shape[:2]
    row_strides = [0 if x is None else x.stride(dim) for x in (query_rows, key_rows) for dim in (1, 2)]
    return ATTENTION.pack(
        batch, heads, queries, k.shape[2], width, v.shape[-1], *strides(q), *strides(k), *strides(v), *strides(out),
        *strides(bias), *strides(visible), site, threshold, work, positions, tables, *row_strides,
        *strides(position_query), *strides(different), scale, keep_scale,
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
    call("attend", half(q), at, q, k, v, bias, visible, keys, None, out, normalisers)
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
    call(
        "attend_backward", half(q), at, to, grad, q, k, v, bias, visible, keys, normalisers, None, dq, dk, dv,
        None if bias is None else dbias,
    )  # fmt: skip
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


@operation(lambda grad, qkv, *_: torch.empty_like(qkv))
def attend_packed_backward(
    grad: Tensor,
    qkv: Tensor,
    visible: Tensor | None,
    keys: Tensor | None,
    normalisers: Tensor,
    scale: float,
    p: float,
    site: int,
) -> Tensor:
    """The gradient of qkv (3, B, H, L, K), in its own layout."""
    dqkv = torch.empty_like(qkv)
    q, k, v = qkv.unbind()
    dq, dk, dv = dqkv.unbind()
    at = attention_arguments(q, k, v, grad, None, visible, keys, scale, p, site)
    to = attention_arguments(dq, dk, dv, grad, None, None, None, scale, p, site)
    call("attend_backward", half(qkv), at, to, grad, q, k, v, None, visible, keys, normalisers, None, dq, dk, dv, None)
    return dqkv


class AttendPacked(Function):
    """Self-attention of qkv (3, B, H, L, K), a view of what one product made; its gradient needs no concatenation."""

    @staticmethod
    def forward(
        ctx: Any, qkv: Tensor, visible: Tensor | None, keys: Tensor | None, scale: float, p: float, site: int
    ) -> Tensor:
        out, normalisers = attend(*qkv.unbind(), None, visible, keys, scale, p, site)
        ctx.save_for_backward(qkv, visible, keys, normalisers)
        ctx.rest = scale, p, site
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return attend_packed_backward(dense(grad), *ctx.saved_tensors, *ctx.rest), *[None] * 5


# ----------------------------------------------------------------------------------- attention with relative positions


def pointers(*tensors: Tensor | None) -> bytes:
    given = [0 if x is None or x.dim() == 0 else x.data_ptr() for x in tensors]
    return RELATIVE.pack(*given, *[0] * (10 - len(given)))


def relative_arguments(q: Tensor, k: Tensor, relative: Relative, scale: float) -> tuple[Tensor | None, ...]:
    """``relative`` as the kernels take it: rows (S, P, H, K) contiguous in q's precision, segment scaled, float32."""

    def rows(x: Tensor | None) -> Tensor | None:
        return None if x is None else (x if x.dim() == 4 else x[None]).to(q.dtype).contiguous()

    query, different = relative.position_query, relative.different
    return (
        rows(relative.query_rows),
        rows(relative.key_rows),
        None if query is None else dense(query.to(q.dtype)),
        None if relative.segment is None else (relative.segment.float() * scale).contiguous(),
        None if different is None else full_rows(different, k.shape[2]),
        relative.table,
    )


@operation(_attend_shapes)
def attend_relative(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    query_rows: Tensor | None,
    key_rows: Tensor | None,
    position_query: Tensor | None,
    segment: Tensor | None,
    different: Tensor | None,
    table: Tensor | None,
    visible: Tensor | None,
    keys: Tensor | None,
    scale: float,
    p: float,
    site: int,
) -> tuple[Tensor, Tensor]:
    """As :func:`attend`; rows (S, P, H, K) contiguous, segment (B, H, L, 2) float32 contiguous."""
    out, normalisers = _attend_shapes(q, k, v)
    at = attention_arguments(
        q, k, v, out, None, visible, keys, scale, p, site, query_rows, key_rows, position_query, different
    )
    relative = pointers(query_rows, key_rows, position_query, table, segment, different)
    call("attend", half(q), at, q, k, v, None, visible, keys, relative, out, normalisers)
    return out, normalisers


def _attend_relative_backward_shapes(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    query_rows: Tensor | None,
    key_rows: Tensor | None,
    position_query: Tensor | None,
    segment: Tensor | None,
    *_: Any,
) -> tuple[Tensor, ...]:
    def like(x: Tensor | None) -> Tensor:
        return q.new_empty(() if x is None else x.shape, dtype=torch.float32)

    dq, dk, dv = (_heads_last(x, x.shape[-1]) for x in (q, k, v))
    dposition_query = q.new_empty(()) if position_query is None else _heads_last(q, q.shape[-1])
    return dq, dk, dv, like(query_rows), like(key_rows), dposition_query, like(segment)


@operation(_attend_relative_backward_shapes)
def attend_relative_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    query_rows: Tensor | None,
    key_rows: Tensor | None,
    position_query: Tensor | None,
    segment: Tensor | None,
    different: Tensor | None,
    table: Tensor | None,
    visible: Tensor | None,
    keys: Tensor | None,
    normalisers: Tensor,
    scale: float,
    p: float,
    site: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of the first eight but one; rows and segment in float32, scalars for what is absent."""
    grads = _attend_relative_backward_shapes(grad, q, k, v, query_rows, key_rows, position_query, segment)
    dq, dk, dv, dquery_rows, dkey_rows, dposition_query, dsegment = grads
    at = attention_arguments(
        q, k, v, grad, None, visible, keys, scale, p, site, query_rows, key_rows, position_query, different
    )
    to_position = None if position_query is None else dposition_query
    to = attention_arguments(dq, dk, dv, grad, None, None, None, scale, p, site, position_query=to_position)
    made = (dquery_rows, dkey_rows, dsegment, dposition_query)
    relative = pointers(query_rows, key_rows, position_query, table, segment, different, *made)
    given = (grad, q, k, v, None, visible, keys, normalisers, relative)
    call("attend_backward", half(q), at, to, *given, dq, dk, dv, None)
    return dq, dk, dv, dquery_rows, dkey_rows, dposition_query, dsegment


class AttendRelative(Function):
    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        query_rows: Tensor | None,
        key_rows: Tensor | None,
        position_query: Tensor | None,
        segment: Tensor | None,
        different: Tensor | None,
        table: Tensor | None,
        visible: Tensor | None,
        keys: Tensor | None,
        scale: float,
        p: float,
        site: int,
    ) -> Tensor:
        saved = (q, k, v, query_rows, key_rows, position_query, segment, different, table, visible, keys)
        out, normalisers = attend_relative(*saved, scale, p, site)
        ctx.save_for_backward(*saved, normalisers)
        ctx.rest = scale, p, site
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors
        grads = attend_relative_backward(dense(grad), *saved, *ctx.rest)
        given = [None if x is None else g.to(x.dtype) for g, x in zip(grads, saved, strict=False)]
        return *given, *[None] * 7


# --------------------------------------------------------------------------------------------------------- convolutions


MOST_TAPS = 32  # as in convolution.h


def documents(doc: Tensor | None) -> Tensor | None:
    return None if doc is None else doc.to(torch.int32).contiguous()


@operation(lambda x, weight, doc, back: torch.empty_like(x))
def depthwise(x: Tensor, weight: Tensor, doc: Tensor | None, back: bool) -> Tensor:
    """x (B, L, C) by weight (J, C); ``back``: by the transposed operator, the gradient of x."""
    out = torch.empty_like(x)
    call("depthwise", half(x), x, weight, doc, out, *x.shape, len(weight), back, threads(x))
    return out


@operation(lambda grad, x, doc, taps: x.new_empty(taps, x.shape[-1], dtype=torch.float32))
def depthwise_weight(grad: Tensor, x: Tensor, doc: Tensor | None, taps: int) -> Tensor:
    width = x.shape[-1]
    dweight, partial = torch.empty(taps, width), torch.empty(CHUNKS, taps, width)
    call("depthwise_weight", half(x), grad, x, doc, partial, dweight, *x.shape, taps, threads(x))
    return dweight


class Depthwise(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, doc: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight, doc)
        return depthwise(x, weight.float().T.contiguous(), doc, False)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, doc = ctx.saved_tensors
        grad = grad.contiguous()
        dx = depthwise(grad, weight.float().T.contiguous(), doc, True)
        return dx, depthwise_weight(grad, x, doc, weight.shape[1]).T.to(weight.dtype), None


def _dynamic_shapes(x: Tensor, logits: Tensor, doc: Tensor | None, heads: int) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), logits.new_empty(logits.shape, dtype=torch.float32)


def _taps(x: Tensor, logits: Tensor, heads: int) -> tuple[int, ...]:
    return *x.shape[:2], heads, x.shape[2] // heads, logits.shape[2] // heads


@operation(_dynamic_shapes)
def dynamic(x: Tensor, logits: Tensor, doc: Tensor | None, heads: int) -> tuple[Tensor, Tensor]:
    """The convolved values, and the kernels after softmax."""
    out, softmax = _dynamic_shapes(x, logits, doc, heads)
    call("dynamic", half(x), x, logits, doc, out, softmax, *_taps(x, logits, heads), threads(x))
    return out, softmax


@operation(lambda grad, x, softmax, doc, heads: (torch.empty_like(x), x.new_empty(softmax.shape)))
def dynamic_backward(grad: Tensor, x: Tensor, softmax: Tensor, doc: Tensor | None, heads: int) -> tuple[Tensor, Tensor]:
    dx, dlogits = torch.empty_like(x), x.new_empty(softmax.shape)
    call("dynamic_backward", half(x), grad, x, softmax, doc, dx, dlogits, *_taps(x, softmax, heads), threads(x))
    return dx, dlogits


class Dynamic(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, logits: Tensor, doc: Tensor | None, heads: int) -> Tensor:
        out, softmax = dynamic(x, logits, doc, heads)
        ctx.save_for_backward(x, softmax, doc)
        ctx.heads = heads
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return *dynamic_backward(grad.contiguous(), *ctx.saved_tensors, ctx.heads), None, None


# ---------------------------------------------------------------------------------------------- vocabulary and its loss

LOGITS = 1 << 25  # elements of a chunk of logits; more rows per chunk make better products, fewer make less memory


def _linear_cross_entropy_shapes(
    x: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, uniforms: Tensor | None, gradients: bool
) -> tuple[Tensor, ...]:
    rows = len(x)
    return (
        x.new_empty((), dtype=torch.float32),
        labels.new_empty(()),
        labels.new_empty(0 if uniforms is None else rows),
        torch.empty_like(x) if gradients else x.new_empty(0),
        torch.empty_like(weight) if gradients else x.new_empty(0),
        x.new_empty(len(weight) if gradients and bias is not None else 0, dtype=torch.float32),
    )


@operation(_linear_cross_entropy_shapes)
def linear_cross_entropy(
    x: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, uniforms: Tensor | None, gradients: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Sum of the losses, number of hits, samples, and the gradients of the sum for x, weight and bias."""
    rows, classes = len(x), len(weight)
    if rows and not 0 <= int(labels.min()) <= int(labels.max()) < classes:
        raise IndexError(f"labels {int(labels.min())} to {int(labels.max())} do not fit {classes} classes")
    losses, hits = torch.empty(rows), torch.empty(rows, dtype=torch.bool)
    _, _, sampled, dx, dweight, dbias = _linear_cross_entropy_shapes(x, weight, bias, labels, uniforms, gradients)
    stride = -classes % 16 + classes  # MKL is 1.5 times as fast where rows begin at multiples of 64 bytes
    chunks = max(1, -(-rows * classes // LOGITS))
    size = -(-rows // chunks)
    memory = x.new_empty(size, stride)
    partial = torch.empty(CHUNKS if gradients and bias is not None else 0, classes)
    dbias_chunk = torch.zeros_like(dbias)
    for start in range(0, rows, size):
        part = slice(start, min(start + size, rows))
        logits = memory[: part.stop - part.start, :classes]
        torch.mm(x[part], weight.T, out=logits)
        call(
            "cross_entropy", half(x), logits, stride, bias, labels[part], losses[part], hits[part],
            None if uniforms is None else uniforms[part], sampled[part], partial, dbias_chunk, len(logits), classes,
            gradients, torch.get_num_threads(),
        )  # fmt: skip
        if gradients:
            torch.mm(logits, weight, out=dx[part])
            if start == 0:
                torch.mm(logits.T, x[part], out=dweight)
                dbias.copy_(dbias_chunk)
            else:
                dweight.addmm_(logits.T, x[part])
                dbias += dbias_chunk
    return losses.sum(), hits.sum(), sampled, dx, dweight, dbias


class LinearCrossEntropy(Function):
    """Gradients are computed in the forward pass, chunk by chunk, so the logits of all rows never exist at once."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, uniforms: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        gradients = any(ctx.needs_input_grad[:3])
        wide = None if bias is None else bias.float()
        loss, hits, sampled, *grads = linear_cross_entropy(x, weight, wide, labels, uniforms, gradients)
        ctx.save_for_backward(*grads)
        ctx.bias_dtype = None if bias is None else bias.dtype
        ctx.mark_non_differentiable(hits, sampled)
        return loss, hits, sampled

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        dx, dweight, dbias = ctx.saved_tensors
        scaled = None if ctx.bias_dtype is None else (dbias * grad).to(ctx.bias_dtype)
        if torch._C._autograd._get_current_graph_task_keep_graph():  # they may be asked for again
            return dx * grad.to(dx.dtype), dweight * grad.to(dx.dtype), scaled, None, None
        return dx.mul_(grad), dweight.mul_(grad), scaled, None, None
