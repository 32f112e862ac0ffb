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

_FAMILIES = (bert, roberta, albert, electra, convbert, deberta, distilbert, xlnet, transformer_xl, modernbert)

BY_FAMILY: dict[str, Callable[[str], Recipe]] = {
    module.__name__.rpartition(".")[2]: module.recipe for module in _FAMILIES
}

VARIANTS: dict[str, Callable[[str], Recipe]] = {
    name: make for module in _FAMILIES for name, make in getattr(module, "VARIANTS", {}).items()
}
"""Runs that differ from the recipe of a family at one of its sizes."""

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
