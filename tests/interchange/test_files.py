"""Files of a model folder that are odd, hostile or out of reach: one line that names the file, and never a bug."""

from __future__ import annotations

import builtins
import copy
import functools
import json
import os
import pickle
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from encoderlab import load
from encoderlab.cli import main
from encoderlab.corpus.tokenizer import Tokenizer
from encoderlab.errors import ConfigError, DataError, EncoderlabError
from encoderlab.interchange import files, huggingface
from encoderlab.model import Model
from encoderlab.models.base import resized
from tests.interchange.changed import WEIGHTS, refused
from tests.interchange.tiny_models import CONFIGS, make, same_weights

TEXTS = ["The river flows past the old mill and the bridge."] * 9
FAMILIES = ["bert", "albert", "convbert", "deberta-v2", "xlnet", "transformer-xl-adaptive"]
ODD: list[Any] = [
    10**10, 10**18, 10**30, 2**31, -1, 0, 1, 3, 1.5, 1e300, float("nan"), "", "many", None, True, [], {}, [[[3]]],
    {"kind": "absolute"},
]  # fmt: skip

KINDS = pytest.mark.parametrize("whole", [("encoderlab", "bert"), ("hf", "bert")], ids=str, indirect=True)


@pytest.fixture(scope="module", params=[(kind, name) for kind in ("encoderlab", "hf") for name in FAMILIES], ids=str)
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder whose checksums were deleted, as if every change were meant."""
    kind, name = request.param
    tokenizer = Tokenizer.train("wordpiece", TEXTS, 60)
    model = make(resized(CONFIGS[name], vocab=max(50, tokenizer.vocab_size)))
    model.tokenizer = tokenizer
    folder = tmp_path_factory.mktemp("whole") / "model"
    model.save(folder) if kind == "encoderlab" else huggingface.save(model, folder)
    (folder / "SHA256SUMS").unlink()
    return folder


def used(folder: Path) -> None:
    """Load and use a model; what is wrong with it is one line."""
    try:
        load(folder).encode(["The river"])
    except (DataError, ConfigError) as error:
        assert 20 < len(str(error)) < 700 and "\n" not in str(error)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where the values inside a JSON value stand."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield (*path, key)
        yield from places(item, (*path, key))


@settings(max_examples=40)
@given(data=st.data())
def test_odd_values_anywhere(whole: Path, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(["config.json", "config.json", "tokenizer.json", "tokenizer_config.json"]))
    before = (whole / name).read_bytes()
    fields = json.loads(before)
    path = data.draw(st.sampled_from(list(places(fields))))
    changed = copy.deepcopy(fields)
    inner = functools.reduce(lambda value, key: value[key], path[:-1], changed)
    inner[path[-1]] = data.draw(st.sampled_from(ODD))
    try:
        (whole / name).write_text(json.dumps(changed))
        used(whole)
    finally:
        (whole / name).write_bytes(before)


@KINDS
@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, '{"encoder": ' + "[" * 900 + "]" * 900 + "}"])
@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json"])
def test_deep_json(name: str, text: str, tmp_path: Path, whole: Path) -> None:
    shutil.copytree(whole, tmp_path / "model")
    (tmp_path / "model" / name).write_text(text)
    if name == "tokenizer_config.json" and text.endswith("}"):
        load(tmp_path / "model")  # a field that nobody reads
        return
    (tmp_path / "checkpoints").mkdir()  # as in a run folder, whose model/ is loaded too
    for place in (tmp_path / "model", *([tmp_path] if name == "config.json" else [])):
        with pytest.raises(DataError) as caught:
            load(place)
        assert name in str(caught.value) and len(str(caught.value)) < 300


@KINDS
@pytest.mark.parametrize("kinds", [["int32"], ["int8", "float32"], ["float16", "float32"], ["float8_e4m3fn"], ["bool"]])
def test_types_of_weights(kinds: list[str], tmp_path: Path, whole: Path) -> None:
    """Integers are refused; other libraries' floats of any precision are read as float32, ours have one precision."""
    shutil.copytree(whole, tmp_path / "model")
    file = tmp_path / "model/model.safetensors"
    tensors = sorted(safetensors.torch.load_file(file).items())
    types = [getattr(torch, kind) for kind in kinds]
    safetensors.torch.save_file({name: t.to(types[i % len(types)]) for i, (name, t) in enumerate(tensors)}, file)
    ours = "encoderlab" in (tmp_path / "model/config.json").read_text()
    if set(kinds) == {"float16", "float32"} and not ours:
        assert {parameter.dtype for parameter in load(tmp_path / "model").parameters()} == {torch.float32}
        return
    with pytest.raises(DataError, match="expected one precision|quantised weights cannot be read"):
        load(tmp_path / "model")


class System:
    def __reduce__(self) -> Any:
        return os.system, ("touch pwned",)


class Evaluated:
    def __reduce__(self) -> Any:
        return builtins.eval, ("open('pwned', 'w')",)


