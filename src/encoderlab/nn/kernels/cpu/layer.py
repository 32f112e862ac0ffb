"""A whole layer in one call, for prediction: for a short text, Python calls take longer than the computation."""

from __future__ import annotations

import struct

import torch
from torch import Tensor

from encoderlab.nn.kernels.cpu.attention import PositionTerms, strides, terms_of
from encoderlab.nn.kernels.cpu.native import call
from encoderlab.nn.kernels.functions import dense
from encoderlab.nn.kernels.plain import Relative

LAYER = struct.Struct("4P2q4P2q4P2q4P2q4P4q3q2q5q2f")  # ``Layer`` of layer.h

Weight = tuple[Tensor, Tensor | None, Tensor | None, Tensor | None, int, int]
"""Panels, scales and offsets (of 8 bits), bias, outputs, inputs."""
Norm = tuple[Tensor | None, Tensor | None]


def predict_layer(
    x: Tensor,
    weights: tuple[Weight, Weight, Weight, Weight],
    norms: tuple[Norm, Norm],
    heads: int,
    *,
    visible: Tensor | None,
    relative: Relative | None,
    rotation: Tensor | None,
    reach: int | None,
    scale: float,
    pre: bool,
    center: bool,
    gated: bool,
    tanh: bool,
    eps: float,
) -> Tensor:
    """The output (B, L, D) of a layer for states x (B, L, D).

    ``weights``: of queries, keys and values, of attention's output, and of the feed-forward network. ``norms``: of
    attention and of the feed-forward network. Other arguments as in :func:`.attention.attend_packed`.
    """
    batch, length, width = x.shape
    x, out = x.contiguous(), torch.empty(batch, length, width)
    if visible is not None:
        if visible.dim() != 4 or visible.shape[2:] != (length, length):
            raise ValueError(f"a mask {tuple(visible.shape)} does not fit rows of {length} tokens")
        visible = dense(visible)
    terms = PositionTerms() if relative is None else terms_of(relative, x[:, None], x, scale)
    if rotation is not None:
        terms = terms._replace(rotation=rotation.float().contiguous())
    positions = next((rows.shape[1] for rows in terms[:2] if rows is not None), 0)
    addresses = [
        0 if item is None else item.data_ptr() if isinstance(item, Tensor) else item
        for part in (*weights, *norms)
        for item in part
    ]
    given = LAYER.pack(
        *addresses, batch, length, width, heads, *strides(visible), -1 if reach is None else reach, positions, pre,
        center, gated, tanh, torch.get_num_threads(), scale, eps,
    )  # fmt: skip
    call("layer", given, x, visible, terms.pointers(), out)
    return out
