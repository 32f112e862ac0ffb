"""The seeds of dropout masks on a GPU, to the bit."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from encoderlab.nn import noise
from encoderlab.nn.kernels.gpu.noise import mixed
from tests.nn.twins import DEVICE, traces


@pytest.mark.parametrize("shape", [(1,), (3, 7), (2, 1025)])
def test_mix64(shape):
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(-(2**63), 2**63 - 1, shape, generator=generator)
    x[..., 0] = 2**63 - 1
    assert torch.equal(mixed(x.to(DEVICE)).cpu(), noise.mix64(x))
    traces(torch.ops.encoderlab_gpu.mixed, x.to(DEVICE))


def test_streams_of_a_gpu_take_it(monkeypatch):
    asked = []
    monkeypatch.setitem(noise.MIXERS, DEVICE, lambda x: asked.append(x) or x)
    noise.stream(torch.arange(6).view(2, 3).T.to(DEVICE), 1)
    (x,) = asked
    assert x.is_contiguous()
    noise.stream(torch.arange(0).to(DEVICE), 1)
    assert len(asked) == 1
