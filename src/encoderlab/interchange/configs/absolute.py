"""Configurations of the families with absolute positions: BERT, RoBERTa, ALBERT, DistilBERT, ELECTRA, ConvBERT."""

from __future__ import annotations

from typing import Any

from encoderlab.errors import DataError
from encoderlab.interchange.configs.fields import THEIR_ACTIVATION, Fields, common, their_common
from encoderlab.models.base import ModelConfig
from encoderlab.nn.architecture import EncoderConfig, Sharing
from encoderlab.nn.heads import LM, RTD, Pooler
from encoderlab.nn.positions import Absolute
from encoderlab.nn.spanconv import SpanDynamic


def _absolute(encoder: EncoderConfig) -> Absolute:
    position = encoder.position
    if not isinstance(position, Absolute) or position.sinusoidal:
        kind = "sinusoidal" if position.sinusoidal else position.kind
        raise DataError(f"positions of kind {kind!r} are not part of this family in transformers")
    return position


def _gelu_lm(encoder: EncoderConfig) -> LM:
    """The LM head of RoBERTa, ELECTRA and ConvBERT, which has the exact GELU in ``transformers`` for any activation."""
    return LM() if encoder.activation == "gelu" else LM(activation="gelu")


def read_bert(f: Fields) -> ModelConfig:
    fields = common(f)
    for name in ("emb_size", "embedding_size"):  # of TinyBERT's code, and of ALBERT's; BERT's reads neither
        f.only(name, fields["width"])
    encoder = EncoderConfig(
        **fields,
        position=Absolute(length=f.count("max_position_embeddings", 512)),
        types=f.count("type_vocab_size", 2),
        causal=f.switch("is_decoder", False),
        truncated_init=True,
    )
    return ModelConfig(family="bert", encoder=encoder, pooler=Pooler(), lm=LM(), pair=True)


def write_bert(config: ModelConfig) -> dict[str, Any]:
    encoder = config.encoder
    return {
        **their_common(encoder),
        "max_position_embeddings": _absolute(encoder).length,
        "is_decoder": encoder.causal,
    }


def read_roberta(f: Fields) -> ModelConfig:
    offset = f.count("pad_token_id", 1, least=0) + 1
    encoder = EncoderConfig(
        **common(f),
        position=Absolute(length=f.count("max_position_embeddings", 512, least=offset + 1) - offset, offset=offset),
        types=f.count("type_vocab_size", 2),
        causal=f.switch("is_decoder", False),
    )
    return ModelConfig(family="roberta", encoder=encoder, pooler=Pooler(), lm=_gelu_lm(encoder))


def write_roberta(config: ModelConfig) -> dict[str, Any]:
    encoder = config.encoder
    position = _absolute(encoder)
    return {
        **their_common(encoder),
        "max_position_embeddings": position.length + position.offset,
        "pad_token_id": position.offset - 1,
        "is_decoder": encoder.causal,
    }


def read_albert(f: Fields) -> ModelConfig:
    encoder = EncoderConfig(
        **common(f)
        | {"activation": f.activation("hidden_act", "gelu_new"), "dropout": f.number("hidden_dropout_prob", 0)}
        | {"attention_dropout": f.number("attention_probs_dropout_prob", 0)},
        position=Absolute(length=f.count("max_position_embeddings", 512)),
        types=f.count("type_vocab_size", 2),
        embed_width=f.count("embedding_size", 128),
        embed_map=f.data.get("embedding_size", 128) == f.data.get("hidden_size"),
        sharing=Sharing(groups=f.count("num_hidden_groups", 1), inner=f.count("inner_group_num", 1)),
        truncated_init=True,
    )
    _check_groups(encoder, f.source)
    return ModelConfig(family="albert", encoder=encoder, pooler=Pooler(), lm=LM(), pair=True)


def _check_groups(encoder: EncoderConfig, source: str) -> None:
    """Refuse numbers of groups for which ``transformers`` gives a layer the weights of another group.

    It computes ``layer / (layers / groups)`` in floating point, where 9 / (18 / 14) is less than 7.
    """
    assert encoder.sharing is not None
    layers, groups = encoder.layers, encoder.sharing.groups
    for layer in range(layers):
        theirs, ours = int(layer / (layers / groups)), layer * groups // layers
        if theirs != ours:
            raise DataError(
                f"{source}: with {groups} groups of {layers} layers transformers rounds, so that layer {layer} has the "
                f"weights of group {theirs} there and of group {ours} here; only numbers of groups that divide the "
                "number of layers are sure to be the same in both"
            )


