"""Normalisation over the width of a state, a choice of :class:`encoderlab.nn.encoder.EncoderConfig`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn


@dataclass(frozen=True, kw_only=True)
class LayerNormalization:
    """``(x - mean) / sqrt(variance + eps) * weight + bias`` (Ba et al., 2016); ModernBERT has no ``bias``."""

    kind: Literal["layer_norm"] = "layer_norm"
    bias: bool = True


@dataclass(frozen=True, kw_only=True)
class RootMeanSquare:
    """``x / sqrt(mean(x^2) + eps) * weight`` (Zhang and Sennrich, 2019)."""

    kind: Literal["rms_norm"] = "rms_norm"


Normalization = LayerNormalization | RootMeanSquare
Norm = nn.LayerNorm | nn.RMSNorm  # the modules


def make_norm(config: Normalization, width: int, eps: float) -> Norm:
    """The module that normalises states (..., ``width``)."""
    if isinstance(config, LayerNormalization):
        return nn.LayerNorm(width, eps=eps, bias=config.bias)
    return nn.RMSNorm(width, eps=eps)


def norm_bias(norm: Norm) -> Tensor | None:
    """The bias of a norm that has one."""
    return norm.bias if isinstance(norm, nn.LayerNorm) else None
