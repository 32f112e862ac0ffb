"""Attention in blocks that stay in the cache, plain and with relative positions, and its gradients."""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

import torch
from torch import Tensor

from encoderlab.nn.kernels.cpu.native import SMALL, call, half
from encoderlab.nn.kernels.functions import attend_function, attend_shapes, dense, heads_last, packed_heads
from encoderlab.nn.kernels.operation import apply, operation, scaling
from encoderlab.nn.kernels.plain import Relative, within_reach

ATTENTION = struct.Struct("40q2f")  # ``Attention`` of arguments.h
POINTERS = struct.Struct("11P")  # ``Pointers`` of arguments.h


def strides(x: Tensor | None) -> tuple[int, ...]:
    """Strides of batch, head and position, in elements; 0 where x is broadcast."""
    if x is None:
        return 0, 0, 0
    (a, b, c, _), (i, j, k, _) = x.shape, x.stride()
    return 0 if a == 1 else i, 0 if b == 1 else j, 0 if c == 1 else k


class PositionTerms(NamedTuple):
    """What only attention with relative or rotary positions has, as the kernels read it.

    Rows (S, P, H, K) are contiguous in the precision of q, segment (B, H, L, 2) is float32, contiguous and scaled,
    rotation (M, K) is float32 and contiguous; the others as in :class:`Relative`.
    """

    query_rows: Tensor | None = None
    key_rows: Tensor | None = None
    position_query: Tensor | None = None
    segment: Tensor | None = None
    different: Tensor | None = None
    table: Tensor | None = None
    rotation: Tensor | None = None

    def pointers(self, *gradients: Tensor | None) -> bytes | None:
        """The C struct ``Pointers``, 0 for absent tensors; ``gradients``: of rows, segment and position_query."""
        query_rows, key_rows, position_query, segment, different, table, rotation = self
        if query_rows is key_rows is segment is rotation is None:
            return None
        tensors = (
            query_rows,
            key_rows,
            position_query,
            table,
            segment,
            different,
            rotation,
            *(gradients or [None] * 4),
        )
        return POINTERS.pack(*[0 if x is None or not x.numel() else x.data_ptr() for x in tensors])


def attention_arguments(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    bias: Tensor | None,
    terms: PositionTerms,
    visible: Tensor | None,
    seeds: Tensor | None,
    scale: float,
    p: float,
    site: int,
    reach: int = -1,
) -> bytes:
    """The C struct ``Attention``: sizes, strides of the tensors, and dropout.

    For a backward pass a second struct holds the strides of the gradients of q, k, v and position_query.
    """
    batch, heads, queries, width = q.shape
    threshold, keep_scale = scaling(seeds, p)
    work = torch.get_num_threads() if q.numel() * k.shape[2] >= 32 * SMALL else 1
    query_rows, key_rows, position_query, _, different, *_ = terms
    rows = query_rows if query_rows is not None else key_rows
    tables, positions = (1, 0) if rows is None else rows.shape[:2]
    row_strides = [0 if x is None else x.stride(dim) for x in (query_rows, key_rows) for dim in (1, 2)]
    return ATTENTION.pack(
        batch, heads, queries, k.shape[2], width, v.shape[-1], *strides(q), *strides(k), *strides(v), *strides(out),
        *strides(bias), *strides(visible), site, threshold, work, reach, positions, tables, *row_strides,
        *strides(position_query), *strides(different), scale, keep_scale,
    )  # fmt: skip


INPUTS = """Tensor q, Tensor k, Tensor v, Tensor? bias, Tensor? query_rows, Tensor? key_rows, Tensor? position_query,
    Tensor? segment, Tensor? different, Tensor? table, Tensor? rotation, Tensor? visible, Tensor? seeds"""
HOW = "float scale, float p, int site, int reach"


@operation(attend_shapes, f"({INPUTS}, {HOW}) -> (Tensor, Tensor)")
def attend_forward(q, k, v, bias, *rest):
    """The attended values (B, H, L, V), and the log of each row's softmax denominator (B, H, L)."""
    terms, (visible, seeds, *how) = PositionTerms(*rest[:7]), rest[7:]
    out, normalisers = attend_shapes(q, k, v)
    at = attention_arguments(q, k, v, out, bias, terms, visible, seeds, *how)
    call("attend", half(q), at, q, k, v, bias, visible, seeds, terms.pointers(), out, normalisers)
    return out, normalisers


