"""BERT (Devlin et al., 2019; Turc et al., 2019 for the compact sizes).

The other families are described by their differences from BERT. Learned absolute positions and two segment vectors are
added to the word vectors; post-LayerNorm layers of self-attention and a feed-forward network of four times the width;
GELU in the exact form (the released TensorFlow code has the tanh form, at most 4.7e-4 away; ``transformers`` loads the
same weights with the exact form). Heads: a tanh pooler on [CLS], next sentence prediction on it, and a masked-LM head
tied to the word table.
"""

from __future__ import annotations

from dataclasses import replace

from encoderlab.models.base import Family, ModelConfig, resized
from encoderlab.nn.architecture import EncoderConfig
from encoderlab.nn.heads import LM, Pooler


def bert(*, layers: int, width: int, vocab: int = 30522) -> ModelConfig:
    """BERT of any size: heads of width 64, feed-forward of four times the width."""
    encoder = EncoderConfig(
        vocab=vocab, layers=layers, width=width, heads=width // 64, ff_width=4 * width, truncated_init=True
    )
    return ModelConfig(family="bert", encoder=encoder, pooler=Pooler(), lm=LM(), pair=True)


SIZES = {
    "bert-tiny": bert(layers=2, width=128),
    "bert-mini": bert(layers=4, width=256),
    "bert-small": bert(layers=4, width=512),
    "bert-medium": bert(layers=8, width=512),
    "bert-base": bert(layers=12, width=768),
    "bert-large": bert(layers=24, width=1024),
    "bert-base-cased": bert(layers=12, width=768, vocab=28996),
    "bert-large-cased": bert(layers=24, width=1024, vocab=28996),
    "bert-base-chinese": bert(layers=12, width=768, vocab=21128),
    "bert-large-wwm": bert(layers=24, width=1024),
}
SIZES |= {
    f"bert-l{layers}-h{width}": bert(layers=layers, width=width)
    for layers in (2, 4, 6, 8, 10, 12)
    for width in (128, 256, 512, 768)
}
# Left-to-right attention, the ablation of section 5.1 of the paper.
SIZES["bert-base-ltr"] = replace(resized(SIZES["bert-base"], causal=True), pair=False)

FAMILY = Family(name="bert", about=__doc__, sizes=SIZES)
