"""The masks of :mod:`encoderlab.nn.noise` inside a Triton kernel: the same bits, computed where they are needed."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from encoderlab.nn import noise
from encoderlab.nn.kernels.operation import GPU, operation

BLOCK = 1024  # numbers in a program


@triton.jit
def mix64(x):
    """A bijection of uint64 with full avalanche."""
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB
    return x ^ (x >> 31)


@triton.jit
def stream(seed, site):
    """The random stream of ``site`` (int) for a seed (uint64, see :func:`read_seed`)."""
    return mix64(seed + tl.cast(site + 1, tl.uint64) * 0x9E3779B97F4A7C15)  # Triton makes a site of 1 a constant


@triton.jit
def read_seed(seeds, row):
    """The seed of a row of the batch; ``seeds`` points to int64."""
    return tl.load(seeds + row).to(tl.uint64, bitcast=True)


@triton.jit
def words(streams, counters):
    """32 random bits, uint32, for every (stream, counter); the two shapes broadcast."""
    x = counters.to(tl.uint32) * 0x9E3779B9 + streams.to(tl.uint32)
    x = (x ^ (x >> 16)) * 0x21F0AAAD + (streams >> 32).to(tl.uint32)
    x = (x ^ (x >> 15)) * 0xD35A2D97
    return x ^ (x >> 15)


@triton.jit(do_not_specialize=["number"])
def mix64_kernel(x, out, number, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < number
    bits = tl.load(x + at, mask=inside).to(tl.uint64, bitcast=True)
    tl.store(out + at, mix64(bits).to(tl.int64, bitcast=True), mask=inside)


@operation(torch.empty_like, space=GPU)
def mixed(x: Tensor) -> Tensor:
    """:func:`encoderlab.nn.noise.mix64` in one launch instead of thirteen; x is contiguous and not empty."""
    out = torch.empty_like(x)
    mix64_kernel[(triton.cdiv(x.numel(), BLOCK),)](x, out, x.numel(), BLOCK=BLOCK)
    return out


noise.MIXERS["cuda"] = mixed
