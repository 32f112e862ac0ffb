"""The weights that heads give to keys, against the heads' outputs, for the whole product of parts."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from encoderlab.nn.architecture import EncoderConfig
from encoderlab.nn.encoder import Encoder
from encoderlab.nn.positions import RelativeShift, Shaw
from encoderlab.nn.spanconv import DepthwiseSeparable, SpanDynamic
from tests.nn.test_product import BASE, PRODUCT, make


def outputs(encoder: Encoder, layer: int, x: torch.Tensor, source: torch.Tensor, scope) -> tuple:
    """What the heads of a layer give, (B, L, A), and the values (B, M, A) that they read."""
    attention = encoder.block(layer).attention
    with torch.no_grad():
        attended, _ = attention(x, source, scope)
        _, _, value = attention._project(x, source)
    return attended, value


@pytest.mark.parametrize("part", range(4))
def test_weights_times_values_are_the_outputs_of_the_heads(part: int) -> None:
    torch.manual_seed(0)
    ids = torch.randint(0, 50, (2, 13))
    doc = torch.zeros(2, 13, dtype=torch.int32)
    doc[1, 5:] = 1
    doc[1, 11:] = -1
    for config in PRODUCT[part::4]:
        encoder = make(config).eval()
        with torch.no_grad():
            states = encoder(ids, doc=doc)
        for layer in (0, encoder.depth - 1):
            weights = encoder.attention_weights(states, layer).detach()
            block = encoder.block(layer)
            (scope,) = encoder._of_layers(states.scope, None, [layer], 0)
            x = block.normed(states.layers[layer])
            attended, value = outputs(encoder, layer, x, x, scope)
            heads = config.attention_heads
            values = value.unflatten(-1, (heads, -1)).transpose(1, 2)
            out = (weights[:, :heads] @ values).transpose(1, 2).flatten(2)
            torch.testing.assert_close(out, attended[..., : out.shape[-1]], rtol=1e-4, atol=1e-5)
            sums = weights[:, :heads].sum(-1)[(doc >= 0)[:, None].expand(-1, heads, -1)]
            torch.testing.assert_close(sums, torch.ones_like(sums))
            conv = block.attention.conv
            if conv is None:
                assert weights.shape[1] == heads
            elif isinstance(config.conv, DepthwiseSeparable):
                assert weights.shape[1] == heads
            else:
                own = value if conv.value is None else conv.value(x)
                own = own.unflatten(-1, (heads, -1)).transpose(1, 2)
                read = (weights[:, heads:] @ own).transpose(1, 2).flatten(2)
                real = doc >= 0
                torch.testing.assert_close(read[real], attended[..., -read.shape[-1] :][real], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("position", [RelativeShift(), Shaw(span=4)])
@pytest.mark.parametrize("norm", ["post", "pre"])
def test_memory_is_among_the_keys(position, norm) -> None:
    torch.manual_seed(0)
    encoder = make(replace(BASE, position=position, causal=True, norm=norm)).eval()
    ids = torch.randint(0, 50, (2, 12))
    with torch.no_grad():
        whole = encoder(ids)
        before = encoder(ids[:, :5])
        memory = before.layers[:-1]
        after = encoder(ids[:, 5:], memory=memory)
    for layer in range(encoder.depth):
        weights = encoder.attention_weights(after, layer, memory)
        assert weights.shape[-2:] == (7, 12)
        torch.testing.assert_close(weights, encoder.attention_weights(whole, layer)[:, :, 5:], rtol=1e-4, atol=1e-5)


def test_convolution_heads_read_their_neighbours() -> None:
    config: EncoderConfig = replace(BASE, conv=SpanDynamic(kernel=3))
    encoder = make(config).eval()
    states = encoder(torch.randint(0, 50, (1, 9)))
    weights = encoder.attention_weights(states, 0)[0, config.attention_heads :]
    far = (torch.arange(9)[:, None] - torch.arange(9)).abs() > 1
    assert not weights[:, far].any() and weights[:, ~far].all()
