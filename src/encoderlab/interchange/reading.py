"""Fill models with configurations and weights, and read model folders in our format. Never pickle."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch import Tensor

from encoderlab.config import from_dict
from encoderlab.corpus.tokenizer import Tokenizer
from encoderlab.errors import ConfigError, DataError
from encoderlab.interchange import checksums
from encoderlab.interchange.files import SAFE, check_precision, read_json, read_weights
from encoderlab.interchange.folder import FORMAT
from encoderlab.model import Model
from encoderlab.models import FAMILIES
from encoderlab.models.base import ModelConfig


def load(folder: str | os.PathLike[str]) -> Model:
    """Read a model folder in this format.

    Raises:
        DataError: a file is missing, does not match its checksum or the configuration, or a weight is not finite.
    """
    folder = Path(folder)
    checksums.verify(folder)
    config = _read_config(folder)
    state = read_weights(folder / SAFE)
    tokenizer = Tokenizer.load(folder) if (folder / "tokenizer.json").exists() else None
    check_depth(config, len(state), folder)
    model = unfilled(config, folder)
    fill(model, state, folder)
    give_tokenizer(model, tokenizer, folder)
    return model.eval()


def unfilled(config: ModelConfig, source: Path) -> Model:
    """A model on the meta device, for weights from ``source``.

    Raises:
        DataError: the configuration is not valid.
    """
    try:
        with torch.device("meta"):
            return Model(config)
    except ConfigError as error:
        raise DataError(f"{source}: {error}") from None


def shapes(model: Model) -> dict[str, torch.Size]:
    """The shape of each parameter by its name."""
    return {name: parameter.shape for name, parameter in model.named_parameters()}


def check_depth(config: ModelConfig, weights: int, source: Path) -> None:
    """Refuse a configuration with more layers than weights: a damaged file could ask for a billion layers.

    Raises:
        DataError: more blocks than weights, although each block has several.
    """
    sharing = config.encoder.sharing
    blocks = sharing.groups * sharing.inner if sharing is not None and sharing.whole else config.encoder.layers
    if blocks > weights:
        raise DataError(
            f"{source}: the configuration has {blocks:,} blocks of layers, but there are {weights:,} weights; restore "
            "the folder's own config.json"
        )


def give_tokenizer(model: Model, tokenizer: Tokenizer | None, source: Path) -> None:
    """Give a model the tokenizer from ``source``.

    Raises:
        DataError: the tokenizer has more ids than the model.
    """
    if tokenizer is not None and tokenizer.vocab_size > model.config.encoder.vocab:
        raise DataError(
            f"{source}: the tokenizer has {tokenizer.vocab_size} ids, the model {model.config.encoder.vocab}; "
            "they belong to different models"
        )
    model.tokenizer = tokenizer


def fill(model: Model, state: dict[str, Tensor], source: Path) -> None:
    """Give weights to a model on the meta device. Those stored in half precision become float32, exactly.

    Raises:
        DataError: names, shapes or types differ, or a weight is not finite.
    """
    expected = shapes(model)
    missing, unexpected = sorted(expected.keys() - state.keys()), sorted(state.keys() - expected.keys())
    if missing or unexpected:
        raise DataError(
            f"{source}: weights do not fit the configuration: missing {some(missing)}, "
            f"unexpected {some(unexpected)}; restore the folder's own config.json"
        )
    for name, tensor in state.items():
        if tensor.shape != expected[name]:
            raise DataError(
                f"{source}: {name} has shape {tuple(tensor.shape)}, the configuration says {tuple(expected[name])}; "
                "restore the folder's own config.json"
            )
        check_precision(name, tensor, source)
        if not bool(torch.isfinite(tensor).all()):
            raise DataError(f"{source}: {name} has values that are not finite; use an earlier checkpoint")
    kinds = sorted({str(tensor.dtype).removeprefix("torch.") for tensor in state.values()})
    if len(kinds) > 1:
        raise DataError(f"{source}: weights of {' and '.join(kinds)}, expected one precision; restore the folder")
    if kinds in (["bfloat16"], ["float16"]):  # a format for storage; few processors compute well in it
        state = {name: tensor.float() for name, tensor in state.items()}
    model.load_state_dict(state, strict=False, assign=True)
    for parameter in model.parameters():
        parameter.requires_grad_(True)


def _read_config(folder: Path) -> ModelConfig:
    path = folder / "config.json"
    data = read_json(path)
    version = data.pop("version", None)
    if data.pop("format", None) != FORMAT["format"] or version != FORMAT["version"]:
        raise DataError(
            f"{path}: format version {version!r}, this release reads {FORMAT['version']}; use the release that wrote it"
        )
    try:
        config = from_dict(ModelConfig, data, where=str(path))
    except ConfigError as error:
        raise DataError(f"{path}: {str(error).removeprefix(f'{path}: ')}") from None
    if config.family not in FAMILIES:
        raise DataError(f"{path}: family {config.family!r}; expected one of {', '.join(FAMILIES)}; restore the file")
    return config


def some(names: list[str]) -> str:
    """The first four names, fewer if they are long, and the number of further names."""
    if not names:
        return "none"
    shown = names[:1] + [names[i] for i in range(1, min(4, len(names))) if len(", ".join(names[: i + 1])) <= 420]
    return ", ".join(shown) + (f" and {len(names) - len(shown)} more" if len(names) > len(shown) else "")
