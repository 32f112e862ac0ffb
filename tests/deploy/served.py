"""A server in a thread of the test, on a real port, and how tests ask it."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

for package in ("starlette", "uvicorn", "httptools", "orjson", "prometheus_client"):
    pytest.importorskip(package)


from encoderlab.deploy.serve import run as process  # noqa: E402
from encoderlab.deploy.serve.app import Server  # noqa: E402
from encoderlab.deploy.serve.engine import ComputeThread  # noqa: E402
from encoderlab.deploy.serve.run import Address  # noqa: E402
from encoderlab.deploy.serve.service import Service  # noqa: E402
from encoderlab.model import Model  # noqa: E402
from tests.tasks.tiny import model as tiny  # noqa: E402

KEY = "a-key-of-this-test"
TEXTS = ["the red cat sat on the mat .", "who is it ?", "one"]


@dataclass
class Asked:
    """A running server and how it is asked."""

    server: Server
    port: int

    def __call__(
        self, path: str, body: Any = None, *, method: str | None = None, **headers: str
    ) -> tuple[int, Any, Any]:
        """Status, JSON and headers."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        told = {"Content-Type": "application/json"} | {name.replace("_", "-"): value for name, value in headers.items()}
        data = body if body is None or isinstance(body, (str, bytes)) else json.dumps(body)
        connection.request(method or ("GET" if body is None else "POST"), path, data, told)
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        with contextlib.suppress(ValueError):
            return answer.status, json.loads(content), answer.headers
        return answer.status, content.decode(), answer.headers

    def raw(self, *parts: bytes, wait: float = 0.0) -> bytes:
        """What comes back for bytes on a plain socket, parts ``wait`` seconds apart."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=30) as plain:
            with contextlib.suppress(OSError):
                for part in parts:
                    plain.sendall(part)
                    time.sleep(wait)
            found = b""
            with contextlib.suppress(OSError):
                while part := plain.recv(65536):
                    found += part
                    if b"\r\n\r\n" in found and b"content-length: 0" in found.lower():
                        break
                    head, _, rest = found.partition(b"\r\n\r\n")
                    size = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
                    if size and len(rest) >= int(size[0].split(b":")[1]):
                        break
            return found


@contextlib.contextmanager
def serving(
    model: Model | Service, predictor: Any = None, *, slow: float = 0.0, max_wait: float = 60.0, **more: Any
) -> Iterator[Asked]:
    """A server in a thread, on a free port."""
    service = model
    if isinstance(service, Model):
        service = Service(service, predictor, name="tiny", pooling="mean", normalize=True)

    def compute(kind: str, works: Any) -> Any:
        time.sleep(slow)
        return service.compute(kind, works)

    engine = ComputeThread(compute, budget=256, max_wait=max_wait)
    server = Server(service, engine, **more)
    address = Address(port=0)
    listener = address.listen()
    import uvicorn

    config = uvicorn.Config(server.app, http=process._Connection, lifespan="off", log_config=None, access_log=False)
    running = uvicorn.Server(config)
    thread = threading.Thread(target=running.run, kwargs={"sockets": [listener]}, daemon=True)
    engine.start()
    server.ready = True
    thread.start()
    while not running.started:
        time.sleep(0.01)
    try:
        yield Asked(server, listener.getsockname()[1])
    finally:
        running.should_exit = True
        thread.join(20)
        engine.stop()


def with_head(head: Any, labels: tuple[str, ...]) -> Any:
    """A tiny model with a head, and its predictor."""
    from encoderlab.tasks.runs.predict import Predictor, task_of_model

    model = tiny("bert-tiny").with_task(head, labels, 0).eval()
    generator = torch.Generator().manual_seed(3)
    assert model.task is not None
    with torch.no_grad():
        for parameter in model.task.parameters():
            parameter.normal_(generator=generator)
    return Predictor.of(model, task_of_model(model))


def unit(vectors: Any) -> np.ndarray:
    vectors = np.asarray(vectors)
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)
