"""The results of a study: what is compared, by which measures, at which budgets."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from encoderlab.cli import main
from encoderlab.study.page import render
from encoderlab.study.plan import StudyPlan
from encoderlab.study.run import run
from tests.study.small import InProcess, written


def test_a_measure_of_one_budget(place: Path) -> None:
    pairs = {"kind": "pairs", "data": ["pairs.txt"], "size": 8}
    fields: dict[str, Any] = {"budget": {"steps": [2, 4]}, "tune": None, "seeds": 2, "arms": {"few": None, "same": {}}}
    execute = InProcess()
    run(StudyPlan.read(written(place, **fields, measures=[pairs])), place / "of one", execute)
    added = [pairs, pairs | {"name": "more pairs", "size": 9, "budgets": [4]}]
    results = run(StudyPlan.read(written(place, **fields, measures=added)), place / "of one", execute)
    assert [name for name in execute.done[8:] if "steps-4" not in name] == [] and len(execute.done) == 12
    assert {cell.amount: "more pairs" in found["scores"] for cell, found in results.done.items()} == {2: False, 4: True}
    assert {one.amount for one in results.comparisons if one.by == "more pairs"} == {4}
    page = render(results)
    strip = r'<h3>more pairs</h3>\s*<p class="small">more is better, at 4 steps</p>'
    assert re.search(strip, page) and "<h3>minimal pairs <small>more is better</small>" in page


def test_an_arm_of_one_budget(place: Path, tmp_path: Path) -> None:
    arms: dict[str, Any] = {"few": None, "many": {}, "small": {"budgets": [2]}}
    fields: dict[str, Any] = {"budget": {"steps": [2, 4]}, "seeds": 2, "arms": arms, "measures": None, "claims": None}
    execute = InProcess()
    for tune in (None, {"factors": [1, 2], "share": 0.5}):
        execute.done.clear()
        plan = StudyPlan.read(written(place, tune=tune, **fields))
        results = run(plan, tmp_path / str(bool(tune)), execute)
        assert not any("/small/steps-4" in name for name in execute.done) and not results.missing
        assert {cell.amount for cell in results.done if cell.arm == "small"} == {2}
    assert {(one.better, one.amount) for one in results.comparisons} == {("many", 2), ("small", 2), ("many", 4)}
    assert "At 4 steps there are only few, many." in results.fairness and "At 2 steps" not in str(results.fairness)
    page = render(results)  # scores and trials have a row for each budget
    assert (page.count("<th>small"), page.count("<th>many")) == (2, 4)


def test_losses_of_different_masks_are_not_compared_and_pairs_are(
    whole: tuple[dict[str, Any], str, list[str]],
) -> None:
    found, page, _ = whole
    (one,) = found["comparisons"]
    assert (one["better"], one["than"], one["by"], one["seeds"]) == ("many", "few", "minimal pairs", 2)
    scores = {(c["arm"], c["seed"]): c["scores"]["minimal pairs"] for c in found["cells"]}
    differences = [scores["many", seed] - scores["few", seed] for seed in (1, 2)]
    assert one["difference"] == pytest.approx(sum(differences) / 2)
    why = "they predict different things of the text"
    assert found["not_compared"] == [f"many and few by loss and bits per byte: {why}"]
    assert '<th>Verdict</th><th class="number">Difference' in page  # one budget, which the first line names
    assert re.findall('<div class="name ours">(.*?)</div>', page)[:2] == ["few", "many"]  # in the order of the file


def test_other_tokens_of_the_same_text_compare_by_bits_per_byte(place: Path) -> None:
    words = ["corpus", "build", str(place / "text"), "--vocab-size", "300", "--workers", "1"]
    assert main([*words, "--out", str(place / "fewer")]) == 0
    arms = {"many tokens": None, "few tokens": {"corpus": "fewer"}}
    plan = StudyPlan.read(written(place, measures=[], tune=None, seeds=1, arms=arms))
    results = run(plan, place / "tokens", InProcess())
    assert [one.by for one in results.comparisons] == ["bits per byte"]
    assert results.not_compared == ["few tokens and many tokens by loss: their corpora differ"]
    of_one = replace(results, cells={cell: one for cell, one in results.cells.items() if cell.arm == "few tokens"})
    assert of_one.not_compared[-1] == "few tokens and many tokens by bits per byte: no seed has results of both"


def test_a_claim_by_bits_per_byte_is_tested_and_one_that_is_named_twice_once(place: Path) -> None:
    arms = {"few": None, "fast": {"set": {"optim.lr": 0.01}}}
    claim = {"better": "fast", "than": "few"}
    plan = StudyPlan.read(written(place, measures=[], tune=None, arms=arms))
    execute = InProcess()
    assert [one.by for one in run(plan, place / "bits", execute).comparisons] == ["loss"]
    for claims, compared in (
        ([{**claim, "by": "bits per byte"}], ["bits per byte"]),
        ([claim, claim, {**claim, "by": "loss"}], ["loss"]),
    ):
        plan = StudyPlan.read(written(place, measures=[], tune=None, arms=arms, claims=claims))
        assert [one.by for one in run(plan, place / "bits", execute).comparisons] == compared
    assert len(execute.done) == 4
