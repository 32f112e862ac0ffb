"""Layouts of multiple choice."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from encoderlab.errors import DataError
from encoderlab.tasks.data import records as tables
from encoderlab.tasks.data.examples import Choice, Remarks
from encoderlab.tasks.data.readers.common import (
    Layout,
    id_of,
    label_of,
    nested,
    nested_value,
    records,
    text_of,
)
from encoderlab.tasks.data.records import Record


@dataclass(frozen=True, kw_only=True)
class Options(Layout):
    """Multiple choice in columns: one column per option, or one column that holds the list of them.

    A column is a name, or a number (``"3"``, from 0) for a table without a header. Empty options at the end are left
    out; those before others are kept, so that predictions are numbers of the file's options.

    Args:
        answer: the column with the letter, the number, the name or the text of the correct option; None reads no
            answers.
        id: None takes the number of the row in the file, from 0.
        first_number: the number of the first option.
        by_text: answers are always texts, even if one looks like a letter or a number.
    """

    context: str | None
    question: str | None = None
    options: tuple[str, ...] = ("options",)
    answer: str | None = "label"
    id: str | None = None
    first_number: int = 0
    by_text: bool = False

    @property
    def needs(self) -> tuple[str, ...]:
        return tuple(name for name in (self.context, self.question, *self.options) if name is not None)

    @property
    def label_column(self) -> str | None:
        return self.answer

    def unlabelled(self) -> Self:
        return replace(self, answer=None)

    def read(self, path: Path, remarks: Remarks) -> Iterator[Choice]:
        for record in records(path, remarks, self.needs, self.answer, self.id, positional=self.positional):
            options, keys = self._options(record)
            answer = _choice(self._answer(record), options, keys, self.first_number, self.by_text)
            kept = [i for i, option in enumerate(options) if option]
            if len(kept) < 2 or answer is not None and answer not in kept:
                remarks.add("fewer than two options, or an answer that is not an option; left out", record.row)
                continue
            if len(kept) < len(options):
                remarks.add("an empty option before others; kept as an option", record.row)
            yield Choice(
                id=id_of(record, self.id, remarks),
                context="" if self.context is None else _joined(record, self.context, path),
                question="" if self.question is None else text_of(record, self.question, path),
                options=tuple(options),
                answers=None if answer is None else (answer,),
                row=record.row,
            )

    def judged(self, path: Path) -> tuple[Options, str]:
        """This layout with ``first_number`` and ``by_text`` inferred from all answers of the file; and a description.

        Numbers count from 1 if they are never 0 and some name the last option. Answers are texts if all of them are the
        text of an option and some cannot be read as its letter or number.
        """
        remarks = Remarks(path)
        numbers: set[int] = set()
        last = False  # whether an answer is the number of its example's options
        places = texts = total = 0  # counts of answers: a letter, number or name of an option; a text; all
        for record in records(path, remarks, self.needs, self.answer, positional=self.positional):
            options, keys = self._options(record)
            answer = self._answer(record)
            if answer is None:
                continue
            total += 1
            texts += answer in options
            if answer in keys:
                places += 1
            elif (number := _number(answer, options)) is not None:
                places += number <= len(options)
                last = last or number == len(options)
                numbers.add(number)
            else:
                places += letter_place(answer) in range(len(options))
        if not total:
            return self, "no answers"
        if texts == total and places < total:
            return replace(self, by_text=True), "texts of options"
        first = int(0 not in numbers and last)
        return replace(self, first_number=first), f"numbers from {first}" if numbers else "letters or names of options"

    def _answer(self, record: Record) -> str | None:
        """The answer as written; None if there is none."""
        answer = "" if self.answer is None else (label_of(record.fields.get(self.answer)) or "").strip()
        return None if answer in ("", "-1") else answer

    def _options(self, record: Record) -> tuple[list[str], list[str]]:
        """The options up to the last that is not empty, and their names: those in the file (A, B, ...), or of their
        columns, but for numbers.
        """
        values = [record.fields[name] for name in self.options]
        by_column = len(values) > 1 and not any(name.isdecimal() for name in self.options)
        keys = list(self.options) if by_column else []
        if len(values) == 1:
            value = nested_value(values[0]) if isinstance(values[0], str) else values[0]
            if value is None:
                raise ValueError(f"{str(values[0])[:40]!r}, expected a list of options")
            if isinstance(value, dict):  # by name; in two lists in Hugging Face's ARC
                named = dict(zip(value["label"], value["text"], strict=True)) if "text" in value else value
                values, keys = list(named.values()), [str(name) for name in named]
            else:
                values = list(value)
        if (odd := next((value for value in values if isinstance(value, list | dict)), None)) is not None:
            raise TypeError(f"the option {odd!r:.40} is a {type(odd).__name__}, expected a text")
        options = [label_of(value) or "" for value in values]  # numbers as the answers are written
        while options and not options[-1]:
            options.pop()
        return options, keys


@dataclass(frozen=True, kw_only=True)
class Stems(Layout):
    """AI2's ARC: a question with its ``stem`` and its ``choices`` (``text`` and ``label`` each) in one object."""

    needs = ("question", "answerKey")

    def matches(self, columns: Sequence[str]) -> bool:
        return super().matches(columns) and "choices" not in columns

    def read(self, path: Path, remarks: Remarks) -> Iterator[Choice]:
        for record in nested(path, remarks):
            question, answer = record.fields["question"], label_of(record.fields.get("answerKey"))
            keys = [str(choice["label"]) for choice in question["choices"]]
            if answer and answer not in keys:
                remarks.add("an answer that is not an option; left out", record.row)
                continue
            yield Choice(
                id=id_of(record, "id", remarks),
                question=str(question["stem"]),
                options=tuple(str(choice["text"]) for choice in question["choices"]),
                answers=(keys.index(answer),) if answer else None,
                row=record.row,
            )


