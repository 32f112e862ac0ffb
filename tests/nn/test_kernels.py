"""The compiled kernels against their plain twins, values and gradients; the twins against torch and by gradcheck."""

from __future__ import annotations

import logging
import os
import shlex
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from encoderlab.errors import ConfigError
from encoderlab.nn import kernels, noise
from encoderlab.nn.kernels import build, cpu, plain
from encoderlab.nn.positions import rotations
from tests.nn.twins import SEEDS, TERMS, agree, masks, normal, relative

compiled = pytest.mark.skipif(not build.available(), reason="no C++ compiler")
FLOAT = (torch.float32, torch.bfloat16)


# ---------------------------------------------------------------------------------------------------------- plain twins


def test_plain_dropout_scales_what_it_keeps():
    x = normal(4, 9, 40)
    kept = noise.kept(SEEDS, 2, (4, 9, 40), 0.3)
    assert torch.equal(plain.dropout(x, 0.3, SEEDS, 2), torch.where(kept, x * (1 / 0.7), 0.0))
    assert plain.dropout(x, 0.3, None, 2) is x
    assert plain.dropout(x, 0.0, SEEDS, 2) is x


def test_plain_attention_is_torch_s():
    q, k, v = normal(2, 3, 7, 8), normal(2, 3, 9, 8, seed=1), normal(2, 3, 9, 6, seed=2)
    visible = normal(2, 1, 7, 9, seed=3) > -1
    bias = normal(2, 3, 7, 9, seed=4)
    mask = bias.masked_fill(~visible, float("-inf"))
    want = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=0.3)
    torch.testing.assert_close(plain.attend(q, k, v, bias=bias, visible=visible, scale=0.3), want)


@pytest.mark.parametrize("p", [0.0, 0.4])
def test_plain_twins_pass_gradcheck(p):
    def leaf(*shape: int, seed: int = 0) -> Tensor:
        return normal(*shape, seed=seed).double().requires_grad_()

    seeds = SEEDS[:2]
    visible = normal(2, 1, 3, 5, seed=9) > -0.5
    visible[0, 0, 1] = False
    check = torch.autograd.gradcheck
    assert check(lambda x: plain.dropout(x, p, seeds, 0), leaf(2, 3, 4))
    assert check(
        lambda x, r, w, b, c: plain.dropout_add_norm(x, r, w, b, 1e-5, p, seeds, 0, x_bias=c),
        (leaf(2, 3, 4), leaf(2, 3, 4, seed=1), leaf(4, seed=2), leaf(4, seed=3), leaf(4, seed=4)),
    )
    for tanh in (False, True):
        assert check(
            lambda x, u, b, d, tanh=tanh: plain.feed_forward(x, u, b, d, tanh=tanh, p=p, seeds=seeds, site=0),
            (leaf(2, 3, 4), leaf(5, 4, seed=1), leaf(5, seed=2), leaf(4, 5, seed=3)),
        )
    assert check(
        lambda q, k, v, b: plain.attend(q, k, v, bias=b, visible=visible, scale=0.5, p=p, seeds=seeds, site=0),
        (leaf(2, 2, 3, 4), leaf(2, 2, 5, 4, seed=1), leaf(2, 2, 5, 3, seed=2), leaf(1, 2, 3, 5, seed=3)),
    )
    assert check(lambda x: plain.divergence(x, normal(3, 7, seed=1).double(), 2.0)[0], leaf(3, 7))
    different = normal(2, 1, 3, 5, seed=8) > 0
    assert check(
        lambda q, k, v, a, b, c, d: plain.attend(
            q, k, v, visible=visible, scale=0.5, relative=kernels.Relative(a, b, c, d, different)
        ),
        (leaf(2, 2, 3, 4), leaf(2, 2, 5, 4, seed=1), leaf(2, 2, 5, 3, seed=2), leaf(7, 2, 4, seed=3),
         leaf(7, 2, 4, seed=4), leaf(2, 2, 3, 4, seed=5), leaf(2, 2, 3, 2, seed=6)),
    )  # fmt: skip
    doc = torch.tensor([[0, 0, 1, -1], [0, 0, 0, 0]])
    assert check(lambda x, w: plain.depthwise(x, w, doc), (leaf(2, 4, 3), leaf(3, 3, seed=1)))
    assert check(lambda x, k: plain.dynamic_convolution(x, k, 2, doc), (leaf(2, 4, 4), leaf(2, 4, 6, seed=1)))
    assert check(lambda x, w, b: plain.linear_cross_entropy(x, w, b, torch.tensor([1, 0, 6]))[0],
                 (leaf(3, 4), leaf(7, 4, seed=1), leaf(7, seed=2)))  # fmt: skip


