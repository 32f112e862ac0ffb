from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from encoderlab import recipes
from encoderlab.interchange import folder as folders
from encoderlab.measure import estimate
from encoderlab.model import Model
from encoderlab.models.base import resized
from encoderlab.train.networks import bare_objective
from encoderlab.train.optim import Muon, Optimizer, group_parameters
from encoderlab.train.recipe import Budget, Execution, Ramp


@pytest.fixture(autouse=True)
def rate(monkeypatch):
    monkeypatch.setattr(estimate, "matmul_rate", lambda device, size, *, dtype: 1e9)


def test_a_budget_in_steps_counts_the_tokens_of_every_phase():
    recipe = recipes.recipe("bert-base")
    found = estimate.estimate(recipe)
    assert found.tokens == pytest.approx(1e6 * 256 * (0.9 * 128 + 0.1 * 512))
    short, long = recipe.operations(128), recipe.operations(512)
    assert found.flops == pytest.approx(1e6 * 256 * (0.9 * 128 * short + 0.1 * 512 * long))
    assert found.seconds == pytest.approx(found.flops / 0.5e9)
    assert 100e6 < found.parameters["model"] < 120e6


def test_a_budget_in_steps_counts_the_rows_of_a_batch_that_grows():
    recipe = replace(recipes.recipe("bert-base"), ramp=Ramp(rows=16, share=0.95))
    lengths = [recipe.phases[recipe.stage(1000.0 * step).phase].length for step in range(1000)]
    rows = [recipe.stage(1000.0 * step).rows for step in range(1000)]
    tokens = 1000 * sum(length * number for length, number in zip(lengths, rows, strict=True))
    assert estimate.estimate(recipe).tokens == pytest.approx(tokens, rel=0.01)


def test_the_rate_is_that_of_the_device_and_precision_of_the_run(monkeypatch):
    asked = []
    monkeypatch.setattr(estimate, "matmul_rate", lambda device, size, *, dtype: asked.append((device, dtype)) or 1e9)
    recipe = replace(recipes.recipe("bert-tiny"), precision="bf16")
    monkeypatch.setattr(estimate, "widened", lambda name, device: device.type == "cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    estimate.estimate(recipe)
    estimate.estimate(replace(recipe, execution=Execution(device="cpu")))
    assert asked == [("cuda", torch.bfloat16), ("cpu", torch.float32)]


def test_the_share_of_a_phase_is_one_of_the_budget():
    recipe = recipes.recipe("bert-base")
    short, long = recipe.operations(128), recipe.operations(512)
    recipe = replace(recipe, schedule=replace(recipe.schedule, warmup=0.01))
    of_tokens = estimate.estimate(replace(recipe, budget=Budget(amount=1e9, unit="tokens")))
    assert of_tokens.tokens == pytest.approx(1e9)
    assert of_tokens.flops == pytest.approx(1e9 * (0.9 * short + 0.1 * long))
    of_flops = estimate.estimate(replace(recipe, budget=Budget(amount=1e15, unit="flops")))
    assert of_flops.flops == pytest.approx(1e15)
    assert of_flops.tokens == pytest.approx(1e15 * (0.9 / short + 0.1 / long))


def test_a_budget_in_flops_is_its_own_cost():
    recipe = replace(recipes.recipe("bert-tiny"), budget=Budget(amount=1e15, unit="flops"))
    found = estimate.estimate(recipe)
    assert found.flops == pytest.approx(1e15)
    assert found.tokens == pytest.approx(1e15 / found.flops_per_token)


def test_a_budget_in_hours_is_its_own_time():
    found = estimate.estimate(replace(recipes.recipe("bert-tiny"), budget=Budget(amount=0.5, unit="hours")))
    assert found.seconds == 1800 and found.tokens is None


def test_both_networks_of_replaced_token_detection_count():
    found = estimate.estimate(recipes.recipe("electra-tiny"))
    assert set(found.parameters) == {"model", "generator"}


def test_a_teacher_counts_where_the_recipe_names_it(tmp_path):
    recipe = recipes.recipe("distilbert-tiny")
    teacher = resized(recipes.recipe("bert-tiny").model, vocab=100)
    folders.save(Model(teacher).initialize(0), tmp_path)
    named = replace(recipe, objective=replace(recipe.objective, teacher=str(tmp_path)))
    alone, both = estimate.estimate(recipe), estimate.estimate(named)
    assert set(alone.parameters) == {"model"} and set(both.parameters) == {"model", "teacher"}
    assert both.flops_per_token == pytest.approx(recipe.operations(128, teacher))
    assert both.memory - alone.memory == 4 * both.parameters["teacher"]


def test_muons_iterations_count():
    recipe = replace(recipes.recipe("bert-mini"), optim=Muon(), budget=Budget(amount=100))
    with torch.device("meta"):
        update = Optimizer(group_parameters(bare_objective(recipe), recipe.optim), recipe.optim).operations
    whole = 100 * (8 * 128 * recipe.operations(128) + update)
    assert estimate.estimate(recipe).flops == pytest.approx(whole)
    found = estimate.estimate(replace(recipe, budget=Budget(amount=whole, unit="flops")))
    assert found.tokens == pytest.approx(100 * 8 * 128)
