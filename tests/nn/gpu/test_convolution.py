"""The Triton convolutions against their plain twins in double precision, values and gradients."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="Triton is not installed")

from encoderlab.nn.kernels import plain
from encoderlab.nn.kernels.gpu import convolution
from tests.nn import twins
from tests.nn.twins import DEVICE, traces

normal = functools.partial(twins.normal, device=DEVICE)
SINGLE_ROUNDINGS = {torch.float32: 3e-6, torch.bfloat16: 8e-3, torch.float16: 1e-3}
agree = functools.partial(twins.agree, dtype=None, tolerance=SINGLE_ROUNDINGS)
DOCUMENTS = torch.tensor([0] * 4 + [1] * 2 + [2] * 70 + [3] * 6 + [0] * 3 + [-1] * 65, device=DEVICE)


def packed(batch: int, length: int) -> Tensor:
    """Other documents in every row, and padding at the end, the beginning or nowhere: (batch, length)."""
    return torch.stack([DOCUMENTS.roll(-31 * row)[:length] for row in range(batch)])


@pytest.mark.parametrize("documented", [False, True])
@pytest.mark.parametrize(
    ("batch", "length", "width", "taps"),
    [(1, 1, 1, 1), (3, 1, 7, 5), (2, 3, 33, 9), (3, 50, 100, 3), (2, 90, 64, 5), (2, 20, 16, 31), (1, 4, 8, 35)],
)
def test_depthwise(batch, length, width, taps, documented):
    doc = packed(batch, length) if documented else None
    inputs = [normal(batch, length, width), normal(width, taps, seed=1)]
    agree(lambda x, w: convolution.Depthwise.apply(x, w, doc), lambda x, w: plain.depthwise(x, w, doc), inputs)


@pytest.mark.parametrize("documented", [False, True])
@pytest.mark.parametrize(
    ("batch", "length", "heads", "width", "taps"),
    [(1, 1, 1, 1, 1), (3, 1, 2, 7, 5), (2, 3, 3, 33, 9), (2, 40, 3, 100, 3), (2, 90, 1, 64, 5), (1, 20, 2, 16, 31),
     (1, 4, 1, 8, 35)],
)  # fmt: skip
def test_dynamic(batch, length, heads, width, taps, documented):
    doc = packed(batch, length) if documented else None
    inputs = [normal(batch, length, heads * width), normal(batch, length, heads * taps, seed=1)]
    agree(
        lambda x, k: convolution.DynamicConvolution.apply(x, k, doc, heads),
        lambda x, k: plain.dynamic_convolution(x, k, heads, doc),
        inputs,
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_computes_in_float32(dtype):
    """The only roundings are those of what is read and written; a weight may be wider than x."""
    x, logits, doc = normal(2, 60, 3 * 20).to(dtype), normal(2, 60, 3 * 9, seed=1).to(dtype), packed(2, 60)
    for kind in (dtype, torch.float32):
        agree(
            lambda x, w: convolution.Depthwise.apply(x, w, doc),
            lambda x, w: plain.depthwise(x, w, doc),
            [x, normal(60, 9, seed=2).to(kind)],
        )
    agree(
        lambda x, k: convolution.DynamicConvolution.apply(x, k, doc, 3),
        lambda x, k: plain.dynamic_convolution(x, k, 3, doc),
        [x, logits],
    )


def test_softmax_of_huge_logits():
    x, logits = normal(2, 9, 8).bfloat16(), 200 * normal(2, 9, 10, seed=1).bfloat16()
    logits[0, 3, :4] = float("-inf")
    agree(
        lambda x, k: convolution.DynamicConvolution.apply(x, k, None, 2),
        lambda x, k: plain.dynamic_convolution(x, k, 2),
        [x, logits],
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_operations_have_the_shapes_they_are_traced_with(dtype):
    x, logits, doc = normal(2, 5, 3 * 4).to(dtype), normal(2, 5, 3 * 7).to(dtype), packed(2, 5)
    weight, norms, operations = normal(7, 12), normal(2, 5, 3), torch.ops.encoderlab_gpu
    for operation, args in {
        operations.depthwise: (x, weight, doc),
        operations.depthwise_backward: (x, x, weight, doc),
        operations.dynamic: (x, logits, doc, 3),
        operations.dynamic_backward: (x, x, logits, norms, doc, 3),
    }.items():
        traces(operation, *args)


def test_documents_of_other_rows_are_refused():
    with pytest.raises(ValueError, match="doc"):
        convolution.documents(torch.zeros(2, 9, dtype=torch.int32), normal(2, 5, 8))
