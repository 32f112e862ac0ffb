"""Verbs over many files: each output has the bytes of a run of its own, by one process, by several, and continued."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from encoderlab.commands.workers import WorkerOptions, listed
from encoderlab.errors import ConfigError, DataError
from encoderlab.files import held_folder
from tests.tasks.runs.test_apply import ready, saved
from tests.terminal import answer, messages


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classifier, another one, and a folder of texts."""
    folder = tmp_path_factory.mktemp("many")
    saved(ready("single")[0], folder / "model")
    saved(ready("single")[0], folder / "other", seed=2)
    (folder / "texts/deep").mkdir(parents=True)
    for number in range(4):
        lines = [f"the {('red', 'blue')[j % 2]} cat {number} {j}" for j in range(3 * number + 1)]
        (folder / f"texts/{number}.txt").write_text("\n".join(lines) + "\n")
    (folder / "texts/deep/0.txt").write_text("the small house " * 30 + "\n")
    (folder / "texts/.hidden").write_text("no text")
    return folder


@pytest.mark.parametrize(("verb", "suffix"), [("predict", ".jsonl"), ("encode", ".npy")])
def test_outputs_of_a_folder_are_those_of_its_files_alone(verb, suffix, place, tmp_path, capsys) -> None:
    flag = ["--file"] if verb == "encode" else []
    made, said = answer(capsys, verb, place / "model", *flag, place / "texts", "--out", tmp_path / "here")
    assert made["files"] == 5 and made["kept"] == 0 and made["predictions" if verb == "predict" else "texts"] == 23
    if verb == "predict":  # what is noticed about one of them is said with its name
        assert "deep/0.txt: 1 text is longer than the model's 32 tokens" in said
    names = sorted(path.relative_to(place / "texts") for path in (place / "texts").rglob("*.txt"))
    for name in names:
        alone = tmp_path / f"alone{suffix}"
        answer(capsys, verb, place / "model", *flag, place / "texts" / name, "--out", alone)
        assert (tmp_path / "here" / f"{name}{suffix}").read_bytes() == alone.read_bytes()


def test_two_processes_make_what_one_makes_and_continue_it(place, tmp_path, capsys) -> None:
    words = ("predict", place / "model", place / "texts", "--out")
    answer(capsys, *words, tmp_path / "here")
    shutil.copytree(tmp_path / "here", tmp_path / "two")
    for name in ("0", "1"):
        (tmp_path / f"two/{name}.txt.jsonl").unlink()
    (tmp_path / "two/3.txt.jsonl").write_bytes(b"damaged")
    made, said = answer(capsys, *words, tmp_path / "two", "--workers", "2", "--threads", "1")
    assert (
        made["files"] == 5 and made["kept"] == 2 and "3.txt.jsonl: has changed since it was written; made again" in said
    )
    for path in (tmp_path / "here").rglob("*.txt.jsonl"):
        assert (tmp_path / "two" / path.relative_to(tmp_path / "here")).read_bytes() == path.read_bytes()


def test_several_files_and_one_that_fails(place, tmp_path, capsys) -> None:
    bad = tmp_path / "bad.csv"
    bad.write_bytes(b"text\n\xff\xfe\n")
    out = tmp_path / "out"
    words = ("predict", place / "model", bad, place / "texts/1.txt", place / "texts/2.txt", "--out", out)
    said = messages(capsys, 3, *words)
    assert "1 of 3 files failed" in said and "bad.csv:2: not UTF-8" in said and "run the same command again" in said
    assert sorted(path.name for path in out.iterdir()) == ["1.txt.jsonl", "2.txt.jsonl", "files.jsonl"]
    bad.write_text("text\nthe cat\n")
    assert answer(capsys, *words)[0]["kept"] == 2


def test_what_is_wrong_is_refused_before_any_work(place, tmp_path, capsys) -> None:
    out, texts = tmp_path / "out", place / "texts"
    predict = ("predict", place / "model")
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    for code, said, words in (
        (2, "5 files need a folder for their outputs; give --out FOLDER", [texts]),
        (2, "which is read; give another --out", [texts, "--out", texts / "labels"]),
        (2, "is a file; name a folder", [texts, "--out", tmp_path / "file"]),
        (3, "has no files", [tmp_path / "empty", "--out", out]),
        (2, "have the same name", [texts / "0.txt", texts / "deep/0.txt", "--out", out]),
        (3, "none.txt: no such file", [texts / "0.txt", texts / "none.txt", "--out", out]),
        (2, "is not empty", [texts, "--out", place]),
        (2, "are for several files or a folder", [texts / "0.txt", "--workers", "2"]),
        (2, "--workers is 0; give at least 1", [texts, "--out", out, "--workers", "0"]),
        (2, "--gpus is for --on ray", [texts, "--out", out, "--gpus", "1"]),
        (2, "--memory -1 is not a size", [texts, "--out", out, "--memory", "-1"]),
        (2, "--on slurm: expected local, ray or ray=ADDRESS", [texts, "--out", out, "--on", "slurm"]),
        (2, "--workers is for --on local", [texts, "--out", out, "--on", "ray", "--workers", "2"]),
    ):
        assert said in messages(capsys, code, *predict, *words)
    assert "are for several files or a folder" in messages(
        capsys, 2, "encode", place / "model", "the cat", "--workers", "2"
    )
    with held_folder(out):
        assert "another process is writing it" in messages(capsys, 2, *predict, texts, "--out", out)
    assert not out.exists()


