"""``encoderlab report``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from encoderlab.commands.outputs import output
from encoderlab.commands.terminal import say, table
from encoderlab.errors import ConfigError, DataError
from encoderlab.files import write_text
from encoderlab.interchange.finetuned import refuse_unfinished


def report(
    runs: list[Path], /, *, out: Path | None = None, corpus: Path | None = None, title: str | None = None
) -> dict[str, Any]:
    """Write one self-contained HTML page about one run, or comparing several.

    Runs of pretraining, or folders of fine-tuning (of a task or of a suite); not both on one page.

    Example:
        encoderlab report runs/tiny runs/mini --corpus corpora/wiki \\
            --out compare.html

    Parameters
    ----------
    runs
        Run folders.
    out
        File to write. Default: report.html in the run folder.
    corpus
        The corpus of the runs; the loss of its word frequencies is drawn for comparison.
    title
        Title of the page.
    """
    if out is None and len(runs) > 1:
        raise ConfigError("a page about several runs has no default place; give --out FILE")
    for run in runs:
        if not run.is_dir():
            raise DataError(f"{run}: no such folder; give the folder of a run")
    own = runs[0] / "report.html"
    tuned = [run for run in runs if _is_finetuning(run)]
    if tuned and len(tuned) < len(runs):
        other = next(run for run in runs if run not in tuned)
        raise ConfigError(f"{tuned[0]} is a fine-tuning and {other} is not; give runs of one kind for a page")
    if tuned and corpus is not None:
        raise ConfigError("--corpus is for runs of pretraining; leave it out")
    path = out or own
    with output(path, "page", own=own):
        verdict = _write_finetuning(runs, path, title) if tuned else _write(runs, path, corpus, title)
    say(f"report written to {path}")
    return {"report": path, "runs": [str(run) for run in runs], "verdict": verdict}


def _is_finetuning(folder: Path) -> bool:
    """Whether a folder has the scores of a fine-tuning, of a task or a suite; a pretraining run has a recipe.

    Raises:
        DataError: its runs have not ended.
    """
    from encoderlab.measure.finetuning import tasks_in

    if (folder / "recipe.json").exists():
        return False
    refuse_unfinished(folder)
    return bool(tasks_in(folder))


def _write_finetuning(folders: list[Path], path: Path, title: str | None) -> str:
    """Write the page, print its verdict and its scores, and return the verdict."""
    from encoderlab.measure.finetuning_page import write

    page = write(folders, path, title=title)
    say(page.verdict)
    table("scores × 100", ["", *page.head], [[name, *cells] for name, cells in page.rows])
    return page.verdict


def _write(runs: list[Path], path: Path, corpus: Path | None, title: str | None) -> str:
    """Write the page, print its verdict, and return it."""
    from encoderlab.corpus.shards import Corpus
    from encoderlab.measure import runs as run_folders
    from encoderlab.measure.html_page import render
    from encoderlab.measure.report import columns
    from encoderlab.train.evidence import check_corpus

    counts = None
    if corpus is not None:
        counts = Corpus(corpus).counts()
        for run in runs:
            check_corpus(run, corpus)
    page = run_folders.report(runs, counts=counts, title=title)
    write_text(path, render(page))
    say(page.verdict)
    if page.compared:
        head, rows = columns(page.compared)
        table("", ["run", *head], [[run, *row] for run, row in rows.items()])
    return page.verdict
