"""A server on a real port, asked in four protocols, well and badly."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

for package in ("starlette", "uvicorn", "httptools", "orjson", "prometheus_client"):
    pytest.importorskip(package)

from prometheus_client.parser import text_string_to_metric_families  # noqa: E402

from encoderlab.cli import main  # noqa: E402
from encoderlab.deploy.serve import run as process  # noqa: E402
from encoderlab.deploy.serve.app import Server  # noqa: E402
from encoderlab.deploy.serve.engine import ComputeThread  # noqa: E402
from encoderlab.deploy.serve.http import Guard, Limits  # noqa: E402
from encoderlab.deploy.serve.run import Address, read_keys  # noqa: E402
from encoderlab.deploy.serve.service import Service, pooling_of  # noqa: E402
from encoderlab.deploy.serve.texts import words_of  # noqa: E402
from encoderlab.errors import ConfigError, DataError  # noqa: E402
from encoderlab.inference import encode, fill_mask  # noqa: E402
from encoderlab.interchange import folder as folders  # noqa: E402
from encoderlab.model import Model  # noqa: E402
from encoderlab.nn.heads import Classification, Span, Tagging  # noqa: E402
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
    running.install_signal_handlers = lambda: None  # type: ignore[method-assign]
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
    with torch.no_grad():
        for parameter in model.task.parameters():
            parameter.normal_(generator=generator)
    return Predictor.of(model, task_of_model(model))


@pytest.fixture(scope="module")
def pretrained() -> Iterator[Asked]:
    with serving(tiny("bert-tiny").eval(), limits=Limits(body=20_000, texts=40, characters=500)) as asked:
        yield asked


def unit(vectors: Any) -> np.ndarray:
    vectors = np.asarray(vectors)
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def test_vectors_are_those_of_encode_in_every_protocol(pretrained: Asked) -> None:
    model = tiny("bert-tiny").eval()
    wanted = unit(encode(model, TEXTS))
    status, found, headers = pretrained("/embed", {"inputs": TEXTS})
    assert status == 200 and np.abs(np.array(found) - wanted).max() < 1e-5
    assert int(headers["x-compute-tokens"]) == 10 + 6 + 3 and float(headers["x-inference-time"]) > 0
    assert headers["x-content-type-options"] == "nosniff" and headers["cache-control"] == "no-store"
    assert np.allclose(pretrained("/embed", {"inputs": TEXTS[0]})[1], wanted[:1], atol=1e-5)
    plain = pretrained("/embed", {"inputs": TEXTS, "normalize": False})[1]
    assert np.allclose(plain, encode(model, TEXTS), atol=1e-5)
    cut = pretrained("/embed", {"inputs": TEXTS, "dimensions": 8})[1]
    assert np.allclose(cut, unit(np.array(plain)[:, :8]), atol=1e-5)
    states = pretrained("/embed_all", {"inputs": TEXTS})[1]
    assert [len(rows) for rows in states] == [10, 6, 3]
    assert np.allclose([np.mean(rows, 0) for rows in states], plain, atol=1e-5)
    near = pretrained("/similarity", {"inputs": {"source_sentence": TEXTS[0], "sentences": TEXTS}})[1]
    assert np.allclose(near, wanted @ wanted[0], atol=1e-5)
    told = pretrained("/v1/embeddings", {"input": TEXTS, "model": "tiny"})[1]
    assert [row["index"] for row in told["data"]] == [0, 1, 2] and told["usage"]["total_tokens"] == 19
    assert np.allclose([row["embedding"] for row in told["data"]], wanted, atol=1e-5)
    coded = pretrained("/v1/embeddings", {"input": TEXTS[0], "encoding_format": "base64"})[1]
    assert np.allclose(np.frombuffer(base64.b64decode(coded["data"][0]["embedding"]), "<f4"), wanted[0], atol=1e-5)
    assert np.allclose(pretrained("/", {"inputs": TEXTS})[1], wanted, atol=1e-5)
    assert pretrained("/v1/models")[1]["data"][0]["id"] == "tiny"


def test_masks_are_filled_as_by_fill_mask(pretrained: Asked) -> None:
    model = tiny("bert-tiny").eval()
    status, found, _ = pretrained("/", {"inputs": "the [MASK] sat", "parameters": {"top_k": 3}})
    wanted = fill_mask(model, "the [MASK] sat", top=3)[0]
    assert status == 200 and [one["token_str"] for one in found] == [guess.token_str for guess in wanted]
    assert np.allclose([one["score"] for one in found], [guess.score for guess in wanted], atol=1e-6)


def test_tokens_and_their_places(pretrained: Asked) -> None:
    (tokens,) = pretrained("/tokenize", {"inputs": "the cat"})[1]
    assert [token["text"] for token in tokens] == ["[CLS]", "the", "cat", "[SEP]"]
    assert tokens[1] == {"id": tokens[1]["id"], "text": "the", "special": False, "start": 0, "stop": 3}
    assert pretrained("/decode", {"ids": [token["id"] for token in tokens]})[1] == ["the cat"]
    assert pretrained("/decode", {"ids": [10**6]})[0] == 422


def test_about_the_server(pretrained: Asked) -> None:
    assert pretrained("/health")[0] == pretrained("/live")[0] == pretrained("/ping")[0] == 200
    info = pretrained("/info")[1]
    assert info["model_type"] == {"embedding": {"pooling": "mean"}} and info["max_batch_tokens"] == 256
    pretrained("/embed", {"inputs": "a"})
    assert pretrained("/embed", {"inputs": 1})[0] == 422
    metrics = list(text_string_to_metric_families(pretrained("/metrics")[1]))
    stages = {f"te_request{stage}_duration_count" for stage in ("", "_tokenization", "_queue", "_inference")}
    counts = {"te_request_count", "te_request_success", "te_request_failure", "te_queue_size"}
    sizes = {"te_request_input_length_sum", "te_batch_next_size_sum", "te_batch_next_tokens_sum"}
    own = {"encoderlab_queue_tokens", "encoderlab_padding_ratio_sum"}
    assert stages | counts | sizes | own <= {sample.name for family in metrics for sample in family.samples}
    pretrained.server.draining = True
    assert pretrained("/health")[0] == 503 and pretrained("/live")[0] == 200
    assert pretrained("/embed", {"inputs": "a"})[0] == 200  # until the listener closes
    pretrained.server.draining = False
    pretrained.server.ready = False
    status, found, headers = pretrained("/embed", {"inputs": "a"})
    assert (status, found["error_type"], headers["retry-after"]) == (503, "Unhealthy", "2")
    pretrained.server.ready = True


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        ("/embed", "{", 422, "JSON"),
        ("/embed", {}, 422, "`inputs`: Field required"),
        ("/embed", {"inputs": 3}, 422, "inputs"),
        ("/embed", {"inputs": ["a", None]}, 422, "inputs"),
        ("/embed", {"inputs": []}, 400, "cannot be empty"),
        ("/embed", {"inputs": "a", "what": 1}, 422, "`what`: Extra inputs are not permitted"),
        ("/embed", {"inputs": "a", "dimensions": 9999}, 422, "expected 1 to 64"),
        ("/embed", {"inputs": ["a"] * 41}, 422, "batch size 41 > maximum allowed batch size 40"),
        ("/embed", {"inputs": "a" * 501}, 413, "501 characters, at most 500"),
        ("/embed", {"inputs": "a" * 30_000}, 413, "bytes"),
        ("/embed", {"inputs": [1, 2]}, 422, "token ids are refused"),
        ("/embed", {"inputs": "a", "prompt_name": "query"}, 422, "prompt_name"),
        ("/predict", {"inputs": "a"}, 424, "no head for classes"),
        ("/rerank", {"query": "a", "texts": ["b"]}, 424, "not a re-ranker"),
        ("/similarity", {"inputs": {"source_sentence": "a", "sentences": []}}, 422, "sentences"),
        ("/v1/embeddings", {"input": "a", "model": "other"}, 404, "does not exist; this server has 'tiny'"),
        ("/v1/embeddings", {"input": [[1]]}, 422, "check_embedding_ctx_length=False"),
        ("/v1/embeddings", {"input": []}, 400, "`input` cannot be empty"),
        ("/v1/completions", {}, 404, "no such path"),
        ("/", {"inputs": "the [MASK]", "parameters": {"top_k": 0}}, 422, "`parameters.top_k`: Input should be greater"),
        ("/", {"inputs": {"source_sentence": "a"}}, 422, "`inputs.sentences`: Field required"),
        ("/", {"inputs": [1, "a"]}, 422, "`inputs`: expected a text, a list of texts, or the token ids"),
        ("/predict", {"inputs": ["a", "b", "c"]}, 422, "expected a text, a pair [text, text], or a list"),
        ("/v1/rerank", {"query": "a", "documents": ["b"]}, 424, "not a re-ranker"),
        ("/nowhere", {}, 404, "no such path"),
        ("/health", {}, 405, "another method"),
    ],
)
def test_wrong_requests_get_the_error_of_their_protocol(
    pretrained: Asked, path: str, body: Any, status: int, words: str
) -> None:
    found, told, _ = pretrained(path, body)
    assert found == status
    if path.startswith(("/v1/embed", "/v1/comp")):
        message = told["error"].pop("message")
        assert set(told["error"]) == {"type", "param", "code"}
        assert (told["error"]["code"] == "model_not_found") == (body.get("model") == "other")
    elif path == "/":
        message = told["error"]
        assert told.keys() == {"error"}
    elif path.startswith("/v1/rerank"):
        message = told["message"]
    else:
        message = told["error"]
        assert told["error_type"] in ("Validation", "Empty", "Backend")
    assert words in message
    assert pretrained("/embed", {"inputs": "a"})[0] == 200  # the server goes on


def test_bodies_of_other_kinds(pretrained: Asked) -> None:
    assert pretrained("/embed", {"inputs": "a"}, Content_Type="text/plain")[0] == 415
    assert pretrained("/embed", {"inputs": "a"}, Content_Encoding="gzip")[0] == 415
    head = b"POST /embed HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    chunk = b"1000\r\n" + b" " * 4096 + b"\r\n"
    bomb = pretrained.raw(head + b"Transfer-Encoding: chunked\r\n\r\n", *[chunk] * 20)
    assert bomb.startswith(b"HTTP/1.1 413")
    assert pretrained.raw(b"GET /health HTTP/1.1\r\nbroken\r\n\r\n").startswith(b"HTTP/1.1 400")
    with socket.create_connection(("127.0.0.1", pretrained.port)) as plain:
        plain.sendall(head + b"Content-Length: 100\r\n\r\n{")  # and is gone
    assert pretrained("/health")[0] == 200


@pytest.mark.parametrize(
    "hosts",
    [b"Host: evil.example\r\n", b"", b"Host: localhost\r\nHost: localhost\r\n", b"Host: localhost?x\r\n",
     b"Host: localhost/embed\r\n", b"Host: localhost:80:80\r\n", b"Host: \r\n"],
)  # fmt: skip
def test_foreign_and_malformed_hosts_are_refused(pretrained: Asked, hosts: bytes) -> None:
    found = pretrained.raw(b"GET /info HTTP/1.1\r\n" + hosts + b"\r\n")
    assert found.startswith((b"HTTP/1.1 421", b"HTTP/1.1 400")) and b"model_id" not in found


def test_no_page_of_another_origin_reads_answers(pretrained: Asked) -> None:
    headers = pretrained("/embed", {"inputs": "a"}, Origin="https://evil.example")[2]
    assert not [name for name in headers if name.lower().startswith("access-control")]


def test_keys_are_asked_for_before_anything_else() -> None:
    guard = Guard(keys=(b"another-key-of-this", KEY.encode()), open=("/health",), cors="https://mine.example")
    with serving(tiny("bert-tiny").eval(), guard=guard) as asked:
        for path in ("/embed", "/v1/embeddings", "/", "/nowhere"):
            assert asked(path, {"inputs": "a"})[0] == 401
        for wrong in ("Bearer", f"Basic {KEY}", f"Bearer {KEY}x", f"Bearer {KEY[:-1]}", f"Bearer {KEY}\xff"):
            assert asked("/info", Authorization=wrong)[0] == 401
        allowed = asked("/embed", method="OPTIONS", Origin="https://mine.example")  # browsers ask without the key
        assert allowed[0] == 204 and allowed[2]["access-control-allow-origin"] == "https://mine.example"
        status, found, headers = asked("/info")
        assert (status, headers["www-authenticate"]) == (401, "Bearer") and KEY not in json.dumps(found)
        assert asked("/metrics")[0] == 401 and asked("/health")[0] == 200
        for spelled in ("//info", "/health/../info", "/%69nfo"):
            assert asked(spelled)[0] == 401
        status, _, headers = asked("/embed", {"inputs": "a"}, Authorization=f"Bearer {KEY}")
        assert status == 200 and headers["access-control-allow-origin"] == "https://mine.example"
        assert asked("/v1/embeddings", {"input": "a"})[1]["error"]["code"] == "invalid_api_key"


def test_classes_and_pairs() -> None:
    predictor = with_head(Classification(labels=3), ("good", "bad", "so-so"))
    wanted = [x["probabilities"] for x in _predicted(predictor, [("red", None), ("cat", "dog")])]
    with serving(predictor.model, predictor) as asked:
        (one,) = asked("/predict", {"inputs": [["red"]]})[1]
        assert sum(x["score"] for x in one) == pytest.approx(1) and one[0]["score"] >= one[1]["score"]
        assert {x["label"]: x["score"] for x in one} == pytest.approx(
            dict(zip(("good", "bad", "so-so"), wanted[0], strict=True)), abs=1e-5
        )
        assert [x["label"] for x in asked("/predict", {"inputs": "red"})[1]] == [x["label"] for x in one]
        pair = asked("/predict", {"inputs": ["cat", "dog"]})[1]  # a flat list is one pair
        assert pair[0]["score"] == pytest.approx(max(wanted[1]), abs=1e-5)
        raw = asked("/predict", {"inputs": "red", "raw_scores": True})[1]
        scores = np.exp([x["score"] for x in raw])
        assert scores / scores.sum() == pytest.approx([x["score"] for x in one], abs=1e-5)
        nested = asked("/", {"inputs": "red", "parameters": {"top_k": 2}})[1]
        assert [x["label"] for x in nested[0]] == [x["label"] for x in one[:2]]
        assert asked("/predict", {"inputs": "a " * 600, "truncate": False})[0] == 422
        assert asked("/embed", {"inputs": "a"})[0] == 424
        assert asked("/info")[1]["model_type"]["classifier"]["label2id"] == {"good": 0, "bad": 1, "so-so": 2}


def test_several_labels_have_a_probability_each() -> None:
    predictor = with_head(Classification(labels=3, several=True), ("good", "bad", "so-so"))
    (wanted,) = (x["probabilities"] for x in _predicted(predictor, [("red", None)]))
    with serving(predictor.model, predictor) as asked:
        found = {x["label"]: x["score"] for x in asked("/predict", {"inputs": "red"})[1]}
        assert found == pytest.approx(wanted, abs=1e-5)
        assert sum(found.values()) != pytest.approx(1)


def _predicted(predictor: Any, pairs: Any) -> list[dict[str, Any]]:
    from encoderlab.tasks.data.examples import Text

    return [predictor.predict([Text(id="", text=a, pair=b)]).details[0] for a, b in pairs]


def test_ranks() -> None:
    predictor = with_head(Classification(labels=1), ("number",))
    with serving(predictor.model, predictor) as asked:
        ranked = asked("/rerank", {"query": "who", "texts": ["red", "cat", "dog"], "return_text": True})[1]
        scores = [x["score"] for x in ranked]
        assert scores == sorted(scores, reverse=True) and {x["text"] for x in ranked} == {"red", "cat", "dog"}
        told = asked("/v1/rerank", {"query": "who", "documents": ["red", {"text": "cat"}, "dog"], "top_n": 2})[1]
        assert [x["index"] for x in told["results"]] == [x["index"] for x in ranked[:2]]
        raw = asked("/rerank", {"query": "who", "texts": ["red", "cat", "dog"], "raw_scores": True})[1]
        assert scores == pytest.approx([1 / (1 + np.exp(-x["score"])) for x in raw])
        assert asked("/v1/rerank", {"query": "who"})[1].keys() == {"message"}
        for wrong in ({"documents": [{"title": "red"}]}, {"documents": ["red"], "max_tokens_per_doc": 2}):
            assert asked("/v1/rerank", {"query": "who", **wrong})[0] == 422


def test_options_are_ranked() -> None:
    from encoderlab.interchange.heads import CHOICES
    from encoderlab.tasks.data.examples import Choice

    predictor = with_head(Classification(labels=1), CHOICES)
    options = ("red", "the cat sat", "dog")
    shares = predictor.predict([Choice(id="", question="who ?", options=options)]).details[0]["probabilities"]
    with serving(predictor.model, predictor) as asked:
        asked.server.service.warm_up()
        body = {"query": "who ?", "texts": options}
        found = asked("/rerank", body)[1]
        assert {x["index"]: x["score"] for x in found} == pytest.approx(dict(enumerate(shares)), abs=1e-5)
        raw = {x["index"]: x["score"] for x in asked("/rerank", body | {"raw_scores": True})[1]}
        assert raw[0] - raw[1] == pytest.approx(np.log(shares[0] / shares[1]), abs=1e-4)
        told = asked("/v1/rerank", {"query": "who ?", "documents": options})[1]["results"]
        assert [x["index"] for x in told] == [x["index"] for x in found]
        assert "reranker" in asked("/info")[1]["model_type"]
        assert asked("/rerank", body | {"truncate": False})[0] == 422
        for path, body in (("/", {"anything": 1}), ("/predict", {"inputs": "red"})):
            status, found, _ = asked(path, body)
            assert status == 424 and "POST /rerank takes" in found["error"]


def test_entities_stand_where_they_are_in_the_text() -> None:
    predictor = with_head(Tagging(labels=3), ("O", "B-CITY", "I-CITY"))
    text = "  the red  cat\nsat 我是 ."
    with serving(predictor.model, predictor) as asked:
        for strategy in ("none", "simple"):
            status, found, _ = asked("/", {"inputs": text, "parameters": {"aggregation_strategy": strategy}})
            assert status == 200 and found
            assert all(text[x["start"] : x["end"]] == x["word"] for x in found)
        assert asked("/", {"inputs": [text, " "]})[1][1] == []
        for wrong in ({"aggregation_strategy": "max"}, {"stride": 2}):
            assert asked("/", {"inputs": text, "parameters": wrong})[0] == 422
    assert [word for word, _, _ in words_of(text)] == ["the", "red", "cat", "sat", "我", "是", "."]


@pytest.mark.parametrize("variant", ["independent", "conditional"])
def test_answers_stand_in_the_passage(variant: Any) -> None:
    predictor = with_head(Span(variant=variant), ())
    passage = "the cat sat on the mat . who is it ?"
    with serving(predictor.model, predictor) as asked:
        status, found, _ = asked("/", {"inputs": {"question": "where ?", "context": passage}})
        assert status == 200 and passage[found["start"] : found["end"]].strip() == found["answer"] != ""
        several = asked("/", {"inputs": {"question": "?", "context": passage}, "parameters": {"top_k": 3}})[1]
        assert len(several) == 3
        assert asked("/", {"inputs": {"question": "?"}})[1].keys() == {"error"}


def test_an_overload_is_refused_at_once_and_loses_nothing() -> None:
    with serving(tiny("bert-tiny").eval(), slow=0.2, max_wait=0.02) as asked:
        found: list[tuple[int, float, Any]] = []

        def ask() -> None:
            began = time.monotonic()
            status, _, headers = asked("/embed", {"inputs": ["one two three"] * 5})
            found.append((status, time.monotonic() - began, headers))

        threads = [threading.Thread(target=ask) for _ in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert {status for status, _, _ in found} == {200, 429}
        assert all(int(headers["retry-after"]) >= 1 for status, _, headers in found if status == 429)
        assert asked("/embed", {"inputs": "a"})[0] == 200
        assert asked.server.engine.waiting == 0 and not asked.server.engine._jobs


def test_what_nobody_waits_for_is_not_computed() -> None:
    with serving(tiny("bert-tiny").eval(), slow=0.3, limits=Limits(deadline=0.8)) as asked:
        body = json.dumps({"inputs": ["a b c d"] * 200}).encode()
        head = b"POST /embed HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        with socket.create_connection(("127.0.0.1", asked.port)) as plain:
            plain.sendall(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
            time.sleep(0.2)
        status, told, _ = asked("/embed", json.loads(body))
        assert status == 504 and "not answered within 0.8 seconds" in told["error"]
        for _ in range(50):
            if not asked.server.engine._jobs:
                break
            time.sleep(0.1)
        assert not asked.server.engine._jobs and asked.server.engine.waiting == 0


def test_a_fault_of_the_model_is_an_error_and_the_server_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(tiny("bert-tiny").eval()) as asked:
        whole = asked.server.engine.compute

        def broken(kind: str, works: Any) -> Any:
            raise RuntimeError("secret of the server")

        asked.server.engine.compute = broken
        status, told, _ = asked("/embed", {"inputs": "a"})
        assert (status, told["error_type"]) == (424, "Backend") and "secret" not in told["error"]
        asked.server.engine.compute = whole
        assert asked("/embed", {"inputs": "a"})[0] == 200


def test_heads_of_requests_that_do_not_come(pretrained: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "HEADER_SECONDS", 0.3)
    began = time.monotonic()
    assert pretrained.raw(b"GET /health HTTP/1.1\r\nHost: loc") == b""
    assert pretrained.raw(b"") == b"" and time.monotonic() - began < 5


def test_bodies_that_do_not_come_in_time() -> None:
    with serving(tiny("bert-tiny").eval(), limits=Limits(body_seconds=0.3)) as asked:
        head = (
            b"POST /embed HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 50\r\n\r\n"
        )
        said = asked.raw(head, b'{"inp')
        assert said.startswith(b"HTTP/1.1 408") and b"took longer than 0.3 seconds" in said
        assert b"connection: close" in said.lower()
        assert asked("/embed", {"inputs": "a"})[0] == 200


def test_every_answer_has_a_random_id(pretrained: Asked) -> None:
    ids = {pretrained("/embed", {"inputs": "a"})[2]["x-request-id"] for _ in range(5)}
    assert len(ids) == 5 and all(re.fullmatch("[0-9a-f]{32}", one) for one in ids)


def test_long_headers_are_refused_and_long_bodies_are_not() -> None:
    with serving(tiny("bert-tiny").eval()) as asked:
        head = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        endless = asked.raw(b"GET /info HTTP/1.1\r\nHost: localhost\r\nX: ", *[b"a" * 30_000] * 10)
        assert endless.startswith(b"HTTP/1.1 431")
        body = json.dumps({"inputs": ["the cat sat " * 800] * 10}).encode()
        whole = head + b"Content-Length: %d\r\n\r\n" % len(body) + body
        assert asked.raw(whole).startswith(b"HTTP/1.1 200") and len(body) > 90_000
        connection = http.client.HTTPConnection("127.0.0.1", asked.port, timeout=60)
        for _ in range(30):  # the room is that of a request, not of a connection
            connection.request("GET", "/live", headers={"X": "a" * 5000})
            assert connection.getresponse().read() == b""


def test_a_model_that_cannot_compute_ends_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    service = Service(tiny("bert-tiny").eval(), None, name="tiny", pooling="mean", normalize=True)
    monkeypatch.setattr(service, "compute", lambda kind, works: 1 / 0)
    address = Address(port=0)
    with pytest.raises(ZeroDivisionError):
        process.run(Server(service, ComputeThread(service.compute, budget=64, max_wait=1.0)), address, address.listen())


def test_texts_are_not_logged(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    caplog.set_level("DEBUG")
    with serving(tiny("bert-tiny").eval()) as asked:
        asked("/embed", {"inputs": "asecret"})
        asked("/embed", {"inputs": ["asecret", 1]})
        monkeypatch.setattr(asked.server.service, "compute", lambda kind, works: 1 / 0)
        assert asked("/embed", {"inputs": "asecret"})[0] == 424
    assert "asecret" not in caplog.text


def test_pickles_are_not_served(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    torch.save({}, tmp_path / "pytorch_model.bin")
    with pytest.raises(ConfigError, match="run: encoderlab convert"):
        Service.of(tmp_path)


def test_keys_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(f"{KEY}\nanother-key-of-mine\n")
    path.chmod(0o644)
    with pytest.raises(DataError, match="others may read it; run: chmod 600"):
        read_keys(path)
    path.chmod(0o600)
    assert read_keys(path) == (KEY.encode(), b"another-key-of-mine")
    path.write_text("short\n")
    with pytest.raises(DataError, match="fewer than 16 characters"):
        read_keys(path)


def test_how_a_folder_says_that_vectors_are_made(tmp_path: Path) -> None:
    assert pooling_of(tmp_path) == ("mean", True)
    kind = "sentence_transformers.models."
    modules = [{"path": "", "type": kind + "Transformer"}, {"path": "1_Pooling", "type": kind + "Pooling"}]
    (tmp_path / "1_Pooling").mkdir()
    for data, found in (
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "first"),
        ({"pooling_mode": "lasttoken"}, "last"),
    ):
        (tmp_path / "modules.json").write_text(json.dumps(modules))
        (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps(data))
        assert pooling_of(tmp_path) == (found, False)
    (tmp_path / "modules.json").write_text(json.dumps([*modules, {"path": "2_Dense", "type": kind + "Dense"}]))
    with pytest.raises(ConfigError, match="module Dense is not implemented"):
        pooling_of(tmp_path)
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    for name, text in (
        ("1_Pooling/config.json", "{"),
        ("modules.json", '[{"type": "Pooling"}]'),
        ("modules.json", "{"),
    ):
        (tmp_path / name).write_text(text)
        with pytest.raises(DataError, match=f"{name}: is damaged"):
            pooling_of(tmp_path)


def test_the_command_refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders.save(tiny("bert-tiny"), tmp_path / "model")
    place = str(tmp_path / "model")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for words, code, message in (
            (["--port", port], 2, "cannot listen on 127.0.0.1"),
            (["--port", "65536"], 2, "--port 65536 does not exist; give a number from 0 to 65535"),
            (["--host", "0.0.0.0"], 2, "can be reached by other machines; give --key-file"),
            (["--max-texts", "0"], 2, "is not above 0"),
            (["--rate", "0"], 2, "--rate 0.0 is not above 0"),
            (["--key-file", str(tmp_path / "none")], 3, "cannot be read"),
        ):
            assert main(["serve", place, *words]) == code
            assert message in " ".join(capsys.readouterr().err.split())


@contextlib.contextmanager
def command(folder: Path, *before: str, **environment: str) -> Iterator[tuple[subprocess.Popen[bytes], Asked]]:
    """``encoderlab serve`` in a process of its own, when it is ready; ``before`` are words before the command."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = [*before, sys.executable, "-m", "encoderlab", "serve", str(folder), "--port", str(port)]
    told = os.environ | {"OMP_NUM_THREADS": "1"} | environment
    with subprocess.Popen(words, stderr=subprocess.PIPE, env=told) as server:
        asked = Asked(None, port)  # type: ignore[arg-type]
        for _ in range(3000):  # as slow as a busy machine starts it
            with contextlib.suppress(OSError):
                if asked("/health")[0] == 200:
                    break
            assert server.poll() is None, server.communicate()
            time.sleep(0.1)
        try:
            yield server, asked
        finally:
            server.terminate()


