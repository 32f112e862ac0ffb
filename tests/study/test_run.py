"""The runs of a study: their order, interruptions, failures, and other settings or data."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Timer
from typing import Any

import pytest

from encoderlab.cli import main
from encoderlab.errors import ConfigError, DataError, Stopped
from encoderlab.execution.local import Ended, Job
from encoderlab.files import locked
from encoderlab.sealed import read_record, write_record
from encoderlab.study import cell
from encoderlab.study.page import render
from encoderlab.study.plan import StudyPlan
from encoderlab.study.run import record, run
from tests.study.small import SMALL, InProcess, without_clock, written


def test_trials_come_first_and_every_arm_has_as_many(whole: tuple[dict[str, Any], str, list[str]]) -> None:
    found, _, jobs = whole
    assert [name.split("/")[0] for name in jobs] == ["trials"] * 4 + ["cells"] * 4
    assert sum("/few/" in name for name in jobs) == 4
    for tuned in found["tuning"]:
        values = {value for value, _ in tuned["trials"]}
        best = min((loss, value) for value, loss in tuned["trials"])[1]
        assert len(values) == 2 and max(values) == 2 * min(values) and tuned["chosen"] == best
    assert not found["missing"] and not found["failed"]


def test_a_smaller_budget_is_tuned_and_compared_before_a_larger_one_begins(place: Path) -> None:
    plan = StudyPlan.read(written(place, budget={"steps": [2, 4]}))
    executor = InProcess(most=8)  # two trials and two seeds of each arm
    results = run(plan, place / "budgets", executor)
    assert [name.split("/")[0] for name in executor.done] == ["trials"] * 4 + ["cells"] * 4
    assert all("/steps-2/" in name for name in executor.done)
    assert {comparison.amount for comparison in results.comparisons} == {2}


def test_cells_are_ordinary_runs_that_differ_in_what_the_file_says(
    place: Path, whole: tuple[dict[str, Any], str, list[str]]
) -> None:
    found, _, _ = whole
    recipes = {}
    for one in found["cells"]:
        folder = place / "whole" / one["name"]
        recipes[one["name"]] = json.loads((folder / "recipe.json").read_text())
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").open()]
        last = [line for line in lines if line["split"] == "valid"][-1]
        assert last["losses"]["mlm"] == one["scores"]["loss"] and last["step"] == 4
        assert main(["report", str(folder)]) == 0
    rates = {name: recipe["objective"]["masking"]["rate"] for name, recipe in recipes.items()}
    assert {rates[name] for name in rates if "/many/" in name} == {0.4} and len(set(rates.values())) == 2
    assert {recipe["seed"] for recipe in recipes.values()} == {1, 2}
    chosen = {tuned["arm"]: tuned["chosen"] for tuned in found["tuning"]}
    assert all(recipe["optim"]["lr"] == chosen[name.split("/")[1]] for name, recipe in recipes.items())


def test_an_interrupted_study_ends_with_the_same_numbers(
    place: Path, whole: tuple[dict[str, Any], str, list[str]]
) -> None:
    plan = StudyPlan.read(written(place))
    first = run(plan, place / "parts", InProcess(most=3))
    assert len(first.missing) == 1 + 4 and not first.done  # no run is compared before all trials are done
    second = run(plan, place / "parts", InProcess(most=2))
    assert len(second.missing) == 3
    assert "not finished" in render(second)
    execute = InProcess()
    last = run(plan, place / "parts", execute)
    assert len(execute.done) == 3 and without_clock(record(last)) == without_clock(whole[0])


def test_results_stay_on_the_page_while_an_arm_that_came_later_is_tuned(place: Path) -> None:
    fields: dict[str, Any] = {"budget": {"steps": 2}, "measures": [], "seeds": 1}
    run(StudyPlan.read(written(place, **fields)), place / "later", InProcess())
    more = StudyPlan.read(written(place, **fields, arms={"few": None, "new": {"set": {"optim.lr": 0.002}}}))
    execute = InProcess(most=1)
    results = run(more, place / "later", execute)
    assert execute.done == ["trials/new/steps-2/lr-0.002"]
    assert {cell.arm for cell in results.done} == {"few"}
    assert results.missing == ["trials/new/steps-2/lr-0.004", "cells/new/steps-2/seed-1"]


@pytest.mark.parametrize("kind", ["flip", "cut", "delete", "another number"])
def test_a_damaged_result_or_input_is_named_and_measured_again(place: Path, kind: str) -> None:
    plan, out = StudyPlan.read(written(place, measures=[], tune=None, seeds=1)), place / f"damaged {kind}"
    before = without_clock(record(run(plan, out, InProcess())))
    for path in sorted(path for name in ("results", "specs") for path in (out / name).rglob("*.json")):
        data = bytearray(path.read_bytes())
        if kind == "delete":
            path.unlink()
        elif kind == "another number":
            path.write_text(re.sub(r'("loss"|"threads"): ', r"\1: 1", path.read_text(), count=1))
        else:
            data[len(data) // 2] ^= 4
            path.write_bytes(data if kind == "flip" else data[: len(data) // 2])
        execute, said = InProcess(), []
        assert without_clock(record(run(plan, out, execute, say=said.append))) == before
        assert len(execute.done) == 1
        assert any(str(path) in line for line in said) or kind == "delete" and path.parts[-4] != "specs"


def test_a_run_whose_metrics_lost_lines_has_the_numbers_of_its_last_step(place: Path) -> None:
    plan = StudyPlan.read(written(place, measures=[], tune=None, seeds=1, arms={"few": None}))
    out = place / "lost lines"
    (before,) = without_clock(record(run(plan, out, InProcess())))["cells"]
    metrics = out / before["name"] / "metrics.jsonl"
    metrics.write_bytes(b"".join(metrics.read_bytes().splitlines(keepends=True)[:3]))
    (out / "results" / f"{before['name']}.json").unlink()
    (after,) = without_clock(record(run(plan, out, InProcess())))["cells"]
    assert (after["scores"], after["total_loss"]) == (before["scores"], before["total_loss"])
    assert after["numbers"] == before["numbers"] and after["curve"][-1] == before["curve"][-1]


def test_a_cell_that_fails_is_marked_and_stops_no_other(place: Path) -> None:
    plan = StudyPlan.read(written(place, measures=[], tune=None))
    said: list[str] = []
    results = run(plan, place / "failing", InProcess(diverging="many/steps-4/seed-2"), say=said.append)
    assert list(results.failed.values()) == ["the gradient is not finite"] and len(results.done) == 3
    assert "the gradient is not finite" in render(results)
    again = InProcess()
    assert len(run(plan, place / "failing", again, say=said.append).failed) == 1 and again.done == []
    assert any("--retry" in line for line in said)
    assert not run(plan, place / "failing", again, retry=True).failed and len(again.done) == 1


def test_a_run_that_is_killed_is_continued_once(place: Path, whole: tuple[dict[str, Any], str, list[str]]) -> None:
    first = whole[2][0]
    execute = InProcess(killed=[first, whole[2][-1]])
    results = run(StudyPlan.read(written(place)), place / "killed", execute)
    assert without_clock(record(results)) == without_clock(whole[0])
    assert execute.done[:5] == [*whole[2][:4], first]  # before the cells, which need every trial
    plan = StudyPlan.read(written(place, measures=[], tune=None, seeds=1))
    name = plan.cells({(arm, 4): None for arm in ("few", "many")})[0].name
    failed = run(plan, place / "killed twice", InProcess(killed=[name, name])).failed
    assert list(failed) == [name] and "killed by signal 9" in failed[name]


def test_a_result_that_is_seen_late_is_no_failure(place: Path) -> None:
    """As on storage of a cluster, where a file of another node is visible after some seconds."""
    result = {"status": "done", "scores": {"loss": 5.0}, "measures": [], "data": {}}

    def execute(jobs: Sequence[Job]) -> Iterator[Ended]:
        for job in jobs:
            Timer(0.3, write_record, (Path(job.arguments[1]), result)).start()
            yield Ended(job=job, code=0)

    plan = StudyPlan.read(written(place, measures=[], tune=None, seeds=1))
    results = run(plan, place / "late", execute)
    assert not results.failed and len(results.done) == 2


def test_a_cell_waits_for_an_earlier_process_of_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster repeats a task whose worker is lost, whose process may still be writing a checkpoint."""
    monkeypatch.setattr(cell, "run", lambda spec: {"status": "done", "numbers": {"memory": 1}})
    monkeypatch.setattr(cell, "stop_with_parent", lambda: None)
    monkeypatch.setattr(cell, "PATIENCE", 0.0)
    spec, result = tmp_path / "spec.json", tmp_path / "result.json"
    spec.write_text("{}")
    (tmp_path / ".result.json.lock").touch()
    with locked(tmp_path / ".result.json.lock"):
        assert cell.main(str(spec), str(result)) == Stopped.code and not result.exists()
    assert cell.main(str(spec), str(result)) == 0 and result.exists()


