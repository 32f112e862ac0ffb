"""What the tests of fast kernels share: numbers, and the comparison with a plain twin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch import library as custom_operations

from encoderlab.nn.kernels import Relative, build
from encoderlab.nn.noise import Noise

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"  # of the kernels of GPUs; on a CPU their interpreter runs
FLOAT = (torch.float32, torch.bfloat16)
SEEDS = Noise(0, 1, torch.arange(4)).seeds
TOLERANCE = {torch.float32: 3e-6, torch.bfloat16: 2e-2, torch.float16: 3e-3}  # of the largest value

compiled = pytest.mark.skipif(not build.available(), reason="no C++ compiler")


def normal(*shape: int, seed: int = 0, device: str = "cpu") -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(device)


def agree(
    fast: Callable[..., Tensor],
    slow: Callable[..., Tensor],
    inputs: list[Tensor | None],
    dtype: torch.dtype | None = torch.float32,
    tolerance: dict[torch.dtype, float] = TOLERANCE,
) -> None:
    """Values and gradients of ``fast`` in ``dtype`` (None: each input's own) are those of ``slow`` in double precision,
    of the same numbers."""
    given = [x if x is None or dtype is None else x.to(dtype) for x in inputs]
    kinds = [x.dtype for x in given if x is not None]

    def run(function: Callable[..., Tensor], double: bool) -> list[Tensor]:
        leaves = [None if x is None else (x.double() if double else x).detach().requires_grad_() for x in given]
        out = function(*leaves)
        generator = torch.Generator().manual_seed(7)
        out.backward(torch.randn(out.shape, generator=generator).to(out.device, kinds[0]).to(out.dtype))
        return [out.detach(), *(x.grad for x in leaves if x is not None)]

    results = zip(run(fast, False), run(slow, True), [kinds[0], *kinds], strict=True)
    for index, (got, want, kind) in enumerate(results):
        assert got.dtype == kind
        error = (got.double() - want).abs().max() / want.abs().max().clamp_min(1e-3)
        assert error < tolerance[kind], (index, float(error))


def traces(operation: Any, *args: Any) -> None:
    """A custom operation has the schema and the shapes that ``torch.compile`` is told."""
    custom_operations.opcheck(operation, args, test_utils=("test_schema", "test_faketensor"))


def masks(L: int, M: int) -> dict[str, Tensor | None]:
    pairs = normal(4, 1, L, M, seed=5) > -0.8
    pairs[0, 0, 0] = False  # a query that sees nothing
    pairs[1, :, :, : M // 2] = False  # keys that no query sees
    pairs[2] = False  # a row that sees nothing
    documents = torch.arange(M)[None, :] // max(M // 3, 1)
    packed = (documents[:, :, None] == documents[:, None, :])[:, :L].expand(4, -1, -1)[:, None] if L <= M else pairs
    return {
        "none": None,
        "pairs": pairs,
        "keys": pairs[:, :, -1:],
        "packed": packed,
        "per head": (normal(4, 2, L, M, seed=6) > 0),
        "queries": pairs[:, :, :, :1],
    }


TERMS = ["query rows", "key rows", "both rows", "transformer-xl", "xlnet", "two tables", "segments"]


def relative(terms: str, L: int, M: int, K: int, batch: int = 4) -> tuple[list[Tensor | None], Callable[..., Relative]]:
    """Leaves (query rows, key rows, position query, segment) and what makes the term of them."""
    rows, P = {"two tables": (2,)}.get(terms, ()), L + M - 1
    leaves = [
        None if terms in ("key rows", "segments") else normal(*rows, P, 2, K, seed=11),
        normal(P, 2, K, seed=12) if terms in ("key rows", "both rows") else None,
        normal(batch, 2, L, K, seed=13) if terms in ("transformer-xl", "xlnet", "two tables") else None,
        normal(batch, 2, L, 2, seed=14) if terms in ("xlnet", "two tables", "segments") else None,
    ]
    different = normal(batch, 1, L, M, seed=15) > 0
    table = torch.tensor([0, 1, 1, 0])[:batch] if terms == "two tables" else None

    def make(a: Tensor | None, b: Tensor | None, c: Tensor | None, d: Tensor | None) -> Relative:
        return Relative(a, b, c, d, None if d is None else different, table)

    return leaves, make
