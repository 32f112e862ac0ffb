"""``predict`` and ``evaluate`` read files as the model learned them, and say what they do with texts."""

from __future__ import annotations

import csv
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from encoderlab.errors import ConfigError
from encoderlab.files import json_line
from encoderlab.interchange import folder as folders
from encoderlab.tasks.data import suites
from encoderlab.tasks.data.readers import Columns
from encoderlab.tasks.data.splits import completed
from encoderlab.tasks.data.task import Text
from encoderlab.tasks.forms.best_spans import average_answers
from encoderlab.tasks.forms.objective import form_of, with_head
from encoderlab.tasks.forms.span import SpanForm
from encoderlab.tasks.forms.table import FORMS
from encoderlab.tasks.runs.apply import predictor_of
from encoderlab.tasks.runs.folder import write_task
from encoderlab.tasks.runs.predict import joint_windows, predict_ensemble, record
from tests.tasks.synthetic import data
from tests.tasks.tiny import model
from tests.terminal import answer, messages


def saved(task, folder: Path, *, seed: int = 1, size: str = "bert-tiny", **settings) -> Path:
    """A model folder with an untrained head for the task, as fine-tuning writes it."""
    start = model(size)
    given = FORMS[task.form].settings_type(**{"max_length": 32, **settings})
    network, _ = with_head(start, form_of(task, start, given), seed=seed)
    folder.mkdir(parents=True)
    folders.save(network, folder)
    write_task(task, given, folder)
    return folder


def ready(kind: str, **more):
    task, splits = data(kind, train=24, dev=12, **more)
    return completed(task, splits["train"]), splits


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    model().save(tmp_path / "tiny")
    return tmp_path / "tiny"


