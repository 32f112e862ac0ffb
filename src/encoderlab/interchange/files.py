"""Read files of other libraries: weights as safetensors or PyTorch's pickles, whole or in shards, and JSON."""

from __future__ import annotations

import json
import pickle
import pickletools
import re
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from encoderlab import mapped
from encoderlab.errors import DataError
from encoderlab.interchange.configs.fields import Fields
from encoderlab.tensor_files import encode_header

SAFE, SAFE_INDEX = "model.safetensors", "model.safetensors.index.json"
PICKLED, PICKLED_INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"
DTYPES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16", torch.float64: "F64"}
DTYPES |= {torch.int64: "I64", torch.int32: "I32", torch.bool: "BOOL"}
PRECISIONS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
DEPTH = 32  # of nested values in a JSON file; tokenizers have about ten levels
_IMPORTS = ("GLOBAL", "STACK_GLOBAL", "INST")  # opcodes of pickle
_RUNS_CODE = re.compile(r"(?i)\b(global|class|module|callable|function|instantiate|reduce|build)\b")


# JSON -----------------------------------------------------------------------------------------------------------------


def read_json(path: Path) -> dict[str, Any]:
    """Read the object in a JSON file.

    Raises:
        DataError: missing, unreadable, damaged, or not an object.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(f"{path.parent}: has no {path.name}; give a model folder") from None
    except OSError as error:
        raise unreadable(path, error) from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: is damaged ({str(error).splitlines()[0]}); restore it") from None
    if not isinstance(data, dict):
        raise DataError(f"{path}: contains {type(data).__name__}, expected an object of fields; restore it")
    _check_depth(data, path)
    return data


def _check_depth(data: Any, path: Path) -> None:
    """Refuse deeply nested values, which exhaust a reader's stack and occur in no model file."""
    inside = [data]
    for _ in range(DEPTH):
        inside = [
            item
            for value in inside
            if isinstance(value, (dict, list))
            for item in (value.values() if isinstance(value, dict) else value)
        ]
        if not inside:
            return
    raise DataError(f"{path}: is nested deeper than {DEPTH} levels; restore it")


def unreadable(path: Path, error: OSError) -> DataError:
    """The error for a file that the system does not let us read: the file may be intact."""
    return DataError(f"{path}: cannot be read ({error.strerror or error}); check the path and its permissions")


def fields_beside(folder: Path, name: str) -> Fields:
    """Read the configuration next to a checkpoint: ``name``, or the only file called ``*config*.json``.

    Raises:
        DataError: there is none, or several without that name, or it is damaged.
    """
    path = folder / name
    if not path.exists():
        configs = sorted(folder.glob("*config*.json"))
        if len(configs) != 1:
            raise DataError(
                f"{folder}: has no {name}, which gives the checkpoint's sizes; copy its configuration there"
            )
        path = configs[0]
    return Fields(read_json(path), str(path))


# Weights --------------------------------------------------------------------------------------------------------------


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """Read all weights of a folder: ``model.safetensors``, its shards, or legacy ``pytorch_model.bin`` files.

    Raises:
        DataError: a file is missing or damaged, or has more than weights.
    """
    for whole, index in ((SAFE, SAFE_INDEX), (PICKLED, PICKLED_INDEX)):
        if (folder / whole).exists():
            return read_file(folder / whole)
        if (folder / index).exists():
            return _read_shards(folder, folder / index)
    raise DataError(f"{folder}: has no {SAFE}, {SAFE_INDEX} or {PICKLED}; give a model folder")


