"""The products with the vocabulary, their loss and samples, without the logits of all rows at once."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from encoderlab.nn.kernels.cpu.native import CHUNKS, call, half
from encoderlab.nn.kernels.operation import operation

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
