"""A server process: listening, loading, draining."""

from __future__ import annotations

import logging
import signal
import socket
import stat
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn
from httptools import HttpParserUpgrade, HttpRequestParser
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from encoderlab.deploy.serve.app import Server
from encoderlab.errors import ConfigError, DataError

BACKLOG = 1024  # connections that are not accepted yet
HEADER_SECONDS = 10.0
IDLE_SECONDS = 75  # longer than load balancers keep a connection (60 s), or one would send into a closed connection
HEADER_BYTES = 65_536  # of a request
TOO_LONG = b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


@dataclass(frozen=True, kw_only=True)
class Address:
    """Where a server listens, and how it shuts down.

    Args:
        delay: seconds after a signal during which requests are still accepted, while ``/health`` reports failure.
        drain: seconds to wait for accepted requests.
        shared: other processes also listen on the port.
    """

    host: str = "127.0.0.1"
    port: int = 8080
    delay: float = 0.0
    drain: float = 25.0
    shared: bool = False

    def listen(self) -> socket.socket:
        """A socket at the address. It listens at once, so that nobody else takes the port while the model is loaded;
        one of several processes does not, because it would get requests before it can answer.

        Raises:
            ConfigError: the port is taken or above 65535, or the host is not an address of this machine.
        """
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"--port {self.port} does not exist; give a number from 0 to 65535")
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        listener = socket.socket(family)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT if self.shared else socket.SO_REUSEADDR, 1)
        try:
            listener.bind((self.host, self.port))
            if not self.shared:
                listener.listen(BACKLOG)
        except OSError as error:
            listener.close()
            raise ConfigError(
                f"cannot listen on {self.host} port {self.port} ({error.strerror}); choose another --port or --host"
            ) from None
        return listener


def read_keys(path: Path) -> tuple[bytes, ...]:
    """The keys in a file, one per line.

    Raises:
        DataError: the file is missing, others may read it, or it has no key of at least 16 characters. Its group may,
            because Kubernetes gives the secrets of a pod that is not root's to a group.
    """
    try:
        mode = path.stat().st_mode
        lines = path.read_bytes().split()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); give a file with a key on each line") from None
    if mode & (stat.S_IRWXO | stat.S_IWGRP):
        raise DataError(f"{path}: others may read it; run: chmod 600 {path}")
    if not lines or any(len(line) < 16 for line in lines):
        raise DataError(f"{path}: has no key, or a key of fewer than 16 characters; write one key per line")
    return tuple(lines)


class _Process(uvicorn.Server):
    """uvicorn's server, which keeps running for a while after a signal."""

    def __init__(self, config: uvicorn.Config, server: Server, address: Address) -> None:
        super().__init__(config)
        self.server, self.address = server, address

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        again = self.server.draining
        self.server.draining = True
        if again or self.address.delay == 0 or sig == signal.SIGINT:
            self.should_exit = True
        else:
            # Or a connection that is kept would be closed under the request that its client sends at the end.
            self.config.encoded_headers.append((b"connection", b"close"))  # of every answer, within a second
            threading.Timer(self.address.delay, self._stop).start()

    def _stop(self) -> None:
        self.should_exit = True


class _Connection(HttpToolsProtocol):
    """A connection that is closed if the headers of a request take too long, or are too long, and if no request begins
    for :data:`IDLE_SECONDS` after an answer, whatever else comes: uvicorn waits forever once a byte has come, such as
    the rest of a body that was refused.

    A request that offers another protocol is answered in this one (RFC 9110, section 7.8). Java's client offers HTTP/2
    with every request; the parser takes a body after such headers for one in the other protocol, and drops it.
    """

    _room: int | None = HEADER_BYTES  # bytes that headers may still have; None inside a body
    _read = b""  # what the parser was given last
    _again = b""  # what it is given next

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._impatience = self.loop.call_later(HEADER_SECONDS, transport.close)

    def data_received(self, data: bytes) -> None:
        while data and not self.transport.is_closing():
            self._read = data[: self._room]
            if self._room is not None:
                self._room -= len(self._read)
            super().data_received(self._read)
            if self._room == 0 and not self.transport.is_closing():
                self.transport.write(TOO_LONG)
                self.transport.close()
            data, self._again = self._again + data[len(self._read) :], b""

    def _should_upgrade(self) -> bool:
        return any(name == b"upgrade" for name, _ in self.headers)

    def handle_websocket_upgrade(self) -> None:
        """Read the request again without its offer; the parser has stopped behind its headers."""
        stopped = sys.exc_info()[1]
        assert isinstance(stopped, HttpParserUpgrade)
        start = b"%s %s HTTP/%s" % (self.parser.get_method(), self.url, self.parser.get_http_version().encode())
        kept = [b"%s: %s" % (name, value) for name, value in self.headers if name != b"upgrade"]
        self._again = b"\r\n".join([start, *kept, b"", self._read[stopped.args[0] :]])
        self.parser = HttpRequestParser(self)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._impatience.cancel()
        self._impatience = self.loop.call_later(HEADER_SECONDS, self.transport.close)

    def on_headers_complete(self) -> None:
        self._room = None
        self._impatience.cancel()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._room = HEADER_BYTES

    def on_response_complete(self) -> None:
        more = bool(self.pipeline)
        super().on_response_complete()
        if not more and self._impatience.cancelled():  # else the next request has begun
            self._impatience = self.loop.call_later(IDLE_SECONDS, self.transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        self._impatience.cancel()
        super().connection_lost(exc)


def run(server: Server, address: Address, listener: socket.socket) -> None:
    """Serve until a signal; accepted requests are answered before it returns.

    Raises:
        Exception: that of the first computation, with which the model is loaded.
    """
    config = uvicorn.Config(
        server.app,
        http=_Connection,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=IDLE_SECONDS,
        timeout_graceful_shutdown=int(address.drain) or 1,
        backlog=BACKLOG,
    )
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    process = _Process(config, server, address)
    failures: list[Exception] = []

    def load() -> None:
        try:
            server.load()
        except Exception as failure:
            failures.append(failure)
            process.should_exit = True

    threading.Thread(target=load, name="warm-up", daemon=True).start()
    try:
        process.run(sockets=[listener])
    finally:
        if server.ready:
            server.engine.stop()
    if failures:
        raise failures[0]
