"""Models found in folders and checkpoints of every kind, and their tokenizers."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from encoderlab.corpus.tokenizer import Tokenizer
from encoderlab.errors import DataError
from encoderlab.interchange import folder, huggingface
from encoderlab.interchange.load import find_tokenizer, kind_of, load, read
from tests.interchange.tiny_models import CONFIGS, make, same_weights


def test_nothing_known(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        read(tmp_path / "nowhere")
    with pytest.raises(DataError, match="no known model format"):
        read(tmp_path)
    make(CONFIGS["bert"]).save(tmp_path / "ours")
    with pytest.raises(DataError, match="no known model format; expected a folder of encoderlab"):
        read(tmp_path / "ours/model.safetensors")


def test_weights_of_hugging_face_besides_a_tensorflow_checkpoint(tmp_path: Path) -> None:
    """As many folders of BERT on the Hub have both."""
    model = make(CONFIGS["bert"])
    huggingface.save(model, tmp_path / "both")
    for name in ("bert_model.ckpt.index", "bert_model.ckpt.data-00000-of-00001"):
        (tmp_path / "both" / name).write_bytes(b"not read")
    assert kind_of(tmp_path / "both") == "hf"
    assert same_weights(read(tmp_path / "both")["model"], model)


def test_a_configuration_without_model_type_is_told_what_to_add(tmp_path: Path) -> None:
    """As SciBERT's: old releases found the family in the folder's name."""
    model = make(CONFIGS["bert"])
    huggingface.save(model, tmp_path / "old")
    (tmp_path / "old" / "SHA256SUMS").unlink()
    path = tmp_path / "old" / "config.json"
    fields = {name: value for name, value in json.loads(path.read_text()).items() if name != "model_type"}
    path.write_text(json.dumps(fields))
    for reader in (load, read):
        with pytest.raises(DataError, match='has no model_type; add .*, such as "model_type": "bert"'):
            reader(tmp_path / "old")
    path.write_text(json.dumps(fields | {"model_type": "bert"}))
    assert same_weights(load(tmp_path / "old"), model)


def test_tokenizers_come_along(shared: Path, tmp_path: Path) -> None:
    vocabularies = shared / "data/vocab"
    config = replace(CONFIGS["bert"], lm=None, pair=False)
    config = replace(config, encoder=replace(config.encoder, vocab=30522))
    folder.save(make(config), tmp_path / "plain")
    shutil.copyfile(vocabularies / "bert-base-uncased/vocab.txt", tmp_path / "vocab.txt")
    for place, family in (
        ("bert-base-uncased", "bert"),
        ("albert-style-30k", "albert"),
        ("chinese-xlnet", "xlnet"),
    ):
        found = find_tokenizer(vocabularies / place, family)
        assert isinstance(found, Tokenizer) and found.vocab_size >= 30000
    assert find_tokenizer(tmp_path / "plain", "bert") is None


def test_albert_in_chinese_has_the_tokens_of_bert(tmp_path: Path) -> None:
    """Its releases have vocab.txt, and some name BERT's tokenizer in config.json."""
    model = make(CONFIGS["albert"])
    for place, fields in (("silent", {}), ("named", {"tokenizer_class": "BertTokenizer"})):
        huggingface.save(model, tmp_path / place)
        (tmp_path / place / "SHA256SUMS").unlink()
        path = tmp_path / place / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | fields))
        (tmp_path / place / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n猫\n")
        tokenizer = load(tmp_path / place).tokenizer
        assert tokenizer is not None and (tokenizer.kind, tokenizer.special.unk) == ("wordpiece", 1)
    for path in (tmp_path / "silent", tmp_path / "silent" / "vocab.txt"):
        found = find_tokenizer(path, "albert")  # of a TensorFlow checkpoint
        assert found is not None and found.encode("猫").ids.tolist() == [5]
