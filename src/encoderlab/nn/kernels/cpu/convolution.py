"""ConvBERT's convolutions: depthwise, and dynamic with a kernel per position and head."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from encoderlab.nn.kernels import functions
from encoderlab.nn.kernels.cpu.native import CHUNKS, call, half, threads
from encoderlab.nn.kernels.operation import operation

MOST_TAPS = 32  # as in convolution.h


def documents(doc: Tensor | None, x: Tensor) -> Tensor | None:
    """:func:`encoderlab.nn.kernels.functions.documents` in int32."""
    doc = functions.documents(doc, x)
    return None if doc is None else doc.to(torch.int32)


@operation(lambda x, weight, doc, back: torch.empty_like(x))
def depthwise(x: Tensor, weight: Tensor, doc: Tensor | None, back: bool) -> Tensor:
    """Convolve x (B, L, C) with weight (J, C); ``back``: with the transposed operator, for the gradient of x."""
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


def _sizes(x: Tensor, logits: Tensor, heads: int) -> tuple[int, ...]:
    return *x.shape[:2], heads, x.shape[2] // heads, logits.shape[2] // heads


def convolve(x: Tensor, logits: Tensor, doc: Tensor | None, heads: int, out: Tensor, softmax: Tensor) -> None:
    """Fill ``out`` (B, L, H K), whose positions may be strided, and ``softmax``, shaped as logits."""
    sizes = _sizes(x, logits, heads)
    call("dynamic", half(x), x, logits, doc, out, out.stride(1), softmax, *sizes, threads(x))


@operation(_dynamic_shapes)
def dynamic(x: Tensor, logits: Tensor, doc: Tensor | None, heads: int) -> tuple[Tensor, Tensor]:
    """The convolved values, and the convolution kernels after softmax."""
    out, softmax = _dynamic_shapes(x, logits, doc, heads)
    convolve(x, logits, doc, heads, out, softmax)
    return out, softmax


@operation(lambda grad, x, softmax, doc, heads: (torch.empty_like(x), x.new_empty(softmax.shape)))
def dynamic_backward(grad: Tensor, x: Tensor, softmax: Tensor, doc: Tensor | None, heads: int) -> tuple[Tensor, Tensor]:
    """The gradients of x and logits; positions of ``grad`` (B, L, H K) may be strided."""
    dx, dlogits = torch.empty_like(x), x.new_empty(softmax.shape)
    sizes = _sizes(x, softmax, heads)
    call("dynamic_backward", half(x), grad, grad.stride(1), x, softmax, doc, dx, dlogits, *sizes, threads(x))
    return dx, dlogits


class DynamicConvolution(Function):
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
