"""No network may see what it is asked for: other tokens at the hidden places change targets and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from encoderlab.batches.corrupt import Masking, NGrams, Spans, Words
from encoderlab.batches.rows import Row
from encoderlab.nn.encoder import Encoder
from encoderlab.nn.noise import Noise
from encoderlab.objectives.base import Objective
from encoderlab.objectives.distill import Distill, DistillSettings
from encoderlab.objectives.mlm import MLM, MLMSettings
from encoderlab.objectives.rtd import ReplacedTokenDetection, RTDSettings
from encoderlab.objectives.vocabulary import Vocabulary
from tests.objectives.conftest import VOCAB
from tests.objectives.small import build

HIDE = Masking(mask=1.0, random=0.0, rate=0.3)


def masked(name: str) -> Callable[[Vocabulary], Objective]:
    return lambda vocabulary: MLM(build(name), MLMSettings(masking=HIDE), vocabulary)


def units(masking: Masking) -> Callable[[Vocabulary], Objective]:
    return lambda vocabulary: MLM(build("bert-tiny"), MLMSettings(masking=masking), vocabulary)


def detection(name: str, **settings: str) -> Callable[[Vocabulary], Objective]:
    return lambda vocabulary: ReplacedTokenDetection(
        build(f"{name}-generator"),
        build(name, seed=1),
        RTDSettings(masking=HIDE, **settings),  # type: ignore[arg-type]
        vocabulary,
    )


def distillation(vocabulary: Vocabulary) -> Objective:
    return Distill(build("distilbert-tiny"), build("bert-tiny", seed=1), DistillSettings(masking=HIDE), vocabulary)


OBJECTIVES = {
    **{name: masked(name) for name in ("bert-tiny", "roberta-tiny", "albert-tiny", "deberta-tiny", "deberta-v2-tiny")},
    "whole words": units(replace(HIDE, unit=Words())),
    "n-grams": units(replace(HIDE, unit=NGrams())),
    "spans": units(replace(HIDE, unit=Spans())),
    "electra": detection("electra-tiny"),
    "convbert": detection("convbert-tiny"),
    "deberta-v3": detection("deberta-v3-tiny", sharing="disentangled"),
    "distillation": distillation,
}


def seen(objective: Objective, rows: list[Row]) -> tuple[list[Tensor], Tensor]:
    """The last states of every encoder that runs, and the targets."""
    states: list[Tensor] = []
    handles = [
        module.register_forward_hook(lambda _, __, out: states.append(out.last))
        for module in objective.modules()
        if isinstance(module, Encoder)
    ]
    batch = objective.make_batch(rows, seed=1)
    assert batch.rows is not None
    with torch.no_grad():
        objective.eval()(batch, noise=Noise(0, 0, batch.rows))
    for handle in handles:
        handle.remove()
    return states, batch.labels["targets"]


@pytest.mark.parametrize("case", OBJECTIVES)
def test_hidden_tokens_are_seen_by_no_network(case: str, rows: list[Row], vocabulary: Vocabulary) -> None:
    objective = OBJECTIVES[case](vocabulary)
    positions = objective.make_batch(rows, seed=1).labels["positions"]
    others = []
    for row, places in zip(rows, positions, strict=True):
        ids = row.ids.copy()
        hidden = places[places >= 0].numpy()
        ids[hidden] = 5 + (ids[hidden] - 5 + 7) % (VOCAB - 5)
        others.append(replace(row, ids=ids))
    states, targets = seen(objective, rows)
    states_of_others, other_targets = seen(objective, others)
    assert (targets != other_targets)[targets >= 0].all() and (targets >= 0).sum() > 10
    assert len(states) == len(states_of_others) >= 1
    assert all(map(torch.equal, states, states_of_others))
