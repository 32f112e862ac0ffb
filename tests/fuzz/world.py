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

SECONDS = 60  # a call of a tiny model that takes longer hangs
CODES = {0, 2, 3, 4, 5, 6, 75, 130, 141}
WORDS = "alpha beta gamma delta epsilon zeta eta theta iota kappa".split()
SMALL = ("--set", "phases=[{length: 32, rows: 4}]", "--set", "evaluation.rows=8", "--set", "checkpoints.steps=2")
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
    before = signal.signal(signal.SIGALRM, hang) if timed else None
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if timed:
            signal.alarm(SECONDS)
        try:
            code = main(list(words))
        finally:
            if timed:
                signal.alarm(0)
                signal.signal(signal.SIGALRM, before)
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
    """A folder with text, labels, a corpus, a finished run and a fine-tuned model: ten seconds, once."""
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
    with inside(folder):
        for words in (
            ("corpus", "build", "text.txt", "--out", "corpus", "--vocab-size", "200", "--validation", "0.05"),
            PRETRAIN,
            ("finetune", "labels.csv", "--model", "run", "--out", "tuned", "--seeds", "1", "--epochs", "1"),
        ):
            done = call(*words)
            assert done.code == 0, done.err
    return folder


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
