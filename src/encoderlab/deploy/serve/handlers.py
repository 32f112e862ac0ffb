"""The handlers of the paths, in the four protocols: from a body to works for the engine, from results to the answer."""

from __future__ import annotations

import base64
import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import numpy as np

from encoderlab.deploy.serve import shapes
from encoderlab.deploy.serve.calls import Call
from encoderlab.deploy.serve.http import Problem
from encoderlab.deploy.serve.service import Service, Works
from encoderlab.deploy.serve.why import ExplanationRequest, rounded
from encoderlab.interchange.heads import NUMBER
from encoderlab.tasks.data.examples import Choice, Question, TaggedWords, Text
from encoderlab.tasks.data.plain_words import words_of
from encoderlab.tasks.forms.base import Predictions, softmax

Handler = Callable[[Any, Call], Awaitable[Any]]
RIGHT = ("Right", "right")  # where texts are cut by default
GUESSES = 10_000  # of all masks of a request; of texts of 500 tokens they take 1.3 s, and 36 MB of JSON
STATES = 2**24  # numbers of all states of a request, 180 MB of JSON
EXPLAINED_BY = {"gradients": ("target", "at", "steps"), "words": ("target", "at"), "attention": ("layer", "head")}
EXPLAINED = 65_536  # tokens of all sequences of an explanation; other requests wait for it
ATTENDED = 1024  # tokens whose attention is shown: a number for every two of them


