"""The task in a user's own file: its form, columns and labels, as given or inferred."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

from encoderlab.errors import ConfigError, DataError, nearest
from encoderlab.tasks.data import records as tables
from encoderlab.tasks.data.readers import (
    CharacterSpans,
    Columns,
    Conll,
    EntityCloze,
    Keywords,
    Layout,
    MarkedText,
    MultiRC,
    Options,
    Squad,
    Stems,
    TextSpans,
    WordInContext,
    WordLists,
    examples,
)
from encoderlab.tasks.data.readers.common import TABLES
from encoderlab.tasks.data.readers.words import columns_of_words, has_word_lines, span_of
from encoderlab.tasks.data.task import Example, Remarks, TaggedWords, Task, Text
from encoderlab.tasks.forms.table import FORMS, form_named

# Usual names of columns, the most specific first.
PAIRS = (
    ("sentence1", "sentence2"), ("text_a", "text_b"), ("texta", "textb"), ("premise", "hypothesis"), ("text1", "text2"),
    ("question1", "question2"), ("sentence_A", "sentence_B"), ("query", "document"), ("query", "passage"),
    ("question", "sentence"), ("question", "passage"), ("context", "hypothesis"), ("text", "pair"), ("a", "b"),
    ("句子1", "句子2"), ("文本1", "文本2"),
)  # fmt: skip
TEXTS = (
    "text", "sentence", "content", "text_a", "review", "comment", "body", "message", "tweet", "title", "document",
    "文本", "句子", "内容", "评论", "正文", "标题",
)  # fmt: skip
LABELS = (
    "label", "labels", "class", "category", "target", "sentiment", "score", "stars", "rating", "gold_label",
    "is_duplicate", "y", "标签", "类别", "分类", "情感", "评分",
)  # fmt: skip
WORDS = ("tokens", "words")
TAGS = ("ner_tags", "tags", "labels", "label", "ner", "pos_tags")
SPANS = ("entities", "spans")
OPTIONS = ("options", "choices", "endings", "candidates", "choice")
CORRECT = ("answer", "label", "answerkey", "correct")
CONTEXTS = (
    "context", "article", "passage", "ctx", "sent1", "startphrase", "premise", "sentence", "text", "texta", "paragraph",
)  # fmt: skip
ANSWERS = ("answers", "answer", "answer_text")
QUESTIONS = ("question", "question_stem", "stem", "sent2", "query", "goal")
IDS = ("id", "idx", "index", "guid")
USUAL = {
    name.lower()
    for names in (*PAIRS, TEXTS, LABELS, WORDS, TAGS, OPTIONS, CORRECT, CONTEXTS, ANSWERS, QUESTIONS, IDS)
    for name in names
}
PUBLISHED: tuple[tuple[set[str], Layout, str, str], ...] = (  # by fields that only these sets have: WiC's first
    ({"word", "sentence1", "sentence2"}, WordInContext(), "texts", "a word in two sentences"),
    ({"target.span1_text", "target.span2_text"}, MarkedText(), "texts", "a text with two spans"),
    ({"text", "span1_text", "span2_text"}, MarkedText(), "texts", "a text with two spans"),
    ({"passage.questions"}, MultiRC(), "texts", "answers to questions about a passage, right or wrong"),
    ({"paragraph", "answer", "idx.question"}, MultiRC(), "texts", "answers to questions about a passage"),
    ({"keyword", "abst"}, Keywords(), "texts", "keywords and an abstract"),
    ({"passage.entities", "qas"}, EntityCloze(), "options", "entities of a passage for a gap"),
    ({"passage", "entities", "query"}, EntityCloze(), "options", "entities of a passage for a gap"),
    ({"question.stem", "question.choices"}, Stems(), "options", "questions with their stem and choices"),
)
_ALIGNED = 200  # rows that decide whether two columns contain words and their tags
_FEW = 20  # with this few rows, each may have another label
_SAMPLE = 2000  # examples that decide between labels and numbers, and whether tags have prefixes
_TELLING = (*tables.RECORDS, ".txt")  # suffixes that determine how a file is read


@dataclass(frozen=True, kw_only=True)
class Given:
    """The user's settings for a file; fields that are None are inferred. A column is a name, or a number without a
    header; ``label`` may be several columns of 0 and 1, with commas between.

    ``skip_unlabelled``: leave out rows without a label, which are otherwise refused.
    """

    form: str | None = None
    text: str | None = None
    pair: str | None = None
    label: str | None = None
    options: tuple[str, ...] = ()
    skip_unlabelled: bool = False


def task_of(path: str | os.PathLike[str], given: Given | None = None) -> tuple[Task, str]:
    """The task in ``path``, and one line about what was inferred.

    Raises:
        ConfigError: a given form or column does not fit the file.
        DataError: the form cannot be inferred; the message says how to give it.
    """
    given, path = given or Given(), Path(path)
    remarks = Remarks(path)
    file = _InferredFile(path, tables.columns(path, remarks), given)
    _check_given(file)
    inferred = _infer(file)
    layout = inferred.layout
    raw = dataclasses.replace(layout, scheme=None) if isinstance(layout, (Conll, WordLists)) else layout
    sample = list(islice(examples(raw, path, remarks), _SAMPLE))
    usual, *others = (form for form in FORMS.values() if form.columns == inferred.columns)
    form = next((other for other in others if other.recognises(layout, sample)), usual)
    if given.form is not None:
        form = form_named(given.form)
    elif form is usual:
        _check_classes(path, layout, sample)
    layout, metrics, why = form.inferred(layout, sample)
    task = Task(name=path.name.split(".")[0], form=form.name, layouts=(layout,), metrics=metrics)
    said = f"{inferred.said}; {why}" if why else inferred.said
    return task, f"{path.name}: {form.name} ({form.description}), {said}"


def _check_classes(path: Path, layout: Layout, sample: Sequence[Example]) -> None:
    """Refuse to infer classes from a column with a different value in nearly every row.

    Raises:
        DataError: the message says how to override.
    """
    labels = [example.label for example in sample if isinstance(example, Text) and example.label is not None]
    if len(labels) >= _FEW and len(set(labels)) > len(labels) / 2:
        number = re.compile(r"[-+]?\d*\.?\d+(e[-+]?\d+)?")
        others = [label for label in labels if not number.fullmatch(str(label).strip().lower())]
        numbers = len(others) < len(labels) / 2
        raise DataError(
            f"{path}: column {layout.label_column!r} has {len({*labels}):,} different labels in {len(labels):,} rows, "
            f"such as {str([*others, *labels][0])[:40]!r}: are these classes? name another column with --label, or "
            f"confirm with --form classification{' or --form regression' if numbers else ''}"
        )


def find_column(names: Sequence[str], columns: Sequence[str], but: Collection[str | None] = ()) -> str | None:
    """The first of ``names`` that is a column, ignoring case, spelled as in the file; None if there is
    none. Columns in ``but`` do not count.
    """
    spelled = {column.strip().lower(): column for column in columns if column not in but}
    return next((spelled[name.lower()] for name in names if name.lower() in spelled), None)


@dataclass(frozen=True)
class _InferredFile:
    """A file whose form is to be inferred, with its columns and the user's statements."""

    path: Path
    columns: tuple[str, ...]
    given: Given

    @property
    def needs(self) -> str | None:
        """The kind of columns that the given form, or the given options, need
        (:attr:`encoderlab.tasks.forms.base.Form.columns`); None if neither is given.
        """
        if self.given.form is None:
            return "options" if self.given.options else None
        return FORMS[self.given.form].columns

    @property
    def suffix(self) -> str:
        return tables.suffix(self.path)

    @property
    def suffix_tells(self) -> bool:
        """Whether the suffix determines how the file is read; that of ``train.data`` does not."""
        return self.suffix in _TELLING

    @cached_property
    def lower(self) -> dict[str, str]:
        """Columns by their names in lower case."""
        return {name.strip().lower(): name for name in self.columns}

    @property
    def without_header(self) -> bool:
        """Whether the user gives the columns of the text or the options by number, so that the first row is no header
        in which others could be found by their names.
        """
        names = (self.given.text, *self.given.options)
        return any(name is not None and name.isdecimal() and name not in self.columns for name in names)

    def find(self, names: Sequence[str], but: Collection[str | None] = ()) -> str | None:
        """As :func:`find_column`; None if the columns have no names."""
        return None if self.without_header else find_column(names, self.columns, but)

    @property
    def flags(self) -> tuple[str, ...]:
        """The columns of 0 and 1 that the user names as labels, if there are several."""
        label = self.given.label
        names = () if label is None or label in self.columns else tuple(label.split(","))
        return names if len(names) > 1 and set(names) <= set(self.columns) else ()

    @property
    def options(self) -> tuple[str, ...]:
        """The columns of options.

        The columns that the user names, the column with the list of options, or one column per option: ending0,
        ending1, ... (option1, ..., choice_a, ..., sol1, ..., or a, b, c).
        """
        if self.given.options:
            return self.given.options
        for name in OPTIONS:
            if name in self.lower:
                return (self.lower[name],)
        for stem in ("ending", "choice", "option", "answer", "candidate", "sol"):
            matches = (re.fullmatch(rf"{stem}_?(\d+|[a-z])", name) for name in self.lower)
            places = {
                int(match[1]) if match[1].isdigit() else ord(match[1]) - ord("a"): self.lower[match[0]]
                for match in matches
                if match
            }
            if len(places) > 1 and sorted(places) == list(range(min(places), min(places) + len(places))):
                return tuple(places[place] for place in sorted(places))
        letters = [letter for letter in "abcdefgh" if letter in self.lower]
        return tuple(self.lower[letter] for letter in letters) if letters[:3] == ["a", "b", "c"] else ()


