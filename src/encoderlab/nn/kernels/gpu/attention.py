"""Attention in tiles that stay on the chip (Dao et al. 2022; Dao 2023), with dropout, any mask, and position terms.

    score[i, j] = scale * (q_i . k_j + query_table[i, L - 1 - i + j] + key_table[j, M - 1 - j + i]
                           + segment[i, different[i, j]]) + bias[i, j]

The tables (B, H, L, P) and (B, H, M, P) are products of queries and keys with the rows of all distances, computed
outside the kernels by batched products. The kernels read the tables along diagonals: no (B, H, L, M) bias exists and
nothing is gathered. The backward pass computes probabilities again, from the log of each row's denominator. Every entry
of a table's gradient belongs to one pair of query and key, and one program writes it; nothing is added atomically, so a
step gives the same bits every time.

In tiles of a product's layout, a thread that holds a key also holds the key 16 further on, and the compiler sees that
both share a word of the dropout masks: see :func:`kept`. Where all queries fit one tile, one kernel computes all
gradients from one recomputation of the probabilities; otherwise there are two, one for queries and one for keys.
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


LOG2_E = tl.constexpr(1.4426950408889634)


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
def by_query(table, batch, head, query, start, queries, keys, KEYS: tl.constexpr):
    """Pointers (KEYS, N) into the queries' table, at the distance of each pair, and which of them exist.

    They are transposed because the compiler would otherwise read the table in the order that suits the mask.
    """
    column, first = tl.arange(0, KEYS), queries - 1 - query  # first: the distance of key 0
    end = tl.where(query < queries, tl.minimum(keys, table.columns - first), 0) - start
    at = of_head(table, batch, head) + start + (query * table.row + first)[None, :] + column[:, None]
    return at, column[:, None] < end[None, :]


@triton.jit
def by_key(table, batch, head, query, start, queries, keys, KEYS: tl.constexpr):
    """Pointers (N, KEYS) into the keys' table, whose columns run the other way, and which of them exist."""
    key = start + tl.arange(0, KEYS)
    first = keys - 1 - key  # the distance of query 0
    end = tl.where(key < keys, tl.minimum(queries, table.columns - first), 0)
    at = of_head(table, batch, head) + (key * table.row + first)[None, :] + query[:, None]
    return at, query[:, None] < end[None, :]


@triton.jit
def head_stream(dropout, batch, head):
    """The random stream of a head's dropout masks; zero without dropout."""
    streams = tl.zeros((), tl.uint64)
    if dropout.seeds is not None:
        streams = stream(stream(read_seed(dropout.seeds, batch), dropout.site), head)
    return streams


