"""The requests of the four protocols, field by field. Unknown fields are refused: nothing is ignored silently.

A field of several types has a description, which an error gives instead of the errors of each type.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, StrictInt, StrictStr

Text = StrictStr
Ids = list[Annotated[StrictInt, Field(ge=0)]]
Texts = Annotated[Text | list[Text], Field(description="a text or a list of texts")]
TextsOrIds = Annotated[
    Text | list[Text] | Ids | list[Ids],
    Field(description="a text, a list of texts, or the token ids of one text or of several"),
]
Pair = Annotated[list[Text], Field(min_length=1, max_length=2)]


class RequestShape(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


def given(body: RequestShape) -> set[str]:
    """The names of the fields that a request has; null counts as absent."""
    return {name for name in body.model_fields_set if getattr(body, name) is not None}


def described(shape: type[RequestShape], place: Sequence[str | int]) -> tuple[str, str] | None:
    """The path to the outermost field with a description on the way to ``place``, and that description, or None."""
    inside: type[RequestShape] | None = shape
    for depth, name in enumerate(place, 1):
        field = None if inside is None else inside.model_fields.get(str(name))
        if field is None:
            return None
        if field.description is not None:
            return ".".join(map(str, place[:depth])), field.description
        kinds = (field.annotation, *get_args(field.annotation))
        inside = next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, RequestShape)), None)
    return None


class HubOptions(RequestShape):
    """Options of the Hub's own servers, which mean nothing here: no answer is cached, and the model is loaded."""

    use_cache: bool | None = None
    use_gpu: bool | None = None
    wait_for_model: bool | None = None


class HubTask(RequestShape):
    """A task in Hugging Face's protocol. Weaviate, and langchain's older classes, always send ``options``."""

    options: HubOptions | None = None


class Truncating(RequestShape):
    truncate: bool | None = None
    truncation_direction: Literal["Left", "Right", "left", "right"] = "Right"


class Prompted(Truncating):
    prompt_name: Text | None = None


class Embed(Prompted, HubTask):
    """text-embeddings-inference's ``/embed``, and Hugging Face's feature extraction."""

    inputs: TextsOrIds
    normalize: bool | None = None
    dimensions: Annotated[int, Field(ge=1)] | None = None
    encoding_format: Literal["float"] | None = None


class EmbedAll(Prompted):
    inputs: TextsOrIds


class Predict(Truncating):
    inputs: Annotated[
        Text | Pair | list[Pair],
        Field(description="a text, a pair [text, text], or a list of [text] and [text, text]"),
    ]
    raw_scores: bool = False
    prompt_name: None = None


class Rerank(Truncating):
    query: Text
    texts: Annotated[list[Text], Field(min_length=1)]
    model: Text | None = None  # of the client rerankers
    top_n: Annotated[int, Field(ge=1)] | None = None  # of that and of litellm
    raw_scores: bool = False
    return_text: bool = False
    prompt_name: None = None


class Similar(RequestShape):
    source_sentence: Text
    sentences: Annotated[list[Text], Field(min_length=1)]


class Similarity(HubTask):
    inputs: Similar
    parameters: Prompted | None = None


class Tokenize(RequestShape):
    inputs: Texts
    add_special_tokens: bool = True
    prompt_name: Text | None = None


class Decode(RequestShape):
    ids: Annotated[Ids | list[Ids], Field(description="the token ids of one text or of several")]
    skip_special_tokens: bool = True


class OpenAIEmbeddings(RequestShape):
    input: TextsOrIds
    model: Text | None = None
    encoding_format: Literal["float", "base64"] | None = None  # floats
    dimensions: Annotated[int, Field(ge=1)] | None = None
    user: Text | None = None


class RankedText(RequestShape):
    """A document; other fields belong to its owner."""

    model_config = ConfigDict(extra="ignore")
    text: Text


class CohereRerank(RequestShape):
    """Cohere's and Jina's ``/v1/rerank``. langchain sends null for what it does not set."""

    model: Text | None = None
    query: Text
    documents: Annotated[
        list[Text | RankedText], Field(min_length=1, description='a list of texts, or of objects {"text": ...}')
    ]
    rank_fields: list[Literal["text"]] | None = None
    top_n: Annotated[int, Field(ge=1)] | None = None
    return_documents: bool | None = None
    max_tokens_per_doc: Annotated[int, Field(ge=1)] | None = None
    max_chunks_per_doc: None = None


class ClassifyParameters(RequestShape):
    top_k: Annotated[int, Field(ge=1)] | None = None
    function_to_apply: Literal["softmax", "sigmoid", "none"] | None = None


class Classify(HubTask):
    """Hugging Face's text classification."""

    inputs: Texts
    parameters: ClassifyParameters | None = None


class MaskParameters(RequestShape):
    top_k: Annotated[int, Field(ge=1, le=1000)] | None = None
    targets: Annotated[
        Text | Annotated[list[Text], Field(min_length=1, max_length=1000)] | None,
        Field(description="a word, or a list of 1 to 1,000 words"),
    ] = None


class FillMask(HubTask):
    inputs: Texts
    parameters: MaskParameters | None = None


class TagParameters(RequestShape):
    """``average`` and ``max`` need the tags of all pieces of a word; the first piece of a word has its tag."""

    aggregation_strategy: Literal["none", "simple", "first"] | None = None
    ignore_labels: list[Text] | None = None


class Tag(HubTask):
    inputs: Texts
    parameters: TagParameters | None = None


class Asked(RequestShape):
    question: Text
    context: Text


class AnswerParameters(RequestShape):
    top_k: Annotated[int, Field(ge=1, le=100)] | None = None


class AnswerQuestion(HubTask):
    inputs: Asked
    parameters: AnswerParameters | None = None


class Explain(RequestShape):
    """An explanation of an answer; only this server has it."""

    inputs: Annotated[
        Text | Pair | Asked, Field(description='a text, a pair [text, text], or {"question": ..., "context": ...}')
    ]
    method: Literal["gradients", "words", "attention"] = "gradients"
    target: Text | None = None
    at: Annotated[int, Field(ge=0)] | None = None
    steps: Annotated[int, Field(ge=1, le=128)] = 16
    layer: Annotated[int, Field(ge=1)] = 1
    head: Annotated[int, Field(ge=1)] = 1


def shape_of(body: Any, shapes: tuple[type[RequestShape], ...]) -> type[RequestShape]:
    """The one of ``shapes`` that a body is meant to have, judged by its fields, so that an error is about that one."""
    fields = body if isinstance(body, dict) else {}
    if Similarity in shapes and isinstance(fields.get("inputs"), dict):
        return Similarity
    if CohereRerank in shapes and "documents" in fields:
        return CohereRerank
    return FillMask if FillMask in shapes and "parameters" in fields else shapes[0]
