"""Python clients that need an environment of their own, against two running servers, compared with plain requests.

    encoderlab serve small-en --port 8080 &
    encoderlab serve RERANKER --port 8081 &
    pip install cohere litellm haystack-ai llama-index-embeddings-openai-like \
        llama-index-embeddings-text-embeddings-inference  # in another environment
    python -m benchmarks.clients.libraries --vectors http://127.0.0.1:8080 --reranker http://127.0.0.1:8081 \
        --out benchmarks/clients/libraries.json

RERANKER was fine-tuned on a number for two texts, such as STS-B. The file lists the largest difference of every client.
"""

from __future__ import annotations

import argparse
import json
import urllib.request
from collections.abc import Callable, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

TEXTS = ["A man plays a guitar.", "The stock market fell.", "Somebody is playing an instrument."]
QUERY = "A person makes music."
KEY = "none"  # clients want one; the servers ask for none
PACKAGES = {
    "cohere": "cohere",
    "haystack": "haystack-ai",
    "litellm": "litellm",
    "llama_index": "llama-index-core",
}


def asked(url: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def vector_clients(url: str, name: str) -> dict[str, Callable[[], Sequence[Sequence[float]]]]:
    """The vectors of :data:`TEXTS` by each client."""
    import litellm
    from haystack.components.embedders import OpenAITextEmbedder
    from haystack.utils import Secret
    from llama_index.embeddings.openai_like import OpenAILikeEmbedding
    from llama_index.embeddings.text_embeddings_inference import TextEmbeddingsInference

    def by_litellm(provider: str) -> list[list[float]]:
        answer = litellm.embedding(model=f"{provider}/{name}", input=TEXTS, api_key=KEY, api_base=f"{url}/v1")
        return [one["embedding"] for one in answer.data]

    def by_haystack() -> list[list[float]]:
        embedder = OpenAITextEmbedder(api_key=Secret.from_token(KEY), api_base_url=f"{url}/v1", model=name)
        return [embedder.run(text=text)["embedding"] for text in TEXTS]

    tei = TextEmbeddingsInference(model_name=name, base_url=url)
    like = OpenAILikeEmbedding(model_name=name, api_base=f"{url}/v1", api_key=KEY)
    providers = ("openai", "hosted_vllm", "infinity", "jina_ai")
    return {
        **{f"litellm, {provider}": partial(by_litellm, provider) for provider in providers},
        "haystack, OpenAITextEmbedder": by_haystack,
        "llama_index, TextEmbeddingsInference": lambda: tei.get_text_embedding_batch(TEXTS),
        "llama_index, OpenAILikeEmbedding": lambda: like.get_text_embedding_batch(TEXTS),
    }


def ranking_clients(url: str, name: str) -> dict[str, Callable[[], dict[int, float]]]:
    """The score of each of :data:`TEXTS` by each client."""
    import cohere
    import litellm

    def by_litellm(provider: str, path: str) -> dict[int, float]:
        answer = litellm.rerank(f"{provider}/{name}", QUERY, TEXTS, top_n=len(TEXTS), api_key=KEY, api_base=url + path)
        return {one["index"]: one["relevance_score"] for one in answer.results}

    def by_cohere(client: Any, documents: list[Any]) -> dict[int, float]:
        answer = client.rerank(model=name, query=QUERY, documents=documents)
        return {one.index: one.relevance_score for one in answer.results}

    first, second = (make(api_key=KEY, base_url=url) for make in (cohere.Client, cohere.ClientV2))
    named = [{"id": str(number), "text": text} for number, text in enumerate(TEXTS)]
    paths = {"cohere": "/v2/rerank", "jina_ai": "/v1/rerank", "huggingface": "", "hosted_vllm": ""}
    return {
        "cohere, Client": lambda: by_cohere(first, TEXTS),
        "cohere, Client, documents with ids": lambda: by_cohere(first, named),
        "cohere, ClientV2": lambda: by_cohere(second, TEXTS),
        **{f"litellm, {provider}": partial(by_litellm, provider, path) for provider, path in paths.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vectors", required=True, help="address of a server of vectors")
    parser.add_argument("--reranker", required=True, help="address of a server of a re-ranker")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    names = {url: asked(f"{url}/v1/models")["data"][0]["id"] for url in (args.vectors, args.reranker)}
    vectors = asked(f"{args.vectors}/v1/embeddings", {"input": TEXTS})["data"]
    ranked = asked(f"{args.reranker}/rerank", {"query": QUERY, "texts": TEXTS})
    scores = {one["index"]: one["score"] for one in ranked}
    differences: dict[str, dict[str, float]] = {"vectors": {}, "scores": {}}
    for client, vectors_of in vector_clients(args.vectors, names[args.vectors]).items():
        pairs = zip(vectors_of(), vectors, strict=True)
        differences["vectors"][client] = max(
            abs(a - b) for found, right in pairs for a, b in zip(found, right["embedding"], strict=True)
        )
    for client, scores_of in ranking_clients(args.reranker, names[args.reranker]).items():
        theirs = scores_of()
        assert theirs.keys() == scores.keys(), client
        differences["scores"][client] = max(abs(theirs[index] - scores[index]) for index in scores)
    versions = {name: version(package) for name, package in PACKAGES.items()}
    args.out.write_text(json.dumps({"versions": versions, "largest_difference": differences}, indent=2) + "\n")


if __name__ == "__main__":
    main()
