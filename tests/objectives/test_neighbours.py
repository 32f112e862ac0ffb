"""What a row costs does not depend on the rows beside it, dropout included: each process pads its rows by itself."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from encoderlab.batches.permutation import Targets
from encoderlab.model import Model
from encoderlab.models.base import resized
from encoderlab.nn.noise import Noise
from encoderlab.nn.positions import Shaw
from encoderlab.objectives.base import Objective
from encoderlab.objectives.causal import Causal, CausalSettings
from encoderlab.objectives.distill import Distill, DistillSettings
from encoderlab.objectives.hybrid import Hybrid, HybridSettings
from encoderlab.objectives.permutation import Permutation, PermutationSettings
from encoderlab.objectives.vocabulary import Vocabulary
from tests.objectives.conftest import make_rows
from tests.objectives.small import build, detection, masked, reading_the_token_before, small


def shaw(vocabulary: Vocabulary) -> Objective:
    model = Model(resized(small("transformer-xl-tiny"), position=Shaw(span=5))).initialize(0)
    return Causal(model, CausalSettings(), vocabulary)


PERMUTATION = PermutationSettings(targets=Targets(count=4), memory=0, reuse=0)
OBJECTIVES: dict[str, Callable[[Vocabulary], Objective]] = {
    **{name: masked(name) for name in ("bert-tiny", "roberta-tiny", "albert-tiny", "deberta-tiny", "deberta-v2-tiny")},
    "masked, relative shift": masked("xlnet-tiny"),
    "electra": detection("electra-tiny"),
    "convbert": detection("convbert-tiny"),
    "deberta-v3": detection("deberta-v3-tiny", sharing="disentangled"),
    "xlnet": lambda vocabulary: Permutation(build("xlnet-tiny"), PERMUTATION, vocabulary),
    "hybrid": lambda vocabulary: Hybrid(reading_the_token_before("bert-tiny"), HybridSettings(causal=0.4), vocabulary),
    "transformer-xl": lambda vocabulary: Causal(build("transformer-xl-tiny"), CausalSettings(), vocabulary),
    "shaw": shaw,
    "distillation": lambda vocabulary: Distill(
        build("distilbert-tiny"), build("bert-tiny", seed=1), DistillSettings(), vocabulary
    ),
}


@pytest.mark.parametrize("case", OBJECTIVES)
def test_a_row_alone_costs_what_it_costs_in_a_batch(case: str, vocabulary: Vocabulary) -> None:
    objective = OBJECTIVES[case](vocabulary).train()
    rows = make_rows(3)
    assert len(rows[2]) < len(rows[0])
    together, alone = objective.make_batch(rows, seed=1).slice(2, 3), objective.make_batch(rows[2:], seed=1)
    assert together.ids.shape[1] > alone.ids.shape[1]
    wanted, _ = objective(together, noise=Noise(1, 2, together.rows))
    found, _ = objective(alone, noise=Noise(1, 2, alone.rows))
    assert found.keys() == wanted.keys()
    for name, term in found.items():
        assert term.count == wanted[name].count
        assert float(term.sum) == pytest.approx(float(wanted[name].sum), rel=1e-5), name
