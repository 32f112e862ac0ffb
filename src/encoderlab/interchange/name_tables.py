"""The tables of names, family by family: ours, then theirs. :mod:`encoderlab.interchange.names` explains a row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from encoderlab.interchange.names import (
    COLUMN,
    DEPTHWISE,
    DEPTHWISE_TF,
    FLAT,
    HEADS_SPLIT,
    HEADS_SPLIT_OUT,
    INTERLEAVED,
    POINTWISE,
    POINTWISE_TF,
    REVERSED,
    SAME,
    SCALAR_VECTOR,
    TRANSPOSED,
    TRANSPOSED_OUT,
    Change,
    NameTable,
    Rule,
)
from encoderlab.nn.embeddings import Adaptive

Rules = tuple[Rule, ...]
BLOCK = "encoder.blocks.{layer}."
EMBEDDINGS = "encoder.embeddings."


# How modules are written down in PyTorch ... -------------------------------------------------------------------------


def linear(ours: str, theirs: str, *, dialect: str = "") -> Rules:
    """A linear map or a LayerNorm: weight and bias."""
    return tuple(
        Rule(f"{ours}.{part}", (f"{theirs}.{part}",), dialect=(f"{dialect}.{part}",) if dialect else ())
        for part in ("weight", "bias")
    )


def table(ours: str, theirs: str, *, ties: Sequence[str] = ()) -> Rules:
    """An embedding table."""
    return (Rule(ours, (f"{theirs}.weight",), ties=tuple(ties)),)


def qkv(ours: str, theirs: str, names: Sequence[str]) -> Rules:
    """The three maps of attention."""
    parts = [theirs + name for name in names]
    return (
        Rule(f"{ours}.qkv", tuple(f"{part}.weight" for part in parts)),
        Rule(f"{ours}.bias", tuple(f"{part}.bias" for part in parts)),
    )


# ... and in TensorFlow -----------------------------------------------------------------------------------------------


def tf_linear(ours: str, theirs: str, kernel: Change = TRANSPOSED) -> Rules:
    return Rule(f"{ours}.weight", (f"{theirs}/kernel",), kernel), Rule(f"{ours}.bias", (f"{theirs}/bias",), FLAT)


def tf_norm(ours: str, theirs: str) -> Rules:
    return Rule(f"{ours}.weight", (f"{theirs}/gamma",)), Rule(f"{ours}.bias", (f"{theirs}/beta",))


def tf_qkv(ours: str, theirs: str) -> Rules:
    parts = [f"{theirs}/{name}" for name in ("query", "key", "value")]
    return (
        Rule(f"{ours}.qkv", tuple(f"{part}/kernel" for part in parts), TRANSPOSED),
        Rule(f"{ours}.bias", tuple(f"{part}/bias" for part in parts), FLAT),
    )


# BERT, and the names that RoBERTa, ELECTRA, ConvBERT and DeBERTa share with it
# -----------------------------------------


def _embeddings(prefix: str, words_tied_to: Sequence[str] = ()) -> Rules:
    theirs = f"{prefix}embeddings."
    return (
        *table(EMBEDDINGS + "words", theirs + "word_embeddings", ties=words_tied_to),
        *table(EMBEDDINGS + "positions", theirs + "position_embeddings"),
        *table(EMBEDDINGS + "types", theirs + "token_type_embeddings"),
        *linear(EMBEDDINGS + "norm", theirs + "LayerNorm"),
    )


def _layers(prefix: str) -> Rules:
    """All of a layer except the maps of queries, keys and values."""
    theirs = prefix + "encoder.layer.{layer}."
    return (
        *linear(BLOCK + "attention.out", theirs + "attention.output.dense"),
        *linear(BLOCK + "attention_norm", theirs + "attention.output.LayerNorm"),
        *linear(BLOCK + "feed_forward.up", theirs + "intermediate.dense"),
        *linear(BLOCK + "feed_forward.down", theirs + "output.dense"),
        *linear(BLOCK + "feed_forward_norm", theirs + "output.LayerNorm"),
    )


def _tree(prefix: str, words_tied_to: Sequence[str] = ()) -> Rules:
    self_attention = prefix + "encoder.layer.{layer}.attention.self."
    return (
        *_embeddings(prefix, words_tied_to),
        *qkv(BLOCK + "attention", self_attention, ("query", "key", "value")),
        *_layers(prefix),
    )


def _tf_embeddings(scope: str) -> Rules:
    return (
        Rule(EMBEDDINGS + "words", (f"{scope}/embeddings/word_embeddings",)),
        Rule(EMBEDDINGS + "positions", (f"{scope}/embeddings/position_embeddings",)),
        Rule(EMBEDDINGS + "types", (f"{scope}/embeddings/token_type_embeddings",)),
        *tf_norm(EMBEDDINGS + "norm", f"{scope}/embeddings/LayerNorm"),
    )


def _tf_layers(scope: str) -> Rules:
    theirs = scope + "/encoder/layer_{layer}/"
    return (
        *tf_qkv(BLOCK + "attention", theirs + "attention/self"),
        *tf_linear(BLOCK + "attention.out", theirs + "attention/output/dense", TRANSPOSED_OUT),
        *tf_norm(BLOCK + "attention_norm", theirs + "attention/output/LayerNorm"),
        *tf_linear(BLOCK + "feed_forward.up", theirs + "intermediate/dense"),
        *tf_linear(BLOCK + "feed_forward.down", theirs + "output/dense"),
        *tf_norm(BLOCK + "feed_forward_norm", theirs + "output/LayerNorm"),
    )


_TF_HEADS = (
    *tf_linear("pooler.dense", "bert/pooler/dense"),
    *tf_linear("lm.dense", "cls/predictions/transform/dense"),
    *tf_norm("lm.norm", "cls/predictions/transform/LayerNorm"),
    Rule("lm.bias", ("cls/predictions/output_bias",)),
    Rule("pair.weight", ("cls/seq_relationship/output_weights",)),
    Rule("pair.bias", ("cls/seq_relationship/output_bias",)),
    # of run_classifier.py, or of run_squad.py
    Rule("task.out.weight", ("output_weights",), dialect=("cls/squad/output_weights",)),
    Rule("task.out.bias", ("output_bias",), dialect=("cls/squad/output_bias",)),
)

BERT = NameTable(
    prefix="bert.",
    rules=(
        *_tree("bert.", ["cls.predictions.decoder.weight"]),
        *linear("pooler.dense", "bert.pooler.dense"),
        *linear("lm.dense", "cls.predictions.transform.dense"),
        *linear("lm.norm", "cls.predictions.transform.LayerNorm"),
        Rule("lm.bias", ("cls.predictions.bias",), ties=("cls.predictions.decoder.bias",)),
        *linear("pair", "cls.seq_relationship"),
    ),
)
BERT_TF = NameTable(rules=(*_tf_embeddings("bert"), *_tf_layers("bert"), *_TF_HEADS))

# RoBERTa

ROBERTA = NameTable(
    prefix="roberta.",
    rules=(
        *_tree("roberta.", ["lm_head.decoder.weight"]),
        *linear("pooler.dense", "roberta.pooler.dense"),
        *linear("lm.dense", "lm_head.dense"),
        *linear("lm.norm", "lm_head.layer_norm"),
        Rule("lm.bias", ("lm_head.bias",), ties=("lm_head.decoder.bias",)),
    ),
)

_FAIRSEQ = "encoder.sentence_encoder."
_FAIRSEQ_LAYER = _FAIRSEQ + "layers.{layer}."
_FAIRSEQ_ATTENTION = _FAIRSEQ_LAYER + "self_attn."
ROBERTA_FAIRSEQ = NameTable(
    rules=(
        *table(EMBEDDINGS + "words", _FAIRSEQ + "embed_tokens", ties=["encoder.lm_head.weight"]),
        *table(EMBEDDINGS + "positions", _FAIRSEQ + "embed_positions"),
        *linear(EMBEDDINGS + "norm", _FAIRSEQ + "layernorm_embedding"),
        Rule(
            BLOCK + "attention.qkv",
            tuple(f"{_FAIRSEQ_ATTENTION}{part}_proj.weight" for part in "qkv"),
            dialect=(_FAIRSEQ_ATTENTION + "in_proj_weight",),
        ),
        Rule(
            BLOCK + "attention.bias",
            tuple(f"{_FAIRSEQ_ATTENTION}{part}_proj.bias" for part in "qkv"),
            dialect=(_FAIRSEQ_ATTENTION + "in_proj_bias",),
        ),
        *linear(BLOCK + "attention.out", _FAIRSEQ_ATTENTION + "out_proj"),
        *linear(BLOCK + "attention_norm", _FAIRSEQ_LAYER + "self_attn_layer_norm"),
        *linear(BLOCK + "feed_forward.up", _FAIRSEQ_LAYER + "fc1"),
        *linear(BLOCK + "feed_forward.down", _FAIRSEQ_LAYER + "fc2"),
        *linear(BLOCK + "feed_forward_norm", _FAIRSEQ_LAYER + "final_layer_norm"),
        *linear("lm.dense", "encoder.lm_head.dense"),
        *linear("lm.norm", "encoder.lm_head.layer_norm"),
        Rule("lm.bias", ("encoder.lm_head.bias",)),
    ),
    renames=((r"^decoder\.", "encoder."), (r"\.emb_layer_norm\.", ".layernorm_embedding.")),
    ignored=(r"sentence_encoder\.version$",),
)


def fairseq_head(theirs: str) -> Rules:
    """A classification head of fairseq's RoBERTa."""
    return (*linear("task.dense", f"{theirs}.dense"), *linear("task.out", f"{theirs}.out_proj"))


