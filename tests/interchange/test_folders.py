"""Hugging Face folders: what is tolerated, what is listed, what is refused, and that every refusal is one line."""

from __future__ import annotations

import json
import logging
import os
import pickle
import resource
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor

from encoderlab import load
from encoderlab.corpus.tokenizer import Tokenizer
from encoderlab.errors import ConfigError, DataError
from encoderlab.interchange import folder, huggingface
from encoderlab.model import Model
from encoderlab.models.base import resized
from encoderlab.nn.architecture import Sharing
from encoderlab.nn.heads import Classification, Pooler, Span, Tagging
from encoderlab.nn.positions import Absolute, Disentangled, RelativeShift, Rotary, Shaw
from encoderlab.nn.spanconv import SpanDynamic
from tests.interchange.tiny_models import CONFIGS, make, same_weights

pytestmark = pytest.mark.usefixtures("unrecorded")
WEIGHTS = "model.safetensors"


@pytest.fixture
def bert(tmp_path: Path) -> tuple[Model, Path]:
    model = make(CONFIGS["bert"])
    huggingface.save(model, tmp_path / "bert")
    return model, tmp_path / "bert"


def rewrite(folder: Path, change: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> None:
    safetensors.torch.save_file(change(safetensors.torch.load_file(folder / WEIGHTS)), folder / WEIGHTS)


def configure(folder: Path, **fields: Any) -> None:
    data = json.loads((folder / "config.json").read_text()) | fields
    (folder / "config.json").write_text(json.dumps(data))


def refused(folder: Path, *words: str) -> None:
    with pytest.raises(DataError) as caught:
        load(folder)
    assert "\n" not in str(caught.value)
    for word in words:
        assert word in str(caught.value)


# Round trips


@pytest.mark.parametrize("case", CONFIGS)
def test_round_trip(case: str, tmp_path: Path) -> None:
    model = make(CONFIGS[case])
    huggingface.save(model, tmp_path / "out")
    back = load(tmp_path / "out")
    assert same_weights(model, back)
    assert replace(back.config, encoder=model.config.encoder) == model.config
    huggingface.save(back, tmp_path / "again")
    for file in ("config.json", WEIGHTS):
        assert (tmp_path / "again" / file).read_bytes() == (tmp_path / "out" / file).read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again", "out"]


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_half_precision_is_read_as_float32_with_the_same_values(kind: torch.dtype, tmp_path: Path) -> None:
    model = make(CONFIGS["bert"]).to(kind)
    model.save(tmp_path / "small")
    assert {tensor.dtype for tensor in safetensors.torch.load_file(tmp_path / "small" / WEIGHTS).values()} == {kind}
    assert same_weights(load(tmp_path / "small"), model.float())


def test_shared_storage_of_tied_tensors_is_restored(bert: tuple[Model, Path]) -> None:
    model, folder = bert
    assert "cls.predictions.decoder.weight" not in safetensors.torch.load_file(folder / WEIGHTS)
    rewrite(
        folder, lambda t: t | {"cls.predictions.decoder.weight": t["bert.embeddings.word_embeddings.weight"].clone()}
    )
    back = load(folder)
    assert same_weights(model, back) and back.words is back.encoder.embeddings.words
    rewrite(folder, lambda t: t | {"cls.predictions.decoder.weight": t["cls.predictions.decoder.weight"] + 1})
    refused(folder, "cls.predictions.decoder.weight", "not tied")


# Names that vary


VARIATIONS: dict[str, Callable[[str], str]] = {
    "without prefix": lambda name: name.removeprefix("bert."),
    "data parallel": lambda name: f"module.{name}",
    "compiled": lambda name: f"_orig_mod.{name}",
    "gamma and beta": lambda name: name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
        "LayerNorm.bias", "LayerNorm.beta"
    ),
}


@pytest.mark.parametrize("variation", VARIATIONS)
def test_names_of_old_files(bert: tuple[Model, Path], variation: str, caplog: pytest.LogCaptureFixture) -> None:
    model, folder = bert
    rewrite(folder, lambda tensors: {VARIATIONS[variation](name): tensor for name, tensor in tensors.items()})
    assert same_weights(model, load(folder))
    assert not caplog.records


