"""A model of training with many processes: the time of a step, and of a run.

Averaging S bytes over N processes in a ring takes ``2 (N - 1) / N * S / bandwidth + 2 (N - 1) * latency``. Gradients
are sent in buckets, one after another, each as soon as the backward pass has filled it. So a step takes until both the
backward pass and the last bucket are done, plus the update. ``encoderlab bench scaling`` measures the constants, and
checks the model at a slow link; docs/scaling.md names its limits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from encoderlab.errors import ConfigError
from encoderlab.model import count_parameters
from encoderlab.train.recipe import Phase, Recipe

FIRST_BUCKET, BUCKET = 1 << 20, 25 << 20  # bytes of the gradients that DDP sends together
FORWARD = 1 / 3  # of the time of forward and backward pass


@dataclass(frozen=True)
class Link:
    """Seconds before the first byte arrives, and bytes per second."""

    latency: float
    bandwidth: float

    def seconds(self, size: float, processes: int) -> float:
        """Averaging ``size`` bytes over ``processes`` in a ring."""
        hops = processes - 1
        return 2 * hops / processes * size / self.bandwidth + 2 * hops * self.latency


@dataclass(frozen=True)
class Step:
    """The times of a step without communication, in seconds.

    Args:
        buckets: of each bucket of gradients, when it is filled, counted from the start of the step, and its bytes.
        computed: when the backward pass ends.
        update: the time of the optimiser after that.
    """

    buckets: Sequence[tuple[float, int]]
    computed: float
    update: float

    @property
    def size(self) -> int:
        """Bytes of all gradients."""
        return sum(size for _, size in self.buckets)

    def seconds(self, link: Link, processes: int) -> float:
        """The whole step with ``processes`` on ``link``."""
        arrived = 0.0
        for filled, size in self.buckets:
            arrived = max(arrived, filled) + link.seconds(size, processes)
        return max(self.computed, arrived) + self.update


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The speed of one process: FLOP/s in forward and backward passes, parameters updated per second, and its link."""

    flops: float
    updates: float
    link: Link


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """Seconds of the whole run, its process-hours, and the share of them that one process would need."""

    seconds: float
    process_hours: float
    efficiency: float


def forecast(recipe: Recipe, processes: int, machine: Machine) -> Forecast:
    """The cost of ``recipe`` with ``processes`` that divide its rows, by DDP.

    Raises:
        ConfigError: the budget is not in steps, or a batch has fewer rows than there are processes.
    """
    if recipe.budget.unit != "steps":
        raise ConfigError(f"a forecast needs a budget in steps, not in {recipe.budget.unit}")
    smallest = min(phase.rows for phase in recipe.phases)
    if smallest < processes:
        raise ConfigError(f"a batch of {smallest} rows is too small for {processes} processes; give fewer")
    seconds, alone = (
        sum(
            recipe.budget.amount * phase.share * _step(recipe, phase, count, machine).seconds(machine.link, count)
            for phase in recipe.phases
        )
        for count in (processes, 1)
    )
    hours = seconds * processes / 3600
    return Forecast(seconds=seconds, process_hours=hours, efficiency=alone / seconds / processes)


def _step(recipe: Recipe, phase: Phase, processes: int, machine: Machine) -> Step:
    """A step of the process with most rows; buckets are filled at even distances of the backward pass."""
    networks = [recipe.model] + ([] if recipe.generator is None else [recipe.generator])
    parameters = sum(count_parameters(network)["total"] for network in networks)
    rows = math.ceil(phase.rows / processes)
    computed = rows * phase.length * recipe.operations(phase.length) / machine.flops
    width = 2 if recipe.exchange == "bf16" else 4  # bytes of a gradient on the link; buckets are cut in fp32
    total, first, bucket = parameters * width, FIRST_BUCKET * width // 4, BUCKET * width // 4
    ends = [*range(first, total, bucket), total]
    sizes = [end - start for start, end in zip([0, *ends[:-1]], ends, strict=True)]
    filled = [computed * (FORWARD + (1 - FORWARD) * end / total) for end in ends]
    return Step(list(zip(filled, sizes, strict=True)), computed, parameters / machine.updates)
