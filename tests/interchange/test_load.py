"""Models found in folders and checkpoints of every kind, and their tokenizers."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from encoderlab.corpus.tokenizer import Tokenizer
from encoderlab.errors import DataError
from encoderlab.interchange import (
    folder,
)
from encoderlab.interchange.load import find_tokenizer, read
from tests.interchange.tiny_models import CONFIGS, make


def test_nothing_known(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        read(tmp_path / "nowhere")
    with pytest.raises(DataError, match="no known model format"):
        read(tmp_path)
    make(CONFIGS["bert"]).save(tmp_path / "ours")
    with pytest.raises(DataError, match="no known model format; expected a folder of encoderlab"):
        read(tmp_path / "ours/model.safetensors")


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
