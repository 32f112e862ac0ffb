"""A fine-tuned teacher's predictions as further targets."""

from __future__ import annotations

import json
import math
from copy import copy
from dataclasses import replace

import pytest
import torch

from encoderlab.cli import main
from encoderlab.errors import ConfigError, Stopped
from encoderlab.interchange import huggingface
from encoderlab.interchange.load import load
from encoderlab.models import FAMILIES
from encoderlab.nn.encoder import Chosen
from encoderlab.nn.noise import Noise
from encoderlab.tasks.data.splits import completed
from encoderlab.tasks.data.task import Text
from encoderlab.tasks.forms.base import FormSettings
from encoderlab.tasks.forms.batching import pack
from encoderlab.tasks.forms.objective import form_of, with_head
from encoderlab.tasks.runs.distill import TaughtObjective, Teaching, check_teacher, read_teacher
from encoderlab.tasks.runs.finetune import finetune
from encoderlab.tasks.runs.predict import Predictor
from encoderlab.train.recipe import Budget
from tests.tasks.runs.test_commands import reviews, run
from tests.tasks.runs.training import RECIPE, objective_of
from tests.tasks.synthetic import data, split
from tests.tasks.tiny import model
from tests.terminal import messages

FORMS = ["single", "number", "tagged", "question", "choice"]


def fresh(name: str, size: str = "bert-tiny", *, seed: int = 2, labels: tuple[str, ...] = (), **shape):
    """A model with random weights and the head of the synthetic task ``name``, without dropout and sure of itself."""
    task, splits = data(name)
    task = completed(task, splits["train"])
    task = replace(task, labels=labels) if labels else task
    start = model(size, **shape).initialize(seed)
    form = form_of(task, start, FormSettings(max_length=48))
    head = replace(form.head(FAMILIES[start.config.family]), dropout=0.0)
    start, _ = with_head(start, form, seed=seed, head=head)
    with torch.no_grad():
        for parameter in start.task.parameters():
            parameter.mul_(100)
    return start


def short():
    """A teacher of the task ``single`` that reads 32 tokens at most."""
    start = model(positions=32)
    form = form_of(completed(data("single")[0], data("single")[1]["train"]), start, FormSettings(max_length=32))
    return with_head(start, form, seed=1)[0]


def taught(name: str, teacher=None, **settings):
    """The objective under ``teacher`` (None: the student itself), and a packed batch."""
    plain, items, _ = objective_of(name, train=20)
    if plain.form.task.form == "regression":
        plain.form.offset, plain.form.factor = 3.0, 5.0  # the teacher's numbers are those of the file
    student, same = fresh(name, seed=1), fresh(name, seed=1)
    copy(plain.form).finish(same)
    objective = TaughtObjective(student, plain.form, teacher or same, Teaching(**settings))
    return objective.train(), pack(items, pad=0, room=80)


def terms_of(objective, batch):
    terms, _ = objective(batch, noise=Noise(1, 1, batch.rows))
    assert {name: term.count for name, term in terms.items()} == objective.counts(batch)
    return terms


def loss_of(terms):
    return sum(term.weight * term.sum / term.count for term in terms.values())


@pytest.mark.parametrize("name", FORMS)
def test_a_student_that_is_its_teacher_has_nothing_to_learn(name):
    objective, batch = taught(name, weight=1.0)
    loss = loss_of(terms_of(objective, batch))
    loss.backward()
    assert abs(float(loss.detach())) < 1e-10
    assert all(p.grad.abs().max() < 1e-5 for p in objective.parameters() if p.grad is not None)
    assert any(p.grad is not None for p in objective.parameters())


def by_hand(objective, batch, temperature):
    """The mean divergence over sequences, each computed alone from the outputs of the two models."""
    found = []
    for network in (objective.model, objective.teacher):
        plain = Predictor(TaughtObjective(network, objective.form, network, Teaching(weight=0.0)))
        with torch.no_grad():
            found.append((network, plain.objective.states(batch)))
    rows, slots = batch.sequences()
    form, total, count = objective.form, 0.0, 0
    for row, slot in zip(rows.tolist(), slots.tolist(), strict=True):
        begin, length = int(batch.labels["begin"][row, slot]), int(batch.labels["length"][row, slot])
        logits = []
        for network, states in found:
            with torch.no_grad():
                places = torch.arange(begin, begin + length)
                x = network.encoder.last_at(
                    states, Chosen.among_all(torch.full((length,), row), places, *batch.ids.shape)
                )
                logits.append((network, x))
        pairs = []
        if form.task.form == "classification":
            scores = [network.task(network.pooler(x[:1], None), None)[0].double() for network, x in logits]
            pairs = [scores]
        elif form.task.form == "span":
            scores = [network.task.out(x).double() for network, x in logits]
            pairs = [[s[:, column] for s in scores] for column in (0, 1)]
        for student, teacher in pairs:
            p, q = ([math.exp(v / temperature) for v in s.tolist()] for s in (teacher, student))
            p, q = ([v / sum(s) for v in s] for s in (p, q))
            total += temperature**2 * sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))
            count += 1
    return total / count


