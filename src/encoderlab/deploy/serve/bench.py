"""Servers measured side by side, in turns: one text of mixed length per request, from several clients at once.

Every contender is its own process and stays up; only one gets requests at a time. Compare the ratios of one
run. Texts are words of the model's own vocabulary, so that any tokenizer reads them.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from encoderlab.errors import EncoderlabError
from encoderlab.inference import Precision
from encoderlab.messages import Say
from encoderlab.seeds import generator

Call = Callable[[str], object]
SHORT = 8  # words of the short text for latency
LENGTHS = (4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 300)  # words; most requests are short, as questions are
SHARES = (8, 12, 12, 12, 12, 10, 9, 8, 6, 5, 4, 2)

SENTENCE_TRANSFORMERS = """
import os, sys, torch, uvicorn
from fastapi import FastAPI
from pydantic import BaseModel
from sentence_transformers import SentenceTransformer

model = SentenceTransformer(sys.argv[1], device="cpu")
app = FastAPI()

class Asked(BaseModel):
    inputs: str | list[str]

@app.get("/health")
def health():
    return {}

@app.post("/embed")
def embed(asked: Asked):
    texts = [asked.inputs] if isinstance(asked.inputs, str) else asked.inputs
    return model.encode(texts, normalize_embeddings=True).tolist()

uvicorn.run(app, port=int(sys.argv[2]), log_level="warning")
"""
INFINITY = (
    *("--engine", "torch", "--device", "cpu", "--no-bettertransformer"),  # torch 2.13 no longer has BetterTransformer
    *("--log-level", "warning"),
)
FIFO = """
import sys
from encoderlab.deploy.serve import queue

def take(self, now):
    # First in, first out: entries as they came, while the longest times their number is within the budget.
    late = [entry for entry in self.entries if entry.dropped or entry.deadline <= now]
    if late:
        self._keep([entry for entry in self.entries if entry not in late])
    batch, longest = [], 0
    for entry in self.entries:
        grown = max(longest, entry.tokens)
        if batch and (entry.kind != batch[0].kind or grown * (len(batch) + 1) > self.budget):
            break
        batch.append(entry)
        longest = grown
    self._keep(self.entries[len(batch):])
    return batch, late

