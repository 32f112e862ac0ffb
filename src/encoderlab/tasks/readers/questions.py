"""Layouts of questions about passages and of multiple choice."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from encoderlab.errors import DataError
from encoderlab.tasks import tables
from encoderlab.tasks.base import Answer, Choice, Question, Remarks
from encoderlab.tasks.readers.common import TABLES, holds, id_of, label_of, nearest_place, nested, records, text_of
from encoderlab.tasks.tables import Record


@dataclass(frozen=True, kw_only=True)
class Squad:
    """Questions about passages: SQuAD's nested JSON (1.1, 2.0, CMRC, DRCD, TriviaQA, NewsQA), one question per record,
    or a list of passages with their questions (CMRC 2018 as its authors first published it).

    An answer that does not stand at its offset is moved to its nearest mention; one that stands nowhere keeps its
    text for scoring and cannot be trained on. Both are counted. Case may differ: TriviaQA's answers are in lower case.
    ``context``, ``question`` and ``answer`` are the columns of records, or numbers for a table without a header;
    answers may also stand in ``answer``.
    """

    context: str = "context"
    question: str = "question"
    answer: str = "answers"

    @property
    def positional(self) -> bool:
        return all(name.isdigit() for name in self.needs)

    @property
    def needs(self) -> tuple[str, ...]:
        return (self.context, self.question)

    def matches(self, columns: Sequence[str]) -> bool:
        found = holds(columns, self.needs, self.positional, None) if columns else True
        return found or {"context_text", "qas"} <= set(columns)

    def read(self, path: Path, remarks: Remarks) -> Iterator[Question]:
        if tables.suffix(path) not in (*TABLES, ".parquet") and tables.is_document(path):
            yield from self._nested(path, remarks)
            return
        for record in records(path, remarks, self.needs, positional=self.positional, quoted=True):
            for qa in record.fields.get("qas", ()):
                passage = text_of(record, "context_text", path)
                answers = self._answers(qa)
                yield self._question(qa["query_id"], qa["query_text"], passage, answers, record.row, path, remarks)
            if "qas" in record.fields:
                continue
            question, passage = (text_of(record, name, path) for name in (self.question, self.context))
            answers = self._answers(record.fields)
            yield self._question(id_of(record, "id", remarks), question, passage, answers, record.row, path, remarks)

    def _answers(self, fields: dict[str, Any]) -> list[dict] | None:
        """The answers of a record: SQuAD's list, Hugging Face's two lists, or texts with or without their offset."""
        answers = fields.get(self.answer, fields.get("answer"))
        if isinstance(answers, dict):
            starts = answers.get("answer_start") or [None] * len(answers["text"])
            return [{"text": text, "answer_start": start} for text, start in zip(answers["text"], starts, strict=True)]
        if isinstance(answers, str):
            answers = [answers] if answers else []
        if not isinstance(answers, list | None):
            raise TypeError(f"the answer {answers!r} is neither a text nor a list of them")
        start = fields.get("answer_start")
        return answers and [
            {"text": answer, "answer_start": None if start == "" else start} if isinstance(answer, str) else answer
            for answer in answers
        ]

    def _nested(self, path: Path, remarks: Remarks) -> Iterator[Question]:
        data = tables.document(path)
        if not isinstance(data, dict) or not isinstance(data.get("data"), list):
            raise DataError(f"{path}: no list 'data'; expected SQuAD's form: data, paragraphs, qas")
        for article in data["data"]:
            for paragraph in article["paragraphs"]:
                for qa in paragraph["qas"]:
                    remarks.row += 1
                    answers = [] if str(qa.get("is_impossible")).lower() in ("true", "1") else qa.get("answers")
                    yield self._question(
                        str(qa["id"]), qa["question"], paragraph["context"], answers, remarks.row, path, remarks
                    )

    @staticmethod
    def _question(
        id: str, question: str, passage: str, answers: list[dict] | None, row: int, path: Path, remarks: Remarks
    ) -> Question:
        if not passage.strip():
            raise DataError(f"{path}:{row}: question {id!r} has an empty passage; leave it out")
        found = []
        said = set()  # once for a question, whose answers are often the same words
        for answer in answers or ():
            text, given = str(answer["text"]), answer.get("answer_start")
            start = -1 if given is None else int(given)
            if start < 0 or passage[start : start + len(text)].lower() != text.lower():
                start = nearest_place(passage, text.strip(), start)
                if start < 0:
                    said.add("an answer does not stand in the passage; it is scored but not trained on")
                elif given is not None:
                    said.add("an answer stands elsewhere than its offset says; the nearest mention is taken")
            found.append(Answer(text, start))
        for remark in sorted(said):
            remarks.add(remark, row)
        return Question(
            id=id, question=question, passage=passage, answers=None if answers is None else tuple(found), row=row
        )


@dataclass(frozen=True, kw_only=True)
class Options:
    """Multiple choice in columns: one column per option, or one column that holds the list of them.

    The answer is a letter, a number that counts from ``first_number``, or the text of the option; ``by_text``: always
    the text; None: nowhere. A column is a name, or a number for a table without a header. Options that are empty are
    left out.
    """

    context: str | None
    question: str | None = None
    options: tuple[str, ...] = ("options",)
    answer: str | None = "label"
    id: str | None = None
    first_number: int = 0
    by_text: bool = False

    @property
    def positional(self) -> bool:
        return self.options[0].isdigit()

    @property
    def needs(self) -> tuple[str, ...]:
        return tuple(name for name in (self.context, self.question, *self.options) if name is not None)

    def matches(self, columns: Sequence[str]) -> bool:
        return holds(columns, self.needs, self.positional, self.answer)

    def read(self, path: Path, remarks: Remarks) -> Iterator[Choice]:
        for record in records(path, remarks, self.needs, self.answer, positional=self.positional):
            options, keys = self._options(record)
            answer = _choice(self._answer(record), options, keys, self.first_number, self.by_text)
            kept = [i for i, option in enumerate(options) if option]
            if len(kept) < 2 or answer is not None and answer not in kept:
                remarks.add("fewer than two options, or an answer that is none of them; left out", record.row)
                continue
            yield Choice(
                id=id_of(record, self.id, remarks),
                context="" if self.context is None else _joined(record, self.context, path),
                question="" if self.question is None else text_of(record, self.question, path),
                options=tuple(options[i] for i in kept),
                answers=None if answer is None else (kept.index(answer),),
                row=record.row,
            )

    def judged(self, path: Path) -> tuple[Options, str]:
        """This layout with ``first_number`` and ``by_text`` as all answers of the file say, and those in words.

        Numbers that reach the number of options, and never 0, count from 1. Answers are texts if all are the text of
        an option and not all are letters or numbers of one.
        """
        remarks = Remarks(path)
        numbers: set[int] = set()
        most = places = texts = total = 0
        for record in records(path, remarks, self.needs, self.answer, positional=self.positional):
            options, keys = self._options(record)
            answer = self._answer(record)
            if answer is None:
                continue
            total += 1
            texts += answer in options
            if answer in keys:
                places += 1
            elif answer.isdigit():
                places += int(answer) <= len(options)
                most = max(most, len(options))
                numbers.add(int(answer))
            else:
                places += _letter(answer) in range(len(options))
        if not total:
            return self, "no answers"
        if texts == total and places < total:
            return replace(self, by_text=True), "texts of options"
        first = int(0 not in numbers and most in numbers)
        return replace(self, first_number=first), f"numbers from {first}" if numbers else "letters or names of options"

    def _answer(self, record: Record) -> str | None:
        answer = "" if self.answer is None else (label_of(record.fields.get(self.answer)) or "").strip()
        return None if answer in ("", "-1") else answer

    def _options(self, record: Record) -> tuple[list[str], list[str]]:
        """The options, "" for an empty one, and what the file calls them (A, B, ...)."""
        values = [record.fields[name] for name in self.options]
        keys: list[str] = []
        if len(values) == 1:
            value = values[0]
            if isinstance(value, dict):  # Hugging Face's ARC: {"text": [...], "label": ["A", ...]}
                values, keys = list(value["text"]), [str(key) for key in value["label"]]
            else:
                values = json.loads(value) if isinstance(value, str) else list(value)
        return ["" if value is None else str(value) for value in values], keys


@dataclass(frozen=True, kw_only=True)
class Stems:
    """AI2's ARC: a question with its ``stem`` and its ``choices`` (``text`` and ``label`` each) in one object."""

    needs = ("question", "answerKey")

    def matches(self, columns: Sequence[str]) -> bool:
        return set(self.needs) <= set(columns) and "choices" not in columns

    def read(self, path: Path, remarks: Remarks) -> Iterator[Choice]:
        for record in nested(path, remarks):
            question, answer = record.fields["question"], label_of(record.fields.get("answerKey"))
            keys = [str(choice["label"]) for choice in question["choices"]]
            if answer and answer not in keys:
                remarks.add("an answer that is none of the options; left out", record.row)
                continue
            yield Choice(
                id=id_of(record, "id", remarks),
                context="",
                question=str(question["stem"]),
                options=tuple(str(choice["text"]) for choice in question["choices"]),
                answers=(keys.index(answer),) if answer else None,
                row=record.row,
            )


