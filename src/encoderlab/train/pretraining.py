"""Pretraining: from a recipe and a corpus to a run folder and a model."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from encoderlab.config import read_file
from encoderlab.corpus.manifest import TOKENIZER, verify
from encoderlab.corpus.shards import Corpus
from encoderlab.corpus.tokenizer import Tokenizer
from encoderlab.errors import ConfigError, DataError
from encoderlab.interchange import folder as folders
from encoderlab.interchange import reading
from encoderlab.interchange.places import PROVENANCE, pin
from encoderlab.model import Model
from encoderlab.objectives.base import Objective
from encoderlab.objectives.distill import DistillSettings
from encoderlab.train import checkpoint
from encoderlab.train.branching import branch
from encoderlab.train.checks import check
from encoderlab.train.corpus_data import corpus_data
from encoderlab.train.data import Data, Scores
from encoderlab.train.distributed import join, named_tensors
from encoderlab.train.folder import RECIPE, read, recorded
from encoderlab.train.loop import Outcome, train
from encoderlab.train.networks import bare_objective, build_objective, fit
from encoderlab.train.recipe import Budget, Recipe
from encoderlab.train.stored import StoredTensors


def pretrain(
    recipe: Recipe,
    corpus: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    session: Budget | None = None,
    branch_from: Path | None = None,
    peak: Callable[[Recipe], float] | None = None,
    score: Callable[[Recipe, Objective], Scores | None] | None = None,
) -> Outcome:
    """Pretrain ``recipe`` on the corpus folder ``corpus`` in the run folder ``out``; call it again to resume.

    ``branch_from`` is a checkpoint of another run, from which this one continues to another budget
    (:func:`encoderlab.train.branching.branch`); it is not read once ``out`` has a checkpoint.
    The result is in ``out/model`` (``out/model/generator`` and ``out/model/discriminator`` for two networks). ``peak``
    measures the FLOP/s of one device; the run then shows its share of it. ``score`` opens further validation scores
    (:func:`encoderlab.measure.pairs.validation.validation_scores`).

    Raises:
        ConfigError: the recipe cannot work, or does not fit corpus or folder; raised before any work.
        DataError: the corpus is too small, one of its files has changed (all are hashed, about a second per GB), or the
            checkpoints of a finished run are missing.
    """
    corpus, out = Path(corpus), Path(out)
    check(recipe)
    if recipe.evaluation.pairs is not None and score is None:
        raise ConfigError(
            "evaluation.pairs needs a scorer of minimal pairs; give score=validation_scores, or set pairs to null"
        )
    world = join(recipe.execution.device)
    text = world.everywhere(lambda: Corpus(corpus))
    tokenizer = world.everywhere(text.tokenizer)
    begun = bool(world.agree(lambda: _begun(out)))  # by the first process: others may see a file later
    resumed = begun or branch_from is not None
    recipe = world.everywhere(lambda: fit(_pinned(recipe, out), tokenizer, resumed=out if begun else branch_from))
    if branch_from is not None and not begun:
        world.agree(lambda: branch(branch_from, out, recipe))
    world.agree(lambda: verify(corpus))  # once per session, because training would not notice a changed token

    def prepared() -> tuple[Objective, Data]:
        objective = build_objective(recipe, tokenizer, text, resumed=resumed)
        data = corpus_data(recipe, objective, corpus, tokenizer)
        if score is not None and (scores := score(recipe, objective)) is not None:
            data = replace(data, score=scores.score, hashes={**data.hashes, "pairs": scores.hash})
        return objective, data

    objective, data = world.everywhere(prepared)
    outcome = train(objective, recipe, data, out, session=session, peak=peak(recipe) if peak else None)
    if world.main:
        values = None
        if recipe.execution.parallel == "fsdp":  # this process has only shards; the checkpoint has everything
            objective, values = _unread(recipe, outcome.checkpoint)
        save_models(objective, tokenizer, out, values=values)
    return outcome


def _begun(out: Path) -> bool:
    """Whether the run has a checkpoint, which has all weights: ``init_from`` may be gone.

    Raises:
        DataError: it has none, although it has finished.
    """
    begun = bool(checkpoint.by_age(out / "checkpoints"))
    if not begun and (out / RECIPE).exists() and (out / "model").exists():
        raise DataError(
            f"{out / 'checkpoints'}: has no checkpoint, although the run has finished; restore one, delete "
            f"{out} to train again, or choose another output folder"
        )
    return begun


def _pinned(recipe: Recipe, out: Path) -> Recipe:
    """The recipe with the commits of its models on the Hub (``init_from``, teacher)."""
    if recipe.init_from is not None:
        recipe = replace(recipe, init_from=pin(recipe.init_from, out))
    settings = recipe.objective
    if isinstance(settings, DistillSettings) and settings.teacher:
        recipe = replace(recipe, objective=replace(settings, teacher=pin(settings.teacher, out)))
    return recipe


def save_models(
    objective: Objective, tokenizer: Tokenizer, out: Path, *, values: Callable[[Tensor], Tensor] | None = None
) -> None:
    """Write the objective's models into ``out/model``; ``values`` as for
    :func:`encoderlab.interchange.folder.save`.
    """
    for name, model in objective.models().items():
        model.tokenizer = tokenizer
        folders.save(model, out / "model" if name == "model" else out / "model" / name, values=values)


def _unread(recipe: Recipe, folder: Path) -> tuple[Objective, Callable[[Tensor], Tensor]]:
    """The objective of a run without memory for its weights, and a function that reads a weight of the result from the
    checkpoint ``folder``.
    """
    with torch.device("meta"):
        objective = bare_objective(recipe)
    stored = StoredTensors(folder)
    names = {id(tensor): name for name, tensor in named_tensors(objective).items()}

    def values(tensor: Tensor) -> Tensor:
        name = names[id(tensor)]
        return stored[f"{checkpoint.AVERAGE}{name}" if f"{checkpoint.AVERAGE}{name}" in stored else name]

    return objective, values


def models_at(folder: Path) -> dict[str, Model]:
    """The models in the checkpoint ``folder`` of a run, by the names of :meth:`Objective.models`, with the run's
    tokenizer.

    Raises:
        DataError: the checkpoint is damaged, or is not of pretraining.
    """
    objective = bare_objective(_recipe_of(folder))
    checkpoint.load_result(objective, folder)
    models = {name: model.eval() for name, model in objective.models().items()}
    return _with_tokenizer(models, folder)


def unread_models_at(folder: Path) -> tuple[dict[str, Model], Callable[[Tensor], Tensor]]:
    """:func:`models_at` on device ``meta``, and what reads the values of one of their parameters.

    For writing a model that is larger than memory: :func:`encoderlab.interchange.folder.save` takes both.

    Raises:
        DataError: the checkpoint is damaged, or is not of pretraining.
    """
    objective, values = _unread(_recipe_of(folder), folder)
    return _with_tokenizer(objective.models(), folder), values


def _recipe_of(folder: Path) -> Recipe:
    """The recipe of a checkpoint, after verifying all its bytes."""
    checkpoint.verify(folder, "restore it, or give another checkpoint")
    kept = read_file(folder / checkpoint.RECIPE)
    if "objective" not in kept:
        raise DataError(f"{folder}: not a checkpoint of pretraining; to finish its run, repeat the run's command")
    return recorded(Recipe, kept, folder / checkpoint.RECIPE)


def _with_tokenizer(models: dict[str, Model], folder: Path) -> dict[str, Model]:
    """The models with the tokenizer of their run, if it is there.

    Raises:
        DataError: it is not the one that the run was trained with.
    """
    run = checkpoint.run_of(folder)
    if (run / TOKENIZER).is_dir():
        tokenizer = Tokenizer.load(run / TOKENIZER)
        if (run / PROVENANCE).exists():
            try:
                trained = read(run / PROVENANCE)["sessions"][0]["data"].get("tokenizer")
            except (LookupError, TypeError, AttributeError):
                trained = None
            if trained not in (None, tokenizer.hash()):
                raise DataError(
                    f"{run / TOKENIZER}: is not the run's (its hash differs from that in {PROVENANCE}); restore it, or "
                    "copy that of the corpus there"
                )
        for model in models.values():
            reading.give_tokenizer(model, tokenizer, run / TOKENIZER)
    return models