# ALBERT

_ALBERT_LAYER = "albert.encoder.albert_layer_groups.{group}.albert_layers.{inner}."
ALBERT = NameTable(
    prefix="albert.",
    rules=(
        *_embeddings("albert.", ["predictions.decoder.weight"]),
        *linear(EMBEDDINGS + "map", "albert.encoder.embedding_hidden_mapping_in"),
        *qkv(BLOCK + "attention", _ALBERT_LAYER + "attention.", ("query", "key", "value")),
        *linear(BLOCK + "attention.out", _ALBERT_LAYER + "attention.dense"),
        *linear(BLOCK + "attention_norm", _ALBERT_LAYER + "attention.LayerNorm"),
        *linear(BLOCK + "feed_forward.up", _ALBERT_LAYER + "ffn"),
        *linear(BLOCK + "feed_forward.down", _ALBERT_LAYER + "ffn_output"),
        *linear(BLOCK + "feed_forward_norm", _ALBERT_LAYER + "full_layer_layer_norm"),
        *linear("pooler.dense", "albert.pooler"),
        *linear("lm.dense", "predictions.dense"),
        *linear("lm.norm", "predictions.LayerNorm"),
        Rule("lm.bias", ("predictions.bias",), ties=("predictions.decoder.bias",)),
        *linear("pair", "sop_classifier.classifier"),
    ),
)
_ALBERT_TF_LAYER = "bert/encoder/transformer/group_{group}/inner_group_{inner}/"
ALBERT_TF = NameTable(
    rules=(
        *_tf_embeddings("bert"),
        *tf_linear(EMBEDDINGS + "map", "bert/encoder/embedding_hidden_mapping_in"),
        *tf_qkv(BLOCK + "attention", _ALBERT_TF_LAYER + "attention_1/self"),
        *tf_linear(BLOCK + "attention.out", _ALBERT_TF_LAYER + "attention_1/output/dense", TRANSPOSED_OUT),
        *tf_norm(BLOCK + "attention_norm", _ALBERT_TF_LAYER + "LayerNorm"),
        *tf_linear(BLOCK + "feed_forward.up", _ALBERT_TF_LAYER + "ffn_1/intermediate/dense"),
        *tf_linear(BLOCK + "feed_forward.down", _ALBERT_TF_LAYER + "ffn_1/intermediate/output/dense"),
        *tf_norm(BLOCK + "feed_forward_norm", _ALBERT_TF_LAYER + "LayerNorm_1"),
        *_TF_HEADS,
    ),
    renames=((r"^module/", ""),),
)

