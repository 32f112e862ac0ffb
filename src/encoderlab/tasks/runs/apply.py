"""Apply a fine-tuned model to new data: find its task, read a file for it, and match a benchmark's labels with its own.

``say`` receives one line for every decision.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from encoderlab.errors import ConfigError, DataError
from encoderlab.inference import Precision, placed, usual_device
from encoderlab.interchange import lengths
from encoderlab.interchange.finetuned import best_seed
from encoderlab.interchange.load import load, model_folder
from encoderlab.messages import Say, silent
from encoderlab.model import Model
from encoderlab.records.opening import COLUMNAR
from encoderlab.tasks.data import suites
from encoderlab.tasks.data.infer import IDS, TEXTS, Given, find_column, task_of
from encoderlab.tasks.data.readers import Columns, Conll, Layout, Options, Squad, WordLists, layout_of
from encoderlab.tasks.data.readers.words import is_word_per_line
from encoderlab.tasks.data.records import columns, lines, suffix
from encoderlab.tasks.data.task import Example, Remarks, TaggedWords, Task, Text
from encoderlab.tasks.forms.base import Predictions
from encoderlab.tasks.forms.features import HEAD_FILE
from encoderlab.tasks.forms.table import FORMS
from encoderlab.tasks.runs.folder import layouts_of, read_task
from encoderlab.tasks.runs.predict import Predictor, default_settings, task_of_model


def predictor_of(folder: Path, say: Say = silent, precision: Precision = "fp32") -> Predictor:
    """A fine-tuned model, on the GPU if there is one, with its task.

    A folder without ``task.json`` (for example from ``transformers``) has only a form, labels and, in the files of its
    tokenizer or of sentence-transformers, the longest text; its task has no layouts.

    Raises:
        ConfigError: the folder has a head on a frozen encoder's features.
    """
    folder = best_seed(folder, say)
    check_own_head(folder)
    return predictor_with(placed(load(folder), precision), folder)


def check_own_head(folder: Path) -> None:
    """Refuse a folder that has only a head, which cannot read texts.

    Raises:
        ConfigError: the folder has a head on a frozen encoder's features.
    """
    if (folder / "model" / HEAD_FILE).exists():
        raise ConfigError(
            f"{folder}: a head on a frozen encoder's features can only predict splits that it was given with its "
            f"training data (predictions-*.jsonl); give further texts to finetune with --test"
        )


def predictor_with(model: Model, folder: Path) -> Predictor:
    """As :func:`predictor_of`, with the ``model`` that was loaded from ``folder``."""
    model, trained = model.to(usual_device()), read_task(folder)
    task = replace(task_of_model(model, f"{folder}:"), layouts=())
    if trained is None:
        settings = default_settings(model, task)
        longest = lengths.stated(model_folder(folder)) or settings.max_length
        return Predictor.of(model, task, replace(settings, max_length=min(settings.max_length, longest)))
    # A user's file may have a benchmark's name, and other columns.
    known = suites.TASKS.get(trained.name) if trained.benchmark else None
    task = known or replace(task, form=trained.form, layouts=layouts_of(trained.layouts))
    task = replace(task, name=trained.name, labels=trained.labels, metrics=trained.metrics)
    predictor = Predictor.of(model, task, trained.settings)
    predictor.form.threshold = trained.threshold
    return predictor


def allow_no_answer(
    task: Task, places: Sequence[Path], members: Sequence[Predictor], examples: Sequence[Example], say: Say
) -> None:
    """If the data has unanswerable questions, let members without ``task.json`` predict "no answer" too.

    ``places`` are the folders of ``members``.
    """
    if task.answers != "squad" or not any(example.reference == () for example in examples):
        return
    for place, member in zip(places, members, strict=True):
        if read_task(best_seed(place, silent)) is None and member.form.allow_no_answer():
            say(f"{place}: questions with a null score above 0 get no answer; the folder has no other threshold")


# Labels of a benchmark


def fitted(task: Task, trained: Task, say: Say) -> tuple[Task, dict[str, str]]:
    """A benchmark for a model of the task ``trained``, and the benchmark's label for each of the model's.

    Labels match if they are equal except for case, or, if one side has only numbers (``LABEL_0``), by index.

    Raises:
        ConfigError: the model's head is of another form, or has other labels.
    """
    if trained.form != task.form:
        raise ConfigError(
            f"the model's head is for {trained.form}, {task.name} is {task.form}; give a model tuned for it"
        )
    if task.labels is None or trained.labels is None:
        return replace(task, labels=trained.labels), {}
    words = ", ".join(trained.labels[:9]), ", ".join(task.labels[:9])
    theirs = {label.lower(): label for label in task.labels}
    ours = {label.lower() for label in trained.labels}
    if len(task.labels) == len(trained.labels) == len(ours):
        if ours == set(theirs):
            return task, {label: theirs[label.lower()] for label in trained.labels}
        if not ours & set(theirs) and (_are_indices(trained.labels) or _are_indices(task.labels)):
            say(f"the model's labels {words[0]} are matched with {words[1]} of {task.name}, in this order")
            return task, dict(zip(trained.labels, task.labels, strict=True))
    raise ConfigError(f"the model's labels are {words[0]}, those of {task.name} {words[1]}; give a model tuned for it")


def _are_indices(labels: tuple[str, ...]) -> bool:
    """Whether the labels only count: 0, 1, ... or LABEL_0, LABEL_1, ..."""
    return [label.removeprefix("LABEL_") for label in labels] == list(map(str, range(len(labels))))


def renamed(predictions: Predictions, names: Mapping[str, str]) -> Predictions:
    """Predictions with the labels of a benchmark instead of the model's."""
    values = [
        tuple(names[tag] for tag in value) if isinstance(value, tuple) else names[value] for value in predictions.values
    ]
    return replace(predictions, values=values)


