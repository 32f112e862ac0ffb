"""The model of a step's time over processes, and its check at a slow link."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from encoderlab.measure.bench.families import case
from encoderlab.measure.bench.scaling import fit, run
from encoderlab.measure.many_processes import Link
from tests.train.test_doctor import build, language


def test_the_link_is_found_from_its_exchanges() -> None:
    link = Link(latency=2e-4, bandwidth=1e9)
    found = fit([(size, link.seconds(size, 3)) for size in (1000, 100_000, 10_000_000)], 3)
    assert found.latency == pytest.approx(link.latency) and found.bandwidth == pytest.approx(link.bandwidth)


@pytest.mark.slow
def test_two_processes_and_a_slow_link(tmp_path: Path) -> None:
    corpus = build(tmp_path, language(200))
    found = run(case("bert", layers=1, width=64), corpus, processes=2, rows=2, length=16, steps=2)
    slow, size = found["throttled"], found["gradient_bytes"]
    assert slow["measured_seconds"] > size / slow["bytes_per_second"], "no sooner than the link lets it"
    assert slow["error"] == slow["predicted_seconds"] / slow["measured_seconds"] - 1
    assert set(found["tokens_per_second"]) == {"1", "2"} and found["exposed_communication_seconds"] >= 0
    efficiencies = [found["model"][count]["efficiency"] for count in ("2", "4", "8", "16", "64")]
    assert efficiencies == sorted(efficiencies, reverse=True)


def test_over_the_processes_of_torchrun(tmp_path: Path) -> None:
    """Two nodes' processes measure together, and only the first one prints."""
    corpus = build(tmp_path, language(200))
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "encoderlab", "bench"]
    words = ["scaling", "bert", "--layers=1", "--width=64", "--rows=2", "--length=16", "--steps=2", "--json"]
    done = subprocess.run(
        [sys.executable, *command, *words, f"--corpus={corpus}"],
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["processes"] == 2 and set(found["tokens_per_second"]) == {"1", "2"}
    assert found["throttled"]["measured_seconds"] > found["gradient_bytes"] / found["throttled"]["bytes_per_second"]
