"""Refuse combinations in a pretraining recipe that cannot work, from the recipe alone.

Objectives and formats of rows check their own needs: ``Settings.check`` and ``BaseFormat.check``.
"""

from __future__ import annotations

import torch

from encoderlab.batches.pack import FullSentences
from encoderlab.batches.streams import StreamFormat
from encoderlab.errors import ConfigError
from encoderlab.nn.positions import Disentangled
from encoderlab.objectives.distill import DistillSettings
from encoderlab.train.networks import bare_objective, check_length
from encoderlab.train.optim import group_parameters
from encoderlab.train.recipe import Recipe


def check(recipe: Recipe) -> None:
    """Refuse combinations that cannot work, from the recipe alone; no weights are made.

    Raises:
        ConfigError: a combination cannot work.
    """
    lengths = [phase.length for phase in recipe.phases]
    _check_generator(recipe)
    _check_masking(recipe)
    _check_decoders(recipe)
    for length in lengths:
        recipe.format.check(length)
    recipe.objective.check(recipe.model, recipe.format, lengths)
    if isinstance(recipe.format, StreamFormat):
        _check_streams(recipe)
    _check_lengths(recipe)
    if not isinstance(recipe.objective, DistillSettings):  # a teacher's architecture is not part of the recipe
        with torch.device("meta"):
            group_parameters(bare_objective(recipe), recipe.optim)


def _check_generator(recipe: Recipe) -> None:
    needed = recipe.objective.needs_generator
    if needed and recipe.generator is None:
        raise ConfigError(
            "replaced token detection needs a generator; "
            "use a recipe of electra, convbert or deberta-v3, or set generator"
        )
    if not needed and recipe.generator is not None:
        raise ConfigError(f"objective {recipe.objective.kind!r} trains one network; set generator to null")
    if recipe.fresh_generator and recipe.init_from is None:
        raise ConfigError(
            "fresh_generator continues the discriminator of a model without its generator; give that model "
            "(--init-from), or leave fresh_generator out"
        )


def _check_masking(recipe: Recipe) -> None:
    """Refuse a changing masking rate if the number of rows is not known beforehand."""
    if not recipe.objective.masking_changes:
        return
    if recipe.budget.unit == "hours":
        raise ConfigError(
            "a masking rate that changes over hours would depend on the machine's speed; give the budget in "
            "steps, tokens or FLOPs, or set objective.masking.final_rate to null"
        )
    if recipe.budget.unit == "steps" and recipe.ramp is not None:
        raise ConfigError(
            "a masking rate that changes counts the rows of the run, which a ramp changes from step to step; give the "
            "budget in tokens or FLOPs, or set ramp to null"
        )
    if recipe.budget.unit == "steps" and isinstance(recipe.format, FullSentences) and recipe.format.batch == "tokens":
        raise ConfigError(
            "a masking rate that changes counts the rows of the run, and batches of as many tokens have different "
            "numbers of rows; set format.batch to rows, or objective.masking.final_rate to null"
        )


def _check_streams(recipe: Recipe) -> None:
    if len({phase.rows for phase in recipe.phases}) > 1 or recipe.ramp is not None:
        raise ConfigError("the number of streams cannot change; give every phase the same rows and no ramp")
    if recipe.duplicates is not None:
        raise ConfigError(
            f"duplicates {recipe.duplicates} repeats the masks of shuffled rows, and rows of {recipe.format.kind} are "
            "never shuffled; set duplicates to null"
        )


def _check_decoders(recipe: Recipe) -> None:
    for name in ("model", "generator"):
        config = getattr(recipe, name)
        if config is not None and config.mask_decoder and not isinstance(config.encoder.position, Disentangled):
            raise ConfigError(
                f"the enhanced mask decoder needs disentangled positions, and this encoder has "
                f"{config.encoder.position.kind} ones; set {name}.mask_decoder to 0, or use a model of family deberta"
            )


def _check_lengths(recipe: Recipe) -> None:
    """Refuse rows longer than the positions of a network."""
    for name in ("model", "generator"):
        config = getattr(recipe, name)
        if config is None:
            continue
        check_length(recipe, config.encoder.max_length, name)
        if config.mask_decoder > 0:
            raised = f", or raise {name}.mask_decoder"
            check_length(recipe, config.mask_decoder, "mask decoder", otherwise=raised)
