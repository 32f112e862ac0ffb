"""Attention's Triton kernels against the plain twin, values and gradients: in the interpreter where there is no GPU."""

from __future__ import annotations

import functools
from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from encoderlab.nn import noise
from encoderlab.nn.kernels import plain
from encoderlab.nn.kernels.gpu import attention
from tests.nn import twins
from tests.nn.twins import DEVICE, TERMS, agree, traces

normal = functools.partial(twins.normal, device=DEVICE)
SEEDS = twins.SEEDS.to(DEVICE)

ROWS = 2  # the interpreter is slow


def visibility(L, M, kind):
    mask = twins.masks(L, M)[kind]
    return None if mask is None else mask[:ROWS].to(DEVICE)


def fast(q, k, v, bias, visible, scale, p, relative=None):
    return attention.attend(q, k, v, bias, visible, SEEDS[: len(q)], scale, p, 1, relative)


def slow(q, k, v, bias, visible, scale, p, relative=None):
    seeds = SEEDS[: len(q)]
    return plain.attend(q, k, v, bias=bias, visible=visible, scale=scale, p=p, seeds=seeds, site=1, relative=relative)


@pytest.mark.parametrize(
    ("shape", "mask", "bias", "p"),
    [
        ((16, 16, 8, 8), "none", None, 0.0),
        ((70, 50, 33, 20), "pairs", None, 0.2),
        ((1, 40, 16, 16), "keys", (ROWS, 1, 1, 40), 0.2),
        ((33, 70, 64, 64), "per head", (1, 2, 33, 70), 0.2),
        ((50, 70, 8, 16), "queries", (ROWS, 2, 50, 70), 0.0),
        ((40, 50, 80, 96), "pairs", None, 0.2),
    ],
)
def test_attend(shape, mask, bias, p):
    L, M, K, V = shape
    visible = visibility(L, M, mask)
    q, k, v = normal(ROWS, 2, L, K), normal(ROWS, 2, M, K, seed=1), normal(ROWS, 2, M, V, seed=2)
    inputs = [q, k, v, None if bias is None else normal(*bias, seed=3)]
    agree(lambda *x: fast(*x, visible, K**-0.5, p), lambda *x: slow(*x, visible, K**-0.5, p), inputs)


@pytest.mark.parametrize("terms", TERMS)
def test_attend_relative(terms):
    L, M, K = 40, 50, 9
    visible = visibility(L, M, "pairs")
    leaves, make = twins.relative(terms, L, M, K, ROWS)
    leaves = [None if x is None else x.to(DEVICE) for x in leaves]
    q, k, v = normal(ROWS, 2, L, K), normal(ROWS, 2, M, K, seed=1), normal(ROWS, 2, M, K, seed=2)

    def there(term):
        parts = {name: part.to(DEVICE) for name, part in vars(term).items() if part is not None}
        return replace(term, **parts)

    def call(attend):
        return lambda q, k, v, *parts: attend(q, k, v, None, visible, 0.2, 0.2, there(make(*parts)))

    agree(call(fast), call(slow), [q, k, v, *leaves])


def test_one_sided_table():
    """Transformer-XL's distances >= 0: P = M rows, what lies past the diagonal is invisible."""
    L, M, K = 20, 50, 8
    visible = (torch.arange(L)[:, None] + M - L >= torch.arange(M))[None, None].to(DEVICE)

    def call(attend):
        return lambda q, k, v, rows: attend(q, k, v, None, visible, 0.3, 0.0, plain.Relative(query_rows=rows))

    inputs = [
        normal(ROWS, 2, L, K),
        normal(ROWS, 2, M, K, seed=1),
        normal(ROWS, 2, M, K, seed=2),
        normal(M, 2, K, seed=3),
    ]
    agree(call(fast), call(slow), inputs)


def test_half_precision():
    """Products in half precision, everything between them in single; the interpreter has no products of bfloat16."""
    L, M, K = 40, 70, 32
    visible = visibility(L, M, "pairs")
    q, k, v = (normal(ROWS, 2, n, K, seed=n).half() for n in (L, M, M))
    rows = normal(L + M - 1, 2, K, seed=3).half()
    got = fast(q, k, v, None, visible, 0.2, 0.2, plain.Relative(query_rows=rows))
    want = slow(*(x.double() for x in (q, k, v)), None, visible, 0.2, 0.2, plain.Relative(query_rows=rows.double()))
    assert got.dtype == torch.float16
    assert (got - want).abs().max() < 2e-3 * want.abs().max()


