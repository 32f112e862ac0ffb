"""Predictions: of files, in chunks, of several models; models that do not fit."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from encoderlab.errors import ConfigError, DataError
from encoderlab.interchange.load import load
from encoderlab.tasks.data.splits import completed
from encoderlab.tasks.data.task import Remarks, Submission, Text
from encoderlab.tasks.forms.base import FormSettings
from encoderlab.tasks.forms.scores import score
from encoderlab.tasks.runs.finetune import finetune
from encoderlab.tasks.runs.folder import read_task
from encoderlab.tasks.runs.predict import (
    Predictor,
    check_head,
    predict_ensemble,
    predict_file,
    task_of_model,
)
from tests.tasks.runs.training import RECIPE, objective_of, task_of
from tests.tasks.synthetic import data
from tests.tasks.tiny import model


def test_ensemble_is_at_least_plausible(tmp_path):
    for name in ("single", "number", "tagged", "question", "choice"):
        task, splits = data(name, train=48, dev=24)
        members = []
        for seed in (1, 2):
            result = finetune(model(), task, splits, replace(RECIPE, epochs=4, seed=seed), tmp_path / f"{name}{seed}")
            members.append(Predictor.of(load(result.model), completed(task, splits["train"]), RECIPE.form))
        together, own = predict_ensemble(members, splits["dev"].examples)
        ensemble, *alone = (
            score(task, splits["dev"].examples, found.values)[0][task.metric] for found in (together, *own)
        )
        assert len(together.values) == 24 and len(alone) == 2
        assert ensemble >= min(alone) - 0.1


def test_wrong_heads_are_refused():
    objective, _, _ = objective_of("single")
    with pytest.raises(ConfigError, match="the model's head is for classification, task 'tagged' is tagging"):
        check_head(objective.model, task_of("tagged")[0])
    with pytest.raises(ConfigError, match="has both, none, one besides"):
        check_head(objective.model, completed(*task_of("pair")))
    with pytest.raises(ConfigError, match="the model has no task head"):
        check_head(model(), task_of("single")[0])
    assert task_of_model(objective.model).labels == ("blue", "green", "red")


def test_a_file_is_predicted_in_chunks_and_gone_on_from(tmp_path):
    objective, _, _ = objective_of("single")
    path = tmp_path / "texts.csv"
    path.write_text("text\n" + "".join(f"the {colour} cat {i % 7}\n" for i in range(50) for colour in ("red", "blue")))
    task = task_of_model(objective.model)
    predictor = Predictor.of(objective.model, task, FormSettings(max_length=16))
    out = tmp_path / "out.jsonl"

    def run(target):
        return list(predict_file(predictor, path, target, task=task, remarks=Remarks(path), chunk=30))

    assert run(out) == [30, 60, 90, 100]
    whole = out.read_text()
    lines = [json.loads(line) for line in whole.splitlines()]
    assert [line["id"] for line in lines] == [str(i) for i in range(100)]
    assert set(lines[0]["probabilities"]) == {"red", "blue", "green"}
    assert lines[0]["label"] == max(lines[0]["probabilities"], key=lines[0]["probabilities"].get)
    assert {path.name for path in tmp_path.iterdir()} == {"texts.csv", "out.jsonl"}
    running = predict_file(predictor, path, out, task=task, remarks=Remarks(path), chunk=30)
    assert [next(running), next(running)] == [30, 60]
    running.close()
    assert out.read_text() == whole  # until the end
    out.unlink()
    part, sums = sorted(tmp_path.glob("out.jsonl.part-*"))
    assert sums.name == f"{part.name}.sums"
    part.write_text("".join(line + "\n" for line in whole.splitlines()[:50]) + whole.splitlines()[50][:10])
    assert run(out) == [60, 90, 100] and out.read_text() == whole
    assert not part.exists()


def test_a_file_that_cannot_be_read_leaves_nothing_beside_the_output(tmp_path):
    objective, _, _ = objective_of("single")
    path, out = tmp_path / "texts.csv", tmp_path / "out.jsonl"
    task = task_of_model(objective.model)
    predictor = Predictor.of(objective.model, task, FormSettings(max_length=16))
    path.write_bytes(b"text\nred cat\ncaf\xe9\n")
    with pytest.raises(DataError, match="not UTF-8"):
        list(predict_file(predictor, path, out, task=task, remarks=Remarks(path)))
    assert list(tmp_path.iterdir()) == [path]
    path.write_text("text\n")  # and without a row there is an empty output, as always
    list(predict_file(predictor, path, out, task=task, remarks=Remarks(path)))
    assert {one.name: one.read_bytes() for one in tmp_path.iterdir() if one != path} == {"out.jsonl": b""}


def test_predictions_of_another_model_are_not_gone_on_from(tmp_path):
    path, out = tmp_path / "texts.csv", tmp_path / "out.jsonl"
    path.write_text("text\n" + "red cat\n" * 20)
    for epochs in (0, 1):
        objective, _, _ = objective_of("single")
        with torch.no_grad():
            objective.model.task.out.bias.add_(epochs)
        task = task_of_model(objective.model)
        predictor = Predictor.of(objective.model, task, FormSettings(max_length=16))
        running = predict_file(predictor, path, out, task=task, remarks=Remarks(path), chunk=5)
        next(running)
        running.close()
    assert len(list(tmp_path.glob("out.jsonl.part-*[!s]"))) == 2
    list(predict_file(predictor, path, out, task=task, remarks=Remarks(path), chunk=5))
    assert {one.name for one in tmp_path.iterdir()} == {"texts.csv", "out.jsonl"}


def test_altered_lines_of_an_interrupted_prediction_are_named_and_made_again(tmp_path, caplog):
    objective, _, _ = objective_of("single")
    task = task_of_model(objective.model)
    predictor = Predictor.of(objective.model, task, FormSettings(max_length=16))
    path, out = tmp_path / "texts.csv", tmp_path / "out.jsonl"
    path.write_text("text\n" + "".join(f"red cat {i}\n" for i in range(20)))

    def run():
        return predict_file(predictor, path, out, task=task, remarks=Remarks(path), chunk=6)

    list(run())
    whole = out.read_bytes()
    assert [name.name for name in tmp_path.glob("out*")] == ["out.jsonl"]
    running = run()
    assert [next(running), next(running)] == [6, 12]
    running.close()
    half = {name: name.read_bytes() for name in tmp_path.glob("out.jsonl.part-*")}
    for name, content in half.items():
        for place in range(0, len(content) - 1, len(content) // 8):
            flipped = content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]
            for other in (flipped, content[:place], None):
                for one, there in half.items():
                    one.write_bytes(there)
                name.unlink() if other is None else name.write_bytes(other)
                caplog.clear()
                list(run())
                assert out.read_bytes() == whole
                assert other is not flipped or "made again" in caplog.text
    assert [name.name for name in tmp_path.glob("out*")] == ["out.jsonl"]


def test_prediction_does_not_depend_on_neighbours():
    objective, _, splits = objective_of("single", dev=30)
    predictor = Predictor(objective)
    together = predictor.predict(splits["dev"].examples)
    alone = [predictor.predict([example]).details[0]["probabilities"] for example in splits["dev"].examples]
    assert np.allclose([detail["probabilities"] for detail in together.details], alone, atol=1e-5)
    long = predictor.predict([Text(id="0", text="red " * 100_000)])
    assert long.values[0] in ("red", "blue", "green") and objective.form.cut == 1


def test_a_model_for_pairs_takes_no_single_texts(tmp_path):
    task, splits = data("pair", train=20, dev=4)
    result = finetune(model(), task, splits, replace(RECIPE, epochs=1), tmp_path / "run")
    predictor = Predictor.of(load(result.model), completed(task, splits["train"]), read_task(result.model).settings)
    with pytest.raises(DataError, match="the model was trained on two texts per example, here is one; give two texts"):
        predictor.predict([Text(id="0", text="red")])


def test_leaderboard_files_are_written_and_wrong_counts_noted(tmp_path):
    task, splits = data("tagged", train=20, dev=6)
    splits["test"] = replace(splits["dev"], name="test")
    both = Submission(format="conll", files={"dev": "dev.txt", "test": "test.txt"}, rows={"test": 7})
    result = finetune(model(), replace(task, submission=both), splits, replace(RECIPE, epochs=1), tmp_path / "run")
    assert (tmp_path / "run/submission-dev/dev.txt").exists() and not (tmp_path / "run/submission").exists()
    assert any("6 predictions for test, the leaderboard expects 7" in note for note in result.record["notes"])
