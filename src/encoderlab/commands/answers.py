"""What every verb prints with ``--json``, as types: their JSON schema (``--json-schema``) and ``docs/json.md``.

Keys that are not listed are never printed. Numbers that are not finite are null.
"""

from __future__ import annotations

from typing import Annotated, Any, NotRequired

from pydantic import ConfigDict, Field, TypeAdapter
from typing_extensions import TypedDict

Number = float | None
Record = dict[str, Any]
Scores = dict[str, Number]


class _Closed(TypedDict):
    __pydantic_config__ = ConfigDict(extra="forbid")  # type: ignore[misc]


class Failure(_Closed):
    """Of any verb that ends with another exit code than 0."""

    error: Annotated[str, Field(description="what is wrong and what to do, in one line")]
    exit_code: Annotated[int, Field(description="2 usage, 3 data, 4 missing library, 5 memory, 6 diverged, 75 stopped")]


class Counts(_Closed):
    documents: int
    sentences: int
    words: int
    tokens: int
    bytes: Annotated[int, Field(description="of the text in UTF-8")]


class Quickstart(_Closed):
    out: str
    report: str
    model: str
    seconds: Number
    pretraining: Annotated[Record, Field(description="steps, tokens and the last validation")]
    tasks: Annotated[dict[str, dict[str, list[Number]]], Field(description="scores over seeds by task and system")]
    differences: Annotated[
        dict[str, Scores | None], Field(description="what pretraining gains: mean, and half of the interval")
    ]


class Corpus(_Closed):
    """A whole corpus."""

    out: str
    vocab_size: int
    splits: dict[str, Counts]
    read: Annotated[dict[str, int], Field(description="what was met on the way: documents, duplicates, lines left out")]


class Part(_Closed):
    """One part of several (``--num-shards``)."""

    out: str
    settings: Annotated[Record, Field(description="how it was built")]
    sources: Annotated[list[Record], Field(description="every file with its format, field, size and hash")]
    tokenizer: Annotated[str, Field(description="hash of the tokenizer")]
    tokenizer_origin: str
    pieces_origin: str
    shard_index: int
    num_shards: int
    pieces: Annotated[int, Field(description="pieces in all parts together")]


class SplitFacts(Counts):
    shards: int
    tokens_per_word: Number
    bytes_per_token: Number
    document_tokens: Annotated[dict[str, int], Field(description="percentiles p10, p50 and p90")]


class CorpusFacts(_Closed):
    path: str
    vocab_size: int
    tokenizer: Annotated[Record, Field(description="kind and hash")]
    sources: list[str]
    read: dict[str, int]
    verified: Annotated[bool, Field(description="whether every file was compared with its hash")]
    splits: dict[str, SplitFacts]
    unused_ids: int
    unigram_entropy_bits: Number
    unknown_share: NotRequired[Number]
    rows: NotRequired[Annotated[list[str], Field(description="beginnings of documents")]]


class Pretrained(_Closed):
    """A run."""

    run: str
    model: str
    step: int
    tokens: int
    seconds: Number
    validation: Annotated[Record, Field(description="the last validation")]


class Estimate(_Closed):
    """With ``--dry-run``."""

    recipe: Annotated[Record, Field(description="the resolved recipe, as in recipe.json")]
    estimate: Annotated[Record, Field(description="parameters, flops_per_token, tokens, flops, memory, rate, seconds")]


class Recipes(_Closed):
    """With ``--list``."""

    recipes: Annotated[dict[str, dict[str, str | int]], Field(description="by name: family, objective, size, budget")]


class Finetuned(_Closed):
    """Runs of all tasks."""

    out: str
    protocol: str
    tasks: Annotated[dict[str, Record], Field(description="by task: the content of score.json")]
    baselines: Annotated[dict[str, Record], Field(description="by task: scores of simple baselines")]
    averages: Annotated[Scores, Field(description="over the tasks of a suite, as its papers average")]


