"""The record of a fine-tuning (``score.json``), and its best seed, for which its folder stands."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from encoderlab.errors import DataError
from encoderlab.files import read_json
from encoderlab.interchange.places import resolve
from encoderlab.messages import Say
from encoderlab.sealed import Seal

SCORE_FILE = "score.json"
Point = Mapping[str, Any]  # values of fields of the recipe, by path
_SEAL = Seal("sha256", (", ", ": "))


def best_seed(folder: Path, say: Say) -> Path:
    """The run with the best development score if ``folder`` has a protocol's runs, else ``folder`` itself.

    ``folder`` may also be the name of a model (:func:`encoderlab.interchange.places.resolve`).

    Raises:
        DataError: the record of a protocol's runs is damaged or, as before they have ended, missing.
    """
    folder = resolve(folder)
    path = folder / SCORE_FILE
    refuse_unfinished(folder)
    if not path.exists() or "seeds" not in (record := read_signed(path, "run finetune again to write it")):
        return folder
    scores = {
        seed: entry["scores"]["dev"][record["metric"]] for seed, entry in record["seeds"].items() if "scores" in entry
    }
    best = max(scores, key=lambda seed: scores[seed])
    which = f"the best of {len(scores)} on the development set" if len(scores) > 1 else "the only one with scores"
    say(f"seed {best}, {which}")
    return folder / folder_name(record["chosen"]) / f"seed-{best}"


def refuse_unfinished(folder: Path) -> None:
    """Refuse the folder of a protocol whose runs have not ended.

    Raises:
        DataError: it has runs and no record of their scores.
    """
    path = folder / SCORE_FILE
    if not path.exists() and any(folder.glob("*/seed-*/recipe.json")):
        raise DataError(f"{path}: is missing; run finetune again to write it")


def tokenizer_place(place: Path, say: Say) -> Path:
    """Where the tokenizer of a model, a run or a corpus is; the folder ``place`` itself if none is found."""
    from encoderlab.corpus.vocabularies import find_file

    folder = best_seed(place, say)
    inside = (folder / name for name in ("tokenizer", "model", "discriminator", "model/discriminator"))
    return next((one for one in (folder, *inside) if find_file(one) is not None), folder)


def describe(point: Point) -> str:
    """``lr=0.0001 epochs=3``; empty if no field is searched."""
    parts = (f"{value:g}" if isinstance(value, (int, float)) else f"{value}" for value in point.values())
    return " ".join(f"{name.rpartition('.')[2]}={part}" for name, part in zip(point, parts, strict=True))


def folder_name(point: Point) -> str:
    """The folder of the runs at a point: ``lr=0.0001,epochs=3``, or ``runs``."""
    return describe(point).replace(" ", ",") or "runs"


def signed(score: Mapping[str, Any]) -> dict[str, Any]:
    """The record with a hash of itself, which :func:`read_signed` verifies."""
    return _SEAL.sealed(score)


def read_signed(path: Path, remedy: str) -> dict[str, Any]:
    """Read a file that :func:`signed` made.

    Raises:
        DataError: it is missing, damaged or changed.
    """
    record = read_json(path, remedy)
    try:
        _SEAL.opened(record)
    except ValueError:
        raise DataError(f"{path}: is damaged (its hash differs from the one in it); {remedy}") from None
    return record
