"""Opens exported folders with tools that are too heavy for the tests, and compares their numbers with the model's own.

    python -m benchmarks.clients --out benchmarks/clients/results.json \
        --sentence-transformers PYTHON --node-modules DIR

PYTHON is an interpreter with sentence-transformers; DIR a node_modules with @huggingface/transformers. A tool that is
not given is left out.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from encoderlab import models
from encoderlab.corpus.tokenizer import Tokenizer
from encoderlab.deploy.export.folder import ExportSettings, export
from encoderlab.deploy.graph import use_of
from encoderlab.deploy.serve.service import Service, probabilities
from encoderlab.inference import encode
from encoderlab.model import Model
from encoderlab.models import FAMILIES
from encoderlab.models.base import resized
from encoderlab.tasks.data.examples import Text

TEXTS = ["A list of words.", "What does the function return when the file is missing?", "no", "one two three " * 40]
SIZES = (
    "bert",
    "roberta",
    "albert",
    "distilbert",
    "electra",
    "convbert",
    "deberta",
    "deberta-v2",
    "deberta-v3",
    "xlnet",
)
LABELS = ("good", "bad", "so-so")

SENTENCE = """
import json, sys, warnings
from sentence_transformers import SentenceTransformer
import sentence_transformers
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    model = SentenceTransformer(sys.argv[1], device="cpu")
# One text at a time: convolutions of transformers read padding.
vectors = [model.encode(text).tolist() for text in json.loads(sys.argv[2])]
told = {"version": sentence_transformers.__version__, "warnings": [str(one.message) for one in seen]}
print(json.dumps(told | {"values": vectors}))
"""
SCRIPT = """
import { env, pipeline } from "@huggingface/transformers";
import { readFileSync } from "node:fs";
env.allowRemoteModels = false;
env.localModelPath = process.argv[2];
const [folder, task, texts] = [process.argv[3], process.argv[4], JSON.parse(process.argv[5])];
const pipe = await pipeline(task, folder, { dtype: "fp32" });
const found = [];
for (const text of texts) {
  if (task === "feature-extraction") {
    found.push((await pipe(text, { pooling: "mean", normalize: true })).tolist()[0]);
  } else {
    found.push(await pipe(text, { top_k: 3 }));
  }
}
const version = JSON.parse(readFileSync("node_modules/@huggingface/transformers/package.json")).version;
console.log(JSON.stringify({ version, values: found }));
"""


def made(size: str, tokenizer: Tokenizer, head: bool) -> Model:
    """A model of a family at a small size, with random weights and a real vocabulary."""
    config = models.config(f"{size}-tiny")
    model = Model(resized(config, vocab=tokenizer.vocab_size), tokenizer).initialize(0).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.05)
    if not head:
        return model
    return model.with_task(replace(FAMILIES[config.family].classification, labels=3), LABELS, 0).eval()


def run(command: list[str], cwd: Path) -> Any:
    """The last line that a program prints, as JSON; if it fails, the line of its error."""
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no message"]
        return {"failed": next((line for line in lines if "Error" in line), lines[-1])[:300]}
    return json.loads(done.stdout.strip().splitlines()[-1])


def classes(model: Model) -> list[dict[str, float]]:
    """Our probabilities of the labels of the texts."""
    from encoderlab.tasks.runs.predict import Predictor, task_of_model

    predictor = Predictor.of(model, task_of_model(model))
    service = Service(predictor.model, predictor, name="ours", pooling="mean", normalize=True)
    works, _ = service.items([Text(id="", text=text) for text in TEXTS])
    scores = service.compute("scores", works.works)
    return [dict(zip(LABELS, probabilities(one).tolist(), strict=True)) for one in scores]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sentence-transformers", type=Path)
    parser.add_argument("--node-modules", type=Path)
    parser.add_argument("--families", nargs="*", default=SIZES)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    texts = json.dumps(TEXTS)
    found: dict[str, Any] = json.loads(given.out.read_text()) if given.out.exists() else {}
    for size in given.families:
        row: dict[str, Any] = {}
        with tempfile.TemporaryDirectory() as name:
            place = Path(name)
            family = models.config(f"{size}-tiny").family
            kind = {"roberta": "bpe", "xlnet": "unigram", "albert": "unigram", "deberta": "bpe"}.get(size, "wordpiece")
            words = [f"{text} {word}" for text in TEXTS for word in sys.stdlib_module_names]
            known = family if family in ("roberta", "albert", "xlnet", "deberta") else "bert"
            tokenizer = Tokenizer.train(kind, words, 300, family=known)
            for head in (False, True):
                model = made(size, tokenizer, head)
                out = place / ("heads" if head else "states")
                record = export(model, use_of(model), out, ExportSettings(), say=lambda _: None)
                if record["format"] != "hf":  # which the folder's README says too
                    row["transformers.js text-classification"] = {"left out": record["notes"][0]}
                    continue
                ours: Any = classes(model) if head else encode(model, TEXTS)
                if given.sentence_transformers and not head:
                    told = run([str(given.sentence_transformers), "-c", SENTENCE, str(out), texts], place)
                    row["sentence-transformers"] = compared(told, ours)
                if given.node_modules:
                    (place / "node_modules").unlink(missing_ok=True)
                    (place / "node_modules").symlink_to(given.node_modules.resolve())
                    (place / "client.mjs").write_text(SCRIPT)
                    task = "text-classification" if head else "feature-extraction"
                    told = run(["node", "client.mjs", name, out.name, task, texts], place)
                    row[f"transformers.js {task}"] = compared(told, ours)
        found[size] = found.get(size, {}) | row
        print(size, json.dumps(row), flush=True)
        given.out.write_text(json.dumps(found, indent=1) + "\n")


def compared(told: Any, ours: Any) -> dict[str, Any]:
    """The largest difference of a tool's vectors or probabilities from ours."""
    if "failed" in told:
        return told
    values = told.pop("values")
    if isinstance(ours, np.ndarray):
        unit = ours / np.linalg.norm(ours, axis=1, keepdims=True)
        return told | {"difference": float(np.abs(np.array(values) - unit).max())}
    pairs = [(one["score"], mine[one["label"]]) for row, mine in zip(values, ours, strict=True) for one in row]
    return told | {"difference": max(abs(theirs - mine) for theirs, mine in pairs), "compared": len(pairs)}


if __name__ == "__main__":
    main()
