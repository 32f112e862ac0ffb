"""Adapt a published recipe to a CPU: the same procedure with small batches, few steps and a suitable rate."""

from __future__ import annotations

from dataclasses import fields, replace

from encoderlab.train.optim import AdamW, BertAdam
from encoderlab.train.recipe import Budget, Evaluation, Phase, Recipe


def small(recipe: Recipe, *, steps: int = 1500, rows: int = 8, lr: float = 1e-3) -> Recipe:
    """The recipe at the size of a laptop: one phase of ``rows`` x 128 tokens, 10% warm-up.

    Batches are small because a short run needs many updates: after the same 1.4M tokens, the loss was 0.33 nats below
    that of word frequencies with batches of 8 rows, and 0.16 with 32 (docs/LOG.md). AdamW replaces BERT's Adam:
    without bias correction the first thousand steps are up to three times as long as the rate says, which matters
    little in 1M steps and much in 1500.
    """
    optim = recipe.optim
    if isinstance(optim, BertAdam):
        optim = AdamW(**{field.name: getattr(optim, field.name) for field in fields(optim) if field.name != "kind"})
    return replace(
        recipe,
        budget=Budget(amount=steps),
        phases=(Phase(length=128, rows=rows),),
        ramp=None,
        optim=replace(optim, lr=lr),
        schedule=replace(recipe.schedule, warmup=0.1),
        evaluation=Evaluation(every=max(steps // 10, 1), rows=256),
    )


def is_small(name: str) -> bool:
    """Whether ``name`` is one of our sizes for a CPU."""
    return name.endswith(("-tiny", "-mini"))
