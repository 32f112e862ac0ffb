"""Runs of several protocols as tasks: the results of one process, whatever makes the runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from encoderlab import files
from encoderlab.errors import DataError, Diverged
from encoderlab.execution.workers import Workers
from encoderlab.files import sha256, write_json
from encoderlab.tasks.runs import elsewhere, trials
from encoderlab.tasks.runs.elsewhere import perform_all
from encoderlab.tasks.runs.trials import perform, program
from encoderlab.train.folder import METRICS, RECIPE
from tests.tasks.runs.test_commands import reviews
from tests.tasks.runs.test_trials import QUICK
from tests.tasks.synthetic import data
from tests.tasks.tiny import model
from tests.terminal import answer, messages

SEARCHED = replace(QUICK, grid={"optim.lr": (1e-6, 2e-3)}, recipe=replace(QUICK.recipe, epochs=1))
TIMES = ("seconds", "elapsed", "finished", "memory", "hardware", "sha256", "files")


def results(out: Path) -> dict[str, Any]:
    """What the scores of a folder say, without times, and the hashes of its weights and predictions."""
    found: dict[str, Any] = {}
    for path in sorted(out.rglob("*")):
        name = path.relative_to(out).as_posix()
        if path.name == "score.json":
            found[name] = {key: value for key, value in json.loads(path.read_text()).items() if key not in TIMES}
            found[name].pop("command", None)
        elif path.suffix == ".safetensors" or path.name.startswith("predictions"):
            found[name] = sha256(path)
    return found


def protocols(folder: Path) -> dict[str, Any]:
    programs = {}
    for seed, kind in enumerate(("tagged", "single")):
        task, splits = data(kind, train=32, dev=16)
        programs[kind] = program(SEARCHED, model(), task, splits, folder / kind)
        assert seed < 2
    return programs


def test_programs_side_by_side_find_what_they_find_alone(tmp_path, capsys) -> None:
    for kind, one in protocols(tmp_path / "alone").items():
        assert perform(one).task.name == kind
    capsys.readouterr()
    with Workers(1) as tasks:
        outcomes = perform_all(protocols(tmp_path / "tasks"), tasks)
    said = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("finetune: ")]
    assert list(outcomes) == ["tagged", "single"] and not any(isinstance(one, Diverged) for one in outcomes.values())
    alone = results(tmp_path / "alone")
    assert alone == results(tmp_path / "tasks") and len([name for name in alone if name.endswith(".safetensors")]) == 6
    assert len(said) == 8 and any(line.startswith("single: lr=1e-06 seed 1: dev accuracy ") for line in said)


class Interleaved:
    """Tasks that run when they are waited for, the last that was submitted first."""

    def __init__(self) -> None:
        self.left: list[tuple[Callable[..., Any], tuple[Any, ...], str]] = []
        self.order: list[str] = []
        self.ended: Callable[[str, Any], None] = lambda name, result: None

    def submit(self, function: Callable[..., Any], *args: Any, name: str = "") -> None:
        self.left.append((function, args, name))

    def share(self, value: Any) -> Any:
        return value

    def wait(self) -> None:
        function, args, name = self.left.pop()
        self.order.append("/".join(Path(name).parts[-3:]))
        self.ended(name, function(*args))

    def finish(self) -> None:
        raise AssertionError

    def __enter__(self) -> Interleaved:
        return self

    def __exit__(self, *error: Any) -> None:
        pass


def test_the_order_in_which_runs_end_changes_nothing(tmp_path) -> None:
    tasks = Interleaved()
    perform_all(protocols(tmp_path / "tasks"), tasks)
    for one in protocols(tmp_path / "alone").values():
        perform(one)
    assert results(tmp_path / "alone") == results(tmp_path / "tasks")
    assert tasks.order[0] == "single/lr=0.002/seed-1" and len(tasks.order) == 8


def test_a_run_that_diverges_is_marked_and_a_program_without_any_is_lost_alone(tmp_path, monkeypatch, capsys) -> None:
    real = trials.finetune

    def sometimes(model: Any, task: Any, splits: Any, recipe: Any, out: Path, **more: Any) -> Any:
        if "single" in str(out) or recipe.seed == 2:
            raise Diverged("step 3: the gradient is not finite")
        return real(model, task, splits, recipe, out, **more)

    monkeypatch.setattr(trials, "finetune", sometimes)
    with Workers(1) as tasks:
        outcomes = perform_all(protocols(tmp_path), tasks)
    assert isinstance(outcomes["single"], Diverged) and "every point of the grid failed" in str(outcomes["single"])
    assert "not finite" in outcomes["tagged"].record["seeds"]["2"]["failed"]
    assert "single: lr=1e-06 seed 1: failed: step 3: the gradient is not finite" in capsys.readouterr().err


def test_a_folder_that_only_the_task_sees_is_named(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(files, "SEEN", 0.0)
    monkeypatch.setattr(elsewhere, "_run", lambda *args: {"failed": None, "warnings": []})
    with pytest.raises(DataError, match="was written by a task, but is not visible here; give an --out that all nodes"):
        perform_all(protocols(tmp_path), Interleaved())


def test_what_a_run_shows_is_read_from_its_folder(tmp_path) -> None:
    assert elsewhere._state(tmp_path, 0.0) is None
    write_json(tmp_path / RECIPE, {"budget": {"amount": 8}})
    (tmp_path / METRICS).write_text('{"split": "train", "step": 2, "loss": 0.5}\n{"split": "valid", "step": 2}\n{"spl')
    assert elsewhere._state(tmp_path, 0.0) == (0.25, "step 2  loss 0.500")
    assert elsewhere._state(tmp_path, 9e12) is None  # of an earlier session


def test_finetune_by_two_processes(tmp_path, capsys) -> None:
    model().save(tmp_path / "tiny")
    words = ["finetune", reviews(tmp_path / "r.csv"), "--model", tmp_path / "tiny", "--seeds", "2", "--epochs", "1"]
    there, said = answer(capsys, *words, "--out", tmp_path / "there", "--workers", "2", "--threads", "1")
    assert "r: seed 1: dev accuracy" in said and "r: seed 2: dev accuracy" in said
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        answer(capsys, *words, "--out", tmp_path / "here")
    finally:
        torch.set_num_threads(before)
    here = results(tmp_path / "here")
    assert here == results(tmp_path / "there") and len(there["tasks"]["r"]["seeds"]) == 2
    assert "--workers is 0; give at least 1" in messages(capsys, 2, *words, "--out", tmp_path / "new", "--workers", 0)
    assert not (tmp_path / "new").exists()
