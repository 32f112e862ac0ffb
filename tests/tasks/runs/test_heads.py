"""The head of a model that was fine-tuned before."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from encoderlab.interchange.load import load
from encoderlab.tasks.data.readers import Columns
from encoderlab.tasks.data.splits import completed
from encoderlab.tasks.forms.base import FormSettings
from encoderlab.tasks.forms.objective import form_of, with_head
from encoderlab.tasks.forms.regression import RegressionSettings
from encoderlab.tasks.runs.finetune import finetune
from encoderlab.tasks.runs.folder import read_task
from encoderlab.tasks.runs.predict import (
    Predictor,
)
from tests.tasks.runs.training import RECIPE, objective_of, task_of
from tests.tasks.synthetic import data
from tests.tasks.tiny import model


def test_heads_that_fit_are_kept_and_others_named(tmp_path):
    objective, _, _ = objective_of("single")
    trained = objective.model
    kept, said = with_head(trained, objective.form, seed=9, same=True)
    assert kept is trained and "is kept" in said
    other, said = with_head(trained, objective.form, seed=9)
    assert other is not trained and "the model's own is dropped: it was not trained for this task" in said
    quiet, said = with_head(trained, objective.form, seed=9, same=True, head=replace(trained.config.task, dropout=0.4))
    assert "kept, with dropout 0.4" in said and quiet.config.task.dropout == 0.4
    assert all(torch.equal(a, b) for a, b in zip(quiet.parameters(), trained.parameters(), strict=True))
    form = form_of(completed(*task_of("pair")), trained, FormSettings(max_length=48))
    other, said = with_head(trained, form, seed=9, same=True)
    assert other is not trained and "the model's own is dropped: it has other labels or another kind" in said


def test_a_head_is_kept_for_its_own_task_alone(tmp_path):
    task, splits = data("single", train=24, dev=6)
    recipe = replace(RECIPE, epochs=1)
    first = finetune(model(), task, splits, recipe, tmp_path / "first")
    start, trained = load(first.model), read_task(first.model)
    for name, job, words in (
        ("same", task, "is kept"),
        ("other", replace(task, name="other"), "the task head is new"),
        ("columns", replace(task, layouts=(Columns(text="text", label="intent"),)), "the task head is new"),
    ):
        found = finetune(start, job, splits, recipe, tmp_path / name, trained=trained)
        assert words in found.record["head"] and found.record["head"] in found.record["notes"]
    recipe = replace(recipe, head_dropout=0.3)
    found = finetune(start, task, splits, recipe, tmp_path / "dropout", trained=trained)
    assert "is kept, with dropout 0.3" in found.record["head"] and load(found.model).config.task.dropout == 0.3


def test_a_head_for_numbers_is_kept_in_its_own_units(tmp_path):
    task, splits = data("number", train=24, dev=6)
    first = finetune(model(), task, splits, replace(RECIPE, epochs=1), tmp_path / "first")
    start, trained = load(first.model), read_task(first.model)
    for targets, words in (("unit", "the task head is new"), ("raw", "is kept")):
        recipe = replace(RECIPE, epochs=1, form=RegressionSettings(max_length=48, targets=targets))
        found = finetune(start, task, splits, recipe, tmp_path / targets, trained=trained)
        assert words in found.record["head"]


def test_a_saved_model_answers_in_the_numbers_of_a_task_with_a_range(tmp_path):
    task, splits = data("number", train=32, dev=8)
    task = replace(task, range=(0.0, 30.0))
    result = finetune(model(), task, splits, replace(RECIPE, epochs=2), tmp_path / "run")
    again = Predictor.of(load(result.model), task, read_task(result.model).settings)
    assert np.allclose(again.predict(splits["dev"].examples).values, result.predictions["dev"].values, atol=1e-4)
