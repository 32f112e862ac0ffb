"""The routes of a server: requests of four protocols to works for the engine, and results to their answers."""

from __future__ import annotations

import asyncio
import base64
import math
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from encoderlab import __version__
from encoderlab.deploy.serve import page, shapes
from encoderlab.deploy.serve.engine import ComputeThread, Failed, Late, Overloaded, PendingRequest
from encoderlab.deploy.serve.http import (
    SECURITY,
    Guard,
    Guarded,
    Limits,
    Problem,
    Protocol,
    answer,
    body_of,
    error,
    gone,
    parsed,
)
from encoderlab.deploy.serve.metrics import Metrics
from encoderlab.deploy.serve.service import Service, Works, probabilities
from encoderlab.deploy.serve.texts import Refused, words_of
from encoderlab.deploy.serve.why import ExplanationRequest, rounded
from encoderlab.errors import EncoderlabError
from encoderlab.interchange.heads import NUMBER
from encoderlab.tasks.data.examples import Question, TaggedWords, Text

COHERE = ("/v1/rerank", "/v2/rerank")


BESIDE = "/beside"  # the lane of a second model


def protocol_of(path: str) -> Protocol:
    """The protocol in which a path reports errors."""
    path = path.removeprefix(BESIDE)
    if path.startswith(COHERE):
        return "cohere"
    if path.startswith("/v1/"):
        return "openai"
    return "hf" if path in ("", "/") else "tei"


@dataclass
class Timing:
    """How long the stages of one request took, for its headers."""

    began: float = field(default_factory=time.perf_counter)
    tokenizing: float = 0.0
    characters: int = 0
    job: PendingRequest | None = None


