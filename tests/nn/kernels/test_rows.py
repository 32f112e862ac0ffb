"""Kernels of one position at a time: dropout, norms, GELU and feed-forward, against their plain twins."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from encoderlab.nn import kernels, noise
from encoderlab.nn.kernels import plain
from tests.nn.twins import FLOAT, SEEDS, agree, compiled, normal


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


@compiled
def test_a_second_backward_pass_finds_what_the_first_found():
    x, up, up_bias, down = (normal(*n).requires_grad_() for n in ((4, 5, 8), (12, 8), (12,), (8, 12)))
    out = kernels.feed_forward(x, up, up_bias, down, p=0.2, seeds=SEEDS, site=1).square().sum()
    first, second = (torch.autograd.grad(out, (x, up, up_bias, down), retain_graph=kept) for kept in (True, False))
    for one, other in zip(first, second, strict=True):
        assert torch.equal(one, other)
