"""Schedules against their formulas at the steps where they differ, and over any budget."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from encoderlab.train.schedule import Bert, Constant, Cosine, Electra, Polynomial, WarmupStableDecay

WARM, TOTAL = 10, 100
CASES = {
    Bert: {0: 0, 1: 0.1, 9: 0.9, 10: 1 - 10 / 100, 99: 0.01},
    Electra: {0: 0, 1: 0.1 * 0.99, 9: 0.9 * 0.91, 10: 0.9, 99: 0.01},
    Polynomial: {0: 0, 1: 0.1, 9: 0.9, 10: 1.0, 99: 1 / 90},
    Cosine: {0: 0, 1: 0.1, 9: 0.9, 10: 1.0, 99: 0.5 * (1 + math.cos(math.pi * 89 / 90))},
    Constant: {0: 0, 1: 0.1, 9: 0.9, 10: 1.0, 99: 1.0},
}


@pytest.mark.parametrize(("kind", "step"), [(kind, step) for kind, steps in CASES.items() for step in steps])
def test_published_formula(kind: type, step: int) -> None:
    assert kind(warmup=WARM).share(step, TOTAL) == pytest.approx(CASES[kind][step], abs=1e-12)
    assert kind(warmup=WARM / TOTAL).share(step, TOTAL) == pytest.approx(CASES[kind][step], abs=1e-12)


@pytest.mark.parametrize("kind", CASES)
def test_without_warm_up_the_first_step_has_the_peak_rate(kind: type) -> None:
    assert kind().share(0, TOTAL) == 1.0


def test_polynomial_power_and_end() -> None:
    schedule = Polynomial(warmup=10, power=2.0, end=0.001)
    assert schedule.share(55, 100) == pytest.approx(0.001 + 0.999 * 0.25)
    assert schedule.share(100, 100) == pytest.approx(0.001)


@pytest.mark.parametrize("kind", CASES)
@given(
    warmup=st.floats(0, 0.99),
    total=st.floats(1e-3, 1e12, allow_subnormal=False),
    done=st.floats(0, 1.5),
)
def test_any_unit_and_beyond_the_end(kind: type, warmup: float, total: float, done: float) -> None:
    assert 0 <= kind(warmup=warmup).share(done * total, total) <= 1


def test_warmup_stable_decay() -> None:
    linear = WarmupStableDecay(warmup=10, decay=0.25, end=0.1)
    shares = [linear.share(spent, 100) for spent in (0, 5, 10, 40, 75, 85, 100)]
    assert shares == pytest.approx([0, 0.5, 1, 1, 1, 1 - 0.9 * 0.4, 0.1])
    root = WarmupStableDecay(warmup=0.1, decay=0.25, shape="sqrt")
    assert [root.share(spent, 100) for spent in (5, 75, 81.25, 100)] == pytest.approx([0.5, 1, 0.5, 0])
    # Until the shorter budget decays the rate is that of the longer one.
    assert all(linear.share(step, 100) == linear.share(step, 400) for step in range(76))
