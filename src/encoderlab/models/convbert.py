"""ConvBERT (Jiang et al., 2020): ELECTRA with half of the attention heads replaced by span-dynamic convolution.

Differs from ELECTRA: mixed attention (``SpanDynamic``), and grouped feed-forward maps in medium-small. The width of a
head is width / heads, before half of the heads are dropped; at least one head attends, and the output map then reads
twice the width. The generator has the same parts. The released code, which the parameter counts follow, has a separate
value map for the convolution; in the paper attention and convolution share one. Its convolutions read padding;
``mask_padding=False`` (here, to load its weights) keeps that, new recipes and tasks mask it. ``transformers`` computes
other head widths for head ratios other than 2 and cannot express the one-head generator.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from encoderlab.models.base import Family, ModelConfig, resized
from encoderlab.nn.architecture import EncoderConfig
from encoderlab.nn.heads import LM, RTD, Classification, Span, Tagging
from encoderlab.nn.spanconv import SpanDynamic


def convbert(
    *,
    layers: int,
    width: int,
    heads: int,
    ff_width: int,
    embed_width: int,
    groups: int = 1,
    vocab: int = 30522,
    generator: bool = False,
    mask_padding: bool = False,
) -> ModelConfig:
    """Discriminator or ``generator`` of any size."""
    encoder = EncoderConfig(
        vocab=vocab,
        layers=layers,
        width=width,
        heads=heads,
        ff_width=ff_width,
        embed_width=embed_width,
        conv=SpanDynamic(mask_padding=mask_padding),
        ff_groups=groups,
        truncated_init=True,
        glorot_map=True,
    )
    return ModelConfig(
        family="convbert", encoder=encoder, lm=LM() if generator else None, rtd=None if generator else RTD()
    )


def masking_padding(config: ModelConfig) -> ModelConfig:
    """``config`` with convolutions, if it has any, that stop at the end of a text.

    The published ConvBERT's convolutions continue into padding and, in packed rows, into the next text, so texts would
    change each other's losses and predictions.
    """
    branch = config.encoder.conv_branch
    return config if branch is None else resized(config, conv=replace(branch, mask_padding=True))


SIZES = {
    "convbert-tiny": convbert(layers=2, width=128, heads=2, ff_width=512, embed_width=64, mask_padding=True),
    "convbert-mini": convbert(layers=4, width=256, heads=4, ff_width=1024, embed_width=128, mask_padding=True),
    "convbert-small": convbert(layers=12, width=256, heads=4, ff_width=1024, embed_width=128),
    "convbert-medium-small": convbert(layers=12, width=384, heads=8, ff_width=1536, embed_width=128, groups=2),
    "convbert-base": convbert(layers=12, width=768, heads=12, ff_width=3072, embed_width=768),
}

generator = partial(convbert, generator=True)
GENERATORS = {
    "convbert-tiny": generator(layers=2, width=64, heads=1, ff_width=256, embed_width=64, mask_padding=True),
    "convbert-mini": generator(layers=4, width=64, heads=1, ff_width=256, embed_width=128, mask_padding=True),
    "convbert-small": generator(layers=12, width=64, heads=1, ff_width=256, embed_width=128),
    "convbert-medium-small": generator(layers=12, width=96, heads=2, ff_width=384, embed_width=128, groups=2),
    "convbert-base": generator(layers=12, width=256, heads=4, ff_width=1024, embed_width=768),
}

FAMILY = Family(
    name="convbert",
    about=__doc__,
    sizes=SIZES,
    generators=GENERATORS,
    classification=Classification(labels=2, summary="raw", glorot=True),
    tagging=Tagging(labels=2, glorot=True),
    span=Span(variant="conditional"),
)
