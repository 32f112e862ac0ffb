from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from encoderlab.batches.corrupt import Masking
from encoderlab.errors import ConfigError
from encoderlab.model import Model
from encoderlab.models import config as config_of
from encoderlab.models import flops
from encoderlab.models.base import resized
from encoderlab.nn.noise import Noise
from encoderlab.nn.positions import Disentangled, RelativeShift, Rotary
from encoderlab.nn.scope import Local
from encoderlab.objectives.hybrid import Hybrid, HybridSettings
from encoderlab.objectives.mlm import MLM, MLMSettings
from tests.objectives.conftest import VOCAB, make_rows
from tests.objectives.small import build, reading_the_token_before, small

HALF = HybridSettings(masking=Masking(mask=1.0, random=0.0, rate=0.3), causal=0.5)
POSITIONS = [
    None,
    {"position": RelativeShift()},
    {"position": Disentangled(span=8)},
    {"position": Rotary(), "local": Local(reach=3)},
]


@pytest.mark.parametrize("changes", POSITIONS)
def test_losses_are_those_of_one_row_at_a_time(changes: dict | None, rows, vocabulary) -> None:
    """Every target from the state before it; causal rows are read by the same weights in a left-to-right encoder."""
    model = reading_the_token_before("roberta-tiny", **(changes or {})).eval()
    config = model.config
    assert config.lm is not None
    reader = model
    if not isinstance(config.encoder.position, Disentangled):
        reader = model.with_config(resized(replace(config, lm=replace(config.lm, next_token=False)), causal=True))
    objective = Hybrid(model, HALF, vocabulary)
    batch = objective.make_batch(rows, seed=1)
    terms, _ = objective(batch)
    assert {name: term.count for name, term in terms.items()} == objective.counts(batch)
    totals = {"mlm": torch.tensor(0.0), "lm": torch.tensor(0.0)}
    with torch.no_grad():
        for i, row in enumerate(rows):
            causal = bool(batch.labels["causal"][i])
            ids, segments = batch.ids[i : i + 1, : len(row)], batch.segments[i : i + 1, : len(row)]
            positions = [int(place) for place in batch.labels["positions"][i] if place >= 0]
            assert causal == (i % 2 == 1)
            assert positions == list(range(1, len(row) - 1)) if causal else 0 < len(positions) < len(row) / 2
            visible = torch.ones(1, len(row), len(row), dtype=torch.bool).tril() if causal and reader is model else None
            last = (reader if causal else model).encoder(ids, segments=segments, visible=visible).last[0]
            for place in positions:
                logits = model.lm(last[place - 1 : place], model.words)[0]
                totals["lm" if causal else "mlm"] -= logits.log_softmax(-1)[int(row.ids[place])]
    for name, total in totals.items():
        torch.testing.assert_close(terms[name].sum, total, atol=1e-4, rtol=1e-5)
        assert terms[name].weight == 0.5


@pytest.mark.parametrize("changes", POSITIONS)
def test_causal_rows_see_no_later_token(changes: dict | None, rows, vocabulary) -> None:
    model = reading_the_token_before("roberta-tiny", **(changes or {})).eval()
    objective = Hybrid(model, HALF, vocabulary)
    states = []
    model.encoder.register_forward_hook(lambda _, __, out: states.append(out.last.detach()))
    other = [replace(row, ids=np.where(np.arange(len(row)) < 8, row.ids, row.ids[::-1].copy())) for row in rows]
    for shown in (rows, other):
        objective(objective.make_batch(shown, seed=1))
    same = (states[0] == states[1]).all(-1)
    assert same[1::2, :8].all() and not same[:, 8:13].all(1).any()
    assert not same[0::2, :8].any()


def test_the_first_token_of_a_packed_document_is_not_predicted(vocabulary) -> None:
    row = make_rows(1)[0]
    doc = np.zeros(len(row), np.int32)
    doc[7:] = 1
    row = replace(row, doc=doc, special=np.zeros(len(row), bool), number=1)
    batch = Hybrid(reading_the_token_before("bert-tiny"), HALF, vocabulary).make_batch([row], seed=0)
    assert bool(batch.labels["causal"][0])
    assert batch.labels["positions"][0].tolist() == [*range(1, 7), *range(8, len(row))]


@pytest.mark.parametrize("share", [1 / 16, 0.3, 0.5, 0.75])
def test_every_stretch_of_rows_has_its_share_of_causal_ones(share: float, vocabulary) -> None:
    objective = Hybrid(reading_the_token_before("bert-tiny"), replace(HALF, causal=share), vocabulary)
    (row,) = make_rows(1)
    kinds = np.array([objective.is_causal(replace(row, number=number)) for number in range(4000)])
    passed = np.append(0, np.cumsum(kinds))
    for length in (8, 16, 64, 1000):
        assert (np.abs(passed[length:] - passed[:-length] - share * length) < 1).all()


def test_causal_rows_show_what_they_are_made_of(rows, vocabulary) -> None:
    objective = Hybrid(reading_the_token_before("bert-tiny"), HALF, vocabulary)
    alone = MLM(build("bert-tiny"), MLMSettings(masking=HALF.masking), vocabulary).make_batch(rows, seed=1)
    batch = objective.make_batch(rows, seed=1)
    for i, row in enumerate(rows):
        shown = batch.ids[i, : len(row)]
        assert torch.equal(shown, torch.from_numpy(row.ids) if i % 2 else alone.ids[i, : len(row)])


