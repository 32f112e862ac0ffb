"""Run a study: budget by budget, trials first, then the compared runs; finished cells are never run again."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from encoderlab.config import from_dict, to_dict
from encoderlab.corpus.shards import Corpus
from encoderlab.errors import ConfigError
from encoderlab.execution.local import Ended, Execute, Job
from encoderlab.files import wait_for
from encoderlab.messages import Say, silent
from encoderlab.sealed import Damaged, read_record, write_record
from encoderlab.study.file import KINDS, Finetune, Measure
from encoderlab.study.plan import Cell, StudyPlan
from encoderlab.study.results import Results
from encoderlab.train.folder import trained
from encoderlab.train.recipe import Recipe


def run(plan: StudyPlan, out: Path, execute: Execute, *, retry: bool = False, say: Say = silent) -> Results:
    """Run the missing cells in the folder ``out``, the smallest budget first, and return all results so far.

    A failed cell is marked, and the others continue; ``retry`` runs failed cells again. One whose process is killed
    (SIGKILL) is continued once when the others have ended, and fails if that happens again. Cells that were stopped, or
    not started before time was up, are missing from the results; the same call continues them bit for bit.

    Raises:
        ConfigError: ``out`` has the result of a cell with other settings.
    """
    trials: dict[str, dict[str, Any]] = {}
    results: dict[str, dict[str, Any]] = {}
    chosen: dict[tuple[str, float], float | None] = {}
    tried: dict[tuple[str, float], list[tuple[float, float | None]]] = {}
    for amount in plan.study.amounts:
        to_try = [cell for cell in plan.trials if cell.amount == amount]
        trials |= _run({cell.name: _spec(plan, cell, out) for cell in to_try}, out, execute, retry=retry, say=say)
        detectors = {name: cells for name, cells in plan.detectors.items() if cells[0].amount == amount}
        trials |= _run(_comparisons(plan, detectors, trials, out), out, execute, retry=retry, say=say)
        tried |= _losses(to_try, detectors, trials)
        here = _choose(plan, amount, tried, say)
        chosen |= here
        tuned = all(name in trials for name in (*(cell.name for cell in to_try), *detectors))
        specs = {cell.name: _spec(plan, cell, out) for cell in plan.cells(here)}
        # Until all arms are tuned, only results of earlier calls are read.
        results |= _run(specs, out, execute if tuned else _none, retry=retry, say=say)
    return Results(
        plan=plan,
        chosen=chosen,
        tried=tried,
        cells={cell: results.get(cell.name) for cell in plan.cells(chosen)},
        trials=trials,
    )


def _losses(
    to_try: Sequence[Cell], detectors: Mapping[str, Sequence[Cell]], trials: Mapping[str, Mapping[str, Any]]
) -> dict[tuple[str, float], list[tuple[float, float | None]]]:
    """The values that were tried and the losses by which they are compared, by arm and budget."""
    comparison = {cell.name: name for name, cells in detectors.items() for cell in cells}
    tried: dict[tuple[str, float], list[tuple[float, float | None]]] = {}
    for cell in to_try:
        assert cell.trial is not None
        name = comparison.get(cell.name, cell.name)
        if name in trials:
            result = trials[name]
            loss = result.get("losses", {}).get(_key(cell)) if name in detectors else result.get("total_loss")
            tried.setdefault((cell.arm, cell.amount), []).append((cell.trial, loss))
    return tried


def _choose(
    plan: StudyPlan, amount: float, tried: dict[tuple[str, float], list[tuple[float, float | None]]], say: Say
) -> dict[tuple[str, float], float | None]:
    """The best value of the tuned field for every arm whose trials at a budget are done."""
    chosen: dict[tuple[str, float], float | None] = {}
    for arm in plan.arms_at(amount):
        if plan.study.tune is None:
            chosen[arm, amount] = None
        elif len(tried.get((arm, amount), ())) == len(plan.study.tune.factors):
            finished = [(loss, value) for value, loss in tried[arm, amount] if loss is not None and math.isfinite(loss)]
            if finished:
                chosen[arm, amount] = min(finished)[1]
            else:
                say(f"{arm} at {amount:g} {plan.study.unit_name}: no trial has a loss, so nothing can be compared")
    return chosen


def _run(
    specs: Mapping[str, dict[str, Any]], out: Path, execute: Execute, *, retry: bool, say: Say
) -> dict[str, dict[str, Any]]:
    """The results of cells by name; missing ones are computed."""
    results: dict[str, dict[str, Any]] = {}
    jobs: dict[str, Job] = {}
    for name, spec in specs.items():
        path, result_path = (out / kind / f"{name}.json" for kind in ("specs", "results"))
        try:
            known = _known(path, result_path, spec, name)
        except Damaged as error:
            known = None
            say(f"{error}; {name} is measured again")
        if known is not None:
            if known["status"] == "done" and _is_measured(known, spec):
                results[name] = known
                continue
            if known["status"] == "failed" and not retry:
                results[name] = known
                say(f"{name}: failed before ({known['error']}); --retry runs it again")
                continue
        write_record(path, spec)
        jobs[name] = Job(
            name=name,
            module="encoderlab.study.cell",
            arguments=(str(path), str(result_path)),
            log=out / "logs" / f"{name}.log",
            threads=spec["threads"],
        )
    done = len(results)
    for ended in _twice_if_killed(list(jobs.values()), execute, say):
        result = _ended(ended, out)
        if result is None:
            say(f"{ended.job.name}: stopped; the same command continues it")
            continue
        results[ended.job.name] = result
        done += 1
        loss = result.get("scores", {}).get("loss")
        what = result["error"] if result["status"] == "failed" else f"loss {loss:.4f}" if loss else "done"
        say(f"{ended.job.name}: {what} ({done} of {len(specs)})")
    return results


def _none(jobs: Sequence[Job]) -> Iterator[Ended]:
    """Start no job."""
    return iter(())


def _twice_if_killed(jobs: Sequence[Job], execute: Execute, say: Say) -> Iterator[Ended]:
    """How each job ended. Those that somebody killed (memory may have run out) are continued once, after the others."""
    killed: list[Job] = []
    for ended in execute(jobs):
        if ended.killed:
            killed.append(ended.job)
            say(f"{ended.job.name}: killed by signal {-ended.code}; it is continued when the others have ended")
        else:
            yield ended
    if killed:
        yield from execute(killed)


def _spec(plan: StudyPlan, cell: Cell, out: Path) -> dict[str, Any]:
    """The input of a cell's process; trials measure only the held-out loss."""
    measures = [] if cell.trial is not None else plan.measures(cell.amount)
    return {
        "recipe": to_dict(cell.recipe),
        "corpus": {"path": str(cell.corpus.resolve()), "content": Corpus(cell.corpus).manifest.content},
        "run": str((out / cell.name).resolve()),
        "tasks": str((out / "tasks" / cell.name).resolve()),
        "measures": [{key: value for key, value in to_dict(one).items() if key != "budgets"} for one in measures],
        "data": {measure.title: plan.data[measure.title] for measure in measures},
        "base": str(plan.base),
        "threads": plan.study.threads,
    }