class Statistics(_Closed):
    """With ``--dry-run``."""

    protocol: str
    data: Annotated[
        dict[str, dict[str, Record]],
        Field(description="by task and split: examples, labels, tokens (median, 95%, longest), max_length, cut"),
    ]


class Evaluated(_Closed):
    task: str
    examples: int
    data: Annotated[str, Field(description="hash of the data")]
    scores: Annotated[dict[str, Scores], Field(description="by model (and ensemble) and metric, from 0 to 1")]
    submission: Annotated[list[str], Field(description="files that were written")]


class Scored(_Closed):
    task: str
    form: str
    examples: int
    data: Annotated[str, Field(description="hash of the data")]
    scores: Annotated[Scores, Field(description="by metric, from 0 to 1")]
    warnings: list[str]


class Predicted(_Closed):
    """Texts, or a file without ``--out``."""

    model: str
    predictions: Annotated[
        list[Record],
        Field(description="id; label, answer or prediction; score; probabilities by label; with --with text, gold"),
    ]


class PredictedFile(_Closed):
    """With ``--out``."""

    model: str
    predictions: Annotated[int, Field(description="how many lines were written")]
    out: str


class Guess(_Closed):
    score: Annotated[Number, Field(description="probability")]
    token: int
    token_str: str
    sequence: Annotated[str, Field(description="the text with the guess in it")]


class Filled(_Closed):
    text: str
    masks: list[list[Guess]]


class FilledMasks(_Closed):
    model: str
    answers: list[Filled]


class Encoded(_Closed):
    """Without ``--out``."""

    model: str
    texts: int
    width: int
    vectors: list[list[Number]]


class EncodedFile(_Closed):
    """With ``--out``."""

    model: str
    texts: int
    width: int
    out: str


class Converted(_Closed):
    to: str
    written: Annotated[dict[str, str], Field(description="the folder of each network")]
    notes: list[str]


class Exported(_Closed):
    model: str
    out: str
    use: str
    format: Any
    difference: Annotated[Scores, Field(description="largest difference from the model, by file")]


class Served(_Closed):
    """At the end of a server."""

    model: str
    address: str


class Names(_Closed):
    """With ``--list``."""

    names: list[str]


class Described(_Closed):
    name: str
    family: str
    about: str
    parameters: Annotated[Record, Field(description="encoder, embeddings, layers, heads by name, pretraining")]
    flops: Annotated[Record, Field(description="per token, by part: forward, forward_total, training_total, ...")]
    memory: Annotated[Record, Field(description="bytes: weights, gradients, optimizer, activations, total")]


class Finding(_Closed):
    name: str
    level: Annotated[str, Field(description="warning or error")]
    seen: str
    remedy: str


class Findings(_Closed):
    findings: list[Finding]


class Perplexity(_Closed):
    perplexity: Number
    bits_per_token: Number
    bits_per_byte: Number
    tokens: int
    effective_context: NotRequired[int]


class Perplexities(_Closed):
    split: str
    protocol: Annotated[Record, Field(description="window, memory, same_length, clamp, streams, separator")]
    models: dict[str, Perplexity]


class Study(_Closed):
    """A study; ``study/run.py`` says more."""

    out: str
    name: str
    study: Annotated[Record, Field(description="the file, resolved")]
    fairness: list[str]
    tuning: list[Record]
    cells: Annotated[list[Record], Field(description="every run with its status and measures")]
    comparisons: Annotated[list[Record], Field(description="claims with difference, interval and verdict")]
    not_compared: list[str]
    scaling: list[Record]
    missing: list[str]
    failed: dict[str, str]


class StudyPlan(_Closed):
    """With ``--dry-run``."""

    runs: int
    flops: Number
    seconds: Number
    arms: dict[str, Record]
    fairness: list[str]


