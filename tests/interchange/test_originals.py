"""Checkpoints of the original code: what is read, and what is refused."""

from __future__ import annotations

import argparse
import gzip
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

from encoderlab.corpus.tokenizer import Tokenizer
from encoderlab.errors import DataError
from encoderlab.interchange import configs, fairseq, folder, huggingface, names, originals, tables
from encoderlab.interchange.load import find_tokenizer, kind_of, load, read
from encoderlab.model import Model
from encoderlab.models.base import resized
from encoderlab.nn.embeddings import Adaptive
from encoderlab.nn.heads import Classification, ClassificationHead, Span, Tagging
from encoderlab.nn.spanconv import SpanDynamic
from tests.interchange.tiny_models import CONFIGS, make, same_weights

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
    tensors = names.write(tables.electra_tf(generator=False), folder.weights(model), config.encoder)
    monkeypatch.setattr(originals, "Checkpoint", lambda path: Recorded(tensors, tmp_path))
    found = originals.read_tensorflow(tmp_path)["model"]
    assert same_weights(found, model) and found.config.encoder.conv == config.encoder.conv


@pytest.mark.parametrize("family", ["bert", "albert"])
@pytest.mark.parametrize("head", [Classification(labels=3), Span()])
def test_heads_of_fine_tuned_tensorflow_models(
    family: str, head: Any, tmp_path: Path, monkeypatch: Any, caplog: pytest.LogCaptureFixture
) -> None:
    config = replace(CONFIGS[family], task=head, lm=None, pair=False)
    model, layout = make(config), {"bert": tables.BERT_TF, "albert": tables.ALBERT_TF}[family]
    tensors = names.write(layout, folder.weights(model), config.encoder, dialects=True)
    left_out = "output_" if isinstance(head, Span) else "cls/squad/"
    tensors = {name: tensor for name, tensor in tensors.items() if not name.startswith(left_out)}
    fields = {name: value for name, value in configs.write(config).items() if name != "model_type"}
    (tmp_path / f"{family}_config.json").write_text(json.dumps(fields))
    monkeypatch.setattr(originals, "Checkpoint", lambda path: Recorded(tensors, tmp_path))
    found = originals.read_tensorflow(tmp_path)["model"]
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
    head = Classification(labels=len(labels), summary="dense") if labels else Span(form="beam", dropout=0.1)
    config = replace(CONFIGS["xlnet"], task=head, labels=labels, lm=None, mask_vector=False)
    model = make(config)
    rules = tables.xlnet_tf_classifier(scores) if labels else tables.XLNET_TF_SPAN
    layout = replace(tables.XLNET_TF, rules=(*rules, *tables.XLNET_TF.rules))
    tensors = names.write(layout, folder.weights(model), config.encoder)
    sizes = {"n_layer": 2, "d_model": 128, "n_head": 2, "d_head": 64, "d_inner": 512, "n_token": 50}
    (tmp_path / "xlnet_config.json").write_text(json.dumps(sizes | {"ff_activation": "gelu", "untie_r": True}))
    monkeypatch.setattr(originals, "Checkpoint", lambda path: Recorded(tensors, tmp_path))
    found = originals.read_tensorflow(tmp_path)["model"]
    assert same_weights(found, model) and found.config == config and not caplog.records
    huggingface.save(found, tmp_path / "hf")
    assert load(tmp_path / "hf").config == config and not caplog.records


def test_fairseq_folders(shared: Path, caplog: pytest.LogCaptureFixture) -> None:
    for case in ("roberta_fairseq", "roberta_fairseq_old_layout"):
        path = shared / "golden/fairseq_checkpoints" / case
        assert kind_of(path) == "fairseq" == kind_of(path / "model.pt")
        assert same_weights(read(path)["model"], read(path / "model.pt")["model"])
    assert not caplog.records  # nothing missing, nothing left over


