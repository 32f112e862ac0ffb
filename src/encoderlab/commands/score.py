"""``encoderlab score``: predictions of any program against labelled data."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from encoderlab.commands.settings import OWN_FILE, OwnFile
from encoderlab.commands.terminal import note
from encoderlab.commands.use import show_scores
from encoderlab.errors import ConfigError


def score(
    predictions: Path,
    data: str,
    /,
    *,
    folder: Annotated[Path | None, Parameter(name="--data")] = None,
    split: str = "dev",
    own: OwnFile = OWN_FILE,
    labels: str | None = None,
    null_odds: Path | None = None,
    threshold: float | None = None,
    skip_others: bool = False,
) -> dict[str, Any]:
    """Score predictions of another program.

    The predictions are a file: JSON lines (of `encoderlab predict`, CLUE, SuperGLUE), one
    JSON object by id (SQuAD), a table (GLUE), CoNLL columns with the predicted tag last, or
    one label, number or answer per line in the order of the examples. Every example needs
    exactly one. The scores are those of the benchmark's official program.

    Example:
        encoderlab score MNLI-m.tsv mnli --data data/glue

    Parameters
    ----------
    predictions
        File of predictions.
    data
        A labelled file, a folder that Hugging Face's datasets wrote (save_to_disk), or the name of a benchmark whose
        files are in the folder of --data.
    folder
        Folder with the benchmark's files, or one of them.
    split
        Split of a benchmark or a folder: train, dev, test, ...
    labels
        Further labels that may be predicted, besides those in the labelled file; separated by commas,
        within quotation marks if they contain one.
    null_odds
        For answers: JSON file with the score or probability of "no answer" by question id.
    threshold
        Count an answer as "no answer" if that score is above this threshold. Default: 0.
    skip_others
        Leave out predictions for ids that the labelled data lacks, and print their number.
    """
    from encoderlab.tasks.data.predictions import read_null_odds, read_predictions, with_labels
    from encoderlab.tasks.data.sources import Files, described_source
    from encoderlab.tasks.forms.scores import score as scored
    from encoderlab.tasks.forms.table import FORMS
    from encoderlab.tasks.runs.folder import check_intact

    given = own.given()
    source = described_source(data, folder, given)
    if isinstance(source, Files):
        task, remark = source.task(given, split)
        note(remark)
    else:
        task = source.task
    if threshold is not None and null_odds is None:
        raise ConfigError("--threshold is for the scores of --null-odds; give them too")
    if null_odds is not None and (task.form != "span" or task.answers != "squad"):
        raise ConfigError(
            f"--null-odds is for answers as SQuAD scores them, and {task.name} is {task.form}; leave it out"
        )
    part = source.read(task, split)
    for line in part.remarks:
        note(line)
    if labels and (task.labels is not None or not FORMS[task.form].labelled):
        raise ConfigError(f"--labels: {task.name} ({task.form}) takes no further labels; leave it out")
    further = next(csv.reader([labels], skipinitialspace=True)) if labels else ()
    task = with_labels(task, part, [one.strip() for one in further])
    if predictions.is_file():
        check_intact(predictions)
    values, remarks = read_predictions(predictions, task, part, skip_others=skip_others)
    odds: dict[str, Any] = {}
    if null_odds is not None:
        odds = {"null_odds": read_null_odds(null_odds, part), "threshold": threshold or 0.0}
    scores, warnings = scored(task, part.examples, values, **odds)
    for line in (*remarks, *warnings):
        note(line)
    show_scores(f"{task.name}, {len(part):,} examples (× 100)", {str(predictions): scores})
    return {
        "task": task.name,
        "form": task.form,
        "examples": len(part),
        "data": part.sha256,
        "scores": scores,
        "warnings": list(warnings),
    }