def test_two_encoders_in_one_file(bert: tuple[Model, Path]) -> None:
    model, folder = bert
    name = "bert.embeddings.word_embeddings.weight"
    rewrite(folder, lambda tensors: tensors | {name.removeprefix("bert."): tensors[name].clone()})
    assert same_weights(model, load(folder))
    rewrite(folder, lambda tensors: tensors | {name.removeprefix("bert."): tensors[name] + 1})
    refused(folder, "embeddings.word_embeddings.weight differs from", "delete one")


def test_buffers_are_dropped_silently(bert: tuple[Model, Path], caplog: pytest.LogCaptureFixture) -> None:
    model, folder = bert
    rewrite(folder, lambda tensors: tensors | {"bert.embeddings.position_ids": torch.arange(16)[None]})
    assert same_weights(model, load(folder))
    assert not caplog.records


def test_unexpected_weights_are_listed(bert: tuple[Model, Path], caplog: pytest.LogCaptureFixture) -> None:
    model, folder = bert
    rewrite(folder, lambda tensors: tensors | {"classifier.weight": torch.zeros(2, 3)})
    with caplog.at_level(logging.WARNING, logger="encoderlab"):
        assert same_weights(model, load(folder))
    assert "unexpected" in caplog.text and "classifier.weight" in caplog.text


@pytest.mark.parametrize(
    ("prefix", "absent"),
    [("cls.seq_relationship", {"pair": False}), ("cls.predictions", {"lm": None}), ("bert.pooler", {"pooler": None})],
)
def test_heads_that_are_not_there(bert: tuple[Model, Path], prefix: str, absent: dict[str, Any]) -> None:
    model, folder = bert
    rewrite(folder, lambda t: {n: v for n, v in t.items() if not n.startswith((prefix, "cls.seq_relationship"))})
    assert load(folder).config == replace(model.config, **absent | {"pair": False})


def test_missing_weights(bert: tuple[Model, Path], caplog: pytest.LogCaptureFixture) -> None:
    model, folder = bert
    rewrite(folder, lambda t: {n: v for n, v in t.items() if "layer.1.output.dense.weight" not in n})
    refused(folder, "bert.encoder.layer.1.output.dense.weight", "missing")
    with caplog.at_level(logging.WARNING, logger="encoderlab"):
        back = load(folder, allow_missing=True)
    assert "at random" in caplog.text
    name = "encoder.blocks.1.feed_forward.down.weight"
    differ = [n for n, p in model.named_parameters() if not torch.equal(p, back.get_parameter(n))]
    assert differ == [name]


def test_a_missing_weight_of_a_head_is_listed(bert: tuple[Model, Path], caplog: pytest.LogCaptureFixture) -> None:
    _, folder = bert
    rewrite(folder, lambda t: {n: v for n, v in t.items() if n != "cls.predictions.bias"})
    with caplog.at_level(logging.WARNING, logger="encoderlab"):
        assert load(folder).lm is not None
    assert "cls.predictions.bias" in caplog.text


def test_a_missing_pooler_that_a_classifier_reads_is_listed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = replace(CONFIGS["albert"], task=Classification(labels=2), labels=("a", "b"), lm=None, pair=False)
    huggingface.save(make(config), tmp_path / "out")
    rewrite(tmp_path / "out", lambda tensors: {n: t for n, t in tensors.items() if "pooler" not in n})
    assert load(tmp_path / "out").pooler is not None
    assert "missing weights, initialised at random: albert.pooler.weight, albert.pooler.bias" in caplog.text


def test_both_dialects_are_refused_where_there_is_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="a head of bert has one name .*; leave out --both-heads"):
        huggingface.save(make(CONFIGS["bert"]), tmp_path / "out", both_heads=True)


@pytest.mark.parametrize("both", [False, True])
def test_both_dialects_of_deberta(both: bool, tmp_path: Path) -> None:
    model = make(CONFIGS["deberta-v2"])
    notes = huggingface.save(model, tmp_path / "out", both_heads=both)
    assert any("mask decoder" in note for note in notes)
    assert "mask decoder" in (tmp_path / "out" / "README.md").read_text()
    names = set(safetensors.torch.load_file(tmp_path / "out" / WEIGHTS))
    assert "cls.predictions.transform.dense.weight" in names
    assert ("lm_predictions.lm_head.dense.weight" in names) == both
    if both:  # files of the original have its own names only
        rewrite(tmp_path / "out", lambda t: {n: v for n, v in t.items() if not n.startswith("cls.")})
        assert same_weights(model, load(tmp_path / "out"))


# Shards and legacy files


