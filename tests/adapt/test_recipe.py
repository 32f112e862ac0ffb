"""Every family has a recipe of continued training, with its own objective."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from encoderlab.adapt import run as stages
from encoderlab.adapt.recipe import published, recipe_of
from encoderlab.interchange import configs
from encoderlab.model import Model
from encoderlab.models import FAMILIES, GENERATORS, SIZES
from encoderlab.models.base import resized
from encoderlab.train.checks import check
from tests.interchange.tiny_models import CONFIGS

NAMES = [
    "bert-tiny", "roberta-tiny", "albert-tiny", "distilbert-tiny", "electra-tiny", "convbert-tiny", "deberta-tiny",
    "deberta-v2-tiny", "deberta-v3-tiny", "xlnet-tiny", "transformer-xl-tiny", "modernbert-tiny",
]  # fmt: skip


@pytest.mark.parametrize("name", [name for name in NAMES if name in SIZES])
def test_every_family_trains_with_its_own_objective(name: str) -> None:
    config = resized(SIZES[name], vocab=200)
    kinds = {"xlnet": "permutation", "transformer_xl": "causal", "electra": "rtd", "convbert": "rtd"}
    expected = "rtd" if "v3" in name else kinds.get(config.family, "mlm")
    with torch.device("meta"):
        model = Model(config)
        second = Model(resized(GENERATORS[name], vocab=200)) if name in GENERATORS else None
    for generator in {None, second}:
        recipe = recipe_of(model, generator, tokens=1e5, passes=2, seed=1)
        assert recipe.objective.kind == expected
        assert recipe.model.mask_decoder == config.mask_decoder and recipe.model.encoder.dropout == 0.1
        assert recipe.fresh_generator == (expected == "rtd" and generator is None)
        assert recipe.optim.lr <= 3e-4 and recipe.evaluation.best == "loss"
        check(replace(recipe, init_from="runs/mine/start"))


@pytest.mark.parametrize("name", CONFIGS)
def test_an_adapted_model_of_every_family_goes_to_transformers(name: str) -> None:
    """Although dropout is another than the model's own."""
    with torch.device("meta"):
        model = Model(CONFIGS[name])
    adapted = recipe_of(model, None, tokens=1e5, passes=2, seed=1).model
    assert configs.write(adapted)["model_type"] == configs.write(model.config)["model_type"]


@pytest.mark.parametrize(("name", "kind"), [("modernbert", "hybrid"), ("convbert-groups", "mlm")])
def test_a_head_that_reads_the_token_before_stays_good_both_ways(name: str, kind: str) -> None:
    config = CONFIGS[name]
    assert config.lm is not None
    with torch.device("meta"):
        model = Model(replace(config, lm=replace(config.lm, next_token=True)))
    recipe = recipe_of(model, None, tokens=1e5, passes=2, seed=1)
    assert recipe.objective.kind == kind and recipe.model.lm == model.config.lm
    check(recipe)


def test_passes_are_a_limit_for_other_rows_too() -> None:
    with torch.device("meta"):
        model = Model(CONFIGS["bert"])
    phases = [{"length": 32, "rows": 4, "share": 0.5}, {"length": 64, "rows": 8, "share": 0.5}]
    made = object.__new__(stages.Adaptation)
    for more, steps, every in (({}, 625, 31), ({"budget.amount": 6}, 6, 31), ({"evaluation.every": 7}, 625, 7)):
        made.plan = stages.AdaptationPlan(model="", text=("",), passes=2, fields={"phases": phases, **more})
        recipe = made._recipe(model, None, 1e5)
        assert (recipe.budget.amount, recipe.evaluation.every) == (steps, every)
        assert [phase.rows for phase in recipe.phases] == [4, 8]


def test_every_family_has_a_recipe() -> None:
    for family in FAMILIES.values():
        for config in family.sizes.values():
            published(config)
