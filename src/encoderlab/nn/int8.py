"""The encoder's matrices in 8 bits, for prediction.

A weight w (N, K) is q s with integers q from -127 to 127 and a scale s for each output; an input row x is p t with
integers p and its own scale t. Then ``x w^T = t s (p q^T)``, whose sum is exact in 32 bits. Because every row has its
own scale, the result for a token does not depend on its batch. Embeddings, norms, heads, convolutions
and attention itself stay in float32.

Rounding to 255 steps changes a product's result by about 1% of its size; ``--check`` measures the loss of a model.
Weights need a quarter of the memory. A processor without instructions for 8 bits (:func:`fast`) computes the same
numbers with the plain version, no faster than in float32.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from encoderlab.errors import ConfigError
from encoderlab.nn.kernels import plain
from encoderlab.nn.kernels.cpu import int8 as kernel
from encoderlab.nn.kernels.cpu.layer import Weight
from encoderlab.nn.packed import Packed, PackedWeight, replace_weights

STEPS = 127


class Int8Weight(Packed):
    """A weight (N, K) in 8 bits, with a scale for each output.

    ``plainly``: computed by the plain version even if there is a kernel.
    """

    SHARED = ("values", "scales", "offsets", "packed")
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

    def forward(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """x w^T + bias: (..., K) -> (..., N) float32.

        Raises:
            ConfigError: a gradient is needed.
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

    def at(self, bias: Tensor | None) -> Weight | None:
        if not self.packed:
            return None
        return self.values, self.scales, self.offsets, bias, *self.shape

    def integers(self) -> Tensor:
        """The weight in steps of its scales: (N, K) int8."""
        rows = self.values
        if self.packed:
            rows = rows.transpose(1, 2).reshape(-1, rows.shape[1] * 4)
        return rows[self.columns, : self.shape[1]]

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        """Save the weight unpacked: the same bytes on every processor, because they identify the model."""
        destination[prefix + "values"], destination[prefix + "scales"] = self.integers(), self.scales[self.columns]


def fast() -> bool:
    """Whether this processor has instructions for products of 8 bits, and the kernels use them."""
    return kernel.panel() > 0


def quantise(network: nn.Module) -> None:
    """Replace the matrices of layers in place (:func:`encoderlab.nn.packed.replace_weights`).

    Raises:
        ConfigError: the matrices are already packed in float32.
    """
    if any(isinstance(part, PackedWeight) for part in network.modules()):
        raise ConfigError("the weights are packed in float32 already; load the model again to have it in int8")
    replace_weights(network, Int8Weight)
