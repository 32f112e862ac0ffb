"""Text that every Python installation carries: a corpus that needs no download.

Passages are read in place: the language reference in ``pydoc_data.topics``, the docstrings and long comment blocks of
the standard library (``python:stdlib``), and with ``python:all`` those of the installed torch, numpy, sympy and
networkx as well. Code examples, tables, underlines and copies are left out. The same installation gives the same
passages in the same order; they are kept in the user's cache folder under a name that hashes the files they come from.

Each passage belongs to a module, each module to an area of the library and to a split: within an area, about a tenth of
the passages goes to validation and a tenth to test, whole modules each. The corpus holds the modules of the training
split only, so a model pretrained on it has not seen what the tasks of :mod:`encoderlab.corpus.python_tasks` test.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import sys
import sysconfig
import tempfile
import textwrap
import tokenize
import warnings
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

from encoderlab.corpus.sources import Source
from encoderlab.corpus.workers import cores, run_all
from encoderlab.errors import ConfigError, DataError, nearest
from encoderlab.files import cache_folder
from encoderlab.seeds import derive

PREFIX = "python:"
Size = Literal["stdlib", "all"]
SIZES: tuple[Size, ...] = ("stdlib", "all")
PACKAGES = ("torch", "numpy", "sympy", "networkx")
VERSION = 2  # of this module's rules; part of the name of the cache
TEST, VALIDATION = 0.1, 0.1  # shares of the passages of an area
MIN_CHARS = 40
MIN_COMMENT = 150

# Areas of the standard library, after the chapters of its reference, by the first part of the module's name.
AREAS = {
    "language": "topics ast dis opcode symtable token tokenize keyword inspect importlib imp pkgutil runpy code codeop "
    "zipimport modulefinder lib2to3 compileall py_compile pyclbr tabnanny __future__ types typing dataclasses abc "
    "contextlib functools operator site warnings _sitebuiltins copyreg pickletools atexit gc builtins",
    "text": "string re difflib textwrap unicodedata stringprep codecs encodings gettext locale pprint reprlib "
    "sre_parse sre_compile sre_constants shlex",
    "data": "collections heapq bisect array weakref copy enum graphlib calendar datetime _pydatetime _strptime "
    "zoneinfo queue _collections_abc _weakrefset uuid sched time",
    "numbers": "decimal _pydecimal fractions numbers statistics random math cmath secrets _pylong colorsys ipaddress",
    "files": "pathlib os posixpath ntpath genericpath nturl2path fileinput stat filecmp tempfile glob fnmatch "
    "linecache shutil io _pyio pickle shelve dbm sqlite3 csv configparser tomllib netrc plistlib zlib gzip bz2 lzma "
    "zipfile tarfile _compression xdrlib mimetypes aifc chunk sunau wave sndhdr imghdr",
    "system": "subprocess platform ctypes getpass pty tty pipes crypt signal sysconfig _osx_support _aix_support errno "
    "posix resource syslog logging getopt argparse optparse hashlib hmac curses",
    "concurrency": "threading multiprocessing concurrent asyncio selectors asyncore asynchat _threading_local "
    "contextvars _pyrepl",
    "network": "socket ssl http urllib ftplib poplib imaplib smtplib smtpd telnetlib nntplib socketserver xmlrpc "
    "wsgiref cgi cgitb webbrowser mailcap",
    "markup": "email json mailbox base64 quopri uu html xml _markupbase binhex",
    "interface": "tkinter turtle turtledemo idlelib cmd readline rlcompleter",
    "development": "unittest doctest pdb bdb pydoc trace traceback tracemalloc timeit cProfile profile pstats test "
    "distutils ensurepip venv zipapp faulthandler",
}
_AREA_OF = {name: area for area, names in AREAS.items() for name in names.split()}
# The same for the packages: the longest prefix of the module's name decides.
PACKAGE_AREAS = {
    "torch": "deep learning",
    "torch.distributed": "distributed training",
    "torch._inductor": "compilers",
    "torch._dynamo": "compilers",
    "torch._functorch": "compilers",
    "torch._export": "compilers",
    "torch.export": "compilers",
    "torch.fx": "compilers",
    "torch.jit": "compilers",
    "torch._higher_order_ops": "compilers",
    "torch.onnx": "compilers",
    "torch.ao": "quantization",
    "torch.quantization": "quantization",
    "torch.distributions": "statistics",
    "numpy": "arrays",
    "numpy.random": "statistics",
    "sympy": "symbolic mathematics",
    "sympy.polys": "algebra",
    "sympy.combinatorics": "algebra",
    "sympy.matrices": "algebra",
    "sympy.ntheory": "algebra",
    "sympy.physics": "physics",
    "sympy.geometry": "geometry",
    "sympy.vector": "geometry",
    "sympy.diffgeom": "geometry",
    "sympy.stats": "statistics",
    "networkx": "graphs",
}


@dataclass(frozen=True)
class Passage:
    """The description of one thing, or a comment.

    ``kind`` is topic, module, class, function or comment; ``name`` is what is described, empty for a comment;
    ``paragraphs`` keep the markup of the source.
    """

    kind: str
    module: str
    name: str
    paragraphs: tuple[str, ...]
    area: str = ""
    split: str = ""


def python_source(pattern: str) -> Source:
    """The source that ``python:stdlib`` or ``python:all`` names, read into the cache if it is not there.

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
    if not folder.exists():
        _fill(folder, files)
    return folder