@dataclass(frozen=True)
class _Inferred:
    """How a file is read, its kind of columns (:attr:`encoderlab.tasks.forms.base.Form.columns`), and a description."""

    layout: Layout
    columns: str
    said: str


def _check_given(file: _InferredFile) -> None:
    """Refuse an unknown form, one without the given options, and columns that the file does not have.

    Raises:
        ConfigError: the message gives the nearest name.
    """
    given, columns = file.given, file.columns
    if given.form is not None and form_named(given.form).columns != "options" and given.options:
        raise ConfigError(f"--options are those of multiple choice, not of {given.form}; leave out --options or --form")
    if file.flags and file.needs not in (None, "texts"):
        raise ConfigError(
            f"--label {given.label} names several columns, which are labels of a text (multilabel), not of "
            f"{given.form or 'multiple choice'}; name one column"
        )
    named = (given.text, given.pair, *(file.flags or (given.label,)), *given.options)
    names = [name for name in named if name is not None]
    numbers = [name for name in names if name.isdecimal()]
    if numbers and numbers == names and all(columns[int(name) : int(name) + 1] == (name,) for name in numbers):
        raise ConfigError(f"{file.path}: the first row is a header of numbers; give its columns names")
    by_number = file.suffix in TABLES
    for name in names if columns else ():  # a file with a word per line has none
        if name not in columns and not (name.isdecimal() and by_number):
            raise ConfigError(f"{file.path}: no column {name!r}{nearest(name, columns)}")
    cells = [cell for name in numbers if name not in columns for cell in columns[int(name) : int(name) + 1]]
    usual = [cell for cell in cells if cell.strip().lower() in USUAL]
    if by_number and usual == cells and any(len(cell.strip()) > 1 for cell in usual):  # a, b and y are labels, too
        header = ", ".join(map(repr, cells))
        raise ConfigError(f"{file.path}: the first row is a header ({header}); give its names, not numbers")
    number = next((name for name in names if name.isdecimal()), None)
    word = next((name for name in names if not name.isdecimal()), None)
    if number is not None and word is not None and number not in columns:
        raise ConfigError(
            f"{file.path}: column {word!r} is given by name and column {number} by number; give all names, or, if the "
            f"first row is not a header, all numbers"
        )