queue.Queue.take = take
from encoderlab.cli import main
raise SystemExit(main(["serve", sys.argv[1], "--port", sys.argv[2]]))
"""


@dataclass(frozen=True, kw_only=True)
class Contender:
    """A server: its name, the command that starts it, without the port, and the path and field that take a text."""

    name: str
    command: tuple[str, ...]
    port_flag: str | None = None
    path: str = "/embed"
    field: str = "inputs"

    def start(self, port: int, threads: int) -> subprocess.Popen[bytes]:
        last = [str(port)] if self.port_flag is None else [self.port_flag, str(port)]
        names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "TORCH_NUM_THREADS")
        told = os.environ | dict.fromkeys(names, str(threads)) | {"TOKENIZERS_PARALLELISM": "false"}
        return subprocess.Popen([*self.command, *last], env=told, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def contenders(folder: Path, names: Sequence[str], python: Path | None, precision: Precision) -> list[Contender]:
    """Our server, and the chosen others; those of other projects run in the interpreter ``python``."""
    own = (sys.executable, "-m", "encoderlab", "serve", str(folder))
    outside = str(python or sys.executable)
    known = {
        "own": Contender(name="own", command=(*own, "--precision", precision), port_flag="--port"),
        "fifo": Contender(name="fifo", command=(sys.executable, "-c", FIFO, str(folder))),
        "onnx": Contender(name="onnx", command=(*own, "--engine", "onnx"), port_flag="--port"),
        "int8": Contender(name="int8", command=(*own, "--engine", "int8"), port_flag="--port"),
        "sentence-transformers": Contender(
            name="sentence-transformers",
            command=(outside, "-c", SENTENCE_TRANSFORMERS, str(folder)),
        ),
        "infinity": Contender(
            name="infinity",
            command=(outside, "-m", "infinity_emb.cli", "v2", "--model-id", str(folder), *INFINITY),
            port_flag="--port",
            path="/embeddings",
            field="input",
        ),
    }
    return [known[name] for name in ("own", *names)]


def texts(words: Sequence[str], count: int, seed: int = 0) -> list[str]:
    """Texts of mixed lengths."""
    rng = generator("bench", "serve", seed)
    shares = np.array(SHARES) / sum(SHARES)
    return [" ".join(rng.choice(words, size)) for size in rng.choice(LENGTHS, count, p=shares)]


@dataclass
class Load:
    """The measurements of the clients."""

    seconds: float = 0.0
    latencies: list[float] = field(default_factory=list)
    refusals: list[float] = field(default_factory=list)
    failed: int = 0
    cpu: float = 0.0  # processor seconds of the server, comparable on a busy machine too

    @property
    def rate(self) -> float:
        """Answers per second."""
        return len(self.latencies) / self.seconds

    def quantile(self, share: float) -> float:
        """Milliseconds."""
        return 1000 * float(np.quantile(self.latencies, share)) if self.latencies else float("nan")


@dataclass(frozen=True)
class Started:
    """A server that answers: its port and process, and the path and field that take a text."""

    port: int
    pid: int
    path: str = "/embed"
    field: str = "inputs"


class _KeptConnection:
    """A connection that is kept."""

    def __init__(self, server: Started) -> None:
        self.server = server
        self.streams: Any = None

    async def ask(self, text: str) -> int:
        """The status of the answer, after reading it completely."""
        if self.streams is None:
            self.streams = await asyncio.open_connection("127.0.0.1", self.server.port)
        reader, writer = self.streams
        body = json.dumps({self.server.field: text}).encode()
        head = (
            f"POST {self.server.path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        writer.write(head.encode() + body)
        top = (await reader.readuntil(b"\r\n\r\n")).lower()
        size = int(top.split(b"content-length:")[1].split(b"\r\n")[0])
        await reader.readexactly(size)
        return int(top[9:12])

    def close(self) -> None:
        if self.streams is not None:
            self.streams[1].close()
            self.streams = None


async def closed(server: Started, texts: Sequence[str], clients: int) -> Load:
    """Clients that each send the next request as soon as they are answered, until all texts are sent."""
    load, left = Load(), iter(texts)

    async def client() -> None:
        connection = _KeptConnection(server)
        for text in left:
            began = time.perf_counter()
            status = await connection.ask(text)
            (load.latencies if status == 200 else load.refusals).append(time.perf_counter() - began)
        connection.close()

    began = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(clients)))
    load.seconds = time.perf_counter() - began
    return load


async def opened(server: Started, texts: Sequence[str], rate: float) -> Load:
    """Requests at a fixed rate, whether or not earlier ones are answered."""
    load, free = Load(), list[_KeptConnection]()

    async def one(text: str) -> None:
        connection = free.pop() if free else _KeptConnection(server)
        began = time.perf_counter()
        try:
            status = await connection.ask(text)
        except (OSError, asyncio.IncompleteReadError):
            load.failed += 1
            connection.close()
            return
        (load.latencies if status == 200 else load.refusals).append(time.perf_counter() - began)
        free.append(connection)

    began, tasks = time.perf_counter(), list[asyncio.Future[None]]()
    for number, text in enumerate(texts):
        await asyncio.sleep(max(0.0, began + number / rate - time.perf_counter()))
        tasks.append(asyncio.ensure_future(one(text)))
    await asyncio.gather(*tasks)
    load.seconds = time.perf_counter() - began
    for connection in free:
        connection.close()
    return load


def cpu(pid: int) -> float:
    """Processor seconds of a process, over all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measured(server: Started, texts: Sequence[str], clients: int) -> Load:
    """As :func:`closed`, with the server's processor time.

    Raises:
        EncoderlabError: it answered none of them.
    """
    before = cpu(server.pid)
    load = asyncio.run(closed(server, texts, clients))
    load.cpu = cpu(server.pid) - before
    if not load.latencies:
        raise EncoderlabError(
            f"the server refused all of {len(texts)} requests to {server.path}, so there is nothing to measure; send "
            "it one to see why"
        )
    return load


def called(bare: Call, texts: Sequence[str]) -> Load:
    """The same texts in calls of a function of this process, one after the other."""
    load, before = Load(), time.process_time()
    for text in texts:
        begin = time.perf_counter()
        bare(text)
        load.latencies.append(time.perf_counter() - begin)
    load.seconds, load.cpu = sum(load.latencies), time.process_time() - before
    return load


