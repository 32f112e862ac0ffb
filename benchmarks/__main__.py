"""Reproduce the tables of docs/performance.md: ``make benchmarks``, or ``python -m benchmarks [TABLE ...]``.

Each table is a list of ``encoderlab bench`` commands. Their results go to benchmarks/results/ as one JSON file with the
hardware and the date. Run it on an otherwise idle machine; all of it takes hours on two cores. Batches come from
``--corpus``, or from a corpus of Python's own documentation, whose short documents leave BERT's pairs half empty.
"""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from encoderlab.files import write_text
from encoderlab.measure.bench.families import FAMILIES
from encoderlab.train.folder import hardware

CORPUS = ("corpus", "build", "python:stdlib", "--vocab-size", "8192")
RESULTS = Path(__file__).parent / "results"


def tables(corpus: str) -> dict[str, list[list[str]]]:
    """The commands of every table."""
    on = ["--corpus", corpus]
    return {
        "training-fp32": [["train", name, *on, "--against", "transformers", "--compile"] for name in FAMILIES],
        "training-bf16": [
            ["train", name, *on, "--against", "transformers", "--precision", "bf16"] for name in FAMILIES
        ],
        "training-768": [
            ["train", name, *on, "--against", "transformers", "--layers", "4", "--width", "768", "--rows", "16"]
            for name in ("bert", "deberta-v1", "convbert")
        ],
        "training-512": [
            ["train", name, *on, "--length", "512", "--rows", "8"] for name in ("bert", "deberta-v3", "convbert")
        ],
        "training-documents": [
            ["train", name, *on, "--against", "transformers", "--documents", "--length", "512", "--rows", "8"]
            for name in ("bert", "deberta-v1")
        ],
        "prediction": [
            ["predict", name, *on, "--against", "transformers", "--against", "onnxruntime"]
            for name in ("bert", "deberta-v3", "convbert", "xlnet")
        ],
        "corpus": [["corpus"]],
        "scaling": [["scaling", name, *on] for name in ("bert", "electra")],
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.split("\n")[0])
    parser.add_argument("tables", nargs="*", metavar="TABLE", help=f"of {', '.join(tables(''))}; by default all")
    parser.add_argument("--corpus", metavar="DIR", help="corpus of documents that fill rows; by default one is made")
    arguments = parser.parse_args()
    if unknown := set(arguments.tables) - set(tables("")):
        parser.error(f"unknown table {min(unknown)!r}; choose from: {', '.join(tables(''))}")
    with tempfile.TemporaryDirectory() as place:
        corpus = arguments.corpus
        if corpus is None:
            corpus = f"{place}/corpus"
            subprocess.run([sys.executable, "-m", "encoderlab", *CORPUS, "--out", corpus], check=True)
        known = tables(corpus)
        now = datetime.datetime.now(datetime.UTC)
        path = RESULTS / f"{now:%Y-%m-%d-%H%M}.json"
        results: dict[str, list[dict[str, object]]] = {}
        record = {"date": now.isoformat(timespec="seconds"), "machine": hardware(), "tables": results}
        for name in arguments.tables or known:
            results[name] = []
            for words in known[name]:
                results[name].append(bench(*words))
                write_text(path, json.dumps(record, indent=1) + "\n")  # also if a later one fails
    print(f"written to {path}")


def bench(*words: str) -> dict[str, object]:
    """The result of one benchmark; a failure is a result too."""
    print("encoderlab bench", *words, flush=True)
    done = subprocess.run(
        [sys.executable, "-m", "encoderlab", "bench", *words, "--json"], stdout=subprocess.PIPE, text=True
    )
    result: dict[str, object] = json.loads(done.stdout) if done.stdout.strip() else {"error": done.returncode}
    return {"command": ["encoderlab", "bench", *words], **result}


if __name__ == "__main__":
    main()