@pytest.mark.parametrize("labels", [1, 3])
def test_the_head_of_a_fine_tuned_fairseq_model(labels: int, shared: Path, tmp_path: Path) -> None:
    weights, settings = fairseq.read(shared / "golden/fairseq_checkpoints/roberta_fairseq")
    weights["classification_heads.toy.out_proj.weight"] = torch.randn(labels, 32)
    weights["classification_heads.toy.out_proj.bias"] = torch.randn(labels)
    torch.save({"model": weights, "args": argparse.Namespace(**settings | {"pooler_dropout": 0.2})}, tmp_path / "a.pt")
    model = originals.read_fairseq(tmp_path / "a.pt")["model"]
    assert model.config.task == Classification(labels=labels, summary="dense", input_dropout=0.2, dropout=0.2)
    assert model.config.labels == (("number",) if labels == 1 else ("LABEL_0", "LABEL_1", "LABEL_2"))
    ids = torch.randint(4, 119, (2, 9))
    expected = scores(model, ids)
    huggingface.save(model, tmp_path / "hf")
    kept = safetensors.torch.load_file(tmp_path / "hf/model.safetensors")
    assert not [name for name in kept if not name.startswith(("roberta.", "classifier."))]
    torch.testing.assert_close(scores(load(tmp_path / "hf"), ids), expected)


def test_the_dropouts_of_a_fairseq_model(shared: Path, tmp_path: Path) -> None:
    weights, settings = fairseq.read(shared / "golden/fairseq_checkpoints/roberta_fairseq")
    given = {"dropout": 0.1, "attention_dropout": 0.2, "activation_dropout": 0.3}
    torch.save({"model": weights, "args": argparse.Namespace(**settings | given)}, tmp_path / "model.pt")
    encoder = originals.read_fairseq(tmp_path)["model"].config.encoder
    assert (encoder.dropout, encoder.attention_dropout, encoder.ff_dropout) == (0.1, 0.2, 0.3)


def test_of_several_heads_of_a_fairseq_model_none_is_used(
    shared: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    weights, settings = fairseq.read(shared / "golden/fairseq_checkpoints/roberta_fairseq")
    more = {name.replace("toy", "rte"): tensor for name, tensor in weights.items() if "toy" in name}
    torch.save({"model": weights | more, "args": argparse.Namespace(**settings)}, tmp_path / "model.pt")
    assert originals.read_fairseq(tmp_path)["model"].config.task is None
    assert "classification_heads.rte" in caplog.text and "classification_heads.toy" in caplog.text


def scores(model: Model, ids: torch.Tensor) -> torch.Tensor:
    assert isinstance(model.task, ClassificationHead)
    return model.task(model(ids).last[:, 0])


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("encoder_layers", None),
        ("encoder_attention_heads", "many"),
        ("activation_fn", "linear"),
        ("encoder_normalize_before", True),
        ("untie_weights_roberta", True),
    ],
)
def test_fairseq_arguments_that_are_not_read(argument: str, value: Any, shared: Path, tmp_path: Path) -> None:
    weights, settings = fairseq.read(shared / "golden/fairseq_checkpoints/roberta_fairseq")
    changed = {name: given for name, given in {**settings, argument: value}.items() if given is not None}
    torch.save({"model": weights, "args": argparse.Namespace(**changed)}, tmp_path / "model.pt")
    with pytest.raises(DataError, match=rf"model.pt: .*{argument}"):
        originals.read_fairseq(tmp_path)


class Trap:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return subprocess.run, ([sys.executable, "-c", f"open({str(self.path)!r}, 'w')"],)


@pytest.mark.parametrize("where", ["args", "model", "extra_state"])
def test_code_in_a_fairseq_file_is_refused_and_not_run(where: str, tmp_path: Path) -> None:
    data: dict[str, Any] = {"model": {}, "args": argparse.Namespace(arch="roberta_base")}
    torch.save(data | {where: Trap(tmp_path / "ran")}, tmp_path / "model.pt")
    with pytest.raises(DataError, match="would run code") as caught:
        fairseq.read(tmp_path)
    assert "\n" not in str(caught.value) and not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "data", [[1], {"model": [1]}, {"model": {}}, {"model": {"x": torch.zeros(1)}, "args": None}, {"args": None}]
)
def test_files_that_are_no_fairseq_checkpoint(data: Any, tmp_path: Path) -> None:
    torch.save(data, tmp_path / "model.pt")
    with pytest.raises(DataError, match="model.pt"):
        fairseq.read(tmp_path)