def test_shards(bert: tuple[Model, Path]) -> None:
    model, folder = bert
    tensors = safetensors.torch.load_file(folder / WEIGHTS)
    (folder / WEIGHTS).unlink()
    where = {name: f"model-0000{1 + i % 2}-of-00002.safetensors" for i, name in enumerate(tensors)}
    for file in set(where.values()):
        safetensors.torch.save_file({n: tensors[n] for n in tensors if where[n] == file}, folder / file)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": where}))
    assert same_weights(model, load(folder))
    index.write_text(json.dumps({"weight_map": where | {"lost": "model-00001-of-00002.safetensors"}}))
    refused(folder, "lost")
    for away in ("../secret.safetensors", "..", ""):
        index.write_text(json.dumps({"weight_map": where | {"away": away}}))
        refused(folder, f"names {away!r}, which is not a file of this folder")
    index.write_text(json.dumps({"weight_map": where}))
    second, name = folder / "model-00002-of-00002.safetensors", next(iter(tensors))  # a tensor of the first
    whole = safetensors.torch.load_file(second)
    safetensors.torch.save_file(whole | {name: tensors[name]}, second)
    assert same_weights(model, load(folder))
    safetensors.torch.save_file(whole | {name: tensors[name] + 1}, second)
    refused(folder, f"{second}: {name} differs from the one in an earlier file of {index.name}; copy the folder again")
    (folder / "model-00002-of-00002.safetensors").unlink()
    refused(folder, "model-00002-of-00002.safetensors")


@pytest.mark.parametrize("zipped", [True, False])
def test_a_legacy_bin(bert: tuple[Model, Path], zipped: bool) -> None:
    model, folder = bert
    tensors = safetensors.torch.load_file(folder / WEIGHTS)
    (folder / WEIGHTS).unlink()
    torch.save(tensors, folder / "pytorch_model.bin", _use_new_zipfile_serialization=zipped)
    assert same_weights(model, load(folder))
    (folder / "pytorch_model.bin").write_bytes((folder / "pytorch_model.bin").read_bytes()[:-5000])
    refused(folder, "pytorch_model.bin")


@pytest.mark.parametrize(
    ("change", "said"), [(lambda t: t.to_sparse(), "is sparse"), (lambda t: t.to("meta"), "has no values")]
)
def test_a_bin_with_other_tensors(change: Callable[[Tensor], Tensor], said: str, bert: tuple[Model, Path]) -> None:
    name = "bert.encoder.layer.0.output.dense.weight"
    tensors = safetensors.torch.load_file(bert[1] / WEIGHTS)
    (bert[1] / WEIGHTS).unlink()
    torch.save(tensors | {name: change(tensors[name])}, bert[1] / "pytorch_model.bin")
    refused(bert[1], name, said)


