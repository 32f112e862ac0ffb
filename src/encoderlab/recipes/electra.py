"""ELECTRA (Clark et al., 2020, table 6; google-research/electra)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Literal

from encoderlab import models
from encoderlab.batches.corrupt import Masking
from encoderlab.batches.pack import ElectraSegments
from encoderlab.nn.heads import LM
from encoderlab.objectives.rtd import RTDSettings
from encoderlab.recipes.small import is_small, small
from encoderlab.train.optim import BertAdam
from encoderlab.train.recipe import Budget, Phase, Recipe
from encoderlab.train.schedule import Electra

PUBLISHED: dict[str, tuple[float, int, int, int, float]] = {  # rate, rows, steps, length, masked share
    "electra-small": (5e-4, 128, 1_000_000, 128, 0.15),
    "electra-small++": (5e-4, 128, 4_000_000, 512, 0.15),
    "electra-base": (2e-4, 256, 766_000, 512, 0.15),
    "electra-large": (2e-4, 2048, 400_000, 512, 0.25),
}


def recipe(name: str) -> Recipe:
    """Generator and discriminator jointly, loss weights 1 and 50, shared embeddings.

    Without the original's limit of ``int((rate + .005) * length)`` masks: rows of 100 tokens and more never reach it,
    and a fixed number would be wrong for phases of another length.
    """
    lr, rows, steps, length, masked = PUBLISHED.get(name, PUBLISHED["electra-small"])
    masking = Masking(mask=0.85, random=0.0, rate=masked)
    published = Recipe(
        name=name,
        model=models.config(name),
        generator=models.config(f"{name}-generator"),
        objective=RTDSettings(masking=masking),
        format=ElectraSegments(),
        optim=BertAdam(lr=lr),
        schedule=Electra(warmup=10_000),
        budget=Budget(amount=steps),
        phases=(Phase(length=length, rows=rows),),
    )
    return small(published) if is_small(name) else published


Predict = Literal["replaced_masked", "original_masked", "original_all"]


def ablation(name: str, model: str, predict: Predict) -> Recipe:
    """Section 3.4: the loss on masked places only, replace-MLM, or all-tokens MLM."""
    base = recipe(model)
    assert isinstance(base.objective, RTDSettings)
    weight = base.objective.discriminator_weight if predict == "replaced_masked" else 1.0
    network = base.model if predict == "replaced_masked" else replace(base.model, lm=LM())
    objective = replace(base.objective, predict=predict, discriminator_weight=weight)
    return replace(base, name=name, model=network, objective=objective)


def _ablations(model: str) -> dict[str, Callable[[str], Recipe]]:
    return {
        f"{model}-replaced-masked": partial(ablation, model=model, predict="replaced_masked"),
        f"{model}-original-masked": partial(ablation, model=model, predict="original_masked"),
        f"{model}-original-all": partial(ablation, model=model, predict="original_all"),
    }


VARIANTS = _ablations("electra-base") | _ablations("electra-mini")