@pytest.mark.parametrize("mask", ["none", "packed"])
def test_attend_packed(mask):
    visible, seeds = visibility(40, 40, mask), SEEDS[:ROWS]
    agree(
        lambda qkv: attention.attend_packed(qkv, 3, visible, seeds, 0.25, 0.2, 1),
        lambda qkv: plain.attend_packed(qkv, 3, visible=visible, scale=0.25, p=0.2, seeds=seeds, site=1),
        [normal(ROWS, 40, 3 * 3 * 16)],
    )


def test_heads_too_wide_for_a_tile_are_left_to_torch(monkeypatch):
    """300 numbers of four bytes; in tiles they would need more shared memory than an A100 has."""
    monkeypatch.setattr(attention, "attend_kernel", None)
    monkeypatch.setattr(attention, "attend_query_gradients_kernel", None)
    visible = visibility(7, 9, "pairs")
    inputs = [normal(ROWS, 2, 7, 300), normal(ROWS, 2, 9, 300, seed=1), normal(ROWS, 2, 9, 8, seed=2), None]
    agree(lambda *x: fast(*x, visible, 0.1, 0.2), lambda *x: slow(*x, visible, 0.1, 0.2), inputs)
    agree(
        lambda qkv: attention.attend_packed(qkv, 1, None, SEEDS[:ROWS], 0.1, 0.2, 1),
        lambda qkv: plain.attend_packed(qkv, 1, scale=0.1, p=0.2, seeds=SEEDS[:ROWS], site=1),
        [normal(ROWS, 7, 3 * 140)],
    )


def test_operations_for_tracing_are_the_functions():
    """Schemas and shapes of the custom operations that ``torch.compile`` sees; heads lie behind positions, as made."""
    L, M, operations = 5, 7, torch.ops.encoderlab_gpu
    q, k, v = (normal(ROWS, n, 2, 8, seed=n).transpose(1, 2) for n in (L, M, M))
    bias, tables = normal(ROWS, 2, L, M), (normal(ROWS, 2, L, L + M - 1), normal(ROWS, 2, M, L + M - 1))
    pairs = (normal(ROWS, 2, L, M) > 0).view(torch.uint8)
    for added in [(None,) * 6, (bias, *tables, normal(ROWS, 2, L, 2), pairs, pairs)]:
        given = (q, k, v, *added, SEEDS[:ROWS])
        rest = (0.3, 0.1, 1)
        traces(operations.attend_forward, *given, *rest)
        out, log_sum = attention.attend_forward(*given, *rest)
        traces(operations.attend_backward, normal(ROWS, 2, L, 8), *given, out, log_sum, *rest)
    qkv = normal(ROWS, L, 3 * 2 * 8).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
    out, log_sum = attention.attend_forward(*qkv.unbind(), *[None] * 6, SEEDS[:ROWS], *rest)
    visible = pairs[..., :L]
    traces(operations.attend_packed_backward, out, qkv, visible, SEEDS[:ROWS], out, log_sum, *rest)


def test_extremes():
    """Rows that see nothing give zeros and no gradient; huge scores and biases of minus infinity give no NaN; a NaN
    is not hidden."""
    visible = torch.ones(2, 1, 8, 8, dtype=torch.bool, device=DEVICE)
    visible[0] = False
    q, k, v = ((200 * normal(2, 2, 8, 16, seed=s)).requires_grad_() for s in range(3))
    bias = torch.zeros(2, 2, 8, 8, device=DEVICE)
    bias[1, :, :, 3] = float("-inf")
    bias[1, :, :, 4] = torch.finfo(torch.float32).min
    out = attention.attend(q, k, v, bias, visible, SEEDS[:2], 1.0, 0.1, 0, None)
    assert (out[0] == 0).all() and out.isfinite().all()
    out.sum().backward()
    for x in (q, k, v):
        assert x.grad.isfinite().all() and (x.grad[0] == 0).all()
    nan = torch.full((1, 1, 8, 16), float("nan"), device=DEVICE)
    assert attention.attend(nan, nan, nan, None, None, None, 1.0, 0.0, 0, None).isnan().all()


def test_the_mask_of_a_pair_does_not_depend_on_its_tile():
    """Values of one: what is attended is the share of kept probabilities, which shows the masks themselves."""
    for L, M in ((5, 33), (65, 130)):
        q, k = torch.zeros(1, 3, L, 16, device=DEVICE), torch.zeros(1, 3, M, 16, device=DEVICE)
        eye = torch.eye(M, device=DEVICE).expand(1, 3, M, M)
        got = attention.attend(q, k, eye, None, None, SEEDS[:1], 1.0, 0.4, 2, None)
        assert torch.equal(got > 0, noise.kept_pairs(SEEDS[:1], 2, 3, L, M, 0.4))
