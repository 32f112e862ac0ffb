"""The layouts of all published tasks: their names, records and sizes."""

from __future__ import annotations

import json
import random

import pytest

from encoderlab.errors import DataError
from encoderlab.tasks.data.suites import TASKS, task
from tests.tasks.data.written import SENTENCES, jsonl, load, write


def test_superglue_records(tmp_path):
    jsonl(tmp_path / "BoolQ/train.jsonl", {"question": "is it", "passage": "It is.", "idx": 0, "label": True})
    assert task("boolq").load(tmp_path, "train").examples[0].label == "true"
    target = {"span1_index": 0, "span1_text": "Ann", "span2_index": 4, "span2_text": "she"}
    wsc = {"text": "Ann met Sue because she called.", "target": target, "label": False}
    jsonl(tmp_path / "WSC/train.jsonl", wsc)
    assert task("wsc").load(tmp_path, "train").examples[0].text == "_Ann_ met Sue because [she] called."
    passage = {
        "text": "P.",
        "questions": [{"question": "q?", "idx": 3, "answers": [{"text": "a", "label": 1, "idx": 5}]}],
    }
    jsonl(tmp_path / "MultiRC/val.jsonl", {"idx": 2, "passage": passage})
    example = task("multirc").load(tmp_path, "dev").examples[0]
    assert (example.id, example.group, example.pair, example.label) == ("2-3-5", "2-3", "q? a", "1")
    copa = {"premise": "It rained.", "choice1": "a", "choice2": "b", "question": "effect", "label": 1, "idx": 0}
    jsonl(tmp_path / "COPA/train.jsonl", copa)
    assert task("copa").load(tmp_path, "train").examples[0].answers == (1,)
    record = {
        "passage": {"text": "Rome and Oslo.", "entities": [{"start": 0, "end": 3}, {"start": 9, "end": 12}]},
        "qas": [{"query": "@placeholder is south.", "idx": 4, "answers": [{"text": "Rome", "start": 0, "end": 3}]}],
    }
    jsonl(tmp_path / "ReCoRD/val.jsonl", record)
    example = task("record").load(tmp_path, "dev").examples[0]
    assert (example.options, example.answers, example.id) == (("Rome", "Oslo"), (0,), "4")


def test_further_published_files(tmp_path):
    arc = {"question": {"stem": "q", "choices": [{"text": "a", "label": "1"}, {"text": "b", "label": "2"}]}}
    path = jsonl(tmp_path / "arc/ARC-Easy-Train.jsonl", arc | {"id": "x", "answerKey": "2"})
    example = task("arc").load(tmp_path / "arc", "train").examples[0]
    assert (example.id, example.question, example.options, example.answers) == ("x", "q", ("a", "b"), (1,)), path
    race = {"answers": ["B"], "options": [["a", "b"]], "questions": ["q, x?"], "article": "A\tB.", "id": "high1.txt"}
    jsonl(tmp_path / "race/train/high/1.txt", race)
    example = task("race").load(tmp_path / "race", "train").examples[0]
    assert (example.id, example.question, example.answers) == ("high1.txt-0", "q, x?", (1,))
    flat = {"span1_text": "Tom", "span1_index": 0, "span2_text": "he", "span2_index": 2}
    path = jsonl(tmp_path / "wsc.jsonl", {"text": "Tom is he", "idx": 7, "label": 1} | flat)
    example = load(task("wsc"), path).examples[0]
    assert (example.id, example.text, example.label) == ("7", "_Tom_ is [he]", "true")
    sick = {"id": "5", "sentence_A": "a", "sentence_B": "b", "label": 1, "relatedness_score": 3.5}
    path = jsonl(tmp_path / "sick.jsonl", sick)
    assert [(e.id, e.label) for e in load(task("sick_entailment"), path).examples] == [("5", "NEUTRAL")]
    assert load(task("sick_relatedness"), path).examples[0].label == 3.5
    write(tmp_path / "msra/train.tsv", "text_a\tlabel\n张\x02三\tB-PER\x02I-PER\n")
    assert task("msra").load(tmp_path, "train").examples[0].words == ("张", "三")
    record = {"passage": "ab cd", "query": "@placeholder x", "entities": ["ab", "cd"], "answers": ["ab"]}
    path = jsonl(tmp_path / "record.jsonl", record | {"idx": {"passage": 0, "query": 3}})
    assert load(task("record"), path).examples[0].id == "3"


