"""ALBERT (Lan et al., 2020).

Differs from BERT: word, position and segment tables of width 128, then a map to the width of the layers; all layers
share one set of weights (``Sharing``); GELU in the tanh form; the masked-LM head maps back to 128; sentence order
prediction instead of next sentence prediction; a SentencePiece vocabulary of 30,000. Version 2 and xxlarge have no
dropout. The paper gives xxlarge 235M parameters; the released model has 222.6M.
"""

from __future__ import annotations

from encoderlab.models.base import Family, ModelConfig
from encoderlab.nn.architecture import EncoderConfig, Sharing
from encoderlab.nn.heads import LM, Pooler, Span


def albert(
    *,
    layers: int,
    width: int,
    heads: int,
    dropout: float = 0.1,
    vocab: int = 30000,
    groups: int = 1,
    embed_width: int = 128,
) -> ModelConfig:
    """ALBERT of any size; ``groups`` is the number of sets of layer weights."""
    encoder = EncoderConfig(
        vocab=vocab,
        layers=layers,
        width=width,
        heads=heads,
        ff_width=4 * width,
        embed_width=embed_width,
        sharing=Sharing(groups=groups),
        activation="gelu_tanh",
        dropout=dropout,
        attention_dropout=dropout,
        truncated_init=True,
    )
    return ModelConfig(family="albert", encoder=encoder, pooler=Pooler(), lm=LM(), pair=True)


SIZES = {
    "albert-tiny": albert(layers=2, width=128, heads=2, embed_width=64),
    "albert-mini": albert(layers=4, width=256, heads=4),
    "albert-base": albert(layers=12, width=768, heads=12),
    "albert-large": albert(layers=24, width=1024, heads=16),
    "albert-xlarge": albert(layers=24, width=2048, heads=16),
    "albert-xxlarge": albert(layers=12, width=4096, heads=64, dropout=0.0),
    "albert-base-v2": albert(layers=12, width=768, heads=12, dropout=0.0),
    "albert-large-v2": albert(layers=24, width=1024, heads=16, dropout=0.0),
    "albert-xlarge-v2": albert(layers=24, width=2048, heads=16, dropout=0.0),
    "albert-xxlarge-v2": albert(layers=12, width=4096, heads=64, dropout=0.0),
}

FAMILY = Family(name="albert", about=__doc__, sizes=SIZES, span=Span(variant="beam", dropout=0.1))
