"""Weights of Hugging Face folders and our modules: other names, missing, unexpected and wrong ones."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor

from encoderlab import load
from encoderlab.interchange import huggingface
from encoderlab.model import Model
from encoderlab.nn.heads import Classification
from tests.interchange.changed import WEIGHTS, configure, refused, rewrite
from tests.interchange.tiny_models import CONFIGS, make, same_weights

pytestmark = pytest.mark.usefixtures("unrecorded")


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


def test_a_weight_that_is_not_finite(bert: tuple[Model, Path]) -> None:
    _, folder = bert
    rewrite(folder, lambda t: t | {"bert.pooler.dense.bias": torch.full((128,), float("nan"))})
    refused(folder, "not finite")


def test_shapes_that_disagree_with_the_configuration(bert: tuple[Model, Path]) -> None:
    _, folder = bert
    configure(folder, intermediate_size=500)
    refused(folder, "intermediate.dense.weight", "(512, 128)", "(500, 128)")


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
