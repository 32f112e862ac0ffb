"""NormFormer's and LTG-BERT's blocks equal their formulas."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from encoderlab.nn.architecture import EncoderConfig
from encoderlab.nn.block import Block
from encoderlab.nn.encoder import Encoder
from encoderlab.nn.positions import Absolute
from encoderlab.nn.pruning import with_heads


def layer_norm(x: Tensor, norm: torch.nn.Module) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], norm.weight, norm.bias, 1e-12)  # type: ignore[arg-type]


def by_formula(block: Block, x: Tensor) -> Tensor:
    """Sublayers of the papers: x + norm(W_O [gamma_h head_h(norm(x))]), then x + W_2 norm(gelu(W_1 norm(x)))."""
    attention, feed = block.attention, block.feed_forward
    q, k, v = F.linear(layer_norm(x, block.attention_norm), attention.qkv, attention.bias).chunk(3, dim=-1)
    heads = []
    for h in range(attention.heads):
        of = slice(h * attention.head_width, (h + 1) * attention.head_width)
        weights = (q[..., of] @ k[..., of].transpose(1, 2) / attention.head_width**0.5).softmax(-1)
        gamma = 1.0 if attention.head_scale is None else attention.head_scale.weight[h]
        heads.append(gamma * (weights @ v[..., of]))
    assert block.attention_output_norm is not None and feed.norm is not None
    x = x + layer_norm(attention.out(torch.cat(heads, -1)), block.attention_output_norm)
    return x + feed.down(layer_norm(F.gelu(feed.up(layer_norm(x, block.feed_forward_norm))), feed.norm))


@pytest.mark.parametrize("norm", ["ltg", "normformer"])
def test_blocks_equal_their_formulas(norm: str) -> None:
    torch.manual_seed(0)
    config = EncoderConfig(vocab=9, layers=1, width=8, heads=2, ff_width=12, position=Absolute(length=8), norm=norm)  # type: ignore[arg-type]
    encoder = Encoder(config).eval()
    for parameter in encoder.parameters():
        parameter.data.normal_()
    states = encoder(torch.randint(0, 9, (2, 7)))
    block = encoder.block(0)
    assert (block.attention.head_scale is not None) == (norm == "normformer")
    expected = layer_norm(by_formula(block, states.layers[0]), encoder.norm)  # type: ignore[arg-type]
    torch.testing.assert_close(states.last, expected, rtol=1e-4, atol=1e-5)


def test_a_head_left_out_is_a_head_whose_factor_is_zero() -> None:
    torch.manual_seed(0)
    config = EncoderConfig(
        vocab=9, layers=2, width=8, heads=2, ff_width=12, position=Absolute(length=8), norm="normformer"
    )
    whole = Encoder(config).eval()
    for parameter in whole.parameters():
        parameter.data.normal_()
    fewer = Encoder(replace(config, heads=1, head_width=4)).eval()
    weights = with_heads({f"encoder.{n}": p for n, p in whole.state_dict().items()}, [[1], [0]], heads=2, width=4)
    fewer.load_state_dict({name.removeprefix("encoder."): tensor for name, tensor in weights.items()})
    for layer, gone in enumerate((0, 1)):
        scale = whole.block(layer).attention.head_scale
        assert scale is not None
        scale.weight.data[gone] = 0
    ids = torch.randint(0, 9, (2, 7))
    torch.testing.assert_close(fewer(ids).last, whole(ids).last)
