"""``torch.compile`` takes each family's encoder as one graph, and gives the numbers of the model as it is."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest
import torch

from encoderlab import models
from encoderlab.nn.encoder import Encoder, EncoderConfig
from encoderlab.nn.init import initialize
from encoderlab.nn.noise import Noise

SMALL = {"vocab": 60, "layers": 1, "width": 32, "heads": 4, "ff_width": 48, "init_std": 0.2}


def encoder_of(family: str) -> Encoder:
    """The encoder of a family's first size, made tiny."""
    published = next(iter(models.FAMILIES[family].sizes.values())).encoder
    narrow = None if published.embed_width is None else 16
    config: EncoderConfig = replace(published, **SMALL, embed_width=narrow, head_width=None, adaptive=None)
    encoder = Encoder(config)
    initialize(encoder, encoder, seed=1)
    return encoder


def inputs(encoder: Encoder) -> dict[str, torch.Tensor | None]:
    """A padded row and a row of two documents."""
    ids = torch.randint(0, 60, (2, 12), generator=torch.Generator().manual_seed(0))
    doc = torch.zeros(2, 12, dtype=torch.int32)
    doc[0, 9:] = -1
    doc[1, 5:] = 1
    return {"ids": ids, "doc": doc, "segments": (ids % 2) if encoder.config.types else None}


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.mark.parametrize("family", models.FAMILIES)
def test_one_graph_with_the_same_outputs(family: str) -> None:
    encoder = encoder_of(family)
    given = inputs(encoder)
    compiled = torch.compile(encoder, backend="eager", fullgraph=True)
    with torch.no_grad():
        torch.testing.assert_close(compiled.eval()(**given).last, encoder.eval()(**given).last, atol=1e-5, rtol=1e-5)
    noise = Noise(1, 2, torch.arange(2))
    encoder.train()
    plain = encoder(**given, noise=noise).last
    torch.testing.assert_close(compiled(**given, noise=noise).last, plain, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(plain, encoder.eval()(**given).last, atol=1e-2), "dropout was on"


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch's own compiler needs g++")
def test_gradients_through_the_real_compiler() -> None:
    encoder = encoder_of("electra").train()
    given, noise = inputs(encoder), Noise(1, 2, torch.arange(2))
    gradients = []
    for run in (encoder, torch.compile(encoder, fullgraph=True)):
        encoder.zero_grad()
        run(**given, noise=noise).last.square().sum().backward()
        gradients.append({name: p.grad.clone() for name, p in encoder.named_parameters() if p.grad is not None})
    torch.testing.assert_close(gradients[1], gradients[0], atol=1e-4, rtol=1e-4)
