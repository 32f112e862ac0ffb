"""Floating-point operations and memory, from configurations alone.

Our convention: a multiply-add is 2 operations, the backward pass costs twice the forward pass, and only matrix products
and convolutions count (look-ups, normalisation, activations and dropout do not: they are bandwidth, not arithmetic).
Positions attend to whole rows, so a causal mask saves nothing. What a vocabulary head costs is counted on the share of
tokens that it sees.

:func:`electra_training` is the ELECTRA paper's convention instead, in which the papers of ELECTRA and ConvBERT give
their costs.
"""

from __future__ import annotations

from dataclasses import dataclass

from encoderlab.models.base import ModelConfig
from encoderlab.nn.encoder import EncoderConfig
from encoderlab.nn.positions import Absolute, Disentangled
from encoderlab.nn.spanconv import Bottleneck, DepthwiseSeparable, Dynamic, Light, SpanDynamic, kept_heads

BACKWARD = 2  # times the forward pass


def forward(config: ModelConfig, length: int, *, predicted: float = 0.15, memory: int = 0) -> dict[str, float]:
    """Operations per token of a forward pass over rows of ``length`` tokens, by part.

    ``predicted`` is the share of tokens that the LM head sees, ``memory`` the number of states before the row.
    """
    encoder = config.encoder
    layer = layer_forward(encoder, length, memory)
    depth = encoder.layers * (encoder.sharing.inner if encoder.sharing else 1)
    parts = {name: depth * count for name, count in layer.items()}
    width, words = encoder.width, encoder.word_width
    parts["embedding"] = 2.0 * words * width if words != width else 0.0
    if encoder.stem_conv is not None:
        parts["stem convolution"] = 2.0 * width * width * encoder.stem_conv.kernel / encoder.stem_conv.groups
    if config.mask_decoder or config.mask_vector:
        # The ordinary last layer is not computed.
        parts = {name: count - layer.get(name, 0.0) for name, count in parts.items()}
        parts["query stream"] = _query_stream(config, layer, predicted) + _keys_and_values(encoder, length, memory)
    parts["head"] = _head(config, predicted)
    return {name: count for name, count in parts.items() if count}


def layer_forward(encoder: EncoderConfig, length: int, memory: int = 0) -> dict[str, float]:
    """Operations per token of one layer, by part."""
    conv, width = encoder.conv, encoder.width
    heads = encoder.heads if conv is None else kept_heads(encoder.heads, conv.head_ratio)
    inner = heads * encoder.key_width
    keys = length + memory
    branches = 1 if conv is None or isinstance(conv, Bottleneck) else 2
    parts = {
        "projections": 2.0 * width * (1 + branches) * inner + _keys_and_values(encoder, length, memory),
        "attention": 4.0 * inner * keys,
        "feed-forward": 4.0 * width * encoder.ff_width / encoder.ff_groups,
    }
    if not isinstance(encoder.position, Absolute):
        terms = len(encoder.position.terms) if isinstance(encoder.position, Disentangled) else 1
        distances = keys if encoder.causal else keys + length - 1
        parts["positions"] = 2.0 * inner * distances * terms
    if conv is not None and not isinstance(conv, Bottleneck):
        taps = 2.0 * conv.kernel
        if isinstance(conv, DepthwiseSeparable):
            parts["convolution"] = taps * width + 2.0 * width * inner
        else:
            value = 0.0 if isinstance(conv, SpanDynamic) and conv.share_value else 2.0 * width * inner
            kernels = 0.0 if isinstance(conv, Light) else 2.0 * inner * heads * conv.kernel
            span = taps * width + 2.0 * width * inner if isinstance(conv, SpanDynamic) else 0.0
            assert isinstance(conv, (SpanDynamic, Dynamic, Light))
            parts["convolution"] = value + kernels + span + taps * inner
    return parts


def _keys_and_values(encoder: EncoderConfig, length: int, memory: int = 0) -> float:
    """Of one layer, per token of the row: those of the memory before it are computed again for every row."""
    heads = encoder.heads if encoder.conv is None else kept_heads(encoder.heads, encoder.conv.head_ratio)
    return 4.0 * encoder.width * heads * encoder.key_width * (1 + memory / length)


def training(config: ModelConfig, length: int, *, predicted: float = 0.15, memory: int = 0) -> float:
    """Operations per token of a forward and a backward pass."""
    return (1 + BACKWARD) * sum(forward(config, length, predicted=predicted, memory=memory).values())


def spared(config: ModelConfig, length: int, *, predicted: float) -> float:
    """Operations per token that a forward pass for a loss on the ``predicted`` tokens alone need not do: the last
    layer's queries, output map and feed-forward at the other places. None where a convolution reads them, and where
    :func:`forward` counts a query stream instead."""
    encoder = config.encoder
    if encoder.conv is not None or config.mask_decoder or config.mask_vector or config.lm is None:
        return 0.0
    return (1 - predicted) * (sum(layer_forward(encoder, length).values()) - _keys_and_values(encoder, length))


