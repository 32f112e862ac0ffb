from __future__ import annotations

import pytest

from encoderlab.train.units import clock, duration, quantity


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (0, "0"),
        (950, "950"),
        (999.6, "1 k"),
        (20_437, "20.4 k"),
        (999_900, "1 M"),
        (999.4e6, "999 M"),
        (3.3e9, "3.3 B"),
        (1.7e12, "1.7 T"),
    ],
)
def test_quantities_have_three_digits(number: float, words: str) -> None:
    assert quantity(number) == words
    assert quantity(number, "") == words.replace(" ", "")


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(45, "45 s"), (59.7, "1 min"), (245, "4 min 5 s"), (3599.9, "1 h"), (7800, "2 h 10 min"), (302_400, "3.5 days")],
)
def test_durations(seconds: float, words: str) -> None:
    assert duration(seconds) == words


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(5, "00:05"), (3723, "1:02:03"), (49 * 3600 + 180, "2d 1:03"), (float("nan"), "?"), (float("inf"), "?")],
)
def test_clock(seconds: float, text: str) -> None:
    assert clock(seconds) == text