# ----------------------------------------------------------------------------------------------- compiled against plain


@compiled
@pytest.mark.parametrize("dtype", FLOAT)
@pytest.mark.parametrize("width", [1, 7, 31, 32, 33, 64, 100, 256])
def test_dropout(width, dtype):
    x = normal(4, 3, 2, width)
    agree(lambda x: kernels.dropout(x, 0.3, SEEDS, 5), lambda x: plain.dropout(x, 0.3, SEEDS, 5), [x], dtype)
    kept = kernels.dropout(torch.ones(4, 6, width), 0.3, SEEDS, 5) != 0
    assert torch.equal(kept, noise.kept(SEEDS, 5, (4, 6, width), 0.3))


@compiled
def test_dropout_takes_one_key_for_every_first_index_only():
    with pytest.raises(ValueError, match="4 seeds for 3 rows"):
        kernels.dropout(torch.ones(3, 5), 0.1, SEEDS, 0)


@compiled
@pytest.mark.parametrize("dtype", FLOAT)
@pytest.mark.parametrize("width", [7, 32, 100, 256])
@pytest.mark.parametrize("p", [0.0, 0.2])
@pytest.mark.parametrize("parts", ["all", "no x_bias", "no residual", "norm", "no bias", "rms"])
def test_dropout_add_norm(width, p, parts, dtype):
    x, residual = normal(4, 5, width), normal(4, 5, width, seed=1)
    weight, bias, x_bias = (normal(width, seed=s) for s in (2, 3, 4))
    inputs = [
        x,
        residual if parts in ("all", "no x_bias") else None,
        weight,
        None if parts in ("no bias", "rms") else bias,
        x_bias if parts in ("all", "no residual") else None,
    ]

    def call(module):
        how = {"center": parts != "rms"}
        return lambda x, r, w, b, c: module.dropout_add_norm(x, r, w, b, 1e-5, p, SEEDS, 3, x_bias=c, **how)

    agree(call(kernels), call(plain), inputs, dtype)


@compiled
@pytest.mark.parametrize("dtype", [*FLOAT, None])
@pytest.mark.parametrize("width", [7, 100])
@pytest.mark.parametrize("p", [0.0, 0.2])
@pytest.mark.parametrize("parts", ["all", "no biases", "no x", "rms"])
def test_dropout_add_then_norm(width, p, parts, dtype):
    """Sum and norm, and the gradients of both; with dtype None what autocast gives: a stream in single precision."""
    x = normal(4, 5, width, seed=1).bfloat16() if dtype is None else normal(4, 5, width, seed=1)
    bare = parts in ("no biases", "rms")
    inputs = [
        normal(4, 5, width),
        None if parts == "no x" else x,
        normal(width, seed=2),
        None if bare else normal(width, seed=3),
        None if bare or parts == "no x" else normal(width, seed=4),
    ]

    def call(module):
        def both(r, x, w, b, c):
            how = {"x_bias": c, "center": parts != "rms"}
            sums, normed = module.dropout_add_then_norm(x, r, w, b, 1e-5, p, SEEDS, 3, **how)
            return torch.cat([sums, normed.to(sums.dtype)])

        return both

    with torch.autocast("cpu", torch.bfloat16, enabled=dtype is None):
        if dtype is None:
            assert (
                kernels.dropout_add_then_norm(x, *inputs[:1], inputs[2], None, 1e-5, 0.0, None, 3)[1].dtype == x.dtype
            )
        coarse = dict.fromkeys(FLOAT, 2e-2)
        agree(call(kernels), call(plain), inputs, dtype, *([coarse] if dtype is None else []))