@pytest.mark.parametrize("name", ["single", "question"])
@pytest.mark.parametrize("temperature", [0.25, 1.0, 4.0])
def test_the_divergence_of_packed_rows_is_that_of_each_sequence(name, temperature):
    objective, batch = taught(name, fresh(name), weight=0.3, temperature=temperature)
    assert (batch.labels["length"] > 0).sum() > len(batch.ids)
    terms = terms_of(objective, batch)
    teacher = terms.pop("teacher")
    (own,) = terms.values()
    assert (teacher.weight, own.weight) == (0.3, 0.7)
    found = float(teacher.sum.detach()) / teacher.count
    assert found > 1e-4 and found == pytest.approx(by_hand(objective, batch, temperature), rel=1e-4)


def test_options_and_numbers_are_compared_as_such():
    objective, batch = taught("choice", fresh("choice"), temperature=0.25)  # the floor divided by it is no number
    assert float(terms_of(objective, batch)["teacher"].sum.detach()) > 0
    objective, batch = taught("number", fresh("number"))
    wanted = objective.form.logits(objective.teacher, objective.states(batch), batch, None).shape
    term = terms_of(objective, batch)["teacher"]
    mine = objective.form.logits(objective.model, objective.states(batch), batch, None)
    theirs = 3.0 + 5.0 * objective.taught(batch)  # in the units of the file
    with torch.no_grad():
        states = objective._teacher[0].states(batch)
        assert torch.allclose(theirs, objective.form.logits(objective.teacher, states, batch, None), atol=1e-5)
    assert wanted == mine.shape and term.hits is None
    assert float(term.sum.detach()) == pytest.approx(
        float((mine.detach() - objective.taught(batch)).square().sum()), rel=1e-5
    )


def test_labels_are_matched_by_name():
    teacher, turned = (
        fresh("single", labels=labels) for labels in (("blue", "green", "red"), ("red", "blue", "green"))
    )
    turned.load_state_dict(teacher.state_dict())
    with torch.no_grad():
        for own, other in (
            (turned.task.out.weight, teacher.task.out.weight),
            (turned.task.out.bias, teacher.task.out.bias),
        ):
            own.copy_(other[[2, 0, 1]])
    (one, batch), (two, _) = taught("single", teacher), taught("single", turned)
    assert one.columns is None and two.columns == [1, 2, 0]
    assert torch.equal(one.taught(batch), two.taught(batch))
    assert terms_of(one, batch)["teacher"].sum == terms_of(two, batch)["teacher"].sum


def test_the_teacher_is_in_evaluation_mode_and_neither_trained_nor_saved():
    teacher = fresh("single", dropout=0.3)
    objective, batch = taught("single", teacher)
    objective.train()
    assert not teacher.training and not any(p.requires_grad for p in teacher.parameters())
    assert torch.equal(objective.taught(batch), objective.taught(batch))
    assert len(list(objective.parameters())) == len(list(objective.model.parameters()))
    assert set(objective.models()) == {"model"}
    assert not any("teacher" in name for name in objective.state_dict())
    assert set(objective(batch)[0]) == {"classification"}  # evaluation is the plain task
    objective.double()
    assert next(teacher.parameters()).dtype == torch.float64


@pytest.mark.parametrize("name", FORMS)
def test_split_batches_give_the_same_gradient(name):
    objective, batch = taught(name, fresh(name))

    def gradient(parts):
        objective.zero_grad()
        for part in parts:
            sum(term.weight * term.sum for term in terms_of(objective, part).values()).backward()
        return torch.cat([p.grad.flatten() for p in objective.parameters() if p.grad is not None])

    whole = gradient([batch])
    parts = gradient([batch.slice(0, 1), batch.slice(1, len(batch))])
    assert torch.allclose(whole, parts, rtol=1e-2, atol=1e-3 * whole.abs().max())


@pytest.mark.parametrize("name", FORMS)
def test_a_hugging_face_folder_of_another_family_teaches(tmp_path, name):
    teacher = fresh(name)
    huggingface.save(teacher, tmp_path / "hf")
    task, splits = data(name)
    task = completed(task, splits["train"])
    found, settings = read_teacher(Teaching(teacher=str(tmp_path / "hf")))
    student = fresh(name, "distilbert-tiny", seed=1)
    check_teacher(found, student, task, "hf")
    direct, batch = taught(name, teacher)
    objective = TaughtObjective(student, direct.form, found, settings)
    wanted, scores = objective.taught(batch), direct.taught(batch)
    assert torch.allclose(wanted.clamp(min=-1e30), scores.clamp(min=-1e30), rtol=1e-4, atol=1e-4)
    assert float(terms_of(objective, batch)["teacher"].sum.detach()) > 0