def write_albert(config: ModelConfig) -> dict[str, Any]:
    encoder = config.encoder
    sharing = encoder.sharing or Sharing(groups=encoder.layers)
    return {
        **their_common(encoder),
        "max_position_embeddings": _absolute(encoder).length,
        "embedding_size": encoder.word_width,
        "num_hidden_groups": sharing.groups,
        "inner_group_num": sharing.inner,
    }


def read_distilbert(f: Fields) -> ModelConfig:
    encoder = EncoderConfig(
        vocab=f.count("vocab_size"),
        layers=f.renamed("n_layers", "num_hidden_layers", 6),
        width=f.renamed("dim", "hidden_size", 768),
        heads=f.renamed("n_heads", "num_attention_heads", 12),
        ff_width=f.count("hidden_dim", 3072),
        activation=f.activation("activation"),
        dropout=f.number("dropout", 0.1),
        attention_dropout=f.number("attention_dropout", 0.1),
        init_std=f.number("initializer_range", 0.02),
        position=Absolute(length=f.count("max_position_embeddings", 512)),
        types=0,
    )
    return ModelConfig(family="distilbert", encoder=encoder, lm=LM())


def write_distilbert(config: ModelConfig) -> dict[str, Any]:
    encoder = config.encoder
    return {
        "vocab_size": encoder.vocab,
        "n_layers": encoder.layers,
        "dim": encoder.width,
        "n_heads": encoder.heads,
        "hidden_dim": encoder.ff_width,
        "activation": THEIR_ACTIVATION[encoder.activation],
        "dropout": encoder.dropout,
        "attention_dropout": encoder.attention_dropout,
        "initializer_range": encoder.init_std,
        "max_position_embeddings": _absolute(encoder).length,
    }


def read_electra(f: Fields) -> ModelConfig:
    encoder = EncoderConfig(
        **common(f),
        position=Absolute(length=f.count("max_position_embeddings", 512)),
        types=f.count("type_vocab_size", 2),
        embed_width=f.count("embedding_size", 128),
        causal=f.switch("is_decoder", False),
        truncated_init=True,
        glorot_map=True,
    )
    return ModelConfig(family="electra", encoder=encoder, lm=_gelu_lm(encoder), rtd=RTD())


def write_electra(config: ModelConfig) -> dict[str, Any]:
    encoder = config.encoder
    return {
        **their_common(encoder),
        "max_position_embeddings": _absolute(encoder).length,
        "embedding_size": encoder.word_width,
        "is_decoder": encoder.causal,
    }


def read_convbert(f: Fields) -> ModelConfig:
    encoder = EncoderConfig(
        **common(f),
        position=Absolute(length=f.count("max_position_embeddings", 512)),
        types=f.count("type_vocab_size", 2),
        embed_width=f.count("embedding_size", 768),
        conv=SpanDynamic(
            head_ratio=f.count("head_ratio", 2), kernel=f.count("conv_kernel_size", 9), mask_padding=False
        ),
        ff_groups=f.count("num_groups", 1),
        truncated_init=True,
        glorot_map=True,
    )
    _check_head_ratio(encoder, f.source)
    return ModelConfig(family="convbert", encoder=encoder, lm=_gelu_lm(encoder), rtd=RTD())


def _check_head_ratio(encoder: EncoderConfig, source: str) -> None:
    """Refuse head ratios for which ``transformers`` computes another head width.

    It makes heads ``width / kept heads / 2`` wide, which equals the original's ``width / heads`` only for ratio 2.
    """
    assert isinstance(encoder.conv, SpanDynamic)
    if encoder.conv.head_ratio != 2 or encoder.heads % 2:
        raise DataError(
            f"{source}: with head_ratio {encoder.conv.head_ratio} and {encoder.heads} heads transformers has heads of "
            "another width than ConvBERT; only head_ratio 2 and an even number of heads are the same in both"
        )


def write_convbert(config: ModelConfig) -> dict[str, Any]:
    encoder = config.encoder
    if not isinstance(encoder.conv, SpanDynamic) or encoder.conv.share_value:
        raise DataError("transformers only has span-dynamic convolution with its own value map, not this convolution")
    _check_head_ratio(encoder, "convbert")
    return {
        **their_common(encoder),
        "max_position_embeddings": _absolute(encoder).length,
        "embedding_size": encoder.word_width,
        "head_ratio": encoder.conv.head_ratio,
        "conv_kernel_size": encoder.conv.kernel,
        "num_groups": encoder.ff_groups,
    }