# ModernBERT

_MODERNBERT_LAYER = "model.layers.{layer}."
MODERNBERT = NameTable(
    prefix="model.",
    rules=(
        *table(EMBEDDINGS + "words", "model.embeddings.tok_embeddings", ties=["decoder.weight"]),
        *linear(EMBEDDINGS + "norm", "model.embeddings.norm"),
        Rule(BLOCK + "attention.qkv", (_MODERNBERT_LAYER + "attn.Wqkv.weight",)),
        Rule(BLOCK + "attention.bias", (_MODERNBERT_LAYER + "attn.Wqkv.bias",)),
        *linear(BLOCK + "attention.out", _MODERNBERT_LAYER + "attn.Wo"),
        *linear(BLOCK + "attention_norm", _MODERNBERT_LAYER + "attn_norm"),
        *linear(BLOCK + "feed_forward.up", _MODERNBERT_LAYER + "mlp.Wi"),
        *linear(BLOCK + "feed_forward.down", _MODERNBERT_LAYER + "mlp.Wo"),
        *linear(BLOCK + "feed_forward_norm", _MODERNBERT_LAYER + "mlp_norm"),
        *linear("encoder.norm", "model.final_norm"),
        *linear("lm.dense", "head.dense"),
        *linear("lm.norm", "head.norm"),
        Rule("lm.bias", ("decoder.bias",)),
    ),
)

