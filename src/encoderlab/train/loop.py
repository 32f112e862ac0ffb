"""The one training loop, for pretraining and fine-tuning, one process or many; stops and resumes bit for bit.

A step takes the next batch, adds the counts of its losses over all processes, runs it in micro-batches, clips, updates.
It waits for the accelerator only to write metrics. Besides weights and optimiser state, a resumed run needs a few
integers of the batch source and the sums of the current line of metrics; all randomness belongs to (seed, step, row).
"""

from __future__ import annotations

import contextlib
import logging
import math
import signal
import textwrap
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from encoderlab import config
from encoderlab.batches.batch import Batch
from encoderlab.errors import ConfigError, DataError, Diverged, OutOfMemory, Stopped, check_known, is_out_of_memory
from encoderlab.files import read_json
from encoderlab.objectives.base import Objective
from encoderlab.train import checkpoint
from encoderlab.train.checkpoint import Snapshot
from encoderlab.train.data import Data, Feed
from encoderlab.train.distributed import company, join
from encoderlab.train.doctor import to_stay_finite
from encoderlab.train.engine import Engine
from encoderlab.train.folder import METRICS, RunFolder
from encoderlab.train.journal import SHOWN, Journal
from encoderlab.train.precision import caution
from encoderlab.train.progress import facts
from encoderlab.train.recipe import Budget, Training
from encoderlab.train.signals import ENDING, STOP_SIGNALS, Interrupted, collected_signals
from encoderlab.train.stored import StoredTensors
from encoderlab.train.tally import Tally, measure, summary

log = logging.getLogger(__name__)
PLAIN = ("place", "source", "engine", "window", "validation", "metrics_bytes", "metrics_sha256", "processes")
"""The plain data of a checkpoint."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A finished run: ``metrics`` is its last validation line, ``checkpoint`` and ``best`` are checkpoint folders;
    ``flops`` are 0 if the cost of a token is not known.
    """

    step: int
    tokens: int
    seconds: float
    flops: float
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
    title: str | None = "",
) -> Outcome:
    """Train ``objective`` in place until the recipe's budget is spent; resume the run in ``out`` if there is one.

    Args:
        objective: networks and losses.
        recipe: how to train.
        data: training and validation batches.
        out: the run folder.
        session: limits this call, not the run: when it is spent, a checkpoint is written and Stopped raised.
        peak: FLOP/s of one device; with ``data.operations``, the achieved share of it is shown.
        title: the name shown while it trains; default: the recipe's. None shows nothing.

    Raises:
        Stopped: after a checkpoint; its code is 130 by SIGINT, 143 by SIGTERM, and 75 by SIGUSR1 or the end of
            ``session``.
        Diverged, OutOfMemory, ConfigError, DataError: see the messages; earlier checkpoints are intact.
    """
    with company(), contextlib.ExitStack() as stack:
        return _Run(objective, recipe, data, out, session, peak, title, stack).finish()


