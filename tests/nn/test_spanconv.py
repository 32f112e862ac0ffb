"""Convolution heads against loops over explicit indices, and their gradients."""

from __future__ import annotations

import pytest
import torch

from encoderlab.errors import ConfigError
from encoderlab.nn import kernels
from encoderlab.nn.feedforward import GroupedLinear
from encoderlab.nn.kernels import plain
from encoderlab.nn.spanconv import (
    ConvolutionHeads,
    DepthwiseSeparable,
    Dynamic,
    Light,
    SpanDynamic,
    kept_heads,
)

B, L, D, H, K = 2, 7, 6, 2, 3


def reads(doc: torch.Tensor | None, b: int, t: int, j: int, kernel: int) -> int | None:
    """The place that tap j of token t reads, or None where it reads zero."""
    place = t + j - (kernel - 1) // 2
    if not 0 <= place < L:
        return None
    if doc is not None and (doc[b, place] != doc[b, t] or doc[b, t] < 0):
        return None
    return place


@pytest.mark.parametrize("kernel", [3, 5, 17])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("share", [False, True])
def test_span_dynamic(kernel: int, masked: bool, share: bool) -> None:
    torch.manual_seed(0)
    heads = ConvolutionHeads(SpanDynamic(kernel=kernel, share_value=share, mask_padding=masked), D, H, K).double()
    for p in heads.parameters():
        p.data = torch.randn_like(p)
    x, query, value = (torch.randn(B, L, w, dtype=torch.float64) for w in (D, H * K, H * K))
    doc = torch.tensor([[0, 0, 0, 1, 1, 1, -1], [0] * 7])
    got = heads(x, query, value, doc)
    seen = doc if masked else None
    values = value if share else heads.value(x)
    want = torch.zeros_like(got)
    for b in range(B):
        for t in range(L):
            span = torch.zeros(D, dtype=torch.float64)
            for j in range(kernel):
                place = reads(seen, b, t, j, kernel)
                if place is not None:
                    span += heads.depthwise[:, j] * x[b, place]
            logits = heads.kernel(heads.pointwise(span) * query[b, t]).view(H, kernel)
            for h in range(H):
                weights = logits[h].softmax(0)
                for j in range(kernel):
                    place = reads(seen, b, t, j, kernel)
                    if place is not None:
                        want[b, t, h * K : (h + 1) * K] += weights[j] * values[b, place].view(H, K)[h]
    torch.testing.assert_close(got, want)


def test_light_and_dynamic_kernels() -> None:
    torch.manual_seed(0)
    x = torch.randn(1, L, D, dtype=torch.float64)
    for config in (Light(kernel=3), Dynamic(kernel=3)):
        heads = ConvolutionHeads(config, D, H, K).double()
        for p in heads.parameters():
            p.data = torch.randn_like(p)
        assert not isinstance(config, Dynamic) or heads.kernel.bias is None  # as in fairseq
        value = heads.value(x).view(1, L, H, K)
        logits = (
            heads.kernel(heads.value(x)).view(1, L, H, 3)
            if isinstance(config, Dynamic)
            else heads.weight.expand(1, L, H, 3)
        )
        want = torch.zeros(1, L, H, K, dtype=torch.float64)
        for t in range(L):
            for j in range(3):
                if 0 <= t + j - 1 < L:
                    want[:, t] += logits.softmax(-1)[:, t, :, j, None] * value[:, t + j - 1]
        torch.testing.assert_close(heads(x, x, x, None), want.flatten(2))


def test_gradients() -> None:
    doc = torch.tensor([[0, 0, 1, 1, 1, -1, -1]])
    x = torch.randn(1, L, H, K, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(1, L, H, 3, dtype=torch.float64, requires_grad=True)
    kernel = torch.randn(H * K, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(plain.convolve, (x, weights))
    assert torch.autograd.gradcheck(lambda x, k: plain.depthwise(x.flatten(2), k, doc), (x, kernel))


@pytest.mark.parametrize(("kind", "kernel"), [(DepthwiseSeparable, 4), (SpanDynamic, 8)])
def test_even_kernels_are_refused(kind: type[DepthwiseSeparable | SpanDynamic], kernel: int) -> None:
    with pytest.raises(ConfigError, match=f"kernel {kernel} is even"):
        kind(kernel=kernel)


def test_one_head_stays() -> None:
    assert [kept_heads(h, 2) for h in (1, 2, 4, 12)] == [1, 1, 2, 6] and kept_heads(12, 4) == 3


def test_grouped_linear_is_block_diagonal() -> None:
    torch.manual_seed(0)
    layer = GroupedLinear(6, 9, 3).double()
    layer.weight.data, layer.bias.data = torch.randn(3, 2, 3).double(), torch.randn(9).double()
    x = torch.randn(4, 6, dtype=torch.float64)
    dense = torch.block_diag(*layer.weight)
    torch.testing.assert_close(layer(x), x @ dense + layer.bias)
    with pytest.raises(ConfigError, match="do not divide"):
        GroupedLinear(6, 9, 2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_kernels_of_other_positions_are_refused(dtype: torch.dtype) -> None:
    x, logits = torch.randn(2, 9, 6, dtype=dtype), torch.randn(2, 8, 6, dtype=dtype)
    with pytest.raises(ValueError, match=r"logits \(2, 8, 6\) do not fit x \(2, 9, 6\)"):
        kernels.dynamic_convolution(x, logits, 2)
