"""The families: one module each, with its published sizes and its differences from BERT."""

from __future__ import annotations

from encoderlab.errors import ConfigError, nearest
from encoderlab.models import (
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
from encoderlab.models.base import Family, ModelConfig

FAMILIES: dict[str, Family] = {
    module.FAMILY.name: module.FAMILY
    for module in (bert, roberta, albert, distilbert, electra, convbert, deberta, xlnet, transformer_xl, modernbert)
}
SIZES: dict[str, ModelConfig] = {name: config for family in FAMILIES.values() for name, config in family.sizes.items()}
GENERATORS: dict[str, ModelConfig] = {
    name: config for family in FAMILIES.values() for name, config in family.generators.items()
}


def config(name: str) -> ModelConfig:
    """The published configuration called ``name``; ``NAME-generator`` is the generator of a discriminator.

    Raises:
        ConfigError: unknown name; the message gives the nearest one.
    """
    base = name.removesuffix("-generator")
    table = GENERATORS if base != name else SIZES
    if base not in table:
        raise ConfigError(f"unknown model {name!r}{nearest(base, table)}")
    return table[base]


__all__ = ["FAMILIES", "GENERATORS", "SIZES", "Family", "ModelConfig", "config"]
