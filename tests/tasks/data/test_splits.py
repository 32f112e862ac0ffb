from __future__ import annotations

import json
from dataclasses import replace

import pytest

from encoderlab.errors import DataError
from encoderlab.tasks.data import suites
from encoderlab.tasks.data.infer import task_of
from encoderlab.tasks.data.splits import completed, hold_out, remarks_of, without_fillers
from encoderlab.tasks.data.task import Split, Text, labels_of
from tests.tasks.synthetic import data


def test_labels_come_from_training(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("text,label\na,10\nb,9\nc,10\n")
    task, _ = task_of(path)
    task = completed(task, task.read([path], "train"))
    assert task.labels == ("9", "10") and task.metrics[0] == "accuracy"
    path.write_text("text,label\na,10\n")
    with pytest.raises(DataError, match="only one label"):
        completed(task_of(path)[0], task.read([path], "train"))
    path.write_text("text,label\nz,11\n")
    with pytest.raises(DataError, match="label '11' is not one of 9, 10"):
        task.read([path], "dev")


def test_tags_are_completed_and_parts_of_speech_are_no_entities(tmp_path):
    path = tmp_path / "t.txt"
    path.write_text("Sue B-PER\n\nOslo B-LOC\nruns O\n")
    task, _ = task_of(path)
    assert completed(task, task.read([path], "train")).labels == ("O", "B-LOC", "I-LOC", "B-PER", "I-PER")
    path.write_text("Sue NNP\n\nOslo NNP\nruns VBZ\n")
    task, _ = task_of(path)
    assert task.metrics == ("accuracy", "macro_f1")
    assert completed(task, task.read([path], "train")).labels == ("NNP", "VBZ")


def test_hold_out_keeps_equal_texts_together(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("text,label\n" + "".join(f"text {i % 100},{i % 2}\n" for i in range(400)))
    task, _ = task_of(path)
    train, dev = hold_out(task.read([path], "train"))
    assert (len(train), len(dev)) == (360, 40)  # a tenth of the texts
    assert not {e.text for e in train.examples} & {e.text for e in dev.examples}
    turned = replace(task.read([path], "train"), examples=task.read([path], "train").examples[::-1])
    assert {e.text for e in hold_out(turned)[1].examples} == {e.text for e in dev.examples}


def test_hold_out_of_questions_without_a_passage_depends_on_no_order(tmp_path):
    path = tmp_path / "q.csv"
    rows = [f"which?,{i % 50},{i % 50 + 1},A" for i in range(100)]

    def parts(rows):
        path.write_text("\n".join(["question,option1,option2,answer", *rows]))
        return [{one.options for one in part.examples} for part in hold_out(task_of(path)[0].read([path], "train"))]

    train, dev = parts(rows)
    assert len(dev) == 5 and not train & dev
    assert parts(sorted(rows)) == [train, dev]


def test_small_files_are_held_out_of_too_and_said_to_measure_little(tmp_path):
    path = tmp_path / "t.csv"
    for texts in (10, 24, 60):
        path.write_text("text,label\n" + "".join(f"text {i},{i % 2}\n" for i in range(texts)))
        task, _ = task_of(path)
        _, dev = hold_out(task.read([path], "train"))
        assert len(dev) == texts // 10
        assert dev.remarks[1:] == (f"t.csv: {texts // 10} held-out examples measure little; give more with --dev",)


def test_nothing_can_be_held_out_of_one_text(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("text,label\n" + "".join(f"the same,{i % 2}\n" for i in range(40)))
    task, _ = task_of(path)
    with pytest.raises(DataError, match="40 examples with 1 different text.* --dev"):
        hold_out(task.read([path], "train"))


def test_hold_out_takes_half_a_character(tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_text("".join(json.dumps({"text": f"text {i} \ud83d", "label": str(i % 2)}) + "\n" for i in range(99)))
    task, _ = task_of(path)
    assert sum(map(len, hold_out(task.read([path], "train")))) == 99


@pytest.mark.parametrize(
    ("train", "test", "kept"),
    [((0.5, 4), (-1, -1), 0), ((0.5, 4), (-1, 2), 2), ((0.5, -4), (-1, -1), 2), ((0.5, 4), ("", -1), 1)],
)
def test_numbers_of_a_test_file_may_stand_for_none(tmp_path, train, test, kept):
    for name, values in (("train", train), ("test", test)):
        (tmp_path / f"{name}.csv").write_text("text,score\n" + "".join(f"a,{value}\n" for value in values))
    task, _ = task_of(tmp_path / "train.csv")
    splits = [task.read([tmp_path / f"{name}.csv"], name) for name in ("train", "test")]
    found = without_fillers(splits[1], splits[0])
    assert sum(example.label is not None for example in found.examples) == kept
    assert found.remarks == (() if kept else ("test.csv: every label is -1; read as a test file without labels",))


def test_a_number_is_written_in_one_way(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("text,label\na,1\nb,1.0\nc,0\n")
    task, _ = task_of(path)
    with pytest.raises(DataError, match="labels '1' and '1.0' are one number"):
        completed(task, task.read([path], "train"))


def test_equal_numbers_have_one_order_in_every_process():
    names = [f"{zeros}{number}" for number in range(1, 9) for zeros in ("00", "0", "")]
    examples = [Text(id=name, text="a", label=name) for name in names]
    assert labels_of(examples) == labels_of(examples[::-1]) == tuple(names)


def test_labels_that_differ_in_case_alone_are_said(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("text,label\na,True\nb,true\nc,False\n")
    (said,) = remarks_of({"train": task_of(path)[0].read([path], "train")})
    assert said == "train: labels 'True' and 'true' differ only in case and count as two"


@pytest.mark.parametrize("task", [suites.task("rte"), data("single")[0]], ids=["benchmark", "file"])
def test_one_label_teaches_nothing(task):
    examples = tuple(Text(id=str(i), text="a", pair="b", label="entailment") for i in range(9))
    train = Split(name="train", examples=examples, files=("here/train.csv",), sha256="")
    with pytest.raises(DataError, match=r"^here/train.csv: only one label \(entailment\); training needs at least two"):
        completed(task, train)
