"""Reproduce the tables of docs/performance.md: ``make benchmarks``, or ``python -m benchmarks [TABLE ...]``.

Each table is a list of ``encoderlab bench`` commands. Their results go to benchmarks/results/ as one JSON file with the
hardware and the date. Run it on an otherwise idle machine; all of it takes about an hour on two cores.
"""

from __future__ import annotations

import datetime
import json
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

FAMILIES = ("bert", "roberta", "albert", "distilbert", "electra", "convbert", "deberta-v1", "deberta-v3", "xlnet")
RESULTS = Path(__file__).parent / "results"


def tables(corpus: str) -> dict[str, list[list[str]]]:
    """The commands of every table."""
    on = ["--corpus", corpus]
    return {
        "training-fp32": [["train", name, *on, "--against", "transformers"] for name in FAMILIES],
        "training-bf16": [
            ["train", name, *on, "--against", "transformers", "--precision", "bf16"] for name in FAMILIES
        ],
        "training-compiled": [["train", name, *on, "--against", "transformers", "--compile"] for name in FAMILIES],
        "training-768": [
            ["train", name, *on, "--against", "transformers", "--layers", "4", "--width", "768", "--rows", "16"]
            for name in ("bert", "deberta-v1", "convbert")
        ],
        "training-512": [
            ["train", name, *on, "--length", "512", "--rows", "8"] for name in ("bert", "deberta-v3", "convbert")
        ],
        "prediction": [
            ["predict", name, *on, "--against", "transformers", "--against", "onnxruntime"]
            for name in ("bert", "deberta-v3", "convbert", "xlnet")
        ],
        "corpus": [["corpus", "python:all"]],
        "scaling": [["scaling", name, *on] for name in ("bert", "electra")],
    }


def main(wanted: list[str]) -> None:
    with tempfile.TemporaryDirectory() as place:
        corpus = f"{place}/corpus"
        known = tables(corpus)
        unknown = set(wanted) - set(known)
        if unknown:
            sys.exit(f"unknown table {sorted(unknown)[0]!r}; choose from: {', '.join(known)}")
        command("corpus", "build", "python:stdlib", "--out", corpus, "--vocab-size", "16384")
        results = {name: [bench(*words) for words in known[name]] for name in (wanted or known)}
    RESULTS.mkdir(exist_ok=True)
    now = datetime.datetime.now(datetime.UTC)
    machine = {"system": platform.platform(), "cpu": cpu()}
    record = {"date": now.isoformat(timespec="seconds"), "machine": machine, "tables": results}
    path = RESULTS / f"{now:%Y-%m-%d-%H%M}.json"
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(f"written to {path}")


def bench(*words: str) -> dict[str, object]:
    """The result of one benchmark; a failure is a result too."""
    print("encoderlab bench", *words, flush=True)
    done = subprocess.run(
        [sys.executable, "-m", "encoderlab", "bench", *words, "--json"], stdout=subprocess.PIPE, text=True
    )
    result: dict[str, object] = json.loads(done.stdout) if done.stdout.strip() else {"error": done.returncode}
    return {"command": ["encoderlab", "bench", *words], **result}


def command(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "encoderlab", *words], check=True)


def cpu() -> str:
    """The processor's name, where the system says it."""
    info = Path("/proc/cpuinfo")
    names = [line for line in info.read_text().splitlines() if line.startswith("model name")] if info.exists() else []
    return names[0].split(":", 1)[1].strip() if names else platform.processor()


if __name__ == "__main__":
    main(sys.argv[1:])
