"""The convolution kernels, alone and beside attention heads, against their plain twins."""

from __future__ import annotations

import pytest
import torch

from encoderlab.nn import kernels
from encoderlab.nn.kernels import plain
from tests.nn.twins import FLOAT, SEEDS, agree, compiled, normal


@compiled
@pytest.mark.parametrize("dtype", FLOAT)
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("length", [3, 20])
def test_convolutions(length, packed, dtype):
    doc = torch.tensor([0, 0, 0, 0, 1, 1, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, -1, -1, -1])[:length].expand(4, -1)
    doc = doc if packed else None
    x, logits = normal(4, length, 3 * 40), normal(4, length, 3 * 9, seed=1)
    agree(lambda x, w: kernels.depthwise(x, w, doc), lambda x, w: plain.depthwise(x, w, doc),
          [x, normal(120, 5, seed=2)], dtype)  # fmt: skip
    agree(
        lambda x, k: kernels.dynamic_convolution(x, k, 3, doc),
        lambda x, k: plain.dynamic_convolution(x, k, 3, doc),
        [x, logits],
        dtype,
    )


@compiled
@pytest.mark.parametrize("dtype", FLOAT)
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("p", [0.0, 0.3])
@pytest.mark.parametrize(("length", "heads", "width", "taps"), [(20, 2, 16, 9), (1, 1, 8, 3), (17, 3, 5, 31)])
def test_mixed_attention(length, heads, width, taps, p, packed, dtype):
    """In double precision the parts run on their own, and are concatenated."""
    inner = heads * width
    doc = torch.tensor([[0] * 7 + [1] * 8 + [-1] * 5]).expand(4, -1)[:, :length] if packed else None
    visible = None if doc is None else ((doc[:, :, None] == doc[:, None]) & (doc >= 0)[:, None])[:, None]

    def call(qkv, *rest):
        how = {"visible": visible, "doc": doc, "scale": 0.3, "p": p, "seeds": SEEDS, "site": 2}
        return kernels.mixed_attention(qkv, *rest, heads, **how)

    weight, bias = normal(heads * taps, inner, seed=3) / inner**0.5, normal(heads * taps, seed=4)
    value, span = normal(4, length, inner, seed=1), normal(4, length, inner, seed=2)
    given = [normal(4, length, 3 * inner), value, span, weight, bias]
    agree(call, call, given, dtype)
    (apart, one) = (call(*(x.to(kind).requires_grad_() for x in given)) for kind in (torch.double, dtype))
    assert apart.grad_fn.name().startswith("Cat") and one.grad_fn.name().startswith("MixedAttention")


def test_convolution_refuses_documents_of_other_rows():
    x, doc = normal(2, 5, 8), torch.zeros(2, 9, dtype=torch.int32)
    with pytest.raises((ValueError, RuntimeError), match="doc|size"):
        kernels.depthwise(x, normal(8, 3), doc)
    with pytest.raises((ValueError, RuntimeError), match="doc|size"):
        kernels.dynamic_convolution(x, normal(2, 5, 6), 2, doc)
