"""Digests of what the project computes, to show that a change of the code changed nothing else.

    python -m benchmarks.behaviour record OUT.json          # with the code before
    python -m benchmarks.behaviour compare OUT.json         # with the code after; exit 1 names what differs
    python -m benchmarks.behaviour compare OUT.json --only bert  # what has "bert" in its name

It uses the command line alone, so that it runs with any version: corpora of three kinds of tokenizers, the weights of
every tiny and mini recipe after a few steps, and for every form of task the weights and scores of a fine-tuned model.
Digests are of one machine and one thread: record and compare on the same one. Ten minutes on one core.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from safetensors import safe_open

STEPS = 6
TOKENIZERS = {"wordpiece": "bert-tiny", "bpe": "roberta-tiny", "unigram": "xlnet-tiny"}


def call(*words: str | Path) -> str:
    """Standard output of one call of the command line, on one thread."""
    done = subprocess.run(
        [sys.executable, "-m", "encoderlab", *map(str, words)],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "NO_COLOR": "1"},
    )
    if done.returncode:
        raise RuntimeError(f"encoderlab {' '.join(map(str, words))}: exit {done.returncode}\n{done.stderr[-2000:]}")
    return done.stdout


def weights(folder: Path) -> str:
    """SHA-256 over names, types, shapes and values of all tensors below ``folder``, and nothing else."""
    total = hashlib.sha256()
    for path in sorted(folder.rglob("model.safetensors")):
        with safe_open(path, "np") as file:
            for name in sorted(file.keys()):
                tensor = file.get_tensor(name)
                total.update(f"{name} {tensor.dtype} {tensor.shape}".encode() + tensor.tobytes())
    return total.hexdigest()


def scores(folder: Path) -> str:
    """SHA-256 over the scores of all runs below ``folder``."""
    records = [json.loads(path.read_text())["scores"] for path in sorted(folder.rglob("score.json"))]
    return hashlib.sha256(json.dumps(records, sort_keys=True).encode()).hexdigest()


def shards(corpus: Path) -> str:
    """SHA-256 over the shards of a corpus and its tokenizer."""
    total = hashlib.sha256()
    for path in sorted([*corpus.rglob("*.safetensors"), corpus / "tokenizer" / "tokenizer.json"]):
        total.update(path.read_bytes())
    return total.hexdigest()


def recipes() -> list[str]:
    """The names of all recipes that train on a CPU in minutes."""
    names = json.loads(call("pretrain", "--list", "--json"))["recipes"]
    return [name for name in names if "tiny" in name or "mini" in name]


def labelled(folder: Path) -> dict[str, Path]:
    """A small file of every form of task; labels follow from the words, so that there is something to learn."""
    rng = random.Random(7)
    words = "return list value string object module function class error index file number path name type".split()

    def text(least: int, most: int) -> list[str]:
        return rng.choices(words, k=rng.randint(least, most))

    rows: dict[str, list[dict[str, Any]]] = {form: [] for form in ("classes", "pairs", "numbers", "spans", "choices")}
    tagged = []
    for i in range(60):
        tokens, other = text(4, 60), text(3, 20)
        at = rng.randrange(len(tokens))
        start = len(" ".join(tokens[:at])) + (at > 0)
        answers = {"text": [tokens[at]], "answer_start": [start]} if i % 4 else {"text": [], "answer_start": []}
        rows["classes"].append({"text": " ".join(tokens), "label": "long" if len(tokens) > 30 else "short"})
        rows["pairs"].append({"text": " ".join(tokens), "pair": " ".join(other), "label": str(tokens[0] in other)})
        rows["numbers"].append({"text": " ".join(tokens), "label": len(tokens) / 10 + 0.05})
        rows["spans"].append(
            {"id": str(i), "context": " ".join(tokens), "question": f"which {tokens[at]}?", "answers": answers}
        )
        choices = rng.sample(words, 3)
        rows["choices"].append({"question": " ".join(tokens), "choices": choices, "answer": i % 3})
        tagged.append("".join(f"{word} {'B-T' if word in words[:3] else 'O'}\n" for word in tokens))
    files = {}
    for form, records in rows.items():
        files[form] = folder / f"{form}.jsonl"
        files[form].write_text("".join(json.dumps(record) + "\n" for record in records))
    files["tags"] = folder / "tags.txt"
    files["tags"].write_text("\n".join(tagged))
    return files


def digests(work: Path, only: str) -> dict[str, str]:
    """Every digest by its name; ``only`` must be part of the name."""
    out: dict[str, str] = {}

    def keep(name: str, value: str) -> None:
        out[name] = value
        print(f"{name}: {value[:16]}", file=sys.stderr, flush=True)

    corpora = {}
    for kind in TOKENIZERS:
        corpora[kind] = work / kind
        call("corpus", "build", "python:stdlib", "--out", corpora[kind], "--vocab-size", "2000", "--tokenizer", kind)
        keep(f"corpus {kind}", shards(corpora[kind]))
    usual = ["--steps", str(STEPS), "--set", f"evaluation.every={STEPS}", "--set", "evaluation.rows=16"]
    models = {}
    for kind, name in TOKENIZERS.items():
        models[kind] = work / "models" / kind
        call("pretrain", name, "--corpus", corpora[kind], "--out", models[kind], *usual)
    for name in recipes():
        if only in f"recipe {name}":
            run = work / "runs" / name
            extra = []
            if "distil" in name:  # the student copies layers of its teacher, which must be as wide
                teacher = work / "teachers" / name
                if not teacher.exists():
                    size = "bert-tiny" if "tiny" in name else "bert-mini"
                    call("pretrain", size, "--corpus", corpora["wordpiece"], "--out", teacher, *usual)
                extra = ["--set", f"objective.teacher={teacher / 'model'}"]
            call("pretrain", name, "--corpus", corpora["wordpiece"], "--out", run, *usual, *extra)
            keep(f"recipe {name}", weights(run / "model"))
    for form, path in labelled(work).items():
        for kind, model in models.items():
            if only in f"task {form} {kind}":
                run = work / "tasks" / form / kind
                call(
                    "finetune", path, "--model", model, "--out", run, "--seeds", "1", "--set", "epochs=1",
                    "--set", "optim.lr=1e-3", "--set", "batch=8",
                )  # fmt: skip
                keep(f"task {form} {kind}", f"{weights(run)[:32]} {scores(run)[:32]}")
    return out


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=["record", "compare"])
    parser.add_argument("file", type=Path)
    parser.add_argument("--only", default="")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        now = digests(Path(work), given.only)
    if given.verb == "record":
        given.file.write_text(json.dumps(now, indent=1) + "\n")
        return 0
    before = {name: value for name, value in json.loads(given.file.read_text()).items() if given.only in name}
    wrong = [name for name in before if now.get(name) != before[name] and name in now or name not in now]
    print(f"{len(before) - len(wrong)} of {len(before)} digests are equal")
    for name in wrong:
        print(f"differs: {name}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
