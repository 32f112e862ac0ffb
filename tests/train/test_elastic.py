"""Nodes under torchrun that are lost and come back: agents on this machine that meet over c10d, as nodes do."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import yaml

from encoderlab import config
from encoderlab.errors import ConfigError
from encoderlab.train import checkpoint
from encoderlab.train.distributed import join
from tests.train.toy import RECIPE, assert_same_run, metrics, run, start, tensors

CLUSTER = Path(__file__).parents[2] / "benchmarks" / "cluster"
JOB = list(yaml.safe_load_all((CLUSTER / "kubernetes.yaml").read_text()))[1]
POD = JOB["spec"]["template"]["spec"]["containers"][0]["command"]
VARIABLES = {one["name"]: one["value"] for one in JOB["spec"]["template"]["spec"]["containers"][0]["env"]}
CHANGES = {"budget.amount": 200, "checkpoints.steps": 2, "evaluation.every": 50}
LAST = "step-000200"


@pytest.mark.slow
def test_a_killed_worker_comes_back_to_the_bit(tmp_path: Path) -> None:
    """torchrun starts both processes again; the losses are those of two processes that were left alone."""
    whole = start(tmp_path / "whole", processes=2)
    assert whole.wait(timeout=300) == 0, whole.communicate()[1]
    cut = start(tmp_path / "cut", None, "--die-at", 15, processes=2, node=("--standalone", "--max-restarts=1"))
    said = cut.communicate(timeout=300)[1]
    assert cut.returncode == 0, said
    assert len(json.loads((tmp_path / "cut" / "provenance.json").read_text())["sessions"]) == 2
    assert_same_run(tmp_path / "cut", tmp_path / "whole", 24)


def test_restarts_that_would_hang_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "RANK": "0",
        "WORLD_SIZE": "2",
        "TORCHELASTIC_MAX_RESTARTS": "3",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match="set the variable TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"):
        join("cpu")
    assert (CLUSTER / "kubernetes.yaml").read_text() in (CLUSTER.parents[1] / "docs" / "scaling.md").read_text()
    assert VARIABLES == {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}, "as the toy is started, too"


@pytest.mark.slow
def test_a_node_is_killed_and_comes_back(tmp_path: Path) -> None:
    """Two pods, then one, then two, then one of them is preempted: the run is that of a single process without
    interruption.
    """
    alone = tmp_path / "alone"
    run(alone, config.override(RECIPE, CHANGES))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    out, (fast, begun) = tmp_path / "out", (tmp_path / "fast", [])

    def node(number: int) -> subprocess.Popen[str]:
        """What a pod of the job file for Kubernetes runs, with this machine's addresses and short times."""
        here = {
            "--nproc-per-node": None,
            "--rdzv-endpoint": f"127.0.0.1:{port}",
            "--rdzv-conf": f"is_host={number == 0},last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=3",
        }
        written = dict(option.split("=", 1) for option in POD[1 : POD.index("-m")])
        options = [f"{name}={here.get(name, value)}" for name, value in written.items() if here.get(name, value)]
        options += ["--local-addr=127.0.0.1", "--monitor-interval=0.2"]
        begun.append(start(out, CHANGES, "--slow", 0.2, node=tuple(options)))
        return begun[-1]

    try:
        first, second = node(0), node(1)
        _wait(lambda: _processes(out) == 2, begun)
        _kill_node(second)
        begun.remove(second)
        _wait(lambda: _processes(out) == 1, begun)
        second = node(1)
        _wait(lambda: _processes(out) == 2, begun)
        begun.remove(second)
        second.terminate()  # what Kubernetes sends to the first process of a pod
        said = second.communicate(timeout=JOB["spec"]["template"]["spec"]["terminationGracePeriodSeconds"])[1]
        stopped = re.search(r"stopped by SIGTERM at step (\d+)", said)
        assert stopped, said
        _wait(lambda: _processes(out) == 1, begun)
        fast.touch()
        said = first.communicate(timeout=300)[1]
        assert first.returncode == 0 and f"step-{int(stopped[1]):06d}" in said, said
    finally:
        for one in (*begun, second):
            _kill_node(one)
    assert len(json.loads((out / "provenance.json").read_text())["sessions"]) == 4
    left, right = (tensors(place / "checkpoints" / LAST) for place in (out, alone))
    assert left.keys() == right.keys()
    for name, tensor in left.items():
        torch.testing.assert_close(tensor, right[name], rtol=1e-3, atol=1e-5)
    for ours, theirs in zip(metrics(out), metrics(alone), strict=True):
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-4)


def _processes(out: Path) -> int | None:
    """How many processes wrote the newest checkpoint of ``out``."""
    try:
        return json.loads((out / "checkpoints" / "latest" / checkpoint.STATE).read_text())["processes"]
    except OSError:
        return None


def _wait(reached: Callable[[], bool], nodes: list[subprocess.Popen[str]]) -> None:
    end = time.monotonic() + 300
    while not reached():
        assert time.monotonic() < end
        assert all(one.poll() is None for one in nodes), [one.communicate()[1] for one in nodes]
        time.sleep(0.1)


def _kill_node(agent: subprocess.Popen[str]) -> None:
    """Kill an agent and its workers at once, as a node that loses power."""
    children = Path(f"/proc/{agent.pid}/task/{agent.pid}/children")
    doomed = [int(pid) for pid in children.read_text().split()] if agent.poll() is None else []
    for pid in (agent.pid, *doomed) if doomed else ():
        os.kill(pid, signal.SIGKILL)
    agent.wait()