def intents(path: Path, columns: tuple[str, str], count: int = 60) -> Path:
    with open(path, "w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["text", *columns])
        table.writerows(["nothing", f"the {('red', 'blue')[i % 2]} cat {i % 9}", i % 2] for i in range(count))
    return path


# Columns


def test_the_columns_of_training_are_those_of_use_and_can_be_given(tmp_path, tiny, capsys):
    path, out = intents(tmp_path / "intents.csv", ("utterance", "intent")), tmp_path / "run"
    columns = ("--text", "utterance", "--label", "intent")
    answer(capsys, "finetune", path, "--model", tiny, "--out", out, "--seeds", 1, "--epochs", 1, *columns)
    found, said = answer(capsys, "evaluate", out, path)
    assert found["examples"] == 60 and "read like the model's training data (intents)" in said
    kept = json.loads((out / "runs/seed-1/model/task.json").read_text())
    assert kept["layouts"] == [{"layout": "Columns", "text": "utterance", "label": "intent"}]
    other = intents(tmp_path / "other.csv", ("words", "kind"))
    given, said = answer(capsys, "evaluate", out, other, "--text", "words", "--label", "kind")
    assert given["scores"][str(out)] == found["scores"][str(out)] and "text = 'words'" in said
    relabelled = intents(tmp_path / "relabelled.csv", ("utterance", "kind"))
    given, said = answer(capsys, "evaluate", out, relabelled, "--label", "kind")
    assert given["scores"][str(out)] == found["scores"][str(out)] and "text = 'utterance'" in said
    assert "no column 'kinnd'; did you mean 'kind'" in messages(
        capsys, 2, "evaluate", out, relabelled, "--label", "kinnd"
    )
    first, _ = answer(capsys, "predict", out, path)
    second, _ = answer(capsys, "predict", out, other, "--text", "words")
    assert [one["label"] for one in first["predictions"]] == [one["label"] for one in second["predictions"]]
    (tmp_path / "named.csv").write_text("intent,utterance,id\n,red cat,r7\n,blue cat,r7\n")
    named, _ = answer(capsys, "predict", out, tmp_path / "named.csv")
    assert [one["id"] for one in named["predictions"]] == ["r7", "r7"]  # training had none


def test_a_file_that_is_named_like_a_benchmark_is_used_as_the_file_it_is(tmp_path, tiny, capsys):
    path, out = intents(tmp_path / "resume.csv", ("utterance", "intent")), tmp_path / "run"
    columns = ("--text", "utterance", "--label", "intent")
    answer(capsys, "finetune", path, "--model", tiny, "--out", out, "--seeds", 1, "--epochs", 1, *columns)
    assert len(answer(capsys, "predict", out, path)[0]["predictions"]) == 60
    assert answer(capsys, "evaluate", out, path)[0]["task"] == "resume"


WIC = {"word": "cat", "sentence1": "the red cat", "sentence2": "a big cat", "label": True, "idx": 0}
WSC = {"text": "the cat sat", "label": "true", "target": {"span1_text": "cat", "span2_text": "sat",
       "span1_index": 4, "span2_index": 8}}  # fmt: skip
COPA = {"premise": "the cat sat", "choice1": "big", "choice2": "small", "question": "cause", "label": 1, "idx": 0}
CHID = {"id": 0, "candidates": ["red", "blue"], "content": "the #idiom# cat", "answer": 1}
CSL = {"id": 0, "abst": "the cat", "keyword": ["cat", "dog"], "label": "1"}
SAMPLES = [
    ("wic", WIC, ("label",)),
    ("cluewsc", WSC, ("label",)),
    ("copa", COPA, ("label",)),
    ("chid", CHID, ("answer",)),
    ("csl", CSL, ("label",)),
]


@pytest.mark.parametrize(("name", "record", "label"), SAMPLES, ids=[sample[0] for sample in SAMPLES])
def test_a_benchmark_s_file_is_read_as_the_benchmark_s(name, record, label, tmp_path, capsys):
    task = suites.task(name)
    folder = saved(task, tmp_path / "model", max_length=64)
    labelled, test = tmp_path / "val.jsonl", tmp_path / "test.jsonl"
    labelled.write_text(f"{json.dumps(record)}\n" * 3)
    test.write_text(f"{json.dumps({key: value for key, value in record.items() if key not in label})}\n" * 3)
    examples = task.read([labelled], "dev").examples
    wanted = predictor_of(folder).predict(examples)
    found, said = answer(capsys, "evaluate", folder, labelled)
    assert found["examples"] == 3 and f"read like the model's training data ({name})" in said
    for path in (labelled, test):
        found, _ = answer(capsys, "predict", folder, path)
        scores = [one["score"] for one in found["predictions"]]
        assert scores == pytest.approx([detail["score"] for detail in wanted.details], abs=1e-5)


def test_a_test_table_of_a_benchmark_and_a_file_with_other_columns(tmp_path, capsys):
    folder = saved(replace(suites.task("mrpc")), tmp_path / "model")
    test = tmp_path / "test.tsv"
    test.write_text("index\t#1 ID\t#2 ID\t#1 String\t#2 String\n0\t1\t2\tthe red cat\tthe cat\n")
    assert len(answer(capsys, "predict", folder, test)[0]["predictions"]) == 1
    other = tmp_path / "other.csv"
    other.write_text("text_a,text_b\nthe red cat,the cat\n")
    found, said = answer(capsys, "predict", folder, other)
    assert len(found["predictions"]) == 1 and "text = 'text_a'" in said


def test_a_test_file_is_submitted_and_needs_no_labels(tmp_path, capsys):
    folder = saved(suites.task("copa"), tmp_path / "model")
    path = tmp_path / "test.jsonl"
    path.write_text("".join(json.dumps(COPA | {"idx": i, "label": -1}) + "\n" for i in range(500)))
    found, said = answer(capsys, "evaluate", folder, path, "--split", "test", "--submission", tmp_path / "out")
    assert found["scores"] == {} and "no labels; nothing to score" in said
    said = messages(capsys, 3, "evaluate", folder, path, "--split", "test")
    assert "copa: 500 of 500 test examples have no label to score against; give labelled data, --submission" in said
    lines = (tmp_path / "out/COPA.jsonl").read_text().splitlines()
    assert len(lines) == 500 and json.loads(lines[7])["idx"] == 7 and set(json.loads(lines[7])) == {"idx", "label"}


@pytest.mark.parametrize(
    ("labels", "same"),
    [
        (("entailment", "not_entailment"), True),
        (("Entailment", "NOT_ENTAILMENT"), True),
        (("NOT_ENTAILMENT", "ENTAILMENT"), False),
        (("not_entailment", "entailment"), False),
        (("LABEL_0", "LABEL_1"), True),
        (("0", "1"), True),
    ],
)
@pytest.mark.parametrize("written", [("entailment", "not_entailment"), ("0", "1")])
def test_labels_of_a_model_are_a_benchmark_s_by_name_or_by_number(labels, same, written, tmp_path, capsys):
    task = suites.task("rte")
    path = tmp_path / "dev.tsv"
    rows = "".join(f"{i}\tthe red cat {i}\tthe cat\t{written[i % 3 > 0]}\n" for i in range(12))
    path.write_text(f"index\tsentence1\tsentence2\tlabel\n{rows}")
    usual = saved(task, tmp_path / "usual")
    guesses = [found == "entailment" for found in predictor_of(usual).predict(task.read([path], "dev").examples).values]
    wanted = sum(guess == ((i % 3 == 0) == same) for i, guess in enumerate(guesses)) / 12
    folder = saved(replace(task, name="mine", labels=labels), tmp_path / "model")
    found, said = answer(capsys, "evaluate", folder, "rte", "--data", tmp_path)
    assert found["scores"][str(folder)]["accuracy"] == pytest.approx(wanted)
    by_place = f"labels {', '.join(labels)} are matched with entailment, not_entailment of rte, in this order"
    assert (by_place in said) == (labels[0] in ("LABEL_0", "0"))


@pytest.mark.parametrize("labels", [("yes", "no"), ("entailment", "neutral"), ("1", "2"), ("yes", "no", "none")])
def test_a_model_with_other_labels_is_not_evaluated_on_a_benchmark(labels, tmp_path, capsys):
    folder = saved(replace(suites.task("rte"), name="mine", labels=labels), tmp_path / "model")
    said = messages(capsys, 2, "evaluate", folder, "rte", "--data", tmp_path)
    assert f"labels are {', '.join(labels)}, those of rte entailment, not_entailment; give a model tuned" in said


def test_tags_and_submissions_have_the_names_of_the_benchmark(tmp_path, capsys):
    task = suites.task("conll2003")
    mine = replace(task, name="mine", labels=tuple(f"LABEL_{i}" for i in range(9)))
    usual, folder = saved(task, tmp_path / "usual"), saved(mine, tmp_path / "model")
    (tmp_path / "valid.txt").write_text("ann B-PER\nruns O\nin O\noslo B-LOC\n")
    found = [
        answer(capsys, "evaluate", one, "conll2003", "--data", tmp_path, "--submission", tmp_path / f"out-{i}")[0]
        for i, one in enumerate((usual, folder))
    ]
    assert list(found[0]["scores"].values()) == list(found[1]["scores"].values())
    assert (tmp_path / "out-0/dev.txt").read_text() == (tmp_path / "out-1/dev.txt").read_text()


def test_a_submission_is_not_written_over_the_data(tmp_path, capsys):
    folder, path = saved(suites.task("conll2003"), tmp_path / "model"), tmp_path / "test.txt"
    path.write_text("ann B-PER\nruns O\n")
    words = ("evaluate", folder, "conll2003", "--data", tmp_path, "--split", "test", "--submission", tmp_path)
    assert "test.txt: is the input; give another --submission" in messages(capsys, 2, *words)
    assert path.read_text() == "ann B-PER\nruns O\n"


def test_an_answer_that_is_no_option_does_not_keep_a_row_from_its_prediction(tmp_path, capsys):
    folder = saved(suites.task("swag"), tmp_path / "model")
    names = ["sent1", "sent2", *(f"ending{i}" for i in range(4)), "label"]
    path = tmp_path / "test.csv"
    path.write_text(",".join(names) + "\na,b,c,d,e,f,0\na,b,c,d,e,f,9\n")
    assert len(answer(capsys, "predict", folder, path)[0]["predictions"]) == 2


def test_numbers_of_a_benchmark_are_those_of_its_files(tmp_path):
    folder = saved(suites.task("stsb"), tmp_path / "model", targets="unit")
    form = predictor_of(folder).form
    assert (form.offset, form.factor) == (0.0, 1.0)  # the saved head has the scale within


def test_a_task_after_another_with_the_same_labels_starts_a_head_of_its_own(tmp_path, tiny, capsys):
    for folder in ("SST-2", "CoLA"):
        (tmp_path / folder).mkdir()
        rows = "".join(f"the {('red', 'blue')[i % 2]} cat {i % 9}\t{i % 2}\n" for i in range(40))
        for split in ("train", "dev"):
            (tmp_path / folder / f"{split}.tsv").write_text(f"sentence\tlabel\n{rows}")
    words = ("--data", tmp_path, "--model", tiny, "--seeds", 1, "--epochs", 1)
    _, said = answer(capsys, "finetune", "cola", "--after", "sst2", "--out", tmp_path / "out", *words)
    wanted = "the task head is new (the model's own is dropped: it was not trained for this task)"
    assert json.loads((tmp_path / "out/runs/seed-1/score.json").read_text())["head"] == wanted and wanted in said
    words = ("--data", tmp_path, "--model", tmp_path / "out", "--seeds", 1, "--epochs", 1)
    _, said = answer(capsys, "finetune", "cola", "--out", tmp_path / "more", *words)
    assert "cola: the model's task head is kept: it was trained for this task" in said
    assert "choose another --out" in messages(capsys, 2, "finetune", "cola", "--out", tmp_path / "out", *words)


def questions(path: Path, answers: list[str]) -> Path:
    """Questions about a passage, "" for one without an answer."""
    passage = "the red cat sat in oslo ."
    rows = [
        {"id": f"q{i}", "question": "where is it ?", "context": passage,
         "answers": {"text": [text] * bool(text), "answer_start": [passage.index(text)] * bool(text)}}
        for i, text in enumerate(answers)
    ]  # fmt: skip
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_only_a_folder_that_tells_no_task_is_let_give_no_answer(tmp_path, capsys):
    folder, path = saved(ready("question")[0], tmp_path / "model"), questions(tmp_path / "qa.jsonl", ["oslo", "", ""])
    found, said = answer(capsys, "evaluate", folder, path)
    assert "best_f1" not in found["scores"][str(folder)] and "get no answer" not in said
    (folder / "task.json").unlink()
    (folder / "SHA256SUMS").unlink()
    predictor = predictor_of(folder)
    predictor.form.nullable = True
    values = predictor.predict(suites.task("squad2").read([path], "dev").examples).values
    found, said = answer(capsys, "evaluate", folder, path)
    scores = found["scores"][str(folder)]
    assert scores["no_answer_exact"] == values[1:].count("") / 2 and scores["best_f1"] >= 2 / 3
    assert f"{folder.name}: questions with a null score above 0 get no answer" in said
    _, said = answer(capsys, "evaluate", folder, questions(tmp_path / "all.jsonl", ["oslo"]))
    assert "get no answer" not in said


def test_the_best_threshold_does_not_hang_on_the_one_that_is_used(tmp_path, capsys):
    folder = saved(ready("question", impossible=True)[0], tmp_path / "model")
    path = questions(tmp_path / "qa.jsonl", ["the red cat sat in oslo ."] * 2 + [""])
    kept, best = json.loads((folder / "task.json").read_text()), []
    (folder / "SHA256SUMS").unlink()
    for threshold in (-1e4, 1e4):
        (folder / "task.json").write_text(json.dumps(kept | {"threshold": threshold}))
        scores = answer(capsys, "evaluate", folder, path)[0]["scores"][str(folder)]
        assert scores["no_answer_exact"] == (threshold < 0)
        best.append({name: value for name, value in scores.items() if name.startswith("best")})
    assert best[0] == best[1] and best[0]["best_f1"] > 1 / 3


# Texts


def test_texts_are_tagged_word_by_word_and_chinese_by_characters(tmp_path, capsys):
    folder = saved(ready("tagged")[0], tmp_path / "model")
    found, _ = answer(capsys, "predict", folder, "sue runs in oslo", "小明住北京 ann")
    assert [len(one["prediction"]) for one in found["predictions"]] == [4, 6]
    assert "text 1 has no words" in messages(capsys, 3, "predict", folder, " ")


@pytest.mark.parametrize(
    ("name", "text", "sizes"),
    [
        ("a.txt", "the ann runs\n\nsue sleeps\n", {"1": 3, "3": 2}),
        ("a.txt", "ann runs\nbob sleeps\n", {"1": 2, "2": 2}),
        ("a.txt", "小明在北京\n他 ann 喜\n", {"1": 5, "2": 3}),
        ("a.txt", "the\nann\nruns\n\nthe\ncat\n", {"0": 3, "1": 2}),
        ("a.txt", "小\n明\n\n他\n", {"0": 2, "1": 1}),
        ("a.txt", "the DT\nann NNP\nruns VBZ\n\nthe DT\ncat NN\n", {"0": 3, "1": 2}),
        ("a.txt", "ann B-PERSON\nruns O\n", {"0": 2}),
        ("a.txt", "-DOCSTART- O\n\nann X-PER\n", {"0": 1}),
        ("a.conll", "小明\n北京\n\n他\n", {"0": 2, "1": 1}),
        ("a.jsonl", '{"tokens": ["the", "ann"]}\n', {"0": 2}),
        ("a.jsonl", '{"tokens": ["the", "ann"], "tags": ["DT", "NNP"]}\n', {"0": 2}),
        ("a.ndjson", '{"tokens": ["the", "ann"]}\n', {"0": 2}),
    ],
)
def test_a_tagger_takes_texts_and_words_with_and_without_tags(name, text, sizes, tmp_path, capsys):
    folder, path = saved(ready("tagged")[0], tmp_path / "model"), tmp_path / name
    path.write_text(text, encoding="utf-8")
    found, _ = answer(capsys, "predict", folder, path)
    assert {one["id"]: len(one["prediction"]) for one in found["predictions"]} == sizes


@pytest.mark.parametrize("text", ["小明在北京\n他喜\n\n李雷\n", "ann runs\n\nbob sleeps\n", "the\tDT\nann\tNNP\n"])
def test_a_text_that_could_be_words_is_refused(text, tmp_path, capsys):
    folder, path = saved(ready("tagged")[0], tmp_path / "model"), tmp_path / "a.txt"
    path.write_text(text, encoding="utf-8")
    said = messages(capsys, 3, "predict", folder, path)
    assert "a.txt: one text or one word per line? for texts remove blank lines and tabs, for words" in said


def test_words_without_tags_are_not_evaluated(tmp_path, capsys):
    folder, path = saved(ready("tagged")[0], tmp_path / "model"), tmp_path / "a.jsonl"
    path.write_text('{"tokens": ["the", "ann"]}\n')
    assert "a.jsonl:1: no label; dev data needs one in every row" in messages(capsys, 3, "evaluate", folder, path)


@pytest.mark.parametrize(("kind", "words"), [("question", "question and context"), ("choice", "context, question and")])
def test_forms_that_need_more_than_a_text_say_which_file(kind, words, tmp_path, capsys):
    folder = saved(ready(kind)[0], tmp_path / "model")
    assert f"needs more than a text; give a file with the columns {words}" in messages(
        capsys, 2, "predict", folder, "where is it ?"
    )


def test_a_column_of_texts_to_predict_is_given_by_its_name(tmp_path, capsys):
    folder, path = saved(ready("single")[0], tmp_path / "model"), tmp_path / "a.csv"
    path.write_text("remark\nthe red cat\n")
    assert "for texts to predict, --text COLUMN (0 without a header)" in messages(capsys, 3, "predict", folder, path)
    assert len(answer(capsys, "predict", folder, path, "--text", "remark")[0]["predictions"]) == 1
    path.write_text("remark,day,place\nthe red cat,1,2\n")
    assert "give: --text COLUMN [--pair COLUMN] [--label COLUMN];" in messages(capsys, 3, "predict", folder, path)


def test_texts_that_were_cut_are_counted(tmp_path, capsys):
    folder = saved(ready("single")[0], tmp_path / "model", max_length=8)
    long = "the red cat " * 9
    _, said = answer(capsys, "predict", folder, long, "red", long)
    assert "2 texts are longer than the model's 8 tokens and were cut" in said
    path = tmp_path / "texts.csv"
    path.write_text(f"text,label\n{long},red\nblue,blue\n")
    for verb in ("predict", "evaluate"):
        assert "1 text is longer than the model's 8 tokens and was cut" in answer(capsys, verb, folder, path)[1]
    assert "longer" not in answer(capsys, "predict", folder, "red")[1]


def test_a_tab_is_between_two_texts_only_where_the_model_takes_two(tmp_path, capsys):
    path = tmp_path / "a.txt"
    path.write_text("red\tcat\n\nblue\n")
    one, two = (saved(ready("single")[0], tmp_path / str(pairs), pairs=pairs) for pairs in (False, True))
    found, _ = answer(capsys, "predict", one, path)
    assert [prediction["id"] for prediction in found["predictions"]] == ["1", "2", "3"]
    assert "2 of 3 examples have no second text (the first: 2)" in messages(capsys, 3, "predict", two, path)


def test_what_unicode_takes_for_the_end_of_a_line_ends_none(tmp_path, capsys):
    task = replace(ready("single")[0], layouts=(Columns(text="text", id="id"),))
    folder, path = saved(task, tmp_path / "model"), tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"id": f"a{end}b", "text": "red"}) + "\n" for end in "\u0085\u2028\u2029\r"))
    found, _ = answer(capsys, "predict", folder, path)
    assert [one["id"] for one in found["predictions"]] == ["a\u0085b", "a\u2028b", "a\u2029b", "a\rb"]


