"""Initial weights: each tensor's values depend only on the seed and the tensor's name."""

from __future__ import annotations

import math

import torch
from torch import nn

from encoderlab.nn.architecture import EncoderConfig
from encoderlab.nn.block import Block
from encoderlab.nn.encoder import Encoder
from encoderlab.nn.heads import (
    AdaptiveLMHead,
    ClassificationHead,
    LMHead,
    PredictionHead,
    RTDHead,
    SpanHead,
    TaggingHead,
)
from encoderlab.nn.norms import HeadScale
from encoderlab.seeds import derive

NORMS = (nn.LayerNorm, nn.RMSNorm, HeadScale)


def initialize(model: nn.Module, encoder: Encoder, seed: int, *, within: str = "") -> None:
    """Fill those parameters of ``model`` in place whose names start with ``within``.

    Matrices and tables: normal with the configured standard deviation, cut at two deviations where the original is
    written in TensorFlow. Biases 0, weights of norms and factors of heads 1. Exceptions, each as in the original: 1 /
    kernel for a depthwise kernel (ConvBERT); Glorot-uniform for layers that the TensorFlow code makes without an
    initializer; 0.01 for adaptive projections (Transformer-XL); with ``scaled_init`` (ModernBERT) the configured
    deviation / sqrt(2 N) for maps into the residual stream and for the transforms of LM and task heads, and 1 / sqrt(D)
    for the map after a task head's transform.
    """
    config = encoder.config
    exceptions = _exceptions(model, encoder)
    norms = {id(p) for m in model.modules() if isinstance(m, NORMS) for p in m.parameters(recurse=False)}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if not name.startswith(within):
                continue
            if id(parameter) in norms:
                parameter.fill_(1.0 if name.endswith("weight") else 0.0)
            elif parameter.ndim == 1:
                parameter.zero_()
            else:
                generator = torch.Generator().manual_seed(derive(seed, "init", name) >> 1)
                deviation = exceptions.get(id(parameter), config.init_std)
                parameter.copy_(_drawn(parameter.shape, deviation, config.truncated_init, generator))


def _drawn(shape: torch.Size, deviation: float | str, truncated: bool, generator: torch.Generator) -> torch.Tensor:
    """Float32 values from a CPU generator, so that they are the same on every device."""
    value = torch.empty(shape, device="cpu")
    if deviation == "glorot":
        return nn.init.xavier_uniform_(value, generator=generator)
    assert isinstance(deviation, float)
    value.normal_(std=deviation, generator=generator)
    if truncated:
        _redraw_tails(value.view(-1), deviation, generator)
    return value


def _redraw_tails(values: torch.Tensor, deviation: float, generator: torch.Generator) -> None:
    """Draw values beyond two standard deviations again, as TensorFlow does.

    Takes a twentieth of the time of inverting the distribution.
    """
    far = (values.abs() > 2 * deviation).nonzero().squeeze(1)
    while len(far):
        drawn = torch.empty(len(far)).normal_(std=deviation, generator=generator)
        values[far] = drawn
        far = far[drawn.abs() > 2 * deviation]


def _exceptions(model: nn.Module, encoder: Encoder) -> dict[int, float | str]:
    """Standard deviation, or "glorot", by id of the parameter."""
    scales: dict[int, float | str] = {}
    if encoder.config.glorot_map and encoder.embeddings.map is not None:
        scales[id(encoder.embeddings.map.weight)] = "glorot"
    if encoder.config.scaled_init:
        scales |= _scaled(model, encoder.config)
    for module in model.modules():
        if hasattr(module, "depthwise") and isinstance(module.depthwise, nn.Parameter):
            scales[id(module.depthwise)] = 1.0 / module.depthwise.shape[1]
        if isinstance(module, RTDHead) and encoder.config.truncated_init:
            scales[id(module.out.weight)] = "glorot"
        if isinstance(module, (ClassificationHead, TaggingHead)) and module.config.glorot:
            scales[id(module.out.weight)] = "glorot"
        if isinstance(module, SpanHead) and module.config.variant == "conditional":
            scales |= {id(p): "glorot" for p in module.parameters() if p.ndim == 2}
        if isinstance(module, AdaptiveLMHead):
            scales |= {id(p): 0.01 for p in module.maps.values()}
    if encoder.embeddings.clusters is not None and encoder.embeddings.clusters.maps is not None:
        scales |= {id(p): 0.01 for p in encoder.embeddings.clusters.maps}
    return scales


def _scaled(model: nn.Module, config: EncoderConfig) -> dict[int, float | str]:
    """The deviations of ``scaled_init``, by id of the parameter."""
    deviation = config.init_std / math.sqrt(2 * config.depth)
    maps: list[nn.Module | None] = []
    scales: dict[int, float | str] = {}
    for module in model.modules():
        if isinstance(module, Block):
            maps += [module.attention.out, module.feed_forward.down]
        if isinstance(module, (LMHead, PredictionHead)):
            maps.append(module.dense)
        prediction = getattr(module, "prediction", None)
        if isinstance(prediction, PredictionHead) and isinstance(module, (ClassificationHead, TaggingHead, SpanHead)):
            scales[id(module.out.weight)] = config.width**-0.5
    return scales | {id(module.weight): deviation for module in maps if module is not None}
