from __future__ import annotations

import math

import pytest
import torch

from encoderlab.batches.corrupt import Masking
from encoderlab.errors import ConfigError
from encoderlab.model import Model
from encoderlab.models.base import resized
from encoderlab.nn.noise import Noise
from encoderlab.objectives.base import Objective
from encoderlab.objectives.mlm import MLM, MLMSettings
from encoderlab.objectives.rtd import ReplacedTokenDetection, RTDSettings
from tests.objectives.conftest import make_rows
from tests.objectives.small import build, small


@pytest.mark.parametrize("name", ["bert-tiny", "albert-tiny", "roberta-tiny", "deberta-tiny", "deberta-v2-tiny"])
def test_loss_is_that_of_all_logits(name: str, rows, vocabulary) -> None:
    """Only hidden places reach the head; the result is as if all had."""
    model = build(name).eval()
    objective = MLM(model, MLMSettings(masking=Masking(rate=0.3)), vocabulary)
    batch = objective.make_batch(rows, seed=1)
    terms, _ = objective(batch)
    assert terms["mlm"].count == objective.counts(batch)["mlm"]
    states = model.encoder(batch.ids, doc=batch.doc, segments=batch.segments)
    if model.mask_positions is None:
        logits = model.lm(states.last, model.words)
    else:  # the last layer, twice, by hand, on all places
        last = model.encoder.depth - 1
        source = states.layers[last]
        queries = source + model.mask_positions[: source.shape[1]]
        for _ in range(2):
            queries, _ = model.encoder.block(last)(queries, source, states.scope)
        logits = model.lm(queries, model.words)
    total = torch.tensor(0.0)
    for row, original in enumerate(rows):
        for place, target in zip(batch.labels["positions"][row], batch.labels["targets"][row], strict=True):
            if place >= 0:
                assert target == original.ids[place]
                total += -logits[row, place].log_softmax(-1)[target]
    torch.testing.assert_close(terms["mlm"].sum, total, atol=1e-4, rtol=1e-5)


def test_pairs_have_a_term(vocabulary) -> None:
    objective = MLM(build("bert-tiny"), MLMSettings(), vocabulary)
    batch = objective.make_batch(make_rows(4, labels={"next_sentence": 1}), seed=1)
    terms, _ = objective(batch)
    assert set(terms) == {"mlm", "next_sentence"} == set(objective.counts(batch)) and terms["next_sentence"].count == 4
    assert set(objective(objective.make_batch(make_rows(4), seed=1))[0]) == {"mlm"}


def test_masks_depend_on_the_row_alone(rows, vocabulary) -> None:
    objective = MLM(build("bert-tiny"), MLMSettings(), vocabulary)
    whole = objective.make_batch(rows, seed=1)
    single = objective.make_batch(rows[2:3], seed=1)
    n = len(rows[2])
    assert torch.equal(whole.ids[2, :n], single.ids[0, :n])
    assert not torch.equal(whole.ids, objective.make_batch(rows, seed=2).ids)


@pytest.mark.parametrize("network", ["model", "generator"])
def test_a_stem_that_the_mask_decoder_never_reads_is_refused(network: str, rows, vocabulary) -> None:
    def make(layers: int) -> tuple[Model, Objective]:
        model = Model(resized(small("deberta-v2-tiny"), layers=layers)).initialize(0)
        if network == "model":
            return model, MLM(model, MLMSettings(), vocabulary)
        return model, ReplacedTokenDetection(model, build("deberta-v3-tiny"), RTDSettings(), vocabulary)

    with pytest.raises(ConfigError, match="never reads the stem .*; set layers to at least 2"):
        make(1)
    model, objective = make(2)
    objective(objective.make_batch(rows, seed=1))[0]["mlm"].sum.backward()
    assert model.encoder.stem is not None and model.encoder.stem.conv.weight.grad is not None


@pytest.mark.parametrize("name", ["bert-tiny", "deberta-tiny", "deberta-v2-tiny"])
def test_batch_split_gives_the_same_gradient(name: str, rows, vocabulary) -> None:
    model = build(name).train()
    objective = MLM(model, MLMSettings(), vocabulary)
    batch = objective.make_batch(rows, seed=1)
    gradients = []
    for parts in (1, 3):
        model.zero_grad()
        for i in range(parts):
            piece = batch.slice(len(rows) * i // parts, len(rows) * (i + 1) // parts)
            terms, _ = objective(piece, noise=Noise(1, 5, piece.rows))
            (terms["mlm"].sum / objective.counts(batch)["mlm"]).backward()
        gradients.append({n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None})
    for name_, gradient in gradients[0].items():
        torch.testing.assert_close(gradient, gradients[1][name_], atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("weight", [-1, math.inf, math.nan])
def test_weights_that_are_none_are_refused(weight: float) -> None:
    with pytest.raises(ConfigError, match=f"^pair_weight is {weight}; give (at least 0|a finite number)"):
        MLMSettings(pair_weight=weight)


def test_senseless_pairs_are_refused(vocabulary) -> None:
    with pytest.raises(ConfigError, match="LM head"):
        MLM(build("electra-tiny"), MLMSettings(), vocabulary)
    with pytest.raises(ConfigError, match="word table"):
        MLM(build("transformer-xl-tiny"), MLMSettings(), vocabulary)
