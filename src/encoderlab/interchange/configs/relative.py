"""Configurations of the families with relative positions: DeBERTa, XLNet, Transformer-XL."""

from __future__ import annotations

from typing import Any, Literal

from encoderlab.errors import DataError
from encoderlab.interchange.configs.fields import THEIR_ACTIVATION, Fields, common, their_common
from encoderlab.models.base import ModelConfig
from encoderlab.nn.architecture import EncoderConfig
from encoderlab.nn.embeddings import Adaptive, TiedMaps
from encoderlab.nn.heads import LM, RTD
from encoderlab.nn.positions import Disentangled, RelativeShift
from encoderlab.nn.stem import StemConvolution

TERMS: tuple[tuple[Literal["c2p", "p2c"], ...], ...] = (("c2p", "p2c"), ("c2p",), ("p2c",))


def _deberta_terms(f: Fields) -> tuple[Literal["c2p", "p2c"], ...]:
    value = f.take("pos_att_type", None)
    names = [part.strip() for part in value.lower().split("|")] if isinstance(value, str) else value
    for terms in TERMS:
        if isinstance(names, list) and sorted(map(str, names)) == list(terms):
            return terms
    raise DataError(f"{f.source}: pos_att_type {value!r} is not implemented; expected c2p, p2c or both")


def _normed_table(f: Fields) -> bool:
    value = f.take("norm_rel_ebd", "none")
    names = {part.strip() for part in value.lower().split("|")} if isinstance(value, str) else set()
    if not names or names - {"none", "layer_norm"}:
        raise DataError(f"{f.source}: norm_rel_ebd {value!r} is not implemented; expected none or layer_norm")
    return "layer_norm" in names


def read_deberta(f: Fields, *, position: dict[str, Any], **more: Any) -> ModelConfig:
    fields = common(f) | {"eps": f.number("layer_norm_eps", 1e-7)}
    if not f.switch("relative_attention", False):
        raise DataError(f"{f.source}: relative_attention false is not implemented; without it the model is BERT")
    biased = f.switch("position_biased_input", True)
    positions, span = f.count("max_position_embeddings", 512), f.count("max_relative_positions", -1, least=-1)
    encoder = EncoderConfig(
        **fields,
        position=Disentangled(
            span=span if span > 0 else positions,
            terms=_deberta_terms(f),
            input_positions=positions if biased else 0,
            **position,
        ),
        types=f.count("type_vocab_size", 0, least=0),
        embed_norm="width",
        embed_width=f.count("embedding_size", f.data.get("hidden_size")),
        **more,
    )
    f.only("attention_head_size", encoder.key_width)
    return ModelConfig(
        family="deberta", encoder=encoder, lm=LM(), rtd=RTD(variant="deberta"), mask_decoder=0 if biased else positions
    )


def read_deberta_v1(f: Fields) -> ModelConfig:
    f.only("talking_head", False)
    return read_deberta(f, position={}, attention_biases="query_value")


def read_deberta_v2(f: Fields) -> ModelConfig:
    f.count("num_hidden_layers")  # without it, transformers has 24 and the original 12
    buckets = f.count("position_buckets", -1, least=-1)
    kernel = f.count("conv_kernel_size", 0, least=0)
    activation, groups = f.activation("conv_act", "tanh"), f.count("conv_groups", 1)
    stem = StemConvolution(kernel=kernel, groups=groups, activation=activation) if kernel > 0 else None
    position = {
        "buckets": buckets if buckets > 0 else None,
        "share_projections": f.switch("share_att_key", False),
        "norm": _normed_table(f),
    }
    return read_deberta(f, position=position, stem_conv=stem)


def _disentangled(encoder: EncoderConfig) -> Disentangled:
    if not isinstance(encoder.position, Disentangled):
        raise DataError(f"DeBERTa in transformers has disentangled positions, not {encoder.position.kind!r}")
    return encoder.position


