"""The ledger of the papers' claims: what the studies of this folder found so far, as docs/claims.md.

    python -m benchmarks.studies.claims

The claims are in the files of the studies. Each is judged by every measure that compares its two arms, at the largest
of the budgets with the most seeds.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from statistics import mean
from typing import Any

from encoderlab.study.file import read
from encoderlab.study.results import LOWER, at_edge
from encoderlab.tasks.scoring.metrics import mean_interval

HERE = Path(__file__).parent
STUDIES = (
    "architectures",
    "objectives",
    "pairs",
    "masks",
    "static",
    "electra",
    "convbert",
    "deberta",
    "albert",
    "distil",
    "memory",
    "norms",
)
CONTROLS = {"architectures": "untrained"}  # the same arms without pretraining
PAGE = HERE.parents[1] / "docs" / "claims.md"
HEAD = """# The claims of the papers

What papers of the BERT family claim, and what our studies say of it, in one trainer, on the same ten million words, at
equal FLOPs: two layers of width 256, rows of 128 tokens, three seeds (fewer where the tables say so), the rate tuned
for every arm ([studies](studies.md)). Static masks have a hundredth of the words, so that they repeat. A verdict is
about this size and these budgets, not about the paper's.

With learned positions, masked models of this size stay at the frequencies of tokens within these budgets: a loss of 6.3
at 3e13 FLOPs, where Transformer-XL's relative positions reach 4.8. There is little to compare at that stage. So all
arms of the studies of objectives and memory have relative positions, and those of masks, static masks, ELECTRA,
ConvBERT, DistilBERT, sentence pairs, sharing (ALBERT) and norms rotary ones and no dropout. The architectures have
those of their papers, so their losses differ here mostly by positions. A memory costs FLOPs, so a model with 512 states
of it reads a third fewer tokens than one without. DistilBERT's teacher is small-en, and its forward pass counts. The
last layer is computed at the predicted places alone; its convolutions at these and their neighbours. Masked losses of
sentence pairs are of their own rows, whose texts are shorter than those without pairs. Plain masked prediction is the
same three runs in six studies (masks, ELECTRA, ConvBERT, sentence pairs, sharing, norms), so these share its chance.

