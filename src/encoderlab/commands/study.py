"""``encoderlab study``."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from encoderlab.commands import terminal
from encoderlab.commands.settings import Amount
from encoderlab.commands.workers import ALL_CORES, Processes
from encoderlab.errors import ConfigError, DataError, Stopped
from encoderlab.execution.cluster import Need, tasks_on
from encoderlab.execution.local import Job, local
from encoderlab.execution.workers import cores
from encoderlab.files import check_own, held_folder, write_json, write_text
from encoderlab.train.units import duration

if TYPE_CHECKING:
    from encoderlab.study.plan import StudyPlan
    from encoderlab.study.results import Results


def study(
    file: Path,
    /,
    *,
    out: Path | None = None,
    dry_run: bool = False,
    hours: Amount | None = None,
    where: Processes = ALL_CORES,
    retry: bool = False,
) -> dict[str, Any]:
    """Train models with different settings at equal cost over seeds, and compare them.

    Every arm (one setting) gets the same documents in the same order, the same budget and the same
    number of trials for its learning rate. Run the same command again to resume.

    Example: encoderlab study masks.yaml --out studies/masks --hours 8

    Parameters
    ----------
    file
        YAML or JSON file with arms, budget, seeds and measures (docs/studies.md).
    out
        Folder to make, or to resume: the runs, their results, results.json and study.html.
    dry_run
        Print the runs and their cost, and stop.
    hours
        Stop after this time, with checkpoints and exit code 75; the same command resumes.
    retry
        Run failed cells again.
    """
    from encoderlab.study.page import render
    from encoderlab.study.plan import StudyPlan
    from encoderlab.study.run import record, run

    begin = time.monotonic()
    if dry_run:
        return _show_plan(StudyPlan.read(file))
    if out is None:
        raise ConfigError("a study needs --out DIR; to only show its runs, give --dry-run")
    with held_folder(out) as lock:
        check_own(out, "specs")
        plan = StudyPlan.read(file)
        for line in plan.fairness():
            terminal.note(line)
        deadline = None if hours is None else begin + hours * 3600
        with contextlib.ExitStack() as stack:
            if where.on == "local":
                number = where.workers or max(1, cores() // plan.study.threads)
                execute = local(workers=number, deadline=deadline, begun=_say_begun, lock=lock)
            else:
                need = Need(cores=plan.study.threads, gpus=None)
                tasks = tasks_on(where.on, workers=where.workers, need=need, sees=[out, *plan.reads()])
                stack.enter_context(tasks)
                execute = tasks.jobs(deadline=deadline, begun=_say_begun)  # type: ignore[attr-defined]
            results = run(plan, out if where.on == "local" else out.resolve(), execute, retry=retry, say=terminal.note)
        summary = record(results)
        write_json(out / "results.json", summary)
        write_text(out / "study.html", render(results))
    _show(results)
    terminal.say(f"results in {out / 'results.json'}, page in {out / 'study.html'}")
    if results.failed and not results.done and not results.missing:
        raise DataError(f"no run of {file} succeeded; see what failed in {out / 'study.html'}")
    if results.missing:
        raise Stopped(f"{len(results.missing)} runs are left; run the same command again to resume")
    return {"out": out, **summary}


def _say_begun(job: Job) -> None:
    terminal.note(f"{job.name}: began")


def _show_plan(plan: StudyPlan) -> dict[str, Any]:
    """The table of runs with their cost."""
    from encoderlab.config import to_dict

    study, estimates = plan.study, plan.estimates()
    trials = 0 if study.tune is None else len(study.tune.factors)
    seeds = len(study.seed_numbers)
    rows, total, seconds = [], 0.0, 0.0
    for (arm, amount), one in estimates.items():
        share = seeds + trials * (study.tune.share if study.tune else 0.0)
        total += (one.flops or 0.0) * share
        seconds += (one.seconds or 0.0) * share
        rows.append(
            [
                arm,
                f"{amount:.3g} {study.unit_name}",
                trials,
                seeds,
                f"{one.parameters['model']:,}",
                "–" if one.tokens is None else f"{one.tokens:.3g}",
                "–" if one.flops is None else f"{one.flops:.3g}",
                "–" if one.seconds is None else duration(one.seconds),
            ]
        )
    columns = ["arm", "budget", "trials", "seeds", "parameters", "tokens", "FLOPs of a run", "time of a run"]
    runs = len(estimates) * (seeds + trials)
    terminal.table(f"{runs} runs", columns, rows, caption="Time at half of the rate of products measured here.")
    work = "" if study.unit == "hours" else f"{total:.3g} FLOPs, "
    terminal.say(f"{runs} runs, {work}about {duration(seconds)} one after the other, without measures")
    for line in plan.fairness():
        terminal.say(line)
    return {
        "runs": runs,
        "flops": None if study.unit == "hours" else total,
        "seconds": seconds,
        "arms": {f"{arm} {amount:g}": to_dict(estimate) for (arm, amount), estimate in estimates.items()},
        "fairness": plan.fairness(),
    }


def _show(results: Results) -> None:
    """Print scores by arm and budget, and the verdicts."""
    unit = results.plan.study.unit_name
    rows = []
    for arm, amount in results.plan.places:
        cells = [results.mean(arm, amount, name) for name in results.measures]
        shown = ["–" if cell is None else f"{cell[0]:.4g}" + (f" ± {cell[1]:.2g}" if cell[1] else "") for cell in cells]
        value = results.chosen.get((arm, amount))
        rows.append([arm, f"{amount:.3g} {unit}", "–" if value is None else f"{value:.3g}", *shown])
    tuned = results.plan.study.tune.field if results.plan.study.tune else "tuned"
    terminal.table("Means over seeds, with 95% intervals", ["arm", "budget", tuned, *results.measures], rows)
    lines = [
        [
            f"{comparison.better} better than {comparison.than}",
            comparison.by,
            f"{comparison.amount:.3g}",
            f"{comparison.difference:+.3g}" + (f" ({interval})" if (interval := comparison.interval()) else ""),
            f"{comparison.adjusted:.3g}",
            comparison.verdict,
        ]
        for comparison in results.comparisons
    ]
    if lines:
        terminal.table("Claims", ["claim", "by", unit, "difference", "p, corrected", "verdict"], lines)
    for line in (*results.not_compared, *(f"{name}: failed: {why}" for name, why in results.failed.items())):
        terminal.say(line)
