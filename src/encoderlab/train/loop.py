"""The one training loop: pretraining and fine-tuning, one process or many, stopped and resumed to the bit.

A step takes the next batch, adds the counts of its losses over all processes, runs it in micro-batches, clips,
updates. Nothing in it waits for the accelerator except at the lines of metrics. What a resumed run needs beyond
weights and optimiser state is a few integers of the batch source and the sums of the current line of metrics; all
randomness belongs to (seed, step, row).
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import logging
import math
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, Protocol

import torch
from torch import Tensor

from encoderlab import config
from encoderlab.batches.batch import Batch
from encoderlab.errors import ConfigError, DataError, Diverged, OutOfMemory, Stopped, nearest
from encoderlab.nn.noise import Noise
from encoderlab.objectives.base import Memory, Objective, Term
from encoderlab.seeds import derive
from encoderlab.train import checkpoint
from encoderlab.train.checkpoint import Snapshot
from encoderlab.train.distributed import World, assign, join, named_tensors, spread, synchronised, whole
from encoderlab.train.folder import RunFolder
from encoderlab.train.optim import Optimizer, global_norm, group_parameters
from encoderlab.train.progress import Board, Display, facts
from encoderlab.train.recipe import Budget, Phase, Training
from encoderlab.train.tally import Tally, measure, precision, summary

log = logging.getLogger("encoderlab")

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
FIRST_SCALE, SCALE_GROWTH = (
    2.0**14,
    2000,
)  # fp16: the loss scale at the start, and the steps without overflow until it doubles


class Source(Protocol):
    """An endless supply of this process's parts of global batches."""

    def __next__(self) -> Batch: ...

    def state(self) -> dict[str, int]:
        """What a new source needs to go on after the last batch given out."""

    def close(self) -> None: ...


OpenSource = Callable[[Phase, int, "dict[str, int] | None"], Source]
"""(phase, rows of a global batch, state of an earlier source of the same phase) -> source."""


