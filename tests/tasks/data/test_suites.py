from __future__ import annotations

import json
from dataclasses import replace

import pytest

from encoderlab.errors import ConfigError, DataError
from encoderlab.tasks.data.suites import SUITES, TASKS, task
from encoderlab.tasks.data.task import Choice, Question, Submission, TaggedWords, Text
from encoderlab.tasks.forms.base import Predictions
from encoderlab.tasks.forms.scores import score
from encoderlab.tasks.runs.submit import write_submission
from encoderlab.tasks.scoring.averages import AVERAGES


def columns(text: str) -> dict[tuple[str, str], float]:
    return {tuple(part.split("=")[0].split(":")): float(part.split("=")[1]) for part in text.split()}


def test_averages_are_those_of_the_papers():
    bert = "mnli:accuracy=84.6 mnli_mismatched:accuracy=83.4 qqp:f1=71.2 qnli:accuracy=90.5 sst2:accuracy=93.5 " \
        "cola:matthews=52.1 stsb:spearman=85.8 mrpc:f1=88.9 rte:accuracy=66.4"  # fmt: skip
    assert AVERAGES["bert"].of(columns(bert)) == pytest.approx(79.6, abs=0.05)
    electra = "cola:matthews=60.6 sst2:accuracy=93.2 mrpc:accuracy=88.0 stsb:spearman=90.0 qqp:accuracy=91.3 " \
        "mnli:accuracy=86.6 qnli:accuracy=92.3 rte:accuracy=70.4"  # fmt: skip
    assert AVERAGES["electra"].of(columns(electra)) == pytest.approx(84.0, abs=0.06)
    distilbert = "cola:matthews=51.3 mnli:accuracy=82.2 mrpc:f1=87.5 qnli:accuracy=89.2 qqp:accuracy=88.5 " \
        "rte:accuracy=59.9 sst2:accuracy=91.3 stsb:pearson=86.9 stsb:spearman=86.9 wnli:accuracy=56.3"  # fmt: skip
    assert AVERAGES["distilbert"].of(columns(distilbert)) == pytest.approx(77.0, abs=0.05)
    assert AVERAGES["glue"].of(columns(bert)) is None


def test_averages_name_tasks_and_metrics_that_exist():
    for average in AVERAGES.values():
        for name, metric in (key for column in average.columns for key in column):
            assert metric in TASKS[name.removesuffix("_mismatched")].metrics
    assert all(name in TASKS for names in SUITES.values() for name in names)


def test_names_are_forgiving():
    assert task("SST-2").name == "sst2" and task("STS-B").name == "stsb" and task("mnli") is TASKS["mnli"]
    with pytest.raises(ConfigError, match="unknown task 'squat1'; did you mean 'squad1'"):
        task("squat1")


def _write(task, split, examples, values, folder, **more):
    return write_submission(task, split, examples, Predictions(values=values, details=[], **more), folder)


def texts(n):
    return [Text(id=str(i), text="x") for i in range(n)]


def test_glue_submission_counts_rows_and_names_labels(tmp_path):
    path = _write(task("rte"), "test", texts(3000), ["entailment"] * 3000, tmp_path)[0]
    lines = path.read_text().splitlines()
    assert path.name == "RTE.tsv" and lines[:2] == ["index\tprediction", "0\tentailment"] and len(lines) == 3001
    with pytest.raises(DataError, match="10 predictions for test, the leaderboard expects 3,000"):
        _write(task("rte"), "test", texts(10), ["entailment"] * 10, tmp_path)
    with pytest.raises(ConfigError, match="rte: no leaderboard file for 'dev', only for test"):
        _write(task("rte"), "dev", [], [], tmp_path)
    stsb = _write(task("stsb"), "test", texts(1379), [5.7] * 1379, tmp_path)[0]
    assert stsb.read_text().splitlines()[1] == "0\t5.000"
    assert _write(task("mnli"), "test_mismatched", texts(9847), ["neutral"] * 9847, tmp_path)[0].name == "MNLI-mm.tsv"


