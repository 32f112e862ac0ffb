"""What the trials need: a small corpus, a run and a fine-tuned model, damage done to files, and the command line called
under a limit of time.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import logging
import os
import random
import shutil
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from encoderlab.cli import main
from encoderlab.corpus import merge
from encoderlab.tasks.data import suites
from tests.tasks.runs.test_apply import saved

SECONDS = 60  # a call of a tiny model that computes longer hangs, and one that waits for ten times that
CODES = {0, 2, 3, 4, 5, 6, 75, 130, 141}
WORDS = "alpha beta gamma delta epsilon zeta eta theta iota kappa".split()
SMALL = ("--set", "phases=[{length: 32, rows: 4}]", "--set", "evaluation.rows=8", "--set", "checkpoints.steps=2")
TUNE = ("finetune", "labels.csv", "--model", "run", "--out", "tuned", "--seeds", "1", "--epochs", "1")
BUILD = ("corpus", "build", "text.txt", "--vocab-size", "200", "--validation", "0.05", "--out")
PREDICT = ("predict", "tuned", "labels.csv", "--out", "predicted.jsonl", "--with", "gold")
SHORT = ("--set", "phases=[{length: 32, rows: 4}]", "--set", "evaluation.rows=8", "--set", "budget.amount=4")
ADAPT = ("adapt", "run", "text.txt", *SHORT, "--set", "checkpoints.steps=2", "--out")
PART = ("corpus", "build", "text.txt", "--tokenizer", "corpus/tokenizer", "--out")
MERGE = ("corpus", "merge", "part-0", "part-1", "--out")
SUBMIT = ("evaluate", "submitter", "wnli", "--data", ".", "--split", "test", "--submission")
LOOK = ("inspect", "run", "text.txt", "--texts", "4", "--out")
STUDY = ("study", "study.yaml", "--out")
PRETRAIN = ("pretrain", "bert-tiny", "--corpus", "corpus", "--out", "run", "--steps", "6", *SMALL)


@dataclass(frozen=True)
class Called:
    """How a call of the command line ended."""

    words: tuple[str, ...]
    code: int
    out: str
    err: str

    def check(self) -> Called:
        """Refuse a bug, a traceback, an unknown code, or an error that is not one line."""
        said = f"encoderlab {' '.join(map(repr, self.words))}: exit {self.code}: {self.err[-600:]}"
        assert self.code in CODES and "Traceback" not in self.err and "is a bug" not in self.err, said
        if self.code not in (0, 141):
            assert self.err.splitlines() and self.err.splitlines()[-1].startswith("error: "), said
        return self


def call(*words: str) -> Called:
    """Run the command line in this process, in the working directory, and end it where it hangs."""
    out, err = io.StringIO(), io.StringIO()

    def hang(number: int, frame: object) -> None:
        raise AssertionError(f"encoderlab {' '.join(map(repr, words))}: hangs, more than {SECONDS} s")

    timed = threading.current_thread() is threading.main_thread()
    timers = {signal.SIGPROF: (signal.ITIMER_PROF, SECONDS), signal.SIGALRM: (signal.ITIMER_REAL, 10 * SECONDS)}
    before = {number: signal.signal(number, hang) for number in timers} if timed else {}
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number in before:
            signal.setitimer(*timers[number])
        try:
            code = main(list(words))
        finally:
            for number, handler in before.items():
                signal.setitimer(timers[number][0], 0)
                signal.signal(number, handler)
            logging.getLogger("encoderlab").handlers.clear()
    return Called(words, code, out.getvalue(), err.getvalue())


@contextlib.contextmanager
def inside(folder: Path) -> Iterator[None]:
    """Work in ``folder``."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def prepare(folder: Path) -> Path:
    """A folder with text, labels, and one small result of every verb: half a minute, once."""
    torch.set_num_threads(1)
    os.environ["CI"] = "1"
    folder.mkdir(parents=True, exist_ok=True)
    text = "".join(
        " ".join(f"{WORDS[n * k % 10]} {WORDS[(n + k) % 10]} number {n} is said to be {k}." for k in range(1, 9))
        + "\n\n"
        for n in range(200)
    )
    (folder / "text.txt").write_text(text)
    rows = [f"{WORDS[n % 10]} {WORDS[n % 7]} is {n},{'even' if n % 2 == 0 else 'odd'}" for n in range(60)]
    (folder / "labels.csv").write_text("\n".join(["text,label", *rows]) + "\n")
    (folder / "mine.yaml").write_text("optim: {lr: 1.0e-3}\nseed: 3\n")
    (folder / "pairs.txt").write_text("alpha beta is 3\nbeta is is 3\n\ngamma is 4\nis gamma 4\n")
    (folder / "study.yaml").write_text(
        "corpus: corpus\nbudget: {steps: 1}\narms: {one: {recipe: bert-tiny}}\n"
        "set: {phases: [{length: 32, rows: 4}], evaluation.rows: 8}\nseeds: 1\ntune: null\n"
    )
    with inside(folder):
        for words in (
            (*BUILD, "corpus"),
            PRETRAIN,
            TUNE,
            PREDICT,
            ("export", "run", "exported"),
            ("prune", "run", "pruned", "--heads", "0.5", "--on", "text.txt", "--examples", "8"),
            (*ADAPT, "adapted"),
            (*STUDY, "studied"),
            (*LOOK, "seen"),
            *((*PART, f"part-{i}", "--shard-index", f"{i}", "--num-shards", "2") for i in range(2)),
        ):
            done = call(*words)
            assert done.code == 0, done.err
        saved(suites.task("wnli"), Path("submitter"))
        Path("test.tsv").write_text(
            "index\tsentence1\tsentence2\n" + "".join(f"{n}\t{WORDS[n % 10]} is\tit is {n}\n" for n in range(146))
        )
        stopped = merge.write_manifest
        merge.write_manifest = _stop
        try:
            assert call(*BUILD, "half").code == 130
        finally:
            merge.write_manifest = stopped
    return folder


def _stop(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def copy(place: Path, aside: Path) -> Path:
    """A copy of the prepared folder for one trial."""
    shutil.rmtree(aside, ignore_errors=True)
    shutil.copytree(place, aside, symlinks=True)
    return aside


def files(folder: Path) -> list[Path]:
    """The files below ``folder``, links left out."""
    return sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def damage(path: Path, rng: random.Random) -> str:
    """Flip a bit, cut, delete, lengthen or empty the file, or take a line or a byte out; says what was done."""
    data = bytearray(path.read_bytes())
    kind = rng.choice(["flip", "cut", "delete", "append", "empty", "byte", "line"])
    place = rng.randrange(len(data)) if data else 0
    if kind == "delete":
        path.unlink()
    elif not data or kind == "append":
        path.write_bytes(bytes(data) + rng.choice([b"\n", b"x", b"{}", bytes(9)]))
    elif kind == "flip":
        data[place] ^= 1 << rng.randrange(8)
        path.write_bytes(data)
    elif kind == "cut":
        path.write_bytes(data[:place])
    elif kind == "empty":
        path.write_bytes(b"")
    elif kind == "byte":
        path.write_bytes(data[:place] + data[place + 1 :])
    else:
        lines = bytes(data).splitlines(keepends=True)
        del lines[rng.randrange(len(lines))]
        path.write_bytes(b"".join(lines))
    return f"{kind} {path.name} at {place}"


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "missing"


def interpreter() -> list[str]:
    """The command line in a process of its own."""
    return [sys.executable, "-m", "encoderlab"]
