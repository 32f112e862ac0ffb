"""Processes under torchrun: their ranks, their agreements, and how they share a model (DDP or FSDP2).

Gradients are sums over processes: the loop divides by counts of the whole batch, and multiplies the loss by the number
of processes because both engines average. Counts, clocks and stop requests are exchanged in one small message per step
over the CPU (gloo), so that no process waits for its accelerator because of them.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from queue import SimpleQueue
from threading import Thread
from typing import Any, Literal, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from encoderlab.errors import ConfigError, Diverged, EncoderlabError, Stopped
from encoderlab.execution.workers import rank_and_size, variable, versions
from encoderlab.nn.encoder import Encoder

Made = TypeVar("Made")
SEE_THERE = "its message says why"
PATIENCE = timedelta(days=1)  # instead of the half hour in which other messages must arrive
FAILED = "encoderlab/failed"  # the key under which a process leaves its error in the store


@dataclass(frozen=True)
class World:
    """This process among ``size`` processes, and its device."""

    rank: int
    size: int
    device: torch.device
    group: dist.ProcessGroup | None = None
    """The channel of messages; None is the one of the main thread."""

    @property
    def main(self) -> bool:
        """Whether this process writes files and prints to the terminal."""
        return self.rank == 0

    def sum(self, values: Sequence[float], *, patient: bool = False) -> list[float]:
        """Element-wise sums over all processes, exact for integers below 2**53; every process must call it.

        ``patient``: another process may do long work before, as reading a corpus.
        """
        if self.size == 1:
            return list(values)
        message, options = torch.tensor(values, dtype=torch.float64), dist.AllreduceOptions()
        if patient:
            options.timeout = PATIENCE
        group = self.group or dist.group.WORLD
        assert group is not None
        with company():
            group.allreduce([message], options).wait()
        return message.tolist()

    def gather(self, own: Any) -> list[Any]:
        """The plain data of every process, in the order of ranks; every process must call it."""
        letters = torch.frombuffer(bytearray(json.dumps(own).encode()), dtype=torch.uint8)
        return [json.loads(bytes(part.tolist())) for part in self.gather_rows(letters)]

    def apart(self) -> World:
        """The same processes with a separate message channel, for another thread; every process must call it."""
        return replace(self, group=dist.new_group(backend="gloo")) if self.size > 1 else self

    def agree(self, decide: Callable[[], float | None]) -> float:
        """The result of ``decide`` on the first process, 0 for None; if it raises there, every process ends.

        Raises:
            Exception: the first process's error; on the others an EncoderlabError that refers to it.
        """
        answer, error = 0.0, None
        if self.main:
            try:
                answer = decide() or 0.0
            except Exception as failure:
                error = failure
        answer, code = self.sum([answer, 0 if error is None else getattr(error, "code", 1)], patient=True)
        if code:
            raise error or _elsewhere(int(code), f"stopped because process 0 failed; {SEE_THERE}")
        return answer

    def everywhere(self, act: Callable[[], Made]) -> Made:
        """The result of ``act`` here; if it fails on any process, all end. Every process must call it.

        Raises:
            EncoderlabError: this process's error; the first process names the node of another's.
        """
        made, error = None, None
        try:
            made = act()
        except Exception as failure:
            error = failure
        self.wait()
        told = self.gather(None if error is None else _told(error, self.rank))
        if error is not None:
            raise error
        if failed := [failure for failure in told if failure]:
            raise _heard(failed[0], self.rank)
        return made  # type: ignore[return-value]

    def same(self, facts: Mapping[str, Any], remedy: str) -> None:
        """Refuse to continue if a process has other ``facts`` than the first. Every process must call it.

        Raises:
            ConfigError: names the node, the fact and the ``remedy``.
        """
        told = self.gather([platform.node(), dict(facts)])
        here, ours = told[0]
        for rank, (node, theirs) in enumerate(told):
            for name in sorted(ours.keys() | theirs.keys()):
                if ours.get(name) != theirs.get(name):
                    raise ConfigError(
                        f"process {rank} on {node} has {name} {theirs.get(name)}, and process 0 on {here} has "
                        f"{ours.get(name)}; {remedy}"
                    )

    def wait(self) -> None:
        """Wait for every process to call this."""
        self.sum([0.0], patient=True)

    def gather_rows(self, tensor: Tensor) -> list[Tensor]:
        """The rows of each process, in the order of ranks; processes may have different numbers of rows."""
        if self.size == 1:
            return [tensor]
        counts = [int(count) for count in self.sum([len(tensor) * (rank == self.rank) for rank in range(self.size)])]
        padded = tensor.new_zeros(max(counts), *tensor.shape[1:])  # the exchange needs equal shapes
        padded[: len(tensor)] = tensor
        parts = [torch.empty_like(padded) for _ in counts]
        dist.all_gather(parts, padded, group=self.group)
        return [part[:count] for part, count in zip(parts, counts, strict=True)]

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
    """A context for calls that need the other processes; if one has ended, the error says so, instead of an error of
    gloo or NCCL. An error of this process alone is left for the others, who only see that it has ended.

    Raises:
        EncoderlabError: that of the process that has ended, with its exit code.
        Stopped: it has left no error; the run can continue from its last checkpoint.
    """
    try:
        yield
    except EncoderlabError as error:
        if not isinstance(error, (Diverged, Stopped)) and dist.is_initialized():  # which all processes see
            with contextlib.suppress(RuntimeError):
                _store().set(FAILED, json.dumps(_told(error, dist.get_rank())))
        raise
    except RuntimeError as error:
        text = str(error).lower()
        if not (isinstance(error, dist.DistError) or "gloo" in text and any(sign in text for sign in LOST)):
            raise
        with contextlib.suppress(RuntimeError):  # the store ends with the process that has it
            if dist.is_initialized() and _store().check([FAILED]):
                raise _heard(json.loads(_store().get(FAILED)), dist.get_rank()) from None
        raise Stopped(
            "another process of this run has ended or cannot be reached (see its message); run the same "
            "command again to resume from the last checkpoint"
        ) from None


def join(device: Literal["auto", "cpu", "cuda"] = "auto") -> World:
    """The world of torchrun's environment, or a world of one process.

    Raises:
        ConfigError: ``cuda`` is requested but absent, a machine has more processes than GPUs, torchrun's variables
            cannot be, or nodes have different versions of the software.
        Stopped: the processes do not find each other.
    """
    if device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device cuda: no CUDA device is available; set execution.device=cpu or auto")
    cuda = device != "cpu" and torch.cuda.is_available()
    rank, size = rank_and_size()
    own = variable("LOCAL_RANK", "0")
    place = torch.device("cuda", own) if cuda else torch.device("cpu")
    if cuda:
        if own >= torch.cuda.device_count():
            raise ConfigError(
                f"process {own} of this machine has no GPU: the machine has {torch.cuda.device_count()}; "
                "start as many processes as there are GPUs, or set execution.device=cpu"
            )
        torch.cuda.set_device(place)
    world = World(rank, size, place)
    if size > 1 and not dist.is_initialized():
        _check_restarts()
        _meet(rank, size, "cpu:gloo,cuda:nccl" if cuda else "gloo")
        atexit.register(dist.destroy_process_group)
        world.same(versions(), "install the same versions on all nodes")
    return world


def _meet(rank: int, size: int, backend: str) -> None:
    """Meet the other processes at the address that torchrun's variables name."""
    host, port = os.environ.get("MASTER_ADDR"), variable("MASTER_PORT")
    if not host:
        raise ConfigError("MASTER_ADDR is not set, expected the first node's name; start processes with torchrun")
    try:
        dist.init_process_group(backend)
    except RuntimeError as error:
        kind = Stopped if isinstance(error, dist.DistError) else ConfigError  # gloo's, of the network of this machine
        raise kind(
            f"process {rank} did not meet the other {size - 1} at {host}:{port} ({str(error).splitlines()[0]}); see "
            "their messages, and check that all nodes reach this address, and each other (GLOO_SOCKET_IFNAME names the "
            "network to use)"
        ) from None


