"""DeBERTa v1, v2 and v3 (He et al., 2021; He et al., 2023) and Erlangshen DeBERTa v2 (Wang et al., 2022).

Differs from BERT: disentangled attention over relative positions (:class:`Disentangled`), no absolute positions and no
segments at the input, LayerNorm eps 1e-7. The masked-LM head reads the enhanced mask decoder: the last layer applied
twice, with queries from the last-but-one layer's output plus absolute positions. v1: separate projections of the
position table, no bias on keys, 512 distances each way. v2 and v3: logarithmic buckets, projections shared with the
content maps, LayerNorm on the table; v2 adds a convolution after the first layer. v3 is trained by replaced token
detection, with a generator half as deep and gradient-disentangled embeddings. Erlangshen is v2's encoder with BERT's
plain masked-LM head and a Chinese WordPiece vocabulary; it has no mask decoder.

Distances beyond the span are clamped before bucketing, as in the original code (``transformers`` does not clamp, and
differs beyond 512 tokens). ``transformers`` has no mask decoder, so its fill-mask gives wrong tokens for these weights.
"""

from __future__ import annotations

from encoderlab.models.base import Family, ModelConfig
from encoderlab.nn.architecture import EncoderConfig
from encoderlab.nn.heads import LM, RTD, Classification, Tagging
from encoderlab.nn.positions import Disentangled
from encoderlab.nn.stem import StemConvolution

V1 = Disentangled(span=512)
V2 = Disentangled(span=512, buckets=256, share_projections=True, norm=True)


def deberta(
    *,
    layers: int,
    width: int,
    vocab: int,
    position: Disentangled = V2,
    stem: bool = False,
    mask_decoder: bool = True,
    rtd: bool = False,
) -> ModelConfig:
    """DeBERTa of any version and size; heads are 64 wide."""
    encoder = EncoderConfig(
        vocab=vocab,
        layers=layers,
        width=width,
        heads=width // 64,
        ff_width=4 * width,
        position=position,
        types=0,
        embed_norm="width",
        stem_conv=StemConvolution() if stem else None,
        eps=1e-7,
        attention_biases="all" if position.share_projections else "query_value",
    )
    return ModelConfig(
        family="deberta",
        encoder=encoder,
        lm=None if rtd else LM(),
        rtd=RTD(variant="deberta") if rtd else None,
        mask_decoder=512 if mask_decoder and not rtd else 0,
    )


def _v1(layers: int, width: int) -> ModelConfig:
    return deberta(layers=layers, width=width, vocab=50265, position=V1)


def _v3(layers: int, width: int, vocab: int = 128100) -> ModelConfig:
    return deberta(layers=layers, width=width, vocab=vocab, rtd=True)


def _erlangshen(layers: int, width: int) -> ModelConfig:
    return deberta(layers=layers, width=width, vocab=12800, stem=True, mask_decoder=False)


SIZES = {
    "deberta-tiny": _v1(2, 128),
    "deberta-mini": _v1(4, 256),
    "deberta-base": _v1(12, 768),
    "deberta-large": _v1(24, 1024),
    "deberta-xlarge": _v1(48, 1024),
    "deberta-v2-tiny": deberta(layers=2, width=128, vocab=128100, stem=True),
    "deberta-v2-mini": deberta(layers=4, width=256, vocab=128100, stem=True),
    "deberta-v2-xlarge": deberta(layers=24, width=1536, vocab=128100, stem=True),
    "deberta-v2-xxlarge": deberta(layers=48, width=1536, vocab=128100, stem=True),
    "deberta-v3-tiny": _v3(2, 128),
    "deberta-v3-mini": _v3(4, 256),
    "deberta-v3-xsmall": _v3(12, 384),
    "deberta-v3-small": _v3(6, 768),
    "deberta-v3-base": _v3(12, 768),
    "deberta-v3-large": _v3(24, 1024),
    "mdeberta-v3-base": _v3(12, 768, 251000),
    "erlangshen-deberta-v2-tiny": _erlangshen(2, 128),
    "erlangshen-deberta-v2-mini": _erlangshen(4, 256),
    "erlangshen-deberta-v2-97m": _erlangshen(12, 768),
    "erlangshen-deberta-v2-320m": _erlangshen(24, 1024),
    "erlangshen-deberta-v2-710m": _erlangshen(24, 1536),
}

# The generator is as wide as the discriminator and half as deep.
GENERATORS = {
    name: deberta(layers=config.encoder.layers // 2, width=config.encoder.width, vocab=config.encoder.vocab)
    for name, config in SIZES.items()
    if config.rtd is not None
}

FAMILY = Family(
    name="deberta",
    about=__doc__,
    sizes=SIZES,
    generators=GENERATORS,
    classification=Classification(labels=2, summary="dense", activation="gelu"),
    tagging=Tagging(labels=2, dense=True),
)
