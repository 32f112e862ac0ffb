"""How much faster prediction would be with products in int8: our network with every product of a weight replaced.

    python -m benchmarks.int8_products MODEL [--rows 16] [--length 128]

Weights are int8 per row, inputs int8 per batch with their scale found in the product (torch's dynamic quantisation on
fbgemm or oneDNN), which uses VNNI. Prints the processor time of a forward pass in fp32 and int8, in turns in one
process, their ratio, and how far the states are apart; then the ratio of the products alone.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import encoderlab
from encoderlab.deploy.graph import Graph
from encoderlab.nn import kernels

TURNS = 15


def quantised(weight: Tensor, bias: Tensor | None) -> Any:
    scales = weight.abs().amax(1) / 127
    stored = torch.quantize_per_channel(weight, scales, torch.zeros(len(weight), dtype=torch.long), 0, torch.qint8)
    return torch.ops.quantized.linear_prepack(stored, bias)


def seconds(turns: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """The median time of each function, called in turns."""
    times: dict[str, list[float]] = {name: [] for name in turns}
    for turn in range(TURNS + 3):
        for name, function in turns.items():
            begin = time.process_time()
            function()
            if turn > 2:
                times[name].append(time.process_time() - begin)
    return {name: statistics.median(values) for name, values in times.items()}


def show(weight: Tensor, rows: int) -> None:
    """Print how many times faster one product is in int8."""
    x, store = torch.randn(rows, weight.shape[1]), quantised(weight.detach().contiguous(), None)
    with torch.inference_mode():
        one = seconds(
            {"fp32": lambda: F.linear(x, weight), "int8": lambda: torch.ops.quantized.linear_dynamic(x, store)}
        )
    print(f"  {tuple(x.shape)} by {tuple(weight.shape)}: {one['fp32'] / one['int8']:.2f} times")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--length", type=int, default=128)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    graph = Graph(encoderlab.load(arguments.model), "states").eval()
    ids = torch.randint(10, 500, (arguments.rows, arguments.length))
    mask = torch.ones_like(ids)
    plain, packed = F.linear, {}
    shapes: dict[tuple[int, ...], Tensor] = {}

    def int8(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        key = (weight.data_ptr(), weight.shape)
        if key not in packed:
            packed[key] = quantised(weight.detach().contiguous(), None if bias is None else bias.detach())
            shapes[tuple(weight.shape)] = weight
        return torch.ops.quantized.linear_dynamic(x.contiguous(), packed[key], reduce_range=False)

    def feed_forward(x: Tensor, up: Tensor, bias: Tensor, down: Tensor, *, tanh: bool, **unused: Any) -> Tensor:
        return int8(F.gelu(int8(x, up, bias), approximate="tanh" if tanh else "none"), down)

    def run(product: Callable[..., Tensor]) -> Tensor:
        fused = kernels.feed_forward
        if product is int8:
            F.linear, kernels.feed_forward = int8, feed_forward  # type: ignore[assignment]
        try:
            with torch.inference_mode():
                return graph(ids, mask)[0]
        finally:
            F.linear, kernels.feed_forward = plain, fused  # type: ignore[assignment]

    for engine in ("fbgemm", "onednn"):
        torch.backends.quantized.engine = engine
        packed.clear()
        apart = (run(plain) - run(int8)).abs().max().item()
        whole = seconds({"fp32": lambda: run(plain), "int8": lambda: run(int8)})
        print(
            f"{engine}: forward {whole['fp32'] * 1e3:.1f} ms fp32, {whole['int8'] * 1e3:.1f} ms int8, "
            f"{whole['fp32'] / whole['int8']:.2f} times; states differ by at most {apart:.3f}"
        )
        for weight in shapes.values():
            show(weight, arguments.rows * arguments.length)


if __name__ == "__main__":
    main()
