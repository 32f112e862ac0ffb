"""The model of training with many processes: a step, a run, and the tables of docs/scaling.md."""

from dataclasses import replace
from pathlib import Path

import pytest

from encoderlab import recipes
from encoderlab.errors import ConfigError
from encoderlab.measure.many_processes import Link, Machine, Step, forecast

PAGE = Path(__file__).parents[2] / "docs" / "scaling.md"


def test_a_ring_sends_all_but_one_share_twice() -> None:
    link = Link(latency=0.5, bandwidth=100.0)
    assert link.seconds(400, 1) == 0.0
    assert link.seconds(400, 2) == 2 / 2 * 4.0 + 2 * 0.5
    assert link.seconds(400, 4) == 6 / 4 * 4.0 + 6 * 0.5


def test_buckets_travel_one_after_another_while_the_backward_pass_goes_on() -> None:
    step = Step(buckets=((1.0, 100), (1.5, 100), (4.0, 100)), computed=5.0, update=0.5)
    assert step.size == 300
    assert step.seconds(Link(0.0, 1e9), 1) == 5.5, "one process sends nothing"
    assert step.seconds(Link(0.0, 100.0), 2) == 5.5, "all arrive at 2, 3 and 5, when computing ends"
    assert step.seconds(Link(0.0, 50.0), 2) == 7.5, "arrivals at 3, 5 and 7, then the update"
    assert step.seconds(Link(1.0, 100.0), 2) == 10.5, "each waits for a latency twice"


def test_a_run_is_its_steps() -> None:
    recipe = recipes.recipe("bert-base")
    slow = Machine(flops=1e12, updates=1e12, link=Link(0.0, 1e15))
    work = 256 * sum(phase.share * phase.length * recipe.operations(phase.length) for phase in recipe.phases)
    assert forecast(recipe, 1, slow).seconds == pytest.approx(1e6 * work / 1e12, rel=1e-3)
    found = forecast(recipe, 64, slow)
    assert found.efficiency == pytest.approx(1, abs=0.01) and found.process_hours == found.seconds * 64 / 3600
    narrow = replace(slow, link=Link(0.0, 1e9))
    whole, half = forecast(recipe, 64, narrow), forecast(replace(recipe, exchange="bf16"), 64, narrow)
    assert whole.seconds > 1.5 * half.seconds, "the link decides, and bf16 halves what it carries"
    with pytest.raises(ConfigError, match="a batch of 256 rows is too small for 1024 processes"):
        forecast(recipe, 1024, slow)


def test_the_table_of_the_page() -> None:
    """docs/scaling.md, 64 processes, with the constants that the page names."""
    machine = Machine(flops=5.0e9, updates=3.8e7, link=Link(2.1e-4, 1.92e8))
    line = next(line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| 64 |"))
    for name, cells in zip(("bert-base", "bert-large"), (line.split("|")[2:5], line.split("|")[5:8]), strict=True):
        cost = forecast(recipes.recipe(name), 64, machine)
        years = cost.seconds / 86400 / 365.25
        assert [cell.strip() for cell in cells] == [
            f"{years:.3g}",
            f"{cost.process_hours:,.0f}",
            f"{cost.efficiency:.0%}",
        ]
