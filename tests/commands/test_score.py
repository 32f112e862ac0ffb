"""``encoderlab score``: every format of predictions, every form, and what is refused."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from encoderlab import cli
from encoderlab.tasks.data import suites
from encoderlab.tasks.data.predictions import read_predictions


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture):
    """Writes two files and scores one against the other: the scores, or exit code and message."""
    monkeypatch.chdir(tmp_path)

    def score(name: str, predictions: str, gold_name: str, gold: str, *options: str, words: tuple[str, ...] = ()):
        Path(name).write_text(predictions, encoding="utf-8")
        Path(gold_name).write_text(gold, encoding="utf-8")
        code = cli.main(["score", name, *(words or (gold_name, *options)), "--json"])
        found = json.loads(capsys.readouterr().out)
        assert "bug" not in found.get("error", "")
        return found["scores"] if code == 0 else (code, found["error"])

    return score


@pytest.mark.parametrize("system", ["squad_v1.1/bert_ensemble", "squad_v1.1/logistic_regression",
                                    "squad_v2.0/bert_single", "squad_v2.0/nlnet_single"])  # fmt: skip
def test_recorded_answers_have_the_official_scores(shared: Path, tmp_path: Path, capsys, system: str) -> None:
    version, name = system.split("/")
    base = shared / "data/qa" / version
    predicted = base / f"predictions/{name}.json.gz"
    expected = json.loads((base / f"predictions/{name}.expected.json").read_text())["dev-part"]
    gold = base / "dev-part.json.gz"
    assert cli.main(["score", str(predicted), str(gold), "--skip-others", "--json"]) == 0
    scores = json.loads(capsys.readouterr().out)["scores"]
    # Not to the last bit: since Python 3.12 `sum` compensates rounding, in the official program too.
    assert (scores["exact"], scores["f1"]) == pytest.approx((expected["exact"] / 100, expected["f1"] / 100), rel=1e-14)
    assert scores["total"] == expected["total"]
    assert cli.main(["score", str(predicted), str(gold), "--json"]) == 3
    assert "--skip-others" in json.loads(capsys.readouterr().out)["error"]
    answers = json.loads(gzip.decompress(predicted.read_bytes()))
    lost = next(line["id"] for line in _questions(gold))
    del answers[lost]
    (tmp_path / "p.json").write_text(json.dumps(answers, indent=1))
    assert cli.main(["score", str(tmp_path / "p.json"), str(gold), "--skip-others", "--json"]) == 3
    assert f"no prediction for id '{lost}'" in json.loads(capsys.readouterr().out)["error"]


def _questions(path: Path) -> list[dict]:
    data = json.loads(gzip.decompress(path.read_bytes()))["data"]
    return [question for article in data for part in article["paragraphs"] for question in part["qas"]]


CLASSES = "id,text,label\na,good,pos\nb,bad,neg\nc,fine,pos\nd,poor,neg\n"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("p.txt", "pos\nneg\nneg\nneg\n\n"),
        ("p.jsonl", '{"id": "d", "label": "neg"}\n{"id": "b", "label": "neg"}\n{"id": "a", "label": "pos"}\n'
                    '{"id": "c", "label": "neg", "score": 0.9}\n'),
        ("p.json", '{"d": "neg", "b": "neg", "a": "pos", "c": "neg"}'),
        ("p.json", '["pos", "neg", "neg", "neg"]'),
        ("p.tsv", "index\tprediction\n3\tneg\n1\tneg\n0\tpos\n2\tneg\n"),
        ("p.csv", "id,label,prediction\nd,x,neg\nb,x,neg\na,x,pos\nc,x,neg\n"),
    ],
)  # fmt: skip
def test_labels_in_every_format(run, name: str, text: str) -> None:
    scores = run(name, text, "gold.csv", CLASSES)
    assert scores["accuracy"] == 0.75 and scores["f1"] == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("p.txt", "pos\nneg\nneg\n", "p.txt:3: 3 predictions for 4 examples of gold.csv"),
        ("p.txt", "pos\nneg\nneg\npos\npos\n", "p.txt:5: 5 predictions"),
        ("p.txt", "pos\n\nneg\npos\n", "p.txt:2: no prediction"),
        ("p.txt", "pos\nneg\nnag\npos\n", "p.txt:3: label 'nag' is not one of neg, pos"),
        ("p.tsv", "index\tprediction\n0\tpos\n1\tneg\n1\tpos\n2\tneg\n", "p.tsv:4, id '1': has two predictions"),
        ("p.tsv", "index\tprediction\n0\tpos\n1\tneg\n4\tpos\n2\tneg\n", "p.tsv:4, id '4': no example of gold.csv"),
        ("p.tsv", "index\tprediction\n0\tpos\n1\tneg\n2\tpos\n", "no prediction for id '3' (gold.csv:5)"),
        ("p.tsv", "row\tguess\n0\tpos\n", "none of the columns 'row', 'guess'"),
        ("p.jsonl", '{"id": "a", "label": "pos"}\n{"label": "pos"}\n', "p.jsonl:2: some predictions have an id"),
        ("p.jsonl", '{"id": "a", "label": "pos"}\n{"id": "b"\n', "p.jsonl:2: not valid JSON"),
        ("p.jsonl", '{"id": "a", "guess": "pos"}\n{"id": "b", "guess": "neg"}\n', "p.jsonl:1: no prediction among"),
        ("p.csv", "label,predicted_label\npos,neg\n", "p.csv:2: is 'label' the prediction, or 'predicted_label'?"),
        ("p.jsonl", '{"label": "pos", "y_pred": "neg"}\n', "p.jsonl:1: is 'label' the prediction, or 'y_pred'?"),
        ("p.json", '{"a": "pos", "b": "neg",\n "a": "pos"}', "p.json, id 'a': has two predictions"),
        ("p.json", "{", "p.json"),
        ("p.txt", "", "p.txt: no predictions"),
    ],
)
def test_predictions_that_do_not_fit_are_refused_in_one_line(run, name: str, text: str, said: str) -> None:
    code, error = run(name, text, "gold.csv", CLASSES)
    assert code == 3 and said in error and "\n" not in error


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("p.jsonl", '{"id": " b ", "prediction": "y"}\n{"id": " a", "prediction": "x"}\n'),
        ("p.csv", "prediction, id\ny, b\nx, a\n"),
        ("p.json", '{" b ": "y", " a": "x"}'),
    ],
)
def test_spaces_around_an_id_do_not_count(run, name: str, text: str) -> None:
    assert run(name, text, "gold.csv", "text,label,id\none,x, a\ntwo,y, b \n")["accuracy"] == 1.0


def test_an_option_of_other_verbs_is_named_as_such(run) -> None:
    code, error = run("p.txt", "pos\nneg\n", "gold.csv", "text,label\ngood,pos\nbad,\n")
    assert code == 3 and "gold.csv:3: no label;" in error
    assert error.endswith("leave such rows out (for finetune and evaluate: --skip-unlabelled)")


def test_labels_that_the_gold_data_lacks_can_be_named(run) -> None:
    text = "pos\nneutral\nneg\npos\n"
    refused = "label 'neutral' is not one of neg, pos; correct the row, or train on this label (for score: --labels)"
    assert refused in run("p.txt", text, "gold.csv", CLASSES)[1]
    assert run("p.txt", text, "gold.csv", CLASSES, "--labels", "neutral")["accuracy"] == 0.25
    text = text.replace("neutral", "so, so")
    assert run("p.txt", text, "gold.csv", CLASSES, "--labels", 'meh, "so, so"')["accuracy"] == 0.25
    one = "text,label\ngood,pos\nfine,pos\n"
    assert "--labels" in run("p.txt", "pos\nneg\n", "one.csv", one)[1]
    assert run("p.txt", "pos\nneg\n", "one.csv", one, "--labels", "neg")["accuracy"] == 0.5
    numbers = "text,score\na,1.5\nb,2\n"
    assert "takes no further labels" in run("p.txt", "1\n2\n", "n.csv", numbers, "--labels", "neg")[1]


def test_numbers(run) -> None:
    gold = "sentence1\tsentence2\tscore\n" + "".join(f"a{i}\tb{i}\t{i}\n" for i in range(5))
    right = "".join(f"{i + 0.5}\n" for i in range(5))
    right = right.replace("4.5", "5.5")  # no label of STS-B, but it may be predicted
    for words in (("gold.tsv", "--form", "regression"), ("stsb", "--data", "gold.tsv")):
        shifted = run("p.txt", right, "gold.tsv", gold, words=words)
        assert shifted["spearman"] == pytest.approx(1) and shifted["mean_squared_error"] == pytest.approx(0.65)
    assert (
        "p.txt:2: 'nan' is not a prediction"
        in run("p.txt", right.replace("1.5", "nan"), "gold.tsv", gold, words=words)[1]
    )


def test_several_labels(run) -> None:
    gold = '{"text": "a", "label": ["x", "y"]}\n{"text": "b", "label": []}\n{"text": "c", "label": ["y"]}\n'
    for name, text in (("p.txt", "y|x\n\ny\n"), ("p.jsonl", '["y", "x"]\n[]\n["y"]\n')):
        assert run(name, text, "gold.jsonl", gold, "--form", "multilabel")["exact"] == 1
    assert run("p.txt", "x\nx\ny\n", "gold.jsonl", gold, "--form", "multilabel")["exact"] == pytest.approx(1 / 3)


TAGS = "Jim B-PER\nlives O\n\nin O\nNew B-LOC\nYork I-LOC\n"


@pytest.mark.parametrize(
    ("name", "text", "f1"),
    [
        ("p.txt", "B-PER\nO\n\nO\nB-LOC\nI-LOC\n", 1),
        ("p.conll", "Jim B-PER B-PER\nlives O O\n\nin O O\nNew B-LOC O\nYork I-LOC O\n", 2 / 3),
        ("p.conll", "B-PER B-PER\nO O\n\nO O\nB-LOC B-LOC\nI-LOC I-LOC\n", 1),
        ("p.txt", "Jim S-PER\nlives O\n\nin O\nNew B-LOC\nYork E-LOC\n", 1),
        ("p.jsonl", '{"id": "0", "prediction": ["B-PER", "O"]}\n{"id": "1", "prediction": "O B-LOC I-LOC"}\n', 1),
        ("p.jsonl", '{"id": "0", "label": {"PER": {"Jim": [[0, 0]]}}}\n{"id": "1", "label": {}}\n', 2 / 3),
    ],
)
def test_tags_in_every_format(run, name: str, text: str, f1: float) -> None:
    assert run(name, text, "gold.bio", TAGS)["f1"] == pytest.approx(f1)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Jim B-PER\n\nin O\nNew B-LOC\nYork I-LOC\n", "p.txt:1: 1 tags, the sentence has 2 words"),
        ("Jim B-PER\nlives O\n\nin O\nNew B-ORG\nYork I-LOC\n", "p.txt:5: tag 'B-ORG' is not one of"),
        ("Jim B-PER\nlives O\n\nin O\nOld B-LOC\nYork I-LOC\n", "p.txt:5: 'Old', the gold data has 'New' here"),
        ("Jim B-PER\nlives O\n", "p.txt:1: 1 predictions for 2 examples"),
    ],
)
def test_tags_that_do_not_fit_are_refused(run, text: str, said: str) -> None:
    code, error = run("p.txt", text, "gold.bio", TAGS)
    assert code == 3 and said in error


def test_options_by_number_letter_and_text(run) -> None:
    gold = "".join(
        json.dumps({"question": f"q{i}", "options": ["red", "blue", "green"], "answer": i}) + "\n" for i in range(3)
    )
    for text in ("0\n1\n1\n", "A\nb\nB\n", "red\nblue\nblue\n"):
        assert run("p.txt", text, "gold.jsonl", gold)["accuracy"] == pytest.approx(2 / 3)
    assert "p.txt:2: answer 3 is not one of the 3 options" in run("p.txt", "0\n3\n1\n", "gold.jsonl", gold)[1]
    assert "p.txt:3: 'pink' is none of the 3 options" in run("p.txt", "0\n1\npink\n", "gold.jsonl", gold)[1]


@settings(max_examples=40, deadline=None)
@given(
    names=st.lists(st.integers(0, 2000).map(str) | st.sampled_from(["Oslo", "The", "b"]), min_size=2, unique=True),
    seed=st.integers(0, 99),
)
def test_options_that_are_numbers_are_texts_in_record(names: list[str], seed: int, tmp_path_factory: Any) -> None:
    """Any name of the passage can be predicted; elsewhere a number is that of an option, if there are so many."""
    folder = tmp_path_factory.mktemp("record")
    right = names[seed % len(names)]
    query = {"idx": 1, "query": "@placeholder is", "answers": [{"text": right}], "passage": " ".join(names)}
    (folder / "val.jsonl").write_text(json.dumps(query | {"entities": names}) + "\n")
    (folder / "p.jsonl").write_text(json.dumps({"idx": 1, "label": right}) + "\n")
    task = suites.task("record")
    part = task.load(folder / "val.jsonl", "dev")
    (found,), _ = read_predictions(folder / "p.jsonl", task, part)
    assert part.examples[0].options[found] == right  # type: ignore[attr-defined]
    (other,), _ = read_predictions(folder / "p.jsonl", replace(task, answers="squad"), part)
    assert other == (int(right) if right.isdigit() and int(right) < len(names) else found)


def test_null_odds_withdraw_answers(run) -> None:
    asked = [("a", ["Paris"]), ("b", [])]
    questions = [{"id": i, "question": "?", "answers": [{"text": t, "answer_start": 0} for t in a],
                  "is_impossible": not a} for i, a in asked]  # fmt: skip
    gold = json.dumps({"data": [{"paragraphs": [{"context": "Paris or Oslo", "qas": questions}]}]})
    answers = json.dumps({"a": "Paris", "b": "Oslo"})
    assert run("p.json", answers, "gold.json", gold)["exact"] == 0.5
    Path("odds.json").write_text(json.dumps({"a": -5.0, "b": 1.0}))
    scores = run("p.json", answers, "gold.json", gold, "--null-odds", "odds.json")
    assert scores["exact"] == scores["best_exact"] == 1
    Path("odds.json").write_text(json.dumps({"a": -5.0}))
    assert "odds.json: no odds for 1" in run("p.json", answers, "gold.json", gold, "--null-odds", "odds.json")[1]
    assert run("p.txt", "x\ny\n", "c.csv", CLASSES, "--null-odds", "odds.json")[0] == 2


def test_predictions_nested_as_those_of_multirc(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    answers = [{"idx": i, "text": f"t{i}", "label": i % 2} for i in range(3)]
    gold = {"idx": 3, "passage": {"text": "p", "questions": [{"idx": 1, "question": "q", "answers": answers}]}}
    told = {"idx": 3, "passage": {"questions": [{"idx": 1, "answers": [{"idx": i, "label": i % 2} for i in range(3)]}]}}
    for name, record in (("val", gold), ("p", told)):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(record) + "\n")
    words = ["score", str(tmp_path / "p.jsonl"), "multirc", "--data", str(tmp_path / "val.jsonl"), "--json"]
    assert cli.main(words) == 0
    assert json.loads(capsys.readouterr().out)["scores"]["f1"] == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("gold.csv", "--data", "."), "gold.csv is a file, but --data . is for benchmarks"),
        (("mnli",), "mnli is a benchmark; give the folder of its files with --data"),
        (("mnli", "--data", ".", "--label", "y"), "leave out options for files"),
        (("lost.csv",), "lost.csv: no such file"),
        (("./",), "./: is a folder; give a file in it"),
    ],
)
def test_a_file_or_a_benchmark_is_named(run, words: tuple[str, ...], message: str) -> None:
    code, error = run("p.txt", "pos\n", "gold.csv", CLASSES, words=words)
    assert code == 2 and message in error
