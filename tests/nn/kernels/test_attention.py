"""The attention kernels against their plain twin: masks, reach, rotary and relative positions."""

from __future__ import annotations

import pytest
import torch

from encoderlab.nn import kernels
from encoderlab.nn.kernels import plain
from encoderlab.nn.positions import rotations
from tests.nn.twins import FLOAT, SEEDS, TERMS, agree, compiled, masks, normal, relative

SHAPES = [(16, 16, 8, 8), (128, 128, 64, 64), (7, 9, 5, 6), (50, 70, 33, 20), (1, 300, 64, 64), (300, 257, 16, 24)]


@compiled
@pytest.mark.parametrize("mask", ["none", "pairs", "keys", "packed", "per head", "queries"])
@pytest.mark.parametrize("p", [0.0, 0.2])
@pytest.mark.parametrize("shape", SHAPES)
def test_attend(shape, p, mask):
    L, M, K, V = shape
    visible = masks(L, M)[mask]

    def call(module):
        def attend(q, k, v, bias):
            return module.attend(q, k, v, bias=bias, visible=visible, scale=K**-0.5, p=p, seeds=SEEDS, site=1)

        return attend

    q, k, v = normal(4, 2, L, K), normal(4, 2, M, K, seed=1), normal(4, 2, M, V, seed=2)
    for bias in (None, normal(4, 2, L, M, seed=3), normal(1, 2, L, M, seed=3), normal(4, 1, 1, M, seed=3)):
        agree(call(kernels), call(plain), [q, k, v, bias])
    agree(call(kernels), call(plain), [q, k, v, normal(1, 2, L, M, seed=3)], torch.bfloat16)


@compiled
@pytest.mark.parametrize("mask", ["none", "pairs", "packed"])
@pytest.mark.parametrize("reach", [0, 20, 500])
@pytest.mark.parametrize("shape", [(7, 7, 6), (300, 300, 64), (1, 40, 8), (200, 333, 16)])
def test_attend_within_reach(shape, reach, mask):
    """Keys further from a query than the reach are as good as absent, with memory before the queries too."""
    L, M, K = shape
    visible = masks(L, M)[mask]

    def call(module):
        how = {"visible": visible, "scale": K**-0.5, "p": 0.2, "seeds": SEEDS, "site": 1, "reach": reach}
        return lambda q, k, v, bias: module.attend(q, k, v, bias=bias, **how)

    q, k, v = normal(4, 2, L, K), normal(4, 2, M, K, seed=1), normal(4, 2, M, K, seed=2)
    for bias in (None, normal(1, 2, L, M, seed=3)):
        agree(call(kernels), call(plain), [q, k, v, bias])
    agree(call(kernels), call(plain), [q, k, v, None], torch.bfloat16)


@compiled
@pytest.mark.parametrize("mask", ["none", "packed"])
@pytest.mark.parametrize("reach", [None, 3, 64])
@pytest.mark.parametrize(("L", "K"), [(5, 2), (40, 6), (130, 64), (67, 40)])
def test_rotary_attention(L, K, reach, mask):
    visible = masks(L, L)[mask]
    rotation = rotations(torch.arange(L), K, 50.0)

    def call(module):
        how = {"visible": visible, "scale": K**-0.5, "p": 0.2, "seeds": SEEDS, "site": 1, "reach": reach}
        return lambda qkv: module.attend_packed(qkv, 2, rotation=rotation, **how)

    qkv = normal(4, L, 6 * K)
    agree(call(kernels), call(plain), [qkv])
    agree(call(kernels), call(plain), [qkv], torch.bfloat16)


@compiled
def test_angles_that_do_not_fit_are_refused():
    for shape in ((9, 8), (8, 16), (8, 4)):
        with pytest.raises(ValueError, match="do not fit queries"):
            kernels.attend_packed(normal(2, 8, 48), 2, scale=1.0, rotation=normal(*shape))


@compiled
def test_keys_out_of_reach_are_not_read():
    """Not a number among them, nor its gradient, reaches a block of queries that is far from it."""
    q, k, v = (normal(1, 1, 900, 16, seed=s) for s in range(3))
    k[:, :, :300], v[:, :, 700:] = float("nan"), float("nan")
    leaves = [x.requires_grad_() for x in (q, k, v)]
    out = kernels.attend(*leaves, scale=0.25, reach=20)
    near = slice(420, 580)  # a block of queries, and the reach, away from either
    assert out[:, :, near].isfinite().all() and out[:, :, :280].isnan().all() and out[:, :, 720:].isnan().all()
    out[:, :, near].sum().backward()
    assert q.grad[:, :, near].isfinite().all()


@compiled
def test_attend_takes_strided_heads_and_returns_mergeable_ones():
    qkv = normal(4, 40, 3 * 2 * 16).requires_grad_()
    q, k, v = (part.unflatten(-1, (2, 16)).transpose(1, 2) for part in qkv.chunk(3, -1))
    out = kernels.attend(q, k, v, scale=0.25)
    merged = out.transpose(1, 2).flatten(2)
    assert merged.data_ptr() == out.data_ptr()
    torch.testing.assert_close(out, plain.attend(q, k, v, scale=0.25))


