"""What run folders hold, as parts of a report. Reads files only; needs neither torch nor a corpus."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from encoderlab.corpus.shards import unigram_entropy
from encoderlab.errors import DataError
from encoderlab.measure.report import Metric, Report, Run

STRIPS = (
    Metric(key="lr", label="Learning rate", from_zero=True),
    Metric(key="grad_norm", label="Gradient norm", from_zero=True),
    Metric(key="tokens_per_second", label="Tokens per second", from_zero=True),
)


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """The files of one run folder: its recipe, its metrics lines, and where it came from."""

    folder: Path
    recipe: Mapping[str, Any]
    train: Sequence[Mapping[str, Any]]
    valid: Sequence[Mapping[str, Any]]
    sessions: Sequence[Mapping[str, Any]]

    @property
    def name(self) -> str:
        return self.folder.resolve().name

    @property
    def term(self) -> str:
        """The loss that predicts words, which bits per byte are computed from; else the first loss."""
        lines = [*self.train, *self.valid]
        for prefix in ("bits_per_byte.", "losses."):
            for line in lines:
                for key in line:
                    if key.startswith(prefix):
                        return key.removeprefix(prefix)
        return "loss"


def read_run(folder: Path) -> RunRecord:
    """Read ``recipe.json``, ``metrics.jsonl`` and ``provenance.json`` of a run folder.

    Raises:
        DataError: there is no run, or a file of it is broken.
    """
    recipe = _read_json(folder / "recipe.json", "a run folder holds one")
    path = folder / "metrics.jsonl"
    lines = []
    if path.exists():
        for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            try:
                lines.append(_flat(json.loads(text)))
            except ValueError:
                raise DataError(f"{path}:{number}: not a JSON object; restore the file or resume the run") from None
    for line in lines:
        line["time"] = line.get("seconds")
    sessions = (
        _read_json(folder / "provenance.json", "").get("sessions", []) if (folder / "provenance.json").exists() else []
    )
    return RunRecord(
        folder=folder,
        recipe=recipe,
        train=[line for line in lines if line.get("split") == "train"],
        valid=[line for line in lines if line.get("split") == "valid"],
        sessions=sessions,
    )


def metrics(records: Sequence[RunRecord], references: Sequence[tuple[str, float]] = ()) -> list[Metric]:
    """The curves that the runs have, the loss of the main term first; ``references`` are drawn with it."""
    main = records[0].term
    keys = list(dict.fromkeys(key for record in records for line in (*record.train, *record.valid) for key in line))
    losses = [key for key in keys if key.startswith("losses.")]
    losses.sort(key=lambda key: key != f"losses.{main}")
    chosen = [
        Metric(
            key=key,
            label="Loss" if len(losses) == 1 else f"{_words(key)} loss",
            references=tuple(references) if key == f"losses.{main}" else (),
        )
        for key in losses
    ]
    shares = [key for key in keys if key.startswith("accuracy.")]
    shares.sort(key=lambda key: key != f"accuracy.{main}")
    chosen += [
        Metric(
            key=key, label="Accuracy" if len(shares) == 1 else f"{_words(key)} accuracy", kind="percent", from_zero=True
        )
        for key in shares
    ]
    if f"bits_per_byte.{main}" in keys:
        chosen.append(Metric(key=f"bits_per_byte.{main}", label="Bits per byte"))
    chosen += [Metric(key=key, label=_words(key)) for key in keys if key.startswith("scores.")]
    return chosen


def strips(records: Sequence[RunRecord]) -> list[Metric]:
    """The small curves below the large ones."""
    return [metric for metric in STRIPS if any(metric.key in line for record in records for line in record.train)]


def references(record: RunRecord, counts: np.ndarray | None) -> list[tuple[str, float]]:
    """Losses to compare with: a uniform guess, and word frequencies where the counts of the corpus are known."""
    vocab = record.recipe.get("model", {}).get("encoder", {}).get("vocab")
    lines = [(f"uniform guess: ln {vocab:,}", math.log(vocab))] if vocab else []
    return lines + ([("word frequencies alone", unigram_entropy(counts))] if counts is not None else [])


def count_parameters(model: Path) -> int | None:
    """Parameters stored in a model folder, from the header of its weights; None where there is none."""
    files = sorted(model.glob("**/model.safetensors"))
    total = 0
    for path in files:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(length))
        total += sum(math.prod(entry["shape"]) for name, entry in header.items() if name != "__metadata__")
    return total if files else None


def provenance(record: RunRecord) -> dict[str, str]:
    """Versions, commit, data hashes and hardware of the run."""
    if not record.sessions:
        return {}
    first = record.sessions[0]
    hardware = first.get("hardware", {})
    machine = ", ".join(
        [str(hardware.get("cpu", "")), f"{hardware.get('cores')} cores", *hardware.get("accelerators", [])]
    )
    versions = ", ".join(f"{name} {version}" for name, version in first.get("versions", {}).items())
    rows = {
        "Started": str(first.get("started", "")),
        "Versions": versions,
        "Commit": str(first.get("commit") or ""),
        "Hardware": machine,
        "System": str(hardware.get("system", "")),
        "Seed": str(record.recipe.get("seed", "")),
    }
    rows |= {f"Hash of {name}": str(value) for name, value in first.get("data", {}).items()}
    if len(record.sessions) > 1:
        rows["Resumed"] = f"{len(record.sessions) - 1} times"
    return {name: value for name, value in rows.items() if value}


def report(folders: Sequence[Path], *, counts: np.ndarray | None = None, title: str | None = None) -> Report:
    """A page about one run, or one that compares several."""
    records = [read_run(folder) for folder in folders]
    first = records[0]
    names = [record.name for record in records]
    return Report(
        title=title or (f"Run {first.name}" if len(records) == 1 else "Runs " + ", ".join(names)),
        verdict=" ".join(outcome(record) for record in records),
        tiles=tiles(first) if len(records) == 1 else [],
        runs=[Run(name=record.name, train=record.train, valid=record.valid) for record in records],
        metrics=metrics(records, references(first, counts)),
        strips=strips(records),
        costs=costs(records),
        provenance=provenance(first) if len(records) == 1 else _side_by_side(records),
        commands=[" ".join(record.sessions[0]["command"]) for record in records if record.sessions],
    )


def outcome(record: RunRecord) -> str:
    """One sentence: how far the run came and where it stands on held-out text."""
    if not record.train:
        return f"{record.name} has logged nothing yet."
    last = record.train[-1]
    name = record.recipe.get("name") or record.name
    words = f"{name} read {quantity(last['tokens'])} tokens in {duration(last['seconds'])}"
    if record.valid:
        held = record.valid[-1]
        words += f"; on held-out text its loss is {held['loss']:.3f}"
        share = held.get(f"accuracy.{record.term}")
        words += f" and {share:.1%} of its guesses are right" if share is not None else ""
    return f"{words}."


def tiles(record: RunRecord) -> list[tuple[str, str, str]]:
    """The key numbers of one run: label, value, detail."""
    found = []
    share, loss = f"accuracy.{record.term}", f"losses.{record.term}"
    if record.valid and share in record.valid[-1]:
        begin = f"{record.valid[0][share]:.1%} → " if len(record.valid) > 1 else ""
        found.append(("Right guesses", f"{begin}{record.valid[-1][share]:.1%}", "on held-out text"))
    if record.train and loss in record.train[-1]:
        end = (record.valid or record.train)[-1].get(loss, record.train[-1][loss])
        found.append(("Loss", f"{record.train[0][loss]:.2f} → {end:.2f}", "nats per guess"))
    if parameters := count_parameters(record.folder / "model"):
        encoder = record.recipe.get("model", {}).get("encoder", {})
        found.append(("Parameters", quantity(parameters), f"{encoder.get('layers')} layers × {encoder.get('width')}"))
    if record.train:
        last = record.train[-1]
        found.append(("Tokens read", quantity(last["tokens"]), f"{last['step']:,} steps"))
        speed = last["tokens"] / last["seconds"] if last.get("seconds") else 0
        found.append(("Time", duration(last["seconds"]), f"{quantity(speed)} tokens per second"))
    return found


def costs(records: Sequence[RunRecord]) -> dict[str, str]:
    """Steps, tokens, time and size, a row per run and quantity."""
    rows = {}
    for record in records:
        prefix = f"{record.name}: " if len(records) > 1 else ""
        if record.train:
            last = record.train[-1]
            rows[f"{prefix}Training"] = (
                f"{last['step']:,} steps, {quantity(last['tokens'])} tokens, {duration(last['seconds'])}"
            )
            padding = [line["padding"] for line in record.train if line.get("padding") is not None]
            if padding:
                rows[f"{prefix}Padding"] = f"{sum(padding) / len(padding):.1%} of all positions"
        if parameters := count_parameters(record.folder / "model"):
            rows[f"{prefix}Parameters"] = f"{parameters:,}"
    return rows


def quantity(number: float) -> str:
    """``4.9 M``, ``20.4 k``, ``950``."""
    for unit, size in (("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number:.3g}"


def duration(seconds: float) -> str:
    """``45 s``, ``4 min 5 s``, ``2 h 10 min``, ``3.5 days``."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours >= 48:
        return f"{hours / 24:,.1f} days"
    return f"{hours} h {minutes} min" if minutes else f"{hours} h"


def _side_by_side(records: Sequence[RunRecord]) -> dict[str, str]:
    return {f"{r.name}: {name}": value for r in records for name, value in provenance(r).items()}


def _words(key: str) -> str:
    """``losses.next_sentence`` as ``Next sentence``; short names are abbreviations and stay in capitals."""
    name = key.split(".", 1)[1]
    return name.upper() if len(name) <= 3 else name.replace("_", " ").capitalize()


def _flat(line: Mapping[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in line.items():
        if isinstance(value, Mapping):
            flat |= {f"{key}.{name}": item for name, item in value.items()}
        else:
            flat[key] = value
    return flat


def _read_json(path: Path, why: str) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(f"{path}: missing; {why}") from None
    except ValueError:
        raise DataError(f"{path}: not valid JSON; restore it or start the run again") from None
    if not isinstance(data, dict):
        raise DataError(f"{path}: expected a JSON object; restore it or start the run again")
    return data