def _query_stream(config: ModelConfig, layer: dict[str, float], predicted: float) -> float:
    """The layers' query side on the predicted tokens."""
    encoder = config.encoder
    inner = encoder.heads * encoder.key_width
    queries = 4.0 * encoder.width * inner + sum(count for name, count in layer.items() if name != "projections")
    turns = 2 if config.mask_decoder else encoder.layers
    return turns * predicted * queries


def _head(config: ModelConfig, predicted: float) -> float:
    encoder = config.encoder
    width, words = encoder.width, encoder.word_width
    count = 0.0
    if config.lm is not None:
        count += predicted * 2.0 * ((width * words if config.lm.transform else 0) + _vocabulary_width(encoder))
    if config.rtd is not None:
        count += 2.0 * (width * width + width)
    return count


def _vocabulary_width(encoder: EncoderConfig) -> float:
    """Columns times width of the output tables; of an adaptive softmax the head cluster, which every token pays."""
    if encoder.adaptive is None or not encoder.adaptive.cutoffs:
        return float(encoder.vocab * encoder.word_width)
    return float((encoder.adaptive.cutoffs[0] + len(encoder.adaptive.cutoffs)) * encoder.word_width)


# The convention of the ELECTRA paper ---------------------------------------------------------------------------------

DROPOUT, NORM, GELU, SOFTMAX = 4, 5, 8, 5  # operations per element
OUTPUT_SHARE = 0.15625  # of positions that the output softmax sees: 20 of 128


def electra_forward(config: ModelConfig, length: int) -> float:
    """Operations per token as ``flops_computation.py`` of the ELECTRA release counts them.

    Element-wise work counts a few operations each, and embedding look-ups as dense products with the whole vocabulary.
    """
    encoder = config.encoder
    width, inner_ff, words, vocab = encoder.width, encoder.ff_width, encoder.word_width, encoder.vocab
    products = sum(layer_forward(encoder, length).values())
    heads = encoder.heads if encoder.conv is None else kept_heads(encoder.heads, encoder.conv.head_ratio)
    inner = heads * encoder.key_width
    scores = heads * length * (SOFTMAX + DROPOUT + 1)
    attention = 3 * inner + scores + width * (2 + DROPOUT) + NORM * width
    feed_forward = inner_ff * (GELU + 1) + width * (2 + DROPOUT + NORM)
    layers = encoder.layers * (products + attention + feed_forward)
    embedding = 2 * words * vocab + 2 * words * (length + 2) + words * (2 + NORM + DROPOUT)
    if words != width:
        embedding += 2 * words * width + width
    head = 0.0
    if config.lm is not None:
        head += OUTPUT_SHARE * (
            2 * words * vocab + 2 * width * words + words * (1 + GELU + NORM) + vocab * (SOFTMAX + 2)
        )
    if config.rtd is not None:
        head += 2 * width * width + width * (1 + GELU) + 2 * width
    return layers + embedding + head


def electra_training(configs: list[ModelConfig], length: int, rows: int, steps: int) -> float:
    """Operations of a whole run of networks trained together.

    Twice the forward pass, over ``rows * length * steps`` tokens.
    """
    return 2.0 * sum(electra_forward(config, length) for config in configs) * rows * length * steps


# Memory --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Memory:
    """An estimate in bytes of what training takes, by cause."""

    weights: int
    gradients: int
    optimizer: int
    activations: int

    @property
    def total(self) -> int:
        return self.weights + self.gradients + self.optimizer + self.activations


def training_memory(config: ModelConfig, parameters: int, rows: int, length: int, *, predicted: float = 0.15) -> Memory:
    """Single precision with Adam: 16 bytes per parameter, and 4 per value that the backward pass keeps.

    Kept per token and layer: the input, queries, keys, values, the heads' output, the sum before each LayerNorm and its
    output, the feed-forward width before and after the activation, and a row of attention probabilities per head.
    """
    encoder = config.encoder
    heads = encoder.heads if encoder.conv is None else kept_heads(encoder.heads, encoder.conv.head_ratio)
    inner = heads * encoder.key_width
    kept = 5 * encoder.width + 4 * inner + 2 * encoder.ff_width + heads * length
    if encoder.conv is not None and not isinstance(encoder.conv, Bottleneck):
        kept += encoder.width + 6 * inner
    if not isinstance(encoder.position, Absolute):
        kept += 2 * heads * length
    per_token = encoder.layers * kept + 3 * encoder.width
    if config.lm is not None:
        per_token += int(predicted * 2 * encoder.vocab)
    return Memory(4 * parameters, 4 * parameters, 8 * parameters, 4 * per_token * rows * length)