@compiled
@pytest.mark.parametrize("tanh", [False, True])
def test_gelu_everywhere(tanh):
    """Over the whole range of numbers, against double precision."""
    ends = torch.tensor([-1e4, 1e4, -88.0, 88.0, 1e-30, -3e38, 3e38, 0.0])
    x = torch.cat([torch.linspace(-12, 12, 40000), ends]).view(-1, 8)
    same, none = torch.eye(8), torch.zeros(8)

    def call(module):
        return lambda *a: module.feed_forward(*a, tanh=tanh)

    agree(call(kernels), call(plain), [x[:5000], same, none, same])
    got = kernels.feed_forward(x, same, none, same, tanh=tanh)
    want = F.gelu(x.double(), approximate="tanh" if tanh else "none").float()
    torch.testing.assert_close(got, want, atol=1e-6, rtol=1e-6)
    assert torch.equal(got[-1] > 0, x[-1] > 0)
    assert torch.isnan(kernels.feed_forward(torch.full((2, 8), float("nan")), same, none, same, tanh=tanh)).all()


@compiled
@pytest.mark.parametrize("dtype", FLOAT)
@pytest.mark.parametrize("tanh", [False, True])
@pytest.mark.parametrize("p", [0.0, 0.3])
@pytest.mark.parametrize("kind", ["biased", "bare", "gated", "gated, bare"])
@pytest.mark.parametrize(("shape", "inner"), [((4, 9), 40), ((4,), 5), ((4, 3, 5), 100)])
def test_feed_forward(shape, inner, kind, p, tanh, dtype):
    gated = kind.startswith("gated")

    def call(module):
        return lambda *a: module.feed_forward(*a, tanh=tanh, gated=gated, p=p, seeds=SEEDS, site=1)

    rows = 2 * inner if gated else inner
    bias = None if kind.endswith("bare") else normal(rows, seed=2)
    inputs = [normal(*shape, 16), normal(rows, 16, seed=1) / 4, bias, normal(16, inner, seed=3) / 6]
    agree(call(kernels), call(plain), inputs, dtype)


@compiled
def test_a_kept_graph_runs_backwards_again():
    """Kernels write over what they have saved, but not where it is read again."""
    x = normal(4, 9, 16).requires_grad_()
    out = kernels.feed_forward(x, normal(80, 16, seed=1), None, normal(16, 40, seed=3), gated=True)
    first = torch.autograd.grad(out.sum(), x, retain_graph=True)[0]
    assert torch.equal(first, torch.autograd.grad(out.sum(), x)[0])


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


def test_rotation_turns_pairs():
    """Each pair of numbers turns by its angle, so products of a query and a key depend on their distance alone."""
    rotation = rotations(torch.arange(40), 6, 30.0)
    x = normal(1, 1, 40, 6).double()
    turned = plain.rotate(x, rotation)
    pairs = torch.view_as_complex(torch.stack(x.chunk(2, -1), -1).contiguous())
    angles = torch.arange(40.0)[:, None] * 30.0 ** -(torch.arange(0, 6, 2) / 6)
    want = pairs * torch.polar(torch.ones_like(angles), angles)
    torch.testing.assert_close(turned, torch.cat([want.real, want.imag], -1), atol=1e-5, rtol=1e-5)
    same = plain.rotate(normal(1, 1, 1, 6).expand(-1, -1, 40, -1), rotation)[0, 0]
    products = same @ same.T
    for apart in (1, 7, 30):
        assert torch.allclose(products.diagonal(apart), products[0, apart], atol=1e-4)


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


