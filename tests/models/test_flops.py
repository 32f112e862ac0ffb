from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from encoderlab import models
from encoderlab.cli import main
from encoderlab.measure import describe
from encoderlab.model import Model
from encoderlab.models import flops
from encoderlab.models.base import resized
from encoderlab.nn.architecture import Sharing
from encoderlab.nn.heads import LM
from encoderlab.nn.kernels import build

PUBLISHED = [  # by ELECTRA's flops_computation.py; papers round: name, length, rows, steps, operations
    ("convbert-small", 128, 128, 1_000_000, 1.26e18),
    ("convbert-medium-small", 128, 128, 1_000_000, 1.57e18),
    ("convbert-base", 128, 256, 1_000_000, 1.89e19),
    ("electra-base", 512, 256, 766_000, 6.42e19),
    ("electra-small", 128, 128, 1_000_000, 1.29e18),
]


@pytest.mark.parametrize(("name", "length", "rows", "steps", "expected"), PUBLISHED)
def test_the_electra_convention_gives_the_published_costs(name, length, rows, steps, expected) -> None:
    per_token = sum(flops.electra_training(models.config(part), length) for part in (name, f"{name}-generator"))
    assert math.isclose(per_token * rows * length * steps, expected, rel_tol=4e-3)  # the tables give three digits


@pytest.mark.parametrize("family", ["bert", "albert", "electra", "deberta", "xlnet", "convbert", "modernbert"])
def test_our_convention_is_what_torch_counts(family: str) -> None:
    """Against torch's own counter over the body: matrix products, not the shifted sums of convolutions."""
    name = f"{family}-mini"
    config = resized(models.config(name), vocab=100)
    model = Model(config).initialize(0).eval().double()  # the plain twins, whose products torch sees
    rows, length = 4, 64
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model.encoder(torch.randint(0, 100, (rows, length)), doc=None)
    parts = flops.forward(replace(config, lm=None, rtd=None, mask_decoder=0, mask_vector=False), length)
    if config.encoder.conv is not None:
        parts["convolution"] -= config.encoder.layers * 2 * 9 * (256 + 128)
    expected = sum(parts.values()) * rows * length
    # Projections of the position table do not grow with the batch and are not counted here.
    extra = 0.0
    if name in ("deberta-mini", "xlnet-mini"):
        extra = config.encoder.layers * 2 * 256 * 256 * (2 * length - 1) * (2 if name == "deberta-mini" else 1)
    assert math.isclose(counter.get_total_flops(), expected + extra, rel_tol=1e-3)


@pytest.mark.parametrize("name", ["transformer-xl-mini", "xlnet-mini"])
def test_keys_and_values_of_the_memory_are_what_torch_counts(name: str) -> None:
    config = resized(models.config(name), vocab=100)
    model = Model(config).initialize(0).eval().double()
    rows, length, remembered = 8, 64, 48
    memory = [torch.randn(rows, remembered, 256, dtype=torch.double) for _ in range(config.encoder.layers)]
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model.encoder(torch.randint(0, 100, (rows, length)), memory=memory)
    parts = flops.forward(replace(config, lm=None, mask_vector=False), length, memory=remembered)
    distances = length + remembered if config.encoder.causal else 2 * length + remembered - 1
    table = config.encoder.layers * 2 * 256 * 256 * distances
    assert counter.get_total_flops() == pytest.approx(sum(parts.values()) * rows * length + table)


def test_a_query_stream_reads_the_keys_and_values_of_the_memory() -> None:
    """With every token predicted, the query stream of the last layer costs what the layer did."""
    config = models.config("xlnet-mini")
    one = flops.forward(resized(config, layers=1), 64, predicted=1.0, memory=48)
    assert one["query stream"] == pytest.approx(sum(flops.layer_forward(config.encoder, 64, 48).values()))


def test_describe_counts_every_parameter_once(capsys) -> None:
    for name in ("albert-base", "deberta-v3-small", "transformer-xl-wt103-base", "xlnet-base"):
        found = describe.facts(name, models.config(name), length=128, rows=8)
        assert describe.tree(models.config(name)).parameters == found["parameters"]["pretraining"]
    assert main(["describe", "bert-base", "--json"]) == 0
    assert '"encoder": 108891648' in capsys.readouterr().out
    assert main(["describe", "no-such-model"]) == 2
    assert main(["describe", "--list"]) == 0


@pytest.mark.parametrize(("name", "share"), [("bert-base", "15%"), ("bert-base-ltr", "100%")])
def test_a_left_to_right_model_predicts_every_token(name: str, share: str, capsys) -> None:
    assert main(["describe", name]) == 0
    assert f"LM head on {share} of tokens" in " ".join(capsys.readouterr().out.split())


@pytest.mark.skipif(not build.available(), reason="no C++ compiler")
@pytest.mark.parametrize(
    ("name", "changes", "memory"),
    [
        ("bert-mini", {}, 0),
        ("bert-mini", {"causal": True}, 0),
        ("albert-mini", {"sharing": Sharing(inner=2)}, 0),
        ("deberta-mini", {}, 0),
        ("convbert-mini", {}, 0),
        ("modernbert-mini", {}, 0),
        ("transformer-xl-mini", {"adaptive": None}, 96),
    ],
)
def test_the_memory_of_training_is_what_is_kept(name: str, changes: dict[str, Any], memory: int) -> None:
    """Storages saved for the backward pass, parameters aside: as much as estimated, or up to a quarter less."""
    config = replace(resized(models.config(name), vocab=100, layers=2, **changes), rtd=None, mask_decoder=0, lm=LM())
    model, rows, length = Model(config).initialize(0).train(), 2, 128
    known = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    saved: dict[int, Tensor] = {}  # alive, so that no address serves twice

    def pack(x: Tensor) -> Tensor:
        if x.untyped_storage().data_ptr() not in known:
            saved[x.untyped_storage().data_ptr()] = x
        return x

    remembered = [torch.randn(rows, memory, 256) for _ in range(model.encoder.depth)] if memory else None
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        ids = torch.randint(0, 100, (rows, length))
        states = model.encoder(ids, memory=remembered)
        model.lm.losses(states.last.flatten(0, 1), model.words, ids.flatten())
    kept = sum(x.untyped_storage().nbytes() for x in saved.values())
    found = flops.training_memory(config, 0, rows, length, predicted=1.0, memory=memory).activations
    assert kept <= found <= 1.25 * kept


def test_local_layers_cost_what_they_see() -> None:
    """The products of queries and keys, counted one by one; with a memory before the row too."""
    config = models.config("modernbert-tiny").encoder
    inner = config.attention_width
    for length, memory, reach in ((50, 0, 7), (5, 0, 7), (40, 13, 7), (30, 0, 0)):
        local = replace(config, local=replace(config.local, reach=reach))
        pairs = sum(abs(i + memory - j) <= reach for i in range(length) for j in range(length + memory))
        assert flops.layer_forward(local, length, memory, 1)["attention"] == pytest.approx(4 * inner * pairs / length)
        assert flops.layer_forward(local, length, memory, 3)["attention"] == 4 * inner * (length + memory)
