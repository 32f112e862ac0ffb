"""Small models for the tests of objectives."""

from __future__ import annotations

from collections.abc import Callable

import torch

from encoderlab import models
from encoderlab.model import Model
from encoderlab.models.base import ModelConfig, resized
from encoderlab.objectives.base import Objective
from encoderlab.objectives.mlm import MLM, MLMSettings
from encoderlab.objectives.rtd import RTD, RTDSettings
from encoderlab.objectives.vocabulary import Vocabulary


def small(name: str, vocab: int = 40) -> ModelConfig:
    """A published family at toy size, large enough weights that everything matters."""
    config = models.config(name)
    embed = 12 if config.family in ("albert", "electra", "convbert") else 16
    heads = {"generator": 2}.get(name.rsplit("-", 1)[-1], 4)
    return resized(
        config, vocab=vocab, width=16, heads=heads, head_width=None, ff_width=24, embed_width=embed, init_std=0.3
    )


def build(name: str, seed: int = 0) -> Model:
    model = Model(small(name)).initialize(seed)
    torch.manual_seed(seed)
    for parameter in model.parameters():
        if parameter.ndim == 1:
            parameter.data += 0.1 * torch.randn_like(parameter)
    return model


def masked(name: str, model: Model | None = None) -> Callable[[Vocabulary], Objective]:
    return lambda vocabulary: MLM(model or build(name), MLMSettings(), vocabulary)


def detection(name: str, **settings: str) -> Callable[[Vocabulary], Objective]:
    return lambda vocabulary: RTD(
        build(f"{name}-generator"),
        build(name, seed=1),
        RTDSettings(**settings),  # type: ignore[arg-type]
        vocabulary,
    )
