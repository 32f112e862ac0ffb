"""Random traffic against a running server: good requests, wrong ones, bodies that are slow, clients that vanish.

    encoderlab serve MODEL --port 8080 &
    python -m benchmarks.clients.traffic --port 8080 --minutes 60 --out benchmarks/clients/traffic.json

Every good request must be answered with its own number of vectors, and every wrong one with an error of its protocol; a
server that stops answering, answers 500 or grows without end has failed. What each kind did is counted in the file.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

WORDS = "the a red film cat list number of was is good bad and not for open file line in <b> [MASK]".split()
WORDS += ["\u4e2d", "\u6587", "\U0001f600", "\x07", ""]
HEAD = "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {size}\r\n\r\n"


class Strange(Exception):
    """The server did what it must not."""


def text(rng: random.Random) -> str:
    return " ".join(rng.choices(WORDS, k=min(int(rng.expovariate(1 / 20)) + 1, 600)))


async def answered(port: int, raw: bytes, *, wait: float = 60.0) -> tuple[int, bytes]:
    """Status and body of the answer to bytes on a new connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(raw)
        async with asyncio.timeout(wait):
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            size = int(head.split(b"content-length:")[1].split(b"\r\n")[0]) if b"content-length:" in head else 0
            return int(head[9:12]), await reader.readexactly(size)
    finally:
        writer.close()


def request(path: str, body: Any) -> bytes:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return HEAD.format(path=path, size=len(data)).encode() + data


async def good(port: int, rng: random.Random) -> str:
    """A request that must be answered, or refused because the server is full."""
    texts = [text(rng) for _ in range(rng.choice((1, 1, 1, 3, 20)))]
    path, body = rng.choice(
        [
            ("/embed", {"inputs": texts}),
            ("/v1/embeddings", {"input": texts, "encoding_format": rng.choice(("float", "base64"))}),
            ("/similarity", {"inputs": {"source_sentence": texts[0], "sentences": texts}}),
            ("/tokenize", {"inputs": texts}),
            ("/embed_all", {"inputs": texts}),
        ]
    )
    status, found = await answered(port, request(path, body))
    if status in (429, 503, 504):
        return str(status)
    value = json.loads(found)
    size = len(value["data"]) if path == "/v1/embeddings" else len(value)
    if status != 200 or size != len(texts):
        raise Strange(f"{path}: status {status}, {size} results for {len(texts)} texts")
    return "200"


async def explained(port: int, rng: random.Random) -> str:
    body = {"inputs": [text(rng)[:200] or "a", text(rng)[:200] or "b"], "method": rng.choice(("words", "gradients"))}
    status, _ = await answered(
        port, request("/explain", {**body, **({"steps": 4} if body["method"] != "words" else {})})
    )
    if status not in (200, 422, 429, 503, 504):
        raise Strange(f"/explain: status {status}")
    return str(status)


async def malformed(port: int, rng: random.Random) -> str:
    """Bytes that are not what they say; any error but 5xx, or a closed connection."""
    data = json.dumps({"inputs": text(rng)}).encode()
    cut = rng.randrange(len(data))
    noise = bytes(rng.randrange(256) for _ in range(rng.randrange(1, 200)))
    raw = rng.choice(
        [
            request("/embed", data[:cut]),
            request("/embed", noise),
            request("/embed", data[:cut] + noise + data[cut:]),
            request(rng.choice(("/nowhere", "/../etc/passwd", "/embed/%2e%2e", "/v1/embeddings")), {"wrong": 1}),
            request("/embed", {"inputs": [[[["a"]]]], "more": {}}),
            request("/embed", b"[" * rng.randrange(1, 100_000)),
            request("/embed", {"inputs": "x" * rng.randrange(300_000)}),
            b"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n",
            b"POST /embed HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n",
            noise + b"\r\n\r\n",
        ]
    )
    try:
        status, _ = await answered(port, raw, wait=40)
    except (asyncio.IncompleteReadError, ConnectionError, TimeoutError):
        return "closed"
    if status >= 500 and status not in (503, 504):
        raise Strange(f"status {status} for {raw[:200]!r}")
    return str(status)


async def killed(port: int, rng: random.Random) -> str:
    """A client that goes away in the middle of its request, or before its answer."""
    raw = request("/embed", {"inputs": [text(rng) for _ in range(rng.choice((1, 30)))]})
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(raw[: rng.randrange(1, len(raw) + 1)])
    with contextlib.suppress(ConnectionError):
        await writer.drain()
    await asyncio.sleep(rng.random() * 0.2)
    writer.transport.abort()
    return "gone"


async def slow(port: int, rng: random.Random) -> str:
    """A body that comes in small pieces, and is answered once it is there."""
    raw = request("/embed", {"inputs": text(rng)})
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        for start in range(0, len(raw), max(1, len(raw) // 10)):
            writer.write(raw[start : start + max(1, len(raw) // 10)])
            await asyncio.sleep(rng.random() * 0.5)
        async with asyncio.timeout(90):
            status = int((await reader.readuntil(b"\r\n\r\n"))[9:12])
    finally:
        writer.close()
    if status not in (200, 429, 503, 504):
        raise Strange(f"slow body: status {status}")
    return str(status)


KINDS: tuple[tuple[Callable[[int, random.Random], Awaitable[str]], int], ...] = (
    (good, 60),
    (malformed, 15),
    (killed, 12),
    (slow, 8),
    (explained, 5),
)


async def client(port: int, seed: int, end: float, counts: Counter[str], strange: list[str]) -> None:
    rng = random.Random(seed)
    kinds, weights = zip(*KINDS, strict=True)
    while time.monotonic() < end:
        (kind,) = rng.choices(kinds, weights)
        try:
            counts[f"{kind.__name__} {await kind(port, rng)}"] += 1
        except Strange as error:
            strange.append(str(error))
        except (OSError, TimeoutError, asyncio.IncompleteReadError, json.JSONDecodeError) as error:
            strange.append(f"{kind.__name__}: {type(error).__name__} {error}")
        await asyncio.sleep(rng.random() * 0.2)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--pid", type=int, help="process id of the server, to record its memory")
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    counts: Counter[str] = Counter()
    strange: list[str] = []
    memory: list[float] = []
    began = time.monotonic()
    end = began + 60 * given.minutes

    def note() -> None:
        if given.pid:
            status = Path(f"/proc/{given.pid}/status").read_text(encoding="ascii")
            memory.append(round(int(status.split("VmRSS:")[1].split()[0]) / 1024))
        record = {
            "minutes": round((time.monotonic() - began) / 60, 1),
            "clients": given.clients,
            "requests": sum(counts.values()),
            "counts": dict(sorted(counts.items())),
            "strange": strange[:50],
            "memory_mib": memory,
        }
        given.out.write_text(json.dumps(record, indent=1) + "\n")

    clients = [asyncio.ensure_future(client(given.port, seed, end, counts, strange)) for seed in range(given.clients)]
    while not all(one.done() for one in clients):
        note()
        await asyncio.sleep(min(60, max(1, end - time.monotonic())))
    await asyncio.gather(*clients)
    status, _ = await answered(given.port, b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
    counts[f"health {status}"] += 1
    note()
    print(given.out.read_text())


if __name__ == "__main__":
    asyncio.run(main())
