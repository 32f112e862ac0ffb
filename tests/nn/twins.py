"""What the tests of fast kernels share: numbers, and the comparison with a plain twin."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from encoderlab.nn.noise import Noise

KEYS = Noise(0, 1, torch.arange(4)).keys
TOLERANCE = {torch.float32: 3e-6, torch.bfloat16: 2e-2, torch.float16: 3e-3}  # of the largest value


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def agree(
    fast: Callable[..., Tensor], slow: Callable[..., Tensor], inputs: list[Tensor | None], dtype=torch.float32
) -> None:
    """Values and gradients of ``fast`` in ``dtype`` are those of ``slow`` in double precision on the same numbers."""

    def run(function: Callable[..., Tensor], kind: torch.dtype) -> list[Tensor]:
        leaves = [None if x is None else x.detach().to(dtype).to(kind).requires_grad_() for x in inputs]
        out = function(*leaves)
        generator = torch.Generator().manual_seed(7)
        out.backward(torch.randn(out.shape, generator=generator).to(out.device, dtype).to(kind))
        return [out.detach(), *(x.grad for x in leaves if x is not None)]

    for index, (got, want) in enumerate(zip(run(fast, dtype), run(slow, torch.float64), strict=True)):
        assert got.dtype == dtype
        error = (got.double() - want).abs().max() / want.abs().max().clamp_min(1e-3)
        assert error < TOLERANCE[dtype], (index, float(error))
