"""``encoderlab pretrain``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from encoderlab.commands import settings
from encoderlab.commands.terminal import note, say, table
from encoderlab.errors import ConfigError
from encoderlab.files import write_text
from encoderlab.train.units import duration

if TYPE_CHECKING:
    from encoderlab.train.recipe import Budget, Recipe


def pretrain(
    name: str | None = None,
    /,
    *,
    corpus: Path | None = None,
    out: Path | None = None,
    steps: float | None = None,
    tokens: float | None = None,
    flops: float | None = None,
    hours: float | None = None,
    branch_from: Path | None = None,
    init_from: Path | None = None,
    seed: int | None = None,
    set_: settings.Set = None,
    config: settings.Config = None,
    compile: bool = False,
    session_hours: float | None = None,
    dry_run: bool = False,
    list_: Annotated[bool, Parameter(name="--list")] = False,
) -> dict[str, Any] | None:
    """Pretrain an encoder from a published recipe.

    Run the same command again to resume an interrupted run, bit for bit. Ctrl-C and
    SIGTERM write a checkpoint first. On several devices:
    torchrun --nproc-per-node 4 -m encoderlab pretrain ...

    Example:
        encoderlab pretrain bert-mini --corpus corpora/wiki --out runs/wiki \\
            --steps 20000 --set optim.lr=5e-4

    Parameters
    ----------
    name
        Name of a recipe; --list shows all.
    corpus
        Folder made by encoderlab corpus build.
    out
        Run folder to make, or to resume.
    steps
        Budget in steps, such as 2000 or 1e6; the learning rate decays to its end.
    tokens
        Budget in tokens instead, such as 1e9.
    flops
        Budget in FLOPs of matrix products instead, such as 1e15.
    hours
        Budget in hours instead.
    branch_from
        Checkpoint of a run with schedule.kind=wsd, from which this run continues to another budget.
    init_from
        Model to continue from, instead of fresh weights: folder of a model or run, small-en (comes with encoderlab), or
        org/name of the Hugging Face Hub.
    seed
        Seed of weights, order, masks and dropout.
    compile
        Use torch.compile: slower to start, faster afterwards on a GPU.
    session_hours
        Stop after this time with a checkpoint and exit code 75; the same command resumes.
    dry_run
        Print the complete recipe and its costs, and stop.
    list_
        Print the names of all recipes.
    """
    from encoderlab import recipes

    if list_:
        if name is not None:
            raise ConfigError(f"--list shows all recipes, not {name!r} alone; leave one of them out")
        return _list()
    if name is None:
        raise ConfigError("no recipe given; give a name, such as bert-mini (--list shows all)")
    published = recipes.recipe(name)
    budget = _budget({"steps": steps, "tokens": tokens, "flops": flops, "hours": hours})
    scaled = published if budget is None else published.for_budget(budget)
    recipe = settings.resolve(scaled, files=config or (), assignments=set_ or ())
    _check_family(published, recipe)
    if budget is not None:
        recipe = replace(recipe, budget=budget)
    if recipe.schedule.warmup == scaled.schedule.warmup != published.schedule.warmup:
        note(f"warm-up over {recipe.schedule.warmup:.3g} of the budget, the share that it has in the recipe")
    if init_from is not None:
        recipe = replace(recipe, init_from=str(init_from))
    if seed is not None:
        recipe = replace(recipe, seed=seed)
    if compile:
        recipe = replace(recipe, execution=replace(recipe.execution, compile=True))
    session = None if session_hours is None else _budget_of("--session-hours", session_hours, "hours")
    if dry_run and branch_from is not None:
        raise ConfigError("--dry-run shows the cost of a run from its start; leave out --branch-from, or --dry-run")
    if dry_run:
        return _show(recipe, corpus)
    if corpus is None or out is None:
        raise ConfigError("pretraining needs --corpus DIR and --out RUN; to only show the recipe, give --dry-run")

    from encoderlab.corpus.shards import Corpus
    from encoderlab.measure import runs
    from encoderlab.measure.estimate import peak
    from encoderlab.measure.html_page import render
    from encoderlab.measure.pairs.validation import validation_scores
    from encoderlab.train.distributed import join
    from encoderlab.train.pretraining import pretrain as run

    outcome = run(recipe, corpus, out, session=session, branch_from=branch_from, peak=peak, score=validation_scores)
    if not join(recipe.execution.device).main:
        return None
    page = runs.report([out], counts=Corpus(corpus).counts())
    write_text(out / "report.html", render(page))
    say(page.verdict)
    say(f"model in {out / 'model'}, report in {out / 'report.html'}")
    return {
        "run": out,
        "model": out / "model",
        "step": outcome.step,
        "tokens": outcome.tokens,
        "seconds": outcome.seconds,
        "validation": dict(outcome.metrics),
    }


def _check_family(published: Recipe, recipe: Recipe) -> None:
    """Refuse another family name: it changes no part of the model, only the format for other libraries."""
    for network in ("model", "generator"):
        before, now = getattr(published, network), getattr(recipe, network)
        if before is not None and now is not None and before.family != now.family:
            raise ConfigError(
                f"{network}.family {now.family!r} would rename the architecture of {published.name} without changing "
                f"it; use a recipe of {now.family} (pretrain --list), or leave the field out"
            )


def _budget(amounts: Mapping[str, float | None]) -> Budget | None:
    """The one budget that is given, or None."""
    chosen = {unit: amount for unit, amount in amounts.items() if amount is not None}
    if len(chosen) > 1:
        raise ConfigError(f"--{' and --'.join(chosen)} exclude each other; give one budget")
    for unit, amount in chosen.items():
        return _budget_of(f"--{unit}", amount, unit)
    return None


def _budget_of(option: str, amount: float, unit: Any) -> Budget:
    from encoderlab.train.recipe import MOST_AMOUNT, Budget

    if not 0 < amount <= MOST_AMOUNT:
        raise ConfigError(f"{option} is {amount:g}; give a number above 0, and at most {MOST_AMOUNT:g}")
    return Budget(amount=amount, unit=unit)


def _show(recipe: Recipe, corpus: Path | None) -> dict[str, Any]:
    """Print the complete recipe and its costs; nothing is written."""
    from encoderlab.config import to_dict
    from encoderlab.measure.estimate import estimate
    from encoderlab.train.checks import check
    from encoderlab.train.distributed import join
    from encoderlab.train.networks import fit
    from encoderlab.train.precision import caution

    check(recipe)
    if corpus is not None:
        from encoderlab.corpus.shards import Corpus

        recipe = fit(recipe, Corpus(corpus).tokenizer())
    plain, costs = to_dict(recipe), estimate(recipe)
    say(json.dumps(plain, indent=1, ensure_ascii=False))
    rows = [[f"parameters of the {network}", f"{count:,}"] for network, count in costs.parameters.items()]
    alone = recipe.objective.kind == "distill" and "teacher" not in costs.parameters
    rows.append(["FLOPs per token" + ", without the teacher" * alone, f"{costs.flops_per_token:.3g}"])
    if costs.tokens is not None and costs.flops is not None:
        rows += [["tokens, if rows are full", f"{costs.tokens:.3g}"], ["FLOPs", f"{costs.flops:.3g}"]]
    rows.append(["memory for a batch", f"{costs.memory / 1e9:.1f} GB"])
    if costs.seconds is not None:
        machine = f"at half of the {costs.rate / 1e9:.0f} GFLOP/s measured here"
        rows.append(["time", f"{duration(costs.seconds)} {machine}" if costs.flops else duration(costs.seconds)])
    table("", ["quantity", "value"], rows)
    if warning := caution(recipe.precision, join(recipe.execution.device).device):
        say(f"warning: {warning}")
    return {"recipe": plain, "estimate": to_dict(costs)}


def _list() -> dict[str, Any]:
    """A table of all recipes."""
    from encoderlab import recipes

    by_family = {}
    for name in recipes.RECIPES:
        recipe = recipes.recipe(name)
        encoder = recipe.model.encoder
        by_family[name] = {
            "family": recipe.model.family,
            "objective": recipe.objective.kind,
            "layers": encoder.layers,
            "width": encoder.width,
            "rows": " then ".join(f"{phase.rows} × {phase.length}" for phase in recipe.phases),
            "budget": f"{recipe.budget.amount:,.0f} {recipe.budget.unit}",
        }
    columns = ["recipe", "objective", "layers", "width", "rows × length", "budget"]
    lines = [[name, r["objective"], r["layers"], r["width"], r["rows"], r["budget"]] for name, r in by_family.items()]
    caption = "Names with tiny or mini train in minutes on a CPU; the others have the published sizes and budgets."
    table(f"{len(by_family)} recipes", columns, lines, caption=caption)
    return {"recipes": by_family}
