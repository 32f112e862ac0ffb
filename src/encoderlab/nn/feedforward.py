"""The feed-forward network of a layer: dense or grouped, gated or not."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from encoderlab.errors import ConfigError
from encoderlab.nn import kernels
from encoderlab.nn.packed import PackedLinear, linear

if TYPE_CHECKING:
    from encoderlab.nn.architecture import EncoderConfig

Activation = Literal["gelu", "gelu_tanh", "relu", "silu", "tanh"]


def activation(name: Activation) -> Callable[[Tensor], Tensor]:
    """The activation called ``name``; ``gelu`` is the exact (erf) form, ``gelu_tanh`` that of BERT's and XLNet's
    code.
    """
    return ACTIVATIONS[name]


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
    "tanh": torch.tanh,
}


class GroupedLinear(nn.Module):
    """ConvBERT's grouped linear map (section 3.3): block i of the input times weight i, outputs concatenated, one bias.

    (..., in) -> (..., out), weight (groups, in / groups, out / groups). Costs 1 / groups of a dense map, but channels
    of different groups do not mix.

    Raises:
        ConfigError: ``groups`` does not divide both widths.
    """

    bias: nn.Parameter | None

    def __init__(self, inputs: int, outputs: int, groups: int, *, bias: bool = True) -> None:
        super().__init__()
        if inputs % groups or outputs % groups:
            choices = [g for g in range(1, math.gcd(inputs, outputs) + 1) if inputs % g == 0 and outputs % g == 0]
            raise ConfigError(f"{groups} groups do not divide widths {inputs} and {outputs}; choose from {choices}")
        self.groups = groups
        self.weight = nn.Parameter(torch.empty(groups, inputs // groups, outputs // groups))
        self.bias = nn.Parameter(torch.zeros(outputs)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        blocks = x.reshape(-1, self.groups, x.shape[-1] // self.groups).transpose(0, 1)
        mixed = torch.bmm(blocks, self.weight.to(x.dtype)).transpose(0, 1)
        mixed = mixed.flatten(1).reshape(*x.shape[:-1], self.groups * self.weight.shape[2])
        return mixed if self.bias is None else mixed + self.bias.to(mixed.dtype)


class FeedForward(nn.Module):
    """``W_2 dropout(act(W_1 x + b_1)) + b_2``: (B, L, D) -> (B, L, D) through width F.

    ``gated`` (GLU; Shazeer, 2020): W_1 has 2 F rows; the first half of its output is activated and multiplied with the
    second half, ``W_2 dropout(act(W x + b) * (V x + c)) + b_2``. ``norm``: of the F activations before dropout
    (NormFormer; Shleifer et al., 2021).
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        width, inner, groups, biases = config.width, config.ff_width, config.ff_groups, config.ff_biases

        def dense(inputs: int, outputs: int) -> nn.Module:
            if groups == 1:
                return nn.Linear(inputs, outputs, bias=biases)
            return GroupedLinear(inputs, outputs, groups, bias=biases)

        self.act, self.gated, self.dropout = config.activation, config.ff_gated, config.ff_dropout
        self.up, self.down = dense(width, 2 * inner if self.gated else inner), dense(inner, width)
        self.norm = config.make_norm(inner) if config.inner_norms else None

    def forward(self, x: Tensor, seeds: Tensor | None, site: int) -> Tensor:
        change, bias = self.without_bias(x, seeds, site)
        return change if bias is None else change + bias

    def without_bias(self, x: Tensor, seeds: Tensor | None, site: int) -> tuple[Tensor, Tensor | None]:
        """The result without b_2 (B, L, D), and b_2 (D,) or None, which the caller adds with its next operation."""
        up, down = self.up, self.down
        fast = self.norm is None and self.act in ("gelu", "gelu_tanh")
        if fast and isinstance(up, nn.Linear) and isinstance(down, nn.Linear):
            tanh, gated, p = self.act == "gelu_tanh", self.gated, self.dropout
            weights = up.weight, up.bias, down.weight
            return kernels.feed_forward(x, *weights, tanh=tanh, gated=gated, p=p, seeds=seeds, site=site), down.bias
        if fast and isinstance(up, PackedLinear) and isinstance(down, PackedLinear) and not torch.is_grad_enabled():
            inner = kernels.gelu(up(x), tanh=self.act == "gelu_tanh", gated=self.gated)
            return linear(inner, down.weight), down.bias
        inner = up(x)
        if self.gated:
            inner, gate = inner.chunk(2, dim=-1)
            inner = activation(self.act)(inner) * gate
        else:
            inner = activation(self.act)(inner)
        if self.norm is not None:
            inner = self.norm(inner)
        return down(kernels.dropout(inner, self.dropout, seeds, site)), None