def test_a_cell_that_is_measured_again_keeps_the_memory_of_its_training(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fields: dict[str, Any] = {"tune": None, "seeds": 1, "budget": {"steps": 2}, "arms": {"few": None}, "measures": []}
    out, name = place / "memory", "cells/few/steps-2/seed-1.json"
    monkeypatch.setattr(cell, "stop_with_parent", lambda: None)
    plan = StudyPlan.read(written(place, **fields))
    run(plan, out, InProcess(most=0))
    spec, result = out / "specs" / name, out / "results" / name
    assert cell.main(str(spec), str(result)) == 0
    before = read_record(result)
    write_record(result, before | {"numbers": before["numbers"] | {"memory": 12345}})
    run(StudyPlan.read(written(place, **fields | {"measures": SMALL["measures"]})), out, InProcess(most=0))
    assert cell.main(str(spec), str(result)) == 0
    after = read_record(result)
    assert "minimal pairs" in after["scores"] and after["numbers"]["memory"] == 12345 < before["numbers"]["memory"]


def test_other_settings_in_the_same_folder_are_refused(place: Path) -> None:
    run(StudyPlan.read(written(place, measures=[], tune=None, seeds=1)), place / "other", InProcess())
    with pytest.raises(ConfigError, match="was run with another recipe"):
        run(StudyPlan.read(written(place, measures=[], tune=None, seeds=1, budget={"steps": 4}, set={
            "phases": [{"length": 32, "rows": 4}], "evaluation.rows": 16,
        })), place / "other", InProcess())  # fmt: skip
    more = run(StudyPlan.read(written(place, measures=[], tune=None, seeds=2)), place / "other", InProcess())
    assert len(more.done) == 4  # seeds may be added


def test_a_file_that_changed_while_runs_are_half_done_is_refused_and_can_be_restored(place: Path) -> None:
    fields: dict[str, Any] = {"measures": [], "tune": None, "seeds": 1}
    out = place / "half"

    checkpoint = out / "cells/few/steps-4/seed-1/checkpoints/step-000002"
    assert len(run(StudyPlan.read(written(place, **fields)), out, InProcess(most=0)).missing) == 2
    checkpoint.mkdir(parents=True)  # as an interrupted run leaves it
    execute = InProcess()
    with pytest.raises(ConfigError, match="few/steps-4/seed-1: was run with another recipe"):
        run(StudyPlan.read(written(place, **fields, set={**SMALL["set"], "optim.lr": 3e-4})), out, execute)
    assert not execute.done and not (out / "results").exists()
    shutil.rmtree(out / "cells")
    assert len(run(StudyPlan.read(written(place, **fields)), out, execute).done) == 2


def test_measures_of_other_data_or_settings_do_not_mix(place: Path, tmp_path: Path) -> None:
    (tmp_path / "cola").mkdir()
    words = (place / "pairs.txt").read_text().split()

    def data(first: int) -> None:
        for name, count in (("train", 24), ("dev", 12)):
            rows = (f"gj04\t{(n + first) % 2}\t\t{words[n]} {words[n + 1]} {n}" for n in range(count))
            (tmp_path / "cola" / f"{name}.tsv").write_text("\n".join(rows) + "\n")

    def finished(*measures: dict[str, Any], execute: InProcess, seeds: int = 1) -> list[dict[str, float]]:
        plan = StudyPlan.read(written(place, tune=None, seeds=seeds, measures=list(measures), arms={"few": None}))
        results = run(plan, place / "measured", execute)
        assert not results.failed
        return [cell["scores"] for cell in results.done.values()]

    data(0)
    file = tmp_path / "pairs.txt"
    file.write_text((place / "pairs.txt").read_text())
    pairs = {"kind": "pairs", "data": [str(file)]}
    task = {"kind": "finetune", "task": "cola", "data": str(tmp_path), "set": {"steps": 2}}
    execute = InProcess()
    (before,) = finished(pairs, task, execute=execute)
    file.write_text("\n".join(reversed(file.read_text().split("\n"))))  # every pair the other way round
    first, _ = finished(pairs, task, execute=execute, seeds=2)
    assert first["minimal pairs"] == pytest.approx(1 - before["minimal pairs"]) and len(execute.done) == 3
    with pytest.raises(ConfigError, match="seed-1: was measured by cola with other settings; restore these"):
        finished(pairs, {**task, "set": {"steps": 3}}, execute=execute)
    data(1)
    with pytest.raises(ConfigError, match="seed-1: was measured by cola with other data; restore these, or give the"):
        finished(pairs, task, execute=execute)
    (named,) = finished(pairs, {**task, "name": "CoLA"}, execute=execute)
    assert {"CoLA", "minimal pairs"} < named.keys() and len(execute.done) == 4


def test_own_labelled_files(place: Path, tmp_path: Path) -> None:
    words = re.findall(r"\w+", (place / "pairs.txt").read_text())
    for name, count in (("train", 40), ("dev", 12)):
        rows = (f"{words[n]} {name} {n},{'good' if n % 2 else 'bad'}" for n in range(count))
        (tmp_path / f"{name}.csv").write_text("\n".join(["text,label", *rows]) + "\n")
    steps = {"kind": "finetune", "set": {"steps": 2}, "task": str(tmp_path / "train.csv")}
    held, given = steps, {**steps, "name": "own", "dev": str(tmp_path / "dev.csv")}
    plan = StudyPlan.read(written(place, tune=None, seeds=1, measures=[held, given], arms={"few": None}))
    assert {tmp_path / "train.csv", tmp_path / "dev.csv"} < set(plan.reads())
    (found,) = run(plan, place / "own", InProcess()).done.values()
    at = place / "own" / "tasks" / "cells" / "few" / "steps-4" / "seed-1"
    counts = [json.loads((at / name / "score.json").read_text())["examples"]["dev"] for name in ("train.csv", "own")]
    assert {"train.csv", "own"} < found["scores"].keys() and counts == [4, 12]


def test_data_that_changes_while_a_study_runs_is_named(place: Path, tmp_path: Path) -> None:
    file = tmp_path / "pairs.txt"
    file.write_text((place / "pairs.txt").read_text())
    plan = StudyPlan.read(written(place, tune=None, seeds=1, measures=[{"kind": "pairs", "data": [str(file)]}]))

    run(plan, place / "changing", InProcess(most=0))
    file.write_text("One sentence.\nAnother sentence.\n")
    (spec, _) = sorted((place / "changing" / "specs").rglob("*.json"))
    with pytest.raises(DataError, match="minimal pairs: its data has changed since the study began; restore it"):
        cell.run(json.loads(spec.read_text()))


def test_results_count_in_another_place(
    place: Path, whole: tuple[dict[str, Any], str, list[str]], tmp_path: Path
) -> None:
    """Results and specs are enough, without the runs, also where the corpus was built again."""
    there = tmp_path / "there"
    shutil.copytree(place / "text", there / "text")
    sizes = ["--vocab-size", "500", "--workers", "1"]
    assert main(["corpus", "build", str(there / "text"), "--out", str(there / "corpus"), *sizes]) == 0
    shutil.copy(place / "pairs.txt", there)
    for name in ("results", "specs"):
        shutil.copytree(place / "whole" / name, there / "whole" / name)
    execute = InProcess()
    results = run(StudyPlan.read(written(there)), there / "whole", execute)
    assert not execute.done and record(results) == whole[0] and render(results) == whole[1]
