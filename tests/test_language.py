"""Texts of the project avoid phrases that readers stumble over: docstrings, comments, messages, help and pages."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import encoderlab

SOURCE = Path(encoderlab.__file__).parent
ROOT = Path(__file__).parents[1]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").glob("*.md")),
]
HISTORY = "LOG.md"  # entries stay as they were written

BETTER = {  # pattern -> what to write
    r"\bbeside (?:the|an?|it|its|them|each|those|that|other|our|simple|published|CODE)\b": "next to; besides",
    r"(?<!there )\b(?:is|are|was|were) no (?:number|numbers|share|shares|list|text|whole|probability|regular)\b": (
        "is not a ...; not finite; the allowed range"
    ),
    r"\b(?:is|are|was|were|and) said\b": "is printed; a note says",
    r"\bwhat is said of\b": "the ... of",
    r"\bgo(?:es|ing)? on (?:with|where|from)\b": "continue",
    r"\bgone on with\b": "resumed",
    r"\bof what is kept back\b": "name the number's range",
    r", for (?:it|they|there|this|these|that|a run|one) (?:is|are|has|have|was|were|knows?|does)\b": "because",
    r"\bholds no (?:run|model|checkpoint|config\.json)\b": "has no; is not a",
    r"\bfor ever\b": "forever",
    r"\banew\b": "again",
    r"\bmend(?:s|ed)?\b": "fix; repair",
    r"\bwithout a word\b": "silently",
}


def passages(path: Path) -> Iterator[tuple[int, str]]:
    """Line and text of every docstring, message and comment of a module."""
    text = path.read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def findings(place: str, line: int, text: str) -> Iterator[str]:
    joined = " ".join(text.split())
    for pattern, better in BETTER.items():
        for found in re.finditer(pattern, joined):
            around = joined[max(0, found.start() - 40) :][:100]
            yield f"{place}:{line}: {found.group()!r} in {around!r}; write: {better}"


def test_sources_are_in_plain_english() -> None:
    modules = sorted(SOURCE.rglob("*.py"))
    assert len(modules) > 100
    found = [
        finding
        for path in modules
        for line, text in passages(path)
        for finding in findings(str(path.relative_to(SOURCE)), line, text)
    ]
    assert not found, "\n".join(found)


def test_pages_are_in_plain_english() -> None:
    code = re.compile(r"```.*?```|^    .*?$|`[^`\n]*`", re.S | re.M)
    found = [
        finding
        for path in PAGES
        if path.name != HISTORY
        for finding in findings(path.name, 1, code.sub("CODE", path.read_text(encoding="utf-8")))
    ]
    assert not found, "\n".join(found)


def test_phrases_are_found() -> None:
    for text in ("the loss is no number", "goes on with the run", "stored beside it", "it waits, for it is busy"):
        assert list(findings("x", 1, text)), text
    assert not list(findings("x", 1, "besides the loss, there is no number; it waits because it is busy"))