# DistilBERT

_DISTILBERT_LAYER = "distilbert.transformer.layer.{layer}."
DISTILBERT = NameTable(
    prefix="distilbert.",
    rules=(
        *_embeddings("distilbert.", ["vocab_projector.weight"]),
        *qkv(BLOCK + "attention", _DISTILBERT_LAYER + "attention.", ("q_lin", "k_lin", "v_lin")),
        *linear(BLOCK + "attention.out", _DISTILBERT_LAYER + "attention.out_lin"),
        *linear(BLOCK + "attention_norm", _DISTILBERT_LAYER + "sa_layer_norm"),
        *linear(BLOCK + "feed_forward.up", _DISTILBERT_LAYER + "ffn.lin1"),
        *linear(BLOCK + "feed_forward.down", _DISTILBERT_LAYER + "ffn.lin2"),
        *linear(BLOCK + "feed_forward_norm", _DISTILBERT_LAYER + "output_layer_norm"),
        *linear("lm.dense", "vocab_transform"),
        *linear("lm.norm", "vocab_layer_norm"),
        Rule("lm.bias", ("vocab_projector.bias",)),
    ),
)

# ELECTRA and ConvBERT ------------------------------------------------------------------------------------------------

_CONVOLUTION = BLOCK + "attention.conv."


def _electra(prefix: str) -> NameTable:
    return NameTable(
        prefix=prefix,
        rules=(
            *_tree(prefix, ["generator_lm_head.weight"]),
            *linear(EMBEDDINGS + "map", prefix + "embeddings_project"),
            *linear("rtd.dense", "discriminator_predictions.dense"),
            *linear("rtd.out", "discriminator_predictions.dense_prediction"),
            *linear("lm.dense", "generator_predictions.dense"),
            *linear("lm.norm", "generator_predictions.LayerNorm"),
            Rule("lm.bias", ("generator_lm_head.bias",)),
        ),
    )


ELECTRA = _electra("electra.")
_CONVBERT_SELF = "convbert.encoder.layer.{layer}.attention.self."
CONVBERT = NameTable(
    prefix="convbert.",
    rules=(
        Rule(_CONVOLUTION + "depthwise", (_CONVBERT_SELF + "key_conv_attn_layer.depthwise.weight",), DEPTHWISE),
        Rule(_CONVOLUTION + "pointwise.weight", (_CONVBERT_SELF + "key_conv_attn_layer.pointwise.weight",), POINTWISE),
        Rule(_CONVOLUTION + "pointwise.bias", (_CONVBERT_SELF + "key_conv_attn_layer.bias",), COLUMN),
        *linear(_CONVOLUTION + "kernel", _CONVBERT_SELF + "conv_kernel_layer"),
        *linear(_CONVOLUTION + "value", _CONVBERT_SELF + "conv_out_layer"),
        *_electra("convbert.").rules,
    ),
)


