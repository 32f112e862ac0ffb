"""``config.json`` of ``transformers`` to and from ours, family by family.

A field that has no counterpart here and is not known to be inert is refused by name: it would change what the model
computes. Missing fields have the default of the class in ``transformers``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from encoderlab.errors import ConfigError, DataError
from encoderlab.models.base import ModelConfig
from encoderlab.nn.embeddings import Adaptive
from encoderlab.nn.encoder import EncoderConfig, Sharing, StemConvolution
from encoderlab.nn.heads import LM, RTD, Pooler
from encoderlab.nn.positions import Absolute, Disentangled, RelativeShift
from encoderlab.nn.spanconv import SpanDynamic

ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
    "tanh": "tanh",
}
THEIR_ACTIVATION = {"gelu": "gelu", "gelu_tanh": "gelu_new", "relu": "relu", "silu": "silu", "tanh": "tanh"}

INERT = frozenset(
    # What a file is called and where it comes from.
    "architectures model_type transformers_version _name_or_path torch_dtype dtype id2label label2id num_labels "
    "finetuning_task task_specific_params problem_type tokenizer_class language name _attn_implementation_autoset "
    # How results are returned, and how memory is saved; the results are the same.
    "output_attentions output_hidden_states return_dict use_cache output_past torchscript use_bfloat16 tf_legacy_loss "
    "gradient_checkpointing chunk_size_feed_forward tie_weights_ "
    # Ids of the tokenizer, which comes in files of its own.
    "bos_token_id eos_token_id pad_token_id sep_token_id cls_token_id mask_token_id unk_token_id padding_idx "
    "decoder_start_token_id "
    # Generation of text.
    "max_length min_length do_sample early_stopping num_beams num_beam_groups diversity_penalty temperature top_k "
    "top_p typical_p repetition_penalty length_penalty no_repeat_ngram_size encoder_no_repeat_ngram_size bad_words_ids "
    "num_return_sequences output_scores return_dict_in_generate forced_bos_token_id forced_eos_token_id prefix "
    "remove_invalid_values exponential_decay_length_penalty suppress_tokens begin_suppress_tokens "
    # Heads of fine-tuning, read where the folder has one; fields that no released code reads.
    "classifier_dropout classifier_dropout_prob qa_dropout seq_classif_dropout cls_dropout summary_type "
    "summary_use_proj summary_activation summary_last_dropout pooler_dropout pooler_hidden_act pooler_hidden_size "
    "start_n_top end_n_top "
    "directionality pooler_fc_size pooler_num_attention_heads pooler_num_fc_layers pooler_size_per_head pooler_type "
    "net_structure_type gap_size num_memory_blocks down_scale_factor sinusoidal_pos_embds legacy".split()
)
# Switches that have to be off (or at the value that they have in every encoder of the family).
FIXED: dict[str, tuple[Any, ...]] = {
    "is_encoder_decoder": (False,),
    "add_cross_attention": (False,),
    "tie_encoder_decoder": (False,),
    "cross_attention_hidden_size": (None,),
    "pruned_heads": ({}, None),
    "position_embedding_type": ("absolute",),
    "tie_word_embeddings": (True,),
}


class Fields:
    """The fields of a ``config.json``, each taken once; :meth:`finish` refuses those that nobody took."""

    _REQUIRED = object()

    def __init__(self, data: dict[str, Any], source: str) -> None:
        self.data, self.source = data, source
        self.taken: set[str] = set()

    def take(self, name: str, default: Any = _REQUIRED) -> Any:
        self.taken.add(name)
        value = self.data.get(name, default)
        if value is self._REQUIRED:
            raise DataError(f"{self.source}: field {name!r} is missing; restore the file from its source")
        return value

    def count(self, name: str, default: Any = _REQUIRED) -> int:
        """A whole number; some files have it as ``2.0``."""
        value = self.take(name, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or value != int(value):
            raise DataError(f"{self.source}: {name} is {value!r}, expected a whole number; restore the file")
        return int(value)

    def number(self, name: str, default: Any = _REQUIRED) -> float:
        value = self.take(name, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise DataError(f"{self.source}: {name} is {value!r}, expected a number; restore the file")
        return float(value)

    def activation(self, name: str, default: str = "gelu") -> Any:
        value = self.take(name, default)
        if value not in ACTIVATIONS:
            raise DataError(f"{self.source}: {name} {value!r} is not implemented; known are {', '.join(ACTIVATIONS)}")
        return ACTIVATIONS[value]

    def only(self, name: str, *allowed: Any) -> None:
        """Refuse every value but ``allowed``, the first of which is the default."""
        value = self.take(name, allowed[0])
        if value not in allowed:
            raise DataError(f"{self.source}: {name} {value!r} is not implemented (expected {allowed[0]!r})")

    def finish(self) -> None:
        """Refuse what was not taken, unless it is inert or says that a thing is off."""
        for name, allowed in FIXED.items():
            if name not in self.taken:
                self.only(name, *allowed)
        for name, value in self.data.items():
            if name not in self.taken and name not in INERT and value:
                raise DataError(
                    f"{self.source}: field {name!r} ({value!r}) is not implemented; it cannot be ignored safely"
                )


Reader = Callable[[Fields], ModelConfig]
Writer = Callable[[ModelConfig], dict[str, Any]]


def _common(f: Fields) -> dict[str, Any]:
    return {
        "vocab": f.count("vocab_size"),
        "layers": f.count("num_hidden_layers", 12),
        "width": f.count("hidden_size"),
        "heads": f.count("num_attention_heads"),
        "ff_width": f.count("intermediate_size"),
        "activation": f.activation("hidden_act"),
        "dropout": f.number("hidden_dropout_prob", 0.1),
        "attention_dropout": f.number("attention_probs_dropout_prob", 0.1),
        "init_std": f.number("initializer_range", 0.02),
        "eps": f.number("layer_norm_eps", 1e-12),
    }


def _their_common(encoder: EncoderConfig) -> dict[str, Any]:
    return {
        "vocab_size": encoder.vocab,
        "num_hidden_layers": encoder.layers,
        "hidden_size": encoder.width,
        "num_attention_heads": encoder.heads,
        "intermediate_size": encoder.ff_width,
        "hidden_act": THEIR_ACTIVATION[encoder.activation],
        "hidden_dropout_prob": encoder.dropout,
        "attention_probs_dropout_prob": encoder.attention_dropout,
        "initializer_range": encoder.init_std,
        "layer_norm_eps": encoder.eps,
        "type_vocab_size": encoder.types,
    }


def _absolute(encoder: EncoderConfig) -> Absolute:
    if not isinstance(encoder.position, Absolute):
        raise DataError(f"positions of kind {encoder.position.kind!r} are not part of this family in transformers")
    return encoder.position


def _read_bert(f: Fields) -> ModelConfig:
    encoder = EncoderConfig(
        **_common(f),
        position=Absolute(length=f.count("max_position_embeddings", 512)),
        types=f.count("type_vocab_size", 2),
        causal=bool(f.take("is_decoder", False)),
        truncated_init=True,
    )
    return ModelConfig(family="bert", encoder=encoder, pooler=Pooler(), lm=LM(), pair=True)


def _write_bert(config: ModelConfig) -> dict[str, Any]:
    encoder = config.encoder
    return {
        **_their_common(encoder),
        "max_position_embeddings": _absolute(encoder).length,
        "is_decoder": encoder.causal,
    }


def _read_roberta(f: Fields) -> ModelConfig:
    offset = f.count("pad_token_id", 1) + 1
    encoder = EncoderConfig(
        **_common(f),
        position=Absolute(length=f.count("max_position_embeddings", 512) - offset, offset=offset),
        types=f.count("type_vocab_size", 2),
        causal=bool(f.take("is_decoder", False)),
    )
    return ModelConfig(family="roberta", encoder=encoder, pooler=Pooler(), lm=LM())


def _write_roberta(config: ModelConfig) -> dict[str, Any]:
    encoder = config.encoder
    position = _absolute(encoder)
    return {
        **_their_common(encoder),
        "max_position_embeddings": position.length + position.offset,
        "pad_token_id": position.offset - 1,
        "type_vocab_size": max(1, encoder.types),
        "is_decoder": encoder.causal,
    }


def _read_albert(f: Fields) -> ModelConfig:
    encoder = EncoderConfig(
        **_common(f)
        | {"activation": f.activation("hidden_act", "gelu_new"), "dropout": f.number("hidden_dropout_prob", 0)}
        | {"attention_dropout": f.number("attention_probs_dropout_prob", 0)},
        position=Absolute(length=f.count("max_position_embeddings", 512)),
        types=f.count("type_vocab_size", 2),
        embed_width=f.count("embedding_size", 128),
        sharing=Sharing(groups=f.count("num_hidden_groups", 1), inner=f.count("inner_group_num", 1)),
        truncated_init=True,
    )
    return ModelConfig(family="albert", encoder=encoder, pooler=Pooler(), lm=LM(), pair=True)


def _write_albert(config: ModelConfig) -> dict[str, Any]:
    encoder = config.encoder
    sharing = encoder.sharing or Sharing(groups=encoder.layers)
    return {
        **_their_common(encoder),
        "max_position_embeddings": _absolute(encoder).length,
        "embedding_size": encoder.word_width,
        "num_hidden_groups": sharing.groups,
        "inner_group_num": sharing.inner,
    }


def _read_distilbert(f: Fields) -> ModelConfig:
    encoder = EncoderConfig(
        vocab=f.count("vocab_size"),
        layers=f.count("n_layers", 6),
        width=f.count("dim", 768),
        heads=f.count("n_heads", 12),
        ff_width=f.count("hidden_dim", 3072),
        activation=f.activation("activation"),
        dropout=f.number("dropout", 0.1),
        attention_dropout=f.number("attention_dropout", 0.1),
        init_std=f.number("initializer_range", 0.02),
        position=Absolute(length=f.count("max_position_embeddings", 512)),
        types=0,
    )
    return ModelConfig(family="distilbert", encoder=encoder, lm=LM())


def _write_distilbert(config: ModelConfig) -> dict[str, Any]:
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


def _read_electra(f: Fields) -> ModelConfig:
    encoder = EncoderConfig(
        **_common(f),
        position=Absolute(length=f.count("max_position_embeddings", 512)),
        types=f.count("type_vocab_size", 2),
        embed_width=f.count("embedding_size", 128),
        causal=bool(f.take("is_decoder", False)),
        truncated_init=True,
        glorot_map=True,
    )
    return ModelConfig(family="electra", encoder=encoder, lm=LM(), rtd=RTD())


def _write_electra(config: ModelConfig) -> dict[str, Any]:
    encoder = config.encoder
    return {
        **_their_common(encoder),
        "max_position_embeddings": _absolute(encoder).length,
        "embedding_size": encoder.word_width,
        "is_decoder": encoder.causal,
    }


def _read_convbert(f: Fields) -> ModelConfig:
    encoder = EncoderConfig(
        **_common(f),
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
    return ModelConfig(family="convbert", encoder=encoder, lm=LM(), rtd=RTD())


def _check_head_ratio(encoder: EncoderConfig, source: str) -> None:
    """``transformers`` makes heads ``width / kept heads / 2`` wide, which is the original's ``width / heads`` for
    ratio 2 alone.
    """
    assert isinstance(encoder.conv, SpanDynamic)
    if encoder.conv.head_ratio != 2 or encoder.heads % 2:
        raise DataError(
            f"{source}: with head_ratio {encoder.conv.head_ratio} and {encoder.heads} heads transformers has heads of "
            "another width than ConvBERT; only head_ratio 2 and an even number of heads are the same in both"
        )


def _write_convbert(config: ModelConfig) -> dict[str, Any]:
    encoder = config.encoder
    if not isinstance(encoder.conv, SpanDynamic) or encoder.conv.share_value:
        raise DataError(
            "transformers has span-dynamic convolution with a value map of its own only, not this convolution"
        )
    _check_head_ratio(encoder, "convbert")
    return {
        **_their_common(encoder),
        "max_position_embeddings": _absolute(encoder).length,
        "embedding_size": encoder.word_width,
        "head_ratio": encoder.conv.head_ratio,
        "conv_kernel_size": encoder.conv.kernel,
        "num_groups": encoder.ff_groups,
    }


def _deberta_terms(f: Fields) -> tuple[str, ...]:
    value = f.take("pos_att_type", None) or []
    names = value.lower().split("|") if isinstance(value, str) else value
    return tuple(name for name in ("c2p", "p2c") if name in [part.strip() for part in names])


def _read_deberta(f: Fields, *, position: dict[str, Any], **more: Any) -> ModelConfig:
    f.only("relative_attention", True)
    biased = bool(f.take("position_biased_input", True))
    positions, span = f.count("max_position_embeddings", 512), f.count("max_relative_positions", -1)
    encoder = EncoderConfig(
        **_common(f) | {"eps": f.number("layer_norm_eps", 1e-7)},
        position=Disentangled(
            span=span if span > 0 else positions,
            terms=_deberta_terms(f),  # type: ignore[arg-type]
            input_positions=positions if biased else 0,
            **position,
        ),
        types=f.count("type_vocab_size", 0),
        embed_norm="width",
        embed_width=f.count("embedding_size", f.data.get("hidden_size")),
        **more,
    )
    width = f.take("attention_head_size", encoder.key_width)
    if width != encoder.key_width:
        encoder = replace(encoder, head_width=width)
    return ModelConfig(
        family="deberta", encoder=encoder, lm=LM(), rtd=RTD(form="deberta"), mask_decoder=0 if biased else positions
    )


def _read_deberta_v1(f: Fields) -> ModelConfig:
    f.only("talking_head", False)
    return _read_deberta(f, position={}, attention_biases="query_value")


def _read_deberta_v2(f: Fields) -> ModelConfig:
    norms = [part.strip() for part in str(f.take("norm_rel_ebd", "none")).lower().split("|")]
    buckets = f.count("position_buckets", -1)
    kernel = f.count("conv_kernel_size", 0)
    activation, groups = f.activation("conv_act", "tanh"), f.count("conv_groups", 1)
    stem = StemConvolution(kernel=kernel, groups=groups, activation=activation) if kernel > 0 else None
    position = {
        "buckets": buckets if buckets > 0 else None,
        "share_projections": bool(f.take("share_att_key", False)),
        "norm": "layer_norm" in norms,
    }
    return _read_deberta(f, position=position, stem_conv=stem)


def _write_deberta(config: ModelConfig) -> dict[str, Any]:
    encoder = config.encoder
    position = encoder.position
    if not isinstance(position, Disentangled):
        raise DataError(f"DeBERTa in transformers has disentangled positions, not {position.kind!r}")
    table = position.input_positions or config.mask_decoder or position.span
    return {
        **_their_common(encoder),
        "max_position_embeddings": table,
        "max_relative_positions": position.span if position.span != table else -1,
        "relative_attention": True,
        "pos_att_type": list(position.terms),
        "position_biased_input": position.input_positions > 0,
        **({"embedding_size": encoder.word_width} if encoder.word_width != encoder.width else {}),
        **({"attention_head_size": encoder.head_width} if encoder.head_width else {}),
    }


def _write_deberta_v2(config: ModelConfig) -> dict[str, Any]:
    encoder, stem = config.encoder, config.encoder.stem_conv
    position = encoder.position
    assert isinstance(position, Disentangled)
    convolution = {}
    if stem is not None:
        convolution = {
            "conv_kernel_size": stem.kernel,
            "conv_groups": stem.groups,
            "conv_act": THEIR_ACTIVATION[stem.activation],
        }
    return {
        **_write_deberta(config),
        "position_buckets": position.buckets or -1,
        "norm_rel_ebd": "layer_norm" if position.norm else "none",
        "share_att_key": position.share_projections,
        **convolution,
    }


def _read_xlnet(f: Fields) -> ModelConfig:
    f.only("untie_r", True)
    f.only("attn_type", "bi")
    f.only("same_length", False)
    f.only("bi_data", False)
    for name in ("mem_len", "reuse_len", "use_mems_eval", "use_mems_train", "use_mems"):
        f.take(name, None)  # how much to remember between rows: given at the call here
    clamp = f.count("clamp_len", -1)
    dropout = f.number("dropout", 0.1)
    encoder = EncoderConfig(
        vocab=f.count("vocab_size"),
        layers=f.count("n_layer"),
        width=f.count("d_model"),
        heads=f.count("n_head"),
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
    f.only("d_head", encoder.key_width)
    return ModelConfig(family="xlnet", encoder=encoder, lm=LM(transform=False), mask_vector=True)


def _write_xlnet(config: ModelConfig) -> dict[str, Any]:
    encoder = config.encoder
    position = encoder.position
    if not isinstance(position, RelativeShift) or not position.segments or position.shared_biases:
        raise DataError(
            "XLNet in transformers has relative segments and biases of each layer's own, which this model lacks"
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


def _read_transformer_xl(f: Fields) -> ModelConfig:
    f.only("attn_type", 0)
    f.only("pre_lnorm", False)
    f.only("adaptive", True)
    f.only("sample_softmax", -1)
    f.only("tie_weight", True)
    for name in ("mem_len", "tgt_len", "ext_len", "same_length", "init", "init_range", "proj_init_std", "n_token"):
        f.take(name, None)  # given at the call here, or used once at the start
    clamp = f.count("clamp_len", 1000)
    vocab = f.count("vocab_size", 267735)
    cutoffs = tuple(edge for edge in f.take("cutoffs", [20000, 40000, 200000]) if edge < vocab)
    ties = f.take("tie_projs", None)
    all_but_first = bool(f.take("proj_share_all_but_first", True))
    if ties is None:
        ties = [not all_but_first, *[True] * len(cutoffs)]
    tied = {(True, True): "all", (False, True): "all_but_first", (False, False): "none"}.get((ties[0], all(ties[1:])))
    if tied is None or (not all(ties[1:]) and any(ties[1:])):
        raise DataError(f"{f.source}: tie_projs {ties} is not implemented; all, all but the first, or none can be tied")
    if not ties[1:]:
        tied = "all" if ties[0] else "all_but_first"
    dropout = f.number("dropout", 0.1)
    encoder = EncoderConfig(
        vocab=vocab,
        layers=f.count("n_layer"),
        width=f.count("d_model"),
        heads=f.count("n_head"),
        head_width=f.count("d_head"),
        ff_width=f.count("d_inner"),
        embed_width=f.count("d_embed", f.data.get("d_model")),
        position=RelativeShift(shared_biases=not f.take("untie_r", True), clamp=max(0, clamp)),
        causal=True,
        adaptive=Adaptive(cutoffs=cutoffs, divisor=f.count("div_val", 1), tied_projections=tied),  # type: ignore[arg-type]
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


def _write_transformer_xl(config: ModelConfig) -> dict[str, Any]:
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
        "untie_r": not position.shared_biases,
        "clamp_len": position.clamp or -1,
        "dropout": encoder.dropout,
        "dropatt": encoder.attention_dropout,
        "init_std": encoder.init_std,
        "layer_norm_epsilon": encoder.eps,
        "attn_type": 0,
        "pre_lnorm": False,
        "adaptive": True,
        "mem_len": 0,
        "same_length": False,
    }


@dataclass(frozen=True)
class Format:
    """A ``model_type`` of ``transformers``, the stem of its class names, and the two ways of its configuration."""

    model_type: str
    stem: str
    read: Reader
    write: Writer


FORMATS = {
    form.model_type: form
    for form in (
        Format("bert", "Bert", _read_bert, _write_bert),
        Format("roberta", "Roberta", _read_roberta, _write_roberta),
        Format("albert", "Albert", _read_albert, _write_albert),
        Format("distilbert", "DistilBert", _read_distilbert, _write_distilbert),
        Format("electra", "Electra", _read_electra, _write_electra),
        Format("convbert", "ConvBert", _read_convbert, _write_convbert),
        Format("deberta", "Deberta", _read_deberta_v1, _write_deberta),
        Format("deberta-v2", "DebertaV2", _read_deberta_v2, _write_deberta_v2),
        Format("xlnet", "XLNet", _read_xlnet, _write_xlnet),
        Format("transfo-xl", "TransfoXL", _read_transformer_xl, _write_transformer_xl),
    )
}
OLD_TYPES = {"conv_bert": "convbert", "debertav2": "deberta-v2"}


def read(data: dict[str, Any], source: str) -> tuple[Format, ModelConfig]:
    """The format and the configuration, with every pretraining head that the family can have.

    Raises:
        DataError: an unknown ``model_type``, or a field that is missing, wrong or not implemented.
    """
    name = data.get("model_type")
    form = FORMATS.get(OLD_TYPES.get(name, name)) if isinstance(name, str) else None
    if form is None:
        raise DataError(f"{source}: model_type {name!r} is not implemented; known are {', '.join(FORMATS)}")
    fields = Fields(data, source)
    try:
        config = form.read(fields)
    except ConfigError as error:
        raise DataError(f"{source}: {error}") from None
    fields.finish()
    return form, config


def format_of(config: ModelConfig) -> Format:
    """The format that can hold the model."""
    if config.family == "transformer_xl":
        return FORMATS["transfo-xl"]
    if config.family == "deberta":
        return FORMATS["deberta" if config.encoder.attention_biases == "query_value" else "deberta-v2"]
    if config.family not in FORMATS:
        raise DataError(f"family {config.family!r} has no counterpart in transformers")
    return FORMATS[config.family]


NOT_COMPUTED = {"truncated_init", "glorot_map", "init_std"}  # fields that matter for new weights only


def write(config: ModelConfig) -> dict[str, Any]:
    """The fields of ``config.json``; what they say is read back, and anything that got lost is refused by name.

    Raises:
        DataError: the architecture has a part that ``transformers`` lacks.
    """
    form = format_of(config)
    data = {"model_type": form.model_type, **form.write(config)}
    _, back = read(dict(data), form.model_type)
    for field in dataclasses.fields(EncoderConfig):
        mine, theirs = (comparable(value, field.name) for value in (config.encoder, back.encoder))
        if mine != theirs and field.name not in NOT_COMPUTED:
            raise DataError(
                f"{form.model_type} in transformers has no place for {field.name} {mine!r} (it has {theirs!r})"
            )
    return data


def comparable(encoder: EncoderConfig, name: str) -> Any:
    """A field with the defaults that mean the same made equal."""
    if name == "embed_width":
        return encoder.word_width
    if name == "head_width":
        return encoder.key_width
    value = getattr(encoder, name)
    if name == "types" and value == 1 and isinstance(encoder.position, Absolute) and encoder.position.offset:
        return 0  # RoBERTa's one row of zeros
    if name == "conv" and isinstance(value, SpanDynamic):
        return replace(value, mask_padding=False)  # equal but for padded rows, which the caller says
    return value
