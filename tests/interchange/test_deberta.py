"""DeBERTa's own files: what is read, and what is refused."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from encoderlab.errors import DataError
from encoderlab.interchange import (
    configs,
    deberta,
    folder,
    name_tables,
    names,
)
from encoderlab.interchange.load import find_tokenizer, kind_of, read
from encoderlab.models.base import resized
from encoderlab.nn.heads import Classification, Tagging
from tests.interchange.tiny_models import CONFIGS, lacking, make, same_weights


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
    with pytest.raises(DataError, match="has no dict_map, vocab or encoder"):
        find_tokenizer(tmp_path / "bpe_encoder.bin", "deberta")


@pytest.fixture
def deberta_files(shared: Path, tmp_path: Path) -> Path:
    about = json.loads((shared / "golden/deberta_v1_released_layout_mlm.json").read_text())
    model = make(CONFIGS["deberta"])
    weights = names.write(name_tables.DEBERTA_V1, folder.weights(model), model.config.encoder, dialects=True)
    released = {name: tensor for name, tensor in weights.items() if not name.startswith("cls.")}
    torch.save(released, tmp_path / "pytorch_model.bin")
    config = configs.write(model.config)
    del config["model_type"]
    assert set(about["config"]) & set(config)
    (tmp_path / "model_config.json").write_text(json.dumps(config | {"pos_att_type": "p2c|c2p", "padding_idx": 0}))
    return tmp_path


def test_deberta_files(deberta_files: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert kind_of(deberta_files) == "deberta"
    assert same_weights(read(deberta_files)["model"], make(CONFIGS["deberta"]))
    assert not caplog.records


def test_deberta_files_that_are_not_complete(deberta_files: Path) -> None:
    (deberta_files / "model_config.json").write_text(json.dumps({"hidden_size": 128}))
    with pytest.raises(DataError, match="vocab_size"):
        read(deberta_files)
    torch.save({}, deberta_files / "second.pt")
    with pytest.raises(DataError, match="vocab_size"):  # of several the one that releases are called
        read(deberta_files)
    (deberta_files / "pytorch_model.bin").rename(deberta_files / "first.bin")
    with pytest.raises(DataError, match=r"2 \.bin, \.pt or \.safetensors files"):
        read(deberta_files)


def test_a_state_dict_may_be_safetensors(deberta_files: Path) -> None:
    state = torch.load(deberta_files / "pytorch_model.bin")
    (deberta_files / "pytorch_model.bin").unlink()
    safetensors.torch.save_file(state, deberta_files / "model.safetensors")
    assert same_weights(read(deberta_files)["model"], make(CONFIGS["deberta"]))


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
    model, name_table = make(config), {"deberta": name_tables.DEBERTA_V1, "deberta-v2": name_tables.DEBERTA_V2}[case]
    tagging = isinstance(head, Tagging)
    own = (
        *name_tables.linear("task.dense", "proj" if tagging else "pooler.dense"),
        *name_tables.linear("task.out", "classifier"),
    )
    state = names.write(replace(name_table, rules=(*own, *name_table.rules)), folder.weights(model), config.encoder)
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
    state = names.write(name_tables.DEBERTA_V2, folder.weights(model), model.config.encoder)
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
        written = names.write(name_tables.DEBERTA_V2, folder.weights(model), config.encoder, dialects=True)
        torch.save({n: t for n, t in written.items() if not n.startswith("cls.")}, tmp_path / f"{name}.bin")
    (tmp_path / "config.json").write_text(json.dumps(configs.write(discriminator) | {"max_position_embeddings": 16}))
    found = read(tmp_path / "pytorch_model.generator.bin")["model"]
    assert same_weights(found, make(generator)) and found.config.mask_decoder == 16
    assert same_weights(read(tmp_path)["model"], make(discriminator))
    assert same_weights(read(tmp_path, kind="deberta")["model"], make(discriminator))
    assert not caplog.records


def test_materialized_tables() -> None:
    given = {
        "generator.deberta.embeddings.word_embeddings.weight": torch.ones(3),
        "discriminator.deberta.embeddings.word_embeddings._weight": torch.full((3,), 2.0),
    }
    found = deberta.materialized(given, Path("joint.bin"))
    assert torch.equal(found["discriminator.deberta.embeddings.word_embeddings.weight"], torch.full((3,), 3.0))
    assert not [name for name in found if name.endswith("_weight")]


def test_weights_that_may_be_missing(deberta_files: Path) -> None:
    config = json.loads((deberta_files / "model_config.json").read_text())
    (deberta_files / "model_config.json").write_text(json.dumps(config | {"num_hidden_layers": 3}))
    lacking(deberta_files)


def test_a_difference_to_a_generator_that_is_not_there() -> None:
    given = {"discriminator.deberta.embeddings.word_embeddings._weight": torch.ones(3)}
    with pytest.raises(
        DataError, match="joint.bin: .*_weight is a difference from the generator's table, which is mis"
    ):
        deberta.materialized(given, Path("joint.bin"))
    table = "generator.deberta.embeddings.word_embeddings.weight"
    with pytest.raises(DataError, match="joint.bin: .*_weight is .* table, which has another shape"):
        deberta.networks({}, given | {table: torch.ones(4)}, Path("joint.bin"))
    with pytest.raises(DataError, match="joint.bin: generator is 'small', expected an object of fields"):
        deberta.networks({"generator": "small"}, given | {table: torch.ones(3)}, Path("joint.bin"))
