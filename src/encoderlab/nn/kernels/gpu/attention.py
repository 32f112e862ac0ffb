"""Attention in tiles that stay on the chip (Dao et al. 2022; Dao 2023), with dropout, any mask, and position terms.

    score[i, j] = scale * (q_i . k_j + query_table[i, L - 1 - i + j] + key_table[j, M - 1 - j + i]
                           + segment[i, different[i, j]]) + bias[i, j]

The tables (B, H, L, P) and (B, H, M, P) are products of queries and keys with the rows of all distances, computed
outside the kernels by batched products. The kernels read the tables along diagonals: no (B, H, L, M) bias exists and
nothing is gathered. The backward pass computes probabilities again, from the log of each row's denominator. Every entry
of a table's gradient belongs to one pair of query and key, and one program writes it; nothing is added atomically, so a
step gives the same bits every time.

Keys are processed in tiles. :func:`key_of` orders the keys of a tile so that the two keys that share a word of the
dropout masks are neighbours: every word is computed once, in the thread that needs both halves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from encoderlab.nn.kernels import plain
from encoderlab.nn.kernels.functions import attend_function, attend_shapes, dense, heads_last, packed_heads
from encoderlab.nn.kernels.gpu.noise import read_seed, stream, words
from encoderlab.nn.kernels.operation import GPU, apply, operation, scaling
from encoderlab.nn.kernels.plain import Relative, chosen_per_head

# ------------------------------------------------------------------------------------------------------------- kernels


class Matrix(NamedTuple):
    """A (B, H, rows, columns) tensor inside a kernel: address (None if absent), strides, and sizes."""

    data: Any
    batch: Any
    head: Any
    row: Any
    column: Any
    rows: Any
    columns: Any


class Terms(NamedTuple):
    """The matrices that are added to the scores, and ``visible``, the mask."""

    bias: Matrix
    query_table: Matrix
    key_table: Matrix
    segment: Matrix
    different: Matrix
    visible: Matrix


class DropoutTerms(NamedTuple):
    seeds: Any  # None: no dropout
    site: Any
    threshold: Any
    scale: Any


@triton.jit
def of_head(matrix, batch, head):
    """Address of the matrix of one head."""
    return matrix.data + batch.to(tl.int64) * matrix.batch + head.to(tl.int64) * matrix.head


@triton.jit
def rows_at(matrix, batch, head, row, WIDTH: tl.constexpr):
    """Pointers (N, WIDTH) to rows of a head's matrix, and which of them exist."""
    column = tl.arange(0, WIDTH)
    inside = (row < matrix.rows)[:, None] & (column < matrix.columns)[None, :]
    return of_head(matrix, batch, head) + row[:, None] * matrix.row + column[None, :], inside


@triton.jit
def load_rows(matrix, batch, head, row, WIDTH: tl.constexpr):
    """Rows (N, WIDTH); zero where the matrix has none."""
    at, inside = rows_at(matrix, batch, head, row, WIDTH)
    return tl.load(at, mask=inside, other=0.0)


@triton.jit
def store_rows(matrix, batch, head, row, values, WIDTH: tl.constexpr):
    at, inside = rows_at(matrix, batch, head, row, WIDTH)
    tl.store(at, values.to(matrix.data.dtype.element_ty), mask=inside)


@triton.jit
def pairs_at(matrix, batch, head, query, key):
    """Pointers (N, N') to the entries for pairs of query and key; 32-bit offsets suffice for 32,767 tokens."""
    return of_head(matrix, batch, head) + query[:, None] * matrix.row + key[None, :] * matrix.column


@triton.jit
def by_query(table, batch, head, query, key, queries):
    """Pointers (N, N') into the queries' table, at the distance of each pair, and which of them exist."""
    column = queries - 1 - query[:, None] + key[None, :]
    return of_head(table, batch, head) + query[:, None] * table.row + column, (column >= 0) & (column < table.columns)


@triton.jit
def by_key(table, batch, head, query, key, keys):
    """Pointers (N, N') into the keys' table, whose columns run the other way, and which of them exist."""
    column = keys - 1 - key[None, :] + query[:, None]
    return of_head(table, batch, head) + key[None, :] * table.row + column, (column >= 0) & (column < table.columns)


