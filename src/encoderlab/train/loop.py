"""The one training loop: pretraining and fine-tuning, one process or many, stopped and resumed to the bit.

A step takes the next batch, adds the counts of its losses over all processes, runs it in micro-batches, clips,
updates. Nothing in it waits for the accelerator except at the lines of metrics. What a resumed run needs beyond
weights and optimiser state is a few integers of the batch source and the sums of the current line of metrics; all
randomness belongs to (seed, step, row).
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from encoderlab import config
from encoderlab.batches.batch import Batch
from encoderlab.corpus.tokenizer import Tokenizer
from encoderlab.errors import ConfigError, DataError, Diverged, Stopped, nearest
from encoderlab.objectives.base import Objective
from encoderlab.train import checkpoint, doctor
from encoderlab.train.checkpoint import Snapshot
from encoderlab.train.distributed import World, assign, join, named_tensors
from encoderlab.train.engine import Engine
from encoderlab.train.folder import RunFolder
from encoderlab.train.precision import caution
from encoderlab.train.progress import Board, Display, facts
from encoderlab.train.recipe import Budget, Phase, Training
from encoderlab.train.tally import Tally, measure, summary

log = logging.getLogger("encoderlab")

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Source(Protocol):
    """An endless supply of this process's parts of global batches."""

    def __next__(self) -> Batch: ...

    def state(self) -> dict[str, int]:
        """What a new source needs to go on after the last batch given out."""

    def close(self) -> None: ...


OpenSource = Callable[[Phase, int, "dict[str, int] | None"], Source]
"""(phase, rows of a global batch, state of the source before, perhaps of another phase) -> source."""


