"""Files that other libraries wrote: weights as safetensors or PyTorch's pickles, whole or in shards, and JSON."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from encoderlab.errors import DataError
from encoderlab.interchange import folder as folders
from encoderlab.interchange.configs.fields import Fields

SAFE, SAFE_INDEX = "model.safetensors", "model.safetensors.index.json"
PICKLED, PICKLED_INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"


# JSON -----------------------------------------------------------------------------------------------------------------


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
        DataError: missing, unreadable, or not an object.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(f"{path.parent}: holds no {path.name}; give a model folder") from None
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read ({str(error).splitlines()[0]}); restore it") from None
    if not isinstance(data, dict):
        raise DataError(f"{path}: holds {type(data).__name__}, expected an object of fields; restore it")
    return data


def read_fields(path: Path) -> Fields:
    """The fields of a configuration in a JSON file.

    Raises:
        DataError: as for :func:`read_json`.
    """
    return Fields(read_json(path), str(path))


def fields_beside(folder: Path, name: str) -> Fields:
    """The configuration that lies beside a checkpoint: ``name``, or the only file called ``*config*.json``.

    Raises:
        DataError: there is none, or several without that name, or it is damaged.
    """
    path = folder / name
    if not path.exists():
        found = sorted(folder.glob("*config*.json"))
        if len(found) != 1:
            raise DataError(
                f"{folder}: holds no {name}; the checkpoint's sizes are unknown, copy its configuration there"
            )
        path = found[0]
    return read_fields(path)


# Weights --------------------------------------------------------------------------------------------------------------


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """All weights of a folder: ``model.safetensors``, its shards, or the same as a legacy ``pytorch_model.bin``.

    Raises:
        DataError: a file is missing, damaged, or holds more than weights.
    """
    for whole, index in ((SAFE, SAFE_INDEX), (PICKLED, PICKLED_INDEX)):
        if (folder / whole).exists():
            return read_file(folder / whole)
        if (folder / index).exists():
            return _read_shards(folder, folder / index)
    raise DataError(f"{folder}: holds no {SAFE}, {SAFE_INDEX} or {PICKLED}; give a model folder")


def read_pickled(path: Path) -> Any:
    """The contents of a PyTorch file, read by a loader that builds tensors and plain containers only.

    Raises:
        DataError: missing or damaged, or it would have to run code to be read.
    """
    try:
        folders.refuse_text(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about how old the file's pickle protocol is
            return torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise DataError(f"{path}: does not exist") from None
    except DataError:
        raise
    except Exception as error:  # a foreign file makes the reader fail in any way
        if "Unsupported" in str(error) or "unsafe" in str(error).lower():
            raise DataError(
                f"{path}: holds more than weights and would run code when read; save its state dict as safetensors"
            ) from None
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise DataError(f"{path}: is damaged ({reason}); copy it again from its source") from None


def read_state(path: Path) -> dict[str, Tensor]:
    """The weights in a PyTorch file, by name.

    Raises:
        DataError: as for :func:`read_pickled`, or it holds anything else.
    """
    data = read_pickled(path)
    if not isinstance(data, dict) or not all(isinstance(value, Tensor) for value in data.values()):
        raise DataError(f"{path}: holds no dictionary of weights; save model.state_dict()")
    return data


def read_file(path: Path) -> dict[str, Tensor]:
    """The weights in a PyTorch or safetensors file, by name.

    Raises:
        DataError: as for :func:`read_state`.
    """
    return folders.read_weights(path) if path.suffix == ".safetensors" else read_state(path)


def _read_shards(folder: Path, index: Path) -> dict[str, Tensor]:
    where = read_json(index).get("weight_map")
    if not isinstance(where, dict) or not all(isinstance(name, str) for name in where.values()):
        raise DataError(f"{index}: has no weight_map; restore it")
    tensors: dict[str, Tensor] = {}
    for file in sorted(set(where.values())):
        if Path(file).name != file:
            raise DataError(f"{index}: names {file!r}, which is not a file of this folder; restore it")
        tensors |= read_file(folder / file)
    lost = sorted(name for name in where if name not in tensors)
    if lost:
        raise DataError(f"{index}: {lost[0]} is not in {where[lost[0]]}; copy the folder again from its source")
    return tensors


def find_file(path: Path) -> Path:
    """The file of weights that ``path`` means: itself, or the one of a folder.

    Raises:
        DataError: the folder holds none, or several of which none has the usual name.
    """
    if path.is_file():
        return path
    if (path / PICKLED).exists():  # a release has its vocabulary and its generator beside it
        return path / PICKLED
    found = sorted(file for kind in ("*.bin", "*.pt", "*.safetensors") for file in path.glob(kind))
    if len(found) != 1:
        raise DataError(f"{path}: holds {len(found)} .bin, .pt or .safetensors files; name the one to read")
    return found[0]
