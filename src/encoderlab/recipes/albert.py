"""ALBERT (Lan et al., 2020, section 4.1; google-research/albert)."""

from __future__ import annotations

from encoderlab import models
from encoderlab.batches.corrupt import Masking, NGrams
from encoderlab.batches.pack import SegmentPairs
from encoderlab.objectives.mlm import MLMSettings
from encoderlab.recipes.small import is_small, small
from encoderlab.train.optim import Lamb
from encoderlab.train.recipe import Budget, Phase, Recipe
from encoderlab.train.schedule import Bert


def recipe(name: str) -> Recipe:
    """125k steps of 4096 rows of 512 tokens, sentence order prediction, n-gram masking, LAMB.

    Version 2 trains for 10M steps (base) or 3M (other sizes). At most 20 tokens of a row are masked, as in the public
    script, which is 4% of 512.
    """
    steps = 125_000
    if name.endswith("-v2"):
        steps = 10_000_000 if name == "albert-base-v2" else 3_000_000
    published = Recipe(
        name=name,
        model=models.config(name),
        objective=MLMSettings(masking=Masking(unit=NGrams(), most=20, random_from="all")),
        format=SegmentPairs(relation="order"),
        optim=Lamb(lr=1.76e-3),
        schedule=Bert(warmup=3125),
        budget=Budget(amount=steps),
        phases=(Phase(length=512, rows=4096),),
    )
    return small(published, lr=3e-3) if is_small(name) else published
