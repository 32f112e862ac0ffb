"""What a cell of a study finds."""

from __future__ import annotations

import math

import pytest

from encoderlab.objectives.mlm import MLMSettings
from encoderlab.objectives.rtd import RTDSettings
from encoderlab.study.cell import tuning_loss


def held(rtd: float, replaced: float, mlm: float = 6.0) -> dict[str, float]:
    """A validation in which 15 of 100 tokens were masked, and the share ``replaced`` of these was replaced."""
    counts = {"counts.mlm": 15, "counts.replaced": 15, "counts.rtd": 100}
    return {"loss": mlm + 50 * rtd, "losses.mlm": mlm, "losses.rtd": rtd, "accuracy.replaced": replaced, **counts}


def test_detectors_are_compared_by_what_they_know_beyond_the_share_of_replaced_tokens() -> None:
    chance = -0.12 * math.log(0.12) - 0.88 * math.log(0.88)
    detection = RTDSettings()
    assert tuning_loss(detection, held(chance, 0.8)) == pytest.approx(0)
    assert tuning_loss(detection, held(chance - 0.1, 0.8)) == pytest.approx(-0.1)
    # A better generator leaves less to detect, and lowers both losses; the detector of the worse one knows more.
    better, worse = held(0.37, 0.8, mlm=4.0), held(0.38, 0.95, mlm=6.0)
    assert better["loss"] < worse["loss"] and better["losses.rtd"] < worse["losses.rtd"]
    assert tuning_loss(detection, worse) < tuning_loss(detection, better)
    assert tuning_loss(detection, held(0.2, 0.0)) == 0.2  # no token was replaced
    masked = {**held(0.3, 0.8), "counts.rtd": 15}
    assert tuning_loss(RTDSettings(predict="replaced_masked"), masked) == pytest.approx(0.3 - 0.5004, abs=1e-4)
    for missing in ({"losses.rtd": None}, {"accuracy.replaced": None}):
        assert tuning_loss(detection, {**better, **missing}) is None


def test_other_objectives_are_compared_by_their_held_out_loss() -> None:
    assert tuning_loss(MLMSettings(), {"loss": 5.0}) == 5.0 and tuning_loss(MLMSettings(), {"loss": None}) is None
    assert tuning_loss(RTDSettings(predict="original_all"), held(0.37, 0.8)) == 6.0 + 50 * 0.37
