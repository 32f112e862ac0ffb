"""Layouts of multiple choice."""

from __future__ import annotations

import json

import pytest

from encoderlab.errors import DataError
from encoderlab.tasks.data.infer import task_of
from encoderlab.tasks.data.suites import task
from encoderlab.tasks.data.task import is_unlabelled
from tests.tasks.data.written import jsonl, load, write


def test_multiple_choice_layouts(tmp_path):
    endings = "sent1,sent2,ending0,ending1,ending2,ending3,label\n"
    write(tmp_path / "swag/train.csv", endings + "He sat.,He,ran,slept,ate,sang,2\n")
    assert task("swag").load(tmp_path, "train").examples[0].answers == (2,)
    write(tmp_path / "arc/arc_easy_dev.csv", '"Why, then?",a,b,c,d,B\nWhat?,a,b,c,d,1\nGone?,,,,,3\n')
    split = task("arc").load(tmp_path, "dev")
    assert [e.answers for e in split.examples] == [(1,), (0,)] and "fewer than two options" in split.remarks[0]
    arc = {"id": "x", "question": "q", "choices": {"text": ["a", "b"], "label": ["1", "2"]}, "answerKey": "2"}
    jsonl(tmp_path / "arc/dev.jsonl", arc)
    assert task("arc").read([tmp_path / "arc/dev.jsonl"], "dev").examples[0].answers == (1,)
    named = "{'text': array(['a', 'b'], dtype=object), 'label': array(['A', 'B'], dtype=object)}"  # as pandas writes it
    for cell in ("['a', 'b']", "['a' 'b']", '[""a"", ""b""]', named, "{'A': 'a', 'B': 'b'}"):
        write(tmp_path / "arc/train.csv", f'id,question,choices,answerKey\n1,Why?,"{cell}",B\n')
        example = task("arc").read([tmp_path / "arc/train.csv"], "train").examples[0]
        assert (example.options, example.answers) == (("a", "b"), (1,))
    race = {
        "article": "A.",
        "questions": ["q1", "q2"],
        "options": [["a", "b"], ["c", "d"]],
        "answers": ["B", "A"],
        "id": "h1",
    }
    jsonl(tmp_path / "race/dev.jsonl", race)
    assert [(e.id, e.answers) for e in task("race").load(tmp_path, "dev").examples] == [("h1-0", (1,)), ("h1-1", (0,))]
    c3 = [[["line 1", "line 2"], [{"question": "q", "choice": ["x", "y"], "answer": "y"}], "7-1"]]
    write(tmp_path / "c3/c3-d-train.json", json.dumps(c3, indent=1))
    example = task("c3").load(tmp_path, "train").examples[0]
    assert (example.context, example.answers) == ("line 1\nline 2", (1,))


def test_hugging_face_s_c3_has_the_lines_of_a_text_as_a_list(tmp_path):
    record = {"id": 0, "context": ["one", "two"], "question": "q", "choice": ["1", "0"], "answer": "0"}
    path = jsonl(tmp_path / "train.jsonl", record, record | {"id": 1, "answer": "1"})
    examples = load(task("c3"), path).examples
    assert [(e.id, e.context, e.answers) for e in examples] == [("0", "one\ntwo", (1,)), ("1", "one\ntwo", (0,))]


def test_idioms_of_clue_have_their_answers_in_another_file(tmp_path):
    texts = {"candidates": ["a", "b", "c"], "content": ["x #idiom000001# y #idiom000002#", "z #idiom000003#"]}
    jsonl(tmp_path / "train.json", texts)
    write(tmp_path / "train_answer.json", json.dumps({"#idiom000001#": 2, "#idiom000002#": 0, "#idiom000003#": 1}))
    examples = task("clue_chid").load(tmp_path, "train").examples
    assert [(e.id, e.gap, e.answers) for e in examples] == [
        (f"#idiom00000{i}#", f"#idiom00000{i}#", (answer,)) for i, answer in ((1, 2), (2, 0), (3, 1))
    ]
    jsonl(tmp_path / "test1.0.json", texts)
    assert task("clue_chid").load(tmp_path, "test1.0").examples[0].answers is None


def test_hugging_face_s_record_has_empty_answers_where_there_are_none(tmp_path):
    record = {"passage": "ab cd", "query": "@placeholder x", "entities": ["ab", "cd"], "answers": []}
    assert is_unlabelled(load(task("record"), jsonl(tmp_path / "test.jsonl", record), "test").examples[0])


