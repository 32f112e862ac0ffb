"""The model of a step's time over processes, and its check at a slow link."""

from pathlib import Path

import pytest

from encoderlab.measure.bench.families import case
from encoderlab.measure.bench.scaling import Link, Step, fit, run
from tests.train.test_doctor import build, language


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


def test_the_link_is_found_from_its_exchanges() -> None:
    link = Link(latency=2e-4, bandwidth=1e9)
    found = fit([(size, link.seconds(size, 3)) for size in (1000, 100_000, 10_000_000)], 3)
    assert found.latency == pytest.approx(link.latency) and found.bandwidth == pytest.approx(link.bandwidth)


def test_two_processes_and_a_slow_link(tmp_path: Path) -> None:
    corpus = build(tmp_path, language(200))
    found = run(case("bert", layers=1, width=64), corpus, processes=2, rows=2, length=16, steps=2)
    slow, size = found["throttled"], found["gradient_bytes"]
    assert slow["measured_seconds"] > size / slow["bytes_per_second"], "no sooner than the link lets it"
    assert slow["error"] == slow["predicted_seconds"] / slow["measured_seconds"] - 1
    assert set(found["tokens_per_second"]) == {"1", "2"} and found["exposed_communication_seconds"] >= 0
    efficiencies = [found["model"][count]["efficiency"] for count in ("2", "4", "8", "16", "64")]
    assert efficiencies == sorted(efficiencies, reverse=True)
