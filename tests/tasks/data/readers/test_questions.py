"""The layout of questions about passages."""

from __future__ import annotations

import json

import pytest

from encoderlab.errors import DataError
from encoderlab.tasks.data.infer import task_of
from encoderlab.tasks.data.suites import task
from encoderlab.tasks.data.task import Answer
from tests.tasks.data.written import jsonl, load, write


def squad(tmp_path, answers, context="The cat sat on the mat.", **more):
    qa = {"id": "q1", "question": "Who sat?", "answers": answers} | more
    return write(
        tmp_path / "train-v2.0.json", json.dumps({"data": [{"paragraphs": [{"context": context, "qas": [qa]}]}]})
    )


def test_squad_answers_are_moved_or_marked(tmp_path):
    path = squad(tmp_path, [{"text": "cat", "answer_start": 5}])
    split = task("squad2").load(path, "train")
    assert split.examples[0].answers == (Answer("cat", 4),) and "nearest mention" in split.remarks[0]
    split = task("squad2").load(squad(tmp_path, [{"text": "dog", "answer_start": 4}]), "train")
    assert split.examples[0].answers == (Answer("dog", -1),) and "not trained on" in split.remarks[0]
    assert task("squad2").load(squad(tmp_path, [], is_impossible=True), "train").examples[0].answers == ()
    with pytest.raises(DataError, match="'q1' has an empty passage"):
        task("squad2").load(squad(tmp_path, [], context=" "), "train")


def test_answers_of_triviaqa_are_in_lower_case(tmp_path):
    answer = {"text": "oslo", "answer_start": 0}
    split = task("triviaqa").load(squad(tmp_path, [answer], context="Oslo is in Norway"), "train")
    assert split.examples[0].answers == (Answer("oslo", 0),) and not split.remarks
    split = task("triviaqa").load(squad(tmp_path, [answer], context="In Norway is Oslo"), "train")
    assert split.examples[0].answers == (Answer("oslo", 13),) and "nearest mention" in split.remarks[0]


def test_remarks_count_questions_and_not_their_answers(tmp_path):
    path = squad(tmp_path, [{"text": "cat", "answer_start": 5}] * 3)
    (said,) = task("squad2").load(path, "train").remarks
    assert said.startswith("train-v2.0.json: 1 row: an answer is not at its offset")
    split = task("squad2").load(squad(tmp_path, [{"text": "cat"}], is_impossible="false"), "train")
    assert split.examples[0].answers == (Answer("cat", 4),) and not split.remarks  # it has no offset to be wrong


def test_cmrc_in_its_first_form(tmp_path):
    qas = [{"query_id": f"T_{i}", "query_text": "谁？", "answers": [text, "北京"]} for i, text in enumerate("京我")]
    write(tmp_path / "cmrc2018_dev.json", json.dumps([{"context_id": "T", "context_text": "我爱北京", "qas": qas}]))
    split = task("cmrc2018").load(tmp_path, "dev")
    assert [(e.id, e.passage, e.answers[0]) for e in split.examples] == [
        ("T_0", "我爱北京", Answer("京", 3)), ("T_1", "我爱北京", Answer("我", 0))
    ]  # fmt: skip


def test_answers_may_be_plain_texts(tmp_path):
    record = {"context": "It is red, red.", "question": "What?"}
    given = {"answer": "red"}, {"answers": ["red", "It"]}, {"answer": "red", "answer_start": 11}, {"answer": ""}, {}
    path = jsonl(tmp_path / "train.jsonl", *(record | answer for answer in given))
    red, it, later = Answer("red", 6), Answer("It", 0), Answer("red", 11)
    examples = load(task("squad1"), path, "test").examples
    assert [example.answers for example in examples] == [(red,), (red, it), (later,), (), None]
    lists = {"answers": ["red", "It"], "answer_starts": [11, 0]}, {"answers": {"text": "red", "answer_start": 11}}
    examples = load(task("squad1"), jsonl(tmp_path / "train.jsonl", *(record | answer for answer in lists))).examples
    assert [example.answers for example in examples] == [(later, it), (later,)]
    path = write(
        tmp_path / "train.csv", 'context,question,answers,answer_starts\n"It is red, red.",a,"[\'red\']",[11]\n'
    )
    assert load(task("squad1"), path).examples[0].answers == (later,)
    with pytest.raises(DataError, match=r"train.jsonl:1: .*the answer 0 is neither a text nor a list"):
        load(task("squad1"), jsonl(tmp_path / "train.jsonl", record | {"answer": 0}))


