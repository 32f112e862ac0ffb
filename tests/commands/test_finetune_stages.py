from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from encoderlab.commands.finetune_stages import Fields, FinetunePlan, _check_searched, _unset, check_folder, fields_of
from encoderlab.errors import ConfigError
from encoderlab.tasks.forms.table import FORMS
from encoderlab.tasks.runs.finetune import FinetuneRecipe
from encoderlab.tasks.runs.published import protocol


def plan(fields: Fields, *, several: bool = False) -> FinetunePlan:
    return FinetunePlan(protocol=protocol("plain"), fields=fields, several=several)


@pytest.mark.parametrize(
    ("option", "file", "assignments", "found"),
    [
        (None, "batch: 8", [], (3.0, 500)),
        (2.0, "batch: 8", [], (2.0, None)),
        (None, "batch: 8", ["epochs=3"], (3.0, None)),
        (None, "epochs: 3", [], (3.0, None)),
        (None, "{epochs: 3, steps: 70}", [], (3.0, 70)),
        (None, "steps: 70", ["epochs=3"], (3.0, None)),
    ],
)
def test_epochs_count_instead_of_the_steps_of_a_protocol(
    option: float | None, file: str, assignments: list[str], found: tuple[float, int | None], tmp_path: Path
) -> None:
    (tmp_path / "a.yaml").write_text(file)
    made = plan(fields_of(option, [tmp_path / "a.yaml"], assignments)).adjust(FinetuneRecipe(steps=500))
    assert (made.epochs, made.steps) == found


def test_epochs_of_the_environment_count_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENCODERLAB_EPOCHS", "4")
    made = plan(fields_of(None, [], [])).adjust(FinetuneRecipe(steps=500))
    assert (made.epochs, made.steps) == (4.0, None)


@pytest.mark.parametrize(
    ("given", "left"),
    [
        ([("--set", {"optim.lr": "1e-3"})], {"optim.weight_decay", "epochs"}),
        ([("--set", {"optim": None})], {"epochs"}),
        ([("a.yaml", {"steps": 2})], {"optim.lr", "optim.weight_decay"}),
        ([("--epochs", {"epochs": 2.0})], {"optim.lr", "optim.weight_decay"}),
        ([("environment", {"optim.lr_scale": 2, "batch": 3})], {"optim.lr", "optim.weight_decay", "epochs"}),
    ],
)
def test_what_is_set_is_not_searched_by_a_protocol(
    given: list[tuple[str, dict[str, Any]]], left: set[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert set(_unset(protocol("convbert"), given)) == left
    assert ("is set, so it is not searched" in capsys.readouterr().err) == (len(left) < 3)


def test_what_the_command_line_searches_it_does_not_set() -> None:
    with pytest.raises(ConfigError, match="optim.lr is both searched and set .--set.; leave one of them out"):
        _check_searched({"optim.lr": (1e-3,)}, [("--set", {"optim.lr": "1e-4"})])
    with pytest.raises(ConfigError, match="epochs is both searched and set .--set."):
        _check_searched({"epochs": (3, 10)}, [("--set", {"steps": "9"})])
    _check_searched({"optim.lr": (1e-3,)}, [("a.yaml", {"optim.lr": 1e-4}), ("environment", {"optim.lr": "1"})])


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    check_folder(tmp_path / "new")
    seeds = "one/runs/seed-1", "suite/mrpc/lr=0.1/seed-1", "two/after-mnli/runs/seed-1"
    for place in (*seeds, "three/tune/lr=0.1", "four/runs"):
        (tmp_path / place).mkdir(parents=True)
        check_folder(tmp_path / place.partition("/")[0])
    (tmp_path / "suite" / "notes.txt").touch()
    check_folder(tmp_path / "suite")
    data, pretraining = tmp_path / "data", tmp_path / "run"
    for folder, name in ((data, "reviews.csv"), (pretraining, "recipe.json")):
        folder.mkdir()
        (folder / name).touch()
    with pytest.raises(ConfigError, match=r"is not empty and not a fine-tuning run \(found 'reviews.csv'\)"):
        check_folder(data)
    with pytest.raises(ConfigError, match="has another run"):
        check_folder(pretraining)


def test_in_a_suite_an_option_of_a_form_is_for_its_tasks_alone():
    """CoLA has no range of numbers, STS-B has one."""
    fields = fields_of(None, [], ["form.targets=raw", "form.max_length=64"])
    recipes = {name: FinetuneRecipe(form=FORMS[name].settings_type()) for name in ("classification", "regression")}
    made = {name: plan(fields, several=True).adjust(recipe).form for name, recipe in recipes.items()}
    assert made["regression"].targets == "raw" and made["classification"].max_length == 64
    with pytest.raises(ConfigError, match="form.targets is for regression, not for classification"):
        plan(fields).adjust(recipes["classification"])
    with pytest.raises(ConfigError, match="unknown key 'form.tragets'"):
        plan(fields_of(None, [], ["form.tragets=raw"]), several=True).adjust(recipes["regression"])
