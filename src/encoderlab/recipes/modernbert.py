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

# Peak rate, and share of the weights that a step at that rate takes away, in the first phase and in later ones; rows of
# 1,024 tokens at the start, and at the end.
BASE = ((8e-4, 1e-5), (3e-4, 1e-5), 768, 4608)
LARGE = ((5e-4, 1e-5), (5e-5, 1e-6), 448, 4928)


def recipe(name: str) -> Recipe:
    """The first phase: 1.7 trillion tokens in rows of 1,024, 30% masked; StableAdamW; warm-up, then a constant rate.

    In the papers the batch grows over the first tokens (50 billion; large 10 billion). Here it doubles until it has its
    final size.
    """
    large = models.config(name).encoder.width > 768
    _, _, first, rows = LARGE if large else BASE
    schedule = Constant(warmup=_share(2e9 if large else 3e9, 1.7e12))
    published = replace(
        _recipe(name, name, tokens=1.7e12, schedule=schedule, first=True),
        model=_with_theta(models.config(name), 10_000.0),
        phases=(Phase(length=1024, rows=rows),),
        ramp=Ramp(rows=first, share=_share(10e9 if large else 50e9, 1.7e12)),
    )
    if not is_small(name):
        return published
    # The decay of the studies with these sizes; in 1,500 steps none matters.
    optim = replace(published.optim, weight_decay=1e-5)
    stable = WarmupStableDecay(decay=0.2, shape="sqrt")
    return small(replace(published, optim=optim, schedule=stable, model=models.config(name)), lr=2e-3)


def context(name: str, model: str) -> Recipe:
    """The second phase: 250 billion tokens in rows of 8,192, at a lower constant rate."""
    return _recipe(name, model, tokens=250e9, schedule=Constant(warmup=0.0))


def decay(name: str, model: str) -> Recipe:
    """The third phase: 50 billion tokens in rows of 8,192, during which the rate falls as 1 - sqrt."""
    falling = WarmupStableDecay(warmup=0.0, decay=1.0, shape="sqrt", end=1e-3)
    published = _recipe(name, model, tokens=50e9, schedule=falling)
    if models.config(model).encoder.width > 768:
        return replace(published, phases=(Phase(length=8192, rows=624),))
    return published


def _recipe(name: str, model: str, *, tokens: float, schedule: Schedule, first: bool = False) -> Recipe:
    """The common settings of the phases, with rows of 8,192 tokens.

    The release's optimiser (``decoupled_stableadamw``) takes away ``rate / peak * decay`` of the weights in a step,
    ours ``rate * weight_decay``.
    """
    config = models.config(model)
    opening, later, _, rows = LARGE if config.encoder.width > 768 else BASE
    lr, decay = opening if first else later
    return Recipe(
        name=name,
        model=config,
        objective=MLMSettings(masking=Masking(rate=0.3, count="stochastic")),
        format=FullSentences(),
        optim=StableAdamW(lr=lr, betas=(0.9, 0.98), weight_decay=round(decay / lr, 6)),
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
