"""Record pretraining runs as the reference curves that others are judged against, and draw them on one page.

    python -m benchmarks.reference RUN ... --corpus CORPUS

writes ``src/encoderlab/recipes/reference/NAME.json`` for each run folder (the doctor reads them), then
``docs/reference_runs/README.md`` and ``curves.svg`` of all that are recorded.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
from html import escape
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np

from encoderlab.config import from_dict
from encoderlab.corpus.shards import Corpus, unigram_entropy
from encoderlab.files import write_text
from encoderlab.measure.runs import read_run
from encoderlab.train.corpus_data import corpus_data
from encoderlab.train.networks import build_objective
from encoderlab.train.recipe import Recipe
from encoderlab.train.units import quantity

ROOT = Path(__file__).parents[1]
RECORDS = ROOT / "src" / "encoderlab" / "recipes" / "reference"
PAGE = ROOT / "docs" / "reference_runs"
COLUMNS, WIDTH, HEIGHT = 3, 300, 190
LEFT, RIGHT, TOP, BOTTOM = 40, 12, 30, 26


def target_entropy(recipe: Recipe, corpus: Path) -> float:
    """Entropy in nats of the tokens to be predicted in 10,000 training rows: the loss of a model that knows their
    frequencies and no context.
    """
    text = Corpus(corpus)
    tokenizer = text.tokenizer()
    objective = build_objective(recipe, tokenizer, text)
    source = corpus_data(recipe, objective, corpus, tokenizer).source(recipe.phases[0], recipe.phases[0].rows, None)
    counts = np.zeros(text.vocab_size, np.int64)
    for _ in range(10_000 // recipe.phases[0].rows):
        targets = next(source).labels["targets"]
        counts += np.bincount(targets[targets >= 0].numpy(), minlength=text.vocab_size)
    source.close()
    return unigram_entropy(counts)


def record(run: Path, place: Path) -> dict[str, Any]:
    """What is kept of a run; losses in nats per predicted token."""
    read, corpus = read_run(run), Corpus(place)
    term, session, last = read.term, read.sessions[0], read.valid[-1]
    speeds = sorted(line["tokens_per_second"] for line in read.train)
    detection = {
        key.removeprefix("losses."): value
        for key, value in last.items()
        if key.startswith("losses.") and key != f"losses.{term}"
    }
    weights = next(iter(sorted((run / "model").glob("**/model.safetensors"))))
    return {
        "recipe": read.recipe["name"],
        "command": " ".join(session["command"]),
        "term": term,
        "vocab": corpus.vocab_size,
        "entropy": round(target_entropy(from_dict(Recipe, dict(read.recipe)), place), 4),
        "train": [[line["step"], line["tokens"], round(line[f"losses.{term}"], 4)] for line in read.train],
        "valid": [[line["step"], line["tokens"], round(line[f"losses.{term}"], 4)] for line in read.valid],
        "accuracy": round(last[f"accuracy.{term}"], 4) if f"accuracy.{term}" in last else None,
        "bits_per_byte": round(last[f"bits_per_byte.{term}"], 4) if f"bits_per_byte.{term}" in last else None,
        "others": {
            name: [round(loss, 4), round(last[f"accuracy.{name}"], 4) if f"accuracy.{name}" in last else None]
            for name, loss in detection.items()
        },
        "tokens_per_second": round(speeds[len(speeds) // 2]),
        "seconds": round(last["seconds"]),
        "sessions": len(read.sessions),
        "recorded": session["started"][:10],
        "weights": hashlib.sha256(weights.read_bytes()).hexdigest(),
        "data": session["data"],
        "versions": session["versions"],
        "hardware": session["hardware"],
    }


def further(name: str, loss: float, share: float | None) -> str:
    """A further loss, with its accuracy; terms that are only counted have no loss."""
    parts = [name.replace("_", " "), f"{loss:.3f}" if loss else "", f"({share:.1%})" if share is not None else ""]
    return " ".join(part for part in parts if part)


def occasions(records: list[dict[str, Any]]) -> str:
    """When and on which processor the runs were recorded, with the names of exceptions."""
    groups: dict[str, list[str]] = {}
    for r in records:
        groups.setdefault(f"on {r['recorded']} on {r['hardware']['cpu']}", []).append(r["recipe"])
    most, *others = sorted(groups, key=lambda place: -len(groups[place]))
    return "; ".join([f"Recorded {most}", *(f"{', '.join(groups[place])} {place}" for place in others)]) + "."


def page(records: list[dict[str, Any]]) -> str:
    """The table and what it means."""
    rows = []
    for r in records:
        others = "; ".join(further(name, *values) for name, values in r["others"].items())
        bits = f"{r['bits_per_byte']:.3f}" if r["bits_per_byte"] else ""
        right = f"{r['accuracy']:.1%}" if r["accuracy"] is not None else ""
        rows.append(
            f"| {r['recipe']} | {quantity(r['valid'][-1][1])} | {r['entropy']:.2f} | **{r['valid'][-1][2]:.2f}** "
            f"| {right} | {bits} | {others} | {r['tokens_per_second']:,} | {r['seconds'] / 60:.0f} "
            f"| `{r['weights'][:12]}` |"
        )
    versions = ", ".join(f"{name} {version}" for name, version in records[0]["versions"].items())
    made = fill(
        f"{occasions(records)} One thread of two cores that other work shared, so tokens per second are a lower bound. "
        "*weights* begins the SHA-256 of `model.safetensors`: the same command on the same text, thread count, "
        "processor and torch gives the same file with the same version of this project. Kernels that changed since "
        f"round differently, and from some step on losses part, by 1e-3 at the end. Versions: {versions}.",
        width=120,
        break_on_hyphens=False,
    )
    commands = "\n".join(r["command"] for r in records)
    return f"""# Reference runs