class MinimalPairs(_Closed):
    measure: str
    scoring: str
    ties_count: str
    length_power: Number
    accuracy: Number
    low: Number
    high: Number
    pairs: int
    ties: int
    paradigms: Annotated[dict[str, Record], Field(description="accuracy, low, high, pairs, ties, phenomenon")]
    phenomena: dict[str, Record]
    measures: Annotated[dict[str, Record], Field(description="the same by every measure")]
    equal_sentences: list[str]
    left_out: list[str]
    model: NotRequired[str]
    out: NotRequired[str | None]


class Inspected(_Closed):
    out: str
    texts: int
    models: Annotated[list[Record], Field(description="as in inspect.json: layers, heads, what each head does")]


class Reported(_Closed):
    report: str
    runs: list[str]
    verdict: str


class TrainingSpeed(_Closed):
    case: str
    device: str
    precision: str
    compile: bool
    rows: int
    length: int
    threads: int | None
    tokens_per_second: Scores
    memory: Annotated[Scores, Field(description="bytes, by contender")]
    parts: Annotated[dict[str, Scores], Field(description="shares of a step's time")]
    padding: Number
    peak: Annotated[Number, Field(description="operations per second of matrix products, at best")]
    sustained: Number
    peak_share: Number
    sustained_share: Number
    busy: NotRequired[Scores]
    ratio: NotRequired[Scores]
    ratio_compiled: NotRequired[Scores]
    memory_ratio: NotRequired[Number]
    loss_difference: NotRequired[Number]
    failed: NotRequired[dict[str, str]]


class PredictionSpeed(_Closed):
    case: str
    device: str
    precision: str
    texts: int
    tokens: int
    tokens_per_second: Scores
    ratio: Scores
    difference: Annotated[Scores, Field(description="largest difference of states from ours")]
    failed: dict[str, str]


class CorpusSpeed(_Closed):
    megabytes: Number
    workers: int
    megabytes_per_second: Scores
    ratio: Annotated[Scores, Field(description="median, min and max over turns")]


class Scaling(_Closed):
    case: str
    processes: int
    tokens_per_second: Scores
    efficiency: Number
    step_seconds: Number
    compute_seconds: Number
    exposed_communication_seconds: Number
    link: Scores
    gradient_bytes: int
    model: Annotated[dict[str, Scores], Field(description="predicted step_seconds and efficiency by processes")]
    throttled: Scores


ANSWERS: dict[str, tuple[type, ...]] = {  # by verb, the usual one first
    "quickstart": (Quickstart,),
    "corpus build": (Corpus, Part),
    "corpus merge": (Corpus,),
    "corpus inspect": (CorpusFacts,),
    "pretrain": (Pretrained, Estimate, Recipes),
    "finetune": (Finetuned, Statistics),
    "evaluate": (Evaluated,),
    "score": (Scored,),
    "predict": (Predicted, PredictedFile),
    "fill-mask": (FilledMasks,),
    "encode": (Encoded, EncodedFile),
    "convert": (Converted,),
    "export": (Exported,),
    "serve": (Served,),
    "describe": (Described, Names),
    "doctor": (Findings,),
    "perplexity": (Perplexities,),
    "study": (Study, StudyPlan),
    "minimal-pairs": (MinimalPairs,),
    "inspect": (Inspected,),
    "report": (Reported,),
    "bench train": (TrainingSpeed,),
    "bench predict": (PredictionSpeed,),
    "bench corpus": (CorpusSpeed,),
    "bench scaling": (Scaling,),
}


def adapter(verb: str) -> TypeAdapter[Any]:
    """What checks an object that ``verb`` printed."""
    found: Any = Failure
    for kind in ANSWERS[verb]:
        found = found | kind
    return TypeAdapter(found)


def schema(verb: str) -> dict[str, Any]:
    """The JSON schema (draft 2020-12) of what ``verb --json`` prints."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": f"encoderlab {verb} --json"} | adapter(
        verb
    ).json_schema()