def test_other_submissions(tmp_path):
    question = Question(id="q", question="?", passage="p")
    nbest = {"q": [{"text": "p", "probability": 1.0}]}
    files = _write(task("squad2"), "dev", [question], ["p"], tmp_path, nbest=nbest, null_odds={"q": -1.5})
    assert [path.name for path in files] == ["predictions.json", "nbest_predictions.json", "null_odds.json"]
    assert json.loads(files[0].read_text()) == {"q": "p"} and json.loads(files[2].read_text()) == {"q": -1.5}
    path = _write(task("tnews"), "test", texts(2), ["100", "116"], tmp_path)[0]
    assert path.name == "tnews11_predict.json" and json.loads(path.read_text().splitlines()[1]) == {
        "id": 1,
        "label": "116",
    }
    path = _write(task("tnews"), "test", [replace(text, id="²") for text in texts(1)], ["100"], tmp_path)[0]
    assert json.loads(path.read_text())["id"] == "²"
    words = TaggedWords(id="0", words=("看", "C", "S"), tags=None)
    path = _write(task("cluener"), "test", [words], [("O", "B-game", "I-game")], tmp_path)[0]
    assert json.loads(path.read_text()) == {"id": 0, "label": {"game": {"CS": [[1, 2]]}}}
    path = _write(task("conll2003"), "test", [words], [("O", "B-PER", "O")], tmp_path)[0]
    assert path.read_text() == "看 O O\nC O B-PER\nS O O\n\n"
    options = [Text(id="2-3-5", text="", pair="", group="2-3"), Text(id="2-3-6", text="", pair="", group="2-3")]
    with pytest.raises(DataError, match="2 predictions for test, the leaderboard expects 9,693"):
        _write(task("multirc"), "test", options, ["1", "0"], tmp_path)
    multirc = replace(task("multirc"), submission=Submission(format="superglue", files={"test": "MultiRC.jsonl"}))
    path = _write(multirc, "test", options, ["1", "0"], tmp_path)[0]
    answers = [{"idx": 5, "label": 1}, {"idx": 6, "label": 0}]
    assert json.loads(path.read_text()) == {"idx": 2, "passage": {"questions": [{"idx": 3, "answers": answers}]}}


def test_scores_by_form():
    pairs = [Text(id=str(i), text="", label=label) for i, label in enumerate("1100")]
    scores, notes = score(task("mrpc"), pairs, list("1000"))
    assert scores["accuracy"] == 0.75 and scores["f1"] == pytest.approx(2 / 3) and not notes
    scores, notes = score(task("cola"), pairs, list("1111"))
    assert scores["matthews"] == 0 and "constant" in notes[0]
    numbers = [Text(id=str(i), text="", label=float(i)) for i in range(4)]
    assert list(score(task("stsb"), numbers, [0.0, 2.0, 4.0, 9.0])[0])[:2] == ["spearman", "pearson"]
    sentence = TaggedWords(id="0", words=("a", "b"), tags=("B-PER", "O"))
    scores = score(task("conll2003"), [sentence], [("B-PER", "O")])[0]
    assert scores["f1_PER"] == 1
    # Seeds that predict types which the data has not are summed up with seeds that do not.
    assert list(score(task("conll2003"), [sentence], [("B-PER", "B-LOC")])[0]) == list(scores)
    choice = Choice(id="0", context="", question="", options=("Rome", "Oslo"), answers=(0,))
    assert score(task("record"), [choice], [0])[0]["f1"] == 1
    with pytest.raises(DataError, match="no label to score against"):
        score(task("sst2"), texts(1), ["1"])
    with pytest.raises(DataError, match="1 predictions for 2 examples"):
        score(task("sst2"), texts(2), ["1"])


def test_submissions_of_clue_and_fewclue_have_the_names_of_the_leaderboard(tmp_path):
    names = {
        "tnews": {"test": "tnews11_predict.json", "test1.0": "tnews10_predict.json"},
        "cluewsc": {"test": "cluewsc11_predict.json", "test1.0": "cluewsc10_predict.json"},
        "c3": {"test": "c311_predict.json", "test1.0": "c310_predict.json"},
        "clue_chid": {"test": "chid11_predict.json", "test1.0": "chid10_predict.json"},
        "ocnli": {"test": "ocnli_50k_predict.json"},
        "afqmc": {"test": "afqmc_predict.json"},
        "tnews_few": {"test": "tnewsf_predict.json"},
        "iflytek_few": {"test": "iflytekf_predict.json"},
        "ocnli_few": {"test": "ocnlif_predict.json"},
        "csl_few": {"test": "cslf_predict.json"},
        "chid": {"test": "chidf_predict.json"},
        "cluewsc_few": {"test": "cluewscf_predict.json"},
        "bustm": {"test": "bustm_predict.json"},
    }
    for name, files in names.items():
        assert task(name).submission.files == files
        assert set(files) <= set(task(name).files)
    chinese = [f for s in ("clue", "fewclue") for n in SUITES[s] if TASKS[n].submission
               for f in TASKS[n].submission.files.values()]  # fmt: skip
    assert len(chinese) == len(set(chinese))
    gap = Choice(id="#idiom000001#", context="x #idiom000001#", question="", options=("a", "b"), gap="#idiom000001#")
    path = _write(task("clue_chid"), "test", [gap], [1], tmp_path)[0]
    assert json.loads(path.read_text()) == {"#idiom000001#": 1}