class Trap:
    """What reading with pickle would run."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return subprocess.run, ([sys.executable, "-c", f"open({str(self.path)!r}, 'w')"],)


@pytest.mark.parametrize("how", ["torch", "pickle"])
def test_code_in_a_bin_is_refused_and_not_run(bert: tuple[Model, Path], how: str) -> None:
    _, folder = bert
    (folder / WEIGHTS).unlink()
    file = folder / "pytorch_model.bin"
    content = {"bert.pooler.dense.bias": torch.zeros(3), "extra": Trap(folder / "ran")}
    torch.save(content, file) if how == "torch" else file.write_bytes(pickle.dumps(content))
    refused(folder, "pytorch_model.bin")
    assert not (folder / "ran").exists()


# Damage


@pytest.mark.parametrize("keep", [0, 5, 100, 5000, -1])
def test_a_truncated_file(bert: tuple[Model, Path], keep: int) -> None:
    _, folder = bert
    (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:keep])
    refused(folder, WEIGHTS, "damaged")


@pytest.mark.parametrize("file", [WEIGHTS, "pytorch_model.bin"])
@pytest.mark.parametrize("text", ["<!DOCTYPE html>\n<html>404</html>", "version https://git-lfs.github.com/spec/v1\n"])
def test_text_in_place_of_weights(bert: tuple[Model, Path], file: str, text: str) -> None:
    _, folder = bert
    (folder / WEIGHTS).unlink()
    (folder / file).write_text(text)
    refused(folder, f"{file}: is text instead of weights (begins with {text[:24]!r}); download it again")


def test_a_weight_that_is_not_finite(bert: tuple[Model, Path]) -> None:
    _, folder = bert
    rewrite(folder, lambda t: t | {"bert.pooler.dense.bias": torch.full((128,), float("nan"))})
    refused(folder, "not finite")


def test_shapes_that_disagree_with_the_configuration(bert: tuple[Model, Path]) -> None:
    _, folder = bert
    configure(folder, intermediate_size=500)
    refused(folder, "intermediate.dense.weight", "(512, 128)", "(500, 128)")


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"model_type": "gpt2"}', '{"model_type": "bert"}'])
def test_a_broken_configuration(bert: tuple[Model, Path], text: str) -> None:
    _, folder = bert
    (folder / "config.json").write_text(text)
    refused(folder, "config.json" if text != "{}" else "model_type")


def test_missing_files(tmp_path: Path, bert: tuple[Model, Path]) -> None:
    refused(tmp_path / "nowhere", "no such file or folder")
    (tmp_path / "empty").mkdir()
    refused(tmp_path / "empty", "config.json")
    (bert[1] / WEIGHTS).unlink()
    refused(bert[1], WEIGHTS)


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


def test_a_tensor_with_other_axes(tmp_path: Path) -> None:
    huggingface.save(make(CONFIGS["convbert"]), tmp_path / "out")
    name = "convbert.encoder.layer.0.attention.self.key_conv_attn_layer.depthwise.weight"
    rewrite(tmp_path / "out", lambda tensors: tensors | {name: tensors[name].flatten()})
    refused(tmp_path / "out", name, "shape")


@pytest.mark.parametrize("change", [lambda t: t.to(torch.int8), lambda t: t[:0]], ids=["quantised", "empty"])
def test_a_tensor_that_is_no_weight(change: Callable[[Tensor], Tensor], bert: tuple[Model, Path]) -> None:
    name = "bert.encoder.layer.0.output.dense.weight"
    rewrite(bert[1], lambda tensors: tensors | {name: change(tensors[name])})
    refused(bert[1], name)


@pytest.mark.parametrize("part", ["query", "value"])
def test_a_part_of_a_joined_tensor_that_is_quantised(part: str, bert: tuple[Model, Path]) -> None:
    name = f"bert.encoder.layer.0.attention.self.{part}.weight"
    rewrite(bert[1], lambda tensors: tensors | {name: tensors[name].to(torch.int8)})
    refused(bert[1], f"{name} is int8; quantised weights cannot be read")


def test_many_missing_weights_are_counted(bert: tuple[Model, Path]) -> None:
    configure(bert[1], num_hidden_layers=9)
    refused(bert[1], "bert.encoder.layer.2.", "and 80 more")


def test_more_layers_than_weights_are_refused_before_they_are_laid_out(bert: tuple[Model, Path]) -> None:
    configure(bert[1], num_hidden_layers=1000)
    refused(bert[1], "has 1,000 blocks of layers")
    configure(bert[1], num_hidden_layers=2**31 - 1)
    refused(bert[1], "layers is 2147483647; give at most 1,000")


def test_two_heads_under_two_names(tmp_path: Path) -> None:
    huggingface.save(make(CONFIGS["deberta-v2"]), tmp_path / "out", both_heads=True)
    name = "lm_predictions.lm_head.dense.weight"
    rewrite(tmp_path / "out", lambda tensors: tensors | {name: tensors[name] + 1})
    refused(tmp_path / "out", name, "differs")


def test_inert_fields_are_ignored(bert: tuple[Model, Path]) -> None:
    configure(bert[1], _name_or_path="x", use_cache=True, pooler_type="first", some_switch=False, num_beams=4)
    configure(bert[1], _num_labels=5, eos_token_ids=[102], generator_size="0.25")  # of old releases
    scores = {"activation_fn": "torch.nn.modules.linear.Identity"}
    configure(bert[1], sentence_transformers=scores, sbert_ce_default_activation_function=scores["activation_fn"])
    configure(bert[1], emb_size=128, cell={}, structure=[], pre_trained="", training="")  # of TinyBERT and rubert-tiny
    assert same_weights(bert[0], load(bert[1]))


# What single families need


def test_a_segment_row_of_roberta_is_kept_unless_it_is_zero(tmp_path: Path) -> None:
    model = make(CONFIGS["roberta"])
    huggingface.save(model, tmp_path / "out")
    assert load(tmp_path / "out").config.encoder.types == 0
    name = "roberta.embeddings.token_type_embeddings.weight"
    rewrite(tmp_path / "out", lambda tensors: tensors | {name: torch.ones(1, 128)})
    back = load(tmp_path / "out")
    ids = torch.randint(5, 50, (2, 9))
    assert back.config.encoder.types == 1
    assert not torch.allclose(back.encoder(ids).last, model.encoder(ids).last)


def test_rows_before_the_positions_of_roberta_are_kept(tmp_path: Path) -> None:
    """Nothing reads them, but a folder that is written again has the bytes that it had."""
    model = make(resized(CONFIGS["roberta"], vocab=261))
    huggingface.save(model, tmp_path / "out")
    model.tokenizer = Tokenizer.train("bpe", ["the letters alone"], 261)
    huggingface.save(model, tmp_path / "again")
    assert (tmp_path / "again" / WEIGHTS).read_bytes() == (tmp_path / "out" / WEIGHTS).read_bytes()


def test_the_map_of_albert_at_equal_widths(tmp_path: Path) -> None:
    model = make(resized(CONFIGS["albert"], embed_width=128))
    huggingface.save(model, tmp_path / "out")
    name = "albert.encoder.embedding_hidden_mapping_in.weight"
    assert torch.equal(safetensors.torch.load_file(tmp_path / "out" / WEIGHTS)[name], torch.eye(128))
    assert same_weights(model, load(tmp_path / "out"))
    rewrite(tmp_path / "out", lambda tensors: tensors | {name: torch.eye(128) * 2})
    mapped = load(tmp_path / "out")
    assert mapped.config.encoder.embed_map and torch.equal(mapped.encoder.embeddings.map.weight, torch.eye(128) * 2)


@pytest.mark.parametrize("case", ["deberta", "deberta-v3", "electra", "bert"])
def test_a_map_at_equal_widths_is_of_albert_alone(case: str, tmp_path: Path) -> None:
    """Classes of other families have one only where the widths differ, and would leave its weights out."""
    width = CONFIGS[case].encoder.width
    with pytest.raises(DataError, match="has embed_map False and cannot have True"):
        huggingface.save(make(resized(CONFIGS[case], embed_width=width, embed_map=True)), tmp_path / "out")


def test_a_pooler_that_its_class_lacks_is_kept_and_said(tmp_path: Path) -> None:
    """BERT pretrained without pairs (``bert-base-no-nsp``)."""
    model = make(replace(CONFIGS["bert"], pair=False))
    (note,) = huggingface.save(model, tmp_path / "out")
    assert "no pooler" in note and same_weights(load(tmp_path / "out"), model)
    assert not huggingface.save(make(CONFIGS["bert"]), tmp_path / "with pairs")


@pytest.mark.parametrize(
    ("head", "lost"), [(Tagging(labels=2), "lm, pair, pooler"), (Classification(labels=2), "lm, pair")]
)
def test_heads_beside_a_task_head_are_left_out_and_said(head: Any, lost: str, tmp_path: Path) -> None:
    model = make(replace(CONFIGS["bert"], task=head, labels=("a", "b")))
    (note,) = huggingface.save(model, tmp_path / "out")
    assert note.endswith(f"have none: {lost}") and load(tmp_path / "out").lm is None


KINDS_OF_POSITIONS = (Absolute(sinusoidal=True), RelativeShift(), Shaw(), Disentangled(), Rotary())


@pytest.mark.parametrize("case", CONFIGS)
def test_positions_that_a_family_lacks_are_refused(case: str, tmp_path: Path) -> None:
    config = CONFIGS[case]
    tokenizer = Tokenizer.train("wordpiece", ["a b c d"] * 9, 13)
    changes = {"causal": False, "stem_conv": None, "local": None}
    for position in KINDS_OF_POSITIONS:
        if position.kind != config.encoder.position.kind or position.sinusoidal:
            model = Model(resized(replace(config, mask_vector=False, mask_decoder=0), position=position, **changes))
            model.tokenizer = tokenizer
            with pytest.raises(DataError, match="transformers"):
                huggingface.save(model.initialize(0), tmp_path / position.kind)
    assert not list(tmp_path.iterdir())


def test_albert_without_sharing(tmp_path: Path) -> None:
    config = resized(CONFIGS["albert"], sharing=None)
    model = make(config)
    huggingface.save(model, tmp_path / "out")
    back = load(tmp_path / "out")
    assert same_weights(back, model) and back.config.encoder.sharing == Sharing(groups=2)
    with pytest.raises(DataError, match="has sharing .* cannot have"):
        shared = resized(config, sharing=Sharing(parts=("attention",)))
        huggingface.save(make(shared), tmp_path / "attention")


def test_convbert_in_transformers(tmp_path: Path) -> None:
    masked = resized(CONFIGS["convbert"], conv=SpanDynamic(mask_padding=True))
    notes = huggingface.save(make(masked), tmp_path / "masked")
    assert any("padding" in note for note in notes)
    for changes in ({"heads": 1}, {"conv": SpanDynamic(head_ratio=4)}, {"conv": SpanDynamic(share_value=True)}):
        with pytest.raises(DataError):
            huggingface.save(make(resized(CONFIGS["convbert"], **changes)), tmp_path / "other")
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    ("case", "head"),
    [
        ("electra", Classification(labels=2, summary="raw")),
        ("deberta-v2", Tagging(labels=2, dense=True)),
        ("electra", Span(variant="conditional")),
        ("albert", Span(variant="beam")),
        ("convbert", Classification(labels=2, summary="dense", activation="relu")),
    ],
)
def test_task_heads_that_transformers_lacks(case: str, head: Any, tmp_path: Path) -> None:
    config = replace(CONFIGS[case], task=head, labels=("a", "b"), lm=None, pair=False, rtd=None, mask_decoder=0)
    with pytest.raises(DataError, match="no counterpart"):
        huggingface.save(make(config), tmp_path / "out")


@pytest.mark.parametrize(
    ("case", "head", "message"),
    [
        ("roberta", Classification(labels=1, summary="dense"), "no counterpart"),  # its class reads the pooler
        ("deberta", Classification(labels=1, summary="dense", activation="gelu"), "no class ForMultipleChoice"),
    ],
)
def test_multiple_choice_that_transformers_lacks(case: str, head: Classification, message: str, tmp_path: Path) -> None:
    config = replace(CONFIGS[case], task=head, labels=("choice",), lm=None, mask_decoder=0)
    with pytest.raises(DataError, match=message):
        huggingface.save(make(config), tmp_path / "out")


@pytest.mark.parametrize(
    ("case", "head"),
    [
        ("bert", Classification(labels=2, dropout=0.3)),
        ("roberta", Classification(labels=2, summary="dense", input_dropout=0.3, dropout=0.3)),
        ("distilbert", Classification(labels=2, summary="dense", activation="relu", dropout=0.3)),
        ("deberta-v2", Classification(labels=2, summary="dense", activation="gelu", input_dropout=0.3, dropout=0.4)),
        ("xlnet", Tagging(labels=2, dropout=0.3)),
        ("albert", Tagging(labels=2, dropout=0.3)),
        ("distilbert", Tagging(labels=2, dropout=0.3)),
        ("distilbert", Span(dropout=0.3)),
    ],
)
def test_the_dropout_of_a_head_comes_back(case: str, head: Any, tmp_path: Path) -> None:
    labels = () if isinstance(head, Span) else ("a", "b")
    config = replace(CONFIGS[case], task=head, labels=labels, lm=None, pair=False, mask_decoder=0, mask_vector=False)
    if not isinstance(head, Classification) or head.summary != "pooler":
        config = replace(config, pooler=None)
    huggingface.save(make(config), tmp_path / "out")
    assert load(tmp_path / "out").config.task == head


@pytest.mark.parametrize(
    ("case", "head", "field", "usual"),
    [
        ("albert", Classification(labels=2), "classifier_dropout_prob", 0.1),
        ("albert", Tagging(labels=2), "classifier_dropout_prob", 0.1),
        ("distilbert", Classification(labels=2, summary="dense", activation="relu"), "seq_classif_dropout", 0.2),
        ("distilbert", Tagging(labels=2), "classifier_dropout", 0.3),  # that of the layers
        ("distilbert", Span(), "qa_dropout", 0.1),
        ("bert", Classification(labels=2), "classifier_dropout", 0.3),
    ],
)
def test_a_dropout_that_is_missing_is_that_of_transformers(
    case: str, head: Any, field: str, usual: float, tmp_path: Path
) -> None:
    pooler = Pooler() if isinstance(head, Classification) and head.summary == "pooler" else None
    labels = () if isinstance(head, Span) else ("a", "b")
    config = replace(CONFIGS[case], task=head, labels=labels, lm=None, pair=False, pooler=pooler)
    huggingface.save(make(resized(config, dropout=0.3)), tmp_path / "out")
    written = json.loads((tmp_path / "out/config.json").read_text())
    del written[field]
    (tmp_path / "out/config.json").write_text(json.dumps(written))
    task = load(tmp_path / "out").config.task
    assert task is not None and task.dropout == usual


def test_the_second_dropout_of_deberta_is_no_field_of_others(tmp_path: Path) -> None:
    config = replace(CONFIGS["bert"], task=Classification(labels=2), labels=("a", "b"), lm=None, pair=False)
    huggingface.save(make(config), tmp_path / "out")
    configure(tmp_path / "out", pooler_dropout=0.3)
    assert load(tmp_path / "out").config.task == config.task


def test_a_link_to_a_folder_stays_one(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "out").symlink_to("disk")
    model = make(CONFIGS["bert"])
    huggingface.save(model, tmp_path / "out")
    assert (tmp_path / "out").is_symlink() and same_weights(model, load(tmp_path / "disk"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["disk", "out"]


def test_a_file_is_not_a_folder(tmp_path: Path) -> None:
    (tmp_path / "out").touch()
    for save in (folder.save, huggingface.save):
        with pytest.raises(ConfigError, match="out: .*; choose a"):
            save(make(CONFIGS["bert"]), tmp_path / "out")


def test_two_folders_whose_names_begin_alike(tmp_path: Path) -> None:
    """Writing one leaves what another process writes of the other."""

    def fill(aside: Path) -> None:
        folder.save(make(CONFIGS["bert"]), tmp_path / "out")
        (aside / "whole").touch()

    folder.write_whole(tmp_path / "out.int8", fill)
    assert (tmp_path / "out.int8" / "whole").exists()


def test_an_existing_folder_is_not_overwritten(bert: tuple[Model, Path]) -> None:
    with pytest.raises(ConfigError, match="not empty"):
        huggingface.save(*bert)


def test_weights_that_are_not_finite_are_not_written(tmp_path: Path) -> None:
    model = make(CONFIGS["bert"])
    with torch.no_grad():
        model.words[3, 4] = float("inf")
    with pytest.raises(DataError, match="not finite"):
        huggingface.save(model, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_further_files_come_with_the_model_or_neither_does(tmp_path: Path) -> None:
    def write(aside: Path) -> None:
        (aside / "task.json").write_text("{}")

    def killed(aside: Path) -> None:
        write(aside)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        folder.save(make(CONFIGS["bert"]), tmp_path / "out", also=killed)
    assert not list(tmp_path.iterdir())
    folder.save(make(CONFIGS["bert"]), tmp_path / "out", also=write)
    assert (tmp_path / "out" / "task.json").exists() and load(tmp_path / "out").config.family == "bert"


@pytest.mark.parametrize("save", [huggingface.save, folder.save])
def test_a_full_disk_is_named_and_nothing_is_lost(save: Callable[..., Any], tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))  # as a full disk, the system refuses to write on
    try:
        with pytest.raises(DataError, match=r"out: could not be written .*; check permissions and space"):
            save(make(CONFIGS["bert"]), tmp_path / "out")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not list(tmp_path.iterdir())


def test_what_a_killed_process_left_is_swept_up(tmp_path: Path) -> None:
    def killed(aside: Path) -> None:
        (aside / "half").touch()
        os._exit(9)

    child = os.fork()
    if not child:
        folder.write_whole(tmp_path / "out", killed)
    os.waitpid(child, 0)
    assert list(tmp_path.glob(".out.*.tmp/half"))
    folder.save(make(CONFIGS["bert"]), tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_kill_between_the_two_renamings_loses_nothing(tmp_path: Path) -> None:
    model = make(CONFIGS["bert"])
    folder.save(model, tmp_path / "out")
    (tmp_path / "out" / "README.md").write_text("# Mine\n")
    (tmp_path / "out").rename(tmp_path / ".out.1.old")
    with pytest.raises(ZeroDivisionError):
        folder.write_whole(tmp_path / "out", lambda aside: 1 / 0)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]  # it alone holds the model
    (tmp_path / "out").rename(tmp_path / ".out.1.old")
    folder.save(model, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert (tmp_path / "out" / "README.md").read_text() == "# Mine\n"
