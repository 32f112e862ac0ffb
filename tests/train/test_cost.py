"""The operations of a training step, against torch's own count."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from encoderlab.batches.corrupt import Masking
from encoderlab.model import Model
from encoderlab.models.base import ModelConfig, resized
from encoderlab.models.flops import forward, spared, training
from encoderlab.nn.embeddings import Adaptive
from encoderlab.nn.positions import Absolute
from encoderlab.nn.spanconv import DepthwiseSeparable, Dynamic, Light, SpanDynamic
from encoderlab.objectives.causal import CausalSettings
from encoderlab.objectives.distill import DistillSettings
from encoderlab.objectives.mlm import MLMSettings
from encoderlab.objectives.vocabulary import Vocabulary
from encoderlab.recipes import recipe
from encoderlab.train.recipe import Recipe
from tests.objectives.conftest import make_rows


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("bert-tiny", {}),
        ("albert-tiny", {}),
        ("electra-tiny", {}),
        ("distilbert-tiny", {}),
        ("distilbert-tiny", {"at": "masked"}),
        ("distilbert-tiny", {"mlm_weight": 0.0}),
        ("distilbert-tiny", {"logits_weight": 0.0}),
    ],
)
def test_a_token_costs_what_torch_counts(name: str, changes: dict[str, Any]) -> None:
    """Over a whole step, in double precision: torch sees the products of the plain twins."""
    found = recipe(name)
    found = replace(found, objective=replace(found.objective, **changes))
    generator = None if found.generator is None else resized(found.generator, vocab=500)
    found = replace(found, model=resized(found.model, vocab=500), generator=generator)
    vocabulary = Vocabulary(size=500, pad=0, mask=4, special=(0, 1, 2, 3, 4), counts=np.ones(500))
    teacher = resized(recipe("bert-tiny").model, vocab=500)
    second = Model(generator or teacher).initialize(1)
    objective = found.objective.build(Model(found.model).initialize(0), second, vocabulary).double().train()
    batch = objective.make_batch([row for row in make_rows(24, 64) if len(row) == 64], seed=1)
    with FlopCounterMode(display=False) as counter:
        terms, _ = objective(batch)
        torch.stack([term.sum for term in terms.values() if term.weight]).sum().backward()
    expected = found.operations(64, teacher)
    assert counter.get_total_flops() / batch.num_tokens == pytest.approx(expected, rel=0.01)


CONVOLUTIONS = (DepthwiseSeparable(), Light(), Dynamic(), SpanDynamic(), SpanDynamic(share_value=True))
C2P = replace(recipe("deberta-tiny").model.encoder.position, terms=("c2p",))  # p2c's products read all tokens
PAIRS = ((0, 0), (1, 1), (2, 2))


@pytest.mark.parametrize(
    ("kind", "name", "changes", "teacher"),
    [
        ("mlm", "xlnet-tiny", {}, None),  # the query stream does not run
        ("mlm", "deberta-v2-tiny", {"layers": 1, "position": Absolute(length=64)}, None),
        *[("mlm", "bert-tiny", {"conv": conv}, None) for conv in CONVOLUTIONS],
        ("causal", "xlnet-tiny", {"causal": True}, None),
        ("causal", "transformer-xl-tiny", {"adaptive": Adaptive(cutoffs=(400,), divisor=2)}, None),
        ("distill", "distilbert-tiny", {}, resized(recipe("deberta-tiny").model, position=C2P)),
        ("distill", "deberta-tiny", {"position": C2P}, recipe("xlnet-tiny").model),
        ("matching", "distilbert-tiny", {"layers": 2}, resized(recipe("bert-tiny").model, width=64)),
    ],
)
def test_unusual_networks_cost_what_torch_counts(
    kind: str, name: str, changes: dict[str, Any], teacher: ModelConfig | None
) -> None:
    """A step with full rows. Of an adaptive softmax only the first cluster is counted, with most targets."""
    model = resized(recipe(name).model, vocab=500, **changes)
    model = replace(model, mask_decoder=0) if name == "deberta-v2-tiny" else model
    second = None if teacher is None else resized(teacher, vocab=500)
    masking = Masking(rate=0.25)
    settings = {
        "mlm": MLMSettings(masking=masking),
        "causal": CausalSettings(),
        "distill": DistillSettings(masking=masking, at="masked", mlm_weight=0.0),
        "matching": DistillSettings(
            masking=masking, logits_weight=0.0, cosine_weight=0.0, hidden_weight=1.0, attention_weight=1.0, match=PAIRS
        ),
    }[kind]
    vocabulary = Vocabulary(size=500, pad=0, mask=4, special=(0, 1, 2, 3, 4), counts=np.ones(500))
    networks = [Model(config).initialize(0) if config else None for config in (model, second)]
    objective = settings.build(*networks, vocabulary).double().train()
    length = 64 + (kind == "causal")
    batch = objective.make_batch([row for row in make_rows(96, length) if len(row) == length], seed=1)
    with FlopCounterMode(display=False) as counter:
        terms, _ = objective(batch)
        torch.stack([term.sum for term in terms.values()]).sum().backward()
    expected = settings.operations(model, second, 64)
    assert counter.get_total_flops() / batch.num_tokens == pytest.approx(expected, rel=0.025)


def test_a_token_costs_what_its_objective_computes() -> None:
    def cost(made: Recipe, **changes: Any) -> float:
        return replace(made, objective=replace(made.objective, **changes)).operations(128)

    masked, causal, xl, electra = map(recipe, ("bert-tiny", "bert-base-ltr", "transformer-xl-tiny", "electra-tiny"))
    vocabulary = 6 * masked.model.encoder.vocab * masked.model.encoder.width
    transform = 6 * masked.model.encoder.width**2
    twice = cost(masked, masking=replace(masked.objective.masking, rate=0.3)) - cost(masked)
    left = 3 * spared(masked.model, 128, predicted=0.0)  # of the last layer, by the tokens that are not predicted
    assert twice == pytest.approx(0.15 * (vocabulary + transform + left))
    assert causal.operations(128) > training(causal.model, 128)  # the head sees every token
    assert cost(xl, memory=128) > cost(xl, memory=0)
    both = training(electra.model, 128, predicted=0.0) + training(electra.generator, 128)
    assert electra.operations(128) == pytest.approx(both - 3 * spared(electra.generator, 128, predicted=0.15))
    student = recipe("distilbert-tiny")
    with_teacher = student.operations(128, masked.model) - student.operations(128)
    assert with_teacher == pytest.approx(sum(forward(masked.model, 128, predicted=1.0).values()))