def test_batch_split_gives_the_same_gradient(rows, vocabulary) -> None:
    """Also into parts that hold rows of one kind only."""
    model = reading_the_token_before("bert-tiny").train()
    objective = Hybrid(model, HALF, vocabulary)
    batch = objective.make_batch(rows, seed=1)
    gradients = []
    for parts in (1, 2, 6):
        model.zero_grad()
        for i in range(parts):
            piece = batch.slice(len(rows) * i // parts, len(rows) * (i + 1) // parts)
            terms, _ = objective(piece, noise=Noise(1, 5, piece.rows))
            counts = objective.counts(batch)
            sum(term.weight * term.sum / counts[name] for name, term in terms.items()).backward()
        gradients.append({n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None})
    for other in gradients[1:]:
        assert other.keys() == gradients[0].keys()
        for name, gradient in gradients[0].items():
            torch.testing.assert_close(gradient, other[name], atol=1e-6, rtol=1e-4)


def test_masked_prediction_alone_may_read_the_token_before(rows, vocabulary) -> None:
    """MLM with such a head: the last layer is computed at the places before the masked ones only, which is exact."""
    model = reading_the_token_before("bert-tiny").eval()
    objective = MLM(model, MLMSettings(masking=HALF.masking), vocabulary)
    batch = objective.make_batch(rows, seed=1)
    terms, _ = objective(batch)
    last = model.encoder(batch.ids, doc=batch.doc, segments=batch.segments).last
    kept = batch.labels["positions"] >= 0
    owner, before = kept.nonzero()[:, 0], batch.labels["positions"][kept] - 1
    logits = model.lm(last[owner, before], model.words)
    wanted = torch.nn.functional.cross_entropy(logits, batch.labels["targets"][kept], reduction="sum")
    torch.testing.assert_close(terms["mlm"].sum, wanted, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("kind", ["mlm", "hybrid"])
def test_z_loss_adds_the_squared_log_of_the_denominator(kind: str, rows, vocabulary) -> None:
    """To the gradient; the loss that is shown stays the cross-entropy."""
    model = reading_the_token_before("bert-tiny").eval()
    makers = {"mlm": (MLM, MLMSettings), "hybrid": (Hybrid, HybridSettings)}
    objective_type, settings_type = makers[kind]
    gradients = []
    for z_loss in (0.0, 0.1):
        objective = objective_type(model, settings_type(z_loss=z_loss), vocabulary)
        batch = objective.make_batch(rows, seed=1)
        model.zero_grad()
        terms, _ = objective(batch)
        sum(term.sum for term in terms.values()).backward()
        gradients.append((sum(float(t.sum.detach()) for t in terms.values()), model.lm.bias.grad.clone()))
    kept = batch.labels["positions"] >= 0
    states = model.encoder(batch.ids, doc=batch.doc, segments=batch.segments, visible=visible_to(batch)).last
    logits = model.lm(states[kept.nonzero()[:, 0], batch.labels["positions"][kept] - 1], model.words)
    wanted = torch.autograd.grad(0.1 * logits.logsumexp(-1).square().sum(), model.lm.bias)[0]
    assert gradients[0][0] == gradients[1][0]
    torch.testing.assert_close(gradients[1][1] - gradients[0][1], wanted, atol=1e-5, rtol=1e-4)
    with pytest.raises(ConfigError, match="z_loss is -1; give at least 0"):
        settings_type(z_loss=-1)


def visible_to(batch) -> torch.Tensor | None:
    if "causal" not in batch.labels:
        return None
    length = batch.ids.shape[1]
    return torch.ones(length, length, dtype=torch.bool).tril() | ~batch.labels["causal"][:, None, None]


def test_operations_count_every_prediction() -> None:
    model = config_of("roberta-mini")
    found = replace(HALF, causal=0.25).operations(model, None, 128)
    assert found == flops.training(model, 128, predicted=0.25 + 0.75 * 0.3)


@pytest.mark.parametrize("share", [0, 1, -0.1, float("nan")])
def test_shares_that_leave_one_kind_are_refused(share: float) -> None:
    with pytest.raises(ConfigError, match=f"^causal is {share}; give (more than 0|less than 1)"):
        HybridSettings(causal=share)


def test_senseless_pairs_are_refused(vocabulary) -> None:
    assert vocabulary.size == VOCAB
    with pytest.raises(ConfigError, match="model.lm.next_token=true"):
        Hybrid(build("bert-tiny"), HALF, vocabulary)
    with pytest.raises(ConfigError, match="word table"):
        Hybrid(build("transformer-xl-tiny"), HALF, vocabulary)
    convolving = small("convbert-tiny-generator")
    assert convolving.lm is not None
    convolving = replace(convolving, lm=replace(convolving.lm, next_token=True))
    with pytest.raises(ConfigError, match="set encoder.conv"):
        Hybrid(Model(resized(convolving, conv=small("convbert-tiny").encoder.conv)), HALF, vocabulary)
    with pytest.raises(ConfigError, match="set model.encoder.causal=false"):
        Hybrid(reading_the_token_before("bert-tiny", causal=True), HALF, vocabulary)
    with pytest.raises(ConfigError, match="model.pair to false"):
        paired = small("bert-tiny")
        assert paired.lm is not None
        Hybrid(Model(replace(paired, lm=replace(paired.lm, next_token=True))), HALF, vocabulary)
    with pytest.raises(ConfigError, match="lm.next_token to false"):
        deberta = small("deberta-tiny")
        assert deberta.lm is not None
        replace(deberta, lm=replace(deberta.lm, next_token=True))
