"""What pages and diagnoses rely on in the files of a run folder, checked when they are read.

A file may have more than this; what is named here has the type that training wrote, or is missing.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from encoderlab.errors import DataError
from encoderlab.files import read_json

Number = Annotated[float, Field(allow_inf_nan=False)]
Positive = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0, lt=2**63)]
Metric = Number | None  # null stands for a number that is not finite
OfTerms = dict[str, Metric]


class _Open(TypedDict):
    __pydantic_config__ = ConfigDict(strict=True, extra="allow")  # type: ignore[misc]


class _Metrics(_Open):
    step: Count
    flops: NotRequired[Metric]
    loss: NotRequired[Metric]
    counts: NotRequired[dict[str, Positive]]
    accuracy: NotRequired[OfTerms]
    bits_per_byte: NotRequired[OfTerms]
    scores: NotRequired[OfTerms]
    chance: NotRequired[OfTerms]
    majority: NotRequired[OfTerms]


class TrainingLine(_Metrics):
    """A line of ``metrics.jsonl`` about steps of training."""

    split: Literal["train"]
    tokens: Count
    seconds: Positive
    losses: OfTerms
    lr: Positive
    grad_norm: NotRequired[Metric]
    grad_norm_max: NotRequired[Metric]
    update_ratio: NotRequired[Metric]
    padding: NotRequired[Metric]
    rows: NotRequired[Count]
    length: NotRequired[Count]
    tokens_per_second: NotRequired[Metric]
    waiting: NotRequired[Metric]


class OtherLine(_Metrics):
    """Another line of ``metrics.jsonl``: a validation, or the end of a run whose gradient was not finite."""

    split: str
    tokens: NotRequired[Count]
    seconds: NotRequired[Positive]
    losses: NotRequired[OfTerms]


class _Machine(_Open):
    cpu: NotRequired[str]
    cores: NotRequired[Count]
    accelerators: NotRequired[list[str]]
    system: NotRequired[str]


class RecordedSession(_Open):
    started: NotRequired[str]
    command: NotRequired[Annotated[list[str], Field(min_length=1)]]
    versions: NotRequired[dict[str, str]]
    commit: NotRequired[str | None]
    data: NotRequired[dict[str, str]]
    hardware: NotRequired[_Machine]


class RecordedProvenance(_Open):
    """``provenance.json``: a record of every session."""

    sessions: NotRequired[list[RecordedSession] | None]


class _Encoder(_Open):
    vocab: NotRequired[Annotated[int, Field(ge=2, lt=2**63)]]
    layers: NotRequired[Count]
    width: NotRequired[Count]
    norm: NotRequired[str]


class _Model(_Open):
    encoder: NotRequired[_Encoder]


class _Optim(_Open):
    kind: NotRequired[str]
    lr: NotRequired[Positive]


class _WarmUp(_Open):
    warmup: NotRequired[Positive]


class _Budget(_Open):
    amount: NotRequired[Annotated[float, Field(gt=0, allow_inf_nan=False)]]
    unit: NotRequired[str]


class _Masking(_Open):
    rate: NotRequired[Number]
    most: NotRequired[Count | None]


class _Objective(_Open):
    kind: NotRequired[str]
    predict: NotRequired[str]
    causal: NotRequired[Annotated[float, Field(ge=0, lt=1)]]
    masking: NotRequired[_Masking | None]


class RecordedRecipe(_Open):
    """``recipe.json``, of pretraining or of fine-tuning."""

    name: NotRequired[str]
    model: NotRequired[_Model]
    optim: NotRequired[_Optim]
    schedule: NotRequired[_WarmUp]
    budget: NotRequired[_Budget]
    objective: NotRequired[_Objective]
    clip: NotRequired[Positive | None]
    packing: NotRequired[str]


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def problem(kind: Any, data: Any) -> str | None:
    """What ``data`` has that ``kind`` cannot have, in a few words; None where it fits."""
    try:
        _adapter(kind).validate_python(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        said = first["msg"][0].lower() + first["msg"][1:]
        return f"{place}: {said}" if place else said
    return None


def problem_of_line(line: Any) -> str | None:
    """:func:`problem` of a line of metrics: damage may have changed one."""
    trained = isinstance(line, dict) and line.get("split") == "train"
    if fault := problem(TrainingLine if trained else OtherLine, line):
        return fault
    counts = line.get("counts", {}) if trained else None
    if counts is not None and (uncounted := (line["losses"].keys() | line.get("accuracy", {}).keys()) - counts.keys()):
        return f"counts has no {min(uncounted)}"
    return None


def read(kind: Any, path: Path, remedy: str) -> dict[str, Any]:
    """The JSON object of a run's file, as it is.

    Raises:
        DataError: the file is missing or damaged, or does not fit ``kind``; the message ends with ``remedy``.
    """
    data = read_json(path, remedy)
    if fault := problem(kind, data):
        raise DataError(f"{path}: is damaged ({fault}); {remedy}")
    return data


def sessions(path: Path, remedy: str) -> list[dict[str, Any]]:
    """The sessions that ``provenance.json`` at ``path`` records; none without the file.

    Raises:
        DataError: as :func:`read`.
    """
    return read(RecordedProvenance, path, remedy).get("sessions") or [] if path.exists() else []
