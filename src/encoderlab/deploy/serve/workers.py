"""Several server processes on one port, and the process that starts, ends and replaces them."""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch

from encoderlab.deploy.serve.run import Address
from encoderlab.errors import EncoderlabError
from encoderlab.execution.workers import cores
from encoderlab.messages import Say

SOON = 5.0  # seconds; a worker that ends sooner than this after its start is not replaced


def supervise(
    answer: Callable[..., Any],
    arguments: dict[str, Any],
    workers: int,
    *,
    host: str,
    port: int,
    say: Say,
) -> str:
    """Run ``workers`` processes that answer on one port, until a signal; return the address.

    Connections are spread over them by the kernel (``SO_REUSEPORT``). A worker that dies is replaced; requests that it
    had accepted are lost with it. A signal is handed on, and the workers drain; so they do if this process is killed.

    Args:
        answer: serves in its own process until a signal; a module-level function with the argument ``shared``.
        arguments: its other arguments.

    Raises:
        ConfigError: another server has the port.
        EncoderlabError: a worker cannot start.
    """
    Address(host=host, port=port).listen().close()  # a port that other workers share is taken for these
    keeper = Address(host=host, port=port, shared=True).listen()  # it does not listen, but reserves the port
    port = keeper.getsockname()[1]
    threads = max(1, cores() // workers)
    context = multiprocessing.get_context("spawn")
    ending = False

    def start() -> tuple[Any, float]:
        process = context.Process(target=_work, args=(answer, arguments | {"port": port}, threads), daemon=False)
        process.start()
        return process, time.monotonic()

    def end(number: int, frame: FrameType | None) -> None:
        nonlocal ending
        ending = True
        for process, _ in running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, number)

    running = [start() for _ in range(workers)]
    place = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    say(f"{workers} workers of {threads} threads at {place}; Ctrl-C ends them")
    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        while any(process.is_alive() for process, _ in running) or not ending:
            for index, (process, began) in enumerate(running):
                if ending or process.is_alive():
                    continue
                if time.monotonic() - began < SOON or process.exitcode in (2, 3):
                    end(signal.SIGTERM, None)
                    raise EncoderlabError(f"a worker ended with code {process.exitcode}; see its message above")
                say(f"worker {process.pid} died (code {process.exitcode}); another one takes its place")
                running[index] = start()
                if ending:  # a signal came while it started, and was handed on to the others only
                    running[index][0].terminate()
            time.sleep(0.1)
    finally:
        for process, _ in running:
            process.join()
        for number, handler in before.items():
            signal.signal(number, handler)
        keeper.close()
    return place


def _work(answer: Callable[..., Any], arguments: dict[str, Any], threads: int) -> None:
    """One worker."""
    torch.set_num_threads(threads)
    threading.Thread(target=_end_with_parent, name="parent", daemon=True).start()
    try:
        answer(shared=True, **arguments)
    except EncoderlabError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(error.code) from None


def _end_with_parent() -> None:
    """Send this process the signal to drain when its parent is gone, which may have been killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    multiprocessing.connection.wait([parent.sentinel])
    os.kill(os.getpid(), signal.SIGTERM)
