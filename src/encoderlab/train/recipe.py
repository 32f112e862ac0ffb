"""The recipe of a training run: everything that determines it, as frozen data that can be written as JSON.

:class:`Training` is what all runs share, :class:`Recipe` a pretraining run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field

from encoderlab.batches.loader import Format
from encoderlab.batches.pack import SegmentPairs
from encoderlab.config import Bounded, Count, OpenShare, Positive, PositiveShare
from encoderlab.errors import ConfigError, nearest
from encoderlab.models.base import ModelConfig
from encoderlab.objectives.kinds import ObjectiveSettings
from encoderlab.objectives.mlm import MLMSettings
from encoderlab.train.optim import AdamW, Optim
from encoderlab.train.schedule import Polynomial, Schedule, WarmupStableDecay

Precision = Literal["fp32", "bf16", "fp16"]
SEEDS = 2**63 - 1
MOST_ROWS = 1 << 24  # of a batch; the largest published ones have 1 << 17
MOST_AMOUNT = 1e30  # of any unit


@dataclass(frozen=True, kw_only=True)
class Budget(Bounded):
    """The length of training: ``amount`` in ``unit``; the learning rate decays to its end."""

    amount: Annotated[float, Field(gt=0, le=MOST_AMOUNT)] = 1_000_000
    unit: Literal["steps", "tokens", "flops", "hours"] = "steps"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.unit == "steps" and self.amount % 1:
            raise ConfigError(f"a budget of {self.amount:g} steps is not a whole number; give whole steps")


@dataclass(frozen=True, kw_only=True)
class Phase(Bounded):
    """A part of the budget with its own length and number of rows.

    Args:
        length: of a row, in tokens.
        rows: per step, over all processes.
        share: of the budget.
    """

    length: Count = 128
    rows: Annotated[int, Field(ge=1, le=MOST_ROWS)] = 256
    share: PositiveShare = 1.0


@dataclass(frozen=True, kw_only=True)
class Ramp(Bounded):
    """Batches start at ``rows`` and double at equal intervals over the first ``share`` of the budget."""

    rows: Count = 32
    share: PositiveShare = 0.1

    def rows_at(self, done: float, goal: int) -> int:
        """Rows of a batch after share ``done`` of the budget; ``goal`` is the final number."""
        doublings = max(1, math.ceil(math.log2(goal / self.rows)))
        return goal if done >= self.share else min(goal, self.rows << int(done / self.share * doublings))


@dataclass(frozen=True, kw_only=True)
class WeightAverage(Bounded):
    """An exponential moving average of the weights, ``a = d a + (1 - d) w`` after every step.

    It is validated instead of the weights, and is the run's result (Polyak and Juditsky, 1992; Izmailov et al., 2018).
    ``d = min(decay, (1 + t) / (10 + t))`` after t steps, so that the first weights are soon forgotten. Costs one pass
    over the weights per step and a second copy of them.
    """

    decay: OpenShare = 0.999

    def at(self, steps: int) -> float:
        """d after ``steps`` steps."""
        return min(self.decay, (1 + steps) / (10 + steps))


@dataclass(frozen=True, kw_only=True)
class PairSample(Bounded):
    """Minimal pairs that a validation scores.

    Args:
        data: files or folders of pairs.
        size: number of pairs, equally many per paradigm; the same pairs in every run.
    """

    data: Annotated[tuple[str, ...], Field(min_length=1)]
    size: Count = 670


@dataclass(frozen=True, kw_only=True)
class Evaluation(Bounded):
    """Validation during a run and at its end.

    Args:
        every: steps between validations.
        rows: number of rows to validate on.
        best: ``loss``, or an accuracy or score of the validation such as ``f1``. The weights with the lowest loss, or
            the highest other number, are kept in ``checkpoints/best``; None keeps none.
        patience: end the run after this many validations in a row without a new best; None never does.
        pairs: also score minimal pairs, as ``scores.minimal_pairs``: the accuracy of the model's first measure.
    """

    every: Count = 1000
    rows: Count = 1024
    best: str | None = None
    patience: Count | None = None
    pairs: PairSample | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.patience is not None and self.best is None:
            raise ConfigError("patience needs a number to improve; set evaluation.best, such as to loss")

    def number(self, line: Mapping[str, Any]) -> float:
        """The number of a line of validation metrics that ``best`` names.

        Raises:
            ConfigError: the line has no such number.
        """
        name = self.best or ""
        numbers = {"loss": line.get("loss")} | line.get("accuracy", {}) | line.get("scores", {})
        if numbers.get(name) is None:
            raise ConfigError(f"evaluation.best {name!r} is not a number of the validation{nearest(name, numbers)}")
        return float(numbers[name])

    def improves(self, value: float, on: float | None) -> bool:
        """Whether ``value`` is better than ``on``, the best number so far or None. NaN is better than None alone."""
        if on is None or not math.isfinite(value):
            return on is None
        if not math.isfinite(on):
            return True
        return value < on if self.best == "loss" else value > on


@dataclass(frozen=True, kw_only=True)
class Checkpoints(Bounded):
    """When to save the state of a run; it is always saved at the end.

    Args:
        minutes, steps: save this long after the last save; None disables that rule.
        keep: number of newest checkpoints to keep; with 2 a run survives a damaged one.
    """

    minutes: Annotated[float, Field(gt=0)] | None = 5.0
    steps: Count | None = None
    keep: Count = 2


@dataclass(frozen=True, kw_only=True)
class Execution(Bounded):
    """How a run is computed, without effect on the result; may change when the run is resumed.

    Args:
        device: ``auto`` takes a GPU if there is one.
        micro_rows: rows per forward pass and process; None takes all of a process's rows at once.
        compile: run the layers through ``torch.compile``.
        record: on one GPU, record the layers of full batches as CUDA graphs and replay them: faster for small models,
            and the activations of a batch stay allocated. Without effect with ``compile`` or ``micro_rows``.
        parallel: how processes share the work under torchrun: each has all weights (``ddp``) or a part (``fsdp``).
        tensorboard: also write the metrics for TensorBoard.
    """

    device: Literal["auto", "cpu", "cuda"] = "auto"
    micro_rows: Count | None = None
    compile: bool = False
    record: bool = True
    parallel: Literal["ddp", "fsdp"] = "ddp"
    tensorboard: bool = False


class Stage(NamedTuple):
    """The settings of a step that depend on how much of the budget is spent."""

    phase: int
    rows: int


@dataclass(frozen=True, kw_only=True)
class Training(Bounded):
    """How to train any objective: the fields that pretraining and fine-tuning share.

    Args:
        clip: largest global norm of the gradient; None for no clipping.
        average: validate, and return, an average of the weights instead of the last weights.
        precision: bf16 and fp16 compute under autocast with fp32 weights, fp16 with a dynamic loss scale.
        exchange: ``bf16`` halves the bytes of gradients that processes send each other, and rounds them; None sends
            fp32. A run of one process sends nothing.
        log_every: steps between two lines of training metrics.

    Raises:
        ConfigError: values out of range or that do not fit together.
    """

    budget: Budget = Budget()
    phases: tuple[Phase, ...] = (Phase(),)
    ramp: Ramp | None = None
    optim: Optim = AdamW()
    schedule: Schedule = Polynomial(warmup=0.01)
    clip: Positive | None = 1.0
    average: WeightAverage | None = None
    precision: Precision = "fp32"
    exchange: Literal["bf16"] | None = None
    seed: Annotated[int, Field(ge=-SEEDS, le=SEEDS - 1)] = 1  # a second network uses the next seed
    evaluation: Evaluation = Evaluation()
    checkpoints: Checkpoints = Checkpoints()
    execution: Execution = Execution()
    log_every: Count = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        total = sum(phase.share for phase in self.phases)
        if abs(total - 1) > 1e-6:
            raise ConfigError(f"the shares of the phases add up to {total:g}; make them add up to 1")
        warmup = self.schedule.warmup
        if warmup >= 1 and self.budget.unit != "steps":
            raise ConfigError(
                f"a warm-up of {warmup:g} steps does not fit a budget in {self.budget.unit}; "
                "give it as a share, such as schedule.warmup=0.01"
            )
        if warmup >= 1 and warmup > self.budget.amount:
            raise ConfigError(
                f"a warm-up of {warmup:g} steps does not fit a budget of {self.budget.amount:g}; "
                "give a share, such as schedule.warmup=0.01"
            )
        if isinstance(self.schedule, WarmupStableDecay):
            share = warmup if warmup < 1 else warmup / self.budget.amount
            decay = self.schedule.decay
            if share + decay > 1 + 1e-9:
                raise ConfigError(
                    f"a warm-up over {share:g} of the budget and a decay over its last {decay:g} overlap; "
                    "shorten schedule.warmup or schedule.decay"
                )
        smallest = min(phase.rows for phase in self.phases)
        if self.ramp is not None and self.ramp.rows > smallest:
            raise ConfigError(
                f"a ramp from {self.ramp.rows} rows does not fit batches of {smallest}; start between 1 and {smallest}"
            )

    def stage(self, spent: float) -> Stage:
        """Phase and rows per batch after ``spent`` of the budget."""
        done, ends = spent / self.budget.amount, accumulate(phase.share for phase in self.phases)
        phase = next((number for number, end in enumerate(ends) if done < end - 1e-9), len(self.phases) - 1)
        rows = self.phases[phase].rows
        return Stage(phase, rows if self.ramp is None else self.ramp.rows_at(done, rows))


@dataclass(frozen=True, kw_only=True)
class Recipe(Training):
    """Everything that determines a pretraining run, except the corpus.

    Args:
        generator: the second network of replaced token detection.
        format: how rows are made of text; each phase sets their length.
        duplicates: repeat the same rows and masks after this many epochs (static masking with that duplication
            factor); None draws new ones in every epoch.
        init_from: a model folder to continue from instead of starting with fresh weights.
        fresh_generator: continue only the discriminator of ``init_from``.
    """

    name: str = ""
    model: ModelConfig
    generator: ModelConfig | None = None
    objective: ObjectiveSettings = MLMSettings()
    format: Format = SegmentPairs()
    duplicates: Count | None = None
    init_from: str | None = None
    fresh_generator: bool = False

    def for_budget(self, budget: Budget) -> Recipe:
        """The recipe for another budget. A warm-up published in steps keeps its share of the training."""
        schedule, published = self.schedule, self.budget
        if schedule.warmup >= 1 and published.unit == "steps":
            schedule = replace(schedule, warmup=schedule.warmup / published.amount)
        return replace(self, budget=budget, schedule=schedule)

    def progress(self, number: int, cost: Callable[[Phase], float]) -> float:
        """The share of the run before row ``number``, if every row is full; for budgets in steps, tokens or FLOPs.

        ``cost``: FLOPs per token of a phase; asked if the budget is in FLOPs.
        """
        done = 0.0
        for phase in self.phases:
            amount = phase.share * self.budget.amount
            if self.budget.unit == "steps":
                rows = amount * phase.rows
            else:
                of_token = cost(phase) if self.budget.unit == "flops" else 1.0
                rows = amount / (of_token * phase.length)
            if number < rows:
                return done + phase.share * number / rows
            done, number = done + phase.share, number - math.ceil(rows)
        return 1.0

    def operations(self, length: int, teacher: ModelConfig | None = None) -> float:
        """Training FLOPs per token of full rows of ``length``, see
        :meth:`encoderlab.objectives.base.Settings.operations`.

        ``teacher``: the teacher of a distillation, whose forward pass counts.
        """
        return self.objective.operations(self.model, self.generator or teacher, length)
