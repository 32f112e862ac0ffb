from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from encoderlab.errors import ConfigError
from encoderlab.nn.heads import Classification, Tagging
from encoderlab.nn.noise import Noise
from encoderlab.tasks.data.splits import completed
from encoderlab.tasks.forms.base import FormSettings
from encoderlab.tasks.forms.batching import pack
from encoderlab.tasks.forms.objective import TaskObjective, form_of, with_head
from encoderlab.tasks.forms.span import SpanForm
from tests.tasks.synthetic import data
from tests.tasks.tiny import model

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
