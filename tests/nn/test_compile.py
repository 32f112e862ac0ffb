"""``torch.compile`` takes every kind of layer as one graph of plain twins, ``torch.export`` every kind of encoder."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from encoderlab.measure.bench.contenders import Ours
from encoderlab.nn import kernels
from encoderlab.nn.encoder import Encoder
from encoderlab.nn.positions import places
from encoderlab.nn.scope import continued
from tests.interchange.tiny_models import CONFIGS, make
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


EXPORTED = ["bert", "convbert", "convbert-groups", "deberta", "deberta-v2", "xlnet", "transformer-xl-adaptive"]
"""Absolute positions, convolutions that read padding and that do not, distances each and in buckets, sinusoids, rows
that run from left to right."""


def _batch(rows: int, length: int, *, side: str = "none") -> tuple[Tensor, Tensor | None]:
    """Ids, and documents with padding on a side of the last row."""
    doc = torch.zeros(rows, length, dtype=torch.int32)
    padding = slice(length // 2 + 1, None) if side == "right" else slice(0, length // 2)
    doc[-1, padding] = -1
    return torch.arange(rows * length).view(rows, length) * 7 % 45 + 5, None if side == "none" else doc


def _exported(model: LastStates, *, padded: bool, longest: int) -> torch.export.ExportedProgram:
    """With named dimensions, which torch refuses wherever the graph would hold for some lengths alone."""
    size = {0: torch.export.Dim("rows"), 1: torch.export.Dim("length", min=2, max=longest)}
    example = _batch(3, 7, side="right" if padded else "none")
    return torch.export.export(model, example, dynamic_shapes=(size, size if padded else None))


@pytest.mark.parametrize("name", EXPORTED)
@pytest.mark.parametrize("padded", [False, True])
def test_an_exported_encoder_takes_every_size(name: str, padded: bool) -> None:
    model = LastStates(make(CONFIGS[name]).encoder).eval()
    longest = model.encoder.config.max_length or 150
    graph = _exported(model, padded=padded, longest=longest).module()
    for count, length in ((1, 2), (3, 2), (2, 3), (1, 5), (4, 6), (5, 9), (2, longest)):
        for side in ("left", "right") if padded else ("none",):
            batch = _batch(count, length, side=side)
            torch.testing.assert_close(graph(*batch), model(*batch), atol=2e-5, rtol=1e-5)


def test_a_graph_of_onnx_reads_distances_beyond_the_example(tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    model = LastStates(make(CONFIGS["deberta-v3"]).encoder).eval()
    path = tmp_path / "model.onnx"
    graph = _exported(model, padded=True, longest=150)
    torch.onnx.export(graph, (), path, input_names=["ids", "doc"], dynamo=True, external_data=False, verbose=False)
    session = onnxruntime.InferenceSession(path)
    for count, length in ((1, 2), (3, 3), (2, 12), (1, 129), (2, 130)):
        ids, doc = _batch(count, length, side="left")
        (states,) = session.run(None, {"ids": ids.numpy(), "doc": doc.numpy()})
        torch.testing.assert_close(torch.from_numpy(states), model(ids, doc), atol=2e-5, rtol=1e-5)


@given(st.lists(st.lists(st.integers(-1, 3), min_size=5, max_size=5), min_size=1, max_size=4))
def test_places_in_documents_are_the_same_in_a_graph(rows: list[list[int]]) -> None:
    doc = torch.tensor(rows)
    eager = places(doc, 5, doc.device), continued(doc)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.compiler, "_is_exporting_flag", True)
        graph = places(doc, 5, doc.device), continued(doc)
    for one, other in zip(eager, graph, strict=True):
        assert torch.equal(one, other)
