"""A model folder that is damaged anywhere is not used: every file flipped, cut and deleted."""

from __future__ import annotations

import json
import logging
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from encoderlab import load
from encoderlab.cli import main
from encoderlab.corpus.tokenizer import Tokenizer
from encoderlab.errors import DataError
from encoderlab.files import sha256
from encoderlab.interchange import checksums, huggingface
from encoderlab.models.base import resized
from tests.interchange.tiny_models import CONFIGS, make

TEXTS = ["The river flows past the old mill and the bridge."] * 9
HOLDS = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "README.md", "SHA256SUMS"}


@pytest.fixture(scope="module", params=["encoderlab", "hf"])
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    tokenizer = Tokenizer.train("wordpiece", TEXTS, 60)
    model = make(resized(CONFIGS["bert"], vocab=tokenizer.vocab_size))
    model.tokenizer = tokenizer
    folder = tmp_path_factory.mktemp(request.param) / "model"
    model.save(folder) if request.param == "encoderlab" else huggingface.save(model, folder)
    assert {path.name for path in folder.iterdir()} == HOLDS
    return folder


def refused(folder: Path, name: str) -> None:
    with pytest.raises(DataError) as caught:
        load(folder)
    assert name in str(caught.value) and "\n" not in str(caught.value)


def _without_card(record: bytes | bytearray) -> bytes:
    """The record without the digest of README.md, which comes first."""
    return re.sub(rb"(?m)^[0-9a-f]{64}(?=  README.md$)", b"", bytes(record), count=1)


@pytest.mark.parametrize("damaged", [b"config/json", b"c/nfig.json", b"con/fig.json"])
def test_a_name_that_became_one_of_a_subfolder_is_found(whole: Path, damaged: bytes, tmp_path: Path) -> None:
    shutil.copytree(whole, tmp_path / "model")
    record = tmp_path / "model" / "SHA256SUMS"
    lines = record.read_bytes().replace(b"  config.json", b"  " + damaged).splitlines(keepends=True)
    record.write_bytes(b"".join([lines[0], *sorted(lines[1:], key=lambda line: line[66:])]))
    refused(tmp_path / "model", "SHA256SUMS")


