"""Processes under torchrun: their ranks, their agreements, and how they share a model (DDP or FSDP2).

Gradients are sums over processes: the loop divides by counts of the whole batch, and multiplies the loss by the number
of processes because both engines average. Counts, clocks and stop requests are exchanged in one small message per step
over the CPU (gloo), so that no process waits for its accelerator because of them.
"""

from __future__ import annotations

import atexit
import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from encoderlab.errors import ConfigError, EncoderlabError, Stopped
from encoderlab.nn.encoder import Encoder


@dataclass(frozen=True)
class World:
    """This process among ``size`` processes, and its device."""

    rank: int
    size: int
    device: torch.device

    @property
    def main(self) -> bool:
        """Whether this process writes files and prints to the terminal."""
        return self.rank == 0

    def sum(self, values: Sequence[float]) -> list[float]:
        """Element-wise sums over all processes, exact for integers below 2**53; every process must call it."""
        if self.size == 1:
            return list(values)
        message = torch.tensor(values, dtype=torch.float64)
        with company():
            dist.all_reduce(message)
        return message.tolist()

    def agree(self, decide: Callable[[], float]) -> float:
        """The result of ``decide`` on the first process; if it raises there, every process ends.

        Raises:
            EncoderlabError: the first process's error, or one that refers to it.
        """
        answer, error = 0.0, None
        if self.main:
            try:
                answer = decide()
            except EncoderlabError as failure:
                error = failure
        answer, code = self.sum([answer, 0 if error is None else error.code])
        if code:
            raise error or _elsewhere(int(code))
        return answer

    def wait(self) -> None:
        """Wait for every process to call this."""
        self.sum([0.0])

    def gather_rows(self, tensor: Tensor) -> Tensor:
        """The rows of all processes concatenated; processes may have different numbers of rows."""
        if self.size == 1:
            return tensor
        counts = [int(count) for count in self.sum([len(tensor) * (rank == self.rank) for rank in range(self.size)])]
        padded = tensor.new_zeros(max(counts), *tensor.shape[1:])  # the exchange needs equal shapes
        padded[: len(tensor)] = tensor
        parts = [torch.empty_like(padded) for _ in counts]
        dist.all_gather(parts, padded)
        return torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])

    def share(self, rows: int) -> tuple[int, int]:
        """Start and end of this process's contiguous part of a batch."""
        return rows * self.rank // self.size, rows * (self.rank + 1) // self.size


LOST = (
    "connection reset",
    "connection closed",
    "connection refused",
    "broken pipe",
    "read error",
    "write error",
    "timed out",
)


@contextlib.contextmanager
def company() -> Iterator[None]:
    """A context for calls that need the other processes; if one has ended, the error says so instead of gloo's or
    NCCL's.

    Raises:
        Stopped: the run can continue from its last checkpoint.
    """
    try:
        yield
    except RuntimeError as error:
        text = str(error).lower()
        if not (isinstance(error, dist.DistError) or "gloo" in text and any(sign in text for sign in LOST)):
            raise
        raise Stopped(
            "another process of this run has ended or cannot be reached (see its message); run the same "
            "command again to resume from the last checkpoint"
        ) from None


def join(device: Literal["auto", "cpu", "cuda"] = "auto") -> World:
    """The world that torchrun's environment describes, or a world of one process.

    Raises:
        ConfigError: ``cuda`` is requested but absent, or a machine has more processes than GPUs.
    """
    if device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device cuda: no CUDA device is available; set execution.device=cpu or auto")
    cuda = device != "cpu" and torch.cuda.is_available()
    size = int(os.environ.get("WORLD_SIZE", "1"))
    own = int(os.environ.get("LOCAL_RANK", "0"))
    place = torch.device("cuda", own) if cuda else torch.device("cpu")
    if cuda:
        if own >= torch.cuda.device_count():
            raise ConfigError(
                f"process {own} of this machine has no GPU: the machine has {torch.cuda.device_count()}; "
                "start as many processes as there are GPUs, or set execution.device=cpu"
            )
        torch.cuda.set_device(place)
    if size > 1 and not dist.is_initialized():
        dist.init_process_group("cpu:gloo,cuda:nccl" if cuda else "gloo")
        atexit.register(dist.destroy_process_group)
    return World(int(os.environ.get("RANK", "0")), size, place)


def spread(module: nn.Module, world: World, parallel: Literal["ddp", "fsdp"]) -> nn.Module:
    """The module to call in training.

    FSDP2 changes ``module`` in place: one shard group per encoder block and one for the rest.
    """
    if world.size == 1:
        return module
    if parallel == "ddp":
        # A step may not use a head (the batch has no target for it, or networks train in turns).
        return DistributedDataParallel(module, find_unused_parameters=True, gradient_as_bucket_view=True)
    mesh = init_device_mesh(world.device.type, (world.size,))
    for encoder in [part for part in module.modules() if isinstance(part, Encoder) and part.config.sharing is None]:
        for block in encoder.blocks:
            fully_shard(block, mesh=mesh)
    fully_shard(module, mesh=mesh)
    return module


@contextlib.contextmanager
def synchronised(module: nn.Module, last: bool) -> Iterator[None]:
    """Exchange gradients in this backward pass only if it is the ``last`` of the step."""
    if isinstance(module, DistributedDataParallel) and not last:
        with module.no_sync():
            yield
        return
    if isinstance(module, FSDPModule):
        module.set_requires_gradient_sync(last)
    yield


def named_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers that make up the state of ``module``; tied ones once, under their first name."""
    seen: set[int] = set()
    named = {}
    for name, tensor in module.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            named[name] = tensor
    return named


def whole(tensor: Tensor) -> Tensor:
    """The full tensor of a possibly sharded one; every process must call it."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


@torch.no_grad()
def assign(target: Tensor, value: Tensor) -> None:
    """Copy the whole tensor ``value`` into ``target``, which may be sharded; no communication."""
    if isinstance(target, DTensor):
        value = value.to(target.device, target.dtype)
        value = distribute_tensor(value, target.device_mesh, target.placements, src_data_rank=None)
    target.copy_(value)


def _elsewhere(code: int) -> EncoderlabError:
    """The error for the other processes if the first one has failed."""
    error = EncoderlabError("stopped because process 0 failed; its message says why")
    error.code = code
    return error
