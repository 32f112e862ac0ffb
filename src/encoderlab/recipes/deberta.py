"""DeBERTa v1, v2 (He et al., 2021, appendix A.1), v3 (He et al., 2023) and Erlangshen (Wang et al., 2022; the script
of Fengshenbang).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from encoderlab import models
from encoderlab.batches.corrupt import Masking, NGrams, WindowedNGrams
from encoderlab.batches.pack import Chunks, SingleDocuments
from encoderlab.objectives.mlm import MLMSettings
from encoderlab.objectives.rtd import RTDSettings, Sharing
from encoderlab.recipes.small import is_small, small
from encoderlab.train.optim import AdamW, BertAdam
from encoderlab.train.recipe import Budget, Phase, Recipe
from encoderlab.train.schedule import Bert, Polynomial


def recipe(name: str) -> Recipe:
    """v1 and v2 mask n-grams, v3 detects replaced tokens, Erlangshen masks n-grams of segmented words."""
    if name.startswith("erlangshen"):
        published = _erlangshen(name)
    elif "v3" in name:
        published = _detecting(name)
    else:
        published = _masked(name)
    return small(published) if is_small(name) else published


def _masked(name: str) -> Recipe:
    """v1 and v2: 1M steps of 2048 rows of 512 tokens; the mask decoder; BERT's Adam."""
    return Recipe(
        name=name,
        model=models.config(name),
        objective=MLMSettings(masking=Masking(unit=WindowedNGrams())),
        format=Chunks(),
        optim=BertAdam(lr=1.5e-4 if name.startswith("deberta-v2") else 2e-4),
        schedule=Bert(warmup=10_000),
        budget=Budget(amount=1_000_000),
        phases=(Phase(length=512, rows=2048),),
    )


def _detecting(name: str) -> Recipe:
    """v3: 500k steps of 8192 rows, single masks; the discriminator's embeddings add a difference to the generator's."""
    large = name == "deberta-v3-large"
    masking = Masking(mask=1.0, random=0.0, unit=WindowedNGrams(longest=1))
    return Recipe(
        name=name,
        model=models.config(name),
        generator=models.config(f"{name}-generator"),
        objective=RTDSettings(masking=masking, sharing="disentangled"),
        format=Chunks(),
        optim=BertAdam(lr=3e-4 if large else 6e-4, betas=(0.9, 0.98)),
        schedule=Bert(warmup=10_000),
        budget=Budget(amount=500_000),
        phases=(Phase(length=512, rows=8192),),
    )


def _erlangshen(name: str) -> Recipe:
    """The public script's settings. Batch and steps of the published models are unknown; 1024 rows and 1M steps are our
    choice.
    """
    return Recipe(
        name=name,
        model=models.config(name),
        objective=MLMSettings(masking=Masking(unit=NGrams())),
        format=SingleDocuments(),
        optim=AdamW(lr=1e-4, eps=1e-8, weight_decay=0.1),
        schedule=Polynomial(warmup=0.01, end=1e-3),
        budget=Budget(amount=1_000_000),
        phases=(Phase(length=512, rows=1024),),
    )


def with_sharing(name: str, model: str, sharing: Sharing) -> Recipe:
    """DeBERTa v3 with its embeddings shared in another way (section 3.3)."""
    base = recipe(model)
    assert isinstance(base.objective, RTDSettings)
    return replace(base, name=name, objective=replace(base.objective, sharing=sharing))


VARIANTS: dict[str, Callable[[str], Recipe]] = {
    "deberta-v3-base-es": partial(with_sharing, model="deberta-v3-base", sharing="tables"),
    "deberta-v3-base-nes": partial(with_sharing, model="deberta-v3-base", sharing="none"),
    "deberta-v3-mini-es": partial(with_sharing, model="deberta-v3-mini", sharing="tables"),
    "deberta-v3-mini-nes": partial(with_sharing, model="deberta-v3-mini", sharing="none"),
}
