"""The evidence about a run: its metrics, its recipe, its corpus, and the recorded curve of its recipe."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np

from encoderlab.corpus.manifest import MANIFEST
from encoderlab.corpus.shards import Corpus, unigram_entropy
from encoderlab.errors import ConfigError, DataError
from encoderlab.files import sha256
from encoderlab.train import folder, schemas

log = logging.getLogger(__name__)

Line = Mapping[str, Any]
DUPLICATE_SAMPLE = 20_000  # documents that are searched for duplicates
MEANS = "exp_avg/"  # prefix of a weight's running average of gradients in a checkpoint
HEADS = ("pooler", "pair", "rtd", "lm", "mask_vector")  # parts that some objectives do not read


@dataclass(frozen=True)
class CorpusFacts:
    """Facts about a corpus: sizes, entropy of its token frequencies in nats, and shares."""

    vocab_size: int
    entropy: float
    bytes_per_token: float
    unknown_share: float
    duplicate_share: float

    @classmethod
    def of(cls, corpus: Corpus, unknown: int | None = None) -> CorpusFacts:
        """Read from a corpus; duplicates among the first 20,000 documents."""
        counts = corpus.counts().astype(np.float64)
        number = min(corpus.num_documents, DUPLICATE_SAMPLE)
        seen = {corpus.document(i).ids.tobytes() for i in range(number)}
        return cls(
            vocab_size=corpus.vocab_size,
            entropy=unigram_entropy(counts),
            bytes_per_token=corpus.num_bytes / max(corpus.num_tokens, 1),
            unknown_share=0.0 if unknown is None else float(counts[unknown] / counts.sum()),
            duplicate_share=1 - len(seen) / max(number, 1),
        )


@dataclass(frozen=True)
class Evidence:
    """Everything that the diagnoses read; unknown values are None."""

    train: Sequence[Line]
    valid: Sequence[Line]
    recipe: Mapping[str, Any] = field(default_factory=dict)
    corpus: CorpusFacts | None = None
    frozen: Sequence[str] = ()  # matrices that never had a gradient
    reference: Mapping[str, Any] | None = None
    diverged: Line | None = None  # the last line of a run whose gradient was not finite

    @property
    def term(self) -> str | None:
        """The name of the loss that predicts tokens; None if there is none."""
        names = self.train[-1]["losses"] if self.train else {}
        of_tokens = self.valid[-1].get("bits_per_byte", {}) if self.valid else {}  # any objective's
        return next((name for name in ("mlm", "plm", "lm", *of_tokens) if name in names), None)

    def losses(self, name: str, split: Sequence[Line] | None = None) -> list[tuple[int, float]]:
        """(step, loss) of a term, without losses that are not finite."""
        lines = self.train if split is None else split
        return [(line["step"], line["losses"][name]) for line in lines if is_number(line["losses"].get(name))]

    def numbers(self, key: str) -> list[float]:
        """The finite values of a key in the lines of training."""
        return [line[key] for line in self.train if is_number(line.get(key))]

    @property
    def vocabulary(self) -> int | None:
        """V, from the recipe or the corpus."""
        model = self.recipe.get("model") or {}
        encoder = model.get("encoder") or {}
        return encoder.get("vocab") or (self.corpus.vocab_size if self.corpus else None)

    @property
    def guessing(self) -> float | None:
        """The loss in nats of a model that knows only token frequencies; None if the vocabulary is unknown.

        From the corpus; else the reference's share of ln V; else the usual share.
        """
        if self.corpus is not None:
            return self.corpus.entropy
        if self.vocabulary is None:
            return None
        share = 0.75  # in English and Chinese
        if self.reference is not None:
            share = self.reference["entropy"] / math.log(self.reference["vocab"])
        return float(share * math.log(self.vocabulary))


def is_number(value: Any) -> TypeGuard[float]:
    """Whether a metric is finite; metrics write null for other values."""
    return value is not None and math.isfinite(value)


def read(run: Path, corpus: Path | None = None) -> Evidence:
    """The evidence in a run folder, and in its corpus if the corpus folder is given."""
    path = run / "metrics.jsonl"
    if not path.exists():
        raise DataError(f"{run}: has no metrics.jsonl; give a run folder")
    lines = read_lines(path)
    recipe = {}
    if (kept := run / folder.RECIPE).exists():
        recipe = schemas.read(schemas.RecordedRecipe, kept, "restore it, or give a run folder")
    facts = None
    if corpus is not None:
        text = Corpus(corpus)
        check_corpus(run, corpus)
        facts = CorpusFacts.of(text, text.tokenizer().special.unk)
    return replace(of_lines(lines, recipe), corpus=facts, frozen=frozen_matrices(run))


def of_lines(lines: Sequence[Line], recipe: Mapping[str, Any]) -> Evidence:
    """The evidence in metrics and recipe, without corpus and weights."""
    return Evidence(
        train=[line for line in lines if line["split"] == "train"],
        valid=[line for line in lines if line["split"] == "valid" and "losses" in line],
        recipe=recipe,
        reference=reference(recipe.get("name", "")),
        diverged=next((line for line in lines if line["split"] == "diverged"), None),
    )


def check_corpus(run: Path, corpus: Path) -> None:
    """Refuse a corpus that the run was not trained on, if the run's record names its corpus or labelled files.

    Raises:
        ConfigError: the corpus is another one, or the run is a fine-tuning.
    """
    sessions = schemas.sessions(run / folder.PROVENANCE, "restore it, or leave --corpus out")
    data = sessions[0].get("data", {}) if sessions else {}
    if "train" in data:
        raise ConfigError(f"{run}: is a fine-tuning, and --corpus is for runs of pretraining; leave it out")
    known = data.get("corpus")
    if known not in (None, sha256(corpus / MANIFEST)):
        raise ConfigError(f"{run}: not trained on {corpus}; give the run's own corpus, or leave --corpus out")


def reference(name: str) -> Mapping[str, Any] | None:
    """The recorded curve of a recipe, ``{"valid": [[step, tokens, loss], ...], ...}``; None if it has none."""
    place = resources.files("encoderlab") / "recipes" / "reference" / f"{name}.json"
    return json.loads(place.read_text(encoding="utf-8")) if place.is_file() else None


def read_lines(path: Path) -> list[Line]:
    """The lines of metrics; a truncated last line is left out, as on resuming.

    Raises:
        DataError: another line is damaged, or is not a line of metrics.
    """
    whole, newline, cut = path.read_text(encoding="utf-8", errors="replace").rpartition("\n")
    lines: list[Line] = []
    for number, text in enumerate(whole.split("\n") if newline else [], 1):
        try:
            line = json.loads(text)
        except ValueError:
            line = None
        if not isinstance(line, dict):
            raise DataError(f"{path}:{number}: not a JSON object; restore the file or resume the run")
        if fault := schemas.problem_of_line(line):
            raise DataError(
                f"{path}:{number}: is no line of metrics ({fault}); resume the run, which leaves the line out, or give "
                "a run folder of encoderlab"
            )
        lines.append(line)
    if cut:
        log.warning("%s: ignored the truncated last line; resume the run to write it again", path)
    return lines


def frozen_matrices(run: Path) -> list[str]:
    """Matrices of the newest checkpoint that never had a gradient: the optimiser has no state for them, or zeros.

    :data:`HEADS` that have no loss in the recipe are left out: another objective or fine-tuning trains them.
    """
    from encoderlab.train import checkpoint  # import torch, which a page about a run does not need
    from encoderlab.train.stored import StoredTensors

    newest, _ = checkpoint.newest(run / "checkpoints")
    if newest is None:
        return []
    stored = StoredTensors(newest)
    moments = {name.removeprefix(MEANS): bool(stored[name].any()) for name in stored if name.startswith(MEANS)}
    if not any(moments.values()):  # no update yet
        return []
    frozen = []
    for name, about in stored.weights.items():
        waits = name in moments and any(part in HEADS for part in name.split("."))
        if len(about.size) > 1 and not moments.get(name, False) and not waits:
            frozen.append(name)
    return frozen
