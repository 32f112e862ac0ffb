"""Combinations that a pretraining recipe may not have, found from the recipe alone."""

from __future__ import annotations

import logging

import torch

from encoderlab.batches.pack import SegmentPairs
from encoderlab.batches.streams import ContiguousStreams, StreamFormat, XLNetStreams
from encoderlab.errors import ConfigError
from encoderlab.nn.positions import Disentangled
from encoderlab.objectives.causal import CausalSettings
from encoderlab.objectives.distill import DistillSettings
from encoderlab.objectives.mlm import MLMSettings
from encoderlab.objectives.permutation import PermutationSettings
from encoderlab.objectives.rtd import RTDSettings
from encoderlab.train.networks import bare_objective
from encoderlab.train.recipe import Recipe

log = logging.getLogger(__name__)


def check(recipe: Recipe) -> None:
    """Refuse combinations that cannot work, from the recipe alone; no weights are made.

    Raises:
        ConfigError: with the reason and a remedy.
    """
    _check_generator(recipe)
    _check_masking(recipe)
    _check_memory(recipe)
    _check_streams(recipe)
    _check_permutation(recipe)
    _check_duplicates(recipe)
    _check_decoders(recipe)
    if isinstance(recipe.rows, SegmentPairs) and not recipe.model.pair and isinstance(recipe.objective, MLMSettings):
        log.info("rows are pairs, but the model has no sentence-pair head: the pair label is not trained")
    _check_lengths(recipe)
    if not isinstance(recipe.objective, DistillSettings):  # a teacher's architecture is not part of the recipe
        with torch.device("meta"):
            bare_objective(recipe)


def _check_generator(recipe: Recipe) -> None:
    needed = isinstance(recipe.objective, RTDSettings)
    if needed and recipe.generator is None:
        raise ConfigError(
            "replaced token detection needs a generator; "
            "use a recipe of electra, convbert or deberta-v3, or set generator"
        )
    if not needed and recipe.generator is not None:
        raise ConfigError(f"objective {recipe.objective.kind!r} trains one network; set generator to null")


def _check_masking(recipe: Recipe) -> None:
    """Refuse a masking rate that changes over rows whose number is not known beforehand."""
    masking = getattr(recipe.objective, "masking", None)
    if masking is None or masking.final_rate is None:
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


def _check_memory(recipe: Recipe) -> None:
    """Refuse memory for shuffled rows, because memory belongs to the previous row of a stream."""
    objective, rows = recipe.objective, recipe.rows
    remembered = [name for name in ("memory", "evaluation_memory") if getattr(objective, name, None)]
    if remembered and not isinstance(rows, StreamFormat):
        kind = "contiguous_streams" if isinstance(objective, CausalSettings) else "xlnet_streams"
        raise ConfigError(
            f"shuffled rows ({rows.kind}) cannot have memory of earlier rows; set rows to {kind}, or "
            f"{' and '.join(f'objective.{name}' for name in remembered)} to 0"
        )


def _check_streams(recipe: Recipe) -> None:
    """Refuse streams with objectives and phases that they do not support."""
    objective, rows = recipe.objective, recipe.rows
    if not isinstance(rows, StreamFormat):
        return
    if isinstance(objective, CausalSettings) and isinstance(rows, XLNetStreams):
        raise ConfigError("xlnet_streams are not plain text but pairs of texts; set rows to contiguous_streams")
    if isinstance(rows, ContiguousStreams) and not isinstance(objective, CausalSettings):
        raise ConfigError(
            f"contiguous_streams are for the causal objective, not {objective.kind!r}; set rows to full_sentences"
        )
    if len({phase.rows for phase in recipe.phases}) > 1 or recipe.ramp is not None:
        raise ConfigError("the number of streams cannot change; give every phase the same rows and no ramp")
    for phase in recipe.phases:
        if isinstance(rows, XLNetStreams) and not 0 < rows.reuse < phase.length - 4:
            raise ConfigError(
                f"rows of {phase.length} tokens cannot reuse {rows.reuse}: a stream advances by the reused tokens, "
                f"and two texts with three special tokens follow it; set rows.reuse to {phase.length // 2}"
            )


def _check_permutation(recipe: Recipe) -> None:
    """Refuse a ``reuse`` that differs between rows and objective, and more targets than fit the rest of a row."""
    objective, rows = recipe.objective, recipe.rows
    if not isinstance(objective, PermutationSettings):
        return
    reuse = rows.reuse if isinstance(rows, XLNetStreams) else 0
    if reuse != objective.reuse:
        raise ConfigError(
            f"the rows ({rows.kind}) reuse {reuse} tokens and the objective {objective.reuse}, but both must "
            f"be equal; set objective.reuse to {reuse}"
        )
    for phase in recipe.phases:
        objective.targets.check(phase.length, reuse)


def _check_duplicates(recipe: Recipe) -> None:
    if recipe.duplicates is not None and (isinstance(recipe.rows, StreamFormat) or recipe.duplicates < 1):
        raise ConfigError(
            f"duplicates {recipe.duplicates}: shuffled rows and their masks repeat after this many epochs; "
            "give at least 1, or null for streams"
        )


def _check_decoders(recipe: Recipe) -> None:
    for config in filter(None, (recipe.model, recipe.generator)):
        if config.mask_decoder and not isinstance(config.encoder.position, Disentangled):
            raise ConfigError(
                f"the enhanced mask decoder needs an encoder with relative positions, and this one has "
                f"{config.encoder.position.kind}; set mask_decoder to 0, or use a model of family deberta"
            )


def _check_lengths(recipe: Recipe) -> None:
    """Refuse rows longer than the positions of a network."""
    rows = recipe.rows
    beyond = rows.longest(0) if isinstance(rows, ContiguousStreams) else 0
    longest = max(phase.length for phase in recipe.phases) + beyond
    for config in filter(None, (recipe.model, recipe.generator)):
        limit = config.encoder.max_length
        if limit is not None and longest > limit:
            raise ConfigError(
                f"rows of {longest} tokens exceed the model's {limit} positions; "
                f"shorten phases.length to {limit - beyond}"
            )
        if 0 < config.mask_decoder < longest:
            raise ConfigError(
                f"rows of {longest} tokens exceed the mask decoder's {config.mask_decoder} positions; "
                f"shorten phases.length to {config.mask_decoder}, or raise model.mask_decoder"
            )
