"""Operations on one position at a time: dropout, normalised residual sum, GELU and the feed-forward block.

A program computes one position, or some of its columns, see :class:`Tile`. Gradients of vectors are sums over all
positions: a fixed number of programs each sum over their positions, then torch sums over programs. Nothing is added
atomically, so a step gives the same bits every time.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from encoderlab.nn.kernels import functions
from encoderlab.nn.kernels.gpu.noise import read_seed, stream, words
from encoderlab.nn.kernels.operation import GPU, operation, scaling

PART = 512  # words in a tile where a program may take some columns of a position
WARPS = 1536  # that make partial sums: 12 per multiprocessor of an H100, the most that the registers allow


class Launch(NamedTuple):
    """How the work on a tensor x (B, ..., D) is divided among programs."""

    number: int  # number of positions
    length: int  # positions per row of the batch
    width: int
    parts: int  # programs per position
    tile: dict[str, int]  # size of one program


def launch_for(x: Tensor, most: int | None = None) -> Launch:
    """Divide x into programs of one whole position each, or of at most ``most`` words of one."""
    batch, width = x.shape[0], x.shape[-1]
    size = 16 * triton.next_power_of_2(triton.cdiv(width, 32))
    size = size if most is None else min(size, most)
    number = x.numel() // width
    warps = min(16, max(1, size // 256))  # 16 elements for each thread
    return Launch(number, number // batch, width, triton.cdiv(width, 2 * size), {"WORDS": size, "num_warps": warps})


class ColumnMask(NamedTuple):
    """2 WORDS columns, as tensors (2, WORDS).

    The two columns of the first axis, 16 apart, share a word of the dropout masks and stay in one thread, so each word
    is computed once.
    """

    at: Any
    inside: Any  # whether x has these columns
    word: Any  # (1, WORDS) index of the word


class Tile(NamedTuple):
    """:class:`Columns` of one position."""

    at: Any  # offsets of the elements in x
    inside: Any
    word: Any  # (1, WORDS) the words of the masks; unused without dropout


@triton.jit
def columns_of(part, width, WORDS: tl.constexpr):
    word = part * WORDS + tl.arange(0, WORDS)[None, :]
    at = word // 16 * 32 + word % 16 + tl.arange(0, 2)[:, None] * 16
    return ColumnMask(at, at < width, word)


@triton.jit
def tile_of(row, columns, length, width, seeds, site):
    """Position ``row``, counted through the batch; seeds None means no dropout."""
    word = columns.word
    if seeds is not None:
        first = row % length * (tl.cdiv(width, 32) * 16)
        word = words(stream(read_seed(seeds, row // length), site), first + columns.word)
    return Tile(tl.cast(row, tl.int64) * width + columns.at, columns.inside, word)


@triton.jit
def load(x, tile):
    """The elements of x, or of a vector of columns, for a tile; zero outside."""
    return tl.load(x + tile.at, mask=tile.inside, other=0.0).to(tl.float32)


@triton.jit
def dropped(x, tile, seeds, threshold, scale):
    if seeds is not None:
        halves = tl.where(tl.arange(0, 2)[:, None] == 0, tile.word << 16, tile.word)
        x = tl.where(halves.to(tl.int32, bitcast=True) >= threshold, x * scale, 0.0)
    return x


@triton.jit
def total_of(x):
    return tl.sum(tl.sum(x, 0), 0)


# ------------------------------------------------------------------------------------------------------------- dropout


@triton.jit(do_not_specialize=["length", "site"])
def dropout_kernel(x, out, seeds, length, width, site, threshold, scale, WORDS: tl.constexpr):
    parts = tl.cdiv(width, 2 * WORDS)
    columns = columns_of(tl.program_id(0) % parts, width, WORDS)
    tile = tile_of(tl.program_id(0) // parts, columns, length, width, seeds, site)
    tl.store(out + tile.at, dropped(load(x, tile), tile, seeds, threshold, scale), mask=tile.inside)


@operation(lambda x, seeds, site, p: torch.empty_like(x), space=GPU)
def dropout(x: Tensor, seeds: Tensor, site: int, p: float) -> Tensor:
    out, launch = torch.empty_like(x), launch_for(x, PART)
    grid = (launch.number * launch.parts,)
    dropout_kernel[grid](x, out, seeds, launch.length, launch.width, site, *scaling(seeds, p), **launch.tile)
    return out


# ------------------------------------------------------------------------------------------- dropout + add + LayerNorm


@triton.jit
def summed(x, x_bias, residual, tile, columns, seeds, threshold, scale):
    """residual + dropout(x + x_bias); zero outside."""
    total = load(x, tile)
    if x_bias is not None:
        total += load(x_bias, columns)
    total = dropped(total, tile, seeds, threshold, scale)
    if residual is not None:
        total += load(residual, tile)
    return total


@triton.jit(do_not_specialize=["length", "site"])
def add_norm_kernel(
    x, x_bias, residual, weight, bias, out, statistics, seeds, length, width, site, threshold, scale, eps,
    CENTER: tl.constexpr, WORDS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    columns = columns_of(0, width, WORDS)
    tile = tile_of(row, columns, length, width, seeds, site)
    total = summed(x, x_bias, residual, tile, columns, seeds, threshold, scale)
    mean = total_of(total) / width if CENTER else 0.0
    centred = tl.where(tile.inside, total - mean, 0.0)
    rstd = 1.0 / tl.sqrt(total_of(centred * centred) / width + eps)
    normal = centred * rstd * load(weight, columns)
    if bias is not None:
        normal += load(bias, columns)
    tl.store(out + tile.at, normal, mask=tile.inside)
    tl.store(statistics + 2 * row, mean)
    tl.store(statistics + 2 * row + 1, rstd)


@triton.jit(do_not_specialize=["length", "site", "number"])
def add_norm_backward_kernel(
    grad, x, x_bias, residual, weight, statistics, dx, dresidual, partial, seeds, length, width, site, threshold,
    scale, number, CENTER: tl.constexpr, WORDS: tl.constexpr,
):  # fmt: skip
    """``partial`` (programs, 3, width): sums for weight, bias and x_bias."""
    columns = columns_of(0, width, WORDS)
    dweight = tl.zeros((2, WORDS), tl.float32)
    dbias = tl.zeros((2, WORDS), tl.float32)
    dx_bias = tl.zeros((2, WORDS), tl.float32)
    for row in range(tl.program_id(0), number, tl.num_programs(0)):
        tile = tile_of(row, columns, length, width, seeds, site)
        mean, rstd = tl.load(statistics + 2 * row), tl.load(statistics + 2 * row + 1)
        normal = (summed(x, x_bias, residual, tile, columns, seeds, threshold, scale) - mean) * rstd
        slope = load(grad, tile)
        dweight += slope * normal
        dbias += slope
        slope *= load(weight, columns)
        common = total_of(slope) / width if CENTER else 0.0
        slope = (slope - common - normal * (total_of(slope * normal) / width)) * rstd
        if residual is not None:
            tl.store(dresidual + tile.at, slope, mask=tile.inside)
        slope = dropped(slope, tile, seeds, threshold, scale)
        tl.store(dx + tile.at, slope, mask=tile.inside)
        if x_bias is not None:
            dx_bias += slope
    partial += tl.program_id(0) * 3 * width
    tl.store(partial + columns.at, dweight, mask=columns.inside)
    tl.store(partial + width + columns.at, dbias, mask=columns.inside)
    tl.store(partial + 2 * width + columns.at, dx_bias, mask=columns.inside)


@operation(functions.add_norm_shapes, functions.ADD_NORM, space=GPU)
def add_norm(x, x_bias, residual, weight, bias, seeds, site, p, eps, center):
    out, statistics = functions.add_norm_shapes(x)
    launch = launch_for(x)
    add_norm_kernel[(launch.number,)](
        x, x_bias, residual, weight, bias, out, statistics, seeds, launch.length, launch.width, site,
        *scaling(seeds, p), eps, CENTER=center, **launch.tile,
    )  # fmt: skip
    return out, statistics


@operation(functions.add_norm_backward_shapes, functions.ADD_NORM_BACKWARD, space=GPU)
def add_norm_backward(grad, x, x_bias, residual, weight, statistics, seeds, site, p, center):
    dx, dresidual, _ = functions.add_norm_backward_shapes(grad, x, x_bias, residual)
    launch = launch_for(x)
    programs = min(launch.number, WARPS // launch.tile["num_warps"])
    partial = x.new_empty(programs, 3, launch.width, dtype=torch.float32)
    add_norm_backward_kernel[(programs,)](
        grad, x, x_bias, residual, weight, statistics, dx, dresidual, partial, seeds, launch.length, launch.width, site,
        *scaling(seeds, p), launch.number, CENTER=center, **launch.tile,
    )  # fmt: skip
    return dx, dresidual, partial.sum(0)


# -------------------------------------------------------------------------------------------------------- feed-forward


@triton.jit
def gelu_of(x, TANH: tl.constexpr):
    """gelu(x) and its derivative. The tanh form is x / (1 + exp(-2 u)), which needs no tanh."""
    if TANH:
        # Beyond 12 the exponential is 0 or infinity anyway, and the square of x stays finite.
        near = tl.clamp(x, -12.0, 12.0, propagate_nan=tl.PropagateNan.ALL)
        square = near * near
        share = 1.0 / (1.0 + tl.exp(-1.5957691216057308 * near * (1.0 + 0.044715 * square)))
        slope = share + near * share * (1.0 - share) * 1.5957691216057308 * (1.0 + 0.134145 * square)
    else:
        share = 0.5 + 0.5 * tl.erf(x * 0.7071067811865476)
        slope = share + x * 0.3989422804014327 * tl.exp(-0.5 * x * x)
    return x * share, slope


@triton.jit(do_not_specialize=["length", "site"])
def gelu_kernel(
    x, bias, out, seeds, length, width, site, threshold, scale, GATED: tl.constexpr, TANH: tl.constexpr,
    WORDS: tl.constexpr,
):  # fmt: skip
    """GATED: a row of x and the bias hold first the ``width`` numbers to activate, then the gate."""
    parts = tl.cdiv(width, 2 * WORDS)
    columns = columns_of(tl.program_id(0) % parts, width, WORDS)
    row = tl.program_id(0) // parts
    tile = tile_of(row, columns, length, width, seeds, site)
    if GATED:
        x += tl.cast(row, tl.int64) * width
    inner = load(x, tile)
    if bias is not None:
        inner += load(bias, columns)
    value, _ = gelu_of(inner, TANH)
    if GATED:
        gate = load(x + width, tile)
        if bias is not None:
            gate += load(bias + width, columns)
        value *= gate
    tl.store(out + tile.at, dropped(value, tile, seeds, threshold, scale), mask=tile.inside)


@triton.jit(do_not_specialize=["length", "site", "number"])
def gelu_backward_kernel(
    grad, x, bias, out, partial, seeds, length, width, site, threshold, scale, number,
    GATED: tl.constexpr, TANH: tl.constexpr, WORDS: tl.constexpr,
):  # fmt: skip
    """``partial`` (programs, width, or 2 width if GATED): sums for the bias.

    ``grad`` becomes the gradient of x and ``out`` the activations; if GATED the other way round.
    """
    parts = tl.cdiv(width, 2 * WORDS)
    columns = columns_of(tl.program_id(0) % parts, width, WORDS)
    program = tl.program_id(0) // parts
    shift = tl.zeros((2, WORDS), tl.float32)
    gate_shift = tl.zeros((2, WORDS), tl.float32)
    if bias is not None:
        shift = load(bias, columns)
        if GATED:
            gate_shift = load(bias + width, columns)
    dbias = tl.zeros((2, WORDS), tl.float32)
    dgate_bias = tl.zeros((2, WORDS), tl.float32)
    for row in range(program, number, tl.num_programs(0) // parts):
        tile = tile_of(row, columns, length, width, seeds, site)
        above = dropped(load(grad, tile), tile, seeds, threshold, scale)
        if GATED:
            begin = tl.cast(row, tl.int64) * width
            value, slope = gelu_of(load(x + begin, tile) + shift, TANH)
            gate = load(x + begin + width, tile) + gate_shift
            slope *= above * gate
            dgate = above * value
            tl.store(out + begin + tile.at, slope, mask=tile.inside)
            tl.store(out + begin + width + tile.at, dgate, mask=tile.inside)
            tl.store(grad + tile.at, dropped(value * gate, tile, seeds, threshold, scale), mask=tile.inside)
            dgate_bias += dgate
        else:
            value, slope = gelu_of(load(x, tile) + shift, TANH)
            slope *= above
            tl.store(grad + tile.at, slope, mask=tile.inside)
            tl.store(out + tile.at, dropped(value, tile, seeds, threshold, scale), mask=tile.inside)
        dbias += slope
    if bias is not None:
        partial += program * (2 * width if GATED else width)
        tl.store(partial + columns.at, dbias, mask=columns.inside)
        if GATED:
            tl.store(partial + width + columns.at, dgate_bias, mask=columns.inside)


@operation(functions.gelu_shapes, space=GPU)
def gelu(x: Tensor, bias: Tensor | None, gated: bool, tanh: bool, seeds: Tensor | None, site: int, p: float) -> Tensor:
    """dropout(gelu(x + bias)); ``gated``: dropout of gelu of the first half times the second half."""
    out = functions.gelu_shapes(x, bias, gated)
    launch = launch_for(out, PART)
    gelu_kernel[(launch.number * launch.parts,)](
        x, bias, out, seeds, launch.length, launch.width, site, *scaling(seeds, p), GATED=gated, TANH=tanh,
        **launch.tile,
    )  # fmt: skip
    return out


@operation(functions.gelu_backward_shapes, functions.GELU_BACKWARD, space=GPU)
def gelu_backward_(grad, x, bias, out, gated, tanh, seeds, site, p):
    launch = launch_for(grad, PART)
    programs = min(launch.number, max(1, WARPS // (launch.parts * launch.tile["num_warps"])))
    partial = x.new_empty(programs, 0 if bias is None else x.shape[-1], dtype=torch.float32)
    gelu_backward_kernel[(programs * launch.parts,)](
        grad, x, bias, out, partial, seeds, launch.length, launch.width, site, *scaling(seeds, p), launch.number,
        GATED=gated, TANH=tanh, **launch.tile,
    )  # fmt: skip
    return partial.sum(0)


Dropout = functions.dropout_function(dropout)
AddNorm = functions.add_norm_function(add_norm, add_norm_backward)
FeedForward = functions.feed_forward_function(gelu, gelu_backward_)
