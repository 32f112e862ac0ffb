"""A server on a real port, asked in four protocols, well and badly."""

from __future__ import annotations

import base64
import json
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest

for package in ("starlette", "uvicorn", "httptools", "orjson", "prometheus_client"):
    pytest.importorskip(package)

from prometheus_client.parser import text_string_to_metric_families  # noqa: E402

from encoderlab.deploy.serve import handlers  # noqa: E402
from encoderlab.deploy.serve.http import Guard  # noqa: E402
from encoderlab.inference import encode, fill_mask  # noqa: E402
from encoderlab.interchange import huggingface  # noqa: E402
from encoderlab.interchange.heads import NUMBER  # noqa: E402
from encoderlab.nn.heads import Classification, Span, Tagging  # noqa: E402
from encoderlab.tasks.data.examples import Text  # noqa: E402
from encoderlab.tasks.data.plain_words import words_of  # noqa: E402
from tests.deploy.served import KEY, TEXTS, Asked, serving, unit, with_head  # noqa: E402
from tests.tasks.tiny import model as tiny  # noqa: E402


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
    told = pretrained("/v1/embeddings", {"input": TEXTS, "model": "tiny", "encoding_format": None})[1]
    assert [row["index"] for row in told["data"]] == [0, 1, 2] and told["usage"]["total_tokens"] == 19
    assert np.allclose([row["embedding"] for row in told["data"]], wanted, atol=1e-5)
    coded = pretrained("/v1/embeddings", {"input": TEXTS[0], "encoding_format": "base64", "model": None})[1]
    assert np.allclose(np.frombuffer(base64.b64decode(coded["data"][0]["embedding"]), "<f4"), wanted[0], atol=1e-5)
    for options in ({}, {"wait_for_model": True, "use_cache": False}):  # of the Hub: langchain and Weaviate send them
        for path in ("/", "/embed"):
            assert np.allclose(pretrained(path, {"inputs": TEXTS, "options": options})[1], wanted, atol=1e-5)
    assert pretrained("/v1/models")[1]["data"][0]["id"] == "tiny"


def test_masks_are_filled_as_by_fill_mask(pretrained: Asked) -> None:
    model = tiny("bert-tiny").eval()
    status, found, _ = pretrained("/", {"inputs": "the [MASK] sat", "parameters": {"top_k": 3}})
    wanted = fill_mask(model, "the [MASK] sat", top=3)[0]
    assert status == 200 and [one["token_str"] for one in found] == [guess.token_str for guess in wanted]
    assert np.allclose([one["score"] for one in found], [guess.score for guess in wanted], atol=1e-6)


def test_a_text_with_a_mask_becomes_a_vector_where_fields_say_how(pretrained: Asked) -> None:
    vectors = pretrained("/embed", {"inputs": "the [MASK] cat", "normalize": True})[1]
    for body in ({"inputs": "the [MASK] cat", "normalize": True}, {"inputs": "the [MASK] cat", "dimensions": 64}):
        assert np.allclose(pretrained("/", body)[1], vectors, atol=1e-6)
    guesses = pretrained("/", {"inputs": "the [MASK] cat", "normalize": None, "options": {"use_cache": False}})[1]
    assert guesses[0].keys() == {"score", "token", "token_str", "sequence"}


def test_a_request_gets_so_many_guesses_and_no_more(pretrained: Asked) -> None:
    size = pretrained.server.service.tokenizer.vocab_size
    body = {"inputs": ["[MASK] [MASK]"] * 40, "parameters": {"top_k": 1000}}
    status, found, _ = pretrained("/", body)
    assert status == 200 and len(found[0][0]) == size  # no more than there are tokens
    status, found, _ = pretrained("/", body | {"inputs": ["[MASK] " * 70] * 2})
    assert status == 422 and found.keys() == {"error"}
    assert f"140 masks with {size} guesses each are more than 10000 guesses" in found["error"]
    few = {"top_k": 1000, "targets": ["cat", "dog"]}
    assert pretrained("/", {"inputs": ["[MASK] " * 70] * 2, "parameters": few})[0] == 200


