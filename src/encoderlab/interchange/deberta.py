"""DeBERTa as Microsoft's own code saves it, versions 1 to 3."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from encoderlab.corpus.special_tokens import FAMILIES
from encoderlab.corpus.tokenizer import Tokenizer
from encoderlab.errors import DataError
from encoderlab.interchange import configs, fairseq, heads, name_tables
from encoderlab.interchange.assemble import Models, assemble
from encoderlab.interchange.configs.fields import Fields
from encoderlab.interchange.files import find_file, read_file, read_json, read_pickled
from encoderlab.models.base import ModelConfig
from encoderlab.nn.heads import Classification, Tagging


def read(path: Path, *, allow_missing: bool = False) -> Models:
    """Read DeBERTa from Microsoft's own files, in the format of the release of version 1 or of the code.

    They are ``pytorch_model.bin`` (or another ``.bin``, ``.pt`` or ``.safetensors``) next to ``config.json`` or
    ``model_config.json``. A joint file of replaced token detection (``generator.``, ``discriminator.``) gives both
    networks; the discriminator's word table is the generator's plus a stored difference.
    ``pytorch_model.generator.bin`` of version 3 is next to the discriminator's configuration, and has half its layers.
    """
    file = find_file(path)
    tensors = read_file(file)
    for name in ("config.json", "model_config.json"):
        if (file.parent / name).exists():
            data = read_json(file.parent / name)
            if file.name.endswith(".generator.bin") and isinstance(data.get("num_hidden_layers"), int):
                data["num_hidden_layers"] //= 2
            return networks(data, tensors, file, allow_missing=allow_missing)
    raise DataError(f"{file.parent}: has no config.json or model_config.json, which give the sizes; copy it there")


def networks(
    data: dict[str, Any], tensors: Mapping[str, Tensor], source: Path, *, allow_missing: bool = False
) -> Models:
    """One network, or generator and discriminator, from tensors and configuration of DeBERTa's own code."""
    if any(name.startswith("discriminator.") for name in tensors):
        tensors = materialized(tensors, source)
        parts = {
            part: {name.removeprefix(f"{part}."): t for name, t in tensors.items() if name.startswith(f"{part}.")}
            for part in ("generator", "discriminator")
        }
        sizes = {part: data.get(part, data) for part in parts}
        for part, given in sizes.items():
            if not isinstance(given, dict):
                raise DataError(f"{source}: {part} is {given!r:.40}, expected an object of fields; restore its config")
        return {
            part: networks(sizes[part], layers, source, allow_missing=allow_missing)["model"]
            for part, layers in parts.items()
        }
    released = any(name.endswith("attention.self.in_proj.weight") for name in tensors)
    left_out = ("backbone", "embedding_sharing", "rtd_lambda", "pooling")
    fields = Fields({name: value for name, value in data.items() if name not in left_out}, str(source))
    config = configs.read_as("deberta" if released else "deberta-v2", fields)
    name_table = name_tables.DEBERTA_V1 if released else name_tables.DEBERTA_V2
    # A discriminator saved alone has both its tables and their differences from the generator's.
    ignored = (*name_table.ignored, r"embeddings\.position_embeddings\.weight$", r"_embeddings\._weight$")
    name_table = replace(name_table, ignored=ignored)
    if "classifier.weight" in tensors:
        config, rules = _with_task(config, data.get("pooling"), tensors, str(source))
        name_table = replace(name_table, rules=(*name_table.rules, *rules))
    return {"model": assemble(config, tensors, name_table, source, allow_missing=allow_missing)}


def _with_task(
    config: ModelConfig, pooling: Any, tensors: Mapping[str, Tensor], source: str
) -> tuple[ModelConfig, name_tables.Rules]:
    """The head that DeBERTa's code fine-tunes: for one vector per text (``pooler``), or for every token (``proj``)."""
    count = len(tensors["classifier.weight"])
    out = name_tables.linear("task.out", "classifier")
    if "proj.weight" in tensors:
        config = replace(config, task=Tagging(labels=count, dense=True), labels=heads.numbered(count))
        return config, (*name_tables.linear("task.dense", "proj"), *out)
    fields = Fields(pooling if isinstance(pooling, dict) else {}, source)
    task = Classification(
        labels=count,
        summary="dense",
        activation=fields.activation("hidden_act"),
        input_dropout=fields.number("dropout", 0.0),
    )
    config = replace(config, task=task, labels=heads.unnamed(count))
    return config, (*name_tables.linear("task.dense", "pooler.dense"), *out)


def tokenizer(path: Path) -> Tokenizer:
    """The tokenizer of DeBERTa v1 in ``bpe_encoder.bin``: GPT-2's pieces and merges, and their order in the model.

    Raises:
        DataError: as for :func:`read_pickled`, or the file has other contents.
    """
    data = read_pickled(path)
    try:
        words = [str(word) for word, _ in data["dict_map"]]
        merges = [(str(first), str(second)) for first, second in data["vocab"]]
        vocabulary = {str(token): int(index) for token, index in data["encoder"].items()}
    except (KeyError, TypeError, ValueError, AttributeError):
        raise DataError(f"{path}: has no dict_map, vocab or encoder; restore it from its source") from None
    family = FAMILIES["deberta"]
    return fairseq.reordered([*family.first, *words, *family.last], vocabulary, merges, family.special_tokens)


def materialized(tensors: Mapping[str, Tensor], source: Path) -> dict[str, Tensor]:
    """The tensors of a joint file with plain tables instead of gradient-disentangled ones.

    Those (``_weight``) are differences from the generator's tables.

    Raises:
        DataError: the generator's table is missing, or has another shape.
    """
    result = dict(tensors)
    for name in tensors:
        if name.startswith("discriminator.") and name.endswith("._weight"):
            plain = name.removesuffix("_weight") + "weight"
            base = tensors.get("generator." + plain.removeprefix("discriminator."))
            if base is None or base.shape != tensors[name].shape:
                what = "is missing" if base is None else "has another shape"
                raise DataError(f"{source}: {name} is a difference from the generator's table, which {what}")
            result[plain] = base + result.pop(name)
    return result
