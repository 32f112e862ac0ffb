"""Attention in blocks that stay in the cache, plain and with relative positions, and its gradients."""

from __future__ import annotations

import struct
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from encoderlab.nn.kernels.cpu.native import SMALL, call, half
from encoderlab.nn.kernels.functions import attend_shapes, dense, heads_last, packed_heads
from encoderlab.nn.kernels.operation import apply, operation, scaling
from encoderlab.nn.kernels.plain import Relative, within_reach

ATTENTION = struct.Struct("40q2f")  # ``Attention`` of arguments.h
RELATIVE = struct.Struct("11P")  # ``Pointers`` of arguments.h


def strides(x: Tensor | None) -> tuple[int, ...]:
    """Strides of batch, head and position, in elements; 0 where x is broadcast."""
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
    seeds: Tensor | None,
    scale: float,
    p: float,
    site: int,
    query_rows: Tensor | None = None,
    key_rows: Tensor | None = None,
    position_query: Tensor | None = None,
    different: Tensor | None = None,
    reach: int = -1,
) -> bytes:
    """The C struct ``Attention``: sizes, strides of the tensors, and dropout.

    For a backward pass a second struct holds the strides of the gradients of q, k, v and position_query.
    """
    batch, heads, queries, width = q.shape
    threshold, keep_scale = scaling(seeds, p)
    work = torch.get_num_threads() if q.numel() * k.shape[2] >= 32 * SMALL else 1
    rows = query_rows if query_rows is not None else key_rows
    tables, positions = (1, 0) if rows is None else rows.shape[:2]
    row_strides = [0 if x is None else x.stride(dim) for x in (query_rows, key_rows) for dim in (1, 2)]
    return ATTENTION.pack(
        batch, heads, queries, k.shape[2], width, v.shape[-1], *strides(q), *strides(k), *strides(v), *strides(out),
        *strides(bias), *strides(visible), site, threshold, work, reach, positions, tables, *row_strides,
        *strides(position_query), *strides(different), scale, keep_scale,
    )  # fmt: skip


@operation(attend_shapes)
def attend_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    visible: Tensor | None,
    seeds: Tensor | None,
    rotation: Tensor | None,
    scale: float,
    p: float,
    site: int,
    reach: int,
) -> tuple[Tensor, Tensor]:
    """The attended values (B, H, L, V), and the log of each row's softmax denominator (B, H, L)."""
    out, normalisers = attend_shapes(q, k, v)
    at = attention_arguments(q, k, v, out, bias, visible, seeds, scale, p, site, reach=reach)
    call("attend", half(q), at, q, k, v, bias, visible, seeds, turned_by(rotation), out, normalisers)
    return out, normalisers


def turned_by(rotation: Tensor | None) -> bytes | None:
    """The C struct ``Pointers`` for rotary positions (M, K), float32 and contiguous."""
    return None if rotation is None else pointers(None, None, None, None, None, None, rotation)


