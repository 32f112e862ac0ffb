from __future__ import annotations

import json

import pytest

from encoderlab.errors import ConfigError, DataError
from encoderlab.tasks.infer import Given, hold_out, task_of, with_labels


@pytest.mark.parametrize(
    ("name", "text", "form", "said"),
    [
        ("reviews.csv", "text,stars\ngood,5\nbad,1\n", "classification", "text = 'text', label = 'stars'"),
        ("pairs.tsv", "sentence1\tsentence2\tlabel\na\tb\t1\n", "classification", "second text = 'sentence2'"),
        ("similar.csv", "text_a,text_b,score\na,b,1.5\nc,d,3\n", "regression", "a number for one or two texts"),
        ("any.csv", "message body,category\na,x\nb,y\n", "classification", "text = 'message body'"),
        ("ner.txt", "Sue B-PER\nran O\n\nto O\nOslo B-LOC\n", "tagging", "one word per line"),
        ("ner.jsonl", '{"tokens": ["Sue"], "tags": ["B-PER"]}\n', "tagging", "words = 'tokens', tags = 'tags'"),
        ("spans.jsonl", '{"text": "Sue", "label": {"PER": {"Sue": [[0, 2]]}}}\n', "tagging", "spans of characters"),
        ("qa.jsonl", '{"context": "a", "question": "b", "answers": []}\n', "span", "question about context"),
        ("choice.jsonl", '{"question": "q", "choices": ["a", "b"], "answer": "A"}\n', "choice", "answer = 'answer'"),
        ("swag.csv", "context,ending0,ending1,label\na,b,c,0\n", "choice", "options = ending0, ending1"),
    ],
)
def test_forms_are_inferred_and_said(tmp_path, name, text, form, said):
    path = tmp_path / name
    path.write_text(text)
    task, words = task_of(path)
    assert task.form == form and said in words
    assert task.read([path], "train").examples


def test_squad_file_is_recognised(tmp_path):
    path = tmp_path / "mine.json"
    qa = {"id": "1", "question": "q", "answers": [{"text": "a", "answer_start": 0}]}
    path.write_text(json.dumps({"data": [{"paragraphs": [{"context": "a b", "qas": [qa]}]}]}))
    assert task_of(path)[0].form == "span"


def test_given_columns_win(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("id,subject,body,topic\n1,a,b,x\n2,c,d,y\n")
    with pytest.raises(DataError, match="which of the columns 'id', 'subject', 'topic'|which of the columns"):
        (tmp_path / "u.csv").write_text("subject,note,topic\na,b,x\n")
        task_of(tmp_path / "u.csv")
    task, _ = task_of(path, Given(text="subject", pair="body", label="topic"))
    example = task.read([path], "train").examples[0]
    assert (example.text, example.pair, example.label, example.id) == ("a", "b", "x", "1")
    with pytest.raises(ConfigError, match="no column 'bodi'; did you mean 'body'"):
        task_of(path, Given(text="bodi"))
    with pytest.raises(ConfigError, match="form 'tag'; did you mean 'tagging'"):
        task_of(path, Given(form="tag"))
    with pytest.raises(DataError, match="do not hold an answer within a passage"):
        task_of(path, Given(form="span"))


def test_columns_without_a_header_are_numbers(tmp_path):
    path = tmp_path / "t.tsv"
    path.write_text("x\tgood thing\nx\tbad thing\ny\tother\n")
    task, _ = task_of(path, Given(text="1", label="0"))
    assert [e.label for e in task.read([path], "train").examples] == ["x", "x", "y"]


def test_labels_come_from_training(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("text,label\na,10\nb,9\nc,10\n")
    task, _ = task_of(path)
    task = with_labels(task, task.read([path], "train"))
    assert task.labels == ("9", "10") and task.metrics[0] == "accuracy"
    path.write_text("text,label\na,10\n")
    with pytest.raises(DataError, match="only one label"):
        with_labels(task_of(path)[0], task.read([path], "train"))
    path.write_text("text,label\nz,11\n")
    with pytest.raises(DataError, match="label '11' is none of 9, 10"):
        task.read([path], "dev")


def test_tags_are_completed_and_parts_of_speech_are_no_entities(tmp_path):
    path = tmp_path / "t.txt"
    path.write_text("Sue B-PER\n\nOslo B-LOC\nruns O\n")
    task, _ = task_of(path)
    assert with_labels(task, task.read([path], "train")).labels == ("O", "B-LOC", "I-LOC", "B-PER", "I-PER")
    path.write_text("Sue NNP\n\nOslo NNP\nruns VBZ\n")
    task, _ = task_of(path)
    assert task.metrics == ("accuracy", "macro_f1")
    assert with_labels(task, task.read([path], "train")).labels == ("NNP", "VBZ")


def test_hold_out_keeps_equal_texts_together(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("text,label\n" + "".join(f"text {i % 100},{i % 2}\n" for i in range(400)))
    task, _ = task_of(path)
    train, dev = hold_out(task.read([path], "train"))
    assert len(train) + len(dev) == 400 and 10 < len(dev) < 90
    assert not {e.text for e in train.examples} & {e.text for e in dev.examples}
