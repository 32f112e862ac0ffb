"""Running text in Python files: docstrings and blocks of comments, without code, tables and headings."""

from __future__ import annotations

import ast
import re
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from typing import NamedTuple


class Note(NamedTuple):
    """A docstring, or a block of comments, with its line. ``kind`` is module, class, function or comment; ``name`` is
    the qualified name of the described object."""

    line: int
    kind: str
    name: str
    text: str


def docstrings(tree: ast.Module) -> Iterator[Note]:
    """Every docstring, also those given to ``add_docstr`` and ``add_newdoc``."""
    if text := ast.get_docstring(tree):
        yield Note(0, "module", "", text)
    for node, name in _statements(tree):
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            if text := ast.get_docstring(node):
                yield Note(node.lineno, "class" if isinstance(node, ast.ClassDef) else "function", name, text)
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            yield from _added_docstring(node.value)


def _statements(node: ast.AST, prefix: str = "") -> Iterator[tuple[ast.AST, str]]:
    """Every statement below ``node`` with a qualified name, which is used for classes and functions."""
    for field in ("body", "orelse", "finalbody", "handlers", "cases"):
        for child in getattr(node, field, ()):
            name = f"{prefix}{getattr(child, 'name', None) or ''}"
            yield child, name
            defines = isinstance(child, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
            yield from _statements(child, f"{name}." if defines else prefix)


def _added_docstring(call: ast.Call) -> Iterator[Note]:
    function = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if not function.startswith(("add_docstr", "add_newdoc", "_add_docstr")) or len(call.args) < 2:
        return
    target = call.args[-2]
    name = target.value if isinstance(target, ast.Constant) else ast.unparse(target).split(".")[-1]
    texts = [node.value for node in ast.walk(call.args[-1]) if isinstance(node, ast.Constant)]
    text = max((text for text in texts if isinstance(text, str)), key=len, default="")
    if isinstance(name, str) and "\n" in text:
        yield Note(call.lineno, "function", name, textwrap.dedent(text))


_COMMENT = re.compile(r"[ \t]*#+[ \t]?(.*)")
_CODE_LINE = re.compile(r"[=({\[:,]$|^\s*(?:return|import|from|def|class|if|for|raise)\b|\w\(|==")


def comments(source: str, tree: ast.Module) -> Iterator[Note]:
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
                yield Note(number - len(block), "comment", "", "\n".join(block))
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

    Doctests, literal blocks, tables, headings, and paragraphs of mostly symbols are left out.
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
    """The paragraphs of lines without a blank one between them; each item and definition is a paragraph."""
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
