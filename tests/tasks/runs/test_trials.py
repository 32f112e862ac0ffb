from __future__ import annotations

import json
from dataclasses import replace

import pytest

from encoderlab.errors import Diverged
from encoderlab.tasks.data import suites
from encoderlab.tasks.data.splits import remarks_of, usable_splits
from encoderlab.tasks.forms.base import FormSettings, Predictions
from encoderlab.tasks.forms.classification import ClassificationForm
from encoderlab.tasks.forms.scores import baselines
from encoderlab.tasks.runs import trials
from encoderlab.tasks.runs.finetune import FinetuneRecipe
from encoderlab.tasks.runs.protocol import Protocol
from encoderlab.tasks.runs.trials import Origin, baseline_rows, run, summary, system_row
from encoderlab.train.optim import AdamW
from tests.tasks.synthetic import data
from tests.tasks.tiny import model

QUICK = Protocol(
    name="quick",
    source="a test",
    recipe=FinetuneRecipe(epochs=3, batch=16, optim=AdamW(lr=2e-3, weight_decay=0.0), form=FormSettings(max_length=32)),
    seeds=2,
)


def test_a_protocol_searches_on_dev_runs_seeds_and_stores_everything(tmp_path):
    found, splits = data("tagged", train=48, dev=24)
    splits["test"] = replace(data("tagged", train=4, dev=24, seed=9)[1]["dev"], name="test")
    searched = replace(QUICK, grid={"optim.lr": (1e-6, 2e-3)})
    said = []
    outcome = run(searched, model(), found, splits, tmp_path / "out", say=said.append, origin=Origin(after=("mnli",)))
    record = json.loads((tmp_path / "out/score.json").read_text())
    assert record["chosen"] == {"optim.lr": 2e-3} and [len(entry["dev"]) for entry in record["search"]] == [1, 1]
    assert record["scores"]["dev"]["f1"]["n"] == 2 == len(record["seeds"])
    assert set(record["scores"]["test"]) == set(record["scores"]["dev"])
    assert record["after"] == ["mnli"] and len(record["model"]) == 64 and record["data"]["train"]
    values = "48 examples in batches of 16, 9 updates (about 3 epochs), rate 0.002"
    assert said[:2] == [f"tagged: {values}", "tagged: lr=1e-06 seed 1"] and len(said) == 6
    assert f"tagged: lr=0.002 is taken: {values}" in said
    assert outcome.best.scores["dev"]["f1"] == max(run.scores["dev"]["f1"] for run in outcome.runs)
    tested = {path.parent.parent.name for path in (tmp_path / "out").glob("*/*/predictions-test.jsonl")}
    assert tested == {"lr=0.002"}  # the points that were not chosen never saw the test examples
    again = run(searched, model(), found, splits, tmp_path / "out", origin=Origin(after=("mnli",)))
    assert again.record["scores"] == record["scores"]


def test_a_search_whose_runs_are_the_final_ones_says_of_no_file_that_it_is_missing(tmp_path, caplog):
    found, splits = data("tagged", train=16, dev=8)
    searched = replace(QUICK, grid={"optim.lr": (1e-3, 2e-3)}, seeds=1)
    run(searched, model(), found, splits, tmp_path / "out")
    assert "is missing" not in caplog.text
    (tmp_path / "out" / "score.json").unlink()
    run(searched, model(), found, splits, tmp_path / "out")
    assert "score.json: is missing; it is made again" in caplog.text


def test_the_best_seed_of_every_split_and_metric_is_the_best_on_dev(tmp_path, monkeypatch):
    """Not the highest score of a test set, nor the largest error."""
    found, splits = data("number", train=16, dev=8)
    splits["test"] = replace(splits["dev"], name="test", sha256="of the test set")
    original, scores = trials.finetune, {1: (0.9, 0.2, 3.0), 2: (0.5, 0.7, 8.0)}

    def scored(model, task, splits, recipe, out, **more):
        result = original(model, task, splits, recipe, out, **more)
        dev, test, error = scores[recipe.seed]
        given = {"dev": {"pearson": dev, "mean_squared_error": error}, "test": {"pearson": test}}
        return replace(result, record={**result.record, "scores": given})

    monkeypatch.setattr(trials, "finetune", scored)
    outcome = run(replace(QUICK, report="best"), model(), found, splits, tmp_path / "out")
    stats = outcome.record["scores"]
    assert (stats["dev"]["pearson"]["best"], stats["dev"]["pearson"]["worst"]) == (0.9, 0.5)
    assert (stats["test"]["pearson"]["best"], stats["dev"]["mean_squared_error"]["best"]) == (0.2, 3.0)