def test_half_a_character_in_an_id_is_kept(tmp_path, capsys):
    task = replace(ready("single")[0], layouts=(Columns(text="text", id="id"),))
    folder, path, out = saved(task, tmp_path / "model"), tmp_path / "a.jsonl", tmp_path / "out.jsonl"
    path.write_text(json.dumps({"id": "a\ud83d", "text": "the red \ud83d cat"}) + "\n")
    answer(capsys, "predict", folder, path, "--out", out)
    assert json.loads(out.read_text())["id"] == "a\ud83d"


def test_files_and_texts_are_not_mixed(tmp_path, capsys):
    folder, path = saved(ready("single")[0], tmp_path / "model"), tmp_path / "texts.csv"
    path.write_text("text\nthe red cat\n")
    for words in ((folder.name, path), (path, "the red cat")):
        assert "is no file, and" in messages(capsys, 3, "predict", folder, *words)


def test_a_pipe_is_neither_read_nor_taken_for_a_text(tmp_path, capsys):
    folder, path = saved(ready("single")[0], tmp_path / "model"), tmp_path / "pipe"
    os.mkfifo(path)
    for words in (("predict", folder, path), ("encode", folder, "--file", path), ("inspect", folder, path)):
        out = () if words[0] == "predict" else ("--out", tmp_path / "out.npy")
        assert "a pipe or a device, which cannot be read twice" in messages(capsys, 3, *words, *out)


