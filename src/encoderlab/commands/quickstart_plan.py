"""The sizes of a quickstart for a time budget."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

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


def parse_time(text: str) -> float:
    """Seconds of ``90``, ``90s``, ``5m`` or ``1h``."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|m|min|h)?", text.strip())
    if match is None:
        raise ConfigError(f"--budget {text}: expected a time such as 60s, 5m or 1h")
    return float(match[1]) * {"s": 1, None: 1, "m": 60, "min": 60, "h": 3600}[match[2]]