def _comparisons(
    plan: StudyPlan, detectors: Mapping[str, Sequence[Cell]], trials: Mapping[str, Mapping[str, Any]], out: Path
) -> dict[str, dict[str, Any]]:
    """The inputs of the cells that compare detectors, by name, of those whose trials have ended; trials that failed are
    left out.
    """
    specs = {}
    for name, cells in detectors.items():
        if all(cell.name in trials for cell in cells):
            done = [cell for cell in cells if trials[cell.name]["status"] == "done"]
            runs = {_key(cell): _spec(plan, cell, out) for cell in done}
            first = cells[0]
            recipe = plan.recipe(first.arm, first.amount, first.seed, trial=True)  # whatever values are tried
            specs[name] = _spec(plan, replace(first, name=name, recipe=recipe), out) | {"runs": runs}
    return specs


def _key(cell: Cell) -> str:
    return f"{cell.trial:g}"


def _known(path: Path, result: Path, spec: dict[str, Any], name: str) -> dict[str, Any] | None:
    """The result of a cell, if it has one; its input is in the file ``path``. The corpus may have moved since.

    Raises:
        ConfigError: the folder's cell of that name was begun with another recipe or corpus, or fine-tuned for a measure
            with other settings or data.
        Damaged: its result or its input has changed since it was written.
    """
    if not result.exists() and not trained(Path(spec["run"])):
        return None
    try:
        known, asked = read_record(path), json.loads(json.dumps(spec))
    except FileNotFoundError:
        raise Damaged(path, "missing") from None
    for one in (known, asked):
        one["corpus"] = one["corpus"].get("content")
        one["recipe"] = to_dict(from_dict(Recipe, one["recipe"]))  # fields that came later have their default
    for key in ("recipe", "corpus", "threads"):
        if known[key] != asked[key]:
            raise ConfigError(f"{name}: was run with another {key}; restore the study's file, or give another --out")
    record = read_record(result) if result.exists() else None
    _check_measures(name, known if record is None else record, asked)
    return record


