"""The content of run folders as parts of a report. Reads files only; needs neither torch nor a corpus."""

from __future__ import annotations

import json
import math
import shlex
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from encoderlab.config import flatten
from encoderlab.corpus.shards import unigram_entropy
from encoderlab.errors import ConfigError, DataError
from encoderlab.measure.report import Metric, Report, Run
from encoderlab.tensor_files import read_header
from encoderlab.train import schemas
from encoderlab.train.doctor import diagnose
from encoderlab.train.evidence import is_number, of_lines, read_lines
from encoderlab.train.units import duration, quantity

STRIPS = (
    Metric(key="lr", label="Learning rate", from_zero=True),
    Metric(key="grad_norm", label="Gradient norm", from_zero=True),
    Metric(key="tokens_per_second", label="Tokens per second", from_zero=True),
)


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """The files of one run folder: its recipe, its metrics lines, and its provenance. ``diverged`` is the step after
    which the gradient was not finite.
    """

    folder: Path
    recipe: Mapping[str, Any]
    train: Sequence[Mapping[str, Any]]
    valid: Sequence[Mapping[str, Any]]
    diverged: int | None
    sessions: Sequence[Mapping[str, Any]]

    @property
    def data(self) -> Mapping[str, str]:
        """Hashes of what the run was trained on, by name."""
        return self.sessions[0].get("data", {}) if self.sessions else {}

    @property
    def term(self) -> str:
        """The loss that predicts words, which bits per byte are computed from; else the first loss."""
        prefixes, lines = ("bits_per_byte.", "losses."), (*self.train, *self.valid)
        keys = ((key, start) for start in prefixes for line in lines for key in line if key.startswith(start))
        return next((key.removeprefix(start) for key, start in keys), "loss")


def read_run(folder: Path) -> RunRecord:
    """Read ``recipe.json``, ``metrics.jsonl`` and ``provenance.json`` of a run folder.

    Raises:
        DataError: there is no run, or one of its files is damaged.
    """
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder; give a run folder")
    if (folder / "score.json").exists() and not (folder / "recipe.json").exists():
        raise DataError(f"{folder}: is the folder of a fine-tuning, not of a run; encoderlab report makes its page")
    recipe = schemas.read(schemas.RecordedRecipe, folder / "recipe.json", "give a run folder, or restore it")
    lines = lines_by_split(folder / "metrics.jsonl")
    return RunRecord(
        folder=folder,
        recipe=recipe,
        train=lines["train"],
        valid=lines["valid"],
        diverged=next((line.get("step") for line in lines["diverged"]), None),
        sessions=schemas.sessions(folder / "provenance.json", "restore it, or start the run again"),
    )


def lines_by_split(path: Path) -> dict[str, list[dict[str, Any]]]:
    """The lines of a file of metrics by split, each with its seconds as ``time``; none where there is no file."""
    lines: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for line in map(flatten, read_lines(path) if path.exists() else ()):
        lines[str(line.get("split"))].append(line | {"time": line.get("seconds")})
    return lines


def metrics(records: Sequence[RunRecord], references: Sequence[tuple[str, float]] = ()) -> list[Metric]:
    """The curves of the runs, the losses of their main terms first; ``references`` are drawn with these. Terms that are
    only counted (the share of masked tokens that were replaced) have a loss of zero, which is left out.
    """
    lines = [line for record in records for line in (*record.train, *record.valid)]
    keys = list(dict.fromkeys(key for line in lines for key in line))
    main = [record.term for record in records]
    counted = [key for key in keys if key.startswith("losses.") and not any(line.get(key) for line in lines)]

    def of(prefix: str) -> list[str]:
        curves = [key for key in keys if key.startswith(prefix) and key not in counted]
        return sorted(curves, key=lambda key: key.removeprefix(prefix) not in main)

    def label(key: str, kind: str, alike: Sequence[str]) -> str:
        return kind.capitalize() if len(alike) == 1 else f"{_words(key)} {kind}"

    losses, shares, bits = of("losses."), of("accuracy."), of("bits_per_byte.")
    curves = []
    for key in losses:
        drawn = tuple(references) if key.removeprefix("losses.") in main else ()
        curves.append(Metric(key=key, label=label(key, "loss", losses), references=drawn))
    for key in shares:
        kind = "share" if key.replace("accuracy.", "losses.") in counted else "accuracy"
        curves.append(Metric(key=key, label=label(key, kind, shares), kind="percent", from_zero=True))
    curves += [Metric(key=key, label=label(key, "bits per byte", bits)) for key in bits]
    return curves + [Metric(key=key, label=_words(key)) for key in of("scores.")]


def strips(runs: Sequence[RunRecord] | Sequence[Run]) -> list[Metric]:
    """The small curves below the large ones."""
    return [metric for metric in STRIPS if any(metric.key in line for run in runs for line in run.train)]