@dataclass(frozen=True, kw_only=True)
class Data:
    """What a run trains and validates on.

    Args:
        source: opens the training batches.
        validation: gives the same whole batches each time it is called, on every process.
        score: further validation numbers of a task; called with the objective in evaluation mode.
        hashes: identify the data in the run folder.
        bytes_per_token: turns the losses in ``Objective.per_token`` into bits per byte.
        operations: floating-point operations of training per token, which a budget in FLOPs needs.
        tokenizer: kept in the run folder.
    """

    source: OpenSource
    validation: Callable[[Phase], Iterable[Batch]] | None = None
    score: Callable[[], Mapping[str, float]] | None = None
    hashes: Mapping[str, str] = field(default_factory=dict)
    bytes_per_token: float | None = None
    operations: Callable[[Phase], float] | None = None
    tokenizer: Tokenizer | None = None


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A finished run: ``metrics`` is its last validation line, ``checkpoint`` and ``best`` are checkpoint folders."""

    step: int
    tokens: int
    seconds: float
    metrics: Mapping[str, Any]
    checkpoint: Path
    best: Path | None


def train(
    objective: Objective,
    recipe: Training,
    data: Data,
    out: Path,
    *,
    session: Budget | None = None,
    peak: float | None = None,
) -> Outcome:
    """Train ``objective`` in place until the recipe's budget is spent, in the run folder ``out``, resuming what lies
    there.

    Args:
        session: limits this call rather than the run: when it is spent, a checkpoint is written and Stopped raised.
        peak: operations per second of one device; with ``data.operations``, the run's share of it is shown.

    Raises:
        Stopped: by SIGINT, SIGTERM or the end of ``session``, after a checkpoint; its code is 130, 143 or 75.
        Diverged, OutOfMemory, ConfigError, DataError: see the messages; earlier checkpoints are intact.
    """
    world = join(recipe.execution.device)
    smallest = min([phase.rows for phase in recipe.phases] + ([recipe.ramp.rows] if recipe.ramp else []))
    if smallest < world.size:
        raise ConfigError(
            f"a batch of {smallest} rows is too small for {world.size} processes; give at least one row to each"
        )
    with contextlib.ExitStack() as stack:
        return _Run(objective, recipe, data, out, world, session, peak, stack).finish()


@dataclass
class Place:
    """How far a run has come. A checkpoint holds this, the state of the batch source and that of the engine.

    ``window_...`` are sums since the last line of metrics; ``best`` is the best validation so far.
    """

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    flops: float = 0.0
    phase: int = -1
    batch_rows: int = 0
    window_tokens: int = 0
    window_positions: int = 0
    window_norm: float = 0.0
    best: float | None = None

    def spent(self, budget: Budget) -> float:
        """How much of ``budget`` is used up, in its unit."""
        spent = {"steps": self.step, "tokens": self.tokens, "flops": self.flops, "hours": self.seconds / 3600}
        return float(spent[budget.unit])


class _Run:
    """One call of :func:`train`; ``stack`` closes whatever it opens."""

    def __init__(
        self,
        objective: Objective,
        recipe: Training,
        data: Data,
        out: Path,
        world: World,
        session: Budget | None,
        peak: float | None,
        stack: contextlib.ExitStack,
    ) -> None:
        self.recipe, self.data, self.out, self.world = recipe, data, out, world
        self.session, self.peak = session, peak
        if recipe.budget.unit == "flops" and data.operations is None:
            raise ConfigError("a budget in flops needs to know what a token costs; give data.operations, or steps")
        self.folder: RunFolder | None = None
        world.agree(lambda: self._claim(stack))
        self.engine = Engine(objective, recipe, world)
        self.place = Place()
        self.source: Source | None = None
        self.source_state: dict[str, int] | None = None
        self.validation: dict[str, Any] = {}
        self.lr = 0.0
        self.watch = doctor.Watch(config.to_dict(recipe))
        self.display = Display(getattr(recipe, "name", "train"), visible=world.main)
        stack.callback(self.display.close)
        stack.callback(self._close_source)
        self._check_best()
        if warning := caution(recipe.precision, world.device):
            self._note(f"warning: {warning}")
        self.writer = checkpoint.Writer(self.checkpoints, keep=recipe.checkpoints.keep) if world.main else None
        self._resume()
        self.board = Board(out, self.place.step) if recipe.execution.tensorboard and world.main else None
        if self.board is not None:
            stack.callback(self.board.close)
        self.signals: list[int] = []
        stack.enter_context(_collect_signals(self.signals))
        self.started = self.saved = replace(self.place)
        self.clock = time.perf_counter()
        self.window_start, self.window_from, self.waiting = self.clock, self.place.tokens, 0.0

    @property
    def checkpoints(self) -> Path:
        return self.out / "checkpoints"

    def _claim(self, stack: contextlib.ExitStack) -> int:
        """Hold the run folder, which is the first process's to write."""
        self.folder = RunFolder(self.out, config.to_dict(self.recipe), self.data.hashes)
        stack.callback(self.folder.close)
        if self.data.tokenizer is not None:
            self.folder.keep(self.data.tokenizer)
        return 0

    # The course of a run

    def finish(self) -> Outcome:
        """Go on to the end of the budget, or to whatever stops the run before."""
        recipe, place = self.recipe, self.place
        while place.spent(recipe.budget) < recipe.budget.amount:
            stop = self._step()
            if place.step % recipe.log_every == 0:
                self._log()
            if place.step % recipe.evaluation.every == 0:
                self._validate()
            if place.spent(recipe.budget) >= recipe.budget.amount:
                break  # what is saved below is the end of the run
            if stop is not None:
                self._stop(stop)
            if self._checkpoint_due():
                self._save()
        logged, validated = self._log(), self._validate()
        if logged or validated or place.step > self.saved.step:
            self._save()
        self.world.agree(self._written)
        return Outcome(
            step=place.step,
            tokens=place.tokens,
            seconds=place.seconds,
            metrics=self.validation,
            checkpoint=self.checkpoints / checkpoint.name(place.step),
            best=self.checkpoints / "best" if recipe.evaluation.best else None,
        )

    def _written(self) -> float:
        """Wait until the checkpoints are on disk, from where every process may read them."""
        if self.writer is not None:
            self.writer.wait()
        return 0.0

    def _step(self) -> int | None:
        """One update. Returns why the run is to stop after it: a signal's number, 0 for the end of the session, or
        None.
        """
        recipe, place, session = self.recipe, self.place, self.session
        spent = place.spent(recipe.budget)
        batch = self._next_batch(spent)
        own = self.engine.objective.counts(batch)
        names = sorted(own)
        clock = self.started.seconds + time.perf_counter() - self.clock if self.world.main else 0.0
        asked = [self.signals.count(number) for number in STOP_SIGNALS]
        rows, tokens, positions, seconds, *rest = self.world.sum(
            [len(batch), batch.num_tokens, batch.ids.numel(), clock, *asked, *(own[name] for name in names)]
        )
        asked, counts = [int(times) for times in rest[:2]], dict(zip(names, rest[2:], strict=True))
        self.lr = recipe.optim.lr * recipe.schedule.share(spent, recipe.budget.amount)
        try:
            self.engine.step(batch, rows=int(rows), counts=counts, lr=self.lr, number=place.step)
        except Diverged as error:
            raise self._diverged(error) from None
        place.step += 1
        place.tokens += int(tokens)
        place.flops += tokens * self._operations()
        place.window_tokens += int(tokens)
        place.window_positions += int(positions)
        place.seconds = seconds
        if self.world.size == 1:  # no need to wait for the next message
            asked = [self.signals.count(number) for number in STOP_SIGNALS]
        for number, times in zip(STOP_SIGNALS, asked, strict=True):
            if times:
                return number
        return 0 if session and place.spent(session) - self.started.spent(session) >= session.amount else None

    def _next_batch(self, spent: float) -> Batch:
        """This process's part of the next batch. Where a phase or another number of rows begins, a new source takes
        over from the old one, and memory starts empty.
        """
        recipe, place = self.recipe, self.place
        stage = recipe.stage(spent)
        moved = (stage.phase, stage.rows) != (place.phase, place.batch_rows)
        if self.source is None or moved:
            state = self.source_state if self.source is None else self.source.state()
            self._close_source()
            self.source = self.data.source(recipe.phases[stage.phase], stage.rows, state)
        if moved:
            self.engine.memory = None
            place.phase, place.batch_rows = stage
        begin = time.perf_counter()
        try:
            batch = next(self.source)
        except StopIteration:
            raise DataError(
                f"the data ended at step {place.step}, before the budget was spent; repeat it or shorten the run"
            ) from None
        self.waiting += time.perf_counter() - begin
        return batch

    def _close_source(self) -> None:
        if self.source is not None:
            self.source.close()
        self.source = None

    def _stop(self, number: int) -> None:
        self._save()
        if self.writer is not None:
            self.writer.wait()
        why = signal.Signals(number).name if number else "the end of the session"
        step = self.place.step
        log.info("stopped by %s at step %d", why, step)
        raise Stopped(f"stopped by {why} at step {step}; run the same command again to resume", signal=number or None)

    def _diverged(self, error: Diverged) -> Diverged:
        self._write({"split": "diverged", "step": self.place.step, "tokens": self.place.tokens, "lr": self.lr})
        if self.writer is not None:
            self.writer.wait()
        kept = checkpoint.newest(self.checkpoints)[0]
        return Diverged(
            f"step {self.place.step}: {error} (learning rate {self.lr:.2g}); "
            "lower optim.lr, lengthen schedule.warmup, or set precision=fp32; "
            + (f"the last checkpoint before it is {kept}" if kept else "no checkpoint had been written yet")
        )

    def _operations(self) -> float:
        """Per token of this phase; 0 where it is not known. Padding does not count as work."""
        return self.data.operations(self.recipe.phases[self.place.phase]) if self.data.operations else 0.0

    # What is written while it goes on

    def _log(self) -> bool:
        """A line of training metrics over the steps since the last one; False if there were none."""
        place, engine = self.place, self.engine
        totals = engine.tally.totals(self.world)
        if not place.window_positions:
            return False
        try:
            engine.check()
        except Diverged as error:
            raise self._diverged(error) from None
        now = time.perf_counter()
        took = max(now - self.window_start, 1e-9)
        speed = (place.tokens - self.window_from) / took
        phase = self.recipe.phases[place.phase]
        line = {
            "split": "train",
            "step": place.step,
            "tokens": place.tokens,
            "flops": place.flops,
            **summary(totals, self._bytes_per_token()),
            "lr": self.lr,
            "grad_norm": engine.norm.item(),
            "grad_norm_max": max(engine.largest_norm.item(), place.window_norm),
            "update_ratio": engine.optimizer.update_ratio(self.lr).item(),
            "padding": 1 - place.window_tokens / place.window_positions,
            "rows": place.batch_rows,
            "length": phase.length,
            **({"loss_scale": engine.scale} if self.recipe.precision == "fp16" else {}),
            "seconds": place.seconds,
            "tokens_per_second": speed,
            "waiting": self.waiting / took,
            **({"peak_share": speed * self._operations() / self.world.size / self.peak} if self.peak else {}),
        }
        self._write(line)
        budget = self.recipe.budget
        done = min(place.spent(budget) / budget.amount, 1.0)
        gained = done - self.started.spent(budget) / budget.amount
        left = (place.seconds - self.started.seconds) / gained * (1 - done) if gained else math.nan
        self.display.update(line, done=done, left=left)
        engine.tally = Tally(self.world.device)
        engine.largest_norm = engine.largest_norm.new_zeros(())
        place.window_tokens, place.window_positions, place.window_norm = 0, 0, 0.0
        self.window_start, self.window_from, self.waiting = now, place.tokens, 0.0
        return True

    def _validate(self) -> bool:
        """A line of validation metrics, and the best weights where the recipe asks for them; False if it is there
        already.
        """
        data, place, engine = self.data, self.place, self.engine
        if data.validation is None and data.score is None or self.validation.get("step") == place.step:
            return False
        begin = time.perf_counter()
        line: dict[str, Any] = {"split": "valid", "step": place.step, "tokens": place.tokens}
        engine.objective.eval()
        if data.validation is not None:
            batches = data.validation(self.recipe.phases[place.phase])
            totals = measure(engine.objective, batches, self.world, self.recipe.precision)
            line |= summary(totals, self._bytes_per_token())
        if data.score is not None:
            line["scores"] = dict(data.score())
        engine.objective.train()
        self.validation = line
        self._write(line | {"seconds": place.seconds})
        self._note(f"validation  {facts(line)}")
        self._keep_best(line)
        self.window_start += time.perf_counter() - begin  # does not count as training time
        return True

    def _check_best(self) -> None:
        """Refuse a best number that no validation gives, by its first batch; what a task's scores are is known later.

        Raises:
            ConfigError: with the numbers that there are.
        """
        wanted, data, engine = self.recipe.evaluation.best, self.data, self.engine
        if wanted is None or data.score is not None:
            return
        if data.validation is None:
            raise ConfigError(
                f"evaluation.best {wanted!r} needs a validation, and this run has none; "
                "set it to null, or build the corpus with a larger validation share"
            )
        engine.objective.eval()
        first = itertools.islice(data.validation(self.recipe.phases[0]), 1)
        self._best_of(summary(measure(engine.objective, first, self.world, self.recipe.precision), {}))
        engine.objective.train()

    def _best_of(self, line: Mapping[str, Any]) -> float:
        """The number of a line of validation that the recipe calls best."""
        wanted = self.recipe.evaluation.best or ""
        numbers = {"loss": line.get("loss")} | line.get("accuracy", {}) | line.get("scores", {})
        value = numbers.get(wanted)
        if value is None:
            raise ConfigError(f"evaluation.best {wanted!r} is no number of the validation{nearest(wanted, numbers)}")
        return float(value)

    def _keep_best(self, line: Mapping[str, Any]) -> None:
        wanted, best = self.recipe.evaluation.best, self.place.best
        if wanted is None:
            return
        value = self._best_of(line)
        if best is not None and math.isfinite(best):
            better = value < best if wanted == "loss" else value > best
            if not better:  # nor is NaN
                return
        self.place.best = value
        weights, state = self.engine.weights(), {"step": self.place.step, wanted: value}
        if self.writer is not None:
            recipe = config.to_dict(self.recipe)
            self.writer.save("best", Snapshot(weights=weights, carried={}, state=state, recipe=recipe))

    def _write(self, line: Mapping[str, Any]) -> None:
        if self.folder is not None:
            self.folder.write_metrics(line)
        if self.board is not None:
            self.board.write(line)
        for finding in self.watch.see(line):
            self._note(f"doctor: {finding}")

    def _note(self, text: str) -> None:
        if self.world.main:
            log.info(text)
            self.display.say(text)

    def _bytes_per_token(self) -> dict[str, float]:
        size = self.data.bytes_per_token
        return {} if size is None else dict.fromkeys(self.engine.objective.per_token, size)

    # Saving and resuming

    def _checkpoint_due(self) -> bool:
        settings, place, saved = self.recipe.checkpoints, self.place, self.saved
        by_steps = settings.steps is not None and place.step - saved.step >= settings.steps
        return by_steps or settings.minutes is not None and place.seconds - saved.seconds >= settings.minutes * 60

    def _save(self) -> None:
        """Copy everything to CPU memory and leave the writing to a thread."""
        begin, engine = time.perf_counter(), self.engine
        try:
            engine.check()
        except Diverged as error:
            raise self._diverged(error) from None
        totals, weights, carried = engine.tally.totals(self.world), engine.weights(), engine.carried()
        if self.writer is not None and self.folder is not None:
            norm = max(engine.largest_norm.item(), self.place.window_norm)
            state = {
                "place": asdict(replace(self.place, window_norm=norm)),
                "source": self.source_state if self.source is None else self.source.state(),
                "engine": engine.counters(),
                "window": totals,
                "validation": self.validation,
                "metrics_bytes": self.folder.metrics_size(),
                "processes": self.world.size,
            }
            recipe = config.to_dict(self.recipe)
            snapshot = Snapshot(weights=weights, carried=carried, state=state, recipe=recipe)
            self.writer.save(checkpoint.name(self.place.step), snapshot)
        self.saved = replace(self.place)
        self.window_start += time.perf_counter() - begin

    def _resume(self) -> None:
        """Go on from the newest whole checkpoint, if there is one."""
        step = int(self.world.agree(self._find))
        size = 0
        if step >= 0:
            found = self.checkpoints / checkpoint.name(step)
            state = checkpoint.read_json(found / checkpoint.STATE)
            load_weights(self.engine.objective, found)
            self.engine.restore(checkpoint.read_tensors(found / checkpoint.CARRIED), state["engine"])
            self.engine.tally.restore(state["window"], self.world)
            self.place = Place(**state["place"])
            self.source_state, self.validation, size = state["source"], state["validation"], state["metrics_bytes"]
            self._note(f"resuming from {found}")
        if self.folder is not None:
            self.folder.open_metrics(size)

    def _find(self) -> int:
        """The step of the newest whole checkpoint, -1 if none was ever written. Damaged ones are put aside."""
        found, damaged = checkpoint.newest(self.checkpoints)
        if damaged and found is None:
            raise DataError(f"{damaged[0][1]}; no older checkpoint is whole: delete {self.checkpoints} to begin again")
        for folder, why in damaged:
            assert found is not None
            log.warning("%s", why)
            self.display.say(f"warning: {why}; going on from {found.name}")
            checkpoint.put_aside(folder)
        return -1 if found is None else int(found.name.removeprefix("step-"))


def load_weights(objective: Objective, folder: Path) -> None:
    """Put the weights of the checkpoint ``folder`` into ``objective``, sharded or not.

    Raises:
        DataError: the checkpoint belongs to another model.
    """
    stored = checkpoint.read_tensors(folder / checkpoint.WEIGHTS)
    own = named_tensors(objective)
    if missing := sorted(own.keys() ^ stored.keys()):
        raise DataError(f"{folder}: its tensors are not those of this model ({missing[0]} is in one of them only)")
    for name, tensor in own.items():
        if tensor.shape != stored[name].shape:
            raise DataError(
                f"{folder}: {name} is {tuple(stored[name].shape)} there and {tuple(tensor.shape)} in this model"
            )
        assign(tensor, stored[name])


@contextlib.contextmanager
def _collect_signals(received: list[int]) -> Iterator[None]:
    """Append SIGINT and SIGTERM to ``received`` instead of dying; a second one of the same kind acts as usual."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {int(number): signal.getsignal(number) for number in STOP_SIGNALS}

    def note(number: int, frame: object) -> None:
        received.append(number)
        signal.signal(number, before[number])

    for number in before:
        signal.signal(number, note)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
