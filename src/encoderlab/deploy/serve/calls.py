"""One request: its texts are checked, prepared and computed, and each stage is timed."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from starlette.requests import Request

from encoderlab.deploy.serve.engine import ComputeThread, Failed, Late, PendingRequest
from encoderlab.deploy.serve.http import Limits, Problem, gone
from encoderlab.deploy.serve.metrics import Metrics
from encoderlab.deploy.serve.service import Works
from encoderlab.deploy.serve.texts import Refused
from encoderlab.errors import EncoderlabError


class Call:
    """One request to a model.

    Args:
        lane: prefix of this model's kinds of work in the engine.

    Attributes:
        tokenizing: seconds of preparation.
        job: the request's place in the queue, once it has one.
    """

    def __init__(self, request: Request, engine: ComputeThread, limits: Limits, lane: str) -> None:
        self.request, self.engine, self.limits, self.lane = request, engine, limits, lane
        self.began = time.perf_counter()
        self.tokenizing, self.characters = 0.0, 0
        self.job: PendingRequest | None = None

    def check(self, texts: Sequence[Any], field: str = "inputs") -> None:
        """Refuse no, too many or too long texts, before they are tokenized; ``field`` has them."""
        if not texts:
            raise Problem(400, f"`{field}` cannot be empty", "Empty", param=field)
        if len(texts) > self.limits.texts:
            raise Problem(
                422, f"batch size {len(texts)} > maximum allowed batch size {self.limits.texts}; send fewer at a time"
            )
        for text in texts:
            if len(text) > self.limits.characters:
                raise Problem(
                    413,
                    f"a text has {len(text)} {'characters' if isinstance(text, str) else 'token ids'}, at most "
                    f"{self.limits.characters} are read; shorten it",
                )
            self.characters += len(text) if isinstance(text, str) else 0

    async def prepared(self, make: Callable[[], Any]) -> Any:
        """The result of a function of texts, run in a thread; tokenizing lets other threads run."""
        began = time.perf_counter()
        try:
            return await asyncio.get_running_loop().run_in_executor(None, make)
        except (Refused, EncoderlabError) as refused:
            raise Problem(422, str(refused)) from None
        finally:
            self.tokenizing += time.perf_counter() - began

    async def computed(self, works: Works) -> list[Any]:
        """The results of works; the request is dropped if the client disconnects or the deadline passes, even while its
        batch is computed."""
        left = max(0.0, self.limits.deadline - (time.perf_counter() - self.began))
        job = self.engine.submit(self.lane + works.kind, works.works, works.tokens, within=left)
        self.job = job
        watch = asyncio.ensure_future(gone(self.request))
        try:
            waited: set[asyncio.Future[Any]] = {job.future, watch}
            done, _ = await asyncio.wait(waited, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                raise Late
            if not job.future.done():
                raise Problem(499, "the client has gone", "Validation")
            return job.future.result()
        except Late:
            raise Problem(504, f"not answered within {self.limits.deadline:g} seconds", "Overloaded") from None
        except Refused as refused:
            raise Problem(422, str(refused)) from None
        except Failed as failed:
            raise Problem(424, str(failed), "Backend") from None
        finally:
            watch.cancel()
            if not job.future.done():
                job.drop()

    @property
    def tokens(self) -> int:
        """The number of computed tokens."""
        return 0 if self.job is None else sum(entry.tokens for entry in self.job.entries)

    def headers(self, device: str, metrics: Metrics) -> dict[str, str]:
        """Headers with the cost of the answer, which ``metrics`` counts too."""
        total = time.perf_counter() - self.began
        headers = {"x-compute-type": device, "x-total-time": _milliseconds(total)}
        headers |= {"x-compute-characters": str(self.characters), "x-request-id": uuid.uuid4().hex}
        job = self.job
        if job is not None:
            metrics.computed(job, tokenizing=self.tokenizing, total=total)
            headers["x-compute-tokens"] = str(self.tokens)
            headers["x-tokenization-time"] = _milliseconds(self.tokenizing)
            headers["x-queue-time"] = _milliseconds(max(job.started - job.arrived, 0.0))
            headers["x-inference-time"] = headers["x-compute-time"] = _milliseconds(max(job.ended - job.started, 0.0))
        return headers


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.3f}"
