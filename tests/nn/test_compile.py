"""As on an accelerator, where the plain twins run: ``torch.compile`` takes every kind of layer as one graph."""

from __future__ import annotations

import pytest
import torch

from encoderlab.measure.bench.contenders import Ours
from encoderlab.nn import kernels
from encoderlab.nn.encoder import Encoder
from tests.measure.test_bench import VOCABULARY, rows, tiny


@pytest.mark.parametrize("name", ["bert", "convbert", "deberta-v3", "xlnet"])
def test_layers_are_one_graph_each(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels.build, "available", lambda: False)
    torch.compiler.reset()
    case = tiny(name).with_dropout(0.1)
    eager, compiled = Ours(case, VOCABULARY), Ours(case, VOCABULARY)
    for encoder in [part for part in compiled.objective.modules() if isinstance(part, Encoder)]:
        for block in encoder.blocks:
            block.compile(backend="aot_eager", fullgraph=True)
    batch = eager.batches(rows())[0]
    losses = [player.loss(batch, 0) for player in (eager, compiled)]
    for loss in losses:
        loss.backward()
    torch.testing.assert_close(losses[1], losses[0])
    for one, other in zip(eager.parameters, compiled.parameters, strict=True):
        torch.testing.assert_close(other.grad, one.grad)
