"""Packed weights, and whole layers in one call: the numbers of the network that they replace."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from encoderlab import models
from encoderlab.errors import ConfigError
from encoderlab.interchange import folder
from encoderlab.model import weights_hash
from encoderlab.nn import block as blocks
from encoderlab.nn.architecture import EncoderConfig
from encoderlab.nn.int8 import quantise
from encoderlab.nn.kernels import build
from encoderlab.nn.packed import PackedWeight, pack
from encoderlab.nn.positions import Absolute, Disentangled, Rotary
from tests.nn.test_int8 import tiny
from tests.nn.test_product import PRODUCT, make
from tests.nn.twins import normal

pytestmark = pytest.mark.skipif(not build.available(), reason="no C++ compiler")


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 60), st.integers(1, 150), st.integers(1, 70), st.booleans(), st.data())
@example(600, 96, 300, True, None)
def test_products(rows, outputs, depth, biased, data):
    x, weight = normal(2, rows, depth), normal(outputs, depth, seed=1)
    bias = normal(outputs, seed=2) if biased else None
    packed = PackedWeight(weight)
    with torch.no_grad():
        out = packed(x, bias)
        torch.testing.assert_close(out, torch.nn.functional.linear(x, weight, bias), atol=1e-4, rtol=1e-5)
        assert torch.equal(packed(x[1:, -1:], bias), out[1:, -1:])  # a row does not depend on its batch
        if data is not None:
            start = data.draw(st.integers(0, outputs - 1))
            part = slice(start, data.draw(st.integers(start + 1, outputs)))
            assert torch.equal(packed[part](x, None if bias is None else bias[part]), out[..., part])
            assert torch.equal(packed[part].whole(), weight[part])


@pytest.mark.parametrize("form", ["fp32", "int8"])
@pytest.mark.parametrize("part", range(4))
def test_every_product_of_parts(part: int, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With packed weights, padded or with several documents in a row, in one call or operation by operation.

    In 8 bits a number that is rounded to another step moves the result.
    """
    ids, segments = torch.randint(0, 50, (3, 17)), torch.randint(0, 2, (3, 17))
    doc = torch.zeros(3, 17, dtype=torch.int32)
    doc[1, 11:] = -1
    doc[2, 5:] = 1
    doc[2, 13:] = -1
    atol = 2e-5 if form == "fp32" else 0.05
    for config in PRODUCT[part :: 4 if form == "fp32" else 16]:
        network = make(replace(config, init_std=0.2 if form == "fp32" else 0.1)).eval()
        packed = copy.deepcopy(network)
        pack(packed.blocks) if form == "fp32" else quantise(packed.blocks)
        used = segments if config.types else None
        with torch.no_grad():
            got = [packed(ids, doc=doc, segments=used).last, packed(ids[:1]).last]
            with monkeypatch.context() as patch:
                patch.setattr(blocks.Block, "_predicted", lambda *_: None)
                one_by_one = [packed(ids, doc=doc, segments=used).last, packed(ids[:1]).last]
            want = [network(ids, doc=doc, segments=used).last, network(ids[:1]).last] if form == "fp32" else one_by_one
        for a, b, c in zip(got, one_by_one, want, strict=True):
            real = doc[: len(a)] >= 0 if len(a) > 1 else slice(None)
            for other in (b, c):
                torch.testing.assert_close(
                    a[real], other[real], atol=atol, rtol=1e-5, msg=lambda m, x=config: f"{x}\n{m}"
                )


def in_one_call(config: EncoderConfig, layer: int) -> bool:
    """Whether a layer of an architecture is what the kernel knows."""
    return (
        isinstance(config.position, (Absolute, Rotary, Disentangled))
        and config.conv_branch is None
        and config.ff_groups == 1
        and config.activation in ("gelu", "gelu_tanh")
        and config.norm not in ("ltg", "normformer")
        and (config.sees_all(layer) or not isinstance(config.position, Disentangled))
    )


def test_which_layers_are_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    kernel = blocks.predict_layer
    monkeypatch.setattr(blocks, "predict_layer", lambda *a, **k: calls.append(1) or kernel(*a, **k))
    for config in PRODUCT:
        network = make(config).eval()
        pack(network.blocks)
        calls.clear()
        with torch.no_grad():
            network(torch.randint(0, 50, (2, 9)))
        assert len(calls) == sum(in_one_call(config, layer) for layer in range(network.depth)), config


@pytest.mark.parametrize("family", sorted(models.FAMILIES))
def test_families_keep_their_weights_and_gradients(family: str) -> None:
    model = tiny(family)
    packed = copy.deepcopy(model)
    pack(packed.encoder.blocks)
    assert weights_hash(packed) == weights_hash(model)
    written, expected = folder.weights(packed), folder.weights(model)
    assert written.keys() == expected.keys() and all(torch.equal(written[name], expected[name]) for name in expected)
    ids = torch.randint(5, 100, (3, 20), generator=torch.Generator().manual_seed(0))
    doc = torch.zeros(3, 20, dtype=torch.int32)
    doc[1, 9:] = -1
    with torch.inference_mode():
        want, got = (one.encoder(ids, doc=doc).last[doc >= 0] for one in (model, packed))
    torch.testing.assert_close(got, want, atol=2e-5, rtol=1e-5)
    slopes = []
    for one in (model, packed):
        words = one.encoder.embeddings.words
        (slope,) = torch.autograd.grad(one.encoder(ids, doc=doc).last[doc >= 0].square().sum(), [words])
        slopes.append(slope)
    torch.testing.assert_close(*slopes, atol=2e-4, rtol=1e-4)


def test_packed_weights_are_not_taken_for_8_bits() -> None:
    model = tiny("bert")
    pack(model.encoder.blocks)
    pack(model.encoder.blocks)  # changes nothing
    with pytest.raises(ConfigError, match="packed in float32 already"):
        quantise(model.encoder.blocks)


def test_8_bits_are_not_written_as_if_they_were_the_weights() -> None:
    model = tiny("bert")
    quantise(model.encoder.blocks)
    with pytest.raises(ConfigError, match="int8 cannot be saved"):
        folder.weights(model)
