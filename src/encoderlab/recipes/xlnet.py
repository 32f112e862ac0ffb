"""XLNet (Yang et al., 2019, appendix A.4)."""

from __future__ import annotations

from dataclasses import replace

from encoderlab import models
from encoderlab.batches.permutation import Targets
from encoderlab.batches.streams import XLNetStreams
from encoderlab.objectives.permutation import PermutationSettings
from encoderlab.recipes.small import is_small, small
from encoderlab.train.optim import BertAdam
from encoderlab.train.recipe import Budget, Phase, Recipe
from encoderlab.train.schedule import Polynomial


def recipe(name: str) -> Recipe:
    """500k steps of 8192 rows of 512 tokens, a sixth predicted, half of the rows backwards, memory of 384 states.

    Small sizes use 32 rows: two rows read each stream, one per direction, and the next batch continues in the same
    documents, so with 8 rows batches vary little and the loss stays at that of token frequencies (docs/LOG.md). They
    predict a third of the tokens, because there is little text.
    """
    published = Recipe(
        name=name,
        model=models.config(name),
        objective=PermutationSettings(),
        format=XLNetStreams(),
        optim=BertAdam(lr=4e-4),
        schedule=Polynomial(warmup=40_000, end=1e-3),
        budget=Budget(amount=500_000),
        phases=(Phase(length=512, rows=8192),),
    )
    if not is_small(name):
        return published
    scaled = replace(
        published,
        format=XLNetStreams(reuse=64, separator=False),
        objective=PermutationSettings(targets=Targets(count=42, block=64), memory=96, reuse=64),
    )
    return small(scaled, rows=32, steps=800)