def _attend_backward_shapes(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    bias, query_rows, key_rows, position_query, segment = rest[:5]

    def like(x: Tensor | None) -> Tensor:
        return q.new_empty(0 if x is None else x.shape, dtype=torch.float32)

    dbias = q.new_empty(0 if bias is None else (*q.shape[:3], k.shape[2]))
    dposition_query = q.new_empty(0) if position_query is None else heads_last(q, q.shape[-1])
    dqkv = (heads_last(x, x.shape[-1]) for x in (q, k, v))
    return *dqkv, dbias, like(query_rows), like(key_rows), dposition_query, like(segment)


@operation(
    _attend_backward_shapes,
    f"(Tensor grad, {INPUTS}, Tensor normalisers, {HOW}) -> ({', '.join(['Tensor'] * 8)})",
)
def attend_backward(grad, q, k, v, bias, *rest):
    """Gradients of q, k, v, of the bias of every batch row (B, H, L, M), query_rows, key_rows, position_query, segment.

    Gradients of rows and segment are float32; those of absent tensors are empty.
    """
    terms, (visible, seeds, normalisers, *how) = PositionTerms(*rest[:7]), rest[7:]
    grads = _attend_backward_shapes(grad, q, k, v, bias, *terms)
    dq, dk, dv, dbias, dquery_rows, dkey_rows, dposition_query, dsegment = grads
    to_terms = PositionTerms(position_query=None if terms.position_query is None else dposition_query)
    at = attention_arguments(q, k, v, grad, bias, terms, visible, seeds, *how)
    to = attention_arguments(dq, dk, dv, grad, None, to_terms, None, None, *how)
    pointers = terms.pointers(dquery_rows, dkey_rows, dsegment, dposition_query)
    inputs = (grad, q, k, v, bias, visible, seeds, normalisers, pointers)
    call("attend_backward", half(q), at, to, *inputs, dq, dk, dv, None if bias is None else dbias)
    return grads


Attend = attend_function(attend_forward, attend_backward, how=4, keep_out=False)


@operation(
    lambda grad, qkv, *_: torch.empty_like(qkv),
    f"(Tensor grad, Tensor qkv, Tensor? rotation, Tensor? visible, Tensor? seeds, Tensor normalisers, {HOW}) -> Tensor",
)
def attend_packed_backward(grad, qkv, rotation, visible, seeds, normalisers, *how):
    """The gradient of qkv (3, B, H, L, K), with its strides."""
    dqkv = torch.empty_like(qkv)
    (q, k, v), (dq, dk, dv), terms = qkv.unbind(), dqkv.unbind(), PositionTerms(rotation=rotation)
    at = attention_arguments(q, k, v, grad, None, terms, visible, seeds, *how)
    to = attention_arguments(dq, dk, dv, grad, None, PositionTerms(), None, None, *how)
    inputs = (grad, q, k, v, None, visible, seeds, normalisers, terms.pointers())
    call("attend_backward", half(qkv), at, to, *inputs, dq, dk, dv, None)
    return dqkv


def attend_packed_forward(qkv, rotation, visible, seeds, *how):
    """Self-attention of qkv (3, B, H, L, K), a view of one product; the gradient is written without concatenation."""
    return attend_forward(*qkv.unbind(), None, *PositionTerms(rotation=rotation), visible, seeds, *how)


AttendPacked = attend_function(attend_packed_forward, attend_packed_backward, how=4, keep_out=False)


def terms_of(relative: Relative, q: Tensor, k: Tensor, scale: float) -> PositionTerms:
    """``relative`` as the kernels read it."""

    def rows(x: Tensor | None) -> Tensor | None:
        return None if x is None else (x if x.dim() == 4 else x[None]).to(q.dtype).contiguous()

    return PositionTerms(
        query_rows=rows(relative.query_rows),
        key_rows=rows(relative.key_rows),
        position_query=None if relative.position_query is None else dense(relative.position_query.to(q.dtype)),
        segment=None if relative.segment is None else (relative.segment.float() * scale).contiguous(),
        different=full_rows(relative.different, q, k),
        table=relative.table,
    )


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
        visible, reach = within_reach(visible, q.shape[2], k.shape[2], reach, q.device), None
    q, k, v, visible = dense(q), dense(k), dense(v), full_rows(visible, q, k)
    terms = PositionTerms() if relative is None else terms_of(relative, q, k, scale)
    if bias is not None:
        bias = full_rows(bias.to(q.dtype), q, k)
    return apply(Attend, q, k, v, bias, *terms, visible, seeds, scale, p, site, -1 if reach is None else reach)


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
    """As :func:`encoderlab.nn.kernels.attend_packed`; the kernel rotates queries and keys when it copies them into the
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
    attended = apply(AttendPacked, parts, rotation, visible, seeds, scale, p, site, -1 if reach is None else reach)
    return attended.transpose(1, 2).flatten(2)
