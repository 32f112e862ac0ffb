"""ModernBERT (Warner et al., 2024), and models with its architecture: Ettin's encoders (Weller et al., 2025) and mmBERT
(Marone et al., 2025).

Differs from BERT: rotary positions (:class:`Rotary`) and no table of positions or segments; norms before attention and
feed-forward, except before the first attention, because the embeddings have a norm; feed-forward with GeGLU; no biases
except that of the LM head's output, and none in LayerNorm, eps 1e-5. Every third layer, from the first on, sees the
whole document, the others 64 tokens on each side (:class:`Local`), with another base of rotary positions. No dropout.
Heads: the same dense map, GELU and LayerNorm precede the word table and the last map of every task; classifiers read
the mean over the tokens. Maps into the residual stream start smaller (``scaled_init``).

Sizes are from the papers' tables and the published configurations. ModernBERT's global layers have base 160,000 since
its context was extended to 8,192 tokens; before that, all layers had 10,000 and rows had 1,024 tokens. Ettin and mmBERT
also have 160,000 in local layers.
"""

from __future__ import annotations

from encoderlab.models.base import Family, ModelConfig
from encoderlab.nn.architecture import EncoderConfig
from encoderlab.nn.heads import LM, Classification, Prediction, Span, Tagging
from encoderlab.nn.norms import LayerNormalization
from encoderlab.nn.positions import Rotary
from encoderlab.nn.scope import Local


def modernbert(
    *,
    layers: int,
    width: int,
    ff_width: int,
    heads: int | None = None,
    vocab: int = 50368,
    local_theta: float = 10_000.0,
) -> ModelConfig:
    """ModernBERT of any size; heads are 64 wide unless ``heads`` is given."""
    encoder = EncoderConfig(
        vocab=vocab,
        layers=layers,
        width=width,
        heads=heads or width // 64,
        ff_width=ff_width,
        position=Rotary(theta=160_000.0),
        local=Local(theta=local_theta),
        ff_gated=True,
        ff_biases=False,
        types=0,
        norm="pre_but_first",
        normalization=LayerNormalization(bias=False),
        eps=1e-5,
        attention_biases="none",
        dropout=0.0,
        ff_output_dropout=0.0,
        attention_dropout=0.0,
        truncated_init=True,
        scaled_init=True,
    )
    return ModelConfig(family="modernbert", encoder=encoder, lm=LM(dense_bias=False))


def _ettin(layers: int, width: int, ff_width: int) -> ModelConfig:
    return modernbert(layers=layers, width=width, ff_width=ff_width, local_theta=160_000.0)


def _mmbert(width: int) -> ModelConfig:
    return modernbert(layers=22, width=width, ff_width=1152, vocab=256_000, local_theta=160_000.0)


SIZES = {
    "modernbert-tiny": modernbert(layers=4, width=128, ff_width=192),
    "modernbert-mini": modernbert(layers=7, width=256, ff_width=384),
    "modernbert-base": modernbert(layers=22, width=768, ff_width=1152),
    "modernbert-large": modernbert(layers=28, width=1024, ff_width=2624),
    "ettin-encoder-17m": _ettin(7, 256, 384),
    "ettin-encoder-32m": _ettin(10, 384, 576),
    "ettin-encoder-68m": _ettin(19, 512, 768),
    "ettin-encoder-150m": _ettin(22, 768, 1152),
    "ettin-encoder-400m": _ettin(28, 1024, 2624),
    "ettin-encoder-1b": _ettin(28, 1792, 3840),
    "mmbert-small": _mmbert(384),
    "mmbert-base": _mmbert(768),
}

FAMILY = Family(
    name="modernbert",
    about=__doc__,
    sizes=SIZES,
    classification=Classification(labels=2, pooling="mean", summary="raw", prediction=Prediction(), dropout=0.0),
    tagging=Tagging(labels=2, prediction=Prediction(), dropout=0.0),
    span=Span(prediction=Prediction()),
)
