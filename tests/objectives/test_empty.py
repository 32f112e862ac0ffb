"""Batches without a single target: a micro-batch, a rank or the last validation batch may be one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from encoderlab.batches.batch import IGNORE, Batch
from encoderlab.batches.permutation import Targets
from encoderlab.model import Model
from encoderlab.models.base import resized
from encoderlab.nn.kernels import build as build_kernels
from encoderlab.nn.noise import Noise
from encoderlab.objectives.base import Objective
from encoderlab.objectives.causal import Causal, CausalSettings
from encoderlab.objectives.distill import Distill, DistillSettings
from encoderlab.objectives.hybrid import Hybrid, HybridSettings
from encoderlab.objectives.permutation import Permutation, PermutationSettings
from encoderlab.objectives.vocabulary import Vocabulary
from tests.objectives.conftest import make_rows
from tests.objectives.small import build, detection, masked, reading_the_token_before, small

PERMUTATION = PermutationSettings(targets=Targets(count=4), memory=0, reuse=0)


def distillation(vocabulary: Vocabulary) -> Objective:
    settings = DistillSettings(at="masked", cosine_weight=0.0)
    return Distill(build("distilbert-tiny"), build("bert-tiny", seed=1), settings, vocabulary)


OBJECTIVES: dict[str, Callable[[Vocabulary], Objective]] = {
    **{name: masked(name) for name in ("bert-tiny", "roberta-tiny", "albert-tiny", "deberta-tiny", "deberta-v2-tiny")},
    "grouped": masked("", Model(resized(small("bert-tiny"), ff_groups=2)).initialize(0)),
    "electra": detection("electra-tiny"),
    "electra, masked places": detection("electra-tiny", predict="replaced_masked"),
    "convbert": detection("convbert-tiny"),
    "deberta-v3": detection("deberta-v3-tiny", sharing="disentangled"),
    "xlnet": lambda vocabulary: Permutation(build("xlnet-tiny"), PERMUTATION, vocabulary),
    "hybrid": lambda vocabulary: Hybrid(reading_the_token_before("bert-tiny"), HybridSettings(causal=0.4), vocabulary),
    "transformer-xl": lambda vocabulary: Causal(build("transformer-xl-tiny"), CausalSettings(), vocabulary),
    "distillation": distillation,
}


def without_targets(batch: Batch, width: int) -> Batch:
    """The batch with nothing chosen; ``width``: the slots for chosen places."""
    labels = dict(batch.labels)
    if "positions" in labels:
        labels["positions"] = torch.full((len(batch), width), -1)
        labels["targets"] = torch.full((len(batch), width), IGNORE)
    else:
        labels["targets"] = torch.full_like(labels["targets"], IGNORE)
    return replace(batch, labels=labels)


@pytest.mark.parametrize("kernels", ["compiled", "plain"])
@pytest.mark.parametrize("width", [0, 2])
@pytest.mark.parametrize("case", OBJECTIVES)
def test_no_target_no_loss_and_no_gradient(
    case: str, width: int, kernels: str, vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kernels == "plain":
        monkeypatch.setattr(build_kernels, "available", lambda: False)
    objective = OBJECTIVES[case](vocabulary).train()
    batch = without_targets(objective.make_batch(make_rows(3), seed=1), width)
    counts = objective.counts(batch)
    terms, _ = objective(batch, noise=Noise(1, 2, batch.rows))
    assert {name: term.count for name, term in terms.items()} == counts
    empty = [term for term in terms.values() if not term.count]
    assert empty and all(float(term.sum.detach()) == 0.0 for term in empty)
    sum(term.sum for term in empty).backward()
    gradients = [p.grad for p in objective.parameters() if p.grad is not None]
    assert all(not gradient.any() for gradient in gradients)
