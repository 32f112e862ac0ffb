"""Small texts of words of two kinds, and the options of a short training."""

from __future__ import annotations

from pathlib import Path

import numpy as np

WORDS = "river stone water light morning house tree bird road wind garden letter table window silver winter".split()
LAW = "plaintiff defendant court statute appeal judgment liability contract damages hearing".split()
TINY = {"encoder.layers": 1, "encoder.width": 32, "encoder.heads": 2, "encoder.ff_width": 64}


def prose(words: list[str], documents: int, seed: int) -> list[str]:
    draw = np.random.default_rng(seed)
    return [
        "\n".join(
            "the " + " ".join(words[i] for i in draw.integers(0, len(words), 12)) + " of the " + words[i % len(words)]
            for i in range(4)
        )
        for _ in range(documents)
    ]


SHORT = ["--set", "phases=[{length: 32, rows: 4}]", "--set", "budget.amount=6", "--set", "evaluation.every=2"]
SHORT += ["--set", "evaluation.rows=8", "--set", "checkpoints.steps=2"]


def words_of(place: Path, out: Path, *more: str) -> list[str]:
    start = ["adapt", str(place / "model"), str(place / "law.txt"), "--out", str(out)]
    return [*start, "--replay", str(place / "general.txt"), *SHORT, *more]


def natural(seed: int, characters: int, line: int) -> str:
    """Text of words in lines of about ``line`` characters."""
    draw, lines, size = np.random.default_rng(seed), [], 0
    while size < characters:
        lines.append(" ".join(f"{WORDS[i]}{i * seed % 7}" for i in draw.integers(0, len(WORDS), line // 6)))
        size += len(lines[-1]) + 1
    return "\n".join(lines)[: characters - 1] + "."


def varied(number: int) -> list[str]:
    """Documents of 800 made-up words, some frequent."""
    draw = np.random.default_rng(7)
    words = [
        "".join(draw.choice([*"bdfgklmnprst"]) + draw.choice([*"aeiou"]) for _ in range(1 + i % 4)) for i in range(800)
    ]
    return [" ".join(words[int(800 * x * x)] for x in draw.random(60)) for _ in range(number)]
