"""Convert ``config.json`` of ``transformers`` to and from our configurations, family by family.

A field without a counterpart here is refused by name unless it is known to have no effect, because it would change what
the model computes. Missing fields get the default of the class in ``transformers``; sizes must be present.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from encoderlab.errors import ConfigError, DataError
from encoderlab.interchange.configs import absolute, relative, rotary
from encoderlab.interchange.configs.fields import Fields
from encoderlab.models.base import ModelConfig
from encoderlab.nn.architecture import EncoderConfig, Sharing
from encoderlab.nn.positions import Absolute
from encoderlab.nn.spanconv import SpanDynamic


@dataclass(frozen=True)
class Format:
    """A ``model_type`` of ``transformers``, the stem of its class names, and functions for both directions."""

    model_type: str
    stem: str
    read: Callable[[Fields], ModelConfig]
    write: Callable[[ModelConfig], dict[str, Any]]


FORMATS = {
    format.model_type: format
    for format in (
        Format("bert", "Bert", absolute.read_bert, absolute.write_bert),
        Format("roberta", "Roberta", absolute.read_roberta, absolute.write_roberta),
        Format("albert", "Albert", absolute.read_albert, absolute.write_albert),
        Format("distilbert", "DistilBert", absolute.read_distilbert, absolute.write_distilbert),
        Format("electra", "Electra", absolute.read_electra, absolute.write_electra),
        Format("convbert", "ConvBert", absolute.read_convbert, absolute.write_convbert),
        Format("deberta", "Deberta", relative.read_deberta_v1, relative.write_deberta),
        Format("deberta-v2", "DebertaV2", relative.read_deberta_v2, relative.write_deberta_v2),
        Format("xlnet", "XLNet", relative.read_xlnet, relative.write_xlnet),
        Format("modernbert", "ModernBert", rotary.read_modernbert, rotary.write_modernbert),
        Format("transfo-xl", "TransfoXL", relative.read_transformer_xl, relative.write_transformer_xl),
    )
}
STEMS = {"xlm-roberta": "XLMRoberta", "camembert": "Camembert"}  # RoBERTa with another tokenizer
SAME_AS = {  # other names of a format
    "conv_bert": "convbert",
    "debertav2": "deberta-v2",
    **dict.fromkeys(STEMS, "roberta"),
}


def read(data: dict[str, Any], source: str) -> tuple[Format, ModelConfig]:
    """The format and the configuration, with every pretraining head of the family.

    Raises:
        DataError: an unknown ``model_type``, or a field that is missing, wrong or not implemented.
    """
    format = format_named(data, source)
    config = read_as(format.model_type, Fields(data, source))
    name = data["model_type"]
    return format, replace(config, model_type=name) if name in STEMS else config


def format_named(data: Mapping[str, Any], source: str) -> Format:
    """The format of the ``model_type`` in ``config.json``.

    Raises:
        DataError: there is none, or an unknown one.
    """
    name = data.get("model_type")
    if name is None:
        raise DataError(f'{source}: has no model_type; add the family of the weights, such as "model_type": "bert"')
    format = FORMATS.get(SAME_AS.get(name, name)) if isinstance(name, str) else None
    if format is None:
        raise DataError(
            f"{source}: model_type {name!r} is not implemented; known are {', '.join((*FORMATS, *SAME_AS))}"
        )
    return format


def read_as(model_type: str, fields: Fields) -> ModelConfig:
    """The configuration of a known ``model_type``, with every pretraining head of the family.

    Raises:
        DataError: a field that is missing, wrong or not implemented, or values that do not fit together.
    """
    try:
        config = FORMATS[model_type].read(fields)
    except ConfigError as error:
        raise DataError(f"{fields.source}: {error}") from None
    fields.finish()
    return config


def format_of(config: ModelConfig) -> Format:
    """The format for the model's family."""
    if config.family == "transformer_xl":
        return FORMATS["transfo-xl"]
    if config.family == "deberta":
        return FORMATS["deberta" if config.encoder.attention_biases == "query_value" else "deberta-v2"]
    if config.family not in FORMATS:
        raise DataError(f"family {config.family!r} has no counterpart in transformers")
    return FORMATS[config.family]


