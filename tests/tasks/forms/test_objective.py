from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from encoderlab import models
from encoderlab.errors import ConfigError
from encoderlab.model import Model
from encoderlab.models.base import resized
from encoderlab.nn.heads import Classification, Tagging
from encoderlab.nn.noise import Noise
from encoderlab.tasks.data.splits import completed
from encoderlab.tasks.data.task import Text
from encoderlab.tasks.forms.base import FormSettings
from encoderlab.tasks.forms.batching import pack
from encoderlab.tasks.forms.classification import ClassificationSettings
from encoderlab.tasks.forms.objective import TaskObjective, form_of, with_head
from encoderlab.tasks.forms.span import SpanForm
from encoderlab.tasks.runs.finetune import prepared
from encoderlab.tasks.runs.predict import (
    Predictor,
)
from tests.tasks.runs.training import RECIPE, gradients, objective_of
from tests.tasks.synthetic import data
from tests.tasks.tiny import WORDS, model

FAMILIES = ("bert", "roberta", "albert", "distilbert", "electra", "convbert", "deberta", "deberta-v3", "xlnet")


@pytest.mark.parametrize("kind", ["single", "pair", "number", "choice"])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_last_layer_at_the_summaries_alone_is_the_last_layer(family: str, kind: str) -> None:
    """Losses and gradients of packed rows, whether the last layer runs everywhere or only where the head reads."""
    task, splits = data(kind, train=9)
    start = model(f"{family}-tiny")
    form = form_of(completed(task, splits["train"]), start, FormSettings(max_length=32))
    objective = TaskObjective(with_head(start, form, seed=1)[0], form)
    batch = pack(form.items(splits["train"].examples, train=True), pad=0, room=48)

    def found(summary: bool) -> list[torch.Tensor]:
        form.summary = summary
        objective.zero_grad()
        (term,) = objective(batch)[0].values()
        term.sum.backward()
        assert len(objective.states(batch).layers) == (2 if summary else 3)
        return [term.sum.detach()] + [p.grad.clone() for p in objective.parameters() if p.grad is not None]

    torch.testing.assert_close(found(True), found(False), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("family", "kind", "drops"),
    [
        ("bert", "question", False),
        ("distilbert", "question", True),  # before its answer head
        ("bert", "single", True),
        ("roberta", "single", False),  # fairseq's pooler_dropout is 0
    ],
)
def test_the_dropout_of_heads_is_that_of_the_originals(family: str, kind: str, drops: bool) -> None:
    task, splits = data(kind, train=9)
    task = completed(task, splits["train"])
    start = model(f"{family}-tiny")  # no dropout in the layers
    form = form_of(task, start, FormSettings(max_length=32))
    objective = TaskObjective(with_head(start, form, seed=1)[0], form)
    batch = pack(form.items(splits["train"].examples, train=True), pad=0, room=48)
    plain, noisy = (
        next(iter(objective(batch, noise=noise)[0].values())).sum
        for noise in (None, Noise(0, 1, torch.arange(len(batch.ids))))
    )
    assert torch.equal(plain, noisy) != drops


@pytest.mark.parametrize("labels", [2, 5])
def test_a_head_that_is_given_has_the_labels_of_the_task(labels: int) -> None:
    """As the one that ``transformers`` puts on ELECTRA."""
    task, splits = data("single", train=9)
    task = completed(task, splits["train"])
    form = form_of(task, model("electra-tiny"), FormSettings(max_length=32))
    given = Classification(labels=labels, summary="dense", activation="gelu", input_dropout=0.1)
    made, _ = with_head(model("electra-tiny"), form, seed=1, head=given)
    assert made.config.task == replace(given, labels=len(task.labels or ()))
    again, said = with_head(made, form, seed=1, head=given, same=True)
    assert again is made and "kept" in said
    with pytest.raises(ConfigError, match="head of kind 'tagging' does not fit .* set head.kind to classification"):
        with_head(model("electra-tiny"), form, seed=1, head=Tagging())


@pytest.mark.parametrize(("family", "last"), [("electra", True), ("albert", False), ("xlnet", True)])
def test_where_answers_may_stand(family: str, last: bool) -> None:
    """The separator behind the passage is a place in ELECTRA's code and none in ALBERT's; XLNet's row ends with its
    summary token.
    """
    task, splits = data("question", train=9)
    start = model(f"{family}-tiny")
    form = form_of(completed(task, splits["train"]), start, FormSettings(max_length=32))
    assert isinstance(form, SpanForm)
    made = with_head(start, form, seed=1)[0]
    batch = pack(form.items(splits["train"].examples, train=True), pad=0, room=48)
    states = made.encoder(batch.ids, doc=batch.documents, segments=batch.segments)
    windows = form._unpacked(made, states, batch)
    ends = windows.real.sum(1) - 1
    assert windows.allowed[torch.arange(len(ends)), ends].tolist() == [last] * len(ends)
    assert windows.allowed[torch.arange(len(ends)), windows.summary].all() and (windows.allowed <= windows.real).all()


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


def losses_of(labels, noisy=True, **settings):
    """Scores (n, 3), targets and the loss of training on texts with these labels."""
    task, _ = data("single")
    task = replace(task, labels=("a", "b", "c"))
    start = model()
    form = form_of(task, start, ClassificationSettings(max_length=16, **settings))
    network, _ = with_head(start, form, seed=1, head=replace(form.head(models.FAMILIES["bert"]), dropout=0.0))
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
