"""encoderlab's server on the nodes of a Ray cluster, by Ray Serve.

    pip install 'encoderlab[serve]' 'ray[serve]'
    MODEL=small-en REPLICAS=2 CORES=1 serve run benchmarks.cluster.ray_serve:app

A replica is the application of ``encoderlab serve``. Ray Serve starts replicas, checks their health, replaces those
that are lost, and sends requests to those with the shortest queue. When a replica is lost it would answer its requests
with 500; the front keeps every request until it is answered and sends it to another replica. That is safe, because no
request changes anything.
"""

import asyncio
import os
from typing import Any

import torch
from ray import serve
from ray.exceptions import RayActorError
from starlette.requests import Request
from starlette.responses import Response

from encoderlab.deploy.serve.app import Server, protocol_of
from encoderlab.deploy.serve.engine import ComputeThread
from encoderlab.deploy.serve.http import Guard, Limits, Problem, body_of, error
from encoderlab.deploy.serve.service import Service
from encoderlab.interchange.places import resolve

CORES = int(os.environ.get("CORES", "1"))
REPLICAS = int(os.environ.get("REPLICAS", "2"))
WAIT = 60.0  # seconds to wait for another replica


@serve.deployment(
    num_replicas=REPLICAS,
    ray_actor_options={"num_cpus": CORES},
    max_ongoing_requests=1000,  # the engine refuses by expected wait
    health_check_period_s=2,
    graceful_shutdown_timeout_s=30,
)
class Replica:
    def __init__(self, model: str) -> None:
        torch.set_num_threads(CORES)
        service = Service.of(resolve(model))
        engine = ComputeThread(service.compute, budget=4096, max_wait=10.0)
        self.server = Server(service, engine, guard=Guard(hosts=("*",)))  # the front is the only client
        self.server.load()

    def check_health(self) -> None:
        if not self.server.healthy:
            raise RuntimeError("the model does not answer")

    async def ask(self, scope: dict[str, Any], body: bytes) -> tuple[int, dict[str, str], bytes]:
        """The status, headers and body of the answer to one request."""
        parts: list[dict[str, Any]] = []
        wanted = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> dict[str, Any]:
            if wanted:
                return wanted.pop()
            await asyncio.Event().wait()  # the client has not disconnected
            raise AssertionError

        async def send(message: Any) -> None:
            parts.append(message)

        await self.server.app(scope, receive, send)
        headers = {name.decode(): value.decode() for name, value in parts[0]["headers"]}
        return parts[0]["status"], headers, b"".join(part["body"] for part in parts[1:])


@serve.deployment(ray_actor_options={"num_cpus": 0}, max_ongoing_requests=1000)
class Front:
    def __init__(self, replicas: Any) -> None:
        self.replicas = replicas

    async def __call__(self, request: Request) -> Response:
        copied = ("type", "http_version", "method", "path", "query_string", "headers", "scheme")
        scope = {name: request.scope[name] for name in copied}
        try:
            body = await body_of(request, Limits()) if request.method == "POST" else b""
            async with asyncio.timeout(WAIT):
                while True:
                    try:
                        status, headers, content = await self.replicas.ask.remote(scope, body)
                        return Response(content, status, headers)
                    except RayActorError:
                        await asyncio.sleep(0.1)
        except TimeoutError:
            problem = Problem(503, "no replica answers", "Unhealthy", retry_after="2")
        except Problem as refused:
            problem = refused
        return error(problem, protocol_of(scope["path"]))


# mypy does not follow what a decorator makes of a class.
app = Front.bind(Replica.bind(os.environ.get("MODEL", "small-en")))  # type: ignore[attr-defined]
