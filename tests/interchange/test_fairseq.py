"""fairseq's RoBERTa: what is read, and what is refused."""

from __future__ import annotations

import argparse
import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from encoderlab.corpus.tokenizer import Tokenizer
from encoderlab.errors import DataError
from encoderlab.interchange import (
    fairseq,
    huggingface,
)
from encoderlab.interchange.load import kind_of, load, read
from encoderlab.model import Model
from encoderlab.nn.heads import Classification, ClassificationHead
from tests.interchange.tiny_models import lacking, same_weights


def test_fairseq_folders(shared: Path, caplog: pytest.LogCaptureFixture) -> None:
    for case in ("roberta_fairseq", "roberta_fairseq_old_layout"):
        path = shared / "golden/fairseq_checkpoints" / case
        assert kind_of(path) == "fairseq" == kind_of(path / "model.pt")
        assert same_weights(read(path)["model"], read(path / "model.pt")["model"])
    assert not caplog.records  # nothing missing, nothing left over


@pytest.mark.parametrize("labels", [1, 3])
def test_the_head_of_a_fine_tuned_fairseq_model(labels: int, shared: Path, tmp_path: Path) -> None:
    weights, settings = fairseq.read_checkpoint(shared / "golden/fairseq_checkpoints/roberta_fairseq")
    weights["classification_heads.toy.out_proj.weight"] = torch.randn(labels, 32)
    weights["classification_heads.toy.out_proj.bias"] = torch.randn(labels)
    torch.save({"model": weights, "args": argparse.Namespace(**settings | {"pooler_dropout": 0.2})}, tmp_path / "a.pt")
    model = fairseq.read(tmp_path / "a.pt")["model"]
    assert model.config.task == Classification(labels=labels, summary="dense", input_dropout=0.2, dropout=0.2)
    assert model.config.labels == (("number",) if labels == 1 else ("LABEL_0", "LABEL_1", "LABEL_2"))
    ids = torch.randint(4, 119, (2, 9))
    expected = scores(model, ids)
    huggingface.save(model, tmp_path / "hf")
    kept = safetensors.torch.load_file(tmp_path / "hf/model.safetensors")
    assert not [name for name in kept if not name.startswith(("roberta.", "classifier."))]
    torch.testing.assert_close(scores(load(tmp_path / "hf"), ids), expected)


def test_the_dropouts_of_a_fairseq_model(shared: Path, tmp_path: Path) -> None:
    weights, settings = fairseq.read_checkpoint(shared / "golden/fairseq_checkpoints/roberta_fairseq")
    given = {"dropout": 0.1, "attention_dropout": 0.2, "activation_dropout": 0.3}
    torch.save({"model": weights, "args": argparse.Namespace(**settings | given)}, tmp_path / "model.pt")
    encoder = fairseq.read(tmp_path)["model"].config.encoder
    assert (encoder.dropout, encoder.attention_dropout, encoder.ff_dropout) == (0.1, 0.2, 0.3)


def test_of_several_heads_of_a_fairseq_model_none_is_used(
    shared: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    weights, settings = fairseq.read_checkpoint(shared / "golden/fairseq_checkpoints/roberta_fairseq")
    more = {name.replace("toy", "rte"): tensor for name, tensor in weights.items() if "toy" in name}
    torch.save({"model": weights | more, "args": argparse.Namespace(**settings)}, tmp_path / "model.pt")
    assert fairseq.read(tmp_path)["model"].config.task is None
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
    weights, settings = fairseq.read_checkpoint(shared / "golden/fairseq_checkpoints/roberta_fairseq")
    changed = {name: given for name, given in {**settings, argument: value}.items() if given is not None}
    torch.save({"model": weights, "args": argparse.Namespace(**changed)}, tmp_path / "model.pt")
    with pytest.raises(DataError, match=rf"model.pt: .*{argument}"):
        fairseq.read(tmp_path)


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
        fairseq.read_checkpoint(tmp_path)
    assert "\n" not in str(caught.value) and not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "data", [[1], {"model": [1]}, {"model": {}}, {"model": {"x": torch.zeros(1)}, "args": None}, {"args": None}]
)
def test_files_that_are_no_fairseq_checkpoint(data: Any, tmp_path: Path) -> None:
    torch.save(data, tmp_path / "model.pt")
    with pytest.raises(DataError, match="model.pt"):
        fairseq.read_checkpoint(tmp_path)


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


def test_gpt2_vocabulary_of_another_model(tmp_path: Path) -> None:
    (tmp_path / "dict.txt").write_text("99 1\n")
    (tmp_path / "vocab.json").write_text(json.dumps({"a": 0}))
    (tmp_path / "merges.txt").write_text("")
    with pytest.raises(DataError, match="'99'"):
        fairseq.tokenizer(tmp_path / "dict.txt", tmp_path)


def test_weights_that_may_be_missing(shared: Path, tmp_path: Path) -> None:
    weights, settings = fairseq.read_checkpoint(shared / "golden/fairseq_checkpoints/roberta_fairseq")
    longer = argparse.Namespace(**{**settings, "encoder_layers": 9})
    torch.save({"model": weights, "args": longer}, tmp_path / "model.pt")
    lacking(tmp_path, kind="fairseq")


def test_arguments_that_cannot_be(shared: Path, tmp_path: Path) -> None:
    weights, settings = fairseq.read_checkpoint(shared / "golden/fairseq_checkpoints/roberta_fairseq")
    strange = argparse.Namespace(**{**settings, "encoder_attention_heads": 5})
    torch.save({"model": weights, "args": strange}, tmp_path / "model.pt")
    with pytest.raises(DataError, match=rf"{tmp_path}: width 32 is not a multiple of heads 5"):
        read(tmp_path, kind="fairseq")
