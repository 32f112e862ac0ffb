"""What holds for all kernels: no hidden NaN, any number of threads, split batches, `torch.compile`, float64."""

from __future__ import annotations

import torch
from torch import Tensor

from encoderlab.nn import kernels
from encoderlab.nn.kernels import cpu, plain
from tests.nn.twins import SEEDS, compiled, normal


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


def test_double_precision_runs_the_plain_twins():
    x = normal(4, 3, 8).double()
    assert torch.equal(kernels.dropout(x, 0.1, SEEDS, 0), plain.dropout(x, 0.1, SEEDS, 0))
    up, bias = normal(5, 8).double(), normal(5).double()
    assert kernels.feed_forward(x, up, bias, up.T).dtype == torch.float64
