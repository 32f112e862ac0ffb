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


class FailureAnswer(_Closed):
    """Of any verb that ends with another exit code than 0."""

    error: Annotated[str, Field(description="what is wrong and what to do, in one line")]
    exit_code: Annotated[int, Field(description="2 usage, 3 data, 4 missing library, 5 memory, 6 diverged, 75 stopped")]


class CountsAnswer(_Closed):
    documents: int
    sentences: int
    words: int
    tokens: int
    bytes: Annotated[int, Field(description="of the text in UTF-8")]


class QuickstartAnswer(_Closed):
    out: str
    report: str
    model: str
    seconds: Number
    pretraining: Annotated[Record, Field(description="steps, tokens and the last validation")]
    tasks: Annotated[dict[str, dict[str, list[Number]]], Field(description="scores over seeds by task and system")]
    differences: Annotated[
        dict[str, Scores | None], Field(description="what pretraining gains: mean, and half of the interval")
    ]


class CorpusAnswer(_Closed):
    """A whole corpus."""

    out: str
    vocab_size: int
    splits: dict[str, CountsAnswer]
    read: Annotated[dict[str, int], Field(description="counts of documents, duplicates, lines left out")]


class PartAnswer(_Closed):
    """One part of several (``--num-shards``)."""

    out: str
    settings: Annotated[Record, Field(description="how it was built")]
    sources: Annotated[list[Record], Field(description="every file with its format, field, size and hash")]
    tokenizer: Annotated[str, Field(description="hash of the tokenizer")]
    tokenizer_origin: str
    pieces_origin: str
    shard_index: int
    num_shards: int
    stretches: Annotated[int, Field(description="stretches of the sources in all parts together")]
    pieces: Annotated[list[int], Field(description="pieces of each stretch of this part")]


class SplitFactsAnswer(CountsAnswer):
    shards: int
    tokens_per_word: Number
    bytes_per_token: Number
    document_tokens: Annotated[dict[str, int], Field(description="percentiles p10, p50 and p90")]


class CorpusFactsAnswer(_Closed):
    path: str
    vocab_size: int
    tokenizer: Annotated[Record, Field(description="kind and hash")]
    sources: list[str]
    read: dict[str, int]
    verified: Annotated[bool, Field(description="whether every file was compared with its hash")]
    splits: dict[str, SplitFactsAnswer]
    unused_ids: int
    unigram_entropy_bits: Number
    unknown_share: NotRequired[Number]
    rows: NotRequired[Annotated[list[str], Field(description="beginnings of documents")]]


class PretrainedAnswer(_Closed):
    """A run."""

    run: str
    model: str
    step: int
    tokens: int
    seconds: Number
    validation: Annotated[Record, Field(description="the last validation")]


class GainAnswer(_Closed):
    """Bits per byte of held-out text, before and after."""

    measure: str
    before: Number
    after: Number
    half: Annotated[Number, Field(description="half of the 95% interval of the difference, over pieces")]
    pieces: int
    bytes: int
    tokens: Annotated[list[int], Field(description="of the pieces, before and after")]
    unknown: Annotated[list[Number], Field(description="share of the tokens, before and after")]


class AdaptedAnswer(_Closed):
    """An adaptation, as in its adapt.json."""

    out: str
    gains: Annotated[dict[str, GainAnswer], Field(description="of domain and general")]
    before: Annotated[Record, Field(description="measures: domain, general, pairs, task")]
    after: Record
    training: Annotated[Record, Field(description="steps, tokens, flops, held-out losses, recipe")]
    text: Annotated[Record, Field(description="documents and characters")]
    vocabulary: Record
    plan: Annotated[Record, Field(description="the settings")]
    parameters: int


class EstimateAnswer(_Closed):
    """With ``--dry-run``."""

    recipe: Annotated[Record, Field(description="the resolved recipe, as in recipe.json")]
    estimate: Annotated[Record, Field(description="parameters, flops_per_token, tokens, flops, memory, rate, seconds")]