# Runs


@pytest.fixture
def folder(tmp_path):
    """A teacher with random weights for the task ``single``."""
    fresh("single").save(tmp_path / "teacher")
    return str(tmp_path / "teacher")


def weights_of(result):
    return load(result.model).state_dict()


def equal(one, two):
    return all(torch.equal(one[name], two[name]) for name in one)


def test_with_weight_0_it_is_plain_fine_tuning_to_the_bit(tmp_path, folder):
    task, splits = data("single", train=40, dev=12)
    recipe = replace(RECIPE, epochs=2, dropout=0.1)
    results = [
        finetune(model(), task, splits, replace(recipe, distill=distill), tmp_path / str(i))
        for i, distill in enumerate((None, Teaching(teacher=folder, weight=0.0), Teaching(teacher=folder)))
    ]
    plain, none, half = map(weights_of, results)
    assert equal(plain, none) and not equal(plain, half)
    lines = [(tmp_path / str(i) / "predictions-dev.jsonl").read_bytes() for i in range(2)]
    assert lines[0] == lines[1]


def test_an_interrupted_run_ends_with_the_same_weights(tmp_path, folder):
    task, splits = data("single", train=40, dev=12)
    recipe = replace(RECIPE, epochs=3, dropout=0.1, distill=Teaching(teacher=folder))
    whole = finetune(model(), task, splits, recipe, tmp_path / "whole")
    with pytest.raises(Stopped):
        finetune(model(), task, splits, recipe, tmp_path / "cut", session=Budget(amount=4))
    rest = finetune(model(), task, splits, recipe, tmp_path / "cut")
    assert rest.scores == whole.scores and equal(weights_of(whole), weights_of(rest))


def test_the_record_names_the_teacher_and_another_one_is_another_run(tmp_path, folder):
    task, splits = data("single", train=32, dev=8)
    recipe = replace(RECIPE, epochs=1, distill=Teaching(teacher=folder, temperature=3.0, weight=0.25))
    finetune(model(), task, splits, recipe, tmp_path / "run")
    kept = json.loads((tmp_path / "run/score.json").read_text())
    digest = read_teacher(recipe.distill)[1].teacher
    assert kept["recipe"]["distill"] == {"teacher": digest, "temperature": 3.0, "weight": 0.25}
    assert len(digest) == 64 and kept["teacher"] == folder
    (tmp_path / "teacher").rename(tmp_path / "moved")
    moved = replace(recipe, distill=replace(recipe.distill, teacher=str(tmp_path / "moved")))
    assert finetune(model(), task, splits, moved, tmp_path / "run").record["scores"] == kept["scores"]
    fresh("single", seed=5).save(tmp_path / "other")
    others = (replace(moved.distill, teacher=str(tmp_path / "other")), replace(moved.distill, weight=0.5), None)
    for other in others:
        with pytest.raises(ConfigError, match="has a finished run with distill"):
            finetune(model(), task, splits, replace(recipe, distill=other), tmp_path / "run")
    with pytest.raises(Stopped):
        finetune(model(), task, splits, moved, tmp_path / "cut", session=Budget(amount=1))
    with pytest.raises(ConfigError, match="distill.teacher was"):
        finetune(model(), task, splits, replace(recipe, distill=others[0]), tmp_path / "cut")


def test_a_student_follows_its_teacher_where_the_labels_are_wrong(tmp_path):
    task, splits = data("single", train=160, dev=40)
    recipe = replace(RECIPE, epochs=12)
    teacher = finetune(model(), task, splits, recipe, tmp_path / "teacher")
    assert teacher.scores["dev"]["accuracy"] == 1
    colours = ("red", "blue", "green")
    wrong = [
        replace(example, label=colours[i % 3])
        for i, example in enumerate(splits["train"].examples)
        if isinstance(example, Text)
    ]
    spoiled = {**splits, "train": split("wrong", wrong)}
    alone = finetune(model(), task, spoiled, recipe, tmp_path / "alone")
    follows = replace(recipe, distill=Teaching(teacher=str(tmp_path / "teacher"), weight=1.0))
    found = finetune(model(), task, spoiled, follows, tmp_path / "student")
    assert found.scores["dev"]["accuracy"] >= 0.95 > 0.7 > alone.scores["dev"]["accuracy"]


# Refusals


def check(teacher, name="single", student=None):
    task, splits = data(name)
    check_teacher(teacher, student or model(), completed(task, splits["train"]), "T")


