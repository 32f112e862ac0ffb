"""The task in a file of the user's own: its form, columns and labels, inferred and said, or given."""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from pathlib import Path

from encoderlab.corpus.words import is_cjk
from encoderlab.errors import ConfigError, DataError, nearest
from encoderlab.tasks import tables
from encoderlab.tasks.base import (
    DECIMAL_COMMA,
    FORMS,
    Example,
    Form,
    Layout,
    Question,
    Remarks,
    Split,
    Task,
    Text,
    Words,
    labels_of,
)
from encoderlab.tasks.readers import CharacterSpans, Columns, Conll, Options, Squad, WordLists, examples
from encoderlab.tasks.readers.words import cells_of

# Names that columns usually have, the most telling first.
PAIRS = (
    ("sentence1", "sentence2"), ("text_a", "text_b"), ("texta", "textb"), ("premise", "hypothesis"), ("text1", "text2"),
    ("question1", "question2"), ("sentence_A", "sentence_B"), ("query", "document"), ("query", "passage"),
    ("question", "sentence"), ("text", "pair"), ("a", "b"),
)  # fmt: skip
TEXTS = ("text", "sentence", "content", "text_a", "review", "comment", "body", "message", "tweet", "title", "document")
LABELS = (
    "label", "labels", "class", "category", "target", "sentiment", "score", "stars", "rating", "gold_label",
    "is_duplicate", "y",
)  # fmt: skip
WORDS = ("tokens", "words")
TAGS = ("ner_tags", "tags", "labels", "label", "ner", "pos_tags")
OPTIONS = ("options", "choices", "endings", "candidates", "choice")
CONTEXTS = (
    "context", "article", "passage", "ctx", "sent1", "startphrase", "premise", "sentence", "text", "texta", "paragraph",
)  # fmt: skip
ANSWERS = ("answers", "answer", "answer_text")
QUESTIONS = ("question", "question_stem", "stem", "sent2", "query", "goal")
IDS = ("id", "idx", "index", "guid")
_SAMPLE = 2000
_WORDS_BY_LINE = (".bio", ".iob", ".iob2", ".conll", ".bmes", ".bioes")
_TELLING = (*tables.RECORDS, ".ndjson", ".txt")  # suffixes that say how a file is to be read


@dataclass(frozen=True, kw_only=True)
class Given:
    """What the user said about the columns; None is inferred."""

    form: Form | None = None
    text: str | None = None
    pair: str | None = None
    label: str | None = None
    id: str | None = None


def task_of(path: Path, given: Given | None = None) -> tuple[Task, str]:
    """The task that ``path`` holds, and one line that says what was inferred.

    Raises:
        ConfigError: a given form or column does not fit the file.
        DataError: the columns tell no form; the message says how to give them.
    """
    given = given or Given()
    if given.form is not None and given.form not in FORMS:
        raise ConfigError(f"form {given.form!r}{nearest(given.form, FORMS)}")
    remarks = Remarks(path)
    columns = tables.columns(path, remarks)
    named = [name for name in (given.text, given.pair, given.label, given.id) if name is not None]
    for name in named:
        if name not in columns and not name.isdigit():
            raise ConfigError(f"{path}: no column {name!r}{nearest(name, columns)}")
    number, word = (next((name for name in named if name.isdigit() == digits), None) for digits in (True, False))
    if number is not None and word is not None and number not in columns:
        raise ConfigError(
            f"{path}: column {word!r} has a name and column {number} a number; give all names, or, where the first row "
            f"is no header, all numbers"
        )
    layout, form, words = _layout(path, columns, given)
    if isinstance(layout, Columns) and layout.label in layout.needs:
        raise ConfigError(f"{path}: {layout.label!r} is text and label at once; give another --text or --label")
    raw = dataclasses.replace(layout, scheme=None) if isinstance(layout, (Conll, WordLists)) else layout
    sample = list(islice(examples(raw, path, remarks), _SAMPLE))
    labels, metrics = (
        None,
        {"tagging": ("f1", "precision", "recall", "accuracy"), "span": ("f1", "exact")}.get(form, ("accuracy",)),
    )
    if form == "classification" and given.form is None and _is_regression(layout, sample):
        form = "regression"
    if form == "regression":
        metrics = ("spearman", "pearson")
    elif form == "classification":
        metrics = ("accuracy", "macro_f1")
    elif form == "tagging" and not _has_prefixes(sample):
        layout, metrics, words = raw, ("accuracy", "macro_f1"), f"{words}; not all tags have prefixes (B-, I-, ...)"
    task = Task(name=path.name.split(".")[0], form=form, layouts=(layout,), labels=labels, metrics=metrics)
    return task, f"{path.name}: {form} ({FORMS[form]}), {words}"