@dataclass(frozen=True, kw_only=True)
class Race(Layout):
    """RACE: an article with several questions, their options and the letters of the answers, one JSON file or record
    each."""

    needs = ("article", "questions", "options")

    def matches(self, columns: Sequence[str]) -> bool:
        return super().matches(columns) or not columns

    def read(self, path: Path, remarks: Remarks) -> Iterator[Choice]:
        for record in nested(path, remarks):
            fields = record.fields
            letters = fields.get("answers") or [None] * len(fields["questions"])
            for i, (question, options, letter) in enumerate(
                zip(fields["questions"], fields["options"], letters, strict=True)
            ):
                yield Choice(
                    id=f"{fields.get('id', path.stem)}-{i}",
                    context=fields["article"],
                    question=question,
                    options=tuple(options),
                    answers=None if letter is None else (ord(letter) - ord("A"),),
                    row=record.row,
                )


@dataclass(frozen=True, kw_only=True)
class C3(Layout):
    """C3: ``[[lines of text], [{question, choice, answer}, ...], id]``; two to four options."""

    def matches(self, columns: Sequence[str]) -> bool:
        return not columns

    def read(self, path: Path, remarks: Remarks) -> Iterator[Choice]:
        number = 0
        for remarks.row, (text, questions, name) in enumerate(tables.document(path), start=1):
            for item in questions:
                options = tuple(item["choice"])
                answer = item.get("answer")
                if answer not in (None, "") and answer not in options:
                    raise DataError(f"{path}: text {name}: answer {answer!r} is not an option; correct the file")
                number += 1
                yield Choice(
                    id=str(item.get("id", f"{path.name.split('.')[0]}-{number - 1}")),  # the names of texts repeat
                    context="\n".join(text),
                    question=item["question"],
                    options=options,
                    answers=(options.index(answer),) if answer else None,
                    row=remarks.row,
                )


@dataclass(frozen=True, kw_only=True)
class Cloze(Layout):
    """ChID of FewCLUE: which idiom belongs into the gap ``#idiom#``? The options are idioms, the text around the gap is
    the context.
    """

    gap: str = "#idiom#"
    needs = ("candidates", "content")

    def read(self, path: Path, remarks: Remarks) -> Iterator[Choice]:
        for record in nested(path, remarks):
            text, answer = text_of(record, "content", path), record.fields.get("answer")
            if self.gap not in text:
                raise DataError(f"{path}:{record.row}: no gap {self.gap} in the text; correct the row")
            yield Choice(
                id=id_of(record, "id", remarks),
                context=text,
                gap=self.gap,
                options=tuple(record.fields["candidates"]),
                answers=None if answer is None else (int(answer),),
                row=record.row,
            )


