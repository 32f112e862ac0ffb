"""Protect the outputs of verbs: no second writer, no writing over inputs or over files of another kind."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Literal

from encoderlab.commands import terminal
from encoderlab.errors import ConfigError
from encoderlab.files import held_file
from encoderlab.records.opening import COLUMNAR, COMPRESSED
from encoderlab.storage.places import exists
from encoderlab.storage.streams import open_file

Kind = Literal["page", "vectors", "predictions", "pairs", "leaderboard"]
_STARTS: dict[Kind, tuple[bytes, ...]] = {  # the first bytes of a verb's output
    "page": (b"<!doctype html",),
    "vectors": (b"\x93NUMPY",),
    "predictions": (b'{"id":',),
    "pairs": (b'{"uid":',),
    "leaderboard": (b"",),  # of many kinds
}
_FORMATS: dict[Kind, tuple[str, tuple[str, ...]]] = {  # of a verb's output, and the endings of its files
    "page": ("a page of HTML", (".html", ".htm")),
    "vectors": ("an array of NumPy", (".npy",)),
    "predictions": ("JSON lines", (".jsonl", ".ndjson", ".json", ".txt")),
    "pairs": ("JSON lines", (".jsonl", ".ndjson", ".json", ".txt")),
}
FILES = (*(ending for _, endings in _FORMATS.values() for ending in endings), ".csv", ".tsv")  # at URLs
_OTHERS = (".csv", ".tsv", ".xlsx", ".npz", ".pt", ".safetensors", *COLUMNAR, *COMPRESSED)
# Files of our folders that are empty, or start as a verb's output does.
_PARTS = ("predictions-*.jsonl", "counts.npy", "report.html", "submission*/*", "run.log", ".lock")
_FOLDERS = ("recipe.json", "score.json", "manifest.json")  # marks of a run, a fine-tuning, a corpus


@contextlib.contextmanager
def output(
    out: Path | None, kind: Kind, *inputs: Path, own: Path | None = None, option: str = "--out"
) -> Iterator[None]:
    """Lock the file ``out`` while a verb writes it; None is no file.

    Args:
        out: the file to write.
        kind: of file. An existing file that starts like another kind is not replaced.
        inputs: files that the verb reads.
        own: the verb's default file in a run folder, which it may write.
        option: the flag that names the output, for messages.

    Raises:
        ConfigError: it is a folder, a link, an input, a file of another kind, a part of a run or corpus, or being
            written; or its name has the ending of another format.
    """
    if out is None:
        yield
        return
    check_output(out, kind, *inputs, own=own, option=option)
    with held_file(out):
        yield


def check_output(out: Path, kind: Kind, *inputs: Path, own: Path | None = None, option: str = "--out") -> None:
    """Refuse a file that :func:`output` may not write."""
    if out.is_dir():
        raise ConfigError(f"{option} {out}: is a folder; name a file to write in it")
    if any(os.path.exists(path) and os.path.exists(out) and out.samefile(path) for path in inputs):
        raise ConfigError(f"{out}: is the input; give another {option}")
    if out.is_symlink():  # a file is written aside and renamed, which would replace the link
        raise ConfigError(f"{option} {out}: is a link to {os.readlink(out)}; name the file itself")
    _check_name(out, kind, option)
    url = terminal.url_of_copy(out)
    if url is None and not out.exists() or url is not None and not exists(url):
        return
    if url is None and not out.is_file():
        raise ConfigError(f"{option} {out}: is not a regular file; name one")
    if out != own and (folder := _part_of(out)) is not None:
        raise ConfigError(f"{out}: is a part of {folder}; give another {option}")
    with open_file(url or out, stop=16) as file:
        start = file.read(16)
    if start and not start.lower().startswith(tuple(first.lower() for first in _STARTS[kind])):
        raise ConfigError(f"{out}: exists and is not a file of {kind}; give another {option}, or delete it first")


def _check_name(out: Path, kind: Kind, option: str) -> None:
    """Refuse a name with the ending of another format than the file will have."""
    if kind not in _FORMATS:
        return
    form, endings = _FORMATS[kind]
    if terminal.url_of_copy(out) is not None and out.suffix.lower() not in FILES:
        raise ConfigError(f"{option} {out}: a file at a URL needs an ending; give a name that ends in {endings[0]}")
    known = {*_OTHERS, *(ending for _, own in _FORMATS.values() for ending in own)}
    if out.suffix.lower() in known.difference(endings):
        raise ConfigError(f"{option} {out}: the output is {form}; give a name that ends in {endings[0]}")


def _part_of(path: Path) -> Path | None:
    """The run or corpus that a file is a part of, if files of this kind can be parts."""
    for folder in list(path.absolute().parents)[:2]:
        inside = path.absolute().relative_to(folder).as_posix()
        if any(fnmatch(inside, part) for part in _PARTS) and any((folder / mark).exists() for mark in _FOLDERS):
            return folder
    return None
