"""Detectors of replaced tokens are tuned by their losses on the same text."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from encoderlab.config import from_dict
from encoderlab.inference import tokenizer_of
from encoderlab.interchange.load import load_pair
from encoderlab.measure.runs import read_run
from encoderlab.objectives.rtd import ReplacedTokenDetection, RTDSettings
from encoderlab.objectives.vocabulary import Vocabulary
from encoderlab.study.detectors import compare
from encoderlab.study.page import render
from encoderlab.study.plan import StudyPlan
from encoderlab.study.run import record, run
from encoderlab.train.corpus_data import corpus_data
from encoderlab.train.recipe import Recipe
from tests.study.small import InProcess, without_clock, written

LAYERS = {"layers": 1, "width": 16, "heads": 2, "ff_width": 32, "embed_width": 16}
TINY = {f"{network}.encoder.{name}": value for network in ("model", "generator") for name, value in LAYERS.items()}
STUDY: dict[str, Any] = {
    "measures": [],
    "seeds": 1,
    "arms": {"detector": {"recipe": "electra-mini", "set": TINY}, "words": None},
}
TRIALS = [f"trials/detector/steps-4/lr-{value}" for value in (0.001, 0.002)]
DETECTORS = "trials/detector/steps-4/detectors"


@pytest.fixture(scope="module")
def study(place: Path) -> tuple[StudyPlan, Path, dict[str, Any], list[str]]:
    """A study with an arm that detects: its plan, its folder, its record, and its jobs."""
    plan, out, execute = StudyPlan.read(written(place, **STUDY)), place / "detectors", InProcess()
    results = run(plan, out, execute)
    assert "samples of the generators of all the arm's trials" in render(results)
    return plan, out, record(results), execute.done


def test_every_discriminator_reads_the_samples_of_every_generator(
    place: Path, study: tuple[StudyPlan, Path, dict[str, Any], list[str]]
) -> None:
    _, out, _, _ = study
    folders = {name: out / name for name in TRIALS}
    losses = compare(folders, place / "corpus")
    expected = dict.fromkeys(TRIALS, 0.0)
    for writer in TRIALS:
        for reader in TRIALS:
            total, count = _loss(folders[reader], folders[writer], place / "corpus")
            expected[reader] += total / count / 2
    assert losses == pytest.approx(expected, rel=1e-6) and len(set(losses.values())) == 2
    (alone,) = compare({"one": folders[TRIALS[0]]}, place / "corpus").values()
    assert alone == pytest.approx(read_run(folders[TRIALS[0]]).valid[-1]["losses.rtd"], rel=1e-6)
    assert compare({}, place / "corpus") == {}


def _loss(reader: Path, writer: Path, corpus: Path) -> tuple[float, int]:
    """The discriminator of one run on the samples of another's generator: its summed loss, and over how many tokens."""
    recipe = from_dict(Recipe, dict(read_run(reader).recipe))
    (discriminator, _), (_, generator) = load_pair(reader), load_pair(writer)
    assert generator is not None and isinstance(recipe.objective, RTDSettings)
    settings, vocabulary = replace(recipe.objective, sharing="none"), Vocabulary.of(tokenizer_of(discriminator))
    crossed = ReplacedTokenDetection(generator, discriminator, settings, vocabulary).eval()
    data = corpus_data(recipe, crossed, corpus, tokenizer_of(discriminator))
    assert data.validation is not None
    with torch.no_grad():
        terms = [crossed(batch)[0]["rtd"] for batch in data.validation(recipe.phases[-1])]
    return sum(float(term.sum) for term in terms), sum(term.count for term in terms)


def test_detectors_are_chosen_by_that_loss_and_other_arms_by_their_own(
    place: Path, study: tuple[StudyPlan, Path, dict[str, Any], list[str]]
) -> None:
    plan, out, found, jobs = study
    assert [name.split("/")[0] for name in jobs] == ["trials"] * 5 + ["cells"] * 2 and jobs[4] == DETECTORS
    losses = list(compare({name: out / name for name in TRIALS}, place / "corpus").values())
    detector, words = found["tuning"]
    assert [loss for _, loss in detector["trials"]] == losses
    assert detector["chosen"] == min(zip(losses, (0.001, 0.002), strict=True))[1]
    assert [loss for _, loss in words["trials"]] == [
        read_run(out / cell.name).valid[-1]["loss"] for cell in plan.trials if cell.arm == "words"
    ]
    again = InProcess()
    assert without_clock(record(run(plan, out, again))) == without_clock(found) and again.done == []


def test_detectors_are_compared_when_all_trials_have_ended_and_again_when_there_are_more(
    place: Path, study: tuple[StudyPlan, Path, dict[str, Any], list[str]]
) -> None:
    plan, out = study[0], place / "detectors in parts"
    first = run(plan, out, InProcess(most=4))
    assert set(first.missing) == {DETECTORS, "cells/detector/steps-4/seed-1", "cells/words/steps-4/seed-1"}
    assert record(first)["tuning"][0]["arm"] == "words"
    second = InProcess()
    assert without_clock(record(run(plan, out, second))) == without_clock(study[2])
    more = InProcess(most=3)
    wider = StudyPlan.read(written(place, **STUDY, tune={"factors": [0.5, 1, 2], "share": 0.5}))
    losses = run(wider, out, more).tried["detector", 4]
    assert more.done[-1] == DETECTORS and [value for value, loss in losses if loss is not None] == [
        0.0005,
        0.001,
        0.002,
    ]


def test_trials_that_fail_are_left_out_of_the_comparison(place: Path) -> None:
    plan = StudyPlan.read(written(place, **{**STUDY, "arms": {"detector": STUDY["arms"]["detector"]}}))
    one = run(plan, place / "detectors fail", InProcess(diverging=TRIALS[0]))
    assert [loss is None for _, loss in one.tried["detector", 4]] == [True, False]
    assert one.chosen["detector", 4] == 0.002 and not one.missing
    said: list[str] = []
    none = run(plan, place / "all detectors fail", InProcess(diverging="lr-"), say=said.append)
    assert not none.chosen and not none.missing and any("no trial has a loss" in line for line in said)


def test_trials_of_which_results_alone_were_kept_are_trained_again(
    place: Path, study: tuple[StudyPlan, Path, dict[str, Any], list[str]]
) -> None:
    """As in another checkout, to which results came without the runs."""
    plan, out, found, _ = study
    for kind in ("results", "specs"):
        shutil.copytree(out / kind, place / "kept" / kind)
    (place / "kept" / "results" / f"{DETECTORS}.json").unlink()
    again = InProcess()
    assert without_clock(record(run(plan, place / "kept", again))) == without_clock(found) and again.done == [DETECTORS]