Of ELECTRA, ConvBERT and DeBERTa v3 (and of the arms with a generator in ELECTRA's study) the loss and the minimal pairs
are the generator's, also where ConvBERT's loss is better than ELECTRA's. So the fine-tuned tasks say more; a linear
probe finds hardly an entity in any of these arms (F1 4 where fine-tuning ends at 59). Their rates are chosen by the
discriminators' losses on the same samples ([studies](studies.md)). ELECTRA's at 1e14 FLOPs is 0.001, by 0.0006 nats
before 0.0005, with which three other runs had F1 58.4 on CoNLL-2003, 81.0 on SST-2 and 7.0 on CoLA. **The runs of
ELECTRA's own study are older**: their rates were chosen by the sum of both losses, which falls with the generator's.
They are being repeated. Generators of ELECTRA and ConvBERT keep four layers, so the whole one of ELECTRA's study has
twice the layers of the model. ConvBERT's parts are compared by masked prediction for these reasons.

**Fine-tuned scores are mostly those of the network, not of its pretraining.** The same networks after one step were
fine-tuned too, and the table below that of the architectures has what pretraining adds. So a difference of two
architectures in these tasks alone says little about what they learned from the text.

FLOPs are those of tokens. Padding is computed but not counted, which is 11 to 21% more with whole sentences (RoBERTa,
ModernBERT, and masked prediction in all studies but DeBERTa's), 5 to 8% with pairs (BERT, ALBERT, ELECTRA, ConvBERT,
next sentence, sentence order), and nothing with chunks and streams (DeBERTa, XLNet, Transformer-XL). Products of
position to content run at all keys but are counted at the predicted places, so DeBERTa computes 5 to 10% more than is
counted.

**Effect**: the mean difference over seeds, positive if the claim is right, with its 95% interval; of losses in nats, of
minimal pairs (BLiMP), probes and fine-tuned tasks in points; by each measure at the largest of the budgets with the
most seeds. A difference that is the same with every seed, such as that of two scores that are always 0, has no interval
and is left out. **Holds**: better beyond chance, after Holm's correction over all comparisons of the study. **Does not
hold**: worse beyond chance. Otherwise it **cannot be told**; then about the number of seeds is given that would show an
effect of this size four times of five, as one of so many comparisons, and the FLOPs of both arms with that many. **Not
run** has the FLOPs of both arms at the largest budget. **†**: the best rate of an arm is the lowest or the highest that
was tried, so a better one may exist.

`python -m benchmarks.studies.claims` makes this page from `benchmarks/studies/found/`. The command below a name runs
that study, or continues it.
"""


def judged(one: dict[str, Any]) -> str:
    """Budget, seeds, effect and verdict of a comparison, as cells of the table."""
    unit = 1 if one["by"] in LOWER else 100
    low, effect, high = (f"{round(one[name] * unit, 9) + 0.0:+.3g}" for name in ("low", "difference", "high"))
    verdict = f"**{one['verdict']}**"
    if one["verdict"].startswith("cannot"):
        verdict = "cannot be told"
        if one["needed"]:
            needed = max(one["needed"], one["seeds"] + 1)
            cost = f"{needed} seeds, {2 * needed * one['amount']:.1e}"
            verdict += f"; {cost if needed < 1000 else '1,000 seeds or more'}"
    return f"| {one['amount']:.0e}, {one['seeds']} | {one['by']} {effect} ({low} to {high}) | {verdict} |"


def arms(found: dict[str, Any]) -> list[str]:
    """The lines of a table with the scores of every arm, at the largest budget where all have two seeds or more."""
    cells = [cell for cell in found["cells"] if cell["status"] == "done"]
    names = list(dict.fromkeys(cell["arm"] for cell in found["cells"]))
    seeds = Counter((cell["arm"], cell["amount"]) for cell in cells)
    complete = [amount for _, amount in seeds if all(seeds[name, amount] > 1 for name in names)]
    if not complete:
        return []
    of_arm = {
        name: [cell for cell in cells if (cell["arm"], cell["amount"]) == (name, max(complete))] for name in names
    }
    measures = list(of_arm[names[0]][0]["scores"])
    of_budget = [one for one in found["tuning"] if one["amount"] == max(complete)]
    marked = {one["arm"] for one in of_budget if at_edge(one["chosen"], one["trials"])}
    lines = [
        f"Mean over seeds with its 95% interval, at {max(complete):.0e} FLOPs. Losses and bits per byte are of what",
        "each arm predicts, so they compare only arms that predict the same.\n",
        f"| arm | seeds | tokens | {' | '.join(measures)} |\n|---|---:|---:|{'---:|' * len(measures)}",
    ]
    for name, runs in of_arm.items():
        tokens = f"{runs[0]['numbers']['tokens'] / 1e6:.2f} M"
        shown = []
        for measure in measures:
            values = [run["scores"][measure] for run in runs]
            if None in values:  # of losses that are not of tokens
                shown.append("")
                continue
            unit = 1 if measure in LOWER else 100
            low, high = mean_interval([unit * value for value in values])
            shown.append(f"{(low + high) / 2:.4g} ± {(high - low) / 2:.2g}")
        lines.append(f"| {name}{' †' * (name in marked)} | {len(runs)} | {tokens} | {' | '.join(shown)} |")
    return lines


def added(found: dict[str, Any], fresh: dict[str, Any]) -> list[str]:
    """The lines of a table of what pretraining adds to the tasks of every arm, at the largest budget with two seeds.

    ``found`` are the results of a study and ``fresh`` those of the same arms without pretraining, with the same tasks.
    """
    done, controls = ([cell for cell in one["cells"] if cell["status"] == "done"] for one in (found, fresh))
    seeds = Counter((cell["arm"], cell["amount"]) for cell in done)
    largest = max(amount for (_, amount), count in seeds.items() if count > 1)
    tasks = list(controls[0]["details"])

    def means(cells: list[dict[str, Any]]) -> list[float]:
        of_task = [mean(100 * cell["scores"][task] for cell in cells) for task in tasks]
        return [*of_task, mean(of_task)]

    lines = [
        f"What pretraining with {largest:.0e} FLOPs adds: the mean over seeds, and in parentheses",
        "its difference from the same network without pretraining (`untrained.yaml`, one seed).\n",
        f"| arm | {' | '.join(tasks)} | all {len(tasks)} |\n|---|{'---:|' * (len(tasks) + 1)}",
    ]
    for arm in dict.fromkeys(cell["arm"] for cell in controls):
        if seeds[arm, largest] > 1:
            after = means([cell for cell in done if (cell["arm"], cell["amount"]) == (arm, largest)])
            before = means([cell for cell in controls if cell["arm"] == arm])
            shown = (f"{one:.1f} ({one - other:+.1f})" for one, other in zip(after, before, strict=True))
            lines.append(f"| {arm} | {' | '.join(shown)} |")
    return lines


def told(rows: list[tuple[str, str]]) -> list[str]:
    """The lines of a table of the claims that hold or do not, of all pairs of a claim and its row."""
    lines = [f"| {text} {row}" for text, row in rows if row.endswith("** |")]
    count = len(lines)
    lines[:0] = [
        "## What could be told\n",
        f"{count} of {len(rows)} comparisons, by all measures of all studies:\n",
        "| claim | budget, seeds | effect | verdict |\n|---|---|---|---|",
    ]
    return [*lines, ""]


def results(name: str) -> dict[str, Any]:
    """What a study found so far."""
    record = HERE / "found" / name / "results.json"
    return json.loads(record.read_text(encoding="utf-8")) if record.is_file() else {"comparisons": [], "cells": []}


def page() -> str:
    """The page, from the files of the studies and what they found."""
    parts: list[str] = []
    compared: list[tuple[str, str]] = []
    for name in STUDIES:
        study, _ = read(HERE / f"{name}.yaml")
        found = results(name)
        with_interval = [one for one in found["comparisons"] if one["low"] is not None]  # two seeds that differ
        parts.append(f"## {study.name}\n\n`DATA=data bash benchmarks/studies/run.sh {name}`\n")
        parts.append("| claim | source | budget, seeds | effect | verdict |\n|---|---|---|---|---|")
        cost = 2 * len(study.seed_numbers) * max(study.amounts)
        for claim in study.claims:
            of_claim = [one for one in with_interval if (one["better"], one["than"]) == (claim.better, claim.than)]
            of_measure = {one["by"]: one for one in sorted(of_claim, key=lambda one: (one["seeds"], one["amount"]))}
            rows = [judged(of_measure[name]) for name in dict.fromkeys(one["by"] for one in of_claim)]
            compared += [(claim.text, row) for row in rows]
            first, *others = rows or [f"| | | not run; {cost:.1e} |"]
            parts += [f"| {claim.text} | {claim.source} {first}", *(f"| | {row}" for row in others)]
        parts += ["", *table, ""] if (table := arms(found)) else [""]
        if control := CONTROLS.get(name):
            parts += [*added(found, results(control)), ""]
    return "\n".join([HEAD, *told(compared), *parts])


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(PAGE)