def test_relative_rows_belong_to_distances():
    """The definition, by loops over queries and keys."""
    L, M, K = 3, 5, 4
    q, k, v = (normal(1, 2, n, K, seed=n) for n in (L, M, M))
    a, b = normal(L + M - 1, 2, K, seed=8), normal(L + M - 1, 2, K, seed=9)
    segment, different = normal(1, 2, L, 2, seed=10), normal(1, 1, L, M, seed=11) > 0
    scores = torch.empty(1, 2, L, M)
    for h in range(2):
        for i in range(L):
            for j in range(M):
                distance = i + M - L - j
                row = M - 1 - distance
                total = q[0, h, i] @ k[0, h, j] + q[0, h, i] @ a[row, h] + k[0, h, j] @ b[row, h]
                scores[0, h, i, j] = 0.3 * (total + segment[0, h, i, int(different[0, 0, i, j])])
    term = kernels.Relative(a, b, None, segment, different)
    torch.testing.assert_close(kernels.attend(q, k, v, scale=0.3, relative=term), scores.softmax(-1) @ v)


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


@compiled
def test_a_second_backward_pass_finds_what_the_first_found():
    x, up, up_bias, down = (normal(*n).requires_grad_() for n in ((4, 5, 8), (12, 8), (12,), (8, 12)))
    out = kernels.feed_forward(x, up, up_bias, down, p=0.2, seeds=SEEDS, site=1).square().sum()
    first, second = (torch.autograd.grad(out, (x, up, up_bias, down), retain_graph=kept) for kept in (True, False))
    for one, other in zip(first, second, strict=True):
        assert torch.equal(one, other)


@compiled
def test_nan_is_not_hidden():
    nan = torch.full((2, 2, 8, 16), float("nan"))
    assert kernels.attend(nan, nan, nan, scale=1.0).isnan().all()
    ones = torch.ones(16)
    assert kernels.dropout_add_norm(nan[0], None, ones, ones, 1e-5, 0.0, None, 0).isnan().all()
    labels = torch.zeros(8, dtype=torch.long)
    assert kernels.linear_cross_entropy(nan[0, 0], torch.ones(40, 16), None, labels)[0].isnan()
    assert kernels.divergence(nan[0, 0], torch.ones(8, 16), 1.0)[0].isnan()
    assert kernels.divergence(torch.ones(8, 16), nan[0, 0], 1.0)[0].isnan()


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


def test_convolution_refuses_documents_of_other_rows():
    x, doc = normal(2, 5, 8), torch.zeros(2, 9, dtype=torch.int32)
    with pytest.raises((ValueError, RuntimeError), match="doc|size"):
        kernels.depthwise(x, normal(8, 3), doc)
    with pytest.raises((ValueError, RuntimeError), match="doc|size"):
        kernels.dynamic_convolution(x, normal(2, 5, 6), 2, doc)


