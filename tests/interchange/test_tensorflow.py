"""Checkpoints of the original TensorFlow code: what is read, and what is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from encoderlab.errors import DataError
from encoderlab.interchange import (
    configs,
    folder,
    huggingface,
    name_tables,
    names,
    tensorflow,
)
from encoderlab.interchange.assemble import assemble
from encoderlab.interchange.load import kind_of, load, read
from encoderlab.models.base import resized
from encoderlab.nn.embeddings import Adaptive
from encoderlab.nn.heads import Classification, Span
from encoderlab.nn.spanconv import SpanDynamic
from tests.interchange.tiny_models import CONFIGS, lacking, make, same_weights

TF = (
    "albert_pretraining",
    "bert_pretraining",
    "convbert_ratio2_k9_groups1_step",
    "convbert_ratio2_k9_groups2_onehead_generator_step",
    "electra_small_step",
    "transformer_xl_tf_untied_uv",
    "xlnet_two_stream_memory_bi_data",
)


@pytest.mark.parametrize("case", TF)
def test_tensorflow(shared: Path, case: str, caplog: pytest.LogCaptureFixture) -> None:
    path = shared / "golden/tf_checkpoints" / case
    assert kind_of(path) == "tensorflow" == kind_of(path / "model.ckpt") == kind_of(path / "model.ckpt.index")
    models = read(path)
    assert set(models) == ({"generator", "discriminator"} if case.endswith("step") else {"model"})
    assert not caplog.records  # nothing missing, nothing left over
    with pytest.raises(DataError, match="encoderlab convert"):
        load(path)


def test_tensorflow_without_its_configuration(shared: Path, tmp_path: Path) -> None:
    for file in (shared / "golden/tf_checkpoints/bert_pretraining").glob("model.ckpt.*"):
        shutil.copyfile(file, tmp_path / file.name)
    with pytest.raises(DataError, match=r"bert_config\.json"):
        read(tmp_path)


def test_convbert_sizes_are_told_by_shapes(shared: Path, tmp_path: Path) -> None:
    case = "convbert_ratio2_k9_groups2_onehead_generator_step"
    for file in (shared / "golden/tf_checkpoints" / case).glob("model.ckpt.*"):
        shutil.copyfile(file, tmp_path / file.name)
    models = read(tmp_path)
    encoder = models["discriminator"].config.encoder
    assert (encoder.heads, encoder.ff_groups, encoder.ff_width, encoder.word_width) == (4, 2, 64, 24)
    assert encoder.conv == SpanDynamic(head_ratio=2, kernel=9, mask_padding=False)
    assert models["generator"].config.encoder.heads == 1


class Recorded:
    """A TensorFlow checkpoint in memory."""

    def __init__(self, tensors: dict[str, torch.Tensor], folder: Path) -> None:
        self.tensors, self.prefix, self.index_path = tensors, folder / "model.ckpt", folder / "model.ckpt.index"

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def read(self, name: str) -> np.ndarray:
        return self.tensors[name].numpy()


@pytest.mark.parametrize("ratio", [1, 2, 4])
def test_head_ratios_of_convbert_are_told_by_shapes(ratio: int, tmp_path: Path, monkeypatch: Any) -> None:
    config = resized(CONFIGS["convbert"], conv=SpanDynamic(head_ratio=ratio, kernel=5, mask_padding=False))
    model = make(config)
    tensors = names.write(name_tables.electra_tf(generator=False), folder.weights(model), config.encoder)
    monkeypatch.setattr(tensorflow, "Checkpoint", lambda path: Recorded(tensors, tmp_path))
    found = tensorflow.read(tmp_path)["model"]
    assert same_weights(found, model) and found.config.encoder.conv == config.encoder.conv


@pytest.mark.parametrize("family", ["bert", "albert"])
@pytest.mark.parametrize("head", [Classification(labels=3), Span()])
def test_heads_of_fine_tuned_tensorflow_models(
    family: str, head: Any, tmp_path: Path, monkeypatch: Any, caplog: pytest.LogCaptureFixture
) -> None:
    config = replace(CONFIGS[family], task=head, lm=None, pair=False)
    model, name_table = make(config), {"bert": name_tables.BERT_TF, "albert": name_tables.ALBERT_TF}[family]
    tensors = names.write(name_table, folder.weights(model), config.encoder, dialects=True)
    left_out = "output_" if isinstance(head, Span) else "cls/squad/"
    tensors = {name: tensor for name, tensor in tensors.items() if not name.startswith(left_out)}
    fields = {name: value for name, value in configs.write(config).items() if name != "model_type"}
    (tmp_path / f"{family}_config.json").write_text(json.dumps(fields))
    monkeypatch.setattr(tensorflow, "Checkpoint", lambda path: Recorded(tensors, tmp_path))
    found = tensorflow.read(tmp_path)["model"]
    assert same_weights(found, model) and found.config.task == head and not caplog.records
    huggingface.save(found, tmp_path / "hf")
    assert load(tmp_path / "hf").config.task == head and not caplog.records


@pytest.mark.parametrize(
    ("scores", "labels"),
    [
        ("model/classification_mnli/logit", ("LABEL_0", "LABEL_1", "LABEL_2")),
        ("model/regression_sts-b/logit", ("number",)),
        ("logits/dense", ("choice",)),
        ("start_logits", ()),
    ],
)
def test_heads_of_fine_tuned_xlnet(
    scores: str, labels: tuple[str, ...], tmp_path: Path, monkeypatch: Any, caplog: pytest.LogCaptureFixture
) -> None:
    head = Classification(labels=len(labels), summary="dense") if labels else Span(variant="beam", dropout=0.1)
    config = replace(CONFIGS["xlnet"], task=head, labels=labels, lm=None, mask_vector=False)
    model = make(config)
    rules = name_tables.xlnet_tf_classifier(scores) if labels else name_tables.XLNET_TF_SPAN
    name_table = replace(name_tables.XLNET_TF, rules=(*rules, *name_tables.XLNET_TF.rules))
    tensors = names.write(name_table, folder.weights(model), config.encoder)
    sizes = {"n_layer": 2, "d_model": 128, "n_head": 2, "d_head": 64, "d_inner": 512, "n_token": 50}
    (tmp_path / "xlnet_config.json").write_text(json.dumps(sizes | {"ff_activation": "gelu", "untie_r": True}))
    monkeypatch.setattr(tensorflow, "Checkpoint", lambda path: Recorded(tensors, tmp_path))
    found = tensorflow.read(tmp_path)["model"]
    assert same_weights(found, model) and found.config == config and not caplog.records
    huggingface.save(found, tmp_path / "hf")
    assert load(tmp_path / "hf").config == config and not caplog.records


@pytest.mark.parametrize("said", [{"untie_r": False}, {}])
def test_xlnet_with_tied_biases_and_heads_of_another_width(
    said: dict[str, Any], tmp_path: Path, monkeypatch: Any
) -> None:
    """One tensor holds the biases of all layers; the model has it in each, which computes the same."""
    config = resized(CONFIGS["xlnet"], head_width=24)
    model = make(config)
    terms = [model.encoder.block(layer).attention.term for layer in range(2)]
    with torch.no_grad():
        for name in "uvs":
            getattr(terms[1], name).copy_(getattr(terms[0], name))
    tensors = names.write(name_tables.XLNET_TF, folder.weights(model), config.encoder)
    for name in ("r_w_bias", "r_r_bias", "r_s_bias"):
        tensors[f"model/transformer/{name}"] = tensors[f"model/transformer/{name}"][0]
    sizes = {"n_layer": 2, "d_model": 128, "n_head": 2, "d_head": 24, "d_inner": 512, "n_token": 50}
    (tmp_path / "xlnet_config.json").write_text(json.dumps(sizes | {"ff_activation": "gelu"} | said))
    monkeypatch.setattr(tensorflow, "Checkpoint", lambda path: Recorded(tensors, tmp_path))
    assert same_weights(tensorflow.read(tmp_path)["model"], model)


@pytest.mark.parametrize("tied", ["all_but_first", "none"])
def test_clusters_as_wide_as_the_layers_may_have_no_map(tied: Any) -> None:
    """TensorFlow's ``proj_same_dim=False``, with which its one-billion-word models were trained."""
    adaptive = Adaptive(cutoffs=(10, 30), divisor=2, tied_projections=tied)
    model = make(resized(CONFIGS["transformer-xl"], adaptive=adaptive, eps=1e-12))
    clusters = model.encoder.embeddings.clusters
    with torch.no_grad():
        clusters.maps[0].copy_(torch.eye(32))
        model.lm.maps["0"].copy_(torch.eye(32))
    name_table = name_tables.transformer_xl_tf(adaptive)
    tensors = names.write(name_table, folder.weights(model), model.config.encoder)
    for name in ("adaptive_embed/cutoff_0/proj_W", "adaptive_softmax/cutoff_0/proj"):
        del tensors[f"transformer/{name}"]
    given = {"n_token": 50, "n_layer": 2, "d_model": 32, "n_head": 4, "d_head": 8, "d_inner": 48, "div_val": 2}
    fields = configs.Fields({**given, "cutoffs": [10, 30], "proj_same_dim": False}, "TF")
    config, found = tensorflow._transformer_xl(fields, tensors)
    again = assemble(config, found, name_tables.transformer_xl_tf(config.encoder.adaptive), Path("TF"))
    ids, targets = torch.randint(50, (2, 7)), torch.arange(14) * 3
    with torch.no_grad():
        states, others = (m.encoder(ids).last.flatten(0, 1) for m in (model, again))
        torch.testing.assert_close(others, states)
        one, two = (m.lm.losses(states, targets, m.encoder.embeddings) for m in (model, again))
        torch.testing.assert_close(one, two)


