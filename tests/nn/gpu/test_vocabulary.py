"""Cross entropy of products with the vocabulary, and divergence of logits, on a GPU, against their plain twins."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="Triton is not installed")

from encoderlab.nn.kernels import plain
from encoderlab.nn.kernels.gpu import vocabulary
from tests.nn import twins
from tests.nn.twins import DEVICE, TOLERANCE, agree, traces

normal = functools.partial(twins.normal, device=DEVICE)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Chunks of 64 rows, and blocks of 256 logits."""
    monkeypatch.setattr(vocabulary, "LOGITS", 1)
    monkeypatch.setattr(vocabulary, "BLOCK", 256)


def labels_of(rows: int, classes: int) -> Tensor:
    return torch.randint(classes, (rows,), generator=torch.Generator().manual_seed(3)).to(DEVICE)


def fast(x, weight, bias, labels, uniforms=None, z_loss=0.0):
    return vocabulary.LinearCrossEntropy.apply(x, weight, bias, labels, uniforms, z_loss)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize(("rows", "classes"), [(67, 5), (9, 64), (9, 600)])
def test_loss_and_gradients(rows, classes, with_bias, dtype):
    x, weight = normal(rows, 16), normal(classes, 16, seed=1) / 2
    bias = normal(classes, seed=2) if with_bias else None
    labels = labels_of(rows, classes)

    def loss(x, w, b):
        return (3 * fast(x, w, b, labels)[0]).to(dtype)

    agree(loss, lambda x, w, b: 3 * plain.linear_cross_entropy(x, w, b, labels)[0], [x, weight, bias], dtype)
    if dtype == torch.float32:
        agree(
            lambda x, w, b: fast(x, w, b, labels, z_loss=0.2)[0],
            lambda x, w, b: plain.linear_cross_entropy(x, w, b, labels, z_loss=0.2)[0],
            [x, weight, bias],
            dtype,
        )


@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("classes", [5, 600])
def test_hits_and_samples(classes, with_bias):
    x, weight = normal(24, 16), normal(classes, 16, seed=1) / 2
    bias = normal(classes, seed=2) if with_bias else None
    labels = (x @ weight.T + (0 if bias is None else bias)).argmax(-1)
    labels[::3] = 0
    uniforms = torch.rand(24, dtype=torch.float64, generator=torch.Generator().manual_seed(4)).to(DEVICE)
    _, hits, sampled = fast(x, weight, bias, labels, uniforms)
    _, expected, drawn = plain.linear_cross_entropy(x, weight, bias, labels, uniforms=uniforms)
    assert hits == expected > 12
    assert (sampled != drawn).sum() <= 1  # a number may fall on the edge between two classes


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_of_equal_logits_the_first_is_the_guess(dtype):
    x, weight = normal(20, 4).round().to(dtype), normal(600, 4, seed=1).round().to(dtype)
    logits = x.double() @ weight.double().T
    first = logits.argmax(-1)
    assert (logits.max(-1, keepdim=True).values == logits).sum() > 30
    last = 599 - logits.flip(-1).argmax(-1)
    assert fast(x, weight, None, first)[1] == 20
    assert fast(x, weight, None, last)[1] == (first == last).sum()


def test_samples_follow_the_softmax():
    logits = torch.tensor([0.0, 1.0, -50.0, 2.0, float("-inf"), 0.5, float("-inf")], device=DEVICE)
    rows = 100
    uniforms = (torch.arange(rows, dtype=torch.float64, device=DEVICE) + 0.5) / rows
    x, weight = torch.ones(rows, 3, device=DEVICE), torch.zeros(7, 3, device=DEVICE)
    _, _, sampled = fast(x, weight, logits, torch.zeros(rows, dtype=torch.long, device=DEVICE), uniforms)
    shares = torch.bincount(sampled, minlength=7) / rows
    torch.testing.assert_close(shares, logits.softmax(0), atol=1 / rows, rtol=0)
    assert shares[4] == shares[6] == 0


