"""The encoder's matrices in 8 bits, for prediction.

A weight w (N, K) is q s with integers q from -127 to 127 and a scale s for each output; an input row x is p t with
integers p and its own scale t. Then ``x w^T = t s (p q^T)``, whose sum is exact in 32 bits. Because every row has its
own scale, what is computed for a token does not depend on the batch it is in. Embeddings, norms, heads, convolutions
and attention itself stay in float32.

Costs about 1% of the size of a product's result (rounding to 255 steps); ``--check`` says what that costs a model.
Weights need a quarter of the memory. A processor without instructions for 8 bits (:func:`fast`) computes the same
numbers by the plain twin, not faster than in float32.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from encoderlab.errors import ConfigError
from encoderlab.nn.kernels import plain
from encoderlab.nn.kernels.cpu import int8 as kernel

STEPS = 127


class Int8Weight(nn.Module):
    """A weight (N, K) in 8 bits, with a scale for each output. ``weight[a:b]`` is that of outputs a to b.

    ``plainly``: computed by the plain twin, also where there is a kernel.
    """

    values: Tensor  # (N, K) int8, or packed for the kernel
    scales: Tensor  # (N,), with room for whole panels where packed, as offsets
    offsets: Tensor

    def __init__(self, weight: Tensor, *, plainly: bool = False) -> None:
        super().__init__()
        weight = weight.detach().float()
        scales = weight.abs().amax(1) / STEPS
        values = (weight / scales.clamp_min(torch.finfo(torch.float32).tiny)[:, None]).round().to(torch.int8)
        self.shape, self.columns, self.packed = weight.shape, slice(0, len(weight)), fast() and not plainly
        offsets = plain.MIDDLE * values.sum(1, dtype=torch.int32)
        if self.packed:
            room = (0, -len(weight) % kernel.panel())
            values, scales, offsets = kernel.pack(values), F.pad(scales, room), F.pad(offsets, room)
        for name, tensor in (("values", values), ("scales", scales), ("offsets", offsets)):
            self.register_buffer(name, tensor)

    def __getitem__(self, outputs: slice) -> Int8Weight:
        part = Int8Weight.__new__(Int8Weight)
        nn.Module.__init__(part)
        start, stop, _ = outputs.indices(self.shape[0])
        part.columns = slice(self.columns.start + start, self.columns.start + stop)
        part.shape, part.packed = torch.Size([stop - start, self.shape[1]]), self.packed
        part.values, part.scales, part.offsets = self.values, self.scales, self.offsets
        return part

    def forward(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """x w^T + bias: (..., K) -> (..., N) float32.

        Raises:
            ConfigError: a gradient is asked for.
        """
        if torch.is_grad_enabled() and x.requires_grad:
            raise ConfigError("a model in int8 predicts and has no gradients; load it in fp32 to train or explain it")
        if torch.compiler.is_compiling():
            raise ConfigError("a model in int8 cannot be compiled or exported; load it in fp32")
        rows = x.reshape(-1, x.shape[-1]).float().contiguous()
        if self.packed:
            given = (*kernel.quantise_rows(rows), self.values, self.scales, self.offsets, self.columns)
            out = kernel.product(*given, None if bias is None else bias.float().contiguous())
        else:
            weight = self.values[self.columns], self.scales[self.columns]
            out = plain.int8_product(*plain.quantise_rows(rows), *weight, bias)
        return out.view(*x.shape[:-1], out.shape[1])

    def integers(self) -> Tensor:
        """The weight in steps of its scales: (N, K) int8."""
        rows = self.values
        if self.packed:
            rows = rows.transpose(1, 2).reshape(-1, rows.shape[1] * 4)
        return rows[self.columns, : self.shape[1]]

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        """The same bytes on every processor: they identify the model."""
        destination[prefix + "values"], destination[prefix + "scales"] = self.integers(), self.scales[self.columns]


class Int8Linear(nn.Module):
    """A linear map whose weight has 8 bits: (..., K) -> (..., N)."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias = Int8Weight(linear.weight), linear.bias

    def forward(self, x: Tensor) -> Tensor:
        return self.weight(x, self.bias)  # type: ignore[no-any-return]


def linear(x: Tensor, weight: Tensor | Int8Weight, bias: Tensor | None = None) -> Tensor:
    """x w^T + bias: (..., K), (N, K), (N,) -> (..., N), for a weight in float32 or in 8 bits."""
    if isinstance(weight, Int8Weight):
        return weight(x, bias)  # type: ignore[no-any-return]
    return F.linear(x, weight, bias)


def fast() -> bool:
    """Whether this processor has instructions for products of 8 bits, and the kernels use them."""
    return kernel.panel() > 0


def quantise(network: nn.Module) -> None:
    """Replace the matrices of layers in place: of attention, of the feed-forward network, of convolution heads and of
    positions. Grouped maps, and the map to a convolution's kernels, whose outputs are few, stay in float32.
    """
    for module in list(network.modules()):
        if isinstance(weight := getattr(module, "qkv", None), nn.Parameter):
            del module.qkv
            module.qkv = Int8Weight(weight)
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear) and name != "kernel":
                setattr(module, name, Int8Linear(child))
