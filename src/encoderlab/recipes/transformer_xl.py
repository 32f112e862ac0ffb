"""Transformer-XL (Dai et al., 2019; the scripts of the release)."""

from __future__ import annotations

from dataclasses import replace

from encoderlab import models
from encoderlab.batches.streams import ContiguousStreams
from encoderlab.objectives.causal import CausalSettings
from encoderlab.recipes.small import is_small, small
from encoderlab.train.optim import AdamW
from encoderlab.train.recipe import Budget, Phase, Recipe
from encoderlab.train.schedule import Cosine

PUBLISHED = {  # steps, rows, warm-up, window, memory, evaluation memory
    "transformer-xl-wt103-base": (200_000, 60, 0, 150, 150, 640),
    "transformer-xl-wt103-large": (4_000_000, 128, 16_000, 384, 384, 1600),
    "transformer-xl-enwik8-base": (400_000, 22, 0, 512, 512, 2100),
    "transformer-xl-enwik8-large": (400_000, 64, 4_000, 768, 768, 3800),
    "transformer-xl-text8-large": (400_000, 64, 4_000, 768, 768, 3800),
    "transformer-xl-lm1b-base": (500_000, 224, 20_000, 32, 32, 128),
    "transformer-xl-lm1b-large": (1_200_000, 512, 30_000, 32, 32, 128),
}


def recipe(name: str) -> Recipe:
    """Contiguous windows with memory; Adam without decay, cosine schedule, clipping at 0.25.

    The character corpora enwik8 and text8 have no end-of-document token.
    """
    steps, rows, warmup, window, memory, evaluation = PUBLISHED.get(name, PUBLISHED["transformer-xl-wt103-base"])
    published = Recipe(
        name=name,
        model=models.config(name),
        objective=CausalSettings(memory=memory, evaluation_memory=evaluation, same_length=True),
        format=ContiguousStreams(separator="enwik8" not in name and "text8" not in name),
        optim=AdamW(lr=2.5e-4, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0),
        schedule=Cosine(warmup=warmup),
        budget=Budget(amount=steps),
        phases=(Phase(length=window, rows=rows),),
        clip=0.25,
    )
    if not is_small(name):
        return published
    scaled = replace(
        published,
        objective=CausalSettings(memory=128, evaluation_memory=256, same_length=True),
        format=ContiguousStreams(separator=False),
    )
    return small(scaled)