def electra_tf(*, generator: bool, alone: bool = False, embeddings: str = "electra") -> NameTable:
    """The generator or the discriminator in a checkpoint of ELECTRA or ConvBERT, or its only network (``alone``), which
    may have the heads of both; tensors of the other network are ignored.

    ``embeddings``: the scope of its embeddings, which the two networks share unless they were untied.
    """
    scope = "generator" if generator else "electra"
    theirs = scope + "/encoder/layer_{layer}/"
    self_attention = theirs + "attention/self/"
    lm = (
        *tf_linear("lm.dense", "generator_predictions/dense"),
        *tf_norm("lm.norm", "generator_predictions/LayerNorm"),
        Rule("lm.bias", ("generator_predictions/output_bias",)),
    )
    rtd = (
        *tf_linear("rtd.dense", "discriminator_predictions/dense"),
        *tf_linear("rtd.out", "discriminator_predictions/dense_1"),
    )
    others: tuple[str, ...] = ()
    if not alone:
        others = (
            (r"^electra/", r"^discriminator_predictions/")
            if generator
            else (r"^generator/", r"^generator_predictions/")
        )
    return NameTable(
        rules=(
            *_tf_embeddings(embeddings),
            *tf_linear(EMBEDDINGS + "map", f"{scope}/embeddings_project"),
            Rule(_CONVOLUTION + "depthwise", (self_attention + "conv_attn_key/depthwise_kernel",), DEPTHWISE_TF),
            Rule(_CONVOLUTION + "pointwise.weight", (self_attention + "conv_attn_key/pointwise_kernel",), POINTWISE_TF),
            Rule(_CONVOLUTION + "pointwise.bias", (self_attention + "conv_attn_key/bias",)),
            *tf_linear(_CONVOLUTION + "kernel", self_attention + "conv_attn_kernel"),
            *tf_linear(_CONVOLUTION + "value", self_attention + "conv_attn_point"),
            *_tf_layers(scope),
            *(lm if generator or alone else ()),
            *(() if generator else rtd),
        ),
        ignored=others,
    )


def electra_tf_grouped(*, generator: bool, **more: Any) -> NameTable:
    """As :func:`electra_tf`, with ConvBERT's grouped feed-forward maps (G, in / G, out / G), which have other names."""
    name_table = electra_tf(generator=generator, **more)
    theirs = ("generator" if generator else "electra") + "/encoder/layer_{layer}/"
    grouped = (
        Rule(BLOCK + "feed_forward.up.weight", (theirs + "intermediate/g_dense/kernel",)),
        Rule(BLOCK + "feed_forward.up.bias", (theirs + "intermediate/g_dense/bias",)),
        Rule(BLOCK + "feed_forward.down.weight", (theirs + "output/g_dense/kernel",)),
        Rule(BLOCK + "feed_forward.down.bias", (theirs + "output/g_dense/bias",)),
    )
    return NameTable(rules=(*grouped, *name_table.rules), ignored=name_table.ignored)


# DeBERTa