@triton.jit
def key_of(column):
    """The key, within its tile, of a column: of 32 columns, column 2 w is key w and column 2 w + 1 is key w + 16."""
    return (column >> 5) * 32 + (column & 1) * 16 + ((column >> 1) & 15)


@triton.jit
def kept(dropout, batch, head, query, start, QUERIES: tl.constexpr, KEYS: tl.constexpr):
    """The keep mask of a tile whose first key is ``start``, equal to :func:`encoderlab.nn.noise.kept_pairs`."""
    streams = stream(stream(read_seed(dropout.seeds, batch), dropout.site), head)
    x = words(streams, (query << 16)[:, None] + (start // 2 + tl.arange(0, KEYS // 2))[None, :])
    return tl.join(x << 16, x).reshape(QUERIES, KEYS).to(tl.int32, bitcast=True) >= dropout.threshold


@triton.jit
def segment_at(segment, batch, head, query):
    """Pointers (N,) to the two scores of each query, for keys of the same segment and of another."""
    same = of_head(segment, batch, head) + query * segment.row
    return same, same + 1


@triton.jit
def masked_scores(q, k, batch, head, query, key, queries, keys, terms, scale, PRECISION: tl.constexpr):
    """The scores of a tile in float32; minus infinity where a query may not attend to a key."""
    real = (query < queries)[:, None] & (key < keys)[None, :]
    scores = tl.dot(q, tl.trans(k), input_precision=PRECISION)
    if terms.query_table.data is not None:
        at, inside = by_query(terms.query_table, batch, head, query, key, queries)
        scores += tl.load(at, mask=inside & real, other=0.0).to(tl.float32)
    if terms.key_table.data is not None:
        at, inside = by_key(terms.key_table, batch, head, query, key, keys)
        scores += tl.load(at, mask=inside & real, other=0.0).to(tl.float32)
    if terms.segment.data is not None:
        at_same, at_other = segment_at(terms.segment, batch, head, query)
        same = tl.load(at_same, mask=query < queries, other=0.0)
        other = tl.load(at_other, mask=query < queries, other=0.0)
        differs = tl.load(pairs_at(terms.different, batch, head, query, key), mask=real, other=0) != 0
        scores += tl.where(differs, other[:, None], same[:, None])
    scores *= scale
    if terms.bias.data is not None:
        scores += tl.load(pairs_at(terms.bias, batch, head, query, key), mask=real, other=0.0).to(tl.float32)
    if terms.visible.data is not None:
        real &= tl.load(pairs_at(terms.visible, batch, head, query, key), mask=real, other=0) != 0
    return tl.where(real, scores, float("-inf"))


@triton.jit
def attend_kernel(
    Q, K, V, terms, dropout, OUT, LOG_SUM, heads, scale,
    WIDTH: tl.constexpr, VALUE: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One program computes the outputs of QUERIES queries of one head, in one pass over the keys."""
    queries, keys = Q.rows, K.rows
    tiles = tl.cdiv(queries, QUERIES)
    tile, number = tl.program_id(0) % tiles, tl.program_id(0) // tiles
    batch, head = number // heads, number % heads
    query = tile * QUERIES + tl.arange(0, QUERIES)
    q = load_rows(Q, batch, head, query, WIDTH)

    largest = tl.full([QUERIES], float("-inf"), tl.float32)
    total = tl.zeros([QUERIES], tl.float32)
    out = tl.zeros([QUERIES, VALUE], tl.float32)
    for start in range(0, keys, KEYS):
        key = start + key_of(tl.arange(0, KEYS))
        k = load_rows(K, batch, head, key, WIDTH)
        scores = masked_scores(q, k, batch, head, query, key, queries, keys, terms, scale, PRECISION)
        now = tl.maximum(largest, tl.max(scores, 1))
        shift = tl.where(now == float("-inf"), 0.0, now)  # no key seen yet
        weights, faded = tl.exp(scores - shift[:, None]), tl.exp(largest - shift)
        total = total * faded + tl.sum(weights, 1)
        if dropout.seeds is not None:
            keep = kept(dropout, batch, head, query, start, QUERIES, KEYS)
            weights = tl.where(keep, weights * dropout.scale, 0.0)
        v = load_rows(V, batch, head, key, VALUE)
        out = tl.dot(weights.to(v.dtype), v, out * faded[:, None], input_precision=PRECISION)
        largest = now
    out /= tl.where(total == 0.0, 1.0, total)[:, None]
    store_rows(OUT, batch, head, query, out, VALUE)
    # Infinite where a query sees no key, so that the backward pass computes probabilities of zero.
    log_sum = tl.where(total == 0.0, float("inf"), largest + tl.log(tl.where(total == 0.0, 1.0, total)))
    tl.store(LOG_SUM + number.to(tl.int64) * queries + query, log_sum, mask=query < queries)


@triton.jit
def probabilities(
    scores, log_sum, delta, dout, v, dropout, batch, head, query, start,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A tile's probabilities after dropout, and the gradient of its scores."""
    weights = tl.exp(scores - log_sum[:, None])
    dropped, dweights = weights, tl.dot(dout, tl.trans(v), input_precision=PRECISION)
    if dropout.seeds is not None:
        keep = kept(dropout, batch, head, query, start, QUERIES, KEYS)
        dropped = tl.where(keep, weights * dropout.scale, 0.0)
        dweights = tl.where(keep, dweights * dropout.scale, 0.0)
    return dropped, weights * (dweights - delta[:, None])


@triton.jit
def attend_query_gradients_kernel(
    Q, K, V, terms, dropout, OUT, LOG_SUM, DOUT, DELTA, DQ, DBIAS, DQUERY_TABLE, DKEY_TABLE, DSEGMENT, heads, scale,
    WIDTH: tl.constexpr, VALUE: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One program computes the gradients of QUERIES queries of one head, and of the terms of all their pairs.

    It also writes DELTA (B, H, L), the product of each output with its gradient, for
    :func:`attend_key_gradients_kernel`.
    """
    queries, keys = Q.rows, K.rows
    tiles = tl.cdiv(queries, QUERIES)
    tile, number = tl.program_id(0) % tiles, tl.program_id(0) // tiles
    batch, head = number // heads, number % heads
    query = tile * QUERIES + tl.arange(0, QUERIES)
    q = load_rows(Q, batch, head, query, WIDTH)
    dout = load_rows(DOUT, batch, head, query, VALUE)
    out = load_rows(OUT, batch, head, query, VALUE)
    place, seen = number.to(tl.int64) * queries + query, query < queries
    delta = tl.sum(dout.to(tl.float32) * out.to(tl.float32), 1)
    tl.store(DELTA + place, delta, mask=seen)
    log_sum = tl.load(LOG_SUM + place, mask=seen, other=float("inf"))

    dq = tl.zeros([QUERIES, WIDTH], tl.float32)
    dsame, dother = tl.zeros([QUERIES], tl.float32), tl.zeros([QUERIES], tl.float32)
    for start in range(0, keys, KEYS):
        key = start + key_of(tl.arange(0, KEYS))
        real = seen[:, None] & (key < keys)[None, :]
        k, v = load_rows(K, batch, head, key, WIDTH), load_rows(V, batch, head, key, VALUE)
        scores = masked_scores(q, k, batch, head, query, key, queries, keys, terms, scale, PRECISION)
        _, dscores = probabilities(
            scores, log_sum, delta, dout, v, dropout, batch, head, query, start, QUERIES, KEYS, PRECISION
        )
        if DBIAS.data is not None:
            tl.store(pairs_at(DBIAS, batch, head, query, key), dscores.to(DBIAS.data.dtype.element_ty), mask=real)
        dscores *= scale
        if DQUERY_TABLE.data is not None:
            at, inside = by_query(DQUERY_TABLE, batch, head, query, key, queries)
            tl.store(at, dscores.to(DQUERY_TABLE.data.dtype.element_ty), mask=inside & real)
        if DKEY_TABLE.data is not None:
            at, inside = by_key(DKEY_TABLE, batch, head, query, key, keys)
            tl.store(at, dscores.to(DKEY_TABLE.data.dtype.element_ty), mask=inside & real)
        if DSEGMENT.data is not None:
            differs = tl.load(pairs_at(terms.different, batch, head, query, key), mask=real, other=0) != 0
            dsame += tl.sum(tl.where(differs, 0.0, dscores), 1)
            dother += tl.sum(tl.where(differs, dscores, 0.0), 1)
        dq = tl.dot(dscores.to(k.dtype), k, dq, input_precision=PRECISION)
    store_rows(DQ, batch, head, query, dq, WIDTH)
    if DSEGMENT.data is not None:
        at_same, at_other = segment_at(DSEGMENT, batch, head, query)
        tl.store(at_same, dsame, mask=seen)
        tl.store(at_other, dother, mask=seen)


@triton.jit
def attend_key_gradients_kernel(
    Q, K, V, terms, dropout, LOG_SUM, DOUT, DELTA, DK, DV, heads, scale,
    WIDTH: tl.constexpr, VALUE: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One program computes the gradients of KEYS keys and values of one head, in one pass over the queries."""
    queries, keys = Q.rows, K.rows
    tiles = tl.cdiv(keys, KEYS)
    tile, number = tl.program_id(0) % tiles, tl.program_id(0) // tiles
    batch, head = number // heads, number % heads
    start = tile * KEYS
    key = start + key_of(tl.arange(0, KEYS))
    k, v = load_rows(K, batch, head, key, WIDTH), load_rows(V, batch, head, key, VALUE)

    dk = tl.zeros([KEYS, WIDTH], tl.float32)
    dv = tl.zeros([KEYS, VALUE], tl.float32)
    for first in range(0, queries, QUERIES):
        query = first + tl.arange(0, QUERIES)
        place, seen = number.to(tl.int64) * queries + query, query < queries
        q, dout = load_rows(Q, batch, head, query, WIDTH), load_rows(DOUT, batch, head, query, VALUE)
        delta = tl.load(DELTA + place, mask=seen, other=0.0)
        log_sum = tl.load(LOG_SUM + place, mask=seen, other=float("inf"))
        scores = masked_scores(q, k, batch, head, query, key, queries, keys, terms, scale, PRECISION)
        dropped, dscores = probabilities(
            scores, log_sum, delta, dout, v, dropout, batch, head, query, start, QUERIES, KEYS, PRECISION
        )
        dv = tl.dot(tl.trans(dropped.to(dout.dtype)), dout, dv, input_precision=PRECISION)
        dk = tl.dot(tl.trans((dscores * scale).to(q.dtype)), q, dk, input_precision=PRECISION)
    store_rows(DK, batch, head, key, dk, WIDTH)
    store_rows(DV, batch, head, key, dv, VALUE)


# -------------------------------------------------------------------------------------------------------------- launch


def matrix(x: Tensor | None) -> Matrix:
    return Matrix(None, 0, 0, 0, 0, 0, 0) if x is None else Matrix(x, *x.stride(), *x.shape[2:])


def tiling(q: Tensor, v: Tensor, *tables: Tensor | None) -> dict[str, Any]:
    """Tile sizes: scores, probabilities and accumulators fit the registers, operands fit the shared memory.

    Shared memory is 99 KiB on every GPU since 2020; tests/nn/gpu/machine.py checks both limits. A float32 product takes
    three TF32 products, exact to 2^-21, or one where torch's settings allow TF32.
    """
    width, value = (max(16, triton.next_power_of_2(x.shape[-1])) for x in (q, v))
    half, narrow = q.element_size() == 2, max(width, value) <= 64
    # A tile has whole groups of 32 keys: see key_of.
    queries, keys = (64, 64) if half and narrow else (32, 32) if half or narrow else (16, 32)
    exact = torch.get_float32_matmul_precision() == "highest"
    return {
        "WIDTH": width, "VALUE": value, "QUERIES": queries, "KEYS": keys, "PRECISION": "tf32x3" if exact else "tf32",
        "num_warps": 4 if queries == 64 and all(table is None for table in tables) else 8, "num_stages": 2,
    }  # fmt: skip


INPUTS = """Tensor q, Tensor k, Tensor v, Tensor? bias, Tensor? query_table, Tensor? key_table, Tensor? segment,
    Tensor? different, Tensor? visible, Tensor? seeds"""
HOW = "float scale, float p, int site"


@operation(attend_shapes, f"({INPUTS}, {HOW}) -> (Tensor, Tensor)", space=GPU)
def attend_forward(q, k, v, bias, query_table, key_table, segment, different, visible, seeds, scale, p, site):
    """The attended values (B, H, L, V), and the log of each row's softmax denominator (B, H, L)."""
    out, log_sum = attend_shapes(q, k, v)
    batch, heads, queries, _ = q.shape
    terms = Terms(*map(matrix, (bias, query_table, key_table, segment, different, visible)))
    tiles = tiling(q, v, query_table, key_table)
    attend_kernel[(triton.cdiv(queries, tiles["QUERIES"]) * batch * heads,)](
        matrix(q), matrix(k), matrix(v), terms, DropoutTerms(seeds, site, *scaling(seeds, p)), matrix(out), log_sum,
        heads, scale, **tiles,
    )  # fmt: skip
    return out, log_sum


def _attend_backward_shapes(dout: Tensor, q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    """Gradients of the tables start at zero, because entries without a pair of query and key are never written."""
    bias, query_table, key_table, segment = rest[:4]
    dqkv = (heads_last(x, x.shape[-1]) for x in (q, k, v))
    dbias = q.new_empty(0) if bias is None else bias.new_empty(*q.shape[:3], k.shape[2])
    dtables = (q.new_empty(0) if x is None else torch.zeros_like(x) for x in (query_table, key_table))
    return *dqkv, dbias, *dtables, q.new_empty(0) if segment is None else torch.empty_like(segment)


@operation(
    _attend_backward_shapes,
    f"(Tensor dout, {INPUTS}, Tensor out, Tensor log_sum, {HOW}) -> ({', '.join(['Tensor'] * 7)})",
    space=GPU,
)
def attend_backward(dout, q, k, v, bias, query_table, key_table, segment, different, visible, seeds, *rest):
    """Gradients of q, k, v, bias, query_table, key_table and segment; empty for absent ones.

    The gradient of the bias has an entry for every pair.
    """
    out, log_sum, scale, p, site = rest
    added = bias, query_table, key_table, segment
    dq, dk, dv, *dadded = _attend_backward_shapes(dout, q, k, v, *added)
    terms = Terms(*map(matrix, (*added, different, visible)))
    dropout = DropoutTerms(seeds, site, *scaling(seeds, p))
    differentiate(dout, (q, k, v), terms, dropout, out, log_sum, scale, (dq, dk, dv), dadded)
    return dq, dk, dv, *dadded


def differentiate(
    dout: Tensor,
    qkv: Sequence[Tensor],
    terms: Terms,
    dropout: DropoutTerms,
    out: Tensor,
    log_sum: Tensor,
    scale: float,
    dqkv: Sequence[Tensor],
    dadded: Sequence[Tensor],
) -> None:
    """Fill ``dqkv``, and the tensors of ``dadded`` that are not empty."""
    (q, k, v), (dq, dk, dv) = qkv, dqkv
    batch, heads, queries, _ = q.shape
    delta, tiles = torch.empty_like(log_sum), tiling(q, v, terms.query_table.data, terms.key_table.data)
    inputs = (matrix(q), matrix(k), matrix(v), terms, dropout)
    attend_query_gradients_kernel[(triton.cdiv(queries, tiles["QUERIES"]) * batch * heads,)](
        *inputs, matrix(out), log_sum, matrix(dout), delta, matrix(dq),
        *(matrix(x if x.numel() else None) for x in dadded), heads, scale, **tiles,
    )  # fmt: skip
    attend_key_gradients_kernel[(triton.cdiv(k.shape[2], tiles["KEYS"]) * batch * heads,)](
        *inputs, log_sum, matrix(dout), delta, matrix(dk), matrix(dv), heads, scale, **tiles
    )


Attend = attend_function(attend_forward, attend_backward, how=3, keep_out=True)


@operation(
    lambda dout, qkv, *_: torch.empty_like(qkv),
    f"(Tensor dout, Tensor qkv, Tensor? visible, Tensor? seeds, Tensor out, Tensor log_sum, {HOW}) -> Tensor",
    space=GPU,
)
def attend_packed_backward(dout, qkv, visible, seeds, out, log_sum, scale, p, site):
    """The gradient of qkv (3, B, H, L, K), with its strides."""
    dqkv = torch.empty_like(qkv)
    terms = Terms(*map(matrix, (None, None, None, None, None, visible)))
    dropout, none = DropoutTerms(seeds, site, *scaling(seeds, p)), [qkv.new_empty(0)] * 4
    differentiate(dout, qkv.unbind(), terms, dropout, out, log_sum, scale, dqkv.unbind(), none)
    return dqkv


def attend_packed_forward(qkv, visible, seeds, *how):
    """Self-attention of qkv (3, B, H, L, K), a view of one product; the gradient is written without concatenation."""
    return attend_forward(*qkv.unbind(), *[None] * 5, visible, seeds, *how)


AttendPacked = attend_function(attend_packed_forward, attend_packed_backward, how=3, keep_out=True)


# ------------------------------------------------------------------------------------------------ with their gradients

WIDEST = 512  # bytes in a head's row; tiles of wider heads do not fit the shared memory of an A100


def left_to_torch(q: Tensor, v: Tensor, *added: Any) -> bool:
    """Whether torch's own operations compute this attention.

    True for heads too wide for tiles, and on a GPU without bias, mask and dropout, where torch has the vendor's
    kernels.
    """
    width = triton.next_power_of_2(max(q.shape[-1], v.shape[-1]))
    return width * q.element_size() > WIDEST or q.is_cuda and all(x is None for x in added)


def aligned(rows: Tensor) -> Tensor:
    """Rows of distances (..., P, H, K), with rows of zeros up to a multiple of 8: products of an odd number of bf16
    columns run ten times slower. No pair of query and key reads the columns that are added.
    """
    return F.pad(rows, (0, 0, 0, 0, 0, -rows.shape[-3] % 8))


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
) -> Tensor:
    """As :func:`encoderlab.nn.kernels.attend`."""
    if left_to_torch(q, v, bias, visible, seeds, relative):
        return plain.attend(
            q, k, v, bias=bias, visible=visible, scale=scale, p=p, seeds=seeds, site=site, relative=relative
        )
    pairs = *q.shape[:3], k.shape[2]
    query_table = key_table = segment = different = None
    if relative is not None:
        if relative.query_rows is not None:
            query = q if relative.position_query is None else relative.position_query
            query_table = dense(chosen_per_head(query, aligned(relative.query_rows), relative.table))
        if relative.key_rows is not None:
            key_table = dense(chosen_per_head(k, aligned(relative.key_rows.flip(-3)), relative.table))
        if relative.segment is not None:
            assert relative.different is not None
            segment = relative.segment.float().contiguous()
            different = relative.different.expand(pairs).view(torch.uint8)
    bias = None if bias is None else bias.expand(pairs)
    visible = None if visible is None else visible.expand(pairs).view(torch.uint8)
    q, k, v = dense(q), dense(k), dense(v)
    return apply(Attend, q, k, v, bias, query_table, key_table, segment, different, visible, seeds, scale, p, site)


def attend_packed(
    qkv: Tensor, heads: int, visible: Tensor | None, seeds: Tensor | None, scale: float, p: float, site: int
) -> Tensor:
    """As :func:`encoderlab.nn.kernels.attend_packed`."""
    batch, length, _ = qkv.shape
    parts = packed_heads(qkv, heads)
    if left_to_torch(parts, parts, visible, seeds):
        return plain.attend_packed(qkv, heads, visible=visible, scale=scale, p=p, seeds=seeds, site=site)
    if visible is not None:
        visible = visible.expand(batch, heads, length, length).view(torch.uint8)
    return apply(AttendPacked, parts, visible, seeds, scale, p, site).transpose(1, 2).flatten(2)