@compiled
@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("classes", [5, 32, 1001])
def test_linear_cross_entropy(classes, with_bias, monkeypatch):
    monkeypatch.setattr(cpu.vocabulary, "LOGITS", 20 * classes)  # chunks of at most 20 rows
    x, weight = normal(67, 16), normal(classes, 16, seed=1) / 2
    bias = normal(classes, seed=2) if with_bias else None
    labels = torch.randint(classes, (67,), generator=torch.Generator().manual_seed(3))
    uniforms = torch.rand(67, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    agree(
        lambda x, w, b: 3 * kernels.linear_cross_entropy(x, w, b, labels)[0],
        lambda x, w, b: 3 * plain.linear_cross_entropy(x, w, b, labels)[0],
        [x, weight, bias],
    )
    agree(
        lambda x, w, b: kernels.linear_cross_entropy(x, w, b, labels, z_loss=0.2)[0],
        lambda x, w, b: plain.linear_cross_entropy(x, w, b, labels, z_loss=0.2)[0],
        [x, weight, bias],
    )
    _, hits, sampled = kernels.linear_cross_entropy(x, weight, bias, labels, uniforms=uniforms)
    _, expected, drawn = plain.linear_cross_entropy(x, weight, bias, labels, uniforms=uniforms)
    assert hits == expected
    assert (sampled != drawn).sum() <= 1  # a number may fall on the edge between two classes
    for dtype in FLOAT:  # whole numbers have ties, of which the first is the guess
        coarse = [y.round().to(dtype) for y in (x, weight)]
        assert (
            kernels.linear_cross_entropy(*coarse, None, labels)[1]
            == plain.linear_cross_entropy(*coarse, None, labels)[1]
        )


@compiled
@pytest.mark.parametrize("temperature", [1.0, 2.5])
@pytest.mark.parametrize("classes", [2, 32, 1001])
@pytest.mark.parametrize("dtype", FLOAT)
def test_divergence(dtype, classes, temperature):
    logits, targets = normal(67, classes), (3 * normal(67, classes, seed=1)).to(dtype)
    agree(
        lambda x: 3 * kernels.divergence(x, targets.to(x.dtype), temperature)[0].to(dtype),
        lambda x: 3 * plain.divergence(x, targets.to(x.dtype), temperature)[0],
        [logits],
        dtype,
    )
    coarse = [x.round().to(dtype) for x in (logits, targets)]  # of equal logits the first is the choice
    coarse[0][:9] = coarse[1][:9].clamp(max=3)
    hits = kernels.divergence(*coarse, temperature)[1]
    assert hits == (coarse[0].argmax(-1) == coarse[1].argmax(-1)).sum() > 0


@compiled
def test_divergence_of_classes_that_cannot_be():
    """Without probability in both rows they count nothing; in the targets alone, nothing in the sum."""
    logits, targets = normal(3, 40), normal(3, 40, seed=1)
    logits[:, 30:] = targets[:, 20:] = float("-inf")
    want = plain.divergence(logits[:, :30], targets[:, :30].clamp(min=-1e4), 2.0)[0]
    torch.testing.assert_close(kernels.divergence(logits, targets, 2.0)[0], want)
    assert kernels.divergence(targets, logits, 2.0)[0] == float("inf")
    torch.testing.assert_close(kernels.divergence(targets, targets, 2.0)[0], torch.tensor(0.0))


def test_the_penalty_of_the_denominator_is_in_the_gradient_alone():
    x, weight, labels = normal(9, 4).double().requires_grad_(), normal(7, 4, seed=1).double(), torch.arange(9) % 7
    with_penalty = plain.linear_cross_entropy(x, weight, None, labels, z_loss=0.3)[0]
    assert torch.equal(with_penalty, plain.linear_cross_entropy(x, weight, None, labels)[0])
    (found,) = torch.autograd.grad(with_penalty, x)
    logits = x @ weight.T
    loss = torch.nn.functional.cross_entropy(logits, labels, reduction="sum")
    (wanted,) = torch.autograd.grad(loss + 0.3 * logits.logsumexp(-1).square().sum(), x)
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("module", [plain, pytest.param(kernels, marks=compiled)])
def test_samples_follow_the_softmax(module):
    logits = torch.tensor([0.0, 1.0, -50.0, 2.0, float("-inf"), 0.5])
    rows = 20000
    uniforms = (torch.arange(rows, dtype=torch.float64) + 0.5) / rows
    weight = torch.zeros(6, 3)
    labels = torch.zeros(rows, dtype=torch.long)
    _, _, sampled = module.linear_cross_entropy(torch.ones(rows, 3), weight, logits, labels, uniforms=uniforms)
    shares = torch.bincount(sampled, minlength=6) / rows
    torch.testing.assert_close(shares, logits.softmax(0), atol=1e-4, rtol=0)


@compiled
def test_labels_outside_the_vocabulary_are_an_error():
    with pytest.raises(IndexError, match="label"):
        kernels.linear_cross_entropy(normal(2, 4), normal(5, 4), None, torch.tensor([1, 5]))


@compiled
@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(0, 80),
    columns=st.integers(1, 80),
    depth=st.integers(0, 80),
    turned=st.tuples(st.booleans(), st.booleans(), st.booleans()),
    with_bias=st.booleans(),
    add=st.booleans(),
)
@example(700, 1200, 600, (False, True, False), True, False)  # several blocks each way
@example(600, 1100, 700, (True, False, False), False, True)
def test_products_of_bfloat16_are_rounded_once(rows, columns, depth, turned, with_bias, add):
    def whole(m: int, n: int, seed: int, turn: bool = False) -> Tensor:  # whole numbers, whose sums are exact
        x = (normal(n, m, seed=seed) if turn else normal(m, n, seed=seed)).mul(3).round().bfloat16()
        return x.T if turn else x

    a, b = whole(rows, depth, 0, turned[0]), whole(depth, columns, 1, turned[1])
    bias = whole(1, columns, 2)[0] if with_bias else None
    out = torch.full((rows, columns + 5), 7.0, dtype=torch.bfloat16)  # rows that are longer than what is written
    wanted = a.double() @ b.double()
    wanted += 0 if bias is None else bias.double()
    wanted += 7 if add else 0
    found = cpu.products.product(a, b, bias=bias, out=out[:, :columns], add=add)
    assert torch.equal(found, wanted.bfloat16())
    assert (out[:, columns:] == 7).all()
    if bias is None and not add:
        assert torch.equal(cpu.products.product(a, b), found)


