"""An encoder's training step on the Triton kernels and on the plain twins: states, gradients and masks are the same,
up to rounding."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from encoderlab.nn import kernels
from encoderlab.nn.encoder import Encoder
from encoderlab.nn.kernels import gpu, plain
from encoderlab.nn.noise import Noise
from encoderlab.nn.positions import Disentangled, RelativeShift, Shaw
from encoderlab.nn.spanconv import SpanDynamic
from tests.nn.test_product import BASE, make
from tests.nn.twins import DEVICE

SMALL = replace(BASE, layers=1, heads=2, dropout=0.3, attention_dropout=0.2, ff_dropout=0.1)
ENCODERS = {
    "bert": SMALL,
    "convbert": replace(SMALL, conv=SpanDynamic(kernel=3)),
    "transformer-xl": replace(SMALL, position=RelativeShift(), causal=True),
    "xlnet": replace(SMALL, position=RelativeShift(segments=True)),
    "deberta": replace(SMALL, position=Disentangled(span=16, buckets=8, norm=True), attention_biases="query_value"),
    "shaw": replace(SMALL, position=Shaw(span=4), causal=True),
}


@pytest.mark.parametrize("name", ENCODERS)
def test_a_training_step(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    encoder = make(ENCODERS[name]).train().to(DEVICE)
    generator = torch.Generator().manual_seed(0)
    ids, segments = (torch.randint(0, top, (2, 17), generator=generator).to(DEVICE) for top in (50, 2))
    doc = torch.zeros(2, 17, dtype=torch.int32, device=DEVICE)
    doc[1, 5:] = 1
    doc[1, 13:] = -1
    noise = Noise(3, 7, torch.tensor([4, 9], device=DEVICE))

    def step(encoder: Encoder) -> list[torch.Tensor]:
        last = encoder(ids, doc=doc, segments=segments, noise=noise).last
        last[doc >= 0].square().sum().backward()
        return [last[doc >= 0].detach(), *(p.grad for p in encoder.parameters() if p.grad is not None)]

    want = step(deepcopy(encoder).double())  # which the plain twins compute
    monkeypatch.setattr(kernels, "_kernels", lambda *x: gpu)
    for twin in ("attend", "attend_packed", "dropout", "dropout_add_norm", "feed_forward", "dynamic_convolution"):
        monkeypatch.setattr(plain, twin, lambda *x, name=twin, **y: pytest.fail(f"the plain {name} ran"))
    for got, expected in zip(step(encoder), want, strict=True):
        scale = max(1.0, float(expected.abs().max()))  # 1: of what is summed where it cancels, as for a softmax's bias
        torch.testing.assert_close(got.double(), expected, atol=2e-5 * scale, rtol=0)