def test_samples_at_the_ends_have_mass():
    """The smallest and the largest number draw the first and the last class that can be drawn, over several blocks."""
    bias = torch.full((600,), float("-inf"), device=DEVICE)
    bias[300:500] = normal(200)
    uniforms = torch.tensor([0.0, 1 - 2**-53], dtype=torch.float64, device=DEVICE)
    x, weight, labels = normal(2, 3), torch.zeros(600, 3, device=DEVICE), torch.tensor([400, 400], device=DEVICE)
    loss, _, sampled = fast(x, weight, bias, labels, uniforms)
    assert sampled.tolist() == [300, 499]
    torch.testing.assert_close(loss, 2 * (bias.logsumexp(0) - bias[400]))


def test_large_logits():
    x = torch.tensor([[1.0], [-1.0]], device=DEVICE)
    weight = torch.linspace(-1e38, 1e38, 600, device=DEVICE)[:, None]
    loss, hits, _ = fast(x, weight, None, torch.tensor([599, 0], device=DEVICE))
    assert loss == 0.0 and hits == 2


def test_nan_is_not_hidden():
    labels = labels_of(3, 600)
    x, weight = normal(3, 4), normal(600, 4, seed=1)
    assert fast(torch.full_like(x, float("nan")), weight, None, labels)[0].isnan()
    one = torch.zeros(600, device=DEVICE)
    one[450] = float("nan")
    assert fast(x, weight, one, labels)[0].isnan()
    one[450] = float("inf")
    assert fast(x, weight, one, labels)[0].isnan()


@pytest.mark.parametrize("label", [-100, -1, 600, 2**40])
def test_a_label_outside_the_vocabulary_is_not_hidden(label):
    x, weight = normal(3, 4).requires_grad_(), normal(600, 4, seed=1)
    loss, hits, _ = fast(x, weight, None, torch.tensor([1, label, 2], device=DEVICE))
    assert loss.isnan() and hits <= 2
    loss.backward()
    assert x.grad.isnan().any(-1).tolist() == [False, True, False]


def test_gradients_may_be_asked_for_again():
    x, weight = normal(3, 4).requires_grad_(), normal(20, 4, seed=1)
    loss = fast(x, weight, None, labels_of(3, 20))[0]
    (first,) = torch.autograd.grad(2 * loss, x, retain_graph=True)
    (second,) = torch.autograd.grad(2 * loss, x)
    assert torch.equal(first, second)


def test_operation_for_tracing_is_the_function():
    x, weight, bias, labels = normal(5, 4), normal(20, 4, seed=1), normal(20, seed=2), labels_of(5, 20)
    uniforms = torch.rand(5, dtype=torch.float64, device=DEVICE)
    for arguments in [(x, weight, bias, labels, uniforms, True), (x, weight, None, labels, None, False)]:
        traces(torch.ops.encoderlab_gpu.linear_cross_entropy, *arguments)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("classes", [2, 64, 601])
def test_divergence(classes, dtype):
    logits, targets = normal(9, classes), (3 * normal(9, classes, seed=1)).to(dtype)
    agree(
        lambda x: (3 * vocabulary.Divergence.apply(x, targets.to(x.dtype), 2.0)[0]).to(dtype),
        lambda x: 3 * plain.divergence(x, targets.to(x.dtype), 2.0)[0],
        [logits],
        dtype,
    )
    coarse = [x.round().to(dtype) for x in (logits, targets)]  # of equal logits the first is the choice
    hits = vocabulary.Divergence.apply(*coarse, 2.0)[1]
    assert hits == (coarse[0].double().argmax(-1) == coarse[1].double().argmax(-1)).sum()


def test_divergence_of_classes_that_cannot_be():
    logits, targets = normal(3, 600), normal(3, 600, seed=1)
    logits[:, 500:] = targets[:, 300:] = float("-inf")
    want = plain.divergence(logits[:, :500], targets[:, :500].clamp(min=-1e4), 2.0)[0]
    torch.testing.assert_close(vocabulary.Divergence.apply(logits, targets, 2.0)[0], want)
    assert vocabulary.Divergence.apply(targets, logits, 2.0)[0] == float("inf")
    assert vocabulary.Divergence.apply(torch.full_like(logits, float("nan")), targets, 2.0)[0].isnan()


def test_the_divergence_for_tracing_is_the_function():
    for gradients in (True, False):
        traces(torch.ops.encoderlab_gpu.divergence, normal(5, 20), normal(5, 20, seed=1), 2.0, gradients)
