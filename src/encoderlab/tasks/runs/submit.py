"""Write predictions in the formats of leaderboards, and check their number of rows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from encoderlab.errors import ConfigError, DataError
from encoderlab.files import json_line, write_json, write_text
from encoderlab.tasks.data.task import Choice, Example, Submission, TaggedWords, Task, Text
from encoderlab.tasks.forms.base import Predictions
from encoderlab.tasks.scoring.entities import entities


def check_submission(task: Task, split: str, count: int) -> Submission:
    """The leaderboard's file format, if it takes ``count`` predictions of the split.

    Raises:
        ConfigError: the task's leaderboard does not take this split.
        DataError: the leaderboard expects another number of predictions.
    """
    submission = task.submission
    if submission is None:
        raise ConfigError(f"{task.name}: has no leaderboard; leave out --submission, or write labels with predict")
    if split not in submission.files:
        raise ConfigError(f"{task.name}: no leaderboard file for {split!r}, only for {', '.join(submission.files)}")
    expected = submission.rows.get(split, count)
    if expected != count:
        raise DataError(
            f"{task.name}: {count:,} predictions for {split}, the leaderboard expects {expected:,}; "
            f"predict the whole file"
        )
    return submission


def write_submission(
    task: Task,
    split: str,
    examples: Sequence[Example],
    predictions: Predictions,
    folder: Path,
) -> list[Path]:
    """Write the submission of ``split`` into ``folder`` and return the files.

    Raises:
        ConfigError, DataError: as :func:`check_submission`.
    """
    submission = check_submission(task, split, len(predictions.values))
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / submission.files[split]
    pairs = list(zip(examples, predictions.values, strict=True))
    if submission.format == "squad":
        return _squad(path, pairs, predictions)
    write = {"glue": _glue, "superglue": _json_lines, "clue": _json_lines, "clue_json": _json_object, "conll": _conll}
    text = write[submission.format](task, pairs)
    write_text(path, text)
    return [path]


def _glue(task: Task, pairs: Sequence[tuple[Any, Any]]) -> str:
    """``index<TAB>prediction``; numbers of STS-B are clipped to the range of its labels."""
    lines = ["index\tprediction"]
    for index, (_, guess) in enumerate(pairs):
        if task.range is not None:
            guess = f"{float(np.clip(guess, *task.range)):.3f}"
        lines.append(f"{index}\t{guess}")
    return "\n".join(lines) + "\n"


def _json_lines(task: Task, pairs: Sequence[tuple[Any, Any]]) -> str:
    """One object per example: ``{"id", "label"}`` (CLUE; FewCLUE's ChID calls it ``answer``), ``{"idx", "label"}``
    (SuperGLUE).
    """
    if task.name == "multirc":
        return _multirc(pairs)
    key = "idx" if task.submission is not None and task.submission.format == "superglue" else "id"
    name = "answer" if task.name == "chid" else "label"
    records = ({key: _number(example.id), name: _json_label(task, example, guess)} for example, guess in pairs)
    return "".join(map(json_line, records))


def _json_label(task: Task, example: Example, guess: Any) -> Any:
    """A prediction in the leaderboard's format.

    The text of an option for ReCoRD and its number for other choices, entities for CLUENER, ``True`` and ``False`` for
    WSC.
    """
    if isinstance(example, Choice):
        return example.options[guess] if task.answers == "record" else int(guess)
    if isinstance(example, TaggedWords):
        return _nested(example, guess)
    return str(guess).capitalize() if task.name == "wsc" else guess


def _json_object(task: Task, pairs: Sequence[tuple[Choice, Any]]) -> str:
    """One object for the file, the number of the option by id (CLUE's ChID)."""
    return json.dumps({example.id: int(guess) for example, guess in pairs}, indent=1, ensure_ascii=False) + "\n"


def _multirc(pairs: Sequence[tuple[Text, Any]]) -> str:
    """Nested by passage and question, as the server expects; ids are passage-question-answer."""
    nested: dict[int, dict[int, list]] = {}
    for example, guess in pairs:
        passage, question, answer = (int(part) for part in example.id.split("-"))
        nested.setdefault(passage, {}).setdefault(question, []).append({"idx": answer, "label": int(guess)})
    asked = {p: [{"idx": q, "answers": answers} for q, answers in of.items()] for p, of in nested.items()}
    return "".join(json_line({"idx": p, "passage": {"questions": questions}}) for p, questions in asked.items())


def _conll(task: Task, pairs: Sequence[tuple[Any, Any]]) -> str:
    """Word, gold tag (``O`` if there is none), predicted tag, as conlleval expects; blank lines between sentences."""
    lines = []
    for example, guess in pairs:
        gold = example.tags or ("O",) * len(example.words)
        lines += [" ".join(cells) for cells in zip(example.words, gold, guess, strict=True)]
        lines.append("")
    return "\n".join(lines) + "\n"


def _nested(example: TaggedWords, tags: Sequence[str]) -> dict[str, dict[str, list[list[int]]]]:
    """CLUENER's ``{type: {mention: [[first, last]]}}``."""
    places: dict[str, dict[str, list[list[int]]]] = {}
    for kind, start, end in entities(tags):
        mention = "".join(example.words[start:end])
        places.setdefault(kind, {}).setdefault(mention, []).append([start, end - 1])
    return places


def _squad(path: Path, pairs: Sequence[tuple[Any, Any]], predictions: Predictions) -> list[Path]:
    """Answers by question id, with files for the n best answers and for "no answer" if known."""
    files = [path]
    write_json(path, {example.id: guess for example, guess in pairs})
    for name, content in (("nbest_predictions.json", predictions.nbest), ("null_odds.json", predictions.null_odds)):
        if content is not None:
            files.append(path.with_name(name))
            write_json(files[-1], content)
    return files


def _number(id: str) -> int | str:
    """An id as a number, if it is one."""
    return int(id) if id.isdecimal() else id
