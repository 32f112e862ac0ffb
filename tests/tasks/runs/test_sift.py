from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from encoderlab.errors import ConfigError
from encoderlab.nn.noise import Noise
from encoderlab.tasks.forms.batching import pack
from encoderlab.tasks.runs.finetune import finetune
from encoderlab.tasks.runs.sift import SiFT, SiFTObjective
from tests.tasks.runs.training import RECIPE, objective_of
from tests.tasks.synthetic import data
from tests.tasks.tiny import model


def sift(name="single", size="deberta-v3-tiny", **more):
    plain, items, _ = objective_of(name, size, train=12, **more)
    objective = SiFTObjective(plain.model, plain.form, SiFT())
    return objective.train(), pack(items, pad=0, room=64)


@pytest.mark.parametrize("name", ["single", "number", "tagged", "choice"])
def test_the_term_is_small_and_has_a_gradient(name):
    objective, batch = sift(name)
    terms, _ = objective(batch, noise=Noise(1, 1, batch.rows))
    assert set(terms) == set(objective.counts(batch)) and terms["sift"].count == objective.counts(batch)["sift"] > 0
    terms["sift"].sum.backward()
    assert any(p.grad is not None and p.grad.abs().max() > 0 for p in objective.parameters())


def test_it_measures_the_divergence_under_a_perturbation_of_unit_variance_inputs():
    objective, batch = sift()
    noise = Noise(1, 1, batch.rows)
    terms, _ = objective(batch, noise=noise)
    with torch.no_grad():
        entropy_like = 2 * float(terms["classification"].sum) / terms["classification"].count
    assert 0 < float(terms["sift"].sum) / terms["sift"].count < 2 * entropy_like + 1
    start = objective._start(torch.zeros(3, 50, 64), Noise(1, 1, torch.arange(3)))
    assert abs(float(start.detach().std()) - 0.0095) < 5e-4 and float(start.detach().abs().max()) <= 0.02
    moved = objective._ascend(start.detach(), torch.randn(3, 50, 64))
    assert torch.allclose((moved - start).abs().amax(-1), torch.full((3, 50), 1e-4), rtol=1e-3)


def test_evaluation_and_the_saved_model_know_nothing_of_it():
    objective, batch = sift()
    objective.eval()
    terms, _ = objective(batch)
    assert set(terms) == {"classification"}
    x = torch.randn(2, 3, 64)
    norm = objective.model.encoder.embeddings.norm
    assert torch.equal(norm(x), F.layer_norm(x, (64,), norm.weight, norm.bias, norm.eps))


def test_split_batches_give_the_same_gradient():
    objective, batch = sift(dropout=0.1)

    def gradient(parts):
        objective.zero_grad()
        for part in parts:
            terms, _ = objective(part, noise=Noise(1, 1, part.rows))
            sum(term.weight * term.sum for term in terms.values()).backward()
        return torch.cat([p.grad.flatten() for p in objective.parameters() if p.grad is not None])

    whole = gradient([batch])
    parts = gradient([batch.slice(0, 1), batch.slice(1, len(batch))])
    assert torch.allclose(whole, parts, rtol=1e-2, atol=1e-4 * whole.abs().max())


def test_it_trains(tmp_path):
    task, splits = data("tagged", train=64, dev=24)
    result = finetune(
        model("deberta-v3-tiny"), task, splits, replace(RECIPE, epochs=8, sift=SiFT(weight=1.0)), tmp_path / "run"
    )
    assert result.scores["dev"]["f1"] > 0.9


def test_what_it_cannot_serve_is_refused():
    plain, _, _ = objective_of("question", "deberta-v3-tiny", train=4)
    with pytest.raises(ConfigError, match="span tasks do not support sift"):
        SiFTObjective(plain.model, plain.form, SiFT())
    plain, _, _ = objective_of("single", "xlnet-tiny", train=4)
    with pytest.raises(ConfigError, match="xlnet has none"):
        SiFTObjective(plain.model, plain.form, SiFT())
