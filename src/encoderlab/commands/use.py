"""Using a model: ``evaluate``, ``predict``, ``fill-mask``, ``encode``."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from encoderlab.commands.terminal import note, progress, say, table
from encoderlab.errors import ConfigError, DataError

if TYPE_CHECKING:
    import numpy as np

    from encoderlab.model import Model
    from encoderlab.tasks.base import Example, Split, Task
    from encoderlab.tasks.form import Predictions
    from encoderlab.tasks.infer import Given
    from encoderlab.tasks.predict import Predictor


def evaluate(
    model: Path,
    data: str,
    /,
    *,
    split: str = "dev",
    folder: Annotated[Path | None, Parameter(name="--data")] = None,
    ensemble: Annotated[list[Path] | None, Parameter(consume_multiple=True)] = None,
    submission: Path | None = None,
    text: str | None = None,
    pair: str | None = None,
    label: str | None = None,
) -> dict[str, Any]:
    """Score a fine-tuned model, or an ensemble, on labelled data.

    An ensemble averages the probabilities of its members (for answers, the scores of
    starts and ends); its score stands beside theirs.

    Example:
        encoderlab evaluate runs/mrpc mrpc --data data/glue \\
            --ensemble runs/mrpc-large runs/mrpc-electra

    Parameters
    ----------
    model
        Fine-tuned model folder, or run folder.
    data
        A labelled file, or the name of a benchmark whose files are in the folder of --data.
    split
        Of a benchmark: train, dev, test, ... A file that is given itself as test may be without labels.
    folder
        Folder with the benchmark's files.
    ensemble
        Further models: several behind one flag, or the flag again.
    submission
        Also write the leaderboard's file into this folder.
    text
        Of a file: its column of the text, where it is not the one that the model learned from.
    pair
        Its column of the second text.
    label
        Its column of the label.
    """
    from encoderlab.tasks import suites
    from encoderlab.tasks.base import is_unlabelled
    from encoderlab.tasks.infer import Given
    from encoderlab.tasks.predict import joint_windows, predict_ensemble
    from encoderlab.tasks.scores import score
    from encoderlab.tasks.span import SpanQA, best_texts
    from encoderlab.tasks.submit import check_submission, write_submission
    from encoderlab.tasks.tables import is_file_name

    places = [model, *(ensemble or ())]
    members = [predictor_of(place) for place in places]
    own = members[0].form.task
    names: dict[str, str] = {}
    if Path(data).is_file():
        task = _task_of_file(Path(data), own, Given(form=own.form, text=text, pair=pair, label=label))
        part = task.read([Path(data)], split)
    elif is_file_name(data) or "/" in data:
        raise ConfigError(f"{data}: no such file; give labelled data, or the name of a benchmark")
    else:
        task, names = _fitted(suites.task(data), own)
        if folder is None:
            raise ConfigError(f"{data} is a benchmark; give the folder of its files with --data")
        part = task.load(folder, split)
    _warn(part)
    unlabelled = sum(map(is_unlabelled, part.examples))
    if submission is not None:
        written = submission / check_submission(task, split, len(part)).files[split]
        for file in part.files:
            _check_out(written, Path(file), "give another folder with --submission")
    elif unlabelled:
        raise DataError(
            f"{task.name}: {unlabelled:,} of {len(part):,} {split} examples have no label to score against; give "
            f"labelled data, --submission FOLDER for a leaderboard, or the file to predict"
        )
    if isinstance(members[0].form, SpanQA) and not joint_windows(members):
        note("the models read passages in different windows, so the probabilities of their n-best texts are averaged")
    _allow_no_answer(task, places, members, part.examples)
    together, each = predict_ensemble(members, part.examples)
    for line in dict.fromkeys(_cut(member) for member in members):
        if line:
            note(line)
    found = {}
    if names:
        together, each = _renamed(together, names), [_renamed(one, names) for one in each]
    labels = [str(place) for place in places]
    if len(members) > 1:
        labels, each = ["ensemble", *labels], [together, *each]
    if unlabelled:
        labels = []
        note(f"{task.name}: the {split} examples have no labels; nothing to score")
    for name, predictions in zip(labels, each, strict=False):
        withdrawn = task.answers == "squad" and predictions.null_odds is not None
        values = best_texts(predictions) if withdrawn else predictions.values
        found[name], notes = score(
            task, part.examples, values, null_odds=predictions.null_odds, threshold=predictions.threshold
        )
        for remark in notes:
            note(f"{name}: {remark}")
    if found:
        _show_scores(f"{task.name}, {len(part):,} examples (× 100)", found)
    files = []
    if submission is not None:
        files = write_submission(
            task, split, part.examples, together.values, submission, nbest=together.nbest, null_odds=together.null_odds
        )
        say(f"written: {', '.join(map(str, files))}")
    return {"task": task.name, "examples": len(part), "data": part.sha256, "scores": found, "submission": files}


def _allow_no_answer(task: Task, places: list[Path], members: list[Predictor], examples: tuple[Example, ...]) -> None:
    """Let models whose folders tell nothing of their task, as those of transformers, give no answer where the data has
    questions without one.
    """
    from encoderlab.tasks.base import Question
    from encoderlab.tasks.folder import read_task
    from encoderlab.tasks.span import SpanQA
    from encoderlab.tasks.trials import best_seed

    if task.answers != "squad" or not any(isinstance(one, Question) and one.answers == () for one in examples):
        return
    for place, member in zip(places, members, strict=True):
        form = member.form
        if isinstance(form, SpanQA) and not form.nullable and read_task(best_seed(place, lambda text: None)) is None:
            form.nullable = True
            note(f"{place}: no answer is given where the null score is above 0; the folder tells no other threshold")


def _show_scores(title: str, found: Mapping[str, Mapping[str, float]]) -> None:
    """Scores by model, and what an ensemble gains."""
    metrics = list(next(iter(found.values())))
    plain = ("total", "threshold", "mean_squared_error")  # no shares
    rows = [
        [
            metric,
            *(
                f"{scores[metric]:,.4g}" if metric.endswith(plain) else f"{100 * scores[metric]:.2f}"
                for scores in found.values()
            ),
        ]
        for metric in metrics
    ]
    table(title, ["metric", *("/".join(Path(name).parts[-2:]) for name in found)], rows)
    if "ensemble" in found:
        together, *alone = (scores[metrics[0]] for scores in found.values())
        mean, best = together - sum(alone) / len(alone), together - max(alone)
        say(f"gain of the ensemble in {metrics[0]}: {100 * mean:+.2f} over their mean, {100 * best:+.2f} over the best")


def predict(
    model: Path,
    inputs: list[str],
    /,
    *,
    out: Path | None = None,
    text: str | None = None,
    pair: str | None = None,
) -> dict[str, Any]:
    """Label texts with a fine-tuned model.

    The input is a file (CSV, TSV, JSON lines, Parquet with named columns; `.txt` with one
    text per line, for a tagger also one word per line with blank lines between sentences),
    of any size: it is read in parts, and the same command with --out goes on where it was
    interrupted. Or it is texts; two texts of a pair stand on both sides of [SEP].
    Columns are those that the model learned from, where the file has them.

    Example:
        encoderlab predict runs/reviews texts.csv --out labels.jsonl

    Parameters
    ----------
    model
        Fine-tuned model folder, or run folder.
    inputs
        One file, or texts.
    out
        File to write, one JSON object per line. Without it predictions are printed.
    text
        Column of the text, where its name does not tell.
    pair
        Column of the second text.
    """
    from encoderlab.tasks.predict import record
    from encoderlab.tasks.tables import is_file_name

    file = Path(inputs[0])
    if len(inputs) == 1 and "/" in inputs[0] and os.path.isdir(file):  # pathlib raises for texts too long to be a name
        raise DataError(f"{file}: is a folder; give a file, or texts")
    if out is not None and out.is_dir():
        raise ConfigError(f"--out {out}: is a folder; name a file to write, such as {out / 'predictions.jsonl'}")
    _check_out(out, file)
    predictor = predictor_of(model)
    if len(inputs) > 1 or not os.path.isfile(file):
        if len(inputs) == 1 and is_file_name(inputs[0]):
            raise DataError(f"{file}: no such file; give a file, or texts")
        examples = [_example(predictor.form.task, number, line) for number, line in enumerate(inputs)]
        predictions = predictor.predict(examples)
        found = [
            record(example, value, detail)
            for example, value, detail in zip(examples, predictions.values, predictions.details, strict=True)
        ]
        for line, answer in zip(inputs, found, strict=True):
            say(f"{_answer(answer)}\t{line}")
        if line := _cut(predictor):
            note(line)
        return {"model": model, "predictions": found}
    return _predict_file(predictor, file, out, text, pair) | {"model": model}


def fill_mask(
    model: Path, texts: list[str], /, *, top: Annotated[int, Parameter(name=["--top", "-k"])] = 5
) -> dict[str, Any]:
    """Guess the masked words of texts.

    Write [MASK] where a word is to be guessed, whatever the mask token of the model is.

    Example:
        encoderlab fill-mask runs/quickstart/pretrain "The [MASK] of a list."

    Parameters
    ----------
    model
        Model folder, or run folder.
    texts
        Texts, each with at least one [MASK].
    top
        Guesses per mask.
    """
    network = _load(model)
    mask = network.tokenizer.token(network.tokenizer.special.mask) if network.tokenizer else "[MASK]"
    answers = []
    for text in texts:
        masks = network.fill_mask(text.replace("[MASK]", mask), top=top)
        answers.append({"text": text, "masks": [[vars(guess) for guess in guesses] for guesses in masks]})
        for number, guesses in enumerate(masks, 1):
            title = text if len(masks) == 1 else f"{text}  (mask {number})"
            table(
                title, ["word", "probability", "text"], [[g.token_str, f"{g.score:.4f}", g.sequence] for g in guesses]
            )
    return {"model": model, "answers": answers}


def encode(
    model: Path,
    texts: list[str] | None = None,
    /,
    *,
    file: Annotated[Path | None, Parameter(allow_leading_hyphen=True)] = None,
    out: Path | None = None,
    pooling: Literal["mean", "first", "last"] = "mean",
) -> dict[str, Any]:
    """Turn texts into vectors, one per text.

    Texts come from the command line, or from a file with one text per line
    ("-": standard input). The vectors go to a NumPy file, or are printed.

    Example:
        encoderlab encode runs/wiki --file texts.txt --out vectors.npy

    Parameters
    ----------
    model
        Model folder, or run folder.
    texts
        Texts.
    file
        File with one text per line.
    out
        NumPy file (n, width) float32 to write.
    pooling
        What stands for a text: the mean over its tokens, its first token, or its last.
    """
    import numpy as np

    from encoderlab.inference import encode_parts

    if (file is None) == (not texts):
        raise ConfigError("encode takes either texts or --file FILE (one text per line)")
    if texts and len(texts) == 1 and os.path.isfile(texts[0]):
        raise ConfigError(f"{texts[0]}: is a file; give it with --file")
    if file is not None:
        _check_out(out, file)
    network = _load(model)
    lines = iter(texts or ()) if file is None else _lines(file)
    if (first := next(lines, None)) is None:
        raise DataError(f"{file}: holds no text; give a file with one text per line")
    parts = encode_parts(network, chain([first], lines), pooling=pooling)
    width = network.config.encoder.width
    if out is not None:
        count = _write_vectors(out, parts, width)
        say(f"{count:,} vectors of {width} numbers written to {out}")
        return {"model": model, "texts": count, "width": width, "out": out}
    vectors = np.concatenate(list(parts))
    for vector in vectors:
        say(" ".join(f"{number:.6g}" for number in vector))
    return {"model": model, "texts": len(vectors), "width": width, "vectors": vectors}


def _check_out(out: Path | None, given: Path, remedy: str = "name another file with --out") -> None:
    """Refuse to write over the file that is read, by whatever name."""
    if out is not None and os.path.exists(given) and out.exists() and out.samefile(given):
        raise ConfigError(f"{out}: is the input; {remedy}")


def _write_vectors(out: Path, parts: Iterator[np.ndarray], width: int) -> int:
    """Write parts of an array as one NumPy file; returns how many rows it has. Its header comes first and says how many
    they are, in room that is kept for that, so it is written twice.
    """
    import numpy as np

    from encoderlab.files import replace_file

    out.parent.mkdir(parents=True, exist_ok=True)
    with progress("encode") as show, replace_file(out) as file:
        header = {"descr": "<f4", "fortran_order": False}
        np.lib.format.write_array_header_1_0(file, header | {"shape": (0, width)})
        count = 0
        for part in parts:
            file.write(part.astype("<f4", copy=False).tobytes())
            count += len(part)
            show("texts", count, None)
        file.seek(0)
        np.lib.format.write_array_header_1_0(file, header | {"shape": (count, width)})
    return count


def _lines(path: Path) -> Iterator[str]:
    """The lines of a text file, compressed or not, or of standard input for ``-``."""
    from encoderlab.tasks.tables import RECORDS, lines, suffix

    if str(path) == "-":
        for number, line in enumerate(sys.stdin.buffer, 1):
            try:
                yield line.decode().rstrip("\r\n")
            except UnicodeDecodeError:
                raise DataError(f"standard input: line {number} is not UTF-8; convert it with iconv") from None
        return
    if suffix(path) in RECORDS:
        raise DataError(f"{path}: is a table; give a file with one text per line")
    yield from (line for _, line in lines(path))


def _load(folder: Path) -> Model:
    """A model, on the GPU where there is one."""
    from encoderlab.inference import usual_device
    from encoderlab.interchange.load import load

    return load(folder).to(usual_device())


def predictor_of(folder: Path) -> Predictor:
    """A fine-tuned model with the task it was trained for, as far as its folder tells. Without a task there, it has no
    layouts either.
    """
    from encoderlab.tasks import suites
    from encoderlab.tasks.folder import HEAD_FILE, layouts_of, read_task
    from encoderlab.tasks.predict import Predictor, task_of_model
    from encoderlab.tasks.span import SpanQA
    from encoderlab.tasks.trials import best_seed

    folder = best_seed(folder, note)
    if (folder / "model" / HEAD_FILE).exists():
        raise ConfigError(
            f"{folder}: holds a head on a frozen encoder's features, which predicts only what it was given with its "
            f"training data (predictions-*.jsonl); give further texts to finetune with --test"
        )
    network, kept = _load(folder), read_task(folder)
    task = task_of_model(network)
    task = replace(task, layouts=())
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


def _fitted(task: Task, own: Task) -> tuple[Task, dict[str, str]]:
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
            note(f"the model's labels {words[0]} are taken for {words[1]} of {task.name}, in this order")
            return task, dict(zip(own.labels, task.labels, strict=True))
    raise ConfigError(f"the model's labels are {words[0]}, those of {task.name} {words[1]}; give a model tuned for it")


def _numbered(labels: tuple[str, ...]) -> bool:
    return [label.removeprefix("LABEL_") for label in labels] == list(map(str, range(len(labels))))


def _renamed(found: Predictions, names: Mapping[str, str]) -> Predictions:
    """Predictions with the labels of a benchmark instead of the model's."""
    values = [
        tuple(names[tag] for tag in value) if isinstance(value, tuple) else names[value] for value in found.values
    ]
    return replace(found, values=values)