@dataclass(frozen=True, kw_only=True)
class Data:
    """Where a run's batches come from. ``validation`` gives the same whole batches, on every process, each time it is
    called; ``score`` gives further validation numbers of a task, and is called with the objective in evaluation mode.

    ``hashes`` identify the data in the run folder; ``bytes_per_token`` turns the losses in ``Objective.per_token``
    into bits per byte.
    """

    source: OpenSource
    validation: Callable[[Phase], Iterable[Batch]] | None = None
    score: Callable[[], Mapping[str, float]] | None = None
    hashes: Mapping[str, str] = field(default_factory=dict)
    bytes_per_token: float | None = None


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A finished run: ``metrics`` is its last validation line, ``checkpoint`` and ``best`` are checkpoint folders."""

    step: int
    tokens: int
    seconds: float
    metrics: Mapping[str, Any]
    checkpoint: Path
    best: Path | None


def train(objective: Objective, recipe: Training, data: Data, out: Path, *, session: Budget | None = None) -> Outcome:
    """Train ``objective`` in place until the recipe's budget is spent, in the run folder ``out``, resuming what lies
    there.

    ``session`` limits this call rather than the run: when it is spent, a checkpoint is written and Stopped raised.

    Raises:
        Stopped: by SIGINT, SIGTERM or the end of ``session``, after a checkpoint; its code is 130, 143 or 75.
        Diverged, OutOfMemory, ConfigError, DataError: see the messages; earlier checkpoints are intact.
    """
    world = join(recipe.execution.device)
    with contextlib.ExitStack() as stack:
        return _Trainer(objective, recipe, data, out, world, session, stack).run()


@dataclass
class Progress:
    """How far a run has come: with the integers of the batch source, all that a checkpoint holds besides tensors.

    ``window_...`` belong to the current line of metrics; ``scale`` and ``fine_steps`` are fp16's loss scale and the
    steps since it overflowed.
    """

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    phase: int = -1
    batch_rows: int = 0
    updates: int = 0
    scale: float = 1.0
    fine_steps: int = 0
    window_tokens: int = 0
    window_positions: int = 0
    window_norm: float = 0.0
    best: float | None = None

    def spent(self, budget: Budget) -> float:
        """In the unit of ``budget``."""
        return {"steps": float(self.step), "tokens": float(self.tokens), "hours": self.seconds / 3600}[budget.unit]


class _Trainer:
    """One call of :func:`train`; ``stack`` undoes whatever it opens."""

    def __init__(
        self,
        objective: Objective,
        recipe: Training,
        data: Data,
        out: Path,
        world: World,
        session: Budget | None,
        stack: contextlib.ExitStack,
    ) -> None:
        self.recipe, self.data, self.out, self.world, self.session = recipe, data, out, world, session
        smallest = min([phase.rows for phase in recipe.phases] + ([recipe.ramp.rows] if recipe.ramp else []))
        if smallest < world.size:
            raise ConfigError(
                f"a batch of {smallest} rows is too small for {world.size} processes; give at least one row to each"
            )
        self.folder: RunFolder | None = None
        world.agree(lambda: self._claim(stack))
        self.objective = objective.to(world.device).train()
        if recipe.execution.compile:
            objective.compile()
        self.model = spread(objective, world, recipe.execution.parallel)
        self.optimizer = Optimizer(group_parameters(objective, recipe.optim), recipe.optim)
        self.progress = Progress(scale=FIRST_SCALE if recipe.precision == "fp16" else 1.0)
        self.tally = Tally(world.device)
        self.norm = self.largest_norm = torch.zeros((), device=world.device)
        self.lr = 0.0
        self.memory: Memory = None
        self.source: Source | None = None
        self.source_state: dict[str, int] | None = None
        self.validation: dict[str, Any] = {}
        self.display = Display(getattr(recipe, "name", "train"), visible=world.main)
        stack.callback(self.display.close)
        stack.callback(self._close_source)
        self.writer = checkpoint.Writer(self.checkpoints, keep=recipe.checkpoints.keep) if world.main else None
        self._resume()
        self.board = Board(out, self.progress.step) if recipe.execution.tensorboard and world.main else None
        if self.board is not None:
            stack.callback(self.board.close)
        self.signals: list[int] = []
        stack.enter_context(_collect_signals(self.signals))
        self.started = dataclasses.replace(self.progress)
        self.clock = time.perf_counter()
        self.window_start, self.window_from, self.waiting = self.clock, self.progress.tokens, 0.0

    @property
    def checkpoints(self) -> Path:
        return self.out / "checkpoints"

    def _claim(self, stack: contextlib.ExitStack) -> int:
        """Hold the run folder, which is the first process's to write."""
        self.folder = RunFolder(self.out, config.to_dict(self.recipe), self.data.hashes)
        stack.callback(self.folder.close)
        return 0

    # The course of a run

    def run(self) -> Outcome:
        recipe, progress = self.recipe, self.progress
        saved, evaluated = (
            dataclasses.replace(progress),
            progress.step if self.validation.get("step") == progress.step else -1,
        )
        stop: int | None = None
        while progress.spent(recipe.budget) < recipe.budget.amount and stop is None:
            stop = self._step()
            if progress.step % recipe.log_every == 0:
                self._log()
            if progress.step % recipe.evaluation.every == 0:
                self._validate()
                evaluated = progress.step
            if stop is None and self._checkpoint_due(saved):
                self._save()
                saved = dataclasses.replace(progress)
        if stop is None and progress.step > self.started.step:
            self._log()
            if evaluated < progress.step:
                self._validate()
        if progress.step > saved.step:
            self._save()
        if self.writer is not None:
            self.writer.wait()
        if stop is not None:
            self._note(
                f"stopped at step {progress.step}; checkpoint {self.checkpoints / checkpoint.name(progress.step)}"
            )
            why = signal.Signals(stop).name if stop else "the end of the session"
            raise Stopped(
                f"stopped by {why} at step {progress.step}; run the same command again to resume", signal=stop or None
            )
        best = self.checkpoints / "best"
        return Outcome(
            step=progress.step,
            tokens=progress.tokens,
            seconds=progress.seconds,
            metrics=self.validation,
            checkpoint=self.checkpoints / checkpoint.name(progress.step),
            best=best if recipe.evaluation.best else None,
        )

    def _step(self) -> int | None:
        """One update. Returns why the run must stop after it: a signal's number, 0 for the end of the session, or
        None.
        """
        recipe, progress = self.recipe, self.progress
        spent = progress.spent(recipe.budget)
        batch = self._next_batch(spent)
        own = self.objective.counts(batch)
        names = sorted(own)
        asked = [self.signals.count(number) for number in STOP_SIGNALS]
        clock = self.started.seconds + time.perf_counter() - self.clock if self.world.main else 0.0
        rows, tokens, positions, seconds, *rest = self.world.sum(
            [len(batch), batch.num_tokens, batch.ids.numel(), clock, *asked, *(own[name] for name in names)]
        )
        wanted, counts = rest[: len(asked)], dict(zip(names, rest[len(asked) :], strict=True))
        self._accumulate(batch, int(rows), counts)
        self.lr = recipe.optim.lr * recipe.schedule.share(spent, recipe.budget.amount)
        self._update()
        progress.step += 1
        progress.tokens += int(tokens)
        progress.window_tokens += int(tokens)
        progress.window_positions += int(positions)
        progress.seconds = seconds
        if self.world.size == 1:  # no need to wait for the next message
            wanted = [self.signals.count(number) for number in STOP_SIGNALS]
        for number, times in zip(STOP_SIGNALS, wanted, strict=True):
            if times:
                return number
        session = self.session
        return 0 if session and progress.spent(session) - self.started.spent(session) >= session.amount else None

    def _next_batch(self, spent: float) -> Batch:
        recipe, progress = self.recipe, self.progress
        stage = recipe.stage(spent)
        moved = (stage.phase, stage.rows) != (progress.phase, progress.batch_rows)
        if self.source is None or moved:
            state = self.source_state if self.source is None else self.source.state()
            self._close_source()
            self.source = self.data.source(
                recipe.phases[stage.phase], stage.rows, state if stage.phase == progress.phase else None
            )
        if moved:
            self.memory = None
            progress.phase, progress.batch_rows = stage
        begin = time.perf_counter()
        try:
            batch = next(self.source)
        except StopIteration:
            raise DataError(
                f"the data ended at step {progress.step}, before the budget was spent; repeat it or shorten the run"
            ) from None
        self.waiting += time.perf_counter() - begin
        return batch

    def _close_source(self) -> None:
        if self.source is not None:
            self.source.close()
        self.source = None

    def _accumulate(self, batch: Batch, rows: int, counts: Mapping[str, float]) -> None:
        """Gradients of the batch, in micro-batches; ``rows`` and ``counts`` are those of all processes together."""
        largest_share = -(-rows // self.world.size)
        micro = self.recipe.execution.micro_rows or largest_share
        pieces = min(-(-largest_share // micro), rows // self.world.size)  # the same for all processes
        seed_torch(derive(self.recipe.seed, "step", self.progress.step, self.world.rank), self.world.device)
        failure = None
        memories: list[Memory] = []
        try:
            for i in range(pieces):
                start, stop = len(batch) * i // pieces, len(batch) * (i + 1) // pieces
                terms, memory = self._micro_step(batch, start, stop, counts, last=i == pieces - 1)
                self.tally.add(terms)
                memories.append(memory)
        except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
            if not _is_out_of_memory(error):
                raise
            failure = str(error).splitlines()[0]
        if failure is not None:  # outside the except clause, whose traceback keeps the activations alive
            self._out_of_memory(batch, -(-len(batch) // pieces), counts, failure)
        self.memory = _join_memory(memories)

    def _micro_step(
        self, batch: Batch, start: int, stop: int, counts: Mapping[str, float], *, last: bool
    ) -> tuple[dict[str, Term], Memory]:
        piece = batch.slice(start, stop).to(self.world.device)
        assert piece.rows is not None
        noise = Noise(self.recipe.seed, self.progress.step, piece.rows)
        memory = None if self.memory is None else tuple(layer[start:stop] for layer in self.memory)
        with synchronised(self.model, last):
            with precision(self.recipe.precision, self.world.device):
                terms, memory = self.model(piece, noise=noise, memory=memory)
            factor = self.world.size * self.progress.scale  # both engines average over processes
            loss = torch.stack(
                [term.sum * (term.weight * factor / max(counts[name], 1)) for name, term in terms.items()]
            ).sum()
            loss.backward()
        return terms, memory

    def _update(self) -> None:
        """Unscale, clip, step (in this order), all on the device; a gradient that is not finite changes nothing."""
        progress, scaled = self.progress, self.recipe.precision == "fp16"
        self.norm = global_norm(self.optimizer.parameters) / progress.scale
        factor = torch.full_like(self.norm, progress.scale)
        if self.recipe.clip is not None:
            factor = factor * (self.norm / self.recipe.clip).clamp(min=1.0)
        broken = ~self.norm.isfinite()
        if scaled and bool(broken):
            self._lower_scale()
        else:
            self.largest_norm = torch.maximum(self.largest_norm, self.norm)  # keeps NaN
            self.optimizer.step(self.lr, grad_scale=factor, skip=broken.float())
            progress.fine_steps += 1
            if scaled and progress.fine_steps % SCALE_GROWTH == 0:
                progress.scale *= 2
        for parameter in self.optimizer.parameters:
            parameter.grad = None
        if self.world.device.type == "cpu":
            self._check_finite()

    def _lower_scale(self) -> None:
        self.progress.scale /= 2
        self.progress.fine_steps = 0
        if self.progress.scale < 1:
            self._diverged("gradients overflow fp16 at a loss scale of 1")

    def _check_finite(self) -> None:
        if not bool(self.largest_norm.isfinite()):
            self._diverged("the gradient is not finite any more")

    def _diverged(self, what: str) -> NoReturn:
        if self.writer is not None:
            self.writer.wait()
        kept = checkpoint.newest(self.checkpoints)[0]
        raise Diverged(
            f"step {self.progress.step}: {what} (learning rate {self.lr:.2g}); "
            "lower optim.lr, lengthen schedule.warmup, or set precision=fp32; "
            + (f"the last checkpoint before it is {kept}" if kept else "no checkpoint had been written yet")
        )

    def _out_of_memory(self, batch: Batch, tried: int, counts: Mapping[str, float], failure: str) -> NoReturn:
        """Find the rows that fit by trying halves, alone: other processes may be anywhere."""
        self.progress.scale, length, fits = 1.0, batch.ids.shape[1], 0
        while self.world.size == 1 and not fits and tried > 1:
            tried //= 2
            for parameter in self.optimizer.parameters:
                parameter.grad = None
            gc.collect()
            if self.world.device.type == "cuda":
                torch.cuda.empty_cache()
            try:
                self._micro_step(batch, 0, tried, counts, last=True)
                fits = tried
            except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
                if not _is_out_of_memory(error):
                    raise
        if self.world.size > 1:
            remedy = f"try --set execution.micro_rows={max(1, tried // 2)}, which gives the same result"
        elif fits:
            remedy = f"{fits} rows fit: --set execution.micro_rows={fits} gives the same result"
        else:
            remedy = "not even one row fits: use shorter rows or a smaller model"
        raise OutOfMemory(
            f"out of memory with rows of {length} tokens on {self.world.device} ({failure[:120]}); {remedy}"
        )

    # What is written

    def _log(self) -> None:
        """A line of training metrics over the steps since the last one."""
        progress = self.progress
        totals = self.tally.totals(self.world)
        if not totals:
            return
        self._check_finite()
        now = time.perf_counter()
        took = max(now - self.window_start, 1e-9)
        line = {
            "split": "train",
            "step": progress.step,
            "tokens": progress.tokens,
            **summary(totals, self._bytes_per_token()),
            "lr": self.lr,
            "grad_norm": self.norm.item(),
            "grad_norm_max": max(self.largest_norm.item(), progress.window_norm),
            "padding": 1 - progress.window_tokens / max(progress.window_positions, 1),
            "rows": progress.batch_rows,
            "length": self.recipe.phases[progress.phase].length,
            "seconds": progress.seconds,
            "tokens_per_second": (progress.tokens - self.window_from) / took,
            "waiting": self.waiting / took,
        }
        if progress.scale != 1:
            line["loss_scale"] = progress.scale
        self._write(line)
        budget = self.recipe.budget
        done = min(progress.spent(budget) / budget.amount, 1.0)
        session = progress.seconds - self.started.seconds
        gained = done - self.started.spent(budget) / budget.amount
        self.display.update(line, done=done, left=session / gained * (1 - done) if gained else math.nan)
        self.tally = Tally(self.world.device)
        self.largest_norm = torch.zeros_like(self.largest_norm)
        progress.window_tokens = progress.window_positions = 0
        progress.window_norm = 0.0
        self.window_start, self.window_from, self.waiting = now, progress.tokens, 0.0

    def _validate(self) -> None:
        """A line of validation metrics, and the best weights where the recipe asks for them."""
        if self.data.validation is None and self.data.score is None:
            return
        progress = self.progress
        self.objective.eval()
        line: dict[str, Any] = {"split": "valid", "step": progress.step, "tokens": progress.tokens}
        if self.data.validation is not None:
            batches = self.data.validation(self.recipe.phases[progress.phase])
            line |= summary(
                measure(self.objective, batches, self.world, self.recipe.precision), self._bytes_per_token()
            )
        if self.data.score is not None:
            line["scores"] = dict(self.data.score())
        self.objective.train()
        self.validation = line
        self._write(line | {"seconds": progress.seconds})
        self._note(f"validation  {facts(line)}")
        self._keep_best(line)

    def _keep_best(self, line: Mapping[str, Any]) -> None:
        wanted = self.recipe.evaluation.best
        if wanted is None:
            return
        numbers = {"loss": line.get("loss")} | line.get("accuracy", {}) | line.get("scores", {})
        if wanted not in numbers or numbers[wanted] is None:
            raise ConfigError(f"evaluation.best {wanted!r} is no number of the validation{nearest(wanted, numbers)}")
        lower = wanted == "loss"
        value, best = numbers[wanted], self.progress.best
        if best is not None and (value >= best if lower else value <= best):
            return
        self.progress.best = value
        weights = self._gather(named_tensors(self.objective))
        if self.writer is not None:
            state = {"step": self.progress.step, wanted: value}
            self.writer.save(
                "best", Snapshot(weights=weights, optimizer={}, state=state, recipe=config.to_dict(self.recipe))
            )

    def _write(self, line: Mapping[str, Any]) -> None:
        if self.folder is not None:
            self.folder.write_metrics(line)
        if self.board is not None:
            self.board.write(line)

    def _note(self, text: str) -> None:
        if self.world.main:
            log.info(text)
            self.display.say(text)

    def _bytes_per_token(self) -> dict[str, float]:
        size = self.data.bytes_per_token
        return {} if size is None else dict.fromkeys(self.objective.per_token, size)

    # Saving and resuming

    def _checkpoint_due(self, saved: Progress) -> bool:
        settings, progress = self.recipe.checkpoints, self.progress
        by_steps = settings.steps is not None and progress.step - saved.step >= settings.steps
        return by_steps or settings.minutes is not None and progress.seconds - saved.seconds >= settings.minutes * 60

    def _save(self) -> None:
        """Copy everything to CPU memory and leave the writing to a thread."""
        totals = self.tally.totals(self.world)
        largest = self.largest_norm.item()
        if not math.isfinite(largest):
            self._check_finite()
        weights = self._gather(named_tensors(self.objective))
        optimizer = self._gather(
            {f"{kind}/{name}": tensor for name, kinds in self.optimizer.state.items() for kind, tensor in kinds.items()}
        )
        for i, layer in enumerate(self.memory or ()):
            optimizer[f"memory/{i}"] = self.world.gather_rows(layer).cpu()
        if self.writer is None or self.folder is None:
            return
        assert self.source is not None
        progress = dataclasses.replace(
            self.progress, updates=self.optimizer.steps, window_norm=max(largest, self.progress.window_norm)
        )
        state = {
            "progress": dataclasses.asdict(progress),
            "source": self.source.state(),
            "window": totals,
            "validation": self.validation,
            "metrics_bytes": self.folder.metrics_size(),
            "processes": self.world.size,
        }
        recipe = config.to_dict(self.recipe)
        snapshot = Snapshot(weights=weights, optimizer=optimizer, state=state, recipe=recipe)
        self.writer.save(checkpoint.name(progress.step), snapshot)

    def _gather(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Whole copies in CPU memory, on the first process only."""
        gathered = {}
        for name, tensor in tensors.items():
            full = whole(tensor.detach())
            if self.world.main:
                gathered[name] = full.to("cpu", copy=True)
        return gathered

    def _resume(self) -> None:
        """Go on from the newest whole checkpoint, if there is one."""
        step = int(self.world.agree(self._find))
        if step < 0:
            if self.folder is not None:
                self.folder.open_metrics(0)
            return
        found = self.checkpoints / checkpoint.name(step)
        state = checkpoint.read_json(found / checkpoint.STATE)
        load_weights(self.objective, found)
        tensors = checkpoint.read_tensors(found / checkpoint.OPTIMIZER)
        for name, kinds in self.optimizer.state.items():
            for kind, tensor in kinds.items():
                assign(tensor, tensors[f"{kind}/{name}"])
        self.progress = Progress(**state["progress"])
        self.optimizer.steps = self.progress.updates
        self.source_state, self.validation = state["source"], state["validation"]
        layers = [
            tensors[key] for key in sorted((k for k in tensors if k.startswith("memory/")), key=lambda k: int(k[7:]))
        ]
        if layers:
            start, stop = self.world.share(len(layers[0]))
            self.memory = tuple(layer[start:stop].to(self.world.device) for layer in layers)
        if self.folder is not None:  # the first process carries what all of them added up
            self.tally.restore(state["window"])
            self.folder.open_metrics(state["metrics_bytes"])
        self._note(f"resuming from {found}")

    def _find(self) -> int:
        """The step of the newest whole checkpoint, -1 if none was ever written. Damaged ones are put aside."""
        found, damaged = checkpoint.newest(self.checkpoints)
        if damaged and found is None:
            raise DataError(f"{damaged[0][1]}; no older checkpoint is whole: delete {self.checkpoints} to begin again")
        for folder, why in damaged:
            log.warning("%s", why)
            self.display.say(f"warning: {why}; going on from {found.name if found else 'the beginning'}")
            folder.rename(folder.with_name(f"damaged-{folder.name}"))
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


def seed_torch(seed: int, device: torch.device) -> None:
    """Seed torch's own generators, for what draws from them rather than from noise; resumes exactly, but knows no rows.

    Not ``torch.manual_seed``, which formats a stack trace per call while CUDA sleeps.
    """
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)


def _join_memory(parts: list[Memory]) -> Memory:
    """The memories of the micro-batches, row after row."""
    kept = [part for part in parts if part is not None]
    if len(kept) < len(parts) or not kept:
        return None
    return kept[0] if len(kept) == 1 else tuple(torch.cat(layers) for layers in zip(*kept, strict=True))


def _is_out_of_memory(error: BaseException) -> bool:
    text = str(error)
    return (
        isinstance(error, (torch.OutOfMemoryError, MemoryError))
        or "can't allocate memory" in text
        or "out of memory" in text
    )


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