def test_a_few_examples_are_not_all_of_clue_s(tmp_path):
    jsonl(tmp_path / "tnews/train.json", {"sentence": "a", "label": "100"})
    with pytest.raises(DataError, match="tnews_few: no train file"):
        task("tnews_few").load(tmp_path, "train")


@pytest.mark.parametrize(
    ("name", "split", "file"),
    [("ax", "test", "AX.tsv"), ("msra", "test", "msra_test_bio.txt"), ("c3", "test", "test1.1.json"),
     ("c3", "test1.0", "test1.0.json"), ("tnews", "test1.0", "test1.0.json"),
     ("swag", "test", "test-00000-of-00001.parquet"), ("triviaqa", "dev", "squad-wikipedia-dev-4096.json"),
     ("triviaqa", "train", "train-v1.2.json")],
)  # fmt: skip
def test_published_names_are_found(tmp_path, name, split, file):
    assert task(name).find(write(tmp_path / file, "x").parent, split) == [tmp_path / file]


@pytest.mark.parametrize(
    ("name", "file", "record", "shown"),
    [
        (
            "squad2",
            "train-v2.0.json",
            {"data": [{"paragraphs": [{"context": "a", "qas": [{"id": "1", "question": None, "answers": []}]}]}]},
            "None",
        ),
        ("c3", "d-train.json", [[["a"], [{"question": "q", "choice": ["a", ["b"]], "answer": "a"}], "1"]], r"\['b'\]"),
        ("race", "train.jsonl", {"article": 3, "questions": ["q"], "options": [["a", "b"]], "answers": ["A"]}, "3"),
        ("copa", "train.jsonl", {"premise": "a", "choice1": 1, "choice2": "b", "question": "cause", "label": 0}, "1"),
        ("multirc", "train.jsonl", {"paragraph": {}, "question": "q", "answer": "a", "label": 0, "idx": {}}, "{}"),
    ],
)
def test_what_stands_for_a_text_and_is_none_is_refused(tmp_path, name, file, record, shown):
    path = write(tmp_path / file, json.dumps(record))
    with pytest.raises(DataError, match=rf"{file}:1: {shown} is not a text; correct the row"):
        task(name).load(path, "train")


def test_field_errors_of_tables_name_their_row(tmp_path):
    path = write(tmp_path / "train.csv", "id,question,context,answers,answer_start\n1,q,abc,abc,0\n2,q,abc,abc,x\n")
    with pytest.raises(DataError, match=r"train.csv:3: a field of another kind"):
        load(task("squad1"), path)
    with pytest.raises(DataError, match=r"train.jsonl:1: 'text' is null"):
        load(SENTENCES, jsonl(tmp_path / "train.jsonl", {"text": None, "label": "pos"}))
    with pytest.raises(DataError, match=r"train.csv:1: two columns are called 'text'"):
        load(SENTENCES, write(tmp_path / "train.csv", "text,text,label\na,b,pos\n"))


@pytest.mark.parametrize(
    ("name", "folder", "sizes"),
    [
        ("cola", "glue", {"train": 8551, "dev": 522}),
        ("sst2", "glue", {"dev": 436}),
        ("mrpc", "glue", {"train": 3668, "dev": 408}),
        ("stsb", "glue", {"train": 5749, "dev": 1500}),
        ("wnli", "glue", {"train": 635}),
        ("sick_relatedness", "glue", {"train": 4500, "dev": 500}),
        ("boolq", "superglue", {"train": 2470, "dev": 800}),
        ("conll2003", "ner", {"dev": 1856}),
        ("msra", "ner", {"dev": 2318}),
        ("resume", "ner", {"train": 3821, "dev": 463}),
        ("cluener", "ner", {"dev": 672}),
        ("cmrc2018", "clue", {"train": 2092, "dev": 482}),
        ("ocnli", "clue", {"dev": 1479}),
        ("chnsenticorp", "clue", {"dev": 1200}),
        ("cluewsc_few", "clue", {"train": 160, "dev": 159, "test_public": 488}),
        ("chid", "clue", {"train": 202, "test_public": 1001}),
        ("csldcp", "clue", {"train": 2036}),
        ("c3", "clue", {"dev": 3816}),
        ("squad1", "qa", {"dev": 1396}),
        ("squad2", "qa", {"dev": 2064}),
        ("arc", "multiple_choice", {"dev": 2147}),
    ],
)
def test_real_files_read_whole(shared, name, folder, sizes):
    for split, size in sizes.items():
        assert len(task(name).load(shared / "data" / folder, split)) == size


