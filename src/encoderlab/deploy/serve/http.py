"""Checks of requests before their protocol: access, size, speed; bodies, errors, headers.

As much as possible is checked before a body is read. Errors never contain texts, paths or tracebacks.
"""

from __future__ import annotations

import asyncio
import hmac
import math
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import orjson
from pydantic import ValidationError
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from encoderlab.deploy.serve.shapes import RequestShape, described, shape_of

Protocol = Literal["tei", "openai", "cohere", "hf"]
PROBES = ("/health", "/live", "/ping")  # of load balancers; they reveal nothing
# The Host header: a name or an IPv6 address in brackets, and perhaps a port (RFC 9110, section 7.2).
_HOST = re.compile(r"(?:\[(?P<address>[0-9a-f:.]+)\]|(?P<name>[a-z0-9_.-]+))(?::[0-9]*)?")
SECURITY = {"x-content-type-options": "nosniff", "cache-control": "no-store"}


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits of a request.

    Args:
        body: largest size of the body in bytes.
        body_seconds: longest time for the whole body.
        texts: largest number of texts in a request.
        characters: largest length of a text; longer texts are refused before they are tokenized.
        deadline: seconds after which the request fails.
    """

    body: int = 2_000_000
    body_seconds: float = 30.0
    texts: int = 1024
    characters: int = 128_000
    deadline: float = 60.0


class Problem(Exception):
    """A request that ends with an error.

    Args:
        status: of HTTP.
        message: what to change.
        kind: of text-embeddings-inference: Validation, Empty, Overloaded, Unhealthy, Backend, Tokenizer.
        param: the field that is wrong.
        headers: of the answer.
    """

    def __init__(
        self, status: int, message: str, kind: str = "Validation", *, param: str | None = None, **headers: str
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.kind, self.param = status, message, kind, param
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


def answer(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """A value as JSON."""
    body = orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
    return Response(body, status, {**SECURITY, **(headers or {})}, media_type="application/json")


def error(problem: Problem, protocol: Protocol) -> Response:
    """An error in the format of the request's protocol."""
    value: Any
    if protocol == "openai":
        names = {401: "invalid_request_error", 429: "rate_limit_error", 503: "service_unavailable"}
        kind = names.get(problem.status, "invalid_request_error" if problem.status < 500 else "server_error")
        missing = "model_not_found" if problem.param == "model" else "not_found"
        codes = {401: "invalid_api_key", 404: missing, 429: "rate_limit_exceeded"}
        code = codes.get(problem.status, problem.kind.lower())
        value = {"error": {"message": problem.message, "type": kind, "param": problem.param, "code": code}}
    elif protocol == "cohere":
        value = {"message": problem.message, "detail": problem.message}  # Cohere's, and Jina's
    elif protocol == "hf":
        value = {"error": problem.message}
    else:
        value = {"error": problem.message, "error_type": problem.kind}
    return answer(value, problem.status, problem.headers)


async def body_of(request: Request, limits: Limits) -> bytes:
    """The body of a request, counted while it streams.

    Raises:
        Problem: it is not JSON, compressed, too large, too slow, or ends early.
    """
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise Problem(415, "the body must be JSON; send Content-Type: application/json")
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise Problem(415, "compressed bodies are not supported; send plain JSON")
    told = request.headers.get("content-length", "0")
    if told.isdigit() and int(told) > limits.body:
        raise Problem(
            413, f"the body has {int(told)} bytes, at most {limits.body} are read; send fewer texts at a time"
        )
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(limits.body_seconds):
            async for part in request.stream():
                size += len(part)
                if size > limits.body:
                    raise Problem(413, f"the body has more than {limits.body} bytes; send fewer texts at a time")
                parts.append(part)
    except TimeoutError:
        raise Problem(408, f"the body took longer than {limits.body_seconds:g} seconds", connection="close") from None
    except ClientDisconnect:
        raise Problem(400, "the body ended early") from None
    return b"".join(parts)


