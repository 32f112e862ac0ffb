"""The kinds of trials. Each takes a random generator, the prepared folder and a place of its own, and raises
AssertionError where a promise is broken: one clear line and an exit code, never a traceback or a hang; the same bits,
or a refusal that names the file.
"""

from __future__ import annotations

import inspect
import json
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import yaml

from encoderlab import cli, recipes
from encoderlab.config import to_dict
from tests.fuzz.world import PRETRAIN, call, copy, damage, digest, files, inside, interpreter

Trial = Callable[[random.Random, Path, Path], None]
NASTY = [
    "", " ", "0", "-1", "1", "2.5", "nan", "inf", "-inf", "1e999", "1e-320", "9" * 30, "-" + "9" * 30, "true",
    "null",
    "~", "[]", "{}", "[1, 2]", "{kind: null}", "{a: {b: 1}}", "é", "💥", "a\nb", "\x00", "\udcff", "../..",
    "nowhere",
    "/dev/null", "corpus", "run", "tuned", "labels.csv", "text.txt", "mine.yaml", "run/metrics.jsonl", "bert-tiny",
    "sst2",
    "[" * 2000, "{a: " * 500, "&a [*a]", "x" * 5000, "=", "a=b=c", "--", "-", "%s", "{}{}", "0x10", "1_000",
]  # fmt: skip
LONG = ("quickstart", "bench train", "bench predict", "bench corpus", "bench scaling", "finetune", "perplexity")


def verbs(rng: random.Random, place: Path, aside: Path) -> None:
    """Any verb with any options and values."""
    verb = rng.choice([verb for verb in cli.VERBS if verb not in LONG or rng.random() < 0.1])
    module, name = cli.VERBS[verb][1].split(":")
    words = [*verb.split()]
    for parameter in inspect.signature(
        getattr(import_module(f"encoderlab.commands.{module}"), name)
    ).parameters.values():
        kind = str(parameter.annotation)
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD, parameter.VAR_POSITIONAL):
            words += [value(rng, kind)] * (rng.random() < 0.95)
        elif parameter.default is parameter.empty or rng.random() < 0.15:
            words.append("--" + parameter.name.strip("_").replace("_", "-"))
            if "bool" not in kind or rng.random() < 0.05:
                words.append("out" if parameter.name == "out" and rng.random() < 0.8 else value(rng, kind))
    if verb == "serve" or verb in LONG and not {"--data", "--model", "--corpus"} & set(words):
        words.append("--help")  # a server runs until it is stopped
    if verb == "pretrain":
        words += ["--dry-run"]
    if rng.random() < 0.05:
        rng.shuffle(words)
    with inside(copy(place, aside)):
        call(*words).check()


def value(rng: random.Random, kind: str) -> str:
    """A value that an option of that type may have, or now and then any other."""
    if rng.random() < 0.2:
        return rng.choice(NASTY)
    if "Path" in kind or "str" in kind and rng.random() < 0.6:
        return rng.choice(
            ["corpus", "run", "tuned", "labels.csv", "text.txt", "mine.yaml", "run/model", "bert-tiny", "."]
        )
    if "float" in kind or "int" in kind:
        return rng.choice([str(rng.randint(-1, 300)), f"{rng.uniform(-0.5, 1.5):.3f}"])
    return rng.choice(["alpha [MASK] gamma", "a", *NASTY])


def leaves(data: Any, path: str = "") -> Iterator[str]:
    """The paths of all fields of a recipe, outer ones too."""
    for key, value in data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ():
        yield f"{path}{key}"
        yield from leaves(value, f"{path}{key}.")


def settings(rng: random.Random, place: Path, aside: Path) -> None:
    """Any field of a published recipe set to anything."""
    name = rng.choice([name for name in recipes.RECIPES if "tiny" in name or "mini" in name])
    known = list(leaves(to_dict(recipes.recipe(name))))
    words = []
    for _ in range(rng.randint(1, 3)):
        path = rng.choice(known)
        if rng.random() < 0.1:
            path = rng.choice([path[:-1], path + ".x", path + ".0", "." + path, path + "x", path.upper()])
        numbers = [str(rng.randint(-3, 4000)), f"{rng.uniform(-1, 2):.3g}", str(10 ** rng.randint(3, 20))]
        words += ["--set", f"{path}={rng.choice([*NASTY, *numbers, *numbers])}"]
    with inside(place):
        call("pretrain", name, "--dry-run", *words).check()


def config_files(rng: random.Random, place: Path, aside: Path) -> None:
    """A file of settings that is damaged, or has values of other kinds."""
    data = to_dict(recipes.recipe("bert-tiny"))
    kind = rng.choice(["yaml", "json"])
    aside.mkdir(parents=True, exist_ok=True)
    path = aside / f"settings.{kind}"
    path.write_text(yaml.safe_dump(data) if kind == "yaml" else json.dumps(data, indent=1))
    for _ in range(rng.randint(1, 3)):
        if path.exists():
            damage(path, rng)
    if path.exists() and rng.random() < 0.3:
        text = path.read_bytes()
        cut = rng.randrange(len(text) + 1)
        path.write_bytes(text[:cut] + rng.choice(NASTY).encode(errors="surrogateescape") + text[cut:])
    call("pretrain", "bert-tiny", "--dry-run", "--config", str(path)).check()


