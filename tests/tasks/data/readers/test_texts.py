"""Layouts of texts with a label or a number."""

from __future__ import annotations

import json

import pytest

from encoderlab.errors import DataError
from encoderlab.tasks.data.readers import Columns
from encoderlab.tasks.data.suites import task
from encoderlab.tasks.data.task import Task
from tests.tasks.data.written import SENTENCES, jsonl, load, write


def test_glue_files_keep_quotation_marks(tmp_path):
    header = "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n"
    write(tmp_path / "MRPC/dev.tsv", header + '1\t1\t2\tHe said "no.\t"Yes" he said\n')
    split = task("MRPC").load(tmp_path, "dev")
    assert split.examples[0].text == 'He said "no.' and split.examples[0].pair == '"Yes" he said'
    assert split.examples[0].label == "1" and split.remarks == ()


def test_cola_with_and_without_header(tmp_path):
    write(tmp_path / "train.tsv.gz", "gj04\t1\t\tWe eat.\ngj04\t0\t*\tEat we the.\n")
    write(tmp_path / "test.tsv", "index\tsentence\n0\tShe left.\n")
    assert [(e.text, e.label) for e in task("cola").load(tmp_path, "train").examples] == [
        ("We eat.", "1"),
        ("Eat we the.", "0"),
    ]
    assert [(e.id, e.label) for e in task("cola").load(tmp_path, "test").examples] == [("0", None)]


def test_hugging_face_columns_hold_numbers_of_labels(tmp_path):
    jsonl(tmp_path / "validation_matched.jsonl", {"premise": "a", "hypothesis": "b", "label": 2, "idx": 7})
    example = task("mnli").load(tmp_path, "dev").examples[0]
    assert (example.label, example.id) == ("contradiction", "7")
    write(tmp_path / "rte/validation.csv", 'sentence1,sentence2,label,idx\n"a, b",c,1,0\n')
    assert task("rte").load(tmp_path, "dev").examples[0].label == "not_entailment"


def test_stsb_as_published_by_its_authors(tmp_path):
    write(
        tmp_path / "sts-dev.csv",
        "n\tf\t2012\t1\t5.000\tA man, here.\tA man.\nn\tf\t2012\t2\t2.4\tx\ty\turl\turl\n",
    )
    split = task("stsb").load(tmp_path, "dev")
    assert [e.label for e in split.examples] == [5.0, 2.4]
    assert "separated by tab, not by comma" in split.remarks[0]


def test_of_two_published_forms_of_a_test_file_the_labelled_one_is_read(tmp_path):
    header = "pair_ID\tsentence_A\tsentence_B"
    write(tmp_path / "SICK_test.txt", f"{header}\n1\ta\tb\n")
    judged = f"{header}\trelatedness_score\tentailment_judgment\n1\ta\tb\t3.5\tNEUTRAL\n"
    write(tmp_path / "SICK_test_annotated.txt", judged)
    assert [e.label for e in task("sick_relatedness").load(tmp_path, "test").examples] == [3.5]


def test_one_file_of_sick_holds_all_its_sets(tmp_path):
    header = "pair_ID\tsentence_A\tsentence_B\tentailment_label\trelatedness_score\tSemEval_set\n"
    rows = [f"{i}\ta {i}\tb\tNEUTRAL\t3.{i}\t{name}\n" for i, name in enumerate(("TRAIN", "TRIAL", "TEST", "TRAIN"))]
    write(tmp_path / "SICK.txt", header + "".join(rows))
    for split, ids in (("train", ["0", "3"]), ("dev", ["1"]), ("test", ["2"])):
        assert [e.id for e in task("sick_entailment").load(tmp_path, split).examples] == ids
    assert [e.label for e in task("sick_relatedness").load(tmp_path, "train").examples] == [3.0, 3.3]


def test_the_test_file_of_stsb_has_a_header_and_no_scores(tmp_path):
    names = "index genre filename year old_index source1 source2 sentence1 sentence2".split()
    row = ["0", "news", "MSRvid", "2012test", "0024", "none", "none", "A girl.", "A boy."]
    path = write(tmp_path / "test.tsv", "\t".join(names) + "\n" + "\t".join(row) + "\n")
    (example,) = task("stsb").read([path], "test").examples
    assert (example.text, example.pair, example.label) == ("A girl.", "A boy.", None)


def wsc(text, *spans):
    target = {f"span{i}_{key}": span[key == "index"] for i, span in enumerate(spans, 1) for key in ("text", "index")}
    return {"text": text, "target": target, "label": True, "idx": 0}


def test_spans_that_are_misplaced_are_marked_at_the_nearest_whole_words(tmp_path):
    path = jsonl(tmp_path / "train.jsonl", wsc("Then the man saw Bob when he left.", ("bob", 3), ("he", 5)))
    split = load(task("wsc"), path)
    assert split.examples[0].text == "Then the man saw _Bob_ when [he] left."
    assert "2 rows: a span is not at its offset; the nearest mention is marked" in split.remarks[0]
    path = jsonl(tmp_path / "train.jsonl", wsc("He left.", ("Ann", 1), ("He", 0)))
    split = load(task("wsc"), path)
    assert split.examples[0].text == "[He] left." and "nor anywhere else; it is not marked" in split.remarks[0]


