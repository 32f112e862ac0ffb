"""Recipes for the models that come with the package: each is trained for the same FLOPs, and scored on minimal pairs.

    python -m benchmarks.pretrained.recipes hybrid --corpus runs/corpora/en --pairs data/pairs/blimp --out runs/recipes

``recipes.yaml`` has their stages, and ``make.sh`` builds the corpus. Run it again to resume. Beside each model lies its
copy in bfloat16, which is what the package contains and what is scored.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
import yaml

import encoderlab

HERE = Path(__file__).parent


def run(name: str, stages: list[dict[str, Any]], args: argparse.Namespace) -> None:
    """Train all stages of one recipe; score its model, and write ``result.json``."""
    folder = args.out / name.replace(",", "").replace(" ", "-")
    folder.mkdir(parents=True, exist_ok=True)
    trained: list[dict[str, Any]] = []
    for number, stage in enumerate(stages):
        own = folder / f"stage-{number}.yaml"
        own.write_text(yaml.safe_dump(stage["set"]))
        words = ["pretrain", "modernbert-mini", "--corpus", str(args.corpus), "--out", str(folder / f"stage-{number}")]
        words += ["--flops", str(args.flops * stage["share"])]
        words += [word for file in (HERE / "common.yaml", own) for word in ("--config", str(file))]
        words += [word for setting in args.set for word in ("--set", setting)]
        if number:
            words += ["--init-from", str(folder / f"stage-{number - 1}" / "model")]
        trained.append(verb(folder / "log.txt", *words))
    model = folder / "bfloat16"
    encoderlab.load(str(folder / f"stage-{len(stages) - 1}" / "model")).to(torch.bfloat16).save(model)
    print(f"{name}: the model is {model}", flush=True)
    if args.pairs:
        pairs = verb(folder / "log.txt", "minimal-pairs", str(model), *map(str, args.pairs))
        (folder / "result.json").write_text(json.dumps({"name": name, "training": trained, "pairs": pairs}))
        print(name, {measure: table["accuracy"] for measure, table in pairs["measures"].items()}, flush=True)


def verb(log: Path, *words: str) -> dict[str, Any]:
    """What a verb of encoderlab answers; its messages go to the end of ``log``.

    Raises:
        CalledProcessError: it failed, or was interrupted.
    """
    with log.open("a") as messages:
        done = subprocess.run(
            [sys.executable, "-m", "encoderlab", *words, "--json"], stdout=subprocess.PIPE, stderr=messages, check=True
        )
    return json.loads(done.stdout)


def main() -> int:
    """Train the recipes that the arguments name; returns the exit code, 1 if one failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="recipes of recipes.yaml; without a name all of them")
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--pairs", type=Path, nargs="+", default=[], help="without them none is scored")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--flops", type=float, default=4.9e15, help="for all stages of a recipe together")
    parser.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE", help="a field of every stage")
    parser.add_argument("--side-by-side", type=int, default=1, metavar="N", help="recipes that are trained at a time")
    recipes, code = yaml.safe_load((HERE / "recipes.yaml").read_text()), 0
    args = parser.parse_args()
    if unknown := [name for name in args.names if name not in recipes]:
        parser.error(f"no recipe {', '.join(unknown)}; expected one of: {'; '.join(recipes)}")
    with ThreadPoolExecutor(args.side_by_side) as pool:
        waiting = {name: pool.submit(run, name, recipes[name], args) for name in args.names or recipes}
        for name, result in waiting.items():
            if error := result.exception():
                print(f"{name}: {error}", file=sys.stderr)
                code = 1
    return code


if __name__ == "__main__":
    sys.exit(main())