def with_labels(task: Task, train: Split) -> Task:
    """``task`` with the labels of its training data, if it names none itself; they are always written as there.

    Raises:
        DataError: a single label, from which nothing can be learned, or a number that is written in two ways.
    """
    if task.labels is not None or task.form not in ("classification", "tagging"):
        return task
    labels = labels_of(train.examples)
    if len(labels) < 2:
        raise DataError(f"{', '.join(train.files)}: only one label ({', '.join(labels)}); training needs at least two")
    twice = next((label for label in labels if f"{label}.0" in labels), None)
    if twice is not None:
        raise DataError(
            f"{', '.join(train.files)}: labels {twice!r} and '{twice}.0' are one number; write it in one way"
        )
    if task.form == "tagging":
        labels = _completed(labels)
    metrics = task.metrics
    if task.form == "classification" and len(labels) == 2 and "macro_f1" in metrics:
        metrics = ("accuracy", "f1", "matthews")
    return dataclasses.replace(task, labels=labels, metrics=metrics, indices=False)


def hold_out(split: Split, share: float = 0.1) -> tuple[Split, Split]:
    """Training and validation part of a file that has no validation file of its own.

    A text goes to the part that a hash of it says, so equal texts are never in both, and the cut does not depend on
    the order or on what else is in the file.
    """
    kept: list[Example] = []
    held: list[Example] = []
    for example in split.examples:
        key = _source(example) or example.id
        digest = hashlib.blake2b(key.encode(errors="surrogatepass"), digest_size=8).digest()
        fraction = int.from_bytes(digest, "big") / 2**64
        (held if fraction < share else kept).append(example)
    if not held or not kept:
        raise DataError(
            f"{', '.join(split.files)}: {len(split)} examples, those of one text together, are too few to hold out a "
            f"validation part; give one with --dev"
        )
    return dataclasses.replace(split, examples=tuple(kept)), dataclasses.replace(
        split, name="dev", examples=tuple(held)
    )


def without_fillers(test: Split, train: Split) -> Split:
    """``test`` without labels if they are numbers that are all -1, and training has none below 0."""
    numbers, learned = (
        [example.label for example in split.examples if isinstance(example, Text) and isinstance(example.label, float)]
        for split in (test, train)
    )
    if set(numbers) != {-1.0} or len(numbers) < len(test) or min(learned, default=-1.0) < 0:
        return test
    said = f"{Path(test.files[0]).name}: every label is -1; read as a test file without labels"
    examples = tuple(dataclasses.replace(example, label=None) for example in test.examples)
    return dataclasses.replace(test, examples=examples, remarks=(*test.remarks, said))


def _source(example: Example) -> str:
    """The text that an example is about."""
    if isinstance(example, Text):
        return example.text
    if isinstance(example, Words):
        return " ".join(example.words)
    return example.passage if isinstance(example, Question) else example.context


def _layout(path: Path, columns: Sequence[str], given: Given) -> tuple[Layout, Form, str]:
    """Layout, form, and the words that describe them."""
    kind = tables.suffix(path)
    lower = {name.strip().lower(): name for name in columns}
    named_id = given.id or _first(IDS, lower)
    named = given.form is None and given.text is None and {"question", "context"} <= set(lower) and not _options(lower)
    if (given.form == "span" or named) and (found := _passages(lower, given)):
        return found
    other = kind not in _TELLING
    if not columns and given.form in (None, "span") and (kind == ".json" or other and tables.starts_with(path, "{")):
        return Squad(), "span", "SQuAD's nested form"
    if given.form == "tagging" or given.form is None and (given.text is None or kind in _WORDS_BY_LINE):
        words = given.text or _first(WORDS, lower)
        tags = given.label or _first(TAGS, lower)
        if words and words in columns and (tags or given.form == "tagging"):  # without tags there is what to predict
            said = f"words = {words!r}" + (f", tags = {tags!r}" if tags else "")
            return WordLists(words=words, tags=tags), "tagging", said
        if kind in _WORDS_BY_LINE or (
            (other or kind in (".txt", ".tsv")) and (given.form == "tagging" or _word_per_line(path))
        ):
            return _word_columns(path, given)
        if kind in (".json", ".jsonl") and words is None and "text" in columns and _nested_spans(path):
            return CharacterSpans(), "tagging", "spans of characters by type"
    if (given.form == "choice" or given.form is None and given.text is None) and (options := _options(lower)):
        return _choice(path, columns, lower, given, options, named_id)
    if given.form in ("tagging", "span", "choice"):
        raise DataError(
            f"{path}: columns {', '.join(columns) or '(none)'} do not hold {FORMS[given.form]}; "
            f"rename them, name them with --text, --pair and --label, or convert the file"
        )
    return _text_columns(path, columns, lower, given, named_id)