def test_teachers_that_cannot_teach_are_refused(tmp_path):
    check(fresh("single"))
    with pytest.raises(ConfigError, match="teacher T: has no task head"):
        check(model())
    with pytest.raises(ConfigError, match="its head is for tagging, single is classification"):
        check(fresh("tagged"))
    with pytest.raises(ConfigError, match="its head is for regression, choice is choice"):
        check(fresh("number"), "choice")
    for labels in (("blue", "green"), ("blue", "green", "mauve"), ("blue", "green", "red", "mauve")):
        with pytest.raises(ConfigError, match="its labels are blue, green.*but single has blue, green, red"):
            check(fresh("single", labels=labels))
    ranker = fresh("number")
    ranker.config = replace(ranker.config, labels=("LABEL_0",))
    with pytest.raises(ConfigError, match="its one output is a probability, not a number"):
        check(ranker, "number")
    check(fresh("number"), "number")
    with pytest.raises(ConfigError, match="end of its conditional answer head depends on the start"):
        check(fresh("question", "electra-tiny"), "question")
    with pytest.raises(ConfigError, match="its tokenizer differs from the student's"):
        check(fresh("single", "xlnet-tiny"))
    silent = fresh("single")
    silent.tokenizer = None
    with pytest.raises(ConfigError, match="has no tokenizer to compare"):
        check(silent)


def test_students_that_cannot_be_compared_are_refused():
    plain, _, _ = objective_of("question", "electra-tiny", train=4)
    with pytest.raises(ConfigError, match="the model: the end of its conditional answer head"):
        TaughtObjective(plain.model, plain.form, fresh("question"), Teaching())
    plain, _, _ = objective_of("single", train=4)
    with pytest.raises(ConfigError, match="max_length 48 exceeds the teacher's 32 positions"):
        TaughtObjective(plain.model, plain.form, short(), Teaching())
    with pytest.raises(ConfigError, match="temperature is 0; give more than 0"):
        Teaching(temperature=0)
    with pytest.raises(ConfigError, match="weight is 1.5"):
        Teaching(weight=1.5)


def test_a_teacher_is_refused_before_any_work(tmp_path, folder, monkeypatch):
    from encoderlab.tasks.forms.classification import ClassificationForm
    from encoderlab.tasks.runs.sift import SiFT

    monkeypatch.setattr(ClassificationForm, "items", lambda *a, **k: pytest.fail("examples were encoded"))
    task, splits = data("pair", train=20, dev=4)
    with pytest.raises(ConfigError, match="its labels are blue, green, red, but pair has both, none, one"):
        finetune(model(), task, splits, replace(RECIPE, distill=Teaching(teacher=folder)), tmp_path / "run")
    with pytest.raises(ConfigError, match="distillation needs a teacher"):
        finetune(model(), task, splits, replace(RECIPE, distill=Teaching()), tmp_path / "run")
    task, splits = data("single", train=20, dev=4)
    with pytest.raises(ConfigError, match="distill and sift exclude each other"):
        replace(RECIPE, distill=Teaching(teacher=folder), sift=SiFT())
    assert not (tmp_path / "run").exists()


def test_rows_fit_the_teacher_too(tmp_path):
    task, splits = data("single", train=40, dev=8)
    short().save(tmp_path / "teacher")
    recipe = replace(RECIPE, epochs=1, form=FormSettings(max_length=32))
    recipe = replace(recipe, distill=Teaching(teacher=str(tmp_path / "teacher")))
    finetune(model(), task, splits, recipe, tmp_path / "run")  # rows would have 256 tokens


def test_the_command_takes_a_run_as_teacher(tmp_path, capsys):
    model().save(tmp_path / "tiny")
    table, out = reviews(tmp_path / "reviews.csv"), tmp_path / "student"
    words = ("finetune", table, "--model", tmp_path / "tiny", "--epochs", 1)
    run(capsys, *words, "--out", tmp_path / "teacher", "--seeds", 2)
    with_teacher = (*words, "--out", out, "--teacher", tmp_path / "teacher")
    found = run(capsys, *with_teacher, "--temperature", 4, "--teacher-weight", 0.8, "--seeds", 1)["tasks"]["reviews"]
    assert found["recipe"]["distill"]["temperature"] == 4 and found["recipe"]["distill"]["weight"] == 0.8
    kept = json.loads((out / "runs/seed-1/score.json").read_text())
    assert kept["teacher"].startswith(str(tmp_path / "teacher/runs/seed-"))
    assert "belong to a teacher" in messages(capsys, 2, *words, "--out", tmp_path / "x", "--temperature", 3)
    answer = messages(capsys, 2, *words, "--out", tmp_path / "x", "--teacher", tmp_path / "tiny")
    assert "has no task head" in answer and not (tmp_path / "x").exists()
    assert main(["finetune", "--help"]) == 0
    assert "--teacher-weight" in capsys.readouterr().out
