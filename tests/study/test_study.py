"""Studies: the file, the checks before any work, the runs, an interruption, and the page."""

from __future__ import annotations

import json
import logging
import re
import shutil
import signal
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from pydoc_data import topics
from threading import Timer
from typing import Any

import pytest
import yaml

from encoderlab.cli import main
from encoderlab.errors import ConfigError, DataError, Diverged, Stopped
from encoderlab.execution.local import Ended, Job
from encoderlab.files import finite, locked
from encoderlab.interchange.load import load
from encoderlab.measure.pairs.evaluate import survey
from encoderlab.sealed import read_record, write_record
from encoderlab.study import cell
from encoderlab.study import plan as plan_module
from encoderlab.study.file import read
from encoderlab.study.page import render
from encoderlab.study.plan import StudyPlan
from encoderlab.study.run import record, run
from encoderlab.train.networks import full_operations
from tests.corpus.corpora import build_topics

SMALL: dict[str, Any] = {
    "corpus": "corpus",
    "recipe": "roberta-tiny",
    "budget": {"steps": 4},
    "seeds": 2,
    "set": {"phases": [{"length": 32, "rows": 4}], "evaluation.rows": 8},
    "tune": {"factors": [1, 2], "share": 0.5},
    "measures": [{"kind": "pairs", "data": ["pairs.txt"], "size": 8}],
    "arms": {"few": None, "many": {"set": {"objective.masking.rate": 0.4}}},
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("study")
    build_topics(folder, 30)
    words = topics.topics["assert"].split()
    lines = [" ".join(part) for n in range(9) for part in (words[n : n + 3], words[n : n + 3][::-1])]
    (folder / "pairs.txt").write_text("\n".join(lines))
    return folder


def written(place: Path, **changes: Any) -> Path:
    """The small study with some keys changed; None removes one, but for ``tune``."""
    fields = {key: value for key, value in {**SMALL, **changes}.items() if value is not None or key == "tune"}
    path = place / "study.yaml"
    path.write_text(yaml.safe_dump(fields, sort_keys=False))
    return path


class InProcess:
    """An executor without processes: stops after ``most`` jobs; the ones in ``diverging`` fail; the ones called as in
    ``killed`` are killed as often as they are there.
    """

    def __init__(self, most: int = 10**6, diverging: str = "nothing", killed: Sequence[str] = ()) -> None:
        self.most, self.diverging, self.killed = most, diverging, list(killed)
        self.done: list[str] = []

    def __call__(self, jobs: Sequence[Job]) -> Iterator[Ended]:
        for job in jobs:
            if len(self.done) == self.most:
                return
            self.done.append(job.name)
            if job.name in self.killed:
                self.killed.remove(job.name)
                yield Ended(job=job, code=-signal.SIGKILL)
                continue
            spec, result = map(Path, job.arguments)
            try:
                if self.diverging in job.name:
                    raise Diverged("the gradient is not finite")
                found = cell.run(json.loads(spec.read_text()))
            except Diverged as error:
                found = {"status": "failed", "error": str(error), "code": error.code}
            write_record(result, json.loads(json.dumps(finite(found))))
            yield Ended(job=job, code=0)


def without_clock(found: dict[str, Any]) -> dict[str, Any]:
    """The results that may not depend on when they were computed."""
    plain: dict[str, Any] = json.loads(json.dumps(finite(found)))
    for one in plain["cells"]:
        for name in ("seconds", "tokens_per_second", "memory"):
            one.get("numbers", {}).pop(name, None)
    return plain


@pytest.fixture(scope="module")
def whole(place: Path) -> tuple[dict[str, Any], str, list[str]]:
    """An uninterrupted study: its record, its page, and its jobs."""
    execute = InProcess()
    results = run(StudyPlan.read(written(place)), place / "whole", execute)
    return record(results), render(results), execute.done


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


def test_the_page_is_whole(whole: tuple[dict[str, Any], str, list[str]]) -> None:
    _, page, _ = whole
    assert "Comparisons in which the claim holds: 0; does not hold: 0; cannot be told at this budget: 1." in page
    assert "bits per byte in bits" in page and "Seeds of every arm: 1, 2." in page
    for text in ("Quality against cost", "Learning curves", "What was tuned", "What is equal", "many better than few"):
        assert text in page
    assert "<svg" in page and "nan" not in page.lower().replace("nancy", "")
    assert "http://" not in page.replace("http://www.w3.org", "") and "https://" not in page


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


def test_names_that_look_like_numbers_are_names(place: Path) -> None:
    path = written(place, arms=None, budget=None)
    path.write_text(
        path.read_text() + "budget: {steps: 1e1}\narms: {1e-3: {set: {optim.lr: 1e-3}}, 2:, no:}\nbaseline: '2'\n"
    )
    study, found = read(path)
    assert study.baseline == "2" and study.amounts == (10,)
    assert list(found) == ["1e-3", "2", "no"] and found["1e-3"].set == {"optim.lr": 1e-3}


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


def test_what_varies_is_combined(place: Path) -> None:
    path = written(place, vary={"optim.lr": ["1e-3", 0.01], "model.encoder.layers": [1, 2]})
    _, arms = read(path)
    assert list(arms)[:2] == ["few lr=0.001 layers=1", "many lr=0.001 layers=1"] and len(arms) == 8
    assert arms["many lr=0.01 layers=2"].set == {
        "objective.masking.rate": 0.4, "optim.lr": 0.01, "model.encoder.layers": 2,
    }  # fmt: skip


def test_options_of_one_kind_are_told_apart(place: Path) -> None:
    masks = [{"kind": "bert", "rate": 0.15}, {"kind": "bert", "rate": 0.4}]
    _, arms = read(written(place, arms={}, vary={"objective.masking": masks}))
    assert list(arms) == ["masking=bert-rate-0.15", "masking=bert-rate-0.4"]
    _, arms = read(written(place, arms={}, vary={"objective.masking": [masks[0], {"kind": "span"}]}))
    assert list(arms) == ["masking=bert", "masking=span"]
    with pytest.raises(ConfigError, match="two arms are called 'masking=bert-rate-0.15'"):
        read(written(place, arms={}, vary={"objective.masking": [masks[0], masks[0]]}))


def test_an_entry_of_a_list_can_be_tuned(place: Path) -> None:
    plan = StudyPlan.read(written(place, tune={"field": "phases.0.rows", "factors": [1, 2]}))
    assert [cell.recipe.phases[0].rows for cell in plan.trials] == [4, 8, 4, 8]


def test_a_dry_run_prints_every_run_and_writes_nothing(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(place, budget={"flops": [1e9, 2e9]})
    before = sorted(place.iterdir())
    capsys.readouterr()
    assert main(["study", str(path), "--dry-run", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["runs"] == 2 * 2 * (2 + 2) and found["flops"] == pytest.approx(2 * 3e9 * (2 + 2 * 0.5))
    assert main(["study", str(written(place, budget={"hours": 1})), "--dry-run", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["flops"] is None and found["seconds"] == 2 * 3600 * (2 + 2 * 0.5)
    assert sorted(place.iterdir()) == before
    assert main(["study", str(path)]) == 2 and "needs --out" in capsys.readouterr().err


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


def test_nodes_of_a_cluster_must_see_the_corpora_and_the_data(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Path] = []

    def tasks_on(on: str, *, sees: Sequence[Path], **more: Any) -> None:
        asked.extend(sees)
        raise ConfigError("no cluster")

    monkeypatch.setattr("encoderlab.commands.study.tasks_on", tasks_on)
    assert main(["study", str(written(place)), "--out", str(place / "away"), "--on", "ray"]) == 2
    assert asked == [place / "away", place / SMALL["corpus"], place / "pairs.txt"] and not (place / "away").exists()


def test_the_command_runs_processes_and_stops_in_time(
    place: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    path = written(place, seeds=1, tune=None, measures=[])
    words = ["study", str(path), "--out", str(place / "command")]
    assert main([*words, "--hours", "1e-9"]) == 75
    assert "2 runs are left; run the same command again" in capsys.readouterr().err
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["status"] for one in found["cells"]] == ["done", "done"]
    assert json.loads((place / "command" / "results.json").read_text())["cells"] == found["cells"]
    assert (place / "command" / "study.html").stat().st_size > 10_000