def test_a_span_within_the_other_is_marked_within_it(tmp_path):
    path = jsonl(tmp_path / "train.jsonl", wsc("她的妈妈爱她", ("她的妈妈", 0), ("她", 0)))
    assert load(task("cluewsc"), path).examples[0].text == "_[她]的妈妈_爱她"
    path = jsonl(tmp_path / "train.jsonl", wsc("I saw his dog run", ("his dog", 2), ("dog", 3)))
    assert load(task("wsc"), path).examples[0].text == "I saw _his [dog]_ run"


def test_ids_of_cluewsc_are_those_of_the_file(tmp_path):
    target = {"span2_index": 3, "span1_index": 0, "span1_text": "他", "span2_text": "我"}
    for key in ("id", "idx"):
        path = jsonl(tmp_path / "test.json", {"target": target, "text": "他说了我", key: 49})
        assert task("cluewsc").read([path], "test").examples[0].id == "49"


def test_numbers_that_are_none_are_no_text_and_no_label(tmp_path):
    with pytest.raises(DataError, match=r"train.jsonl:1: 'text' is NaN, expected text"):
        load(SENTENCES, write(tmp_path / "train.jsonl", '{"text": NaN, "label": "pos"}\n'))
    free = Task(name="free", form="classification", metrics=("accuracy",), layouts=(Columns(text="text"),))
    with pytest.raises(DataError, match=r"train.csv:3: no label"):
        load(free, write(tmp_path / "train.csv", "text,label\na,pos\nb,nan\n"))


def test_labels_out_of_range(tmp_path):
    path = write(tmp_path / "train.tsv", "sentence1\tsentence2\tscore\na\tb\t5.5\n")
    with pytest.raises(DataError, match="label 5.5 is outside 0 to 5"):
        load(task("stsb"), path)
    path = jsonl(tmp_path / "train.jsonl", {"premise": "a", "hypothesis": "b", "label": 3})
    with pytest.raises(DataError, match="label '3' is not one of entailment, neutral"):
        load(task("mnli"), path)
    path = jsonl(tmp_path / "train.jsonl", {"premise": "a", "hypothesis": "b", "label": -1})
    assert task("mnli").load(path, "test").examples[0].label is None


@pytest.mark.parametrize("value", ["NAN", "inf", "-inf"])
def test_numbers_must_be_finite(tmp_path, value):
    regression = Task(name="r", form="regression", metrics=("spearman",), layouts=(Columns(text="text"),))
    path = write(tmp_path / "train.csv", f"text,label\na,1.5\nb,{value}\n")
    with pytest.raises(DataError, match=f"train.csv:3: label '{value}' is not a finite number"):
        load(regression, path)


def test_labels_written_as_floats_or_capitalised(tmp_path):
    path = jsonl(tmp_path / "train.jsonl", {"sentence": "a", "label": 1.0, "idx": 0})
    assert load(task("sst2"), path).examples[0].label == "1"
    path = write(tmp_path / "train.csv", "sentence,label,idx\na,1.0,0\n")
    assert load(task("sst2"), path).examples[0].label == "1"
    path = jsonl(tmp_path / "train.jsonl", {"question": "a", "passage": "b", "label": "True", "idx": 0})
    assert load(task("boolq"), path).examples[0].label == "true"


def test_a_label_column_that_is_not_there_is_named(tmp_path):
    with pytest.raises(DataError, match=r"train.tsv:2: no label; .* no column 'label'; did you mean 'lable'; give"):
        load(SENTENCES, write(tmp_path / "train.tsv", "text\tlable\na\tpos\n"))
    with pytest.raises(DataError, match="no column 'choice2' among 'premise'"):
        load(task("copa"), jsonl(tmp_path / "train.jsonl", {"premise": "p", "choice1": "a", "question": "cause"}))
    with pytest.raises(DataError, match="no column 'abst' among 'id', 'keyword'"):
        load(task("csl"), jsonl(tmp_path / "train.jsonl", {"id": 1, "keyword": ["a"], "label": "0"}))


@pytest.mark.parametrize(
    ("name", "record", "label"),
    [
        ("stsb", {"sentence1": "a", "sentence2": "b", "label": 2.5, "idx": 1}, 2.5),
        ("qqp", {"question1": "a", "question2": "b", "label": 1, "idx": 1}, "1"),
        ("mrpc", {"sentence1": "a", "sentence2": "b", "label": 1, "idx": 1}, "1"),
        ("ax", {"premise": "a", "hypothesis": "b", "label": 2, "idx": 1}, "contradiction"),
    ],
)
def test_a_layout_with_the_label_goes_before_one_without(tmp_path, name, record, label):
    path = tmp_path / "train.jsonl"
    path.write_text(json.dumps(record) + "\n")
    assert task(name).read([path], "train").examples[0].label == label
