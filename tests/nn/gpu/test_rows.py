"""Dropout, the normalised sum and the feed-forward block on a GPU, against their plain twins."""

from __future__ import annotations

import functools

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton", reason="Triton is not installed")

from encoderlab.nn import noise
from encoderlab.nn.kernels import plain
from encoderlab.nn.kernels.gpu import rows
from tests.nn import twins
from tests.nn.twins import DEVICE, TOLERANCE, agree, traces

normal = functools.partial(twins.normal, device=DEVICE)

SEEDS = twins.SEEDS.to(DEVICE)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Positions are taken in parts of 64 columns where they may be, and a program sums several positions."""
    monkeypatch.setattr(rows, "PART", 32)
    monkeypatch.setattr(rows, "WARPS", 6)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("shape", [(4, 1), (4, 2, 7), (4, 1, 2, 33), (4, 100)])
def test_dropout(shape, dtype):
    x = normal(*shape)
    agree(lambda x: rows.Dropout.apply(x, SEEDS, 5, 0.3), lambda x: plain.dropout(x, 0.3, SEEDS, 5), [x], dtype)
    kept = rows.dropout(torch.ones_like(x, dtype=dtype), SEEDS, 5, 0.3) != 0
    assert torch.equal(kept, noise.kept(SEEDS, 5, shape, 0.3))


@pytest.mark.parametrize("p", [0.0, 0.2])
@pytest.mark.parametrize("parts", ["all", "no x_bias", "no residual", "norm", "no bias", "rms"])
@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((4, 2, 7), torch.float32), ((4, 32), torch.float32), ((4, 600), torch.float32), ((4, 2, 100), torch.bfloat16),
     ((4, 33), torch.float16)],
)  # fmt: skip
def test_add_norm(shape, parts, p, dtype):
    width = shape[-1]
    residual = normal(*shape, seed=1) if parts in ("all", "no x_bias") else None
    x_bias = normal(width, seed=4) if parts in ("all", "no residual") else None
    seeds = SEEDS if p else None

    def fast(x, r, w, b, c):
        return rows.AddNorm.apply(x, c, r, w, b, seeds, 3, p, 1e-5, parts != "rms")

    def slow(x, r, w, b, c):
        return plain.dropout_add_norm(x, r, w, b, 1e-5, p, seeds, 3, x_bias=c, center=parts != "rms")

    bias = None if parts in ("no bias", "rms") else normal(width, seed=3)
    agree(fast, slow, [normal(*shape), residual, normal(width, seed=2), bias, x_bias], dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_weights_may_be_wider_than_activations(dtype):
    x = normal(4, 40).to(dtype).requires_grad_()
    weight, bias, x_bias = (normal(40, seed=seed).requires_grad_() for seed in (1, 2, 3))
    out = rows.AddNorm.apply(x, x_bias, None, weight, bias, None, 0, 0.0, 1e-5, True)
    want = F.layer_norm(x.float() + x_bias, (40,), weight, bias)
    torch.testing.assert_close(out, want.to(dtype), rtol=2 * torch.finfo(dtype).eps, atol=1e-6)
    grads = torch.autograd.grad(out.float().sum(), [x, weight, bias, x_bias])
    assert [grad.dtype for grad in grads] == [dtype, *[torch.float32] * 3]

    up, down = normal(50, 40, seed=4).to(dtype), normal(40, 50, seed=5).to(dtype)
    up_bias = normal(50, seed=6).requires_grad_()
    out = rows.FeedForward.apply(x, up, up_bias, down, False, True, SEEDS, 0, 0.1)
    assert out.dtype == dtype
    assert torch.autograd.grad(out.float().sum(), up_bias)[0].dtype == torch.float32


@pytest.mark.parametrize("tanh", [False, True])
@pytest.mark.parametrize("p", [0.0, 0.3])
@pytest.mark.parametrize(
    ("shape", "inner", "dtype"),
    [((4,), 5, torch.float32), ((4, 2), 40, torch.float32), ((4, 1, 2), 100, torch.float32),
     ((4,), 100, torch.bfloat16), ((4,), 100, torch.float16)],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["biased", "gated", "gated, bare"])
def test_feed_forward(shape, inner, kind, p, tanh, dtype):
    seeds, gated = SEEDS if p else None, kind != "biased"
    up_rows = 2 * inner if gated else inner
    bias = None if kind.endswith("bare") else normal(up_rows, seed=2)
    agree(
        lambda *a: rows.FeedForward.apply(*a, gated, tanh, seeds, 1, p),
        lambda *a: plain.feed_forward(*a, tanh=tanh, gated=gated, p=p, seeds=seeds, site=1),
        [normal(*shape, 16), normal(up_rows, 16, seed=1) / 4, bias, normal(16, inner, seed=3) / 6],
        dtype,
    )


@pytest.mark.parametrize("tanh", [False, True])
def test_gelu_everywhere(tanh, monkeypatch):
    """Value and slope over the whole range of numbers, against double precision."""
    monkeypatch.setattr(rows, "PART", 512)
    ends = torch.tensor([-1e4, 1e4, -88.0, 88.0, 1e-30, -3e38, 3e38, 0.0])
    x = torch.cat([torch.linspace(-12.5, 12.5, 4088), ends]).view(4, 1024).to(DEVICE)
    zero, wide = torch.zeros(1024, device=DEVICE), x.double().requires_grad_()
    want = F.gelu(wide, approximate="tanh" if tanh else "none")
    (slope,) = torch.autograd.grad(want.sum(), wide)
    got = rows.gelu(x, zero, False, tanh, None, 0, 0.0)
    torch.testing.assert_close(got, want.detach().float(), atol=1e-6, rtol=1e-6)
    assert torch.equal(got[-1, -8:] > 0, x[-1, -8:] > 0)
    grad = torch.ones_like(x)
    again = x.clone()  # in the place of its argument
    rows.gelu_backward_(grad, again, zero, again, False, tanh, None, 0, 0.0)
    assert torch.equal(again, got)
    usual = x.abs() < 1e5  # farther out double precision itself multiplies infinity by zero
    torch.testing.assert_close(grad[usual], slope.float()[usual], atol=2e-6, rtol=1e-6)
    assert torch.equal(grad[~usual], (x[~usual] > 0).float())


def test_nan_is_not_hidden():
    nan, ones = torch.full((2, 1, 8), float("nan"), device=DEVICE), torch.ones(8, device=DEVICE)
    assert rows.AddNorm.apply(nan, None, None, ones, ones, None, 0, 0.0, 1e-5, True).isnan().all()
    for tanh in (False, True):
        assert rows.gelu(nan, ones, False, tanh, None, 0, 0.0).isnan().all()
        grad = torch.ones_like(nan)
        rows.gelu_backward_(grad, nan, ones, torch.empty_like(nan), False, tanh, None, 0, 0.0)
        assert grad.isnan().all()


def test_batch_split_gives_equal_rows():
    x, w = normal(4, 2, 64), normal(64, seed=1)
    whole = rows.AddNorm.apply(x, w, x, w, w, SEEDS, 0, 0.1, 1e-5, True)
    for row in range(4):
        one, key = x[row : row + 1], SEEDS[row : row + 1]
        assert torch.equal(rows.AddNorm.apply(one, w, one, w, w, key, 0, 0.1, 1e-5, True), whole[row : row + 1])


def test_operations_for_tracing_are_the_functions():
    """Schemas and shapes of the custom operations that ``torch.compile`` sees."""
    x, grad, w = normal(4, 7), normal(4, 7, seed=1), normal(7, seed=2)
    statistics = torch.rand(4, 2, device=DEVICE)
    operations = torch.ops.encoderlab_gpu
    for operation, arguments in [
        (operations.dropout, (x, SEEDS, 1, 0.1)),
        (operations.add_norm, (x, None, x, w, w, SEEDS, 1, 0.1, 1e-5, True)),
        (operations.add_norm_backward, (grad, x, w, x, w, statistics, SEEDS, 1, 0.1, True)),
        (operations.add_norm_backward, (grad, x, None, None, w, statistics, None, 1, 0.0, False)),
        (operations.gelu, (x, w, False, True, SEEDS, 1, 0.1)),
        (operations.gelu_backward_, (grad, x, w, torch.empty_like(x), False, False, None, 1, 0.0)),
    ]:
        traces(operation, *arguments)
