"""Clients of other libraries, where they are installed, against a running server."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

for package in ("starlette", "uvicorn", "httptools", "orjson", "prometheus_client"):
    pytest.importorskip(package)

from encoderlab.inference import encode  # noqa: E402
from encoderlab.nn.heads import Classification, Span, Tagging  # noqa: E402
from tests.deploy.served import TEXTS, Asked, serving, unit, with_head  # noqa: E402
from tests.tasks.tiny import model as tiny  # noqa: E402


def hub(asked: Asked) -> Any:
    client = pytest.importorskip("huggingface_hub").InferenceClient(f"http://127.0.0.1:{asked.port}")
    client.provider = "hf-inference"
    return client


def test_huggingface_hub() -> None:
    model = tiny("bert-tiny").eval()
    with serving(model) as asked:
        client = hub(asked)
        assert np.allclose(client.feature_extraction(TEXTS[0]), unit(encode(model, TEXTS[:1])), atol=1e-5)
        near = client.sentence_similarity(TEXTS[0], TEXTS)
        assert len(near) == 3 and near[0] == pytest.approx(1, abs=1e-5)
        guesses = client.fill_mask("the [MASK] sat", top_k=3)
        assert len(guesses) == 3 and guesses[0].score >= guesses[1].score
    predictor = with_head(Classification(labels=3), ("good", "bad", "so-so"))
    with serving(predictor.model, predictor) as asked:
        found = hub(asked).text_classification("the film is good", top_k=3)
        assert {one.label for one in found} == {"good", "bad", "so-so"}
    predictor = with_head(Tagging(labels=3), ("O", "B-CITY", "I-CITY"))
    with serving(predictor.model, predictor) as asked:
        assert all(one.entity_group == "CITY" for one in hub(asked).token_classification("sue runs in oslo"))
    predictor = with_head(Span(), ())
    with serving(predictor.model, predictor) as asked:
        found = hub(asked).question_answering(question="where ?", context="sue runs in oslo .")
        assert found.answer in "sue runs in oslo ." and 0 <= found.score <= 1


def test_openai() -> None:
    openai = pytest.importorskip("openai")
    model = tiny("bert-tiny").eval()
    with serving(model) as asked:
        client = openai.OpenAI(base_url=f"http://127.0.0.1:{asked.port}/v1", api_key="none", max_retries=0)
        found = client.embeddings.create(model="tiny", input=TEXTS)  # asks for base64
        assert np.allclose([one.embedding for one in found.data], unit(encode(model, TEXTS)), atol=1e-5)
        assert [one.id for one in client.models.list()] == ["tiny"]
        with pytest.raises(openai.NotFoundError, match="does not exist; this server has 'tiny'"):
            client.embeddings.create(model="other", input="a")
        with pytest.raises(openai.UnprocessableEntityError, match="token ids are refused"):
            client.embeddings.create(model="tiny", input=[1, 2, 3])


def test_langchain() -> None:
    openai = pytest.importorskip("langchain_openai")
    model = tiny("bert-tiny").eval()
    wanted = unit(encode(model, TEXTS))
    with serving(model) as asked:
        how: dict[str, Any] = {"model": "tiny", "api_key": "none", "base_url": f"http://127.0.0.1:{asked.port}/v1"}
        client = openai.OpenAIEmbeddings(**how, check_embedding_ctx_length=False)
        assert np.allclose(client.embed_documents(TEXTS), wanted, atol=1e-5)
        assert np.allclose(client.embed_query(TEXTS[0]), wanted[0], atol=1e-5)


def test_langchain_of_hugging_face() -> None:
    of_hub = pytest.importorskip("langchain_huggingface")
    model = tiny("bert-tiny").eval()
    wanted = unit(encode(model, TEXTS))
    with serving(model) as asked:
        client = of_hub.HuggingFaceEndpointEmbeddings(model="any/name", huggingfacehub_api_token="none")
        client.client = hub(asked)  # it takes names of the Hub alone, and an address through its client
        assert np.allclose(client.embed_documents(TEXTS), wanted, atol=1e-5)
        assert np.allclose(client.embed_query(TEXTS[0]), wanted[0], atol=1e-5)