@compiled
def test_products_that_do_not_fit_are_refused():
    a, b, out = (torch.zeros(shape, dtype=torch.bfloat16) for shape in ((3, 4), (4, 6), (6, 3)))
    for left, right, into in ((a, b.T, None), (a, b, out), (a, b, out.T), (a.float(), b.float(), None)):
        with pytest.raises(ValueError, match="with dense rows"):
            cpu.products.product(left, right, out=into)


@compiled
def test_results_do_not_depend_on_the_number_of_threads():
    x, residual, w = normal(4, 70, 256), normal(4, 70, 256, seed=1), normal(256, seed=2)
    q, k, v = (normal(4, 8, 70, 32, seed=s) for s in range(3))
    left, right = normal(700, 600).bfloat16(), normal(600, 300).bfloat16()
    before = torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            leaves = [t.clone().requires_grad_() for t in (x, residual, w, q, k, v)]
            a, b, c, *heads = leaves
            out = kernels.dropout_add_norm(a, b, c, w, 1e-5, 0.1, SEEDS, 0, x_bias=w)
            attended = kernels.attend(*heads, scale=0.2, p=0.1, seeds=SEEDS, site=1)
            (out.pow(2).sum() + attended.pow(2).sum()).backward()
            product = cpu.products.product(left, right)
            results.append([out, attended, product, *(t.grad for t in leaves)])
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(a, b) for other in results[1:] for a, b in zip(results[0], other, strict=True))


@compiled
def test_batch_split_gives_equal_rows():
    x = normal(4, 9, 64)
    w = normal(64, seed=1)
    whole = kernels.dropout_add_norm(x, x, w, w, 1e-5, 0.1, SEEDS, 0)
    rows = [(x[i : i + 1], SEEDS[i : i + 1]) for i in range(4)]
    parts = [kernels.dropout_add_norm(one, one, w, w, 1e-5, 0.1, key, 0) for one, key in rows]
    assert torch.equal(whole, torch.cat(parts))


# ---------------------------------------------------------------------------------------------- compiling and switching


