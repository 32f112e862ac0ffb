from __future__ import annotations

import json
from dataclasses import replace

import pytest

from encoderlab.errors import ConfigError, Diverged
from encoderlab.tasks import protocol as protocols
from encoderlab.tasks.baselines import baselines
from encoderlab.tasks.finetune import Recipe
from encoderlab.tasks.form import FormSettings
from encoderlab.tasks.protocol import PROTOCOLS, Protocol, baseline_rows, parse_grid, rows, run, summary, table
from encoderlab.tasks.suites import TASKS, task
from encoderlab.train.optim import AdamW
from tests.tasks.synthetic import data
from tests.tasks.tiny import model

QUICK = Protocol(
    name="quick",
    source="a test",
    recipe=Recipe(epochs=3, batch=16, optim=AdamW(lr=2e-3, weight_decay=0.0), form=FormSettings(max_length=32)),
    seeds=2,
)


def test_every_protocol_gives_a_recipe_for_every_task_it_names():
    start = model()
    for found in PROTOCOLS.values():
        for name in found.tasks:
            if not name.startswith("form:"):
                recipe = found.recipe_for(task(name), start)
                assert recipe.form.max_length <= 512 and recipe.batch >= 8, (found.name, name)
        assert all(key.startswith("form:") or key in TASKS for key in found.tasks)


def test_recipes_are_those_of_the_papers():
    start = model()
    bert = PROTOCOLS["bert"]
    assert bert.grid == {"optim.lr": (5e-5, 4e-5, 3e-5, 2e-5)} and bert.recipe_for(task("mrpc"), start).batch == 32
    assert PROTOCOLS["roberta"].recipe_for(task("rte"), start).steps == 2036
    assert PROTOCOLS["albert"].recipe_for(task("cola"), start).dropout == 0.0
    electra = PROTOCOLS["electra"]
    small, large = electra.recipe_for(task("rte"), start), electra.recipe_for(task("rte"), model(width=1024))
    assert (small.optim.lr, small.epochs, small.optim.layer_decay.decay) == (3e-4, 10.0, 0.8)
    assert (large.optim.lr, large.optim.layer_decay.decay, large.form.swap) == (5e-5, 0.9, True)
    assert PROTOCOLS["deberta"].recipe_for(task("cola"), start).head_dropout == 0.1
    assert PROTOCOLS["clue"].recipe_for(task("cmrc2018"), start).form.max_length == 512
    assert PROTOCOLS["bert"].recipe_for(task("conll2003"), start).form.context == "document"


def test_unknown_names_are_refused():
    with pytest.raises(ConfigError, match="unknown protocol 'elektra'; did you mean 'electra'"):
        protocols.protocol("elektra")
    with pytest.raises(ConfigError, match="expected field=value,value"):
        parse_grid(["lr"])
    assert parse_grid(["lr=5e-5,1e-4", "epochs=3,10"]) == {"optim.lr": (5e-5, 1e-4), "epochs": (3, 10)}


def test_a_protocol_searches_on_dev_runs_seeds_and_stores_everything(tmp_path):
    found, splits = data("tagged", train=48, dev=24)
    splits["test"] = replace(data("tagged", train=4, dev=24, seed=9)[1]["dev"], name="test")
    searched = replace(QUICK, grid={"optim.lr": (1e-6, 2e-3)})
    said = []
    outcome = run(searched, model(), found, splits, tmp_path / "out", say=said.append, after=("mnli",))
    record = json.loads((tmp_path / "out/score.json").read_text())
    assert record["chosen"] == {"optim.lr": 2e-3} and [len(entry["dev"]) for entry in record["search"]] == [1, 1]
    assert record["scores"]["dev"]["f1"]["n"] == 2 == len(record["seeds"])
    assert set(record["scores"]["test"]) == set(record["scores"]["dev"])
    assert record["after"] == ["mnli"] and len(record["model"]) == 64 and record["data"]["train"]
    assert said[0] == "tagged: lr=1e-06 seed 1" and len(said) == 4
    assert outcome.best.scores["dev"]["f1"] == max(run.scores["dev"]["f1"] for run in outcome.runs)
    again = run(searched, model(), found, splits, tmp_path / "out")
    assert again.record["scores"] == record["scores"]


def test_seeds_that_fail_are_marked_and_counted(tmp_path, monkeypatch):
    found, splits = data("tagged", train=32, dev=16)
    original = protocols.finetune

    def sometimes(model, task, splits, recipe, out, **more):
        if recipe.seed == 2:
            raise Diverged("step 3: the gradient is not finite any more")
        return original(model, task, splits, recipe, out, **more)

    monkeypatch.setattr(protocols, "finetune", sometimes)
    outcome = run(QUICK, model(), found, splits, tmp_path / "out")
    assert "not finite" in outcome.record["seeds"]["2"]["failed"] and len(outcome.runs) == 1
    assert "1 (1 failed)" in table(rows([outcome], "ours"))
    monkeypatch.setattr(protocols, "finetune", lambda *a, **k: sometimes(*a[:3], replace(a[3], seed=2), a[4], **k))
    with pytest.raises(Diverged, match="all 2 seeds failed"):
        run(QUICK, model(), found, splits, tmp_path / "other")


def test_a_run_that_predicts_one_label_counts_as_failed(tmp_path):
    found, splits = data("single", train=32, dev=16)
    hopeless = replace(QUICK, seeds=1, recipe=replace(QUICK.recipe, epochs=1, optim=AdamW(lr=1e-9)))
    outcome = run(hopeless, model(), found, splits, tmp_path / "out")
    assert "one label" in outcome.record["seeds"]["1"].get("failed", "one label")


def test_summaries_and_tables():
    stats = summary([0.5, 0.6, 0.7])
    assert stats["median"] == 0.6 and stats["sd"] == pytest.approx(0.1) and stats["n"] == 3
    assert summary([0.5])["sd"] is None and summary([0.5])["interval"] is None
    found, splits = data("single", train=64, dev=32)
    text = table(baseline_rows(found, baselines(found, splits["train"], splits["dev"])))
    assert "| single | accuracy | majority |" in text and text.count("\n") >= 3
