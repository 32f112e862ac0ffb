"""The benchmark of training compares the same work: equal losses from equal weights, in processes of their own."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from encoderlab.batches.permutation import Targets
from encoderlab.batches.rows import Row
from encoderlab.errors import ConfigError, EncoderlabError
from encoderlab.measure.bench.families import FAMILIES, Case, case
from encoderlab.measure.bench.workers import Work, Worker
from encoderlab.models.base import resized
from encoderlab.objectives.permutation import PermutationSettings
from encoderlab.objectives.vocabulary import Vocabulary

VOCAB = 60
VOCABULARY = Vocabulary(size=VOCAB, pad=0, mask=4, special=(0, 1, 2, 3, 4), counts=np.ones(VOCAB))


def tiny(name: str) -> Case:
    made = case(name, layers=1, width=128).with_dropout(0.0)
    second = None if made.second is None else resized(made.second, vocab=VOCAB)
    made = replace(made, model=resized(made.model, vocab=VOCAB), second=second)
    if isinstance(made.objective, PermutationSettings):
        made = replace(made, objective=replace(made.objective, targets=Targets(count=3)))
    return made


def rows() -> list[list[Row]]:
    """A batch of pairs that fill their rows."""
    rng = np.random.default_rng(0)
    made = []
    for i in range(4):
        ids = rng.integers(5, VOCAB, 16)
        ids[[0, 8, 15]] = 2, 3, 3
        special = np.isin(np.arange(16), (0, 8, 15))
        segments = (np.arange(16) > 8).astype(np.int8)
        labels = {"next_sentence": i % 2}
        made.append(Row(ids, np.zeros(16, np.int32), segments, np.ones(16, bool), special, labels, (0, 0, i), i))
    return [made]


@pytest.mark.parametrize("name", FAMILIES)
def test_equal_weights_give_equal_losses(name: str) -> None:
    pytest.importorskip("transformers")
    from encoderlab.measure.bench.contenders import Ours, Theirs

    one = tiny(name)
    ours, theirs = Ours(one, VOCABULARY), Theirs(one, VOCABULARY)
    batch = ours.batches(rows())[0]
    mine, other = float(ours.loss(batch, 0).detach()), float(theirs.loss(theirs.arranged(batch), 0).detach())
    assert math.isclose(mine, other, rel_tol=1e-4), (mine, other)


@pytest.mark.parametrize("name", ["roberta", "albert", "distilbert", "electra", "deberta-v1", "deberta-v2", "deberta-v3"])
def test_documents_side_by_side_have_the_losses_of_padded_ones(name: str) -> None:
    pytest.importorskip("transformers")
    from encoderlab.measure.bench.contenders import Ours, Theirs, apart

    one, packed = tiny(name), [replace(row, doc=np.repeat(np.int32([0, 1]), (11, 5))) for row in rows()[0]]
    ours, theirs = Ours(one, VOCABULARY), Theirs(one, VOCABULARY)
    batch = ours.batches([packed])[0]
    padded = apart(batch, VOCABULARY.pad)
    assert padded.ids.shape == (8, 11) and padded.num_tokens == batch.num_tokens
    assert int((padded.labels["positions"] >= 0).sum()) == int((batch.labels["positions"] >= 0).sum())
    mine, other = float(ours.loss(batch, 0).detach()), float(theirs.loss(theirs.arranged(batch), 0).detach())
    assert math.isclose(mine, other, rel_tol=1e-4), (mine, other)


def test_a_network_that_cannot_be_exported_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    from encoderlab.measure.bench.predict import _onnx

    def export(*_: object, **__: object) -> None:
        raise RuntimeError("no such operation\nand more")

    monkeypatch.setattr(torch.onnx, "export", export)
    with pytest.raises(EncoderlabError, match=r"cannot export Linear to ONNX \(RuntimeError: no such operation\)"):
        _onnx(torch.nn.Linear(2, 2), tmp_path / "model.onnx", 1)


def test_a_worker_trains_and_says_what_it_used() -> None:
    shared = {"case": tiny("bert"), "vocabulary": VOCABULARY, "rows": rows(), "threads": 1}
    worker = Worker(Work(contender="ours", precision="fp32", compile=False, **shared))
    try:
        seconds, tokens, losses = worker.call("steps", 3)
        assert seconds > 0 and tokens == 3 * 64 and losses[-1] < losses[0]
        best, sustained = worker.call("peak")
        assert best >= sustained > 1e6
        parts = worker.call("profile")
        assert {"feed-forward", "projections", "attention", "loss", "optimiser"} <= parts.keys()
        assert 0 < sum(parts.values()) < 60
        with pytest.raises(EncoderlabError, match="ours failed: TypeError"):
            worker.call("steps", "many")
    finally:
        worker.close()
    assert worker.process.exitcode == 0


def test_sizes_of_published_models_and_unknown_names() -> None:
    assert case("electra-small").model.encoder.layers == 12
    assert case("deberta-v3-base").model.encoder.width == 768
    with pytest.raises(ConfigError, match="no benchmark of 'brt'; did you mean 'bert'?"):
        case("brt")
    with pytest.raises(ConfigError, match="a width of 32 does not divide into heads of 64; give a multiple"):
        case("bert", width=32)
