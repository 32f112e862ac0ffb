from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from encoderlab.errors import ConfigError
from encoderlab.model import Model
from encoderlab.models.base import resized
from encoderlab.nn.noise import Noise
from encoderlab.nn.scope import Local
from encoderlab.objectives.distill import Distill, DistillSettings
from encoderlab.objectives.mlm import MLM, MLMSettings
from tests.objectives.conftest import make_rows
from tests.objectives.small import small

ALONE = {"logits_weight": 0.0, "mlm_weight": 0.0, "cosine_weight": 0.0}


def pair(layers: int = 1) -> tuple[Model, Model]:
    teacher = Model(resized(small("bert-tiny"), layers=2)).initialize(1)
    student = Model(resized(small("bert-tiny"), layers=layers)).initialize(2)
    return student, teacher


@pytest.mark.parametrize("at", ["real", "masked"])
def test_a_copy_of_the_teacher_loses_nothing(at: str, rows, vocabulary) -> None:
    student, teacher = pair(2)
    settings = DistillSettings(
        at=at, student_from=(0, 1), match=((0, 0), (1, 1), (2, 2)), hidden_weight=1.0, attention_weight=1.0
    )
    objective = Distill(student, teacher, settings, vocabulary).eval()
    batch = objective.make_batch(rows, seed=1)
    terms, _ = objective(batch)
    assert {name: term.count for name, term in terms.items()} == objective.counts(batch)
    for name in ("logits", "cosine", "hidden", "attention"):
        assert abs(float(terms[name].sum)) < 1e-3, name
    assert int(terms["logits"].hits) == terms["logits"].count


@pytest.mark.parametrize("name", ["logits", "mlm", "cosine", "hidden", "attention"])
def test_every_term_alone_teaches_the_student_only(name: str, rows, vocabulary) -> None:
    student, teacher = pair()
    settings = DistillSettings(**ALONE | {f"{name}_weight": 1.0}, match=((1, 2),))
    objective = Distill(student, teacher, settings, vocabulary).train()
    assert not objective.teacher.training
    terms, _ = objective(objective.make_batch(rows, seed=1))
    assert set(terms) == {name}
    terms[name].sum.backward()
    assert any(p.grad is not None and p.grad.abs().sum() > 0 for p in student.parameters())
    assert all(p.grad is None for p in teacher.parameters())
    assert not [n for n, _ in objective.named_parameters() if "teacher" in n]


def test_a_student_with_a_mask_decoder_has_its_dropout(rows, vocabulary) -> None:
    teacher = Model(small("bert-tiny")).initialize(1)
    student = Model(small("deberta-tiny")).initialize(2)
    settings = DistillSettings(**ALONE | {"mlm_weight": 1.0})
    alone = MLM(student, MLMSettings(masking=settings.masking), vocabulary)
    distilled = Distill(student, teacher, settings, vocabulary)
    batch = distilled.train().make_batch(rows, seed=1)
    noise = Noise(1, 0, batch.rows)
    wanted = alone(batch, noise=noise)[0]["mlm"].sum
    assert float(distilled(batch, noise=noise)[0]["mlm"].sum) == pytest.approx(float(wanted), rel=1e-5)


def test_kl_is_its_definition(rows, vocabulary) -> None:
    student, teacher = pair()
    objective = Distill(student, teacher, DistillSettings(temperature=3.0), vocabulary).eval()
    batch = objective.make_batch(rows, seed=1)
    got = objective(batch)[0]["logits"].sum
    real = batch.doc >= 0
    logits = [
        m.lm(m.encoder(batch.ids, doc=batch.doc, segments=batch.segments).last[real], m.words)
        for m in (student, teacher)
    ]
    own, wanted = ((x / 3).softmax(-1) for x in logits)
    torch.testing.assert_close(got, 9 * (wanted * (wanted / own).log()).sum(), atol=1e-3, rtol=1e-4)


def test_wider_teachers_need_a_map(rows, vocabulary) -> None:
    student = Model(resized(small("bert-tiny"), width=8, heads=4, embed_width=8)).initialize(1)
    teacher = pair()[1]
    with pytest.raises(ConfigError, match="cosine_weight"):
        Distill(student, teacher, DistillSettings(), vocabulary)
    settings = DistillSettings(cosine_weight=0.0, hidden_weight=1.0, match=((1, 1),))
    objective = Distill(student, teacher, settings, vocabulary)
    terms, _ = objective(objective.make_batch(rows, seed=1))
    terms["hidden"].sum.backward()
    assert objective.maps[0].weight.grad is not None


