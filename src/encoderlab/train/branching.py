"""Branches of a run with a warm-up-stable-decay schedule: one run, several budgets (Hu et al., 2024, section 4).

Before its decay, such a run does not depend on its budget. So a checkpoint of that part can continue to any budget that
has not started to decay there either, and the branch ends with the same bits as a run that had that budget from the
start.
"""

from __future__ import annotations

import glob
import logging
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from encoderlab.config import to_dict
from encoderlab.errors import ConfigError
from encoderlab.files import read_json, remove_leftovers, write_bytes, write_json
from encoderlab.interchange.places import PROVENANCE
from encoderlab.train import checkpoint
from encoderlab.train.folder import METRICS, RECIPE, compare, read, recorded
from encoderlab.train.recipe import Recipe
from encoderlab.train.schedule import WarmupStableDecay
from encoderlab.train.stored import StoredTensors

log = logging.getLogger(__name__)


def branch(source: Path, out: Path, recipe: Recipe) -> None:
    """Make ``out`` the folder of a run of ``recipe`` at the step of the checkpoint ``source``.

    Args:
        source: a checkpoint folder (RUN/checkpoints/step-000500).
        out: a new folder; training it continues from there.

    Raises:
        ConfigError: ``out`` has content, or the checkpoint's run differs from ``recipe`` before the checkpoint: in more
            than budget and decay, because one of the two was already decaying, or because other settings depend on the
            budget.
        DataError: the checkpoint is damaged.
    """
    run = checkpoint.run_of(source)
    if checkpoint.found_in(source) != source or not (run / PROVENANCE).exists():
        raise ConfigError(f"{source}: is not a checkpoint of a run; give one such as RUN/checkpoints/step-000500")
    if out.exists() and any(out.iterdir()):
        raise ConfigError(f"{out}: is not empty; give a new folder for the branch")
    checkpoint.verify(source, "restore it, or give another checkpoint")
    state = read_json(source / checkpoint.STATE)
    if "place" not in state:
        raise ConfigError(f"{source}: has weights only; give a checkpoint such as RUN/checkpoints/step-000500")
    before = recorded(Recipe, read(source / checkpoint.RECIPE), source / checkpoint.RECIPE)
    _check(before, recipe, state["place"], source)
    log.info("branching from %s", source)
    stored = StoredTensors(source)
    snapshot = checkpoint.Snapshot(
        weights={name: stored[name] for name in stored.weights},
        carried={name: stored[name] for name in stored if name not in stored.weights},
        state=state,
        recipe=to_dict(recipe),
    )
    metrics, provenance = (run / METRICS).read_bytes()[: state["metrics_bytes"]], read(run / PROVENANCE)
    best = source.resolve().parent / "best"
    out = out.resolve()
    out.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(out.parent.glob(f".{glob.escape(out.name)}.*.tmp"))
    aside = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    try:
        folder = aside / "checkpoints"
        folder.mkdir(parents=True)
        write_bytes(aside / METRICS, metrics)
        write_json(aside / PROVENANCE, provenance)
        write_json(aside / RECIPE, to_dict(recipe))
        checkpoint.write(folder / source.resolve().name, snapshot)
        if best.is_dir() and read_json(best / checkpoint.STATE)["step"] <= state["place"]["step"]:
            shutil.copytree(best, folder / "best")
        checkpoint.point(folder / "latest", source.resolve().name)
        os.rename(aside, out)  # in one step: after a kill, the same command makes the branch again
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _check(before: Recipe, now: Recipe, place: dict[str, Any], source: Path) -> None:
    """Refuse a branch that would differ from the run of its recipe."""
    one, other = before.schedule, now.schedule
    if not isinstance(one, WarmupStableDecay) or not isinstance(other, WarmupStableDecay):
        raise ConfigError(
            f"{source}: a rate of kind {one.kind!r} depends on the budget from the start; branches need "
            "schedule.kind=wsd"
        )
    if one.warmup < 1 and one.warmup != 0:
        raise ConfigError(
            f"the warm-up is {one.warmup:g} of the budget, so it depends on it; branches need a fixed one, such as "
            "--set schedule.warmup=500"
        )
    alike = replace(now, budget=before.budget, schedule=replace(other, decay=one.decay, shape=one.shape, end=one.end))
    differences = compare(to_dict(before), to_dict(alike))
    if differences or before.budget.unit != now.budget.unit:
        units = f"budget.unit was {before.budget.unit!r}, now {now.budget.unit!r}"
        shown = "; ".join(differences[:3] or [units])
        raise ConfigError(f"{source}: belongs to another run ({shown}); a branch may change only budget and decay")
    if len(now.phases) > 1 or now.ramp is not None or now.objective.masking_changes:
        raise ConfigError(
            "phases, a ramp and a masking rate that changes follow the budget; a branch needs one phase, ramp null and "
            "objective.masking.final_rate null"
        )
    spent = {"steps": place["step"], "tokens": place["tokens"], "flops": place["flops"]}.get(now.budget.unit)
    if spent is None:
        raise ConfigError("a budget in hours cannot be branched exactly; give budgets in steps, tokens or FLOPs")
    for recipe in (before, now):
        schedule, amount = recipe.schedule, recipe.budget.amount
        assert isinstance(schedule, WarmupStableDecay)
        if spent > (1 - schedule.decay) * amount:
            raise ConfigError(
                f"{source}: has spent {spent:g} {now.budget.unit}, but a budget of {amount:g} decays from "
                f"{(1 - schedule.decay) * amount:g} on; give an earlier checkpoint"
            )