class Handlers:
    """The handlers of one model: from a body and a call they make the JSON answer."""

    def __init__(self, service: Service, *, accept_ids: bool = False) -> None:
        self.service, self.accept_ids = service, accept_ids

    def by_path(self) -> dict[str, tuple[tuple[type[shapes.RequestShape], ...], Handler]]:
        """The shapes that the body may have, and the handler, of every path."""
        return {
            "/": self._of_task(),
            "/embed": ((shapes.Embed,), self.embed),
            "/embed_all": ((shapes.EmbedAll,), self.embed_all),
            "/predict": ((shapes.Predict,), self.predict),
            "/rerank": ((shapes.Rerank, shapes.CohereRerank), self.rerank),
            "/similarity": ((shapes.Similarity,), self.similarity),
            "/tokenize": ((shapes.Tokenize,), self.tokenize),
            "/decode": ((shapes.Decode,), self.decode),
            "/v1/embeddings": ((shapes.OpenAIEmbeddings,), self.openai),
            "/v1/rerank": ((shapes.CohereRerank,), self.cohere),
            "/v2/rerank": ((shapes.CohereRerank,), self.cohere),
            "/explain": ((shapes.Explain,), self.explain),
        }

    def _of_task(self) -> tuple[tuple[type[shapes.RequestShape], ...], Handler]:
        """Shapes and handler of ``POST /``, which is for the model's own task."""
        masks = (shapes.FillMask,) if self.service.fills_masks else ()
        paths: dict[str | None, tuple[tuple[type[shapes.RequestShape], ...], Handler]] = {
            "texts": ((shapes.Classify,), self.classify),
            "words": ((shapes.Tag,), self.tag),
            "passages": ((shapes.AnswerQuestion,), self.answer_question),
            "options": ((shapes.Classify,), self.classify),  # which names the path that takes its task
            None: ((shapes.Embed, shapes.Similarity, *masks), self.pretrained),
        }
        return paths[self.service.columns]

    # Vectors

    async def _vectors(self, body: Any, texts: Sequence[Any], call: Call, *, kind: Any = "vectors") -> list[np.ndarray]:
        """The vectors, or states, of texts that were checked."""
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

        def make() -> Works:
            prompt = self.service.prompts.before(getattr(body, "prompt_name", None))
            return self.service.texts(kind, texts, truncate=truncate, side=side, prompt=prompt)  # type: ignore[arg-type]

        works: Works = await call.prepared(make)
        numbers = sum(works.tokens) * self.service.model.config.encoder.width
        if kind == "tokens" and numbers > STATES:
            raise Problem(422, f"the states have {numbers:,} numbers, at most {STATES:,} are sent; send fewer texts")
        return await call.computed(works)

    def _finished(self, vectors: list[np.ndarray], dimensions: int | None, normalize: bool) -> np.ndarray:
        """The first ``dimensions`` of the vectors, scaled to length 1."""
        whole = np.stack(vectors)
        if dimensions is not None and dimensions > whole.shape[1]:
            raise Problem(422, f"dimensions {dimensions}, expected 1 to {whole.shape[1]}", param="dimensions")
        whole = whole[:, :dimensions]
        if normalize:
            whole = whole / np.maximum(np.linalg.norm(whole, axis=1, keepdims=True), 1e-12)
        return np.ascontiguousarray(whole, np.float32)

    async def embed(self, body: shapes.Embed, call: Call) -> Any:
        texts = _several(body.inputs)
        call.check(texts)
        vectors = await self._vectors(body, texts, call)
        return self._finished(
            vectors, body.dimensions, self.service.normalize if body.normalize is None else body.normalize
        )

    async def embed_all(self, body: shapes.EmbedAll, call: Call) -> Any:
        texts = _several(body.inputs)
        call.check(texts)
        return await self._vectors(body, texts, call, kind="tokens")

    async def similarity(self, body: shapes.Similarity, call: Call) -> Any:
        source, sentences = body.inputs.source_sentence, body.inputs.sentences
        call.check([source])
        call.check(sentences)
        texts = [source, *sentences]
        vectors = self._finished(await self._vectors(body.parameters, texts, call), None, True)
        return vectors[1:] @ vectors[0]

    async def openai(self, body: shapes.OpenAIEmbeddings, call: Call) -> Any:
        self._check_model(body.model)
        texts = _several(body.input)
        call.check(texts, "input")
        vectors = self._finished(await self._vectors(body, texts, call), body.dimensions, self.service.normalize)
        plain, used = body.encoding_format != "base64", call.tokens
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

    def _check_model(self, name: str | None) -> None:
        if name and name != self.service.name:
            raise Problem(
                404, f"the model {name!r} does not exist; this server has {self.service.name!r}", param="model"
            )

    # Heads

    async def _decoded(self, examples: list[Any], call: Call) -> Predictions:
        """The predictions of examples of the model's form."""
        works, items = await call.prepared(lambda: self.service.items(examples))
        outputs = await call.computed(works)
        assert self.service.predictor is not None
        return self.service.predictor.form.decode(items, outputs, examples)

    async def _classes(
        self, pairs: Sequence[Sequence[str]], body: Any, call: Call, function: str | None
    ) -> list[list[dict[str, Any]]]:
        """Labels with their scores, the best first."""
        if self.service.columns != "texts":
            own = f", but one for {self.service.form}" if self.service.form else ""
            path = "POST /rerank" if self.service.columns == "options" else "POST /"
            raise Problem(424, f"the model has no head for classes{own}; {path} takes its task", "Backend")
        call.check(pairs)
        for pair in pairs:
            call.check(pair)
        if getattr(body, "truncation_direction", "Right") not in RIGHT:
            raise Problem(422, "a head of fine-tuning reads the beginning of a text; leave truncation_direction out")
        if getattr(body, "truncate", None) is False:
            await call.prepared(lambda: self.service.check_lengths(pairs))
        examples = [
            Text(id=f"inputs[{number}]", text=pair[0], pair=pair[1] if len(pair) > 1 else None)
            for number, pair in enumerate(pairs)
        ]
        works, _ = await call.prepared(lambda: self.service.items(examples))
        classes = []
        for scores in await call.computed(works):
            if function == "none" or (function is None and self.service.ranks and self.service.labels == NUMBER):
                values = scores.tolist()
            elif function is None:
                assert self.service.predictor is not None
                values = self.service.predictor.form.shares(scores).tolist()
            elif function == "sigmoid":
                values = (1 / (1 + np.exp(-scores))).tolist()
            else:
                values = softmax(scores).tolist()
            named: list[dict[str, Any]] = [
                {"score": score, "label": label} for label, score in zip(self.service.labels, values, strict=True)
            ]
            classes.append(sorted(named, key=lambda one: -one["score"]))
        return classes

    async def predict(self, body: shapes.Predict, call: Call) -> Any:
        inputs: Any = body.inputs
        # A flat list of two texts is one pair.
        single = isinstance(inputs, str) or (len(inputs) > 0 and isinstance(inputs[0], str))
        pairs = [[inputs] if isinstance(inputs, str) else inputs] if single else inputs
        classes = await self._classes(pairs, body, call, "none" if body.raw_scores else None)
        return classes[0] if single else classes

    async def classify(self, body: shapes.Classify, call: Call) -> Any:
        parameters = body.parameters or shapes.ClassifyParameters()
        pairs = [[text] for text in _several(body.inputs)]
        classes = await self._classes(pairs, None, call, parameters.function_to_apply)
        return [ranked[: parameters.top_k] for ranked in classes]

    async def _ranked(
        self, query: str, texts: Sequence[str], call: Call, *, body: Any = None, raw: bool = False
    ) -> list[tuple[int, float]]:
        """Indices and scores of texts, the best first: shares of options, or the sigmoid of a re-ranker's number; both
        as they are if ``raw``.
        """
        if not self.service.ranks:
            raise Problem(424, "the model is not a re-ranker, which gives one number for two texts", "Backend")
        call.check([query])
        if self.service.columns == "options":
            scores = await self._options(query, texts, body, call)
            scores = scores if raw else softmax(scores)
        else:
            classes = await self._classes([[query, text] for text in texts], body, call, "none")
            scores = np.array([ranked[0]["score"] for ranked in classes])
            scores = scores if raw else 1 / (1 + np.exp(-scores))
        return sorted(enumerate(scores.tolist()), key=lambda one: -one[1])

    async def _options(self, question: str, options: Sequence[str], body: Any, call: Call) -> np.ndarray:
        """The score of each option, (n,)."""
        call.check(options)
        if getattr(body, "truncate", None) is False or getattr(body, "truncation_direction", "Right") not in RIGHT:
            raise Problem(422, "options are cut at the end; leave truncate and truncation_direction out")
        example = Choice(id="", question=question, options=tuple(options))
        works, _ = await call.prepared(lambda: self.service.items([example]))
        return np.concatenate(await call.computed(works)).astype(np.float64)

    async def rerank(self, body: shapes.Rerank | shapes.CohereRerank, call: Call) -> Any:
        """text-embeddings-inference's ``/rerank``, or that of vLLM, which is Cohere's."""
        if isinstance(body, shapes.CohereRerank):
            return await self.cohere(body, call)
        self._check_model(body.model)
        ranked = (await self._ranked(body.query, body.texts, call, body=body, raw=body.raw_scores))[: body.top_n]
        return [
            {"index": index, "score": score} | ({"text": body.texts[index]} if body.return_text else {})
            for index, score in ranked
        ]

    async def cohere(self, body: shapes.CohereRerank, call: Call) -> Any:
        self._check_model(body.model)
        texts = [document if isinstance(document, str) else document.text for document in body.documents]
        read, most = texts, body.max_tokens_per_doc
        if most is not None:
            read = await call.prepared(lambda: self.service.cut(texts, most))
        ranked = (await self._ranked(body.query, read, call))[: body.top_n]
        return {
            "id": uuid.uuid4().hex,
            "model": self.service.name,
            "results": [
                {"index": index, "relevance_score": score}
                | ({"document": {"text": texts[index]}} if body.return_documents else {})
                for index, score in ranked
            ],
            "usage": {"total_tokens": call.tokens, "prompt_tokens": call.tokens},
            "meta": {"api_version": {"version": "2"}, "billed_units": {"search_units": 1}},
        }

    async def tag(self, body: shapes.Tag, call: Call) -> Any:
        texts = _several(body.inputs)
        call.check(texts)
        words_by_text = await call.prepared(lambda: [words_of(text) for text in texts])
        examples = [
            TaggedWords(id=str(i), words=tuple(word for word, _, _ in words))
            for i, words in enumerate(words_by_text)
            if words
        ]
        predictions = await self._decoded(examples, call)
        tags = iter(zip(predictions.values, predictions.details, strict=True))
        parameters = body.parameters or shapes.TagParameters()
        plain, ignored = parameters.aggregation_strategy == "none", parameters.ignore_labels
        ignored = ["O"] if ignored is None else ignored
        answers = []
        for text, words in zip(texts, words_by_text, strict=True):
            values, detail = next(tags) if words else ((), {"scores": []})
            marked = (words, values, detail["scores"], ignored)
            answers.append(_entities(*marked) if plain else _groups(text, *marked))
        return answers[0] if isinstance(body.inputs, str) else answers

    async def answer_question(self, body: shapes.AnswerQuestion, call: Call) -> Any:
        asked = body.inputs
        call.check([asked.question])
        call.check([asked.context])
        examples = [Question(id="q", question=asked.question, passage=asked.context)]
        predictions = await self._decoded(examples, call)
        spans = (predictions.nbest or {}).get("q", [])
        if predictions.values[0] == "":
            spans = sorted(spans, key=lambda span: span["text"] != "")
        answers = [
            {"answer": s["text"], "score": s["probability"], "start": s.get("start", 0), "end": s.get("end", 0)}
            for s in spans
        ]
        top = body.parameters.top_k if body.parameters else None
        return answers[:top] if top else answers[0]

    async def pretrained(self, body: Any, call: Call) -> Any:
        """``POST /`` for a model without a fine-tuned head: vectors, similarities, or masks if the text has one and no
        field says how its vector is made."""
        if isinstance(body, shapes.Similarity):
            return await self.similarity(body, call)
        texts = [text if isinstance(text, list) else self._with_masks(text) for text in _several(body.inputs)]
        mask = self.service.mask
        masked = [isinstance(text, str) and mask in text for text in texts]
        vectors = self.service.gives_vectors and not any(masked)
        if isinstance(body, shapes.Embed):
            how = shapes.given(body) - {"inputs", "options"}
            if vectors or how or not self.service.fills_masks:
                return await self.embed(body, call)
        call.check(texts)
        if not all(masked):
            raise Problem(422, f"a text has no {mask}; write it where the model should predict a word")
        parameters = getattr(body, "parameters", None) or shapes.MaskParameters()
        top = parameters.top_k or 5
        encodings = await call.prepared(lambda: self.service.tokenizer.encode_batch([*map(str, texts)]))
        targets = None if parameters.targets is None else tuple(_several(parameters.targets))
        count = sum(int((one.ids == self.service.tokenizer.special.mask).sum()) for one in encodings)
        each = min(top, self.service.tokenizer.vocab_size if targets is None else len(targets))
        if count * each > GUESSES:
            raise Problem(
                422,
                f"{count} masks with {each} guesses each are more than {GUESSES} guesses; send fewer masks, or a "
                "smaller top_k",
                param="parameters",
            )
        works = Works("masks", [(text, top, targets) for text in texts], [len(one) + 2 for one in encodings])
        results = await call.computed(works)
        answers = [
            [[vars(guess) for guess in guesses] for guesses in masks] if len(masks) > 1 else [vars(g) for g in masks[0]]
            for masks in results
        ]
        return answers[0] if isinstance(body.inputs, str) else answers

    def _with_masks(self, text: str) -> str:
        """``text`` with the model's own mask for ``[MASK]``, which stands for it in every family."""
        return text.replace("[MASK]", self.service.mask) if self.service.fills_masks else text

    # Why

    async def explain(self, body: shapes.Explain, call: Call) -> Any:
        """Integrated gradients, words left out, or attention."""
        inputs = body.inputs
        if self.service.columns == "options":
            raise Problem(424, "a model that chooses between options is not explained", "Backend")
        if strange := shapes.given(body) - {"inputs", "method", *EXPLAINED_BY[body.method]}:
            name = min(strange)
            raise Problem(422, f"`{name}` has no effect on the method {body.method}; leave it out", param=name)
        if isinstance(inputs, shapes.Asked):
            inputs = [inputs.question, inputs.context]
        texts = [inputs] if isinstance(inputs, str) else inputs
        texts = [self._with_masks(text) for text in texts]
        call.check(texts)
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
        sizes = await call.prepared(lambda: [len(x) for x in self.service.tokenizer.encode_batch(texts)])
        size = min(sum(sizes) + 3, longest)
        tokens = size * await call.prepared(lambda: asked.cost)
        if body.method == "attention" and size > ATTENDED:
            raise Problem(422, f"{size:,} tokens, attention is shown of at most {ATTENDED:,}; send a shorter text")
        if tokens > EXPLAINED:
            raise Problem(
                422,
                f"the explanation would read {tokens:,} tokens, at most {EXPLAINED:,} are read; send a shorter text, "
                "fewer steps, or another method",
            )
        (explanation,) = await call.computed(Works("explain", [asked], [tokens]))
        return rounded(explanation)

    # Tokens

    async def tokenize(self, body: shapes.Tokenize, call: Call) -> Any:
        texts = _several(body.inputs)
        call.check(texts)
        tokenizer = self.service.tokenizer

        def make() -> Any:
            prompt, tokens = self.service.prompts.before(body.prompt_name), []
            prompted = [prompt + text for text in texts]
            for encoding in tokenizer.backend.encode_batch(prompted, add_special_tokens=body.add_special_tokens):
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

        return await call.prepared(make)

    async def decode(self, body: shapes.Decode, call: Call) -> Any:
        rows: Any = body.ids if body.ids and isinstance(body.ids[0], list) else [body.ids]
        call.check(rows)
        tokenizer = self.service.tokenizer
        if any(index >= tokenizer.vocab_size for row in rows for index in row):
            raise Problem(422, f"an id is outside the vocabulary of {tokenizer.vocab_size} tokens", param="ids")
        return await call.prepared(
            lambda: [tokenizer.decode(row, skip_special=body.skip_special_tokens) for row in rows]
        )


def _several(inputs: Any) -> list[Any]:
    """One text, texts, the ids of a text, or those of several, as a list of texts."""
    one = isinstance(inputs, str) or (len(inputs) > 0 and isinstance(inputs[0], int))
    return [inputs] if one else inputs


Words = list[tuple[str, int, int]]  # of a text: each with its first character and one past its last


def _entities(
    words: Words, tags: Sequence[str], scores: Sequence[float], ignored: Sequence[str]
) -> list[dict[str, Any]]:
    """A record for every word."""
    return [
        {"entity": tag, "score": score, "index": i + 1, "word": word, "start": start, "end": end}
        for i, ((word, start, end), tag, score) in enumerate(zip(words, tags, scores, strict=True))
        if tag not in ignored
    ]


def _groups(
    text: str, words: Words, tags: Sequence[str], scores: Sequence[float], ignored: Sequence[str]
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