def test_squad_records_of_hugging_face(tmp_path):
    record = {
        "id": "a",
        "context": "It is red.",
        "question": "What?",
        "answers": {"text": ["red"], "answer_start": [6]},
    }
    path = jsonl(tmp_path / "train.jsonl", record, record | {"id": "b", "answers": {"text": [], "answer_start": []}})
    assert [e.answers for e in load(task("squad2"), path).examples] == [(Answer("red", 6),), ()]


@pytest.mark.parametrize(
    "fields",
    [
        {"answers": {"text": ["red"], "answer_start": [6]}, "is_impossible": True},  # plausible only
        {"answers": {"text": [""], "answer_start": [-1]}},
        {"answers": [""], "answer_starts": [-1], "is_impossible": True},  # DuReader
        {"answers": []},
    ],
)
def test_questions_without_an_answer(tmp_path, fields):
    record = {"id": "a", "context": "It is red.", "question": "What?"} | fields
    split = load(task("squad2"), jsonl(tmp_path / "train.jsonl", record))
    assert split.examples[0].answers == () and not split.remarks
    nested = {"data": [{"paragraphs": [{"context": "It is red.", "qas": [record]}]}]}
    split = load(task("squad2"), write(tmp_path / "train-v2.0.json", json.dumps(nested)))
    assert split.examples[0].answers == () and not split.remarks


@pytest.mark.parametrize(
    "cell",
    [
        "{'text': ['red'], 'answer_start': [6]}",  # Python
        "{'text': array(['red'], dtype=object), 'answer_start': array([6], dtype=int32)}",  # NumPy
        "{'answer_start': array([6]), 'text': array(['red'], dtype=object)}",
        '{"text": ["red"], "answer_start": [6]}',  # JSON
        "['red']",
        "[{'text': 'red', 'answer_start': 6}]",
        "red",
    ],
)
def test_answers_in_a_cell_as_pandas_writes_them(tmp_path, cell):
    cells = cell.replace('"', '""')
    path = write(tmp_path / "train.csv", f'id,context,question,answers\n1,It is red.,What?,"{cells}"\n')
    split = load(task("squad1"), path)
    assert split.examples[0].answers == (Answer("red", 6),) and not split.remarks
    path = write(tmp_path / "train.csv", 'id,context,question,answers\n1,a {b} [1] c,What?,"{b}"\n2,a [1],What?,[1]\n')
    assert [e.answers[0].text for e in load(task("squad1"), path).examples] == ["{b}", "[1]"]


def test_offsets_of_a_column_with_gaps_as_pandas_writes_them(tmp_path):
    text = "id,context,question,answers,answer_start\n1,Red is red.,What?,red,7.0\n2,It is red.,What?,,\n"
    split = load(task("squad2"), write(tmp_path / "train.csv", text))
    assert [example.answers for example in split.examples] == [(Answer("red", 7),), ()] and not split.remarks


def test_duplicate_ids(tmp_path):
    record = {
        "id": "a",
        "context": "It is red.",
        "question": "What?",
        "answers": {"text": ["red"], "answer_start": [6]},
    }
    with pytest.raises(DataError, match=r"train.jsonl:2: id 'a' was used before at .*train.jsonl:1"):
        load(task("squad1"), jsonl(tmp_path / "train.jsonl", record, record))
    path = write(tmp_path / "train.csv", "sentence,label,index\nx,1,3\ny,0,3\nz,1,3\n")
    assert load(task("sst2"), path).remarks == ("train.csv: 2 rows: an id that occurs before (first: row 3)",)


def test_a_question_without_an_answer_has_an_empty_one(tmp_path):
    record = {"id": "1", "context": "Here it is.", "question": "What?"}
    path = jsonl(tmp_path / "train.jsonl", record | {"answer": ""}, record | {"id": "2", "answer": "it"})
    assert [len(example.answers) for example in load(task_of(path)[0], path).examples] == [0, 1]
    path = jsonl(tmp_path / "null.jsonl", record | {"id": "2", "answer": "it"}, record | {"answer": None})
    with pytest.raises(
        DataError, match='null.jsonl:2: no label; .* or write "" as the answer of a question that has none$'
    ):
        load(task_of(path)[0], path)
