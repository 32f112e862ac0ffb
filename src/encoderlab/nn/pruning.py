"""The weights of attention with other heads: some left out, or some added that give nothing."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

# The dimension in which the heads of each weight of a layer's attention lie.
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
    """The weights of a model by their names, those of attention with other heads. Copies what it changes.

    Args:
        kept: for each block of the encoder the numbers of the heads that it has then, in their order; a head
            ``NO_HEAD`` has zeros everywhere, and so adds nothing to the layer's output.
        heads: how many heads a block has now.
        width: K, of a head.
    """
    out = dict(weights)
    for name, tensor in weights.items():
        match = _NAME.fullmatch(name)
        if match is None or (place := _HEADS_IN.get(match[2])) is None:
            continue
        chosen = torch.tensor(kept[int(match[1])])
        # The heads of every part side by side: of queries, keys and values, or of the rows of a table.
        parts = tensor.shape[0] if place else max(tensor.shape[0] // (heads * width), 1)
        picked = tensor.reshape(parts, heads, -1)[:, chosen.clamp(min=0)]
        picked = torch.where((chosen >= 0)[:, None], picked, 0)
        shape = list(tensor.shape)
        shape[place] = shape[place] // heads * len(chosen)
        out[name] = picked.reshape(shape)
    return out
