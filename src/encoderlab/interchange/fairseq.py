"""fairseq's RoBERTa: ``model.pt`` with its ``dict.txt``, read without executing anything in them."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from encoderlab.corpus.special_tokens import FAMILIES, SpecialTokens
from encoderlab.corpus.tokenizer import Tokenizer
from encoderlab.corpus.vocabularies import byte_bpe
from encoderlab.errors import DataError
from encoderlab.interchange import heads, name_tables, names
from encoderlab.interchange.assemble import Models, assemble
from encoderlab.interchange.configs.fields import Fields
from encoderlab.interchange.files import read_json, read_pickled, unreadable
from encoderlab.models.base import ModelConfig
from encoderlab.nn.architecture import EncoderConfig
from encoderlab.nn.heads import LM, Classification
from encoderlab.nn.positions import Absolute

# Symbols that every fairseq dictionary starts with, before the lines of dict.txt.
FIRST_SYMBOLS = ("<s>", "<pad>", "</s>", "<unk>")
MASK = "<mask>"


def read(path: Path, *, allow_missing: bool = False) -> Models:
    """Read RoBERTa from fairseq's ``model.pt`` of any release, with its classification head, if it has exactly one.

    Raises:
        DataError: damaged, unsafe, not RoBERTa, or an argument of the model that is missing or not implemented.
    """
    weights, settings = read_checkpoint(path)
    name_table = name_tables.ROBERTA_FAIRSEQ
    source = path / "model.pt" if path.is_dir() else path
    renamed = names.normalized(name_table, weights, set(), source=str(source))
    words = renamed.get("encoder.sentence_encoder.embed_tokens.weight")
    positions = renamed.get("encoder.sentence_encoder.embed_positions.weight")
    if words is None or positions is None:
        raise DataError(f"{source}: not a RoBERTa encoder (arch {settings.get('arch')!r}); only RoBERTa can be read")
    dictionary = source.with_name("dict.txt")
    if dictionary.exists() and len(read_dictionary(dictionary)) > len(words):
        raise DataError(
            f"{dictionary}: has more symbols than the checkpoint's {len(words)}; it belongs to another model"
        )
    fields = Fields(settings, str(source))
    config = _config(fields, words, positions)
    scopes = [
        match[1] for name in weights if (match := re.fullmatch(r"(classification_heads\..+)\.out_proj\.weight", name))
    ]
    if len(scopes) == 1:
        labels, dropout = len(weights[f"{scopes[0]}.out_proj.weight"]), fields.number("pooler_dropout", 0.0)
        activation = fields.activation("pooler_activation_fn", "tanh")
        task = Classification(
            labels=labels, summary="dense", activation=activation, input_dropout=dropout, dropout=dropout
        )
        config = replace(config, task=task, labels=heads.unnamed(labels))
        name_table = replace(name_table, rules=(*name_table.rules, *name_tables.fairseq_head(scopes[0])))
    return {"model": assemble(config, weights, name_table, source, allow_missing=allow_missing)}


def _config(fields: Fields, words: Tensor, positions: Tensor) -> ModelConfig:
    """RoBERTa's configuration from the arguments of a run and the sizes of its tables, (V, D) and (positions, D)."""
    for name in ("encoder_normalize_before", "untie_weights_roberta"):
        fields.only(name, False)
    offset = FIRST_SYMBOLS.index("<pad>") + 1
    encoder = EncoderConfig(
        vocab=len(words),
        layers=fields.count("encoder_layers"),
        width=words.shape[1],
        heads=fields.count("encoder_attention_heads"),
        ff_width=fields.count("encoder_ffn_embed_dim"),
        position=Absolute(length=len(positions) - offset, offset=offset),
        types=0,
        eps=1e-5,
        activation=fields.activation("activation_fn"),
        dropout=fields.number("dropout", 0.1),
        attention_dropout=fields.number("attention_dropout", 0.1),
        ff_dropout=fields.number("activation_dropout", 0.0),
    )
    return ModelConfig(family="roberta", encoder=encoder, lm=LM())


