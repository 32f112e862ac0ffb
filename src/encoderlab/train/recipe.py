"""Everything that determines a training run, as frozen data that goes to JSON and back: what all runs share
(:class:`Training`), and a pretraining run (:class:`Recipe`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from encoderlab.batches.loader import Format
from encoderlab.batches.pack import SegmentPairs
from encoderlab.config import check_least
from encoderlab.errors import ConfigError, nearest
from encoderlab.models.base import ModelConfig
from encoderlab.objectives.kinds import ObjectiveSettings
from encoderlab.objectives.mlm import MLMSettings
from encoderlab.train.optim import AdamW, Optim
from encoderlab.train.schedule import Polynomial, Schedule

Precision = Literal["fp32", "bf16", "fp16"]
SEEDS = 2**63 - 1


@dataclass(frozen=True, kw_only=True)
class Budget:
    """How long to train; the learning rate decays to the end of it."""

    amount: float = 1_000_000
    unit: Literal["steps", "tokens", "flops", "hours"] = "steps"

    def __post_init__(self) -> None:
        if not 0 < self.amount < math.inf:
            raise ConfigError(
                f"a budget of {self.amount:g} {self.unit} is not positive and finite; give a number above 0"
            )
        if self.unit == "steps" and self.amount % 1:
            raise ConfigError(f"a budget of {self.amount:g} steps is no whole number; give one")


@dataclass(frozen=True, kw_only=True)
class Phase:
    """A stretch of the budget.

    Args:
        length: tokens of a row.
        rows: per step, over all processes.
        share: of the budget.
    """

    length: int = 128
    rows: int = 256
    share: float = 1.0

    def __post_init__(self) -> None:
        for name in ("length", "rows"):
            if getattr(self, name) < 1:
                raise ConfigError(f"phase {name} {getattr(self, name)} is not positive; give at least 1")
        if not 0 < self.share <= 1:
            raise ConfigError(
                f"phase share {self.share} is not above 0 and at most 1; the shares of all phases add up to 1"
            )


@dataclass(frozen=True, kw_only=True)
class Ramp:
    """Batches grow from ``rows`` by doubling, in equal stretches over the first ``share`` of the budget."""

    rows: int = 32
    share: float = 0.1

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ConfigError(f"ramp share {self.share} is not above 0 and at most 1; 0.1 of the budget is usual")

    def rows_at(self, done: float, goal: int) -> int:
        """Rows of a batch after share ``done`` of the budget, on the way to ``goal``."""
        doublings = max(1, math.ceil(math.log2(goal / self.rows)))
        return goal if done >= self.share else min(goal, self.rows << int(done / self.share * doublings))


@dataclass(frozen=True, kw_only=True)
class Average:
    """An exponential moving average of the weights, ``a = d a + (1 - d) w`` after every step. It is what is validated
    and what the run ends with (Polyak and Juditsky, 1992; Izmailov et al., 2018).

    ``d = min(decay, (1 + t) / (10 + t))`` after t steps, so that the first weights are soon forgotten. Costs one pass
    over the weights a step and a second copy of them.
    """

    decay: float = 0.999

    def __post_init__(self) -> None:
        if not 0 < self.decay < 1:
            raise ConfigError(f"average.decay is {self.decay}; give a number between 0 and 1, such as 0.999")

    def at(self, steps: int) -> float:
        """The share of the old average after ``steps`` steps."""
        return min(self.decay, (1 + steps) / (10 + steps))


@dataclass(frozen=True, kw_only=True)
class PairSample:
    """Minimal pairs that a validation scores.

    Args:
        data: files or folders of pairs.
        size: how many of them, as many of each paradigm; the same ones in every run.
    """

    data: tuple[str, ...]
    size: int = 670

    def __post_init__(self) -> None:
        if not self.data or self.size < 1:
            raise ConfigError(
                f"evaluation.pairs takes {self.size} pairs of {len(self.data)} files; give at least 1 of each, or null"
            )


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Validation while a run goes on, and at its end.

    Args:
        every: steps from one validation to the next.
        rows: how many are validated on.
        best: ``loss``, or an accuracy or score of the validation such as ``f1``. The weights where the loss was lowest,
            or that number highest, are kept in ``checkpoints/best``; None keeps none.
        patience: the run ends after so many validations in a row that were not the best; None never ends it.
        pairs: minimal pairs to score besides, as ``scores.minimal_pairs``: the accuracy of the model's first measure.
    """

    every: int = 1000
    rows: int = 1024
    best: str | None = None
    patience: int | None = None
    pairs: PairSample | None = None

    def __post_init__(self) -> None:
        if self.every < 1 or self.rows < 1:
            raise ConfigError(
                f"evaluation every {self.every} steps on {self.rows} rows is none; give at least 1 of each"
            )
        check_least(self, 1, "patience")
        if self.patience is not None and self.best is None:
            raise ConfigError("patience waits for a better validation; set evaluation.best to the number that counts")

    def number(self, line: Mapping[str, Any]) -> float:
        """What a line of validation metrics has under the name in ``best``.

        Raises:
            ConfigError: it has no such number.
        """
        wanted = self.best or ""
        numbers = {"loss": line.get("loss")} | line.get("accuracy", {}) | line.get("scores", {})
        if numbers.get(wanted) is None:
            raise ConfigError(f"evaluation.best {wanted!r} is no number of the validation{nearest(wanted, numbers)}")
        return float(numbers[wanted])

    def improves(self, value: float, on: float | None) -> bool:
        """Whether ``value`` is better than ``on``, the best number so far if there is one; NaN is not."""
        if on is None or not math.isfinite(on):
            return True
        return value < on if self.best == "loss" else value > on


