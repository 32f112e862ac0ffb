"""A finished run is verified when it is read: what is damaged in it is named, and made again where it can be."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from encoderlab import cli
from encoderlab.errors import DataError
from encoderlab.interchange.checksums import NAME as SUMS
from encoderlab.interchange.finetuned import SCORE_FILE
from encoderlab.tasks.forms.base import FormSettings
from encoderlab.tasks.runs.apply import predictor_of
from encoderlab.tasks.runs.finetune import FinetuneRecipe, finetune
from encoderlab.tasks.runs.protocol import Protocol
from encoderlab.tasks.runs.trials import run
from encoderlab.train.folder import LOCK
from encoderlab.train.optim import AdamW
from tests.tasks.runs.test_apply import ready, saved
from tests.tasks.synthetic import data
from tests.tasks.tiny import model
from tests.terminal import messages

RECIPE = FinetuneRecipe(epochs=2, batch=8, optim=AdamW(lr=2e-3, weight_decay=0.0), form=FormSettings(max_length=32))
LOGS = {"metrics.jsonl", "run.log", "provenance.json"}  # what only the training itself could write
RETRAINED = {"model/model.safetensors"}
CARD = "model/README.md"
TOLD = {"elapsed": 0, "sha256": ""}


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


HARMS: tuple[Callable[[Path], None], ...] = (flip, cut, Path.unlink)


def contents(run: Path) -> dict[str, bytes]:
    files = (path for path in run.rglob("*") if path.is_file() and path.name != LOCK)
    return {path.relative_to(run).as_posix(): path.read_bytes() for path in files}


@pytest.mark.parametrize("kind", ["single", "number", "question", "several", "choice"])
def test_every_file_of_a_run_is_made_again_or_named(kind, tmp_path, caplog) -> None:
    task, splits = data(kind, train=24, dev=8)
    whole, start = tmp_path / "whole", model()
    finetune(start, task, splits, RECIPE, whole)
    right = contents(whole)
    assert len(right) >= 12
    for name in sorted(right):
        for harm in HARMS if kind == "single" else HARMS[:1]:
            run = tmp_path / f"{name.replace('/', '-')}-{harm.__name__}"
            shutil.copytree(whole, run)
            harm(run / name)
            mine = contents(run).get(name)
            caplog.clear()
            with caplog.at_level(logging.WARNING):
                result = finetune(start, task, splits, RECIPE, run)
            assert name in caplog.text.replace(f"{run}/", ""), (name, harm)
            if name == CARD and mine is not None:  # users may edit it
                assert contents(run) == {**right, name: mine} and "it is kept" in caplog.text
                continue
            found = contents(run)
            scores = json.loads(right[SCORE_FILE])["scores"]["dev"]
            assert result.scores["dev"] == pytest.approx(scores, rel=1e-3)
            changed = {other for other in right if found.get(other) != right[other]}
            if name in LOGS:
                assert changed == {name} and "cannot be made again" in caplog.text
            elif name in RETRAINED:
                assert changed <= {*LOGS, SCORE_FILE, f"model/{SCORE_FILE}"}
            else:
                assert not changed, (name, harm, changed)
            caplog.clear()
            with caplog.at_level(logging.WARNING):
                finetune(start, task, splits, RECIPE, run)
            assert (name in caplog.text) == (name in LOGS)  # what is lost is named every time


def test_the_user_s_card_and_the_weights_stay_when_the_rest_is_made_again(tmp_path, caplog, monkeypatch) -> None:
    task, splits = data("single", train=24, dev=8)
    run, start = tmp_path / "run", model()
    finetune(start, task, splits, RECIPE, run)
    (run / CARD).write_text("# Mine\n")
    right = contents(run)
    finetune(start, task, splits, RECIPE, run)
    assert contents(run) == right
    flip(run / "model/config.json")
    (run / "model/tokenizer.json").unlink()
    with monkeypatch.context() as patched:
        patched.setattr("encoderlab.interchange.folder.write_whole", lambda folder, fill: 1 / 0)  # killed just before
        with pytest.raises(ZeroDivisionError):
            finetune(start, task, splits, RECIPE, run)
    for name in ("model/model.safetensors", CARD):
        assert contents(run)[name] == right[name]
    finetune(start, task, splits, RECIPE, run)
    assert "trained again" not in caplog.text
    sums = f"model/{SUMS}"  # with the hash of the card
    changed = {name for name, content in contents(run).items() if content != right[name]}
    assert changed <= {sums, SCORE_FILE, f"model/{SCORE_FILE}"}


def test_the_user_s_card_stays_when_the_run_is_trained_again(tmp_path, caplog) -> None:
    task, splits = data("single", train=8, dev=8)
    run, start, recipe = tmp_path / "run", model(), replace(RECIPE, epochs=1)
    finetune(start, task, splits, recipe, run)
    (run / CARD).write_text("# Mine\n")
    flip(run / "model/model.safetensors")
    finetune(start, task, splits, recipe, run)
    aside = run / "damaged-model"
    assert f"{aside}: has the model's folder with the card that you wrote" in caplog.text
    assert (aside / "README.md").read_text() == "# Mine\n"
    caplog.clear()
    finetune(start, task, splits, recipe, run)
    assert not caplog.text


def test_files_of_users_may_change(tmp_path, caplog) -> None:
    task, splits = data("single", train=8, dev=8)
    run, start, recipe = tmp_path / "run", model(), replace(RECIPE, epochs=1)
    finetune(start, task, splits, recipe, run)
    mine = (run / "report.html", run / "notes.txt")
    for text in ("first", "second"):
        for path in mine:
            path.write_text(text)
        splits = {**splits, "test": splits["dev"]}
        finetune(start, task, splits, recipe, run)  # the record is written again, with the new split
    assert "changed since the run ended" not in caplog.text
    assert [path.read_text() for path in mine] == ["second", "second"]


@pytest.mark.parametrize("harm", HARMS)
def test_the_record_of_all_seeds_is_made_again_and_named(harm, tmp_path, caplog) -> None:
    task, splits = data("choice", train=16, dev=8)
    protocol, out = Protocol(name="quick", source="this test", recipe=RECIPE, seeds=1), tmp_path / "out"
    path = out / SCORE_FILE
    for damage in (None, None, harm, None):
        whole = json.loads(path.read_text()) if path.exists() else None
        if damage is not None:
            damage(path)
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            record = run(protocol, model(), task, splits, out).record
        assert (f"{path}: is " in caplog.text and "made again" in caplog.text) == (damage is not None)
        assert whole is None or {**record, **TOLD} == {**whole, **TOLD}


def test_changed_predictions_of_a_run_are_not_scored(tmp_path, capsys) -> None:
    task, splits = data("several", train=16, dev=8)
    finetune(model(), task, splits, RECIPE, tmp_path / "run")
    gold, predictions = tmp_path / "gold.jsonl", tmp_path / "run/predictions-dev.jsonl"
    rows = [{"id": one.id, "text": one.text, "label": list(one.label)} for one in splits["dev"].examples]
    gold.write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ("score", str(predictions), str(gold))
    assert cli.main([*words]) == 0
    lines = predictions.read_text().splitlines(keepends=True)
    predictions.write_text("".join(reversed(lines)))
    assert "predictions-dev.jsonl: has changed since the run ended" in messages(capsys, 3, *words)
    shutil.copy(predictions, tmp_path / "elsewhere.jsonl")
    assert cli.main(["score", str(tmp_path / "elsewhere.jsonl"), str(gold)]) == 0


def test_a_score_without_a_whole_copy_is_an_error(tmp_path) -> None:
    task, splits = data("single", train=24, dev=8)
    finetune(model(), task, splits, RECIPE, tmp_path / "run")
    flip(tmp_path / "run" / SCORE_FILE)
    flip(tmp_path / "run/model" / SCORE_FILE)
    with pytest.raises(DataError, match=r"damaged .* delete .*run to train it again"):
        finetune(model(), task, splits, RECIPE, tmp_path / "run")


@pytest.mark.parametrize("name", ["task.json", SCORE_FILE])
def test_altered_json_is_a_data_error_wherever_the_byte_is(name, tmp_path) -> None:
    folder = saved(ready("single")[0], tmp_path / "model")
    if name == SCORE_FILE:
        finetune(model(), *data("single", train=24, dev=8), RECIPE, tmp_path / "run")
        shutil.copy(tmp_path / "run" / SCORE_FILE, folder / name)
    path = folder / name
    whole = path.read_bytes()
    for place in range(0, len(whole), max(1, len(whole) // 25)):
        for harmed in (*(whole[:place] + bytes([byte]) + whole[place + 1 :] for byte in (0, 0xFF)), whole[:place]):
            path.write_bytes(harmed)
            with pytest.raises(DataError, match="damaged|does not match its checksum"):
                predictor_of(folder)


def test_a_task_that_no_checksum_protects_is_checked_by_its_fields(tmp_path) -> None:
    folder = saved(ready("single")[0], tmp_path / "model")
    (folder / "SHA256SUMS").unlink()
    kept = json.loads((folder / "task.json").read_text())
    for name, value in (
        ("form", "sorting"), ("labels", 3), ("labels", None), ("labels", []), ("metrics", None),
        ("layouts", [{"layout": "Rows"}]),
        ("layouts", [{"layout": "Columns", "rows": 1}]), ("settings", []), ("settings", {"max_length": "x"}),
        ("threshold", "high"), ("name", None), ("colour", 1),
    ):  # fmt: skip
        (folder / "task.json").write_text(json.dumps(kept | {name: value}))
        with pytest.raises(DataError, match=r"task.json: is damaged"):
            predictor_of(folder)
