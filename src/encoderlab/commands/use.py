"""``encoderlab evaluate`` and ``encoderlab predict``: using a fine-tuned model."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from encoderlab.commands.outputs import check_output, output
from encoderlab.commands.precision import Precision, judge
from encoderlab.commands.terminal import json_mode, note, progress, say, table
from encoderlab.commands.workers import HERE, ModelWork, WorkerOptions, each, for_each_file
from encoderlab.errors import ConfigError, DataError
from encoderlab.files import held_folder, json_line, write_text
from encoderlab.messages import Say
from encoderlab.records.opening import refuse_pipe
from encoderlab.storage.cache import local
from encoderlab.storage.places import url_of
from encoderlab.tasks.data.records import is_file_name
from encoderlab.train.progress import adding

if TYPE_CHECKING:
    from encoderlab.tasks.data.infer import Given
    from encoderlab.tasks.data.task import Split, Task
    from encoderlab.tasks.runs.predict import Predictor


def evaluate(
    model: Path,
    data: list[str],
    /,
    *,
    split: str = "dev",
    folder: Annotated[Path | None, Parameter(name="--data")] = None,
    ensemble: Annotated[list[Path] | None, Parameter(consume_multiple=1)] = None,
    submission: Path | None = None,
    text: str | None = None,
    pair: str | None = None,
    label: str | None = None,
    skip_unlabelled: bool = False,
    where: WorkerOptions = HERE,
) -> dict[str, Any]:
    """Score a fine-tuned model, or an ensemble, on labelled data.

    An ensemble averages the probabilities of its models (for answers, the scores of
    starts and ends); its score is shown next to theirs. Of several files, each is scored
    by itself, and several processes can share the work.

    Example:
        encoderlab evaluate runs/mrpc mrpc --data data/glue \\
            --ensemble runs/mrpc-large runs/mrpc-electra

    Parameters
    ----------
    model
        Fine-tuned model folder, run folder, or org/name of the Hugging Face Hub.
    data
        Labelled files, folders that Hugging Face's datasets wrote (save_to_disk), or names of benchmarks whose
        files are in the folder of --data.
    split
        Split of a benchmark: train, dev, test, ... A file given as test may have no labels.
    folder
        Folder with the benchmark's files.
    ensemble
        Further models (repeatable, or several after one flag).
    submission
        Also write the files for the leaderboard into this folder.
    text
        For a file, the column of the text, if its name differs from the training file's.
    pair
        For a file, the column of the second text.
    label
        For a file, the column of the label.
    skip_unlabelled
        Leave out rows without a label, and print their number.
    """
    from encoderlab.tasks.data.infer import Given
    from encoderlab.tasks.data.sources import described_source

    members = [model, *(ensemble or ())]
    if twice := [one for one in members if members.count(one) > 1]:
        raise ConfigError(f"{twice[0]}: is given twice; name each model of an ensemble once")
    score = Score(
        places=tuple(members),
        split=split,
        folder=folder,
        submission=submission,
        given=Given(text=text, pair=pair, label=label, skip_unlabelled=skip_unlabelled),
    )
    if len(data) == 1:
        if where.several:
            raise ConfigError("--workers, --on and the like are for several labelled files; leave them out")
        described_source(data[0], folder, Given())
        with progress("evaluate") as show:
            evaluation = score(data[0], note, adding(show, "sequences"))
        _show_evaluation(evaluation)
        return evaluation
    if submission is not None:
        raise ConfigError(f"--submission is for one benchmark, not {len(data)}; give them one by one")
    if len({*data}) < len(data):
        raise ConfigError(f"{next(one for one in data if data.count(one) > 1)}: is given twice; name each file once")
    done: dict[str, dict[str, Any]] = {}
    files = [path for path in map(local, data) if path.exists()]
    with where.tasks([*score.places, *files, *([folder] if folder else [])]) as tasks, progress("evaluate") as show:

        def ended(name: str, scored: dict[str, Any]) -> None:
            done[name] = scored
            show("files", len(done), len(data))

        each(tasks, score, {one: (one,) for one in data}, ended)
    for one in data:
        _show_evaluation(done[one], one)
    return {"files": {one: done[one] for one in data}}


@dataclass(frozen=True, kw_only=True)
class Score:
    """Scores the models at ``places``, and their ensemble, on labelled data; travels to other processes.

    ``say`` takes remarks, ``watch`` the number of sequences of each batch that is done.
    """

    places: tuple[Path, ...]
    split: str
    folder: Path | None
    submission: Path | None
    given: Given

    def __call__(self, data: str, say: Say, watch: Callable[[int], None] = lambda sequences: None) -> dict[str, Any]:
        from encoderlab.tasks.data.sources import folder_of
        from encoderlab.tasks.data.task import is_unlabelled
        from encoderlab.tasks.forms.table import FORMS
        from encoderlab.tasks.runs.apply import allow_no_answer, predictor_of, renamed
        from encoderlab.tasks.runs.folder import record_of
        from encoderlab.tasks.runs.predict import joint_windows, predict_ensemble
        from encoderlab.tasks.runs.submit import check_submission, write_submission

        places, split, submission = self.places, self.split, self.submission
        members = [predictor_of(place, say) for place in places]
        own = members[0].form.task
        given = replace(self.given, form=own.form)
        task, part, names = labelled_data(data, split, folder_of(data, self.folder), own, given, say)
        for line in part.remarks:
            say(line)
        for place in places:
            if (record := record_of(place)) is not None and record["data"].get("train") == part.sha256:
                say(f"{place}: trained on this data, so its score says nothing about other texts")
        unlabelled = sum(map(is_unlabelled, part.examples))
        if submission is not None:
            written = submission / check_submission(task, split, len(part)).files[split]
            check_output(written, "leaderboard", *map(Path, part.files), option="--submission")
        elif unlabelled:
            raise DataError(
                f"{task.name}: {unlabelled:,} of {len(part):,} {split} examples have no label to score against; give "
                f"labelled data, --submission FOLDER for a leaderboard, or the file to predict"
            )
        if members[0].form.reading(members[0].model) is not None and not joint_windows(members):
            say(
                "the models read passages in different windows, so the probabilities of their n-best texts are averaged"
            )
        allow_no_answer(task, places, members, part.examples, say)
        for member in members:
            member.watch = watch
        together, alone = predict_ensemble(members, part.examples)
        _say_cut(members, say)
        if names:
            together, alone = renamed(together, names), [renamed(one, names) for one in alone]
        scored = dict(zip(map(str, places), alone, strict=True))
        if len(members) > 1:
            scored = {"ensemble": together, **scored}
        scores = {}
        if unlabelled:
            say(f"{task.name}: the {split} examples have no labels; nothing to score")
        else:
            for name, predictions in scored.items():
                scores[name], remarks = FORMS[task.form].score_found(task, part.examples, predictions)
                for remark in remarks:
                    say(f"{name}: {remark}")
        files = []
        if submission is not None:
            with held_folder(submission):
                files = write_submission(task, split, part.examples, together, submission)
        return {"task": task.name, "examples": len(part), "data": part.sha256, "scores": scores, "submission": files}


def _show_evaluation(evaluation: Mapping[str, Any], data: str = "") -> None:
    """Print the scores of :class:`Score`, with the name of the data if there is more than one."""
    if evaluation["scores"]:
        show_scores(f"{data or evaluation['task']}, {evaluation['examples']:,} examples (× 100)", evaluation["scores"])
    if evaluation["submission"]:
        say(f"written: {', '.join(map(str, evaluation['submission']))}")


def labelled_data(
    data: str, split: str, folder: Path | None, own: Task, given: Given, say: Say = note
) -> tuple[Task, Split, dict[str, str]]:
    """The labelled file or benchmark ``data`` for a model of the task ``own``.

    Returns its task, its examples, and its label for each of the model's labels that differs.

    Raises:
        ConfigError: a ``folder`` of benchmarks is given for a file, or columns for a benchmark.
    """
    from encoderlab.tasks.data.sources import Files, described_source
    from encoderlab.tasks.runs.apply import fitted, task_of_file

    source = described_source(data, folder, replace(given, form=None))
    if isinstance(source, Files):
        paths = source.of(split)
        task = task_of_file(paths[0], own, given, say)
        return task, task.read(paths, split, skip_unlabelled=given.skip_unlabelled), {}
    task, names = fitted(source.task, own, say)
    return task, source.read(task, split), names


def show_scores(title: str, by_model: Mapping[str, Mapping[str, float]]) -> None:
    """Print scores by model, and the gain of an ensemble."""
    metrics = list(next(iter(by_model.values())))
    plain = ("total", "threshold", "mean_squared_error")  # no shares
    rows = [
        [
            metric,
            *(
                f"{scores[metric]:,.4g}" if metric.endswith(plain) else f"{100 * scores[metric]:.2f}"
                for scores in by_model.values()
            ),
        ]
        for metric in metrics
    ]
    table(title, ["metric", *("/".join(Path(name).parts[-2:]) for name in by_model)], rows)
    if "ensemble" in by_model:
        together, *alone = (scores[metrics[0]] for scores in by_model.values())
        mean, best = together - sum(alone) / len(alone), together - max(alone)
        say(f"gain of the ensemble in {metrics[0]}: {100 * mean:+.2f} over the mean, {100 * best:+.2f} over the best")


def predict(
    model: Path,
    inputs: list[str],
    /,
    *,
    out: Path | None = None,
    text: str | None = None,
    pair: str | None = None,
    with_: Annotated[list[Literal["text", "gold"]] | None, Parameter(name="--with", consume_multiple=1)] = None,
    precision: Precision = "fp32",
    check: Path | None = None,
    where: WorkerOptions = HERE,
) -> dict[str, Any]:
    """Label texts with a fine-tuned model.

    The input is a file (CSV, TSV, JSON lines, Parquet with named columns; `.txt` with one
    text per line, for a tagger also one word per line with blank lines between sentences),
    of any size: it is read in parts, and the same command with --out continues where it was
    interrupted. For a folder or several files, --out is a folder with an output for each, and
    several processes can share the work. Instead of files you can give texts; [SEP] separates the
    two texts of a pair. Columns are those of the training file, if the file has them.

    Example:
        encoderlab predict runs/reviews texts.csv --out labels.jsonl
        encoderlab predict runs/reviews texts/ --out labels/ --workers 8

    Parameters
    ----------
    model
        Fine-tuned model folder, run folder, or org/name of the Hugging Face Hub.
    inputs
        One file, several files or folders, or texts.
    out
        File to write, one JSON object per line. Without it predictions are printed. For several files, a folder:
        FOLDER/FILE.csv.jsonl for FILE.csv.
    text
        Column of the text, if it cannot be inferred.
    pair
        Column of the second text.
    with_
        Also write these: text (with its second text, question or options), gold (the label in the file).
    precision
        Arithmetic of the matrix products in the layers: fp32, or int8 (8 bits; two to three times as
        fast on processors with VNNI).
    check
        Labelled data of the task, or a file with one text per line, on which int8 is compared with fp32 first; a
        loss of more than 0.5 % is refused.
    """
    from encoderlab.tasks.runs.apply import predictor_of

    places = places_of(inputs, out)
    work = PredictFile(model=model, text=text, pair=pair, besides=tuple(with_ or ()), precision=precision)
    if places is not None and (len(places) > 1 or places[0].is_dir()):
        return for_each_file(work, places, out, where, judge=partial(judge, model, check, precision))
    if where.several:
        raise ConfigError("--workers, --on and the like are for several files or a folder; leave them out")
    if with_ and places is not None and out is None and not json_mode():
        raise ConfigError(f"--with {' '.join(with_)} adds to the lines of a file of predictions; give --out FILE")
    if places is None and (text, pair) != (None, None):
        raise ConfigError("texts have no columns; leave --text and --pair out, or give a file")
    if places is None and "gold" in (with_ or ()):
        raise ConfigError("texts have no labels; leave gold out of --with, or give a file")
    with output(out, "predictions", *(places or ())):
        verdict = judge(model, check, precision) | {"model": model}
        predictor = predictor_of(model, note, precision)
        if places is None:
            return _predict_texts(predictor, inputs, out, work.besides) | verdict
        return _predict_file(work, predictor, places[0], out) | verdict


def places_of(words: Sequence[str], out: Path | None) -> list[Path] | None:
    """The files and folders that ``words`` name; None if they are texts.

    A word is a folder if it is written with a slash, or if an output is given; else a note says that it is a text.

    Raises:
        DataError: a word must be a file, and there is none; a pipe; or texts are given besides files.
    """
    places, texts = [], []
    for word in words:
        spaced = any(map(str.isspace, word))
        url = None if spaced else url_of(word)
        if url is not None and (is_file_name(word) or not url.startswith("http")):
            places.append(local(url))
        elif os.path.isfile(word) or os.path.isdir(word) and ("/" in word or out is not None):
            places.append(Path(word))
        elif os.path.exists(word) and not os.path.isdir(word):
            refuse_pipe(Path(word))
        elif is_file_name(word) and (places or len(words) == 1 or not spaced):
            raise DataError(f"{word}: no such file; give a file, or texts")
        else:
            if os.path.isdir(word):
                note(f"{word}: is taken as a text; write {word}/ for the folder of that name")
            texts.append(word)
    if places and texts:
        raise DataError(f"{texts[0]:.80}: is no file, and {places[0]} is one; give only files, or only texts")
    return places or None


@dataclass(frozen=True, kw_only=True)
class PredictFile(ModelWork["Predictor"]):
    """Labels the texts of files."""

    verb, suffix, unit, product = "predict", ".jsonl", "predictions", "predictions"
    text: str | None
    pair: str | None
    besides: tuple[str, ...]
    precision: Precision

    def load(self, say: Say) -> tuple[Predictor, str]:
        from encoderlab.tasks.runs.apply import predictor_of
        from encoderlab.tasks.runs.predict import identity

        predictor = predictor_of(self.model, say, self.precision)
        return predictor, identity(predictor)

    def asked(self) -> dict[str, Any]:
        return {"text": self.text, "pair": self.pair, "with": list(self.besides)}

    def __call__(self, source: Path, out: Path, say: Say) -> dict[str, Any]:
        predictor = self.loaded()
        predictor.form.cut = 0
        return {"predictions": self.write(predictor, source, out, say)}

    def write(
        self,
        predictor: Predictor,
        source: Path,
        out: Path,
        say: Say,
        show: Callable[[int], None] = lambda count: None,
    ) -> int:
        """Write the predictions for a file, part by part, and return their number; ``show`` gets it after each part."""
        from encoderlab.tasks.data.task import Remarks
        from encoderlab.tasks.runs.apply import unlabelled_task_of_file
        from encoderlab.tasks.runs.predict import predict_file

        task = unlabelled_task_of_file(source, predictor, self.text, self.pair, say, gold="gold" in self.besides)
        remarks, done = Remarks(source), 0
        for done in predict_file(predictor, source, out, task=task, remarks=remarks, besides=self.besides):
            show(done)
        for line in remarks.lines():
            say(line)
        _say_cut([predictor], say)
        return done


def _predict_texts(predictor: Predictor, texts: list[str], out: Path | None, besides: Sequence[str]) -> dict[str, Any]:
    """Write the predictions of texts to ``out``, or print them."""
    from encoderlab.tasks.runs.apply import example_of
    from encoderlab.tasks.runs.predict import record

    examples = [example_of(predictor.form.task, number, text) for number, text in enumerate(texts)]
    predictions = predictor.predict(examples)
    records = [
        record(example, value, detail, predictor.form.head_labels(), besides)
        for example, value, detail in zip(examples, predictions.values, predictions.details, strict=True)
    ]
    _say_cut([predictor], note)
    if out is not None:
        write_text(out, "".join(map(json_line, records)))
        say(f"{len(records):,} predictions written to {out}")
        return {"predictions": len(records), "out": out}
    for text, answer in zip(texts, records, strict=True):
        say(f"{_answer(answer)}\t{text}")
    return {"predictions": records}


def _predict_file(work: PredictFile, predictor: Predictor, path: Path, out: Path | None) -> dict[str, Any]:
    """Write the predictions of a file to ``out``, or print them."""
    with tempfile.TemporaryDirectory() as folder:
        target = out or Path(folder) / "predictions.jsonl"
        with progress("predict") as show:
            predictor.watch = adding(show, "sequences")
            done = work.write(predictor, path, target, note, lambda count: show("examples", count, None))
        if out is not None:
            say(f"{done:,} predictions written to {out}")
            return {"predictions": done, "out": out}
        with open(target, encoding="utf-8", newline="\n") as file:
            records = [json.loads(line) for line in file]
    for answer in records:
        say(f"{answer['id']}\t{_answer(answer)}")
    return {"predictions": records}


def _say_cut(predictors: Sequence[Predictor], say: Say) -> None:
    """Say how many texts were too long so far, the same sentence once."""
    forms = [predictor.form for predictor in predictors]
    for line in dict.fromkeys(form.cut_note("text", f"the model's {form.settings.max_length}") for form in forms):
        if line:
            say(line)


def _answer(record: dict[str, Any]) -> str:
    """The prediction for one record, as text."""
    value = next(record[key] for key in ("label", "answer", "prediction") if key in record)
    if isinstance(value, list):
        return " ".join(map(str, value))
    if value is None:
        return "NaN"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