def test_seeds_that_fail_are_marked_and_counted(tmp_path, monkeypatch):
    found, splits = data("tagged", train=32, dev=16)
    original = trials.finetune

    def sometimes(model, task, splits, recipe, out, **more):
        if recipe.seed == 2:
            raise Diverged("step 3: the gradient is not finite")
        return original(model, task, splits, recipe, out, **more)

    monkeypatch.setattr(trials, "finetune", sometimes)
    outcome = run(QUICK, model(), found, splits, tmp_path / "out")
    assert "not finite" in outcome.record["seeds"]["2"]["failed"] and len(outcome.runs) == 1
    row = system_row(outcome, "ours")
    assert (row.system, row.n, row.failed) == ("ours", 1, 1)
    monkeypatch.setattr(trials, "finetune", lambda *a, **k: sometimes(*a[:3], replace(a[3], seed=2), a[4], **k))
    with pytest.raises(Diverged, match="all 2 seeds failed"):
        run(QUICK, model(), found, splits, tmp_path / "other")


def test_a_run_with_scores_that_are_not_finite_failed(tmp_path):
    """Also when it is read again: JSON has null for them."""
    task, splits = data("number", train=16, dev=8)
    huge = {
        name: replace(split, examples=tuple(replace(one, label=1e200 * one.label) for one in split.examples))
        for name, split in splits.items()
    }
    for _ in range(2):
        with pytest.raises(Diverged, match="all 2 seeds failed .scores that are not finite: .* of dev"):
            run(QUICK, model(), task, huge, tmp_path / "out")


@pytest.mark.parametrize(
    ("labels", "batch", "failed"),
    [(("red", "blue"), 1, True), (("red", "red"), 1, False), (("red", "blue"), 16, False)],
    ids=["64 updates", "one label in the set", "4 updates"],
)
def test_a_run_that_predicts_one_label_of_several_counts_as_failed(tmp_path, monkeypatch, labels, batch, failed):
    """But not one of so few updates that it cannot have learned anything."""
    found, splits = data("single", train=32, dev=2)
    dev = [replace(example, label=label) for example, label in zip(splits["dev"].examples, labels, strict=True)]
    splits = splits | {"dev": replace(splits["dev"], examples=tuple(dev))}
    said = Predictions(values=["red", "red"], details=[{"score": 0.9, "probabilities": [0.05, 0.05, 0.9]}] * 2)
    monkeypatch.setattr(ClassificationForm, "decode", lambda *_: said)
    plan = replace(QUICK, seeds=1, recipe=replace(QUICK.recipe, epochs=2, batch=batch))
    outcome = run(plan, model(), found, splits, tmp_path / "out")
    assert ("failed" in outcome.record["seeds"]["1"]) == failed
    assert len(outcome.failed) == system_row(outcome, "ours").failed == int(failed)


def test_a_benchmark_without_a_development_file_says_what_it_is_scored_on(tmp_path):
    (tmp_path / "train.tsv").write_text("sentence\tlabel\n" + "".join(f"the red cat {i}\t{i % 2}\n" for i in range(80)))
    task = suites.task("sst2")
    splits = usable_splits(task, tmp_path)
    said, _ = remarks_of(splits)  # and that so few examples measure little
    dev = len(splits["dev"])
    assert said == (
        f"train.tsv: no development file; {dev} of 80 training examples are held out as the development set"
    )
    plan = replace(QUICK, seeds=1, recipe=replace(QUICK.recipe, epochs=1))
    found = run(plan, model(), task, splits, tmp_path / "out")
    assert said in found.record["remarks"] and said in found.runs[0].record["remarks"]


def test_summaries_and_rows_of_baselines():
    stats = summary([0.5, 0.6, 0.7])
    assert stats["median"] == 0.6 and stats["sd"] == pytest.approx(0.1) and stats["n"] == 3
    assert summary([0.5])["sd"] is None and summary([0.5])["interval"] is None
    found, splits = data("single", train=64, dev=32)
    row, *others = baseline_rows(found, baselines(found, splits["train"], splits["dev"]))
    assert (row.task, row.metric, row.system, row.n) == ("single", "accuracy", "majority", 0) and others
    assert row.median == row.mean == row.best and row.interval is None