class Server:
    """One model behind HTTP; ``app`` is an ASGI application.

    Args:
        lane: what stands before the paths of this model, and in the engine before its kinds of work.
        beside: the server of a second model, with a lane of its own, on the same engine.
    """

    def __init__(
        self,
        service: Service,
        engine: ComputeThread,
        *,
        limits: Limits | None = None,
        guard: Guard | None = None,
        accept_ids: bool = False,
        lane: str = "",
        beside: Server | None = None,
    ) -> None:
        self.service, self.engine, self.accept_ids = service, engine, accept_ids
        self.lane, self.beside = lane, beside
        self.limits = limits or Limits(characters=250 * service.longest)
        self.metrics = Metrics(engine)
        self.ready = self.draining = False
        routes = [
            Route(lane + path, self._endpoint(path, shape, handler), methods=["POST"])
            for path, (shape, handler) in self._handlers().items()
        ]
        self.routes = [*routes, Route(f"{lane}/info", self.info, methods=["GET"])]
        routes = [*self.routes, *(beside.routes if beside is not None else ()), *page.routes()]
        routes += [Route(path, self.health, methods=["GET"]) for path in ("/health", "/ping")]
        routes += [
            Route("/live", self.live, methods=["GET"]),
            Route("/metrics", self.show_metrics, methods=["GET"]),
            Route("/v1/models", self.models, methods=["GET"]),
            Route("/v1/models/{name:path}", self.models, methods=["GET"]),
        ]
        inner = Starlette(routes=routes, exception_handlers={404: _unknown, 405: _unknown})
        self.app: ASGIApp = Guarded(inner, guard or Guard(), protocol_of)

    def load(self) -> None:
        """Compute the shortest and the longest batch and start the engine; requests are refused until then."""
        both = [self, *([self.beside] if self.beside is not None else [])]
        for one in both:
            one.service.warm_up()
        self.engine.start()
        for one in both:
            one.ready = True

    @property
    def healthy(self) -> bool:
        """Whether requests are answered now."""
        return self.ready and not self.draining and not self.engine.stuck

    def _handlers(self) -> dict[str, tuple[Any, Callable[[Any, Timing, Request], Awaitable[Any]]]]:
        handlers: dict[str, tuple[Any, Callable[[Any, Timing, Request], Awaitable[Any]]]] = {
            "/embed": (shapes.Embed, self.embed),
            "/embed_all": (shapes.EmbedAll, self.embed_all),
            "/predict": (shapes.Predict, self.predict),
            "/rerank": (shapes.Rerank, self.rerank),
            "/similarity": (shapes.Similarity, self.similarity),
            "/tokenize": (shapes.Tokenize, self.tokenize),
            "/decode": (shapes.Decode, self.decode),
            "/v1/embeddings": (shapes.OpenAIEmbeddings, self.openai),
            "/v1/rerank": (shapes.CohereRerank, self.cohere),
            "/v2/rerank": (shapes.CohereRerank, self.cohere),
            "/explain": (shapes.Explain, self.explain),
        }
        holds = self.service.columns
        if holds == "texts":
            handlers["/"] = (shapes.Classify, self.classify)
        elif holds == "words":
            handlers["/"] = (shapes.Tag, self.tag)
        elif holds == "passages":
            handlers["/"] = (shapes.AnswerQuestion, self.answer_question)
        elif self.service.fills_masks:
            handlers["/"] = (shapes.Embed | shapes.Similarity | shapes.FillMask, self.pretrained)
        elif holds is None:
            handlers["/"] = (shapes.Embed | shapes.Similarity, self.pretrained)
        return handlers

    # Around every request

    def _endpoint(
        self, path: str, shape: Any, handler: Callable[[Any, Timing, Request], Awaitable[Any]]
    ) -> Callable[[Request], Awaitable[Response]]:
        adapter, protocol, method = shapes.adapter(shape), protocol_of(path), path.strip("/") or "task"

        async def endpoint(request: Request) -> Response:
            timing = Timing()
            self.metrics.requests.labels(method).inc()
            try:
                if not self.ready:
                    raise Problem(503, "the model is loading; try again soon", "Unhealthy", retry_after="2")
                body = parsed(adapter, await body_of(request, self.limits))
                if path not in ("/tokenize", "/decode"):
                    self.engine.check_wait()  # before the work of tokenizing
                result = await handler(body, timing, request)
            except (Problem, Overloaded) as refused:
                problem = _overloaded(refused) if isinstance(refused, Overloaded) else refused
                self.metrics.failure.labels(problem.kind.lower()).inc()
                return error(problem, protocol)
            return answer(result, headers=self._headers(method, timing))

        return endpoint

    def _headers(self, method: str, timing: Timing) -> dict[str, str]:
        total = time.perf_counter() - timing.began
        headers = {"x-compute-type": self.service.device.type, "x-total-time": _milliseconds(total)}
        headers |= {"x-compute-characters": str(timing.characters), "x-request-id": uuid.uuid4().hex}
        job = timing.job
        if job is not None:
            self.metrics.done(method, job, tokenizing=timing.tokenizing, total=total)
            headers["x-compute-tokens"] = str(sum(entry.tokens for entry in job.entries))
            headers["x-tokenization-time"] = _milliseconds(timing.tokenizing)
            headers["x-queue-time"] = _milliseconds(max(job.started - job.arrived, 0.0))
            headers["x-inference-time"] = headers["x-compute-time"] = _milliseconds(max(job.ended - job.started, 0.0))
        return headers

    def _check(self, texts: Sequence[Any], timing: Timing) -> None:
        """Refuse too many or too long texts, before they are tokenized."""
        if not texts:
            raise Problem(400, "`inputs` cannot be empty", "Empty")
        if len(texts) > self.limits.texts:
            raise Problem(
                422, f"batch size {len(texts)} > maximum allowed batch size {self.limits.texts}; send fewer at a time"
            )
        for text in texts:
            if len(text) > self.limits.characters:
                raise Problem(
                    413, f"a text has {len(text)} characters, at most {self.limits.characters} are read; shorten it"
                )
            timing.characters += len(text) if isinstance(text, str) else 0

    async def _prepared(self, timing: Timing, make: Callable[[], Any]) -> Any:
        """The result of a function of texts, run in a thread; tokenizing lets other threads run."""
        began = time.perf_counter()
        try:
            return await asyncio.get_running_loop().run_in_executor(None, make)
        except Refused as refused:
            raise Problem(422, str(refused)) from None
        except EncoderlabError as refused:
            raise Problem(422, str(refused)) from None
        finally:
            timing.tokenizing += time.perf_counter() - began

    async def _computed(self, works: Works, timing: Timing, request: Request) -> list[Any]:
        """The results of works; dropped if the client disconnects or the deadline passes."""
        job = self.engine.submit(self.lane + works.kind, works.works, works.tokens, within=self.limits.deadline)
        timing.job = job
        watch = asyncio.ensure_future(gone(request))
        try:
            waited: set[asyncio.Future[Any]] = {job.future, watch}
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            if not job.future.done():
                raise Problem(499, "the client has gone", "Validation")
            return job.future.result()
        except Late:
            raise Problem(504, f"not answered within {self.limits.deadline:g} seconds", "Overloaded") from None
        except Refused as refused:
            raise Problem(422, str(refused)) from None
        except Failed:
            raise Problem(424, "the model failed on this request; see the server's log", "Backend") from None
        finally:
            watch.cancel()
            if not job.future.done():
                job.drop()

    # Vectors

    async def _vectors(
        self, body: Any, texts: Sequence[Any], timing: Timing, request: Request, *, kind: Any = "vectors"
    ) -> list[np.ndarray]:
        self._check(texts, timing)
        if not self.service.gives_vectors:
            what = f"has a head for {self.service.form}" if self.service.form else "was exported to fill masks"
            raise Problem(424, f"the model {what} and gives no vectors", "Backend")
        if not self.accept_ids and any(not isinstance(text, str) for text in texts):
            raise Problem(
                422,
                "token ids are refused, because those of another tokenizer would be read as words; send texts (of "
                "langchain: check_embedding_ctx_length=False), or start the server with --accept-ids",
            )
        truncate = getattr(body, "truncate", None) is not False
        side = str(getattr(body, "truncation_direction", "Right")).capitalize()
        make = lambda: self.service.texts(kind, texts, truncate=truncate, side=side)  # type: ignore[arg-type]  # noqa: E731
        return await self._computed(await self._prepared(timing, make), timing, request)

    def _finished(self, vectors: list[np.ndarray], dimensions: int | None, normalize: bool) -> np.ndarray:
        """The first ``dimensions`` of the vectors, scaled to length 1."""
        whole = np.stack(vectors)
        if dimensions is not None and dimensions > whole.shape[1]:
            raise Problem(422, f"dimensions {dimensions}, expected 1 to {whole.shape[1]}", param="dimensions")
        whole = whole[:, :dimensions]
        if normalize:
            whole = whole / np.maximum(np.linalg.norm(whole, axis=1, keepdims=True), 1e-12)
        return np.ascontiguousarray(whole, np.float32)

    async def embed(self, body: shapes.Embed, timing: Timing, request: Request) -> Any:
        vectors = await self._vectors(body, _several(body.inputs), timing, request)
        return self._finished(
            vectors, body.dimensions, self.service.normalize if body.normalize is None else body.normalize
        )

    async def embed_all(self, body: shapes.EmbedAll, timing: Timing, request: Request) -> Any:
        return await self._vectors(body, _several(body.inputs), timing, request, kind="tokens")

    async def similarity(self, body: shapes.Similarity, timing: Timing, request: Request) -> Any:
        texts = [body.inputs.source_sentence, *body.inputs.sentences]
        vectors = self._finished(await self._vectors(body.parameters, texts, timing, request), None, True)
        return vectors[1:] @ vectors[0]

    async def openai(self, body: shapes.OpenAIEmbeddings, timing: Timing, request: Request) -> Any:
        self._check_model(body.model)
        vectors = self._finished(
            await self._vectors(body, _several(body.input), timing, request),
            body.dimensions,
            self.service.normalize,
        )
        plain = body.encoding_format == "float"
        assert timing.job is not None
        used = sum(entry.tokens for entry in timing.job.entries)
        return {
            "object": "list",
            "data": [
                {
                    "object": "embedding",
                    "index": index,
                    "embedding": vector if plain else base64.b64encode(vector.astype("<f4").tobytes()).decode(),
                }
                for index, vector in enumerate(vectors)
            ],
            "model": self.service.name,
            "usage": {"prompt_tokens": used, "total_tokens": used},
        }

    def _check_model(self, name: str) -> None:
        if name not in ("", self.service.name):
            raise Problem(
                404, f"the model {name!r} does not exist; this server has {self.service.name!r}", param="model"
            )

    # Heads

    async def _logits(self, examples: list[Any], timing: Timing, request: Request) -> list[np.ndarray]:
        """The scores of classes of texts."""
        works, _ = await self._prepared(timing, lambda: self.service.items(examples))
        return await self._computed(works, timing, request)

    async def _classes(
        self, pairs: Sequence[Sequence[str]], body: Any, timing: Timing, request: Request, function: str | None
    ) -> list[list[dict[str, Any]]]:
        """Labels with their scores, the best first."""
        form = self.service.form
        if self.service.columns != "texts":
            raise Problem(424, f"the model has no head for classes{_has(form)}; POST / takes its task", "Backend")
        self._check(pairs, timing)
        for pair in pairs:
            self._check(pair, timing)
        if getattr(body, "truncation_direction", "Right").capitalize() != "Right":
            raise Problem(422, "a head of fine-tuning reads the beginning of a text; leave truncation_direction out")
        if getattr(body, "truncate", None) is False:
            await self._prepared(timing, lambda: self.service.check_lengths(pairs))
        examples = [Text(id="", text=pair[0], pair=pair[1] if len(pair) > 1 else None) for pair in pairs]
        classes = []
        for scores in await self._logits(examples, timing, request):
            if function == "none" or self.service.labels == NUMBER:
                values = scores.tolist()
            elif function is None and self.service.predictor is not None:
                values = self.service.predictor.form.shares(scores).tolist()
            elif function == "sigmoid":
                values = (1 / (1 + np.exp(-scores))).tolist()
            else:
                values = probabilities(scores).tolist()
            named: list[dict[str, Any]] = [
                {"score": score, "label": label} for label, score in zip(self.service.labels, values, strict=True)
            ]
            classes.append(sorted(named, key=lambda one: -one["score"]))
        return classes

    async def predict(self, body: shapes.Predict, timing: Timing, request: Request) -> Any:
        inputs: Any = body.inputs
        # A flat list of two texts is one pair.
        single = isinstance(inputs, str) or (len(inputs) > 0 and isinstance(inputs[0], str))
        pairs = [[inputs] if isinstance(inputs, str) else inputs] if single else inputs
        classes = await self._classes(pairs, body, timing, request, "none" if body.raw_scores else None)
        return classes[0] if single else classes

    async def classify(self, body: shapes.Classify, timing: Timing, request: Request) -> Any:
        parameters = body.parameters or shapes.ClassifyParameters()
        pairs = [[text] for text in _several(body.inputs)]
        classes = await self._classes(pairs, None, timing, request, parameters.function_to_apply)
        return [ranked[: parameters.top_k] for ranked in classes]

    async def _ranked(self, query: str, texts: Sequence[str], body: Any, timing: Timing, request: Request) -> Any:
        """Indices and scores of texts, the best first."""
        if self.service.labels != NUMBER:
            raise Problem(424, "the model is not a re-ranker, which gives one number for two texts", "Backend")
        self._check([query], timing)
        classes = await self._classes([[query, text] for text in texts], body, timing, request, None)
        scores = [ranked[0]["score"] for ranked in classes]
        return sorted(enumerate(scores), key=lambda one: -one[1])

    async def rerank(self, body: shapes.Rerank, timing: Timing, request: Request) -> Any:
        ranked = await self._ranked(body.query, body.texts, body, timing, request)
        return [
            {"index": index, "score": score} | ({"text": body.texts[index]} if body.return_text else {})
            for index, score in ranked
        ]

    async def cohere(self, body: shapes.CohereRerank, timing: Timing, request: Request) -> Any:
        self._check_model(body.model)
        texts = [document if isinstance(document, str) else document.get("text", "") for document in body.documents]
        ranked = (await self._ranked(body.query, texts, None, timing, request))[: body.top_n]
        assert timing.job is not None
        tokens = sum(entry.tokens for entry in timing.job.entries)
        return {
            "id": uuid.uuid4().hex,
            "model": self.service.name,
            "results": [
                {"index": index, "relevance_score": score}
                | ({"document": {"text": texts[index]}} if body.return_documents else {})
                for index, score in ranked
            ],
            "usage": {"total_tokens": tokens, "prompt_tokens": tokens},
            "meta": {"api_version": {"version": "2"}, "billed_units": {"search_units": 1}},
        }

    async def tag(self, body: shapes.Tag, timing: Timing, request: Request) -> Any:
        texts = _several(body.inputs)
        self._check(texts, timing)
        words_by_text = [words_of(text) for text in texts]
        examples = [
            TaggedWords(id=str(i), words=tuple(word for word, _, _ in words))
            for i, words in enumerate(words_by_text)
            if words
        ]
        works, items = await self._prepared(timing, lambda: self.service.items(examples))
        outputs = await self._computed(works, timing, request)
        assert self.service.predictor is not None
        predictions = self.service.predictor.form.decode(items, outputs, examples)
        tags = iter(zip(predictions.values, predictions.details, strict=True))
        parameters = body.parameters or shapes.TagParameters()
        plain, ignored = parameters.aggregation_strategy == "none", parameters.ignore_labels or ["O"]
        answers = []
        for text, words in zip(texts, words_by_text, strict=True):
            values, detail = next(tags) if words else ((), {"scores": []})
            make = _entities if plain else _groups
            answers.append(make(text, words, values, detail["scores"], ignored))
        return answers[0] if isinstance(body.inputs, str) else answers

    async def answer_question(self, body: shapes.AnswerQuestion, timing: Timing, request: Request) -> Any:
        asked = body.inputs
        self._check([asked.question], timing)
        self._check([asked.context], timing)
        examples = [Question(id="q", question=asked.question, passage=asked.context)]
        works, items = await self._prepared(timing, lambda: self.service.items(examples))
        outputs = await self._computed(works, timing, request)
        assert self.service.predictor is not None
        predictions = self.service.predictor.form.decode(items, outputs, examples)
        spans = (predictions.nbest or {}).get("q", [])
        if predictions.values[0] == "":
            spans = sorted(spans, key=lambda span: span["text"] != "")
        answers = [
            {"answer": s["text"], "score": s["probability"], "start": s.get("start", 0), "end": s.get("end", 0)}
            for s in spans
        ]
        top = body.parameters.top_k if body.parameters else None
        return answers[: top or 1] if top else answers[0]

    async def pretrained(self, body: Any, timing: Timing, request: Request) -> Any:
        """``POST /`` for a model without a fine-tuned head: vectors, similarities, or masks if the text has one."""
        if isinstance(body, shapes.Similarity):
            return await self.similarity(body, timing, request)
        texts = _several(body.inputs)
        mask = self.service.tokenizer.token(self.service.tokenizer.special.mask)
        masked = [isinstance(text, str) and (mask in text or "[MASK]" in text) for text in texts]
        vectors = self.service.gives_vectors and not any(masked)
        if isinstance(body, shapes.Embed) and (vectors or not self.service.fills_masks):
            return await self.embed(body, timing, request)
        self._check(texts, timing)
        if not all(masked):
            raise Problem(422, f"a text has no {mask}; write it where the model should predict a word")
        parameters = getattr(body, "parameters", None) or shapes.MaskParameters()
        top = parameters.top_k or 5
        texts = [text.replace("[MASK]", mask) for text in texts]
        sizes = await self._prepared(timing, lambda: [len(x) + 2 for x in self.service.tokenizer.encode_batch(texts)])
        targets = None if parameters.targets is None else tuple(_several(parameters.targets))
        works = Works("masks", [(text, top, targets) for text in texts], sizes)
        results = await self._computed(works, timing, request)
        answers = [
            [[vars(guess) for guess in guesses] for guesses in masks] if len(masks) > 1 else [vars(g) for g in masks[0]]
            for masks in results
        ]
        return answers[0] if isinstance(body.inputs, str) else answers

    # Why

    async def explain(self, body: shapes.Explain, timing: Timing, request: Request) -> Any:
        """Integrated gradients, words left out, or attention."""
        inputs = body.inputs
        if self.service.columns == "options":
            raise Problem(424, "a model that chooses between options is not explained", "Backend")
        if isinstance(inputs, shapes.Asked):
            inputs = [inputs.question, inputs.context]
        texts = [inputs] if isinstance(inputs, str) else inputs
        self._check(texts, timing)
        asked = ExplanationRequest(
            method=body.method,
            texts=tuple(texts),
            target=body.target,
            at=body.at,
            steps=body.steps,
            layer=body.layer - 1,
            head=body.head - 1,
        )
        longest = self.service.longest
        sizes = await self._prepared(timing, lambda: [len(x) for x in self.service.tokenizer.encode_batch(texts)])
        works = Works("explain", [asked], [min(sum(sizes) + 3, longest) * asked.cost])
        (explanation,) = await self._computed(works, timing, request)
        return rounded(explanation)

    # Tokens

    async def tokenize(self, body: shapes.Tokenize, timing: Timing, request: Request) -> Any:
        texts = _several(body.inputs)
        self._check(texts, timing)
        tokenizer = self.service.tokenizer

        def make() -> Any:
            tokens = []
            for encoding in tokenizer.backend.encode_batch(texts, add_special_tokens=body.add_special_tokens):
                rows = zip(encoding.ids, encoding.tokens, encoding.special_tokens_mask, encoding.offsets, strict=True)
                tokens.append(
                    [
                        {
                            "id": index,
                            "text": token,
                            "special": bool(special),
                            "start": None if special else place[0],
                            "stop": None if special else place[1],
                        }
                        for index, token, special, place in rows
                    ]
                )
            return tokens

        return await self._prepared(timing, make)

    async def decode(self, body: shapes.Decode, timing: Timing, request: Request) -> Any:
        rows: Any = body.ids if body.ids and isinstance(body.ids[0], list) else [body.ids]
        self._check(rows, timing)
        tokenizer = self.service.tokenizer
        if any(index >= tokenizer.vocab_size for row in rows for index in row):
            raise Problem(422, f"an id is outside the vocabulary of {tokenizer.vocab_size} tokens", param="ids")
        return await self._prepared(
            timing, lambda: [tokenizer.decode(row, skip_special=body.skip_special_tokens) for row in rows]
        )

    # About the server

    async def health(self, request: Request) -> Response:
        if self.healthy:
            return Response(status_code=200, headers=SECURITY)
        return error(Problem(503, "loading, draining or stuck", "Unhealthy", retry_after="2"), "tei")

    async def live(self, request: Request) -> Response:
        return Response(status_code=200, headers=SECURITY)

    async def show_metrics(self, request: Request) -> Response:
        return Response(self.metrics.text(), headers=SECURITY, media_type="text/plain; version=0.0.4")

    async def info(self, request: Request) -> Response:
        service = self.service
        named = {label: i for i, label in enumerate(service.labels)}
        labels = {"id2label": {str(i): label for label, i in named.items()}, "label2id": named}
        kind: dict[str, Any] = {
            "embedding": {"pooling": {"mean": "mean", "first": "cls", "last": "last_token"}[service.pooling]}
        }
        if service.form is not None:
            kind = {"reranker" if service.labels == NUMBER else "classifier": labels}
        return answer(
            {
                "model_id": service.name,
                "model_sha": None,
                "model_dtype": "int8" if self.service.in_int8 else "float32",
                "served_model_name": service.name,
                "model_type": kind,
                "max_concurrent_requests": 512,
                "max_input_length": service.longest,
                "max_batch_tokens": self.engine.queue.budget,
                "max_batch_requests": None,
                "max_client_batch_size": self.limits.texts,
                "auto_truncate": True,
                "tokenization_workers": 1,
                "version": __version__,
                "sha": None,
                "docker_label": None,
                "family": service.model.config.family,
                "task": service.form or ("fill-mask" if service.fills_masks else "states"),
                "pairs": None if service.predictor is None else getattr(service.predictor.form.settings, "pairs", None),
                "mask_token": service.tokenizer.token(service.tokenizer.special.mask),
                "beside": None if self.beside is None else self.beside.lane,
            }
        )

    async def models(self, request: Request) -> Response:
        model = {"id": self.service.name, "object": "model", "created": 0, "owned_by": "encoderlab"}
        name = request.path_params.get("name")
        if name is None:
            return answer({"object": "list", "data": [model]})
        if name != self.service.name:
            return error(Problem(404, f"the model {name!r} does not exist"), "openai")
        return answer(model)


