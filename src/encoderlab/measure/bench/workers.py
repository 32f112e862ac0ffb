"""Contenders in separate processes, which work only on request: memory is counted for each, and none computes during
another's turn.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor

from encoderlab.batches.rows import Row
from encoderlab.errors import EncoderlabError, OutOfMemory, is_out_of_memory
from encoderlab.inference import device_name, usual_device
from encoderlab.measure.bench.contenders import LR, Ours, Theirs
from encoderlab.measure.bench.families import Case
from encoderlab.measure.bench.parts import time_by_part
from encoderlab.nn import kernels
from encoderlab.objectives.vocabulary import Vocabulary
from encoderlab.train.folder import peak_memory
from encoderlab.train.precision import precision, products
from encoderlab.train.recipe import Precision

BURST = 0.02  # seconds, of products in a row on a GPU


@dataclass(frozen=True, kw_only=True)
class Work:
    """The input of a worker; ``rows`` are the batches that it repeats."""

    contender: str
    case: Case
    vocabulary: Vocabulary
    rows: list[list[Row]]
    threads: int
    precision: Precision
    compile: bool


class Worker:
    """A process with one contender; every call waits for its answer.

    Raises:
        EncoderlabError: the process failed; the message is its error's.
    """

    def __init__(self, work: Work) -> None:
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # read by torch, whose profiler otherwise prints messages
        context = multiprocessing.get_context("spawn")
        self.pipe, other = context.Pipe()
        self.process = context.Process(target=_serve, args=(other, work), daemon=True)
        self.process.start()

    def call(self, verb: str, *arguments: Any) -> Any:
        """Ask for ``verb`` and wait."""
        try:
            self.pipe.send((verb, arguments))
            answer = self.pipe.recv()
        except (EOFError, OSError):
            self.process.join(10)
            raise EncoderlabError(
                f"a benchmark process ended with code {self.process.exitcode}; is there enough memory?"
            ) from None
        if isinstance(answer, EncoderlabError):
            raise answer
        return answer

    def close(self) -> None:
        with suppress(OSError):  # it has ended
            self.pipe.send(("stop", ()))
        self.process.join(10)


def _serve(pipe: Connection, work: Work) -> None:
    """The main function of a worker process: answer the requests in ``pipe`` until one asks to stop."""
    try:
        player = _Player(work)
    except Exception as error:  # whatever the error, the waiting process must get it
        pipe.recv()
        pipe.send(_failure(work, error))
        return
    verbs: dict[str, Callable[..., Any]] = {
        "steps": player.steps,
        "peak": player.peak,
        "profile": player.profile,
        "memory": player.memory,
        "device": lambda: device_name(player.device),
    }
    while (message := pipe.recv())[0] != "stop":
        verb, arguments = message
        try:
            pipe.send(verbs[verb](*arguments))
        except Exception as error:  # as above; the next request may still succeed
            pipe.send(_failure(work, error))


class _Player:
    """The contender of a worker on its device, with its batches and its optimizer.

    Raises:
        EncoderlabError: the contender cannot be built, or a batch has nothing to predict.
    """

    def __init__(self, work: Work) -> None:
        self.work, self.device = work, usual_device()
        self.is_ours = work.contender == "ours"
        torch.set_num_threads(work.threads)
        torch.backends.cudnn.allow_tf32 = False  # as for products by default: fp32 is single precision, for everybody
        if self.is_ours:
            kernels.keep_memory()  # as our training loop does
        self.memory_before = peak_memory() or 0
        self.gpu_memory = 0  # the largest allocation during counted steps
        self.number = 0  # of the next step

        made_of = work.case, work.vocabulary
        self.contender = Ours(*made_of) if self.is_ours else Theirs(*made_of, compile=work.compile)
        maker = self.contender if isinstance(self.contender, Ours) else Ours(work.case, work.vocabulary)
        started = time.perf_counter()
        made = maker.batches(work.rows)
        arranged = [self.contender.arranged(batch) for batch in made]
        self.preparing = (time.perf_counter() - started) / len(work.rows)  # seconds per batch
        self.batches = [batch.to(self.device) for batch in arranged]
        self.sizes = [batch.num_tokens for batch in made]
        del maker  # before the optimizer takes its memory
        contender = self.contender
        if isinstance(contender, Ours) and self.device.type == "cuda":
            contender.record(self.batches)
        network = contender.objective if isinstance(contender, Ours) else contender.networks
        network.to(self.device)
        self.optimizer = torch.optim.AdamW(contender.parameters, lr=LR, fused=True)

    def steps(self, count: int, before: int = 0) -> tuple[float, float, list[float]]:
        """Seconds, real tokens and losses of ``count`` steps; ``before`` more steps come first and are not counted."""
        for _ in range(before):
            self._step()
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        tokens = sum(self.sizes[(self.number + i) % len(self.batches)] for i in range(count))
        started = self._now()
        losses = [self._step() for _ in range(count)]
        seconds = self._now() - started
        if self.device.type == "cuda":
            self.gpu_memory = max(self.gpu_memory, torch.cuda.max_memory_allocated())
            torch.cuda.empty_cache()  # the other contender has the device to itself
        return seconds, float(tokens), [float(loss) for loss in losses]

    def peak(self) -> tuple[float, float]:
        """Operations per second of matrix products at the model's own feed-forward shape: the best of eight bursts, and
        all bursts together, the rate that a shared machine sustains.
        """
        encoder = self.work.case.model.encoder
        dtype = torch.bfloat16 if self.work.precision == "bf16" else torch.float32
        positions = max(len(part) * max(map(len, part)) for part in self.work.rows)  # of a batch, padding included
        x = torch.randn(positions, encoder.width, device=self.device, dtype=dtype)
        w = torch.randn(encoder.width, encoder.ff_width, device=self.device, dtype=dtype)

        def burst(count: int) -> float:
            started = self._now()
            with self._products():
                for _ in range(count):
                    x @ w
            return self._now() - started

        count = 4
        if self.device.type == "cuda":  # long enough that the host's clock and the launch of a product do not matter
            burst(count)
            count = max(count, math.ceil(count * BURST / burst(count)))
        seconds = [burst(count) for _ in range(8)]
        operations = count * 2.0 * x.shape[0] * w.numel()
        return operations / min(seconds), operations * len(seconds) / sum(seconds)

    def profile(self) -> dict[str, float]:
        """Seconds of one step by part; on a CPU with ``data``, the making of a batch."""

        def once() -> None:
            self._step()
            self._now()

        if self.device.type == "cuda":
            once()  # whose memory is allocated again
            return time_by_part(once, self.work.case, self.device)  # a GPU does not wait for its batches
        return time_by_part(once, self.work.case, self.device) | {"data": self.preparing}

    def memory(self) -> int:
        """Bytes: on a GPU the largest allocation in counted steps, else the growth of the process."""
        return self.gpu_memory if self.device.type == "cuda" else (peak_memory() or 0) - self.memory_before

    def _step(self) -> Tensor:
        batch = self.batches[self.number % len(self.batches)]
        with self._products():
            with precision(self.work.precision, self.device):
                loss = self.contender.loss(batch, self.number)
            loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.number += 1
        return loss.detach()

    def _products(self) -> AbstractContextManager[None]:
        """How matrix products are computed: ours as in our training loop, others as torch does."""
        return products(self.work.precision, self.device) if self.is_ours else nullcontext()

    def _now(self) -> float:
        """The time in seconds after the device has finished all its work."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()


def _failure(work: Work, error: Exception) -> EncoderlabError:
    if isinstance(error, EncoderlabError):
        return error
    reason = " ".join(str(error).split())[:300]
    if is_out_of_memory(error):
        return OutOfMemory(f"{work.contender}: out of memory ({reason}); use a smaller model or fewer rows")
    return EncoderlabError(f"{work.contender} failed: {type(error).__name__}: {reason}")
