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
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from encoderlab import models
from encoderlab.corpus.special_tokens import Kind
from encoderlab.corpus.tokenizer import Tokenizer
from encoderlab.deploy.export.folder import ExportSettings, export
from encoderlab.deploy.graph import Graph, Use, use_of
from encoderlab.deploy.serve.service import Service
from encoderlab.inference import encode, fill_mask
from encoderlab.model import Model
from encoderlab.models import FAMILIES
from encoderlab.models.base import resized
from encoderlab.nn.heads import LMHead, TaskHead
from encoderlab.tasks.data.examples import Text
from encoderlab.tasks.forms.base import softmax
from encoderlab.tasks.runs.predict import Predictor, task_of_model

TEXTS = ["A list of words.", "What does the function return when the file is missing?", "no", "one two three " * 40]
QUESTION = "What does it return?"
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
    "modernbert",
)
LABELS = ("good", "bad", "so-so")
PIPELINES: dict[Use, str] = {
    "states": "feature-extraction",
    "fill-mask": "fill-mask",
    "classification": "text-classification",
    "tagging": "token-classification",
    "span": "question-answering",
}

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
const [folder, task, question, texts] = [...process.argv.slice(3, 6), JSON.parse(process.argv[6])];
const pipe = await pipeline(task, folder, { dtype: "fp32" });
pipe.tokenizer.return_token_type_ids = true;  // as the folder's README has it
const ask = {
  "feature-extraction": async (text) => (await pipe(text, { pooling: "mean", normalize: true })).tolist()[0],
  "fill-mask": (text) => pipe(text, { top_k: 5 }),
  "text-classification": (text) => pipe(text, { top_k: 3 }),
  "token-classification": (text) => pipe(text, { ignore_labels: [] }),
  "question-answering": (text) => pipe(question, text),
}[task];
const found = [];
for (const text of texts) found.push(await ask(text));
const version = JSON.parse(readFileSync("node_modules/@huggingface/transformers/package.json")).version;
console.log(JSON.stringify({ version, values: found }));
"""


def made(size: str, tokenizer: Tokenizer, use: str) -> Model:
    """A model of a family at a small size, with random weights, a real vocabulary, and the head that a use needs."""
    config = models.config(f"{size}-tiny")
    model = Model(resized(config, vocab=tokenizer.vocab_size), tokenizer).initialize(0).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.05)
    family = FAMILIES[config.family]
    heads: dict[str, TaskHead] = {
        "classification": replace(family.classification, labels=3),
        "tagging": replace(family.tagging, labels=3),
        "span": family.span,
    }
    return model.with_task(heads[use], () if use == "span" else LABELS, 0).eval() if use in heads else model


def run(command: list[str], cwd: Path) -> Any:
    """The last line that a program prints, as JSON; if it fails, the line of its error."""
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no message"]
        return {"failed": next((line for line in lines if "Error" in line), lines[-1])[:300]}
    return json.loads(done.stdout.strip().splitlines()[-1])


@torch.inference_mode()
def own(model: Model, use: Use, texts: Sequence[str]) -> list[dict[str, float]]:
    """Our probabilities for each text: of the labels, of the guesses, of the tag of each token by its place in the row,
    or of the best answer.
    """
    tokenizer = model.tokenizer
    assert tokenizer is not None
    if use == "fill-mask":
        return [{str(guess.token): guess.score for guess in fill_mask(model, text, top=5)[0]} for text in texts]
    if use == "classification":
        predictor = Predictor.of(model, task_of_model(model))
        service = Service(model, predictor, name="ours", pooling="mean", normalize=True)
        works, _ = service.items([Text(id="", text=text) for text in texts])
        scores = service.compute("scores", works.works)
        return [dict(zip(LABELS, softmax(one).tolist(), strict=True)) for one in scores]
    graph, answers = Graph(model, use), []
    for text in texts:
        pair = (QUESTION, text) if use == "span" else (text,)
        encoded = tokenizer.encode_batch(list(pair))
        first, second = encoded[0].ids, encoded[1].ids if use == "span" else None
        ids, segments = tokenizer.frame(first, second)
        row = torch.from_numpy(ids.astype(np.int64))[None]
        outputs = [
            out[0] for out in graph(row, torch.ones_like(row), torch.from_numpy(segments.astype(np.int64))[None])
        ]
        if use == "tagging":
            best = outputs[0].softmax(-1).max(-1).values
            answers.append({str(place): float(share) for place, share in enumerate(best)})
        else:  # transformers.js normalises over the passage and the first token, which is no answer
            places = tokenizer.spans(*map(len, encoded), max_length=len(ids))
            kept = [0, *range(places.b_start, places.b_start + places.b)]
            start, end = (scores[kept].softmax(-1)[1:] for scores in outputs)
            answers.append({"answer": float((start[:, None] * end).triu().max())})
    return answers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sentence-transformers", type=Path)
    parser.add_argument("--node-modules", type=Path)
    parser.add_argument("--families", nargs="*", default=SIZES)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    found: dict[str, Any] = json.loads(given.out.read_text()) if given.out.exists() else {}
    for size in given.families:
        row: dict[str, Any] = {}
        with tempfile.TemporaryDirectory() as name:
            place = Path(name)
            family = models.config(f"{size}-tiny").family
            kinds: dict[str, Kind] = {"roberta": "bpe", "xlnet": "unigram", "albert": "unigram", "deberta": "bpe"}
            words = [f"{text} {word}" for text in TEXTS for word in sys.stdlib_module_names]
            known = family if family in ("roberta", "albert", "xlnet", "deberta") else "bert"
            tokenizer = Tokenizer.train(kinds.get(size, "wordpiece"), words, 300, family=known)
            for use, pipe in PIPELINES.items():
                model, out = made(size, tokenizer, use), place / use
                if use == "fill-mask" and not isinstance(model.lm, LMHead):
                    continue
                export(model, use_of(model, use), out, ExportSettings(), say=lambda _: None)
                if "## transformers.js" not in (out / "README.md").read_text():
                    row[f"transformers.js {pipe}"] = {"left out": "the folder's README does not name it"}
                    continue
                mask = tokenizer.token(tokenizer.special.mask)
                texts = [f"{text} {mask}." for text in TEXTS[:2]] if use == "fill-mask" else TEXTS
                ours: Any = encode(model, TEXTS) if use == "states" else own(model, use, texts)
                if given.sentence_transformers and use == "states":
                    told = run([str(given.sentence_transformers), "-c", SENTENCE, str(out), json.dumps(texts)], place)
                    row["sentence-transformers"] = compared(told, ours)
                if given.node_modules:
                    (place / "node_modules").unlink(missing_ok=True)
                    (place / "node_modules").symlink_to(given.node_modules.resolve())
                    (place / "client.mjs").write_text(SCRIPT)
                    told = run(["node", "client.mjs", name, out.name, pipe, QUESTION, json.dumps(texts)], place)
                    row[f"transformers.js {pipe}"] = compared(told, ours)
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
    pairs = [
        (one["score"], mine[_name(one)])
        for row, mine in zip(values, ours, strict=True)
        for one in (row if isinstance(row, list) else [row])
    ]
    return told | {"difference": max(abs(theirs - mine) for theirs, mine in pairs), "compared": len(pairs)}


def _name(one: dict[str, Any]) -> str:
    """What a value of transformers.js is about: a label, a guess, the place of a tag, or the answer."""
    return str(next((one[key] for key in ("label", "token", "index") if key in one), "answer"))


if __name__ == "__main__":
    main()