_DEBERTA_SELF = "deberta.encoder.layer.{layer}.attention.self."
_TERM = BLOCK + "attention.term."
_DEBERTA_COMMON = (
    *_embeddings("deberta.", ["cls.predictions.decoder.weight"]),
    Rule("mask_positions", ("deberta.embeddings.position_embeddings.weight",)),
    Rule(EMBEDDINGS + "map.weight", ("deberta.embeddings.embed_proj.weight",)),
    *_layers("deberta."),
    *table("encoder.distances.table", "deberta.encoder.rel_embeddings"),
    *linear("encoder.distances.norm", "deberta.encoder.LayerNorm"),
    *linear("encoder.stem.conv", "deberta.encoder.conv.conv"),
    *linear("encoder.stem.norm", "deberta.encoder.conv.LayerNorm"),
    *linear("lm.dense", "cls.predictions.transform.dense", dialect="lm_predictions.lm_head.dense"),
    *linear("lm.norm", "cls.predictions.transform.LayerNorm", dialect="lm_predictions.lm_head.LayerNorm"),
    Rule(
        "lm.bias",
        ("cls.predictions.bias",),
        ties=("cls.predictions.decoder.bias",),
        dialect=("lm_predictions.lm_head.bias",),
    ),
    *linear("rtd.dense", "mask_predictions.dense"),
    *linear("rtd.norm", "mask_predictions.LayerNorm"),
    *linear("rtd.out", "mask_predictions.classifier"),
)
DEBERTA_V1 = NameTable(
    prefix="deberta.",
    rules=(
        Rule(BLOCK + "attention.qkv", (_DEBERTA_SELF + "in_proj.weight",), INTERLEAVED),
        Rule(BLOCK + "attention.bias", (_DEBERTA_SELF + "q_bias", _DEBERTA_SELF + "v_bias")),
        *linear(_TERM + "key", _DEBERTA_SELF + "pos_proj"),
        *linear(_TERM + "query", _DEBERTA_SELF + "pos_q_proj"),
        *_DEBERTA_COMMON,
    ),
    renames=((r"^bert\.", "deberta."),),
)
DEBERTA_V2 = NameTable(
    prefix="deberta.",
    rules=(
        *qkv(BLOCK + "attention", _DEBERTA_SELF, ("query_proj", "key_proj", "value_proj")),
        *linear(_TERM + "key", _DEBERTA_SELF + "pos_key_proj"),
        *linear(_TERM + "query", _DEBERTA_SELF + "pos_query_proj"),
        *_DEBERTA_COMMON,
    ),
    renames=((r"^bert\.", "deberta."),),
)

# XLNet

