"""``encoderlab finetune``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from encoderlab.commands import settings
from encoderlab.commands.terminal import note, say
from encoderlab.commands.workers import HERE, WorkerOptions, elsewhere
from encoderlab.errors import Diverged
from encoderlab.execution.workers import rank_and_size
from encoderlab.interchange.finetuned import best_seed
from encoderlab.interchange.places import resolve


def finetune(
    task: str,
    /,
    *,
    model: Path,
    out: Path,
    data: Path | None = None,
    dev: Path | None = None,
    test: Path | None = None,
    seeds: settings.Count | None = None,
    grid: Annotated[list[str] | None, Parameter(consume_multiple=1)] = None,
    tune: Annotated[list[str] | None, Parameter(consume_multiple=1)] = None,
    trials: settings.Count | None = None,
    protocol: str = "plain",
    after: list[str] | None = None,
    epochs: settings.Amount | None = None,
    scratch: bool = False,
    teacher: Path | None = None,
    temperature: settings.Amount | None = None,
    teacher_weight: settings.Share | None = None,
    own: settings.OwnFile = settings.OWN_FILE,
    skip_unlabelled: bool = False,
    dry_run: bool = False,
    where: WorkerOptions = HERE,
    set_: settings.Set = None,
    config: settings.Config = None,
) -> dict[str, Any] | None:
    """Fine-tune a model on a task, over seeds and grids.

    The best weights of each seed are chosen on the development set; every score is stored
    with its settings, next to simple baselines. Run the same command again to resume.
    Seeds, points of a grid, trials and tasks of a suite are independent runs, which several
    processes or a cluster can share (--workers, --on).

    Example:
        encoderlab finetune reviews.csv --model small-en --out runs/reviews \\
            --seeds 5 --grid lr=1e-4,3e-4 epochs=3,10

    Parameters
    ----------
    task
        A file of your own (CSV, TSV, JSON lines, Parquet, CoNLL columns), a folder that Hugging Face's datasets
        wrote (save_to_disk), a benchmark (sst2, squad2, conll2003, cmrc2018, ...), or a suite of them (glue,
        superglue, clue, fewclue).
    model
        Folder of a model or run, small-en (comes with encoderlab), or org/name of the Hugging Face Hub.
    out
        Folder to make, or to resume.
    data
        Folder with the benchmark's files.
    dev
        Development file for your own training file. Default: hold out a tenth of it.
    test
        File to predict, and to score if it has labels.
    seeds
        Number of random seeds. Default: the protocol's (plain: 5).
    grid
        Values to search on the development set: field=value,value ... (lr, weight_decay, epochs, any field).
    tune
        Search with Optuna instead: field=low:high or field=value,value ..., such as lr=1e-5:1e-3 batch=16,32.
    trials
        Number of runs of --tune. Default: 20.
    protocol
        Settings of a paper: bert, roberta, albert, electra, convbert, distilbert, xlnet, deberta, clue, ...;
        docs/tasks.md lists them.
    after
        Intermediate tasks to train on first (repeatable).
    epochs
        Passes over the training data.
    scratch
        Also train the same architecture from fresh weights, to see what pretraining gains.
    teacher
        Also learn from this model, fine-tuned on the same task: its folder or run folder; for a suite, the
        folder with a run per task. It needs the student's tokenizer and the task's labels.
    temperature
        Temperature of the softmax of teacher and student. Default: 2.
    teacher_weight
        The teacher's share of the loss, from 0 to 1; the rest is the labels'. Default: 0.5.
    skip_unlabelled
        Leave out rows without a label, and print their number.
    dry_run
        Show how often labels occur and how long the texts are, and stop without training or writing.
    """
    from encoderlab.commands import finetune_page as page
    from encoderlab.commands import finetune_stages as stages
    from encoderlab.measure.finetuning_page import write
    from encoderlab.tasks.data.suites import SUITES
    from encoderlab.tasks.runs.elsewhere import perform_all
    from encoderlab.tasks.runs.protocol import spelled_out

    fields = stages.fields_of(epochs, config or (), [spelled_out(word) for word in set_ or ()])
    is_suite = task.lower() in SUITES
    plan = stages.plan_of(protocol, seeds, grid, tune, trials, fields, several=is_suite)
    stages.check_folder(out)
    jobs = stages.jobs_of(task, data, dev, test, own.given(skip_unlabelled=skip_unlabelled))
    before = stages.intermediate(after or (), data)
    start = stages.Start.read(best_seed(resolve(model, run=out), note))
    teacher = None if teacher is None else resolve(teacher, run=out)
    teaching = stages.teaching_of(teacher, temperature, teacher_weight)
    plans = {job.task.name: plan for job in jobs}
    if teaching:
        lessons = {job.task.name: stages.lesson_of(teaching, start.model, job, is_suite) for job in jobs}
        plans = {name: replace(plan, teaching=lesson) for name, lesson in lessons.items()}
    for job in jobs:
        plans[job.task.name].check(start, job)
    for job in before:
        plan.of_one_seed().check(start, job)
    if dry_run:
        data_of = {job.task.name: stages.statistics(plan, start, job) for job in jobs}
        for name, splits in data_of.items():
            page.show_statistics(name, splits)
        return {"protocol": plan.protocol.name, "data": data_of}
    with elsewhere(where, out, [] if teacher is None else [teacher]) as tasks:
        start = stages.after_tasks(before, start, plan, out, tasks)
        programs: dict[tuple[str, str], Any] = {}
        for job in jobs:
            folder = out / job.task.name if is_suite else out
            made = stages.programs_of(plans[job.task.name], start, job, folder, scratch=scratch)
            programs |= {(job.task.name, system): program for system, program in made.items()}
        outcomes = perform_all(programs, tasks, note)
    finished, failed = [], []
    for job in jobs:
        systems = {system: outcome for (name, system), outcome in outcomes.items() if name == job.task.name}
        lost = [str(outcome) for outcome in systems.values() if isinstance(outcome, Diverged)]
        if lost:  # the other tasks of a suite still count
            failed.append(lost[0])
        else:
            finished.append(page.Finished(systems=systems))  # type: ignore[arg-type]
    if not finished:
        raise Diverged("; ".join(failed))
    averages = page.averages_of([done.pretrained for done in finished])
    first = rank_and_size()[0] == 0  # of several processes, the first one prints and writes
    if first:
        page.show(finished, plan.protocol)
        for name, value in averages.items():
            say(f"average, as defined by {name}: {100 * value:.2f}")
        for done in finished if is_suite else ():
            folder = out / done.task.name
            write([folder], folder / "report.html")
        say(write([out], out / "report.html").verdict)
        say(f"models, predictions and score.json in {out}, report in {out / 'report.html'}")
    for outcome in (done.pretrained for done in finished):
        if len(outcome.failed) == (count := len(outcome.record["seeds"])):
            why = f"all {count} seeds failed ({outcome.failed[0]})"
            failed.append(f"{outcome.task.name}: {why}; train longer, or try other rates (--grid lr=...)")
    if failed:
        raise Diverged("; ".join(failed))
    if not first:
        return None
    return {
        "out": out,
        "protocol": plan.protocol.name,
        "tasks": {done.task.name: done.pretrained.record for done in finished},
        "baselines": {done.task.name: done.pretrained.record["baselines"]["dev"] for done in finished},
        "averages": averages,
    }
