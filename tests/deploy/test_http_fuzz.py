"""Any JSON on any path: an answer or an error in the shape of its protocol, and a server that goes on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

for package in ("starlette", "uvicorn", "httptools", "orjson", "prometheus_client"):
    pytest.importorskip(package)

from encoderlab.deploy.serve import shapes  # noqa: E402
from encoderlab.deploy.serve.app import protocol_of  # noqa: E402
from encoderlab.deploy.serve.http import Limits  # noqa: E402
from encoderlab.nn.heads import Classification, Span, Tagging  # noqa: E402
from tests.deploy.served import Asked, serving, with_head  # noqa: E402
from tests.tasks.tiny import model as tiny  # noqa: E402

TEXTS = st.one_of(
    st.text(max_size=40),
    st.lists(st.sampled_from(["red", "cat", "[MASK]", "", "中", "sat.", "\x00", "é"]), max_size=8).map(" ".join),
)
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-5, 2**40), st.floats(allow_nan=False), TEXTS),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["question", "context"]), inner),
    max_leaves=8,
)
PATHS: dict[str, type[shapes.RequestShape]] = {
    "/embed": shapes.Embed,
    "/embed_all": shapes.EmbedAll,
    "/predict": shapes.Predict,
    "/rerank": shapes.Rerank,
    "/similarity": shapes.Similarity,
    "/tokenize": shapes.Tokenize,
    "/decode": shapes.Decode,
    "/explain": shapes.Explain,
    "/v1/embeddings": shapes.OpenAIEmbeddings,
    "/v1/rerank": shapes.CohereRerank,
    "/": shapes.FillMask,
}
PLAUSIBLE: dict[str, st.SearchStrategy[Any]] = {  # values that are often right, so that requests get far
    "inputs": st.one_of(
        TEXTS,
        st.lists(TEXTS, max_size=3),
        st.builds(dict, question=TEXTS, context=TEXTS),
        st.builds(dict, source_sentence=TEXTS, sentences=st.lists(TEXTS, max_size=3)),
    ),
    "input": TEXTS | st.lists(TEXTS, max_size=3),
    "query": TEXTS,
    "texts": st.lists(TEXTS, max_size=3),
    "documents": st.lists(TEXTS, max_size=3),
    "ids": st.lists(st.integers(0, 200), max_size=5),
    "method": st.sampled_from(["gradients", "words", "attention"]),
    "steps": st.integers(1, 4),
    "parameters": st.none() | st.builds(dict, top_k=st.integers(1, 5)) | VALUES,
}


@st.composite
def requests(draw: st.DrawFn) -> tuple[str, Any]:
    """A path, and a body with the fields of its shape, some of which are wrong or missing, or any JSON."""
    path = draw(st.sampled_from(sorted(PATHS)))
    if draw(st.integers(0, 9)) == 0:
        return path, draw(VALUES)
    body = {}
    for name, field in PATHS[path].model_fields.items():
        if not field.is_required() and draw(st.integers(0, 2)):
            continue
        right = name in PLAUSIBLE and draw(st.integers(0, 5))
        body[name] = draw(PLAUSIBLE[name] if right else VALUES)
    if draw(st.integers(0, 9)) == 0:
        body["unknown"] = 1
    return path, body


def heads() -> dict[str, Any]:
    return {
        "states": None,
        "classes": with_head(Classification(labels=3), ("good", "bad", "so-so")),
        "number": with_head(Classification(labels=1), ("number",)),
        "tags": with_head(Tagging(labels=3), ("O", "B-CITY", "I-CITY")),
        "answers": with_head(Span(), ()),
    }


@pytest.fixture(scope="module", params=["states", "classes", "number", "tags", "answers"])
def asked(request: pytest.FixtureRequest) -> Iterator[Asked]:
    predictor = heads()[request.param]
    model = tiny("bert-tiny").eval() if predictor is None else predictor.model
    with serving(model, predictor, limits=Limits(characters=300, texts=8)) as running:
        yield running


@given(sent=requests())
@example(sent=("/predict", {"inputs": []}))
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_request(asked: Asked, sent: tuple[str, Any]) -> None:
    path, body = sent
    status, found, headers = asked(path, json.dumps(body), method="POST")
    assert status in (200, 400, 404, 413, 422, 424), (path, body, found)
    assert headers["content-type"] == "application/json" and headers["x-content-type-options"] == "nosniff"
    if status == 200:
        return
    message = {
        "openai": lambda: found["error"]["message"],
        "cohere": lambda: found["message"],
        "hf": lambda: found["error"],
        "tei": lambda: (found["error_type"], found["error"])[1],
    }[protocol_of(path)]()
    assert message and "Traceback" not in message and "/encoderlab/" not in message
    if status == 424:  # only what the model lacks; never a batch that failed
        assert "the log of the server" not in message, (path, body)


def test_the_server_is_as_it_was(asked: Asked) -> None:
    assert asked("/health")[0] == 200
    assert asked("/tokenize", {"inputs": "the cat"})[0] == 200
    assert "te_queue_size 0.0" in asked("/metrics")[1]


METHODS = ("gradients", "words", "attention")
RIGHT: list[tuple[str, Any]] = [
    ("/embed", {"inputs": ["a", "the red cat"]}),
    ("/embed_all", {"inputs": "the cat"}),
    ("/predict", {"inputs": [["the cat"], ["dog"]]}),
    ("/predict", {"inputs": "the cat", "raw_scores": True}),
    ("/rerank", {"query": "cat", "texts": ["cat", "dog"]}),
    ("/similarity", {"inputs": {"source_sentence": "cat", "sentences": ["cat", "dog"]}}),
    ("/v1/embeddings", {"input": "cat"}),
    ("/v1/embeddings", {"input": ["cat", "dog"], "encoding_format": "base64"}),
    ("/v1/rerank", {"query": "cat", "documents": ["cat", "dog"]}),
    ("/v2/rerank", {"query": "cat", "documents": ["cat", "dog"]}),
    ("/", {"inputs": "the [MASK] cat"}),
    ("/", {"inputs": ["the cat", "dog"]}),
    ("/", {"inputs": {"question": "where ?", "context": "the cat is in oslo"}}),
    ("/", {"inputs": {"source_sentence": "cat", "sentences": ["cat", "dog"]}}),
    *(("/explain", {"inputs": text, "method": method}) for method in METHODS for text in ("the cat", "the [MASK]")),
    *(("/explain", {"inputs": {"question": "where ?", "context": "in oslo"}, "method": method}) for method in METHODS),
]


@pytest.mark.parametrize("kind", ["states", "classes", "number", "tags", "answers"])
def test_a_model_whose_numbers_are_nan_is_an_error_in_every_protocol(kind: str) -> None:
    predictor = heads()[kind]
    model = tiny("bert-tiny").eval() if predictor is None else predictor.model
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(float("nan"))
    with serving(model, predictor) as asked:
        said = 0
        for path, body in RIGHT:
            status, found, _ = asked(path, body)
            assert status in (422, 424), (path, body, found)
            json.dumps(found, allow_nan=False)
            said += "are NaN" in json.dumps(found)
        assert said and asked("/tokenize", {"inputs": "cat"})[0] == 200


def test_a_lack_of_memory_is_an_error_of_the_request_and_the_server_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> Any:
        raise MemoryError

    with serving(tiny("bert-tiny").eval()) as asked:
        for name in ("compute", "texts"):
            with monkeypatch.context() as patch:
                patch.setattr(asked.server.service, name, full)
                for path, field in (("/embed", "inputs"), ("/v1/embeddings", "input")):
                    status, found, _ = asked(path, {field: "the cat"})
                    assert status == 424 and "the server is out of memory" in json.dumps(found)
            assert asked("/embed", {"inputs": "the cat"})[0] == 200
