"""Normalisation over the width of a state, chosen by :class:`encoderlab.nn.architecture.EncoderConfig`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn


@dataclass(frozen=True, kw_only=True)
class LayerNormalization:
    """LayerNorm (Ba et al., 2016), ``(x - mean) / sqrt(variance + eps) * weight + bias``.

    ModernBERT has no ``bias``.
    """

    kind: Literal["layer_norm"] = "layer_norm"
    bias: bool = True
    center: ClassVar[bool] = True  # subtracts the mean

    def make(self, width: int, eps: float) -> nn.LayerNorm:
        return nn.LayerNorm(width, eps=eps, bias=self.bias)


@dataclass(frozen=True, kw_only=True)
class RootMeanSquare:
    """RMSNorm, ``x / sqrt(mean(x^2) + eps) * weight`` (Zhang and Sennrich, 2019)."""

    kind: Literal["rms_norm"] = "rms_norm"
    center: ClassVar[bool] = False

    def make(self, width: int, eps: float) -> nn.RMSNorm:
        return nn.RMSNorm(width, eps=eps)


Normalization = LayerNormalization | RootMeanSquare
Norm = nn.LayerNorm | nn.RMSNorm  # the modules


def norm_bias(norm: Norm) -> Tensor | None:
    """The norm's bias, or None if it has none."""
    return norm.bias if isinstance(norm, nn.LayerNorm) else None


class HeadScale(nn.Module):
    """NormFormer's factor for every head (Shleifer et al., 2021, section 2): (..., heads K) -> (..., heads K)."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(heads))

    def forward(self, x: Tensor) -> Tensor:
        return (x.unflatten(-1, (len(self.weight), -1)) * self.weight.to(x.dtype)[:, None]).flatten(-2)
