"""``encoderlab doctor``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from encoderlab.commands import terminal
from encoderlab.interchange.finetuned import best_seed


def doctor(run: Path, /, *, corpus: Path | None = None) -> dict[str, Any]:
    """Diagnose a run: what is likely wrong, and what to change.

    Compares losses with those of guessing, uniformly (ln V) or by token frequencies, and with the reference
    curve of the recipe; checks gradients, masks, the discriminator and the initial weights; with --corpus
    also duplicates and the tokenizer.

    Example: encoderlab doctor runs/wiki --corpus corpora/wiki

    Parameters
    ----------
    run
        A run folder, finished or not; of a fine-tuning, the best seed.
    corpus
        The corpus of the run.
    """
    from encoderlab.train.doctor import examine

    findings = examine(best_seed(run, terminal.say) if run.exists() else run, corpus)
    for finding in findings:
        terminal.say(f"{finding.level}: {finding}")
    if not findings:
        terminal.say("no problem found")
    return {"findings": [vars(finding) for finding in findings]}