def _task_of_file(path: Path, own: Task, given: Given) -> Task:
    """The model's task ``own`` with the layout of a file: the one it was trained with where the file has it, else what
    the names of its columns tell. Columns that are given count.
    """
    from encoderlab.tasks.base import Remarks
    from encoderlab.tasks.infer import task_of
    from encoderlab.tasks.readers import Columns, layout_of
    from encoderlab.tasks.tables import columns

    names = columns(path, Remarks(path))
    fitting = [layout for layout in own.layouts if _fits(layout, path, names)]
    layout = layout_of(path, fitting) if fitting else None
    if layout is not None and (given.text, given.pair, given.label) == (None, None, None):
        note(f"{path.name}: {own.form}, read as the training data of the model ({own.name}) is")
        return replace(own, layouts=(layout,))
    if isinstance(layout, Columns):
        texts = (layout.text, layout.pair) if given.text is None else (given.text, given.pair)
        usual = layout.label if layout.labels(names) else None
        given = replace(given, text=texts[0], pair=given.pair or texts[1], label=given.label or usual)
    task, said = task_of(path, given)
    note(said)
    return replace(own, name=task.name, layouts=task.layouts)


def _fits(layout: Any, path: Path, names: tuple[str, ...]) -> bool:
    """Whether a file has a layout of the training data. Layouts that ask for no names are kept from files that have
    some.
    """
    from encoderlab.tasks.infer import TEXTS
    from encoderlab.tasks.readers import Columns, Conll, Options, Squad, WordLists
    from encoderlab.tasks.tables import suffix

    kind = suffix(path)
    if isinstance(layout, Conll):
        return kind not in (".csv", ".json", ".jsonl", ".ndjson", ".parquet")
    if getattr(layout, "positional", False) and {name.lower() for name in names} & set(TEXTS):
        return False
    if not isinstance(layout, (Columns, Options, Squad, WordLists)) and kind in (".csv", ".tsv"):
        return False  # these are read from records alone
    return bool(layout.matches(names))


