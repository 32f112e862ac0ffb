"""The file of a study: names, and what varies."""

from __future__ import annotations

from pathlib import Path

import pytest

from encoderlab.errors import ConfigError
from encoderlab.study.file import read
from tests.study.small import written


def test_names_that_look_like_numbers_are_names(place: Path) -> None:
    path = written(place, arms=None, budget=None)
    path.write_text(
        path.read_text() + "budget: {steps: 1e1}\narms: {1e-3: {set: {optim.lr: 1e-3}}, 2:, no:}\nbaseline: '2'\n"
    )
    study, found = read(path)
    assert study.baseline == "2" and study.amounts == (10,)
    assert list(found) == ["1e-3", "2", "no"] and found["1e-3"].set == {"optim.lr": 1e-3}


def test_what_varies_is_combined(place: Path) -> None:
    path = written(place, vary={"optim.lr": ["1e-3", 0.01], "model.encoder.layers": [1, 2]}, tune=None)
    _, arms = read(path)
    assert list(arms)[:2] == ["few lr=0.001 layers=1", "many lr=0.001 layers=1"] and len(arms) == 8
    assert arms["many lr=0.01 layers=2"].set == {
        "objective.masking.rate": 0.4, "optim.lr": 0.01, "model.encoder.layers": 2,
    }  # fmt: skip


def test_an_arm_s_own_field_is_not_varied(place: Path) -> None:
    masking = "objective.masking"
    for vary in ({f"{masking}.rate": [0.1, 0.2]}, {masking: [{"kind": "span"}, {"rate": 0.2}]}):
        with pytest.raises(ConfigError, match="arm 'many' sets 'objective.masking.rate', which also varies; leave it"):
            read(written(place, vary=vary))
    _, arms = read(written(place, vary={masking: [{"kind": "bert"}, {"kind": "span"}]}))
    assert arms["many masking=span"].set == {f"{masking}.rate": 0.4, masking: {"kind": "span"}}


def test_a_field_varies_once(place: Path) -> None:
    """Else an arm runs with another value than its name says."""
    encoder = "model.encoder"
    for vary in (
        {encoder: [{"layers": 3}], f"{encoder}.layers": [1, 2]},
        {f"{encoder}.layers": [1, 2], encoder: [{"layers": 3}]},
    ):
        first, second = vary
        with pytest.raises(ConfigError, match=f"vary.{second} and vary.{first} both set '{encoder}.layers'; leave it"):
            read(written(place, arms={}, vary=vary))
    vary = {"optim.lr": [1e-3, 2e-3]}
    for given in (vary, {"optim": [{"lr": 1e-3}, {"lr": 2e-3}]}):
        with pytest.raises(ConfigError, match="'optim.lr' varies and is tuned, .*; write tune: null, or"):
            read(written(place, arms={}, vary=given))
    assert [*read(written(place, arms={}, vary=vary, tune=None))[1]] == ["lr=0.001", "lr=0.002"]
    with pytest.raises(ConfigError, match="arm 'a' sets 'model.pooler', which also varies; leave it"):
        read(written(place, arms={"a": {"set": {"model.pooler": None}}}, vary={"model.pooler.dropout": [0.0, 0.1]}))
    arms = {"a": {"set": {"optim.lr": 1e-3}}, "b": None}  # the value that is multiplied
    assert [*read(written(place, arms=arms))[1]] == ["a", "b"]


def test_options_of_one_kind_are_told_apart(place: Path) -> None:
    masks = [{"kind": "bert", "rate": 0.15}, {"kind": "bert", "rate": 0.4}]
    _, arms = read(written(place, arms={}, vary={"objective.masking": masks}))
    assert list(arms) == ["masking=bert-rate-0.15", "masking=bert-rate-0.4"]
    _, arms = read(written(place, arms={}, vary={"objective.masking": [masks[0], {"kind": "span"}]}))
    assert list(arms) == ["masking=bert", "masking=span"]
    with pytest.raises(ConfigError, match="two arms are called 'masking=bert-rate-0.15'"):
        read(written(place, arms={}, vary={"objective.masking": [masks[0], masks[0]]}))