def _infer(file: _InferredFile) -> _Inferred:
    """The given form with its columns, or the form that follows from the columns.

    Raises:
        ConfigError: a column is both text and label.
        DataError: no form fits the columns, or the given one does not.
    """
    given, needs = file.given, file.needs
    nothing_given = needs is None and given.text is None
    if file.flags:
        return _texts(file)
    if inferred := _published(file):
        return inferred
    asked = nothing_given and {"question", "context"} <= set(file.lower) and not file.options
    if (needs == "passages" or asked) and (inferred := _passages(file)):
        return inferred
    if needs in (None, "passages") and not file.columns:
        if file.suffix == ".json" or not file.suffix_tells and tables.starts_with(file.path, "{"):
            return _Inferred(Squad(), "passages", "SQuAD's nested form")
    tagged = needs == "words" or nothing_given or needs is None and file.suffix in tables.WORDS_BY_LINE
    if tagged and (inferred := _words(file)):
        return inferred
    if needs == "options" or nothing_given:
        if file.options:
            return _choice(file)
    if given.form is not None and needs != "texts":
        raise DataError(
            f"{file.path}: columns {', '.join(file.columns) or '(none)'} do not contain "
            f"{FORMS[given.form].description}; rename them, give --text, --pair and --label, or convert the file"
        )
    return _texts(file)


