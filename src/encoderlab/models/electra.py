"""ELECTRA (Clark et al., 2020): a generator fills masks, a discriminator finds the tokens that it replaced.

Differs from BERT: no pooler and no next sentence prediction; small has tables of width 128 mapped to 256 after
LayerNorm. The generator has the same depth and 1/4 (small, large) or 1/3 (base) of the width; both networks share the
whole embedding block, LayerNorm included. The discriminator head is dense, GELU, dense to 1; the generator's is BERT's
masked-LM head. The checkpoint released as small ("small++") has a generator of the discriminator's width. Fine-tuning
puts dropout and an affine map on the raw [CLS] vector; ``transformers`` adds a dense layer and GELU there that the
original does not have.
"""

from __future__ import annotations

from encoderlab.models.base import Family, ModelConfig
from encoderlab.nn.architecture import EncoderConfig
from encoderlab.nn.heads import LM, RTD, Classification, Span, Tagging


def electra(
    *, layers: int, width: int, heads: int, ff_width: int, embed_width: int, vocab: int = 30522, generator: bool = False
) -> ModelConfig:
    """Discriminator or ``generator`` of any size."""
    encoder = EncoderConfig(
        vocab=vocab,
        layers=layers,
        width=width,
        heads=heads,
        ff_width=ff_width,
        embed_width=embed_width,
        truncated_init=True,
        glorot_map=True,
    )
    return ModelConfig(
        family="electra", encoder=encoder, lm=LM() if generator else None, rtd=None if generator else RTD()
    )


SIZES = {
    "electra-tiny": electra(layers=2, width=128, heads=2, ff_width=512, embed_width=64),
    "electra-mini": electra(layers=4, width=256, heads=4, ff_width=1024, embed_width=128),
    "electra-small": electra(layers=12, width=256, heads=4, ff_width=1024, embed_width=128),
    "electra-small++": electra(layers=12, width=256, heads=4, ff_width=1024, embed_width=128),
    "electra-base": electra(layers=12, width=768, heads=12, ff_width=3072, embed_width=768),
    "electra-large": electra(layers=24, width=1024, heads=16, ff_width=4096, embed_width=1024),
}


def _generator(layers: int, width: int, embed_width: int) -> ModelConfig:
    heads = max(1, width // 64)
    return electra(layers=layers, width=width, heads=heads, ff_width=4 * width, embed_width=embed_width, generator=True)


GENERATORS = {
    "electra-tiny": _generator(2, 64, 64),
    "electra-mini": _generator(4, 64, 128),
    "electra-small": _generator(12, 64, 128),
    "electra-small++": _generator(12, 256, 128),
    "electra-base": _generator(12, 256, 768),
    "electra-large": _generator(24, 256, 1024),
}

FAMILY = Family(
    name="electra",
    about=__doc__,
    sizes=SIZES,
    generators=GENERATORS,
    classification=Classification(labels=2, summary="raw", glorot=True),
    tagging=Tagging(labels=2, glorot=True),
    span=Span(variant="conditional"),
)