def _fill(folder: Path, files: Sequence[PythonFile]) -> None:
    """Write the two files of :func:`cached` into ``folder``, which appears complete or not at all."""
    found = assign(collect(files))
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    except OSError as error:
        raise DataError(
            f"{folder.parent}: cannot keep the text of this Python there ({error.strerror}); set ENCODERLAB_HOME to a "
            "folder that can be written"
        ) from None
    try:
        with open(temporary / "passages.jsonl", "w", encoding="utf-8", errors="replace") as file:
            for passage in found:
                file.write(json.dumps(asdict(passage), ensure_ascii=False) + "\n")
        with open(temporary / "corpus.jsonl", "w", encoding="utf-8", errors="replace") as file:
            for passage in found:
                if passage.split == "train":
                    heading = [f"{passage.module}.{passage.name}" if passage.name else passage.module]
                    text = "\n".join([*(heading if passage.kind != "comment" else []), *passage.paragraphs])
                    file.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
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
    found = []
    for root, package in roots:
        for folder, folders, names in os.walk(root):
            skipped = {"test", "tests", "idle_test", "__pycache__", "site-packages", "dist-packages", "lib-dynload"}
            folders[:] = sorted(name for name in folders if name not in skipped and name.isidentifier())
            place = ".".join(Path(folder).relative_to(root).parts)
            for name in names:
                if name.endswith(".py") and name[:-3].isidentifier():
                    parts = [package, place, "" if name == "__init__.py" else name[:-3]]
                    module = ".".join(part for part in parts if part)
                    if module:
                        found.append(PythonFile(Path(folder) / name, module))
    return sorted(found, key=lambda file: (file.module, file.path))


# Passages.


def collect(files: Sequence[PythonFile]) -> list[Passage]:
    """Passages of ``files`` and of the language reference. A longer paragraph stays where it occurs first, so that no
    module repeats the text of another one; a description that begins with a copy goes as a whole."""
    batches = [files[first : first + 64] for first in range(0, len(files), 64)]
    found = _topics()
    for batch in run_all(_read_files, batches, workers=min(cores(), 8)):
        found += batch
    seen: set[str] = set()
    unique = []
    for passage in found:
        if passage.kind in ("class", "function") and passage.paragraphs[0] in seen:
            continue
        fresh = [paragraph for paragraph in passage.paragraphs if paragraph not in seen]
        seen.update(paragraph for paragraph in fresh if len(paragraph) >= MIN_CHARS)
        least = MIN_COMMENT if passage.kind == "comment" else MIN_CHARS
        if sum(map(len, fresh)) >= least:
            unique.append(replace(passage, paragraphs=tuple(fresh)))
    return unique