def _passages(lower: dict[str, str], given: Given) -> tuple[Layout, Form, str] | None:
    """A question about a passage and its answers in columns; None without columns of passages and questions."""
    passage = given.text or _first(CONTEXTS, lower)
    question = given.pair or _first([name for name in QUESTIONS if lower.get(name) != passage], lower)
    if passage is None or question is None:
        return None
    answer = given.label or _first(ANSWERS, lower) or ANSWERS[0]
    said = f"{question} about {passage}" + (f", answer = {answer!r}" if answer in lower.values() else "")
    return Squad(context=passage, question=question, answer=answer), "span", said


def _word_columns(path: Path, given: Given) -> tuple[Layout, Form, str]:
    """A word per line: in the column that is given, else in the first, or in the second where the first counts the
    words of every sentence; its tag in the column that is given, else in the last.
    """
    for flag, name in (("--text", given.text), ("--label", given.label)):
        if name is not None and not name.isdigit():
            raise ConfigError(f"{path}: columns beside a word have no names; give {flag} a number, the first is 0")
    word = int(given.text) if given.text else int(_counts_words(path))
    tag = int(given.label) if given.label else -1
    place, its = f" in column {word}" if word else "", "the last column" if tag < 0 else f"column {tag}"
    return Conll(word=word, tag=tag), "tagging", f"one word per line{place}, its tag in {its}"


def _text_columns(
    path: Path, columns: Sequence[str], lower: dict[str, str], given: Given, named_id: str | None
) -> tuple[Layout, Form, str]:
    """The columns of text, second text and label: those given, else by their names; also the form, and a sentence that
    says what was found.

    Raises:
        DataError: no column is known to be the text.
    """
    text, pair = given.text, given.pair
    label = given.label or _first([name for name in LABELS if lower.get(name) not in (text, pair)], lower)
    if text is None:
        first, second = next(
            ((lower[a.lower()], lower[b.lower()]) for a, b in PAIRS if a.lower() in lower and b.lower() in lower),
            (None, None),
        )
        text = first or _first(TEXTS, lower)
        pair = pair or (second if first else None)
    if text is None and len(columns) == 2 and label is not None:
        text = next(name for name in columns if name != label)
    if not columns and tables.suffix(path) not in _TELLING:
        raise DataError(f"{path}: its name does not tell what it holds; let it end in .csv, .tsv, .jsonl or .parquet")
    if not columns:
        raise DataError(f"{path}: holds no rows with columns; give a table with a header, or records of JSON")
    if text is None:
        raise DataError(
            f"{path}: which of the columns {', '.join(map(repr, columns[:12]))} is the text? say so: "
            f"--text COLUMN [--pair COLUMN] --label COLUMN; columns of a file without a header are 0, 1, ..."
        )
    words = (
        f"text = {text!r}" + (f", second text = {pair!r}" if pair else "") + (f", label = {label!r}" if label else "")
    )
    form: Form = given.form or "classification"
    return Columns(text=text, pair=pair, label=label, id=named_id if named_id != text else None), form, words


def id_column(columns: Sequence[str], taken: Sequence[str]) -> str | None:
    """The column that is called as ids are, if it is none of those that are ``taken``."""
    return _first(IDS, {name.strip().lower(): name for name in columns if name not in taken})


def _first(names: Sequence[str], lower: dict[str, str]) -> str | None:
    return next((lower[name.lower()] for name in names if name.lower() in lower), None)


def _options(lower: dict[str, str]) -> tuple[str, ...]:
    """The column of the list of options, or the columns ending0, ending1, ... (option1, ..., choice_a, ...) that hold
    one each."""
    for name in OPTIONS:
        if name in lower:
            return (lower[name],)
    for stem in ("ending", "choice", "option", "answer", "candidate"):
        found = ((name, re.fullmatch(rf"{stem}_?(\d+|[a-z])", name)) for name in lower)
        places = {
            int(match[1]) if match[1].isdigit() else ord(match[1]) - ord("a"): lower[name]
            for name, match in found
            if match
        }
        if len(places) > 1 and sorted(places) == list(range(min(places), min(places) + len(places))):
            return tuple(places[place] for place in sorted(places))
    letters = [letter for letter in "abcdefgh" if letter in lower]
    return tuple(lower[letter] for letter in letters) if letters[:3] == ["a", "b", "c"] else ()


