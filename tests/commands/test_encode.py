from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from encoderlab import cli
from encoderlab.commands.encode import _lines, _write_vectors
from encoderlab.deploy.sentence_transformers import TextVectors
from encoderlab.errors import DataError
from encoderlab.interchange import folder as folders
from tests.tasks.tiny import model as tiny
from tests.tasks.tiny import write_vector_settings


def test_vectors_written_in_parts_are_one_file(tmp_path: Path) -> None:
    vectors = np.random.default_rng(0).normal(size=(1111, 7)).astype(np.float32)
    parts = iter([vectors[:1000], vectors[1000:]])
    assert _write_vectors(tmp_path / "new" / "a.npy", parts, 7) == 1111
    whole = io.BytesIO()
    np.save(whole, vectors)
    assert (tmp_path / "new" / "a.npy").read_bytes() == whole.getvalue()


def test_vectors_that_fail_on_the_way_leave_no_file(tmp_path: Path) -> None:
    def parts():
        yield np.zeros((2, 7), np.float32)
        raise DataError("line 3 is no UTF-8")

    with pytest.raises(DataError):
        _write_vectors(tmp_path / "a.npy", parts(), 7)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["texts.txt"], 2, "texts.txt: is a file; give it with --file"),
        (["texts.txt", "more.txt"], 2, "texts.txt: is a file; give it with --file"),
        (["a text", "texts.txt"], 3, "a text: is no file, and texts.txt is one"),
        (["none.txt"], 3, "none.txt: no such file; give a file, or texts"),
        (["none.conll"], 3, "none.conll: no such file; give a file, or texts"),
        (["folder/"], 2, "folder: is a folder; give it with --file"),
        (["folder", "--out", "new.npy"], 2, "folder: is a folder; give it with --file"),
        (["folder"], 3, "folder: is taken as a text; write folder/ for the folder of that name"),
    ],
)
def test_a_file_is_no_text_to_encode(
    words: list[str], code: int, message: str, tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("texts.txt", "more.txt"):
        (tmp_path / name).touch()
    (tmp_path / "folder").mkdir()
    assert cli.main(["encode", "no model", *words]) == code
    assert message in capsys.readouterr().err and not (tmp_path / "new.npy").exists()


def test_a_hyphen_stands_for_standard_input(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    read: list[str] = []
    monkeypatch.setattr("encoderlab.commands.encode._vectors_of", lambda *given: TextVectors())
    monkeypatch.setattr("encoderlab.commands.encode._load", lambda *given: read.extend(_lines(Path("-"))) or 1 / 0)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"a\r\nb")))
    assert cli.main(["encode", "run", "--file", "-"]) == 1
    assert read == ["a", "b"] and "ZeroDivisionError" in capsys.readouterr().err


def test_standard_input_that_is_no_utf8(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"a\nK\xe4se\n"), encoding="utf-8"))
    with pytest.raises(DataError, match="standard input: line 2 is not UTF-8"):
        list(_lines(Path("-")))


def test_standard_input_is_read_like_a_file(tmp_path: Path, monkeypatch) -> None:
    """The byte order mark is no part of the first text."""
    (tmp_path / "a.txt").write_bytes("\ufeffa\r\n\ufeffb\n".encode())
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO((tmp_path / "a.txt").read_bytes())))
    assert list(_lines(Path("-"))) == list(_lines(tmp_path / "a.txt")) == ["a", "\ufeffb"]


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl", "a.ndjson.gz"])
def test_a_table_is_no_file_of_texts(name: str) -> None:
    with pytest.raises(DataError, match=f"{name}: is a table; give a text file"):
        list(_lines(Path(name)))


def test_vectors_are_those_of_sentence_transformers(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """Pooling, length, prompt and scale of the folder's files; ``--pooling`` replaces the pooling alone."""
    model = tiny("bert-tiny").eval()
    folders.save(model, tmp_path / "model")
    write_vector_settings(tmp_path / "model")
    texts = ["a cat", "a cat and a dog and a cat and a dog"]

    def vectors(*words: str, place: Path = tmp_path / "model") -> np.ndarray:
        assert cli.main(["encode", str(place), *texts, *words, "--json"]) == 0
        return np.array(json.loads(capsys.readouterr().out)["vectors"])

    tokenizer = model.tokenizer
    for pooling, words in (("first", ()), ("mean", ("--pooling", "mean"))):
        for text, found in zip(texts, vectors(*words), strict=True):
            ids = tokenizer.encode("the " + text).ids[:4]
            with torch.no_grad():
                states = model.encoder(torch.tensor(tokenizer.frame(ids, max_length=6)[0])[None]).last[0]
            wanted = states[0] if pooling == "first" else states.mean(0)
            np.testing.assert_allclose(found, (wanted / wanted.norm()).numpy(), atol=1e-5)
    np.testing.assert_array_equal(vectors(place=tmp_path), vectors())  # a run with the model in it
    (tmp_path / "model" / "modules.json").unlink()
    assert np.linalg.norm(vectors()[0]) != pytest.approx(1, abs=1e-3)
    prompted = vectors()[0]
    (tmp_path / "model" / "config_sentence_transformers.json").unlink()
    assert not np.allclose(vectors()[0], prompted, atol=1e-3)