def read_checkpoint(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The weights and the model's arguments in a checkpoint, or in a folder with ``model.pt``.

    The arguments are stored as ``argparse.Namespace`` (under ``args``, or ``cfg["model"]`` in newer files), which the
    restricted loader may build: it has plain attributes and runs no code. Anything else is refused.

    Raises:
        DataError: missing, damaged, not a fairseq checkpoint, or reading it would run code.
    """
    path = path / "model.pt" if path.is_dir() else path
    with torch.serialization.safe_globals([argparse.Namespace]):
        data = read_pickled(path)
    weights = data.get("model") if isinstance(data, dict) else None
    if not isinstance(weights, dict) or not all(isinstance(value, Tensor) for value in weights.values()):
        raise DataError(f"{path}: has no 'model' with weights; give a fairseq checkpoint")
    settings: Any = data.get("cfg")
    settings = settings.get("model") if isinstance(settings, dict) else data.get("args")
    if isinstance(settings, argparse.Namespace):
        settings = vars(settings)
    if not isinstance(settings, Mapping):
        raise DataError(f"{path}: has no arguments of the model ('cfg' or 'args'), so its sizes are unknown")
    return weights, dict(settings)


def read_dictionary(path: Path) -> list[str]:
    """The symbols of ``dict.txt`` by id, the special ones included; for RoBERTa they are ids of GPT-2's vocabulary.

    Raises:
        DataError: missing, or a line that is not ``SYMBOL COUNT``.
    """
    symbols = list(FIRST_SYMBOLS)
    for number, line in enumerate(_lines(path), start=1):
        symbol, _, count = line.removesuffix(" #fairseq:overwrite").rpartition(" ")
        if not symbol or not count.isdigit():
            raise DataError(f"{path}, line {number}: {line!r} is not SYMBOL COUNT; restore the file")
        symbols.append(symbol)
    return symbols if MASK in symbols else [*symbols, MASK]


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise unreadable(path, error) from None
    except ValueError:
        raise DataError(f"{path}: is not UTF-8; restore the checkpoint's file") from None


def tokenizer(dictionary: Path, gpt2: Path) -> Tokenizer:
    """RoBERTa's tokenizer: GPT-2's byte-level BPE with ids in the order of ``dict.txt``.

    Args:
        dictionary: ``dict.txt``, whose symbols are ids of GPT-2's vocabulary.
        gpt2: a folder with GPT-2's ``vocab.json`` and ``merges.txt`` (or ``encoder.json`` and ``vocab.bpe``).

    Raises:
        DataError: a file is missing, or the dictionary belongs to another vocabulary.
    """
    vocabulary = read_json(_first(gpt2, "vocab.json", "encoder.json"))
    lines = _lines(_first(gpt2, "merges.txt", "vocab.bpe"))
    merges = [(first, second) for first, _, second in (line.partition(" ") for line in lines) if second]
    symbols = read_dictionary(dictionary)
    strange = sorted({symbol for symbol in symbols if symbol.isdigit()} - {str(index) for index in vocabulary.values()})
    if strange:
        raise DataError(f"{dictionary}: {strange[0]!r} is not an id of the vocabulary in {gpt2}; give GPT-2's")
    return reordered(symbols, vocabulary, merges, FAMILIES["roberta"].special_tokens)


def reordered(
    symbols: Sequence[str],
    vocabulary: Mapping[str, int],
    merges: Iterable[tuple[str, str]],
    special_tokens: SpecialTokens,
) -> Tokenizer:
    """GPT-2's byte-level BPE with new ids: ``symbols``, in order, are GPT-2's ids as text, or further tokens."""
    tokens = {str(index): token for token, index in vocabulary.items()}
    ids = {tokens.get(symbol, symbol): index for index, symbol in enumerate(symbols)}
    known = [pair for pair in merges if all(part in ids for part in (*pair, "".join(pair)))]
    return Tokenizer(byte_bpe(ids, known), special_tokens)


def _first(folder: Path, *choices: str) -> Path:
    for name in choices:
        if (folder / name).exists():
            return folder / name
    raise DataError(f"{folder}: has no {' or '.join(choices)}; give a folder with GPT-2's vocabulary")