class RecipesAnswer(_Closed):
    """With ``--list``."""

    recipes: Annotated[dict[str, dict[str, str | int]], Field(description="by name: family, objective, size, budget")]


class FinetunedAnswer(_Closed):
    """Runs of all tasks."""

    out: str
    protocol: str
    tasks: Annotated[dict[str, Record], Field(description="by task: the content of score.json")]
    baselines: Annotated[dict[str, Record], Field(description="by task: scores of simple baselines")]
    averages: Annotated[Scores, Field(description="over the tasks of a suite, as its papers average")]


class StatisticsAnswer(_Closed):
    """With ``--dry-run``."""

    protocol: str
    data: Annotated[
        dict[str, dict[str, Record]],
        Field(description="by task and split: examples, labels, tokens (median, 95%, longest), max_length, cut"),
    ]


class EvaluatedAnswer(_Closed):
    task: str
    examples: int
    data: Annotated[str, Field(description="hash of the data")]
    scores: Annotated[dict[str, Scores], Field(description="by model (and ensemble) and metric, from 0 to 1")]
    submission: Annotated[list[str], Field(description="files that were written")]


class EvaluatedFilesAnswer(_Closed):
    """Of several files."""

    files: Annotated[dict[str, EvaluatedAnswer], Field(description="by the name that was given")]


class ScoredAnswer(_Closed):
    task: str
    form: str
    examples: int
    data: Annotated[str, Field(description="hash of the data")]
    scores: Annotated[Scores, Field(description="by metric, from 0 to 1")]
    warnings: list[str]


class Int8Answer(_Closed):
    """What the layers' matrices in 8 bits cost."""

    agreement: Annotated[Number, Field(description="with fp32, from 0 to 1")]
    metric: str | None
    before: Annotated[Number | None, Field(description="the score in fp32")]
    after: Annotated[Number | None, Field(description="the score in int8")]
    fall: Annotated[Number, Field(description="before minus after; without labels 1 minus the agreement")]
    low: Annotated[Number, Field(description="95 % interval of fall over resamplings of the texts")]
    high: Number
    texts: int
    more: Scores
    tolerance: Annotated[Number, Field(description="the largest accepted fall")]
    bytes: Annotated[dict[str, int], Field(description="of the weights in memory, by precision")]
    milliseconds: Annotated[Scores, Field(description="per text, by precision; threads")]


Checked = Annotated[Int8Answer, Field(description="with --check")]


class PredictedAnswer(_Closed):
    """Texts, or a file without ``--out``."""

    model: str
    predictions: Annotated[
        list[Record],
        Field(description="id; label, answer or prediction; score; probabilities by label; with --with text, gold"),
    ]
    int8: NotRequired[Checked]


class PredictedFileAnswer(_Closed):
    """With ``--out``."""

    model: str
    predictions: Annotated[int, Field(description="how many lines were written")]
    out: str
    int8: NotRequired[Checked]


class PredictedFilesAnswer(_Closed):
    """Of a folder or several files."""

    model: str
    files: int
    kept: Annotated[int, Field(description="files that were done before")]
    predictions: Annotated[int, Field(description="how many lines all outputs have")]
    out: str
    int8: NotRequired[Checked]


class GuessAnswer(_Closed):
    score: Annotated[Number, Field(description="probability")]
    token: int
    token_str: str
    sequence: Annotated[str, Field(description="the text with the guess in it")]


class FilledAnswer(_Closed):
    text: str
    masks: list[list[GuessAnswer]]


class FilledMasksAnswer(_Closed):
    model: str
    answers: list[FilledAnswer]


class EncodedAnswer(_Closed):
    """Without ``--out``."""

    model: str
    texts: int
    width: int
    vectors: list[list[Number]]
    int8: NotRequired[Checked]


