"""The plain twins of the kernels: against torch, by gradcheck, and by their formulas."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from encoderlab.nn import kernels, noise
from encoderlab.nn.kernels import plain
from encoderlab.nn.positions import rotations
from tests.nn.twins import SEEDS, normal


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


def test_the_penalty_of_the_denominator_is_in_the_gradient_alone():
    x, weight, labels = normal(9, 4).double().requires_grad_(), normal(7, 4, seed=1).double(), torch.arange(9) % 7
    with_penalty = plain.linear_cross_entropy(x, weight, None, labels, z_loss=0.3)[0]
    assert torch.equal(with_penalty, plain.linear_cross_entropy(x, weight, None, labels)[0])
    (found,) = torch.autograd.grad(with_penalty, x)
    logits = x @ weight.T
    loss = torch.nn.functional.cross_entropy(logits, labels, reduction="sum")
    (wanted,) = torch.autograd.grad(loss + 0.3 * logits.logsumexp(-1).square().sum(), x)
    torch.testing.assert_close(found, wanted)
