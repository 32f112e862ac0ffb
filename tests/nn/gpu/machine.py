"""Compiles the Triton kernels for a GPU that is not there: ``python -m tests.nn.gpu.machine`` prints what came out.

Everything runs as on a GPU (the same calls, with tensors on the CPU, choose tiles and specialise the kernels), except
that a compiled kernel is recorded instead of launched. Must be a process of its own, without Triton's interpreter.
"""

from __future__ import annotations

import os

os.environ.pop("TRITON_INTERPRET", None)

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

from encoderlab.nn.kernels import Relative
from encoderlab.nn.kernels.gpu import attention, convolution, noise, rows, vocabulary

CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
CAPABILITIES = 80, 86, 90, 120  # A100, RTX 3090, H100, RTX 5090
EVERYTHING = (torch.float32, torch.bfloat16), (32, 64, 128), (256, 768, 1024)  # widths of heads and of models
FEW = (torch.bfloat16,), (64,), (768,)


class Driver:
    """Stands for the driver of a GPU, as far as compiling asks for one."""

    def __init__(self, capability: int) -> None:
        self.target = GPUTarget("cuda", capability, 32)

    def get_current_target(self) -> GPUTarget:
        return self.target

    def get_current_device(self) -> int:
        return self.target.arch

    def get_current_stream(self, device: int) -> int:
        return 0


def recorded(work: Callable[[], None], capability: int) -> Iterable[Any]:
    """The kernels that ``work`` would launch, compiled for the capability."""
    made: dict[str, Any] = {}
    launch = JITFunction.run

    def compile_only(self: JITFunction, *args: Any, **kwargs: Any) -> Any:
        kernel = launch(self, *args, **kwargs | {"warmup": True})
        made[kernel.hash] = kernel
        return kernel

    triton.runtime.driver.set_active(Driver(capability))
    JITFunction.run = compile_only
    try:
        work()
    finally:
        JITFunction.run = launch
    return made.values()


def resources(kernel: Any) -> dict[str, Any]:
    """Registers and bytes of stack per thread (what does not fit the registers), bytes of shared memory per program."""
    with tempfile.TemporaryDirectory() as place:
        code = Path(place) / "kernel.cubin"
        code.write_bytes(kernel.asm["cubin"])
        said = subprocess.run([CUOBJDUMP, "--dump-resource-usage", code], check=True, capture_output=True, text=True)
    numbers = dict(re.findall(r"(REG|STACK):(\d+)", said.stdout))
    return {
        "kernel": kernel.metadata.name,
        "capability": kernel.metadata.target.arch,
        "registers": int(numbers["REG"]),
        "stack": int(numbers["STACK"]),
        "shared": kernel.metadata.shared,
        "warps": kernel.metadata.num_warps,
    }


def attend(dtype: torch.dtype, width: int, terms: str) -> Callable[[], None]:
    """Forward and backward of attention with these terms."""

    def leaf(*shape: int) -> Tensor:
        return torch.zeros(shape, dtype=dtype, requires_grad=True)

    def work() -> None:
        B, H, L = 2, 4, 128
        seeds = torch.zeros(B, dtype=torch.long)
        visible = torch.ones(B, 1, L, L, dtype=torch.bool)
        q, k, v = (leaf(B, H, L, width) for _ in range(3))
        rows = [leaf(2 * L - 1, H, width) for _ in range(2)]
        relative = {
            "deberta": Relative(*rows),
            "xlnet": Relative(rows[0], None, leaf(B, H, L, width), leaf(B, H, L, 2), visible),
        }
        bias = leaf(1, H, L, L) if terms == "bias" else None
        dropped = seeds if terms != "plain" else None
        attention.attend(q, k, v, bias, visible, dropped, 0.1, 0.1, 1, relative.get(terms)).sum().backward()

    return work


def convolve(dtype: torch.dtype, width: int, taps: int) -> Callable[[], None]:
    """Forward and backward of ConvBERT's convolutions on packed documents, 4 heads."""

    def work() -> None:
        B, L, H = 2, 128, 4
        doc = torch.zeros(B, L, dtype=torch.long)
        x = torch.zeros(B, L, H * width, dtype=dtype, requires_grad=True)
        logits = torch.zeros(B, L, H * taps, dtype=dtype, requires_grad=True)
        convolution.DynamicConvolution.apply(x, logits, doc, H).sum().backward()
        convolution.Depthwise.apply(x, torch.zeros(H * width, taps, requires_grad=True), doc).sum().backward()

    return work


def position_wise(dtype: torch.dtype, width: int) -> Callable[[], None]:
    """Forward and backward of what works on one position at a time, and of the vocabulary's loss."""

    def work() -> None:
        B, L, classes = 2, 128, 1000
        seeds = torch.zeros(B, dtype=torch.long)
        x = torch.zeros(B, L, width, dtype=dtype, requires_grad=True)
        vector = torch.zeros(width, requires_grad=True)
        inner = torch.zeros(4 * width, requires_grad=True)
        weight = torch.zeros(4 * width, width, dtype=dtype, requires_grad=True)
        noise.mixed(seeds)
        rows.Dropout.apply(x, seeds, 0, 0.1).sum().backward()
        rows.AddNorm.apply(x, vector, x, vector, vector, seeds, 0, 0.1, 1e-5, True).sum().backward()
        for tanh in (False, True):
            rows.FeedForward.apply(x, weight, inner, weight.T, False, tanh, seeds, 0, 0.1).sum().backward()
        words = torch.zeros(classes, width, dtype=dtype, requires_grad=True)
        labels, uniforms = torch.zeros(L, dtype=torch.long), torch.zeros(L, dtype=torch.float64)
        bias = torch.zeros(classes, requires_grad=True)
        vocabulary.LinearCrossEntropy.apply(x[0], words, bias, labels, uniforms)[0].backward()
        vocabulary.Divergence.apply(words, torch.zeros_like(words), 2.0)[0].backward()

    return work


def cases(
    dtypes: Iterable[torch.dtype], head_widths: Iterable[int], widths: Iterable[int]
) -> dict[str, Callable[[], None]]:
    made = {}
    for dtype in dtypes:
        for width in head_widths:
            for terms in ("plain", "dropout", "bias", "deberta", "xlnet"):
                made[f"attend {terms} {dtype} {width}"] = attend(dtype, width, terms)
            made[f"convolve {dtype} {width}"] = convolve(dtype, width, 9)
        for width in widths:
            made[f"position-wise {dtype} {width}"] = position_wise(dtype, width)
    return made


if __name__ == "__main__":
    few = "few" in sys.argv
    works = cases(*(FEW if few else EVERYTHING))
    if few:
        works["widest"] = attend(torch.float32, 128, "deberta")
    for capability in [90] if few else CAPABILITIES:
        for name, work in works.items():
            for kernel in recorded(work, capability):
                print(json.dumps({"case": name} | resources(kernel)), flush=True)
