"""A server: the routes of one model or two, and its description of itself."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import ASGIApp

from encoderlab import __version__
from encoderlab.deploy.serve import page
from encoderlab.deploy.serve.calls import Call
from encoderlab.deploy.serve.engine import ComputeThread, Failed, Overloaded
from encoderlab.deploy.serve.handlers import Handler, Handlers
from encoderlab.deploy.serve.http import (
    SECURITY,
    Guard,
    Guarded,
    Limits,
    Problem,
    Protocol,
    answer,
    body_of,
    error,
    parsed,
)
from encoderlab.deploy.serve.metrics import Metrics
from encoderlab.deploy.serve.service import Service
from encoderlab.deploy.serve.shapes import RequestShape

log = logging.getLogger(__name__)

COHERE = ("/v1/rerank", "/v2/rerank")
BESIDE = "/beside"  # the lane of a second model


def protocol_of(path: str) -> Protocol:
    """The protocol in which a path reports errors."""
    path = path.removeprefix(BESIDE)
    if path.startswith(COHERE):
        return "cohere"
    if path.startswith("/v1/"):
        return "openai"
    return "hf" if path in ("", "/") else "tei"


class Server:
    """One model behind HTTP; ``app`` is an ASGI application.

    Args:
        lane: prefix of this model's paths, and of its kinds of work in the engine.
        beside: the server of a second model, with its own lane, on the same engine.
    """

    def __init__(
        self,
        service: Service,
        engine: ComputeThread,
        *,
        limits: Limits | None = None,
        guard: Guard | None = None,
        accept_ids: bool = False,
        lane: str = "",
        beside: Server | None = None,
    ) -> None:
        self.service, self.engine = service, engine
        self.lane, self.beside = lane, beside
        self.limits = limits or Limits(characters=250 * service.longest)
        self.metrics = Metrics(engine)
        if beside is not None:
            beside.metrics = self.metrics
        self.ready = self.draining = False
        handlers = Handlers(service, accept_ids=accept_ids).by_path()
        if lane:
            handlers[""] = handlers["/"]  # clients add no slash to a path that they are given
        self.routes = [
            *(
                Route(lane + path, self._endpoint(path, shapes, handler), methods=["POST"])
                for path, (shapes, handler) in handlers.items()
            ),
            Route(f"{lane}/info", self.info, methods=["GET"]),
            Route(f"{lane}/v1/models", self.models, methods=["GET"]),
            Route(f"{lane}/v1/models/{{name:path}}", self.models, methods=["GET"]),
        ]
        routes = [*self.routes, *(beside.routes if beside is not None else ()), *page.routes()]
        routes += [Route(path, self.health, methods=["GET"]) for path in ("/health", "/ping")]
        routes += [
            Route("/live", self.live, methods=["GET"]),
            Route("/metrics", self.show_metrics, methods=["GET"]),
        ]
        inner = Starlette(routes=routes, exception_handlers={404: _unknown, 405: _unknown})
        inner.router.redirect_slashes = False  # a client that posts does not follow, and the name is the client's
        self.app: ASGIApp = Guarded(inner, guard or Guard(), protocol_of)

    def load(self) -> None:
        """Compute the shortest and the longest batch and start the engine; requests are refused until then."""
        both = [self, *([self.beside] if self.beside is not None else [])]
        for one in both:
            one.service.warm_up()
        self.engine.start()
        for one in both:
            one.ready = True

    @property
    def healthy(self) -> bool:
        """Whether requests are answered now."""
        return self.ready and not self.draining and not self.engine.stuck

    def _endpoint(
        self, path: str, shapes: tuple[type[RequestShape], ...], handler: Handler
    ) -> Callable[[Request], Awaitable[Response]]:
        protocol, method = protocol_of(path), (self.lane + path).strip("/") or "task"

        async def endpoint(request: Request) -> Response:
            call = Call(request, self.engine, self.limits, self.lane)
            self.metrics.requests.add(method)
            try:
                if not self.ready:
                    raise Problem(503, "the model is loading; try again soon", "Unhealthy", retry_after="2")
                body = parsed(shapes, await body_of(request, self.limits))
                if path not in ("/tokenize", "/decode"):
                    self.engine.check_wait()  # before the work of tokenizing
                result = await handler(body, call)
            except (Problem, Overloaded) as refused:
                problem = _overloaded(refused) if isinstance(refused, Overloaded) else refused
                self.metrics.failure.add(problem.kind.lower())
                return error(problem, protocol)
            except asyncio.CancelledError:  # --drain ran out, and nobody else cancels
                self.metrics.failure.add("unhealthy")
                ending = "the server ends, and could not answer in time; send the request again"
                return error(Problem(503, ending, "Unhealthy", connection="close"), protocol)
            except Exception as failure:
                log.exception("a request to %s failed", path)
                self.metrics.failure.add("backend")
                return error(Problem(424, str(Failed.of(failure)), "Backend"), protocol)
            self.metrics.success.add(method)
            return answer(result, headers=call.headers(self.service.device.type, self.metrics))

        return endpoint

    # About the server

    async def health(self, request: Request) -> Response:
        if self.healthy:
            return Response(status_code=200, headers=SECURITY)
        return error(Problem(503, "loading, draining or stuck", "Unhealthy", retry_after="2"), "tei")

    async def live(self, request: Request) -> Response:
        return Response(status_code=200, headers=SECURITY)

    async def show_metrics(self, request: Request) -> Response:
        return Response(self.metrics.text(), headers=SECURITY, media_type="text/plain; version=0.0.4")

    async def info(self, request: Request) -> Response:
        service = self.service
        named = {label: i for i, label in enumerate(service.labels)}
        labels = {"id2label": {str(i): label for label, i in named.items()}, "label2id": named}
        kind: dict[str, Any] = {
            "embedding": {"pooling": {"mean": "mean", "first": "cls", "last": "last_token"}[service.pooling]}
        }
        if service.form is not None:
            kind = {"reranker" if service.ranks else "classifier": labels}
        return answer(
            {
                "model_id": service.name,
                "model_sha": None,
                "model_dtype": "int8" if self.service.in_int8 else "float32",
                "served_model_name": service.name,
                "model_type": kind,
                "max_concurrent_requests": 512,
                "max_input_length": service.longest,
                "max_batch_tokens": self.engine.queue.budget,
                "max_batch_requests": None,
                "max_client_batch_size": self.limits.texts,
                "auto_truncate": True,
                "tokenization_workers": 1,
                "version": __version__,
                "sha": None,
                "docker_label": None,
                "family": service.model.config.family,
                "task": service.form or ("fill-mask" if service.fills_masks else "states"),
                "vectors": service.gives_vectors,
                "pairs": None if service.predictor is None else getattr(service.predictor.form.settings, "pairs", None),
                "mask_token": service.mask,
                "beside": None if self.beside is None else self.beside.lane,
            }
        )

    async def models(self, request: Request) -> Response:
        model = {"id": self.service.name, "object": "model", "created": 0, "owned_by": "encoderlab"}
        name = request.path_params.get("name")
        if name is None:
            return answer({"object": "list", "data": [model]})
        if name != self.service.name:
            return error(Problem(404, f"the model {name!r} does not exist", param="model"), "openai")
        return answer(model)


def _overloaded(refused: Overloaded) -> Problem:
    after = str(math.ceil(refused.retry_after))
    return Problem(429, "the model is overloaded; try again later", "Overloaded", retry_after=after)


async def _unknown(request: Request, failure: Exception) -> Response:
    """The answer for an unknown path or method."""
    see, protocol = "see /info and docs/deploying.md", protocol_of(request.url.path)
    if getattr(failure, "status_code", 404) == 404:
        return error(Problem(404, f"no such path here; {see}"), protocol)
    known = [route for route in request.app.routes if route.matches(request.scope)[0] != Match.NONE]
    methods = ", ".join(sorted({method for route in known for method in route.methods}))
    return error(Problem(405, f"this path takes another method; {see}", allow=methods), protocol)