def test_every_task_has_metrics_and_layouts():
    for name, found in TASKS.items():
        assert found.name == name and found.metrics and found.layouts
        assert "train" in found.files or name == "ax"  # GLUE's diagnostic set has nothing to train on


RECORDS = {
    "ocnli": {"sentence1": "a", "sentence2": "b", "label": "neutral", "id": 1},
    "cluewsc": {"target": {"span2_index": 3, "span1_index": 0, "span1_text": "他", "span2_text": "我"},
                "label": "true", "text": "他说了我"},
    "csl": {"id": 1, "abst": "abc", "keyword": ["a", "b"], "label": "0"},
    "chid": {"id": 1, "candidates": ["a", "b"], "content": "x #idiom# y", "answer": 0},
    "cluener": {"text": "abc", "label": {"name": {"ab": [[0, 1]]}}},
    "conll2003": {"tokens": ["a", "b"], "ner_tags": ["B-PER", "O"]},
    "squad1": {"id": "1", "context": "abc def", "question": "q", "answers": {"text": ["abc"], "answer_start": [0]}},
    "copa": {"premise": "p", "choice1": "a", "choice2": "b", "question": "cause", "label": 0, "idx": 0},
    "multirc": {"idx": 0, "passage": {"text": "t", "questions": [
        {"idx": 0, "question": "q", "answers": [{"idx": 0, "text": "a", "label": 1}]}]}},
    "record": {"idx": 0, "passage": {"text": "ab cd", "entities": [{"start": 0, "end": 1}, {"start": 3, "end": 4}]},
               "qas": [{"idx": 0, "query": "@placeholder x", "answers": [{"text": "ab", "start": 0, "end": 1}]}]},
    "wic": {"word": "w", "sentence1": "a w", "sentence2": "b w", "label": True, "idx": 0},
    "wsc": {"text": "Tom is he", "label": True,
            "target": {"span1_index": 0, "span1_text": "Tom", "span2_index": 2, "span2_text": "he"}},
    "race": {"id": "x", "article": "a", "questions": ["q"], "options": [["a", "b"]], "answers": ["A"]},
    "swag": {"sent1": "a", "sent2": "b", "ending0": "c", "ending1": "d", "ending2": "e", "ending3": "f", "label": 1},
    "arc": {"id": "1", "question": "q", "choices": {"text": ["a", "b"], "label": ["A", "B"]}, "answerKey": "A"},
}  # fmt: skip


def broken(record, rng):
    """``record`` without one of its fields, or with something of another kind in it."""
    copy = json.loads(json.dumps(record))
    place, keys = copy, []
    while isinstance(place, (dict, list)) and place and (not keys or rng.random() < 0.7):
        keys.append((place, rng.choice(list(place) if isinstance(place, dict) else range(len(place)))))
        place = place[keys[-1][1]]
    holder, key = keys[-1]
    if isinstance(holder, dict) and rng.random() < 0.3:
        del holder[key]
    else:
        holder[key] = rng.choice([None, 7, -3, "", "xyz", [], {}, [1, 2], {"a": 1}, True, 3.5, [None]])
    return copy


@pytest.mark.parametrize("name", RECORDS)
def test_a_broken_record_is_one_line_with_its_row(tmp_path, name):
    path, rng = tmp_path / "train.jsonl", random.Random(name)
    good = json.dumps(RECORDS[name])
    path.write_text(good + "\n")
    assert task(name).read([path], "train").examples
    refused = 0
    for _ in range(60):
        path.write_text(f"{good}\n{json.dumps(broken(RECORDS[name], rng))}\n")
        try:
            task(name).read([path], "train")
        except DataError as error:
            refused += 1
            assert "\n" not in str(error) and f"{path}:2: " in str(error)
    assert refused