def _predict_file(
    predictor: Predictor, path: Path, out: Path | None, text: str | None, pair: str | None
) -> dict[str, Any]:
    """Predictions of a file, in parts."""
    import tempfile

    from encoderlab.tasks.base import Remarks
    from encoderlab.tasks.infer import Given, is_word_per_line
    from encoderlab.tasks.predict import predict_file
    from encoderlab.tasks.readers import Columns, Conll, Options, WordLists
    from encoderlab.tasks.tables import columns, suffix

    own = predictor.form.task
    tagged = own.form == "tagging"
    plain = suffix(path) == ".txt" and (tagged or own.form in ("classification", "regression")) and text is None
    named = [layout for layout in own.layouts if not isinstance(layout, Conll)]
    if (
        plain
        and not any(_fits(layout, path, columns(path, Remarks(path))) for layout in named)
        and not (tagged and is_word_per_line(path, own.labels or ()))
    ):
        task = replace(own, layouts=(_OneTextPerLine(tagged=tagged),))
        note(f"{path.name}: {own.form}, one text per line")
    else:
        task = _task_of_file(path, own, Given(form=own.form, text=text, pair=pair))
    # Every row is predicted, whatever its label is.
    unread: dict[Any, dict[str, None]] = {
        Columns: {"label": None},
        Conll: {"tag": None},
        Options: {"answer": None},
        WordLists: {"tags": None},
    }
    layouts: tuple[Any, ...] = task.layouts
    layouts = tuple(replace(one, **unread.get(type(one), {})) for one in layouts)
    task = replace(task, layouts=layouts, labels=None, dropped=())
    remarks, done = Remarks(path), 0
    with tempfile.TemporaryDirectory() as folder:
        target = out or Path(folder) / "predictions.jsonl"
        target.parent.mkdir(parents=True, exist_ok=True)
        with progress("predict") as show:
            for done in predict_file(predictor, path, target, task=task, remarks=remarks):
                show("examples", done, None)
        for line in remarks.lines():
            note(line)
        if line := _cut(predictor):
            note(line)
        if out is not None:
            say(f"{done:,} predictions written to {out}")
            return {"predictions": done, "out": out}
        with open(target, encoding="utf-8", newline="\n") as file:
            found = [json.loads(line) for line in file]
    for answer in found:
        say(f"{answer['id']}\t{_answer(answer)}")
    return {"predictions": found}


