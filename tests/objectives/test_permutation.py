from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from encoderlab.batches.permutation import Targets
from encoderlab.errors import ConfigError
from encoderlab.model import Model
from encoderlab.nn.noise import Noise
from encoderlab.objectives.permutation import Permutation, PermutationSettings
from tests.objectives.conftest import make_rows
from tests.objectives.small import build

SETTINGS = PermutationSettings(targets=Targets(count=6, longest=3, context=2), memory=0, reuse=0)


def rows_of(count: int = 4, **labels: int):
    return [row for row in make_rows(3 * count, 20, labels=labels, seed=3) if len(row) == 20][:count]


def predicted(objective: Permutation, batch, memory=None):
    """The logits of all targets."""
    kept = {}
    lm = objective.model.lm
    real = lm.losses

    def losses(x, words, targets, **settings):
        kept["logits"] = lm(x, words)
        return real(x, words, targets, **settings)

    lm.losses = losses
    try:
        objective(batch, memory=memory)
    finally:
        del lm.losses
    return kept["logits"]


def test_a_target_sees_what_its_order_allows(vocabulary) -> None:
    """A changed token leaves logits of targets that must not see it, itself included, to the bit, and no others."""
    objective = Permutation(build("xlnet-tiny").eval(), SETTINGS, vocabulary)
    batch = objective.make_batch(rows_of(1), seed=1)
    before = predicted(objective, batch)
    at = batch.labels["positions"][0]
    query, key = batch.labels["query_rank"][0], batch.labels["key_rank"][0]
    for place in range(20):
        ids = batch.ids.clone()
        ids[0, place] = 5 + (ids[0, place] - 4) % 35
        after = predicted(objective, replace(batch, ids=ids))
        for t, target in enumerate(at.tolist()):
            may_see = bool(query[target] > key[place])
            assert torch.equal(before[t], after[t]) is not may_see, (place, target)
            assert not (target == place and may_see)


def test_documents_of_a_row_do_not_see_each_other(vocabulary) -> None:
    """A changed token of one document leaves the targets of the other, to the bit, and memory is seen by both."""
    objective = Permutation(build("xlnet-tiny").eval(), SETTINGS, vocabulary)
    row = replace(rows_of(1)[0], doc=np.repeat(np.array([0, 1], np.int32), 10), labels={"continues": 1})
    batch = objective.make_batch([row], seed=1)
    at = batch.labels["positions"][0]
    assert 0 < (at < 10).sum() < len(at)
    before = predicted(objective, batch)
    for place in range(20):
        ids = batch.ids.clone()
        ids[0, place] = 5 + (ids[0, place] - 4) % 35
        changed = (predicted(objective, replace(batch, ids=ids)) != before).any(-1)
        assert not changed[(at < 10) != (place < 10)].any(), place
    remembering = Permutation(objective.model, replace(SETTINGS, memory=4, reuse=10), vocabulary).eval()
    memory = tuple(torch.randn(1, 4, 16) for _ in range(2))
    assert (predicted(remembering, batch, memory) != before).any(-1).all()


def test_a_row_read_backwards_is_the_same_row(vocabulary) -> None:
    """Tokens, order and targets mirrored, and distances negated: the same loss and the same gradients (section 2.5)."""
    objective = Permutation(build("xlnet-tiny").eval(), SETTINGS, vocabulary)
    batch = objective.make_batch(rows_of(3, backwards=0), seed=1)
    labels = batch.labels | {name: batch.labels[name].flip(1) for name in ("query_rank", "key_rank")}
    at = batch.labels["positions"]
    labels["positions"] = torch.where(at < 0, at, batch.ids.shape[1] - 1 - at)
    labels["backwards"] = torch.ones(3, dtype=torch.long)
    back = replace(batch, ids=batch.ids.flip(1), segments=batch.segments.flip(1), labels=labels)

    def gradients(batch) -> list[torch.Tensor]:
        objective.zero_grad()
        terms, _ = objective(batch)
        terms["plm"].sum.backward()
        return [terms["plm"].sum.detach()] + [p.grad.clone() for p in objective.parameters() if p.grad is not None]

    torch.testing.assert_close(gradients(back), gradients(batch), rtol=1e-4, atol=1e-5)


def test_streams_agree_with_queries_at_all_places(vocabulary) -> None:
    """The query stream on the targets only equals the query stream on everything, at the targets."""
    model = build("xlnet-tiny").eval()
    objective = Permutation(model, SETTINGS, vocabulary)
    batch = objective.make_batch(rows_of(3), seed=1)
    logits = predicted(objective, batch)
    labels = batch.labels
    order = labels["query_rank"][:, :, None] > labels["key_rank"][:, None, :]
    states = model.encoder(batch.ids, segments=batch.segments, visible=order | torch.eye(20, dtype=torch.bool))
    everywhere = torch.arange(20).expand(3, 20)
    stream = model.encoder.query_stream(
        states, model.mask_vector.expand(3, 20, -1), everywhere, layers=range(2), visible=order
    )
    row, slot = (labels["positions"] >= 0).nonzero(as_tuple=True)
    want = model.lm(stream[row, labels["positions"][row, slot]], model.words)
    torch.testing.assert_close(logits, want, atol=1e-5, rtol=1e-5)


def test_memory_is_the_row_before(vocabulary) -> None:
    settings = replace(SETTINGS, memory=8, reuse=10)
    objective = Permutation(build("xlnet-tiny").eval(), settings, vocabulary)
    first = objective.make_batch(rows_of(2, continues=0), seed=1)
    second = objective.make_batch(rows_of(2, continues=1, backwards=1), seed=2)
    _, memory = objective(first)
    assert len(memory) == 2 and memory[0].shape == (2, 8, 16) and not memory[0].requires_grad
    states = objective.model.encoder.embeddings(first.ids, None, None, None)
    torch.testing.assert_close(memory[0], states[:, 2:10])  # of the first ten places the last eight
    with_memory, _ = objective(second, memory=memory)
    without, _ = objective(second)
    assert not torch.allclose(with_memory["plm"].sum, without["plm"].sum)
    fresh, _ = objective(first, memory=memory)  # the start of an epoch forgets
    torch.testing.assert_close(fresh["plm"].sum, objective(first)[0]["plm"].sum)


def test_batch_split_gives_the_same_loss(vocabulary) -> None:
    objective = Permutation(build("xlnet-tiny").train(), SETTINGS, vocabulary)
    batch = objective.make_batch(rows_of(4), seed=1)
    whole = objective(batch, noise=Noise(1, 2, batch.rows))[0]["plm"].sum
    parts = [objective(p, noise=Noise(1, 2, p.rows))[0]["plm"].sum for p in (batch.slice(0, 1), batch.slice(1, 4))]
    torch.testing.assert_close(whole, sum(parts))


def test_negative_memory_is_refused() -> None:
    for name in ("memory", "reuse"):
        with pytest.raises(ConfigError, match=f"^{name} is -1; give at least 0"):
            PermutationSettings(**{name: -1})


@pytest.mark.parametrize("name", ["bert-tiny", "deberta-tiny", "transformer-xl-tiny"])
def test_senseless_pairs_are_refused(name: str, vocabulary) -> None:
    with pytest.raises(ConfigError, match="relative_shift"):
        Permutation(build(name), SETTINGS, vocabulary)
    with pytest.raises(ConfigError, match="mask_vector"):
        Permutation(Model(replace(build("xlnet-tiny").config, mask_vector=False)), SETTINGS, vocabulary)
