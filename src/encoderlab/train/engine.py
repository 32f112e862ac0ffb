"""One optimiser step: micro-batches forward and backward, clipping, update.

No part of a step waits for the device, so that the device always has queued work (tests/train/test_no_waiting.py). The
exception is fp16: the host keeps its loss scale and reads the gradient norm once per update.
"""

from __future__ import annotations

import contextlib
import gc
import textwrap
from collections.abc import Collection, Iterator, Mapping
from typing import NoReturn

import torch
from torch import Tensor
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.fsdp import FSDPModule

from encoderlab.batches.batch import Batch
from encoderlab.errors import Diverged, OutOfMemory, is_out_of_memory
from encoderlab.nn import kernels
from encoderlab.nn.encoder import Encoder
from encoderlab.nn.noise import Noise
from encoderlab.nn.recording import Recordings
from encoderlab.objectives.base import Memory, Objective, Term
from encoderlab.seeds import derive
from encoderlab.train.checkpoint import AVERAGE
from encoderlab.train.distributed import World, named_tensors, spread, synchronised
from encoderlab.train.optim import Optimizer, global_norm, group_parameters, local
from encoderlab.train.precision import precision, products
from encoderlab.train.recipe import Training
from encoderlab.train.stored import StoredTensors
from encoderlab.train.tally import Tally

FIRST_SCALE = 2.0**14  # fp16: the initial factor on the loss
SCALE_GROWTH = 2000  # fp16: steps without overflow until the factor doubles
MEMORY = "memory/"  # prefix for the memory of a layer among the carried tensors, in float32 whatever the precision


def encoders(objective: Objective) -> list[Encoder]:
    return [part for part in objective.modules() if isinstance(part, Encoder)]


def compile_layers(objective: Objective) -> None:
    """Apply ``torch.compile`` to the layers only: one graph serves all of them, and other parts have varying shapes."""
    for encoder in encoders(objective):
        for block in encoder.blocks:
            block.compile()


def record_layers(objective: Objective, shapes: Collection[tuple[int, int]]) -> list[Recordings]:
    """Let layers record themselves on a GPU for batches of these ``shapes``; returns what to make ready before each
    forward pass, see :class:`Recordings`.
    """
    made = []
    for encoder in encoders(objective):
        encoder.recordings = Recordings(shapes)
        made.append(encoder.recordings)
    return made


def records(recipe: Training, world: World) -> bool:
    """Whether layers are recorded. The gradients of a micro-batch would overwrite those of the one before it."""
    execution = recipe.execution
    return execution.record and execution.micro_rows is None and world.device.type == "cuda" and world.size == 1


