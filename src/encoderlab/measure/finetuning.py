"""Read folders of fine-tuning: the scores of a protocol, the runs of its seeds, and their mistakes.

Everything is read from files whose hashes the runs recorded; changed files are refused. The other files of the runs,
weights among them, are also compared with their hashes (0.7 s per GB), and a change is logged.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from encoderlab.config import from_dict
from encoderlab.errors import ConfigError, DataError
from encoderlab.files import read_json
from encoderlab.interchange.finetuned import SCORE_FILE, folder_name, read_signed
from encoderlab.measure.runs import lines_by_split
from encoderlab.tasks.runs.folder import analysis_file, damaged, record_of
from encoderlab.tasks.scoring.analysis import Analysis
from encoderlab.train import schemas
from encoderlab.train.folder import METRICS, PROVENANCE, RECIPE

log = logging.getLogger(__name__)

PRETRAINED, WITHOUT = "pretrained", "without pretraining"  # the systems of one folder
SCRATCH = "scratch"  # in it: the protocol of fresh weights
REMEDY = "run the command of the fine-tuning again, which makes it again"


@dataclass(frozen=True, kw_only=True)
class SeedRun:
    """The run of one seed. ``record`` is its ``score.json``, empty if it did not end; ``scores`` are by split and
    metric, none if it did not end or is not counted; ``train`` and ``valid`` are its metrics; ``analysis`` is by
    split; ``sessions`` are those of its provenance.
    """

    seed: str
    folder: Path
    record: Mapping[str, Any]
    scores: Mapping[str, Mapping[str, float]]
    failed: str
    train: Sequence[Mapping[str, Any]]
    valid: Sequence[Mapping[str, Any]]
    analysis: Mapping[str, Analysis]
    sessions: Sequence[Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Finetuning:
    """The results of a protocol for one task: ``record`` is its ``score.json``, ``fresh`` the results with fresh
    weights (``--scratch``), if there are any.
    """

    folder: Path
    record: Mapping[str, Any]
    seeds: Sequence[SeedRun]
    fresh: Finetuning | None = None

    @property
    def task(self) -> str:
        return self.record["task"]

    @property
    def metric(self) -> str:
        return self.record["metric"]

    @property
    def splits(self) -> list[str]:
        """Those with scores, the development set first."""
        return sorted(self.record["scores"], key=lambda split: split != "dev")

    @property
    def best(self) -> SeedRun:
        """The run with the best development score."""
        return max(self.ended, key=lambda run: run.scores["dev"][self.metric])

    @property
    def ended(self) -> list[SeedRun]:
        """The runs that have scores."""
        return [run for run in self.seeds if run.scores]

    def scores(self, split: str, metric: str | None = None) -> list[float]:
        """One score per seed that ended; of the task's metric by default."""
        return [run.scores[split][metric or self.metric] for run in self.ended if split in run.scores]

    def systems(self) -> Iterator[tuple[str, Finetuning]]:
        """The systems that were compared in this folder, the model last."""
        if self.fresh is not None:
            yield WITHOUT, self.fresh
        yield PRETRAINED, self


def tasks_in(folder: Path) -> list[Path]:
    """The task folders in a folder of fine-tuning: itself, or those of a suite; empty for any other folder."""
    if (folder / SCORE_FILE).exists() and not (folder / RECIPE).exists():
        return [folder]
    places = sorted(path.parent for path in folder.glob(f"*/{SCORE_FILE}"))
    return [place for place in places if not (place / RECIPE).exists() and not place.name.startswith("after-")]


def read(folder: Path) -> Finetuning:
    """The fine-tuning of one task.

    Raises:
        DataError: a file is missing or has changed.
    """
    record = record_of(folder)
    if record is None:
        raise DataError(f"{folder}: has no {SCORE_FILE}; give the folder of a fine-tuning")
    if "seeds" not in record:
        raise ConfigError(f"{folder}: is the run of one seed; give the folder of all seeds")
    where = folder / folder_name(record["chosen"])
    return Finetuning(
        folder=folder,
        record=record,
        seeds=[_seed_run(seed, entry, where / f"seed-{seed}") for seed, entry in record["seeds"].items()],
        fresh=read(folder / SCRATCH) if (folder / SCRATCH / SCORE_FILE).exists() else None,
    )


def _seed_run(seed: str, entry: Mapping[str, Any], folder: Path) -> SeedRun:
    """The run of one seed; a seed that diverged has metrics but no score."""
    score = folder / SCORE_FILE
    record = read_signed(score, REMEDY) if score.exists() or "scores" in entry else {}
    shown = {METRICS, PROVENANCE, *(analysis_file(split) for split in record.get("scores", {}))}
    for name in damaged(folder, record) if record else ():
        if name in shown:
            remedy = f"restore it, or delete {folder} to train it again" if name in (METRICS, PROVENANCE) else REMEDY
            raise DataError(f"{folder / name}: is missing or has changed; {remedy}")
        log.warning("%s: is missing or has changed; the page does not show it", folder / name)
    lines = lines_by_split(folder / METRICS)
    places = {split: folder / analysis_file(split) for split in record.get("scores", {})}
    return SeedRun(
        seed=seed,
        folder=folder,
        record=record,
        scores=entry.get("scores", {}),
        failed=entry.get("failed", ""),
        train=lines["train"],
        valid=lines["valid"],
        analysis={
            split: from_dict(Analysis, read_json(place, REMEDY)) for split, place in places.items() if place.exists()
        },
        sessions=schemas.sessions(folder / PROVENANCE, "restore it, or start the run again"),
    )
