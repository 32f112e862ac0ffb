"""ConvBERT's convolutions: depthwise, and dynamic with a kernel per position and head.

A program computes a block of positions, numbered through all rows of the batch, for the channels of one head or for 64
channels. For each tap it reads the block shifted by that tap; after the first tap the data come from the cache. The
loop over taps is not unrolled: that would take more than twice the registers, and many seconds to compile for 31 taps.
A tap counts if it falls inside the row and, with ``doc``, on a token of the same document that is not padding (< 0).
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from encoderlab.nn.kernels.functions import documents as documents
from encoderlab.nn.kernels.operation import GPU, operation

MOST_TAPS = 128  # the dynamic kernels keep the logits of their block in registers


def block(x: Tensor, width: int) -> dict[str, int]:
    """Block size for ``width`` channels of x: two 16-byte loads per thread, so that registers do not spill."""
    channels = triton.next_power_of_2(width)
    positions = 8192 // (channels * x.element_size())
    return {"POSITIONS": min(max(positions, 1), 128), "CHANNELS": channels, "num_warps": 8}


@triton.jit
def counts(doc, position, shift, positions, length):
    """Whether the tap that reads ``position + shift`` counts, see the module's docstring."""
    place = position % length + shift
    inside = (position < positions) & (place >= 0) & (place < length)
    if doc is not None:
        own = tl.load(doc + position, mask=inside, other=-1)
        other = tl.load(doc + position + shift, mask=inside, other=-1)
        inside = inside & (own == other) & (own >= 0)
    return inside


