"""Layouts of words with tags."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby, islice
from pathlib import Path
from typing import Any, Literal, Self

from encoderlab.corpus.words import is_cjk
from encoderlab.errors import DataError
from encoderlab.tasks.data import records as tables
from encoderlab.tasks.data.examples import Remarks, TaggedWords
from encoderlab.tasks.data.plain_words import Word, words_of
from encoderlab.tasks.data.readers.common import Layout, id_of, nearest_place, nested, nested_value, records, text_of
from encoderlab.tasks.scoring.entities import (
    Entity,
    Scheme,
    count_faults,
    detect_scheme,
    entities,
    split_tag,
    write_tags,
)

_FIRST = 300  # lines that decide whether a file has one word per line
_NO_WORD = r"\d+[-.]\d+"  # the number of a line of CoNLL-U that is not a word of its sentence


@dataclass(frozen=True, kw_only=True)
class Conll(Layout):
    """A word per line with its tag in another column, a blank line between sentences, ``-DOCSTART-`` between documents.

    If ``word`` is not the first column, which then numbers the words (CoNLL-U), lines that begin with # are comments,
    and lines of several words (numbered 2-3) or of unwritten words (2.1) are left out. Otherwise a line before a
    sentence that begins with "# id" is one (MultiCoNER).
    Tags of every scheme are converted to ``scheme``; with None they are not changed, as needed for parts of speech. If
    ``tag`` is None, none are read.
    """

    word: int = 0
    tag: int | None = -1
    scheme: Literal["BIO", "BIOES"] | None = "BIO"

    def matches(self, columns: Sequence[str]) -> bool:
        return True

    def unlabelled(self) -> Self:
        return replace(self, tag=None)

    def read(self, path: Path, remarks: Remarks) -> Iterator[TaggedWords]:
        yield from _converted(lambda notes: self._sentences(path, notes), self.scheme, path, remarks)

    def _sentences(self, path: Path, remarks: Remarks) -> Iterator[TaggedWords]:
        words: list[str] = []
        tags: list[str | None] = []
        document, start, width = -1, 0, 0
        needed = max(self.word, self.tag or 0) + 1
        for row, line in chain(tables.lines(path), ((-1, ""),)):
            cells = cells_of(line)
            if self.word and cells and (line.startswith("#") or re.fullmatch(_NO_WORD, cells[0])):
                continue
            if not words and line.startswith("# id "):
                continue
            if not cells or cells[0] == "-DOCSTART-":
                if words:
                    remarks.number += 1
                    labelled = None not in tags
                    yield TaggedWords(
                        id=str(remarks.number),
                        words=tuple(words),
                        tags=tuple(str(tag) for tag in tags) if labelled else None,
                        document=max(document, 0),
                        row=start,
                        by_line=True,
                    )
                    words, tags = [], []
                document += bool(cells)
                continue
            width = width or len(cells)
            if len(cells) != width:
                raise DataError(f"{path}:{row}: {len(cells)} columns, the lines before have {width}; correct the line")
            if width <= self.word or 1 < width < needed:
                raise DataError(
                    f"{path}:{row}: {width} columns, word and tag are expected in the first {needed}; correct the line"
                )
            start = start if words else row
            tag = cells[self.tag].strip(" ") if width > 1 and self.tag is not None else None
            if tag == "":
                raise DataError(f"{path}:{row}: the word {cells[self.word]!r} has no tag; write O outside entities")
            words.append(cells[self.word])
            tags.append(tag)


@dataclass(frozen=True, kw_only=True)
class WordLists(Layout):
    """Words and tags as two lists per record, or as two texts with spaces between (MSRA's ``text_a`` and ``label``).
    ``scheme`` as of :class:`Conll`; if ``tags`` is None, none are read.
    """

    words: str = "tokens"
    tags: str | None = "ner_tags"
    scheme: Literal["BIO", "BIOES"] | None = "BIO"

    @property
    def needs(self) -> tuple[str, ...]:
        return (self.words,)

    @property
    def label_column(self) -> str | None:
        return self.tags

    def unlabelled(self) -> Self:
        return replace(self, tags=None)

    def read(self, path: Path, remarks: Remarks) -> Iterator[TaggedWords]:
        sentences = longest = 0
        for sentence in _converted(lambda notes: self._sentences(path, notes), self.scheme, path, remarks):
            sentences, longest = sentences + 1, max(longest, len(sentence.words))
            yield sentence
        if sentences > 1 and longest == 1:
            remarks.note(
                "every row has one word, which is tagged without its neighbours; put the words of a sentence in one "
                "row, or one in a line with blank lines between sentences"
            )

    def _sentences(self, path: Path, remarks: Remarks) -> Iterator[TaggedWords]:
        for record in records(path, remarks, self.needs, self.tags, "id"):
            try:
                words = _items(record.fields.get(self.words), str)
                tags = None if self.tags is None else _items(record.fields.get(self.tags), str, int)
            except TypeError as error:
                raise DataError(
                    f"{path}:{record.row}: {self.words!r} or {self.tags!r} is not a list ({error}); correct the record"
                ) from None
            if not words:
                remarks.add("no words; left out", record.row)
                continue
            if tags is not None and len(tags) != len(words):
                raise DataError(f"{path}:{record.row}: {len(tags)} tags for {len(words)} words; give one for each")
            number = remarks.number
            yield TaggedWords(id=id_of(record, "id", remarks), words=words, tags=tags, document=number, row=record.row)


@dataclass(frozen=True, kw_only=True)
class CharacterSpans(Layout):
    """CLUENER: a text and ``{type: {mention: [[first, last character]]}}``; every character is a word."""

    needs = ("text",)

    def read(self, path: Path, remarks: Remarks) -> Iterator[TaggedWords]:
        for record in nested(path, remarks):
            text = text_of(record, "text", path)
            if not text:
                remarks.add("empty text; left out", record.row)
                continue
            label = record.fields.get("label")
            tags = None if label is None else tuple(self._tags(text, label, path, record.row, remarks))
            number = remarks.number
            yield TaggedWords(
                id=id_of(record, "id", remarks), words=tuple(text), tags=tags, document=number, row=record.row
            )

    @staticmethod
    def _tags(text: str, label: dict[str, dict[str, list]], path: Path, row: int, remarks: Remarks) -> list[str]:
        """BIO tags of the characters."""
        spans: list[Entity] = []
        for kind, mentions in label.items():
            for mention, places in mentions.items():
                for first, last in places:
                    if text[first : last + 1] != mention:
                        first = nearest_place(text, mention, first)
                        if first < 0:
                            raise DataError(f"{path}:{row}: {mention!r} is not in the text; correct the row")
                        last = first + len(mention) - 1
                        remarks.add("a mention is not at its offsets; the nearest is used", row)
                    spans.append((kind, first, last + 1))
        return write_tags(_apart(spans, row, remarks), len(text))


@dataclass(frozen=True, kw_only=True)
class TextSpans(Layout):
    """A text and its entities: lists ``[start, end, type]`` (doccano), or objects with ``start``, ``end`` and ``label``
    or ``type`` (spaCy, Prodigy); ``end`` is one past the last character.

    Its words are those of :func:`words_of`; one that an entity covers in part belongs to it. If ``spans`` is None, no
    entities are read, and the file may be a table.
    """

    text: str = "text"
    spans: str | None = "label"

    @property
    def needs(self) -> tuple[str, ...]:
        return (self.text,)

    @property
    def label_column(self) -> str | None:
        return self.spans

    def unlabelled(self) -> Self:
        return replace(self, spans=None)

    def read(self, path: Path, remarks: Remarks) -> Iterator[TaggedWords]:
        for record in records(path, remarks, self.needs, self.spans, "id"):
            text = text_of(record, self.text, path)
            words = words_of(text)
            if not words:
                remarks.add("no words; left out", record.row)
                continue
            spans = None if self.spans is None else record.fields.get(self.spans)
            tags = None if spans is None else tuple(self._tags(text, words, spans, path, record.row, remarks))
            yield TaggedWords(
                id=id_of(record, "id", remarks),
                words=tuple(word for word, _, _ in words),
                tags=tags,
                document=remarks.number,
                row=record.row,
            )

    @staticmethod
    def _tags(text: str, words: list[Word], spans: Any, path: Path, row: int, remarks: Remarks) -> list[str]:
        """BIO tags of the words."""
        entities: list[Entity] = []
        for value in spans:
            span = span_of(value)
            if span is None or not 0 <= span[1] < span[2] <= len(text):
                raise DataError(f"{path}:{row}: {value!r} is no span in {len(text):,} characters; correct it")
            kind, start, end = span
            inside = [i for i, (_, first, stop) in enumerate(words) if first < end and start < stop]
            if not inside:
                remarks.add("an entity that covers no word; left out", row)
                continue
            if words[inside[0]][1] < start or end < words[inside[-1]][2]:
                remarks.add("an entity begins or ends within a word; the whole word counts", row)
            entities.append((kind, inside[0], inside[-1] + 1))
        return write_tags(_apart(entities, row, remarks), len(words))


def span_of(value: Any) -> Entity | None:
    """Type, first character and one past the last of an entry of :class:`TextSpans`; None for another value."""
    if isinstance(value, dict):
        value = [value.get("start"), value.get("end"), value.get("label", value.get("type"))]
    if not isinstance(value, list) or [type(part) for part in value] != [int, int, str]:
        return None
    return value[2], value[0], value[1]


def _apart(spans: list[Entity], row: int, remarks: Remarks) -> list[Entity]:
    """The spans in order; of those that overlap, the first and longest."""
    kept: list[Entity] = []
    for span in sorted(spans, key=lambda span: (span[1], -span[2])):
        if kept and span[1] < kept[-1][2]:
            remarks.add("mentions overlap; the first and longest is kept", row)
        else:
            kept.append(span)
    return kept


def _converted(
    sentences: Callable[[Remarks], Iterator[TaggedWords]], scheme: Scheme | None, path: Path, remarks: Remarks
) -> Iterator[TaggedWords]:
    """Sentences with their tags in ``scheme``; a first pass over the file detects its scheme."""
    if scheme is None:
        yield from sentences(remarks)
        return
    unsaid = Remarks(path)
    first = next((sentence.tags for sentence in sentences(unsaid) if sentence.tags), None)
    if first is None or any(tag.isdigit() for tag in first):  # no tags, or numbers of the labels of the task
        yield from sentences(remarks)
        return

    def tags_by_row() -> Iterator[Sequence[str]]:
        for sentence in sentences(unsaid):
            for i, tag in enumerate(sentence.tags or ()):
                unsaid.row = sentence.row + i * sentence.by_line
                split_tag(tag)
            yield sentence.tags or ()

    try:
        detected, faults = detect_scheme(tags_by_row())
    except DataError as error:
        raise DataError(str(error) if str(path) in str(error) else f"{path}:{unsaid.row}: {error}") from None
    if faults:
        wrong = (s.row for s in sentences(Remarks(path)) if count_faults(s.tags or (), detected))
        said = f"{faults:,} I tags open an entity" if detected == "BIO" else f"{faults:,} tags break the scheme"
        remarks.note(f"{detected} tags, but {said} (first: row {next(wrong, 0)}); read as conlleval does")
    for sentence in sentences(remarks):
        if sentence.tags is None or detected == scheme and not faults:
            yield sentence
        else:
            tags = write_tags(entities(sentence.tags), len(sentence.words), scheme)
            yield replace(sentence, tags=tuple(tags))


def cells_of(line: str) -> list[str]:
    """The columns of a line; only tabs and ASCII spaces separate them, because a wide space may be a word."""
    if not line.strip("\t "):
        return []
    return line.split("\t") if "\t" in line else [cell for cell in line.split(" ") if cell]


def _items(value: Any, *kinds: type) -> tuple[str, ...] | None:
    """A list of words or tags, or a text of them; None if there is none. ``kinds``: of the values in a written list."""
    if value is None:
        return None
    if isinstance(value, str):
        listed = nested_value(value)
        if isinstance(listed, list) and all(type(one) in kinds for one in listed):
            return tuple(map(str, listed))
        return tuple(value.split("\x02") if "\x02" in value else value.split())  # as ERNIE's files separate
    if None in value:
        raise TypeError(f"{value} contains null")
    return tuple(map(str, value))


# Which files have a word per line


def has_word_lines(path: Path) -> bool:
    """Whether a labelled file has one word per line.

    Its first lines must have 2 to 10 columns, the first with single words, and blank lines between sentences. Blank
    lines at the end of a table do not count.
    """
    lines = [line for _, line in islice(tables.lines(path), _FIRST)]
    rows = list(map(cells_of, lines))
    filled = [cells for cells in rows if cells]
    while rows and not rows[-1] and "\t" in lines[0]:
        rows.pop()
    if len(filled) == len(rows):
        return False
    ((width, usual),) = Counter(map(len, filled)).most_common(1) or [(0, 0)]
    texts = sum(len(cells[0].split(" ")) > 1 for cells in filled)
    return 2 <= width <= 10 and usual > 0.9 * len(filled) and texts <= 0.1 * len(filled)


def columns_of_words(path: Path) -> tuple[int, int]:
    """The columns of word and tag in a file with one word per line.

    (0, last); (1, last) if column 0 of at least three numbers the words (GermEval); (1, 3), the universal part of
    speech, for CoNLL-U's ten columns.
    """
    lines = (line for _, line in islice(tables.lines(path), _FIRST) if not line.startswith("#"))
    rows = (cells for cells in map(cells_of, lines) if not cells or not re.fullmatch(_NO_WORD, cells[0]))
    sentences = [list(rows) for filled, rows in groupby(rows, bool) if filled]
    sentences = [rows for rows in sentences if rows[0][0] != "-DOCSTART-"]
    counted = all(cells[0] == str(i) and len(cells) > 2 for rows in sentences for i, cells in enumerate(rows, start=1))
    if not counted or all(len(rows) == 1 for rows in sentences):
        return 0, -1
    return 1, 3 if len(sentences[0][0]) == 10 else -1


def is_word_per_line(path: Path, tags: Sequence[str]) -> bool:
    """Whether a plain file to be tagged has one word per line, not one text per line.

    Its first lines end with one of ``tags``, or have a fixed number of columns and blank lines between them.

    Raises:
        DataError: it could be either.
    """
    lines = [line for _, line in islice(tables.lines(path), _FIRST)]
    rows = [cells_of(line) for line in lines]
    sentences = [list(rows) for filled, rows in groupby(rows, bool) if filled]
    filled = [cells for cells in rows if cells]
    if any(cells[0] == "-DOCSTART-" for cells in filled):
        return True
    widths = Counter(map(len, filled))
    width = max(widths, key=lambda width: widths[width], default=0)
    if widths[width] <= 0.9 * len(filled):
        return False
    usual = [cells for cells in filled if len(cells) == width]
    if width > 1 and all(cells[-1] in tags for cells in usual):
        return True
    if len(sentences) == 1 and (width == 1 or not all("\t" in line for line in lines if line.strip())):
        return False
    chinese = width == 1 and any(sum(map(is_cjk, cells[0])) > 1 for cells in usual)  # a word, or a text without spaces
    if len(sentences) > 1 and max(map(len, sentences)) > 1 and not chinese:
        return True
    raise DataError(
        f"{path}: one text or one word per line? for texts remove blank lines and tabs, for words rename it to end in "
        f".conll"
    )