def _check_restarts() -> None:
    """Refuse restarts by torchrun that would wait forever for addresses of ended processes, which it keeps in a store
    that outlives them (pytorch#135712).
    """
    elastic = os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0") != "0"
    if elastic and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        raise ConfigError(
            "torchrun cannot restart processes with a store that it shares with them; set the variable "
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 and --rdzv-backend=c10d, or leave out --max-restarts"
        )


def spread(
    module: nn.Module, world: World, parallel: Literal["ddp", "fsdp"], exchange: Literal["bf16"] | None = None
) -> nn.Module:
    """The module to call in training; processes exchange gradients in fp32, or in the precision ``exchange``.

    Both engines send a part of the gradients while the backward pass computes the next (a bucket of DDP, a block of
    FSDP2). FSDP2 changes ``module`` in place: one shard group per encoder block and one for the rest.
    """
    if world.size == 1:
        return module
    if parallel == "ddp":
        # A step may not use a head (the batch has no target for it, or networks train in turns).
        spread_module = DistributedDataParallel(module, find_unused_parameters=True, gradient_as_bucket_view=True)
        if exchange == "bf16":
            if world.device.type == "cuda":
                spread_module.register_comm_hook(None, bf16_compress_hook)
            else:
                wire = _Bf16Wire(world.apart())
                spread_module.register_comm_hook(None, lambda _, bucket: wire.send(bucket))
        return spread_module
    policy = MixedPrecisionPolicy(reduce_dtype=torch.bfloat16 if exchange == "bf16" else None)
    mesh = init_device_mesh(world.device.type, (world.size,))
    for encoder in [part for part in module.modules() if isinstance(part, Encoder) and part.config.sharing is None]:
        for block in encoder.blocks:
            fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(module, mesh=mesh, mp_policy=policy)
    return module