def _choice(
    path: Path,
    columns: Sequence[str],
    lower: dict[str, str],
    given: Given,
    options: tuple[str, ...],
    named_id: str | None,
) -> tuple[Layout, Form, str]:
    """Multiple choice whose answers are read as all of them in the file say."""
    answer = given.label or _first(("answer", "label", "answerkey", "correct"), lower) or "label"
    context = given.text or _first(CONTEXTS, lower)
    question = given.pair or _first([name for name in QUESTIONS if lower.get(name) != context], lower)
    if context is None and question is None:
        raise DataError(
            f"{path}: which of the columns {', '.join(map(repr, columns[:12]))} are the options {', '.join(options)} "
            f"for? say so: --form choice --text COLUMN [--pair COLUMN]"
        )
    layout = Options(context=context, question=question, options=options, answer=answer, id=named_id)
    try:
        layout, said = layout.judged(path)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):
        said = "not readable in every row"  # reading it as examples names the row
    asked = ", ".join(f"{name} = {value!r}" for name, value in (("context", context), ("question", question)) if value)
    return layout, "choice", f"{asked}, options = {', '.join(options)}, answer = {answer!r} ({said})"


def _is_regression(layout: Layout, sample: Sequence[Example]) -> bool:
    """Numbers that are not all whole, or a column named score with more than 20 different ones. Numbers with a decimal
    comma are meant as such too; reading them says how to write them.
    """
    if not isinstance(layout, Columns):
        return False
    raw = {str(example.label) for example in sample if isinstance(example, Text) and example.label is not None}
    raw = {label.replace(",", ".") if re.fullmatch(DECIMAL_COMMA, label) else label for label in raw}
    try:
        numbers = {float(label) for label in raw}
    except ValueError:
        return False
    whole = all(number.is_integer() for number in numbers)
    named = (layout.label or "").lower() in ("score", "rating", "target", "y")
    return bool(numbers) and (not whole or (named and len(numbers) > 20))


def _has_prefixes(sample: Sequence[Example]) -> bool:
    """Whether most tags have; one that has none is then a mistake, which reading them names."""
    tags = [tag for example in sample if isinstance(example, Words) for tag in example.tags or () if tag != "O"]
    return not tags or 2 * sum(tag[:1] in "BIMELSWU" and tag[1:2] in ("-", "") for tag in tags) > len(tags)


def _completed(tags: tuple[str, ...]) -> tuple[str, ...]:
    """Tags with the B and I of every type, since a validation file may hold the one that training lacks, and ``O``."""
    if not all(tag == "O" or tag[:2] in ("B-", "I-") for tag in tags):
        return tags
    kinds = sorted({tag[2:] for tag in tags if tag != "O"})
    return ("O", *(f"{prefix}-{kind}" for kind in kinds for prefix in "BI"))


def _word_per_line(path: Path) -> bool:
    """Whether the first lines are short columns with blank lines or document marks between them."""
    widths = Counter(len(cells_of(line)) for _, line in islice(tables.lines(path), 300))
    blanks = widths.pop(0, 0)
    width, usual = max(widths.items(), key=lambda item: item[1], default=(0, 0))
    return blanks > 0 and 2 <= width <= 10 and usual > 0.9 * widths.total()


def _counts_words(path: Path) -> bool:
    """Whether the first of at least three columns counts the words of every sentence, as in CoNLL-U and GermEval."""
    lines = (line for _, line in islice(tables.lines(path), 300) if not line.startswith("#"))
    sentences = [list(rows) for filled, rows in groupby(map(cells_of, lines), bool) if filled]
    sentences = [rows for rows in sentences if rows[0][0] != "-DOCSTART-"]
    counted = all(cells[0] == str(i) and len(cells) > 2 for rows in sentences for i, cells in enumerate(rows, start=1))
    return counted and any(len(rows) > 1 for rows in sentences)


def is_word_per_line(path: Path, tags: Sequence[str]) -> bool:
    """Whether a plain text to be tagged holds a word per line, rather than a text: its lines end with ``tags``, or have
    one number of columns and blank lines between them. Judged on the first lines.

    Raises:
        DataError: it could be either.
    """
    lines = [line for _, line in islice(tables.lines(path), 300)]
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
        f"{path}: a text or a word per line? for texts leave out blank lines and tabs, for words let its name end in "
        f".conll"
    )


def _nested_spans(path: Path) -> bool:
    first = next(iter(tables.records(path)), None)
    return first is not None and isinstance(first.fields.get("label"), dict)