def test_fairseq_dictionary(tmp_path: Path) -> None:
    file = tmp_path / "dict.txt"
    file.write_text("13 850314647\n262 800385005\nmadeupword0000 0 #fairseq:overwrite\n")
    assert fairseq.read_dictionary(file) == ["<s>", "<pad>", "</s>", "<unk>", "13", "262", "madeupword0000", "<mask>"]
    file.write_text("13 850314647\n262\n")
    with pytest.raises(DataError, match="line 2"):
        fairseq.read_dictionary(file)
    with pytest.raises(DataError, match="cannot be read"):
        fairseq.read_dictionary(tmp_path / "none.txt")


def test_fairseq_tokenizer_is_robertas(shared: Path, tmp_path: Path) -> None:
    """GPT-2's vocabulary in the order of a dictionary made from RoBERTa's own vocabulary gives RoBERTa's ids."""
    vocabularies = shared / "data/vocab"
    for name in ("vocab.json", "merges.txt"):
        (tmp_path / name).write_bytes(gzip.decompress((vocabularies / "gpt2" / f"{name}.gz").read_bytes()))
    gpt2 = json.loads((tmp_path / "vocab.json").read_text())
    roberta = json.loads(gzip.decompress((vocabularies / "roberta-base/vocab.json.gz").read_bytes()))
    tokens = {index: token for token, index in roberta.items()}
    symbols = [str(gpt2[tokens[i]]) if tokens.get(i) in gpt2 else f"madeupword{i}" for i in range(4, max(tokens))]
    (tmp_path / "dict.txt").write_text("".join(f"{symbol} 1\n" for symbol in symbols))
    ours = fairseq.tokenizer(tmp_path / "dict.txt", tmp_path)
    theirs = Tokenizer.load(
        vocabularies / "roberta-base/vocab.json.gz", merges=tmp_path / "merges.txt", family="roberta"
    )
    records = gzip.decompress((vocabularies / "golden/roberta-base.reference.jsonl.gz").read_bytes()).splitlines()[:200]
    for record in map(json.loads, records):
        assert list(ours.encode(record["text"]).ids) == list(theirs.encode(record["text"]).ids)
    assert ours.special == theirs.special


# DeBERTa's own files


def test_the_tokenizer_of_deberta(shared: Path, tmp_path: Path) -> None:
    """``bpe_encoder.bin`` has GPT-2's pieces in an order of its own, which is RoBERTa's with other first symbols."""
    vocabularies = shared / "data/vocab"
    gpt2 = json.loads(gzip.decompress((vocabularies / "gpt2/vocab.json.gz").read_bytes()))
    lines = gzip.decompress((vocabularies / "gpt2/merges.txt.gz").read_bytes()).decode().splitlines()[1:]
    roberta = json.loads(gzip.decompress((vocabularies / "roberta-base/vocab.json.gz").read_bytes()))
    order = sorted((token for token in roberta if token in gpt2), key=roberta.__getitem__)
    data = {
        "dict_map": [(str(gpt2[token]), 1) for token in order],
        "vocab": [tuple(line.split(" ")) for line in lines],
        "encoder": gpt2,
    }
    torch.save(data, tmp_path / "bpe_encoder.bin")
    found = find_tokenizer(tmp_path, "deberta")
    assert found is not None
    records = gzip.decompress((vocabularies / "golden/gpt2.reference.jsonl.gz").read_bytes()).splitlines()
    for record in map(json.loads, records):
        if "[MASK]" not in record["text"]:  # a special token here
            ids = [gpt2[order[index - 4]] for index in found.encode(record["text"]).ids]
            assert ids == record["ids"], record["text"]
    special = found.special
    assert (special.pad, special.cls, special.sep, special.unk, special.mask) == (0, 1, 2, 3, 4 + len(order))
    torch.save({"dict_map": 3}, tmp_path / "bpe_encoder.bin")
    with pytest.raises(DataError, match="holds no dict_map, vocab and encoder"):
        find_tokenizer(tmp_path / "bpe_encoder.bin", "deberta")