@dataclass
class Place:
    """The progress of a run. A checkpoint has this, the state of the batch source and that of the engine.

    ``window_...`` are sums since the last line of metrics; ``best`` is the best validation so far, ``stale`` the number
    of validations since then.
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
    stale: int = 0

    def spent(self, budget: Budget) -> float:
        """How much of ``budget`` is spent, in its unit."""
        spent = {"steps": self.step, "tokens": self.tokens, "flops": self.flops, "hours": self.seconds / 3600}
        return float(spent[budget.unit])


class _Run:
    """One call of :func:`train`; ``stack`` closes whatever it opens.

    Only the first process has a run folder and a writer of checkpoints. ``validation`` is the last line of validation
    metrics. ``started`` is the place at which this session began, ``saved`` that of its last checkpoint. The current
    line of training metrics began at time ``window_start`` (shifted by time that was not training), when
    ``window_from`` tokens had been read.
    """

    def __init__(
        self,
        objective: Objective,
        recipe: Training,
        data: Data,
        out: Path,
        session: Budget | None,
        peak: float | None,
        title: str | None,
        stack: contextlib.ExitStack,
    ) -> None:
        self.recipe, self.data, self.out, self.session, self.peak = recipe, data, out, session, peak
        self.checkpoints = out / "checkpoints"
        self.world = join(recipe.execution.device)
        self._check()
        self.engine = Engine(objective, recipe, self.world)
        self._check_best()
        self.folder: RunFolder | None = None
        self.world.agree(lambda: self._claim(stack))  # after the checks, so that a refused run leaves no folder
        self.place = Place()
        self.feed = Feed(data.source, resumed=None)
        self.validation: dict[str, Any] = {}
        self.lr = 0.0
        self.journal = Journal(recipe, self.folder, title)
        stack.callback(self.journal.close)
        stack.callback(lambda: self.feed.close())  # the feed of that time: resuming opens another
        if warning := caution(recipe.precision, self.world.device):
            self.journal.warn(warning)
        sharers = self.world if self.engine.sharded else None
        self.writer = None
        if self.world.main or sharers:
            self.writer = checkpoint.Writer(self.checkpoints, keep=recipe.checkpoints.keep, world=sharers)
            stack.callback(self.writer.join)  # before another process may write the folder
        self._resume()
        self.signals = stack.enter_context(collected_signals())
        self.started = self.saved = replace(self.place)
        self.clock = time.perf_counter()
        self.window_start, self.window_from = self.clock, self.place.tokens

    def _check(self) -> None:
        """Refuse settings that cannot work, before anything is opened.

        Raises:
            ConfigError: the settings cannot work.
        """
        recipe, processes = self.recipe, self.world.size
        smallest = min([phase.rows for phase in recipe.phases] + ([recipe.ramp.rows] if recipe.ramp else []))
        if smallest < processes:
            raise ConfigError(
                f"a batch of {smallest} rows is too small for {processes} processes; give at least one row to each"
            )
        settings = config.flatten(config.to_dict(recipe)) | config.flatten(dict(self.data.hashes), "data ")
        self.world.same(settings, "give every process the same command and the same data")
        if recipe.budget.unit == "flops" and self.data.operations is None:
            raise ConfigError("a budget in flops needs the cost of a token; give data.operations, or a budget in steps")

    def _claim(self, stack: contextlib.ExitStack) -> None:
        """Lock the run folder; only the first process does, because it alone writes."""
        self.folder = RunFolder(self.out, self.recipe, self.data.hashes)
        stack.callback(self.folder.close)
        if self.data.tokenizer is not None:
            self.folder.keep(self.data.tokenizer)

    # Run

    def finish(self) -> Outcome:
        """Train until the budget is spent, or until something stops the run."""
        recipe, place = self.recipe, self.place
        if place.step % recipe.evaluation.every == 0:
            self._validate()  # the start, or what a signal interrupted
        while not self._is_done():
            stop = self._step()
            if place.step % recipe.log_every == 0:
                self._log()
            if place.step % recipe.evaluation.every == 0:
                self._validate()
            if self._is_done():
                break  # the run ends with what is saved below
            if stop is not None:
                self._stop(stop)
            if self._checkpoint_due():
                self._save()
        logged, validated = self._log(), self._validate()
        if logged or validated or place.step > self.saved.step:
            self._save()
        self._written_everywhere()
        for number, times in zip(STOP_SIGNALS, self.world.sum(self._asked()), strict=True):
            if times:  # while the end was saved: what follows this run, such as other seeds, must not begin
                self._raise_stopped(number)
        self.engine.take_average()
        return Outcome(
            step=place.step,
            tokens=place.tokens,
            seconds=place.seconds,
            flops=place.flops,
            metrics=self.validation,
            checkpoint=self.checkpoints / checkpoint.name(place.step),
            best=self.checkpoints / "best" if recipe.evaluation.best else None,
        )

    def _is_done(self) -> bool:
        """Whether the budget is spent, or the recipe's patience is exhausted."""
        patience = self.recipe.evaluation.patience
        spent = self.place.spent(self.recipe.budget) >= self.recipe.budget.amount
        return spent or patience is not None and self.place.stale >= patience

    def _step(self) -> int | None:
        """One update. Returns the reason to stop after it: a signal's number, 0 for the end of the session, or None."""
        recipe, place, session = self.recipe, self.place, self.session
        spent = place.spent(recipe.budget)
        batch = self._next_batch(spent)
        own = sorted(self.engine.objective.counts(batch).items())
        clock = self.started.seconds + time.perf_counter() - self.clock if self.world.main else 0.0
        sizes = [len(batch), batch.num_tokens, batch.ids.numel(), clock]
        rows, tokens, positions, seconds, *rest = self.world.sum([*sizes, *self._asked(), *(n for _, n in own)])
        asked, totals = rest[: len(STOP_SIGNALS)], rest[len(STOP_SIGNALS) :]
        counts = {name: total for (name, _), total in zip(own, totals, strict=True)}
        self.lr = recipe.optim.lr * recipe.schedule.share(spent, recipe.budget.amount)
        with self._explained():
            self.engine.step(batch, rows=int(rows), counts=counts, lr=self.lr, number=place.step)
        place.step += 1
        place.tokens += int(tokens)
        if self.data.operations:
            place.flops += tokens * self._operations() + self.engine.optimizer.operations
        place.window_tokens += int(tokens)
        place.window_positions += int(positions)
        place.seconds = seconds
        if self.world.size == 1:  # no need to wait for the next message
            asked = self._asked()
        for number, times in zip(STOP_SIGNALS, asked, strict=True):
            if times:
                return number
        return 0 if session and place.spent(session) - self.started.spent(session) >= session.amount else None

    def _asked(self) -> list[float]:
        """How often this process has received each of the :data:`STOP_SIGNALS`."""
        return [self.signals.count(number) for number in STOP_SIGNALS]

    def _next_batch(self, spent: float) -> Batch:
        """This process's part of the next batch; memory is cleared when a phase or another number of rows begins."""
        recipe, place = self.recipe, self.place
        stage = recipe.stage(spent)
        moved = (stage.phase, stage.rows) != (place.phase, place.batch_rows)
        if moved:
            self.engine.memory = None
            place.phase, place.batch_rows = stage
        try:
            return self.feed.next(recipe.phases[stage.phase], stage.rows, moved=moved)
        except StopIteration:
            raise DataError(
                f"the data ended at step {place.step}, before the budget was spent; repeat the data or shorten the run"
            ) from None

    def _operations(self) -> float:
        """Training FLOPs per token of this phase, without padding; 0 if unknown."""
        return self.data.operations(self.recipe.phases[self.place.phase]) if self.data.operations else 0.0

    # Stop

    def _stop(self, number: int) -> None:
        """Save, and raise Stopped for the signal ``number``, or for the end of the session (0)."""
        self._save()
        self._written_everywhere()  # a launcher may end the other processes as soon as one has ended
        self._raise_stopped(number)

    def _raise_stopped(self, number: int) -> None:
        why = signal.Signals(number).name if number else "the end of the session"
        step = self.place.step
        log.info("stopped by %s at step %d", why, step, extra=SHOWN)
        own_code = None if number in (0, ENDING) else number
        raise Stopped(f"stopped by {why} at step {step}; run the same command again to resume", signal=own_code)

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """A context that explains Diverged.

        If the gradient is not finite: log a last line, and raise Diverged with step, learning rate and the last good
        checkpoint.
        """
        try:
            yield
        except Diverged as error:
            step = self.place.step
            self.journal.write({"split": "diverged", "step": step, "tokens": self.place.tokens, "lr": self.lr})
            self._written()
            kept = checkpoint.newest(self.checkpoints)[0]
            raise Diverged(
                f"step {step}: {error} (learning rate {self.lr:.2g}); {to_stay_finite(self.recipe.precision, step)}; "
                + (f"the last checkpoint before it is {kept}" if kept else "no checkpoint had been written yet")
            ) from None

    # Metrics

    def _log(self) -> bool:
        """Write a line of training metrics for the steps since the last one; False if there were none."""
        place, engine = self.place, self.engine
        totals = engine.tally.totals(self.world)
        if not place.window_positions:
            return False
        with self._explained():
            engine.check()
        now = time.perf_counter()
        line = self._training_line(totals, took=max(now - self.window_start, 1e-9))
        self.journal.write(line)
        self._show(line)
        engine.tally = Tally(self.world.device)
        engine.largest_norm = engine.largest_norm.new_zeros(())
        place.window_tokens, place.window_positions, place.window_norm = 0, 0, 0.0
        self.window_start, self.window_from, self.feed.waiting = now, place.tokens, 0.0
        return True

    def _training_line(self, totals: Mapping[str, Mapping[str, float]], *, took: float) -> dict[str, Any]:
        """A line of training metrics over ``took`` seconds, as docs/training.md describes it."""
        place, engine = self.place, self.engine
        speed = (place.tokens - self.window_from) / took
        return {
            "split": "train",
            "step": place.step,
            "tokens": place.tokens,
            "flops": place.flops,
            **summary(totals, self._bytes_per_token("train")),
            "lr": self.lr,
            "grad_norm": engine.norm.item(),
            "grad_norm_max": max(engine.largest_norm.item(), place.window_norm),
            "update_ratio": engine.optimizer.update_ratio(self.lr).item(),
            "padding": 1 - place.window_tokens / place.window_positions,
            "rows": place.batch_rows,
            "length": self.recipe.phases[place.phase].length,
            **({"loss_scale": engine.scale} if self.recipe.precision == "fp16" else {}),
            "seconds": place.seconds,
            "tokens_per_second": speed,
            "waiting": self.feed.waiting / took,
            **({"peak_share": speed * self._operations() / self.world.size / self.peak} if self.peak else {}),
        }

    def _show(self, line: Mapping[str, Any]) -> None:
        """Show a line of training metrics, the spent share of the budget and the seconds to its end."""
        place, budget = self.place, self.recipe.budget
        done = min(place.spent(budget) / budget.amount, 1.0)
        gained = done - self.started.spent(budget) / budget.amount
        left = (place.seconds - self.started.seconds) / gained * (1 - done) if gained else math.nan
        self.journal.display.update(line, done=done, left=left)

    def _validate(self) -> bool:
        """Write a line of validation metrics, and save the best weights if the recipe asks for them.

        Returns False if this step has been validated. The line before the first step shows the start and saves no
        weights.
        """
        data, place = self.data, self.place
        if data.validation is None and data.score is None or self.validation.get("step") == place.step:
            return False
        begin = time.perf_counter()
        line: dict[str, Any] = {"split": "valid", "step": place.step, "tokens": place.tokens}
        # A signal interrupts it, and the next session validates again. Of several processes all would have to.
        alone = self.signals.at_once if self.world.size == 1 else contextlib.nullcontext
        try:
            with self.engine.averaged():
                with alone():
                    line |= self._validated()
                self.validation = line
                self.journal.write(line | {"seconds": place.seconds})
                self.journal.note(f"validation  {facts(line)}")
                if place.step:
                    self._keep_best(line)
                elif self.recipe.evaluation.best is not None:
                    self.recipe.evaluation.number(line)  # refuse a name that is not there, before training
        except Interrupted as signalled:
            self._stop(signalled.number)
        self.window_start += time.perf_counter() - begin  # not training time
        return True

    def _validated(self) -> dict[str, Any]:
        """The numbers of a validation."""
        data, place, line = self.data, self.place, dict[str, Any]()
        if data.validation is not None:
            line |= self._measured(data.validation(self.recipe.phases[max(place.phase, 0)]))
            absent = [name for name, count in line["counts"].items() if not count]
            if absent and not place.step:
                log.warning(
                    "validation rows have nothing to predict for %s, so %s; give more rows (evaluation.rows) or more "
                    "held-out text",
                    ", ".join(absent),
                    "their loss is without it" if line["losses"] else "they have no loss",
                )
        if data.score is not None:
            self.engine.objective.eval()
            # The first process's, because all must decide alike which weights are best and when to end.
            line["scores"] = self.world.gather(dict(data.score()))[0]
            self.engine.objective.train()
        if not place.step and data.chance:  # what the doctor compares the curve with
            line["chance"] = {name: guess.loss for name, guess in data.chance.items()}
            line["majority"] = {name: guess.accuracy for name, guess in data.chance.items()}
        return line

    def _measured(self, batches: Iterable[Batch]) -> dict[str, Any]:
        """The objective's numbers on validation batches."""
        objective = self.engine.objective
        objective.eval()
        try:
            totals = measure(objective, batches, self.world, self.recipe.precision)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            failure = textwrap.shorten(str(error), 200, placeholder=" ...")
            raise OutOfMemory(
                f"out of memory while validating on {self.world.device} ({failure}); "
                "use shorter rows or a smaller model"
            ) from None
        objective.train()
        return summary(totals, self._bytes_per_token("valid"))

    def _bytes_per_token(self, split: str) -> dict[str, float]:
        size = self.data.bytes_per_token.get(split)
        return {} if size is None else dict.fromkeys(self.engine.objective.per_token, size)

    # Best weights

    def _check_best(self) -> None:
        """Refuse an ``evaluation.best`` without a validation; the first one refuses a name that it does not have.

        Raises:
            ConfigError: there is no validation.
        """
        evaluation, data = self.recipe.evaluation, self.data
        if evaluation.best is not None and data.score is None and data.validation is None:
            raise ConfigError(
                f"evaluation.best {evaluation.best!r} needs a validation, and this run has none; "
                "set it to null, or build the corpus with a larger validation share"
            )

    def _check_kept_best(self) -> None:
        """Verify the best weights of earlier sessions; where they are missing, the choice begins again.

        Raises:
            DataError: they are damaged.
        """
        if self.recipe.evaluation.best is None or self.place.best is None:
            return
        best = self.checkpoints / "best"

        def missing() -> bool:
            if best.exists():
                checkpoint.verify(best, f"restore it, or delete {best} to choose the best weights from here on")
            return not best.exists()

        if self.world.agree(missing):
            self.journal.warn(f"{best}: is missing; the best weights are chosen from step {self.place.step} on")
            self.place.best, self.place.stale = None, 0

    def _keep_best(self, line: Mapping[str, Any]) -> None:
        """Save the weights if their line of validation metrics is the best so far."""
        evaluation = self.recipe.evaluation
        if evaluation.best is None:
            return
        value = evaluation.number(line)
        if not evaluation.improves(value, on=self.place.best):
            self.place.stale += 1
            return
        self.place.best, self.place.stale = value, 0
        weights = self.engine.weights()
        if self.writer is not None:
            state = {"step": self.place.step, evaluation.best: value}
            recipe = config.to_dict(self.recipe)
            self.writer.save("best", Snapshot(weights=weights, carried={}, state=state, recipe=recipe))

    # Save and resume

    def _checkpoint_due(self) -> bool:
        settings, place, saved = self.recipe.checkpoints, self.place, self.saved
        by_steps = settings.steps is not None and place.step - saved.step >= settings.steps
        return by_steps or settings.minutes is not None and place.seconds - saved.seconds >= settings.minutes * 60

    def _save(self) -> None:
        """Copy everything to CPU memory; a thread writes it (:func:`encoderlab.train.checkpoint.write`)."""
        begin, engine = time.perf_counter(), self.engine
        with self._explained():
            engine.check()
        totals, weights, carried = engine.tally.totals(self.world), engine.weights(), engine.carried()
        if self.writer is not None:
            norm = max(engine.largest_norm.item(), self.place.window_norm)
            state = {
                "place": asdict(replace(self.place, window_norm=norm)),
                "source": self.feed.state(),
                "engine": engine.counters(),
                "window": totals,
                "validation": self.validation,
                **(self.folder.metrics_state() if self.folder is not None else {}),
                "processes": self.world.size,
            }
            recipe = config.to_dict(self.recipe)
            snapshot = Snapshot(weights=weights, carried=carried, state=state, recipe=recipe)
            self.writer.save(checkpoint.name(self.place.step), snapshot)
        self.saved = replace(self.place)
        self.window_start += time.perf_counter() - begin

    def _written(self) -> None:
        """Wait until the checkpoints are on disk, where every process may read them."""
        if self.writer is not None:
            self.writer.wait()

    def _written_everywhere(self) -> None:
        """Wait until every process has written its checkpoints; every process must call it."""
        if not self.world.main:
            self._written()
        self.world.agree(self._written)

    def _resume(self) -> None:
        """Continue from the newest whole checkpoint, if there is one."""
        step = int(self.world.agree(self._find))
        written: tuple[int, str | None] = (0, None)
        if step >= 0:
            saved = self.checkpoints / checkpoint.name(step)
            state = self._read(saved / checkpoint.STATE)
            checkpoint.load_weights(self.engine.objective, saved)
            self.engine.restore(StoredTensors(saved), state["engine"])
            self.engine.tally.restore(state["window"], self.world)
            self.place = Place(**state["place"])
            self.feed = Feed(self.data.source, state["source"])
            self.validation = state["validation"]
            written = state["metrics_bytes"], state["metrics_sha256"]
            if not self._is_done():
                self._check_kept_best()
                self.journal.note(f"resuming from {saved}")
        self.journal.resume(self.place.step, *written)

    def _read(self, path: Path) -> dict[str, Any]:
        """The plain data of a checkpoint.

        Raises:
            DataError: another version of the package has written it.
        """
        state = read_json(path)
        check_known(state, PLAIN, path)
        check_known(state["place"], asdict(self.place), path)
        check_known(state["engine"], self.engine.counters(), path)
        return state

    def _find(self) -> int:
        """The step of the newest whole checkpoint, -1 if there is none. Damaged ones are renamed."""
        newest, damaged = checkpoint.newest(self.checkpoints)
        if newest is None:
            if damaged:
                raise DataError(
                    f"{damaged[0][1]}; no older checkpoint is intact: delete {self.checkpoints} to begin again"
                )
            latest, metrics = self.checkpoints / "latest", self.out / METRICS
            if latest.is_symlink():
                raise DataError(
                    f"{latest}: points to a missing checkpoint, and there is no other; restore it to resume, or "
                    f"delete {self.checkpoints} to begin again"
                )
            if metrics.exists() and metrics.stat().st_size:
                self.journal.warn(f"{self.out}: an earlier session left no checkpoint; the run begins again at step 0")
            return -1
        for folder, why in damaged:
            self.journal.warn(f"{why}; continuing from {newest.name}")
            checkpoint.put_aside(folder)
        checkpoint.point(self.checkpoints / "latest", newest.name)  # a session killed while it saved may not have
        return int(newest.name.removeprefix("step-"))
