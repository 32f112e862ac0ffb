"""Parameter counts equal to the published tables, without allocating memory; configurations survive JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import torch

from encoderlab import models
from encoderlab.config import from_dict, override, to_dict
from encoderlab.errors import ConfigError
from encoderlab.model import Model, count_parameters
from encoderlab.models.base import ModelConfig, resized
from encoderlab.nn.heads import Classification, Pooler, Span, Tagging
from encoderlab.nn.spanconv import Bottleneck
from encoderlab.objectives.rtd import share_embeddings

ENCODERS = {
    "bert-tiny": 4_369_408, "bert-mini": 11_104_768, "bert-small": 28_500_992, "bert-medium": 41_110_528,
    "bert-base": 108_891_648, "bert-large": 334_092_288, "bert-base-cased": 107_719_680,
    "bert-large-cased": 332_529_664,
    "albert-base": 11_092_992, "albert-large": 16_634_368, "albert-xlarge": 54_528_512, "albert-xxlarge": 205_814_272,
    "distilbert-base": 66_362_880, "distilbert-base-cased": 65_190_912, "distilbert-base-multilingual": 134_734_080,
    "electra-small": 13_483_008, "electra-base": 108_891_648, "electra-large": 334_092_288,
    "electra-small-generator": 4_580_928, "electra-base-generator": 33_511_168, "electra-large-generator": 50_999_552,
    "convbert-small": 13_143_768, "convbert-medium-small": 17_475_888, "convbert-base": 105_680_520,
    "convbert-small-generator": 4_743_852, "convbert-medium-small-generator": 4_844_748,
    "convbert-base-generator": 33_171_928,
    "deberta-base": 138_601_728, "deberta-large": 405_163_008, "deberta-xlarge": 757_804_032,
    "deberta-v2-xlarge": 884_593_152, "deberta-v2-xxlarge": 1_564_549_632,
    "deberta-v3-xsmall": 70_682_112, "deberta-v3-small": 141_304_320, "deberta-v3-base": 183_831_552,
    "deberta-v3-large": 434_012_160, "mdeberta-v3-base": 278_218_752,
    "modernbert-base": 149_014_272, "modernbert-large": 394_781_696,
    "erlangshen-deberta-v2-97m": 97_052_928, "erlangshen-deberta-v2-320m": 319_093_760,
    "erlangshen-deberta-v2-710m": 707_492_352,
}  # fmt: skip

TOTALS = {  # with the pretraining heads
    "bert-tiny": 4_433_468, "bert-mini": 11_267_900, "bert-small": 29_058_876, "bert-medium": 41_668_412,
    "bert-base": 110_106_428, "bert-large": 336_226_108, "bert-base-cased": 108_932_934,
    "bert-large-cased": 334_661_958,
    "modernbert-base": 149_655_232, "modernbert-large": 395_881_664,
    "roberta-base": 124_696_665, "roberta-large": 355_411_033,
    "albert-base": 11_813_810, "albert-large": 17_847_474, "albert-xlarge": 59_021_490, "albert-xxlarge": 223_158_450,
    "distilbert-base": 66_985_530, "distilbert-base-cased": 65_812_036, "distilbert-base-multilingual": 135_445_755,
    "electra-small": 13_549_057, "electra-base": 109_483_009, "electra-large": 335_142_913,
    "electra-small-generator": 4_620_026, "electra-base-generator": 33_740_602, "electra-large-generator": 51_295_290,
    "electra-small++-generator": 13_546_682,
    "convbert-small": 13_209_817, "convbert-medium-small": 17_624_113, "convbert-base": 106_271_881,
    "xlnet-base": 116_718_336 + 32_000, "xlnet-large": 360_268_800 + 32_000,
    "transformer-xl-wt103-base": 151_107_538, "transformer-xl-wt103-large": 285_205_322,
    "transformer-xl-enwik8-base": 41_055_436, "transformer-xl-enwik8-large": 277_231_820,
    "transformer-xl-text8-large": 277_050_395,
}  # fmt: skip

JOINT = {  # generator and discriminator, common embeddings counted once
    "electra-small": 14_196_219, "electra-base": 119_386_427, "electra-large": 354_655_291,
    "electra-small++": 23_122_875,
    "convbert-small": 14_019_903, "convbert-medium-small": 18_539_191, "convbert-base": 115_836_059,
}  # fmt: skip

# The 24 compact models, with pooler: rows of layers 2 .. 12, columns of widths 128, 256, 512, 768.
GRID = {
    2: (4_385_920, 9_591_040, 22_458_880, 38_603_520),
    4: (4_782_464, 11_170_560, 28_763_648, 52_779_264),
    6: (5_179_008, 12_750_080, 35_068_416, 66_955_008),
    8: (5_575_552, 14_329_600, 41_373_184, 81_130_752),
    10: (5_972_096, 15_909_120, 47_677_952, 95_306_496),
    12: (6_368_640, 17_488_640, 53_982_720, 109_482_240),
}


@pytest.mark.parametrize("name", ENCODERS)
def test_encoder_counts(name: str) -> None:
    assert count_parameters(models.config(name))["encoder"] == ENCODERS[name]


@pytest.mark.parametrize("name", TOTALS)
def test_pretraining_counts(name: str) -> None:
    # The mask decoder's position table lies outside the tables' counts.
    assert count_parameters(replace(models.config(name), mask_decoder=0))["total"] == TOTALS[name]


@pytest.mark.parametrize("name", JOINT)
def test_joint_counts(name: str) -> None:
    with torch.device("meta"):
        generator, discriminator = Model(models.config(f"{name}-generator")), Model(models.config(name))
    share_embeddings(generator, discriminator, "block")
    assert sum(p.numel() for p in {*generator.parameters(), *discriminator.parameters()}) == JOINT[name]


def test_compact_bert_grid() -> None:
    for layers, counts in GRID.items():
        for width, count in zip((128, 256, 512, 768), counts, strict=True):
            parts = count_parameters(models.config(f"bert-l{layers}-h{width}"))
            assert parts["encoder"] + parts["pooler"] == count


def test_convbert_ablation_counts() -> None:
    """ConvBERT, table 1: bottleneck, convolution, grouped feed-forward, larger dimensions."""
    electra, convbert = models.config("electra-small"), models.config("convbert-small")
    assert count_parameters(resized(electra, conv=Bottleneck()))["encoder"] == 11_905_536
    assert count_parameters(resized(convbert, ff_groups=2))["encoder"] == 9_998_040
    base = models.config("convbert-base")
    assert count_parameters(resized(base, ff_groups=2))["encoder"] == 77_368_968
    assert count_parameters(resized(models.config("electra-base"), conv=Bottleneck()))["encoder"] == 94_722_048


def test_classifiers_have_no_parameters_they_do_not_use() -> None:
    assert count_parameters(replace(models.config("bert-base"), lm=None, pair=False))["total"] == 109_482_240
    assert (
        count_parameters(replace(models.config("roberta-base"), lm=None, pooler=Pooler()))["total"] == 124_645_632 - 768
    )


@pytest.mark.parametrize("name", [*models.SIZES, *(f"{name}-generator" for name in models.GENERATORS)])
def test_every_configuration_survives_json(name: str) -> None:
    config = models.config(name)
    assert from_dict(ModelConfig, json.loads(json.dumps(to_dict(config)))) == config
    assert config.family in models.FAMILIES


def test_unknown_names_and_impossible_sizes() -> None:
    with pytest.raises(ConfigError, match="did you mean 'bert-base'"):
        models.config("bert-bse")
    with pytest.raises(ConfigError, match="not a multiple of heads"):
        resized(models.config("bert-tiny"), heads=3)
    with pytest.raises(ConfigError, match=r"width 7 is not a multiple of heads 5; choose heads from \[1, 7\]$"):
        resized(models.config("bert-tiny"), width=7, heads=5)


@pytest.mark.parametrize(
    ("name", "path", "values"),
    [
        ("convbert-tiny", "encoder.conv.head_ratio", [0, -1]),
        ("convbert-tiny", "encoder.conv.kernel", [-1]),
        ("convbert-tiny", "encoder.ff_groups", [0, -2]),
        ("deberta-v2-tiny", "encoder.stem_conv.groups", [0, -1]),
        ("bert-tiny", "encoder.width", [0]),
        ("bert-tiny", "encoder.head_width", [0, -4]),
        ("bert-tiny", "encoder.embed_width", [0, -4]),
        ("bert-tiny", "encoder.types", [-1]),
        ("bert-tiny", "encoder.eps", [-1.0, float("nan")]),
        ("bert-tiny", "encoder.init_std", [-0.1, float("nan"), float("inf")]),
        ("bert-tiny", "encoder.position.length", [0, -5]),
        ("bert-tiny", "encoder.position.offset", [-5]),
        ("xlnet-tiny", "encoder.position.clamp", [-2]),
        ("deberta-tiny", "encoder.position.span", [0, -3]),
        ("deberta-tiny", "encoder.position.input_positions", [-3]),
        ("deberta-tiny", "mask_decoder", [-3]),
        ("transformer-xl-tiny", "encoder.adaptive.divisor", [0, -2]),
    ],
)
def test_numbers_out_of_range_are_refused(name: str, path: str, values: list[float]) -> None:
    for value in values:
        with pytest.raises(ConfigError, match=rf"^--set: {path} is {value}; give (at least [01]|a finite number)"):
            override(models.config(name), {path: value})


def test_a_pair_head_without_pooler_is_refused() -> None:
    assert override(models.config("roberta-tiny"), {"pair": "true", "pooler": "{}"}).pooler == Pooler()
    for name, change in {"roberta-tiny": {"pair": "true"}, "bert-tiny": {"pooler": "null"}}.items():
        with pytest.raises(ConfigError, match="there is no pooler; set pooler to {}, or pair to false"):
            override(models.config(name), change)


@pytest.mark.parametrize("cutoffs", [[500, 100], [100, 100], [-5], [0]])
def test_cut_offs_rise(cutoffs: list[int]) -> None:
    with pytest.raises(ConfigError, match="are not increasing; give ids above 0, each larger than the one before"):
        override(models.config("transformer-xl-tiny"), {"encoder.adaptive.cutoffs": cutoffs})


@pytest.mark.parametrize("head", [Pooler, partial(Classification, labels=2), partial(Tagging, labels=2), Span])
@pytest.mark.parametrize("dropout", [1.0, 1.5, -0.5])
def test_heads_drop_a_share(head: Callable[..., object], dropout: float) -> None:
    with pytest.raises(ConfigError, match=f"^dropout is {dropout}; give (at least 0|less than 1)"):
        head(dropout=dropout)


@pytest.mark.parametrize("labels", [0, -3])
def test_heads_have_labels(labels: int) -> None:
    for head in (Classification, Tagging):
        with pytest.raises(ConfigError, match=f"^labels is {labels}; give at least 1$"):
            head(labels=labels)