def _topics() -> list[Passage]:
    try:
        from pydoc_data.topics import topics
    except ImportError:  # some distributions leave it out
        return []
    found = []
    for name in sorted(topics):
        paragraphs = prose(topics[name])
        if sum(map(len, paragraphs)) >= MIN_CHARS:
            found.append(Passage("topic", f"topics.{name}", "", tuple(paragraphs)))
    return found


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
    found = []
    for line, kind, name, text in [*_docstrings(tree), *_comments(source, tree)]:
        paragraphs = prose(text)
        least = MIN_COMMENT if kind == "comment" else MIN_CHARS
        if sum(map(len, paragraphs)) >= least:
            found.append((line, Passage(kind, file.module, name, tuple(paragraphs))))
    return [passage for _, passage in sorted(found, key=lambda item: item[0])]


def _docstrings(tree: ast.Module) -> Iterator[tuple[int, str, str, str]]:
    """Line, kind, qualified name and text of every docstring, also of what ``add_docstr`` and ``add_newdoc`` get."""
    if text := ast.get_docstring(tree):
        yield 0, "module", "", text
    for node, name in _statements(tree):
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            if text := ast.get_docstring(node):
                yield node.lineno, "class" if isinstance(node, ast.ClassDef) else "function", name, text
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            yield from _added_docstring(node.value)


