"""Floating-point operations (FLOPs) and memory, computed from configurations.

Our convention: a multiply-add is 2 operations, the backward pass costs twice the forward pass, and only matrix products
and convolutions count (look-ups, normalisation, activations and dropout do not: bandwidth limits them, not arithmetic).
Positions attend to whole rows, so a causal mask saves nothing; in local layers they attend to keys within reach. A
vocabulary head counts for the share of tokens that it reads.

:func:`electra_forward` and :func:`electra_training` follow the ELECTRA paper's convention instead, in which the papers
of ELECTRA and ConvBERT report costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from encoderlab.models.base import ModelConfig
from encoderlab.nn.architecture import EncoderConfig
from encoderlab.nn.positions import Disentangled, RelativeShift, Shaw

BACKWARD = 2  # times the forward pass


def forward(config: ModelConfig, length: int, *, predicted: float = 0.15, memory: int = 0) -> dict[str, float]:
    """Operations per token of a forward pass over rows of ``length`` tokens, by part.

    ``predicted`` is the share of tokens that the LM head reads, ``memory`` the number of states before the row.
    """
    encoder = config.encoder
    layers = [layer_forward(encoder, length, memory, number) for number in range(encoder.depth)]
    parts = {name: sum(layer[name] for layer in layers) for name in layers[0]}
    width = encoder.width
    parts["embedding"] = _embedding_maps(encoder)
    if encoder.stem_conv is not None:
        parts["stem convolution"] = 2.0 * width * width * encoder.stem_conv.kernel / encoder.stem_conv.groups
    if config.mask_decoder or config.mask_vector:
        # The last layer itself is not computed.
        parts = {name: count - layers[-1].get(name, 0.0) for name, count in parts.items()}
        parts["query stream"] = _query_stream(config, layers, predicted) + _keys_and_values(encoder, length, memory)
    parts["head"] = _head(config, predicted)
    return {name: count for name, count in parts.items() if count}


def layer_forward(encoder: EncoderConfig, length: int, memory: int = 0, layer: int = 0) -> dict[str, float]:
    """Operations per token of layer number ``layer`` (from 0), by part."""
    conv, width = encoder.conv_branch, encoder.width
    inner = encoder.attention_width
    branches = 1 if conv is None else 2
    parts = {
        "projections": 2.0 * width * (1 + branches) * inner + _keys_and_values(encoder, length, memory),
        "attention": 4.0 * inner * _keys_seen(encoder, length, memory, layer),
        "feed-forward": (6.0 if encoder.ff_gated else 4.0) * width * encoder.ff_width / encoder.ff_groups,
    }
    if encoder.position.products:
        parts["positions"] = 2.0 * inner * _distances(encoder, length, memory) * encoder.position.products
    if conv is not None:
        parts["convolution"] = conv.operations(width, inner, encoder.attention_heads)
    return parts


def _keys_seen(encoder: EncoderConfig, length: int, memory: int, layer: int) -> float:
    """Number of keys that a query of the layer attends to, averaged over a row."""
    if encoder.local is None or encoder.sees_all(layer):
        return float(length + memory)
    return 1 + (_within(encoder.local.reach, memory, length) + _within(encoder.local.reach, 0, length)) / length


def _within(reach: int, start: int, length: int) -> int:
    """The sum of min(``reach``, place) over ``length`` places from ``start``."""
    near = range(start, max(start, min(reach, start + length)))
    return sum(near) + reach * (length - len(near))


def _distances(encoder: EncoderConfig, length: int, memory: int) -> int:
    """Number of distances between the queries and the keys of a row."""
    return length + memory if encoder.causal else 2 * length + memory - 1


def _keys_and_values(encoder: EncoderConfig, length: int, memory: int = 0) -> float:
    """Operations per token of one layer's key and value maps, which run again for the memory of every row."""
    return 4.0 * encoder.width * encoder.attention_width * (1 + memory / length)


def usual_share(config: ModelConfig) -> float:
    """The usual share of predicted tokens: all from left to right, 15% for masked tokens."""
    return 1.0 if config.encoder.causal else 0.15


def training(config: ModelConfig, length: int, *, predicted: float = 0.15, memory: int = 0) -> float:
    """Operations per token of a forward and a backward pass."""
    return (1 + BACKWARD) * sum(forward(config, length, predicted=predicted, memory=memory).values())


