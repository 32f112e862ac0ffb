"""Every output of every verb: one writer at a time, and nothing of ours or of the user's is written over."""

from __future__ import annotations

import inspect
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from importlib import import_module
from pathlib import Path

import pytest

from encoderlab import cli
from encoderlab.files import held_file, held_folder, locked
from tests.tasks.runs.test_apply import ready, saved
from tests.terminal import answer, messages

COLOURS = ("red", "blue")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus, a pretraining run of it, a fine-tuning of that, and files to use them on."""
    folder = tmp_path_factory.mktemp("outputs")
    words = "red blue cat dog sat ran on a mat big small house tree under the".split()
    texts = [" ".join(words[(7 * i + 3 * j) % len(words)] for j in range(40)) for i in range(60)]
    (folder / "text.txt").write_text("\n\n".join(texts))
    (folder / "lines.txt").write_text("the cat\nthe dog\n")
    (folder / "pairs.txt").write_text("the cat ran\nthe cat the\n")
    (folder / "study.yaml").write_text("corpus: corpus\nbudget: {steps: 1}\narms: {one: {recipe: bert-tiny}}\n")
    rows = [f"the {COLOURS[i % 2]} cat {i},{COLOURS[i % 2]}" for i in range(40)]
    (folder / "reviews.csv").write_text("\n".join(["text,label", *rows]) + "\n")
    at = {name: str(folder / name) for name in ("text.txt", "corpus", "run", "tuned", "reviews.csv")}
    for command in (
        ["corpus", "build", at["text.txt"], "--out", at["corpus"], "--vocab-size", "40"],
        *(
            [
                "corpus", "build", at["text.txt"], "--out", str(folder / f"part-{i}"), "--tokenizer",
                at["corpus"] + "/tokenizer", "--shard-index", str(i), "--num-shards", "2",
            ]
            for i in range(2)
        ),
        [
            "pretrain", "bert-tiny", "--corpus", at["corpus"], "--out", at["run"], "--steps", "2",
            "--set", "phases=[{length: 16, rows: 4}]", "--set", "checkpoints.steps=1",
        ],
        ["finetune", at["reviews.csv"], "--model", at["run"], "--out", at["tuned"], "--seeds", "1", "--epochs", "1"],
    ):  # fmt: skip
        assert cli.main([*command, "--json"]) == 0
    saved(ready("single")[0], folder / "classifier")
    return folder


@contextmanager
def in_training(out: Path) -> Iterator[None]:
    out.mkdir()
    (out / ".lock").touch()
    with locked(out / ".lock"):
        yield


Hold = Callable[[Path], AbstractContextManager[None]]
WRITERS: dict[str, tuple[str, Hold, list[str]]] = {  # verb: its parameter, how it is held, its words
    "predict": ("out", held_file, ["classifier", "lines.txt", "--out", "OUT"]),
    "encode": ("out", held_file, ["classifier", "--file", "lines.txt", "--out", "OUT"]),
    "report": ("out", held_file, ["run", "--out", "OUT"]),
    "evaluate": ("submission", held_folder, []),  # below
    "finetune": ("out", held_folder, ["reviews.csv", "--model", "run", "--out", "OUT", "--seeds", "1"]),
    "adapt": ("out", held_folder, ["run", "text.txt", "--out", "OUT"]),
    "convert": ("out", held_folder, ["run", "OUT"]),
    "export": ("out", held_folder, ["run", "OUT"]),
    "inspect": ("out", held_folder, ["run", "the cat", "--out", "OUT"]),
    "prune": ("out", held_folder, ["run", "OUT", "--heads", "0.5", "--on", "text.txt"]),
    "study": ("out", held_folder, ["study.yaml", "--out", "OUT"]),
    "minimal-pairs": ("out", held_file, ["run", "pairs.txt", "--out", "OUT"]),
    "quickstart": ("out", held_folder, ["--budget", "30s", "--out", "OUT"]),
    "corpus build": ("out", held_folder, ["text.txt", "--out", "OUT"]),
    "corpus merge": ("out", held_folder, ["part-0", "part-1", "--out", "OUT"]),
    "pretrain": ("out", in_training, ["bert-tiny", "--corpus", "corpus", "--out", "OUT", "--steps", "1"]),
}  # fmt: skip


def test_the_table_above_has_every_verb_that_writes() -> None:
    writing = set()
    for verb, (_, target, _) in cli.VERBS.items():
        module, name = target.split(":")
        parameters = inspect.signature(getattr(import_module(f"encoderlab.commands.{module}"), name)).parameters
        writing |= {verb for given in ("out", "submission", "training") if given in parameters}
    assert writing == set(WRITERS)


@pytest.mark.parametrize("verb", [verb for verb, (_, _, words) in WRITERS.items() if words])
def test_a_second_writer_is_refused_in_one_line(verb, place, tmp_path, monkeypatch, capsys) -> None:
    if verb == "export":
        pytest.importorskip("onnx")
    monkeypatch.chdir(place)
    out = tmp_path / "out"
    _, hold, words = WRITERS[verb]
    with hold(out):
        before = sorted(out.rglob("*")) if out.is_dir() else out.exists()
        said = messages(capsys, 2, *verb.split(), *(word.replace("OUT", str(out)) for word in words))
        assert str(out) in said and "another process" in said or "in use by" in said
        assert (sorted(out.rglob("*")) if out.is_dir() else out.exists()) == before


def test_a_submission_that_is_being_written_is_refused(place, tmp_path, monkeypatch, capsys) -> None:
    from encoderlab.tasks.data import suites

    task = suites.task("sst2")
    folder = saved(task, tmp_path / "model")
    (tmp_path / "test.tsv").write_text("index\tsentence\n" + "".join(f"{i}\tthe cat\n" for i in range(1821)))
    words = ("evaluate", folder, "sst2", "--data", tmp_path, "--split", "test", "--submission", tmp_path / "out")
    with held_folder(tmp_path / "out"):
        assert "another process" in messages(capsys, 2, *words)
    assert not (tmp_path / "out").exists()


def test_two_processes_make_one_file(place, tmp_path) -> None:
    (tmp_path / "texts.txt").write_text("".join(f"the red cat {i}\n" for i in range(500)))
    words = [sys.executable, "-m", "encoderlab", "predict", place / "classifier", tmp_path / "texts.txt"]
    words += ["--out", tmp_path / "labels.jsonl"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    both = [subprocess.Popen(words, env=environment, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    errors = [one.communicate()[1] for one in both]
    codes = [one.returncode for one in both]
    assert 0 in codes and set(codes) <= {0, 2}, errors
    for code, error in zip(codes, errors, strict=True):
        assert code == 0 or "another process is writing it" in error
    ids = [json.loads(line)["id"] for line in (tmp_path / "labels.jsonl").read_text().splitlines()]
    assert len(ids) == len(set(ids)) == 500
    assert sorted(path.name for path in tmp_path.iterdir()) == ["labels.jsonl", "texts.txt"]


KILLED = {  # verb: its words, and the temporary file that it leaves when it is killed before it renames the first one
    "encode": (["classifier", "--file", "lines.txt", "--out", "OUT"], "."),
    "predict": (["classifier", "lines.txt", "--out", "OUT"], None),  # continues with its part file
    "convert": (["run", "OUT"], "."),
    "inspect": (["run", "the cat", "--out", "OUT"], "OUT"),
    "finetune": (
        ["reviews.csv", "--model", "run", "--out", "OUT", "--seeds", "1", "--epochs", "1"], "OUT/runs/seed-1",
    ),
}  # fmt: skip


@pytest.mark.parametrize("verb", KILLED)
def test_what_a_killed_process_leaves_is_removed(verb, place, tmp_path, monkeypatch, capsys) -> None:
    """It is neither counted as output nor in the way."""
    monkeypatch.chdir(place)
    words, where = KILLED[verb]
    whole, out = tmp_path / "whole/out", tmp_path / "killed/out"
    calls = [[verb, *(word.replace("OUT", str(one)) for word in words)] for one in (whole, out)]
    answer(capsys, *calls[0])
    last = "model" if verb == "finetune" else "out"
    code = f"""if True:
        import os, signal, sys
        from encoderlab.cli import main
        replace = os.replace
        def rename(source, target):
            if {last!r} in os.path.relpath(target, {str(out.parent)!r}).split(os.sep):
                os.kill(os.getpid(), signal.SIGKILL)
            replace(source, target)
        os.replace = os.rename = rename
        main(sys.argv[1:])
    """
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CI": "1"}
    killed = subprocess.run([sys.executable, "-c", code, *calls[1]], env=environment, capture_output=True)
    assert killed.returncode == -9, killed.stderr.decode()
    if where is not None:
        assert list((out.parent / where.replace("OUT", "out")).glob(".*.tmp"))
    answer(capsys, *calls[1])

    def names(folder: Path) -> list[str]:
        return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))

    assert names(out.parent) == names(whole.parent)
    assert ".tmp" not in "".join(path.read_text() for path in out.rglob("S*SUMS"))


def test_no_file_of_a_run_a_corpus_or_a_model_is_written_over(place, monkeypatch, capsys) -> None:
    monkeypatch.chdir(place)
    files = {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}
    assert len(files) > 40
    for path in files:
        for words in (["predict", "classifier", "the cat"], ["encode", "classifier", "the cat"], ["report", "run"]):
            if words[0] != "report" or path != place / "run/report.html":
                messages(capsys, 2, *words, "--out", path)
    assert files == {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}


@pytest.mark.parametrize("verb", ["predict", "encode"])
def test_what_a_verb_wrote_it_may_write_again(verb, place, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(place)
    source = ["lines.txt"] if verb == "predict" else ["--file", "lines.txt"]
    words = (verb, "classifier", *source, "--out", tmp_path / "out")
    answer(capsys, *words)
    before = (tmp_path / "out").read_bytes()
    answer(capsys, *words)
    assert (tmp_path / "out").read_bytes() == before
    other = ("encode", "--file") if verb == "predict" else ("predict",)
    said = messages(capsys, 2, other[0], "classifier", *other[1:], "lines.txt", "--out", tmp_path / "out")
    assert "exists and is not a file of" in said
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize(
    ("words", "name", "remedy"),
    [
        (("predict", "classifier", "the cat"), "labels.csv", "JSON lines; give a name that ends in .jsonl"),
        (("predict", "classifier", "the cat"), "labels.jsonl.gz", "JSON lines; give a name that ends in .jsonl"),
        (("encode", "run", "the cat"), "vectors.TXT", "an array of NumPy; give a name that ends in .npy"),
        (("minimal-pairs", "run", "pairs.txt"), "scores.npy", "JSON lines; give a name that ends in .jsonl"),
        (("report", "run"), "report.json", "a page of HTML; give a name that ends in .html"),
    ],
)
def test_a_name_of_another_format_is_refused(words, name, remedy, place, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(place)
    assert f"{name}: the output is {remedy}" in messages(capsys, 2, *words, "--out", tmp_path / name)
    assert not (tmp_path / name).exists()


def test_predictions_of_texts_are_written_as_those_of_a_file(place, tmp_path, capsys) -> None:
    out = tmp_path / "labels.jsonl"
    printed, _ = answer(capsys, "predict", place / "classifier", "the red cat", "a")
    done, _ = answer(capsys, "predict", place / "classifier", "the red cat", "a", "--out", out)
    assert [json.loads(line) for line in out.read_text().splitlines()] == printed["predictions"]
    assert done["predictions"] == 2 and done["out"] == str(out)


def test_vectors_as_json_are_not_printed_twice(place, capsys) -> None:
    found, said = answer(capsys, "encode", place / "classifier", "the red cat")
    assert len(found["vectors"][0]) == found["width"] and len(said) < 200


def test_a_changed_token_is_named_by_every_verb_that_reads_a_corpus(place, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(place / "corpus", "corpus")
    Path("pairs.txt").write_text("the red cat\ncat the red\n")
    for split in ("train", "validation"):
        path = next(Path("corpus", split).iterdir())
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
    for words in (
        ("pretrain", "bert-tiny", "--corpus", "corpus", "--out", "run", "--steps", 1),
        ("perplexity", place / "run", "--corpus", "corpus"),
        ("minimal-pairs", place / "run", "pairs.txt", "--corpus", "corpus"),
        ("prune", place / "run", "pruned", "--heads", "0.5", "--on", "corpus"),
        ("adapt", place / "run", "corpus", "--out", "adapted"),
    ):
        assert "shard-00000.safetensors: sha256" in messages(capsys, 3, *words), words


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["inspect", "run", "the cat"], "index.html"),
        (["study", "study.yaml"], "results.json"),
        (["quickstart", "--budget", "30s"], "report.html"),
    ],
)
def test_a_folder_with_files_of_the_user_is_refused(words, name, place, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(place)
    (tmp_path / name).write_text("mine")
    assert f"is not empty (it has '{name}')" in messages(capsys, 2, *words, "--out", tmp_path)
    assert (tmp_path / name).read_text() == "mine"


def test_a_folder_of_the_user_stays_though_nothing_is_written(tmp_path) -> None:
    for made in (False, True):
        out = tmp_path / str(made)
        if made:
            out.mkdir()
        with held_folder(out):
            assert out.is_dir()
        assert out.is_dir() == made


PRINTING = {
    "predict": ["classifier", "the cat"],
    "encode": ["classifier", "the cat"],
    "fill-mask": ["run", "the [MASK] ran"],
    "evaluate": ["tuned", "reviews.csv"],
    "describe": ["run"],
    "doctor": ["run"],
    "report": ["run", "--out", "OUT"],
    "convert": ["run", "OUT"],
    "minimal-pairs": ["run", "pairs.txt"],
    "inspect": ["run", "the cat", "--out", "OUT"],
    "prune": ["run", "OUT", "--heads", "0.5", "--on", "text.txt"],
    "corpus build": ["text.txt", "--out", "OUT", "--vocab-size", "40"],
    "corpus inspect": ["corpus"],
    "pretrain": [
        "bert-tiny", "--corpus", "corpus", "--out", "OUT", "--steps", "1", "--set", "phases=[{length: 16, rows: 4}]",
    ],
    "finetune": ["reviews.csv", "--model", "run", "--out", "OUT", "--seeds", "1", "--epochs", "1"],
}  # fmt: skip


@pytest.mark.parametrize("json_too", [False, True])
@pytest.mark.parametrize("verb", PRINTING)
def test_a_full_or_closed_standard_output_is_no_bug_of_any_verb(
    verb, json_too, place, tmp_path, monkeypatch, capsys
) -> None:
    monkeypatch.chdir(place)
    words = [word.replace("OUT", str(tmp_path / "out")) for word in PRINTING[verb]] + ["--json"] * json_too
    for code in (3, 141):
        if code == 3:
            stream = open("/dev/full", "w")  # noqa: SIM115 (replaced below)
        else:
            reader, writer = os.pipe()
            os.close(reader)
            stream = open(writer, "w")  # noqa: SIM115
        monkeypatch.setattr(sys, "stdout", stream)
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        assert cli.main([*verb.split(), *words]) == code
        said = capsys.readouterr().err
        assert "Traceback" not in said and "bug" not in said and ("error: " in said) == (code == 3), said
        (tmp_path / "out").unlink() if (tmp_path / "out").is_file() else None