_XLNET_LAYER = "transformer.layer.{layer}."
_XLNET_ATTENTION = _XLNET_LAYER + "rel_attn."
XLNET = NameTable(
    prefix="transformer.",
    rules=(
        *table(EMBEDDINGS + "words", "transformer.word_embedding", ties=["lm_loss.weight"]),
        Rule("mask_vector", ("transformer.mask_emb",), SCALAR_VECTOR),
        Rule(BLOCK + "attention.qkv", tuple(_XLNET_ATTENTION + part for part in "qkv"), HEADS_SPLIT),
        Rule(BLOCK + "attention.out.weight", (_XLNET_ATTENTION + "o",), HEADS_SPLIT_OUT),
        Rule(_TERM + "project.weight", (_XLNET_ATTENTION + "r",), HEADS_SPLIT),
        Rule(_TERM + "u", (_XLNET_ATTENTION + "r_w_bias",)),
        Rule(_TERM + "v", (_XLNET_ATTENTION + "r_r_bias",)),
        Rule(_TERM + "s", (_XLNET_ATTENTION + "r_s_bias",)),
        Rule(_TERM + "segment", (_XLNET_ATTENTION + "seg_embed",)),
        *linear(BLOCK + "attention_norm", _XLNET_ATTENTION + "layer_norm"),
        *linear(BLOCK + "feed_forward.up", _XLNET_LAYER + "ff.layer_1"),
        *linear(BLOCK + "feed_forward.down", _XLNET_LAYER + "ff.layer_2"),
        *linear(BLOCK + "feed_forward_norm", _XLNET_LAYER + "ff.layer_norm"),
        Rule("lm.bias", ("lm_loss.bias",)),
    ),
)
_XLNET_TF = "model/transformer/"
_XLNET_TF_LAYER = _XLNET_TF + "layer_{layer}/"
_XLNET_TF_ATTENTION = _XLNET_TF_LAYER + "rel_attn/"
XLNET_TF = NameTable(
    rules=(
        Rule(EMBEDDINGS + "words", (_XLNET_TF + "word_embedding/lookup_table",)),
        Rule("mask_vector", (_XLNET_TF + "mask_emb/mask_emb",), SCALAR_VECTOR),
        Rule(BLOCK + "attention.qkv", tuple(f"{_XLNET_TF_ATTENTION}{part}/kernel" for part in "qkv"), HEADS_SPLIT),
        Rule(BLOCK + "attention.out.weight", (_XLNET_TF_ATTENTION + "o/kernel",), HEADS_SPLIT_OUT),
        Rule(_TERM + "project.weight", (_XLNET_TF_ATTENTION + "r/kernel",), HEADS_SPLIT),
        Rule(_TERM + "u", (_XLNET_TF + "r_w_bias/{layer}",)),
        Rule(_TERM + "v", (_XLNET_TF + "r_r_bias/{layer}",)),
        Rule(_TERM + "s", (_XLNET_TF + "r_s_bias/{layer}",)),
        Rule(_TERM + "segment", (_XLNET_TF + "seg_embed/{layer}",)),
        *tf_norm(BLOCK + "attention_norm", _XLNET_TF_ATTENTION + "LayerNorm"),
        *tf_linear(BLOCK + "feed_forward.up", _XLNET_TF_LAYER + "ff/layer_1"),
        *tf_linear(BLOCK + "feed_forward.down", _XLNET_TF_LAYER + "ff/layer_2"),
        *tf_norm(BLOCK + "feed_forward_norm", _XLNET_TF_LAYER + "ff/LayerNorm"),
        Rule("lm.bias", ("model/lm_loss/bias",)),
    ),
    stacked=tuple(_XLNET_TF + name for name in ("r_w_bias", "r_r_bias", "r_s_bias", "seg_embed")),
)
XLNET_TF_SPAN = (  # of run_squad.py
    *tf_linear("task.start", "start_logits/dense"),
    *tf_linear("task.end_dense", "end_logits/dense_0"),
    *tf_norm("task.end_norm", "end_logits/LayerNorm"),
    *tf_linear("task.end_out", "end_logits/dense_1"),
    *tf_linear("task.answer_dense", "answer_class/dense_0"),
    *tf_linear("task.answer_out", "answer_class/dense_1"),
)


def xlnet_tf_classifier(out: str) -> Rules:
    """The head of ``run_classifier.py`` or ``run_race.py``, whose scores are in scope ``out``."""
    return *tf_linear("task.dense", "model/sequnece_summary/summary"), *tf_linear("task.out", out)  # written so there


# Transformer-XL