class Engine:
    """An objective under training: its networks, their optimiser, and the state that is carried from step to step.

    ``tally`` adds up losses until the loop replaces it. ``largest_norm`` is the largest gradient norm until the loop
    resets it, NaN or infinite if a gradient was. ``memory`` belongs to this process's rows of the next batch.
    """

    def __init__(self, objective: Objective, recipe: Training, world: World) -> None:
        self.recipe, self.world = recipe, world
        if world.device.type == "cpu":
            kernels.keep_memory()
        self.objective = objective.to(world.device).train()
        self.recordings: list[Recordings] = []
        if recipe.execution.compile:
            compile_layers(objective)
        elif records(recipe, world):
            self.recordings = record_layers(objective, {(phase.rows, phase.length) for phase in recipe.phases})
        self.sharded = recipe.execution.parallel == "fsdp" and world.size > 1
        self.model = spread(objective, world, recipe.execution.parallel, recipe.exchange)
        self.optimizer = Optimizer(group_parameters(objective, recipe.optim), recipe.optim)
        self.averages: dict[str, Tensor] = {}
        if recipe.average is not None:
            self.averages = {name: weight.detach().clone() for name, weight in self.optimizer.weights.items()}
        self.memory: Memory = None
        self.tally = Tally(world.device)
        self.norm = self.largest_norm = torch.zeros((), device=world.device)
        self.scale = FIRST_SCALE if recipe.precision == "fp16" else 1.0
        self.fine_steps = 0  # steps since the last overflow
        self.counted = False  # whether an earlier stage of this step has updated

    def step(self, batch: Batch, *, rows: int, counts: Mapping[str, float], lr: float, number: int) -> None:
        """Train on this process's part of a global batch.

        Args:
            batch: this process's rows.
            rows: number of rows of the global batch.
            counts: count of each term over all processes.
            lr: learning rate.
            number: of the step.

        Raises:
            Diverged: the gradient is not finite (on a CPU at once; elsewhere when :meth:`check` is called).
            OutOfMemory: the message names a number of rows that fits.
        """
        seed_torch(derive(self.recipe.seed, "step", number, self.world.rank), self.world.device)
        largest_part = -(-rows // self.world.size)
        micro = self.recipe.execution.micro_rows or largest_part
        pieces = min(-(-largest_part // micro), rows // self.world.size)  # the same on all processes
        bounds = [len(batch) * i // pieces for i in range(pieces + 1)]
        self.counted = False
        for _ in range(self.objective.stages):
            self._stage(batch, bounds, counts, number)
            self._update(lr)
        if self.recipe.average is not None:
            share = 1 - self.recipe.average.at(self.optimizer.steps)
            torch._foreach_lerp_(self._averages(), self._weights(), share)
        if self.world.device.type == "cpu":
            self.check()

    def _stage(self, batch: Batch, bounds: list[int], counts: Mapping[str, float], number: int) -> None:
        """Run forward and backward passes of all micro-batches, the rows between ``bounds``."""
        memories: list[Memory] = []
        failure = None
        try:
            for start, stop in zip(bounds[:-1], bounds[1:], strict=True):
                last = stop == len(batch)
                terms, memory = self._forward_backward(batch, start, stop, counts, number, last=last)
                self.tally.add(terms)
                memories.append(memory)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            failure = str(error).splitlines()[0]
        if failure is not None:  # outside the except clause, whose traceback keeps the activations alive
            self._out_of_memory(batch, bounds[1], counts, number, failure)
        self.memory = join_memory(memories)

    def check(self) -> None:
        """Raise Diverged if a gradient was not finite; waits for the device."""
        if not bool(self.largest_norm.isfinite()):
            raise Diverged("the gradient is not finite")

    def _forward_backward(
        self, batch: Batch, start: int, stop: int, counts: Mapping[str, float], number: int, *, last: bool
    ) -> tuple[dict[str, Term], Memory]:
        """Add the gradients of rows ``start:stop``; processes exchange gradients after the ``last`` micro-batch."""
        piece = batch.slice(start, stop).to(self.world.device)
        assert piece.rows is not None
        noise = Noise(self.recipe.seed, number, piece.rows)
        memory = None if self.memory is None else tuple(layer[start:stop] for layer in self.memory)
        for recordings in self.recordings:
            recordings.ready = "continues" not in piece.labels  # the next replay would overwrite a stream's memory
        mode, device = self.recipe.precision, self.world.device
        with synchronised(self.model, last), products(mode, device):
            with precision(mode, device):
                terms, memory = self.model(piece, noise=noise, memory=memory)
            factor = self.world.size * self.scale  # DDP and FSDP2 average over processes
            losses = [term.sum * (term.weight * factor / max(counts[name], 1)) for name, term in terms.items()]
            torch.stack(losses).sum().backward()
        return terms, memory

    def _update(self, lr: float) -> None:
        """Unscale, clip, step, in this order (transformers#887); a gradient that is not finite changes nothing."""
        self.norm = global_norm(self.optimizer.parameters) / self.scale
        divisor = torch.full_like(self.norm, self.scale)
        if self.recipe.clip is not None:
            divisor = divisor * (self.norm / self.recipe.clip).clamp(min=1.0)
        broken = ~self.norm.isfinite()
        if self.recipe.precision == "fp16" and bool(broken):
            self.scale, self.fine_steps = self.scale / 2, 0
            if self.scale < 1:
                raise Diverged("gradients overflow fp16 even at a loss scale of 1")
        else:
            self.largest_norm = torch.maximum(self.largest_norm, self.norm)  # NaN stays
            self.optimizer.step(lr, grad_scale=divisor, skip=broken.float(), counted=self.counted)
            self.counted = True
            self.fine_steps += 1
            if self.recipe.precision == "fp16" and self.fine_steps % SCALE_GROWTH == 0:
                self.scale *= 2
        self._drop_gradients()

    def _drop_gradients(self) -> None:
        for parameter in self.optimizer.parameters:
            parameter.grad = None

    def _out_of_memory(
        self, batch: Batch, rows: int, counts: Mapping[str, float], number: int, failure: str
    ) -> NoReturn:
        """Find the number of rows that fits by trying halves; one process only, because others would
        have to take part.
        """
        fits = 0
        while self.world.size == 1 and rows > 1 and not fits:
            rows //= 2
            self._drop_gradients()
            gc.collect()
            if self.world.device.type == "cuda":
                torch.cuda.empty_cache()
            try:
                self._forward_backward(batch, 0, rows, counts, number, last=True)
                fits = rows
            except (MemoryError, RuntimeError) as error:
                if not is_out_of_memory(error):
                    raise
        if self.world.size > 1:
            remedy = f"try --set execution.micro_rows={max(1, rows // 2)}, which gives the same result"
        elif fits:
            remedy = f"{fits} rows fit: --set execution.micro_rows={fits} gives the same result"
        else:
            remedy = "not even one row fits: use shorter rows or a smaller model"
        length, device = batch.ids.shape[1], self.world.device
        # shorten between words: half a number would mislead
        failure = textwrap.shorten(failure, 200, placeholder=" ...")
        raise OutOfMemory(f"out of memory with rows of {length} tokens on {device} ({failure}); {remedy}")

    def _averages(self) -> list[Tensor]:
        return [local(average) for average in self.averages.values()]

    def _weights(self) -> list[Tensor]:
        weights = self.optimizer.weights
        return [local(weights[name].detach()) for name in self.averages]

    @contextlib.contextmanager
    def averaged(self) -> Iterator[None]:
        """A context in which the objective has its averaged weights, if the recipe asks for an average."""
        last = [weight.clone() for weight in self._weights()]
        self.take_average()
        try:
            yield
        finally:
            if isinstance(self.model, FSDPModule):
                self.model.reshard()  # FSDP2 keeps what it gathered for a pass without gradients, here of the average
            if last:
                torch._foreach_copy_(self._weights(), last)

    def take_average(self) -> None:
        """Replace the weights by their average, if the recipe asks for one."""
        if self.averages:
            torch._foreach_copy_(self._weights(), self._averages())

    def weights(self) -> dict[str, Tensor]:
        """Copies of the objective's tensors in CPU memory: whole ones on the first process; with FSDP, each process has
        its parts.
        """
        return self._copied(named_tensors(self.objective))

    def carried(self) -> dict[str, Tensor]:
        """The other tensors that are carried from step to step, as :meth:`weights`: moments, averages, memory."""
        memory = {f"{MEMORY}{i}": torch.cat(self.world.gather_rows(m)).float() for i, m in enumerate(self.memory or ())}
        return self._copied(self._moving() | memory)

    def _moving(self) -> dict[str, Tensor]:
        """Moments and averages of weights by their names in a checkpoint."""
        moments = self.optimizer.state.items()
        return {f"{kind}/{name}": tensor for name, kinds in moments for kind, tensor in kinds.items()} | {
            f"{AVERAGE}{name}": tensor for name, tensor in self.averages.items()
        }

    def counters(self) -> dict[str, float]:
        """The plain numbers that are carried from step to step."""
        return {"updates": self.optimizer.steps, "scale": self.scale, "fine_steps": self.fine_steps}

    def restore(self, stored: StoredTensors, counters: Mapping[str, float]) -> None:
        """Restore :meth:`carried` and :meth:`counters` of an earlier engine with any number of processes.

        Raises:
            DataError: a tensor is missing, or has another shape or type.
        """
        layers = range(sum(name.startswith(MEMORY) for name in stored))
        memory = {f"{MEMORY}{i}": torch.empty(stored.about[f"{MEMORY}{i}"].size) for i in layers}
        stored.read_into(self._moving() | memory)
        if memory:
            start, stop = self.world.share(len(memory[f"{MEMORY}0"]))
            self.memory = tuple(layer[start:stop].to(self.world.device) for layer in memory.values())
        self.optimizer.steps = int(counters["updates"])
        self.scale, self.fine_steps = float(counters["scale"]), int(counters["fine_steps"])

    def _copied(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        plain = {name: tensor.detach() for name, tensor in tensors.items()}
        if self.sharded:
            return DefaultStager(StagingOptions(False, False, False, False)).stage(plain)  # type: ignore[return-value]
        return {name: tensor.to("cpu", copy=True) for name, tensor in plain.items()} if self.world.main else {}


def seed_torch(seed: int, device: torch.device) -> None:
    """Seed torch's own generators, for code that draws from them and not from noise; exact on resuming, but not per
    row.

    Not ``torch.manual_seed``, which formats a stack trace per call while CUDA is not initialised.
    """
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)


def join_memory(parts: list[Memory]) -> Memory:
    """The memories of micro-batches, concatenated over rows."""
    kept = [part for part in parts if part is not None]
    if len(kept) < len(parts) or not kept:
        return None
    return kept[0] if len(kept) == 1 else tuple(torch.cat(layers) for layers in zip(*kept, strict=True))
