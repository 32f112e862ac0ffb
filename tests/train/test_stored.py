"""Tensors of a checkpoint by name, whoever wrote them; another run's are refused, and no pickle is read."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from encoderlab.errors import DataError
from encoderlab.train.stored import StoredTensors


class Trap:
    def __reduce__(self):  # type: ignore[no-untyped-def]
        return (Path.touch, (Path("sprung"),))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkpoint of two processes in torch's layout, and a pickle as its default layout has one."""
    monkeypatch.chdir(tmp_path)
    for number, start in ((1, 0), (2, 2)):
        place = {"w": {"saved_offsets": [start, 0]}, "exp_avg/w": {"saved_offsets": [start, 0]}}
        part = torch.arange(start * 3, start * 3 + 6).reshape(2, 3).float()
        about = {"DCP_SHARDING_INFO": json.dumps(place), "DCP_VERSION": "1.0", "format": "pt"}
        save_file(
            {"w": part, "exp_avg/w": -part}, tmp_path / f"shard-0000{number}-model-00001-of-00001.safetensors", about
        )
    (tmp_path / ".metadata").write_bytes(pickle.dumps(Trap()))
    return tmp_path


def test_parts_are_joined_and_no_pickle_is_read(folder: Path) -> None:
    stored = StoredTensors(folder)
    assert list(stored) == ["exp_avg/w", "w"] and list(stored.weights) == ["w"]
    assert torch.equal(stored["w"], torch.arange(12.0).reshape(4, 3)) and torch.equal(stored["exp_avg/w"], -stored["w"])
    assert not (folder / "sprung").exists()


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [("v", (4, 3), "has no tensor v"), ("w", (4, 2), r"w is \(4, 3\) there and \(4, 2\) in this model")],
)
def test_the_tensors_of_another_run_are_refused(folder: Path, name: str, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(DataError, match=message):
        StoredTensors(folder).read_into({name: torch.zeros(shape)})


@pytest.mark.parametrize("number", [1, 2])
def test_parts_of_different_types_are_refused(folder: Path, number: int) -> None:
    path = folder / f"shard-0000{number}-model-00001-of-00001.safetensors"
    with safe_open(path, "pt") as file:
        about = file.metadata()
    tensors = load_file(path)
    save_file(tensors | {"exp_avg/w": tensors["exp_avg/w"].half()}, path, about)
    with pytest.raises(DataError, match="parts of exp_avg/w are float(16 and float32|32 and float16); restore"):
        StoredTensors(folder)


def test_a_file_that_is_not_one_of_tensors_is_named(folder: Path) -> None:
    (folder / "shard-00003-model-00001-of-00001.safetensors").write_bytes(b"no tensors")
    with pytest.raises(DataError, match="cannot be read as safetensors"):
        StoredTensors(folder)
