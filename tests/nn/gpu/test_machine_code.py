"""The Triton kernels become machine code of GPUs, here or not, without leaving their registers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton is not installed")

KERNELS = {
    "attend_kernel",
    "attend_query_gradients_kernel",
    "attend_key_gradients_kernel",
    "depthwise_kernel",
    "depthwise_backward_kernel",
    "dynamic_kernel",
    "dynamic_backward_kernel",
    "dropout_kernel",
    "add_norm_kernel",
    "add_norm_backward_kernel",
    "gelu_kernel",
    "gelu_backward_kernel",
    "cross_entropy_kernel",
    "divergence_kernel",
    "mix64_kernel",
}
ROOT = Path(__file__).resolve().parents[3]


def test_kernels_compile():
    """In a process of its own: this one has Triton's interpreter."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "tests.nn.gpu.machine", "few"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    kernels = [json.loads(line) for line in done.stdout.splitlines()]
    assert {kernel["kernel"] for kernel in kernels} == KERNELS
    for kernel in kernels:
        assert kernel["stack"] <= 256, kernel  # bytes of a thread, of 1,020 in its registers
        assert kernel["shared"] <= 99 * 1024, kernel  # what any GPU since 2020 has
