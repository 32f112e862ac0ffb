"""What ``finetune`` prints: scores of every split, what was searched, which system trains, what was not learnt."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from encoderlab.cli import main
from encoderlab.commands.finetune_page import show_statistics
from encoderlab.errors import Diverged
from encoderlab.measure.finetuning_page import make
from encoderlab.tasks.runs import trials
from tests.tasks.runs.test_commands import reviews
from tests.tasks.tiny import model
from tests.terminal import answer


@pytest.fixture
def tiny(tmp_path: Path) -> str:
    model().save(tmp_path / "tiny")
    return str(tmp_path / "tiny")


def test_only_the_most_frequent_of_many_labels_are_shown(capsys) -> None:
    counts = {f"label-{number}": number for number in range(1, 61)}
    split = {
        "examples": 1830,
        "labels": counts,
        "tokens": {"median": 1, "95%": 2, "longest": 3},
        "max_length": 8,
        "cut": 0,
    }
    show_statistics("names", {"train": split, "dev": split | {"labels": {"label-60": 1}}})
    shown = capsys.readouterr().out
    assert "label-60" in shown and "label-11 " in shown and "label-10 " not in shown and "10 less frequent" in shown


def test_scores_of_the_test_file_and_of_the_search_are_shown(tmp_path, tiny, capsys) -> None:
    data, test, out = reviews(tmp_path / "reviews.csv"), reviews(tmp_path / "new.csv", 20), tmp_path / "run"
    words = ["--model", tiny, "--out", str(out), "--seeds", "1", "--grid", "lr=1e-3,3e-3", "--epochs", "1"]
    assert main(["finetune", data, "--test", test, *words]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"reviews +test +accuracy +majority +50\.0", printed)
    assert re.search(r"reviews +dev +accuracy +pretrained", printed) and re.search(
        r"lr=0\.00[13] +[\d.]+ +taken", printed
    )
    assert "on the test set, over 1 seed" in printed
    record = answer(capsys, "finetune", data, "--test", test, *words)[0]["tasks"]["reviews"]
    assert record["scores"]["test"]["accuracy"]["n"] == 1 and len(record["search"]) == 2
    assert record["baselines"]["test"]["majority"]["accuracy"] == 0.5
    assert record["chosen"]["optim.lr"] in (1e-3, 3e-3)


def test_progress_says_which_system_trains_and_the_values_come_before(tmp_path, tiny, capsys) -> None:
    data = reviews(tmp_path / "reviews.csv")
    words = ["--model", tiny, "--out", str(tmp_path / "run"), "--seeds", "1", "--scratch", "--set", "steps=4"]
    assert main(["finetune", data, *words]) == 0
    said = capsys.readouterr().err
    order = [said.index(f"reviews {system}: {what}") for system in ("without pretraining", "pretrained")
             for what in ("5", "seed 1", "seed 1 100%")]  # fmt: skip
    assert order == sorted(order), "examples, batches and rate, then the runs"
    assert "in batches of 8 (by the size of the data), 4 updates" in said and "rate 0.0005 (by the width, 64)" in said


def test_a_seed_that_diverged_is_named_on_the_page(tmp_path, tiny, capsys, monkeypatch) -> None:
    original = trials.finetune

    def fails(model, task, splits, recipe, out, **more):  # type: ignore[no-untyped-def]
        if recipe.seed == 2:
            raise Diverged("step 2: the gradient is not finite any more")
        return original(model, task, splits, recipe, out, **more)

    monkeypatch.setattr(trials, "finetune", fails)
    data, out = reviews(tmp_path / "reviews.csv"), tmp_path / "run"
    assert main(["finetune", data, "--model", tiny, "--out", str(out), "--seeds", "2", "--set", "steps=4"]) == 0
    assert "seed 2 (step 2: the gradient" in capsys.readouterr().out
    page = make([out])
    assert "over 1 of 2 seeds" in page.verdict and "here 2 seeds" in page.html


@pytest.mark.parametrize(("steps", "code"), [(50, 6), (4, 0)])
def test_if_every_seed_predicts_one_label_the_exit_code_says_so(tmp_path, tiny, capsys, steps, code) -> None:
    """Texts that are all the same have one answer; the results are there in any case."""
    data, out = tmp_path / "same.csv", tmp_path / "run"
    data.write_text("text,label\n" + "the cat sat,yes\nthe cat sat,no\n" * 20, encoding="utf-8")
    words = ["--model", tiny, "--out", str(out), "--seeds", "2", "--set", f"steps={steps}", "--set", "batch=4"]
    assert main(["finetune", str(data), "--dev", str(data), *words]) == code
    printed, said = capsys.readouterr()
    assert re.search(r"same +dev +accuracy +pretrained", printed) and (out / "report.html").exists()
    assert ("same: all 2 seeds failed (predicts one label for every example)" in said) == bool(code)