def references(records: Sequence[RunRecord], counts: np.ndarray | None) -> list[tuple[str, float]]:
    """Reference losses for runs with one vocabulary: a uniform guess, and token frequencies if the corpus's counts are
    known.
    """
    sizes = {record.recipe.get("model", {}).get("encoder", {}).get("vocab") for record in records}
    if len(sizes) > 1 or not (size := sizes.pop()):
        return []
    lines = [(f"uniform guess: ln {size:,}", math.log(size))]
    return lines + ([("word frequencies alone", unigram_entropy(counts))] if counts is not None else [])


def count_parameters(model: Path) -> int | None:
    """Parameters in a model folder, from the header of its weights; of two networks the discriminator's; None without a
    model.
    """
    places = (folder / "model.safetensors" for folder in (model, model / "discriminator"))
    path = next((place for place in places if place.exists()), None)
    if path is None:
        return None
    try:
        with path.open("rb") as file:
            return sum(math.prod(tensor.shape) for tensor in read_header(file).tensors.values())
    except ValueError as error:
        raise DataError(f"{path}: damaged ({error}); write the model again") from None


def provenance(record: RunRecord) -> dict[str, str]:
    """Versions, commit, data hashes and hardware of the run."""
    if not record.sessions:
        return {}
    first = record.sessions[0]
    rows = {
        "Started": str(first.get("started", "")),
        "Versions": versions(first),
        "Commit": str(first.get("commit") or ""),
        "Hardware": machine(first.get("hardware", {})),
        "System": str(first.get("hardware", {}).get("system", "")),
        "Seed": str(record.recipe.get("seed", "")),
    }
    rows |= {f"Hash of {name}": str(value) for name, value in record.data.items()}
    if len(record.sessions) > 1:
        rows["Resumed"] = "once" if len(record.sessions) == 2 else f"{len(record.sessions) - 1} times"
    return {name: value for name, value in rows.items() if value}


def machine(hardware: Mapping[str, Any]) -> str:
    """Processor, cores and accelerators."""
    cores = hardware.get("cores")
    named = [str(hardware.get("cpu", "")), f"{cores} core{'' if cores == 1 else 's'}"]
    return ", ".join([*named, *hardware.get("accelerators", [])])


def versions(session: Mapping[str, Any]) -> str:
    """The versions of a session's packages."""
    return ", ".join(f"{name} {version}" for name, version in session.get("versions", {}).items())


def report(folders: Sequence[Path], *, counts: np.ndarray | None = None, title: str | None = None) -> Report:
    """A page about one run, or one that compares several."""
    records = dict(zip(names(folders), map(read_run, folders), strict=True))
    several, every = len(records) > 1, list(records.values())
    commands = [words for record in every for first in record.sessions[:1] if (words := first.get("command"))]
    return Report(
        title=title or (f"{len(records)} runs compared" if several else f"Run {next(iter(records))}"),
        verdict=comparison(records) if several else outcome(every[0]),
        findings=[] if several else findings(every[0]),
        tiles=[] if several else tiles(every[0]),
        compared={name: [*tiles(record), *further(record)] for name, record in records.items()} if several else {},
        runs=[Run(name=name, train=record.train, valid=record.valid) for name, record in records.items()],
        metrics=metrics(every, references(every, counts)),
        strips=strips(every),
        costs={} if several else costs(every[0]),
        provenance=side_by_side({name: provenance(record) for name, record in records.items()}),
        commands=[shlex.join(["encoderlab" if at == "__main__.py" else at, *words]) for at, *words in commands],
    )


def findings(record: RunRecord) -> list[dict[str, str]]:
    """The doctor's findings in the metrics alone; it reads neither corpus nor weights."""
    path = record.folder / "metrics.jsonl"
    lines = read_lines(path) if path.exists() else []
    return [vars(finding) | {"seeds": ""} for finding in diagnose(of_lines(lines, record.recipe))]


def names(folders: Sequence[Path]) -> list[str]:
    """The names of runs on a page: their folders' names, with as many parent folders as make them unique.

    Raises:
        ConfigError: a folder is given twice.
    """
    places = [folder.resolve().parts for folder in folders]
    if len(set(places)) < len(places):
        twice = next(folder for folder, place in zip(folders, places, strict=True) if places.count(place) > 1)
        raise ConfigError(f"{twice}: given twice; give each run once")
    depth = 1
    while len({place[-depth:] for place in places}) < len(places):
        depth += 1
    return ["/".join(place[-depth:]) for place in places]


def comparison(records: Mapping[str, RunRecord]) -> str:
    """Which run is best on held-out text, by bits per byte, which do not depend on the tokenizer, if all runs have the
    same kind of prediction. Diverged runs are named.
    """
    words = f"{len(records)} runs, not ranked: they have no bits per byte of the same objective."
    ends = {name: held[-1] for name, record in records.items() if (held := _bits(record))}
    if len(ends) > 1 and len({asked(records[name]) for name in ends}) == 1:
        least = min(ends.values())
        best = [name for name, bits in ends.items() if bits == least]
        need = "needs" if len(best) == 1 else "need"
        words = f"{' and '.join(best)} {need} the fewest bits per byte of held-out text: {least:.3f}."
        if len({records[name].data.get("corpus") for name in ends}) > 1:
            words += " Their corpora differ: this counts only if the texts are the same."
    failed = [name for name, record in records.items() if record.diverged is not None]
    return words + (f" Diverged: {', '.join(failed)}." if failed else "")