# Files


def task_of_file(path: Path, trained: Task, given: Given, say: Say) -> Task:
    """The model's task ``trained`` with the layout of a labelled file.

    This is the layout of the training data if the file fits it, else the inferred one. Given columns override both.
    """
    names = columns(path, Remarks(path))
    fitting = [layout for layout in trained.layouts if _fits(layout, path, names)]
    layout = layout_of(path, fitting) if fitting else None
    if layout is not None and (given.text, given.pair, given.label) == (None, None, None):
        say(f"{path.name}: {trained.form}, read like the model's training data ({trained.name})")
        # a file may have ids although the training data has none
        if isinstance(layout, (Columns, Options)) and layout.id not in names:
            layout = replace(layout, id=find_column(IDS, names, but=layout.needs))
        return replace(trained, layouts=(layout,))
    if isinstance(layout, Columns):
        texts = (layout.text, layout.pair) if given.text is None else (given.text, given.pair)
        usual = layout.label_column if layout.has_labels(names) else None
        given = replace(given, text=texts[0], pair=given.pair or texts[1], label=given.label or usual)
    task, said = task_of(path, given)
    say(said)
    return replace(trained, name=task.name, layouts=task.layouts)


def unlabelled_task_of_file(
    path: Path, predictor: Predictor, text: str | None, pair: str | None, say: Say, *, gold: bool = False
) -> Task:
    """As :func:`task_of_file` for a file to predict: plain text has one text per line, labels are read only with
    ``gold``.

    Raises:
        ConfigError: ``gold`` for a file without labels.
    """
    own = predictor.form.task
    holds = FORMS[own.form].columns
    tagged = holds == "words"
    plain = suffix(path) == ".txt" and holds in ("texts", "words") and text is None and pair is None
    named = [layout for layout in own.layouts if not isinstance(layout, Conll)]
    if (
        plain
        and not any(_fits(layout, path, columns(path, Remarks(path))) for layout in named)
        and not (tagged and is_word_per_line(path, own.labels or ()))
    ):
        say(f"{path.name}: {own.form}, one text per line")
        pairs = getattr(predictor.form.settings, "pairs", None) is not False
        task = replace(own, layouts=(OneTextPerLine(form=own.form, pairs=pairs),))
    else:
        task = task_of_file(path, own, Given(form=own.form, text=text, pair=pair), say)
    layouts = task.layouts
    if not gold:
        layouts = tuple(layout.unlabelled() for layout in layouts)
    elif isinstance(layouts[0], OneTextPerLine):
        raise ConfigError(f"{path.name}: has one text per line and no labels; leave gold out of --with")
    return replace(task, layouts=layouts, labels=None, dropped=())


def _fits(layout: Layout, path: Path, names: Sequence[str]) -> bool:
    """Whether a file with the columns ``names`` has ``layout``, a layout of the training data.

    Columns by number fit only a file whose first row is not a header.
    """
    kind = suffix(path)
    if isinstance(layout, Conll):
        return kind not in (".csv", ".json", ".jsonl", ".ndjson", *COLUMNAR)
    if layout.positional and {name.lower() for name in names} & set(TEXTS):
        return False
    if not isinstance(layout, (Columns, Options, Squad, WordLists)) and kind in (".csv", ".tsv"):
        return False  # other layouts are read only from JSON or Parquet
    return layout.matches(names)


@dataclass(frozen=True)
class OneTextPerLine(Layout):
    """A plain text file to predict: each line is a text, or the words of a sentence to tag.

    With ``pairs``, a tab may separate two texts.
    """

    form: str
    pairs: bool = True

    @property
    def tagged(self) -> bool:
        return FORMS[self.form].columns == "words"

    def matches(self, columns: Sequence[str]) -> bool:
        return True

    def read(self, path: Path, remarks: Remarks) -> Iterator[Example]:
        for row, line in lines(path):
            if not self.tagged and not self.pairs:
                yield Text(id=str(row), text=line.strip())
                continue
            example = FORMS[self.form].of_line(str(row), line if self.tagged else line.replace("\t", " [SEP] ", 1))
            if example is None:
                remarks.add("no words; left out", row)
            else:
                yield replace(example, document=row, row=row) if isinstance(example, TaggedWords) else example


# Single texts


def example_of(task: Task, number: int, line: str) -> Example:
    """A text, or two with ``[SEP]`` between them, as an example of the model's form; ``number`` counts texts from 0.

    Raises:
        ConfigError: the form needs more than a text.
        DataError: a sentence to be tagged has no words.
    """
    example = FORMS[task.form].of_line(str(number), line)
    if example is None:
        raise DataError(f"text {number + 1} has no words; give at least one")
    return example
