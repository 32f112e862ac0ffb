"""Published pretraining runs by name: a function each, returning a :class:`Recipe`; ``tiny`` and ``mini`` sizes train
on a CPU.
"""

from __future__ import annotations

from collections.abc import Callable

from encoderlab.errors import ConfigError, nearest
from encoderlab.models import SIZES
from encoderlab.recipes import (
    albert,
    bert,
    convbert,
    deberta,
    distilbert,
    electra,
    modernbert,
    roberta,
    transformer_xl,
    xlnet,
)
from encoderlab.train.recipe import Recipe

VARIANTS: dict[str, Callable[[str], Recipe]] = {
    **bert.VARIANTS,
    **roberta.VARIANTS,
    **electra.VARIANTS,
    **deberta.VARIANTS,
    **distilbert.VARIANTS,
    **modernbert.VARIANTS,
}
"""Runs that differ from the recipe of a family at one of its sizes."""

BY_FAMILY: dict[str, Callable[[str], Recipe]] = {
    "bert": bert.recipe,
    "roberta": roberta.recipe,
    "albert": albert.recipe,
    "distilbert": distilbert.recipe,
    "electra": electra.recipe,
    "convbert": convbert.recipe,
    "deberta": deberta.recipe,
    "xlnet": xlnet.recipe,
    "transformer_xl": transformer_xl.recipe,
    "modernbert": modernbert.recipe,
}

RECIPES: dict[str, Callable[[str], Recipe]] = {
    name: BY_FAMILY[config.family]
    for name, config in SIZES.items()
    if name not in VARIANTS and config.family in BY_FAMILY  # a new family may have no recipe yet
} | VARIANTS
"""The function that makes each recipe, by name."""


def recipe(name: str) -> Recipe:
    """The recipe called ``name``.

    Raises:
        ConfigError: unknown name; the message gives the nearest one.
    """
    if name not in RECIPES:
        raise ConfigError(f"unknown recipe {name!r}{nearest(name, RECIPES)}")
    return RECIPES[name](name)