def test_another_model_does_not_add_to_a_folder(place, tmp_path, capsys) -> None:
    words = (place / "texts", "--out", tmp_path / "out")
    answer(capsys, "predict", place / "model", *words)
    assert "made with another model" in messages(capsys, 2, "predict", place / "other", *words)
    assert "made with another with" in messages(capsys, 2, "predict", place / "model", *words, "--with", "text")
    assert "made with another verb" in messages(capsys, 2, "encode", place / "model", "--file", *words)


def test_outputs_of_another_tokenizer_or_threshold_are_not_kept(place, tmp_path, capsys, unrecorded) -> None:
    model = tmp_path / "model"
    saved(ready("single")[0], model)
    words = {"predict": (model, place / "texts"), "encode": (model, "--file", place / "texts")}
    for verb, given in words.items():
        answer(capsys, verb, *given, "--out", tmp_path / verb)
    task = json.loads((model / "task.json").read_text())
    (model / "task.json").write_text(json.dumps(task | {"threshold": 0.9}))
    assert "made with another model" in messages(capsys, 2, "predict", *words["predict"], "--out", tmp_path / "predict")
    (model / "task.json").write_text(json.dumps(task))
    assert answer(capsys, "predict", *words["predict"], "--out", tmp_path / "predict")[0]["kept"] == 5
    tokens = json.loads((model / "tokenizer.json").read_text())
    tokens["normalizer"]["lowercase"] = False
    (model / "tokenizer.json").write_text(json.dumps(tokens))
    for verb, given in words.items():
        assert "made with another model" in messages(capsys, 2, verb, *given, "--out", tmp_path / verb)


def test_a_model_is_loaded_once_for_all_files(place, tmp_path, capsys, monkeypatch) -> None:
    from encoderlab.tasks.runs import apply

    loaded = []
    real = apply.load
    monkeypatch.setattr(apply, "load", lambda folder: loaded.append(folder) or real(folder))
    answer(capsys, "predict", place / "other", place / "texts", "--out", tmp_path / "out")
    assert len(loaded) == 1  # what learns its identity before any work does the work


def test_a_word_that_is_a_text_is_none_of_the_files(place, tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(place)
    assert len(answer(capsys, "predict", "model", "texts")[0]["predictions"]) == 1  # no slash, no output
    assert len(answer(capsys, "predict", "model", "https://a.org is red", "model/config")[0]["predictions"]) == 2
    said = messages(capsys, 3, "predict", "model", "https://a.org is red", "model/config.json")
    assert "https://a.org is red: is no file, and model/config.json is one; give only files, or only texts" in said
    assert answer(capsys, "predict", "model", "texts", "--out", tmp_path / "out")[0]["files"] == 5


def test_what_a_task_needs(monkeypatch) -> None:
    from encoderlab.commands import workers

    monkeypatch.setattr(workers, "cores", lambda: 8)
    seen = []
    monkeypatch.setattr(workers, "tasks_on", lambda on, **more: seen.append((on, more["workers"], more["need"])))
    for options in (
        WorkerOptions(workers=3),
        WorkerOptions(threads=4),
        WorkerOptions(on="ray"),
        WorkerOptions(on="ray", threads=2, gpus=0.5, memory=4),
    ):
        options.tasks([])
    assert [(on, number, need.cores, need.gpus, need.memory) for on, number, need in seen] == [
        ("local", 3, 2, None, 0),
        ("local", 1, 4, None, 0),
        ("ray", None, 1, None, 0),
        ("ray", None, 2, 0.5, 4_000_000_000),
    ]


def test_files_are_named_by_their_place_in_their_folder(place) -> None:
    names = list(listed([place / "texts", place / "model/config.json"], ".x"))
    assert names == ["0.txt.x", "1.txt.x", "2.txt.x", "3.txt.x", "deep/0.txt.x", "config.json.x"]
    with pytest.raises(DataError, match="no such file"):
        listed([place / "none"], "")
    with pytest.raises(ConfigError, match="have the same name"):
        listed([place / "texts", place / "texts/deep/0.txt"], "")