def test_a_request_gets_so_many_states_and_no_more(pretrained: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handlers, "STATES", 12 * 64)
    assert pretrained("/embed_all", {"inputs": [TEXTS[0]]})[0] == 200
    status, found, _ = pretrained("/embed_all", {"inputs": [TEXTS[0], TEXTS[2]]})
    assert status == 422 and "the states have 832 numbers, at most 768 are sent; send fewer texts" in found["error"]
    assert pretrained("/embed", {"inputs": [TEXTS[0], TEXTS[2]]})[0] == 200


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
    assert info["vectors"] is True
    pretrained("/embed", {"inputs": "a"})
    assert pretrained("/embed", {"inputs": 1})[0] == 422
    metrics = list(text_string_to_metric_families(pretrained("/metrics")[1]))
    stages = {f"te_request{stage}_duration_count" for stage in ("", "_tokenization", "_queue", "_inference")}
    counts = {"te_request_count", "te_request_success", "te_request_failure", "te_queue_size"}
    sizes = {"te_request_input_length_sum", "te_batch_next_size_sum", "te_batch_next_tokens_sum"}
    own = {"encoderlab_queue_tokens", "encoderlab_padding_ratio_sum"}
    assert stages | counts | sizes | own <= {sample.name for family in metrics for sample in family.samples}
    for path, body in (("/tokenize", {"inputs": "a"}), ("/decode", {"ids": [1]}), ("/tokenize", {"inputs": 1})):
        pretrained(path, body)
    told = [sample for family in text_string_to_metric_families(pretrained("/metrics")[1]) for sample in family.samples]
    counted = {
        name: sum(sample.value for sample in told if sample.name == f"te_request_{name}")
        for name in ("count", "success", "failure")
    }
    assert counted["count"] == counted["success"] + counted["failure"]
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
        ("/embed", {"inputs": "a", "prompt_name": "query"}, 422, "no prompt called 'query': it has none"),
        ("/embed", "null", 422, "the body is not a JSON object; send its fields as"),
        ("/v1/rerank", "[]", 422, "the body is not a JSON object; send its fields as"),
        ("/embed/", {"inputs": "a"}, 404, "no such path"),
        ("/decode", {"ids": [1] * 501}, 413, "501 token ids, at most 500"),
        ("/similarity", {"inputs": {"source_sentence": "a", "sentences": ["a"] * 41}}, 422, "batch size 41 > maximum"),
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


@pytest.mark.parametrize(
    ("host", "hosts", "known"),
    [
        ("localhost", (), True), ("LOCALHOST:80", (), True), ("localhost.", (), True), ("localhost:", (), True),
        ("[::1]:80", (), True), ("[::1]", (), True), ("::1", (), False), ("localhost:\xb2", (), False),
        ("[localhost]", (), False), ("localhost..", (), False), ("user@localhost", (), False),
        ("my_service.local", ("*",), True), ("[fe80::1]", ("*",), True), ("a b", ("*",), False), ("", ("*",), False),
        ("models.example", ("Models.Example",), True), ("models.example.evil", ("models.example",), False),
    ],
)  # fmt: skip
def test_names_of_the_server(host: str, hosts: tuple[str, ...], known: bool) -> None:
    guard = Guard(hosts=(*Guard().hosts, *hosts))
    scope = {"path": "/info", "method": "GET", "headers": [(b"host", host.encode("latin-1"))]}
    assert (guard.check(scope) is None) == known


def test_probes_are_answered_under_any_name(pretrained: Asked) -> None:
    """Load balancers ask for an address of the machine, which the server does not know."""
    for path in ("/health", "/live", "/ping"):
        for method in ("GET", "HEAD"):
            assert pretrained(path, method=method, Host="10.0.0.7:80")[0] == 200
    assert pretrained("/metrics", Host="10.0.0.7:80")[0] == pretrained("/embed", {}, Host="10.0.0.7:80")[0] == 421


def test_another_method_is_named(pretrained: Asked) -> None:
    for path, allowed in (("/embed", "POST"), ("/health", "GET, HEAD"), ("/", "GET, HEAD, POST")):
        status, _, headers = pretrained(path, method="PUT")
        assert (status, headers["allow"]) == (405, allowed)


def test_as_many_sentences_as_texts_are_compared(pretrained: Asked) -> None:
    body = {"inputs": {"source_sentence": "a", "sentences": ["a"] * 40}}
    assert len(pretrained("/similarity", body)[1]) == 40


def test_no_page_of_another_origin_reads_answers(pretrained: Asked) -> None:
    headers = pretrained("/embed", {"inputs": "a"}, Origin="https://evil.example")[2]
    assert not [name for name in headers if name.lower().startswith("access-control")]