def _is_measured(known: Mapping[str, Any], spec: Mapping[str, Any]) -> bool:
    """Whether a result has the runs or the measures that are asked for; old ones do not name their data."""
    if "runs" in spec:
        return bool(known["losses"].keys() == spec["runs"].keys())
    before, now = (list(map(_measure, record.get("measures", ()))) for record in (known, spec))
    return before == now and known.get("data") in (None, spec["data"])


def _check_measures(name: str, known: Mapping[str, Any], asked: Mapping[str, Any]) -> None:
    """Refuse to fine-tune for a measure of the same name with other settings, because its folder has their runs."""
    before = {one.title: one for one in map(_measure, known.get("measures", ()))}
    for now in map(_measure, asked["measures"]):
        had = before.get(now.title)
        if not isinstance(now, Finetune) or not isinstance(had, Finetune):
            continue
        data = (known.get("data") or {}).get(now.title, hashed := asked["data"][now.title]) != hashed
        if data or replace(had, seeds=1, data=None, dev=None) != replace(now, seeds=1, data=None, dev=None):
            raise ConfigError(
                f"{name}: was measured by {now.title} with other {'data' if data else 'settings'}; restore these, "
                "or give the measure another name"
            )


def _measure(fields: Mapping[str, Any]) -> Measure:
    return from_dict(KINDS[fields["kind"]], fields)


def _ended(ended: Ended, out: Path) -> dict[str, Any] | None:
    """The result of a process; None if it can be continued. A process that died without a result has failed.

    Raises:
        DataError: another node has written the result, and it is not visible here.
    """
    if ended.stopped:
        return None
    path = out / "results" / f"{ended.job.name}.json"
    if ended.code == 0:
        wait_for(path)
        return read_record(path)
    why = f"killed by signal {-ended.code}" if ended.code < 0 else f"exit code {ended.code}"
    result = {"status": "failed", "error": f"{why}; see {ended.job.log}", "code": ended.code}
    write_record(path, result)
    return result


def record(results: Results) -> dict[str, Any]:
    """The results as plain data."""
    plan = results.plan
    return {
        "name": plan.study.name,
        "study": to_dict(plan.study),
        "fairness": results.fairness,
        "tuning": [
            {"arm": arm, "amount": amount, "trials": tried, "chosen": results.chosen.get((arm, amount))}
            for (arm, amount), tried in results.tried.items()
        ],
        "cells": [
            {"arm": cell.arm, "amount": cell.amount, "seed": cell.seed, "name": cell.name, "status": "missing"}
            | (result or {})
            for cell, result in results.cells.items()
        ],
        "comparisons": [asdict(comparison) for comparison in results.comparisons],
        "not_compared": results.not_compared,
        "scaling": [{"arm": arm, "measure": "loss", **asdict(law)} for arm, law in results.scaling.items()],
        "missing": results.missing,
        "failed": results.failed,
    }