NOT_COMPUTED = {"truncated_init", "glorot_map", "init_std", "scaled_init"}  # only for new weights
RATES = ("dropout", "embed_dropout", "ff_output_dropout", "attention_dropout", "ff_dropout", "output_dropout")


def write(config: ModelConfig) -> dict[str, Any]:
    """The fields of ``config.json``; they are read back, and any difference is refused by name, unless only training
    depends on it (:func:`other_rates`).

    Raises:
        DataError: the architecture has a part that ``transformers`` lacks.
    """
    format, encoder = format_of(config), config.encoder
    data = {"model_type": config.model_type or format.model_type, **format.write(config)}
    if format.model_type != "transfo-xl" and encoder.width % encoder.heads:  # their number and width are free there
        raise DataError(
            f"{format.model_type} in transformers has heads that divide the width {encoder.width} and cannot have "
            f"{encoder.heads} of width {encoder.key_width}"
        )
    _, back = read(dict(data), format.model_type)
    free = NOT_COMPUTED | {*RATES}
    free |= {"embed_map"} if format.model_type == "albert" else set()  # ours without it is the identity
    for field in dataclasses.fields(EncoderConfig):
        mine, theirs = (comparable(value, field.name) for value in (config.encoder, back.encoder))
        if mine != theirs and field.name not in free:
            raise DataError(f"{format.model_type} in transformers has {field.name} {theirs!r} and cannot have {mine!r}")
    for name, mine, theirs in zip(("LM head", "pooler"), _heads(config), _heads(back), strict=True):
        if mine != theirs and mine is not None:
            raise DataError(f"{format.model_type} in transformers has {name} {theirs} and cannot have {mine}")
    return data


def other_rates(config: ModelConfig) -> dict[str, tuple[float, float]]:
    """Dropout rates that ``transformers`` cannot have, by name: ours, and those that further training there would have.

    The output of attention in ModernBERT, say, has the rate of its weights.
    """
    _, back = read(write(config), config.family)
    rates = {name: (comparable(config.encoder, name), comparable(back.encoder, name)) for name in RATES}
    return {name: (mine, theirs) for name, (mine, theirs) in rates.items() if mine != theirs}


def _heads(config: ModelConfig) -> tuple[str | None, str | None]:
    """Descriptions of LM head and pooler; None for a missing one."""
    lm, pooler = config.lm, config.pooler
    bias = "bias" if lm and lm.output_bias else "no bias"
    if lm and lm.transform:
        dense = "dense" if lm.dense_bias else "dense without bias"
        bias = f"{dense}, {lm.activation or config.encoder.activation}, {bias}"
    return bias if lm else None, pooler.activation if pooler else None


def comparable(encoder: EncoderConfig, name: str) -> Any:
    """A field's value in a normal form, so that values of equal meaning are equal."""
    if name == "embed_width":
        return encoder.word_width
    if name == "head_width":
        return encoder.key_width
    if name in ("embed_dropout", "ff_output_dropout") and getattr(encoder, name) is None:
        return encoder.dropout
    value = getattr(encoder, name)
    if name == "local" and value is not None:
        theta = getattr(encoder.position, "theta", None) if value.theta is None else value.theta
        full = tuple(encoder.sees_all(layer) for layer in range(encoder.layers))
        return None if all(full) else (value.reach, theta, full)
    if name == "embed_map":
        return encoder.mapped
    if name == "sharing" and value == Sharing(groups=encoder.layers):
        return None  # every layer has its own weights
    if name == "types" and value == 1 and isinstance(encoder.position, Absolute):
        return 0  # one row is a constant; without a table, transformers has a row of zeros
    if name == "conv" and isinstance(value, SpanDynamic):
        return replace(value, mask_padding=False)  # differs only for padded rows, which a note reports
    return value