@compiled
def test_attend_reads_a_skewed_bias_without_a_copy():
    table = normal(4, 2, 6, 11)
    skewed = table.as_strided((4, 2, 6, 6), (132, 66, 10, 1), 5)
    q, k, v = (normal(4, 2, 6, 8, seed=s) for s in range(3))
    want = plain.attend(q, k, v, bias=skewed.clone(), scale=0.3)
    torch.testing.assert_close(kernels.attend(q, k, v, bias=skewed, scale=0.3), want)


@compiled
@pytest.mark.parametrize("mask", ["none", "pairs", "packed"])
@pytest.mark.parametrize("terms", TERMS)
@pytest.mark.parametrize("shape", [(16, 16, 8), (130, 130, 64), (50, 70, 33), (1, 40, 16), (7, 200, 16)])
def test_attend_relative(shape, terms, mask):
    L, M, K = shape
    visible = masks(L, M)[mask]
    leaves, make = relative(terms, L, M, K)

    def call(module):
        def attend(q, k, v, *parts):
            return module.attend(q, k, v, visible=visible, scale=0.2, p=0.2, seeds=SEEDS, site=1, relative=make(*parts))

        return attend

    q, k, v = normal(4, 2, L, K), normal(4, 2, M, K, seed=1), normal(4, 2, M, K, seed=2)
    agree(call(kernels), call(plain), [q, k, v, *leaves])
    if mask == "pairs":
        agree(call(kernels), call(plain), [q, k, v, *leaves], torch.bfloat16)


@compiled
def test_relative_one_sided_table():
    """Transformer-XL's distances >= 0: P = M rows, what lies past the diagonal is invisible."""
    L, M, K = 20, 50, 8
    visible = (torch.arange(L)[:, None] + M - L >= torch.arange(M))[None, None]

    def call(module):
        def attend(q, k, v, rows):
            return module.attend(q, k, v, visible=visible, scale=0.3, relative=kernels.Relative(query_rows=rows))

        return attend

    inputs = [normal(4, 2, L, K), normal(4, 2, M, K, seed=1), normal(4, 2, M, K, seed=2), normal(M, 2, K, seed=3)]
    agree(call(kernels), call(plain), inputs)


@compiled
@pytest.mark.parametrize("mask", ["none", "pairs", "packed"])
@pytest.mark.parametrize("dtype", FLOAT)
def test_attend_packed(mask, dtype):
    visible = masks(40, 40)[mask]

    def call(module):
        return lambda qkv: module.attend_packed(qkv, 3, visible=visible, scale=0.25, p=0.2, seeds=SEEDS, site=1)

    agree(call(kernels), call(plain), [normal(4, 40, 3 * 3 * 16)], dtype)


@pytest.mark.parametrize("module", [plain, pytest.param(kernels, marks=compiled)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_attend_is_finite_at_extremes(module, dtype):
    """Rows that see nothing give zeros and no gradient; huge scores and biases of minus infinity give no NaN."""
    visible = torch.ones(2, 1, 8, 8, dtype=torch.bool)
    visible[0] = False
    q, k, v = (200 * normal(2, 2, 8, 16, seed=s) for s in range(3))
    q, k, v = (x.to(dtype).requires_grad_() for x in (q, k, v))
    bias = torch.zeros(2, 2, 8, 8)
    bias[1, :, :, 3] = float("-inf")
    bias[1, :, :, 4] = torch.finfo(dtype).min
    out = module.attend(q, k, v, bias=bias.to(dtype), visible=visible, scale=1.0, p=0.1, seeds=SEEDS[:2], site=0)
    assert (out[0] == 0).all() and out.isfinite().all()
    out.float().sum().backward()
    for x in (q, k, v):
        assert x.grad.isfinite().all() and (x.grad[0] == 0).all()


@pytest.mark.parametrize("queries", [0, 4])
def test_attend_to_no_keys_gives_zeros(queries):
    q, none = normal(2, 3, queries, 8), normal(2, 3, 0, 8)
    assert torch.equal(kernels.attend(q, none, none, scale=1.0), torch.zeros(2, 3, queries, 8))


@pytest.mark.parametrize("shape", [(2, 1, 8, 9), (2, 1, 9, 8), (3, 1, 9, 9), (2, 3, 1, 1)])
def test_attention_refuses_masks_of_other_pairs(shape: tuple[int, ...]) -> None:
    """Two rows of two heads, nine queries and nine keys."""
    q, packed, seen = normal(2, 2, 9, 4), normal(2, 9, 24), torch.ones(shape, dtype=torch.bool)
    for attended in (
        lambda: kernels.attend(q, q, q, visible=seen, scale=0.5),
        lambda: kernels.attend(q, q, q, bias=seen.float(), scale=0.5),
        lambda: kernels.attend_packed(packed, 2, visible=seen, scale=0.5),
    ):
        with pytest.raises((ValueError, RuntimeError)):  # by kernels, or by torch's operations
            attended()