def read_pickled(path: Path) -> Any:
    """Read a PyTorch file with torch's restricted loader, which builds only tensors and plain containers.

    Raises:
        DataError: missing or damaged, or reading it would run code.
    """
    try:
        if not _is_program(path):  # pickles of the first protocol are text
            refuse_text(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings about an old pickle protocol
            return torch.load(path, map_location="cpu", weights_only=True)
    except DataError:
        raise
    except OSError as error:
        raise unreadable(path, error) from None
    except Exception as error:  # a foreign file can fail with any error
        if _RUNS_CODE.search(str(error)) or _is_program(path):
            raise DataError(
                f"{path}: contains more than weights, and reading it would run code, which is refused; "
                "save its state dict as safetensors on a machine where you trust it"
            ) from None
        # torch's message for a broken pickle advises unsafe loading.
        reason = "its pickle cannot be read" if isinstance(error, pickle.UnpicklingError) else str(error).strip()
        reason = reason.splitlines()[0] if reason else type(error).__name__
        raise DataError(f"{path}: is damaged ({reason}); copy it again from its source") from None


def _is_program(path: Path) -> bool:
    """Whether the file is a pickle that PyTorch did not write and that imports something in its first megabyte."""
    try:
        with path.open("rb") as file:
            start = file.read(1 << 20)
        is_zip = start.startswith(b"PK")
        return not is_zip and any(opcode.name in _IMPORTS for opcode, _, _ in pickletools.genops(start))
    except Exception:  # raised for files that are not pickles
        return False


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file, copied into memory, so later changes of the file have no effect.

    Raises:
        DataError: the file is missing or damaged.
    """
    if not path.exists():
        raise DataError(f"{path}: does not exist; a model folder has config.json and {SAFE}")
    try:
        refuse_text(path)
        if not is_utf8(path):
            return safetensors.torch.load(path.read_bytes())
        mapped.watch(path, path.stat().st_size)
        return {name: tensor.clone() for name, tensor in safetensors.torch.load_file(path).items()}  # it maps the file
    except OSError as error:
        raise unreadable(path, error) from None
    except SafetensorError as error:
        raise DataError(f"{path}: is damaged ({error}); copy it again from its source") from None


def write_weights(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write a safetensors file with the system's default permissions; the library's are narrower.

    Raises:
        OSError, SafetensorError: it cannot be written.
    """
    about = {"format": "pt"}
    if not is_utf8(path):
        path.write_bytes(safetensors.torch.save(dict(tensors), about))
        return
    path.touch()
    mode = path.stat().st_mode
    safetensors.torch.save_file(dict(tensors), path, about)
    path.chmod(mode)


def write_one_by_one(
    path: Path, about: Mapping[str, tuple[torch.dtype, torch.Size]], read: Callable[[str], Tensor]
) -> None:
    """:func:`write_weights` with one tensor in memory at a time, which ``read`` gives by name; all have one type.

    Raises:
        OSError: it cannot be written.
    """
    entries = {name: (DTYPES[dtype], shape, dtype.itemsize * shape.numel()) for name, (dtype, shape) in about.items()}
    with path.open("wb") as file:
        file.write(encode_header(entries, {"format": "pt"}))
        for name in about:
            file.write(read(name).reshape(-1).view(torch.uint8).numpy().data)


def is_utf8(path: Path) -> bool:
    """Whether the library of safetensors can open the path."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        return False
    return True


def check_precision(name: str, tensor: Tensor, source: Path | str) -> None:
    """Refuse a tensor that cannot be a weight: of another type, such as quantised ones, sparse, or without values.

    Raises:
        DataError: says which.
    """
    if tensor.is_meta or tensor.layout != torch.strided:
        what = "has no values" if tensor.is_meta else "is sparse"
        raise DataError(f"{source}: {name} {what}; give a file with whole weights")
    if tensor.dtype not in PRECISIONS:
        raise DataError(
            f"{source}: {name} is {str(tensor.dtype).removeprefix('torch.')}; "
            "quantised weights cannot be read, give the model before quantisation"
        )


def refuse_text(path: Path) -> None:
    """Refuse an error page or a git-lfs pointer that a download left instead of weights.

    Raises:
        DataError: the file is missing, or begins with text.
        OSError: it cannot be opened.
    """
    try:
        with path.open("rb") as file:
            start = file.read(24).decode("latin-1")
    except FileNotFoundError:
        raise DataError(f"{path}: does not exist; give a file of weights") from None
    if start and start.isascii() and "".join(start.split()).isprintable():
        raise DataError(f"{path}: is text instead of weights (begins with {start!r}); download it again")


def read_file(path: Path) -> dict[str, Tensor]:
    """The weights in a PyTorch or safetensors file, by name.

    Raises:
        DataError: as for :func:`read_weights` and :func:`read_pickled`, or the file has other contents.
    """
    if path.suffix == ".safetensors":
        return read_weights(path)
    data = read_pickled(path)
    if not isinstance(data, dict) or not all(isinstance(value, Tensor) for value in data.values()):
        raise DataError(f"{path}: is not a dictionary of weights; save model.state_dict()")
    return data


def _read_shards(folder: Path, index: Path) -> dict[str, Tensor]:
    where = read_json(index).get("weight_map")
    if not isinstance(where, dict) or not all(isinstance(name, str) for name in where.values()):
        raise DataError(f"{index}: has no weight_map; restore it")
    tensors: dict[str, Tensor] = {}
    for file in sorted(set(where.values())):
        if Path(file).name != file or file in ("", ".."):
            raise DataError(f"{index}: names {file!r}, which is not a file of this folder; restore it")
        shard = read_file(folder / file)
        for name in sorted(shard.keys() & tensors.keys()):
            if not torch.equal(shard[name], tensors[name]):
                raise DataError(
                    f"{folder / file}: {name} differs from the one in an earlier file of {index.name}; copy the folder "
                    "again from its source"
                )
        tensors |= shard
    lost = sorted(name for name in where if name not in tensors)
    if lost:
        raise DataError(f"{index}: {lost[0]} is not in {where[lost[0]]}; copy the folder again from its source")
    return tensors


def find_file(path: Path) -> Path:
    """The file of weights at ``path``: the file itself, or the one in a folder.

    Raises:
        DataError: the folder has none, or several without the usual name.
    """
    if path.is_file():
        return path
    if (path / PICKLED).exists():  # a release also has vocabulary and generator
        return path / PICKLED
    weights = sorted(file for kind in ("*.bin", "*.pt", "*.safetensors") for file in path.glob(kind))
    if len(weights) != 1:
        raise DataError(f"{path}: has {len(weights)} .bin, .pt or .safetensors files; name the one to read")
    return weights[0]
