"""``config.json``: as published for well-known models, nothing is refused; fields that we lack are refused by name."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from encoderlab import load, models
from encoderlab.errors import DataError
from encoderlab.interchange import configs, huggingface
from encoderlab.model import Model
from encoderlab.nn.heads import Classification
from encoderlab.nn.positions import Absolute
from tests.interchange.changed import configure, refused, rewrite
from tests.interchange.tiny_models import CONFIGS, make, same_weights

pytestmark = pytest.mark.usefixtures("unrecorded")
DROPOUT = {"attention_probs_dropout_prob": 0.1, "hidden_dropout_prob": 0.1, "initializer_range": 0.02}
BASE = {
    "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072,
    "hidden_act": "gelu", "max_position_embeddings": 512, **DROPOUT,
}  # fmt: skip
DEBERTA = BASE | {
    "relative_attention": True, "position_biased_input": False, "max_relative_positions": -1, "type_vocab_size": 0,
    "layer_norm_eps": 1e-7, "pos_att_type": "p2c|c2p",
}  # fmt: skip
V2 = DEBERTA | {
    "position_buckets": 256, "norm_rel_ebd": "layer_norm", "share_att_key": True, "attention_head_size": 64,
}  # fmt: skip
MODERN = {
    "architectures": ["ModernBertForMaskedLM"], "model_type": "modernbert", "attention_bias": False,
    "attention_dropout": 0.0, "bos_token_id": 50281, "classifier_activation": "gelu", "classifier_bias": False,
    "classifier_dropout": 0.0, "classifier_pooling": "mean", "cls_token_id": 50281, "decoder_bias": True,
    "deterministic_flash_attn": False, "embedding_dropout": 0.0, "eos_token_id": 50282,
    "global_attn_every_n_layers": 3, "global_rope_theta": 160000.0, "gradient_checkpointing": False,
    "hidden_activation": "gelu", "hidden_size": 768, "initializer_cutoff_factor": 2.0, "initializer_range": 0.02,
    "intermediate_size": 1152, "layer_norm_eps": 1e-05, "local_attention": 128, "local_rope_theta": 10000.0,
    "max_position_embeddings": 8192, "mlp_bias": False, "mlp_dropout": 0.0, "norm_bias": False, "norm_eps": 1e-05,
    "num_attention_heads": 12, "num_hidden_layers": 22, "pad_token_id": 50283, "position_embedding_type": "absolute",
    "reference_compile": None, "repad_logits_with_grad": False, "sep_token_id": 50282,
    "sparse_pred_ignore_index": -100, "sparse_prediction": False, "tie_word_embeddings": True,
    "torch_dtype": "float32", "transformers_version": "4.47.0.dev0", "vocab_size": 50368,
}  # fmt: skip
PUBLISHED: dict[str, dict[str, Any]] = {
    "modernbert-base": MODERN,
    "modernbert-large": MODERN | {
        "hidden_size": 1024, "intermediate_size": 2624, "num_hidden_layers": 28, "num_attention_heads": 16,
    },
    "mmbert-small": {name: value for name, value in MODERN.items() if not name.endswith("rope_theta")} | {
        "hidden_size": 384, "num_attention_heads": 6, "vocab_size": 256000, "position_embedding_type": "sans_pos",
        "mask_token_id": 4, "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": 160000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 160000.0},
        },
    },
    "bert-base": BASE | {
        "architectures": ["BertForMaskedLM"], "model_type": "bert", "vocab_size": 30522, "type_vocab_size": 2,
        "layer_norm_eps": 1e-12, "gradient_checkpointing": False, "pad_token_id": 0, "use_cache": True,
        "position_embedding_type": "absolute", "transformers_version": "4.6.0.dev0",
    },
    "bert-base-chinese": BASE | {
        "model_type": "bert", "vocab_size": 21128, "directionality": "bidi", "layer_norm_eps": 1e-12,
        "pooler_fc_size": 768, "pooler_num_attention_heads": 12, "pooler_num_fc_layers": 3,
        "pooler_size_per_head": 128, "pooler_type": "first_token_transform", "type_vocab_size": 2,
    },
    "roberta-base": BASE | {
        "model_type": "roberta", "vocab_size": 50265, "max_position_embeddings": 514, "type_vocab_size": 1,
        "layer_norm_eps": 1e-5, "bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 1,
    },
    "albert-base-v2": BASE | {
        "model_type": "albert", "vocab_size": 30000, "embedding_size": 128, "hidden_act": "gelu_new",
        "attention_probs_dropout_prob": 0, "hidden_dropout_prob": 0, "classifier_dropout_prob": 0.1,
        "down_scale_factor": 1, "gap_size": 0, "inner_group_num": 1, "net_structure_type": 0, "num_hidden_groups": 1,
        "num_memory_blocks": 0, "type_vocab_size": 2, "layer_norm_eps": 1e-12,
    },
    "distilbert-base": {
        "model_type": "distilbert", "activation": "gelu", "attention_dropout": 0.1, "dim": 768, "dropout": 0.1,
        "hidden_dim": 3072, "initializer_range": 0.02, "max_position_embeddings": 512, "n_heads": 12, "n_layers": 6,
        "pad_token_id": 0, "qa_dropout": 0.1, "seq_classif_dropout": 0.2, "sinusoidal_pos_embds": False,
        "tie_weights_": True, "vocab_size": 30522,
    },
    "electra-small": BASE | {
        "architectures": ["ElectraForPreTraining"], "model_type": "electra", "vocab_size": 30522, "hidden_size": 256,
        "embedding_size": 128, "num_attention_heads": 4, "intermediate_size": 1024, "type_vocab_size": 2,
        "layer_norm_eps": 1e-12, "summary_activation": "gelu", "summary_last_dropout": 0.1, "summary_type": "first",
        "summary_use_proj": True,
    },
    "convbert-medium-small": BASE | {
        "model_type": "convbert", "vocab_size": 30522, "hidden_size": 384, "embedding_size": 128,
        "num_attention_heads": 8, "intermediate_size": 1536, "num_groups": 2, "head_ratio": 2, "conv_kernel_size": 9,
        "type_vocab_size": 2, "layer_norm_eps": 1e-12, "pad_token_id": 0,
    },
    "deberta-base": DEBERTA | {
        "model_type": "deberta", "vocab_size": 50265, "padding_idx": 0, "pos_att_type": "c2p|p2c",
        "pooler_dropout": 0, "pooler_hidden_act": "gelu", "pooler_hidden_size": 768,
    },
    "deberta-v2-xlarge": V2 | {
        "model_type": "deberta-v2", "vocab_size": 128100, "hidden_size": 1536, "num_hidden_layers": 24,
        "num_attention_heads": 24, "intermediate_size": 6144, "conv_kernel_size": 3, "conv_act": "gelu",
    },
    "deberta-v3-base": V2 | {"model_type": "deberta-v2", "vocab_size": 128100},
    "mdeberta-v3-base": V2 | {"model_type": "deberta-v2", "vocab_size": 251000},
    "erlangshen-deberta-v2-97m": V2 | {
        "model_type": "deberta-v2", "vocab_size": 12800, "conv_kernel_size": 3, "conv_act": "gelu", "pad_token_id": 0,
    },
    "xlnet-base": {
        "architectures": ["XLNetLMHeadModel"], "model_type": "xlnet", "attn_type": "bi", "bi_data": False,
        "bos_token_id": 1, "clamp_len": -1, "d_head": 64, "d_inner": 3072, "d_model": 768, "dropout": 0.1,
        "end_n_top": 5, "eos_token_id": 2, "ff_activation": "gelu", "initializer_range": 0.02,
        "layer_norm_eps": 1e-12, "mem_len": None, "n_head": 12, "n_layer": 12, "pad_token_id": 5, "reuse_len": None,
        "same_length": False, "start_n_top": 5, "summary_activation": "tanh", "summary_last_dropout": 0.1,
        "summary_type": "last", "summary_use_proj": True, "untie_r": True, "vocab_size": 32000,
        "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 250}},
    },
    "transformer-xl-wt103-large": {
        "model_type": "transfo-xl", "adaptive": True, "attn_type": 0, "clamp_len": 1000,
        "cutoffs": [20000, 40000, 200000], "d_embed": 1024, "d_head": 64, "d_inner": 4096, "d_model": 1024,
        "div_val": 4, "dropatt": 0.2, "dropout": 0.2, "eos_token_id": 0, "ext_len": 0, "init": "normal",
        "init_range": 0.01, "init_std": 0.02, "layer_norm_epsilon": 1e-5, "mem_len": 1600, "n_head": 16,
        "n_layer": 18, "n_token": 267735, "pre_lnorm": False, "proj_init_std": 0.01,
        "proj_share_all_but_first": True, "same_length": True, "sample_softmax": -1, "tgt_len": 128,
        "tie_projs": [False, True, True, True], "tie_weight": True, "untie_r": True, "vocab_size": 267735,
    },
}  # fmt: skip
# What transformers' file says otherwise than ours, and that is all: XLNet's GELU, a clamp that is given at evaluation.
OTHERWISE = {"xlnet-base": {"activation": "gelu"}, "transformer-xl-wt103-large": {"clamp": 1000}}
UNCOMPARED = {"truncated_init", "glorot_map", "init_std"}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_configurations(name: str) -> None:
    _, found = configs.read(PUBLISHED[name], name)
    expected = models.config(name).encoder
    changes = dict(OTHERWISE.get(name, {}))
    if "clamp" in changes:
        changes = {"position": replace(expected.position, **changes)}
    if name == "roberta-base":
        changes = {"types": 1}  # told by its weights, which are zero
    expected = replace(expected, **changes)
    for field in vars(expected):
        if field not in UNCOMPARED:
            mine, theirs = (configs.comparable(encoder, field) for encoder in (expected, found.encoder))
            assert mine == theirs, field


def test_offsets_of_roberta() -> None:
    _, found = configs.read(PUBLISHED["roberta-base"], "roberta")
    assert found.encoder.position == Absolute(length=512, offset=2)


@pytest.mark.parametrize(
    ("value", "norm"), [("none", False), ("Layer_Norm", True), ("none|layer_norm", True), (" layer_norm | none ", True)]
)
def test_norms_of_the_distances_may_be_several(value: str, norm: bool) -> None:
    """As in the original code; of one that it does not know a file says more than is understood."""
    fields = PUBLISHED["deberta-v3-base"] | {"norm_rel_ebd": value}
    assert configs.read(fields, "deberta")[1].encoder.position.norm == norm
    with pytest.raises(DataError, match="norm_rel_ebd"):
        configs.read(fields | {"norm_rel_ebd": f"{value}|rms"}, "deberta")


@pytest.mark.parametrize(("share", "tied"), [(True, "all_but_first"), (False, "none")])
def test_ties_of_transformer_xl_without_their_list(share: bool, tied: str) -> None:
    """``transformers`` and the TensorFlow code tie no projection where they are not to tie all but the first."""
    fields = {name: value for name, value in PUBLISHED["transformer-xl-wt103-large"].items() if name != "tie_projs"}
    found = configs.read(fields | {"proj_share_all_but_first": share}, "transformer-xl")[1].encoder.adaptive
    assert found is not None and found.tied_projections == tied


@pytest.mark.parametrize(("width", "reach"), [(128, 64), (127, 63), (1, 0), (2, 1)])
def test_windows_of_modernbert_are_cut_in_half(width: int, reach: int) -> None:
    local = configs.read(MODERN | {"local_attention": width}, "config.json")[1].encoder.local
    assert local is not None and local.reach == reach


@pytest.mark.parametrize(("every", "full"), [(1, None), (2, (0,)), (22, (0,)), (30, (0,))])
def test_global_layers_of_modernbert(every: int, full: tuple[int, ...] | None) -> None:
    encoder = configs.read(MODERN | {"global_attn_every_n_layers": every}, "config.json")[1].encoder
    assert (encoder.local and encoder.local.full) == full
    assert [layer for layer in range(22) if encoder.sees_all(layer)] == list(range(0, 22, every))


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"model_type": "gpt2"}', '{"model_type": "bert"}'])
def test_a_broken_configuration(bert: tuple[Model, Path], text: str) -> None:
    _, folder = bert
    (folder / "config.json").write_text(text)
    refused(folder, "config.json" if text != "{}" else "model_type")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("position_embedding_type", "relative_key"),
        ("add_cross_attention", True),
        ("is_encoder_decoder", True),
        ("hidden_act", "mish"),
        ("hidden_act", ["gelu"]),
        ("tie_word_embeddings", False),
        ("pruned_heads", {"0": [1]}),
        ("mixture_of_depths", 4),
        ("emb_size", 64),
        ("hidden_size", "wide"),
        ("hidden_size", float("nan")),
        ("vocab_size", 10**30),
        ("vocab_size", 10**400),
        ("max_position_embeddings", 0),
        ("layer_norm_eps", float("inf")),
        ("is_decoder", "yes"),
        ("architectures", "BertForMaskedLM"),
    ],
)
def test_fields_that_are_not_implemented_are_refused_by_name(bert: tuple[Model, Path], field: str, value: Any) -> None:
    configure(bert[1], **{field: value})
    refused(bert[1], field)


def test_untied_tables_matter_only_with_an_lm_head(bert: tuple[Model, Path], tmp_path: Path) -> None:
    model, folder = bert
    configure(folder, tie_word_embeddings=False)
    refused(folder, "config.json", "tie_word_embeddings False is not implemented")
    rewrite(folder, lambda t: {name: tensor for name, tensor in t.items() if not name.startswith("cls.")})
    assert load(folder).config.lm is None
    assert torch.equal(load(folder).words, model.words)
    tuned = model.with_task(Classification(labels=2), ("no", "yes"), 0)
    huggingface.save(tuned, tmp_path / "tuned")
    configure(tmp_path / "tuned", tie_word_embeddings=False)
    assert load(tmp_path / "tuned").config.labels == ("no", "yes")


@pytest.mark.parametrize(
    ("fields", "part"),
    [
        ({"architectures": ["BertForSpeech"]}, "BertForSpeech is not implemented"),
        (
            {"architectures": ["BertForSequenceClassification"], "problem_type": "regression", "num_labels": 3},
            "problem_type 'regression' with 3 outputs is not implemented",
        ),
    ],
)
def test_heads_that_are_not_implemented_are_refused_with_the_file(bert, fields: dict[str, Any], part: str) -> None:
    configure(bert[1], **fields)
    refused(bert[1], f"{bert[1] / 'config.json'}: {part}")


@pytest.mark.parametrize(
    ("case", "head", "field", "value"),
    [
        ("deberta", None, "pos_att_type", ["c2p", "p2c", "p2p"]),
        ("deberta", None, "pos_att_type", 3),
        ("deberta", None, "relative_attention", None),
        ("deberta-v2", None, "position_buckets", 1),
        ("deberta-v2", None, "norm_rel_ebd", "rms"),
        ("deberta-v2", None, "conv_groups", 3),
        ("deberta-v2", None, "attention_head_size", 16),
        ("transformer-xl-cut", None, "cutoffs", [30, 10]),
        ("transformer-xl-cut", None, "tie_projs", "all"),
        ("transformer-xl-cut", None, "architectures", ["TransfoXLForSequenceClassification"]),
        ("convbert", None, "architectures", ["ConvBertForMultipleChoice"]),
        ("xlnet", Classification(labels=2, summary="dense"), "summary_type", "mean"),
        ("xlnet", Classification(labels=2, summary="dense"), "summary_activation", None),
        ("bert", Classification(labels=2), "id2label", {"a": "b"}),
        ("bert", Classification(labels=2), "id2label", 3.5),
        ("bert", Classification(labels=2), "id2label", {"0": "a", "1": None}),
        ("bert", Classification(labels=2), "problem_type", "ordinal"),
        ("modernbert", None, "rope_parameters", {"full_attention": 5}),
        ("distilbert", None, "num_attention_heads", 4),
        ("xlnet", None, "hidden_size", 64),
        ("transformer-xl", None, "num_hidden_layers", 3),
        ("bert", Classification(labels=2), "classifier_dropout", "much"),
    ],
)
def test_fields_of_single_families_are_refused_by_name(
    case: str, head: Any, field: str, value: Any, tmp_path: Path
) -> None:
    config = CONFIGS[case]
    if head is not None:
        config = replace(config, task=head, labels=("a", "b"), lm=None, pair=False, mask_vector=False)
    huggingface.save(make(config), tmp_path / "out")
    assert load(tmp_path / "out").task is not None or head is None
    configure(tmp_path / "out", **{field: value})
    named = {"architectures": "For", "position_buckets": "buckets", "conv_groups": "3 groups"}
    refused(tmp_path / "out", named.get(field, field))


def test_more_labels_than_any_head_are_refused_before_they_are_named(bert: tuple[Model, Path]) -> None:
    configure(bert[1], architectures=["BertForSequenceClassification"], num_labels=2**31 - 1)
    refused(bert[1], "num_labels is 2147483647, expected at most")


def test_layers_of_deberta_must_be_counted(tmp_path: Path) -> None:
    """Defaults of ``transformers`` and of the original differ."""
    huggingface.save(make(CONFIGS["deberta-v2"]), tmp_path / "out")
    data = json.loads((tmp_path / "out/config.json").read_text())
    del data["num_hidden_layers"]
    (tmp_path / "out/config.json").write_text(json.dumps(data))
    refused(tmp_path / "out", "'num_hidden_layers' is missing")


@pytest.mark.parametrize(
    ("case", "own"), [("distilbert", ("dim", "n_heads", "n_layers")), ("xlnet", ("d_model", "n_head", "n_layer"))]
)
def test_names_of_other_families_for_sizes(case: str, own: tuple[str, ...], tmp_path: Path) -> None:
    """``transformers`` reads both names."""
    model = make(CONFIGS[case])
    huggingface.save(model, tmp_path / "out")
    data = json.loads((tmp_path / "out/config.json").read_text())
    generic = dict(zip(("hidden_size", "num_attention_heads", "num_hidden_layers"), map(data.pop, own), strict=True))
    (tmp_path / "out/config.json").write_text(json.dumps(data | generic))
    assert load(tmp_path / "out").config == model.config


def test_inert_fields_are_ignored(bert: tuple[Model, Path]) -> None:
    configure(bert[1], _name_or_path="x", use_cache=True, pooler_type="first", some_switch=False, num_beams=4)
    configure(bert[1], _num_labels=5, eos_token_ids=[102], generator_size="0.25")  # of old releases
    scores = {"activation_fn": "torch.nn.modules.linear.Identity"}
    configure(bert[1], sentence_transformers=scores, sbert_ce_default_activation_function=scores["activation_fn"])
    configure(bert[1], emb_size=128, cell={}, structure=[], pre_trained="", training="")  # of TinyBERT and rubert-tiny
    assert same_weights(bert[0], load(bert[1]))