class _Bf16Wire:
    """DDP's communication hook for CPUs: a thread that averages buckets in bf16, one after another.

    gloo refuses torch's own hook. A hook that ends in a callback of gloo can hang when its group is destroyed, because
    the destruction then waits for a thread that waits for the interpreter.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.waiting: SimpleQueue[tuple[Tensor, Future[Tensor]]] = SimpleQueue()
        Thread(target=self._carry, name="gradients", daemon=True).start()

    def send(self, bucket: dist.GradBucket) -> Future[Tensor]:
        """The average of the bucket, later."""
        average: Future[Tensor] = Future()
        self.waiting.put((bucket.buffer(), average))
        return average

    def _carry(self) -> None:
        while True:
            values, average = self.waiting.get()
            narrow = values.bfloat16().div_(self.world.size)
            # If a process is lost, these gradients are wrong: the next message of the step's thread says so and ends
            # the run before anything is saved. An error would not reach that thread from here.
            with contextlib.suppress(RuntimeError):
                dist.all_reduce(narrow, group=self.world.group)
            average.set_result(values.copy_(narrow))


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


def _told(error: Exception, rank: int) -> list[Any]:
    """What the other processes are told of an error of the process ``rank``."""
    return [rank, platform.node(), str(error), error.code if isinstance(error, EncoderlabError) else 1]


def _heard(told: list[Any], rank: int) -> EncoderlabError:
    """The error of the process ``rank`` if another one has failed, see :func:`_told`."""
    failed, node, message, code = told
    who = f"process {failed} on {node}"
    return _elsewhere(code, f"{who}: {message}" if rank == 0 else f"stopped because {who} failed; {SEE_THERE}")


def _store() -> dist.Store:
    """The messages that stay: those of the place of meeting."""
    return dist.distributed_c10d._get_default_store()


def _elsewhere(code: int, message: str) -> EncoderlabError:
    """The error for the other processes if one has failed."""
    error = EncoderlabError(message)
    error.code = code
    return error