def parsed(shapes: tuple[type[RequestShape], ...], body: bytes) -> Any:
    """The body, validated by the shape of a protocol that it is meant to have.

    Raises:
        Problem: the body has another shape; the message names the field.
    """
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise Problem(422, f"the body is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise Problem(422, "the body is not a JSON object; send its fields as {...}")
    shape = shape_of(value, shapes)
    try:
        return shape.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    place, message = ".".join(map(str, first["loc"])), first["msg"]
    if first["type"] == "model_type":
        message = "expected an object {...}"
    elif first["type"] != "missing" and (field := described(shape, first["loc"])) is not None:
        place, message = field[0], f"expected {field[1]}"
    raise Problem(422, f"`{place}`: {message}" if place else message, param=place or None)


@dataclass(frozen=True, kw_only=True)
class Guard:
    """The rules of access.

    Args:
        keys: a request must send one of them; without keys anybody may send requests.
        hosts: accepted host names, so that web pages of other sites cannot point a name of theirs at the server; ``*``
            for any. :data:`PROBES` are answered under every name.
        open: paths that need no key.
        pages: paths that need no key for GET, but one for POST.
        cors: the one origin whose pages may read answers.
        rate: requests per second of each key, or without keys of each address; a second's worth may come at once.
    """

    keys: tuple[bytes, ...] = ()
    hosts: tuple[str, ...] = ("localhost", "127.0.0.1", "::1")
    open: tuple[str, ...] = (*PROBES, "/metrics")
    pages: tuple[str, ...] = ()
    cors: str | None = None
    rate: float | None = None

    def asks_for_leave(self, scope: Scope) -> bool:
        """Whether a browser asks if a page of the other origin may send a request; it asks without the key."""
        return self.cors is not None and scope["method"] == "OPTIONS"

    def check(self, scope: Scope) -> Problem | None:
        """The problem of a request, judged by its headers; None if there is none."""
        headers: list[tuple[bytes, bytes]] = scope["headers"]
        hosts = [value for name, value in headers if name == b"host"]
        reads = scope["method"] in ("GET", "HEAD")
        probe = reads and scope["path"] in PROBES  # which names an address of the machine
        if not probe and (len(hosts) != 1 or not self._knows(hosts[0])):
            return Problem(421, "the Host header is not a host name of this server; allow it with --allow-host")
        free = scope["path"] in self.open or (reads and scope["path"] in self.pages)
        if self.keys and not free and not self.asks_for_leave(scope) and not self._admits(headers):
            return Problem(
                401, "the key is missing or wrong; send Authorization: Bearer KEY", www_authenticate="Bearer"
            )
        return None

    def _knows(self, host: bytes) -> bool:
        match = _HOST.fullmatch(host.decode("latin-1").lower())
        if match is None:
            return False
        name = match["address"] or match["name"].removesuffix(".")
        return "*" in self.hosts or name in {known.lower() for known in self.hosts}

    def _admits(self, headers: list[tuple[bytes, bytes]]) -> bool:
        key = key_of(headers)
        return any([hmac.compare_digest(key, known) for known in self.keys])  # all, so that the time reveals nothing


def key_of(headers: list[tuple[bytes, bytes]]) -> bytes:
    """The key that a request sends; empty if it sends none or several."""
    tokens = [value for name, value in headers if name == b"authorization"]
    one = len(tokens) == 1 and tokens[0][:7].lower() == b"bearer "
    return tokens[0][7:].strip() if one else b""


class Buckets:
    """Rate limits: ``rate`` requests per second of each caller, a second's worth of them at once."""

    MOST = 10_000  # callers that are remembered

    def __init__(self, rate: float) -> None:
        self.rate, self.room = rate, max(1.0, rate)
        self.left: dict[bytes, tuple[float, float]] = {}  # requests that are left, and when that was

    def wait(self, caller: bytes, now: float) -> float:
        """0 if the caller may send a request now, else the seconds until it may."""
        left, then = self.left.pop(caller, (self.room, now))
        left = min(self.room, left + (now - then) * self.rate)
        waits = max(0.0, (1 - left) / self.rate)
        self.left[caller] = (left - (waits == 0), now)
        while len(self.left) > self.MOST:
            del self.left[next(iter(self.left))]  # the caller whose last request is oldest
        return waits


class Guarded:
    """An application behind a guard; ``protocol_of`` gives the format of a path's errors."""

    def __init__(self, app: ASGIApp, guard: Guard, protocol_of: Callable[[str], Protocol]) -> None:
        self.app, self.guard, self.protocol_of = app, guard, protocol_of
        self.buckets = None if guard.rate is None else Buckets(guard.rate)

    def _hurry(self, scope: Scope) -> Problem | None:
        """The problem of a request that comes too soon after others."""
        if self.buckets is None or scope["method"] != "POST":
            return None
        caller = key_of(scope["headers"]) if self.guard.keys else str((scope.get("client") or ("",))[0]).encode()
        seconds = self.buckets.wait(caller, time.monotonic())
        if seconds == 0:
            return None
        return Problem(429, "too many requests; ask more slowly", "Overloaded", retry_after=str(math.ceil(seconds)))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        origin = self.guard.cors

        async def sent(message: Any) -> None:
            if origin is not None and message["type"] == "http.response.start":
                message["headers"] = [
                    *message.get("headers", []),
                    (b"access-control-allow-origin", origin.encode()),
                    (b"access-control-allow-headers", b"authorization, *"),  # the star alone leaves out the key
                    (b"access-control-expose-headers", b"*"),
                    (b"vary", b"origin"),
                ]
            await send(message)

        problem = self.guard.check(scope) or self._hurry(scope)
        if problem is None and self.guard.asks_for_leave(scope):
            await Response(status_code=204, headers=SECURITY)(scope, receive, sent)
        elif problem is not None:
            await error(problem, self.protocol_of(scope["path"]))(scope, receive, sent)
        else:
            await self.app(scope, receive, sent)


async def gone(request: Request) -> None:
    """Return when the client has disconnected; for requests whose body was read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
