"""Three labelled tasks from the text in every Python installation, split by module and never at random.

``area``   classification of one text: which area of the library does a description come from?
``match``  classification of a pair: does the description belong to the name? Half of the names come with the
           description of another thing of the same module.
``roles``  tagging: the markup of a paragraph (``:func:`x```, ``literals``) is removed; which words had it?

The splits are those of :mod:`encoderlab.corpus.python.text`, whose corpus has the training split only.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from encoderlab.corpus.python.text import Passage, Size, passages
from encoderlab.files import replace_file
from encoderlab.seeds import generator

TASKS = ("area", "match", "roles")
SPLITS = ("train", "validation", "test")
MAX_CHARS = 600  # of a description
MIN_WORDS = 6
ROLES = {
    **dict.fromkeys(("func", "function", "meth", "method", "ufunc", "decorator", "opcode", "program"), "CALL"),
    **dict.fromkeys(("class", "exc", "exception", "type", "interface"), "CLASS"),
    **dict.fromkeys(("mod", "module", "package"), "MODULE"),
    **dict.fromkeys(("attr", "data", "const", "obj", "term", "keyword", "envvar", "option", "any", "ref"), "NAME"),
    "math": "MATH",
}
_MARKUP = re.compile(
    r"(?<![`\w]):(?:[a-z]+:)?(?P<role>[a-z]+):`(?P<content>[^`]+)`"
    r"|``(?P<literal>[^`]+(?:`[^`]+)*?)``"
    r"|(?<![`\w])`(?P<single>[^`\s](?:[^`]*[^`\s])?)`(?![`\w])"
)
_WORD = re.compile(r"\w+(?:\.\w+)*|[^\w\s]")


def write_tasks(folder: Path, size: Size = "all") -> dict[str, dict[str, int]]:
    """Write ``TASK/train.jsonl``, ``validation.jsonl`` and ``test.jsonl`` of each task; returns the numbers of
    examples.

    A line is ``{"text": ..., "label": ...}``, ``{"text": ..., "text_pair": ..., "label": ...}`` or
    ``{"tokens": [...], "tags": [...]}`` with BIO tags.
    """
    collected = passages(size)
    counts: dict[str, dict[str, int]] = {}
    for task, examples in (("area", area(collected)), ("match", match(collected)), ("roles", roles(collected))):
        by_split: dict[str, list[dict[str, Any]]] = {split: [] for split in SPLITS}
        for split, example in examples:
            by_split[split].append(example)
        (folder / task).mkdir(parents=True, exist_ok=True)
        for split, members in by_split.items():
            with replace_file(folder / task / f"{split}.jsonl") as file:
                for example in members:
                    file.write(json.dumps(example, ensure_ascii=False).encode(errors="replace") + b"\n")
        counts[task] = {split: len(members) for split, members in by_split.items()}
    return counts


def area(items: Sequence[Passage]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Descriptions with their area of the library, without the name of the described object."""
    for passage in items:
        text = _description(passage)
        if passage.area and passage.kind != "comment" and text:
            yield passage.split, {"text": text, "label": passage.area}


def match(items: Sequence[Passage]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Names with the first paragraph of their description (label ``yes``) or of another name's in the same module."""
    modules: dict[str, list[tuple[Passage, str]]] = defaultdict(list)
    names = set()
    for passage in items:
        key = (passage.module, passage.name)  # some are defined twice, for two systems
        if passage.kind in ("class", "function") and passage.area and key not in names:
            names.add(key)
            text = plain(passage.paragraphs[0])[:MAX_CHARS]
            if len(text.split()) >= MIN_WORDS and not passage.name.rpartition(".")[2].startswith("__"):
                modules[passage.module].append((passage, text))
    for module, members in modules.items():
        if len(members) < 2:
            continue
        rng = generator("python match", module)
        # A random cycle through the module: no name gets its own description, and each description is used once.
        order = rng.permutation(len(members))
        other = dict(zip(order.tolist(), [*order[1:].tolist(), int(order[0])], strict=True))
        for place, (passage, text) in enumerate(members):
            name = f"{module}.{passage.name}"
            own = bool(rng.integers(2))
            description = text if own else members[other[place]][1]
            yield passage.split, {"text": name, "text_pair": description, "label": "yes" if own else "no"}


def roles(items: Sequence[Passage]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Paragraphs with markup, as words with BIO tags for the kinds of markup."""
    seen = set()
    for passage in items:
        for paragraph in passage.paragraphs:
            tokens, tags = tagged(paragraph)
            key = " ".join(tokens)
            marked = sum(tag != "O" for tag in tags)
            if marked and 8 <= len(tokens) <= 100 and marked <= len(tokens) / 2 and "`" not in key and key not in seen:
                seen.add(key)
                yield passage.split, {"tokens": tokens, "tags": tags}


def tagged(paragraph: str) -> tuple[list[str], list[str]]:
    """Words and punctuation of a paragraph without its markup, and their BIO tags."""
    tokens: list[str] = []
    tags: list[str] = []

    def add(text: str, label: str | None) -> None:
        words = _WORD.findall(text)
        tokens.extend(words)
        tags.extend([f"{'I' if place else 'B'}-{label}" if label else "O" for place in range(len(words))])

    last = 0
    for match in _MARKUP.finditer(paragraph):
        add(paragraph[last : match.start()], None)
        text, label = _marked(match)
        add(text, label)
        last = match.end()
    add(paragraph[last:], None)
    return tokens, tags


def plain(paragraph: str) -> str:
    """A paragraph without its markup."""
    return _MARKUP.sub(lambda match: _marked(match)[0], paragraph)


def _marked(match: re.Match[str]) -> tuple[str, str | None]:
    if match["literal"]:
        return match["literal"], "LITERAL"
    if match["single"]:
        return _target(match["single"]), "NAME"
    return _target(match["content"]), ROLES.get(match["role"])


def _target(content: str) -> str:
    """The visible text of ``~package.Name`` or ``text <target>``."""
    shown = re.sub(r"\s*<[^<>]*>$", "", content)
    if shown.startswith("~"):
        return shown.rpartition(".")[2].lstrip("~")
    return shown.lstrip("!")


def _description(passage: Passage) -> str:
    text = plain(" ".join(passage.paragraphs))
    if len(text) > MAX_CHARS:
        text = text[: text.rfind(" ", 0, MAX_CHARS)]
    return text if len(text.split()) >= MIN_WORDS else ""
