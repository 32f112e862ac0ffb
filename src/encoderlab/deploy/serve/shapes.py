"""The requests of the four protocols, field by field. Unknown fields are refused: nothing is ignored silently."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictInt, StrictStr

Text = StrictStr
Ids = list[Annotated[StrictInt, Field(ge=0)]]


class RequestShape(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Truncating(RequestShape):
    truncate: bool | None = None
    truncation_direction: Literal["Left", "Right", "left", "right"] = "Right"
    prompt_name: None = None


class Embed(Truncating):
    """text-embeddings-inference's ``/embed``, and Hugging Face's feature extraction."""

    inputs: Text | list[Text] | Ids | list[Ids]
    normalize: bool | None = None
    dimensions: Annotated[int, Field(ge=1)] | None = None
    encoding_format: Literal["float"] | None = None


class EmbedAll(Truncating):
    inputs: Text | list[Text] | Ids | list[Ids]


class Predict(Truncating):
    inputs: (
        Text
        | Annotated[list[Text], Field(min_length=1, max_length=2)]
        | list[Annotated[list[Text], Field(min_length=1, max_length=2)]]
    )
    raw_scores: bool = False


class Rerank(Truncating):
    query: Text
    texts: Annotated[list[Text], Field(min_length=1)]
    raw_scores: bool = False
    return_text: bool = False


class Similar(RequestShape):
    source_sentence: Text
    sentences: Annotated[list[Text], Field(min_length=1)]


class Similarity(RequestShape):
    inputs: Similar
    parameters: Truncating | None = None


class Tokenize(RequestShape):
    inputs: Text | list[Text]
    add_special_tokens: bool = True
    prompt_name: None = None


class Decode(RequestShape):
    ids: Ids | list[Ids]
    skip_special_tokens: bool = True


class OpenAIEmbeddings(RequestShape):
    input: Text | list[Text] | Ids | list[Ids]
    model: Text = ""
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Annotated[int, Field(ge=1)] | None = None
    user: Text | None = None


class CohereRerank(RequestShape):
    """Cohere's and Jina's ``/v1/rerank``."""

    model: Text = ""
    query: Text
    documents: Annotated[list[Text | dict[str, Text]], Field(min_length=1)]
    top_n: Annotated[int, Field(ge=1)] | None = None
    return_documents: bool = False
    max_tokens_per_doc: int | None = None


class ClassifyParameters(RequestShape):
    top_k: Annotated[int, Field(ge=1)] | None = None
    function_to_apply: Literal["softmax", "sigmoid", "none"] | None = None


class Classify(RequestShape):
    """Hugging Face's text classification."""

    inputs: Text | list[Text]
    parameters: ClassifyParameters | None = None


class MaskParameters(RequestShape):
    top_k: Annotated[int, Field(ge=1, le=1000)] | None = None
    targets: Text | Annotated[list[Text], Field(min_length=1, max_length=1000)] | None = None


class FillMask(RequestShape):
    inputs: Text | list[Text]
    parameters: MaskParameters | None = None


class TagParameters(RequestShape):
    aggregation_strategy: Literal["none", "simple", "first", "average", "max"] | None = None
    ignore_labels: list[Text] | None = None
    stride: int | None = None


class Tag(RequestShape):
    inputs: Text | list[Text]
    parameters: TagParameters | None = None


class Asked(RequestShape):
    question: Text
    context: Text


class AnswerParameters(RequestShape):
    top_k: Annotated[int, Field(ge=1, le=100)] | None = None


class AnswerQuestion(RequestShape):
    inputs: Asked
    parameters: AnswerParameters | None = None


class Explain(RequestShape):
    """An explanation of an answer; only this server has it."""

    inputs: Text | Annotated[list[Text], Field(min_length=1, max_length=2)] | Asked
    method: Literal["gradients", "words", "attention"] = "gradients"
    target: Text | None = None
    at: Annotated[int, Field(ge=0)] | None = None
    steps: Annotated[int, Field(ge=1, le=128)] = 16
    layer: Annotated[int, Field(ge=1)] = 1
    head: Annotated[int, Field(ge=1)] = 1
