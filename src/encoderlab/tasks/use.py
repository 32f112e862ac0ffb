"""A fine-tuned model on other data than its own: the task that its folder tells of, how files are read for it, and a
benchmark's labels for the model's. What is decided is told to ``say``, a line each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from encoderlab.corpus.words import is_cjk
from encoderlab.errors import ConfigError, DataError
from encoderlab.inference import usual_device
from encoderlab.interchange.load import load
from encoderlab.tasks import suites
from encoderlab.tasks.base import FORMS, Example, Question, Remarks, Task, Text, Words
from encoderlab.tasks.folder import HEAD_FILE, layouts_of, read_task
from encoderlab.tasks.form import Predictions
from encoderlab.tasks.infer import TEXTS, Given, id_column, is_word_per_line, task_of
from encoderlab.tasks.predict import Predictor, task_of_model
from encoderlab.tasks.readers import Columns, Conll, Options, Squad, WordLists, layout_of
from encoderlab.tasks.span import SpanQA
from encoderlab.tasks.tables import columns, lines, suffix
from encoderlab.tasks.trials import best_seed

Say = Callable[[str], None]


def silent(line: str) -> None:
    pass


def predictor_of(folder: Path, say: Say = silent) -> Predictor:
    """A fine-tuned model, on the GPU where there is one, with the task it was trained for, as far as its folder tells.
    Without a task there, it has no layouts either.

    Raises:
        ConfigError: the folder holds a head on a frozen encoder's features.
    """
    folder = best_seed(folder, say)
    if (folder / "model" / HEAD_FILE).exists():
        raise ConfigError(
            f"{folder}: holds a head on a frozen encoder's features, which predicts only what it was given with its "
            f"training data (predictions-*.jsonl); give further texts to finetune with --test"
        )
    network, kept = load(folder).to(usual_device()), read_task(folder)
    task = replace(task_of_model(network), layouts=())
    if kept is None:
        return Predictor.of(network, task)
    labels, metrics = None if kept["labels"] is None else tuple(kept["labels"]), tuple(kept["metrics"])
    known = suites.TASKS.get(kept["name"])
    if known is not None and kept.get("benchmark", (known.form, known.metrics) == (kept["form"], metrics)):
        task = known  # a file of the user's that is only named like it has its own columns
    else:
        task = replace(task, layouts=layouts_of(kept.get("layouts", ())))
    task = replace(task, name=kept["name"], labels=labels, metrics=metrics)
    predictor = Predictor.of(network, task, replace(kept["settings"], targets="raw"))  # its head answers in the file's
    if isinstance(predictor.form, SpanQA):
        predictor.form.threshold = kept["threshold"]
    return predictor


def allow_no_answer(
    task: Task, places: Sequence[Path], members: Sequence[Predictor], examples: Sequence[Example], say: Say
) -> None:
    """Let models whose folders tell nothing of their task, as those of transformers, give no answer where the data has
    questions without one.
    """
    if task.answers != "squad" or not any(isinstance(one, Question) and one.answers == () for one in examples):
        return
    for place, member in zip(places, members, strict=True):
        form = member.form
        if isinstance(form, SpanQA) and not form.nullable and read_task(best_seed(place, silent)) is None:
            form.nullable = True
            say(f"{place}: no answer is given where the null score is above 0; the folder tells no other threshold")


# Labels of a benchmark


def fitted(task: Task, own: Task, say: Say) -> tuple[Task, dict[str, str]]:
    """A benchmark for a model that was made for the task ``own``, and its label for each of the model's: that of the
    same name in upper or lower case, or of the same place where one side has but numbers (``LABEL_0``).

    Raises:
        ConfigError: the model's head is of another form, or has other labels.
    """
    if own.form != task.form:
        raise ConfigError(f"the model's head is for {own.form}, {task.name} is {task.form}; give a model tuned for it")
    if task.labels is None or own.labels is None:
        return replace(task, labels=own.labels), {}
    words = ", ".join(own.labels[:9]), ", ".join(task.labels[:9])
    theirs = {label.lower(): label for label in task.labels}
    ours = {label.lower() for label in own.labels}
    if len(task.labels) == len(own.labels) == len(ours):
        if ours == set(theirs):
            return task, {label: theirs[label.lower()] for label in own.labels}
        if not ours & set(theirs) and (_numbered(own.labels) or _numbered(task.labels)):
            say(f"the model's labels {words[0]} are taken for {words[1]} of {task.name}, in this order")
            return task, dict(zip(own.labels, task.labels, strict=True))
    raise ConfigError(f"the model's labels are {words[0]}, those of {task.name} {words[1]}; give a model tuned for it")


def _numbered(labels: tuple[str, ...]) -> bool:
    return [label.removeprefix("LABEL_") for label in labels] == list(map(str, range(len(labels))))


def renamed(found: Predictions, names: Mapping[str, str]) -> Predictions:
    """Predictions with the labels of a benchmark instead of the model's."""
    values = [
        tuple(names[tag] for tag in value) if isinstance(value, tuple) else names[value] for value in found.values
    ]
    return replace(found, values=values)


# Files


