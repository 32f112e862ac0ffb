"""``encoderlab score``: predictions of any program against labelled data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from encoderlab.commands.terminal import note
from encoderlab.commands.use import show_scores
from encoderlab.errors import ConfigError


def score(
    predictions: Path,
    gold: Path,
    /,
    *,
    task: str = "inferred",
    split: str = "dev",
    form: str | None = None,
    text: str | None = None,
    pair: str | None = None,
    label: str | None = None,
    labels: str | None = None,
    null_odds: Path | None = None,
    threshold: float = 0.0,
    skip_others: bool = False,
) -> dict[str, Any]:
    """Score predictions of another program.

    The predictions are a file: JSON lines (of `encoderlab predict`, CLUE, SuperGLUE), one
    JSON object by id (SQuAD), a table (GLUE), CoNLL columns with the predicted tag last, or
    one label, number or answer per line in the order of the examples. Every example needs
    exactly one. The scores are those of the benchmark's official program.

    Example:
        encoderlab score MNLI-m.tsv data/glue --task mnli

    Parameters
    ----------
    predictions
        File of predictions.
    gold
        Labelled file, or with --task the folder of a benchmark.
    task
        Name of a benchmark, or inferred: from the columns of the labelled file.
    split
        Split of a benchmark: train, dev, test, ...
    form
        Kind of an inferred task: classification, regression, multilabel, tagging, span or choice.
    text
        For an inferred task, the column of the text, passage or context.
    pair
        For an inferred task, the column of the second text, or of the question.
    label
        For an inferred task, the column of the label, tags or answer.
    labels
        Further labels that may be predicted, besides those in the labelled file; separated by commas.
    null_odds
        For answers: JSON file with the score or probability of "no answer" by question id.
    threshold
        Count an answer as "no answer" if that score is above this threshold.
    skip_others
        Leave out predictions for ids that the labelled data lacks, and print their number.
    """
    from encoderlab.tasks.data import suites
    from encoderlab.tasks.data.infer import Given, task_of
    from encoderlab.tasks.data.predictions import read_null_odds, read_predictions, with_labels
    from encoderlab.tasks.scoring.scores import score as scored

    given = Given(form=form, text=text, pair=pair, label=label)
    if task == "inferred":
        if gold.is_dir():
            raise ConfigError(f"{gold}: is a folder; name its benchmark with --task")
        of, said = task_of(gold, given)
        note(said)
    elif given != Given():
        raise ConfigError(f"--task {task} defines how its files are read; leave out --form, --text, --pair and --label")
    else:
        of = suites.task(task)
    if null_odds is not None and (of.form != "span" or of.answers != "squad"):
        raise ConfigError(f"--null-odds is for answers as SQuAD scores them, and {of.name} is {of.form}; leave it out")
    part = of.load(gold, split)
    for line in part.remarks:
        note(line)
    of = with_labels(of, part, [one.strip() for one in labels.split(",")] if labels else ())
    values, remarks = read_predictions(predictions, of, part, skip_others=skip_others)
    known: dict[str, Any] = {}
    if null_odds is not None:
        known = {"null_odds": read_null_odds(null_odds, part), "threshold": threshold}
    found, warnings = scored(of, part.examples, values, **known)
    for line in (*remarks, *warnings):
        note(line)
    show_scores(f"{of.name}, {len(part):,} examples (× 100)", {str(predictions): found})
    return {
        "task": of.name,
        "form": of.form,
        "examples": len(part),
        "data": part.sha256,
        "scores": found,
        "warnings": list(warnings),
    }