def test_a_huge_text_that_takes_all_memory_is_named(tmp_path, tiny, capsys, monkeypatch):
    folder, path = saved(ready("single")[0], tmp_path / "model"), tmp_path / "texts.csv"
    path.write_text("text,label\n" + "the red cat,red\na blue dog,blue\n" * 9 + "cat " * 300_000 + ",red\n")

    def full(*_, **__):
        raise MemoryError

    tune = ("finetune", path, "--model", tiny, "--out", tmp_path / "run", "--dev", path)
    with monkeypatch.context() as patch:
        patch.setattr("encoderlab.corpus.tokenizer.Tokenizer.encode_batch", full)
        for words in (tune, ("evaluate", folder, path), ("predict", folder, path)):
            said = messages(capsys, 5, *words)
            assert "row 20: out of memory, and its text has 1,200,000 characters; shorten or remove it" in said
    monkeypatch.setattr("encoderlab.tasks.data.readers.examples", full)
    assert "texts.csv:" in (said := messages(capsys, 5, *tune)) and "out of memory at this row or the next" in said


# Ensembles


def test_an_ensemble_takes_several_models_behind_one_flag(tmp_path, capsys):
    task = ready("single")[0]
    names = [saved(task, tmp_path / f"m{seed}", seed=seed) for seed in (1, 2, 3)]
    path = tmp_path / "texts.csv"
    path.write_text("text,label\nthe red cat,red\nblue,blue\ngreen,green\n")
    one, _ = answer(capsys, "evaluate", names[0], path, "--ensemble", *names[1:])
    two, _ = answer(capsys, "evaluate", names[0], path, "--ensemble", names[1], "--ensemble", names[2])
    assert one["scores"] == two["scores"] and set(one["scores"]) == {"ensemble", *map(str, names)}


