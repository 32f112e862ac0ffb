"""The kinds of trials. Each takes a random generator, the prepared folder and a place of its own, and raises
AssertionError where a promise is broken: one clear line and an exit code, never a traceback or a hang; the same bits,
or a refusal that names the file.
"""

from __future__ import annotations

import hashlib
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
from tests.fuzz.world import (
    ADAPT,
    BUILD,
    LOOK,
    MERGE,
    PREDICT,
    PRETRAIN,
    SMALL,
    STUDY,
    SUBMIT,
    TUNE,
    call,
    copy,
    damage,
    digest,
    files,
    inside,
    interpreter,
)

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
LONG = (
    "quickstart",
    "bench train",
    "bench predict",
    "bench corpus",
    "bench scaling",
    "bench serve",
    "finetune",
    "perplexity",
)


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
            assert len(lines) == expected or "has changed since the checkpoint" in ended.err, done


MODEL = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")


READERS = {  # folders with a model, and what reads them
    "run/model": ("encode", "run/model", "alpha beta is 3", "--json"),
    "run": ("encode", "run", "alpha beta is 3", "--json"),
    "tuned/runs/seed-1/model": ("predict", "tuned", "alpha beta is 3", "--json"),
    "exported": ("encode", "exported", "alpha beta is 3", "--json"),
    "converted": ("encode", "converted", "alpha beta is 3", "--json"),
    "pruned": ("encode", "pruned", "alpha beta is 3", "--json"),
    "adapted/model": ("encode", "adapted", "alpha beta is 3", "--json"),
    "submitter": ("predict", "submitter", "alpha beta", "is 3", "--json"),
}


def models(rng: random.Random, place: Path, aside: Path) -> None:
    """A file of a model folder, trained, fine-tuned, converted or exported, is damaged: the same output, or a line."""
    with inside(copy(place, aside)):
        folder, words = rng.choice(list(READERS.items()))
        if folder == "converted":
            assert call("convert", "run", "converted").code == 0
        path = rng.choice([path for path in files(Path(folder)) if path.name != "README.md"])
        before = call(*words)
        assert before.code == 0, before.err
        done = damage(path, rng)
        after = call(*words).check()
        listed = path.name != "SHA256SUMS" and "sentence" not in path.name
        assert after.code != 0 or after.out == before.out or not listed, f"{done}: another output"


def results(rng: random.Random, place: Path, aside: Path) -> None:
    """A file of a finished fine-tuning is damaged: the same command makes it whole again or names it, and what else
    reads the folder ends in a line.
    """
    with inside(copy(place, aside)):
        path = rng.choice(files(Path("tuned")))
        done = damage(path, rng)
        whole = digest(path) == digest(place / path)
        if rng.random() < 0.5:
            reader = rng.choice(
                [
                    ("report", "tuned", "--out", "page.html"),
                    ("evaluate", "tuned", "labels.csv"),
                    ("convert", "tuned", "converted"),
                    ("doctor", "tuned/runs/seed-1"),
                    ("describe", "tuned"),
                    ("score", "tuned/runs/seed-1/predictions-dev.jsonl", "labels.csv"),
                ]
            )
            call(*reader).check()
            return
        ended = call(*TUNE).check()
        named = path.name in ended.err
        assert ended.code in (0, 2, 3) and (named or whole or ended.code == 0), f"{done}: {ended.code} {ended.err}"
        if ended.code == 0:
            for name in ("model.safetensors", "config.json", "task.json"):
                file = f"tuned/runs/seed-1/model/{name}"
                assert digest(Path(file)) == digest(place / file), f"{done}: {file} is another"


def adaptations(rng: random.Random, place: Path, aside: Path) -> None:
    """A file of an adaptation is damaged: the same model and scores, or the file is named."""
    with inside(copy(place, aside)):
        path = rng.choice([path for path in files(Path("adapted")) if path.parts[1] != "run" or rng.random() < 0.2])
        done = damage(path, rng)
        ended = call(*ADAPT, "adapted", "--json").check()
        if ended.code == 0:
            assert json.loads(ended.out)["gains"] == json.loads((place / "adapted/adapt.json").read_text())["gains"], (
                done
            )
            for name in MODEL:
                assert digest(Path("adapted/model") / name) == digest(place / "adapted/model" / name), f"{done}: {name}"
        else:
            assert path.name in ended.err or path.parent.name in ended.err, f"{done}: {ended.code} {ended.err}"


