"""The examples of labelled data: one dataclass per kind, the split that contains them, and the remarks of a reader."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from encoderlab.errors import OutOfMemory, is_out_of_memory


@dataclass(frozen=True, kw_only=True, slots=True)
class Example:
    """One example of labelled data: its id, and the line of the file where it begins, from 1.

    Class attributes:
        answer: the field with the gold answer.
        seen: the fields that a model sees, the main text first.
    """

    answer: ClassVar[str]
    seen: ClassVar[tuple[str, ...]]
    id: str
    row: int = 0

    @property
    def reference(self) -> Any:
        """The gold answer; None if the example is unlabelled, as in a test file."""
        return getattr(self, self.answer)

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of classes or tags in the reference; empty for other kinds of answers."""
        return ()

    @property
    def source(self) -> str:
        """The text of the example."""
        return self.content[0]

    @property
    def content(self) -> tuple[Any, ...]:
        """Everything that a model sees of the example."""
        return tuple(getattr(self, name) for name in self.seen)

    @property
    def texts(self) -> tuple[object, ...]:
        """The fields that must be texts; readers do not check them."""
        return ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Text(Example):
    """One or two texts with a label: a class name (classification), a number (regression), names of several classes
    (multilabel), or None if unlabelled.
    """

    answer: ClassVar[str] = "label"
    seen: ClassVar[tuple[str, ...]] = ("text", "pair")
    text: str
    pair: str | None = None
    label: str | float | tuple[str, ...] | None = None
    group: str = ""  # examples that are scored together: the question of a MultiRC answer

    @property
    def labels(self) -> tuple[str, ...]:
        if isinstance(self.label, tuple):
            return self.label
        return () if self.label is None else (str(self.label),)

    @property
    def texts(self) -> tuple[object, ...]:
        return (self.text,) if self.pair is None else (self.text, self.pair)


@dataclass(frozen=True, kw_only=True, slots=True)
class TaggedWords(Example):
    """A sentence of words with one tag each; ``document`` is the number of its document within the file."""

    answer: ClassVar[str] = "tags"
    seen: ClassVar[tuple[str, ...]] = ("words",)
    words: tuple[str, ...]
    tags: tuple[str, ...] | None = None
    document: int = 0
    by_line: bool = False  # every word has its own line, starting at ``row``

    @property
    def labels(self) -> tuple[str, ...]:
        return self.tags or ()

    @property
    def source(self) -> str:
        return " ".join(self.words)


@dataclass(frozen=True, slots=True)
class Answer:
    """A reference answer and the character of the passage where it starts; -1 if the passage does not contain it."""

    text: str
    start: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Question(Example):
    """A question about a passage. ``answers`` is empty if the passage has none, and None if unlabelled."""

    answer: ClassVar[str] = "answers"
    seen: ClassVar[tuple[str, ...]] = ("passage", "question")
    question: str
    passage: str
    answers: tuple[Answer, ...] | None = None

    @property
    def texts(self) -> tuple[object, ...]:
        return self.question, self.passage


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice(Example):
    """A context and a question (either may be empty) with options to choose from.

    ``answers`` are the indices of the correct options, None if unlabelled. ``gap`` is the string in the context or in
    the question that an option replaces.
    """

    answer: ClassVar[str] = "answers"
    seen: ClassVar[tuple[str, ...]] = ("context", "question", "options")
    context: str = ""
    question: str = ""
    options: tuple[str, ...]
    answers: tuple[int, ...] | None = None
    gap: str = ""

    @property
    def texts(self) -> tuple[object, ...]:
        return self.context, self.question, *self.options


def is_unlabelled(example: Example) -> bool:
    """Whether the example has no reference, as in a test file."""
    return example.reference is None


def labels_of(examples: Sequence[Example]) -> tuple[str, ...]:
    """The labels or tags that occur: in numerical order if all are numbers, else by name with ``O`` first.

    Equal numbers (1 and 01) are in the order of their names, so that every process has the same order.
    """
    labels = sorted({label for example in examples for label in example.labels})
    try:
        return tuple(sorted(labels, key=float))
    except ValueError:
        return tuple(sorted(labels, key=lambda label: (label != "O", label)))


def in_parts(examples: Iterable[Any], *, most: int, characters: int) -> Iterator[list[Any]]:
    """Consecutive examples: at most ``most``, and none after ``characters`` of text are reached."""
    part: list[Any] = []
    size = 0
    for example in examples:
        part.append(example)
        size += sum(map(len, _strings(example.content)))
        if len(part) == most or size >= characters:
            yield part
            part, size = [], 0
    if part:
        yield part


LONG = 1 << 20  # characters; below, a text alone does not take all memory


@contextmanager
def naming_the_longest(examples: Sequence[Example]) -> Iterator[None]:
    """A context in which a lack of memory names the longest text, if it is very long.

    Raises:
        OutOfMemory: with its row.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        sizes = [sum(map(len, _strings(example.content))) for example in examples]
        if not is_out_of_memory(error) or max(sizes, default=0) < LONG:
            raise
        longest = examples[sizes.index(max(sizes))]
        raise OutOfMemory(
            f"row {longest.row}: out of memory, and its text has {max(sizes):,} characters; shorten or remove it"
        ) from None


def _strings(content: object) -> Iterator[str]:
    if isinstance(content, str):
        yield content
    elif isinstance(content, tuple):
        for part in content:
            yield from _strings(part)


@dataclass(frozen=True, kw_only=True)
class Split:
    """The examples of one file, or of several read as one; ``sha256`` is the hash of the files' bytes."""

    name: str
    examples: tuple[Any, ...]
    files: tuple[str, ...]
    sha256: str
    remarks: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.examples)


@dataclass(frozen=True, kw_only=True, slots=True)
class GivenPrediction:
    """One prediction in a file of another program: its line (0 if one JSON value has all), and its example's id.

    The id is None if predictions are in the order of the examples; ``counted``: it may be an index.
    """

    path: Path
    row: int
    value: Any
    id: str | None = None
    counted: bool = False

    @property
    def place(self) -> str:
        """File, line and id, as far as known."""
        line = f"{self.path}:{self.row}" if self.row else str(self.path)
        return line if self.id is None else f"{line}, id {self.id!r}"


class Remarks:
    """Problems that a reader recovered from: counted by message, each with its first row.

    The reader stores two positions here: ``row``, the line of the file being read, and ``number``, the index of the
    record. ``first`` is the index of the file's first record, above 0 if other files of the split precede it.
    """

    def __init__(self, path: Path, first: int = 0) -> None:
        self.path = path
        self.row = 0
        self.first = first
        self.number = first - 1
        self.counts: dict[str, tuple[int, int]] = {}

    def add(self, message: str, row: int) -> None:
        """Count a problem of one row."""
        count, first = self.counts.get(message, (0, row))
        self.counts[message] = (count + 1, first)

    def note(self, message: str) -> None:
        """Add a remark about the whole file."""
        self.counts[message] = (0, 0)

    def lines(self) -> tuple[str, ...]:
        """One line per message: ``"train.tsv: 3 rows: no text (first: row 17)"``."""
        return tuple(
            f"{self.path.name}: {count:,} row{'s' * (count > 1)}: {message} (first: row {row})"
            if count
            else f"{self.path.name}: {message}"
            for message, (count, row) in self.counts.items()
        )
