"""The layout of questions about passages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from encoderlab.errors import DataError
from encoderlab.records.opening import COLUMNAR
from encoderlab.tasks.data import records as tables
from encoderlab.tasks.data.examples import Answer, Question, Remarks
from encoderlab.tasks.data.readers.common import (
    TABLES,
    Layout,
    id_of,
    nearest_place,
    nested_value,
    reaches,
    records,
    text_of,
)


@dataclass(frozen=True, kw_only=True)
class Squad(Layout):
    """Questions about passages: SQuAD's nested JSON (1.1, 2.0, CMRC, DRCD, TriviaQA, NewsQA), one question per record,
    or a list of passages with their questions (CMRC 2018 as its authors first published it).

    ``context``, ``question`` and ``answer`` name the columns of records, or number those of a table without a header; a
    column ``answer`` is read if the named one is missing. An answer that is not at its offset is moved to its nearest
    mention; one that the passage does not contain is scored but not trained on. Both are counted. Case may
    differ: TriviaQA's answers are in lower case.
    """

    context: str = "context"
    question: str = "question"
    answer: str = "answers"

    @property
    def needs(self) -> tuple[str, ...]:
        return (self.context, self.question)

    @property
    def label_column(self) -> str | None:
        return self.answer

    def matches(self, columns: Sequence[str]) -> bool:
        if not columns or {"context_text", "qas"} <= set(columns):
            return True
        return reaches(columns, self.needs) if self.positional else super().matches(columns)

    def read(self, path: Path, remarks: Remarks) -> Iterator[Question]:
        if tables.suffix(path) not in (*TABLES, *COLUMNAR) and tables.is_document(path):
            yield from self._nested(path, remarks)
            return
        for record in records(path, remarks, self.needs, None, "id", positional=self.positional, quoted=True):
            for qa in record.fields.get("qas", ()):
                passage = text_of(record, "context_text", path)
                answers = self._answers(qa)
                yield _question(qa["query_id"], qa["query_text"], passage, answers, path, remarks)
            if "qas" in record.fields:
                continue
            question, passage = (text_of(record, name, path) for name in (self.question, self.context))
            answers = self._answers(record.fields)
            yield _question(id_of(record, "id", remarks), question, passage, answers, path, remarks)

    def _answers(self, fields: dict[str, Any]) -> list[dict] | None:
        """The answers of a record: SQuAD's list, Hugging Face's two lists, or texts with or without their offsets.

        They are [] if the passage has none, and None if they are unknown.
        """
        if str(fields.get("is_impossible")).lower() in ("true", "1"):
            return []
        answers = next((fields[name] for name in (self.answer, "answers", "answer") if name in fields), None)
        answers = _in_cell(answers) if isinstance(answers, str) else answers
        starts = fields.get("answer_starts", fields.get("answer_start"))
        if isinstance(answers, dict):
            answers, starts = answers["text"], answers.get("answer_start")
        if isinstance(answers, str):
            answers = [answers] if answers else []
        if not isinstance(answers, list | None):
            raise TypeError(f"the answer {answers!r} is neither a text nor a list of them")
        if isinstance(starts, str):
            starts = nested_value(starts) or starts
        starts = None if starts in ("", []) else starts
        if not isinstance(starts, list):
            starts = [starts] * len(answers or ())
        return answers and [
            {"text": answer, "answer_start": start} if isinstance(answer, str) else answer
            for answer, start in zip(answers, starts, strict=True)
        ]

    def _nested(self, path: Path, remarks: Remarks) -> Iterator[Question]:
        """SQuAD's nested JSON; a question's row is its number, from 1."""
        data = tables.document(path)
        if not isinstance(data, dict) or not isinstance(data.get("data"), list):
            raise DataError(f"{path}: no records; give an object for each, or SQuAD's form: data, paragraphs, qas")
        for article in data["data"]:
            for paragraph in article["paragraphs"]:
                for qa in paragraph["qas"]:
                    remarks.row += 1
                    answers = self._answers(qa)
                    yield _question(str(qa["id"]), qa["question"], paragraph["context"], answers, path, remarks)


def _in_cell(cell: str) -> Any:
    """The answers in a cell: the text itself, or the lists that pandas writes."""
    value = nested_value(cell)
    if isinstance(value, dict) and "text" in value:
        return value
    if isinstance(value, list) and all(isinstance(one, str | dict) for one in value):
        return value
    return cell


def _question(
    id: str, question: str, passage: str, answers: list[dict] | None, path: Path, remarks: Remarks
) -> Question:
    """The question of the current row, with every answer at its place in the passage."""
    row = remarks.row
    if not passage.strip():
        raise DataError(f"{path}:{row}: question {id!r} has an empty passage; leave it out")
    answers_read = []
    said = set()  # once per question, whose answers are often the same words
    for answer in answers or ():
        text, offset = answer["text"], answer.get("answer_start")
        if not isinstance(text, str):
            raise DataError(f"{path}:{row}: an answer to question {id!r} is {text!r}, not a text; correct it")
        if not text.strip():  # where others have no answer
            continue
        start = -1 if offset is None else int(float(offset))  # 10.0 in columns with gaps, as pandas writes them
        if start < 0 or passage[start : start + len(text)].lower() != text.lower():
            start = nearest_place(passage, text.strip(), start)
            if start < 0:
                said.add("an answer is not in the passage; it is scored but not trained on")
            elif offset is not None:
                said.add("an answer is not at its offset; the nearest mention is used")
        answers_read.append(Answer(text, start))
    for remark in sorted(said):
        remarks.add(remark, row)
    return Question(
        id=id, question=question, passage=passage, answers=None if answers is None else tuple(answers_read), row=row
    )
