"""Read predictions of another program, and match them with their examples.

Formats, detected from the file:

- JSON lines with an id and a prediction: those of ``encoderlab predict``, of CLUE and of SuperGLUE (MultiRC is nested);
- one JSON object of predictions by id (SQuAD, CMRC 2018, ChID), or a JSON list of records or of predictions;
- tables with a header (GLUE's ``index<TAB>prediction``), Parquet;
- columns of words with the predicted tag last (conlleval), or with nothing else; blank lines between sentences;
- one prediction per line, in the order of the examples: a label, labels with a separator, a number, an answer.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from encoderlab.errors import DataError
from encoderlab.records.opening import COLUMNAR
from encoderlab.records.reading import json_value
from encoderlab.tasks.data import records as tables
from encoderlab.tasks.data.examples import GivenPrediction, Remarks, Split, Text, is_unlabelled
from encoderlab.tasks.data.infer import IDS, find_column
from encoderlab.tasks.data.readers import Conll
from encoderlab.tasks.data.task import Task
from encoderlab.tasks.forms.table import FORMS

# column names, the most reliable first
PREDICTIONS = ("prediction", "predicted", "pred", "label", "answer", "prediction_text")
COUNTS = "index"  # a column that counts examples from 0, if the ids of the examples are others


def with_labels(task: Task, gold: Split, labels: Sequence[str] = ()) -> Task:
    """``task`` with its classes or tags: its own, or those in the gold data and ``labels``.

    Raises:
        DataError: there would be only one class.
    """
    form = FORMS[task.form]
    if not form.labelled or task.labels is not None:
        return task
    whole = (*gold.examples, *(Text(id="", text="", label=label) for label in labels))
    names = {label for example in whole for label in example.labels}
    if len(names) == 1 and form.least_labels > 1:
        raise DataError(f"{', '.join(gold.files)}: only one label ({names.pop()}); name the others with --labels")
    return form.completed(task, replace(gold, examples=whole))


def read_predictions(
    path: Path, task: Task, gold: Split, *, skip_others: bool = False
) -> tuple[list[Any], tuple[str, ...]]:
    """The predictions in ``path`` in the order of the examples of ``gold``, as the form scores them, and remarks.

    Args:
        task: with its labels (:func:`with_labels`).
        skip_others: leave out predictions for ids that the gold data lacks, and count them.

    Raises:
        DataError: the file cannot be read; a prediction is missing, repeated, for no example, or impossible; an example
            has no reference.
    """
    if without := sum(map(is_unlabelled, gold.examples)):
        raise DataError(
            f"{', '.join(gold.files)}: {without:,} of {len(gold):,} examples have no label to score against; give "
            f"labelled data"
        )
    remarks = Remarks(path)
    guesses = _matched(path, list(_guesses(path, task, remarks, len(gold))), gold, remarks, skip_others)
    form, open_range = FORMS[task.form], replace(task, range=None)  # a model may predict any number
    values = []
    for example, guess in zip(form.with_predictions(task, gold.examples, guesses), guesses, strict=True):
        checked = form.checked(open_range, example, guess.place, remarks)
        if checked is None or checked.reference is None:
            raise DataError(f"{guess.place}: {guess.value!r} is not a prediction; give one for every example")
        values.append(form.value_of(checked))
    return values, remarks.lines()


def read_null_odds(path: Path, gold: Split) -> dict[str, float]:
    """The score of "no answer" by question id, in the format of SQuAD 2.0's ``--na-prob-file``.

    Raises:
        DataError: it is not a JSON object of numbers, or a question is missing.
    """
    odds = dict(_pairs(path))
    wrong = next(
        (id for id, value in odds.items() if isinstance(value, bool) or not isinstance(value, (int, float))), None
    )
    if wrong is not None:
        raise DataError(f"{path}: the odds of id {wrong!r} are {odds[wrong]!r}, not a number; correct them")
    missing = [example.id for example in gold.examples if example.id not in odds]
    if missing:
        raise DataError(f"{path}: no odds for {len(missing):,} questions (first: id {missing[0]!r}); give all")
    return odds


# The file


def _guesses(path: Path, task: Task, remarks: Remarks, expected: int) -> Iterator[GivenPrediction]:
    """The predictions in the file, in order; empty lines after the ``expected`` number of lines do not count."""
    kind = tables.suffix(path)
    if kind in (".json", ".jsonl", ".ndjson") or kind not in COLUMNAR and tables.starts_with(path, "{"):
        yield from _of_json(path)
        return
    names = () if kind == ".txt" else tables.columns(path, remarks)
    value = find_column(PREDICTIONS, names)
    if value is not None:
        tables.check_once(path, names, [name for name in (value, find_column(IDS, names)) if name is not None])
        rows = tables.records(path) if kind in COLUMNAR else tables.table(path, names, remarks)
        for record in rows:
            yield _of_record(path, record.row, record.fields)
    elif FORMS[task.form].columns == "words" and kind != ".csv":
        for sentence in Conll(scheme=None).read(path, remarks):
            yield GivenPrediction(path=path, row=sentence.row, value=sentence)
    elif len(names) > 1:
        raise DataError(
            f"{path}: none of the columns {', '.join(map(repr, names[:12]))} is called "
            f"{', '.join(PREDICTIONS[:-1])} or {PREDICTIONS[-1]}; rename the one with the predictions"
        )
    else:
        lines = list(tables.lines(path))
        while len(lines) > expected and not lines[-1][1].strip():
            lines.pop()
        for row, line in lines:
            yield GivenPrediction(path=path, row=row, value=line.strip())


def _of_json(path: Path) -> Iterator[GivenPrediction]:
    """JSON lines, a list, or one object of predictions by id."""
    if tables.suffix(path) == ".json" and tables.starts_with(path, "["):
        for row, item in enumerate(tables.document(path), start=1):
            yield from _of_item(path, row, item)
        return
    lines = ((row, line) for row, line in tables.lines(path) if line.strip())
    row, line = next(lines, (0, ""))
    try:
        first = json_value(line)
    except ValueError:  # an object over several lines
        first = None
    if isinstance(first, dict) and find_column(PREDICTIONS, tuple(first)) is None and "passage" not in first:
        if next(lines, None) is not None:
            raise DataError(f"{path}:{row}: no prediction among {', '.join(first)[:100]}; call it {PREDICTIONS[0]}")
        first = None  # an object in one line
    if first is None:
        for id, value in _pairs(path):
            yield GivenPrediction(path=path, row=0, value=value, id=id.strip())
        return
    for row, item in tables.json_lines(path):
        yield from _of_item(path, row, item)


def _of_item(path: Path, row: int, item: Any) -> Iterator[GivenPrediction]:
    """An element of a list, or a line: a record, a record of MultiRC with several predictions, or a prediction."""
    if not isinstance(item, dict):
        yield GivenPrediction(path=path, row=row, value=item)
    elif "passage" in item and find_column(PREDICTIONS, tuple(item)) is None:
        try:
            for question in item["passage"]["questions"]:
                for answer in question["answers"]:
                    id = f"{item['idx']}-{question['idx']}-{answer['idx']}"
                    yield GivenPrediction(path=path, row=row, value=answer["label"], id=id)
        except (KeyError, TypeError) as error:
            raise DataError(f"{path}:{row}: not nested like MultiRC's predictions ({error!r}); correct it") from None
    else:
        yield _of_record(path, row, item)


def _of_record(path: Path, row: int, fields: Mapping[str, Any]) -> GivenPrediction:
    names = tuple(fields)
    value, id = find_column(PREDICTIONS, names), find_column(IDS, names)
    if value is None:
        raise DataError(f"{path}:{row}: no prediction among {', '.join(names)[:100]}; call it {PREDICTIONS[0]}")
    other = next((name for name in names if "pred" in name.lower()), None)
    if other is not None and "pred" not in value.lower():  # gold labels, scored against themselves, would be perfect
        raise DataError(f"{path}:{row}: is {value!r} the prediction, or {other!r}? call it {PREDICTIONS[0]}")
    if id is None:
        return GivenPrediction(path=path, row=row, value=fields[value])
    return GivenPrediction(
        path=path, row=row, value=fields[value], id=str(fields[id]).strip(), counted=id.strip().lower() == COUNTS
    )


def _pairs(path: Path) -> list[tuple[str, Any]]:
    """The entries of a file that is one JSON object, including those with equal names.

    Raises:
        DataError: it is not one JSON object, or a name occurs twice.
    """
    text = "\n".join(line for _, line in tables.lines(path))
    try:
        entries = json.loads(text, object_pairs_hook=_Pairs)
    except (ValueError, RecursionError) as error:
        line = f":{error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        raise DataError(f"{path}{line}: not valid JSON ({getattr(error, 'msg', error)}); write it again") from None
    if not isinstance(entries, _Pairs):
        raise DataError(f"{path}: {type(entries).__name__}, expected an object of predictions by id")
    return [(id, dict(value) if isinstance(value, _Pairs) else value) for id, value in entries]


class _Pairs(list[tuple[str, Any]]):
    """A JSON object that keeps repeated entries."""


# Examples and their predictions


def _matched(
    path: Path, guesses: list[GivenPrediction], gold: Split, remarks: Remarks, skip_others: bool
) -> list[GivenPrediction]:
    """The prediction of each example: by id if predictions have ids, else by order.

    Raises:
        DataError: one is missing, repeated or for no example.
    """
    if not guesses:
        raise DataError(f"{path}: no predictions; give one for each of the {len(gold):,} examples")
    files = ", ".join(gold.files)
    ids = [example.id.strip() for example in gold.examples]  # as those of the predictions
    if (odd := next((guess for guess in guesses if (guess.id is None) != (guesses[0].id is None)), None)) is not None:
        raise DataError(f"{odd.place}: some predictions have an id and others have none; give all or none")
    if guesses[0].id is None or [guess.id for guess in guesses] == ids:
        if len(guesses) != len(ids):
            at = guesses[min(len(ids), len(guesses) - 1)].place
            why = f" ({'; '.join(gold.remarks)})" if gold.remarks else ""
            raise DataError(
                f"{at}: {len(guesses):,} predictions for {len(ids):,} examples of {files}{why}; give one for each, in "
                f"their order, or with ids"
            )
        return guesses
    if guesses[0].counted and not set(ids) >= {guess.id for guess in guesses}:
        ids = [str(number) for number in range(len(ids))]
    if len(set(ids)) < len(ids):
        raise DataError(
            f"{files}: ids are not unique, so predictions cannot be matched by id; give them in order, without"
        )
    by_id: dict[str, GivenPrediction] = {}
    known, others = set(ids), 0
    for guess in guesses:
        assert guess.id is not None
        if guess.id not in known:
            if not skip_others:
                raise DataError(
                    f"{guess.place}: no example of {files} has this id; leave the prediction out, or all such "
                    f"with --skip-others"
                )
            others += 1
        elif guess.id in by_id:
            before = f", first in line {by_id[guess.id].row}" if guess.row else ""
            raise DataError(f"{guess.place}: has two predictions{before}; leave out one")
        else:
            by_id[guess.id] = guess
    missing = [(id, example) for id, example in zip(ids, gold.examples, strict=True) if id not in by_id]
    if missing:
        id, example = missing[0]
        more = f", and for {len(missing) - 1:,} more" if len(missing) > 1 else ""
        raise DataError(
            f"{path}: no prediction for id {id!r} ({files}:{example.row}){more}; give one for every example"
        )
    if others:
        remarks.note(f"{others:,} predictions for ids that the gold data lacks; left out")
    return [by_id[id] for id in ids]
