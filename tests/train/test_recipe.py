"""Recipes go to JSON and back, find their place in a budget, and refuse what makes no sense."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from encoderlab import config
from encoderlab.errors import ConfigError
from encoderlab.train.optim import AdamW, BertAdam, Lamb, LayerDecay
from encoderlab.train.recipe import Budget, Checkpoints, Evaluation, Execution, Phase, Ramp, Training
from encoderlab.train.schedule import Bert, Constant, Cosine, Electra, Polynomial, WarmupStableDecay

RECIPES = [
    Training(),
    Training(budget=Budget(amount=1e9, unit="tokens"), optim=BertAdam(), schedule=Bert(warmup=0.01), clip=None),
    Training(phases=(Phase(share=0.9), Phase(length=512, share=0.1)), optim=Lamb(), schedule=Electra(warmup=10)),
    Training(ramp=Ramp(), optim=AdamW(layer_decay=LayerDecay(offset=1), no_decay=()), schedule=Cosine(end=0.1)),
    Training(evaluation=Evaluation(best="f1"), checkpoints=Checkpoints(steps=3), execution=Execution(micro_rows=4)),
    Training(budget=Budget(amount=0.5, unit="hours"), schedule=Polynomial(power=2.0, end=0.001), precision="bf16"),
    Training(schedule=Constant(), seed=7, log_every=1),
]


@pytest.mark.parametrize("recipe", RECIPES)
def test_json_round_trip(recipe: Training) -> None:
    assert config.from_dict(Training, json.loads(json.dumps(config.to_dict(recipe)))) == recipe


def test_overrides_reach_every_level() -> None:
    recipe = config.override(
        Training(),
        {"optim.lr": "3e-4", "schedule": "{kind: electra, warmup: 100}", "phases": "[{length: 64, rows: 8}]"},
    )
    assert recipe.optim == AdamW(lr=3e-4)
    assert recipe.schedule == Electra(warmup=100)
    assert recipe.phases == (Phase(length=64, rows=8),)
    with pytest.raises(ConfigError, match="did you mean 'schedule.warmup'"):
        config.override(Training(), {"schedule.warm_up": "3"})


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"phases": (Phase(share=0.5),)}, "add up to 0.5; make them add up to 1"),
        ({"budget": Budget(amount=10, unit="hours"), "schedule": Bert(warmup=1000)}, "give it as a share"),
        ({"budget": Budget(amount=10), "schedule": Bert(warmup=11)}, "a warm-up of 11 steps does not fit"),
        ({"schedule": WarmupStableDecay(warmup=0.9, decay=0.2)}, "a decay over its last 0.2 overlap"),
        ({"clip": 0.0}, "^clip is 0.0; give more than 0, such as 1, or null$"),
        ({"log_every": 0}, "^log_every is 0; give at least 1$"),
        ({"ramp": Ramp(rows=512)}, "start between 1 and 256"),
    ],
)
def test_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Training(**wrong)


def test_refused_parts() -> None:
    for make in (
        lambda: Phase(rows=10**10),
        lambda: Budget(amount=0),
        lambda: Budget(amount=0, unit="hours"),
        lambda: Budget(amount=math.inf),
        lambda: Budget(amount=1e300),
        lambda: Ramp(share=0.0),
        lambda: Ramp(share=1.5),
        lambda: Phase(rows=0),
        lambda: Phase(share=1.5),
        lambda: Checkpoints(keep=0),
        lambda: Checkpoints(minutes=-1.0),
        lambda: Checkpoints(steps=0),
        lambda: LayerDecay(decay=1.5),
        lambda: Execution(micro_rows=-1),
        lambda: Evaluation(rows=0),
        lambda: AdamW(lr=math.inf),
        lambda: AdamW(eps=0.0),
        lambda: AdamW(eps=math.inf),
        lambda: AdamW(weight_decay=-1.0),
        lambda: AdamW(weight_decay=math.inf),
        lambda: Bert(warmup=-0.1),
        lambda: Bert(warmup=math.nan),
        lambda: Polynomial(power=math.nan),
        lambda: Polynomial(end=2.0),
        lambda: Cosine(end=-0.1),
        lambda: Training(seed=2**63 - 1),
        lambda: Training(seed=-(2**63)),
    ):
        with pytest.raises(ConfigError):
            make()


def test_phases_begin_where_their_share_does() -> None:
    recipe = Training(
        budget=Budget(amount=1000), phases=(Phase(rows=8, share=0.9), Phase(length=512, rows=2, share=0.1))
    )
    assert [recipe.stage(step).phase for step in (0, 899, 900, 999)] == [0, 0, 1, 1]
    assert recipe.stage(900).rows == 2


@given(rows=st.integers(1, 64), goal=st.integers(64, 5000), done=st.floats(0, 1))
def test_ramp(rows: int, goal: int, done: float) -> None:
    ramp = Ramp(rows=rows, share=0.3)
    assert ramp.rows_at(0, goal) == rows if rows < goal else goal
    assert rows <= ramp.rows_at(done, goal) <= goal
    assert ramp.rows_at(0.3, goal) == goal
    assert ramp.rows_at(0.2999999, goal) * 2 >= goal


def test_a_number_that_is_not_finite_improves_on_none_alone() -> None:
    evaluation = Evaluation(best="loss")
    assert not evaluation.improves(math.nan, 1.0) and not evaluation.improves(math.nan, math.nan)
    assert evaluation.improves(math.nan, None) and evaluation.improves(1.0, math.nan)
    assert evaluation.improves(1.0, None) and evaluation.improves(1.0, 2.0) and not evaluation.improves(2.0, 1.0)
