"""Weights in the order in which the kernels' products read them, for prediction.

The results are the same. A product of few rows spends most of its time on reading and reordering its weight; packing
reorders it once. If all weights of a layer are packed, the layer is one call (:mod:`.kernels.cpu.layer`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from encoderlab.errors import ConfigError
from encoderlab.nn.kernels import build
from encoderlab.nn.kernels.cpu import packed as kernel
from encoderlab.nn.kernels.cpu.layer import Weight


class Packed(nn.Module):
    """A weight (N, K) in another form; ``weight[a:b]`` is that of outputs a to b, without a copy."""

    SHARED: tuple[str, ...] = ("values",)
    shape: torch.Size
    columns: slice  # of the outputs that the buffers hold

    def __getitem__(self, outputs: slice) -> Self:
        part = type(self).__new__(type(self))
        nn.Module.__init__(part)
        start, stop, _ = outputs.indices(self.shape[0])
        part.columns = slice(self.columns.start + start, self.columns.start + stop)
        part.shape = torch.Size([stop - start, self.shape[1]])
        for name in self.SHARED:
            setattr(part, name, getattr(self, name))
        return part

    def at(self, bias: Tensor | None) -> Weight | None:
        """The whole weight as the kernel of a layer reads it, with ``bias``; None if the kernel cannot read it."""
        return None

    def whole(self) -> Tensor:
        """The weight itself, (N, K).

        Raises:
            ConfigError: the weight was rounded.
        """
        raise ConfigError("a model in int8 cannot be saved or converted; load it in fp32")


class PackedWeight(Packed):
    """A weight (N, K) float32 in panels (:mod:`.kernels.cpu.packed`). Gradients of inputs are computed from a copy."""

    values: Tensor  # (panels, K, columns)

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.shape, self.columns = weight.shape, slice(0, len(weight))
        self.register_buffer("values", kernel.pack(weight.detach()), persistent=False)

    def forward(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """x w^T + bias: (..., K) -> (..., N)."""
        if torch.is_grad_enabled() or torch.compiler.is_compiling() or x.dtype != torch.float32:
            return F.linear(x, self.whole().to(x.dtype), bias)
        out = kernel.product(x.reshape(-1, x.shape[-1]).contiguous(), self.values, self.columns, bias)
        return out.view(*x.shape[:-1], out.shape[1])

    def at(self, bias: Tensor | None) -> Weight | None:
        return self.values, None, None, bias, *self.shape

    def whole(self) -> Tensor:
        return self.values.transpose(1, 2).flatten(0, 1)[self.columns]

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        """Save the weight as the parameter that it replaces."""
        destination[prefix.removesuffix(".")] = self.whole()


class PackedLinear(nn.Module):
    """A linear map whose weight is packed: (..., K) -> (..., N)."""

    def __init__(self, weight: Packed, bias: Tensor | None) -> None:
        super().__init__()
        self.weight, self.bias = weight, bias

    def forward(self, x: Tensor) -> Tensor:
        return self.weight(x, self.bias)  # type: ignore[no-any-return]


def linear(x: Tensor, weight: Tensor | Packed, bias: Tensor | None = None) -> Tensor:
    """x w^T + bias: (..., K), (N, K), (N,) -> (..., N), for a weight of any form."""
    if isinstance(weight, Packed):
        return weight(x, bias)  # type: ignore[no-any-return]
    return F.linear(x, weight, bias)


def replace_weights(network: nn.Module, form: Callable[[Tensor], Packed]) -> None:
    """Replace the matrices of layers in place: of attention, of the feed-forward network, of convolution heads and of
    positions. Grouped maps, and the map to a convolution's kernels with its few outputs, are not replaced.
    """
    for module in list(network.modules()):
        if isinstance(weight := getattr(module, "qkv", None), nn.Parameter):
            del module.qkv
            module.qkv = form(weight)
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear) and name != "kernel":
                setattr(module, name, PackedLinear(form(child.weight), child.bias))


def pack(network: nn.Module) -> None:
    """Pack the matrices of layers in place, if there are kernels for them: float32 on a CPU, with a C++ compiler."""
    first = next(network.parameters())
    if build.available() and first.device.type == "cpu" and first.dtype == torch.float32:
        replace_weights(network, PackedWeight)
