"""Assemble models from the weights and the configuration of other libraries, whatever their format."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from encoderlab.errors import DataError
from encoderlab.interchange import heads, names, reading
from encoderlab.model import Model
from encoderlab.models.base import ModelConfig
from encoderlab.nn.positions import Absolute

log = logging.getLogger(__name__)

Models = dict[str, Model]
"""The networks read: ``{"model": ...}``, or ``generator`` and ``discriminator`` that were trained together."""


def assemble(
    config: ModelConfig,
    tensors: Mapping[str, Tensor],
    name_table: names.NameTable,
    source: Path,
    *,
    allow_missing: bool = False,
) -> Model:
    """The model of ``config`` with foreign ``tensors``; pretraining heads without weights are left out.

    Raises:
        DataError: weights are missing, have another shape or are not finite.
    """
    reading.check_depth(config, len(tensors), source)
    expected = reading.shapes(reading.unfilled(config, source))
    matched = names.read(name_table, tensors, expected, config.encoder, source=str(source))
    config = heads.without(config, matched.missing, expected)
    config = _settle(config, matched)
    model = reading.unfilled(config, source)
    expected = reading.shapes(model)
    state = {name: tensor for name, tensor in matched.weights.items() if name in expected}
    missing = [name for name in expected if name not in state]
    dropped = name_table.bound(sorted(matched.weights.keys() - state.keys()), config.encoder)
    left = [name for rule in dropped for name in rule.theirs if not names.is_ignored(name_table, name)]
    unused = matched.unexpected + left
    if unused:
        log.warning("%s: unexpected weights, not used: %s", source, ", ".join(unused))
    if missing:
        theirs = {rule.ours: " + ".join(rule.theirs) for rule in name_table.bound(missing, config.encoder)}
        named = [theirs.get(name, name) for name in missing]
        if not allow_missing and any(name.startswith("encoder.") for name in missing):
            raise DataError(
                f"{source}: weights are missing: {reading.some(named)}; copy the file again, or allow missing weights"
            )
        log.warning("%s: missing weights, initialised at random: %s", source, ", ".join(named))
        fresh = dict(Model(config).initialize(0).named_parameters())
        state |= {name: fresh[name].detach() for name in missing}
    reading.fill(model, state, source)
    return model.eval()


def _settle(config: ModelConfig, matched: names.MatchedWeights) -> ModelConfig:
    """The configuration without parts that ``transformers`` always has but that compute nothing in this model.

    These are a single row of segments that is zero (RoBERTa), a mask vector that is zero (XLNet), and an identity map
    of embeddings that have the width of the layers (ALBERT). :func:`encoderlab.interchange.huggingface.save` adds them
    again.
    """
    encoder = config.encoder
    types = matched.weights.get("encoder.embeddings.types")
    absolute = isinstance(encoder.position, Absolute)
    if absolute and types is not None and len(types) == 1 and not bool(types.any()):
        config = replace(config, encoder=replace(encoder, types=0))
        del matched.weights["encoder.embeddings.types"]
    start = matched.weights.get("mask_vector")
    if start is not None and not bool(start.any()):
        config = replace(config, mask_vector=False)
        del matched.weights["mask_vector"]
    name = "encoder.embeddings.map."
    if encoder.embed_map and name + "weight" in matched.weights:
        same = torch.equal(matched.weights[name + "weight"], torch.eye(encoder.width))
        if same and not bool(matched.weights[name + "bias"].any()):
            config = replace(config, encoder=replace(config.encoder, embed_map=False))
            del matched.weights[name + "weight"], matched.weights[name + "bias"]
    return config