@pytest.mark.parametrize(
    "value",
    [System(), Evaluated(), torch.nn.Linear(2, 2), Path, print],
    ids=["System", "Evaluated", "Linear", "Path", "print"],
)
@pytest.mark.parametrize("protocol", ["zip", "legacy", 0, 1, 2, 3, 4, 5])
def test_a_pickle_that_would_run_code_has_its_own_line(
    value: Any, protocol: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "pytorch_model.bin"
    if isinstance(protocol, int):
        file.write_bytes(pickle.dumps({"weights": value}, protocol))
    else:
        torch.save({"weights": value}, file, _use_new_zipfile_serialization=protocol == "zip")
    with pytest.raises(DataError) as caught:
        files.read_pickled(file)
    assert "reading it would run code" in str(caught.value)
    assert "damaged" not in str(caught.value) and "weights_only" not in str(caught.value)
    assert not (tmp_path / "pwned").exists()


@settings(max_examples=150)
@given(place=st.integers(0, 10**6), bit=st.integers(0, 7), cut=st.booleans(), legacy=st.booleans())
def test_damaged_pickles(
    place: int, bit: int, cut: bool, legacy: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = tmp_path_factory.getbasetemp() / "weights.bin"
    tensors = {f"w{number}": torch.arange(9.0) for number in range(3)}
    torch.save(tensors, file, _use_new_zipfile_serialization=not legacy)
    data = bytearray(file.read_bytes())
    place %= len(data)
    if cut:
        del data[place:]
    else:
        data[place] ^= 1 << bit
    file.write_bytes(data)
    try:
        files.read_file(file)
    except DataError as error:
        assert "weights_only" not in str(error) and "\n" not in str(error)


@KINDS
def test_what_the_system_refuses_is_not_called_damage(
    tmp_path: Path, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Path.open
    for name in ("config.json", "model.safetensors", "tokenizer.json", "SHA256SUMS"):
        folder = tmp_path / name
        shutil.copytree(whole, folder)
        if name == "SHA256SUMS":
            (folder / name).write_text("")

        def refuse(path: Path, *args: Any, name: str = name, **more: Any) -> Any:
            if path.name == name:
                raise PermissionError(13, "Permission denied", str(path))
            return real(path, *args, **more)

        monkeypatch.setattr(Path, "open", refuse)
        with pytest.raises(EncoderlabError) as caught:
            load(folder)
        assert "Permission denied" in str(caught.value) and name in str(caught.value)
        assert "damaged" not in str(caught.value) and "restore" not in str(caught.value)
        monkeypatch.setattr(Path, "open", real)


def test_paths_need_not_be_utf_8(tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"mod\xe8le")
    try:
        folder.mkdir()
    except OSError:
        pytest.skip("this file system takes UTF-8 only")
    model = make(CONFIGS["bert"])
    model.tokenizer = Tokenizer.train("wordpiece", TEXTS, 50)
    model.save(folder / "ours")
    huggingface.save(model, folder / "theirs")
    for name in ("ours", "theirs"):
        assert same_weights(load(folder / name), model)
    assert main(["encode", str(folder / "ours"), "The river"]) == 0


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002])
def test_files_have_the_mode_of_the_umask(mask: int, tmp_path: Path) -> None:
    model = make(CONFIGS["bert"])
    model.tokenizer = Tokenizer.train("wordpiece", TEXTS, 50)
    before = os.umask(mask)
    try:
        model.save(tmp_path / "ours")
        huggingface.save(model, tmp_path / "theirs")
    finally:
        os.umask(before)
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(written) == 12
    assert {oct(stat.S_IMODE(path.stat().st_mode)) for path in written} == {oct(0o666 & ~mask)}


def test_one_function_writes_weights() -> None:
    """The library's own gives its files narrower permissions, and opens no path that is not UTF-8."""
    source = Path(files.__file__).parents[1]
    calls = {path.relative_to(source).as_posix() for path in source.rglob("*.py") if "save_file(" in path.read_text()}
    assert calls == {"interchange/files.py"}


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
@KINDS
def test_weights_that_were_read_do_not_change_with_their_file(
    whole: Path, precision: torch.dtype, tmp_path: Path
) -> None:
    """A file that is written over or truncated while its model is in use, which would be wrong bits or SIGBUS."""
    folder = shutil.copytree(whole, tmp_path / "model")
    path = next(folder.glob("*.safetensors"))
    weights = safetensors.torch.load(path.read_bytes())
    files.write_weights(path, {name: tensor.to(precision) for name, tensor in weights.items()})
    model = load(folder)
    before = model.encode(["The river"])
    with path.open("r+b") as file:
        file.write(bytes(path.stat().st_size))
    assert (model.encode(["The river"]) == before).all()
    os.truncate(path, 100)
    assert (model.encode(["The river"]) == before).all()


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_half_precision_is_read_as_float32_with_the_same_values(kind: torch.dtype, tmp_path: Path) -> None:
    model = make(CONFIGS["bert"]).to(kind)
    model.save(tmp_path / "small")
    assert {tensor.dtype for tensor in safetensors.torch.load_file(tmp_path / "small" / WEIGHTS).values()} == {kind}
    assert same_weights(load(tmp_path / "small"), model.float())


def test_shards(bert: tuple[Model, Path]) -> None:
    model, folder = bert
    tensors = safetensors.torch.load_file(folder / WEIGHTS)
    (folder / WEIGHTS).unlink()
    where = {name: f"model-0000{1 + i % 2}-of-00002.safetensors" for i, name in enumerate(tensors)}
    for file in set(where.values()):
        safetensors.torch.save_file({n: tensors[n] for n in tensors if where[n] == file}, folder / file)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": where}))
    assert same_weights(model, load(folder))
    index.write_text(json.dumps({"weight_map": where | {"lost": "model-00001-of-00002.safetensors"}}))
    refused(folder, "lost")
    for away in ("../secret.safetensors", "..", ""):
        index.write_text(json.dumps({"weight_map": where | {"away": away}}))
        refused(folder, f"names {away!r}, which is not a file of this folder")
    index.write_text(json.dumps({"weight_map": where}))
    second, name = folder / "model-00002-of-00002.safetensors", next(iter(tensors))  # a tensor of the first
    whole = safetensors.torch.load_file(second)
    safetensors.torch.save_file(whole | {name: tensors[name]}, second)
    assert same_weights(model, load(folder))
    safetensors.torch.save_file(whole | {name: tensors[name] + 1}, second)
    refused(folder, f"{second}: {name} differs from the one in an earlier file of {index.name}; copy the folder again")
    (folder / "model-00002-of-00002.safetensors").unlink()
    refused(folder, "model-00002-of-00002.safetensors")


@pytest.mark.parametrize("zipped", [True, False])
def test_a_legacy_bin(bert: tuple[Model, Path], zipped: bool) -> None:
    model, folder = bert
    tensors = safetensors.torch.load_file(folder / WEIGHTS)
    (folder / WEIGHTS).unlink()
    torch.save(tensors, folder / "pytorch_model.bin", _use_new_zipfile_serialization=zipped)
    assert same_weights(model, load(folder))
    (folder / "pytorch_model.bin").write_bytes((folder / "pytorch_model.bin").read_bytes()[:-5000])
    refused(folder, "pytorch_model.bin")


@pytest.mark.parametrize(
    ("change", "said"), [(lambda t: t.to_sparse(), "is sparse"), (lambda t: t.to("meta"), "has no values")]
)
def test_a_bin_with_other_tensors(change: Callable[[Tensor], Tensor], said: str, bert: tuple[Model, Path]) -> None:
    name = "bert.encoder.layer.0.output.dense.weight"
    tensors = safetensors.torch.load_file(bert[1] / WEIGHTS)
    (bert[1] / WEIGHTS).unlink()
    torch.save(tensors | {name: change(tensors[name])}, bert[1] / "pytorch_model.bin")
    refused(bert[1], name, said)


class Trap:
    """What reading with pickle would run."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return subprocess.run, ([sys.executable, "-c", f"open({str(self.path)!r}, 'w')"],)


@pytest.mark.parametrize("how", ["torch", "pickle"])
def test_code_in_a_bin_is_refused_and_not_run(bert: tuple[Model, Path], how: str) -> None:
    _, folder = bert
    (folder / WEIGHTS).unlink()
    file = folder / "pytorch_model.bin"
    content = {"bert.pooler.dense.bias": torch.zeros(3), "extra": Trap(folder / "ran")}
    torch.save(content, file) if how == "torch" else file.write_bytes(pickle.dumps(content))
    refused(folder, "pytorch_model.bin")
    assert not (folder / "ran").exists()


@pytest.mark.parametrize("keep", [0, 5, 100, 5000, -1])
def test_a_truncated_file(bert: tuple[Model, Path], keep: int) -> None:
    _, folder = bert
    (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:keep])
    refused(folder, WEIGHTS, "damaged")


@pytest.mark.parametrize("file", [WEIGHTS, "pytorch_model.bin"])
@pytest.mark.parametrize("text", ["<!DOCTYPE html>\n<html>404</html>", "version https://git-lfs.github.com/spec/v1\n"])
def test_text_in_place_of_weights(bert: tuple[Model, Path], file: str, text: str) -> None:
    _, folder = bert
    (folder / WEIGHTS).unlink()
    (folder / file).write_text(text)
    refused(folder, f"{file}: is text instead of weights (begins with {text[:24]!r}); download it again")


def test_missing_files(tmp_path: Path, bert: tuple[Model, Path]) -> None:
    refused(tmp_path / "nowhere", "no such file or folder")
    (tmp_path / "empty").mkdir()
    refused(tmp_path / "empty", "config.json")
    (bert[1] / WEIGHTS).unlink()
    refused(bert[1], WEIGHTS)