@dataclass(frozen=True, kw_only=True)
class Checkpoints:
    """When the state of a run is saved; it is saved at the end too.

    Args:
        minutes, steps: save when so many have passed since the last time; None: not for that reason.
        keep: how many checkpoints stay, the newest.
    """

    minutes: float | None = 5.0
    steps: int | None = None
    keep: int = 2

    def __post_init__(self) -> None:
        if self.keep < 1:
            raise ConfigError(
                f"checkpoints.keep {self.keep} would delete every checkpoint; give at least 1 (2 survive one damaged)"
            )
        for name in ("minutes", "steps"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ConfigError(f"checkpoints.{name} {value} is not positive; give a distance, or null for none")


@dataclass(frozen=True, kw_only=True)
class Execution:
    """How a run is computed, without influence on what is computed; may change when it is resumed.

    Args:
        device: ``auto`` takes a GPU where there is one.
        micro_rows: rows per forward pass and process; None takes all of a process's rows at once.
        compile: run the layers through ``torch.compile``.
        parallel: how processes share the work under torchrun: each has all weights (``ddp``) or a part (``fsdp``).
        tensorboard: write the metrics for TensorBoard too.
    """

    device: Literal["auto", "cpu", "cuda"] = "auto"
    micro_rows: int | None = None
    compile: bool = False
    parallel: Literal["ddp", "fsdp"] = "ddp"
    tensorboard: bool = False

    def __post_init__(self) -> None:
        if self.micro_rows is not None and self.micro_rows < 1:
            raise ConfigError(
                f"execution.micro_rows {self.micro_rows} is not positive; give at least 1, or null for all rows at once"
            )


class Stage(NamedTuple):
    """What a step needs to know of its place in the budget."""

    phase: int
    rows: int


@dataclass(frozen=True, kw_only=True)
class Training:
    """How to train any objective: the part that pretraining and fine-tuning share.

    Args:
        clip: largest global norm of the gradient; None for no clipping.
        average: validate, and end with, an average of the weights instead of the last ones.
        precision: bf16 and fp16 compute under autocast with fp32 weights, fp16 with a dynamic loss scale.
        log_every: steps between two lines of training metrics.
    """

    budget: Budget = Budget()
    phases: tuple[Phase, ...] = (Phase(),)
    ramp: Ramp | None = None
    optim: Optim = AdamW()
    schedule: Schedule = Polynomial(warmup=0.01)
    clip: float | None = 1.0
    average: Average | None = None
    precision: Precision = "fp32"
    seed: int = 1
    evaluation: Evaluation = Evaluation()
    checkpoints: Checkpoints = Checkpoints()
    execution: Execution = Execution()
    log_every: int = 10

    def __post_init__(self) -> None:
        total = sum(phase.share for phase in self.phases)
        if abs(total - 1) > 1e-6:
            raise ConfigError(f"the shares of the phases add up to {total:g}; make them add up to 1")
        warmup = self.schedule.warmup
        if warmup >= 1 and self.budget.unit != "steps":
            raise ConfigError(
                f"a warm-up of {warmup:g} steps does not fit a budget in {self.budget.unit}; "
                "give it as a share, such as schedule.warmup=0.01"
            )
        if not warmup >= 0 or warmup >= 1 and warmup > self.budget.amount:
            raise ConfigError(
                f"a warm-up of {warmup:g} steps does not fit a budget of {self.budget.amount:g}; "
                "give a share, such as schedule.warmup=0.01"
            )
        if self.clip is not None and not self.clip > 0:
            raise ConfigError(f"clip {self.clip} is not positive; give a norm such as 1.0, or null for no clipping")
        if not -SEEDS <= self.seed < SEEDS:  # the seed after it is that of a second network
            raise ConfigError(f"seed {self.seed} does not fit 64 bits; choose one below {SEEDS}")
        if self.log_every < 1:
            raise ConfigError(f"log_every {self.log_every} counts steps; give at least 1")
        smallest = min(phase.rows for phase in self.phases)
        if self.ramp is not None and not 1 <= self.ramp.rows <= smallest:
            raise ConfigError(
                f"a ramp from {self.ramp.rows} rows does not fit batches of {smallest}; start between 1 and {smallest}"
            )

    def stage(self, spent: float) -> Stage:
        """Phase and rows per batch after ``spent`` of the budget."""
        done, end, phase = spent / self.budget.amount, 0.0, len(self.phases) - 1
        for i, candidate in enumerate(self.phases):
            end += candidate.share
            if done < end - 1e-9:
                phase = i
                break
        rows = self.phases[phase].rows
        return Stage(phase, rows if self.ramp is None else self.ramp.rows_at(done, rows))


@dataclass(frozen=True, kw_only=True)
class Recipe(Training):
    """Everything that determines a pretraining run, but for the corpus.

    Args:
        generator: the second network of replaced token detection.
        rows: how rows are made of text; each phase sets their length.
        duplicates: after so many epochs the same rows and masks come again (static masking with that duplication
            factor); None draws every epoch afresh.
        init_from: a model folder to continue from instead of starting fresh.
        fresh_generator: of ``init_from``, continue the discriminator alone.
    """

    name: str = ""
    model: ModelConfig
    generator: ModelConfig | None = None
    objective: ObjectiveSettings = MLMSettings()
    rows: Format = SegmentPairs()
    duplicates: int | None = None
    init_from: str | None = None
    fresh_generator: bool = False

    def for_budget(self, budget: Budget) -> Recipe:
        """The recipe for another budget. A warm-up published in steps keeps its share of the training."""
        schedule, published = self.schedule, self.budget
        if schedule.warmup >= 1 and published.unit == "steps":
            schedule = replace(schedule, warmup=schedule.warmup / published.amount)
        return replace(self, budget=budget, schedule=schedule)

    def operations(self, length: int, teacher: ModelConfig | None = None) -> float:
        """Floating-point operations of training per token of full rows of ``length``, with the forward pass of a
        distillation's ``teacher`` if it is given (:meth:`encoderlab.objectives.base.Settings.operations`).
        """
        return self.objective.operations(self.model, self.generator or teacher, length)
