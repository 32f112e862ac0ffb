"""The weights of attention with fewer heads, or with added heads whose output is zero."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

# The dimension of each attention weight along which its heads lie.
_HEADS_IN = {
    "qkv": 0,
    "bias": 0,
    "out.weight": 1,
    "head_scale.weight": 0,
    "term.project.weight": 0,
    "term.key.weight": 0,
    "term.key.bias": 0,
    "term.query.weight": 0,
    "term.query.bias": 0,
    "term.u": 0,
    "term.v": 0,
    "term.s": 0,
    "term.segment": 1,
    "term.rows": 1,
    "term.bias": 1,
}
NO_HEAD = -1
_NAME = re.compile(r"encoder\.blocks\.(\d+)\.attention\.(.+)")


def with_heads(
    weights: Mapping[str, Tensor], kept: Sequence[Sequence[int]], *, heads: int, width: int
) -> dict[str, Tensor]:
    """The weights of a model by name, with other heads in attention. Changed weights are copies.

    Args:
        kept: for each block of the encoder, the numbers of the heads to keep, in order; a head ``NO_HEAD`` is all
            zeros, so it adds nothing to the layer's output.
        heads: number of heads of a block before.
        width: K, the width of a head.
    """
    out = dict(weights)
    for name, tensor in weights.items():
        match = _NAME.fullmatch(name)
        if match is None or (place := _HEADS_IN.get(match[2])) is None:
            continue
        chosen = torch.tensor(kept[int(match[1])])
        # The heads of every part: of queries, keys and values, or of the rows of a table.
        parts = tensor.shape[0] if place else max(tensor.shape[0] // (heads * width), 1)
        picked = tensor.reshape(parts, heads, -1)[:, chosen.clamp(min=0)]
        picked = torch.where((chosen >= 0)[:, None], picked, 0)
        shape = list(tensor.shape)
        shape[place] = shape[place] // heads * len(chosen)
        out[name] = picked.reshape(shape)
    return out