def transformer_xl(adaptive: Adaptive, vocab: int, *, original: bool) -> NameTable:
    """The original PyTorch code, or ``transformers`` (4.x), which adds ``transformer.`` to the names of the encoder.

    The original reads column -i of the head for tail cluster i, so its cluster rows are in reversed order.
    """
    prefix = "" if original else "transformer."
    cluster_rows = REVERSED if original else SAME
    layer = prefix + "layers.{layer}."
    sizes = [stop - start for start, stop in adaptive.sizes(vocab)]
    per_cluster = adaptive.divisor > 1  # otherwise all clusters share one table and one map
    clusters = range(len(sizes))
    tables = clusters if per_cluster else range(1)
    return NameTable(
        rules=(
            *(
                Rule(
                    f"{EMBEDDINGS}clusters.tables.{i}",
                    (f"{prefix}word_emb.emb_layers.{i}.weight",),
                    ties=(f"crit.out_layers.{i}.weight",) if adaptive.tied_tables else (),
                )
                for i in tables
            ),
            *(
                Rule(
                    f"{EMBEDDINGS}clusters.maps.{i}",
                    (f"{prefix}word_emb.emb_projs.{i}",),
                    ties=tuple(f"crit.out_projs.{j}" for j in clusters if j * per_cluster == i and _tied(adaptive, j)),
                )
                for i in tables
            ),
            Rule("encoder.distances.u", (prefix + "r_w_bias",)),
            Rule("encoder.distances.v", (prefix + "r_r_bias",)),
            Rule(BLOCK + "attention.qkv", (layer + "dec_attn.qkv_net.weight",)),
            *linear(BLOCK + "attention.out", layer + "dec_attn.o_net"),
            *linear(_TERM + "project", layer + "dec_attn.r_net"),
            Rule(_TERM + "u", (layer + "dec_attn.r_w_bias",)),
            Rule(_TERM + "v", (layer + "dec_attn.r_r_bias",)),
            *linear(BLOCK + "attention_norm", layer + "dec_attn.layer_norm"),
            *linear(BLOCK + "feed_forward.up", layer + "pos_ff.CoreNet.0"),
            *linear(BLOCK + "feed_forward.down", layer + "pos_ff.CoreNet.3"),
            *linear(BLOCK + "feed_forward_norm", layer + "pos_ff.layer_norm"),
            Rule("lm.cluster_weight", ("crit.cluster_weight",), cluster_rows),
            Rule("lm.cluster_bias", ("crit.cluster_bias",), cluster_rows),
            Rule("lm.biases.{cluster}", ("crit.out_layers.{cluster}.bias",)),
            *([] if adaptive.tied_tables else [Rule("lm.tables.{cluster}", ("crit.out_layers.{cluster}.weight",))]),
            Rule("lm.maps.{cluster}", ("crit.out_projs.{cluster}",)),
        ),
        pieces={"crit.out_layers.0.bias": tuple((f"crit.out_layers.{i}.bias", size) for i, size in enumerate(sizes))}
        if not per_cluster
        else {},
        # transformers repeats biases that all layers share in every layer.
        ignored=(r"pos_emb\.inv_freq$", *(() if original else (r"dec_attn\.r_[wr]_bias$",))),
    )


def transformer_xl_tf(adaptive: Adaptive) -> NameTable:
    """The original TensorFlow code; without cutoffs, and with divisor 1, the tables have no scope for their cluster."""
    layer = "transformer/layer_{layer}/"
    embed, softmax = "transformer/adaptive_embed/", "transformer/adaptive_softmax/"
    cut = "cutoff_{cluster}/" if adaptive.divisor > 1 else ""
    return NameTable(
        rules=(
            Rule(EMBEDDINGS + "clusters.tables.{cluster}", (f"{embed}{cut}lookup_table",)),
            Rule(EMBEDDINGS + "clusters.maps.{cluster}", (f"{embed}{cut}proj_W",), TRANSPOSED),
            Rule("encoder.distances.u", ("transformer/r_w_bias",)),
            Rule("encoder.distances.v", ("transformer/r_r_bias",)),
            Rule(BLOCK + "attention.qkv", (layer + "rel_attn/qkv/kernel",), TRANSPOSED),
            *tf_linear(BLOCK + "attention.out", layer + "rel_attn/o"),
            *tf_linear(_TERM + "project", layer + "rel_attn/r"),
            Rule(_TERM + "u", ("transformer/r_w_bias/{layer}",)),
            Rule(_TERM + "v", ("transformer/r_r_bias/{layer}",)),
            *tf_norm(BLOCK + "attention_norm", layer + "rel_attn/LayerNorm"),
            *tf_linear(BLOCK + "feed_forward.up", layer + "ff/layer_1"),
            *tf_linear(BLOCK + "feed_forward.down", layer + "ff/layer_2"),
            *tf_norm(BLOCK + "feed_forward_norm", layer + "ff/LayerNorm"),
            Rule("lm.cluster_weight", (softmax + "cutoff_0/cluster_W",)),
            Rule("lm.cluster_bias", (softmax + "cutoff_0/cluster_b",)),
            Rule("lm.biases.{cluster}", (softmax + ("cutoff_{cluster}/b" if adaptive.cutoffs else "bias"),)),
            Rule("lm.maps.{cluster}", (softmax + "cutoff_{cluster}/proj",), TRANSPOSED),
        ),
        stacked=("transformer/r_w_bias", "transformer/r_r_bias"),
    )


def _tied(adaptive: Adaptive, cluster: int) -> bool:
    return adaptive.tied_projections == "all" or (adaptive.tied_projections == "all_but_first" and cluster > 0)
