"""Name what is likely wrong with a run, one sentence per fault, with a remedy.

The loop asks while it trains (:class:`Watch`, from metrics only), ``encoderlab doctor RUN`` afterwards
(:func:`examine`, also from corpus and checkpoint).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from encoderlab.errors import DataError
from encoderlab.train.diagnoses import CHECKS, Finding
from encoderlab.train.evidence import Evidence, Line, read, reference

WATCHED = 1000  # newest lines of metrics that are read while training


def diagnose(evidence: Evidence) -> list[Finding]:
    """All findings, errors first."""
    findings = [finding for check in CHECKS if (finding := check(evidence)) is not None]
    return sorted(findings, key=lambda finding: finding.level != "error")


class Watch:
    """Findings during a run, each diagnosis once; reads the newest 1,000 lines of metrics."""

    def __init__(self, recipe: Mapping[str, Any]) -> None:
        self.recipe = recipe
        self.train: deque[Line] = deque(maxlen=WATCHED)
        self.valid: deque[Line] = deque(maxlen=WATCHED)
        self.reported: set[str] = set()
        self.reference = reference(recipe.get("name", ""))

    def see(self, line: Line) -> list[Finding]:
        """The new findings after a further line of metrics, of training or validation."""
        {"train": self.train, "valid": self.valid}.get(line["split"], deque[Line]()).append(line)
        if not self.train:
            return []
        evidence = Evidence(list(self.train), list(self.valid), self.recipe, reference=self.reference)
        findings = [finding for finding in diagnose(evidence) if finding.name not in self.reported]
        self.reported |= {finding.name for finding in findings}
        return findings


def examine(run: Path, corpus: Path | None = None) -> list[Finding]:
    """Findings about a run folder.

    Raises:
        DataError: the folder has no run, or no metrics yet.
    """
    evidence = read(run, corpus)
    if not evidence.train and evidence.diverged is None:
        raise DataError(f"{run}: metrics.jsonl has no training metrics yet; wait for the first log_every steps")
    return diagnose(evidence)
