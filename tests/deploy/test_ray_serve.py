"""Ray Serve: two replicas, one of which is killed under load; every request is answered with the right numbers."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

import numpy as np
import pytest

import encoderlab

pytest.importorskip("ray.serve", reason="Ray Serve is not installed (pip install 'ray[serve]')")

ROOT = Path(__file__).parents[2]
SCRIPT = """
import json, os, sys
import ray
from ray import serve
from benchmarks.cluster import ray_serve

ray.init("local", num_cpus=2, object_store_memory=80 << 20, include_dashboard=False, log_to_driver=False)
serve.start(http_options={"port": int(sys.argv[1])})
serve.run(ray_serve.app)
print("ready", flush=True)
sys.stdin.read()
serve.shutdown()
"""
TEXTS = ["a short text", "the second text is longer than the first", "third"]


def ask(port: int, texts: list[str]) -> np.ndarray:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/embed",
        json.dumps({"inputs": texts}).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=90) as answer:
        return np.array(json.load(answer))


def replicas() -> list[int]:
    """The processes of replicas; Ray names them after the deployment."""
    listed = subprocess.run(["ps", "-eo", "pid,args"], capture_output=True, text=True).stdout.splitlines()
    return [int(line.split()[0]) for line in listed if "Replica:default:Replica" in line]


@pytest.mark.slow
def test_a_replica_is_killed_under_load_and_no_request_is_lost() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    surroundings = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", SCRIPT, str(port)]
    with subprocess.Popen(command, env=surroundings, stdin=-1, stdout=-1, text=True, cwd=ROOT) as serving:
        assert serving.stdout is not None and serving.stdin is not None
        try:
            assert serving.stdout.readline() == "ready\n"
            wanted = encoderlab.load("small-en").encode(TEXTS)
            wanted /= np.linalg.norm(wanted, axis=1, keepdims=True)
            np.testing.assert_allclose(ask(port, TEXTS), wanted, atol=1e-5)
            failed: list[str] = []
            answered, stop = [0], threading.Event()

            def load() -> None:
                while not stop.is_set():
                    try:
                        np.testing.assert_allclose(ask(port, TEXTS), wanted, atol=1e-5)
                        answered[0] += 1
                    except Exception as error:
                        failed.append(repr(error))

            threads = [threading.Thread(target=load) for _ in range(4)]
            for thread in threads:
                thread.start()
            time.sleep(2)
            lost_one, _ = replicas()
            os.kill(lost_one, signal.SIGKILL)
            until = time.monotonic() + 90
            while len(set(replicas()) - {lost_one}) < 2:
                assert time.monotonic() < until, "the lost replica was not replaced"
                time.sleep(0.5)
            time.sleep(1)
            stop.set()
            for thread in threads:
                thread.join()
            assert not failed and answered[0] > 20, (failed[:3], answered)
        finally:
            serving.stdin.close()
            serving.wait(timeout=60)
