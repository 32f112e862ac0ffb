"""Accuracies, ties and intervals."""

from __future__ import annotations

import numpy as np
import pytest

from encoderlab.measure.pairs.statistics import tabulate

PARADIGMS = [("one", "A"), ("two", "A"), ("three", "")]


def test_means_over_paradigms_weigh_each_alike() -> None:
    margins = np.array([1.0, 1.0, 0.0, -2.0, 3.0, 0.0, -1.0])
    numbers = np.array([0, 0, 0, 0, 1, 2, 2])
    table = tabulate(margins, numbers, PARADIGMS)
    assert [one.accuracy for one in table.paradigms.values()] == [0.625, 1.0, 0.25]
    assert table.phenomena["A"].accuracy == pytest.approx(0.8125) and list(table.phenomena) == ["A"]
    assert table.total.accuracy == pytest.approx((0.625 + 1 + 0.25) / 3)
    assert (table.total.pairs, table.total.ties) == (7, 2)
    official = tabulate(margins, numbers, PARADIGMS, ties="right")
    assert [one.accuracy for one in official.paradigms.values()] == [0.75, 1.0, 0.5] and official.total.ties == 2


def test_intervals_are_those_of_the_bootstrap() -> None:
    """Of n pairs with share p right, about p plus and minus 1.96 times the root of p (1 - p) / n."""
    margins = np.array([1.0] * 700 + [-1.0] * 300)
    one = tabulate(margins, np.zeros(1000, int), [("x", "")]).total
    half = 1.96 * (0.7 * 0.3 / 1000) ** 0.5
    assert one.low == pytest.approx(0.7 - half, abs=0.004) and one.high == pytest.approx(0.7 + half, abs=0.004)
    for margin, ends in ((1.0, (0.62, 1.0)), (-1.0, (0.0, 0.38))):  # all alike: as far as five pairs can tell
        five = tabulate(np.full(5, margin), np.zeros(5, int), [("x", "")]).total
        assert (five.low, five.high) == pytest.approx(ends, abs=0.02)
    right = tabulate(np.array([1.0, 0.0, 1.0, 0.0, 0.0]), np.zeros(5, int), [("x", "")], ties="right").total
    assert right.accuracy == 1.0 and right.low == pytest.approx(0.62, abs=0.02)
    assert tabulate(margins, np.zeros(1000, int), [("x", "")]).total == one
