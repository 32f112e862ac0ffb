"""DeBERTa v1, v2 (He et al., 2021, appendix A.1), v3 (He et al., 2023) and Erlangshen (Wang et al., 2022; the script
of Fengshenbang).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

from encoderlab import models
from encoderlab.batches.corrupt import Masking, NGrams, WindowedNGrams
from encoderlab.batches.pack import Chunks, SingleDocuments
from encoderlab.objectives.mlm import MLMSettings
from encoderlab.objectives.rtd import RTDSettings
from encoderlab.recipes.small import is_small, small
from encoderlab.train.optim import AdamW, BertAdam
from encoderlab.train.pretraining import Recipe
from encoderlab.train.recipe import Budget, Phase
from encoderlab.train.schedule import Bert, Polynomial


def recipe(name: str) -> Recipe:
    """By name: v1 and v2 mask n-grams, v3 detects replaced tokens, Erlangshen masks n-grams of segmented words."""
    if name.startswith("erlangshen"):
        published = _erlangshen(name)
    elif "v3" in name:
        published = _v3(name)
    else:
        published = _v1(name)
    return small(published) if is_small(name) else published


def _v1(name: str) -> Recipe:
    """1M steps of 2048 rows of 512 tokens; the mask decoder; BERT's Adam."""
    return Recipe(
        name=name,
        model=models.config(name),
        objective=MLMSettings(masking=Masking(unit=WindowedNGrams())),
        rows=Chunks(),
        optim=BertAdam(lr=1.5e-4 if name.startswith("deberta-v2") else 2e-4),
        schedule=Bert(warmup=10_000),
        budget=Budget(amount=1_000_000),
        phases=(Phase(length=512, rows=2048),),
    )


def _v3(name: str) -> Recipe:
    """500k steps of 8192 rows; single masks; the discriminator's embeddings are the generator's plus a difference."""
    large = name == "deberta-v3-large"
    masking = Masking(mask=1.0, random=0.0, unit=WindowedNGrams(longest=1))
    return Recipe(
        name=name,
        model=models.config(name),
        generator=models.config(f"{name}-generator"),
        objective=RTDSettings(masking=masking, sharing="disentangled"),
        rows=Chunks(),
        optim=BertAdam(lr=3e-4 if large else 6e-4, betas=(0.9, 0.98)),
        schedule=Bert(warmup=10_000),
        budget=Budget(amount=500_000),
        phases=(Phase(length=512, rows=8192),),
    )


def _erlangshen(name: str) -> Recipe:
    """The public script's settings; batch and steps of the published models are not known: 1024 rows and 1M steps stand
    in for them.
    """
    return Recipe(
        name=name,
        model=models.config(name),
        objective=MLMSettings(masking=Masking(unit=NGrams())),
        rows=SingleDocuments(),
        optim=AdamW(lr=1e-4, eps=1e-8, weight_decay=0.1),
        schedule=Polynomial(warmup=0.01, end=1e-3),
        budget=Budget(amount=1_000_000),
        phases=(Phase(length=512, rows=1024),),
    )


def _sharing(name: str, model: str) -> Recipe:
    base = recipe(model)
    assert isinstance(base.objective, RTDSettings)
    kind: Literal["tables", "none"] = "tables" if name.endswith("-es") else "none"
    return replace(base, name=name, objective=replace(base.objective, sharing=kind))


VARIANTS: dict[str, Callable[[], Recipe]] = {
    # The paper's comparison of embedding sharing (DeBERTa v3, section 3.3): shared, not shared.
    "deberta-v3-base-es": lambda: _sharing("deberta-v3-base-es", "deberta-v3-base"),
    "deberta-v3-base-nes": lambda: _sharing("deberta-v3-base-nes", "deberta-v3-base"),
    "deberta-v3-mini-es": lambda: _sharing("deberta-v3-mini-es", "deberta-v3-mini"),
    "deberta-v3-mini-nes": lambda: _sharing("deberta-v3-mini-nes", "deberta-v3-mini"),
}
