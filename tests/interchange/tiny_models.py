"""Tiny models of every family, with random weights everywhere."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from encoderlab.errors import DataError
from encoderlab.interchange.load import read
from encoderlab.model import Model
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
from encoderlab.models.base import ModelConfig, resized

SMALL: dict[str, Any] = {"layers": 2, "width": 128, "vocab": 50}
NETWORK: dict[str, Any] = {"layers": 2, "width": 32, "heads": 4, "ff_width": 48, "embed_width": 24, "vocab": 50}
TXL: dict[str, Any] = {"layers": 2, "width": 32, "heads": 4, "head_width": 8, "ff_width": 48, "vocab": 50}


def _short(config: ModelConfig) -> ModelConfig:
    """Sixteen positions are enough here."""
    position = config.encoder.position
    name = {"absolute": "length", "disentangled": "span", "rotary": "length"}[position.kind]
    config = resized(config, position=replace(position, **{name: 16}))
    return replace(config, mask_decoder=16) if config.mask_decoder else config


def _v2(**changes: Any) -> ModelConfig:
    return _short(deberta.deberta(**SMALL, position=replace(deberta.V2, buckets=8), **changes))


CONFIGS: dict[str, ModelConfig] = {
    "bert": _short(bert.bert(**SMALL)),
    "roberta": _short(roberta.roberta(**SMALL)),
    "albert": _short(albert.albert(**SMALL, heads=4, embed_width=24)),
    "albert-groups": _short(albert.albert(layers=4, width=32, vocab=50, heads=4, groups=2, embed_width=24)),
    "distilbert": _short(distilbert.distilbert(**SMALL)),
    "electra": _short(electra.electra(**NETWORK)),
    "electra-generator": _short(electra.electra(**NETWORK, generator=True)),
    "convbert": _short(convbert.convbert(**NETWORK)),
    "convbert-groups": _short(convbert.convbert(**NETWORK, groups=2, generator=True)),
    "deberta": _short(deberta.deberta(**SMALL, position=deberta.V1)),
    "deberta-v2": _v2(stem=True),
    "deberta-v3": _v2(rtd=True),
    "erlangshen": _v2(stem=True, mask_decoder=False),
    "modernbert": _short(modernbert.modernbert(layers=4, width=32, heads=4, ff_width=48, vocab=50)),
    "xlnet": xlnet.xlnet(**SMALL),
    "transformer-xl": transformer_xl.transformer_xl(**TXL),
    "transformer-xl-cut": transformer_xl.transformer_xl(**TXL, cutoffs=(10, 30)),
    "transformer-xl-adaptive": transformer_xl.transformer_xl(
        **TXL, cutoffs=(10, 30), divisor=2, shared_biases=False, tied_projections="all_but_first"
    ),
}


def make(config: ModelConfig, seed: int = 0) -> Model:
    """A model whose biases and gains are random too, so that a lost one shows."""
    model = Model(config).initialize(seed).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)
    return model


def same_weights(one: Model, two: Model) -> bool:
    first, second = dict(one.named_parameters()), dict(two.named_parameters())
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def lacking(folder: Path, **read_as: Any) -> None:
    """Refused for the weights that it lacks, unless they may be missing."""
    with pytest.raises(DataError, match="weights are missing"):
        read(folder, **read_as)
    assert set(read(folder, **read_as, allow_missing=True)) == {"model"}
