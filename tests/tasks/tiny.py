"""A tiny model with a vocabulary of its own, for tests that train."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import normalizers, pre_tokenizers
from tokenizers.models import WordPiece

from encoderlab import models
from encoderlab.corpus import special_tokens
from encoderlab.corpus.tokenizer import Tokenizer
from encoderlab.model import Model
from encoderlab.models.base import resized

WORDS = (
    "red blue green one two three four the a is not cat dog mat sat on in under who what where when oslo rome "
    "paris lima sue ann bob runs eats sleeps big small good bad fine awful very and or it he she film . , ? of to"
).split()

EVERY = ["bert", "roberta", "albert", "distilbert", "electra", "convbert", "transformer-xl", "xlnet", "deberta"]
EVERY += ["deberta-v2", "deberta-v3", "modernbert"]


def tokenizer(family: str = "bert", *, further: tuple[str, ...] = ()) -> Tokenizer:
    layout = special_tokens.FAMILIES[family].special_tokens
    letters = [f"##{letter}" for letter in "abcdefghijklmnopqrstuvwxyz"]
    tokens = [*dict.fromkeys(layout.roles().values()), *WORDS, *further, *"abcdefghijklmnopqrstuvwxyz", *letters]
    tokens = list(dict.fromkeys(tokens))
    unk = layout.roles()["unk"]
    backend = tokenizers.Tokenizer(WordPiece({token: i for i, token in enumerate(tokens)}, unk_token=unk))
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return Tokenizer(backend, layout)


def model(size: str = "bert-tiny", *, dropout: float = 0.0, width: int = 64, positions: int = 0) -> Model:
    """The architecture of ``size`` with two layers of ``width``, on the tiny vocabulary."""
    config = models.config(size)
    text = tokenizer("xlnet" if config.family == "xlnet" else "bert")
    heads = 2
    config = resized(
        config,
        vocab=text.vocab_size,
        layers=2,
        width=width,
        heads=heads,
        ff_width=2 * width,
        head_width=None,
        embed_width=None if config.encoder.embed_width is None else width,
        dropout=dropout,
        attention_dropout=dropout,
        ff_dropout=dropout if config.encoder.ff_dropout else 0.0,
        output_dropout=0.0,
    )
    if positions:
        position: Any = config.encoder.position  # of a family that has a length
        config = resized(config, position=replace(position, length=positions))
    return Model(config, text).initialize(1)


def write_vector_settings(folder: Path) -> None:
    """Write sentence-transformers' files into a model's folder: the first token of six, scaled, after a prompt."""
    kind = "sentence_transformers.models."
    modules = [{"path": p, "type": kind + t} for p, t in (("", "Transformer"), ("1_Pooling", "Pooling"))]
    written = {
        "modules.json": [*modules, {"path": "2_Normalize", "type": kind + "Normalize"}],
        "1_Pooling/config.json": {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False},
        "sentence_bert_config.json": {"max_seq_length": 6, "do_lower_case": False},
        "config_sentence_transformers.json": {"prompts": {"query": "the "}, "default_prompt_name": "query"},
    }
    (folder / "1_Pooling").mkdir()
    for name, data in written.items():
        (folder / name).write_text(json.dumps(data))
