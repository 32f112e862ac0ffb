"""Matrices in 8 bits: the kernel against its plain twin, bit by bit; every family against float32."""

from __future__ import annotations

import copy
import platform
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from encoderlab import models
from encoderlab.errors import ConfigError
from encoderlab.model import Model, weights_hash
from encoderlab.models.convbert import masking_padding
from encoderlab.nn import int8
from encoderlab.nn.int8 import Int8Weight, quantise
from encoderlab.nn.kernels import build, cpu, plain
from tests.nn.test_product import PRODUCT, make
from tests.nn.twins import normal

accelerated = pytest.mark.skipif(not int8.fast(), reason="no instructions for products of 8 bits, or no C++ compiler")


def same(one: Tensor, other: Tensor) -> bool:
    return torch.equal(one.nan_to_num(7e9), other.nan_to_num(7e9)) and one.shape == other.shape


@accelerated
@settings(deadline=None)
@given(st.integers(1, 40), st.integers(1, 90), st.floats(1e-6, 1e6), st.integers(0, 9))
@example(3, 4096, 1.0, 0)
@example(7, 1, 1.0, 0)
def test_rows_in_8_bits_are_the_twin_s(rows, width, size, seed):
    x = normal(rows, width, seed=seed) * size
    x[0] *= 1e-37 / size
    x[-1, 0] = x[-1].abs().max()  # the largest magnitude twice
    for broken in (None, float("nan"), float("inf")):
        if broken is not None:
            x[rows // 2, width // 2] = broken
        values, scales = cpu.int8.quantise_rows(x)
        want, their = plain.quantise_rows(x)
        assert torch.equal(values[:, :width], want)
        assert same(scales, their)


def test_halves_go_to_even_numbers():
    x = torch.tensor([[127.0, 0.5, 1.5, 2.5, -0.5, -1.5, -127.0]])
    values, scales = plain.quantise_rows(x)
    assert (values.int() - 128).tolist() == [[127, 0, 2, 2, 0, -2, -127]]
    assert scales.tolist() == [1.0]
    if int8.fast():
        assert torch.equal(cpu.int8.quantise_rows(x)[0][:, :7], values)


@accelerated
@settings(deadline=None, max_examples=60)
@given(st.integers(1, 30), st.integers(1, 150), st.integers(1, 70), st.booleans(), st.data())
def test_products_are_the_twin_s(rows, outputs, depth, biased, data):
    x, weight = normal(2, rows, depth), normal(outputs, depth, seed=1)
    bias = normal(outputs, seed=2) if biased else None
    fast, slow = Int8Weight(weight), Int8Weight(weight, plainly=True)
    assert torch.equal(fast(x, bias), slow(x, bias))
    assert torch.equal(fast.integers(), slow.integers())
    start = data.draw(st.integers(0, outputs - 1))
    part = slice(start, data.draw(st.integers(start + 1, outputs)))
    of_part = None if bias is None else bias[part]
    assert torch.equal(fast[part](x, of_part), fast(x, bias)[..., part])
    assert torch.equal(slow[part](x, of_part), slow(x, bias)[..., part])


@accelerated
def test_the_largest_sums_are_exact():
    """Numbers at their bounds, deeper than float32 could add them."""
    x, weight = torch.ones(6, 5000), torch.ones(64, 5000)
    x[:, ::3] *= -1
    weight[:32] *= -1
    assert torch.equal(Int8Weight(weight)(x), Int8Weight(weight, plainly=True)(x))
    assert torch.equal(Int8Weight(weight)(x)[:, 0].round(), -x.sum(1))


@pytest.mark.parametrize("plainly", [False, True])
def test_a_row_does_not_depend_on_its_batch(plainly):
    x, weight = normal(40, 64), Int8Weight(normal(80, 64, seed=1), plainly=plainly)
    whole = weight(x)
    for part in (slice(0, 1), slice(3, 10), slice(39, 40)):
        assert torch.equal(weight(x[part]), whole[part])


@accelerated
def test_threads_give_the_same_numbers():
    model = tiny("bert")
    quantise(model.encoder.blocks)
    x, weight = normal(300, 96), Int8Weight(normal(700, 96, seed=1))
    ids, before, results = torch.randint(5, 100, (8, 60)), torch.get_num_threads(), []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            with torch.inference_mode():
                results.append((weight(x), model.encoder(ids).last))
    finally:
        torch.set_num_threads(before)
    for other in results[1:]:
        assert all(map(torch.equal, results[0], other))


@pytest.mark.skipif(platform.machine() != "x86_64" or shutil.which("g++") is None, reason="for g++ on x86-64")
@pytest.mark.parametrize(("processor", "fast"), [("alderlake", True), ("icelake-server", True), ("haswell", False)])
def test_the_kernels_compile_for_other_processors(processor: str, fast: bool, tmp_path: Path) -> None:
    """AVX-VNNI without AVX-512 (Alder Lake) among them; they run only where the processor has the instructions."""
    flags = [f"-march={processor}" if flag == "-march=native" else flag for flag in build.FLAGS]
    made = tmp_path / "ops.so"
    command = ["g++", *flags, "-O1", *build.MATH, str(build.FOLDER / "ops.cpp"), "-o", str(made)]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    assert (b"encoderlab_quantise_rows" in made.read_bytes()) is fast


def test_zeros_and_numbers_that_are_not_finite():
    weight = normal(5, 8)
    weight[2] = 0
    x = normal(3, 8, seed=1)
    x[0] = 0
    x[1, 3] = float("nan")
    out = Int8Weight(weight)(x)
    assert (out[0] == 0).all()
    assert out[1].isnan().all()
    assert out[2].isfinite().all()
    assert out[2, 2] == 0


def test_the_error_is_bounded():
    """Rounding moves an input by half a step, and a weight too: that bounds every number of a product."""
    x, weight = normal(20, 96), normal(30, 96, seed=1)
    half_input, half_weight = x.abs().amax(1) / 254, weight.abs().amax(1) / 254
    bound = half_input[:, None] * weight.abs().sum(1) + (x.abs().sum(1) + 96 * half_input)[:, None] * half_weight
    error = (Int8Weight(weight)(x) - x @ weight.T).abs()
    assert (error <= bound * 1.001).all()
    assert error.max() < 0.03 * (x @ weight.T).abs().max()


# ------------------------------------------------------------------------------------------------------------- networks


@pytest.mark.parametrize("part", range(4))
def test_every_product_of_parts_stays_near_float32(part):
    """A quarter of the combinations of parts works in 8 bits, on rows with padding and on packed ones."""
    torch.manual_seed(0)
    ids, segments = torch.randint(0, 50, (3, 17)), torch.randint(0, 2, (3, 17))
    doc = torch.zeros(3, 17, dtype=torch.int32)
    doc[1, 11:] = -1
    doc[2, 5:] = 1
    doc[2, 13:] = -1
    for config in PRODUCT[part::16]:
        encoder = make(replace(config, init_std=0.1)).eval()
        small = copy.deepcopy(encoder)
        quantise(small.blocks)
        used = segments if config.types else None
        with torch.no_grad():
            want, got = (one(ids, doc=doc, segments=used).last[doc >= 0] for one in (encoder, small))
            error = (got - want).norm() / want.norm()
            assert 0 < error < 0.08, (float(error), config)


SMALL = {"layers": 2, "width": 64, "heads": 1, "ff_width": 128, "vocab": 100}


def tiny(family: str) -> Model:
    config = next(iter(models.FAMILIES[family].sizes.values()))
    given = {**SMALL, "embed_width": min(config.encoder.embed_width or 64, 64), "adaptive": None}
    if config.encoder.conv is not None:
        given |= {"width": 128, "heads": 2}
    encoder = replace(config.encoder, **given)
    return Model(masking_padding(replace(config, encoder=encoder))).initialize(0).eval()


@pytest.mark.parametrize("family", sorted(models.FAMILIES))
def test_families_in_8_bits(family):
    """No matrix of a layer stays in float32; texts stay near, alone or padded beside longer ones."""
    model = tiny(family)
    small = copy.deepcopy(model)
    quantise(small.encoder.blocks)
    left = [
        name
        for name, tensor in small.encoder.blocks.named_parameters()
        if tensor.ndim > 1 and tensor.shape[-1] >= 64 and min(tensor.shape) > 9
    ]
    assert not left, left
    assert any(isinstance(part, Int8Weight) for part in small.modules())
    ids = torch.randint(5, 100, (3, 20), generator=torch.Generator().manual_seed(0))
    doc = torch.zeros(3, 20, dtype=torch.int32)
    doc[1, 9:] = -1
    with torch.inference_mode():
        want, got = (one.encoder(ids, doc=doc).last for one in (model, small))
        assert 0 < (got - want)[doc >= 0].norm() / want[doc >= 0].norm() < 0.03
        alone = small.encoder(ids[1:2, :9]).last
        torch.testing.assert_close(got[1:2, :9], alone, rtol=0, atol=0.02)
        assert torch.equal(small.encoder(ids[:1]).last, small.encoder(ids).last[:1])


def test_the_twin_gives_a_network_the_same_numbers(monkeypatch):
    if not int8.fast():
        pytest.skip("the twin is what runs here")
    model = tiny("deberta-v3" if "deberta-v3" in models.FAMILIES else "deberta")
    small, plainly = copy.deepcopy(model), copy.deepcopy(model)
    quantise(small.encoder.blocks)
    monkeypatch.setattr(int8, "fast", lambda: False)
    quantise(plainly.encoder.blocks)
    ids = torch.randint(5, 100, (2, 30))
    with torch.inference_mode():
        assert torch.equal(small.encoder(ids).last, plainly.encoder(ids).last)
    assert weights_hash(small) == weights_hash(plainly) != weights_hash(model)


def test_weights_need_a_quarter_of_the_memory():
    def size(network: nn.Module) -> int:
        return sum(x.numel() * x.element_size() for x in (*network.parameters(), *network.buffers()))

    model = tiny("bert")
    before = size(model.encoder.blocks)
    quantise(model.encoder.blocks)
    assert size(model.encoder.blocks) < 0.32 * before


def test_no_gradients():
    model = tiny("bert")
    quantise(model.encoder.blocks)
    with pytest.raises(ConfigError, match="in int8 predicts"):
        model.encoder(torch.ones(1, 4, dtype=torch.long))
