"""Small models for the tests of objectives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from encoderlab import models
from encoderlab.model import Model
from encoderlab.models.base import ModelConfig, resized
from encoderlab.objectives.base import Objective
from encoderlab.objectives.mlm import MLM, MLMSettings
from encoderlab.objectives.rtd import ReplacedTokenDetection, RTDSettings
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


def reading_the_token_before(name: str, **changes: Any) -> Model:
    """The model with an LM head that predicts a token from the state before it."""
    model = build(name)
    config = model.config
    assert config.lm is not None
    config = replace(config, lm=replace(config.lm, next_token=True), pair=False, mask_decoder=0, mask_vector=False)
    made = Model(resized(config, **changes)).initialize(0)
    made.load_state_dict(model.state_dict(), strict=False)
    return made


def masked(name: str, model: Model | None = None) -> Callable[[Vocabulary], Objective]:
    return lambda vocabulary: MLM(model or build(name), MLMSettings(), vocabulary)


def detection(name: str, **settings: str) -> Callable[[Vocabulary], Objective]:
    return lambda vocabulary: ReplacedTokenDetection(
        build(f"{name}-generator"),
        build(name, seed=1),
        RTDSettings(**settings),  # type: ignore[arg-type]
        vocabulary,
    )