def _statements(node: ast.AST, prefix: str = "") -> Iterator[tuple[ast.AST, str]]:
    """Every statement below ``node`` with its qualified name, which is meant for classes and functions."""
    for field in ("body", "orelse", "finalbody", "handlers", "cases"):
        for child in getattr(node, field, ()):
            name = f"{prefix}{getattr(child, 'name', None) or ''}"
            yield child, name
            defines = isinstance(child, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
            yield from _statements(child, f"{name}." if defines else prefix)


def _added_docstring(call: ast.Call) -> Iterator[tuple[int, str, str, str]]:
    function = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if not function.startswith(("add_docstr", "add_newdoc", "_add_docstr")) or len(call.args) < 2:
        return
    target = call.args[-2]
    name = target.value if isinstance(target, ast.Constant) else ast.unparse(target).split(".")[-1]
    texts = [node.value for node in ast.walk(call.args[-1]) if isinstance(node, ast.Constant)]
    text = max((text for text in texts if isinstance(text, str)), key=len, default="")
    if isinstance(name, str) and "\n" in text:
        yield call.lineno, "function", name, textwrap.dedent(text)


_COMMENT = re.compile(r"[ \t]*#+[ \t]?(.*)")
_CODE_LINE = re.compile(r"[=({\[:,]$|^\s*(?:return|import|from|def|class|if|for|raise)\b|\w\(|==")


def _comments(source: str, tree: ast.Module) -> Iterator[tuple[int, str, str, str]]:
    """Blocks of comment lines. (By line, and not by ``tokenize``, which takes ten times as long.)"""
    inside: set[int] = set()  # lines of strings
    for statement, _ in _statements(tree):
        if hasattr(statement, "body") or getattr(statement, "end_lineno", 0) == getattr(statement, "lineno", 0):
            continue
        for node in ast.walk(statement):
            if isinstance(node, (ast.Constant, ast.JoinedStr)) and node.end_lineno != node.lineno:
                inside.update(range(node.lineno, (node.end_lineno or 0) + 1))
    block: list[str] = []
    for number, line in enumerate([*source.split("\n"), ""], 1):
        match = _COMMENT.fullmatch(line) if number not in inside else None
        if match:
            block.append(match[1])
        elif block:
            if len(block) >= 3 and not _is_code_or_licence(block):
                yield number - len(block), "comment", "", "\n".join(block)
            block = []


def _is_code_or_licence(block: Sequence[str]) -> bool:
    text = "\n".join(block)
    if re.search(r"copyright|licen[sc]e|all rights reserved|-\*-", text, re.IGNORECASE):
        return True
    try:
        with warnings.catch_warnings(action="ignore"):
            ast.parse(textwrap.dedent(text))
        return True
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        pass
    return 2 * sum(_CODE_LINE.search(line) is not None for line in block) > len(block)


_SECTION = re.compile(r"\s*[-=~^*+#\"']{3,}\s*")
_TABLE = re.compile(r"\s*[+|=].*[+|=]\s*")
_CODE_DIRECTIVE = re.compile(r"\s*\.\. *(?:code|sourcecode|plot|math|image|figure|testcode|testsetup|jupyter)")
_DIRECTIVE = re.compile(r"\s*\.\. +(?:[\w-]+::|\[\w+\]|_[^:]+:)\s*")


def prose(text: str) -> list[str]:
    """The paragraphs of running text in a docstring, a comment or a topic, each on one line, with their markup.

    Left out are doctests, literal blocks, tables, headings, and paragraphs that are mostly symbols.
    """
    lines = textwrap.dedent(text.expandtabs()).split("\n")
    if lines and lines[0][:1] != " " and len(lines) > 1:  # the first line of a docstring is not indented
        lines = [lines[0], *textwrap.dedent("\n".join(lines[1:])).split("\n")]
    paragraphs: list[str] = []
    block: list[str] = []
    literal = -1  # indentation of the text before a literal block; its lines are indented more
    for line in [*lines, ""]:
        indent = len(line) - len(line.lstrip())
        if line.strip() and literal >= 0:
            if indent > literal:
                continue
            literal = -1
        if line.strip():
            if _CODE_DIRECTIVE.match(line):
                literal = indent
                line = ""
            elif _DIRECTIVE.match(line):
                line = " " * indent + _DIRECTIVE.sub("", line)
        if line.strip():
            block.append(line)
            continue
        if block:
            paragraphs += _block_paragraphs(block)
            if block[-1].rstrip().endswith("::"):
                literal = len(block[-1]) - len(block[-1].lstrip())
            block = []
    return [paragraph for paragraph in paragraphs if _is_prose(paragraph)]


def _block_paragraphs(block: list[str]) -> list[str]:
    """The paragraphs of lines without a blank one between them: items and definitions are paragraphs of their own."""
    if block[0].lstrip().startswith((">>>", "$ ", "... ")):
        return []
    paragraphs: list[list[str]] = []
    deepest = 0
    for place, line in enumerate(block):
        text = line.strip()
        if text.startswith(">>>"):
            break
        if _SECTION.fullmatch(line):
            if paragraphs and place and len(paragraphs[-1]) == 1 and paragraphs[-1][0] == block[place - 1].strip():
                paragraphs.pop()  # a heading
            continue
        if _TABLE.fullmatch(line) and len(text) > 1:
            continue
        indent = len(line) - len(line.lstrip())
        item = re.match(r"(?:[-*+•]|\d+[.)]|:\w+[^:]*:)\s", text)
        if not paragraphs or item or indent < deepest:
            paragraphs.append([])
        deepest = indent
        paragraphs[-1].append(re.sub(r"^[-*+•]\s+", "", text))
    return [" ".join(" ".join(lines).split()) for lines in paragraphs if lines]


def _is_prose(text: str) -> bool:
    words = re.findall(r"[A-Za-z]{2,}", text)
    letters = sum(map(len, words))
    return len(words) >= 4 and letters >= 0.6 * len(text.replace(" ", ""))


# Areas and splits.


def area_of(module: str) -> str:
    """The area of the library that a module belongs to; the empty string if none is known."""
    parts = module.split(".")
    if parts[0] in PACKAGES:
        prefixes = [".".join(parts[:number]) for number in range(len(parts), 0, -1)]
        return next(PACKAGE_AREAS[prefix] for prefix in prefixes if prefix in PACKAGE_AREAS)
    return _AREA_OF.get(parts[0], "")


def assign(found: Sequence[Passage]) -> list[Passage]:
    """``found`` with areas and splits.

    Within each area modules are taken in the order of a hash of their names: to the test split until it has its share
    of the passages, to validation likewise, the others to training; a module too large for a share stays in training.
    """
    sizes: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for passage in found:
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
    return [replace(passage, area=area_of(passage.module), split=split[passage.module]) for passage in found]