def studies(rng: random.Random, place: Path, aside: Path) -> None:
    """A file of a study is damaged: the same scores, or the file is named."""
    with inside(copy(place, aside)):
        top = rng.choice(["results", "specs", "results.json", "cells"])
        path = Path("studied") / top if "." in top else rng.choice(files(Path("studied") / top))
        done = damage(path, rng)
        ended = call(*STUDY, "studied", "--json").check()
        if ended.code == 0:
            scores = [
                {cell["name"]: cell["scores"] for cell in json.loads(text)["cells"]}
                for text in (ended.out, (place / "studied/results.json").read_text())
            ]
            assert scores[0] == scores[1], f"{done}: {scores}"
        else:
            assert path.name in ended.err or path.parent.name in ended.err, f"{done}: {ended.code} {ended.err}"


def inspections(rng: random.Random, place: Path, aside: Path) -> None:
    """A file of an inspection is damaged: the same command writes it again."""
    with inside(copy(place, aside)):
        done = damage(rng.choice(files(Path("seen"))), rng)
        assert call(*LOOK, "seen").check().code == 0, done
        assert _contents(Path("seen")) == _contents(place / "seen"), done


def predictions(rng: random.Random, place: Path, aside: Path) -> None:
    """A file of predictions, in any of the ways in which they are written, is damaged and scored: of every example, or
    a line. A prediction that was interrupted goes on over a damaged part: the same bytes.
    """
    with inside(copy(place, aside)):
        if rng.random() < 0.3:
            whole = Path("predicted.jsonl").read_bytes()
            Path("predicted.jsonl").unlink()
            lines = whole.splitlines(keepends=True)
            stop = rng.randrange(1, len(lines))
            part = _interrupted(lines[:stop])
            for _ in range(rng.randint(0, 2)):
                if part.exists():
                    damage(
                        rng.choice([path for path in (part, part.with_name(f"{part.name}.sums")) if path.exists()]), rng
                    )
            assert call(*PREDICT).check().code == 0
            assert Path("predicted.jsonl").read_bytes() == whole, "other predictions"
            return
        found = [json.loads(line) for line in Path("predicted.jsonl").read_text().splitlines()]
        path, text = rng.choice(
            [
                (Path("p.jsonl"), "".join(json.dumps(one) + "\n" for one in found)),
                (Path("p.json"), json.dumps({one["id"]: one["label"] for one in found})),
                (
                    Path("p.tsv"),
                    "\n".join(["id\tprediction", *(f"{one['id']}\t{one['label']}" for one in found)]) + "\n",
                ),
                (Path("p.txt"), "".join(one["label"] + "\n" for one in found)),
            ]
        )
        path.write_text(text)
        for _ in range(rng.randint(1, 3)):
            if path.exists():
                damage(path, rng)
        ended = call("score", str(path), "labels.csv", "--json").check()
        if ended.code == 0:
            assert json.loads(ended.out)["examples"] == 60, ended.out


def _interrupted(lines: list[bytes]) -> Path:
    """The part file, with its hashes beside it, as an interruption behind ``lines`` leaves it."""
    stopped = os.replace

    def stop(source: object, target: object) -> None:
        if str(target).endswith("predicted.jsonl"):
            raise KeyboardInterrupt
        stopped(source, target)  # type: ignore[arg-type]

    os.replace = stop  # type: ignore[assignment]
    try:
        assert call(*PREDICT).code == 130
    finally:
        os.replace = stopped
    part = next(path for path in Path().glob("*predicted.jsonl.part-*") if path.suffix != ".sums")
    data = b"".join(lines)
    part.write_bytes(data)
    part.with_name(f"{part.name}.sums").write_text(f"{len(data)} {hashlib.sha256(data).hexdigest()}\n")
    return part


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


def pieces(rng: random.Random, place: Path, aside: Path) -> None:
    """A file of a build that was interrupted is damaged: the same corpus in the end, or the file is named."""
    with inside(copy(place, aside)):
        path = rng.choice(files(Path("half")))
        done = damage(path, rng)
        ended = call(*BUILD, "half").check()
        if ended.code == 0:
            wanted = {name: digest(place / "corpus" / name) for name in _names(place / "corpus")}
            assert {name: digest(Path("half") / name) for name in _names(Path("half"))} == wanted, done
        else:
            assert path.name in ended.err or path.parent.name in ended.err, f"{done}: {ended.err}"


def _names(folder: Path) -> list[str]:
    return [str(path.relative_to(folder)) for path in files(folder) if path.name != ".lock"]