@pytest.mark.parametrize("compiled", [True, False])
def test_nothing_is_written_to_disk(compiled: bool, tmp_path: Path) -> None:
    """All files are read-only, temporary ones in memory; only the compilation of kernels would need a folder."""
    script = 'mount --make-rprivate / && mount -o remount,ro,bind / && mount -t tmpfs none /mnt && exec "$@"'
    closed = ("unshare", "-m", "sh", "-c", script, "sh")
    if os.geteuid() != 0 or subprocess.run([*closed, "true"], capture_output=True).returncode:
        pytest.skip("a file system of its own needs root")
    model = tiny("bert-tiny").eval()
    folders.save(model, tmp_path / "model")
    wanted = encode(model, TEXTS)  # which compiles the kernels, if they are not yet
    environment = {"TMPDIR": "/mnt"} | ({} if compiled else {"ENCODERLAB_HOME": "/nowhere"})
    with command(tmp_path / "model", *closed, **environment) as (server, asked):
        assert np.allclose(asked("/embed", {"inputs": TEXTS})[1], unit(wanted), atol=1e-5)
        server.terminate()
        said = server.communicate(timeout=60)[1]
    assert (b"kernels cannot be compiled" in said) == (not compiled) and server.returncode == 0, said


def test_a_signal_loses_no_accepted_request(tmp_path: Path) -> None:
    folders.save(tiny("bert-tiny"), tmp_path / "model")
    with command(tmp_path / "model") as (server, asked):
        accepted: list[int] = []

        def ask() -> None:
            accepted.append(asked("/embed", {"inputs": ["the cat sat on the mat"] * 100})[0])

        threads = [threading.Thread(target=ask) for _ in range(8)]
        for thread in threads:
            thread.start()
        for _ in range(600):  # until the server has accepted all of them
            if 'te_request_count{method="embed"} 8.0' in asked("/metrics")[1]:
                break
            time.sleep(0.01)
        server.send_signal(signal.SIGTERM)
        for thread in threads:
            thread.join()
        assert server.wait(60) == 0
        assert accepted == [200] * 8