def asked(record: RunRecord) -> str:
    """The prediction problem of the run, as text. Bits are comparable only within one problem: with more masked tokens,
    the same model needs more bits.
    """
    objective = record.recipe.get("objective", {})
    return json.dumps([record.term, *(objective.get(name) for name in ("kind", "masking", "targets"))], sort_keys=True)


def outcome(record: RunRecord) -> str:
    """One sentence: the tokens and time of the run, and its result on held-out text."""
    name = record.recipe.get("name") or record.folder.resolve().name
    failed = f"{name} diverged after step {record.diverged}: its gradient was not finite."
    if not record.train:
        return failed if record.diverged is not None else f"{name} has logged nothing yet."
    last, held = record.train[-1], record.valid[-1] if record.valid else {}
    words = f"{name} read {quantity(last['tokens'])} tokens in {duration(last['seconds'])}"
    loss, share = held.get(f"losses.{record.term}"), held.get(f"accuracy.{record.term}")
    words += f"; on held-out text its loss is {loss:.3f}" if is_number(loss) else ""
    words += f" and {share:.1%} of its guesses are right" if is_number(loss) and is_number(share) else ""
    return f"{words}." + (f" {failed}" if record.diverged is not None else "")


def tiles(record: RunRecord) -> list[tuple[str, str, str]]:
    """The key numbers of one run: label, value, detail."""
    shown = []
    shares = _numbers(record.valid, f"accuracy.{record.term}")
    if shares:
        begin = f"{shares[0]:.1%} → " if len(shares) > 1 else ""
        shown.append(("Right guesses", f"{begin}{shares[-1]:.1%}", "on held-out text"))
    trained, held = (_numbers(lines, f"losses.{record.term}") for lines in (record.train, record.valid))
    if losses := held or trained:
        begin = f"{losses[0]:.2f} → " if len(losses) > 1 else ""
        shown.append(("Loss", f"{begin}{losses[-1]:.2f}", f"nats, on {'held-out' if held else 'training'} text"))
    if parameters := count_parameters(record.folder / "model"):
        encoder = record.recipe.get("model", {}).get("encoder", {})
        shown.append(("Parameters", quantity(parameters), f"{encoder.get('layers')} layers × {encoder.get('width')}"))
    if record.train:
        last = record.train[-1]
        shown.append(("Tokens read", quantity(last["tokens"]), f"{last['step']:,} steps"))
        speed = last["tokens"] / last["seconds"] if last.get("seconds") else 0
        shown.append(("Time", duration(last["seconds"]), f"{quantity(speed)} tokens per second"))
    return shown


def further(record: RunRecord) -> list[tuple[str, str, str]]:
    """Further numbers shown when several runs are compared, besides :func:`tiles`."""
    steps = [("Steps", f"{record.train[-1]['step']:,}", "")] if record.train else []
    held = _bits(record)
    return steps + ([("Bits per byte", f"{held[-1]:.3f}", "on held-out text")] if held else [])


def _bits(record: RunRecord) -> list[float]:
    return _numbers(record.valid, f"bits_per_byte.{record.term}")


def costs(record: RunRecord) -> dict[str, str]:
    """Steps, tokens, time and size."""
    rows = {}
    if record.train:
        last = record.train[-1]
        rows["Training"] = f"{last['step']:,} steps, {quantity(last['tokens'])} tokens, {duration(last['seconds'])}"
    if padding := _numbers(record.train, "padding"):
        rows["Padding"] = f"{sum(padding) / len(padding):.1%} of all positions"
    if parameters := count_parameters(record.folder / "model"):
        rows["Parameters"] = f"{parameters:,}"
    return rows


def _numbers(lines: Sequence[Mapping[str, Any]], key: str) -> list[float]:
    """The numeric values of a key."""
    return [line[key] for line in lines if is_number(line.get(key))]


def side_by_side(tables: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """The tables of several runs as one: equal values once, different ones in a row for each run."""
    joined: dict[str, str] = {}
    for row in dict.fromkeys(row for table in tables.values() for row in table):
        values = {run: table[row] for run, table in tables.items() if row in table}
        same = len(values) == len(tables) and len(set(values.values())) == 1
        joined |= {row: next(iter(values.values()))} if same else {f"{row}, {run}": values[run] for run in values}
    return joined


def _words(key: str) -> str:
    """``losses.next_sentence`` as ``Next sentence``; short names are abbreviations and stay in capitals."""
    name = key.split(".", 1)[1]
    return name.upper() if len(name) <= 3 else name.replace("_", " ").capitalize()
