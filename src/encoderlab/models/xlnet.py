"""XLNet (Yang et al., 2019).

Differs from BERT: signed relative positions and relative segments in the attention scores (:class:`RelativeShift` with
``segments``) instead of tables at the input; projections without bias; dropout after the feed-forward activation and on
the last layer; no LayerNorm on the embeddings. Pretraining predicts a sixth of the tokens in a random order with a
second stream, the query stream, which starts from one learned vector and reads the content stream's states; memory of
earlier rows. Text is at the right end of a row, [CLS] last. The masked-LM head is the word table and a bias. GELU in
the tanh form (``transformers`` loads released weights with the exact form).
"""

from __future__ import annotations

from encoderlab.models.base import Family, ModelConfig
from encoderlab.nn.architecture import EncoderConfig
from encoderlab.nn.heads import LM, Classification, Span
from encoderlab.nn.positions import RelativeShift


def xlnet(*, layers: int, width: int, vocab: int = 32000) -> ModelConfig:
    """XLNet of any size; heads are 64 wide."""
    encoder = EncoderConfig(
        vocab=vocab,
        layers=layers,
        width=width,
        heads=width // 64,
        ff_width=4 * width,
        position=RelativeShift(segments=True),
        types=0,
        embed_norm="none",
        activation="gelu_tanh",
        attention_biases="none",
        ff_dropout=0.1,
        output_dropout=0.1,
    )
    return ModelConfig(family="xlnet", encoder=encoder, lm=LM(transform=False), mask_vector=True)


SIZES = {
    "xlnet-tiny": xlnet(layers=2, width=128),
    "xlnet-mini": xlnet(layers=4, width=256),
    "xlnet-base": xlnet(layers=12, width=768),
    "xlnet-large": xlnet(layers=24, width=1024),
}

FAMILY = Family(
    name="xlnet",
    about=__doc__,
    sizes=SIZES,
    classification=Classification(labels=2, summary="dense"),
    span=Span(variant="beam", dropout=0.1),
)
