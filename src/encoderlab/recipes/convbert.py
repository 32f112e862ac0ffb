"""ConvBERT (Jiang et al., 2020; ``configure_pretraining.py`` of the release): ELECTRA's procedure at 128 tokens."""

from __future__ import annotations

from dataclasses import replace

from encoderlab import models
from encoderlab.models.convbert import masking_padding
from encoderlab.recipes import electra
from encoderlab.recipes.small import is_small, small
from encoderlab.train.optim import BertAdam
from encoderlab.train.recipe import Budget, Phase, Recipe

PUBLISHED = {  # rate, rows
    "convbert-small": (3e-4, 128),
    "convbert-medium-small": (5e-4, 128),
    "convbert-base": (2e-4, 256),
}


def recipe(name: str) -> Recipe:
    """1M steps at 128 tokens. The convolutions do not read padding, unlike in the released code."""
    lr, rows = PUBLISHED.get(name, PUBLISHED["convbert-small"])
    published = replace(
        electra.recipe("electra-small"),
        name=name,
        model=masking_padding(models.config(name)),
        generator=masking_padding(models.config(f"{name}-generator")),
        optim=BertAdam(lr=lr),
        budget=Budget(amount=1_000_000),
        phases=(Phase(length=128, rows=rows),),
    )
    return small(published) if is_small(name) else published
