"""The masks of the Triton kernels are those of :mod:`encoderlab.nn.noise`, bit for bit."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")
import triton
import triton.language as tl

from encoderlab.nn import noise
from encoderlab.nn.kernels.gpu.noise import kept, read_key, stream

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@triton.jit
def mask(keys, out, site, width, threshold, POSITIONS: tl.constexpr, BLOCK: tl.constexpr):
    row, place = tl.program_id(0), tl.arange(0, BLOCK)
    streams = stream(read_key(keys, row), site)
    for position in range(POSITIONS):
        decided = kept(streams, place, position * 16 * tl.cdiv(width, 32), threshold)
        tl.store(out + (row * POSITIONS + position) * width + place, decided, mask=place < width)


@pytest.mark.parametrize("width", [1, 16, 33, 100])
@pytest.mark.parametrize("p", [0.1, 0.5])
def test_masks(width, p):
    keys = torch.randint(-(2**63), 2**63 - 1, (3,), generator=torch.Generator().manual_seed(0)).to(DEVICE)
    out = torch.empty(3, 5, width, dtype=torch.bool, device=DEVICE)
    mask[(3,)](keys, out, 7, width, noise.threshold(p), POSITIONS=5, BLOCK=triton.next_power_of_2(width))
    assert torch.equal(out, noise.kept(keys, 7, (3, 5, width), p))
