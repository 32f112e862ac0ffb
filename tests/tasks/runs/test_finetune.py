"""A tiny model learns every form of task, from scratch, in seconds; what a run leaves behind."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

from encoderlab.config import to_dict
from encoderlab.errors import ConfigError, DataError, Stopped
from encoderlab.interchange.load import load
from encoderlab.model import weights_hash
from encoderlab.tasks.data.readers import Columns
from encoderlab.tasks.data.splits import completed
from encoderlab.tasks.forms.base import FormSettings, Predictions
from encoderlab.tasks.forms.span import SpanSettings, best_threshold
from encoderlab.tasks.runs.finetune import FinetuneRecipe, finetune, prepared
from encoderlab.tasks.runs.folder import read_task
from encoderlab.tasks.runs.predict import (
    Predictor,
)
from encoderlab.train.optim import AdamW
from encoderlab.train.recipe import Budget, Execution
from tests.tasks.runs.training import FORMS, RECIPE, SMALL
from tests.tasks.synthetic import data
from tests.tasks.tiny import model


@pytest.mark.parametrize(("name", "epochs", "wanted"), FORMS)
def test_a_tiny_model_learns_the_rule(tmp_path, name, epochs, wanted):
    task, splits = data(name, train=160, dev=40)
    result = finetune(model(), task, splits, replace(RECIPE, epochs=epochs), tmp_path / "run")
    assert result.scores["dev"][task.metric] >= wanted
    assert json.loads((tmp_path / "run/score.json").read_text())["scores"] == result.scores
    assert len((tmp_path / "run/predictions-dev.jsonl").read_text().splitlines()) == 40
    assert not (tmp_path / "run/checkpoints").exists()
    # The saved model predicts what the run predicted.
    loaded = load(tmp_path / "run")
    kept = read_task(tmp_path / "run")
    again = Predictor.of(loaded, replace(completed(task, splits["train"])), kept.settings)
    if name == "number":
        assert np.allclose(again.predict(splits["dev"].examples).values, result.predictions["dev"].values, atol=1e-4)
    else:
        assert again.predict(splits["dev"].examples).values == result.predictions["dev"].values


@pytest.mark.parametrize("name", ["single", "number", "tagged", "question", "choice"])
def test_32_examples_are_learned_by_heart(tmp_path, name):
    task, splits = data(name, train=32, dev=4, seed=5)
    splits["train_again"] = splits["train"]
    recipe = replace(RECIPE, epochs=40, batch=8, select="last")
    result = finetune(model(), task, splits, recipe, tmp_path / "run")
    assert result.scores["train_again"][task.metric] > 0.995


@pytest.mark.parametrize("size", ["electra-tiny", "xlnet-tiny"])
def test_questions_without_answer_under_heads_with_answerability(tmp_path, size):
    task, splits = data("question", train=120, dev=30, impossible=True)
    recipe = replace(RECIPE, epochs=8, form=SpanSettings(max_length=48, beam=5))
    result = finetune(model(size), task, splits, recipe, tmp_path / "run")
    assert result.scores["dev"]["f1"] >= 0.9
    assert result.scores["dev"]["no_answer_exact"] >= 0.9
    assert any("chosen on dev" in note for note in result.record["notes"])


def test_where_no_answer_at_all_is_best_the_threshold_withdraws_every_answer():
    task, splits = data("question", train=4, dev=20, impossible=True)
    keys = [question.id for question in splits["dev"].examples]
    spans = [{"text": "wrong", "score": 0.0}]
    found = Predictions(
        values=["wrong"] * 20,
        details=[{}] * 20,
        null_odds={key: -3.0 for key in keys},
        nbest=dict.fromkeys(keys, spans),
    )
    assert best_threshold(task, splits["dev"].examples, found) < -3


@pytest.mark.parametrize("packing", ["packed", "dynamic", "fixed"])
def test_texts_may_be_as_long_as_a_model_with_an_odd_number_of_positions_reads(packing, tmp_path):
    task, splits = data("single", train=16, dev=8)
    splits = {
        name: replace(split, examples=tuple(replace(e, text=" ".join([e.text] * 9)) for e in split.examples))
        for name, split in splits.items()
    }
    recipe = replace(RECIPE, epochs=1, packing=packing, form=FormSettings(max_length=29))
    result = finetune(model(positions=29), task, splits, recipe, tmp_path / "run")
    assert result.record["cut"] > 8
    again = Predictor.of(load(tmp_path / "run"), completed(task, splits["train"]))
    assert again.form.settings.max_length == 29
    assert again.predict(splits["dev"].examples).values == result.predictions["dev"].values


def test_an_interrupted_run_ends_with_the_same_score(tmp_path):
    task, splits = data("single", train=64, dev=32)
    recipe = replace(RECIPE, epochs=6)
    whole = finetune(model(dropout=0.1), task, splits, recipe, tmp_path / "whole")
    with pytest.raises(Stopped):
        finetune(model(dropout=0.1), task, splits, recipe, tmp_path / "cut", session=Budget(amount=7))
    rest = finetune(model(dropout=0.1), task, splits, recipe, tmp_path / "cut")
    assert rest.scores == whole.scores and rest.record["steps"] == whole.record["steps"]
    a, b = load(tmp_path / "whole").state_dict(), load(tmp_path / "cut").state_dict()
    assert all(torch.equal(a[key], b[key]) for key in a)


def test_best_weights_that_are_damaged_become_no_model(tmp_path, monkeypatch):
    task, splits = data("single", train=32, dev=8)
    recipe = replace(RECIPE, epochs=1)

    def killed(*args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("encoderlab.tasks.runs.finetune.FineTuning.evaluate", killed)
        with pytest.raises(KeyboardInterrupt):
            finetune(model(), task, splits, recipe, tmp_path)
    weights = tmp_path / "checkpoints" / "best" / "weights.safetensors"
    changed = bytearray(weights.read_bytes())
    changed[-100] ^= 1
    weights.write_bytes(changed)
    with pytest.raises(
        DataError, match="its bytes have changed .*; restore it, or delete .*checkpoints to train again"
    ):
        finetune(model(), task, splits, recipe, tmp_path)
    assert not (tmp_path / "model").exists()


def test_a_run_killed_while_it_deletes_its_checkpoints_is_finished(tmp_path, monkeypatch):
    task, splits = data("single", train=32, dev=8)
    recipe = replace(RECIPE, epochs=1)

    rmtree = shutil.rmtree

    def killed(folder, **options):
        if folder.name != "checkpoints":
            return rmtree(folder, **options)
        next(folder.glob("step-*/state.json")).unlink()
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("encoderlab.tasks.runs.folder.shutil.rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            finetune(model(), task, splits, recipe, tmp_path / "cut")
    assert (tmp_path / "cut" / "checkpoints").is_dir()
    whole = finetune(model(), task, splits, recipe, tmp_path / "whole")
    rest = finetune(model(), task, splits, recipe, tmp_path / "cut")
    assert rest.scores == whole.scores and not rest.damaged
    for name in ("model/model.safetensors", "predictions-dev.jsonl"):
        assert (rest.folder / name).read_bytes() == (whole.folder / name).read_bytes()
    assert not (tmp_path / "cut" / "checkpoints").exists()


def test_a_finished_run_is_read_and_another_recipe_refused(tmp_path):
    task, splits = data("single", train=32, dev=8)
    recipe = replace(RECIPE, epochs=1)
    first = finetune(model(), task, splits, recipe, tmp_path / "run")
    second = finetune(model(), task, splits, recipe, tmp_path / "run")
    assert second.predictions is None and second.scores == first.scores
    other = replace(recipe, execution=Execution(micro_rows=2))
    assert finetune(model(), task, splits, other, tmp_path / "run").scores == first.scores
    with pytest.raises(ConfigError, match="has a finished run with epochs 1"):
        finetune(model(), task, splits, replace(recipe, epochs=2), tmp_path / "run")
    with pytest.raises(ConfigError, match="has a finished run on other train data"):
        finetune(model(), task, data("single", train=40, dev=8)[1], recipe, tmp_path / "run")


def test_the_folder_of_another_run_is_refused(tmp_path):
    task, splits = data("single", train=32, dev=8)
    recipe = replace(RECIPE, epochs=1)
    finetune(model(), task, splits, recipe, tmp_path / "run", about={"after": ["mnli"]})
    renamed = {
        name: replace(split, examples=tuple(replace(e, label=e.label.upper()) for e in split.examples))
        for name, split in splits.items()
    }
    for words, start, job, parts, after in (
        ("an initial model with hash", model(width=32), task, splits, ["mnli"]),
        ("columns", model(), replace(task, layouts=(Columns(text="text", label="intent"),)), splits, ["mnli"]),
        ("task single", model(), replace(task, name="other"), splits, ["mnli"]),
        ("labels", model(), task, renamed, ["mnli"]),
        ("intermediate tasks", model(), task, splits, []),
    ):
        with pytest.raises(ConfigError, match=f"has a run with {words}.*now .*choose another --out"):
            finetune(start, job, parts, recipe, tmp_path / "run", about={"after": after})


def test_an_interrupted_run_goes_on_with_its_model_alone(tmp_path):
    task, splits = data("single", train=32, dev=8)
    recipe = replace(RECIPE, epochs=4)
    with pytest.raises(Stopped):
        finetune(model(), task, splits, recipe, tmp_path / "run", session=Budget(amount=3))
    other = model()
    with torch.no_grad():
        next(other.parameters()).add_(1)
    with pytest.raises(ConfigError, match="data model"):
        finetune(other, task, splits, recipe, tmp_path / "run")


@pytest.mark.parametrize(
    ("name", "frozen"),
    [("single", None), ("number", None), ("question", None), ("tagged", SMALL), ("number", SMALL)],
)
def test_a_finished_run_predicts_the_splits_it_did_not_have(tmp_path, name, frozen):
    task, splits = data(name, train=24, dev=6)
    recipe = replace(RECIPE, epochs=1, frozen=frozen)
    whole = {**splits, "test": replace(splits["dev"], name="test")}
    finetune(model(), task, splits, recipe, tmp_path / "run")
    assert not (tmp_path / "run/predictions-test.jsonl").exists()
    found = finetune(model(), task, whole, recipe, tmp_path / "run")
    assert (
        found.scores["test"] == pytest.approx(found.scores["dev"], rel=1e-3) and found.record["examples"]["test"] == 6
    )
    assert len((tmp_path / "run/predictions-test.jsonl").read_text().splitlines()) == 6
    assert finetune(model(), task, whole, recipe, tmp_path / "run").scores == found.scores


def test_the_given_model_is_left_as_it_is(tmp_path):
    task, splits = data("single", train=32, dev=8)
    start = model()
    before = weights_hash(start)
    result = finetune(start, task, splits, replace(RECIPE, epochs=1, dropout=0.2), tmp_path / "run")
    assert weights_hash(start) == before and weights_hash(load(tmp_path / "run")) != before
    assert to_dict(load(tmp_path / "run").config)["encoder"]["dropout"] == 0.2
    assert result.record["head"] == "the task head is new"


def test_weights_are_not_divided_among_processes():
    with pytest.raises(ConfigError, match="fine-tuning divides no weights among processes; set execution.parallel=ddp"):
        FinetuneRecipe(execution=Execution(parallel="fsdp"))


def test_training_needs_something_to_learn_from(tmp_path):
    task, splits = data("question", train=4)
    lost = replace(
        splits["train"],
        examples=tuple(replace(e, answers=(replace(e.answers[0], start=-1),)) for e in splits["train"].examples),
    )
    with pytest.raises(DataError, match="no training example can be learned from"):
        finetune(model(), task, {**splits, "train": lost}, RECIPE, tmp_path / "run")
    with pytest.raises(ConfigError, match="has no dev data to choose an epoch"):
        finetune(model(), task, {"train": splits["train"]}, RECIPE, tmp_path / "run2")
    with pytest.raises(ConfigError, match="max_length 600 exceeds the model's 512 positions"):
        finetune(model(), task, splits, replace(RECIPE, form=FormSettings(max_length=600)), tmp_path / "run3")


def test_prepared_copies_weights():
    start = model()
    assert weights_hash(prepared(start, replace(RECIPE, dropout=0.3))) == weights_hash(start)


def test_labels_that_training_never_shows_are_refused(tmp_path):
    task, splits = data("single", train=20, dev=4)
    strange = replace(splits["dev"].examples[0], label="mauve", row=7)
    with pytest.raises(DataError, match="dev:7: label 'mauve' never occurs in the training data"):
        finetune(
            model(), task, {**splits, "dev": replace(splits["dev"], examples=(strange,))}, RECIPE, tmp_path / "run"
        )


@pytest.mark.parametrize(("name", "done"), [("single", "were cut"), ("tagged", "were read in parts")])
def test_what_is_longer_than_a_sequence_is_counted(tmp_path, name, done):
    task, splits = data(name, train=8, dev=4)
    result = finetune(model(), task, splits, replace(RECIPE, epochs=1, form=FormSettings(max_length=4)), tmp_path)
    (said,) = (note for note in result.record["notes"] if "longer than 4 tokens" in note)
    assert said.endswith(done)


def test_examples_are_encoded_once_for_several_runs(tmp_path, monkeypatch):
    from encoderlab.tasks.forms.encodings import Encodings
    from encoderlab.tasks.forms.regression import RegressionForm

    task, splits = data("number", train=20, dev=8)
    encodings, calls = Encodings(), []
    original = RegressionForm.items
    monkeypatch.setattr(RegressionForm, "items", lambda self, *a, **k: calls.append(1) or original(self, *a, **k))
    first = finetune(model(), task, splits, replace(RECIPE, epochs=1), tmp_path / "a", encodings=encodings)
    assert len(calls) == 2
    second = finetune(model(), task, splits, replace(RECIPE, epochs=1), tmp_path / "b", encodings=encodings)
    assert len(calls) == 2 and second.scores == first.scores


@pytest.mark.parametrize("name", ["single", "several", "tagged", "choice"])
def test_a_loss_that_never_left_that_of_guessing_is_a_finding(tmp_path, name):
    task, splits = data(name, train=96, dev=24)
    lazy = replace(RECIPE, epochs=2, optim=AdamW(lr=1e-9))
    notes = finetune(model(), task, splits, lazy, tmp_path / "lazy").record["notes"]
    assert any(note.startswith("doctor: nothing learned: the loss never fell below") for note in notes)
    notes = finetune(model(), task, splits, replace(RECIPE, epochs=12), tmp_path / "run").record["notes"]
    assert not any("nothing learned" in note for note in notes)


def test_patience_ends_a_run_that_does_not_get_better(tmp_path):
    task, splits = data("single", train=32, dev=12)
    lazy = replace(RECIPE, epochs=9, optim=AdamW(lr=1e-9), patience=2)
    record = finetune(model(), task, splits, lazy, tmp_path / "run").record
    assert (record["steps"], record["best_step"], record["epochs"]) == (3 * 2, 2, 3.0)
    assert "stopped at step 6 of 18: no better development score for 2 epochs" in record["notes"]
    with pytest.raises(Stopped):
        finetune(model(), task, splits, lazy, tmp_path / "again", session=Budget(amount=5, unit="steps"))
    assert finetune(model(), task, splits, lazy, tmp_path / "again").record["steps"] == 6
    with pytest.raises(ConfigError, match="patience needs select=best_epoch"):
        replace(RECIPE, patience=2, select="last")