def test_keys_are_asked_for_before_anything_else() -> None:
    keys = (b"another-key-of-this", KEY.encode())
    guard = Guard(keys=keys, open=("/health",), pages=("/",), cors="https://mine.example")
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
        assert asked("/", method="HEAD")[0] == asked("/")[0] == 200  # the page
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
        assert asked("/", {"inputs": "red", "options": {"wait_for_model": True, "use_cache": False}})[0] == 200
        assert asked("/predict", {"inputs": "a " * 600, "truncate": False})[0] == 422
        status, found, _ = asked("/predict", {"inputs": [["a"], ["b", "c"], ["d"]]})
        assert status == 422 and "2 of 3 examples have no second text (the first: inputs[0])" in found["error"]
        assert asked("/embed", {"inputs": "a"})[0] == 424
        assert asked("/info")[1]["model_type"]["classifier"]["label2id"] == {"good": 0, "bad": 1, "so-so": 2}


def test_a_number_goes_through_the_function_that_is_asked_for() -> None:
    predictor = with_head(Classification(labels=1), NUMBER)
    with serving(predictor.model, predictor) as asked:

        def score(**parameters: str) -> float:
            return asked("/", {"inputs": "red", "parameters": parameters})[1][0][0]["score"]

        assert score() == score(function_to_apply="none")
        assert score(function_to_apply="sigmoid") == pytest.approx(1 / (1 + np.exp(-score())))
        assert score(function_to_apply="softmax") == 1


def test_several_labels_have_a_probability_each() -> None:
    predictor = with_head(Classification(labels=3, several=True), ("good", "bad", "so-so"))
    (wanted,) = (x["probabilities"] for x in _predicted(predictor, [("red", None)]))
    with serving(predictor.model, predictor) as asked:
        found = {x["label"]: x["score"] for x in asked("/predict", {"inputs": "red"})[1]}
        assert found == pytest.approx(wanted, abs=1e-5)
        assert sum(found.values()) != pytest.approx(1)


def test_a_single_label_called_number_has_a_probability() -> None:
    predictor = with_head(Classification(labels=1, several=True), ("number",))
    with serving(predictor.model, predictor) as asked:
        (plain,), (raw,) = (asked("/predict", {"inputs": "red", "raw_scores": own})[1] for own in (False, True))
    assert plain["score"] == pytest.approx(1 / (1 + np.exp(-raw["score"])))


def _predicted(predictor: Any, pairs: Any) -> list[dict[str, Any]]:
    from encoderlab.tasks.data.examples import Text

    return [predictor.predict([Text(id="", text=a, pair=b)]).details[0] for a, b in pairs]