def test_weights_that_may_be_missing(shared: Path, tmp_path: Path) -> None:
    shutil.copytree(shared / "golden/tf_checkpoints/bert_pretraining", tmp_path / "tf")
    config = json.loads((tmp_path / "tf/bert_config.json").read_text())
    (tmp_path / "tf/bert_config.json").write_text(json.dumps(config | {"num_hidden_layers": 9}))
    lacking(tmp_path / "tf")


def test_a_configuration_that_cannot_be(shared: Path, tmp_path: Path) -> None:
    shutil.copytree(shared / "golden/tf_checkpoints/bert_pretraining", tmp_path / "tf")
    config = json.loads((tmp_path / "tf/bert_config.json").read_text())
    (tmp_path / "tf/bert_config.json").write_text(json.dumps(config | {"num_attention_heads": 5}))
    with pytest.raises(DataError, match=r"bert_config\.json: width 32 is not a multiple of heads 5"):
        read(tmp_path / "tf")


@pytest.mark.parametrize("width", [24, 32, 16])
def test_an_electra_with_untied_embeddings(width: int, tmp_path: Path, monkeypatch: Any, caplog: Any) -> None:
    """``untied_generator_embeddings``: tables of the generator's own, of equal width (24) or another, perhaps its own
    (32), where there is no map."""
    models = {
        "generator": make(resized(CONFIGS["electra-generator"], embed_width=width, heads=1), seed=1),
        "discriminator": make(resized(CONFIGS["electra"], heads=1)),
    }
    tensors = {}
    for name, model in models.items():
        scope = {"generator": "generator", "discriminator": "electra"}[name]
        name_table = name_tables.electra_tf(generator=name == "generator", embeddings=scope)
        tensors |= names.write(name_table, folder.weights(model), model.config.encoder)
    assert tensors["generator/embeddings/word_embeddings"].shape == (50, width)
    monkeypatch.setattr(tensorflow, "Checkpoint", lambda path: Recorded(tensors, tmp_path))
    found = tensorflow.read(tmp_path)
    assert found.keys() == models.keys() and not caplog.records
    assert all(same_weights(found[name], model) for name, model in models.items())


