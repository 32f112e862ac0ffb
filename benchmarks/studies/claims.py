"""The ledger of the papers' claims: what the studies of this folder found so far, as docs/claims.md.

    python -m benchmarks.studies.claims

The claims are in the files of the studies. Each is judged at the largest budget that was run, by every measure that
compares its two arms.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from encoderlab.study.file import read
from encoderlab.study.results import LOWER

HERE = Path(__file__).parent
STUDIES = (
    "architectures",
    "objectives",
    "pairs",
    "masks",
    "electra",
    "convbert",
    "deberta",
    "albert",
    "memory",
    "norms",
)
PAGE = HERE.parents[1] / "docs" / "claims.md"
HEAD = """# The claims of the papers

What papers of the BERT family claim, and what our studies say of it, in one trainer, on the same ten million words, at
equal FLOPs: two layers of width 256, rows of 128 tokens, three seeds, the rate tuned for every arm (docs/studies.md). A
verdict is about this size and these budgets, not about the paper's.

**Effect**: the mean difference over seeds, positive if the claim is right, with its 95% interval; of losses in nats, of
minimal pairs (BLiMP) and probes in points. **Holds**: better beyond chance, after Holm's correction over all
comparisons of the study. **Does not hold**: worse beyond chance. Otherwise it **cannot be told**; then the number of
seeds is given that would show an effect of this size four times of five, and the FLOPs of both arms with that many.

`python -m benchmarks.studies.claims` makes this page from `benchmarks/studies/found/`. The command below a name runs
that study, or continues it.
"""


def judged(one: dict[str, Any]) -> str:
    """Budget, seeds, effect and verdict of a comparison, as cells of the table."""
    unit = 1 if one["by"] in LOWER else 100
    low, effect, high = (f"{one[name] * unit:+.3g}" for name in ("low", "difference", "high"))
    verdict = f"**{one['verdict']}**"
    if one["verdict"].startswith("cannot"):
        needed = one["needed"]
        verdict = "cannot be told" + (f"; {needed:,} seeds, {2 * needed * one['amount']:.1e}" if needed else "")
    return f"| {one['amount']:.0e}, {one['seeds']} | {one['by']} {effect} ({low} to {high}) | {verdict} |"


def page() -> str:
    """The page, from the files of the studies and what they found."""
    parts = [HEAD]
    for name in STUDIES:
        study, _ = read(HERE / f"{name}.yaml")
        record = HERE / "found" / name / "results.json"
        found = json.loads(record.read_text(encoding="utf-8"))["comparisons"] if record.is_file() else []
        several = [one for one in found if one["seeds"] > 1]  # one seed has no interval
        parts.append(f"## {study.name}\n\n`DATA=data bash benchmarks/studies/run.sh {name}`\n")
        parts.append("| claim | source | budget, seeds | effect | verdict |\n|---|---|---|---|---|")
        cost = 2 * len(study.seed_numbers) * max(study.amounts)
        for claim in study.claims:
            of_claim = [one for one in several if (one["better"], one["than"]) == (claim.better, claim.than)]
            largest = max((one["amount"] for one in of_claim), default=0)
            rows = [judged(one) for one in of_claim if one["amount"] == largest]
            parts += [f"| {claim.text} | {claim.source} {row}" for row in rows or [f"| | | not run; {cost:.1e} |"]]
        parts.append("")
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(PAGE)
