"""A tiny model learns every form of task, from scratch, in seconds; what a run leaves behind; predictions."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from encoderlab.config import to_dict
from encoderlab.errors import ConfigError, DataError, Stopped
from encoderlab.interchange.load import load
from encoderlab.model import Model, weights_hash
from encoderlab.models import FAMILIES
from encoderlab.models.base import resized
from encoderlab.nn.noise import Noise
from encoderlab.tasks.data.readers import Columns
from encoderlab.tasks.data.splits import completed
from encoderlab.tasks.data.task import Remarks, Submission, Text
from encoderlab.tasks.forms.base import FormSettings, Predictions
from encoderlab.tasks.forms.batching import pack
from encoderlab.tasks.forms.classification import ClassificationSettings
from encoderlab.tasks.forms.features import Frozen
from encoderlab.tasks.forms.objective import TaskObjective, form_of, with_head
from encoderlab.tasks.forms.regression import RegressionSettings
from encoderlab.tasks.forms.scores import score
from encoderlab.tasks.forms.span import SpanSettings, best_threshold
from encoderlab.tasks.runs.finetune import FinetuneRecipe, finetune, prepared
from encoderlab.tasks.runs.folder import read_task
from encoderlab.tasks.runs.predict import (
    Predictor,
    check_head,
    predict_ensemble,
    predict_file,
    task_of_model,
)
from encoderlab.train.optim import AdamW
from encoderlab.train.recipe import Budget, Execution
from encoderlab.train.schedule import Polynomial
from tests.tasks.synthetic import data
from tests.tasks.tiny import WORDS, model

RECIPE = FinetuneRecipe(
    epochs=12,
    batch=16,
    optim=AdamW(lr=2e-3, weight_decay=0.0),
    schedule=Polynomial(warmup=0.1),
    form=FormSettings(max_length=48),
)
SMALL = Frozen(layers="last", lstm_layers=1, lstm_width=16)
# The form, its epochs, the score to reach on held-out data of the same rule.
FORMS = [
    ("single", 12, 1.0),
    ("pair", 25, 0.95),
    ("number", 30, 0.95),
    ("several", 25, 0.95),
    ("tagged", 12, 1.0),
    ("question", 15, 1.0),
    ("choice", 12, 1.0),
]


@pytest.mark.parametrize(("name", "epochs", "wanted"), FORMS)
def test_a_tiny_model_learns_the_rule(tmp_path, name, epochs, wanted):
    task, splits = data(name, train=160, dev=40)
    result = finetune(model(), task, splits, replace(RECIPE, epochs=epochs), tmp_path / "run")
    assert result.scores["dev"][task.metric] >= wanted
    assert json.loads((tmp_path / "run/score.json").read_text())["scores"] == result.scores
    assert len((tmp_path / "run/predictions-dev.jsonl").read_text().splitlines()) == 40
    assert not (tmp_path / "run/checkpoints").exists()
    # The saved model predicts what the run predicted.
    loaded = load(tmp_path / "run")
    kept = read_task(tmp_path / "run")
    again = Predictor.of(loaded, replace(completed(task, splits["train"])), kept.settings)
    if name == "number":
        assert np.allclose(again.predict(splits["dev"].examples).values, result.predictions["dev"].values, atol=1e-4)
    else:
        assert again.predict(splits["dev"].examples).values == result.predictions["dev"].values


@pytest.mark.parametrize("name", ["single", "number", "tagged", "question", "choice"])
def test_32_examples_are_learned_by_heart(tmp_path, name):
    task, splits = data(name, train=32, dev=4, seed=5)
    splits["train_again"] = splits["train"]
    recipe = replace(RECIPE, epochs=40, batch=8, select="last")
    result = finetune(model(), task, splits, recipe, tmp_path / "run")
    assert result.scores["train_again"][task.metric] > 0.995


@pytest.mark.parametrize("size", ["electra-tiny", "xlnet-tiny"])
def test_questions_without_answer_under_heads_with_answerability(tmp_path, size):
    task, splits = data("question", train=120, dev=30, impossible=True)
    recipe = replace(RECIPE, epochs=8, form=SpanSettings(max_length=48, beam=5))
    result = finetune(model(size), task, splits, recipe, tmp_path / "run")
    assert result.scores["dev"]["f1"] >= 0.9
    assert result.scores["dev"]["no_answer_exact"] >= 0.9
    assert any("chosen on dev" in note for note in result.record["notes"])


def test_where_no_answer_at_all_is_best_the_threshold_withdraws_every_answer():
    task, splits = data("question", train=4, dev=20, impossible=True)
    keys = [question.id for question in splits["dev"].examples]
    spans = [{"text": "wrong", "score": 0.0}]
    found = Predictions(
        values=["wrong"] * 20,
        details=[{}] * 20,
        null_odds={key: -3.0 for key in keys},
        nbest=dict.fromkeys(keys, spans),
    )
    assert best_threshold(task, splits["dev"].examples, found) < -3


def objective_of(name, size="bert-tiny", dropout=0.0, **more):
    task, splits = data(name, **more)
    task = completed(task, splits["train"])
    start = model(size, dropout=dropout)
    form = form_of(task, start, FormSettings(max_length=48))
    start, _ = with_head(start, form, seed=1)
    return TaskObjective(start, form), form.items(splits["train"].examples, train=True), splits


def gradients(objective, batches, noise=True):
    """The gradient of the mean loss over batches that make up one, as the training loop adds it up."""
    objective.train()
    objective.zero_grad()
    counts: dict[str, int] = {}
    for batch in batches:
        for name, count in objective.counts(batch).items():
            counts[name] = counts.get(name, 0) + count
    for batch in batches:
        terms, _ = objective(batch, noise=Noise(1, 2, batch.rows) if noise else None)
        sum(term.weight * term.sum / max(counts[name], 1) for name, term in terms.items()).backward()
    return torch.cat([p.grad.flatten() for p in objective.parameters() if p.grad is not None])


@pytest.mark.parametrize("packing", ["packed", "dynamic", "fixed"])
def test_texts_may_be_as_long_as_a_model_with_an_odd_number_of_positions_reads(packing, tmp_path):
    task, splits = data("single", train=16, dev=8)
    splits = {
        name: replace(split, examples=tuple(replace(e, text=" ".join([e.text] * 9)) for e in split.examples))
        for name, split in splits.items()
    }
    recipe = replace(RECIPE, epochs=1, packing=packing, form=FormSettings(max_length=29))
    result = finetune(model(positions=29), task, splits, recipe, tmp_path / "run")
    assert result.record["cut"] > 8
    again = Predictor.of(load(tmp_path / "run"), completed(task, splits["train"]))
    assert again.form.settings.max_length == 29
    assert again.predict(splits["dev"].examples).values == result.predictions["dev"].values


@pytest.mark.parametrize("name", ["single", "pair", "number", "tagged", "question", "choice"])
def test_packing_changes_no_loss_and_no_gradient(name):
    objective, items, _ = objective_of(name, train=20)
    objective.double()
    packed = [pack(items, pad=0, room=80, mode="packed")]
    dynamic = [pack(items, pad=0, room=80, mode="dynamic")]
    a, b = gradients(objective, packed, noise=False), gradients(objective, dynamic, noise=False)
    assert torch.allclose(a, b, rtol=1e-9, atol=1e-12)
    assert len(packed[0].ids) < 0.5 * len(dynamic[0].ids)


def test_texts_that_share_a_row_leave_each_other_alone_in_the_published_convbert_too():
    start = model("convbert-tiny")
    start = Model(resized(start.config, conv=replace(start.config.encoder.conv, mask_padding=False)), start.tokenizer)
    task, splits = data("single", train=20, dev=4)
    task, recipe = completed(task, splits["train"]), replace(RECIPE, dropout=0.0)
    network = prepared(start.initialize(1), recipe)
    form = form_of(task, network, recipe.form)
    objective = TaskObjective(with_head(network, form, seed=1)[0], form).double()
    items = form.items(splits["train"].examples, train=True)
    a, b = (gradients(objective, [pack(items, pad=0, room=80, mode=mode)], noise=False) for mode in ("packed", "fixed"))
    assert torch.allclose(a, b, rtol=1e-9, atol=1e-12)
    assert not start.config.encoder.conv.mask_padding


@pytest.mark.parametrize("name", ["single", "tagged", "question", "choice"])
def test_micro_batches_give_the_same_gradient_with_dropout(name):
    objective, items, _ = objective_of(name, dropout=0.1, train=24)
    objective.double()
    whole = pack(items, pad=0, room=48, mode="packed")
    middle = len(whole) // 2
    a = gradients(objective, [whole])
    b = gradients(objective, [whole.slice(0, middle), whole.slice(middle, len(whole))])
    assert torch.allclose(a, b, rtol=1e-9, atol=1e-12)


def test_an_interrupted_run_ends_with_the_same_score(tmp_path):
    task, splits = data("single", train=64, dev=32)
    recipe = replace(RECIPE, epochs=6)
    whole = finetune(model(dropout=0.1), task, splits, recipe, tmp_path / "whole")
    with pytest.raises(Stopped):
        finetune(model(dropout=0.1), task, splits, recipe, tmp_path / "cut", session=Budget(amount=7))
    rest = finetune(model(dropout=0.1), task, splits, recipe, tmp_path / "cut")
    assert rest.scores == whole.scores and rest.record["steps"] == whole.record["steps"]
    a, b = load(tmp_path / "whole").state_dict(), load(tmp_path / "cut").state_dict()
    assert all(torch.equal(a[key], b[key]) for key in a)


def test_best_weights_that_are_damaged_become_no_model(tmp_path, monkeypatch):
    task, splits = data("single", train=32, dev=8)
    recipe = replace(RECIPE, epochs=1)

    def killed(*args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("encoderlab.tasks.runs.finetune.FineTuning.evaluate", killed)
        with pytest.raises(KeyboardInterrupt):
            finetune(model(), task, splits, recipe, tmp_path)
    weights = tmp_path / "checkpoints" / "best" / "weights.safetensors"
    changed = bytearray(weights.read_bytes())
    changed[-100] ^= 1
    weights.write_bytes(changed)
    with pytest.raises(
        DataError, match="its bytes have changed .*; restore it, or delete .*checkpoints to train again"
    ):
        finetune(model(), task, splits, recipe, tmp_path)
    assert not (tmp_path / "model").exists()


def test_a_run_killed_while_it_deletes_its_checkpoints_is_finished(tmp_path, monkeypatch):
    task, splits = data("single", train=32, dev=8)
    recipe = replace(RECIPE, epochs=1)

    rmtree = shutil.rmtree

    def killed(folder, **options):
        if folder.name != "checkpoints":
            return rmtree(folder, **options)
        next(folder.glob("step-*/state.json")).unlink()
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("encoderlab.tasks.runs.folder.shutil.rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            finetune(model(), task, splits, recipe, tmp_path / "cut")
    assert (tmp_path / "cut" / "checkpoints").is_dir()
    whole = finetune(model(), task, splits, recipe, tmp_path / "whole")
    rest = finetune(model(), task, splits, recipe, tmp_path / "cut")
    assert rest.scores == whole.scores and not rest.damaged
    for name in ("model/model.safetensors", "predictions-dev.jsonl"):
        assert (rest.folder / name).read_bytes() == (whole.folder / name).read_bytes()
    assert not (tmp_path / "cut" / "checkpoints").exists()


def test_a_finished_run_is_read_and_another_recipe_refused(tmp_path):
    task, splits = data("single", train=32, dev=8)
    recipe = replace(RECIPE, epochs=1)
    first = finetune(model(), task, splits, recipe, tmp_path / "run")
    second = finetune(model(), task, splits, recipe, tmp_path / "run")
    assert second.predictions is None and second.scores == first.scores
    other = replace(recipe, execution=Execution(micro_rows=2))
    assert finetune(model(), task, splits, other, tmp_path / "run").scores == first.scores
    with pytest.raises(ConfigError, match="has a finished run with epochs 1"):
        finetune(model(), task, splits, replace(recipe, epochs=2), tmp_path / "run")
    with pytest.raises(ConfigError, match="has a finished run on other train data"):
        finetune(model(), task, data("single", train=40, dev=8)[1], recipe, tmp_path / "run")


def test_the_folder_of_another_run_is_refused(tmp_path):
    task, splits = data("single", train=32, dev=8)
    recipe = replace(RECIPE, epochs=1)
    finetune(model(), task, splits, recipe, tmp_path / "run", about={"after": ["mnli"]})
    renamed = {
        name: replace(split, examples=tuple(replace(e, label=e.label.upper()) for e in split.examples))
        for name, split in splits.items()
    }
    for words, start, job, parts, after in (
        ("an initial model with hash", model(width=32), task, splits, ["mnli"]),
        ("columns", model(), replace(task, layouts=(Columns(text="text", label="intent"),)), splits, ["mnli"]),
        ("task single", model(), replace(task, name="other"), splits, ["mnli"]),
        ("labels", model(), task, renamed, ["mnli"]),
        ("intermediate tasks", model(), task, splits, []),
    ):
        with pytest.raises(ConfigError, match=f"has a run with {words}.*now .*choose another --out"):
            finetune(start, job, parts, recipe, tmp_path / "run", about={"after": after})


def test_an_interrupted_run_goes_on_with_its_model_alone(tmp_path):
    task, splits = data("single", train=32, dev=8)
    recipe = replace(RECIPE, epochs=4)
    with pytest.raises(Stopped):
        finetune(model(), task, splits, recipe, tmp_path / "run", session=Budget(amount=3))
    other = model()
    with torch.no_grad():
        next(other.parameters()).add_(1)
    with pytest.raises(ConfigError, match="data model"):
        finetune(other, task, splits, recipe, tmp_path / "run")


@pytest.mark.parametrize(
    ("name", "frozen"),
    [("single", None), ("number", None), ("question", None), ("tagged", SMALL), ("number", SMALL)],
)
def test_a_finished_run_predicts_the_splits_it_did_not_have(tmp_path, name, frozen):
    task, splits = data(name, train=24, dev=6)
    recipe = replace(RECIPE, epochs=1, frozen=frozen)
    whole = {**splits, "test": replace(splits["dev"], name="test")}
    finetune(model(), task, splits, recipe, tmp_path / "run")
    assert not (tmp_path / "run/predictions-test.jsonl").exists()
    found = finetune(model(), task, whole, recipe, tmp_path / "run")
    assert (
        found.scores["test"] == pytest.approx(found.scores["dev"], rel=1e-3) and found.record["examples"]["test"] == 6
    )
    assert len((tmp_path / "run/predictions-test.jsonl").read_text().splitlines()) == 6
    assert finetune(model(), task, whole, recipe, tmp_path / "run").scores == found.scores


def test_the_given_model_is_left_as_it_is(tmp_path):
    task, splits = data("single", train=32, dev=8)
    start = model()
    before = weights_hash(start)
    result = finetune(start, task, splits, replace(RECIPE, epochs=1, dropout=0.2), tmp_path / "run")
    assert weights_hash(start) == before and weights_hash(load(tmp_path / "run")) != before
    assert to_dict(load(tmp_path / "run").config)["encoder"]["dropout"] == 0.2
    assert result.record["head"] == "the task head is new"


def test_heads_that_fit_are_kept_and_others_named(tmp_path):
    objective, _, _ = objective_of("single")
    trained = objective.model
    kept, said = with_head(trained, objective.form, seed=9, same=True)
    assert kept is trained and "is kept" in said
    other, said = with_head(trained, objective.form, seed=9)
    assert other is not trained and "the model's own is dropped: it was not trained for this task" in said
    quiet, said = with_head(trained, objective.form, seed=9, same=True, head=replace(trained.config.task, dropout=0.4))
    assert "kept, with dropout 0.4" in said and quiet.config.task.dropout == 0.4
    assert all(torch.equal(a, b) for a, b in zip(quiet.parameters(), trained.parameters(), strict=True))
    form = form_of(completed(*_task("pair")), trained, FormSettings(max_length=48))
    other, said = with_head(trained, form, seed=9, same=True)
    assert other is not trained and "the model's own is dropped: it has other labels or another kind" in said


def test_a_head_is_kept_for_its_own_task_alone(tmp_path):
    task, splits = data("single", train=24, dev=6)
    recipe = replace(RECIPE, epochs=1)
    first = finetune(model(), task, splits, recipe, tmp_path / "first")
    start, trained = load(first.model), read_task(first.model)
    for name, job, words in (
        ("same", task, "is kept"),
        ("other", replace(task, name="other"), "the task head is new"),
        ("columns", replace(task, layouts=(Columns(text="text", label="intent"),)), "the task head is new"),
    ):
        found = finetune(start, job, splits, recipe, tmp_path / name, trained=trained)
        assert words in found.record["head"] and found.record["head"] in found.record["notes"]
    recipe = replace(recipe, head_dropout=0.3)
    found = finetune(start, task, splits, recipe, tmp_path / "dropout", trained=trained)
    assert "is kept, with dropout 0.3" in found.record["head"] and load(found.model).config.task.dropout == 0.3


def test_a_head_for_numbers_is_kept_in_its_own_units(tmp_path):
    task, splits = data("number", train=24, dev=6)
    first = finetune(model(), task, splits, replace(RECIPE, epochs=1), tmp_path / "first")
    start, trained = load(first.model), read_task(first.model)
    for targets, words in (("unit", "the task head is new"), ("raw", "is kept")):
        recipe = replace(RECIPE, epochs=1, form=RegressionSettings(max_length=48, targets=targets))
        found = finetune(start, task, splits, recipe, tmp_path / targets, trained=trained)
        assert words in found.record["head"]


def test_a_saved_model_answers_in_the_numbers_of_a_task_with_a_range(tmp_path):
    task, splits = data("number", train=32, dev=8)
    task = replace(task, range=(0.0, 30.0))
    result = finetune(model(), task, splits, replace(RECIPE, epochs=2), tmp_path / "run")
    again = Predictor.of(load(result.model), task, read_task(result.model).settings)
    assert np.allclose(again.predict(splits["dev"].examples).values, result.predictions["dev"].values, atol=1e-4)


def _task(name):
    task, splits = data(name)
    return task, splits["train"]


def test_weights_are_not_divided_among_processes():
    with pytest.raises(ConfigError, match="fine-tuning divides no weights among processes; set execution.parallel=ddp"):
        FinetuneRecipe(execution=Execution(parallel="fsdp"))


def test_training_needs_something_to_learn_from(tmp_path):
    task, splits = data("question", train=4)
    lost = replace(
        splits["train"],
        examples=tuple(replace(e, answers=(replace(e.answers[0], start=-1),)) for e in splits["train"].examples),
    )
    with pytest.raises(DataError, match="no training example can be learned from"):
        finetune(model(), task, {**splits, "train": lost}, RECIPE, tmp_path / "run")
    with pytest.raises(ConfigError, match="has no dev data to choose an epoch"):
        finetune(model(), task, {"train": splits["train"]}, RECIPE, tmp_path / "run2")
    with pytest.raises(ConfigError, match="max_length 600 exceeds the model's 512 positions"):
        finetune(model(), task, splits, replace(RECIPE, form=FormSettings(max_length=600)), tmp_path / "run3")


# Prediction


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
        check_head(objective.model, _task("tagged")[0])
    with pytest.raises(ConfigError, match="has both, none, one besides"):
        check_head(objective.model, completed(*_task("pair")))
    with pytest.raises(ConfigError, match="the model has no task head"):
        check_head(model(), _task("single")[0])
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


def test_prepared_copies_weights():
    start = model()
    assert weights_hash(prepared(start, replace(RECIPE, dropout=0.3))) == weights_hash(start)


def test_labels_that_training_never_shows_are_refused(tmp_path):
    task, splits = data("single", train=20, dev=4)
    strange = replace(splits["dev"].examples[0], label="mauve", row=7)
    with pytest.raises(DataError, match="dev:7: label 'mauve' never occurs in the training data"):
        finetune(
            model(), task, {**splits, "dev": replace(splits["dev"], examples=(strange,))}, RECIPE, tmp_path / "run"
        )


def test_a_model_for_pairs_takes_no_single_texts(tmp_path):
    task, splits = data("pair", train=20, dev=4)
    result = finetune(model(), task, splits, replace(RECIPE, epochs=1), tmp_path / "run")
    predictor = Predictor.of(load(result.model), completed(task, splits["train"]), read_task(result.model).settings)
    with pytest.raises(DataError, match="the model was trained on two texts per example, here is one; give two texts"):
        predictor.predict([Text(id="0", text="red")])


@pytest.mark.parametrize(("name", "done"), [("single", "were cut"), ("tagged", "were read in parts")])
def test_what_is_longer_than_a_sequence_is_counted(tmp_path, name, done):
    task, splits = data(name, train=8, dev=4)
    result = finetune(model(), task, splits, replace(RECIPE, epochs=1, form=FormSettings(max_length=4)), tmp_path)
    (said,) = (note for note in result.record["notes"] if "longer than 4 tokens" in note)
    assert said.endswith(done)


def test_leaderboard_files_are_written_and_wrong_counts_noted(tmp_path):
    task, splits = data("tagged", train=20, dev=6)
    splits["test"] = replace(splits["dev"], name="test")
    both = Submission(format="conll", files={"dev": "dev.txt", "test": "test.txt"}, rows={"test": 7})
    result = finetune(model(), replace(task, submission=both), splits, replace(RECIPE, epochs=1), tmp_path / "run")
    assert (tmp_path / "run/submission-dev/dev.txt").exists() and not (tmp_path / "run/submission").exists()
    assert any("6 predictions for test, the leaderboard expects 7" in note for note in result.record["notes"])


def test_examples_are_encoded_once_for_several_runs(tmp_path, monkeypatch):
    from encoderlab.tasks.forms.encodings import Encodings
    from encoderlab.tasks.forms.regression import RegressionForm

    task, splits = data("number", train=20, dev=8)
    encodings, calls = Encodings(), []
    original = RegressionForm.items
    monkeypatch.setattr(RegressionForm, "items", lambda self, *a, **k: calls.append(1) or original(self, *a, **k))
    first = finetune(model(), task, splits, replace(RECIPE, epochs=1), tmp_path / "a", encodings=encodings)
    assert len(calls) == 2
    second = finetune(model(), task, splits, replace(RECIPE, epochs=1), tmp_path / "b", encodings=encodings)
    assert len(calls) == 2 and second.scores == first.scores


@pytest.mark.parametrize("name", ["single", "several", "tagged", "choice"])
def test_a_loss_that_never_left_that_of_guessing_is_a_finding(tmp_path, name):
    task, splits = data(name, train=96, dev=24)
    lazy = replace(RECIPE, epochs=2, optim=AdamW(lr=1e-9))
    notes = finetune(model(), task, splits, lazy, tmp_path / "lazy").record["notes"]
    assert any(note.startswith("doctor: nothing learned: the loss never left") for note in notes)
    notes = finetune(model(), task, splits, replace(RECIPE, epochs=12), tmp_path / "run").record["notes"]
    assert not any("nothing learned" in note for note in notes)


def test_patience_ends_a_run_that_does_not_get_better(tmp_path):
    task, splits = data("single", train=32, dev=12)
    lazy = replace(RECIPE, epochs=9, optim=AdamW(lr=1e-9), patience=2)
    record = finetune(model(), task, splits, lazy, tmp_path / "run").record
    assert (record["steps"], record["best_step"], record["epochs"]) == (3 * 2, 2, 3.0)
    assert "stopped at step 6 of 18: no better development score for 2 epochs" in record["notes"]
    with pytest.raises(Stopped):
        finetune(model(), task, splits, lazy, tmp_path / "again", session=Budget(amount=5, unit="steps"))
    assert finetune(model(), task, splits, lazy, tmp_path / "again").record["steps"] == 6
    with pytest.raises(ConfigError, match="patience needs select=best_epoch"):
        replace(RECIPE, patience=2, select="last")


def losses_of(labels, noisy=True, **settings):
    """Scores (n, 3), targets and the loss of training on texts with these labels."""
    task, _ = data("single")
    task = replace(task, labels=("a", "b", "c"))
    start = model()
    form = form_of(task, start, ClassificationSettings(max_length=16, **settings))
    network, _ = with_head(start, form, seed=1, head=replace(form.head(FAMILIES["bert"]), dropout=0.0))
    objective = TaskObjective(network, form)
    items = form.items([Text(id=str(i), text=WORDS[i], label=label) for i, label in enumerate(labels)], train=True)
    batch = pack(items, pad=0, room=64, mode="dynamic")
    (term,) = objective(batch, noise=Noise(0, 0, batch.rows) if noisy else None)[0].values()
    scores = np.array(Predictor(objective).outputs(items), dtype=np.float64)
    return scores, [item.sequences[0].labels["target"] for item in items], float(term.sum.detach())


def test_rare_classes_count_more_or_come_more_often():
    labels = ["a"] * 6 + ["b"] * 3 + ["c"]
    scores, target, loss = losses_of(labels, balance="weights")
    log_p = scores - np.log(np.exp(scores).sum(-1, keepdims=True))
    weights = 10 / (3 * np.array([6, 3, 1]))
    assert loss == pytest.approx(-sum(weights[y] * row[y] for row, y in zip(log_p, target, strict=True)), rel=1e-4)
    _, _, plain = losses_of(labels)
    assert losses_of(labels, noisy=False, balance="weights", smoothing=0.3)[2] == pytest.approx(plain, rel=1e-5)
    _, target, _ = losses_of(labels, balance="sampling")
    assert [target.count(i) for i in range(3)] == [6, 6, 6]


def test_smoothed_labels_give_every_class_a_share():
    scores, target, loss = losses_of(["a", "b", "c", "c"], smoothing=0.3)
    log_p = scores - np.log(np.exp(scores).sum(-1, keepdims=True))
    shares = 0.7 * np.eye(3)[target] + 0.1
    assert loss == pytest.approx(-(shares * log_p).sum(), rel=1e-4)


@settings(max_examples=15, deadline=None)
@given(
    labels=st.lists(st.sampled_from("abc"), min_size=2, max_size=10).filter(lambda labels: len(set(labels)) > 1),
    smoothing=st.floats(0.0, 0.9),
)
def test_the_weight_of_an_example_is_that_of_its_class_also_with_smoothing(labels, smoothing):
    scores, target, loss = losses_of(labels, balance="weights", smoothing=smoothing)
    log_p = scores - np.log(np.exp(scores).sum(-1, keepdims=True))
    shares = (1 - smoothing) * np.eye(3)[target] + smoothing / 3
    weights = [len(labels) / (len(set(labels)) * labels.count(label)) for label in labels]
    assert loss == pytest.approx(-(np.array(weights)[:, None] * shares * log_p).sum(), rel=1e-4)
