"""Folders that the version before the forms' own settings wrote: models, finished runs and interrupted ones."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from encoderlab.errors import ConfigError, Stopped
from encoderlab.files import write_json
from encoderlab.interchange import checksums
from encoderlab.tasks.runs.apply import predictor_of
from encoderlab.tasks.runs.finetune import FinetuneRecipe, finetune
from encoderlab.tasks.runs.folder import read_task
from encoderlab.train.recipe import Budget
from tests.tasks.synthetic import data
from tests.tasks.tiny import model

OLD = {  # every field of the settings that all forms shared
    "max_length": 48, "pairs": None, "swap": False, "context": "sentence", "targets": "unit", "choice": "joined",
    "stride": 128, "query_length": 64, "answer_length": 30, "n_best": 20, "beam": None, "impossible_weight": 0.5,
}  # fmt: skip


def aged(path: Path) -> None:
    """Give the recipe in a file, or in its ``recipe``, the settings as they were, without fields that came later."""
    plain = json.loads(path.read_text())
    recipe = plain.get("recipe", plain)
    recipe["form"] = {**OLD, **{key: value for key, value in recipe["form"].items() if key in OLD}}
    recipe.pop("average", None)
    plain.pop("sha256", None)
    write_json(path, plain)


@pytest.mark.parametrize("name", ["single", "number", "tagged", "question", "choice"])
def test_a_finished_run_is_read_and_predicts_as_before(tmp_path: Path, name: str) -> None:
    task, splits = data(name, train=24, dev=8)
    recipe = FinetuneRecipe(epochs=1, form=replace(FinetuneRecipe().form, max_length=48))
    first = finetune(model(), task, splits, recipe, tmp_path / "run")
    before = predictor_of(tmp_path / "run").predict(splits["dev"].examples).values
    aged(tmp_path / "run/score.json")
    (tmp_path / "run/model/score.json").unlink(missing_ok=True)
    record = json.loads((tmp_path / "run/score.json").read_text())
    record.pop("files", None)  # nor did it keep hashes
    write_json(tmp_path / "run/score.json", record)
    kept = json.loads((tmp_path / "run/model/task.json").read_text())
    kept["settings"] = {**OLD, **{key: value for key, value in kept["settings"].items() if key in OLD}}
    write_json(tmp_path / "run/model/task.json", kept)
    (tmp_path / "run/model" / checksums.NAME).unlink(missing_ok=True)
    again = finetune(model(), task, splits, recipe, tmp_path / "run")
    assert again.predictions is None and again.scores == first.scores
    settings = read_task(tmp_path / "run")["settings"]
    assert settings.kind == task.form and settings.max_length == 48
    assert predictor_of(tmp_path / "run").predict(splits["dev"].examples).values == before
    with pytest.raises(ConfigError, match="has a finished run with form"):
        finetune(model(), task, splits, replace(recipe, form=replace(recipe.form, max_length=40)), tmp_path / "run")


def test_an_interrupted_run_goes_on(tmp_path: Path) -> None:
    task, splits = data("single", train=64, dev=8)
    recipe = FinetuneRecipe(epochs=2, form=replace(FinetuneRecipe().form, max_length=48))
    whole = finetune(model(), task, splits, recipe, tmp_path / "whole")
    with pytest.raises(Stopped):
        finetune(model(), task, splits, recipe, tmp_path / "run", session=Budget(amount=2, unit="steps"))
    for path in (tmp_path / "run").rglob("recipe.json"):
        if path.parent == tmp_path / "run":
            aged(path)
    result = finetune(model(), task, splits, recipe, tmp_path / "run")
    assert result.scores == whole.scores
