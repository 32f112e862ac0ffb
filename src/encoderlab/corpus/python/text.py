"""Text in every Python installation: a corpus that needs no download.

Passages are read in place: the language reference in ``pydoc_data.topics``, the docstrings and long comment blocks of
the standard library (``python:stdlib``), and with ``python:all`` those of the installed torch, numpy, sympy and
networkx as well. Code examples, tables, underlines and copies are left out. The same installation gives the same
passages in the same order; they are stored in the user's cache folder under a hash of their source files.

Each passage belongs to a module, each module to an area of the library and to a split: within an area, about a tenth of
the passages goes to validation and a tenth to test, always whole modules. The corpus has only the modules of the
training split, so a model pretrained on it has not seen the test text of :mod:`encoderlab.corpus.python.tasks`.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.metadata
import importlib.util
import json
import logging
import os
import shutil
import sys
import sysconfig
import tempfile
import tokenize
import warnings
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

from encoderlab.corpus.python.areas import PACKAGES, area_of
from encoderlab.corpus.python.prose import comments, docstrings, prose
from encoderlab.corpus.sealed import check_folder, seal_folder
from encoderlab.corpus.sources import Source
from encoderlab.errors import ConfigError, nearest
from encoderlab.execution.workers import cores, run_all
from encoderlab.files import cache_folder, made_cache_folder
from encoderlab.sealed import Damaged
from encoderlab.seeds import derive

log = logging.getLogger(__name__)

PREFIX = "python:"
Size = Literal["stdlib", "all"]
SIZES: tuple[Size, ...] = ("stdlib", "all")
VERSION = 3  # of the rules here, in areas and in prose; part of the name of the cache
TEST, VALIDATION = 0.1, 0.1  # shares of the passages of an area
MIN_CHARS, MIN_COMMENT = 40, 150  # characters of a passage, and of a comment


@dataclass(frozen=True)
class Passage:
    """The description of one object, or a comment.

    ``kind`` is topic, module, class, function or comment; ``name`` is the described object, empty for a comment;
    ``paragraphs`` keep the markup of the source.
    """

    kind: str
    module: str
    name: str
    paragraphs: tuple[str, ...]
    area: str = ""
    split: str = ""


def python_source(pattern: str) -> Source:
    """The source ``python:stdlib`` or ``python:all``, read into the cache if it is not there.

    Cost: 5 seconds on two cores for the standard library, 20 for all; nothing the second time.
    """
    size = pattern.removeprefix(PREFIX)
    if size not in SIZES:
        raise ConfigError(f"unknown source {pattern!r}{nearest(size, SIZES)}")
    path = cached(size) / "corpus.jsonl"  # type: ignore[arg-type]
    return Source(path=path, format="jsonl", name=pattern, field="text")


def passages(size: Size) -> list[Passage]:
    """All passages of this installation, of every split, in the order of modules and lines."""
    with open(cached(size) / "passages.jsonl", encoding="utf-8") as file:
        records = map(json.loads, file)
        return [Passage(**{**record, "paragraphs": tuple(record["paragraphs"])}) for record in records]


def cached(size: Size) -> Path:
    """The folder with ``passages.jsonl`` (all of them) and ``corpus.jsonl`` (text of the training split only)."""
    files = python_files(size)
    digest = hashlib.sha256(repr((VERSION, TEST, VALIDATION, sys.version, size)).encode())
    for file in files:
        digest.update(f"{file.module} {file.path.stat().st_size}\n".encode())
    for package in PACKAGES:
        digest.update(_version(package).encode())
    folder = cache_folder() / f"python-{size}-{digest.hexdigest()[:16]}"
    if folder.exists():
        try:
            check_folder(folder, folder.name)
        except Damaged as error:
            log.warning("%s; the text of this Python is read again", error)
            shutil.rmtree(folder, ignore_errors=True)
    if not folder.exists():
        _fill(folder, files)
    return folder


def _fill(folder: Path, files: Sequence[PythonFile]) -> None:
    """Write the two files of :func:`cached` into ``folder``, which appears complete or not at all."""
    items = assign(collect(files))
    temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=made_cache_folder()))
    try:
        with open(temporary / "passages.jsonl", "w", encoding="utf-8", errors="replace") as file:
            for passage in items:
                file.write(json.dumps(asdict(passage), ensure_ascii=False) + "\n")
        with open(temporary / "corpus.jsonl", "w", encoding="utf-8", errors="replace") as file:
            for passage in items:
                if passage.split == "train":
                    heading = [f"{passage.module}.{passage.name}" if passage.name else passage.module]
                    text = "\n".join([*(heading if passage.kind != "comment" else []), *passage.paragraphs])
                    file.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
        seal_folder(temporary, folder.name)
        os.replace(temporary, folder)
    except OSError:
        if not folder.exists():  # else another process was quicker
            raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "none"


# Files.


@dataclass(frozen=True)
class PythonFile:
    path: Path
    module: str


def python_files(size: Size) -> list[PythonFile]:
    """The Python files of the standard library, and of the packages for ``"all"``, without tests, by module."""
    library = Path(sysconfig.get_path("stdlib"))
    roots = [(library, "")]
    if size == "all":
        for package in PACKAGES:
            spec = importlib.util.find_spec(package)  # does not import it
            roots += [(Path(place), package) for place in (spec.submodule_search_locations or [])] if spec else []
    files = [file for root, package in roots for file in _files_below(root, package)]
    return sorted(files, key=lambda file: (file.module, file.path))


_NO_MODULES = {"test", "tests", "idle_test", "__pycache__", "site-packages", "dist-packages", "lib-dynload"}


def _files_below(root: Path, package: str) -> Iterator[PythonFile]:
    """The modules in the folder ``root`` of a package; of the standard library, the empty name."""
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if name not in _NO_MODULES and name.isidentifier())
        place = ".".join(Path(folder).relative_to(root).parts)
        for name in names:
            if name.endswith(".py") and name[:-3].isidentifier():
                parts = (package, place, "" if name == "__init__.py" else name[:-3])
                if module := ".".join(filter(None, parts)):
                    yield PythonFile(Path(folder) / name, module)


# Passages.


def collect(files: Sequence[PythonFile]) -> list[Passage]:
    """Passages of ``files`` and of the language reference. A longer paragraph stays only where it occurs first, so that
    no module repeats the text of another; a description that begins with a copy is dropped as a whole.
    """
    batches = [files[first : first + 64] for first in range(0, len(files), 64)]
    items = _topics()
    for batch in run_all(_read_files, batches, workers=min(cores(), 8)):
        items += batch
    seen: set[str] = set()
    unique = []
    for passage in items:
        if passage.kind in ("class", "function") and passage.paragraphs[0] in seen:
            continue
        fresh = replace(passage, paragraphs=tuple(item for item in passage.paragraphs if item not in seen))
        seen.update(item for item in fresh.paragraphs if len(item) >= MIN_CHARS)
        if _is_long_enough(fresh):
            unique.append(fresh)
    return unique


def _topics() -> list[Passage]:
    try:
        from pydoc_data.topics import topics
    except ImportError:  # some distributions leave it out
        return []
    items = [Passage("topic", f"topics.{name}", "", tuple(prose(topics[name]))) for name in sorted(topics)]
    return list(filter(_is_long_enough, items))


def _read_files(files: Sequence[PythonFile]) -> list[Passage]:
    return [passage for file in files for passage in read_file(file)]


def read_file(file: PythonFile) -> list[Passage]:
    """Passages of one Python file; none if it cannot be parsed."""
    try:
        with tokenize.open(file.path) as stream:
            source = stream.read()
        with warnings.catch_warnings(action="ignore"):
            tree = ast.parse(source)
    except (SyntaxError, ValueError, OSError, RecursionError, MemoryError):
        return []
    items = []
    for note in sorted([*docstrings(tree), *comments(source, tree)], key=lambda note: note.line):
        passage = Passage(note.kind, file.module, note.name, tuple(prose(note.text)))
        if _is_long_enough(passage):
            items.append(passage)
    return items


def _is_long_enough(passage: Passage) -> bool:
    least = MIN_COMMENT if passage.kind == "comment" else MIN_CHARS
    return sum(map(len, passage.paragraphs)) >= least


# Areas and splits.


def assign(items: Sequence[Passage]) -> list[Passage]:
    """``items`` with areas and splits.

    Within each area modules are taken in the order of a hash of their names: to the test split until it has its share
    of the passages, to validation likewise, the others to training; a module too large for a share stays in training.
    """
    sizes: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for passage in items:
        sizes[area_of(passage.module)][passage.module] += 1
    split: dict[str, str] = {}
    for modules in sizes.values():
        total = sum(modules.values())
        taken = {"test": 0.0, "validation": 0.0}
        for module in sorted(modules, key=functools.partial(derive, "python split")):
            for name, share in (("test", TEST), ("validation", VALIDATION)):
                if taken[name] < share * total and taken[name] + modules[module] <= 1.5 * share * total:
                    split[module] = name
                    taken[name] += modules[module]
                    break
            else:
                split[module] = "train"
    return [replace(passage, area=area_of(passage.module), split=split[passage.module]) for passage in items]
