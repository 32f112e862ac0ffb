"""Write model folders in our format: ``config.json``, ``model.safetensors``, tokenizer files, a card."""

from __future__ import annotations

import glob
import json
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError
from torch import Tensor

from encoderlab.config import to_dict
from encoderlab.errors import ConfigError, DataError
from encoderlab.interchange import checksums
from encoderlab.interchange.files import SAFE, read_json, write_one_by_one, write_weights
from encoderlab.nn.packed import Packed

if TYPE_CHECKING:
    from encoderlab.model import Model

FORMAT = {"format": "encoderlab", "version": 1}
CARD = "README.md"
_OUR_CARD = re.compile(rb"# \S+\n\nA text encoder of family \S+, [\d,]+ parameters, made with encoderlab\.\n")


def weights(model: Model) -> dict[str, Tensor]:
    """Every tensor of the model by name, shared tensors once.

    A word or position table that is stored as a difference from another network's table is returned as the sum.
    """
    return {name: _sum(parts, Tensor.detach) for name, parts in _sources(model).items()}


def _sources(model: Model) -> dict[str, list[Tensor]]:
    """The parameters whose sum is written under each name; packed weights as the parameters that they replace."""
    state = {name: [part.whole()] for name, part in model.named_modules() if isinstance(part, Packed)}
    seen: set[int] = set()
    for name, parameter in model.named_parameters():
        if id(parameter) not in seen:
            seen.add(id(parameter))
            state[name] = [parameter]
    embeddings = model.encoder.embeddings
    for name in ("words", "positions"):
        own, base = getattr(embeddings, name), getattr(embeddings.base[0], name) if embeddings.base else None
        if own is not None and base is not None:
            state[f"encoder.embeddings.{name}"] = [own, base]
    return state


def _sum(parts: list[Tensor], values: Callable[[Tensor], Tensor]) -> Tensor:
    total = values(parts[0])
    for part in parts[1:]:
        total = total + values(part)
    return total.cpu().contiguous()


def save(
    model: Model,
    folder: str | os.PathLike[str],
    *,
    values: Callable[[Tensor], Tensor] | None = None,
    also: Callable[[Path], None] | None = None,
) -> None:
    """Write the model folder in one step: complete or not at all. It replaces an older folder of this format, but keeps
    the card that a user wrote into it.

    Args:
        model: to write.
        folder: to make.
        values: reads the values of a parameter, for a model on device ``meta``; only one tensor at a time is then in
            memory.
        also: writes further files into the folder, before it gets its name.

    Raises:
        ConfigError: the folder has other content.
    """
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder}: is a file; choose a folder")
    if folder.exists() and any(folder.iterdir()) and not is_ours(folder):
        raise ConfigError(f"{folder}: is not empty and not a model folder of encoderlab; choose another folder")

    def fill(aside: Path) -> None:
        write_files(model, aside, values=values, card=own_card(folder))
        if also is not None:
            also(aside)

    write_whole(folder, fill)


def write_files(
    model: Model,
    folder: Path,
    *,
    values: Callable[[Tensor], Tensor] | None = None,
    bare: bool = False,
    card: bytes | None = None,
) -> None:
    """Write the files of a model folder into one that is made by :func:`write_whole`.

    ``bare``: without the head of its task. ``card`` is the user's own.
    """
    config = replace(model.config, task=None, labels=()) if bare else model.config
    write_fields(folder / "config.json", {**FORMAT, **to_dict(config)})
    dropped = ("task.",) if bare else ()
    if values is None:
        own = {name: tensor for name, tensor in weights(model).items() if not name.startswith(dropped)}
        write_weights(folder / SAFE, own)
    else:
        sources = {name: parts for name, parts in _sources(model).items() if not name.startswith(dropped)}
        about = {name: (parts[0].dtype, parts[0].shape) for name, parts in sources.items()}
        write_one_by_one(folder / SAFE, about, lambda name: _sum(sources[name], values))
    if model.tokenizer is not None:
        model.tokenizer.save(folder)
    (folder / CARD).write_bytes(card or _card(model).encode())


def write_fields(path: Path, fields: dict[str, Any]) -> None:
    """Write a JSON file of a model folder."""
    path.write_text(json.dumps(fields, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def write_whole(folder: Path, fill: Callable[[Path], None]) -> None:
    """Make ``folder`` with the files that ``fill`` writes, and their checksums; an older folder is replaced at the end.

    Files are written to a temporary folder. If ``folder`` is a link, its target is replaced. Remains of killed
    processes are deleted: unfinished folders at once, older ones (``.NAME.PID.old``) when a new one is complete. After
    a kill between the two renamings, the older folder first gets its name back, with what a user wrote into it.

    Raises:
        DataError: it could not be written, for example on a full disk.
    """
    folder = folder.resolve()

    def remains(kind: str) -> list[Path]:
        paths = folder.parent.glob(f".{glob.escape(folder.name)}.*.{kind}")
        process = re.compile(rf"\.{re.escape(folder.name)}\.[0-9]+\.{kind}")  # else another folder's
        return [path for path in paths if process.fullmatch(path.name)]

    def sweep(kind: str) -> None:
        for left in remains(kind):
            shutil.rmtree(left, ignore_errors=True)

    sweep("tmp")
    if not folder.exists() and (replaced := remains("old")):
        os.rename(max(replaced, key=lambda path: path.stat().st_mtime), folder)
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


def own_card(place: Path) -> bytes | None:
    """The user's model card in a model or run folder; None if there is none, or only that of :func:`save`."""
    cards = (folder / CARD for folder in (place / "model", place))
    path = next((path for path in cards if path.is_file()), None)
    card = b"" if path is None else path.read_bytes()
    return None if not card.strip() or _OUR_CARD.fullmatch(card) else card


def _card(model: Model) -> str:
    count = sum(parts[0].numel() for parts in _sources(model).values())
    family = model.config.family
    return f"# {family}\n\nA text encoder of family {family}, {count:,} parameters, made with encoderlab.\n"