def damaged(place: Path, path: Path) -> bool:
    """Whether the file of a corpus is one that the manifest has hashes of, and differs from the prepared one."""
    if path.name == "manifest.json" and path.exists():
        try:  # it has a checksum of what it says; a space more or less says the same
            return json.loads(path.read_bytes()) != json.loads((place / path).read_bytes())
        except ValueError:
            return True
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


WRITING = [
    ("predict", "tuned", "labels.csv", "--out", "out.jsonl"),
    ("encode", "run", "--file", "text.txt", "--out", "out.npy"),
    ("corpus", "build", "text.txt", "--out", "out", "--vocab-size", "200"),
    ("convert", "run", "out"),
    ("export", "run", "out"),
    ("prune", "run", "out", "--heads", "0.5", "--on", "text.txt"),
    ("report", "run", "--out", "out.html"),
    ("inspect", "run", "alpha beta", "--out", "out"),
    ("study", "study.yaml", "--out", "out"),
    ("minimal-pairs", "run", "pairs.txt", "--out", "out.jsonl"),
    ("finetune", "labels.csv", "--model", "run", "--out", "out", "--seeds", "1", "--epochs", "1"),
    ("pretrain", "bert-tiny", "--corpus", "corpus", "--out", "out", "--steps", "2", *SMALL),
    (*MERGE, "out"),
    (*SUBMIT, "out"),
    (*ADAPT, "out"),
    ("quickstart", "--budget", "30s", "--out", "out"),
]
TIMED = (
    "run.log",
    "metrics.jsonl",
    "provenance.json",
    "score.json",
    "report.html",
    "recipe.json",
    ".lock",
    "README.md",
    "state.json",  # of a checkpoint; the manifest beside it has its hash
)


def pairs(rng: random.Random, place: Path, aside: Path) -> None:
    """Two processes write one output: one refuses, or both are right, and the output is that of one."""
    words = rng.choice(WRITING)
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
        if words[0] == "quickstart":  # it takes minutes, and ends with what the time allowed
            return _one_of_two(both)
        said = [process.communicate(timeout=600)[1] for process in both]
        codes = [process.returncode for process in both]
        assert set(codes) <= {0, 2, 3} and 0 in codes, f"{words}: {codes} {said}"
        assert "Traceback" not in "".join(said) and "is a bug" not in "".join(said), said
        flags = {"--out", "--submission"} & set(words)
        out = Path(words[words.index(flags.pop()) + 1] if flags else words[2])
        timed = words[0] in ("adapt", "study")  # their stages and runs tell times
        together = _contents(out, models_only=timed)
        shutil.rmtree(out) if out.is_dir() else out.unlink()
        assert call(*words).code == 0
        assert together == _contents(out, models_only=timed), f"{words}: two processes wrote something else than one"


def _one_of_two(both: list[subprocess.Popen[str]]) -> None:
    """One of two processes is refused at once; the other goes on until it is stopped."""
    end = time.monotonic() + 120
    while all(process.poll() is None for process in both):
        assert time.monotonic() < end, "two processes write one output"
        time.sleep(0.1)
    refused, other = sorted(both, key=lambda process: process.poll() is None)
    other.send_signal(signal.SIGINT)
    said = [process.communicate(timeout=600)[1] for process in (refused, other)]
    assert refused.returncode == 2 and "another process" in said[0], said
    assert other.returncode in (75, 130) and "Traceback" not in said[1], said


def _contents(out: Path, *, models_only: bool = False) -> dict[str, str]:
    """The hashes of what was written, or of its models, but for files that tell times."""
    written = [path for path in files(out) if path.name in MODEL or not models_only]
    timed = {*TIMED, *(str(path.with_name("manifest.json")) for path in written if path.name == "state.json")}
    same = [path for path in written if path.name not in timed and str(path) not in timed]
    found = {str(path.relative_to(out)): digest(path) for path in same}
    return found if out.is_dir() else {"": digest(out) if out.suffix != ".html" else "a page tells times"}


KINDS: dict[str, Trial] = {
    "verbs": verbs,
    "settings": settings,
    "config files": config_files,
    "runs": runs,
    "models": models,
    "results": results,
    "adaptations": adaptations,
    "studies": studies,
    "inspections": inspections,
    "predictions": predictions,
    "pieces": pieces,
    "labels": labels,
    "corpora": corpora,
    "kills": kills,
    "pairs": pairs,
}
