"""The vocabulary head's product, loss and samples by chunks of rows, and the divergence of two heads' logits."""

from __future__ import annotations

import torch
import torch.nn.functional as F
import triton
import triton.language as tl

from encoderlab.nn.kernels import functions
from encoderlab.nn.kernels.operation import GPU, operation

LOGITS = 1 << 28  # elements in a chunk of logits: half a GiB in bfloat16
BLOCK = 4096  # logits of a row that are read at a time


@triton.jit
def read(logits, bias, column, stride, classes):
    """Logits plus bias; minus infinity past the last class. Reads whole vectors, up to ``stride``."""
    x = tl.load(logits + column, mask=column < stride, other=0.0).to(tl.float32)
    x = tl.where(column < classes, x, float("-inf"))
    if bias is not None:
        x += tl.load(bias + column, mask=column < stride, other=0.0)
    return x


@triton.jit
def invert(logits, bias, stride, classes, peak, point, BLOCK: tl.constexpr):
    """The class at which the running sum of exp(logits - peak) passes ``point``; its own summand is not zero."""
    before = tl.full((), 0.0, tl.float64)
    passed, last = 0, 0
    for start in range(0, classes, BLOCK):
        column = start + tl.arange(0, BLOCK)
        mass = tl.exp(read(logits, bias, column, stride, classes) - peak)
        running = before + tl.cumsum(mass, 0)
        passed += tl.sum(((running <= point) & (column < classes)).to(tl.int32), 0)
        last = tl.maximum(last, tl.max(tl.where(mass > 0.0, column, 0), 0))
        before += tl.sum(mass, 0)
    return tl.minimum(passed, last)  # rounding can leave the total below the point