@pytest.mark.parametrize("heads", ["both", "lm"])
def test_an_electra_that_is_one_network(heads: str, tmp_path: Path, monkeypatch: Any, caplog: Any) -> None:
    """``untied_generator=False``, or ``electra_objective=False``, which trains no detection."""
    config = replace(CONFIGS["electra"], lm=CONFIGS["electra-generator"].lm)
    model = make(resized(config if heads == "both" else replace(config, rtd=None), heads=1))
    tensors = names.write(
        name_tables.electra_tf(generator=False, alone=True), folder.weights(model), model.config.encoder
    )
    monkeypatch.setattr(tensorflow, "Checkpoint", lambda path: Recorded(tensors, tmp_path))
    found = tensorflow.read(tmp_path)
    assert found.keys() == {"model"} and same_weights(found["model"], model) and not caplog.records
    found["model"].save(tmp_path / "ours")
    assert same_weights(load(tmp_path / "ours"), model)


@pytest.mark.parametrize("kind", ["two", "untied", "both", "detection"])
@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_weight_of_an_electra_is_dropped_in_silence(
    kind: str, tmp_path: Path, monkeypatch: Any, caplog: Any, data: st.DataObject
) -> None:
    """One more weight, or one less, is named in a warning or an error."""
    lm = CONFIGS["electra-generator"].lm if kind == "both" else None
    networks = {"electra": make(resized(replace(CONFIGS["electra"], lm=lm), heads=1))}
    if kind in ("two", "untied"):
        networks["generator"] = make(resized(CONFIGS["electra-generator"], heads=1))
    tensors: dict[str, torch.Tensor] = {}
    for scope, model in networks.items():
        name_table = name_tables.electra_tf(
            generator=scope == "generator",
            alone=len(networks) == 1,
            embeddings=scope if kind == "untied" else "electra",
        )
        tensors |= names.write(name_table, folder.weights(model), model.config.encoder)
    scopes = ("electra/", "generator/embeddings/", "generator_predictions/", "discriminator_predictions/", "")
    odd = data.draw(st.sampled_from(scopes), label="scope") + "odd/kernel"
    gone = data.draw(st.sampled_from(sorted(tensors)), label="gone")
    for changed, name in (
        (tensors | {odd: torch.ones(3)}, odd),
        ({other: x for other, x in tensors.items() if other != gone}, gone),
    ):
        monkeypatch.setattr(tensorflow, "Checkpoint", lambda path, found=changed: Recorded(found, tmp_path))
        caplog.clear()
        try:
            tensorflow.read(tmp_path)
            said = caplog.text
        except DataError as error:
            said = str(error)
        assert name in said or "has no generator/embeddings/word_embeddings" in said


@pytest.mark.parametrize(
    ("left_out", "message"), [("attention/self/query", "has no electra/encoder/layer_0"), ("", "no layers")]
)
def test_an_electra_that_is_not_complete(left_out: str, message: str, tmp_path: Path, monkeypatch: Any) -> None:
    model = make(CONFIGS["electra"])
    tensors = names.write(name_tables.electra_tf(generator=False), folder.weights(model), model.config.encoder)
    tensors = {name: x for name, x in tensors.items() if not (name.startswith("electra/encoder") and left_out in name)}
    monkeypatch.setattr(tensorflow, "Checkpoint", lambda path: Recorded(tensors, tmp_path))
    with pytest.raises(DataError, match=message):
        tensorflow.read(tmp_path)