def _attend_backward_shapes(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, *_: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    dbias = q.new_empty(0 if bias is None else (*q.shape[:3], k.shape[2]))
    return heads_last(q, q.shape[-1]), heads_last(k, k.shape[-1]), heads_last(v, v.shape[-1]), dbias


@operation(_attend_backward_shapes)
def attend_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    visible: Tensor | None,
    seeds: Tensor | None,
    rotation: Tensor | None,
    normalisers: Tensor,
    scale: float,
    p: float,
    site: int,
    reach: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k, v and of the bias of every batch row (B, H, L, M), which is empty if there is no bias."""
    dq, dk, dv, dbias = _attend_backward_shapes(grad, q, k, v, bias)
    at = attention_arguments(q, k, v, grad, bias, visible, seeds, scale, p, site, reach=reach)
    to = attention_arguments(dq, dk, dv, grad, None, None, None, scale, p, site)
    call(
        "attend_backward", half(q), at, to, grad, q, k, v, bias, visible, seeds, normalisers, turned_by(rotation),
        dq, dk, dv, None if bias is None else dbias,
    )  # fmt: skip
    return dq, dk, dv, dbias


class Attend(Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        """Takes the arguments of :func:`attend_forward`."""
        out, normalisers = attend_forward(*inputs)
        ctx.save_for_backward(*inputs[:-4], normalisers)
        ctx.rest = inputs[-4:]
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        bias = ctx.saved_tensors[3]
        dq, dk, dv, dbias = attend_backward(dense(grad), *ctx.saved_tensors, *ctx.rest)
        if bias is None:
            return dq, dk, dv, *[None] * 8
        return dq, dk, dv, dbias.sum_to_size(bias.shape), *[None] * 7


@operation(lambda grad, qkv, *_: torch.empty_like(qkv))
def attend_packed_backward(
    grad: Tensor,
    qkv: Tensor,
    visible: Tensor | None,
    seeds: Tensor | None,
    rotation: Tensor | None,
    normalisers: Tensor,
    scale: float,
    p: float,
    site: int,
    reach: int,
) -> Tensor:
    """The gradient of qkv (3, B, H, L, K), in its own layout."""
    dqkv = torch.empty_like(qkv)
    q, k, v = qkv.unbind()
    dq, dk, dv = dqkv.unbind()
    at = attention_arguments(q, k, v, grad, None, visible, seeds, scale, p, site, reach=reach)
    to = attention_arguments(dq, dk, dv, grad, None, None, None, scale, p, site)
    inputs = (grad, q, k, v, None, visible, seeds, normalisers, turned_by(rotation))
    call("attend_backward", half(qkv), at, to, *inputs, dq, dk, dv, None)
    return dqkv


class AttendPacked(Function):
    """Self-attention of qkv (3, B, H, L, K), a view of one product; the gradient is written without concatenation."""

    @staticmethod
    def forward(
        ctx: Any, qkv: Tensor, visible: Tensor | None, seeds: Tensor | None, rotation: Tensor | None, *rest: Any
    ) -> Tensor:
        """``rest`` is scale, p, site, reach."""
        out, normalisers = attend_forward(*qkv.unbind(), None, visible, seeds, rotation, *rest)
        ctx.save_for_backward(qkv, visible, seeds, rotation, normalisers)
        ctx.rest = rest
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return attend_packed_backward(dense(grad), *ctx.saved_tensors, *ctx.rest), *[None] * 7


# ----------------------------------------------------------------------------------- attention with relative positions


def pointers(*tensors: Tensor | None) -> bytes:
    """The C struct ``Pointers``: addresses in its order; 0 for absent tensors, which backward passes
    give as scalars.
    """
    addresses = [0 if x is None or x.dim() == 0 else x.data_ptr() for x in tensors]
    return RELATIVE.pack(*addresses, *[0] * (11 - len(addresses)))


def relative_arguments(q: Tensor, k: Tensor, relative: Relative, scale: float) -> tuple[Tensor | None, ...]:
    """``relative`` in the kernels' layout: contiguous rows (S, P, H, K) in the precision of q, scaled
    float32 segments.
    """

    def rows(x: Tensor | None) -> Tensor | None:
        return None if x is None else (x if x.dim() == 4 else x[None]).to(q.dtype).contiguous()

    query, different = relative.position_query, relative.different
    return (
        rows(relative.query_rows),
        rows(relative.key_rows),
        None if query is None else dense(query.to(q.dtype)),
        None if relative.segment is None else (relative.segment.float() * scale).contiguous(),
        full_rows(different, q, k),
        relative.table,
    )


@operation(attend_shapes)
def attend_relative_forward(
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
    seeds: Tensor | None,
    scale: float,
    p: float,
    site: int,
) -> tuple[Tensor, Tensor]:
    """As :func:`attend_forward`; rows (S, P, H, K) contiguous, segment (B, H, L, 2) float32 contiguous."""
    out, normalisers = attend_shapes(q, k, v)
    at = attention_arguments(
        q, k, v, out, None, visible, seeds, scale, p, site, query_rows, key_rows, position_query, different
    )
    relative = pointers(query_rows, key_rows, position_query, table, segment, different)
    call("attend", half(q), at, q, k, v, None, visible, seeds, relative, out, normalisers)
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

    dq, dk, dv = (heads_last(x, x.shape[-1]) for x in (q, k, v))
    dposition_query = q.new_empty(()) if position_query is None else heads_last(q, q.shape[-1])
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
    seeds: Tensor | None,
    normalisers: Tensor,
    scale: float,
    p: float,
    site: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k, v, query_rows, key_rows, position_query and segment.

    Gradients of rows and segment are float32; absent tensors have a scalar.
    """
    grads = _attend_relative_backward_shapes(grad, q, k, v, query_rows, key_rows, position_query, segment)
    dq, dk, dv, dquery_rows, dkey_rows, dposition_query, dsegment = grads
    at = attention_arguments(
        q, k, v, grad, None, visible, seeds, scale, p, site, query_rows, key_rows, position_query, different
    )
    to_position = None if position_query is None else dposition_query
    to = attention_arguments(dq, dk, dv, grad, None, None, None, scale, p, site, position_query=to_position)
    made = (dquery_rows, dkey_rows, dsegment, dposition_query)
    relative = pointers(query_rows, key_rows, position_query, table, segment, different, None, *made)
    inputs = (grad, q, k, v, None, visible, seeds, normalisers, relative)
    call("attend_backward", half(q), at, to, *inputs, dq, dk, dv, None)
    return dq, dk, dv, dquery_rows, dkey_rows, dposition_query, dsegment


class AttendRelative(Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        """Takes the arguments of :func:`attend_relative_forward`."""
        out, normalisers = attend_relative_forward(*inputs)
        ctx.save_for_backward(*inputs[:-3], normalisers)
        ctx.rest = inputs[-3:]
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors
        grads = attend_relative_backward(dense(grad), *saved, *ctx.rest)
        cast = [None if x is None else g.to(x.dtype) for g, x in zip(grads, saved, strict=False)]
        return *cast, *[None] * 7


def full_rows(x: Tensor | None, q: Tensor, k: Tensor) -> Tensor | None:
    """x, if given, with four dimensions and dense rows of all M columns, as the kernels need it.

    Raises:
        ValueError: x does not broadcast to (B, H, L, M) for q (B, H, L, K) and k (B, H, M, K).
    """
    if x is None:
        return None
    if x.dim() < 4:
        x = x[(None,) * (4 - x.dim())]
    pairs = *q.shape[:3], k.shape[2]
    if any(size not in (1, whole) for size, whole in zip(x.shape, pairs, strict=True)):
        raise ValueError(f"a mask or bias of shape {tuple(x.shape)} does not fit queries and keys {pairs}")
    return dense(x if x.shape[-1] == pairs[-1] else x.expand(*x.shape[:-1], pairs[-1]))


# ------------------------------------------------------------------------------------------------ with their gradients


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    visible: Tensor | None,
    seeds: Tensor | None,
    scale: float,
    p: float,
    site: int,
    relative: Relative | None,
    reach: int | None,
) -> Tensor:
    """As :func:`encoderlab.nn.kernels.attend`; with relative positions the reach becomes part of the mask."""
    if relative is not None:
        visible = within_reach(visible, q.shape[2], k.shape[2], reach, q.device)
    q, k, v, visible = dense(q), dense(k), dense(v), full_rows(visible, q, k)
    if relative is not None:
        terms = relative_arguments(q, k, relative, scale)
        return apply(AttendRelative, q, k, v, *terms, visible, seeds, scale, p, site)
    if bias is not None:
        bias = full_rows(bias.to(q.dtype), q, k)
    return apply(Attend, q, k, v, bias, visible, seeds, None, scale, p, site, limit(reach))


def limit(reach: int | None) -> int:
    """``reach`` as the kernels expect it: -1 for no limit."""
    return -1 if reach is None else reach


def attend_packed(
    qkv: Tensor,
    heads: int,
    visible: Tensor | None,
    seeds: Tensor | None,
    scale: float,
    p: float,
    site: int,
    reach: int | None,
    rotation: Tensor | None,
) -> Tensor:
    """As :func:`encoderlab.nn.kernels.attend_packed`; the kernel turns queries and keys when it copies them into the
    cache.

    Raises:
        ValueError: the shape of ``rotation`` does not fit the queries.
    """
    parts = packed_heads(qkv, heads)
    visible = full_rows(visible, *parts[:2])
    if rotation is not None:
        if rotation.shape != parts.shape[-2:]:
            raise ValueError(f"angles {tuple(rotation.shape)} do not fit queries of {tuple(parts.shape[-2:])}")
        rotation = rotation.float().contiguous()
    attended = apply(AttendPacked, parts, visible, seeds, rotation, scale, p, site, limit(reach))
    return attended.transpose(1, 2).flatten(2)
