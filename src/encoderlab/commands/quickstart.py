"""``encoderlab quickstart``: corpus, pretraining, fine-tuning and report, on text that Python ships."""

from __future__ import annotations

from pathlib import Path
from shlex import join
from typing import Any

from encoderlab.files import check_own, held_folder


def quickstart(*, budget: str = "5m", out: Path = Path("runs/quickstart"), seed: int = 1) -> dict[str, Any]:
    """Try everything in minutes, on the documentation that Python ships.

    Builds a corpus and a tokenizer, pretrains, fine-tunes with and without pretraining
    next to simple baselines, and writes a report. The same command resumes.

    Example:
        encoderlab quickstart --budget 60s --out runs/first

    Parameters
    ----------
    budget
        Time for training, such as 60s, 5m, 1h; a larger budget trains a larger model.
    out
        Folder for all results.
    seed
        Seed of the pretraining.
    """
    from encoderlab.commands.quickstart_stages import parse_time, plan, walk

    chosen = plan(parse_time(budget))
    words = ["quickstart", "--budget", budget, "--out", str(out), "--seed", str(seed)]
    with held_folder(out):
        check_own(out, "corpus")
        return walk(chosen, out, seed, join(["encoderlab", *words]))
