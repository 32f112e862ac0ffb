"""The plan of a study: recipes, validations, and the checks before any work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from encoderlab.errors import ConfigError, DataError
from encoderlab.interchange.load import load
from encoderlab.measure.pairs.evaluate import survey
from encoderlab.study import plan as plan_module
from encoderlab.study.plan import StudyPlan
from encoderlab.train.networks import full_operations
from tests.study.small import SMALL, written


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"budget": {"flops": 1e9, "steps": 3}}, "budget has steps, flops; give one of"),
        ({"budget": {"flop": 1e9}}, "unknown key 'budget.flop'; did you mean 'flops'"),
        ({"budget": {"steps": [4, 4]}}, "expected numbers above 0, each once"),
        ({"budget": {"steps": [2.4, 4]}}, r"budget.steps is \[2.4, 4\], expected whole numbers"),
        ({"budget": {"tokens": [1500000, 1500001]}}, "two runs would be called .*1.5e.06.*first six digits"),
        ({"budget": {"steps": 4, "parameters": 1000}}, r"arm 'few' at 4 steps: [\d,]+ parameters, budget.parameters"),
        ({"seeds": []}, "expected at least 1 seed"),
        ({"arms": {}}, "nothing to compare"),
        ({"arms": {"a/b": {}}}, "name a folder"),
        ({"arms": {"few": {"sett": {}}}}, "arms.few: unknown key 'sett'; did you mean 'set'"),
        ({"arms": {"few": {"set": {"optim.lrr": 1}}}}, "arm 'few': unknown key"),
        ({"arms": {"few": {"recipe": "bert-huge"}}}, "arm 'few': unknown recipe 'bert-huge'"),
        (
            {"arms": {"few": {"set": {"format.kind": "contiguous_streams"}}}},
            "arm 'few' at 4 steps: contiguous_streams are for the causal objective",
        ),
        ({"arms": {"few": {"corpus": "absent"}}}, "arm 'few' at 4 steps: .*absent"),
        ({"recipe": None}, "arm 'few' has no recipe"),
        ({"baseline": "fewer"}, "there is no arm 'fewer'; did you mean 'few'"),
        ({"claims": [{"better": "few", "than": "many", "by": "glue"}]}, "there is no measure 'glue'"),
        ({"tune": {"field": "optim.kind"}}, "tune.field 'optim.kind' is 'adamw', expected a number"),
        ({"tune": {"field": "lr"}}, "arm 'few': tune.field: unknown key 'lr'; did you mean 'optim.lr'"),
        ({"baseline": 1}, r"baseline: expected text \(got 1\); put it in quotes"),
        ({"claims": [{"better": "few", "than": "few"}]}, "a claim compares 'few' with itself"),
        ({"measures": [{"kind": "pairs", "data": ["a.txt"], "name": "loss"}]}, "give each a name of its own, not loss"),
        ({"vary": {"lr": [1, 2], "optim.lr": [3, 4]}}, "lr"),
        ({"tune": {"factors": []}}, "give different numbers above 0"),
        ({"measures": [{"kind": "pairs", "data": ["absent.txt"]}]}, "absent.txt: no such file"),
        ({"measures": [{"kind": "finetune", "task": "colla", "data": "."}]}, "colla"),
        ({"measures": [{"kind": "finetune", "task": "glue", "data": "."}]}, "glue is a suite; give one of cola, "),
        (
            {"measures": [{"kind": "finetune", "task": "cola"}]},
            "measure 'cola': cola is a benchmark; give the folder of",
        ),
        (
            {"measures": [{"kind": "finetune", "task": "cola", "data": ".", "dev": "own.csv"}]},
            "measure 'cola': cola is a benchmark with known files; leave out dev",
        ),
        ({"measures": [{"kind": "finetune", "task": "own.csv"}]}, "measure 'own.csv': .*own.csv: no such file; give"),
        ({"measures": [{"kind": "glue"}]}, "unknown kind 'glue'"),
        ({"measures": [{"kind": "pairs", "data": []}]}, "measures.0.data is .*; give at least 1 entry"),
        ({"measures": [{"kind": "finetune", "task": "cola", "data": ".", "name": "../a"}]}, "measure '../a'"),
        (
            {"measures": [{"kind": "finetune", "task": "cola", "data": ".", "name": name} for name in ("a b", "a_b")]},
            "'a b', 'a_b'. differ only in spaces",
        ),
        ({"arms": {"\U0001f600" * 80: {}}}, "name a folder"),
        ({"set": {**SMALL["set"], "seed": 7}}, "arm 'few' sets 'seed', which every run has from 'seeds'; leave it out"),
        ({"vary": {"budget.amount": [2, 4]}}, "arm 'few amount=2' sets 'budget.amount', which every run has from"),
        ({"tune": {"field": "seed"}}, "tune sets 'seed'"),
        (
            {"arms": {"few": None}, "tune": {"field": "objective.masking.mask", "factors": [1, 2]}},
            "arm 'few', the trial of objective.masking.mask 1.6: mask 1.6 and random 0.1 add up to more than 1",
        ),
        (
            {"measures": [{"kind": "pairs", "data": ["pairs.txt"], "budgets": [4, 8]}]},
            "measure 'minimal pairs' is of budget 8; the study has 4",
        ),
        ({"arms": {"few": {"budgets": [8]}}}, "arm 'few' is of budget 8; the study has 4"),
        ({"arms": {"few": {"budgets": [2]}}, "budget": {"steps": [2, 4]}}, "no arm is of budget 4; add it"),
        ({"margins": {"minimal pairs": 1}}, "margins.minimal pairs is 1; scores are shares, so give 0.01"),
        ({"margins": {"loss": -0.1}}, "margins is -0.1; give at least 0"),
        ({"arms": {"few": {"set": {"model.lm": None}}}}, "arm 'few' at 4 steps: .*LM head"),
        (
            {
                "budget": {"flops": 1e9},
                "arms": {"few": {"set": {"objective": {"kind": "distill", "teacher": "absent"}}}},
            },
            "arm 'few': absent: no such file",
        ),
    ],
)
def test_a_study_that_cannot_run_is_refused_before_any_work(
    place: Path, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises((ConfigError, DataError), match=message):
        StudyPlan.read(written(place, **changes))


def test_minimal_pairs_are_read_once_for_arms_with_one_tokenizer(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read_for: list[int | None] = []

    def counted(*arguments: Any, longest: int | None) -> None:
        read_for.append(longest)
        survey(*arguments, longest=longest)

    monkeypatch.setattr(plan_module, "survey", counted)
    arms = {"one": None, "two": None, "unbounded": {"recipe": "transformer-xl-tiny"}}
    StudyPlan.read(written(place, budget={"steps": [2, 4]}, arms=arms))
    assert len(read_for) == 1
    read_for.clear()
    StudyPlan.read(written(place, budget={"steps": [2, 4]}, arms=dict(reversed(arms.items()))))
    assert read_for[0] is None and len(read_for) == 2  # sentences of any length may be too long for others


def test_an_entry_of_a_list_can_be_tuned(place: Path) -> None:
    plan = StudyPlan.read(written(place, tune={"field": "phases.0.rows", "factors": [1, 2]}))
    assert [cell.recipe.phases[0].rows for cell in plan.trials] == [4, 8, 4, 8]


def test_a_teacher_counts_where_validations_are_spread_and_a_common_setting_warns_once(
    place: Path, whole: tuple[dict[str, Any], str, list[str]], caplog: pytest.LogCaptureFixture
) -> None:
    teacher = place / "whole" / whole[0]["cells"][0]["name"]
    distilled = {**SMALL["set"], "objective": {"kind": "distill", "teacher": str(teacher)}}
    plan = StudyPlan.read(written(place, budget={"flops": 1e13}, set=distilled, tune=None))
    recipe = plan.recipe("few", 1e13, 1)
    both, alone = (int(1e13 / recipe.operations(32, config) / 128) for config in (load(teacher).config, None))
    assert recipe.evaluation.every == both // plan_module.VALIDATIONS < alone // plan_module.VALIDATIONS
    warnings = [line for line in caplog.messages if line.startswith("set: objective.kind changes")]
    assert warnings and len(set(warnings)) == len(warnings)


def test_the_iterations_of_muon_count_where_validations_are_spread(place: Path) -> None:
    arms = {"adam": {}, "muon": {"set": {"optim.kind": "muon"}}}
    plan = StudyPlan.read(written(place, budget={"flops": 1e13}, arms=arms, tune=None))
    adam, muon = (plan.recipe(arm, 1e13, 1) for arm in arms)
    steps = int(1e13 / full_operations(muon, muon.phases[0]) / 128)
    assert muon.evaluation.every == steps // plan_module.VALIDATIONS < adam.evaluation.every // 2
