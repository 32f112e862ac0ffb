"""``encoderlab quickstart``: corpus, pretraining, fine-tuning and report, on text that Python ships."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from shlex import join
from typing import Any, Literal

from encoderlab.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class QuickstartPlan:
    """The sizes for a time budget.

    ``recipe`` to start from, with ``layers`` layers; ``pretraining`` in seconds; ``examples`` to fine-tune on
    (training, development, test) as the default protocol does, ``seeds`` by task; ``size`` of the corpus.
    """

    recipe: str
    layers: int = 2
    pretraining: float
    examples: tuple[int, int, int] = (480, 100, 600)
    seeds: Mapping[str, int] = field(default_factory=lambda: {"area": 3, "roles": 3, "match": 3})
    size: Literal["stdlib", "all"] = "all"


def plan(seconds: float) -> QuickstartPlan:
    """A larger model for a larger budget; most of the time goes to pretraining."""
    if seconds < 30:
        raise ConfigError(f"a budget of {seconds:g} s is too short; give at least 30s")
    if seconds < 150:
        return QuickstartPlan(recipe="bert-tiny", pretraining=0.4 * seconds)
    if seconds < 1800:
        return QuickstartPlan(recipe="bert-mini", pretraining=0.55 * seconds)
    return QuickstartPlan(recipe="bert-small", layers=4, pretraining=0.8 * seconds, examples=(2000, 300, 1500))


def quickstart(*, budget: str = "5m", out: Path = Path("runs/quickstart"), seed: int = 1) -> dict[str, Any]:
    """Try everything in minutes, on the documentation that Python ships.

    Builds corpus and tokenizer, pretrains, fine-tunes with and without pretraining
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
    from encoderlab.commands.quickstart_stages import walk
    from encoderlab.files import held_folder

    chosen = plan(parse_time(budget))
    words = ["quickstart", "--budget", budget, "--out", str(out), "--seed", str(seed)]
    with held_folder(out):
        return walk(chosen, out, seed, join(["encoderlab", *words]))


def parse_time(text: str) -> float:
    """Seconds of ``90``, ``90s``, ``5m`` or ``1h``."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|m|min|h)?", text.strip())
    if match is None:
        raise ConfigError(f"--budget {text}: expected a time such as 60s, 5m or 1h")
    return float(match[1]) * {"s": 1, None: 1, "m": 60, "min": 60, "h": 3600}[match[2]]
