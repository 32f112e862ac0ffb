"""What a pretraining run will cost, before it is started."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from encoderlab.measure import flops
from encoderlab.model import count_parameters
from encoderlab.train.pretraining import Recipe

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


def matmul_rate(device: str = "cpu", size: int = 1024, seconds: float = 0.3) -> float:
    """Operations per second of single-precision matrix products of ``size``, measured for ``seconds``."""
    a = torch.randn(size, size, device=device)
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
