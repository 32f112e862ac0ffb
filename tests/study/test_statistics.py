"""Paired differences, corrections, verdicts, and exponents."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from encoderlab.study.statistics import Comparison, compare, holm, power_law, seeds_needed, verdict
from encoderlab.tasks.scoring.metrics import t_quantile, two_sided


@pytest.mark.parametrize(
    ("freedom", "quantile"), [(1, 12.7062), (2, 4.3027), (3, 3.1824), (4, 2.7764), (9, 2.2622), (30, 2.0423)]
)
def test_tails_are_those_of_the_printed_table(freedom: int, quantile: float) -> None:
    assert two_sided(quantile, freedom) == pytest.approx(0.05, abs=2e-5)
    assert two_sided(-quantile, freedom) == two_sided(quantile, freedom)
    assert two_sided(0.0, freedom) == pytest.approx(1.0)
    assert t_quantile(freedom) == pytest.approx(quantile, abs=1e-4)


def test_tails_are_those_of_simulated_differences() -> None:
    draws = np.random.default_rng(3).standard_normal((40000, 4))
    t = draws.mean(1) / (draws.std(1, ddof=1) / 2)
    assert np.mean(np.abs(t) > 2.5) == pytest.approx(two_sided(2.5, 3), abs=0.005)


def test_a_paired_comparison() -> None:
    found = compare([0.1, 0.2, 0.3])
    half = 4.3027 * 0.1 / 3**0.5
    assert found["difference"] == pytest.approx(0.2)
    assert (found["low"], found["high"]) == (pytest.approx(0.2 - half, rel=1e-3), pytest.approx(0.2 + half, rel=1e-3))
    assert found["p"] == pytest.approx(two_sided(0.2 / (0.1 / 3**0.5), 2))


@pytest.mark.parametrize("differences", [[0.5], [0.0, 0.0], [0.3, 0.3], [0.6 - 0.5, 0.7 - 0.6, 0.8 - 0.7]])
def test_equal_differences_say_nothing_of_their_spread(differences: list[float]) -> None:
    found = compare(differences)
    assert (found["low"], found["high"], found["p"], found["needed"]) == (-math.inf, math.inf, 1.0, None)
    assert Comparison(better="a", than="b", by="loss", amount=1, seeds=len(differences), **found).interval() == ""


@pytest.mark.parametrize(("effect", "comparisons"), [(2.0, 1), (1.5, 1), (1.0, 20), (3.0, 20)])
def test_as_many_seeds_as_needed_show_a_difference(effect: float, comparisons: int) -> None:
    """Simulated: with the power asked for, and with a seed less a smaller one."""

    def power(seeds: int) -> float:
        draws = effect + np.random.default_rng(5).standard_normal((40000, seeds))
        t = draws.mean(1) / (draws.std(1, ddof=1) / seeds**0.5)
        return float(np.mean(t > t_quantile(seeds - 1, 0.05 / comparisons)))

    seeds = seeds_needed(effect, comparisons)
    assert power(seeds) > 0.79 and power(seeds - 1) < 0.8


def test_small_differences_need_many_seeds() -> None:
    assert seeds_needed(0.1, 1) == pytest.approx(787, abs=3)  # as printed tables have it
    assert seeds_needed(1e-9, 1) == 10**6
    assert compare([0.1, 0.2, 0.4], 20)["needed"] > compare([0.1, 0.2, 0.4])["needed"]  # type: ignore[operator]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=9))
def test_corrected_values_keep_their_order_and_are_no_smaller(values: list[float]) -> None:
    adjusted = holm(values)
    assert all(one <= two <= 1 for one, two in zip(values, adjusted, strict=True))
    order = np.argsort(values, kind="stable")
    assert sorted(adjusted) == [adjusted[i] for i in order]
    assert adjusted[order[0]] == pytest.approx(min(1.0, min(values) * len(values)))


def test_the_example_of_holm() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])


def test_verdicts() -> None:
    assert verdict(0.2, 0.3, 0.01) == "holds"
    assert verdict(-0.2, -0.1, 0.01) == "does not hold"
    assert verdict(0.2, 0.9, 0.2) == "cannot be told at this budget"
    assert verdict(0.01, 0.02, 0.4, margin=0.05) == "does not hold"
    assert verdict(0.01, 0.08, 0.4, margin=0.05) == "cannot be told at this budget"
    assert verdict(0.01, 0.02, 0.01, margin=0.05) == "does not hold"  # beyond chance, but too little to matter
    assert verdict(0.06, 0.08, 0.01, margin=0.05) == "holds"


def test_a_power_law_is_found_again() -> None:
    x = np.array([1e13, 3e13, 1e14] * 3)
    noise = 1 + 0.002 * np.random.default_rng(1).standard_normal(9)
    law = power_law(x.tolist(), (40 * x**-0.07 * noise).tolist())
    assert law is not None and law.low < 0.07 < law.high and law.high - law.low < 0.01
    assert law(1e13) == pytest.approx(40 * 1e13**-0.07, rel=0.01)
    assert power_law([1.0, 1.0, 2.0], [3.0, 3.1, 2.0]) is None