@settings(max_examples=150)
@given(data=st.data())
def test_every_damage_is_found(whole: Path, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    name = data.draw(st.sampled_from(sorted(HOLDS - {"README.md"})))
    before = (whole / name).read_bytes()
    how = data.draw(st.sampled_from(["flip", "cut", "insert", "delete"]))
    place = data.draw(st.integers(0, len(before) - 1))
    after = bytearray(before)
    if how == "flip":
        after[place] ^= 1 << data.draw(st.integers(0, 7))
    elif how == "insert":
        after.insert(place, data.draw(st.integers(0, 255)))
    else:
        del after[place:]
    folder = tmp_path_factory.mktemp("damaged") / "model"
    shutil.copytree(whole, folder)
    if how == "delete":
        (folder / name).unlink()
    else:
        (folder / name).write_bytes(after)
    if how == "delete" and name == "SHA256SUMS":
        load(folder)  # said, as below
    elif name == "SHA256SUMS" and _without_card(after) == _without_card(before):
        load(folder)  # what it says of README.md does not count
    elif name == "SHA256SUMS":
        refused(folder, "SHA256SUMS")  # named beside the file whose line it was, or alone
    else:
        refused(folder, name)
    shutil.rmtree(folder)


def test_a_changed_setting_that_computes_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = make(CONFIGS["bert"])
    model.save(tmp_path / "model")
    config = json.loads((tmp_path / "model/config.json").read_text())
    config["encoder"]["heads"] *= 2
    (tmp_path / "model/config.json").write_text(json.dumps(config, indent=2) + "\n")
    refused(tmp_path / "model", "model/config.json: does not match its checksum in SHA256SUMS; restore it, or delete")
    assert main(["encode", str(tmp_path / "model"), "a text"]) == 3
    assert "model/config.json: does not match" in " ".join(capsys.readouterr().err.split())
    (tmp_path / "model/SHA256SUMS").unlink()
    load(tmp_path / "model")


def test_a_folder_without_checksums_is_said_once(
    tmp_path: Path, whole: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(whole, tmp_path / "model")
    (tmp_path / "model/SHA256SUMS").unlink()
    with caplog.at_level(logging.INFO, logger="encoderlab"):
        load(tmp_path / "model")
        monkeypatch.chdir(tmp_path)
        load("model")
    (record,) = caplog.records
    assert "model: has no SHA256SUMS" in record.getMessage()


def test_the_card_may_be_edited(tmp_path: Path, whole: Path, caplog: pytest.LogCaptureFixture) -> None:
    shutil.copytree(whole, tmp_path / "model")
    (tmp_path / "model/README.md").write_text("# My model\n")
    load(tmp_path / "model")
    assert "README.md: does not match" in caplog.text


def test_the_card_may_be_deleted(tmp_path: Path, whole: Path, caplog: pytest.LogCaptureFixture) -> None:
    shutil.copytree(whole, tmp_path / "model")
    (tmp_path / "model/README.md").unlink()
    load(tmp_path / "model")
    assert "README.md: is missing" in caplog.text


def test_files_in_subfolders_are_compared_when_they_are_opened(tmp_path: Path, whole: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(whole, folder)
    (folder / "onnx").mkdir()
    (folder / "onnx/model.onnx").write_bytes(b"graph")
    checksums.verify_file(folder, "onnx/model.onnx")  # a folder of an earlier version does not list it
    checksums.write(folder)
    assert "  onnx/model.onnx\n" in (folder / "SHA256SUMS").read_text()
    checksums.verify_file(folder, "onnx/model.onnx")
    (folder / "onnx/model.onnx").write_bytes(b"grapf")
    load(folder)  # which does not open it
    with pytest.raises(DataError, match=r"onnx/model.onnx: does not match its checksum in SHA256SUMS; restore it"):
        checksums.verify_file(folder, "onnx/model.onnx")
    (folder / "onnx/model.onnx").unlink()
    with pytest.raises(DataError, match=r"onnx/model.onnx: is missing"):
        checksums.verify_file(folder, "onnx/model.onnx")


@pytest.mark.parametrize("form", ["{digest}  {name}", "{digest} *{name}", "{digest}  ./{name}", "{digest}  {name}\r"])
def test_a_record_of_somebody_else_counts_for_the_files_that_are_there(form: str, tmp_path: Path, whole: Path) -> None:
    """The plain output of sha256sum, without the number of files."""
    folder = tmp_path / "model"
    shutil.copytree(whole, folder)
    names = sorted(HOLDS - {"SHA256SUMS"})
    lines = [form.format(digest=sha256(folder / name), name=name) for name in names]
    lines += [form.format(digest="0" * 64, name=name) for name in ("removed.bin", "other/config.json")]
    (folder / "SHA256SUMS").write_text("\n".join(lines) + "\n", newline="")
    load(folder)
    record = (folder / "SHA256SUMS").read_bytes()
    (folder / "task.json").write_text("{}")
    checksums.add(folder, "task.json")
    assert (folder / "SHA256SUMS").read_bytes() == record  # it stays somebody else's
    (folder / "config.json").write_text((folder / "config.json").read_text() + " ")
    refused(folder, "config.json: does not match its checksum")


def test_a_file_that_comes_later_is_recorded(tmp_path: Path, whole: Path) -> None:
    shutil.copytree(whole, tmp_path / "model")
    (tmp_path / "model/task.json").write_text("{}")
    load(tmp_path / "model")
    checksums.add(tmp_path / "model", "task.json")
    load(tmp_path / "model")
    (tmp_path / "model/task.json").write_text("{ }")
    refused(tmp_path / "model", "task.json")


@pytest.mark.skipif(shutil.which("sha256sum") is None, reason="sha256sum is not installed")
def test_the_record_is_that_of_sha256sum(whole: Path) -> None:
    subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=whole, check=True, capture_output=True)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"family": ""}, r"config.json: family ''; expected one of"),
        ({"family": "brt"}, r"config.json: family 'brt'; expected one of"),
        ({"eps": -1}, r"config.json: .*eps"),
    ],
)
def test_a_configuration_that_cannot_be_names_its_file(fields: dict, message: str, whole: Path, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(whole, folder)
    (folder / checksums.NAME).unlink()
    config = json.loads((folder / "config.json").read_text())
    if "encoder" not in config:
        pytest.skip("the configuration of another library")
    (config["encoder"] if "eps" in fields else config).update(fields)
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(DataError, match=message):
        load(folder)
