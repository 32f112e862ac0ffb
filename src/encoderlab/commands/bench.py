"""``encoderlab bench``: speed, measured so that it can be believed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal

from encoderlab.commands import terminal
from encoderlab.errors import ConfigError


def train(
    name: str,
    /,
    *,
    corpus: Path,
    against: Literal["transformers"] | None = None,
    layers: int = 12,
    width: int = 256,
    rows: int = 32,
    length: int = 128,
    turns: int = 5,
    steps: int = 2,
    threads: int | None = None,
    precision: Literal["fp32", "bf16"] = "fp32",
    dropout: float = 0.1,
    compile: bool = False,
) -> dict[str, Any]:
    """Measure training speed: tokens per second, share of the matrix-product peak, memory, time by part.

    Contenders take turns in one process tree on the same batches of a real corpus; ratios are the result, absolute times drift.

    Example: encoderlab bench train deberta-v3 --corpus corpora/wiki --against transformers

    Args:
        name: A family (bert, roberta, albert, distilbert, electra, convbert, deberta-v1, deberta-v3, xlnet) or a published model.
        corpus: Where the text of the batches comes from.
        against: Compare with this library.
        layers: Of a family.
        width: Of a family.
        rows: Per batch.
        length: Tokens per row.
        turns: Of each contender.
        steps: Per turn.
        threads: Of each contender; all cores by default.
        precision: fp32, or bf16 under autocast.
        dropout: Rate everywhere.
        compile: Give the other contender torch.compile.
    """
    from encoderlab.measure.bench import families
    from encoderlab.measure.bench.train import Setting, run

    if turns < 1 or steps < 1 or rows < 1:
        raise ConfigError("turns, steps and rows count things; give at least 1")
    case = families.case(name, layers=layers, width=width).with_dropout(dropout)
    setting = Setting(
        rows=rows,
        length=length,
        turns=turns,
        steps=steps,
        threads=threads or os.cpu_count() or 1,
        precision=precision,
        compile=compile,
    )
    result = run(case, corpus, setting, against)
    _show(result, against)
    return result


def _show(result: dict[str, Any], against: str | None) -> None:
    speeds = result["tokens_per_second"]
    lines = [(name, f"{speed:,.0f}", f"{result['memory'][name] / 2**20:,.0f}") for name, speed in speeds.items()]
    caption = f"ours at {result['peak_share']:.0%} of the measured {result['peak'] / 1e9:,.0f} GFLOP/s; padding {result['padding']:.1%}"
    terminal.table(
        f"{result['case']}, {result['rows']} x {result['length']}, {result['precision']}, {result['threads']} threads",
        ["", "tokens/s", "MiB"],
        lines,
        caption=caption,
    )
    if "ratio" in result:
        ratio = result["ratio"]
        terminal.say(
            f"ratio {ratio[result['precision']]:.2f} (from {ratio['min']:.2f} to {ratio['max']:.2f} over turns), memory "
            f"{result['memory_ratio']:.2f}, losses after 20 steps differ by {result['loss_difference']:.1e}"
        )
    for name, reason in result.get("failed", {}).items():
        terminal.say(f"{name}: {reason}")
    names = list(result["parts"])
    parts = list(dict.fromkeys(part for name in names for part in result["parts"][name]))
    table = [(part, *(f"{result['parts'][name].get(part, 0):.1%}" for name in names)) for part in parts]
    terminal.table("Share of a step's time", ["part", *names], table)
