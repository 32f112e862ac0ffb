"""DistilBERT and DistilRoBERTa (Sanh et al., 2019).

Differs from BERT (or RoBERTa): six layers taken from the teacher's twelve, no segment table, no pooler, no next
sentence prediction. The fine-tuning head is dense, ReLU, dropout 0.2, affine on [CLS]; the head for answers begins with
dropout 0.1.
"""

from __future__ import annotations

from encoderlab.models.base import Family, ModelConfig
from encoderlab.models.roberta import roberta
from encoderlab.nn.architecture import EncoderConfig
from encoderlab.nn.heads import LM, Classification, Span


def distilbert(*, layers: int = 6, width: int = 768, vocab: int = 30522) -> ModelConfig:
    """DistilBERT of any size."""
    encoder = EncoderConfig(vocab=vocab, layers=layers, width=width, heads=width // 64, ff_width=4 * width, types=0)
    return ModelConfig(family="distilbert", encoder=encoder, lm=LM())


SIZES = {
    "distilbert-tiny": distilbert(layers=1, width=128),
    "distilbert-mini": distilbert(layers=2, width=256),
    "distilbert-base": distilbert(),
    "distilbert-base-cased": distilbert(vocab=28996),
    "distilbert-base-multilingual": distilbert(vocab=119547),
    "distilroberta-base": roberta(layers=6, width=768),
}

FAMILY = Family(
    name="distilbert",
    about=__doc__,
    sizes=SIZES,
    classification=Classification(labels=2, summary="dense", activation="relu", dropout=0.2),
    span=Span(dropout=0.1),
)