@pytest.mark.parametrize(("other", "message"), [("several", "different forms"), ("tagged", "different forms")])
def test_an_ensemble_has_heads_of_one_form(other, message, tmp_path):
    task, splits = ready("single")
    members = [predictor_of(saved(kind, tmp_path / kind.name, seed=1)) for kind in (task, ready(other)[0])]
    with pytest.raises(ConfigError, match=message):
        predict_ensemble(members, splits["dev"].examples)


@pytest.mark.parametrize("size", ["bert-tiny", "electra-tiny", "xlnet-tiny"])
def test_answers_of_an_ensemble_are_those_of_the_mean_scores(size, tmp_path):
    task, splits = ready("question", impossible=True)
    examples = splits["dev"].examples
    folders = [saved(task, tmp_path / f"m{seed}", seed=seed, size=size, max_length=20, stride=6) for seed in (1, 2)]
    first, second = map(predictor_of, folders)
    alone, twice = first.predict(examples), predict_ensemble([first, first], examples)[0]
    assert twice.values == alone.values and twice.null_odds == pytest.approx(alone.null_odds, abs=1e-5)
    first.form.threshold, second.form.threshold = 1.0, 2.0
    together, own = predict_ensemble([first, second], examples)
    assert together.threshold == 1.5 and first.form.threshold == 1.0
    if size == "bert-tiny":  # its ends do not hang on the start, so the score of a span is the mean of its scores
        key = examples[0].id
        scores = [{(x["start"], x["end"]): x["score"] for x in o.nbest[key] if x["text"]} for o in (together, *own)]
        common = set(scores[0]) & set(scores[1]) & set(scores[2])
        assert common and scores[1] != scores[2]
        for span in common:
            assert scores[0][span] == pytest.approx((scores[1][span] + scores[2][span]) / 2, abs=1e-4)


