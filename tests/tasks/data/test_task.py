"""What a task refuses in its files, and what it leaves out and counts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from encoderlab.errors import DataError
from encoderlab.tasks.data.infer import task_of
from tests.terminal import messages


@pytest.mark.parametrize("record", [{"text": "a b", "label": "x\ud800"}, {"tokens": ["a"], "ner_tags": ["B-\udfff"]}])
def test_a_label_that_is_no_text_is_refused_where_it_is_read(record, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps(record) + "\n")
    task, _ = task_of(tmp_path / "a.jsonl")
    with pytest.raises(DataError, match=r"a.jsonl:1: .* half of a surrogate pair"):
        task.read([tmp_path / "a.jsonl"], "train")


def test_a_missing_label_is_refused_or_skipped_and_counted(tmp_path: Path, capsys) -> None:
    rows = [f"text {i},{('red', '', 'blue')[i % 3]}" for i in range(30)]
    (tmp_path / "a.csv").write_text("\n".join(["text,label", *rows]))
    task, _ = task_of(tmp_path / "a.csv")
    with pytest.raises(DataError, match=r"a.csv:3: no label; .* --skip-unlabelled"):
        task.read([tmp_path / "a.csv"], "train")
    with pytest.raises(DataError, match=r"--skip-unlabelled\), or give --form multilabel if it means no label$"):
        task.read([tmp_path / "a.csv"], "train")
    with pytest.raises(DataError, match=r"dev data needs one .* --skip-unlabelled\)$"):  # whose form the model has
        task.read([tmp_path / "a.csv"], "dev")
    split = task.read([tmp_path / "a.csv"], "train", skip_unlabelled=True)
    assert len(split) == 20 and "10 times no label; left out" in split.remarks[0] or "10" in split.remarks[0]
    words = ("finetune", tmp_path / "a.csv", "--model", tmp_path / "none", "--out", tmp_path / "out")
    assert "no label; left out" in messages(capsys, 3, *words, "--skip-unlabelled")