class EncodedFileAnswer(_Closed):
    """With ``--out``."""

    model: str
    texts: int
    width: int
    out: str
    int8: NotRequired[Checked]


class EncodedFilesAnswer(_Closed):
    """Of a folder or several files."""

    model: str
    files: int
    kept: Annotated[int, Field(description="files that were done before")]
    texts: int
    width: int
    out: str
    int8: NotRequired[Checked]


class ConvertedAnswer(_Closed):
    to: str
    written: Annotated[dict[str, str], Field(description="the folder of each network")]
    notes: list[str]


class ExportedAnswer(_Closed):
    model: str
    out: str
    use: str
    format: Any
    difference: Annotated[Scores, Field(description="largest difference from the model, by file")]
    int8: NotRequired[Annotated[dict[str, Any], Field(description="with --int8: the verdict, as in export.json")]]


class PushedAnswer(_Closed):
    model: str
    name: str
    commit: Annotated[str | None, Field(description="address of what was uploaded")]
    files: list[str]
    notes: list[str]


class ServedAnswer(_Closed):
    """At the end of a server."""

    model: str
    address: str


class NamesAnswer(_Closed):
    """With ``--list``."""

    names: list[str]


class DescribedAnswer(_Closed):
    name: str
    family: str
    about: str
    parameters: Annotated[Record, Field(description="encoder, embeddings, layers, heads by name, pretraining")]
    flops: Annotated[Record, Field(description="per token, by part: forward, forward_total, training_total, ...")]
    memory: Annotated[Record, Field(description="bytes: weights, gradients, optimizer, activations, total")]


class FindingAnswer(_Closed):
    name: str
    level: Annotated[str, Field(description="warning or error")]
    seen: str
    remedy: str


class FindingsAnswer(_Closed):
    findings: list[FindingAnswer]


class PerplexityAnswer(_Closed):
    perplexity: Number
    bits_per_token: Number
    bits_per_byte: Number
    tokens: int
    effective_context: NotRequired[int]


class PerplexitiesAnswer(_Closed):
    split: str
    protocol: Annotated[Record, Field(description="window, memory, same_length, clamp, streams, separator")]
    models: dict[str, PerplexityAnswer]


class StudyAnswer(_Closed):
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


class StudyPlanAnswer(_Closed):
    """With ``--dry-run``."""

    runs: int
    flops: Number
    seconds: Number
    arms: dict[str, Record]
    fairness: list[str]


class MinimalPairsAnswer(_Closed):
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


class InspectedAnswer(_Closed):
    out: str
    texts: int
    models: Annotated[list[Record], Field(description="as in inspect.json: layers, heads, what each head does")]


class PrunedAnswer(_Closed):
    out: str
    model: str
    layers: int
    heads: Annotated[dict[str, int], Field(description="per layer, before and after")]
    parameters: Annotated[dict[str, int], Field(description="before and after")]
    scores: Annotated[dict[str, Scores], Field(description="before and after")]
    importance: Annotated[list[list[Number]], Field(description="by layer and head")]
    removed: Annotated[list[list[int]], Field(description="the heads of each layer that were removed")]


class ReportedAnswer(_Closed):
    report: str
    runs: list[str]
    verdict: str


class _Measured(_Closed):
    node: Annotated[str, Field(description="the machine on which all sides were measured")]
    processor: str


class TrainingSpeedAnswer(_Measured):
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


class TrainingSpeedsAnswer(_Closed):
    """Of several."""

    measurements: Annotated[dict[str, TrainingSpeedAnswer], Field(description="by the name that was given")]


class PredictionSpeedAnswer(_Measured):
    case: str
    device: str
    precision: str
    texts: int
    tokens: int
    tokens_per_second: Scores
    ratio: Scores
    difference: Annotated[Scores, Field(description="largest difference of states from ours")]
    failed: dict[str, str]