def test_models_with_other_windows_average_texts_and_say_so(tmp_path, capsys):
    task, splits = ready("question")
    names = [saved(task, tmp_path / f"m{length}", max_length=length) for length in (24, 32)]
    members = [predictor_of(name) for name in names]
    assert not joint_windows(members) and isinstance(members[0].form, SpanForm)
    examples = splits["dev"].examples
    together, own = predict_ensemble(members, examples)
    assert together.values == average_answers(own).values
    members[1].form.threshold = 3.0
    assert predict_ensemble(members, examples)[0].threshold == predict_ensemble(members[::-1], examples)[0].threshold
    path = tmp_path / "qa.jsonl"
    record = {"id": "1", "question": "where is it ?", "context": "the cat sat in oslo .",
              "answers": {"text": ["oslo"], "answer_start": [15]}}  # fmt: skip
    path.write_text(json.dumps(record) + "\n")
    assert "n-best texts are averaged" in answer(capsys, "evaluate", names[0], path, "--ensemble", names[1])[1]


def test_answers_of_models_with_and_without_no_answer_are_not_averaged(tmp_path, capsys):
    names = [
        saved(ready("question", impossible=impossible)[0], tmp_path / str(impossible)) for impossible in (True, False)
    ]
    path = questions(tmp_path / "qa.jsonl", ["oslo"])
    for one, other in (names, names[::-1]):
        assert "ensemble have different labels" in messages(capsys, 2, "evaluate", one, path, "--ensemble", other)


