"""The vocabulary head's product, loss and samples by chunks of rows, and the divergence of two heads' logits."""

from __future__ import annotations

import torch

from encoderlab.nn.kernels import functions
from encoderlab.nn.kernels.cpu.native import CHUNKS, call, half, threads
from encoderlab.nn.kernels.operation import operation

LOGITS = 1 << 25  # elements in a chunk of logits: large chunks make faster products, small chunks need less memory


@operation(functions.linear_cross_entropy_shapes, functions.LINEAR_CROSS_ENTROPY)
def linear_cross_entropy(x, weight, bias, labels, uniforms, gradients, z_loss=0.0):
    rows, classes = len(x), len(weight)
    if rows and not 0 <= int(labels.min()) <= int(labels.max()) < classes:
        raise IndexError(f"labels {int(labels.min())} to {int(labels.max())} do not fit {classes} classes")
    losses, hits = torch.empty(rows), torch.empty(rows, dtype=torch.bool)
    _, _, sampled, dx, dweight, dbias = functions.linear_cross_entropy_shapes(
        x, weight, bias, labels, uniforms, gradients
    )
    bias = None if bias is None else bias.float()
    stride = -classes % 16 + classes  # MKL is 1.5 times as fast where rows begin at multiples of 64 bytes
    chunks = max(1, -(-rows * classes // LOGITS))
    size = -(-rows // chunks)
    memory = x.new_empty(size, stride)
    memory[:, classes:] = 0  # oneDNN's bfloat16 products read up to the stride; NaN there would stay NaN
    partial = torch.empty(CHUNKS if gradients and bias is not None else 0, classes)
    dbias_chunk = torch.zeros_like(dbias)
    for start in range(0, rows, size):
        part = slice(start, min(start + size, rows))
        logits = memory[: part.stop - part.start, :classes]
        torch.mm(x[part], weight.T, out=logits)
        call(
            "cross_entropy", half(x), logits, stride, bias, labels[part], losses[part], hits[part],
            None if uniforms is None else uniforms[part], sampled[part], partial, dbias_chunk, len(logits), classes,
            gradients, float(z_loss), torch.get_num_threads(),
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


LinearCrossEntropy = functions.linear_cross_entropy_function(linear_cross_entropy)


@operation(functions.divergence_shapes, functions.DIVERGENCE)
def divergence(logits, targets, temperature, gradients):
    rows, classes = logits.shape
    losses, hits = torch.empty(rows), torch.empty(rows, dtype=torch.bool)
    gradient = torch.empty_like(logits) if gradients else None
    call(
        "divergence", half(logits), logits, targets, gradient, losses, hits, rows, classes, 1.0 / temperature,
        threads(logits),
    )  # fmt: skip
    return losses.sum(), hits.sum(), logits.new_empty(0) if gradient is None else gradient


Divergence = functions.divergence_function(divergence)