@triton.jit
def kept(dropout, streams, query, start, KEYS: tl.constexpr):
    """The keep mask of a tile whose first key is ``start``, equal to :func:`encoderlab.nn.noise.kept_pairs`.

    Keys 16 apart share a word. This says so for every key by itself; the compiler computes a word once for all keys
    that a thread holds.
    """
    column = tl.arange(0, KEYS)
    word, low = (column >> 5) * 16 + (column & 15), (column & 16) == 0
    x = words(streams, ((query << 16) + start // 2)[:, None] + word[None, :])
    return tl.where(low[None, :], x << 16, x).to(tl.int32, bitcast=True) >= dropout.threshold


@triton.jit
def segment_at(segment, batch, head, query):
    """Pointers (N,) to the two scores of each query, for keys of the same segment and of another."""
    same = of_head(segment, batch, head) + query * segment.row
    return same, same + 1


@triton.jit
def scores_of(
    q, k, batch, head, query, start, queries, keys, terms, scale, KEYS: tl.constexpr, PRECISION: tl.constexpr
):
    """The scores of a tile in float32, in units of log 2, and which keys a query may attend to."""
    key = start + tl.arange(0, KEYS)
    inside = (query < queries)[:, None] & (key < keys)[None, :]
    if terms.query_table.data is not None:
        at, exists = by_query(terms.query_table, batch, head, query, start, queries, keys, KEYS)
        of_queries = tl.load(at, mask=exists, other=0.0)
    if terms.key_table.data is not None:
        at, exists = by_key(terms.key_table, batch, head, query, start, queries, keys, KEYS)
        of_keys = tl.load(at, mask=exists, other=0.0)
    scores = tl.dot(q, tl.trans(k), input_precision=PRECISION)
    if terms.query_table.data is not None:
        scores += tl.trans(of_queries).to(tl.float32)
    if terms.key_table.data is not None:
        scores += of_keys.to(tl.float32)
    if terms.segment.data is not None:
        at_same, at_other = segment_at(terms.segment, batch, head, query)
        same = tl.load(at_same, mask=query < queries, other=0.0)
        other = tl.load(at_other, mask=query < queries, other=0.0)
        differs = tl.load(pairs_at(terms.different, batch, head, query, key), mask=inside, other=0) != 0
        scores += tl.where(differs, other[:, None], same[:, None])
    scores *= scale * LOG2_E
    if terms.bias.data is not None:
        bias = tl.load(pairs_at(terms.bias, batch, head, query, key), mask=inside, other=0.0).to(tl.float32)
        scores += tl.where(bias < -1e38, bias, bias * LOG2_E)  # the lowest number must not become infinite
    if terms.visible.data is not None:
        real = tl.load(pairs_at(terms.visible, batch, head, query, key), mask=inside, other=0) != 0
    else:
        real = (key < keys)[None, :]
    return scores, real


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
    streams = head_stream(dropout, batch, head)
    query = tile * QUERIES + tl.arange(0, QUERIES)
    q = load_rows(Q, batch, head, query, WIDTH)

    largest = tl.full([QUERIES], float("-inf"), tl.float32)
    total = tl.zeros([QUERIES], tl.float32)
    out = tl.zeros([QUERIES, VALUE], tl.float32)
    for start in range(0, keys, KEYS):
        key = start + tl.arange(0, KEYS)
        k = load_rows(K, batch, head, key, WIDTH)
        scores, real = scores_of(q, k, batch, head, query, start, queries, keys, terms, scale, KEYS, PRECISION)
        scores = tl.where(real, scores, float("-inf"))
        now = tl.maximum(largest, tl.max(scores, 1))
        shift = tl.where(now == float("-inf"), 0.0, now)  # no key seen yet
        weights, faded = tl.exp2(scores - shift[:, None]), tl.exp2(largest - shift)
        total = total * faded + tl.sum(weights, 1)
        if dropout.seeds is not None:
            weights = tl.where(kept(dropout, streams, query, start, KEYS), weights, 0.0)
        v = load_rows(V, batch, head, key, VALUE)
        out = tl.dot(weights.to(v.dtype), v, out * faded[:, None], input_precision=PRECISION)
        largest = now
    out *= (dropout.scale / tl.where(total == 0.0, 1.0, total))[:, None]
    store_rows(OUT, batch, head, query, out, VALUE)
    # Infinite where a query sees no key, so that the backward pass computes probabilities of zero.
    log_sum = tl.where(total == 0.0, float("inf"), (largest + tl.log2(tl.where(total == 0.0, 1.0, total))) / LOG2_E)
    tl.store(LOG_SUM + number.to(tl.int64) * queries + query, log_sum, mask=query < queries)


@triton.jit
def probabilities(
    q, k, v, dout, log_sum, delta, terms, dropout, streams, batch, head, query, start, queries, keys, scale,
    KEYS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A tile's probabilities after dropout, without its scale, and the gradient of its scores."""
    scores, real = scores_of(q, k, batch, head, query, start, queries, keys, terms, scale, KEYS, PRECISION)
    weights = tl.where(real, tl.exp2(scores - (log_sum * LOG2_E)[:, None]), 0.0)
    dropped, dweights = weights, tl.dot(dout, tl.trans(v), input_precision=PRECISION)
    if dropout.seeds is not None:
        keep = kept(dropout, streams, query, start, KEYS)
        dropped = tl.where(keep, weights, 0.0)
        dweights = tl.where(keep, dweights, 0.0) * dropout.scale
    return dropped, weights * (dweights - delta[:, None])


@triton.jit
def attend_query_gradients_kernel(
    Q, K, V, terms, dropout, OUT, LOG_SUM, DOUT, DELTA, DQ, DK, DV, DBIAS, DQUERY_TABLE, DKEY_TABLE, DSEGMENT, heads,
    scale, WIDTH: tl.constexpr, VALUE: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """One program computes the gradients of QUERIES queries of one head, and of the terms of all their pairs.

    If those are all queries, DK and DV are given, and it computes the gradients of keys and values as well. Otherwise
    it writes DELTA (B, H, L), the product of each output with its gradient, for :func:`attend_key_gradients_kernel`.
    """
    queries, keys = Q.rows, K.rows
    tiles = tl.cdiv(queries, QUERIES)
    tile, number = tl.program_id(0) % tiles, tl.program_id(0) // tiles
    batch, head = number // heads, number % heads
    streams = head_stream(dropout, batch, head)
    query = tile * QUERIES + tl.arange(0, QUERIES)
    q = load_rows(Q, batch, head, query, WIDTH)
    dout = load_rows(DOUT, batch, head, query, VALUE)
    out = load_rows(OUT, batch, head, query, VALUE)
    place, seen = number.to(tl.int64) * queries + query, query < queries
    delta = tl.sum(dout.to(tl.float32) * out.to(tl.float32), 1)
    if DELTA is not None:
        tl.store(DELTA + place, delta, mask=seen)
    log_sum = tl.load(LOG_SUM + place, mask=seen, other=float("inf"))

    dq = tl.zeros([QUERIES, WIDTH], tl.float32)
    dsame, dother = tl.zeros([QUERIES], tl.float32), tl.zeros([QUERIES], tl.float32)
    for start in range(0, keys, KEYS):
        key = start + tl.arange(0, KEYS)
        inside = seen[:, None] & (key < keys)[None, :]
        k, v = load_rows(K, batch, head, key, WIDTH), load_rows(V, batch, head, key, VALUE)
        dropped, dscores = probabilities(
            q, k, v, dout, log_sum, delta, terms, dropout, streams, batch, head, query, start, queries, keys,
            scale, KEYS, PRECISION,
        )  # fmt: skip
        rounded = dscores.to(k.dtype)
        if DK.data is not None:
            dv = tl.dot(tl.trans(dropped.to(dout.dtype)), dout, input_precision=PRECISION)
            store_rows(DV, batch, head, key, dv * dropout.scale, VALUE)
            dk = tl.dot(tl.trans(rounded), q, input_precision=PRECISION)
            store_rows(DK, batch, head, key, dk * scale, WIDTH)
        dq = tl.dot(rounded, k, dq, input_precision=PRECISION)
        if DBIAS.data is not None:
            tl.store(pairs_at(DBIAS, batch, head, query, key), dscores.to(DBIAS.data.dtype.element_ty), mask=inside)
        dscores *= scale
        if DQUERY_TABLE.data is not None:
            at, exists = by_query(DQUERY_TABLE, batch, head, query, start, queries, keys, KEYS)
            tl.store(at, tl.trans(dscores.to(DQUERY_TABLE.data.dtype.element_ty)), mask=exists)
        if DKEY_TABLE.data is not None:
            at, exists = by_key(DKEY_TABLE, batch, head, query, start, queries, keys, KEYS)
            tl.store(at, dscores.to(DKEY_TABLE.data.dtype.element_ty), mask=exists)
        if DSEGMENT.data is not None:
            differs = tl.load(pairs_at(terms.different, batch, head, query, key), mask=inside, other=0) != 0
            dsame += tl.sum(tl.where(differs, 0.0, dscores), 1)
            dother += tl.sum(tl.where(differs, dscores, 0.0), 1)
    store_rows(DQ, batch, head, query, dq * scale, WIDTH)
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
    streams = head_stream(dropout, batch, head)
    start = tile * KEYS
    key = start + tl.arange(0, KEYS)
    k, v = load_rows(K, batch, head, key, WIDTH), load_rows(V, batch, head, key, VALUE)

    dk = tl.zeros([KEYS, WIDTH], tl.float32)
    dv = tl.zeros([KEYS, VALUE], tl.float32)
    for first in range(0, queries, QUERIES):
        query = first + tl.arange(0, QUERIES)
        place, seen = number.to(tl.int64) * queries + query, query < queries
        q, dout = load_rows(Q, batch, head, query, WIDTH), load_rows(DOUT, batch, head, query, VALUE)
        delta = tl.load(DELTA + place, mask=seen, other=0.0)
        log_sum = tl.load(LOG_SUM + place, mask=seen, other=float("inf"))
        dropped, dscores = probabilities(
            q, k, v, dout, log_sum, delta, terms, dropout, streams, batch, head, query, start, queries, keys,
            scale, KEYS, PRECISION,
        )  # fmt: skip
        dv = tl.dot(tl.trans(dropped.to(dout.dtype)), dout, dv, input_precision=PRECISION)
        dk = tl.dot(tl.trans(dscores.to(q.dtype)), q, dk, input_precision=PRECISION)
    store_rows(DK, batch, head, key, dk * scale, WIDTH)
    store_rows(DV, batch, head, key, dv * dropout.scale, VALUE)


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
    queries, keys = (64, 64) if half and narrow else (32, 32) if half or narrow else (16, 32)
    if any(table is not None for table in tables):
        keys = 32  # the addresses of the tables' entries need registers
    exact = torch.get_float32_matmul_precision() == "highest"
    return {
        "WIDTH": width, "VALUE": value, "QUERIES": queries, "KEYS": keys, "PRECISION": "tf32x3" if exact else "tf32",
        "num_warps": 4 if queries == 64 else 8, "num_stages": 2, "maxnreg": 168 if queries == 64 else None,
    }  # fmt: skip


def tiling_at_once(q: Tensor, v: Tensor, bias: Tensor | None, *tables: Tensor | None) -> dict[str, Any] | None:
    """Tile sizes to compute all gradients with one kernel, or None where not all queries fit a tile."""
    tiles, queries = tiling(q, v, *tables), max(64, triton.next_power_of_2(q.shape[2]))
    if tiles["QUERIES"] < 64 or queries > 128:
        return None
    alone = all(x is None for x in (bias, *tables))
    # Two tiles of a bias do not fit the shared memory; 128 registers let two programs share a multiprocessor.
    return tiles | {
        "QUERIES": queries, "num_warps": queries // 16, "num_stages": 2 if alone else 1,
        "maxnreg": 128 if alone else None,
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
    if tiles["maxnreg"] and query_table is None and key_table is None:
        tiles["maxnreg"] = 128  # so that four programs share a multiprocessor
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
    inputs = (matrix(q), matrix(k), matrix(v), terms, dropout)
    added = tuple(matrix(x if x.numel() else None) for x in dadded)
    tables = terms.query_table.data, terms.key_table.data
    tiles, delta, by_keys = tiling_at_once(q, v, terms.bias.data, *tables), None, (matrix(dk), matrix(dv))
    if tiles is None:
        tiles, delta, by_keys = tiling(q, v, *tables), torch.empty_like(log_sum), (matrix(None), matrix(None))
    attend_query_gradients_kernel[(triton.cdiv(queries, tiles["QUERIES"]) * batch * heads,)](
        *inputs, matrix(out), log_sum, matrix(dout), delta, matrix(dq), *by_keys, *added, heads, scale, **tiles
    )
    if delta is not None:
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