def whole_forward(config: ModelConfig, length: int, *, predicted: float, memory: int = 0) -> float:
    """Operations per token of a forward pass whose last layer is computed at all tokens, and of a mask decoder at the
    ``predicted`` tokens. XLNet's query stream does not run.
    """
    plain = replace(config, mask_decoder=0, mask_vector=False)
    total = sum(forward(plain, length, predicted=predicted, memory=memory).values())
    if config.mask_decoder and predicted:
        decoded = replace(config, mask_vector=False)
        total += forward(decoded, length, predicted=predicted, memory=memory)["query stream"]
    return total


def attention_scores(encoder: EncoderConfig, length: int) -> float:
    """Operations per token of computing a layer's attention scores again
    (:meth:`encoderlab.nn.encoder.Encoder.attention_scores`), its maps included.
    """
    inner, position = encoder.attention_width, encoder.position
    distances = position.products * _distances(encoder, length, 0)
    return 6.0 * encoder.width * inner + 2.0 * inner * (length + distances)


def spared(config: ModelConfig, length: int, *, predicted: float) -> float:
    """Operations per token that a forward pass saves when the loss needs only the ``predicted`` tokens.

    These are the last layer's queries, kernels, output map and feed-forward at the other places. 0 if the stem's
    convolution follows that layer, or if :func:`forward` counts a query stream instead.
    """
    encoder = config.encoder
    if not encoder.splits_last_layer or config.mask_decoder or config.mask_vector or config.lm is None:
        return 0.0
    last, conv = layer_forward(encoder, length, layer=encoder.depth - 1), encoder.conv_branch
    needed = _keys_and_values(encoder, length)
    if conv is not None:
        needed += conv.operations_of_neighbours(encoder.width, encoder.attention_width)
    return (1 - predicted) * (sum(last.values()) - needed)


def _query_stream(config: ModelConfig, layers: Sequence[dict[str, float]], predicted: float) -> float:
    """Operations per token of the query stream: the layers' query side at the predicted tokens."""
    encoder = config.encoder
    maps = 4.0 * encoder.width * encoder.attention_width  # of the queries, and of the output
    applied = [layers[-1]] * 2 if config.mask_decoder else layers
    others = sum(count for layer in applied for name, count in layer.items() if name != "projections")
    return predicted * (len(applied) * maps + others)


def _head(config: ModelConfig, predicted: float) -> float:
    """Operations per token of the pretraining heads."""
    encoder = config.encoder
    width, words = encoder.width, encoder.word_width
    count = 0.0
    if config.lm is not None:
        adaptive = encoder.adaptive
        mapped = config.lm.transform if adaptive is None else adaptive.has_maps(words, width)
        count += predicted * 2.0 * ((width * words if mapped else 0) + _vocabulary_width(encoder))
    if config.rtd is not None:
        count += 2.0 * (width * width + width)
    return count


