"""What a pretraining run will cost, before it is started."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from encoderlab.interchange.load import load
from encoderlab.model import count_parameters
from encoderlab.models import flops
from encoderlab.objectives.distill import DistillSettings
from encoderlab.train.precision import widened
from encoderlab.train.pretraining import Recipe, compared_share, operations

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


def estimate(recipe: Recipe) -> Estimate:
    """Parameters, FLOPs, memory and time of ``recipe`` here; takes a second, as the machine's rate is measured.

    Rows are taken to be full. Memory is that of the largest phase with all of a batch's rows at once, in single
    precision with our kernels. A distillation's teacher counts where the recipe names its folder.
    """
    networks = {"model": recipe.model} | ({} if recipe.generator is None else {"generator": recipe.generator})
    parameters = {name: count_parameters(config)["total"] for name, config in networks.items()}
    teacher = None
    if isinstance(recipe.objective, DistillSettings) and recipe.objective.teacher:
        teacher = load(recipe.objective.teacher).config
        parameters["teacher"] = count_parameters(teacher)["total"]
    per_phase = [operations(recipe, phase.length, teacher) for phase in recipe.phases]
    budget = recipe.budget
    sizes = []  # tokens of each phase in a unit of the budget; of an hour up to a factor, the machine's rate
    for phase, cost in zip(recipe.phases, per_phase, strict=True):
        size = {"steps": phase.rows * phase.length, "tokens": 1, "flops": 1 / cost, "hours": 1 / cost}[budget.unit]
        sizes.append(phase.share * size)
    mean = sum(cost * size for cost, size in zip(per_phase, sizes, strict=True)) / sum(sizes)
    tokens = None if budget.unit == "hours" else budget.amount * sum(sizes)
    rows = recipe.execution.micro_rows
    remembered, compared = getattr(recipe.objective, "memory", 0), compared_share(recipe.objective)
    memory = max(
        sum(
            flops.training_memory(
                config,
                parameters[name],
                rows or phase.rows,
                phase.length,
                predicted=flops.usual_share(config),
                memory=remembered,
                compared=compared,
            ).total
            for name, config in networks.items()
        )
        for phase in recipe.phases
    )
    memory += 4 * parameters.get("teacher", 0)  # it has no gradients
    rate = peak(recipe)
    total = None if tokens is None else tokens * mean
    seconds = budget.amount * 3600 if total is None else total / (SHARE * rate)
    return Estimate(
        parameters=parameters,
        flops_per_token=mean,
        tokens=tokens,
        flops=total,
        memory=memory,
        rate=rate,
        seconds=seconds,
    )


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
