"""The load generator counts what it sent, and contenders are compared turn by turn."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path

import pytest

for package in ("starlette", "uvicorn", "httptools", "orjson", "prometheus_client"):
    pytest.importorskip(package)

from encoderlab.cli import main  # noqa: E402
from encoderlab.deploy.serve import bench, queue  # noqa: E402
from encoderlab.deploy.serve.queue import Entry, Queue  # noqa: E402
from encoderlab.errors import EncoderlabError  # noqa: E402
from encoderlab.interchange import folder as folders  # noqa: E402
from tests.deploy.served import serving  # noqa: E402
from tests.tasks.tiny import WORDS  # noqa: E402
from tests.tasks.tiny import model as tiny  # noqa: E402


def test_clients_ask_every_text_once() -> None:
    with serving(tiny("bert-tiny").eval()) as asked:
        given = bench.texts(WORDS, 40)
        assert given == bench.texts(WORDS, 40) != bench.texts(WORDS, 40, seed=1)
        load = asyncio.run(bench.closed(bench.Started(asked.port, 0), given, 5))
        assert (len(load.latencies), load.refusals, load.failed) == (40, [], 0)
        assert load.rate == pytest.approx(40 / load.seconds) and 0 < load.quantile(0.5) <= load.quantile(0.99)
        assert 'te_request_count{method="embed"} 40.0' in asked("/metrics")[1]


def test_a_server_has_its_own_path_and_field() -> None:
    with serving(tiny("bert-tiny").eval()) as asked:
        server = bench.Started(asked.port, 0, path="/v1/embeddings", field="input")
        load = asyncio.run(bench.closed(server, bench.texts(WORDS, 6), 2))
        assert (len(load.latencies), load.refusals) == (6, [])
        assert 'te_request_count{method="v1/embeddings"} 6.0' in asked("/metrics")[1]


def test_more_than_a_server_can_do_is_refused() -> None:
    with serving(tiny("bert-tiny").eval(), slow=0.05, max_wait=0.2) as asked:
        load = asyncio.run(bench.opened(bench.Started(asked.port, 0), bench.texts(WORDS, 60), 400))
        assert len(load.latencies) + len(load.refusals) == 60 and load.failed == 0
        assert load.refusals and max(load.refusals) < max(load.latencies)


def test_a_server_that_refuses_everything_has_no_speed(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(tiny("bert-tiny").eval()) as asked:
        server = bench.Started(asked.port, os.getpid(), path="/predict")
        with pytest.raises(EncoderlabError, match="refused all of 6 requests to /predict"):
            bench.measured(server, bench.texts(WORDS, 6), 2)
    assert main(["bench", "serve", "small-en", "--clients", "8", "--clients", "0"]) == 2
    assert "--clients is 0; give at least 1" in capsys.readouterr().err


def test_a_contender_that_does_not_start_says_why() -> None:
    wrong = bench.Contender(name="wrong", command=(sys.executable, "-c", "raise SystemExit('no such model')"))
    with pytest.raises(EncoderlabError, match="wrong does not start: no such model"), bench.up([wrong], 1):
        pass


def test_first_in_first_out(monkeypatch: pytest.MonkeyPatch) -> None:
    script = bench.FIFO.partition("from encoderlab.cli")[0]
    monkeypatch.setattr(queue.Queue, "take", queue.Queue.take)
    exec(script, {})
    entries = [Entry(kind="a", tokens=tokens, work=None) for tokens in (5, 60, 5, 5)]
    waiting = Queue(budget=64)
    waiting.add(entries)
    taken = [waiting.take(0.0)[0] for _ in range(3)]
    assert taken == [entries[:1], entries[1:2], entries[2:]] and waiting.tokens == 0


@pytest.mark.slow
def test_servers_side_by_side(tmp_path: Path) -> None:
    folders.save(tiny("bert-tiny"), tmp_path / "model")
    found = bench.measure(
        bench.contenders(tmp_path / "model", ["fifo"], None, "fp32"),
        WORDS,
        clients=(1, 4),
        requests=20,
        turns=2,
        threads=1,
        overload=True,
        say=lambda _: None,
        bare=lambda text: time.sleep(0.001),
    )
    assert list(found["clients"]) == ["1", "4"] and list(found["clients"]["4"]) == ["own", "fifo"]
    assert list(found["clients"]["1"]) == list(found["short"]) == ["own", "fifo", "bare call"]
    assert found["clients"]["1"]["bare call"]["p50"] > 1 and len(found["short"]["bare call"]["p50_of_own"]) == 2
    assert found["clients"]["4"]["own"]["rate_of_own"] == [1.0, 1.0]
    assert len(found["clients"]["4"]["fifo"]["rate_of_own"]) == 2 and found["short"]["fifo"]["p50"] > 0
    over = found["overload"]
    assert over["accepted"] + over["refused"] + over["failed"] == 60 and found["memory"]["own"]["end"] > 0
