"""``encoderlab doctor``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from encoderlab.commands import terminal


def doctor(run: Path, /, *, corpus: Path | None = None) -> dict[str, Any]:
    """Say what is likely wrong with a run, and what to change.

    Looks at the metrics against ln V and the entropy of single tokens, at gradients, masks, the discriminator, the
    initial weights and the reference curve of the recipe; with --corpus also at duplicates and the tokenizer.

    Example: encoderlab doctor runs/wiki --corpus corpora/wiki

    Parameters
    ----------
    run
        A run folder, finished or not.
    corpus
        The corpus that it trains on.
    """
    from encoderlab.train.doctor import examine

    findings = examine(run, corpus)
    for finding in findings:
        terminal.say(f"{finding.level}: {finding}")
    if not findings:
        terminal.say("nothing looks wrong")
    return {"findings": [vars(finding) for finding in findings]}
