from __future__ import annotations

from dataclasses import replace

import pytest

from encoderlab import recipes
from encoderlab.measure import estimate
from encoderlab.measure.flops import training
from encoderlab.train.recipe import Budget


@pytest.fixture(autouse=True)
def rate(monkeypatch):
    monkeypatch.setattr(estimate, "matmul_rate", lambda device: 1e9)


def test_a_budget_in_steps_counts_the_tokens_of_every_phase():
    recipe = recipes.recipe("bert-base")
    found = estimate.estimate(recipe)
    assert found.tokens == pytest.approx(1e6 * 256 * (0.9 * 128 + 0.1 * 512))
    short, long = training(recipe.model, 128), training(recipe.model, 512)
    assert found.flops == pytest.approx(1e6 * 256 * (0.9 * 128 * short + 0.1 * 512 * long))
    assert found.seconds == pytest.approx(found.flops / 0.5e9)
    assert 100e6 < found.parameters["model"] < 120e6


def test_a_budget_in_hours_is_its_own_time():
    found = estimate.estimate(replace(recipes.recipe("bert-tiny"), budget=Budget(amount=0.5, unit="hours")))
    assert found.seconds == 1800 and found.tokens is None


def test_both_networks_of_replaced_token_detection_count():
    found = estimate.estimate(recipes.recipe("electra-tiny"))
    assert set(found.parameters) == {"model", "generator"}
