"""Convolution heads next to attention heads: ConvBERT's mixed attention and the alternatives of its ablation.

Half of the heads (``head_ratio`` 2) attend; the other branch, as wide as the attention heads together, convolves over a
window of J = ``kernel`` neighbours. In the formulas below tap j of token t reads token t + j - J // 2, and a softmax is
over the taps of one head. Taps outside the row read zero. With ``mask_padding``, taps on padding or on another
document of the row read zero too, so a padded or packed row gives the same result as its documents alone; the published
ConvBERT has this off.

Windows are never unfolded: each tap is a shifted multiply-add, and a kernel does all taps in one pass.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from encoderlab.config import Bounded, Count, Short
from encoderlab.errors import ConfigError
from encoderlab.nn import kernels
from encoderlab.nn.kernels.plain import dynamic_convolution
from encoderlab.nn.positions import at_places


@dataclass(frozen=True, kw_only=True)
class Bottleneck(Bounded):
    """Fewer attention heads and no convolution (ConvBERT, table 1, "+bottleneck")."""

    kind: Literal["bottleneck"] = "bottleneck"
    head_ratio: Count = 2


@dataclass(frozen=True, kw_only=True)
class WindowedConvolution(Bounded, ABC):
    """The fields of all convolutions next to attention."""

    head_ratio: Count = 2
    kernel: Short = 9
    mask_padding: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kernel % 2 == 0:
            raise ConfigError(f"kernel {self.kernel} is even; a window centred on the token needs an odd one")

    @abstractmethod
    def operations(self, width: int, inner: int, heads: int) -> float:
        """Operations per token of a forward pass from D = ``width`` to A = ``inner``, as
        :mod:`encoderlab.models.flops` counts them.
        """

    def operations_of_neighbours(self, width: int, inner: int) -> float:
        """Those of :meth:`operations` that every token costs, even for outputs at few places."""
        return 2.0 * (width + self.kernel) * inner


@dataclass(frozen=True, kw_only=True)
class SpanDynamic(WindowedConvolution):
    """Span-dynamic convolution (Jiang et al., 2020, section 3.2): the kernel of a token is computed from its neighbours
    and its query.

    ``sum_j softmax(W_f (s_t * q_t) + b_f)_j v_{t + j - J // 2}`` with attention's queries q, values v = W_v x + b_v,
    and s the :class:`DepthwiseSeparable` convolution of x. ``share_value``: use attention's values, as in the paper's
    text; the released code, and so its parameter counts, have a second value map.
    """

    kind: Literal["span_dynamic"] = "span_dynamic"
    share_value: bool = False

    def operations(self, width: int, inner: int, heads: int) -> float:
        maps = width * inner * (1 if self.share_value else 2) + inner * heads * self.kernel
        return 2.0 * (maps + self.kernel * (width + inner))

    def operations_of_neighbours(self, width: int, inner: int) -> float:
        return 2.0 * (self.kernel * (width + inner) + (0 if self.share_value else width * inner))


@dataclass(frozen=True, kw_only=True)
class Dynamic(WindowedConvolution):
    """Dynamic convolution (Wu et al., 2019): the kernel of a token is a linear function of that token only.

    ``sum_j softmax(W_f v_t)_j v_{t + j - J // 2}`` with v = W_v x + b_v.
    """

    kind: Literal["dynamic"] = "dynamic"

    def operations(self, width: int, inner: int, heads: int) -> float:
        return 2.0 * (width * inner + inner * heads * self.kernel + self.kernel * inner)


@dataclass(frozen=True, kw_only=True)
class Light(WindowedConvolution):
    """Lightweight convolution (Wu et al., 2019): one kernel w per head, the same for all tokens.

    ``sum_j softmax(w)_j v_{t + j - J // 2}`` with v = W_v x + b_v.
    """

    kind: Literal["light"] = "light"

    def operations(self, width: int, inner: int, heads: int) -> float:
        return 2.0 * (width * inner + self.kernel * inner)


@dataclass(frozen=True, kw_only=True)
class DepthwiseSeparable(WindowedConvolution):
    """One kernel w per channel, then a map across channels (ConvBERT's table 2).

    ``W (sum_j w_j * x_{t + j - J // 2}) + b``.
    """

    kind: Literal["depthwise_separable"] = "depthwise_separable"

    def operations(self, width: int, inner: int, heads: int) -> float:
        return 2.0 * (self.kernel * width + width * inner)

    def operations_of_neighbours(self, width: int, inner: int) -> float:
        return 2.0 * self.kernel * width


Branch = SpanDynamic | Dynamic | Light | DepthwiseSeparable  # convolutions that run next to attention
Convolution = Bottleneck | Branch


def kept_heads(heads: int, head_ratio: int) -> int:
    """Number of heads that attend: ``heads // head_ratio``, but at least one (the released code has one-head
    generators).
    """
    return max(1, heads // head_ratio)


class ConvolutionHeads(nn.Module):
    """The convolution branch: x (B, L, D), attention's queries (B, L, A) and values (B, M, A) -> (B, L, A).

    Memory is not convolved: only the values of the row are read. With ``at`` (B, T), queries (B, T, A) -> (B, T, A),
    the outputs at these places.
    """

    def __init__(self, config: Branch, width: int, heads: int, head_width: int) -> None:
        super().__init__()
        self.config, self.heads, self.head_width = config, heads, head_width
        inner, taps = heads * head_width, heads * config.kernel
        if isinstance(config, SpanDynamic):
            self.depthwise = nn.Parameter(torch.empty(width, config.kernel))
            self.pointwise = nn.Linear(width, inner)
            self.kernel = nn.Linear(inner, taps)
            self.value = None if config.share_value else nn.Linear(width, inner)
        elif isinstance(config, Dynamic):
            self.value = nn.Linear(width, inner)
            self.kernel = nn.Linear(inner, taps, bias=False)
        elif isinstance(config, Light):
            self.value = nn.Linear(width, inner)
            self.weight = nn.Parameter(torch.empty(heads, config.kernel))
        else:
            assert isinstance(config, DepthwiseSeparable), config
            self.depthwise = nn.Parameter(torch.empty(width, config.kernel))
            self.pointwise = nn.Linear(width, inner)

    def forward(self, x: Tensor, query: Tensor, value: Tensor, doc: Tensor | None, at: Tensor | None = None) -> Tensor:
        seen = doc if self.config.mask_padding else None
        if isinstance(self.config, DepthwiseSeparable):
            return self._separable(x, seen, at)
        values, logits = self._values_and_kernels(x, query, value, seen, at)
        if at is None:
            return kernels.dynamic_convolution(values, logits, self.heads, seen)
        # To convolve every place costs little, compared with the maps. Places that are not chosen have the scores 0.
        slots = torch.arange(1, 1 + at.shape[1], device=at.device).expand_as(at)
        slots = at.new_zeros(x.shape[:2]).scatter(1, at, slots)
        logits = at_places(F.pad(logits, (0, 0, 1, 0)), slots)
        return at_places(kernels.dynamic_convolution(values, logits, self.heads, seen), at)

    def weights(self, x: Tensor, query: Tensor, value: Tensor, doc: Tensor | None) -> Tensor:
        """The weight that every head gives to every token of the row: (B, H, L, L).

        H is 0 where each channel has its own kernel (:class:`DepthwiseSeparable`).
        """
        batch, length, _ = x.shape
        if isinstance(self.config, DepthwiseSeparable):
            return x.new_zeros(batch, 0, length, length)
        seen = doc if self.config.mask_padding else None
        _, logits = self._values_and_kernels(x, query, value, seen)
        identity = torch.eye(length, dtype=x.dtype, device=x.device)
        identity = identity[:, None].expand(batch, length, self.heads, length).flatten(2)
        read = dynamic_convolution(identity, logits, self.heads, seen)
        return read.unflatten(-1, (self.heads, length)).transpose(1, 2)

    def _values_and_kernels(
        self, x: Tensor, query: Tensor, value: Tensor, seen: Tensor | None, at: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """The values to convolve, (B, L, A), and the scores of the taps of the queries' kernels, (B, L or T, H J)."""
        config = self.config
        if isinstance(config, SpanDynamic):
            values = value[:, -x.shape[1] :] if self.value is None else self.value(x)
            return values, self.kernel(self._separable(x, seen, at) * query)
        assert self.value is not None
        values = self.value(x)
        if isinstance(config, Light):
            return values, self.weight.to(values.dtype).flatten().expand(*query.shape[:2], -1)
        return values, self.kernel(at_places(values, at))

    @property
    def mixes(self) -> bool:
        """Whether :meth:`mixed` works: the convolution is span-dynamic with its own value map."""
        return isinstance(self.config, SpanDynamic) and not self.config.share_value

    def mixed(self, x: Tensor, qkv: Tensor, doc: Tensor | None, **attention: Any) -> Tensor:
        """Outputs of attention heads and convolution heads, concatenated, from x (B, L, D) and qkv (B, L, 3 A)."""
        assert isinstance(self.config, SpanDynamic) and self.value is not None
        seen = doc if self.config.mask_padding else None
        parts = self.value(x), self._separable(x, seen), self.kernel.weight, self.kernel.bias
        return kernels.mixed_attention(qkv, *parts, self.heads, doc=seen, **attention)

    def _separable(self, x: Tensor, seen: Tensor | None, at: Tensor | None = None) -> Tensor:
        return self.pointwise(at_places(kernels.depthwise(x, self.depthwise, seen), at))
