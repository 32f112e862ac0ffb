"""The verbs of fine-tuning as a user types them: what they print, write and refuse."""

from __future__ import annotations

import csv
import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from encoderlab.cli import main
from encoderlab.errors import Diverged
from encoderlab.tasks.runs import trials
from tests.records.test_dataset import save
from tests.tasks.tiny import model
from tests.terminal import answer, messages

COLOURS = ("red", "blue")


@pytest.fixture
def tiny(tmp_path: Path) -> str:
    model().save(tmp_path / "tiny")
    return str(tmp_path / "tiny")


def reviews(path: Path, count: int = 60) -> str:
    """A table of texts whose label is the colour in them."""
    with open(path, "w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["text", "label", "shade"])
        table.writerows([f"the {COLOURS[i % 2]} cat {i % 9}", COLOURS[i % 2], i % 3] for i in range(count))
    return str(path)


def run(capsys: pytest.CaptureFixture[str], *words: object) -> dict:
    return answer(capsys, *words)[0]


def test_several_files_are_scored_by_processes_as_by_one(tmp_path, tiny, capsys):
    data, out = reviews(tmp_path / "reviews.csv"), tmp_path / "run"
    run(capsys, "finetune", data, "--model", tiny, "--out", out, "--seeds", 1, "--epochs", 1)
    files = [reviews(tmp_path / f"{count}.csv", count) for count in (12, 20, 31)]
    apart = {file: run(capsys, "evaluate", out, file) for file in files}
    found, said = answer(capsys, "evaluate", out, *files, data, "--workers", 2)
    assert found["files"] == apart | {data: run(capsys, "evaluate", out, data)}
    assert f"{data}: {out}: trained on this data" in said
    assert run(capsys, "evaluate", out, *files)["files"] == apart
    assert "12.csv: is given twice" in messages(capsys, 2, "evaluate", out, *files, files[0])
    assert "for one benchmark, not 3" in messages(capsys, 2, "evaluate", out, *files, "--submission", tmp_path / "s")
    assert "are for several labelled files" in messages(capsys, 2, "evaluate", out, data, "--workers", 2)
    assert "none.csv: no such file" in messages(capsys, 2, "evaluate", out, data, tmp_path / "none.csv", "--workers", 2)


def test_of_two_processes_the_first_one_writes_and_prints(tmp_path, tiny, capsys):
    """A search by two processes: one object of JSON, and every file is whole."""
    words = ["finetune", reviews(tmp_path / "r.csv"), "--model", tiny, "--out", tmp_path / "run", "--seeds", 1]
    words += ["--tune", "lr=1e-4,1e-3", "--trials", 2, "--epochs", 1, "--set", "execution.device=cpu"]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    command = [sys.executable, "-m", "encoderlab", *map(str, words), "--json"]
    both = []
    for rank in range(2):
        own = os.environ | shared | {"RANK": str(rank), "LOCAL_RANK": str(rank), "OMP_NUM_THREADS": "1"}
        both.append(subprocess.Popen(command, env=own, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    said = [process.communicate(timeout=600) for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    assert json.loads(said[0][0])["tasks"]["r"]["search"] and not said[1][0]
    assert run(capsys, *words)["tasks"]["r"]["scores"] == json.loads(said[0][0])["tasks"]["r"]["scores"]


def test_a_file_is_trained_on_scored_and_predicted(tmp_path, tiny, capsys):
    data, out = reviews(tmp_path / "reviews.csv"), tmp_path / "run"
    settings = ("--seeds", 2, "--grid", "lr=1e-3,3e-3", "epochs=2", "--set", "form.max_length=16")
    found = run(capsys, "finetune", data, "--model", tiny, "--out", out, *settings)["tasks"]["reviews"]
    assert len(found["search"]) == 2 and len(found["seeds"]) == 2 and found["scores"]["dev"]["accuracy"]["n"] == 2
    assert (out / "report.html").exists()
    second = next(out.glob("lr=*/seed-2"))
    members = [f"{second.parent}/seed-1", data, "--ensemble", str(second)]
    assert main(["evaluate", *members]) == 0
    assert "gain of the ensemble in accuracy" in capsys.readouterr().out
    assert "trained on this data" in answer(capsys, "evaluate", out, data)[1]
    assert "trained on this data" not in answer(capsys, "evaluate", out, reviews(tmp_path / "new.csv", 20))[1]
    assert run(capsys, "predict", out, "the red cat", "the blue cat")["predictions"][0]["label"] in COLOURS
    assert run(capsys, "predict", out, data, "--out", tmp_path / "labels.jsonl")["predictions"] == 60
    assert len((tmp_path / "labels.jsonl").read_text().splitlines()) == 60
    said = messages(capsys, 2, "predict", out, data, "--with", "text", "gold")
    assert "--with text gold adds to the lines of a file of predictions; give --out FILE" in said
    words = ("--model", out, "--out", tmp_path / "more", "--seeds", 1, "--epochs", 1, "--after", data)
    again = run(capsys, "finetune", data, *words)["tasks"]["reviews"]
    assert again["seeds"]["1"]["scores"] and again["after"] == ["reviews"]
    assert (tmp_path / "more/after-reviews/score.json").exists()


def test_a_benchmark_after_a_task_of_another_form_and_what_is_for_files(tmp_path, tiny, capsys):
    folder, data, out = tmp_path / "scores", tmp_path / "glue", tmp_path / "run"
    kinds = {"text": {"dtype": "string", "_type": "Value"}, "label": {"dtype": "float32", "_type": "Value"}}
    save(folder, [{"text": f"a text {i}", "label": i / 4} for i in range(20)], features=kinds)
    for split in ("train", "dev"):
        lines = [f"the {COLOURS[i % 2]} cat\t{i % 2}" for i in range(12)]
        (data / "SST-2").mkdir(parents=True, exist_ok=True)
        (data / f"SST-2/{split}.tsv").write_text("\n".join(["sentence\tlabel", *lines]))
    words = ("--model", tiny, "--out", out, "--seeds", 1, "--epochs", 1, "--set", "form.smoothing=0.1")
    found, said = answer(
        capsys, "finetune", "sst2", "--data", data, *words, "--after", folder, "--grid", "lr=1e-3,2e-3"
    )
    record = found["tasks"]["sst2"]
    assert record["after"] == ["scores"] and record["recipe"]["form"]["smoothing"] == 0.1
    assert "is missing" not in said  # score.json, after the first search
    for option in (("--label", "label"), ("--skip-unlabelled",)):
        said = messages(capsys, 2, "evaluate", out, "sst2", "--data", data, *option)
        assert "sst2 is a benchmark with known files and columns" in said
    file = reviews(tmp_path / "reviews.csv")
    assert "is a file, but --data" in messages(capsys, 2, "evaluate", out, file, "--data", data)
    names = tmp_path / "names.csv"
    names.write_text("text,label\nthe red cat,0\nthe blue cat,1\n")
    assert len(run(capsys, "evaluate", out, names, "sst2", "--data", data)["files"]) == 2
    assert "--threshold is for the scores of --null-odds" in messages(
        capsys, 2, "score", names, names, "--threshold", 1
    )


def test_further_files_have_the_labels_of_training(tmp_path, tiny, capsys):
    rows = [f"the {COLOURS[i % 2]} cat {i}" for i in range(40)]
    files = {"train": [f"{row},{i % 2}" for i, row in enumerate(rows)], "dev": [f"{rows[0]},0.0", "a blue one,1.0"],
             "test": ["red,-1", "blue,-1"]}  # fmt: skip
    for name, lines in files.items():
        (tmp_path / f"{name}.csv").write_text("\n".join(["text,label", *lines]) + "\n")
    words = [tmp_path / "train.csv", "--dev", tmp_path / "dev.csv", "--test", tmp_path / "test.csv"]
    found = run(capsys, "finetune", *words, "--model", tiny, "--out", tmp_path / "run", "--seeds", 1, "--epochs", 1)
    record = found["tasks"]["train"]
    assert record["examples"] == {"train": 40, "dev": 2, "test": 2} and "test" not in record["scores"]
    assert "dev: 1 of 2 examples are also in the training data" in record["remarks"]
    (tmp_path / "test.csv").write_text("text,label\nred,1\nblue,\n")
    found = run(capsys, "finetune", *words, "--model", tiny, "--out", tmp_path / "some", "--seeds", 1, "--epochs", 1)
    kept = json.loads((tmp_path / "some/runs/seed-1/score.json").read_text())
    assert "test" not in kept["scores"] and "test: 1 of 2 examples have no label, so it is not scored" in kept["notes"]
    (tmp_path / "dev.csv").write_text("text,label\na,2\n")
    assert "dev.csv:2: label '2' is not one of 0, 1" in messages(
        capsys, 3, "finetune", *words, "--model", tiny, "--out", tmp_path / "other"
    )
    reviews(tmp_path / "train.csv")
    (tmp_path / "dev.csv").write_text("text,label\na,0\n")
    assert "dev.csv:2: label '0' is not one of blue, red" in messages(
        capsys, 3, "finetune", *words, "--model", tiny, "--out", tmp_path / "other"
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--set", "batch=0"), "batch is 0; give at least 1"),
        (("--set", "steps=-5"), "steps is -5; give at least 1, or null"),
        (("--epochs", "0"), "--epochs is 0; give a number above 0"),
        (("--set", "head_dropout=1"), "head_dropout is 1; give less than 1"),
        (("--set", "frozen.lstm_width=0"), "frozen.lstm_width is 0; give at least 1"),
        (("--grid", "lr=1e-3,fast"), "--grid: optim.lr: .*'fast'"),
        (("--set", "lr=fast"), "--set: optim.lr: .*'fast'"),
        (("--tune", "batch=16,small"), "--tune: batch: .*'small'"),
        (("--grid", "lr=1e-3,1e-4", "epoch=3"), "--grid: unknown key 'epoch'; did you mean 'epochs'?"),
        (("--grid", "form.max_length=16,5000"), "max_length 5000 exceeds the model's"),
        (("--tune", "form.max_length=16,5000"), "max_length 5000 exceeds the model's"),
        (("--grid", "form.precision=null,0.9", "--label", "shade"), "form.precision .* are for two labels"),
        (("--after", "mnli"), "mnli is a benchmark; give the folder of its files"),
        (("--after", "{three}", "--set", "form.precision=0.9"), "form.precision .* are for two labels, three has 3"),
    ],
)
def test_what_cannot_be_trained_is_refused_before_any_training(tmp_path, tiny, capsys, words, message):
    """Also a single point of a grid, and in a dry run."""
    data, out = reviews(tmp_path / "reviews.csv"), tmp_path / "run"
    (tmp_path / "three.csv").write_text("text,label\n" + "".join(f"cat {i},{i % 3}\n" for i in range(30)))
    words = [
        "finetune",
        data,
        "--model",
        tiny,
        "--out",
        out,
        *(word.format(three=tmp_path / "three.csv") for word in words),
    ]
    for more in ((), ("--dry-run",)):
        assert re.search(message, messages(capsys, 2, *words, *more))
    assert not list(out.rglob("metrics.jsonl"))


def test_what_is_no_file_is_told_so(tmp_path, tiny, capsys):
    data, out = reviews(tmp_path / "reviews.csv"), tmp_path / "run"
    run(capsys, "finetune", data, "--model", tiny, "--out", out, "--seeds", 1, "--epochs", 1)
    assert "none.csv: no such file; give labelled data" in messages(capsys, 2, "evaluate", out, tmp_path / "none.csv")
    assert "need a folder for their outputs; give --out" in messages(capsys, 2, "predict", out, tmp_path)
    assert "is a folder; name a file to write" in messages(capsys, 2, "predict", out, data, "--out", tmp_path)
    said = messages(capsys, 2, "evaluate", out, data, "--submission", tmp_path / "submission")
    assert "reviews: has no leaderboard; leave out --submission" in said


def test_a_model_made_for_something_else_is_refused(tmp_path, tiny, capsys):
    data, out = reviews(tmp_path / "reviews.csv"), tmp_path / "run"
    run(capsys, "finetune", data, "--model", tiny, "--out", out, "--seeds", 1, "--epochs", 1)
    for name, rows in (
        ("MNLI", "sentence1\tsentence2\tgold_label\na\tb\tneutral\n"),
        ("SST-2", "sentence\tlabel\na\t1\n"),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / ("dev_matched.tsv" if name == "MNLI" else "dev.tsv")).write_text(rows)
    assert "labels are blue, red, those of mnli entailment" in messages(
        capsys, 2, "evaluate", out, "mnli", "--data", tmp_path
    )
    assert "head is for classification, squad1 is span" in messages(
        capsys, 2, "evaluate", out, "squad1", "--data", tmp_path
    )
    assert "blue, red are matched with 0, 1" in messages(capsys, 0, "evaluate", out, "sst2", "--data", tmp_path)
    assert "one of them" in messages(
        capsys, 2, "finetune", data, "--model", tiny, "--out", out, "--grid", "lr=1e-3", "--tune", "lr=1e-4:1e-3"
    )


def test_a_suite_leaves_out_what_is_not_there_and_submits_what_has_no_labels(tmp_path, tiny, capsys):
    folder = tmp_path / "SST-2"
    folder.mkdir()
    lines = "".join(f"the {COLOURS[i % 2]} cat {i % 9}\t{i % 2}\n" for i in range(40))
    for name in ("train", "dev"):
        (folder / f"{name}.tsv").write_text(f"sentence\tlabel\n{lines}")
    (folder / "test.tsv").write_text("index\tsentence\n" + "".join(f"{i}\tthe red cat\n" for i in range(1821)))
    out = tmp_path / "run"
    text = messages(
        capsys, 0, "finetune", "glue", "--data", tmp_path, "--model", tiny, "--out", out, "--epochs", 1, "--seeds", 1
    )
    assert "cola: no training file" in text and (out / "sst2/runs/seed-1/submission/SST-2.tsv").exists()
    text = messages(
        capsys,
        0,
        "evaluate",
        out / "sst2",
        "sst2",
        "--data",
        tmp_path,
        "--split",
        "test",
        "--submission",
        tmp_path / "sub",
    )
    assert "no labels; nothing to score" in text
    assert len((tmp_path / "sub/SST-2.tsv").read_text().splitlines()) == 1822
    assert "has no training file" in messages(
        capsys, 3, "finetune", "superglue", "--data", tmp_path, "--model", tiny, "--out", tmp_path / "x"
    )


def test_a_task_that_diverges_leaves_the_others_of_its_suite(tmp_path, tiny, capsys, monkeypatch):
    lines = "".join(f"the {COLOURS[i % 2]} cat {i % 9}\t{i % 2}\n" for i in range(40))
    (tmp_path / "SST-2").mkdir()
    (tmp_path / "CoLA").mkdir()
    for name in ("train", "dev"):
        (tmp_path / f"SST-2/{name}.tsv").write_text(f"sentence\tlabel\n{lines}")
        (tmp_path / f"CoLA/{name}.tsv").write_text("".join(f"x\t{i % 2}\t\tthe cat {i}\n" for i in range(40)))
    whole = trials.program

    def diverge(plan, model, task, *args, **kwargs):
        if task.name == "cola":
            raise Diverged("cola: all 1 seeds failed (loss is nan at step 1)")
        return whole(plan, model, task, *args, **kwargs)

    monkeypatch.setattr(trials, "program", diverge)
    words = ("--data", tmp_path, "--model", tiny, "--out", tmp_path / "run", "--epochs", 1, "--seeds", 1)
    assert "error: cola: all 1 seeds failed" in messages(capsys, 6, "finetune", "glue", *words)
    assert (tmp_path / "run/sst2/score.json").exists() and "sst2" in (tmp_path / "run/report.html").read_text()


def test_a_search_is_scored_over_seeds(tmp_path, tiny, capsys):
    pytest.importorskip("optuna")
    words = ("--tune", "lr=1e-4:1e-2", "batch=8,16", "--trials", 2, "--seeds", 2, "--epochs", 1)
    found = run(capsys, "finetune", reviews(tmp_path / "r.csv"), "--model", tiny, "--out", tmp_path / "run", *words)
    assert set(found["tasks"]["r"]["chosen"]) == {"optim.lr", "batch"} and len(found["tasks"]["r"]["seeds"]) == 2
    assert len(json.loads((tmp_path / "run/tune/tune.json").read_text())["trials"]) == 2


def test_a_head_on_features_says_what_it_cannot_do(tmp_path, tiny, capsys):
    words = ("--seeds", 1, "--epochs", 1, "--set", "frozen.layers=last", "--set", "frozen.lstm_layers=0")
    data, out = reviews(tmp_path / "r.csv"), tmp_path / "run"
    run(capsys, "finetune", data, "--model", tiny, "--out", out, "--test", data, *words)
    assert len((out / "runs/seed-1/predictions-test.jsonl").read_text().splitlines()) == 60
    assert "a head on a frozen encoder's features" in messages(capsys, 2, "predict", out, "the red cat")


RECORDS = {
    "text_classification": {"sentence1": "the red cat", "sentence2": "the dog", "label": "1"},
    "sequence_tagging": {"tokens": ["sue", "runs"], "labels": ["B-PER", "O"]},
    "multiplechoice": {"context": "the cat sat", "question": "who sat", "choice": ["cat", "dog"], "label": 0},
}
ASKED = {
    "text_classification": ("the red cat[SEP]the dog", {"label", "score"}),
    "sequence_tagging": ("sue runs", {"prediction", "scores"}),
    "multiplechoice": ("the cat sat[SEP]who sat[SEP]cat[SEP]dog", {"prediction", "score"}),
}


@pytest.mark.parametrize("verb", RECORDS)
def test_verbs_of_fengshen(verb, tmp_path, tiny, capsys):
    folder = tmp_path / "data"
    folder.mkdir()
    for split in ("train", "validation"):
        other = RECORDS[verb] | ({"label": "0"} if verb == "text_classification" else {})
        (folder / f"{split}.json").write_text("".join(json.dumps(r) + "\n" for r in [RECORDS[verb], other] * 4))
    names = ["--texta_name=sentence1"] if verb == "text_classification" else []
    words = [verb, "train", "--model", tiny, "--datasets", folder, "--save_ckpt_path", tmp_path / "ckpt", *names]
    program = "fengshen-pipeline"
    said = messages(capsys, 0, *words, "--max_length", 900, "--gpus=0", "--strategy=ddp", program=program)
    for part in ("--gpus=0: taken as the number of a GPU", "3 epochs (the original would train for 1,000)",
                 "ignored: --strategy", "exceeds the model's 512 positions"):  # fmt: skip
        assert part in said
    text, keys = ASKED[verb]
    assert main([verb, "predict", "--model", str(tmp_path / "ckpt"), "--text", text], program) == 0
    (answer,) = json.loads(capsys.readouterr().out)
    assert set(answer) == keys
    assert "data sets are not downloaded" in messages(
        capsys, 3, verb, "train", "--model", tiny, "--datasets", "IDEA/AFQMC", program=program
    )


def test_names_and_options_that_do_not_go_together_are_refused(tmp_path, tiny, capsys, monkeypatch):
    data, to = reviews(tmp_path / "r.csv"), ("--model", tiny, "--out", tmp_path / "run")
    assert "gone.csv: no such file" in messages(capsys, 2, "finetune", "gone.csv", *to)
    assert f"is a folder; give a file in it, or the name of a benchmark with --data {tmp_path}" in messages(
        capsys, 2, "finetune", tmp_path, *to
    )
    assert "sst2 is a benchmark" in messages(capsys, 2, "finetune", "sst2", "--data", tmp_path, "--text", "x", *to)
    monkeypatch.chdir(tmp_path)
    for name, message in (("labels", "labels: is a folder"), ("SST-2", "SST-2 is a benchmark")):
        (tmp_path / name).mkdir()
        assert message in messages(capsys, 2, "finetune", name, *to)
    assert "leave one of them out" in messages(capsys, 2, "finetune", data, "--data", tmp_path, *to)
    assert "one text per line" in messages(capsys, 3, "encode", tiny, "--file", data)


def test_a_text_with_dots_is_no_file(tmp_path, tiny, capsys):
    data, out = reviews(tmp_path / "r.csv"), tmp_path / "run"
    run(capsys, "finetune", data, "--model", tiny, "--out", out, "--seeds", 1, "--epochs", 1)
    assert run(capsys, "predict", out, "red，3.5分")["predictions"][0]["label"] in COLOURS
    assert "no such file" in messages(capsys, 3, "predict", out, "gone.jsonl.gz")


def test_epochs_count_where_a_protocol_counts_steps(tmp_path, tiny, capsys):
    data, words = reviews(tmp_path / "r.csv"), ("--protocol", "albert", "--set", "batch=16", "--seeds", 1)
    for name, given in (("flag", ("--epochs", 1)), ("field", ("--set", "epochs=1"))):
        run(capsys, "finetune", data, "--model", tiny, "--out", tmp_path / name, *given, *words)
        assert json.loads((tmp_path / name / "runs/seed-1/score.json").read_text())["steps"] == 4