def _published(file: _InferredFile) -> _Inferred | None:
    """A layout of :data:`PUBLISHED`; None for other files, or if the user names a column."""
    given = file.given
    named = (given.text, given.pair, given.label, *given.options)
    if file.suffix in TABLES or not file.columns or any(name is not None for name in named):
        return None
    fields = _first_record(file.path)
    names = {f"{outer}.{inner}" for outer, value in fields.items() if isinstance(value, dict) for inner in value}
    fitting = (one for one in PUBLISHED if one[0] <= {*fields, *names} and file.needs in (None, one[2]))
    return next((_Inferred(layout, columns, said) for _, layout, columns, said in fitting), None)


def _passages(file: _InferredFile) -> _Inferred | None:
    """Columns with a question about a passage and its answers; None without such columns."""
    given = file.given
    passage = given.text or file.find(CONTEXTS)
    question = given.pair or file.find(QUESTIONS, but=(passage,))
    if passage is None or question is None:
        return None
    answer = given.label or file.find(ANSWERS) or ANSWERS[0]
    said = f"{question} about {passage}" + (f", answer = {answer!r}" if answer in file.columns else "")
    return _Inferred(Squad(context=passage, question=question, answer=answer), "passages", said)


def _words(file: _InferredFile) -> _Inferred | None:
    """Words with tags: two lists in a record, one word per line, or spans of characters; None for other files."""
    given, suffix = file.given, file.suffix
    text, label = given.text or file.find(TEXTS), given.label or file.find(LABELS)
    if text in file.columns and suffix not in TABLES and (inferred := _spans(file, str(text), label)):
        return inferred
    words = given.text or file.find(WORDS)
    tags = given.label or file.find(TAGS)
    if words and words in file.columns and (tags or file.needs == "words"):  # a file to predict has no tags
        said = f"words = {words!r}" + (f", tags = {tags!r}" if tags else "")
        return _Inferred(WordLists(words=words, tags=tags), "words", said)
    # a known header takes precedence over the shape of the lines
    known = text in file.columns and label in file.columns
    if known and _is_tagged(file.path, str(text), str(label)):
        return _Inferred(WordLists(words=str(text), tags=label), "words", f"words = {text!r}, tags = {label!r}")
    plain = not file.suffix_tells or suffix in (".txt", ".tsv")
    if suffix in tables.WORDS_BY_LINE or plain and (file.needs == "words" or not known and has_word_lines(file.path)):
        return _word_lines(file)
    if file.needs == "words" and text in file.columns:  # texts to predict
        return _Inferred(TextSpans(text=str(text), spans=None), "words", f"the words of {text!r}")
    return None


def _spans(file: _InferredFile, text: str, label: str | None) -> _Inferred | None:
    """A text with its entities in the column of the label, or, without one, in one of :data:`SPANS`; None for other
    files.
    """
    names = SPANS if label is None else (label,)
    for number, record in enumerate(tables.records(file.path)):
        for name in names:
            value = record.fields.get(name)
            if isinstance(value, dict) and (text, name) == ("text", "label"):  # as in CLUENER
                return _Inferred(CharacterSpans(), "words", "spans of characters by type")
            if isinstance(value, list) and value and None not in map(span_of, value):
                return _Inferred(TextSpans(text=text, spans=name), "words", f"text = {text!r}, entities = {name!r}")
        if number >= tables.FIRST and all(record.fields.get(name) != [] for name in names):
            break  # a text without entities has an empty list
    return None


def _is_tagged(path: Path, words: str, tags: str) -> bool:
    """Whether two columns contain words and one tag for each, as texts with spaces or as lists.

    Every row has as many tags as words, most rows more than one; tags are mostly O, or have prefixes, or are few in
    rows of several lengths.
    """
    layout = WordLists(words=words, tags=tags, scheme=None)
    try:
        sample = [
            one for one in islice(examples(layout, path, Remarks(path)), _ALIGNED) if isinstance(one, TaggedWords)
        ]
    except DataError:
        return False
    sample_tags = [tag for one in sample for tag in one.tags or ()]
    several = sum(len(one.tags or ()) > 1 for one in sample)
    if several <= len(sample) / 2 or not all(one.tags for one in sample):
        return False
    marked = sum(tag == "O" or re.fullmatch(r"[BIMELSWU]-.+", tag) is not None for tag in sample_tags)
    few = len(set(sample_tags)) <= len(sample_tags) / 10 and len({len(one.words) for one in sample}) > 1
    return marked > len(sample_tags) / 2 or few