def _embedding_maps(encoder: EncoderConfig) -> float:
    """Operations per token of the maps from E to D; every token runs through those of all adaptive tables."""
    adaptive, width, words = encoder.adaptive, encoder.width, encoder.word_width
    if adaptive is None:
        return 2.0 * words * width if encoder.mapped else 0.0
    if not adaptive.has_maps(words, width):
        return 0.0
    tables = len(adaptive.cutoffs) + 1 if adaptive.divisor > 1 else 1
    return sum(2.0 * width * (words // adaptive.divisor**i) for i in range(tables))


def _vocabulary_width(encoder: EncoderConfig) -> float:
    """Columns times width of the output tables; for an adaptive softmax only the head cluster, which
    every token uses.
    """
    if encoder.adaptive is None or not encoder.adaptive.cutoffs:
        return float(encoder.vocab * encoder.word_width)
    return float((encoder.adaptive.cutoffs[0] + len(encoder.adaptive.cutoffs)) * encoder.word_width)


# The convention of the ELECTRA paper ---------------------------------------------------------------------------------

DROPOUT, NORM, GELU, SOFTMAX = 4, 5, 8, 5  # operations per element
OUTPUT_SHARE = 0.15625  # share of positions that the output softmax reads: 20 of 128


def electra_forward(config: ModelConfig, length: int) -> float:
    """Operations per token as ``flops_computation.py`` of the ELECTRA release counts them.

    Element-wise work counts a few operations each; embedding look-ups count as dense products with the whole
    vocabulary.
    """
    encoder = config.encoder
    width, inner_ff, words, vocab = encoder.width, encoder.ff_width, encoder.word_width, encoder.vocab
    products = sum(sum(layer_forward(encoder, length, layer=n).values()) for n in range(encoder.depth))
    heads, inner = encoder.attention_heads, encoder.attention_width
    scores = heads * length * (SOFTMAX + DROPOUT + 1)
    attention = 3 * inner + scores + width * (2 + DROPOUT) + NORM * width
    feed_forward = inner_ff * (GELU + 1) + width * (2 + DROPOUT + NORM)
    layers = products + encoder.depth * (attention + feed_forward)
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


def electra_training(config: ModelConfig, length: int) -> float:
    """Operations per token of a training step in the ELECTRA paper's convention: twice the forward pass."""
    return 2 * electra_forward(config, length)


# Memory --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Memory:
    """An estimate of the memory for training, in bytes by cause."""

    weights: int
    gradients: int
    optimizer: int
    activations: int

    @property
    def total(self) -> int:
        return self.weights + self.gradients + self.optimizer + self.activations


def training_memory(
    config: ModelConfig,
    parameters: int,
    rows: int,
    length: int,
    *,
    predicted: float = 0.15,
    memory: int = 0,
    compared: float = 0.0,
) -> Memory:
    """Estimate for float32 with Adam and our kernels: 16 bytes per parameter, 4 per value kept for the backward pass.

    ``predicted`` and ``memory`` as in :func:`forward`; ``compared`` is the share of tokens at which a distillation
    compares logits. Every layer counts at all tokens, even if a loss needs only some. The plain versions of the kernels
    keep more, such as attention probabilities.
    """
    encoder = config.encoder
    width, words, tokens, keys = encoder.width, encoder.word_width, rows * length, length + memory
    layer = _kept_by_layer(encoder, rows, length, memory)
    kept = encoder.depth * layer + 3 * width + (2 * words if words != width else 0)
    kept += keys / 4  # one byte of the mask
    if encoder.stem_conv is not None:
        kept += (encoder.stem_conv.kernel + 3) * width
    if config.mask_decoder or config.mask_vector:  # the last layer itself is not computed, but its keys and values
        keyed = encoder.attention_width + (width if memory else 0)
        kept += _kept_by_queries(config, rows, length, memory, predicted) - layer + 2 * keyed * keys / length
    if config.lm is not None:
        kept += predicted * (width + 4 * words) + compared * (width + 3 * words + 2 * encoder.vocab)
        kept += _vocabulary_width(encoder) / tokens  # the gradient of the tables, computed with the loss
        if encoder.adaptive is not None:
            kept += predicted * _vocabulary_width(encoder) / words
    if config.rtd is not None:
        kept += 5 * width
    return Memory(4 * parameters, 4 * parameters, 8 * parameters, int(4 * kept * tokens))


def _kept_by_layer(encoder: EncoderConfig, rows: int, length: int, memory: int) -> float:
    """Values per token that a layer keeps for the backward pass.

    Queries, keys, values, the heads' output, inputs and outputs of each LayerNorm, and the feed-forward width before
    the activation (and after it, if no kernel computes it again).
    """
    conv, width, position = encoder.conv_branch, encoder.width, encoder.position
    heads, inner, share = encoder.attention_heads, encoder.attention_width, 1 + memory / length
    fused = encoder.ff_groups == 1 and encoder.activation in ("gelu", "gelu_tanh")
    hidden = (2 if encoder.ff_gated else 1) * encoder.ff_width
    kept = 4 * width + 2 * inner + 2 * inner * share + (1 if fused else 2) * hidden + heads + 4
    if memory:
        kept += 2 * width * share  # memory states, alone and concatenated with the row's
    if conv is not None:
        kept += width + 6 * inner
    if isinstance(position, (RelativeShift, Shaw)):
        kept += 2 * inner  # queries with the biases of content and position
    distances = _distances(encoder, length, memory)
    if isinstance(position, Shaw):
        return kept + heads * distances
    return kept + position.products * (width + inner) * distances / (rows * length)


def _kept_by_queries(config: ModelConfig, rows: int, length: int, memory: int, predicted: float) -> float:
    """Values per token that the query stream keeps, which include the position terms of every query and key."""
    encoder = config.encoder
    heads, keys, distances = encoder.heads, length + memory, _distances(encoder, length, memory)
    kept = predicted * (_kept_by_layer(encoder, rows, length, memory) + heads * (distances + keys) + 2 * keys)
    kept += encoder.position.products * (encoder.width + encoder.attention_width) * distances / (rows * length)
    if isinstance(encoder.position, Disentangled) and "p2c" in encoder.position.terms:
        kept += heads * (distances + encoder.key_width)
    return (2 if config.mask_decoder else encoder.depth) * kept