@triton.jit
def depthwise_kernel(
    x, weight, doc, out, positions, length, width,
    TAPS: tl.constexpr, POSITIONS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """out[t] = sum_j weight[j] x[t + j - TAPS // 2]; weight (TAPS, width)."""
    parts = tl.cdiv(width, CHANNELS)
    position = tl.program_id(0) // parts * POSITIONS + tl.arange(0, POSITIONS)
    channel = tl.program_id(0) % parts * CHANNELS + tl.arange(0, CHANNELS)
    within = channel < width
    here = position.to(tl.int64)[:, None] * width + channel
    total = tl.zeros((POSITIONS, CHANNELS), tl.float32)
    for tap in range(TAPS):
        shift = tap - TAPS // 2
        read = counts(doc, position, shift, positions, length)[:, None] & within
        moved = tl.load(x + here + shift * width, mask=read, other=0.0).to(tl.float32)
        total += moved * tl.load(weight + tap * width + channel, mask=within, other=0.0).to(tl.float32)
    tl.store(out + here, total, mask=(position < positions)[:, None] & within)


@triton.jit
def depthwise_backward_kernel(
    grad, x, weight, doc, dx, sums, positions, length, width,
    TAPS: tl.constexpr, POSITIONS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """Both gradients from the same reads.

    dx[s] = sum_j weight[j] grad[s - j + TAPS // 2], and the sums over the block's s of x[s] grad[s - j + TAPS // 2], in
    ``sums`` (blocks of positions, TAPS, width).
    """
    parts = tl.cdiv(width, CHANNELS)
    number = tl.program_id(0) // parts
    position = number * POSITIONS + tl.arange(0, POSITIONS)
    channel = tl.program_id(0) % parts * CHANNELS + tl.arange(0, CHANNELS)
    within = channel < width
    here = position.to(tl.int64)[:, None] * width + channel
    inside = (position < positions)[:, None] & within
    own = tl.load(x + here, mask=inside, other=0.0).to(tl.float32)
    total = tl.zeros((POSITIONS, CHANNELS), tl.float32)
    for tap in range(TAPS):
        shift = TAPS // 2 - tap
        read = counts(doc, position, shift, positions, length)[:, None] & within
        moved = tl.load(grad + here + shift * width, mask=read, other=0.0).to(tl.float32)
        total += moved * tl.load(weight + tap * width + channel, mask=within, other=0.0).to(tl.float32)
        tl.store(sums + (number * TAPS + tap).to(tl.int64) * width + channel, tl.sum(own * moved, 0), mask=within)
    tl.store(dx + here, total, mask=inside)


@operation(lambda x, weight, doc: torch.empty_like(x), space=GPU)
def depthwise(x: Tensor, weight: Tensor, doc: Tensor | None) -> Tensor:
    """Convolve x (B, L, C) with weight (J, C)."""
    out = torch.empty_like(x)
    (batch, length, width), tile = x.shape, block(x, min(x.shape[2], 64))
    programs = triton.cdiv(batch * length, tile["POSITIONS"]) * triton.cdiv(width, tile["CHANNELS"])
    depthwise_kernel[(programs,)](x, weight, doc, out, batch * length, length, width, TAPS=len(weight), **tile)
    return out


@operation(
    lambda grad, x, weight, doc: (torch.empty_like(x), torch.empty_like(weight, dtype=torch.float32)),
    space=GPU,
)
def depthwise_backward(grad: Tensor, x: Tensor, weight: Tensor, doc: Tensor | None) -> tuple[Tensor, Tensor]:
    """The gradients of x and, in float32, of weight."""
    dx = torch.empty_like(x)
    (batch, length, width), tile = x.shape, block(x, min(x.shape[2], 64))
    blocks = triton.cdiv(batch * length, tile["POSITIONS"])
    sums = x.new_empty(blocks, *weight.shape, dtype=torch.float32)
    depthwise_backward_kernel[(blocks * triton.cdiv(width, tile["CHANNELS"]),)](
        grad, x, weight, doc, dx, sums, batch * length, length, width, TAPS=len(weight), **tile
    )
    return dx, sums.sum(0)


class Depthwise(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, doc: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight, doc)
        return depthwise(x, weight.T.contiguous(), doc)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, doc = ctx.saved_tensors
        dx, dweight = depthwise_backward(grad.contiguous(), x, weight.T.contiguous(), doc)
        return dx, dweight.T.to(weight.dtype), None


@triton.jit
def dynamic_kernel(
    x, logits, doc, out, norms, positions, length, heads, width,
    TAPS: tl.constexpr, COLUMNS: tl.constexpr, POSITIONS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """out[t] = sum_j exp(logits[t, j] - norms[t]) x[t + j - TAPS // 2] for one head, with norms[t] = log sum_j exp."""
    head = tl.program_id(0) % heads
    position = tl.program_id(0) // heads * POSITIONS + tl.arange(0, POSITIONS)
    channel = tl.arange(0, CHANNELS)
    exists, within = position < positions, channel < width
    place = position.to(tl.int64) * heads + head
    here = place[:, None] * width + channel

    column = tl.arange(0, COLUMNS)
    inside = exists[:, None] & (column < TAPS)
    scores = tl.load(logits + place[:, None] * TAPS + column, mask=inside, other=0.0).to(tl.float32)
    scores = tl.where(column < TAPS, scores, float("-inf"))
    largest = tl.max(scores, 1)
    norm = largest + tl.log(tl.sum(tl.exp(scores - largest[:, None]), 1))
    tl.store(norms + place, norm, mask=exists)

    total = tl.zeros((POSITIONS, CHANNELS), tl.float32)
    for tap in range(TAPS):
        shift = tap - TAPS // 2
        read = counts(doc, position, shift, positions, length)[:, None] & within
        moved = tl.load(x + here + shift * heads * width, mask=read, other=0.0).to(tl.float32)
        score = tl.load(logits + place * TAPS + tap, mask=exists, other=0.0).to(tl.float32)
        total += tl.exp(score - norm)[:, None] * moved
    tl.store(out + here, total, mask=exists[:, None] & within)


@triton.jit
def dynamic_backward_kernel(
    grad, x, logits, norms, doc, dx, dlogits, positions, length, heads, width,
    TAPS: tl.constexpr, COLUMNS: tl.constexpr, POSITIONS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """With p the softmax: dx[s] = sum_j p[s - j + TAPS // 2, j] grad[s - j + TAPS // 2], and dlogits[t, j] =
    p[t, j] (slope[t, j] - sum_i p[t, i] slope[t, i]) where slope[t, j] = grad[t] . x[t + j - TAPS // 2]."""
    head = tl.program_id(0) % heads
    position = tl.program_id(0) // heads * POSITIONS + tl.arange(0, POSITIONS)
    channel = tl.arange(0, CHANNELS)
    exists, within = position < positions, channel < width
    place = position.to(tl.int64) * heads + head
    here = place[:, None] * width + channel

    column = tl.arange(0, COLUMNS)
    own = tl.load(grad + here, mask=exists[:, None] & within, other=0.0).to(tl.float32)
    total = tl.zeros((POSITIONS, CHANNELS), tl.float32)
    slopes = tl.zeros((POSITIONS, COLUMNS), tl.float32)
    for tap in range(TAPS):
        shift = tap - TAPS // 2
        read = counts(doc, position, shift, positions, length)[:, None] & within
        moved = tl.load(x + here + shift * heads * width, mask=read, other=0.0).to(tl.float32)
        slopes = tl.where(column == tap, tl.sum(own * moved, 1)[:, None], slopes)

        read = counts(doc, position, -shift, positions, length)
        moved = tl.load(grad + here - shift * heads * width, mask=read[:, None] & within, other=0.0).to(tl.float32)
        other = place - shift * heads
        score = tl.load(logits + other * TAPS + tap, mask=read, other=0.0).to(tl.float32)
        norm = tl.load(norms + other, mask=read, other=0.0)
        total += tl.exp(score - norm)[:, None] * moved
    tl.store(dx + here, total, mask=exists[:, None] & within)

    inside = exists[:, None] & (column < TAPS)
    scores = tl.load(logits + place[:, None] * TAPS + column, mask=inside, other=float("-inf")).to(tl.float32)
    softmax = tl.exp(scores - tl.load(norms + place, mask=exists, other=0.0)[:, None])
    mean = tl.sum(softmax * slopes, 1)
    tl.store(dlogits + place[:, None] * TAPS + column, softmax * (slopes - mean[:, None]), mask=inside)


def _dynamic_shapes(x: Tensor, logits: Tensor, doc: Tensor | None, heads: int) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), x.new_empty(*x.shape[:2], heads, dtype=torch.float32)


def _launch(x: Tensor, logits: Tensor, heads: int) -> tuple[int, tuple[int, ...], dict[str, int]]:
    """The number of programs, and the arguments of the dynamic kernels that follow their tensors."""
    (batch, length, width), taps = x.shape, logits.shape[2] // heads
    sizes = block(x, width // heads) | {"TAPS": taps, "COLUMNS": triton.next_power_of_2(taps)}
    programs = triton.cdiv(batch * length, sizes["POSITIONS"]) * heads
    return programs, (batch * length, length, heads, width // heads), sizes


@operation(_dynamic_shapes, space=GPU)
def dynamic(x: Tensor, logits: Tensor, doc: Tensor | None, heads: int) -> tuple[Tensor, Tensor]:
    """The convolved values, and the log of each softmax denominator (B, L, H), float32."""
    out, norms = _dynamic_shapes(x, logits, doc, heads)
    programs, shape, sizes = _launch(x, logits, heads)
    dynamic_kernel[(programs,)](x, logits, doc, out, norms, *shape, **sizes)
    return out, norms


@operation(lambda grad, x, logits, norms, doc, heads: (torch.empty_like(x), torch.empty_like(logits)), space=GPU)
def dynamic_backward(
    grad: Tensor, x: Tensor, logits: Tensor, norms: Tensor, doc: Tensor | None, heads: int
) -> tuple[Tensor, Tensor]:
    dx, dlogits = torch.empty_like(x), torch.empty_like(logits)
    programs, shape, sizes = _launch(x, logits, heads)
    dynamic_backward_kernel[(programs,)](grad, x, logits, norms, doc, dx, dlogits, *shape, **sizes)
    return dx, dlogits


class DynamicConvolution(Function):
    """Saves the logits and one number per position and head, from which the backward pass computes the softmax again.

    In half precision that is smaller than a float32 softmax and more exact than a softmax in the precision of x.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, logits: Tensor, doc: Tensor | None, heads: int) -> Tensor:
        out, norms = dynamic(x, logits, doc, heads)
        ctx.save_for_backward(x, logits, norms, doc)
        ctx.heads = heads
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return *dynamic_backward(grad.contiguous(), *ctx.saved_tensors, ctx.heads), None, None
