"""What a pretraining run will cost, before it is started."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from encoderlab.measure import flops
from encoderlab.model import count_parameters
from encoderlab.train.pretraining import Recipe
from encoderlab.train.recipe import Phase

SHARE = 0.5  # of the measured matrix-multiply rate that a run reaches on average; the rest is bandwidth


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """``tokens`` and ``flops`` of the whole budget are None for a budget in hours; ``memory`` is in bytes, ``rate`` in
    operations per second, ``seconds`` are those of this machine."""

    parameters: dict[str, int]
    flops_per_token: float
    tokens: float | None
    flops: float | None
    memory: int
    rate: float
    seconds: float | None


def estimate(recipe: Recipe, *, device: str = "cpu") -> Estimate:
    """Parameters, FLOPs, memory and time of ``recipe``; takes a second, as the machine's rate is measured.

    Rows are taken to be full. Memory is that of the largest phase with all of a batch's rows at once, in single
    precision.
    """
    networks = {"model": recipe.model} | ({} if recipe.generator is None else {"generator": recipe.generator})
    parameters = {name: count_parameters(config)["total"] for name, config in networks.items()}
    per_phase = [sum(flops.training(config, phase.length) for config in networks.values()) for phase in recipe.phases]
    tokens = _tokens(recipe)
    steps = [phase.share * phase.rows * phase.length for phase in recipe.phases]
    mean = sum(cost * size for cost, size in zip(per_phase, steps, strict=True)) / sum(steps)
    rows = recipe.execution.micro_rows
    memory = max(
        sum(
            flops.training_memory(config, parameters[name], rows or phase.rows, phase.length).total
            for name, config in networks.items()
        )
        for phase in recipe.phases
    )
    rate = matmul_rate(device)
    total = None if tokens is None else tokens * mean
    seconds = recipe.budget.amount * 3600 if total is None else total / (SHARE * rate)
    return Estimate(
        parameters=parameters,
        flops_per_token=mean,
        tokens=tokens,
        flops=total,
        memory=memory,
        rate=rate,
        seconds=seconds,
    )


def utilisation(recipe: Recipe) -> Callable[[Phase, float], float]:
    """The share of this machine's matrix-multiply rate, in the precision of ``recipe``, as a function of the phase and
    of one process's tokens per second; takes a second, as the rate is measured. Padding does not count as work.
    """
    configs = [recipe.model] if recipe.generator is None else [recipe.model, recipe.generator]
    cuda = recipe.execution.device != "cpu" and torch.cuda.is_available()
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[recipe.precision]
    rate = matmul_rate("cuda" if cuda else "cpu", 8192 if cuda else 1024, dtype=dtype)
    return lambda phase, speed: speed * sum(flops.training(config, phase.length) for config in configs) / rate


def matmul_rate(
    device: str = "cpu", size: int = 1024, seconds: float = 0.3, dtype: torch.dtype = torch.float32
) -> float:
    """Operations per second of matrix products of ``size``, the best of those measured for ``seconds``."""
    a = torch.randn(size, size, device=device, dtype=dtype)
    torch.mm(a, a)
    best, begin = 0.0, time.perf_counter()
    while time.perf_counter() - begin < seconds:
        start = time.perf_counter()
        torch.mm(a, a)
        if device != "cpu":
            torch.cuda.synchronize()
        best = max(best, 2 * size**3 / (time.perf_counter() - start))
    return best


def _tokens(recipe: Recipe) -> float | None:
    amount, unit = recipe.budget.amount, recipe.budget.unit
    if unit == "tokens":
        return amount
    if unit == "steps":
        return amount * sum(phase.share * phase.rows * phase.length for phase in recipe.phases)
    return None
