"""``torch.compile`` takes every kind of layer as one graph of plain twins, ``torch.export`` every kind of encoder."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from encoderlab.measure.bench.contenders import Ours
from encoderlab.model import Model
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


class LastStates(nn.Module):
    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, ids: Tensor, doc: Tensor | None) -> Tensor:
        return self.encoder(ids, doc=doc).last


@pytest.mark.parametrize("name", ["bert", "convbert", "deberta-v3", "xlnet"])
@pytest.mark.parametrize("padded", [False, True])
def test_an_exported_encoder_takes_other_sizes(name: str, padded: bool) -> None:
    def batch(rows: int, length: int) -> tuple[Tensor, Tensor | None]:
        doc = torch.zeros(rows, length, dtype=torch.int32)
        doc[1, 3:] = -1
        return torch.arange(rows * length).view(rows, length) % VOCABULARY.size, doc if padded else None

    model = LastStates(Model(tiny(name).model).initialize(0).encoder).eval()
    auto = {0: torch.export.Dim.AUTO, 1: torch.export.Dim.AUTO}
    exported = torch.export.export(model, batch(3, 9), dynamic_shapes=(auto, auto if padded else None)).module()
    for sizes in ((3, 9), (5, 17), (2, 6)):
        torch.testing.assert_close(exported(*batch(*sizes)), model(*batch(*sizes)), atol=2e-6, rtol=1e-5)
