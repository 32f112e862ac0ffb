"""Layouts of task files: how published sets, Hugging Face columns and users' own files store examples.

A :class:`Layout` is a frozen dataclass with ``matches(columns)`` and ``read(path, remarks)``. A file or row that cannot
be used raises a ``DataError`` that names it; problems that a reader recovers from are counted in ``remarks``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from encoderlab.errors import DataError, nearest
from encoderlab.tasks.data import records as tables
from encoderlab.tasks.data.examples import Example, Remarks
from encoderlab.tasks.data.readers.choices import C3, Cloze, Copa, EntityCloze, IdiomGaps, Options, Race, Stems
from encoderlab.tasks.data.readers.common import Layout
from encoderlab.tasks.data.readers.questions import Squad
from encoderlab.tasks.data.readers.texts import Columns, Keywords, MarkedText, MultiRC, WordInContext
from encoderlab.tasks.data.readers.words import CharacterSpans, Conll, TextSpans, WordLists

__all__ = [
    "C3", "CharacterSpans", "Cloze", "Columns", "Conll", "Copa", "EntityCloze", "IdiomGaps", "Keywords", "Layout",
    "MarkedText", "MultiRC", "Options", "Race", "Squad", "Stems", "TextSpans", "WordInContext", "WordLists", "examples",
    "layout_of",
]  # fmt: skip


def layout_of(path: Path, layouts: Sequence[Layout]) -> Layout:
    """The first of ``layouts`` that fits the columns of ``path``.

    A layout whose label is present is preferred, and so are columns by name to columns by number.

    Raises:
        DataError: none fits; the message lists the columns present and expected.
    """
    columns = tables.columns(path, Remarks(path))
    fitting = [layout for layout in layouts if layout.matches(columns)]
    fitting = [layout for layout in fitting if not layout.positional] or fitting
    labelled = (layout for layout in fitting if not isinstance(layout, Columns) or layout.has_labels(columns))
    if fitting:
        return next(labelled, fitting[0])
    needs = layouts[0].needs
    missing = [name for name in needs if name not in columns]
    if not needs or (columns and not missing):
        raise DataError(f"{path}: columns {', '.join(columns) or '(none)'}; expected {_description(layouts[0])}")
    if not columns:
        raise DataError(f"{path}: has no rows; expected a table or JSON records with {', '.join(needs)}")
    shown = ", ".join(map(repr, columns[:12]))
    raise DataError(f"{path}: no column {missing[0]!r} among {shown}{nearest(missing[0], columns)}")


def examples(layout: Layout, path: Path, remarks: Remarks) -> Iterator[Example]:
    """The examples that ``layout`` reads from ``path``; fields that must be texts are checked.

    Raises:
        DataError: a record lacks a field, or a field is of another kind.
    """
    try:
        for example in layout.read(path, remarks):
            if strange := [text for text in example.texts if not isinstance(text, str)]:
                raise DataError(f"{path}:{example.row}: {strange[0]!r:.40} is not a text; correct the row")
            yield example
    except (AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError) as error:
        fault = f"no field {error}" if isinstance(error, KeyError) else f"a field of another kind ({error})"
        place = f"{path}:{remarks.row}" if remarks.row else str(path)  # before the first record there is no row
        raise DataError(f"{place}: {fault}; expected {_description(layout)}") from error


def _description(layout: Layout) -> str:
    """A description of the layout: the first paragraph of its docstring, in one line."""
    paragraph = str(layout.__doc__).split("\n\n")[0].replace("``", "")
    return " ".join(paragraph.split()).rstrip(".")
