"""A real S3 server (moto's) behind a proxy that fails at random: errors, time-outs, truncated bodies, slow starts."""

from __future__ import annotations

import http.client
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Proxy(ThreadingHTTPServer):
    """Passes requests on to the server at ``port``; a share ``failing`` of them ends badly."""

    daemon_threads = True

    def __init__(self, port: int, *, failing: float = 0.0, seed: int = 0) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.port, self.failing, self.draw = port, failing, random.Random(seed)
        self.kinds = ("error", "closed", "truncated", "slow")
        self.happened, self.asked = Counter[str](), Counter[str]()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request, client_address) -> None:
        """A client that went away is no news."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Proxy

    def log_message(self, *args) -> None:
        pass

    def _pass_on(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.asked[f"{self.command} {self.path}"] += 1
        fault = self.server.draw.choice(self.server.kinds) if self.server.draw.random() < self.server.failing else ""
        self.server.happened[fault] += 1
        if fault == "slow":
            time.sleep(0.05)
        if fault == "silent":  # for longer than the client waits
            time.sleep(3)
            self.close_connection = True
            return
        if fault == "closed":
            self.close_connection = True
            return
        if fault == "error":
            self.send_response(503)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=30)
        connection.request(self.command, self.path, body, dict(self.headers))
        answer = connection.getresponse()
        data = answer.read()
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("transfer-encoding", "connection", "date", "server"):
                self.send_header(name, value)
        if "content-length" not in {name.lower() for name, _ in answer.getheaders()}:
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if fault == "truncated" and len(data) > 1:
            self.wfile.write(data[: len(data) // 2])
            self.close_connection = True
            return
        if self.command != "HEAD":
            self.wfile.write(data)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _pass_on


@contextmanager
def serving(proxy: Proxy) -> Iterator[Proxy]:
    thread = threading.Thread(target=proxy.serve_forever, daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        proxy.shutdown()
        proxy.server_close()