@dataclass(frozen=True, kw_only=True)
class Race:
    """RACE: an article with several questions, their options and the letters of the answers, one JSON file or record
    each."""

    needs = ("article", "questions", "options")

    def matches(self, columns: Sequence[str]) -> bool:
        return set(self.needs) <= set(columns) or not columns

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
class C3:
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
                    raise DataError(f"{path}: text {name}: answer {answer!r} is none of its options; correct the file")
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
class Cloze:
    """ChID of FewCLUE: which idiom belongs into the gap ``#idiom#``? The options stand in the gap's place, the text
    around is the context."""

    gap: str = "#idiom#"
    needs = ("candidates", "content")

    def matches(self, columns: Sequence[str]) -> bool:
        return set(self.needs) <= set(columns)

    def read(self, path: Path, remarks: Remarks) -> Iterator[Choice]:
        for record in nested(path, remarks):
            text, answer = text_of(record, "content", path), record.fields.get("answer")
            if self.gap not in text:
                raise DataError(f"{path}:{record.row}: no gap {self.gap} in the text; correct the row")
            yield Choice(
                id=id_of(record, "id", remarks),
                context=text,
                question="",
                gap=self.gap,
                options=tuple(record.fields["candidates"]),
                answers=None if answer is None else (int(answer),),
                row=record.row,
            )