@compiled
def test_compiles_without_graph_breaks():
    weight, shift, up_bias = normal(32, seed=1), normal(32, seed=6), normal(64, seed=7)
    up, down = normal(64, 32, seed=2) / 6, normal(32, 64, seed=3) / 8
    qkv_weight = normal(96, 32, seed=4) / 6

    def layer(x: Tensor, seeds: Tensor, bias: Tensor) -> Tensor:
        qkv = x @ qkv_weight.T
        q, k, v = (part.unflatten(-1, (2, 16)).transpose(1, 2) for part in qkv.chunk(3, -1))
        a = kernels.attend(q, k, v, bias=bias, scale=0.25, p=0.1, seeds=seeds, site=0).transpose(1, 2).flatten(2)
        rows = kernels.Relative(query_rows=qkv_weight[:23].unflatten(1, (2, 16)))
        a = a + kernels.attend(q, k, v, scale=0.25, p=0.1, seeds=seeds, site=6, relative=rows).transpose(1, 2).flatten(
            2
        )
        a = a + kernels.attend_packed(qkv, 2, scale=0.25, p=0.1, seeds=seeds, site=5)
        x = kernels.dropout_add_norm(a, x, weight, shift, 1e-5, 0.1, seeds, 1)
        x = x + kernels.feed_forward(x, up, up_bias, down, p=0.1, seeds=seeds, site=3)
        return kernels.dropout(x, 0.1, seeds, 2)

    x, bias = normal(4, 12, 32), normal(1, 2, 12, 12, seed=5)
    results = []
    for function in (layer, torch.compile(layer, fullgraph=True, backend="aot_eager")):
        leaves = [x.clone().requires_grad_(), bias.clone().requires_grad_()]
        out = function(leaves[0], SEEDS, leaves[1])
        out.pow(2).sum().backward()
        results.append([out, *(leaf.grad for leaf in leaves)])
    for one, two in zip(*results, strict=True):
        torch.testing.assert_close(one, two)


@compiled
def test_the_loss_compiles_without_graph_breaks():
    labels = torch.randint(50, (21,), generator=torch.Generator().manual_seed(0))

    def loss(x: Tensor, weight: Tensor) -> Tensor:
        return kernels.linear_cross_entropy((x * 2).flatten(0, 1), weight, None, labels)[0]

    results = []
    for function in (loss, torch.compile(loss, fullgraph=True, dynamic=True, backend="aot_eager")):
        leaves = [normal(3, 7, 24).requires_grad_(), normal(50, 24, seed=1).requires_grad_()]
        out = function(*leaves)
        out.backward()
        results.append([out.detach(), *(leaf.grad for leaf in leaves)])
    for one, two in zip(*results, strict=True):
        torch.testing.assert_close(one, two)


@compiled
def test_the_divergence_compiles_without_graph_breaks():
    targets = normal(5, 50, seed=1)
    results = []
    for function in (kernels.divergence, torch.compile(kernels.divergence, fullgraph=True, backend="aot_eager")):
        logits = normal(5, 50).requires_grad_()
        loss, hits = function(logits * 2, targets, 2.0)
        loss.backward()
        results.append([loss.detach(), hits, logits.grad])
    for one, two in zip(*results, strict=True):
        torch.testing.assert_close(one, two)


def test_double_precision_runs_the_plain_twins():
    x = normal(4, 3, 8).double()
    assert torch.equal(kernels.dropout(x, 0.1, SEEDS, 0), plain.dropout(x, 0.1, SEEDS, 0))
    up, bias = normal(5, 8).double(), normal(5).double()
    assert kernels.feed_forward(x, up, bias, up.T).dtype == torch.float64


def test_kernels_can_be_switched_off(monkeypatch):
    monkeypatch.setenv("ENCODERLAB_KERNELS", "off")
    assert build.load.__wrapped__() is None
    monkeypatch.setenv("ENCODERLAB_KERNELS", "banana")
    with pytest.raises(ConfigError, match="ENCODERLAB_KERNELS is 'banana'; set it to off"):
        build.load.__wrapped__()