def test_a_ranker_whose_output_has_a_name_ranks() -> None:
    """Published rankers have one output, ``LABEL_0``, and no ``problem_type``: it is the logit of a probability."""
    named, number = (with_head(Classification(labels=1), labels) for labels in (("LABEL_0",), ("number",)))
    body = {"query": "who", "texts": ["red", "cat", "dog"]}
    with serving(named.model, named) as asked, serving(number.model, number) as wanted:
        for more in ({}, {"raw_scores": True}):
            assert asked("/rerank", body | more)[1] == wanted("/rerank", body | more)[1]
        told = asked("/v1/rerank", {"query": "who", "documents": body["texts"]})[1]["results"]
        assert told == wanted("/v1/rerank", {"query": "who", "documents": body["texts"]})[1]["results"]
        assert "reranker" in asked("/info")[1]["model_type"]
        (raw,) = asked("/predict", {"inputs": ["who", "red"], "raw_scores": True})[1]
        (share,) = asked("/predict", {"inputs": ["who", "red"]})[1]
        (value,) = named.predict([Text(id="", text="who", pair="red")]).values
        assert raw["score"] == wanted("/predict", {"inputs": ["who", "red"]})[1][0]["score"]
        assert share["score"] == pytest.approx(1 / (1 + np.exp(-raw["score"]))) == pytest.approx(value)


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
        assert asked("/rerank", {"query": "who", "texts": ["red", "cat", "dog"], "top_n": 2})[1] == [
            {"index": x["index"], "score": x["score"]} for x in ranked[:2]
        ]
        named = [{"id": "1", "text": "red"}, {"id": "2", "text": "cat"}]
        for path in ("/rerank", "/v1/rerank"):  # vLLM's clients use the first
            told = asked(path, {"query": "who", "documents": named, "rank_fields": ["text"]})[1]
            assert {x["index"]: x["relevance_score"] for x in told["results"]} == pytest.approx(
                {x["index"]: x["score"] for x in ranked if x["index"] < 2}
            )  # last bits differ with the size of a batch, on some processors
        assert asked("/rerank", {"query": "who"})[1]["error"].startswith("`texts`")
        assert asked("/v1/rerank", {"query": "who"})[1].keys() == {"message", "detail"}
        model = {"model": asked.server.service.name, "top_n": 3, "return_text": True}  # of the client rerankers
        assert asked("/rerank", {"query": "who", "texts": ["red", "cat", "dog"]} | model)[1] == ranked
        assert asked("/rerank", {"query": "who", "texts": ["red"], "model": "other"})[0] == 404
        unset = dict.fromkeys(  # of langchain
            ("model", "top_n", "return_documents", "max_tokens_per_doc", "max_chunks_per_doc")
        )
        longer = {"query": "who", "documents": ["the red cat sat", "red cat", "cat"], "return_documents": True}
        whole = asked("/v1/rerank", longer | unset | {"return_documents": True, "max_tokens_per_doc": 4096})[1][
            "results"
        ]
        assert whole == asked("/v1/rerank", longer)[1]["results"]
        cut = asked("/v1/rerank", longer | {"max_tokens_per_doc": 2})[1]["results"]
        wanted = asked("/v1/rerank", {"query": "who", "documents": ["the red", "red cat", "cat"]} | unset)[1]["results"]
        assert [(x["index"], x["relevance_score"]) for x in cut] == [(x["index"], x["relevance_score"]) for x in wanted]
        assert {x["index"]: x["document"]["text"] for x in cut} == dict(enumerate(longer["documents"]))
        for wrong in (
            {"documents": [{"title": "red"}]},
            {"documents": ["red"], "max_tokens_per_doc": 0},
            {"documents": named, "rank_fields": ["text", "id"]},
        ):
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
        sizes, compute = [], asked.server.engine.compute
        asked.server.engine.compute = lambda kind, works: (sizes.append(sum(map(len, works))), compute(kind, works))[1]
        assert len(asked("/rerank", body | {"texts": ["the cat sat on the mat ."] * 200})[1]) == 200
        assert max(sizes) <= asked.server.engine.queue.budget < sum(sizes)  # many batches, however many the options
        for path in ("/", "/predict"):
            status, found, _ = asked(path, {"inputs": "red"})
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
        every = {"aggregation_strategy": "none", "ignore_labels": []}
        assert [x["word"] for x in asked("/", {"inputs": text, "parameters": every})[1]] == [
            word for word, _, _ in words_of(text)
        ]
        for wrong in ({"aggregation_strategy": "max"}, {"stride": 2}):
            assert asked("/", {"inputs": text, "parameters": wrong})[0] == 422
    assert [word for word, _, _ in words_of(text)] == ["the", "red", "cat", "sat", "我", "是", "."]


@pytest.mark.parametrize(
    "text", ["sue runs in oslo, rome.", 'bob ("ann") eats in paris!', "我在oslo工作2019年，sue。", "sue 's cat ; dog"]
)
def test_entities_are_those_of_the_pipeline(text: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    predictor = with_head(Tagging(labels=3), ("O", "B-CITY", "I-CITY"))
    huggingface.save(predictor.model, tmp_path / "model")
    pipeline = transformers.pipeline("token-classification", model=str(tmp_path / "model"))
    wanted = pipeline(text, aggregation_strategy="first", ignore_labels=[])
    with serving(predictor.model, predictor) as asked:
        parameters = {"aggregation_strategy": "first", "ignore_labels": []}
        found = asked("/", {"inputs": text, "parameters": parameters})[1]
        assert [(x["entity_group"], x["start"], x["end"]) for x in found] == [
            (x["entity_group"], x["start"], x["end"]) for x in wanted
        ]
        assert [x["score"] for x in found] == pytest.approx([x["score"] for x in wanted], abs=1e-5)
        first = {x["start"]: x for x in pipeline(text, aggregation_strategy="none", ignore_labels=[])}
        plain = asked("/", {"inputs": text, "parameters": parameters | {"aggregation_strategy": "none"}})[1]
        for x in plain:  # the first piece of each word
            assert x["entity"] == first[x["start"]]["entity"]
            assert x["score"] == pytest.approx(first[x["start"]]["score"], abs=1e-5)


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
