"""``--precision int8``: predictions near those in fp32, a verdict on the user's texts, and what is refused."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("onnx")  # the tiny models of the tests of exporting

from encoderlab import inference  # noqa: E402
from encoderlab.cli import main  # noqa: E402
from encoderlab.inference import encode, placed  # noqa: E402
from encoderlab.interchange import folder as folders  # noqa: E402
from encoderlab.interchange.load import load  # noqa: E402
from encoderlab.nn import int8  # noqa: E402
from encoderlab.nn.int8 import Int8Weight  # noqa: E402
from tests.deploy.test_export import LABELS, small  # noqa: E402
from tests.deploy.test_int8 import texts  # noqa: E402
from tests.tasks.tiny import write_vector_settings  # noqa: E402


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model of vectors, and 30 texts."""
    folders.save(small("bert-tiny"), tmp_path / "model")
    (tmp_path / "texts.txt").write_text("\n".join(texts(30)) + "\n")
    return tmp_path


def printed(capsys: pytest.CaptureFixture[str]) -> str:
    said = capsys.readouterr()
    return " ".join((said.out + said.err).split())


def test_vectors_of_one_file_and_of_many(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, file = str(folder / "model"), folder / "texts.txt"
    given = ["encode", model, "--file", str(file), "--out"]
    assert main([*given, str(folder / "fp32.npy")]) == 0
    assert main([*given, str(folder / "int8.npy"), "--precision", "int8", "--check", str(file), "--json"]) == 0
    verdict = json.loads(capsys.readouterr().out.splitlines()[-1])["int8"]
    assert 0.99 < verdict["agreement"] < 1 and verdict["texts"] == 30 and verdict["fall"] < verdict["tolerance"]
    assert verdict["bytes"]["int8"] < verdict["bytes"]["fp32"] and verdict["milliseconds"]["int8"] > 0
    fp32, small_ones = np.load(folder / "fp32.npy"), np.load(folder / "int8.npy")
    assert 0 < np.abs(fp32 - small_ones).max() < 0.1
    np.testing.assert_array_equal(small_ones, encode(placed(load(model), "int8"), file.read_text().splitlines()))
    (folder / "many").mkdir()
    (folder / "many" / "a.txt").write_bytes(file.read_bytes())
    many = ["encode", model, "--file", str(folder / "many"), "--out", str(folder / "out")]
    assert main([*many, "--precision", "int8"]) == 0
    assert (folder / "out" / "a.txt.npy").read_bytes() == (folder / "int8.npy").read_bytes()
    assert main(many) != 0  # the folder holds vectors of another precision
    assert (folder / "out" / "a.txt.npy").read_bytes() == (folder / "int8.npy").read_bytes()


def test_int8_is_judged_on_texts_as_they_are_read(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With the prompt and the longest text of sentence-transformers' files."""
    write_vector_settings(folder / "model")
    lines = (folder / "texts.txt").read_text().splitlines()

    def agreement(name: str, lines: list[str]) -> float:
        (folder / name).write_text("\n".join(lines) + "\n")
        words = ["encode", str(folder / "model"), "a", "--precision", "int8", "--check", str(folder / name), "--json"]
        assert main(words) == 0
        return float(json.loads(capsys.readouterr().out.splitlines()[-1])["int8"]["agreement"])

    found = agreement("texts.txt", lines)
    assert agreement("long.txt", [f"{line} and so on" for line in lines if len(line.split()) > 6]) == agreement(
        "longer.txt", [f"{line} and on" for line in lines if len(line.split()) > 6]
    )
    (folder / "model" / "config_sentence_transformers.json").unlink()
    assert agreement("with.txt", [f"the {line}" for line in lines]) == found != agreement("without.txt", lines)


def test_answers_of_a_task(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders.save(small("deberta-v3-tiny", "classification"), tmp_path / "model")
    rows = [f"{text}\t{LABELS[len(text) % 3]}" for text in texts(40)]
    (tmp_path / "dev.tsv").write_text("\n".join(["text\tlabel", *rows]) + "\n")
    given = ["predict", str(tmp_path / "model"), str(tmp_path / "dev.tsv"), "--precision", "int8", "--out"]
    check = ["--check", str(tmp_path / "dev.tsv")]
    assert main([*given, str(tmp_path / "a.jsonl"), "--json"]) == 0
    said = capsys.readouterr()
    assert "int8" not in json.loads(said.out)
    code = main([*given, str(tmp_path / "b.jsonl"), *check, "--json"])
    said = capsys.readouterr()
    assert "accuracy" in said.err and "MB instead of" in " ".join(said.err.split())
    if code == 0:  # or, of so few texts, one answer changed
        assert json.loads(said.out)["int8"]["metric"] == "accuracy"
        assert (tmp_path / "a.jsonl").read_bytes() == (tmp_path / "b.jsonl").read_bytes()
    else:
        assert "int8 loses" in " ".join(said.err.split())


def test_words_are_tagged_in_texts_without_tags(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders.save(small("bert-tiny", "tagging"), folder / "tagger")
    file = str(folder / "texts.txt")
    given = ["predict", str(folder / "tagger"), file, "--out", str(folder / "tags.jsonl"), "--precision", "int8"]
    code = main([*given, "--check", file])
    said = printed(capsys)
    assert "on 30 texts" in said and (code == 0 or "int8 loses" in said)


def test_what_is_refused(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    model, file = str(folder / "model"), str(folder / "texts.txt")
    assert main(["encode", model, "a cat", "--check", file]) == 2
    assert "--check compares int8 with fp32" in printed(capsys)
    assert main(["encode", model, "a cat", "--precision", "int8", "--check", str(folder / "none.txt")]) == 3
    assert "none.txt: no such file" in printed(capsys)
    damaged = load(model)
    with torch.no_grad():
        for block in damaged.encoder.blocks:
            block.feed_forward.up.bias[0] = 1e5  # an activation that nobody reads leaves no room for the others
            block.feed_forward.down.weight[:, 0] = 0
            block.feed_forward.down.weight *= 3
    folders.save(damaged, folder / "damaged")
    assert main(["encode", str(folder / "damaged"), "a cat", "--precision", "int8", "--check", file]) == 2
    assert "more than 0.5 %; leave out --precision int8" in printed(capsys)
    with monkeypatch.context() as patch:
        patch.setattr("encoderlab.deploy.export.fidelity.VectorCheck.agreement", lambda *_: float("nan"))
        assert main(["encode", model, "a cat", "--precision", "int8", "--check", file]) == 2
        assert "int8 loses nan %" in printed(capsys)
    monkeypatch.setattr(inference, "usual_device", lambda: torch.device("cuda"))
    assert main(["encode", model, "a cat", "--precision", "int8"]) == 2
    assert "this machine has a GPU" in printed(capsys)


def test_a_processor_without_instructions_says_so(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model = folder / "model"
    fast = encode(placed(load(model), "int8"), texts(5)) if int8.fast() else None
    monkeypatch.setattr(int8, "fast", lambda: False)
    inference._warn_of_slow_int8.cache_clear()
    with caplog.at_level(logging.WARNING):
        plainly = encode(placed(load(model), "int8"), texts(5))
    assert "int8 saves memory here but no time" in caplog.text
    if fast is not None:
        np.testing.assert_array_equal(plainly, fast)


def test_a_slow_processor_is_named_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Although --check places a model of its own."""
    monkeypatch.setattr(int8, "fast", lambda: False)
    inference._warn_of_slow_int8.cache_clear()
    given = ["encode", str(folder / "model"), "--file", str(folder / "texts.txt"), "--out", str(folder / "out.npy")]
    assert main([*given, "--precision", "int8", "--check", str(folder / "texts.txt")]) == 0
    assert printed(capsys).count("int8 saves memory here but no time") == 1


def test_a_server_in_int8(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("starlette", "uvicorn", "httptools", "orjson", "prometheus_client"):
        pytest.importorskip(package)
    from encoderlab.deploy.serve.service import Service
    from tests.deploy.served import serving

    service = Service.of(folder / "model", precision="int8")
    assert service.in_int8 and any(isinstance(part, Int8Weight) for part in service.model.modules())
    monkeypatch.setattr("tests.deploy.served.Service", lambda *given, **more: service)
    want: Any = encode(placed(load(folder / "model"), "int8"), ["the red cat"])[0]
    with serving(service.model) as asked:
        status, vectors, _ = asked("/embed", {"inputs": "the red cat"})
        assert status == 200
        np.testing.assert_allclose(vectors[0], want / np.linalg.norm(want), atol=1e-5)
        assert asked("/info")[1]["model_dtype"] == "int8"
        status, found, _ = asked("/explain", {"inputs": ["the cat", "a dog"], "method": "gradients"})
        assert status >= 400 and "in int8 predicts and has no gradients" in json.dumps(found)
        assert asked("/explain", {"inputs": ["the cat", "a dog"], "method": "words"})[0] == 200
    assert main(["serve", str(folder / "model"), "--engine", "onnx", "--precision", "int8"]) == 2
    assert "--precision int8 is for our kernels" in printed(capsys)