@dataclass(frozen=True)
class _OneTextPerLine:
    """The layout of a plain text file to predict: every line is a text, to be ``tagged`` word by word, or one or two
    texts with a tab between.
    """

    tagged: bool = False

    def matches(self, columns: Any) -> bool:
        return True

    def read(self, path: Path, remarks: Any) -> Iterator[Example]:
        from encoderlab.tasks.base import Words
        from encoderlab.tasks.tables import lines

        for row, line in lines(path):
            if not self.tagged:
                yield _text(str(row), line.replace("\t", " [SEP] ", 1))
            elif words := _words(line):
                yield Words(id=str(row), words=words, document=row, row=row)
            else:
                remarks.add("no words; left out", row)


def _example(task: Task, number: int, line: str) -> Example:
    """A text of the command line as an example of the model's form.

    Raises:
        ConfigError: the form needs more than a text.
        DataError: a sentence to be tagged has no words.
    """
    from encoderlab.tasks.base import FORMS, Words

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


def _words(text: str) -> tuple[str, ...]:
    """The words of a text to be tagged; Chinese is tagged character by character."""
    from encoderlab.corpus.words import is_cjk

    words: list[str] = []
    for part in text.split():
        words += part if any(map(is_cjk, part)) else [part]
    return tuple(words)


def _cut(predictor: Predictor) -> str:
    """How many texts were longer than a sequence so far; nothing where none was."""
    form = predictor.form
    if not form.cut or form.task.form == "span":  # passages are read in windows
        return ""
    done = "read in parts" if form.task.form == "tagging" else "cut"
    texts, were = ("text is", "was") if form.cut == 1 else ("texts are", "were")
    return f"{form.cut:,} {texts} longer than the model's {form.settings.max_length} tokens and {were} {done}"


def _text(name: str, line: str) -> Example:
    from encoderlab.tasks.base import Text

    first, separator, second = line.partition("[SEP]")
    return Text(id=name, text=first.strip(), pair=second.strip() if separator else None)


def _answer(found: dict[str, Any]) -> str:
    """The prediction of one record, in short."""
    value = next(found[key] for key in ("label", "answer", "prediction") if key in found)
    return (
        " ".join(map(str, value))
        if isinstance(value, list)
        else f"{value:.4g}"
        if isinstance(value, float)
        else str(value)
    )


def _warn(split: Split) -> None:
    for line in split.remarks:
        note(line)
