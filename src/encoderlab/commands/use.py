"""Using a model: ``evaluate``, ``predict``, ``fill-mask``, ``encode``."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from encoderlab.commands.terminal import note, progress, say, table
from encoderlab.errors import ConfigError, DataError

if TYPE_CHECKING:
    from encoderlab.tasks.base import Example, Split, Task
    from encoderlab.tasks.predict import Predictor

CHUNK = 8192  # texts held at a time


def evaluate(
    model: Path,
    data: str,
    /,
    *,
    split: str = "dev",
    folder: Annotated[Path | None, Parameter(name="--data")] = None,
    ensemble: list[Path] | None = None,
    submission: Path | None = None,
) -> dict[str, Any]:
    """Score a fine-tuned model, or an ensemble, on labelled data.

    An ensemble averages the probabilities of its members (for answers, their n-best
    lists); its score stands beside theirs.

    Example:
        encoderlab evaluate runs/mrpc/seed-1 mrpc --data data/glue \\
            --ensemble runs/mrpc/seed-2 --ensemble runs/mrpc/seed-3

    Parameters
    ----------
    model
        Fine-tuned model folder, or run folder.
    data
        A labelled file, or the name of a benchmark whose files are in the folder of --data.
    split
        Of a benchmark: train, dev, test, ...
    folder
        Folder with the benchmark's files.
    ensemble
        Further models (repeatable).
    submission
        Also write the leaderboard's file into this folder.
    """
    from encoderlab.tasks import suites
    from encoderlab.tasks.base import is_unlabelled
    from encoderlab.tasks.predict import predict_ensemble
    from encoderlab.tasks.scores import score
    from encoderlab.tasks.submit import write_submission

    names = [model, *(ensemble or ())]
    members = [predictor_of(place) for place in names]
    own = members[0].form.task
    if Path(data).is_file():
        task, part = _labelled_file(Path(data), own)
    else:
        task = _fitted(suites.task(data), own)
        if folder is None:
            raise ConfigError(f"{data} is a benchmark; give the folder of its files with --data")
        part = task.load(folder, split)
    _warn(part)
    together, each = predict_ensemble(members, part.examples)
    found = {}
    labels = [str(name) for name in names]
    if len(members) > 1:
        labels, each = ["ensemble", *labels], [together, *each]
    if submission is not None and any(map(is_unlabelled, part.examples)):
        labels = []
        note(f"{task.name}: the {split} examples have no labels; nothing to score")
    for name, predictions in zip(labels, each, strict=False):
        found[name], notes = score(
            task, part.examples, predictions.values, null_odds=predictions.null_odds, threshold=predictions.threshold
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
    text per line), of any size: it is read in parts, and the same command with --out goes
    on where it was interrupted. Or it is texts; two texts of a pair stand on both sides of [SEP].

    Example:
        encoderlab predict runs/reviews/seed-1 texts.csv --out labels.jsonl

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
    from encoderlab.tasks.base import Text
    from encoderlab.tasks.predict import record

    predictor = predictor_of(model)
    file = Path(inputs[0])
    if len(inputs) > 1 or not file.is_file():
        if file.suffix and " " not in inputs[0] and len(inputs) == 1:
            raise DataError(f"{file}: no such file; give a file, or texts")
        examples: list[Example] = [_text(str(number), line, Text) for number, line in enumerate(inputs)]
        predictions = predictor.predict(examples)
        found = [
            record(example, value, detail)
            for example, value, detail in zip(examples, predictions.values, predictions.details, strict=True)
        ]
        for line, answer in zip(inputs, found, strict=True):
            say(f"{_answer(answer)}\t{line}")
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
    from encoderlab.interchange.load import load

    network = load(model)
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
    file: Path | None = None,
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

    from encoderlab.interchange.load import load

    if (file is None) == (not texts):
        raise ConfigError("encode takes either texts or --file FILE (one text per line)")
    network = load(model)
    lines = iter(texts or ()) if file is None else _lines(file)
    chunks, count = [], 0
    while chunk := list(islice(lines, CHUNK)):
        chunks.append(network.encode(chunk, pooling=pooling))
        count += len(chunk)
        if file is not None:
            note(f"{count:,} texts encoded")
    if not count:
        raise DataError(f"{file}: holds no text; give a file with one text per line")
    vectors = np.concatenate(chunks)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        with out.open("wb") as target:
            np.save(target, vectors, allow_pickle=False)
        say(f"{count:,} vectors of {vectors.shape[1]} numbers written to {out}")
        return {"model": model, "texts": count, "width": vectors.shape[1], "out": out}
    for vector in vectors:
        say(" ".join(f"{number:.6g}" for number in vector))
    return {"model": model, "texts": count, "width": vectors.shape[1], "vectors": vectors}


def _lines(path: Path) -> Iterator[str]:
    """The lines of a text file, or of standard input for ``-``."""
    if str(path) == "-":
        yield from (line.rstrip("\n") for line in sys.stdin)
        return
    with path.open(encoding="utf-8", errors="replace") as file:
        yield from (line.rstrip("\n") for line in file)


def predictor_of(folder: Path) -> Predictor:
    """A fine-tuned model with the task it was trained for, as far as its folder tells."""
    from encoderlab.interchange.load import load
    from encoderlab.tasks import suites
    from encoderlab.tasks.finetune import HEAD_FILE, read_task
    from encoderlab.tasks.predict import Predictor, task_of_model
    from encoderlab.tasks.span import SpanQA
    from encoderlab.tasks.trials import best_seed

    folder = best_seed(folder, note)
    if (folder / "model" / HEAD_FILE).exists():
        raise ConfigError(
            f"{folder}: holds a head on a frozen encoder's features, which predicts only what it was given with its "
            f"training data (predictions-*.jsonl); give further texts to finetune with --test"
        )
    network, kept = load(folder), read_task(folder)
    task = task_of_model(network)
    if kept is None:
        return Predictor.of(network, task)
    labels = None if kept["labels"] is None else tuple(kept["labels"])
    task = replace(
        suites.TASKS.get(kept["name"], task), name=kept["name"], labels=labels, metrics=tuple(kept["metrics"])
    )
    predictor = Predictor.of(network, task, kept["settings"])
    if isinstance(predictor.form, SpanQA):
        predictor.form.threshold = kept["threshold"]
    return predictor


def _fitted(task: Task, own: Task) -> Task:
    """A benchmark with the labels of a model that was made for the task ``own``.

    Raises:
        ConfigError: the model's head is of another form, or has another number of labels.
    """
    if own.form != task.form:
        raise ConfigError(f"the model's head is for {own.form}, {task.name} is {task.form}; give a model tuned for it")
    if task.labels is None or own.labels is None or set(task.labels) == set(own.labels):
        return replace(task, labels=own.labels)
    words = ", ".join(own.labels[:9]), ", ".join(task.labels[:9])
    if len(task.labels) != len(own.labels):
        raise ConfigError(
            f"the model's labels are {words[0]}, those of {task.name} {words[1]}; give a model tuned for it"
        )
    note(f"the model's labels {words[0]} are taken for {words[1]} of {task.name}, in this order")
    return replace(task, labels=own.labels)


def _labelled_file(path: Path, own: Task) -> tuple[Task, Split]:
    """The examples of a user's file, read as the model's form of task."""
    from encoderlab.tasks.infer import Given, task_of

    task, said = task_of(path, Given(form=own.form))
    note(said)
    task = replace(task, labels=own.labels, metrics=own.metrics)
    return task, task.read([path], "dev")


def _predict_file(
    predictor: Predictor, path: Path, out: Path | None, text: str | None, pair: str | None
) -> dict[str, Any]:
    """Predictions of a file, in parts."""
    import tempfile

    from encoderlab.tasks.base import Remarks
    from encoderlab.tasks.infer import Given, task_of
    from encoderlab.tasks.predict import predict_file
    from encoderlab.tasks.tables import suffix

    own = predictor.form.task
    plain = suffix(path) == ".txt" and own.form in ("classification", "regression")
    if plain:
        task = replace(own, layouts=(_OneTextPerLine(),), labels=None)
    else:
        task, said = task_of(path, Given(form=own.form, text=text, pair=pair))
        task = replace(task, labels=None)
        note(said)
    remarks, done = Remarks(path), 0
    with tempfile.TemporaryDirectory() as folder:
        target = out or Path(folder) / "predictions.jsonl"
        target.parent.mkdir(parents=True, exist_ok=True)
        with progress("predict") as show:
            for done in predict_file(predictor, path, target, task=task, remarks=remarks):
                show("examples", done, None)
        for line in remarks.lines():
            note(line)
        if out is not None:
            say(f"{done:,} predictions written to {out}")
            return {"predictions": done, "out": out}
        found = [json.loads(line) for line in target.read_text(encoding="utf-8").splitlines()]
    for answer in found:
        say(f"{answer['id']}\t{_answer(answer)}")
    return {"predictions": found}


@dataclass(frozen=True)
class _OneTextPerLine:
    """The layout of a plain text file to predict: every line is a text, a tab separates the two texts of a pair."""

    def matches(self, columns: Any) -> bool:
        return True

    def read(self, path: Path, remarks: Any) -> Iterator[Example]:
        from encoderlab.tasks.base import Text
        from encoderlab.tasks.tables import lines

        for row, line in lines(path):
            yield _text(str(row), line.replace("\t", " [SEP] ", 1), Text)


def _text(name: str, line: str, kind: Any) -> Example:
    first, separator, second = line.partition("[SEP]")
    return kind(id=name, text=first.strip(), pair=second.strip() if separator else None, row=0)


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