def task_of_file(path: Path, own: Task, given: Given, say: Say) -> Task:
    """The model's task ``own`` with the layout of a labelled file: the one it was trained with where the file has it,
    else what the names of its columns tell. Columns that are given count.
    """
    names = columns(path, Remarks(path))
    fitting = [layout for layout in own.layouts if _fits(layout, path, names)]
    layout = layout_of(path, fitting) if fitting else None
    if layout is not None and (given.text, given.pair, given.label) == (None, None, None):
        say(f"{path.name}: {own.form}, read as the training data of the model ({own.name}) is")
        if isinstance(layout, (Columns, Options)) and layout.id not in names:  # a file may have ids that training lacks
            layout = replace(layout, id=id_column(names, layout.needs))
        return replace(own, layouts=(layout,))
    if isinstance(layout, Columns):
        texts = (layout.text, layout.pair) if given.text is None else (given.text, given.pair)
        usual = layout.label if layout.labels(names) else None
        given = replace(given, text=texts[0], pair=given.pair or texts[1], label=given.label or usual)
    task, said = task_of(path, given)
    say(said)
    return replace(own, name=task.name, layouts=task.layouts)


def unlabelled_task_of_file(path: Path, predictor: Predictor, text: str | None, pair: str | None, say: Say) -> Task:
    """The same for a file to predict: every row is read, whatever its label is; plain text has one text per line."""
    own = predictor.form.task
    tagged = own.form == "tagging"
    plain = suffix(path) == ".txt" and (tagged or own.form in ("classification", "regression")) and text is None
    named = [layout for layout in own.layouts if not isinstance(layout, Conll)]
    if (
        plain
        and not any(_fits(layout, path, columns(path, Remarks(path))) for layout in named)
        and not (tagged and is_word_per_line(path, own.labels or ()))
    ):
        say(f"{path.name}: {own.form}, one text per line")
        pairs = predictor.form.settings.pairs is not False
        task = replace(own, layouts=(OneTextPerLine(tagged=tagged, pairs=pairs),))
    else:
        task = task_of_file(path, own, Given(form=own.form, text=text, pair=pair), say)
    unread: dict[Any, dict[str, None]] = {
        Columns: {"label": None},
        Conll: {"tag": None},
        Options: {"answer": None},
        WordLists: {"tags": None},
    }
    layouts: tuple[Any, ...] = task.layouts
    layouts = tuple(replace(one, **unread.get(type(one), {})) for one in layouts)
    return replace(task, layouts=layouts, labels=None, dropped=())


def _fits(layout: Any, path: Path, names: tuple[str, ...]) -> bool:
    """Whether a file has ``layout``, one of the training data's. A layout that needs no column names fits only a file
    without any.
    """
    kind = suffix(path)
    if isinstance(layout, Conll):
        return kind not in (".csv", ".json", ".jsonl", ".ndjson", ".parquet")
    if getattr(layout, "positional", False) and {name.lower() for name in names} & set(TEXTS):
        return False
    if not isinstance(layout, (Columns, Options, Squad, WordLists)) and kind in (".csv", ".tsv"):
        return False  # these are read from records alone
    return bool(layout.matches(names))


@dataclass(frozen=True)
class OneTextPerLine:
    """The layout of a plain text file to predict: every line is a text, to be ``tagged`` word by word, or one or, if
    there may be ``pairs``, two texts with a tab between.
    """

    tagged: bool = False
    pairs: bool = True

    def matches(self, columns: Any) -> bool:
        return True

    def read(self, path: Path, remarks: Any) -> Iterator[Example]:
        for row, line in lines(path):
            if not self.tagged and self.pairs:
                yield _text(str(row), line.replace("\t", " [SEP] ", 1))
            elif not self.tagged:
                yield Text(id=str(row), text=line.strip())
            elif words := _words(line):
                yield Words(id=str(row), words=words, document=row, row=row)
            else:
                remarks.add("no words; left out", row)


# Single texts


def example_of(task: Task, number: int, line: str) -> Example:
    """A text, or two with ``[SEP]`` between, as an example of the model's form.

    Raises:
        ConfigError: the form needs more than a text.
        DataError: a sentence to be tagged has no words.
    """
    needs = {
        "span": "the columns question and context, or in SQuAD's form",
        "choice": "the columns context, question and options",
    }
    if task.form in needs:
        raise ConfigError(
            f"the model's head is for {task.form} ({FORMS[task.form]}), which needs more than a text; give a file with "
            f"{needs[task.form]}"
        )
    if task.form != "tagging":
        return _text(str(number), line)
    words = _words(line)
    if not words:
        raise DataError(f"text {number + 1} holds no words; give at least one")
    return Words(id=str(number), words=words)


def _text(name: str, line: str) -> Text:
    first, separator, second = line.partition("[SEP]")
    return Text(id=name, text=first.strip(), pair=second.strip() if separator else None)


def _words(text: str) -> tuple[str, ...]:
    """The words of a text to be tagged; Chinese is tagged character by character."""
    words: list[str] = []
    for part in text.split():
        words += part if any(map(is_cjk, part)) else [part]
    return tuple(words)