@pytest.mark.parametrize(
    ("name", "record", "text", "gold"),
    [
        ("copa", COPA, {"context", "question", "options"}, None),
        ("cmrc2018", None, {"question", "passage"}, ["小明"]),
        ("conll2003", None, {"words"}, ["B-PER", "O"]),
        ("mrpc", None, {"text", "pair"}, "1"),
    ],
)
def test_predictions_hold_the_text_and_the_label_on_request(name, record, text, gold, tmp_path, capsys):
    folder = saved(suites.task(name), tmp_path / "model", max_length=64)
    if record is not None:
        path, gold = tmp_path / "a.jsonl", [record["label"]]
        path.write_text(json.dumps(record) + "\n")
    elif name == "cmrc2018":
        path, answers = tmp_path / "a.json", [{"text": "小明", "answer_start": 0}]
        asked = [{"id": "q", "question": "谁住北京", "answers": answers}]
        path.write_text(json.dumps({"data": [{"paragraphs": [{"context": "小明住北京", "qas": asked}]}]}))
    elif name == "conll2003":
        path = tmp_path / "a.txt"
        path.write_text("ann B-PER\nruns O\n")
    else:
        path = tmp_path / "a.tsv"
        path.write_text("Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t1\t2\tthe red cat\tthe cat\n")
    out = tmp_path / "out.jsonl"
    (plain,) = answer(capsys, "predict", folder, path)[0]["predictions"]
    answer(capsys, "predict", folder, path, "--out", out, "--with", "text", "gold")
    full = json.loads(out.read_text())
    assert set(full) == set(plain) | text | {"gold"} and full["gold"] == gold
    assert {key: full[key] for key in plain} == plain
    (only,) = answer(capsys, "predict", folder, path, "--with", "gold")[0]["predictions"]
    assert set(only) == set(plain) | {"gold"}


def test_what_is_no_example_is_not_predicted(tmp_path):
    predictor = predictor_of(saved(suites.task("sst2"), tmp_path / "model"))
    wrong: Any
    for wrong, named in ((["the red cat"], "'the red cat'"), ("cat", "'c'"), (None, "None"), ([None], "None")):
        with pytest.raises(ConfigError, match=f"predict got {named}, expected examples such as Text"):
            predictor.predict(wrong)
    texts = [Text(id=str(n), text=text) for n, text in enumerate(("the red cat", "a cat"))]
    assert predictor.predict(iter(texts)).values == predictor.predict(texts).values