def test_senseless_settings_are_refused(vocabulary) -> None:
    student, teacher = pair()
    with pytest.raises(ConfigError, match="one tokenizer"):
        Distill(Model(small("bert-tiny", 41)), teacher, DistillSettings(), vocabulary)
    with pytest.raises(ConfigError, match="must name 1 teacher layers"):
        Distill(student, teacher, DistillSettings(student_from=(0, 5)), vocabulary)
    shifted = small("bert-tiny")
    shifted = Model(replace(shifted, lm=replace(shifted.lm, next_token=True)))
    with pytest.raises(ConfigError, match="the teacher predicts a token from the state before it.*next_token=true"):
        Distill(student, shifted, DistillSettings(), vocabulary)
    with pytest.raises(ConfigError, match="the student predicts a token from the state before it.*next_token=false"):
        Distill(shifted, teacher, DistillSettings(**ALONE | {"attention_weight": 1.0}, match=((1, 1),)), vocabulary)
    Distill(student, shifted, DistillSettings(cosine_weight=0.0), vocabulary)  # their predictions compare
    causal = Model(resized(small("bert-tiny"), causal=True))
    with pytest.raises(ConfigError, match="the student attends to the left only"):
        Distill(causal, teacher, DistillSettings(), vocabulary)
    with pytest.raises(ConfigError, match="the teacher attends to the left only"):
        Distill(student, causal, DistillSettings(), vocabulary)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"hidden_weight": 1.0}, "pairs of layers"),
        (ALONE, "all of .* are 0, which trains nothing"),
        ({"mlm_weight": -1.0}, "^mlm_weight is -1.0; give at least 0"),
        ({"temperature": 0.0}, "^temperature is 0.0; give more than 0"),
        ({"attention_weight": 1.0, "match": ((1, 0),)}, "pair \\[1, 0\\] compares attention"),
        ({"attention_weight": 1.0, "match": ((0, 1),)}, "has no attention"),
    ],
)
def test_senseless_weights_are_refused(given: dict, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        DistillSettings(**given)


def test_attention_is_compared_as_distributions(rows, vocabulary) -> None:
    """Against the definition, by a loop over documents and heads."""
    student, teacher = pair()
    settings = DistillSettings(**ALONE | {"attention_weight": 1.0}, attention="distributions", match=((1, 2),))
    objective = Distill(student, teacher, settings, vocabulary).eval()
    batch = objective.make_batch(rows, seed=1)
    got = objective(batch)[0]["attention"]
    want = 0.0
    for ids, doc in zip(batch.ids, batch.doc, strict=True):
        alone = ids[None, doc >= 0]
        segments = torch.zeros_like(alone)
        segments[0, len(alone[0]) // 2 :] = 1
        own, wanted = (
            model.encoder.attention_scores(model.encoder(alone, segments=segments), layer)[0].softmax(-1)
            for model, layer in ((student, 0), (teacher, 1))
        )
        want += float((wanted * (wanted / own).log()).sum(-1).mean(0).sum())
    assert want > 0.1 and float(got.sum) == pytest.approx(want, rel=1e-4)
    assert got.count == batch.num_tokens
    got.sum.backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in student.parameters())


@pytest.mark.parametrize("attention", ["scores", "distributions"])
def test_attention_of_local_layers_is_compared_where_both_see(attention: str, vocabulary) -> None:
    """Against the definition, by a loop over queries: keys that a layer never reads are not compared."""
    config = resized(small("bert-tiny"), local=Local(reach=2, period=2, full=(0,)))
    student, teacher = (Model(config).initialize(seed) for seed in (0, 1))
    weights = ALONE | {"attention_weight": 1.0}
    objective = Distill(student, teacher, DistillSettings(**weights, attention=attention, match=((2, 2),)), vocabulary)
    batch = objective.eval().make_batch(make_rows(2), seed=1)
    got = float(objective(batch)[0]["attention"].sum)
    want = 0.0
    for ids, segments, doc in zip(batch.ids, batch.segments, batch.doc, strict=True):
        real = doc >= 0
        own, theirs = (
            model.encoder.attention_scores(model.encoder(ids[None, real], segments=segments[None, real]), 1)[0]
            for model in (student, teacher)
        )
        for query in range(int(real.sum())):
            near = slice(max(0, query - 2), query + 3)
            mine, target = own[:, query, near], theirs[:, query, near]
            if attention == "scores":
                want += float((mine - target).square().mean())
            else:
                mine, target = mine.softmax(-1), target.softmax(-1)
                want += float((target * (target / mine).log()).sum(-1).mean())
    assert want > 0.1 and got == pytest.approx(want, rel=1e-4)


def test_maps_come_from_the_seed(vocabulary) -> None:
    def maps(seed: int) -> list[torch.Tensor]:
        student = Model(resized(small("bert-tiny"), width=8, heads=4, embed_width=8)).initialize(1)
        settings = DistillSettings(cosine_weight=0.0, hidden_weight=1.0, match=((0, 0), (1, 1)))
        objective = Distill(student, pair()[1], settings, vocabulary, seed=seed)
        return [linear.weight.detach() for linear in objective.maps]

    torch.manual_seed(1)
    one = maps(1)
    torch.manual_seed(2)
    assert all(map(torch.equal, one, maps(1)))
    assert not any(map(torch.equal, one, maps(2))) and not torch.equal(*one)
    assert 0.2 < float(torch.stack(one).std()) < 0.4  # the models here start with a deviation of 0.3
