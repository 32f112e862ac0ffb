"""The verbs of fengshen-pipeline: its folders, flags and notices."""

from __future__ import annotations

import functools
import gzip
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from encoderlab.commands import compat
from encoderlab.errors import ConfigError, DataError
from tests import terminal
from tests.tasks.runs.test_apply import ready, saved
from tests.tasks.tiny import model

ROWS = [{"sentence": "the red cat", "label": "0"}, {"sentence": "the blue dog", "label": "1"}] * 4

messages = functools.partial(terminal.messages, program="fengshen-pipeline")


@pytest.fixture
def tiny(tmp_path: Path) -> str:
    model().save(tmp_path / "tiny")
    return str(tmp_path / "tiny")


def lines(rows: Sequence[dict]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def data(folder: Path, rows: Sequence[dict] = ROWS) -> Path:
    folder.mkdir()
    for split in ("train", "validation"):
        (folder / f"{split}.json").write_text(lines(rows))
    return folder


def test_a_split_is_all_of_its_shards(tmp_path):
    parquet, arrow = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")
    for shard in range(3):
        rows = arrow.Table.from_pylist(ROWS[:2])
        parquet.write_table(rows, tmp_path / f"train-0000{shard}-of-00003.parquet")
    (tmp_path / "README").write_text("about the data")
    (tmp_path / "validation.json.gz").write_bytes(gzip.compress(lines(ROWS).encode()))
    _, splits = compat._splits(tmp_path, "classification", "sentence", None, None)
    assert {name: len(split) for name, split in splits.items()} == {"train": 6, "dev": 8}


def test_files_between_which_it_would_have_to_choose_are_refused(tmp_path):
    folder = data(tmp_path / "data")
    for other in ("train.csv", "train_small.json"):
        (folder / other).write_text("sentence,label\na,0\n")
        with pytest.raises(DataError, match=f"several files for one split .*{other}"):
            compat._splits(folder, "classification", "sentence", None, None)
        (folder / other).unlink()


@pytest.mark.parametrize("columns", [("sentenc", None, None), ("sentence", "sentenc", None), ("sentence", None, "lab")])
def test_a_column_that_is_named_must_be_there(columns, tmp_path):
    wrong = columns[2] or columns[1] or columns[0]
    with pytest.raises(ConfigError, match=f"no column '{wrong}'; did you mean"):
        compat._splits(data(tmp_path / "data"), "classification", *columns)


def test_differences_are_said_once_and_flags_without_values_are_ignored(tmp_path, tiny, capsys):
    rows = [row | {"sentence2": "dog", "label": str(i % 3)} for i, row in enumerate(ROWS)]
    words = ["text_classification", "train", "--model", tiny, "--datasets", data(tmp_path / "data", rows)]
    said = messages(capsys, 0, *words, "--save_ckpt_path", tmp_path / "ckpt", "--max_length", 16, "--fast_dev_run",
               "--log_every_n_steps", "-1", "--gpus=0")  # fmt: skip
    for part in ("ignored: --fast_dev_run, --log_every_n_steps (", "3 epochs (the original", "rows are shuffled",
                 "3 labels, counted in the data", "encoded as a pair", "--gpus=0: taken as the number"):  # fmt: skip
        assert said.count(part) == 1, part
    words[3] = tmp_path / "ckpt"
    said = messages(capsys, 0, *words, "--save_ckpt_path", tmp_path / "on", "--max_length", 16)
    assert "the task head is new (the model's own is dropped" in said
    text = ["text_classification", "predict", "--model", tmp_path / "ckpt", "--text", "the red cat[SEP]dog"]
    assert "ignored: --top_k" in messages(capsys, 0, *text, "--top_k", 3)
    assert "exceeds the model's 512 positions" in messages(capsys, 0, *text, "--max_length", 900)
    assert "'3' does not belong to a flag" in messages(capsys, 2, *text, "3")


def test_the_recipe_ends_as_the_original_does():
    recipe = compat._recipe(compat.Flags(model=Path("m"), rate=1e-5), None)
    assert recipe.form.max_length == 512 and recipe.select == "last"
    with pytest.raises(ConfigError, match="^max_length is 0; give at least 1"):
        compat._recipe(compat.Flags(model=Path("m"), max_length=0), None)
    assert recipe.optim.lr * recipe.schedule.share(100, 100) == pytest.approx(1e-7)


def test_gpus_are_counted_as_lightning_does(monkeypatch, capsys):
    compat._say_gpus("4")
    assert "--gpus=4: taken as how many" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="CUDA_VISIBLE_DEVICES=1 and leave"):
        compat._say_gpus("1,")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    compat._say_gpus("1")
    assert not capsys.readouterr().err


def test_a_gpu_that_is_not_there_is_one_line(tmp_path, tiny, capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    words = ["text_classification", "train", "--model", tiny, "--datasets", data(tmp_path / "data")]
    messages(capsys, 0, *words, "--save_ckpt_path", tmp_path / "ckpt", "--max_epochs", 1)
    said = messages(
        capsys, 2, "text_classification", "predict", "--model", tmp_path / "ckpt", "--text", "a", "--device", 0
    )
    assert "--device 0: there are 0 GPUs here, numbered from 0; -1 is the CPU" in said


@pytest.mark.parametrize(
    ("kind", "verb", "remedy"),
    [
        ("question", "text_classification", "span, expected classification; run: encoderlab predict "),
        (
            "single",
            "multiplechoice",
            "classification, expected choice; run: fengshen-pipeline text_classification predict ",
        ),
        ("choice", "sequence_tagging", "choice, expected tagging; run: fengshen-pipeline multiplechoice predict "),
    ],
)
def test_a_model_with_the_head_of_another_verb_is_refused(kind, verb, remedy, tmp_path, capsys):
    saved(ready(kind)[0], tmp_path / "tuned")
    said = messages(capsys, 2, verb, "predict", "--model", tmp_path / "tuned", "--text", "a[SEP]b[SEP]c[SEP]d")
    assert f"tuned: has a head for {remedy}" in said
