"""The cost of a pretraining run, estimated before it starts."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from encoderlab.interchange.load import load
from encoderlab.model import count_parameters
from encoderlab.models import flops
from encoderlab.models.base import ModelConfig
from encoderlab.objectives.distill import DistillSettings
from encoderlab.train.networks import full_operations
from encoderlab.train.precision import widened
from encoderlab.train.recipe import Phase, Recipe

SHARE = 0.5  # share of the measured matrix-product rate that a run reaches on average; the rest is memory bandwidth


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """The cost of a run: ``memory`` in bytes, and ``seconds`` on this machine, whose matrix products reach ``rate``
    operations per second. ``tokens`` and ``flops`` of the whole budget are None for a budget in hours.
    """

    parameters: dict[str, int]
    flops_per_token: float
    tokens: float | None
    flops: float | None
    memory: int
    rate: float
    seconds: float | None


def estimate(recipe: Recipe) -> Estimate:
    """Parameters, FLOPs, memory and time of ``recipe`` here; takes a second, as the machine's rate is measured.

    Rows count as full. Memory is that of the largest phase with all of a batch's rows at once, in single
    precision with our kernels. A distillation's teacher counts if the recipe names its folder.
    """
    networks = {"model": recipe.model} | ({} if recipe.generator is None else {"generator": recipe.generator})
    teacher = teacher_of(recipe)
    counted = networks | ({} if teacher is None else {"teacher": teacher})
    parameters = {name: count_parameters(config)["total"] for name, config in counted.items()}
    memory = max(
        sum(_memory(recipe, phase, config, parameters[name]) for name, config in networks.items())
        for phase in recipe.phases
    )
    memory += 4 * parameters.get("teacher", 0)  # which has no gradients
    mean, tokens = _work(recipe, teacher)
    flops_of_all = None if tokens is None else tokens * mean
    rate = peak(recipe)
    return Estimate(
        parameters=parameters,
        flops_per_token=mean,
        tokens=tokens,
        flops=flops_of_all,
        memory=memory,
        rate=rate,
        seconds=recipe.budget.amount * 3600 if flops_of_all is None else flops_of_all / (SHARE * rate),
    )


def teacher_of(recipe: Recipe) -> ModelConfig | None:
    """The configuration of a distillation's teacher; None without one. Reads the model."""
    objective = recipe.objective
    return load(objective.teacher).config if isinstance(objective, DistillSettings) and objective.teacher else None


def _work(recipe: Recipe, teacher: ModelConfig | None) -> tuple[float, float | None]:
    """FLOPs per token, the mean over the budget, and its tokens; None for a budget in hours."""
    budget, costs, sizes, begin = recipe.budget, [], [], 0.0
    for phase in recipe.phases:
        cost, rows = full_operations(recipe, phase, teacher), _mean_rows(recipe, phase, begin)
        # Tokens of a unit of the budget; of an hour up to a factor, the machine's rate.
        size = {"steps": rows * phase.length, "tokens": 1, "flops": 1 / cost, "hours": 1 / cost}[budget.unit]
        costs.append(cost)
        sizes.append(phase.share * size)
        begin += phase.share
    mean = sum(cost * size for cost, size in zip(costs, sizes, strict=True)) / sum(sizes)
    return mean, None if budget.unit == "hours" else budget.amount * sum(sizes)


def _mean_rows(recipe: Recipe, phase: Phase, begin: float, points: int = 1000) -> float:
    """Rows of a batch, the mean over the steps of a ``phase`` that starts after share ``begin`` of the budget."""
    if recipe.ramp is None:
        return phase.rows
    shares = (begin + phase.share * (i + 0.5) / points for i in range(points))
    return sum(recipe.ramp.rows_at(share, phase.rows) for share in shares) / points


def _memory(recipe: Recipe, phase: Phase, network: ModelConfig, parameters: int) -> int:
    """Bytes of training one of the networks in ``phase``."""
    return flops.training_memory(
        network,
        parameters,
        recipe.execution.micro_rows or phase.rows,
        phase.length,
        predicted=flops.usual_share(network),
        memory=getattr(recipe.objective, "memory", 0),
        compared=recipe.objective.compared(phase.length),
    ).total


def peak(recipe: Recipe) -> float:
    """Operations per second that matrix products reach on this machine in the precision of ``recipe``; takes a second,
    as it is measured.
    """
    cuda = recipe.execution.device != "cpu" and torch.cuda.is_available()
    device = torch.device("cuda" if cuda else "cpu")
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[recipe.precision]
    if widened(recipe.precision, device):
        dtype = torch.float32  # in which its products are computed
    return matmul_rate(device.type, 8192 if cuda else 1024, dtype=dtype)


def matmul_rate(device: str = "cpu", size: int = 1024, dtype: torch.dtype = torch.float32) -> float:
    """Operations per second of matrix products of ``size``, the best of those measured in 0.3 seconds."""
    a = torch.randn(size, size, device=device, dtype=dtype)
    torch.mm(a, a)
    best, begin = 0.0, time.perf_counter()
    while time.perf_counter() - begin < 0.3:
        start = time.perf_counter()
        torch.mm(a, a)
        if device != "cpu":
            torch.cuda.synchronize()
        best = max(best, 2 * size**3 / (time.perf_counter() - start))
    return best
