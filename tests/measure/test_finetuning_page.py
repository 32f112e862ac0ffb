"""The page of fine-tuning: every form, from the folder alone; several side by side; damage and mixtures refused."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from encoderlab.cli import main
from encoderlab.errors import DataError
from encoderlab.interchange.finetuned import SCORE_FILE, best_seed, signed
from encoderlab.measure.finetuning import SCRATCH, tasks_in
from encoderlab.measure.finetuning_page import make
from encoderlab.messages import silent
from encoderlab.tasks.data.task import Text
from encoderlab.tasks.forms.base import FormSettings
from encoderlab.tasks.forms.scores import baselines_by_split
from encoderlab.tasks.runs.finetune import FinetuneRecipe
from encoderlab.tasks.runs.protocol import Protocol
from encoderlab.tasks.runs.trials import Origin, run
from encoderlab.train.optim import AdamW
from tests.measure.test_report import Shape, browse, chromium
from tests.measure.test_runs import folder as pretraining
from tests.measure.test_runs import line
from tests.tasks.synthetic import TASKS, data
from tests.tasks.tiny import model
from tests.terminal import messages

HOSTILE = "<b>bold</b></script>"
RECIPE = FinetuneRecipe(
    name="quick", epochs=2, batch=8, optim=AdamW(lr=2e-3), form=FormSettings(max_length=48), log_every=1
)
PROTOCOL = Protocol(name="quick", source="this test", recipe=RECIPE, seeds=2)


def trained(name: str, out: Path, protocol: Protocol = PROTOCOL, **more: Any) -> Path:
    """A task of the synthetic ones, trained in ``out``, with a labelled test set."""
    task, splits = data(name, train=16, dev=12)
    splits["test"] = replace(data(name, train=10, seed=1)[1]["train"], name="test", sha256="of the test set")
    simple = baselines_by_split(task, {"train": splits["train"], "dev": splits["dev"], "test": splits["test"]})
    run(protocol, model(), task, splits, out, baselines=simple, **more)
    return out


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """A folder of fine-tuning for every form."""
    place = tmp_path_factory.mktemp("runs")
    return {name: trained(name, place / name, origin=Origin(folder="models/small")) for name in TASKS}


def sections(page: str) -> list[str]:
    return re.findall(r'<section id="(\w+)">', page)


@pytest.mark.parametrize("name", TASKS)
def test_every_form_has_a_whole_page(folders: Mapping[str, Path], name: str) -> None:
    page = make([folders[name]]).html
    shape = Shape()
    shape.feed(page)
    assert shape.open == [] and all(link.startswith(("#", "data:")) for link in shape.links)
    always = {"scores", "seeds", "curves", "settings", "cost", "provenance", "again"}
    form = TASKS[name][0].form
    own = {"classification": {"classes", "confusion"}, "multilabel": {"classes"}, "tagging": {"classes"},
           "regression": {"scatter"}}.get(form, set())  # fmt: skip
    assert set(sections(page)) - {"remarks", "mistakes"} == always | own
    for text in (
        "models/small",
        "Development set",
        "Test set",
        "quick: this test",
        "seed 1",
        "FLOPs",
        "of the test set",
    ):
        assert text in page, text
    assert "5 seeds" not in page and "here 2 seeds" in page
    wrong = json.loads((best_seed(folders[name], silent) / "analysis-dev.json").read_text())["worst"]
    assert ("mistakes" in sections(page)) == bool(wrong)
    data = json.loads(re.search(r'id="data">(.*?)</script>', page, re.S)[1])
    assert [one["name"] for one in data["runs"]] == ["seed 1", "seed 2"]
    assert data["runs"][0]["valid"]["step"] and any(key.startswith("scores.") for key in data["runs"][0]["valid"])


@chromium
@pytest.mark.parametrize("name", ["single", "number"])
def test_a_browser_draws_it(folders: Mapping[str, Path], tmp_path: Path, name: str) -> None:
    dom = browse(make([folders[name]]).html, tmp_path)
    assert 'data-ready="yes"' in dom and ">nothing recorded<" not in dom


def test_texts_are_escaped(tmp_path: Path) -> None:
    task, splits = data("single", train=16, dev=8)
    examples = [Text(id=HOSTILE, text=f"{one.text} {HOSTILE}", label=one.label) for one in splits["dev"].examples]
    splits["dev"] = replace(splits["dev"], examples=tuple(examples))
    run(PROTOCOL, model(), task, splits, tmp_path / "run", origin=Origin(folder=HOSTILE))
    page = make([tmp_path / "run"]).html
    assert HOSTILE not in page and "&lt;b&gt;bold&lt;/b&gt;&lt;/script&gt;" in page


def test_search_fresh_weights_and_several_runs_are_shown(folders, tmp_path, capsys) -> None:
    protocol = replace(PROTOCOL, grid={"optim.lr": (1e-9, 2e-3)}, seeds=2)
    other = trained("single", tmp_path / "other", protocol)
    trained("single", other / SCRATCH)
    page = make([other]).html
    assert "search" in sections(page) and "without pretraining" in page and "from pretraining" in page
    several = make([folders["single"], other])
    assert several.verdict.startswith("single: accuracy ") and "other, without pretraining" in several.html
    assert {name for name, _ in several.rows} == {
        "single, single",
        "single, other, without pretraining",
        "single, other",
    }
    out = tmp_path / "compare.html"
    assert main(["report", str(folders["single"]), str(other), "--out", str(out)]) == 0
    assert out.read_text().startswith("<!doctype html>") and "Run it again" in out.read_text()
    assert "development data" not in several.html
    apart = make([folders["single"], trained("single", tmp_path / "apart", replace(PROTOCOL, seeds=1))])
    assert "of single" in apart.verdict or "of apart" in apart.verdict
    capsys.readouterr()


def test_runs_are_compared_on_the_splits_that_they_share(folders, tmp_path) -> None:
    """In any order of the folders; and only where the data of a split is the same."""
    task, splits = data("single", train=16, dev=12)
    for name, more in (("dev", {}), ("further", {"test": replace(splits["dev"], name="test", sha256="further")})):
        run(PROTOCOL, model(), task, {**splits, **more}, tmp_path / name, origin=Origin(folder="models/small"))
    for places in ([folders["single"], tmp_path / "dev"], [tmp_path / "dev", folders["single"]]):
        page = make(places)
        assert page.head == ["metric", "Development set", "Test set"] and "cannot be compared" not in page.html
        assert {name: cells[2] == "–" for name, cells in page.rows} == {"single, dev": True, "single, single": False}
    page = make([folders["single"], tmp_path / "further"])
    assert page.html.count("single, test set") == 2
    assert "single: the data of the test set differ, so their scores on it cannot be compared." in page.html


def test_a_suite_is_a_folder_of_tasks(folders: Mapping[str, Path]) -> None:
    suite = folders["single"].parent
    page = make([suite])
    assert all(f"{name}, development set" in page.html for name in TASKS)
    assert [name for name, _ in page.rows] == [f"{name}, pretrained" for name in sorted(TASKS)]


def test_mixtures_and_damage_are_refused(folders, tmp_path, capsys) -> None:
    other = pretraining(tmp_path / "run", line(1, 9.0))
    page = ("--out", tmp_path / "page.html")
    said = messages(capsys, 2, "report", folders["single"], other, *page)
    assert "is a fine-tuning and" in said and "give runs of one kind" in said
    assert "--corpus is for runs of pretraining" in messages(
        capsys, 2, "report", folders["single"], "--corpus", "x", *page
    )


def test_a_page_needs_the_scores_of_all_seeds(folders, tmp_path, capsys) -> None:
    copy = shutil.copytree(folders["single"], tmp_path / "copy")
    page = ("--out", tmp_path / "page.html")
    assert "recipe.json: is missing; give a run folder" in messages(capsys, 3, "report", copy / "runs", *page)
    (copy / SCORE_FILE).unlink()  # as before the last seed has ended
    for others in ((), (folders["single"],)):
        said = messages(capsys, 3, "report", copy, *others, *page)
        assert "copy/score.json: is missing; run finetune again to write it" in said
    assert not (tmp_path / "page.html").exists()


@pytest.mark.parametrize("name", ["single", "question", "choice", "several"])
def test_every_damaged_file_is_named(name, folders, tmp_path, caplog) -> None:
    """What the page shows is refused, and what it does not show is logged."""
    copy = shutil.copytree(folders[name], tmp_path / "copy")
    files = [path for path in sorted(copy.rglob("*")) if path.is_file() and path.name not in (".lock", "report.html")]
    shown = 0
    for path in files:
        kept = path.read_bytes()
        for harmed in (None, kept[: len(kept) // 2], kept[:-1] + bytes([kept[-1] ^ 1])):
            path.unlink() if harmed is None else path.write_bytes(harmed)
            caplog.clear()
            if path == copy / "score.json" and harmed is None:
                assert tasks_in(copy) == []
                continue
            try:
                make([copy])
            except DataError as error:
                assert path.name in str(error)
                shown += 1
            else:
                assert f"{path}: is missing or has changed" in caplog.text, (path, harmed)
        path.write_bytes(kept)
    assert shown == 2 + 2 * 3 * 5  # score.json, metrics, provenance and two analyses of two seeds
    caplog.clear()
    make([copy])
    assert not caplog.text


def test_a_score_that_is_not_finite_is_not_drawn(tmp_path) -> None:
    """A seed whose scores are null counts as failed."""
    copy = trained("number", tmp_path / "number")
    path = copy / "score.json"
    record = json.loads(path.read_text())
    record["seeds"]["2"] = {"failed": "scores that are not finite: pearson of dev"}
    path.write_text(json.dumps(signed(record)))
    seed = copy / "runs/seed-2/score.json"
    broken = json.loads(seed.read_text())
    broken["scores"]["dev"]["pearson"] = None
    for place in (seed, copy / "runs/seed-2/model/score.json"):
        place.write_text(json.dumps(signed(broken)))
    assert "Failed: seed 2 (scores that are not finite" in make([copy]).verdict


def test_a_run_that_learnt_nothing_says_so_on_the_page(tmp_path: Path) -> None:
    lazy = replace(PROTOCOL, recipe=replace(RECIPE, optim=AdamW(lr=1e-9)), seeds=1)
    page = make([trained("single", tmp_path / "lazy", lazy)]).html
    assert re.search(r'class="finding error"><b>nothing learned</b> the loss never fell below 1\.\d\d nats', page)