Short runs of `mini` recipes, recorded so that yours can be judged against them: `encoderlab doctor RUN` compares
with these curves by the name of the recipe. They show that a recipe learns and how fast; they are far too short to
compare architectures by (8 to 32 rows of 128 tokens a step, on a CPU).

![Loss curves of all runs](curves.svg)

Losses are nats per predicted token on held-out text; *frequencies* is the loss of knowing how often each token is asked
for, and no context (the unigram entropy of the targets, of which rare tokens have more). Accuracy is that of the
predicted tokens; bits per byte were taken with the bytes per token of the training text. For replaced token detection
the loss is the generator's, and the discriminator's stands under *further losses* with its accuracy, beside the share
of masked tokens that were *replaced*.

| recipe | tokens | frequencies | loss | accuracy | bits per byte | further losses | tokens/s | minutes | weights |
|---|---|---|---|---|---|---|---|---|---|
{chr(10).join(rows)}

{made}

## Commands

```
encoderlab corpus build wiki_en.txt.gz --out corpora/wiki --vocab-size 8192
encoderlab corpus build CLUECorpusSmall_sample.txt.gz tech_articles.txt.gz classics_in_modern_chinese.txt.gz \\
    --out corpora/zh --tokenizer bert-base-chinese/vocab.txt --segmenter rjieba
export OMP_NUM_THREADS=1
{commands}
```

Hashes of corpus and tokenizer, versions and hardware of each run are in `src/encoderlab/recipes/reference/`; this page
is written by `python -m benchmarks.reference`.
"""


def drawing(records: list[dict[str, Any]]) -> str:
    """A panel for each run: training loss, validation loss, and the loss of token frequencies as a dashed line."""
    lines = -(-len(records) // COLUMNS)
    panels = "".join(
        f'<g transform="translate({i % COLUMNS * WIDTH},{i // COLUMNS * HEIGHT})">{panel(r)}</g>'
        for i, r in enumerate(records)
    )
    width, height = COLUMNS * WIDTH, lines * HEIGHT + 24
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'font-family="system-ui,sans-serif" font-size="11"><rect width="100%" height="100%" fill="#fff"/>{panels}'
        f'<text x="{LEFT}" y="{height - 8}" fill="#555">Nats per predicted token against million tokens. '
        f'<tspan fill="#9db7d9">training</tspan>, <tspan fill="#1f4e8c">held-out</tspan>, '
        f'<tspan fill="#b3541e">token frequencies alone (dashed)</tspan></text></svg>\n'
    )


def panel(r: dict[str, Any]) -> str:
    train, valid, entropy = r["train"], r["valid"], r["entropy"]
    right = max(valid[-1][1], train[-1][1])
    low = math.floor(min(entropy, *(p[2] for p in train + valid)) * 2 - 0.2) / 2
    high = math.ceil((entropy + 0.8) * 2) / 2

    def x(tokens: float) -> float:
        return LEFT + tokens / right * (WIDTH - LEFT - RIGHT)

    def y(loss: float) -> float:
        return TOP + (high - min(loss, high)) / (high - low) * (HEIGHT - TOP - BOTTOM)

    def path(points: list[list[float]], colour: str, thick: float) -> str:
        places = " ".join(f"{x(tokens):.1f},{y(loss):.1f}" for _, tokens, loss in points if loss <= high)
        return f'<polyline points="{places}" fill="none" stroke="{colour}" stroke-width="{thick}"/>'

    parts = [f'<text x="{LEFT}" y="18" font-weight="600" font-size="12">{escape(r["recipe"])}</text>']
    steps = round((high - low) * 2)
    for i in range(0, steps + 1, 2 if steps > 4 else 1):
        level = low + i / 2
        parts.append(
            f'<path d="M{LEFT} {y(level):.1f}H{WIDTH - RIGHT}" stroke="#eee"/>'
            f'<text x="{LEFT - 5}" y="{y(level) + 4:.1f}" text-anchor="end" fill="#777">{level:.1f}</text>'
        )
    for tokens in (0, right / 2, right):
        anchor = "start" if tokens == 0 else "end" if tokens == right else "middle"
        parts.append(
            f'<text x="{x(tokens):.1f}" y="{HEIGHT - 10}" text-anchor="{anchor}" fill="#777">{tokens / 1e6:.2g}</text>'
        )
    parts.append(
        f'<path d="M{LEFT} {y(entropy):.1f}H{WIDTH - RIGHT}" stroke="#b3541e" stroke-dasharray="4 3" fill="none"/>'
    )
    parts += [path(train, "#9db7d9", 1), path(valid, "#1f4e8c", 2)]
    end = valid[-1]
    parts.append(
        f'<circle cx="{x(end[1]):.1f}" cy="{y(end[2]):.1f}" r="3" fill="#1f4e8c"/><text x="{WIDTH - RIGHT}" y="18" '
        f'text-anchor="end" fill="#1f4e8c">{end[2]:.2f}</text>'
    )
    return "".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", type=Path)
    parser.add_argument("--corpus", type=Path, help="that the runs were trained on")
    given = parser.parse_args()
    RECORDS.mkdir(exist_ok=True)
    for run in given.runs:
        facts = record(run, given.corpus)
        write_text(RECORDS / f"{facts['recipe']}.json", json.dumps(facts, ensure_ascii=False) + "\n")
    records = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(RECORDS.glob("*.json"))]
    write_text(PAGE / "README.md", page(records))
    write_text(PAGE / "curves.svg", drawing(records))


if __name__ == "__main__":
    main()
