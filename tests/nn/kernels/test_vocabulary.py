"""The loss, samples and divergence over the vocabulary, against their plain twins."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from encoderlab.nn import kernels
from encoderlab.nn.kernels import cpu, plain
from tests.nn.twins import FLOAT, agree, compiled, normal


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
def test_what_memory_held_before_does_not_reach_the_gradients() -> None:
    """Rows of logits are padded to 16 classes, and some processors multiply the padding of bfloat16 rows too."""
    x = normal(33, 32).bfloat16().requires_grad_()
    weight = normal(600, 32).bfloat16().requires_grad_()
    torch.use_deterministic_algorithms(True)  # new memory is filled with NaN
    try:
        loss, _, _ = kernels.linear_cross_entropy(x, weight, None, torch.arange(33))
        loss.backward()
    finally:
        torch.use_deterministic_algorithms(False)
    assert x.grad is not None and bool(x.grad.isfinite().all())
    assert weight.grad is not None and bool(weight.grad.isfinite().all())


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