def memory(pid: int) -> int:
    """Resident bytes of a process."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return 1024 * int(status.split("VmRSS:")[1].split()[0])


@contextlib.contextmanager
def up(all_of: Sequence[Contender], threads: int) -> Iterator[dict[str, Started]]:
    """The server of every contender, once it answers.

    Raises:
        EncoderlabError: one does not start.
    """
    running: list[subprocess.Popen[bytes]] = []
    servers: dict[str, Started] = {}
    try:
        for contender in all_of:
            with socket.create_server(("127.0.0.1", 0)) as free:
                port = free.getsockname()[1]
            process = contender.start(port, threads)
            running.append(process)
            server = Started(port, process.pid, contender.path, contender.field)
            end = time.monotonic() + 300
            while not asyncio.run(_answers(server)):
                if process.poll() is not None or time.monotonic() > end:
                    process.kill()
                    running.remove(process)
                    said = process.communicate()[1].decode(errors="replace").strip().splitlines() or ["no message"]
                    raise EncoderlabError(f"{contender.name} does not start: {said[-1][:300]}")
                time.sleep(0.5)
            servers[contender.name] = server
        yield servers
    finally:
        for process in running:
            process.terminate()
        for process in running:
            process.communicate()


async def _answers(server: Started) -> bool:
    try:
        return await _KeptConnection(server).ask("a") == 200
    except (OSError, asyncio.IncompleteReadError, IndexError):
        return False


def measure(
    all_of: Sequence[Contender],
    words: Sequence[str],
    *,
    clients: Sequence[int],
    requests: int,
    turns: int,
    threads: int,
    overload: bool,
    say: Say,
    bare: Call | None = None,
) -> dict[str, Any]:
    """Requests per second, latencies and ratios of all contenders, in turns.

    ``bare`` computes what our server computes for a text; where there is one client, it takes turns as ``bare call``.
    """
    result: dict[str, Any] = {"clients": {}, "threads": threads, "requests": requests, "turns": turns}
    short = [" ".join(words[:SHORT])]
    with up(all_of, threads) as servers:
        begun = {name: memory(server.pid) for name, server in servers.items()}
        for name, server in servers.items():
            asyncio.run(closed(server, texts(words, 32, seed=-1), 8))
            say(f"{name} answers")
        for count in clients:
            loads: dict[str, list[Load]] = defaultdict(list)
            for turn in range(turns):
                sentences = texts(words, requests, seed=turn)
                for name, server in servers.items():
                    last = measured(server, sentences, count)
                    loads[name].append(last)
                    say(
                        f"{count} clients, {name}: {last.rate:.1f} requests/s, {1000 * last.cpu / requests:.1f} ms each"
                    )
                if bare is not None and count == 1:
                    loads["bare call"].append(called(bare, sentences))
            result["clients"][str(count)] = {name: _row(some, loads["own"]) for name, some in loads.items()}
        alone: dict[str, list[Load]] = defaultdict(list)
        for _ in range(turns):
            for name, server in servers.items():
                alone[name].append(measured(server, short * 30, 1))
            if bare is not None:
                alone["bare call"].append(called(bare, short * 30))
        result["short"] = {name: _row(some, alone["own"]) for name, some in alone.items()}
        result["memory"] = {name: {"begin": begun[name], "end": memory(server.pid)} for name, server in servers.items()}
    if overload:
        result["overload"] = _overload(all_of[0], words, result, requests, threads, say)
    return result


def _row(loads: Sequence[Load], own: Sequence[Load]) -> dict[str, Any]:
    """Medians over turns, and the ratios of ours to this contender, turn by turn."""
    return {
        "requests_per_second": statistics.median(load.rate for load in loads),
        "p50": statistics.median(load.quantile(0.5) for load in loads),
        "p99": statistics.median(load.quantile(0.99) for load in loads),
        "cpu": statistics.median(1000 * load.cpu / len(load.latencies) for load in loads),
        "rate_of_own": [mine.rate / load.rate for mine, load in zip(own, loads, strict=True)],
        "cpu_of_own": [
            mine.cpu / load.cpu if load.cpu else float("nan") for mine, load in zip(own, loads, strict=True)
        ],
        "p50_of_own": [mine.quantile(0.5) / load.quantile(0.5) for mine, load in zip(own, loads, strict=True)],
        "p99_of_own": [mine.quantile(0.99) / load.quantile(0.99) for mine, load in zip(own, loads, strict=True)],
    }


def _overload(
    own: Contender, words: Sequence[str], result: dict[str, Any], requests: int, threads: int, say: Say
) -> dict[str, Any]:
    """Our server under three times the requests per second that it answers with the most clients.

    The slowest answers of that run (``p99``) set its longest accepted wait. The normal load is measured again first.
    """
    most = max(result["clients"], key=int)
    wait = f"{result['clients'][most]['own']['p99'] / 1000:.3f}"
    patient = replace(own, command=(*own.command, "--max-wait", wait))
    with up([patient], threads) as servers:
        server = servers[own.name]
        asyncio.run(closed(server, texts(words, 32, seed=-1), 8))
        usual = measured(server, texts(words, requests, seed=-3), int(most))
        rate, before = 3 * usual.rate, memory(server.pid)
        load = asyncio.run(opened(server, texts(words, 3 * requests, seed=-2), rate))
        after = memory(server.pid)
    said = {
        "max_wait": float(wait),
        "usual_p99": usual.quantile(0.99),
        "requests_per_second": rate,
        "accepted": len(load.latencies),
        "refused": len(load.refusals),
        "failed": load.failed,
        "p99": load.quantile(0.99),
        "median_of_refusals": 1000 * statistics.median(load.refusals) if load.refusals else None,
        "p99_of_refusals": 1000 * float(np.quantile(load.refusals, 0.99)) if load.refusals else None,
        "memory": {"begin": before, "end": after},
    }
    say(
        f"overload: {said['accepted']} accepted with p99 {said['p99']:.0f} ms, {said['usual_p99']:.0f} ms before; "
        f"{said['refused']} refused"
    )
    return said
