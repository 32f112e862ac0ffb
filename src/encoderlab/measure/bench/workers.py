"""Contenders in processes of their own, which work only when told to.

So memory is counted apart, and time is shared fairly.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import resource
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from encoderlab.batches.pack import Row
from encoderlab.errors import EncoderlabError
from encoderlab.measure.bench.families import Case
from encoderlab.objectives.vocabulary import Vocabulary
from encoderlab.train.recipe import Precision

BURST = 0.02  # seconds, of products in a row on a GPU


@dataclass(frozen=True, kw_only=True)
class Work:
    """What a worker is started with; ``rows`` are the batches that it goes through again and again."""

    contender: str
    case: Case
    vocabulary: Vocabulary
    rows: list[list[Row]]
    threads: int
    precision: Precision
    compile: bool


class Worker:
    """A process that holds one contender; every call waits for its answer.

    Raises:
        EncoderlabError: what the process raised, by its message.
    """

    def __init__(self, work: Work) -> None:
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # read by torch, whose profiler is loud else
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
    import torch
    from torch import Tensor

    from encoderlab.inference import device_name, usual_device
    from encoderlab.measure.bench.contenders import CONTENDERS, LR, Ours
    from encoderlab.nn import kernels
    from encoderlab.train.precision import precision, products

    torch.set_num_threads(work.threads)
    case, rows = work.case, work.rows
    device = usual_device()
    torch.backends.cudnn.allow_tf32 = False  # as for products by default: fp32 is single precision, whoever computes
    ours = nullcontext if work.contender != "ours" else lambda: products(work.precision, device)  # as in our loop
    if work.contender == "ours":
        kernels.keep_memory()  # as our training loop does
    before = _peak_memory()
    state = {"step": 0, "memory": 0}
    try:
        player = CONTENDERS[work.contender](case, work.vocabulary, compile=work.compile)
        maker = player if isinstance(player, Ours) else Ours(case, work.vocabulary)
        started = time.perf_counter()
        made = maker.batches(rows)
        arranged = [player.arranged(batch) for batch in made]
        preparing = (time.perf_counter() - started) / len(rows)  # seconds per batch
        batches, sizes = [batch.to(device) for batch in arranged], [batch.num_tokens for batch in made]
        if maker is not player:
            del maker
        network = player.objective if isinstance(player, Ours) else player.networks
        network.to(device)
        optimizer = torch.optim.AdamW(player.parameters, lr=LR, fused=True)
    except Exception as error:
        pipe.recv()
        pipe.send(_failure(work, error))
        return

    def now() -> float:
        """The time in seconds when the device has done all it was given."""
        if device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    def step() -> Tensor:
        batch = batches[state["step"] % len(batches)]
        with ours():
            with precision(work.precision, device):
                loss = player.loss(batch, state["step"])
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        state["step"] += 1
        return loss.detach()

    def steps(count: int, before: int = 0) -> tuple[float, float, list[float]]:
        """Seconds, real tokens and losses of ``count`` steps, after some ``before`` them that are not counted."""
        for _ in range(before):
            step()
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        tokens = sum(sizes[(state["step"] + i) % len(batches)] for i in range(count))
        started = now()
        losses = [step() for _ in range(count)]
        seconds = now() - started
        if device.type == "cuda":
            state["memory"] = max(state["memory"], torch.cuda.max_memory_allocated())
            torch.cuda.empty_cache()  # the other contender has the device to itself
        return seconds, float(tokens), [float(loss) for loss in losses]

    def peak() -> tuple[float, float]:
        """Operations per second of matrix products at the model's own feed-forward shape: of the best of eight bursts,
        and of all of them together, which is what a shared machine sustains.
        """
        encoder = case.model.encoder
        dtype = torch.bfloat16 if work.precision == "bf16" else torch.float32
        x = torch.randn(rows_tokens(rows), encoder.width, device=device, dtype=dtype)
        w = torch.randn(encoder.width, encoder.ff_width, device=device, dtype=dtype)

        def burst(products: int) -> float:
            started = now()
            with ours():
                for _ in range(products):
                    x @ w
            return now() - started

        products = 4
        if device.type == "cuda":  # until the clock of the host and the launch of a product do not matter
            burst(products)
            products = max(products, math.ceil(products * BURST / burst(products)))
        seconds = [burst(products) for _ in range(8)]
        operations = products * 2.0 * x.shape[0] * w.numel()
        return operations / min(seconds), operations * len(seconds) / sum(seconds)

    def profile() -> dict[str, float]:
        from encoderlab.measure.bench.parts import time_by_part

        def once() -> None:
            step()
            now()

        if device.type == "cuda":
            once()  # whose memory is at hand again
        parts = time_by_part(once, case, device)
        return parts if device.type == "cuda" else parts | {"data": preparing}  # a GPU does not wait for it

    verbs: dict[str, Callable[..., Any]] = {
        "steps": steps,
        "peak": peak,
        "profile": profile,
        "memory": lambda: state["memory"] if device.type == "cuda" else _peak_memory() - before,
        "device": lambda: device_name(device),
    }
    while (message := pipe.recv())[0] != "stop":
        verb, arguments = message
        try:
            pipe.send(verbs[verb](*arguments))
        except Exception as error:
            pipe.send(_failure(work, error))


def _failure(work: Work, error: Exception) -> EncoderlabError:
    if isinstance(error, EncoderlabError):
        return error
    reason = " ".join(str(error).split())[:300]
    return EncoderlabError(f"{work.contender} failed: {type(error).__name__}: {reason}")


def rows_tokens(rows: list[list[Row]]) -> int:
    """Positions of a batch, padding included."""
    return max(len(part) * max(len(row) for row in part) for part in rows)


def _peak_memory() -> int:
    """Bytes of the largest resident size so far; macOS gives bytes, Linux kilobytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