def test_a_text_of_the_command_line_has_no_label_to_write(tmp_path, capsys):
    folder = saved(suites.task("sst2"), tmp_path / "model")
    (found,) = answer(capsys, "predict", folder, "the red cat", "--with", "text")[0]["predictions"]
    assert found["text"] == "the red cat" and "gold" not in found
    assert "leave gold out of --with" in messages(capsys, 2, "predict", folder, "the red cat", "--with", "gold")
    path = tmp_path / "a.txt"
    path.write_text("the red cat\n")
    out = ("--out", tmp_path / "out.jsonl")
    assert "leave gold out of --with" in messages(capsys, 2, "predict", folder, path, "--with", "gold", *out)
    for option in ("--text", "--pair"):
        assert "leave --text and --pair out" in messages(capsys, 2, "predict", folder, "the red cat", option, "a")
        assert "no column 'a'" in messages(capsys, 2, "predict", folder, path, option, "a")


def test_a_label_to_write_that_a_file_lacks_is_noticed(tmp_path, capsys):
    folder, path = saved(ready("single")[0], tmp_path / "model"), tmp_path / "a.jsonl"
    path.write_text('{"text": "the red cat", "class": "red"}\n{"text": "a cat", "label": null}\n')
    found, said = answer(capsys, "predict", folder, path, "--with", "gold")
    assert [one["gold"] for one in found["predictions"]] == [None, None]
    assert "a.jsonl: 2 rows: no label, so gold is null (first: row 1)" in said
    assert "gold is null" not in answer(capsys, "predict", folder, path)[1]


@pytest.mark.parametrize("kind", ["single", "pair", "tagged"])
def test_what_predict_writes_has_the_score_of_evaluate(kind, tmp_path, capsys):
    task, _ = ready(kind)
    folder, path, out = saved(task, tmp_path / "model"), tmp_path / "a.csv", tmp_path / "out.jsonl"
    if kind == "tagged":
        path = tmp_path / "a.txt"
        path.write_text("".join(f"ann {tag}\nruns O\n\n" for tag in ("B-PER", "O", "B-PER")))
        folder = saved(suites.task("conll2003"), tmp_path / "other")
    else:
        labels = (task.labels or ())[:2] * 4
        head, more = ("text_a,text_b,label", ",a cat") if kind == "pair" else ("text,label", "")
        path.write_text("\n".join([head, *(f"the cat {i}{more},{label}" for i, label in enumerate(labels))]))
    (expected,) = answer(capsys, "evaluate", folder, path)[0]["scores"].values()
    answer(capsys, "predict", folder, path, "--out", out, "--with", "text", "gold")
    known = predictor_of(folder).form.head_labels()
    found = answer(capsys, "score", out, path, "--labels", ",".join(known))[0]["scores"]
    assert found["accuracy"] == expected["accuracy"]


def test_a_dry_run_counts_labels_and_tokens_and_trains_nothing(tmp_path, tiny, capsys):
    path = tmp_path / "a.csv"
    texts = [f"the {'red' if i % 4 else 'blue'} cat" + " sat" * (60 if i == 7 else i % 3) for i in range(40)]
    path.write_text("text,label\n" + "".join(f"{text},{'no' if i % 4 else 'yes'}\n" for i, text in enumerate(texts)))
    words = ("finetune", path, "--dev", path, "--model", tiny, "--out", tmp_path / "run", "--dry-run")
    found, said = answer(capsys, *words, "--set", "form.max_length=32")
    train = found["data"]["a"]["train"]
    assert train["examples"] == 40 and train["labels"] == {"no": 30, "yes": 10} and train["cut"] == 1
    assert train["tokens"] == {"median": 4, "95%": 5, "longest": 63} and found["data"]["a"]["dev"] == train
    assert "nothing is trained" in said and not (tmp_path / "run").exists()


@pytest.mark.parametrize("kind", ["single", "number", "several", "tagged", "question", "choice"])
def test_outputs_that_are_nan_are_said(kind, tmp_path, caplog):
    task, splits = ready(kind)
    predictor = predictor_of(saved(task, tmp_path / "model"))
    for name, weight in (*predictor.model.named_parameters(), *predictor.model.named_buffers()):  # packed or not
        if "qkv" in name:
            weight.data.mul_(1e25)  # finite, but the scores of attention are not
    examples, found = splits["dev"].examples, predictor.predict(splits["dev"].examples)
    lines = map(json_line, map(record, examples, found.values, found.details))
    strict = [json.loads(line, parse_constant=pytest.fail) for line in lines]
    assert "null" in json.dumps(strict)
    assert "outputs of the model are NaN: their predictions mean nothing" in caplog.text
