from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from encoderlab.batches.rows import Row
from encoderlab.errors import ConfigError
from encoderlab.model import Model
from encoderlab.models.base import resized
from encoderlab.nn.positions import RelativeShift, Shaw
from encoderlab.objectives.base import Settings
from encoderlab.objectives.causal import Causal, CausalSettings
from tests.objectives.conftest import make_rows
from tests.objectives.small import build, small


def window(ids: np.ndarray, continues: int, number: int = 0) -> Row:
    n = len(ids)
    return Row(
        ids, np.zeros(n, np.int32), np.zeros(n, np.int8), np.ones(n, bool), np.zeros(n, bool), {"continues": continues},
        (0, 0, number), number,
    )  # fmt: skip


@pytest.mark.parametrize(
    "position", [RelativeShift(shared_biases=True), RelativeShift(), RelativeShift(clamp=3), Shaw(span=4)]
)
def test_memory_of_everything_is_one_long_row(position: object, vocabulary) -> None:
    """In evaluation, windows with a memory that reaches back to the start have the losses of the whole text at once."""
    config = resized(small("transformer-xl-tiny"), position=position)
    model = Model(config).initialize(1)
    text = np.random.default_rng(0).integers(5, 40, 25)
    objective = Causal(model, CausalSettings(memory=4, evaluation_memory=100), vocabulary).eval()
    whole, _ = objective(objective.make_batch([window(text, 0)], seed=0))
    total, memory = 0.0, None
    for start in range(0, 24, 6):
        batch = objective.make_batch([window(text[start : start + 7], int(start > 0))], seed=0)
        terms, memory = objective(batch, memory=memory)
        total += terms["lm"].sum
    torch.testing.assert_close(total, whole["lm"].sum, atol=1e-4, rtol=1e-5)


def test_a_token_does_not_see_later_ones(vocabulary) -> None:
    for name in ("transformer-xl-tiny", "bert-base-ltr"):
        config = resized(small(name), layers=2)
        model = Model(config).initialize(1).eval()
        ids = torch.randint(5, 40, (1, 10))
        before = model.encoder(ids).last
        for place in range(10):
            changed = ids.clone()
            changed[0, place] = 5 + (ids[0, place] - 4) % 35
            after = model.encoder(changed).last
            assert torch.equal(before[:, :place], after[:, :place])
            assert not torch.allclose(before[:, place:], after[:, place:])


def test_same_length_limits_what_is_seen(vocabulary) -> None:
    model = build("transformer-xl-tiny").eval()
    text = np.random.default_rng(0).integers(5, 40, 17)
    objective = Causal(model, CausalSettings(memory=4, evaluation_memory=5, same_length=True), vocabulary).eval()
    first = objective.make_batch([window(text[:9], 0)], seed=0)
    _, memory = objective(first)
    second = objective.make_batch([window(text[8:], 1)], seed=0)
    got = objective(second, memory=memory)[0]["lm"].sum
    ids = torch.as_tensor(text[:-1])[None]
    states = model.encoder(
        ids, window=5
    )  # the same by masking one long row; layer 2 sees through layer 1, so only layer 1 is exact
    one = model.encoder(ids[:, 8:], memory=memory, window=5)
    torch.testing.assert_close(one.layers[1], states.layers[1][:, 8:], atol=1e-5, rtol=1e-5)
    assert got.isfinite()


def test_rows_that_are_no_streams(vocabulary) -> None:
    """Left-to-right without memory predicts the next token of the same document only."""
    model = Model(resized(small("bert-base-ltr"), layers=2)).initialize(0)
    objective = Causal(model, CausalSettings(), vocabulary)
    row = make_rows(1)[0]
    doc = np.zeros(len(row), np.int32)
    doc[7:] = 1
    batch = objective.make_batch([replace(row, doc=doc)], seed=0)
    assert objective.counts(batch)["lm"] == len(row) - 2 == objective(batch)[0]["lm"].count
    assert batch.labels["targets"][0, 6] == -100


def test_senseless_memory_is_refused(vocabulary) -> None:
    for name in ("memory", "evaluation_memory"):
        with pytest.raises(ConfigError, match=f"^{name} is -1; give at least 0"):
            CausalSettings(**{name: -1})
        absolute = Model(resized(small("bert-base-ltr"), layers=1))
        with pytest.raises(ConfigError, match="memory needs relative positions"):
            Causal(absolute, CausalSettings(**{name: 4}), vocabulary)


def test_senseless_pairs_are_refused(vocabulary) -> None:
    with pytest.raises(ConfigError, match="causal=true"):
        Causal(build("bert-tiny"), CausalSettings(), vocabulary)
    with pytest.raises(ConfigError, match="old absolute positions"):
        Causal(Model(resized(small("bert-base-ltr"), layers=1)), CausalSettings(memory=4), vocabulary)


def test_an_objective_without_its_operations_is_refused_in_one_line() -> None:
    class Half(Settings):
        def build(self, *args: Any, **kwargs: Any) -> Any: ...

    with pytest.raises(ConfigError, match="Half does not define operations; every objective needs it"):
        Half()
