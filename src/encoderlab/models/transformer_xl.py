"""Transformer-XL (Dai et al., 2019): a left-to-right language model with segment recurrence.

Differs from BERT: left-to-right; relative positions by a fixed sinusoid (:class:`RelativeShift`); keys and values also
from the states of earlier rows (memory), without gradient; ReLU; projections without bias; no embedding LayerNorm;
input scaled by sqrt(D); adaptive input and softmax for word vocabularies (:class:`Adaptive`). In the PyTorch original
all layers share one pair u, v; the large TensorFlow models have one pair per layer (``shared_biases=False``), and the
one for WikiText-103 starts with a quarter of the usual deviation.
"""

from __future__ import annotations

from encoderlab.models.base import Family, ModelConfig
from encoderlab.nn.architecture import EncoderConfig
from encoderlab.nn.embeddings import Adaptive, TiedMaps
from encoderlab.nn.heads import LM
from encoderlab.nn.positions import RelativeShift


def transformer_xl(
    *,
    layers: int,
    width: int,
    heads: int,
    head_width: int,
    ff_width: int,
    vocab: int,
    cutoffs: tuple[int, ...] = (),
    divisor: int = 1,
    tied_projections: TiedMaps = "all_but_first",
    dropout: float = 0.1,
    attention_dropout: float = 0.0,
    shared_biases: bool = True,
    init_std: float = 0.02,
) -> ModelConfig:
    """Transformer-XL of any size; ``cutoffs`` divide a vocabulary that is sorted by frequency."""
    encoder = EncoderConfig(
        vocab=vocab,
        layers=layers,
        width=width,
        heads=heads,
        head_width=head_width,
        ff_width=ff_width,
        position=RelativeShift(shared_biases=shared_biases),
        causal=True,
        embed_norm="none",
        adaptive=Adaptive(cutoffs=cutoffs, divisor=divisor, tied_projections=tied_projections),
        types=0,
        eps=1e-5,
        activation="relu",
        attention_biases="none",
        dropout=dropout,
        attention_dropout=attention_dropout,
        ff_dropout=dropout,
        output_dropout=dropout,
        init_std=init_std,
    )
    return ModelConfig(family="transformer_xl", encoder=encoder, lm=LM(transform=False))


WT103 = (20000, 40000, 200000)
LM1B = (60000, 100000, 640000)

SIZES = {
    "transformer-xl-tiny": transformer_xl(layers=2, width=128, heads=2, head_width=64, ff_width=512, vocab=30522),
    "transformer-xl-mini": transformer_xl(layers=4, width=256, heads=4, head_width=64, ff_width=1024, vocab=30522),
    "transformer-xl-wt103-base": transformer_xl(
        layers=16, width=410, heads=10, head_width=41, ff_width=2100, vocab=267735, cutoffs=WT103
    ),
    "transformer-xl-wt103-large": transformer_xl(
        layers=18, width=1024, heads=16, head_width=64, ff_width=4096, vocab=267735, cutoffs=WT103, divisor=4,
        dropout=0.2, attention_dropout=0.2, shared_biases=False, init_std=0.005,
    ),
    "transformer-xl-enwik8-base": transformer_xl(
        layers=12, width=512, heads=8, head_width=64, ff_width=2048, vocab=204
    ),
    "transformer-xl-enwik8-large": transformer_xl(
        layers=24, width=1024, heads=8, head_width=128, ff_width=3072, vocab=204, dropout=0.15, attention_dropout=0.15
    ),
    "transformer-xl-text8-large": transformer_xl(
        layers=24, width=1024, heads=8, head_width=128, ff_width=3072, vocab=27, dropout=0.15, attention_dropout=0.15
    ),
    "transformer-xl-lm1b-base": transformer_xl(
        layers=18, width=1024, heads=8, head_width=128, ff_width=4096, vocab=793471, cutoffs=LM1B, divisor=4,
        tied_projections="none", dropout=0.0,
    ),
    "transformer-xl-lm1b-large": transformer_xl(
        layers=24, width=1280, heads=16, head_width=80, ff_width=8192, vocab=793471, cutoffs=LM1B, divisor=4,
        tied_projections="none", dropout=0.05, attention_dropout=0.05,
    ),
}  # fmt: skip

FAMILY = Family(name="transformer_xl", about=__doc__, sizes=SIZES)