@dataclass(frozen=True, kw_only=True)
class IdiomGaps:
    """ChID of CLUE: texts with numbered gaps (``#idiom000378#``) and ten idioms for all of them.

    The answers stand in a file beside it: ``train_answer.json`` holds those of ``train.json`` by gap. Every gap is an
    example, its name the id.
    """

    needs = ("candidates", "content")

    def matches(self, columns: Sequence[str]) -> bool:
        return set(self.needs) <= set(columns)

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
                        question="",
                        gap=gap,
                        options=tuple(record.fields["candidates"]),
                        answers=None if answer is None else (int(answer),),
                        row=record.row,
                    )


@dataclass(frozen=True, kw_only=True)
class Copa:
    """COPA: which of two sentences is the cause, or the effect, of the premise?"""

    needs = ("premise", "choice1", "choice2", "question")

    def matches(self, columns: Sequence[str]) -> bool:
        return set(self.needs) <= set(columns)

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
class EntityCloze:
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
    """Index of the right option; None where there is no answer, -1 where it is none of the options."""
    if answer is None:
        return None
    if answer in keys:
        return keys.index(answer)
    place = int(answer) - first_number if answer.isdigit() else _letter(answer)
    if place in range(len(options)) and not by_text:
        return place
    return options.index(answer) if answer in options else -1


def _joined(record: Record, column: str, path: Path) -> str:
    """A text, or the lines of one."""
    lines = record.fields.get(column)
    if isinstance(lines, list) and all(isinstance(line, str) for line in lines):
        return "\n".join(lines)
    return text_of(record, column, path)


def _letter(answer: str) -> int:
    """0 for A, 1 for B, ...; -1 for what is no letter."""
    return ord(answer.upper()) - ord("A") if len(answer) == 1 and answer.isascii() and answer.isalpha() else -1