@triton.jit(do_not_specialize=["classes"])
def cross_entropy_kernel(
    logits, bias, labels, losses, hits, uniforms, sampled, stride, classes, z_loss,
    GRADIENTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Loss of one row; logits and bias have room for ``stride`` classes, a multiple of 16.

    With GRADIENTS, the gradient replaces the logits: softmax - onehot, and that of ``z_loss`` log(Z)^2.
    """
    row = tl.program_id(0).to(tl.int64)
    logits += row * stride
    label = tl.load(labels + row)
    valid = (label >= 0) & (label < classes)
    chosen = tl.load(logits + label, mask=valid, other=float("nan")).to(tl.float32)
    if bias is not None:
        chosen += tl.load(bias + label, mask=valid, other=0.0)

    # Each lane keeps its own peak, the peak's first class, and the sum of exp(x - peak). The sum starts again where x
    # is larger. One of exp(x - peak) and exp(peak - x) is at most 1, so one exponential gives both.
    peak = tl.full((BLOCK,), -3.4e38, tl.float32)
    first = tl.zeros((BLOCK,), tl.int32)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, classes, BLOCK):
        column = start + tl.arange(0, BLOCK)
        x = read(logits, bias, column, stride, classes)
        above = x > peak
        less = tl.exp(-tl.abs(x - peak))
        total = tl.where(above, total * less + 1.0, total + less)
        first = tl.where(above, column, first)
        peak = tl.where(above, x, peak)
    largest = tl.max(peak, 0)
    total = tl.sum(total * tl.exp(peak - largest), 0)
    tl.store(losses + row, tl.log(total) + (largest - chosen))
    tl.store(hits + row, tl.min(tl.where(peak == largest, first, classes), 0) == label)
    if uniforms is not None:
        point = tl.load(uniforms + row) * total
        tl.store(sampled + row, invert(logits, bias, stride, classes, largest, point, BLOCK))
    if GRADIENTS:
        factor = 1.0 + 2.0 * z_loss * (tl.log(total) + largest)  # of z_loss log(Z)^2 too
        scale = tl.where(valid, factor / total, float("nan"))
        tl.debug_barrier()  # after every thread has read the label's logit
        for start in range(0, classes, BLOCK):
            column = start + tl.arange(0, BLOCK)
            share = tl.exp(read(logits, bias, column, stride, classes) - largest) * scale
            tl.store(logits + column, tl.where(column == label, share - 1.0, share), mask=column < stride)


@operation(functions.linear_cross_entropy_shapes, functions.LINEAR_CROSS_ENTROPY, space=GPU)
def linear_cross_entropy(x, weight, bias, labels, uniforms, gradients, z_loss=0.0):
    """As :func:`encoderlab.nn.kernels.linear_cross_entropy`, with the gradients of the sum.

    A label outside the vocabulary makes loss and gradients NaN: raising an error would wait for the device.
    """
    rows, classes = len(x), len(weight)
    losses = x.new_empty(rows, dtype=torch.float32)
    hits = x.new_empty(rows, dtype=torch.bool)
    _, _, sampled, dx, dweight, dbias = functions.linear_cross_entropy_shapes(
        x, weight, bias, labels, uniforms, gradients
    )
    stride = -classes % 64 + classes  # products and kernels are faster with whole vectors of 128 bytes
    wide = F.pad(weight, (0, 0, 0, stride - classes))
    padded = None if bias is None else F.pad(bias.float(), (0, stride - classes))
    size = max(64, LOGITS // stride // 64 * 64)
    memory = x.new_empty(min(size, rows), stride)
    block = min(BLOCK, triton.next_power_of_2(stride))
    if gradients:
        dweight = torch.empty_like(wide)
    for start in range(0, rows, size):
        part = slice(start, min(start + size, rows))
        logits = memory[: part.stop - part.start]
        torch.mm(x[part], wide.T, out=logits)
        cross_entropy_kernel[(len(logits),)](
            logits, padded, labels[part], losses[part], hits[part], None if uniforms is None else uniforms[part],
            sampled[part], stride, classes, z_loss, GRADIENTS=gradients, BLOCK=block, num_warps=max(1, block // 512),
        )  # fmt: skip
        if gradients:
            torch.mm(logits, wide, out=dx[part])
            if start == 0:
                torch.mm(logits.T, x[part], out=dweight)
            else:
                dweight.addmm_(logits.T, x[part])
            if bias is not None:
                dbias_chunk = logits.sum(0, dtype=torch.float32)[:classes]
                dbias = dbias_chunk if start == 0 else dbias + dbias_chunk
    if gradients:
        dweight = dweight[:classes]
    return losses.sum(), hits.sum(), sampled, dx, dweight, dbias


LinearCrossEntropy = functions.linear_cross_entropy_function(linear_cross_entropy)


@triton.jit
def first_peak(logits, classes, BLOCK: tl.constexpr):
    """The largest of a row's logits, and its first class."""
    peak = tl.full((BLOCK,), -3.4e38, tl.float32)
    first = tl.zeros((BLOCK,), tl.int32)
    for start in range(0, classes, BLOCK):
        column = start + tl.arange(0, BLOCK)
        x = read(logits, None, column, classes, classes)
        first = tl.where(x > peak, column, first)
        peak = tl.maximum(x, peak)
    largest = tl.max(peak, 0)
    return largest, tl.min(tl.where(peak == largest, first, classes), 0)


@triton.jit(do_not_specialize=["classes"])
def divergence_kernel(
    logits, targets, gradient, losses, hits, classes, cold, GRADIENTS: tl.constexpr, BLOCK: tl.constexpr
):
    """KL(softmax(targets / t) || softmax(logits / t)) of one row with ``cold`` = 1 / t, and its gradient."""
    row = tl.program_id(0).to(tl.int64)
    logits += row * classes
    targets += row * classes
    peak, first = first_peak(logits, classes, BLOCK)
    wanted_peak, wanted_first = first_peak(targets, classes, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    wanted_total = tl.zeros((BLOCK,), tl.float32)
    apart = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, classes, BLOCK):
        column = start + tl.arange(0, BLOCK)
        x = (read(logits, None, column, classes, classes) - peak) * cold
        y = (read(targets, None, column, classes, classes) - wanted_peak) * cold
        mass = tl.exp(y)
        total += tl.exp(x)
        wanted_total += mass
        seen = mass > 0.0  # without mass, y may be minus infinity
        apart += mass * (tl.where(seen, y, 0.0) - tl.where(seen, x, 0.0))
    normaliser, wanted_normaliser = tl.sum(total, 0), tl.sum(wanted_total, 0)
    tl.store(losses + row, tl.sum(apart, 0) / wanted_normaliser + tl.log(normaliser / wanted_normaliser))
    tl.store(hits + row, first == wanted_first)
    if GRADIENTS:
        gradient += row * classes
        for start in range(0, classes, BLOCK):
            column = start + tl.arange(0, BLOCK)
            x = (read(logits, None, column, classes, classes) - peak) * cold
            y = (read(targets, None, column, classes, classes) - wanted_peak) * cold
            change = tl.exp(x) / normaliser - tl.exp(y) / wanted_normaliser
            tl.store(gradient + column, change * cold, mask=column < classes)


@operation(functions.divergence_shapes, functions.DIVERGENCE, space=GPU)
def divergence(logits, targets, temperature, gradients):
    rows, classes = logits.shape
    losses = logits.new_empty(rows, dtype=torch.float32)
    hits = logits.new_empty(rows, dtype=torch.bool)
    gradient = torch.empty_like(logits) if gradients else logits.new_empty(0)
    block = min(BLOCK, triton.next_power_of_2(classes))
    divergence_kernel[(rows,)](
        logits, targets, gradient, losses, hits, classes, 1.0 / temperature,
        GRADIENTS=gradients, BLOCK=block, num_warps=max(1, block // 512),
    )  # fmt: skip
    return losses.sum(), hits.sum(), gradient


Divergence = functions.divergence_function(divergence)
