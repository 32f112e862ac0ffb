"""Markdown to plain paragraphs: the text a reader sees, without the markup.

Front matter, comments, images, link targets, rules and table frames are dropped; the text of headings, lists,
quotations, links, emphasis and code stays. It reads line by line and ignores nesting, which is enough for training
text.
"""

from __future__ import annotations

import re

_FENCE = re.compile(r" {0,3}(```+|~~~+)")
# If markup is opened many times and never closed, none of these patterns may search the whole paragraph each time.
_RULE = re.compile(r"(?:(?:[-*_=]\s*){3,}|(?=[|:\-+\s]*--)[|:\-+\s]*)$")
_PREFIX = re.compile(r"\s*(?:>\s?)*\s*(?:#{1,6}\s+|[-*+]\s+(?:\[[ xX]\]\s+)?|\d{1,9}[.)]\s+)?")
_STARTS_PARAGRAPH = re.compile(r"(?:>\s?)*\s*(?:#{1,6}\s|[-*+]\s|\d{1,9}[.)]\s|\|)")
_COMMENT = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)
_REFERENCE = re.compile(r" {0,3}\[[^\]]+\]:\s*\S+")
_TARGET = r"(?:\((?:[^)\[]*|[^)]{0,2000})\)|\[[^\[\]]*\])"
_INLINE = [
    (re.compile(r"!\[([^\[\]]*)\]" + _TARGET), r"\1"),  # images: the description
    (re.compile(r"\[([^\[\]]+)\]" + _TARGET), r"\1"),  # links: the text
    (re.compile(r"<(https?://[^<>\s]+)>"), r"\1"),
    (re.compile(r"</?[a-zA-Z][^<>]{0,200}>"), ""),  # HTML tags
    (re.compile(r"(?<![\w\\])(\*\*\*|___)(?=\S)((?:(?!\1).){1,2000})(?<=\S)\1(?!\w)"), r"\2"),
    (re.compile(r"(?<!\\)(\*\*|(?<!\w)__)(?=\S)((?:(?!\1).){1,2000})(?<=\S)\1"), r"\2"),
    (re.compile(r"(?<![\w*\\])([*_])(?=\S)([^*_\n]+?)(?<=[^\s\\])\1(?!\w)"), r"\2"),
    (re.compile(r"~~(?=\S)((?:(?!~~).){1,2000})(?<=\S)~~"), r"\1"),
    (re.compile(r"(`{1,9}) ?(.{1,2000}?) ?\1"), r"\2"),
    (re.compile(r"\\([\\`*_{}\[\]()#+\-.!|>~])"), r"\1"),
]


def markdown_paragraphs(text: str, *, front_matter: bool = True) -> list[str]:
    """The paragraphs of a Markdown text; headings and list items are paragraphs of their own, so are lines of code.

    Args:
        front_matter: leave out a YAML header between two lines ``---`` at the beginning.
    """
    if front_matter and text.startswith("---\n"):
        end = text.find("\n---\n", 3)
        text = text[end + 5 :] if end >= 0 else text
    text = _COMMENT.sub("", text)
    paragraphs: list[str] = []
    open_lines: list[str] = []
    fence = ""
    for line in text.split("\n"):
        opened = _FENCE.match(line)
        if fence:
            if opened and opened[1].startswith(fence) and not line.strip(" `~"):
                fence = ""
            else:
                paragraphs.append(line)
            continue
        bare = line.lstrip()
        if opened or not bare or _RULE.match(bare) or _REFERENCE.match(line):
            paragraphs += [_inline(" ".join(open_lines))] if open_lines else []
            open_lines = []
            fence = opened[1] if opened else ""
            continue
        if _STARTS_PARAGRAPH.match(bare):
            paragraphs += [_inline(" ".join(open_lines))] if open_lines else []
            open_lines = []
        heading = bare.startswith("#")
        content = _PREFIX.sub("", line, count=1).strip()
        if content.startswith("|"):
            content = " ".join(content.strip("|").replace("|", " ").split())
        if heading:
            paragraphs.append(_inline(content.rstrip("#").rstrip()))
        else:
            open_lines.append(content)
    paragraphs += [_inline(" ".join(open_lines))] if open_lines else []
    return [paragraph for paragraph in paragraphs if paragraph.strip()]


def _inline(text: str) -> str:
    for pattern, replacement in _INLINE:
        text = pattern.sub(replacement, text)
    return text