@dataclass(frozen=True, kw_only=True)
class IdiomGaps(Layout):
    """ChID of CLUE: texts with numbered gaps (``#idiom000378#``) and ten idioms for all of them.

    The answers are in a file next to it: ``train_answer.json`` has those of ``train.json`` by gap. Every gap is an
    example, and its name is the id.
    """

    needs = ("candidates", "content")

    def read(self, path: Path, remarks: Remarks) -> Iterator[Choice]:
        stem, _, ending = path.name.partition(".json")
        beside = path.with_name(f"{stem}_answer.json{ending}")
        answers = tables.document(beside) if beside.exists() else {}
        for record in nested(path, remarks):
            if isinstance(record.fields["content"], str):
                raise TypeError("'content' is one text, expected a list of them")
            for text in record.fields["content"]:
                for gap in re.findall(r"#idiom\d+#", text):
                    answer = answers.get(gap)
                    yield Choice(
                        id=gap,
                        context=text,
                        gap=gap,
                        options=tuple(record.fields["candidates"]),
                        answers=None if answer is None else (int(answer),),
                        row=record.row,
                    )


@dataclass(frozen=True, kw_only=True)
class Copa(Layout):
    """COPA: which of two sentences is the cause, or the effect, of the premise?"""

    needs = ("premise", "choice1", "choice2", "question")

    def read(self, path: Path, remarks: Remarks) -> Iterator[Choice]:
        asked = {"cause": "What was the cause of this?", "effect": "What happened as a result?"}
        for record in nested(path, remarks):
            answer = label_of(record.fields.get("label"))
            yield Choice(
                id=id_of(record, "idx", remarks),
                context=text_of(record, "premise", path),
                question=asked.get(record.fields["question"], record.fields["question"]),
                options=(record.fields["choice1"], record.fields["choice2"]),
                answers=None if answer in (None, "-1") else (int(answer),),
                row=record.row,
            )


@dataclass(frozen=True, kw_only=True)
class EntityCloze(Layout):
    """ReCoRD: which entity of the passage belongs at ``@placeholder`` of the query? The options are the distinct
    entities."""

    needs = ("passage", "qas")

    def matches(self, columns: Sequence[str]) -> bool:
        return "passage" in columns and ("qas" in columns or "query" in columns)

    def read(self, path: Path, remarks: Remarks) -> Iterator[Choice]:
        for record in nested(path, remarks):
            fields = record.fields
            passage = fields["passage"]
            if isinstance(passage, dict):
                text = passage["text"]
                names = [text[item["start"] : item["end"] + 1] for item in passage["entities"]]
                queries = fields["qas"]
            else:  # Hugging Face: one query per row
                text, names, queries = passage, fields["entities"], [fields]
            options = tuple(dict.fromkeys(names))
            for i, query in enumerate(queries):
                answers = query.get("answers") or None  # an empty list in Hugging Face's test files
                right = {item["text"] if isinstance(item, dict) else item for item in answers or ()}
                places = tuple(j for j, option in enumerate(options) if option in right)
                if answers and not places:
                    remarks.add("no answer is an entity of the passage; left out", record.row)
                    continue
                index = query.get("idx", f"{remarks.number}-{i}")
                yield Choice(
                    id=str(index["query"] if isinstance(index, dict) else index),  # an object at Hugging Face
                    context=text.replace("\n@highlight\n", " "),
                    question=query["query"],
                    options=options,
                    answers=places if answers is not None else None,
                    gap="@placeholder",
                    row=record.row,
                )


def _choice(
    answer: str | None, options: Sequence[str], keys: Sequence[str], first_number: int, by_text: bool
) -> int | None:
    """Index of the correct option; None without an answer, -1 if the answer is not an option."""
    if answer is None:
        return None
    if answer in keys:
        return keys.index(answer)
    number = _number(answer, options)
    place = letter_place(answer) if number is None else number - first_number
    if place in range(len(options)) and not by_text:
        return place
    return options.index(answer) if answer in options else -1


def _number(answer: str, options: Sequence[str]) -> int | None:
    """The number that names an option; None if the answer is not one."""
    if answer.isdecimal():
        return int(answer)
    whole = re.fullmatch(r"(\d+)\.0", answer)  # as pandas writes numbers of a column with gaps
    return int(whole[1]) if whole and answer not in options else None


def _joined(record: Record, column: str, path: Path) -> str:
    """A text, or the lines of one."""
    lines = record.fields.get(column)
    if isinstance(lines, list) and all(isinstance(line, str) for line in lines):
        return "\n".join(lines)
    return text_of(record, column, path)


def letter_place(answer: str) -> int:
    """0 for A, 1 for B, ...; -1 for anything else."""
    return ord(answer.upper()) - ord("A") if len(answer) == 1 and answer.isascii() and answer.isalpha() else -1
