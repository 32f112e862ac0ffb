"""ModernBERT (Warner et al., 2024, section 2.2, appendix A), Ettin (Weller et al., 2025), mmBERT (Marone et al., 2025).

There are three phases, with a recipe each because the base of the global layers' rotary positions changes between them:
first rows of 1,024 tokens; then, with a base of 160,000 (``NAME-context``), rows of 8,192; then the decay of the rate
(``NAME-decay``), on text of better quality. Later phases continue from the folder of the previous phase, with
``--init-from``. Numbers of tokens are those of the papers; the user chooses the text of each phase.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from encoderlab import models
from encoderlab.batches.corrupt import Masking
from encoderlab.batches.pack import FullSentences
from encoderlab.models.base import ModelConfig, resized
from encoderlab.nn.positions import Rotary
from encoderlab.objectives.mlm import MLMSettings
from encoderlab.recipes.small import is_small, small
from encoderlab.train.optim import StableAdamW
from encoderlab.train.recipe import Budget, Phase, Ramp, Recipe
from encoderlab.train.schedule import Constant, Schedule, WarmupStableDecay

# Rate of the first phase, rate of later phases; weight decay; rows of 1,024 tokens at the start, and at the end.
BASE, LARGE = (8e-4, 3e-4, 1e-5, 768, 4608), (5e-4, 5e-5, 1e-5, 448, 4928)


def recipe(name: str) -> Recipe:
    """The first phase: 1.7 trillion tokens in rows of 1,024, 30% masked; StableAdamW; warm-up, then a constant rate.

    In the papers the batch grows over the first tokens (50 billion; large 10 billion). Here it doubles until it has its
    final size.
    """
    large = models.config(name).encoder.width > 768
    lr, _, _, first, rows = LARGE if large else BASE
    published = replace(
        _recipe(name, name, tokens=1.7e12, schedule=Constant(warmup=_share(2e9 if large else 3e9, 1.7e12)), lr=lr),
        model=_with_theta(models.config(name), 10_000.0),
        phases=(Phase(length=1024, rows=rows),),
        ramp=Ramp(rows=first, share=_share(10e9 if large else 50e9, 1.7e12)),
    )
    if not is_small(name):
        return published
    stable = replace(published, schedule=WarmupStableDecay(decay=0.2, shape="sqrt"), model=models.config(name))
    return small(stable, lr=2e-3)


def context(name: str, model: str) -> Recipe:
    """The second phase: 250 billion tokens in rows of 8,192, at a lower constant rate."""
    return _recipe(name, model, tokens=250e9, schedule=Constant(warmup=0.0))


def decay(name: str, model: str) -> Recipe:
    """The third phase: 50 billion tokens in rows of 8,192, during which the rate falls as 1 - sqrt."""
    return _recipe(name, model, tokens=50e9, schedule=WarmupStableDecay(warmup=0.0, decay=1.0, shape="sqrt"))


def _recipe(name: str, model: str, *, tokens: float, schedule: Schedule, lr: float | None = None) -> Recipe:
    """The common settings of the phases, with rows of 8,192 tokens and the rate of later phases."""
    config = models.config(model)
    _, later, weight_decay, _, rows = LARGE if config.encoder.width > 768 else BASE
    return Recipe(
        name=name,
        model=config,
        objective=MLMSettings(masking=Masking(rate=0.3, count="stochastic")),
        format=FullSentences(),
        optim=StableAdamW(lr=lr or later, betas=(0.9, 0.98), weight_decay=weight_decay),
        schedule=schedule,
        budget=Budget(amount=tokens, unit="tokens"),
        phases=(Phase(length=8192, rows=rows // 8),),
        clip=None,
    )


def _share(tokens: float, total: float) -> float:
    """The share of ``tokens`` in ``total``."""
    return round(tokens / total, 6)


def _with_theta(config: ModelConfig, theta: float) -> ModelConfig:
    """The model with another base for the rotary positions of its global layers."""
    position = config.encoder.position
    assert isinstance(position, Rotary)
    return resized(config, position=replace(position, theta=theta))


VARIANTS: dict[str, Callable[[str], Recipe]] = {
    f"modernbert-{size}-{phase.__name__}": partial(phase, model=f"modernbert-{size}")
    for size in ("base", "large")
    for phase in (context, decay)
}
