"""Graphs behind a server, several processes on one port, and callers that ask too often."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

for package in ("starlette", "uvicorn", "httptools", "orjson", "prometheus_client"):
    pytest.importorskip(package)

from encoderlab.cli import main  # noqa: E402
from encoderlab.deploy.export import check  # noqa: E402
from encoderlab.deploy.graph import Graph  # noqa: E402
from encoderlab.deploy.serve import graphs  # noqa: E402
from encoderlab.deploy.serve.graphs import GraphService  # noqa: E402
from encoderlab.deploy.serve.http import Buckets, Guard  # noqa: E402
from encoderlab.errors import ConfigError, DataError  # noqa: E402
from encoderlab.inference import encode, fill_mask  # noqa: E402
from encoderlab.interchange import folder as folders  # noqa: E402
from encoderlab.model import Model  # noqa: E402
from encoderlab.tasks.data.examples import Question, TaggedWords, Text  # noqa: E402
from encoderlab.tasks.runs.predict import Predictor, task_of_model  # noqa: E402
from tests.deploy.served import KEY, TEXTS, Asked, serving  # noqa: E402
from tests.deploy.test_export import small  # noqa: E402
from tests.tasks.tiny import model as tiny  # noqa: E402


def of_graph(model: Model, use: Any) -> GraphService:
    """A service whose graph is the network itself, in the place of ONNX Runtime."""
    predictor = Predictor.of(model, task_of_model(model)) if model.task is not None else None
    service = GraphService(model, predictor, name="m", pooling="mean", normalize=True)
    service.run, service.use = check.own(Graph(model, use)), use  # type: ignore[assignment]
    return service


@pytest.mark.parametrize("use", ["classification", "tagging", "span"])
def test_a_graph_gives_what_the_model_gives(use: str) -> None:
    model = small("bert-tiny", use)
    service = of_graph(model, use)
    examples: list[Any] = {
        "classification": [Text(id="", text=text) for text in TEXTS],
        "tagging": [TaggedWords(id="", words=tuple(text.split())) for text in TEXTS],
        "span": [Question(id=text, question="who ?", passage=text) for text in TEXTS],
    }[use]
    works, items = service.items(examples)
    assert service.predictor is not None
    form = service.predictor.form
    found, wanted = (
        form.decode(items, outputs, examples)
        for outputs in (service.compute("scores", works.works), service.predictor.outputs(items))
    )
    assert found.values == wanted.values
    assert not service.gives_vectors and not service.fills_masks


def test_graphs_of_states_and_of_masks() -> None:
    model = small("bert-tiny")
    service = of_graph(model, "states")
    works = service.texts("vectors", TEXTS, truncate=True, side="Right")
    assert np.abs(np.stack(service.compute("vectors", works.works)) - encode(model, TEXTS)).max() < 1e-5
    assert [len(one) for one in service.compute("tokens", works.works)] == works.tokens
    masks = of_graph(model, "fill-mask")
    text = "the [MASK] sat on the mat ."
    (found,) = masks.compute("masks", [(text, 3, None)])
    wanted = fill_mask(model, text, top=3)
    assert [one.token for one in found[0]] == [one.token for one in wanted[0]]
    assert [one.score for one in found[0]] == pytest.approx([one.score for one in wanted[0]], abs=1e-6)


def test_a_server_says_what_its_graph_does_not_give(monkeypatch: pytest.MonkeyPatch) -> None:
    model = small("bert-tiny")
    monkeypatch.setattr("tests.deploy.served.Service", lambda *given, **more: of_graph(model, "fill-mask"))
    with serving(model) as asked:
        assert asked("/", {"inputs": "the [MASK] sat"})[0] == 200
        status, found, _ = asked("/embed", {"inputs": "the cat"})
        assert (status, found["error_type"]) == (424, "Backend") and "exported to fill masks" in found["error"]


def test_targets_of_masks() -> None:
    model = tiny("bert-tiny").eval()
    text = "the [MASK] sat"
    best = {guess.token_str: guess.score for guess in fill_mask(model, text, top=1000)[0]}
    with serving(model) as asked:
        body: dict[str, Any] = {"inputs": text, "parameters": {"targets": ["cat", "dog", "mat"], "top_k": 2}}
        status, found, _ = asked("/", body)
        assert status == 200 and len(found) == 2
        assert all(one["score"] == pytest.approx(best[one["token_str"]], abs=1e-6) for one in found)
        assert {one["token_str"] for one in found} < {"cat", "dog", "mat"}
        body["parameters"]["targets"] = "unheardof"
        status, found, _ = asked("/", body)
        assert status == 422 and "'unheardof' is not one token of this model" in found["error"]
        for wrong in ([], ["cat", 3], {}):
            body["parameters"]["targets"] = wrong
            status, found, _ = asked("/", body)
            expected = "`parameters.targets`: expected a word, or a list of 1 to 1,000 words"
            assert (status, found["error"]) == (422, expected)
        status, found, _ = asked("/", {"inputs": text, "parameters": []})
        assert (status, found["error"]) == (422, "`parameters`: expected an object {...}")
        assert asked("/", {"inputs": text, "parameters": {"targets": None}})[0] == 200
        assert asked("/", {"inputs": text})[0] == 200


def test_exported_folders_are_served(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(name)
    model = small("bert-tiny")
    folders.save(model, tmp_path / "model")
    with pytest.raises(ConfigError, match="run: encoderlab export"):
        GraphService.open(tmp_path / "model", "onnx")
    assert main(["export", str(tmp_path / "model"), str(tmp_path / "out"), "--length", "12"]) == 0
    with pytest.raises(ConfigError, match="has no graph in int8"):
        GraphService.open(tmp_path / "out", "int8")
    for name in ("onnx/model.onnx", "1_Pooling/config.json"):
        path = tmp_path / "out" / name
        whole = path.read_bytes()
        path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        with pytest.raises(DataError, match=f"{name}: does not match its checksum"):
            GraphService.open(tmp_path / "out", "onnx")
        path.write_bytes(whole)
    record = tmp_path / "out" / "export.json"
    (tmp_path / "out" / "SHA256SUMS").unlink()  # which names a change of any file
    states = record.read_text()
    record.write_text(states.replace('"use": "states"', '"use": "fill-mask"'))
    with pytest.raises(DataError, match="gives last_hidden_state, expected logits"):
        GraphService.open(tmp_path / "out", "onnx")
    record.write_text(states)
    service = GraphService.open(tmp_path / "out", "onnx")
    works = service.texts("vectors", TEXTS, truncate=True, side="Right")
    assert np.abs(np.stack(service.compute("vectors", works.works)) - encode(model, TEXTS)).max() < 1e-5
    assert service.normalize and service.pooling == "mean" and set(graphs.GRAPHS) == {"onnx", "int8"}
    service.warm_up()


def test_buckets() -> None:
    buckets = Buckets(2.0)
    assert [buckets.wait(b"a", 10.0) for _ in range(3)] == [0, 0, pytest.approx(0.5)]
    assert buckets.wait(b"b", 10.0) == 0 and buckets.wait(b"a", 10.4) == pytest.approx(0.1)
    assert buckets.wait(b"a", 10.5) == 0 and buckets.wait(b"a", 100.0) == buckets.wait(b"a", 100.0) == 0
    assert buckets.wait(b"a", 100.0) > 0
    slow = Buckets(0.1)
    assert slow.wait(b"a", 0.0) == 0 and slow.wait(b"a", 1.0) == pytest.approx(9.0)
    for number in range(Buckets.MOST + 5):
        slow.wait(str(number).encode(), 2.0)
    assert len(slow.left) == Buckets.MOST


def test_a_caller_that_asks_too_often_waits() -> None:
    other = KEY + "-other"
    guard = Guard(keys=(KEY.encode(), other.encode()), rate=0.01)
    with serving(tiny("bert-tiny").eval(), guard=guard) as asked:
        ask = lambda key: asked("/v1/embeddings", {"input": "a"}, Authorization=f"Bearer {key}")  # noqa: E731
        assert ask(KEY)[0] == 200
        status, found, headers = ask(KEY)
        assert status == 429 and 90 <= int(headers["retry-after"]) <= 100
        assert found["error"]["type"] == "rate_limit_error"
        assert asked("/embed", {"inputs": "a"}, Authorization=f"BEARER   {KEY}")[0] == 429  # the same key
        assert ask(other)[0] == 200 and ask("wrong")[0] == 401
        assert asked("/health")[0] == 200


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_workers_share_a_port_and_are_replaced(precision: str, tmp_path: Path) -> None:
    folders.save(tiny("bert-tiny"), tmp_path / "model")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = [
        sys.executable,
        "-m",
        "encoderlab",
        "serve",
        str(tmp_path / "model"),
        "--port",
        str(port),
        "--workers",
        "2",
        "--precision",
        precision,
    ]
    told = os.environ | {"OMP_NUM_THREADS": "1"}
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env=told) as parent:
        asked = Asked(None, port)  # type: ignore[arg-type]

        def healthy(times: int) -> None:
            end, streak = time.monotonic() + 240, 0
            while streak < times:
                assert time.monotonic() < end
                with contextlib.suppress(OSError):
                    streak = streak + 1 if asked("/health")[0] == 200 else 0
                time.sleep(0.02)

        healthy(30)
        children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()
        served = [pid for pid in children if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        assert len(served) == 2
        time.sleep(5)  # what dies sooner after its start is not replaced
        os.kill(int(served[0]), signal.SIGKILL)
        healthy(60)
        assert asked("/embed", {"inputs": "the cat"})[0] == 200
        accepted: list[int] = []
        threads = [
            threading.Thread(target=lambda: accepted.append(asked("/embed", {"inputs": ["the cat"] * 100})[0]))
            for _ in range(6)
        ]
        for thread in threads:
            thread.start()
        time.sleep(0.2)
        parent.send_signal(signal.SIGTERM)
        for thread in threads:
            thread.join()
        assert parent.wait(120) == 0 and accepted == [200] * 6
        assert parent.stderr is not None and "another one takes its place" in parent.stderr.read()


@pytest.mark.slow
def test_workers_that_cannot_start_end_the_command(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    words = [sys.executable, "-m", "encoderlab", "serve", str(tmp_path / "model"), "--port", "0", "--workers", "2"]
    done = subprocess.run([*words, "--json"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 1 and "a worker ended with code 3" in json.loads(done.stdout)["error"]