@pytest.fixture
def deberta(shared: Path, tmp_path: Path) -> Path:
    about = json.loads((shared / "golden/deberta_v1_released_layout_mlm.json").read_text())
    model = make(CONFIGS["deberta"])
    weights = names.write(tables.DEBERTA_V1, folder.weights(model), model.config.encoder, dialects=True)
    released = {name: tensor for name, tensor in weights.items() if not name.startswith("cls.")}
    torch.save(released, tmp_path / "pytorch_model.bin")
    config = configs.write(model.config)
    del config["model_type"]
    assert set(about["config"]) & set(config)
    (tmp_path / "model_config.json").write_text(json.dumps(config | {"pos_att_type": "p2c|c2p", "padding_idx": 0}))
    return tmp_path


def test_deberta_files(deberta: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert kind_of(deberta) == "deberta"
    assert same_weights(read(deberta)["model"], make(CONFIGS["deberta"]))
    assert not caplog.records


def test_deberta_files_that_are_not_complete(deberta: Path) -> None:
    (deberta / "model_config.json").write_text(json.dumps({"hidden_size": 128}))
    with pytest.raises(DataError, match="vocab_size"):
        read(deberta)
    torch.save({}, deberta / "second.pt")
    with pytest.raises(DataError, match="vocab_size"):  # of several the one that releases are called
        read(deberta)
    (deberta / "pytorch_model.bin").rename(deberta / "first.bin")
    with pytest.raises(DataError, match=r"2 \.bin, \.pt or \.safetensors files"):
        read(deberta)


def test_a_state_dict_may_be_safetensors(deberta: Path) -> None:
    state = torch.load(deberta / "pytorch_model.bin")
    (deberta / "pytorch_model.bin").unlink()
    safetensors.torch.save_file(state, deberta / "model.safetensors")
    assert same_weights(read(deberta)["model"], make(CONFIGS["deberta"]))


@pytest.mark.parametrize("case", ["deberta", "deberta-v2"])
@pytest.mark.parametrize(
    ("head", "labels"),
    [
        (Classification(labels=3, summary="dense", input_dropout=0.2), ("LABEL_0", "LABEL_1", "LABEL_2")),
        (Classification(labels=1, summary="dense", activation="gelu"), ("number",)),
        (Tagging(labels=2, dense=True), ("LABEL_0", "LABEL_1")),
    ],
)
def test_heads_of_fine_tuned_debertas(
    case: str, head: Any, labels: tuple[str, ...], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Of the original code: a pooler, whose settings stand beside the sizes, or a map of every token."""
    config = replace(CONFIGS[case], task=head, labels=labels, lm=None, mask_decoder=0)
    model, layout = make(config), {"deberta": tables.DEBERTA_V1, "deberta-v2": tables.DEBERTA_V2}[case]
    tagging = isinstance(head, Tagging)
    own = (
        *tables.linear("task.dense", "proj" if tagging else "pooler.dense"),
        *tables.linear("task.out", "classifier"),
    )
    state = names.write(replace(layout, rules=(*own, *layout.rules)), folder.weights(model), config.encoder)
    state["deberta.embeddings.position_embeddings.weight"] = torch.randn(16, 128)
    torch.save(state, tmp_path / "pytorch.model-100.bin")
    fields = {name: value for name, value in configs.write(CONFIGS[case]).items() if name != "model_type"}
    if not tagging and head.activation == "tanh":
        fields["pooling"] = {"dropout": 0.2, "hidden_act": "tanh"}
    (tmp_path / "model_config.json").write_text(json.dumps(fields))
    found = read(tmp_path)["model"]
    assert same_weights(found, model) and found.config.task == head and found.config.labels == labels
    assert not caplog.records


def test_differences_beside_the_tables_of_a_discriminator(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = make(CONFIGS["deberta-v3"])
    state = names.write(tables.DEBERTA_V2, folder.weights(model), model.config.encoder)
    state["deberta.embeddings.word_embeddings._weight"] = torch.randn(50, 128)
    state["deberta.embeddings.position_embeddings.weight"] = torch.randn(16, 128)  # no head reads it
    torch.save(state, tmp_path / "pytorch.model-1000.bin")
    fields = {name: value for name, value in configs.write(model.config).items() if name != "model_type"}
    (tmp_path / "model_config.json").write_text(json.dumps(fields))
    assert same_weights(read(tmp_path)["model"], model) and not caplog.records
    del state["deberta.embeddings.word_embeddings.weight"]
    torch.save(state, tmp_path / "pytorch.model-1000.bin")
    lacking(tmp_path)


def test_the_generator_beside_a_discriminator(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As in the releases of version 3: one configuration and two files."""
    discriminator, generator = CONFIGS["deberta-v3"], resized(CONFIGS["deberta-v2"], layers=1, stem_conv=None)
    for name, config in (("pytorch_model", discriminator), ("pytorch_model.generator", generator)):
        model = make(config)
        written = names.write(tables.DEBERTA_V2, folder.weights(model), config.encoder, dialects=True)
        torch.save({n: t for n, t in written.items() if not n.startswith("cls.")}, tmp_path / f"{name}.bin")
    (tmp_path / "config.json").write_text(json.dumps(configs.write(discriminator) | {"max_position_embeddings": 16}))
    found = read(tmp_path / "pytorch_model.generator.bin")["model"]
    assert same_weights(found, make(generator)) and found.config.mask_decoder == 16
    assert same_weights(read(tmp_path)["model"], make(discriminator))
    assert same_weights(read(tmp_path, kind="deberta")["model"], make(discriminator))
    assert not caplog.records


def lacking(folder: Path, **read_as: Any) -> None:
    """Refused for the weights that it lacks, unless they may be missing."""
    with pytest.raises(DataError, match="weights are missing"):
        read(folder, **read_as)
    assert set(read(folder, **read_as, allow_missing=True)) == {"model"}


def test_weights_that_may_be_missing(shared: Path, tmp_path: Path, deberta: Path) -> None:
    golden = shared / "golden"
    shutil.copytree(golden / "tf_checkpoints/bert_pretraining", tmp_path / "tf")
    config = json.loads((tmp_path / "tf/bert_config.json").read_text())
    (tmp_path / "tf/bert_config.json").write_text(json.dumps(config | {"num_hidden_layers": 9}))
    lacking(tmp_path / "tf")
    weights, settings = fairseq.read(golden / "fairseq_checkpoints/roberta_fairseq")
    (tmp_path / "fairseq").mkdir()
    longer = argparse.Namespace(**{**settings, "encoder_layers": 9})
    torch.save({"model": weights, "args": longer}, tmp_path / "fairseq/model.pt")
    lacking(tmp_path / "fairseq", kind="fairseq")
    config = json.loads((deberta / "model_config.json").read_text())
    (deberta / "model_config.json").write_text(json.dumps(config | {"num_hidden_layers": 3}))
    lacking(deberta)


def test_transformer_xl_state(tmp_path: Path) -> None:
    model = make(CONFIGS["transformer-xl-adaptive"])
    adaptive = model.config.encoder.adaptive
    assert adaptive is not None
    layout = tables.transformer_xl(adaptive, model.config.encoder.vocab, original=True)
    torch.save(names.write(layout, folder.weights(model), model.config.encoder), tmp_path / "model_state.pt")
    config = configs.write(model.config)
    config["n_token"] = config.pop("vocab_size")
    del config["model_type"]
    (tmp_path / "transformer_xl_config.json").write_text(json.dumps(config))
    assert kind_of(tmp_path) == "transformer-xl"
    assert same_weights(read(tmp_path)["model"], model)
    (tmp_path / "transformer_xl_config.json").write_text(json.dumps(config | {"n_layer": 3}))
    lacking(tmp_path)
    torch.save({"model": [1]}, tmp_path / "model_state.pt")
    with pytest.raises(DataError, match="no dictionary of weights"):
        read(tmp_path)


@pytest.mark.parametrize("tied", ["all", "all_but_first", "none"])
@pytest.mark.parametrize(("divisor", "width"), [(1, 24), (1, 32), (2, 32), (2, 24)])
def test_maps_of_transformer_xl(
    divisor: int, width: int, tied: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """State dictionaries name a tied map once for every cluster, also where all share the one of the input."""
    mapped = divisor > 1 or width != 32
    adaptive = Adaptive(cutoffs=(10, 30), divisor=divisor, tied_projections=tied)
    model = make(resized(CONFIGS["transformer-xl"], adaptive=adaptive, embed_width=width))
    vocab, encoder = model.config.encoder.vocab, model.config.encoder
    state = names.write(
        tables.transformer_xl(adaptive, vocab, original=True), folder.weights(model), encoder, ties=True
    )
    assert [f"crit.out_projs.{i}" in state for i in range(3)] == [mapped] * 3
    torch.save(state, tmp_path / "model_state.pt")
    config = configs.write(model.config)
    del config["model_type"]
    (tmp_path / "transformer_xl_config.json").write_text(json.dumps(config))
    assert same_weights(read(tmp_path)["model"], model)
    assert not caplog.records
    found = names.write(tables.transformer_xl_tf(adaptive), folder.weights(model), encoder)
    fields = configs.Fields({name: value for name, value in config.items() if "proj" not in name}, "TF")
    again, _ = originals._txl_tf(fields, found)  # told by the variables
    assert not mapped or again.encoder.adaptive == adaptive


def test_shared_biases_stand_in_every_layer_of_transformers(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = make(CONFIGS["transformer-xl"])
    huggingface.save(model, tmp_path)
    tensors = safetensors.torch.load_file(tmp_path / "model.safetensors")
    for name in ("r_w_bias", "r_r_bias"):
        tensors |= {f"transformer.layers.{i}.dec_attn.{name}": tensors[f"transformer.{name}"].clone() for i in range(2)}
    safetensors.torch.save_file(tensors, tmp_path / "model.safetensors")
    assert same_weights(load(tmp_path), model) and not caplog.records


@pytest.mark.parametrize("tied", ["all_but_first", "none"])
def test_clusters_as_wide_as_the_layers_may_have_no_map(tied: Any) -> None:
    """TensorFlow's ``proj_same_dim=False``, with which its one-billion-word models were trained."""
    adaptive = Adaptive(cutoffs=(10, 30), divisor=2, tied_projections=tied)
    model = make(resized(CONFIGS["transformer-xl"], adaptive=adaptive, eps=1e-12))
    clusters = model.encoder.embeddings.clusters
    with torch.no_grad():
        clusters.maps[0].copy_(torch.eye(32))
        model.lm.maps["0"].copy_(torch.eye(32))
    layout = tables.transformer_xl_tf(adaptive)
    tensors = names.write(layout, folder.weights(model), model.config.encoder)
    for name in ("adaptive_embed/cutoff_0/proj_W", "adaptive_softmax/cutoff_0/proj"):
        del tensors[f"transformer/{name}"]
    given = {"n_token": 50, "n_layer": 2, "d_model": 32, "n_head": 4, "d_head": 8, "d_inner": 48, "div_val": 2}
    fields = configs.Fields({**given, "cutoffs": [10, 30], "proj_same_dim": False}, "TF")
    config, found = originals._txl_tf(fields, tensors)
    again = huggingface.assemble(config, found, tables.transformer_xl_tf(config.encoder.adaptive), Path("TF"))
    ids, targets = torch.randint(50, (2, 7)), torch.arange(14) * 3
    with torch.no_grad():
        states, others = (m.encoder(ids).last.flatten(0, 1) for m in (model, again))
        torch.testing.assert_close(others, states)
        one, two = (m.lm.losses(states, targets, m.encoder.embeddings) for m in (model, again))
        torch.testing.assert_close(one, two)


@pytest.mark.parametrize(
    ("arguments", "cutoffs", "tied"),
    [
        ({"dataset": "wt103", "adaptive": True}, (20000, 40000, 200000), "all_but_first"),
        ({"dataset": "lm1b", "adaptive": True, "div_val": 4}, (60000, 100000, 640000), "none"),
        ({"dataset": "enwik8", "adaptive": False}, (), "all_but_first"),
    ],
)
def test_arguments_of_transformer_xl_scripts(arguments: dict[str, Any], cutoffs: tuple[int, ...], tied: str) -> None:
    """All that ``train.py`` was called with; what it derives from them is derived here too."""
    given = {
        "n_layer": 2, "d_model": 32, "d_embed": -1, "n_head": 4, "d_head": 8, "d_inner": 48, "n_token": 700000,
        "lr": 0.00025, "optim": "adam", "max_step": 200000, "batch_size": 60, "cuda": True, "not_tied": False,
        "tied": True, "same_length": False, "clamp_len": -1, "mem_len": 150, "pre_lnorm": False, "attn_type": 0,
    }  # fmt: skip
    found = originals.transformer_xl_config(configs.Fields(given | arguments, "args"), eps=1e-5).encoder
    assert found.adaptive is not None
    assert (found.adaptive.cutoffs, found.adaptive.tied_projections) == (cutoffs, tied)
    for name, value in {"not_tied": True, "pre_lnorm": True, "attn_type": 1, "unheard_of": 1}.items():
        with pytest.raises(DataError, match=name):
            originals.transformer_xl_config(configs.Fields(given | arguments | {name: value}, "args"), eps=1e-5)


def test_nothing_known(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        read(tmp_path / "nowhere")
    with pytest.raises(DataError, match="no model that is known"):
        read(tmp_path)
    make(CONFIGS["bert"]).save(tmp_path / "ours")
    with pytest.raises(DataError, match="no model that is known; folders of encoderlab"):
        read(tmp_path / "ours/model.safetensors")


def test_gpt2_vocabulary_of_another_model(tmp_path: Path) -> None:
    (tmp_path / "dict.txt").write_text("99 1\n")
    (tmp_path / "vocab.json").write_text(json.dumps({"a": 0}))
    (tmp_path / "merges.txt").write_text("")
    with pytest.raises(DataError, match="'99'"):
        fairseq.tokenizer(tmp_path / "dict.txt", tmp_path)


def test_materialized_tables() -> None:
    given = {
        "generator.deberta.embeddings.word_embeddings.weight": torch.ones(3),
        "discriminator.deberta.embeddings.word_embeddings._weight": torch.full((3,), 2.0),
    }
    found = originals.materialized(given)
    assert torch.equal(found["discriminator.deberta.embeddings.word_embeddings.weight"], torch.full((3,), 3.0))
    assert not [name for name in found if name.endswith("_weight")]


def test_tokenizers_come_along(shared: Path, tmp_path: Path) -> None:
    vocabularies = shared / "data/vocab"
    config = replace(CONFIGS["bert"], lm=None, pair=False)
    config = replace(config, encoder=replace(config.encoder, vocab=30522))
    folder.save(make(config), tmp_path / "plain")
    shutil.copyfile(vocabularies / "bert-base-uncased/vocab.txt", tmp_path / "vocab.txt")
    from encoderlab.interchange.load import find_tokenizer

    for place, family in (
        ("bert-base-uncased", "bert"),
        ("albert-style-30k", "albert"),
        ("chinese-xlnet", "xlnet"),
    ):
        found = find_tokenizer(vocabularies / place, family)
        assert isinstance(found, Tokenizer) and found.vocab_size >= 30000
    assert find_tokenizer(tmp_path / "plain", "bert") is None