class PredictionSpeedsAnswer(_Closed):
    """Of several."""

    measurements: Annotated[dict[str, PredictionSpeedAnswer], Field(description="by the name that was given")]


class CorpusSpeedAnswer(_Closed):
    megabytes: Number
    workers: int
    megabytes_per_second: Scores
    ratio: Annotated[Scores, Field(description="median, min and max over turns")]


class ScalingAnswer(_Closed):
    case: str
    processes: int
    tokens_per_second: Scores
    efficiency: Number
    step_seconds: Number
    compute_seconds: Number
    update_seconds: Number
    flops_per_second: Number
    exposed_communication_seconds: Number
    link: Scores
    gradient_bytes: int
    model: Annotated[dict[str, Scores], Field(description="predicted step_seconds and efficiency by processes")]
    throttled: Scores


class ServingSpeedAnswer(_Measured):
    model: str
    threads: int
    requests: int
    turns: int
    clients: Annotated[
        dict[str, dict[str, Record]],
        Field(description="by number of clients and server: requests_per_second, p50 and p99 in milliseconds, ..."),
    ]
    short: NotRequired[Annotated[dict[str, Record], Field(description="the same for one client and short texts")]]
    overload: NotRequired[Annotated[Record, Field(description="three times the load: accepted, refused, p99, ...")]]
    memory: Annotated[dict[str, dict[str, Number]], Field(description="bytes by server, at the beginning and the end")]


class ServingSpeedsAnswer(_Closed):
    """Of several."""

    measurements: Annotated[dict[str, ServingSpeedAnswer], Field(description="by the name that was given")]


ANSWERS: dict[str, tuple[type, ...]] = {  # by verb, the usual one first
    "quickstart": (QuickstartAnswer,),
    "corpus build": (CorpusAnswer, PartAnswer),
    "corpus merge": (CorpusAnswer,),
    "corpus inspect": (CorpusFactsAnswer,),
    "pretrain": (PretrainedAnswer, EstimateAnswer, RecipesAnswer),
    "adapt": (AdaptedAnswer,),
    "finetune": (FinetunedAnswer, StatisticsAnswer),
    "evaluate": (EvaluatedAnswer, EvaluatedFilesAnswer),
    "score": (ScoredAnswer,),
    "predict": (PredictedAnswer, PredictedFileAnswer, PredictedFilesAnswer),
    "fill-mask": (FilledMasksAnswer,),
    "encode": (EncodedAnswer, EncodedFileAnswer, EncodedFilesAnswer),
    "convert": (ConvertedAnswer,),
    "push": (PushedAnswer,),
    "export": (ExportedAnswer,),
    "serve": (ServedAnswer,),
    "describe": (DescribedAnswer, NamesAnswer),
    "doctor": (FindingsAnswer,),
    "perplexity": (PerplexitiesAnswer,),
    "study": (StudyAnswer, StudyPlanAnswer),
    "minimal-pairs": (MinimalPairsAnswer,),
    "inspect": (InspectedAnswer,),
    "prune": (PrunedAnswer,),
    "report": (ReportedAnswer,),
    "bench train": (TrainingSpeedAnswer, TrainingSpeedsAnswer),
    "bench predict": (PredictionSpeedAnswer, PredictionSpeedsAnswer),
    "bench corpus": (CorpusSpeedAnswer,),
    "bench serve": (ServingSpeedAnswer, ServingSpeedsAnswer),
    "bench scaling": (ScalingAnswer,),
}


def adapter(verb: str) -> TypeAdapter[Any]:
    """Validator of an object that ``verb`` printed."""
    union: Any = FailureAnswer
    for kind in ANSWERS[verb]:
        union = union | kind
    return TypeAdapter(union)


def schema(verb: str) -> dict[str, Any]:
    """The JSON schema (draft 2020-12) of what ``verb --json`` prints."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": f"encoderlab {verb} --json"} | adapter(
        verb
    ).json_schema()
