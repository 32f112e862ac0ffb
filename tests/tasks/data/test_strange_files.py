"""Files of labelled texts that differ from what a reader first thinks of: read right, or refused by name."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from encoderlab.cli import main
from encoderlab.errors import ConfigError, DataError
from encoderlab.tasks.data.infer import Given, task_of
from encoderlab.tasks.data.predictions import read_predictions, with_labels
from encoderlab.tasks.data.task import Split, Task
from encoderlab.tasks.forms.base import FormSettings
from encoderlab.tasks.forms.objective import form_of
from tests.tasks.tiny import model


def read(path: Path, content: str, **given: Any) -> tuple[Task, Split]:
    path.write_text(content)
    task, _ = task_of(path, Given(**given))
    return task, task.read([path], "train")


def gold(examples: Sequence[Any]) -> list[Any]:
    return [example.answers for example in examples]


def test_answers_that_count_from_one_where_some_rows_have_fewer_options(tmp_path: Path) -> None:
    """A column of options that is empty in nearly every row says nothing about where numbers begin."""
    rows = [f"q{i},A{i},B{i},C{i},D{i},{'E' if i == 0 else ''},{i % 4 + 1}" for i in range(8)]
    text = "question,option1,option2,option3,option4,option5,answer\n" + "\n".join(rows) + "\n"
    _, found = read(tmp_path / "c.csv", text)
    assert gold(found.examples) == [(i % 4,) for i in range(8)]


def test_lists_of_words_in_a_cell(tmp_path: Path) -> None:
    text = 'tokens,tags\n"[\'a, b\', ""it\'s""]","[\'O\', \'B-X\']"\n"[""c""]","[""O""]"\n'
    _, found = read(tmp_path / "w.csv", text)
    assert [(e.words, e.tags) for e in found.examples] == [(("a, b", "it's"), ("O", "B-X")), (("c",), ("O",))]  # type: ignore[union-attr]


def test_a_word_without_a_tag(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"w\.conll:2: the word 'ran' has no tag; write O outside entities"):
        read(tmp_path / "w.conll", "Sue\tB-PER\nran\t\n\nto\tO\nOslo\tB-LOC\n\n")


def test_two_columns_of_one_name(tmp_path: Path) -> None:
    task, found = read(tmp_path / "t.csv", "text,label\na,x\nb,y\n")
    (guesses := tmp_path / "g.csv").write_text("prediction,,\nx,1,\ny,2,\n")
    assert len(read_predictions(guesses, with_labels(task, found), found)[0]) == 2  # unread names may repeat
    guesses.write_text("prediction,prediction\nx,y\ny,x\n")
    with pytest.raises(DataError, match="two columns are called 'prediction'"):
        read_predictions(guesses, with_labels(task, found), found)
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    table = arrow.table([["a"], ["b"], ["x"]], names=["text", "text", "label"])
    parquet.write_table(table, tmp_path / "t.parquet")
    with pytest.raises(DataError, match="two columns are called 'text'"):
        task_of(tmp_path / "t.parquet")


def test_two_columns_of_ids(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"t.csv:1: two columns are called 'id'; rename one of them"):
        read(tmp_path / "t.csv", "id,text,id,label\n1,a,x,p\n2,b,x,n\n")


def test_texts_of_parquet_that_are_no_utf8(tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    texts = arrow.array([b"good", b"caf\xe9"]).view(arrow.string())
    parquet.write_table(arrow.table({"text": texts, "label": ["x", "y"]}), tmp_path / "t.parquet")
    with pytest.raises(DataError, match="t.parquet: not UTF-8 .*; convert the file to UTF-8"):
        task_of(tmp_path / "t.parquet")


def test_a_header_of_numbers(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the first row is a header of numbers; give its columns names"):
        read(tmp_path / "t.csv", "0,1\nsome text,x\nother text,y\n", text="0", label="1")


def test_names_of_columns_for_words_in_lines(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="word columns have no names; give --text a number"):
        read(tmp_path / "w.conll", "Sue B-PER\nran O\n\nto O\nOslo B-LOC\n\n", text="word", label="tag")


def test_a_test_file_whose_labels_have_another_name(tmp_path: Path) -> None:
    task, _ = read(tmp_path / "t.csv", "text,label\na,x\nb,y\n")
    (other := tmp_path / "test.csv").write_text("text,gold\nc,x\n")
    assert any(
        "no label in any row, and there is no column 'label'" in line for line in task.read([other], "test").remarks
    )


def test_an_empty_last_prediction(tmp_path: Path) -> None:
    """An empty line is "no answer" for questions."""
    lines = [{"id": str(i), "context": "a b", "question": "q", "answers": ["a"] if i == 0 else []} for i in range(2)]
    task, found = read(tmp_path / "q.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
    (guesses := tmp_path / "g.txt").write_text("a\n\n\n")
    assert len(read_predictions(guesses, task, found)[0]) == 2


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({"text": None, "answer_start": 0}, "is None, not a text"),
        ({"text": "a", "answer_start": 1e400}, "another kind"),
    ],
)
def test_answers_of_other_kinds(tmp_path: Path, answer: Any, said: str) -> None:
    question = {"id": "1", "question": "q", "answers": [answer]}
    data = {"data": [{"title": "", "paragraphs": [{"context": "a b", "qas": [question]}]}]}
    with pytest.raises(DataError, match=said):
        read(tmp_path / "q.json", json.dumps(data))


@pytest.mark.parametrize("gap", ["", "nan", "None"])
def test_a_gap_among_numbers(tmp_path: Path, gap: str) -> None:
    """It does not turn numbers into classes, and can be left out."""
    text = "text,score\n" + "".join(f"t{i},{i + 0.5}\n" for i in range(30)) + f"last,{gap}\n"
    (path := tmp_path / "t.csv").write_text(text)
    task, _ = task_of(path, Given(skip_unlabelled=True))
    assert task.form == "regression"
    assert len(task.read([path], "train", skip_unlabelled=True).examples) == 30
    with pytest.raises(DataError, match="no label; train data needs one in every row"):
        task.read([path], "train")


def test_the_first_answer_that_is_in_the_passage_is_learned(tmp_path: Path) -> None:
    """Aliases need not be in it (TriviaQA)."""
    answers = [{"text": "zebra", "answer_start": -1}, {"text": "cat", "answer_start": 4}]
    question = {"id": "1", "question": "who ?", "answers": answers}
    data = {"data": [{"title": "", "paragraphs": [{"context": "the cat sat", "qas": [question]}]}]}
    task, found = read(tmp_path / "q.json", json.dumps(data))
    form = form_of(task, model("bert-tiny"), FormSettings(max_length=32))
    (item,) = form.items(found.examples, train=True)
    labels = item.sequences[0].labels
    assert labels["start"] == labels["end"] > 0 == labels["impossible"]


def test_trials_belong_to_a_search(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["finetune", "t.csv", "--model", "small-en", "--out", "out", "--trials", "5"]) == 2
    assert "--trials is the number of runs of --tune; give --tune too" in capsys.readouterr().err
