"""DeBERTa v2's convolution over the embeddings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from encoderlab.config import Bounded, Count, Short
from encoderlab.errors import ConfigError
from encoderlab.nn import kernels
from encoderlab.nn.feedforward import Activation, activation
from encoderlab.nn.kernels.plain import shifted
from encoderlab.nn.noise import STEM

if TYPE_CHECKING:
    from encoderlab.nn.architecture import EncoderConfig


@dataclass(frozen=True, kw_only=True)
class StemConvolution(Bounded):
    """DeBERTa v2's convolution over the embeddings, added to the first layer's output (He et al., 2021, section 5)."""

    kernel: Short = 3
    groups: Count = 1
    activation: Activation = "gelu"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kernel % 2 == 0:
            raise ConfigError(
                f"convolution kernel {self.kernel} has no token in its middle; give an odd number, such as 3"
            )


class Stem(nn.Module):
    """``LN(layer output + act(dropout(conv(embeddings))))``; tokens read nothing from other documents of the row."""

    def __init__(self, stem: StemConvolution, config: EncoderConfig) -> None:
        super().__init__()
        self.config, self.dropout, width = stem, config.dropout, config.width
        self.conv = nn.Conv1d(width, width, stem.kernel, padding=(stem.kernel - 1) // 2, groups=stem.groups)
        self.norm = nn.LayerNorm(width, eps=config.eps)

    def forward(self, embedded: Tensor, output: Tensor, doc: Tensor | None, seeds: Tensor | None) -> Tensor:
        """Embeddings (B, L, D) and the first layer's output (B, L, D) -> (B, L, D)."""
        mixed = self._convolve(embedded, doc)
        if doc is not None:
            mixed = mixed * (doc >= 0)[..., None]
        mixed = activation(self.config.activation)(kernels.dropout(mixed, self.dropout, seeds, STEM))
        return self.norm(output + mixed)

    def _convolve(self, x: Tensor, doc: Tensor | None) -> Tensor:
        """The convolution as one matrix product over concatenated neighbours; those of other documents are zero.

        torch's own convolution cannot separate documents, and repeats its preparation for every new length.
        """
        kernel, groups = self.config.kernel, self.config.groups
        taps = shifted(x, kernel)
        if doc is not None:
            taps = [tap * (other == doc)[..., None] for tap, other in zip(taps, shifted(doc, kernel, -2), strict=True)]
        seen = torch.stack([tap.unflatten(-1, (groups, -1)) for tap in taps], dim=3)
        seen = seen.flatten(0, 1).flatten(2).transpose(0, 1)  # (groups, B L, kernel D / groups)
        weight = self.conv.weight.unflatten(0, (groups, -1)).permute(0, 3, 2, 1).flatten(1, 2)
        mixed = torch.bmm(seen, weight.to(seen.dtype)).transpose(0, 1)
        assert self.conv.bias is not None
        return mixed.reshape(x.shape) + self.conv.bias.to(mixed.dtype)