@pytest.mark.parametrize(
    ("name", "record", "message"),
    [
        (
            "race",
            {"article": "a", "questions": ["q"], "options": [["b", "c"]], "answers": ["E"]},
            "answer 4 is not one",
        ),
        (
            "copa",
            {"premise": "p", "choice1": "a", "choice2": "b", "question": "cause", "label": 2},
            "answer 2 is not one",
        ),
        ("chid", {"content": "x #idiom# y", "candidates": ["a", "b"], "answer": -3}, "answer -3 is not one of the 2"),
        ("clue_chid", {"content": "x #idiom# y", "candidates": ["a"]}, "'content' is one text, expected a list"),
    ],
)
def test_answers_that_are_no_option_are_refused(tmp_path, name, record, message):
    with pytest.raises(DataError, match=f"train.jsonl:1: .*{message}"):
        load(task(name), jsonl(tmp_path / "train.jsonl", record))


def test_of_two_folders_of_a_task_one_is_read_and_the_other_named(tmp_path):
    record = {"id": "1", "question": "q", "choices": ["a", "b"], "answerKey": "A"}
    easy, hard = (jsonl(tmp_path / folder / "dev.jsonl", record) for folder in ("ARC-E", "ARC-C"))
    (said,) = task("arc").load(tmp_path, "dev").remarks
    assert said == f"{easy}: read, but not {hard}; give its folder with --data"
    assert task("arc").load(tmp_path / "ARC-C", "dev").remarks == ()


def test_a_file_of_which_nothing_is_left_says_why(tmp_path):
    path = write(tmp_path / "train.csv", "sent1,sent2,ending0,ending1,ending2,ending3,label\na,b,c,,,,0\n")
    with pytest.raises(DataError, match=r"0 examples \(.*fewer than two options.* row 2\)\); correct these rows$"):
        load(task("swag"), path)


def test_options_keep_their_numbers_and_empty_ones_at_the_end_are_left_out(tmp_path):
    header = "sent1,sent2,ending0,ending1,ending2,ending3,label\n"
    split = load(task("swag"), write(tmp_path / "train.csv", header + "a,b,ran,,ate,sang,2\na,b,ran,ate,,,1\n"))
    first, second = split.examples
    assert first.options == ("ran", "", "ate", "sang") and first.answers == (2,)
    assert second.options == ("ran", "ate") and second.answers == (1,)
    assert split.remarks == ("train.csv: 1 row: an empty option before others; kept as an option (first: row 2)",)


def test_answers_of_a_column_with_gaps_are_whole_numbers(tmp_path):
    """pandas writes them as 1.0; an option of that name comes first."""
    path = write(tmp_path / "gaps.csv", "question,a,b,c,answer\nq,x,y,z,3.0\ns,x,y,z,1.0\n")
    assert [example.answers for example in load(task_of(path)[0], path).examples] == [(2,), (0,)]
    path = write(tmp_path / "named.csv", "question,a,b,c,answer\nq,2.0,3.0,1.0,3.0\ns,1.0,2.0,3.0,1.0\n")
    assert [example.answers for example in load(task_of(path)[0], path).examples] == [(1,), (0,)]


def test_options_that_are_numbers_or_truths_are_written_as_answers_are(tmp_path):
    """An answer 2.0 among 0.5, 1.0, 1.5, 2.0 is the last of them, not the number of the third."""
    numbers = [0.5, 1.0, 1.5, 2.0]
    rows = [{"question": "how much", "options": numbers, "answer": number} for number in numbers]
    found, _ = task_of(jsonl(tmp_path / "numbers.jsonl", *rows))
    assert [example.answers for example in load(found, tmp_path / "numbers.jsonl").examples] == [(0,), (1,), (2,), (3,)]
    rows = [{"question": "is it", "options": [True, False], "answer": answer} for answer in (False, True)]
    found, _ = task_of(jsonl(tmp_path / "truths.jsonl", *rows))
    assert [example.answers for example in load(found, tmp_path / "truths.jsonl").examples] == [(1,), (0,)]
    objects = [{"label": "A", "text": "one"}, {"label": "B", "text": "two"}]
    path = jsonl(tmp_path / "objects.jsonl", {"question": "which", "options": objects, "answer": "B"})
    with pytest.raises(DataError, match=r"objects.jsonl:1: .*the option .*'label': 'A'.* is a dict, expected a text"):
        task_of(path)


def test_answers_may_name_the_column_of_an_option(tmp_path):
    path = write(tmp_path / "columns.csv", "question,option1,option2,answer\nOne?,a,b,option2\nTwo?,c,d,option1\n")
    assert [example.answers for example in load(task_of(path)[0], path).examples] == [(1,), (0,)]