def _word_lines(file: _InferredFile) -> _Inferred:
    """One word per line, with word and tag in the given columns, else in those of :func:`columns_of_words`.

    Raises:
        ConfigError: a column is given by name.
    """
    given = file.given
    for flag, name in (("--text", given.text), ("--label", given.label)):
        if name is not None and not name.isdecimal():
            raise ConfigError(f"{file.path}: word columns have no names; give {flag} a number, the first is 0")
    word, tag = columns_of_words(file.path)
    word, tag = int(given.text or word), int(given.label or tag)
    place, its = f" in column {word}" if word else "", "the last column" if tag < 0 else f"column {tag}"
    return _Inferred(Conll(word=word, tag=tag), "words", f"one word per line{place}, its tag in {its}")


def _choice(file: _InferredFile) -> _Inferred:
    """Multiple choice. Reads all answers of the file to distinguish letters, numbers and texts of options.

    Raises:
        DataError: there is neither a context nor a question.
    """
    given, options = file.given, file.options
    answer = given.label or file.find(CORRECT) or (None if file.without_header else "label")
    context = given.text or file.find(CONTEXTS)
    question = given.pair or file.find(QUESTIONS, but=(context,))
    if context is None and question is None:
        raise DataError(
            f"{file.path}: which of the columns {', '.join(map(repr, file.columns[:12]))} are the options "
            f"{', '.join(options)} for? give: --form choice --text COLUMN [--pair COLUMN]"
        )
    layout = Options(context=context, question=question, options=options, answer=answer, id=file.find(IDS))
    try:
        layout, how = layout.judged(file.path)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):
        how = "not readable in every row"  # the later error gives the row
    asked = ", ".join(f"{name} = {value!r}" for name, value in (("context", context), ("question", question)) if value)
    return _Inferred(layout, "options", f"{asked}, options = {', '.join(options)}, answer = {answer!r} ({how})")


def _texts(file: _InferredFile) -> _Inferred:
    """One or two texts with a label: in the given columns, else in those of known names.

    Raises:
        ConfigError: a column is both text and label.
        DataError: no column is known to be the text.
    """
    path, columns, given = file.path, file.columns, file.given
    text, pair = given.text, given.pair
    label = given.label or file.find(LABELS, but=(text, pair))
    labels = file.flags or (label,)
    if text is None:
        pairs = ((file.find([a], but=labels), file.find([b], but=labels)) for a, b in PAIRS)
        first, second = next((names for names in pairs if all(names)), (None, None))
        text = first or file.find(TEXTS, but=labels) or file.find(TEXTS)
        pair = pair or second
    if text is None and len(columns) == 2 and label in columns:
        text = next((name for name in columns if name != label), None)
    if not columns and not file.suffix_tells:
        raise DataError(f"{path}: unknown format; rename the file to end in .csv, .tsv, .jsonl, .parquet or .txt")
    if not columns:
        raise DataError(f"{path}: has no rows with columns; give a table with a header, or JSON records")
    if text is None and len(columns) == 1:
        raise DataError(
            f"{path}: has one column, {columns[0]!r}; give a table with a text and a label in every row, or, for texts "
            "to predict, --text COLUMN (0 without a header)"
        )
    if text is None:
        raise DataError(
            f"{path}: which of the columns {', '.join(map(repr, columns[:12]))} is the text? give: "
            f"--text COLUMN [--pair COLUMN] [--label COLUMN]; columns of a file without a header are 0, 1, ..."
        )
    for what, name in (("text", text), ("second text", pair)):
        if name is not None and name in labels:
            raise ConfigError(f"{path}: column {name!r} is both {what} and label; give another column for one of them")
    said = (
        f"text = {text!r}" + (f", second text = {pair!r}" if pair else "") + (f", label = {label!r}" if label else "")
    )
    single = None if file.flags else label
    layout = Columns(text=text, pair=pair, label=single, id=file.find(IDS, but=(text, *labels)), flags=file.flags)
    return _Inferred(layout, "texts", said)


def _first_record(path: Path) -> Mapping[str, Any]:
    """The fields of the first record of a file; empty without a record."""
    first = next(iter(tables.records(path)), None)
    return {} if first is None else first.fields
