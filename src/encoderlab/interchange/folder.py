"""Model folders of our own: ``config.json``, ``model.safetensors``, tokenizer files and a model card. Never pickle."""

from __future__ import annotations

import glob
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor

from encoderlab.config import from_dict, to_dict
from encoderlab.corpus.tokenizer import Tokenizer
from encoderlab.errors import ConfigError, DataError
from encoderlab.interchange import checksums
from encoderlab.interchange.files import SAFE, check_precision, read_json, read_weights, write_weights
from encoderlab.model import Model
from encoderlab.models.base import ModelConfig

FORMAT = {"format": "encoderlab", "version": 1}


def weights(model: Model) -> dict[str, Tensor]:
    """Every tensor of the model by name, shared tensors once.

    A word or position table that is stored as a difference from another network's table is returned as the sum.
    """
    state: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, parameter in model.named_parameters():
        if id(parameter) not in seen:
            seen.add(id(parameter))
            state[name] = parameter.detach()
    embeddings = model.encoder.embeddings
    for name in ("words", "positions"):
        own, base = getattr(embeddings, name), getattr(embeddings, f"base_{name}")
        if own is not None and base is not None:
            state[f"encoder.embeddings.{name}"] = (own + base).detach()
    return {name: tensor.cpu().contiguous() for name, tensor in state.items()}


def save(model: Model, folder: str | os.PathLike[str]) -> None:
    """Write the model folder in one step: complete or not at all. It replaces an older folder of this format.

    Raises:
        ConfigError: the folder has other content.
    """
    folder = Path(folder)
    if folder.exists() and any(folder.iterdir()) and not is_ours(folder):
        raise ConfigError(f"{folder}: is not empty and not a model folder of encoderlab; choose another folder")
    config = {**FORMAT, **to_dict(model.config)}

    def fill(aside: Path) -> None:
        write_fields(aside / "config.json", config)
        write_weights(aside / SAFE, weights(model))
        if model.tokenizer is not None:
            model.tokenizer.save(aside)
        (aside / "README.md").write_text(_card(model), encoding="utf-8")

    write_whole(folder, fill)


def write_fields(path: Path, fields: dict[str, Any]) -> None:
    """Write a JSON file of a model folder."""
    path.write_text(json.dumps(fields, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def write_whole(folder: Path, fill: Callable[[Path], None]) -> None:
    """Make ``folder`` with the files that ``fill`` writes, and their checksums; an older folder is replaced at the end.

    Files are written to a folder aside. If ``folder`` is a link, its target is replaced. Remains of killed processes
    are deleted: unfinished folders at once, older ones (``.NAME.PID.old``) when a new one is complete.

    Raises:
        DataError: it could not be written, for example on a full disk.
    """
    folder = folder.resolve()

    def sweep(kind: str) -> None:
        for left in folder.parent.glob(f".{glob.escape(folder.name)}.*.{kind}"):
            shutil.rmtree(left, ignore_errors=True)

    sweep("tmp")
    aside, old = (folder.with_name(f".{folder.name}.{os.getpid()}.{kind}") for kind in ("tmp", "old"))
    try:
        aside.mkdir(parents=True)
        fill(aside)
        checksums.write(aside)
        for file in aside.rglob("*"):
            if file.is_file():
                with file.open("rb") as opened:
                    os.fsync(opened.fileno())
        if folder.exists():
            os.rename(folder, old)
        os.rename(aside, folder)
        sweep("old")
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(
            f"{folder}: could not be written ({reason}); check permissions and space, and run again"
        ) from None
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def is_ours(folder: Path) -> bool:
    """Whether the folder has a model in this format."""
    try:
        return read_json(folder / "config.json").get("format") == FORMAT["format"]
    except DataError:
        return False


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


def check_depth(config: ModelConfig, weights: int, source: Path) -> None:
    """Refuse a configuration with more layers than weights: making a billion layers from a damaged file would not end.

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
    expected = {name: parameter.shape for name, parameter in model.named_parameters()}
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
    if kinds in (["bfloat16"], ["float16"]):  # a way to store weights, in which few processors compute well
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
        return from_dict(ModelConfig, data, where=str(path))
    except ConfigError as error:
        raise DataError(str(error)) from None


def some(names: list[str]) -> str:
    """The first four names, and the number of further names."""
    if not names:
        return "none"
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def own_card(model: Model, place: Path) -> str | None:
    """The model card that lies in a model or run folder; None where there is none, or only the one that
    :func:`save` writes.
    """
    found = (folder / "README.md" for folder in (place / "model", place))
    path = next((path for path in found if path.is_file()), None)
    text = None if path is None else path.read_text(encoding="utf-8", errors="replace")
    return None if text == _card(model) else text


def _card(model: Model) -> str:
    count = sum(parameter.numel() for parameter in {id(p): p for p in model.parameters()}.values())
    family = model.config.family
    return f"# {family}\n\nA text encoder of family {family}, {count:,} parameters, made with encoderlab.\n"