def test_library_is_compiled_once_for_many_processes(tmp_path, monkeypatch):
    """By a compiler command with arguments, as ``ccache g++`` in CXX."""
    calls = tmp_path / "calls"
    compiler = tmp_path / "g++"
    compiler.write_text(f"#!/bin/sh\necho call >> {calls}\nsleep 0.3\nfor last; do :; done\ntouch $last\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("ENCODERLAB_HOME", str(tmp_path))
    with ThreadPoolExecutor(4) as pool:
        made = {future.result() for future in [pool.submit(build.compile_library, f"env {compiler}") for _ in range(4)]}
    assert len(made) == 1 and made.pop().exists()
    assert calls.read_text() == "call\n"


@compiled
@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: b"\x7fELF cut short",
        lambda data: data[: len(data) // 2],
        lambda data: data[:5000] + bytes([data[5000] ^ 1]) + data[5001:],
    ],
    ids=["emptied", "replaced", "cut", "flipped"],
)
def test_a_damaged_library_is_compiled_again(damage, tmp_path, monkeypatch):
    """As a machine leaves it that stops while it writes; ``g++`` here copies what is there already."""
    good = build.load()._name
    compiler = tmp_path / "g++"
    compiler.write_text(f'#!/bin/sh\nfor last; do :; done\ncp {shlex.quote(good)} "$last"\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("ENCODERLAB_HOME", str(tmp_path))
    monkeypatch.setenv("CXX", str(compiler))
    library = build.compile_library(str(compiler))
    library.write_bytes(damage(library.read_bytes()))  # to load a part of it would end the process with SIGBUS
    library = build.load.__wrapped__()
    assert library is not None and library.encoderlab_dropout


@compiled
@pytest.mark.parametrize("how", ["cut", "zeros"])
def test_a_library_that_changes_while_it_is_used_changes_nothing(how, tmp_path):
    """Another process cuts or overwrites the file in the cache folder; tried in a process of its own."""
    library = Path(build.load()._name)
    (tmp_path / "kernels").mkdir()
    shutil.copy(library, tmp_path / "kernels")
    content = "b''" if how == "cut" else "bytes(path.stat().st_size)"
    code = (
        "import encoderlab, torch; from pathlib import Path; from encoderlab.nn.kernels import build\n"
        f"path = Path(build.load()._name); path.write_bytes({content})\n"
        "states = encoderlab.build('bert-tiny').eval()(torch.ones(1, 7, dtype=torch.long))\n"
        "print(path.parent.parent, states.last.isfinite().all().item())"
    )
    environment = os.environ | {"ENCODERLAB_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout == f"{tmp_path} True\n", done.stderr


@pytest.mark.parametrize("fault", ["quote", "home"])
def test_what_is_wrong_with_the_environment_leaves_the_plain_twins(fault, tmp_path, monkeypatch, caplog):
    def no_home(self: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")  # of a user without entry in a container

    monkeypatch.setenv("ENCODERLAB_HOME", str(tmp_path))
    if fault == "quote":
        monkeypatch.setenv("CXX", "g++ 'unclosed")
    else:
        monkeypatch.setattr(Path, "expanduser", no_home)
    with caplog.at_level(logging.WARNING):
        assert build.load.__wrapped__() is None
    assert len(caplog.records) == 1 and "plain kernels run" in caplog.records[0].getMessage()


def test_a_compiler_that_fails_leaves_the_plain_twins_and_one_line(tmp_path, monkeypatch, caplog):
    broken = tmp_path / "g++"
    broken.write_text("#!/bin/sh\necho 'ops.cpp:1: error: no' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CXX", str(broken))
    monkeypatch.setenv("ENCODERLAB_HOME", str(tmp_path))
    with caplog.at_level(logging.WARNING):
        assert build.load.__wrapped__() is None
    assert len(caplog.records) == 1 and "error: no" in caplog.records[0].getMessage()