def _several(inputs: Any) -> list[Any]:
    """One text, texts, the ids of a text, or those of several, as a list of texts."""
    one = isinstance(inputs, str) or (len(inputs) > 0 and isinstance(inputs[0], int))
    return [inputs] if one else inputs


def _has(form: str | None) -> str:
    return "" if form is None else f", but one for {form}"


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.3f}"


def _overloaded(refused: Overloaded) -> Problem:
    after = str(math.ceil(refused.retry_after))
    return Problem(429, "the model is overloaded; try again later", "Overloaded", retry_after=after)


async def _unknown(request: Request, failure: Exception) -> Response:
    """The answer for an unknown path or method."""
    status = getattr(failure, "status_code", 404)
    what = "no such path here" if status == 404 else "this path takes another method"
    return error(Problem(status, f"{what}; see /info and docs/deploying.md"), protocol_of(request.url.path))


Found = list[tuple[str, int, int]]


def _entities(
    text: str, words: Found, tags: Sequence[str], scores: Sequence[float], ignored: Sequence[str]
) -> list[dict[str, Any]]:
    """A record for every word."""
    return [
        {"entity": tag, "score": score, "index": i + 1, "word": word, "start": start, "end": end}
        for i, ((word, start, end), tag, score) in enumerate(zip(words, tags, scores, strict=True))
        if tag not in ignored
    ]


def _groups(
    text: str, words: Found, tags: Sequence[str], scores: Sequence[float], ignored: Sequence[str]
) -> list[dict[str, Any]]:
    """A record for every run of words of one entity; B- begins a new one."""
    groups: list[dict[str, Any]] = []
    last = None
    for i, ((_, start, end), tag, score) in enumerate(zip(words, tags, scores, strict=True)):
        name = tag[2:] if tag[:2] in ("B-", "I-", "E-", "S-", "M-") else tag
        if tag in ignored or name in ignored:
            continue
        if groups and last == i - 1 and groups[-1]["entity_group"] == name and tag[:2] not in ("B-", "S-"):
            group = groups[-1]
            group["end"], group["of"] = end, [*group["of"], score]
        else:
            groups.append({"entity_group": name, "start": start, "end": end, "of": [score]})
        last = i
    return [
        {
            "entity_group": group["entity_group"],
            "score": float(np.mean(group["of"])),
            "word": text[group["start"] : group["end"]],
            "start": group["start"],
            "end": group["end"],
        }
        for group in groups
    ]