def write_deberta(config: ModelConfig) -> dict[str, Any]:
    encoder, position = config.encoder, _disentangled(config.encoder)
    table = position.input_positions or config.mask_decoder or position.span
    return {
        **their_common(encoder),
        "type_vocab_size": encoder.types,
        "max_position_embeddings": table,
        "max_relative_positions": position.span if position.span != table else -1,
        "relative_attention": True,
        "pos_att_type": list(position.terms),
        "position_biased_input": position.input_positions > 0,
        **({"embedding_size": encoder.word_width} if encoder.word_width != encoder.width else {}),
    }


def write_deberta_v2(config: ModelConfig) -> dict[str, Any]:
    stem, position = config.encoder.stem_conv, _disentangled(config.encoder)
    convolution = {}
    if stem is not None:
        convolution = {
            "conv_kernel_size": stem.kernel,
            "conv_groups": stem.groups,
            "conv_act": THEIR_ACTIVATION[stem.activation],
        }
    return {
        **write_deberta(config),
        "position_buckets": position.buckets or -1,
        "norm_rel_ebd": "layer_norm" if position.norm else "none",
        "share_att_key": position.share_projections,
        **convolution,
    }


def read_xlnet(f: Fields) -> ModelConfig:
    f.take("untie_r", True)  # tied biases are read as equal ones, which compute the same
    f.only("attn_type", "bi")
    f.only("same_length", False)
    f.only("bi_data", False)
    for name in ("mem_len", "reuse_len", "use_mems_eval", "use_mems_train", "use_mems"):
        f.take(name, None)  # the length of memory, an argument of a call here
    clamp = f.count("clamp_len", -1, least=-1)
    width, heads = f.renamed("d_model", "hidden_size"), f.renamed("n_head", "num_attention_heads")
    head_width = f.count("d_head", max(1, width // heads))
    dropout = f.number("dropout", 0.1)
    encoder = EncoderConfig(
        vocab=f.count("vocab_size"),
        layers=f.renamed("n_layer", "num_hidden_layers"),
        width=width,
        heads=heads,
        head_width=None if head_width * heads == width else head_width,
        ff_width=f.count("d_inner"),
        activation=f.activation("ff_activation"),
        dropout=dropout,
        attention_dropout=dropout,
        ff_dropout=dropout,
        output_dropout=dropout,
        init_std=f.number("initializer_range", 0.02),
        eps=f.number("layer_norm_eps", 1e-12),
        position=RelativeShift(segments=True, clamp=max(0, clamp)),
        types=0,
        embed_norm="none",
        attention_biases="none",
    )
    return ModelConfig(family="xlnet", encoder=encoder, lm=LM(transform=False), mask_vector=True)


def write_xlnet(config: ModelConfig) -> dict[str, Any]:
    encoder = config.encoder
    position = encoder.position
    if not isinstance(position, RelativeShift) or not position.segments or position.shared_biases:
        raise DataError("XLNet in transformers has relative segments and biases per layer, which this model lacks")
    if encoder.heads * encoder.key_width != encoder.width:
        raise DataError(
            f"XLNet in transformers has heads that share the width {encoder.width}, and cannot have {encoder.heads} of "
            f"width {encoder.key_width}"
        )
    return {
        "vocab_size": encoder.vocab,
        "n_layer": encoder.layers,
        "d_model": encoder.width,
        "n_head": encoder.heads,
        "d_head": encoder.key_width,
        "d_inner": encoder.ff_width,
        "ff_activation": THEIR_ACTIVATION[encoder.activation],
        "dropout": encoder.dropout,
        "initializer_range": encoder.init_std,
        "layer_norm_eps": encoder.eps,
        "clamp_len": position.clamp or -1,
        "untie_r": True,
        "attn_type": "bi",
        "use_mems_eval": False,
    }


def read_transformer_xl(f: Fields) -> ModelConfig:
    f.only("attn_type", 0)
    f.only("adaptive", True)
    f.only("sample_softmax", -1)
    tied_tables = all([f.switch("tie_weight", True), f.switch("tie_word_embeddings", True)])  # two names for it
    for name in ("mem_len", "tgt_len", "ext_len", "same_length", "init", "init_range", "proj_init_std", "n_token"):
        f.take(name, None)  # arguments of a call here, or used only for initial weights
    clamp = f.count("clamp_len", 1000, least=-1)
    vocab = f.count("vocab_size", 267735)
    edges = f.take("cutoffs", [20000, 40000, 200000])
    if not isinstance(edges, list) or not all(isinstance(edge, int) for edge in edges) or edges != sorted(set(edges)):
        raise DataError(f"{f.source}: cutoffs is {edges!r}, expected increasing whole numbers; restore the file")
    cutoffs = tuple(edge for edge in edges if edge < vocab)
    ties = f.take("tie_projs", None)
    all_but_first = f.switch("proj_share_all_but_first", True)
    if ties is None:
        ties = [False, *[all_but_first] * len(cutoffs)]
    tied = _tied(ties)
    if tied is None:
        raise DataError(f"{f.source}: tie_projs {ties} is not implemented; all, all but the first, or none can be tied")
    dropout, width = f.number("dropout", 0.1), f.renamed("d_model", "hidden_size")
    encoder = EncoderConfig(
        vocab=vocab,
        layers=f.renamed("n_layer", "num_hidden_layers"),
        width=width,
        heads=f.renamed("n_head", "num_attention_heads"),
        head_width=f.count("d_head"),
        ff_width=f.count("d_inner"),
        embed_width=f.count("d_embed", width),
        position=RelativeShift(shared_biases=not f.switch("untie_r", True), clamp=max(0, clamp)),
        causal=True,
        norm="pre_but_last" if f.switch("pre_lnorm", False) else "post",
        adaptive=Adaptive(
            cutoffs=cutoffs, divisor=f.count("div_val", 1), tied_projections=tied, tied_tables=tied_tables
        ),
        types=0,
        embed_norm="none",
        eps=f.number("layer_norm_epsilon", 1e-5),
        activation="relu",
        attention_biases="none",
        dropout=dropout,
        attention_dropout=f.number("dropatt", 0.0),
        ff_dropout=dropout,
        output_dropout=dropout,
        init_std=f.number("init_std", 0.02),
    )
    return ModelConfig(family="transformer_xl", encoder=encoder, lm=LM(transform=False))


def _tied(ties: Any) -> TiedMaps | None:
    """Which clusters share their projections, from one boolean per cluster."""
    if not isinstance(ties, list) or not ties or not all(isinstance(tie, bool) for tie in ties):
        return None
    first, rest = ties[0], ties[1:]
    if len(set(rest)) > 1 or (first and rest and not rest[0]):
        return None
    if first:
        return "all"
    return "all_but_first" if not rest or rest[0] else "none"


def write_transformer_xl(config: ModelConfig) -> dict[str, Any]:
    encoder = config.encoder
    position, adaptive = encoder.position, encoder.adaptive
    if not isinstance(position, RelativeShift) or adaptive is None:
        raise DataError("Transformer-XL in transformers has relative shift and adaptive embeddings only")
    tied = adaptive.tied_projections
    return {
        "vocab_size": encoder.vocab,
        "n_layer": encoder.layers,
        "d_model": encoder.width,
        "d_embed": encoder.word_width,
        "n_head": encoder.heads,
        "d_head": encoder.key_width,
        "d_inner": encoder.ff_width,
        "cutoffs": list(adaptive.cutoffs),
        "div_val": adaptive.divisor,
        "tie_projs": [tied == "all", *[tied != "none"] * len(adaptive.cutoffs)],
        "proj_share_all_but_first": tied == "all_but_first",
        **({} if adaptive.tied_tables else {"tie_weight": False, "tie_word_embeddings": False}),
        "untie_r": not position.shared_biases,
        "clamp_len": position.clamp or -1,
        "dropout": encoder.dropout,
        "dropatt": encoder.attention_dropout,
        "init_std": encoder.init_std,
        "layer_norm_epsilon": encoder.eps,
        "attn_type": 0,
        "pre_lnorm": encoder.norm == "pre_but_last",
        "adaptive": True,
        "mem_len": 0,
        "same_length": False,
    }