def runs(rng: random.Random, place: Path, aside: Path) -> None:
    """A file of a run, finished or not, is damaged: resuming gives the same weights, or names what is wrong."""
    with inside(copy(place, aside)):
        if rng.random() < 0.5:  # as after an interruption: the newest checkpoint and the model are not there yet
            shutil.rmtree("run/model")
            shutil.rmtree("run/checkpoints/step-000006")
            os.replace("run/checkpoints/latest", "run/checkpoints/old")
            os.symlink("step-000004", "run/checkpoints/latest")
            os.unlink("run/checkpoints/old")
        path = rng.choice(files(Path("run")))
        done = damage(path, rng)
        ended = call(*PRETRAIN).check()
        whole = all(digest(Path("run/model") / name) == digest(place / "run/model" / name) for name in MODEL)
        named = path.name in ended.err or path.parent.name in ended.err or "another recipe" in ended.err
        assert (ended.code == 0 and whole) or (ended.code in (2, 3) and named), (
            f"{done}: {ended.code} {ended.err[-400:]}"
        )
        if ended.code == 0 and path.name == "metrics.jsonl":
            lines = [json.loads(line) for line in path.read_text().splitlines()]
            expected = len((place / "run/metrics.jsonl").read_text().splitlines())
            assert len(lines) == expected or "not as the checkpoint left it" in ended.err, done


MODEL = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")


def models(rng: random.Random, place: Path, aside: Path) -> None:
    """A file of a model folder is damaged: the same output, or a line."""
    with inside(copy(place, aside)):
        path = rng.choice([path for path in files(Path("run/model")) if path.name != "README.md"])
        words = ("encode", "run/model", "alpha beta is 3", "--json")
        before = call(*words)
        done = damage(path, rng)
        after = call(*words).check()
        assert after.code != 0 or after.out == before.out or path.name == "SHA256SUMS", f"{done}: another output"


def labels(rng: random.Random, place: Path, aside: Path) -> None:
    """A labelled file is damaged, and evaluated and predicted."""
    with inside(copy(place, aside)):
        for _ in range(rng.randint(1, 3)):
            if Path("labels.csv").exists():
                damage(Path("labels.csv"), rng)
        call(rng.choice(["evaluate", "predict"]), "tuned", "labels.csv").check()


def corpora(rng: random.Random, place: Path, aside: Path) -> None:
    """Text or a file of a corpus is damaged: built, inspected and trained on, or refused."""
    with inside(copy(place, aside)):
        if rng.random() < 0.5:
            damage(Path("text.txt"), rng)
            call("corpus", "build", "text.txt", "--out", "again", "--vocab-size", "200").check()
        else:
            path = rng.choice(files(Path("corpus")))
            done = damage(path, rng)
            assert call("corpus", "inspect", "corpus").check().code == 3 or not damaged(place, path), f"{done}: unseen"


def damaged(place: Path, path: Path) -> bool:
    """Whether the file of a corpus is one that the manifest has hashes of, and differs from the prepared one."""
    return path.suffix in (".safetensors", ".npy", ".json") and digest(path) != digest(place / path)


def kills(rng: random.Random, place: Path, aside: Path) -> None:
    """A run is killed at any moment, twice, and resumed: the same weights."""
    with inside(copy(place, aside)):
        shutil.rmtree("run")
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        for _ in range(2):
            process = subprocess.Popen(
                [*interpreter(), *PRETRAIN], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment
            )
            time.sleep(rng.uniform(1, 8))
            process.send_signal(signal.SIGKILL)
            process.wait()
        ended = call(*PRETRAIN).check()
        assert ended.code == 0, ended.err
        assert digest(Path("run/model/model.safetensors")) == digest(place / "run/model/model.safetensors")


def pairs(rng: random.Random, place: Path, aside: Path) -> None:
    """Two processes write one output: one refuses, or both are right, and the output is that of one."""
    words = rng.choice(
        [
            ("predict", "tuned", "labels.csv", "--out", "out.jsonl"),
            ("encode", "run", "--file", "text.txt", "--out", "out.npy"),
            ("corpus", "build", "text.txt", "--out", "out", "--vocab-size", "200"),
            ("convert", "run", "out"),
        ]
    )
    with inside(copy(place, aside)):
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        both = []
        for _ in range(2):
            both.append(
                subprocess.Popen(
                    [*interpreter(), *words],
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    env=environment,
                    text=True,
                )
            )
            time.sleep(rng.uniform(0, 0.5))
        said = [process.communicate(timeout=120)[1] for process in both]
        codes = [process.returncode for process in both]
        assert set(codes) <= {0, 2, 3} and 0 in codes, f"{words}: {codes} {said}"
        assert "Traceback" not in "".join(said) and "is a bug" not in "".join(said), said
        out = Path(words[words.index("--out") + 1] if "--out" in words else words[-1])
        together = {str(path.relative_to(out)): digest(path) for path in files(out)} or {"": digest(out)}
        shutil.rmtree(out) if out.is_dir() else out.unlink()
        assert call(*words).code == 0
        alone = {str(path.relative_to(out)): digest(path) for path in files(out)} or {"": digest(out)}
        assert together == alone, f"{words}: two processes wrote something else than one"


KINDS: dict[str, Trial] = {
    "verbs": verbs,
    "settings": settings,
    "config files": config_files,
    "runs": runs,
    "models": models,
    "labels": labels,
    "corpora": corpora,
    "kills": kills,
    "pairs": pairs,
}
