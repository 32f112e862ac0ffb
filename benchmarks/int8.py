"""How much faster our network predicts with its matrices in 8 bits.

    python -m benchmarks.int8 [--layers 12] [--width 256] [--turns 15] [--shapes mixed]

Prints the processor time of one thread for a forward pass in fp32 and in int8, in turns in one process, for rows of 32
and of 128 tokens and for the batches of texts of mixed lengths, the ratio with its range over turns, and the size of
the matrices. Weights are random: the time does not depend on them. The fp32 side has packed weights, as where a model
predicts.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

import encoderlab
from encoderlab.inference import BATCH_TOKENS
from encoderlab.nn import kernels
from encoderlab.nn.int8 import fast, quantise
from encoderlab.nn.packed import pack

SHAPES = {"1 x 32": [(1, 32)], "8 x 32": [(8, 32)], "1 x 128": [(1, 128)],
          "8 x 128": [(8, 128)], "16 x 128": [(16, 128)]}  # fmt: skip


def mixed() -> list[tuple[int, int]]:
    """The batches (rows, length) of 64 texts of 8 to 512 tokens, most of them short, longest first."""
    lengths = np.exp(np.random.default_rng(0).normal(4, 0.8, 64)).clip(8, 512).astype(int)
    left, batches = sorted(lengths.tolist(), reverse=True), []
    while left:
        rows = min(len(left), max(1, BATCH_TOKENS // left[0]))
        batches.append((rows, left[0]))
        left = left[rows:]
    return batches


def in_turns(sides: dict[str, Callable[[], Any]], turns: int) -> dict[str, list[float]]:
    """Processor seconds of every side in every turn; the first two are left out."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(turns + 2):
        for name, side in sides.items():
            begin = time.process_time()
            side()
            if turn > 1:
                times[name].append(time.process_time() - begin)
    return times


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name", default="bert-base")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--shapes", nargs="+", choices=[*SHAPES, "mixed"], default=[*SHAPES, "mixed"])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    kernels.keep_memory()
    width = arguments.width
    sizes = {"layers": arguments.layers, "width": width, "heads": max(1, width // 64), "ff_width": 4 * width}
    model = encoderlab.build(arguments.name, **{f"encoder.{name}": size for name, size in sizes.items()}).eval()
    small = copy.deepcopy(model)
    quantise(small.encoder.blocks)
    pack(model.encoder.blocks)
    print(f"{arguments.name}, {arguments.layers} x {width}; instructions for 8 bits: {fast()}")
    for title in arguments.shapes:
        batches = mixed() if title == "mixed" else SHAPES[title]
        given: list[Tensor] = [torch.randint(10, 500, batch) for batch in batches]

        def run(model: Any, given: list[Tensor] = given) -> None:
            for ids in given:
                model.encoder(ids)

        sides: dict[str, Callable[[], Any]] = {
            name: partial(run, model) for name, model in {"fp32": model, "int8": small}.items()
        }
        times = in_turns(sides, arguments.turns)
        middle = {name: statistics.median(values) for name, values in times.items()}
        ratios = [a / b for a, b in zip(times["fp32"], times["int8"], strict=True)]
        print(
            f"{title}: fp32 {1e3 * middle['fp32']:.2f} ms, int8 {1e3 * middle['int8']:.2f} ms, ratio "
            f"{statistics.median(ratios):.2f} (from {min(ratios):.2f} to {max(ratios):.2f} over turns)",
            flush=True,
        )


if __name__ == "__main__":
    main()
