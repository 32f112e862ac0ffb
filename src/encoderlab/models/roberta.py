"""RoBERTa (Liu et al., 2019).

Differs from BERT: byte-level BPE with 50,265 ids; no segment table (``transformers`` has one row, which is zero in the
published weights; a folder with another row is loaded with that row); position ids start at 2, so the table has 514
rows; LayerNorm eps 1e-5; initial values from a normal distribution without limits; no next sentence prediction and no
pretrained pooler. A pair is framed ``<s> A </s></s> B </s>``. The fine-tuning head is dense, tanh, affine on ``<s>``,
without dropout (fairseq's ``pooler_dropout`` is 0; ``transformers`` drops 0.1 before both maps).
"""

from __future__ import annotations

from encoderlab.models.base import Family, ModelConfig
from encoderlab.nn.architecture import EncoderConfig
from encoderlab.nn.heads import LM, Classification
from encoderlab.nn.positions import Absolute


def roberta(*, layers: int, width: int, heads: int | None = None, vocab: int = 50265) -> ModelConfig:
    """RoBERTa of any size."""
    encoder = EncoderConfig(
        vocab=vocab,
        layers=layers,
        width=width,
        heads=heads or width // 64,
        ff_width=4 * width,
        position=Absolute(length=512, offset=2),
        types=0,
        eps=1e-5,
    )
    return ModelConfig(family="roberta", encoder=encoder, lm=LM())


SIZES = {
    "roberta-tiny": roberta(layers=2, width=128),
    "roberta-mini": roberta(layers=4, width=256),
    "roberta-base": roberta(layers=12, width=768),
    "roberta-large": roberta(layers=24, width=1024),
}

FAMILY = Family(
    name="roberta",
    about=__doc__,
    sizes=SIZES,
    classification=Classification(labels=2, summary="dense", dropout=0.0),
)
