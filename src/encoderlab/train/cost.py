"""What a token of pretraining costs, in floating-point operations."""

from __future__ import annotations

from encoderlab.models import flops
from encoderlab.models.base import ModelConfig
from encoderlab.objectives.causal import CausalSettings
from encoderlab.objectives.distill import DistillSettings
from encoderlab.objectives.kinds import ObjectiveSettings
from encoderlab.objectives.mlm import MLMSettings
from encoderlab.objectives.permutation import PermutationSettings
from encoderlab.objectives.rtd import RTDSettings
from encoderlab.train.recipe import Recipe


def operations(recipe: Recipe, length: int, teacher: ModelConfig | None = None) -> float:
    """Floating-point operations of training per token of full rows of ``length``, by the convention of
    :mod:`encoderlab.models.flops`: all networks, a vocabulary head where tokens are predicted, of a last layer that
    only the predicted tokens need what is computed, and the forward pass of a distillation's ``teacher`` where it is
    given.
    """
    settings = recipe.objective
    if isinstance(settings, CausalSettings):
        return flops.training(recipe.model, length, predicted=1.0, memory=settings.memory)
    if isinstance(settings, PermutationSettings):
        share = settings.targets.count / length
        return flops.training(recipe.model, length, predicted=share, memory=settings.memory)
    rate = settings.masking.rate
    if isinstance(settings, RTDSettings):
        assert recipe.generator is not None
        shares = {"replaced": 0.0, "replaced_masked": 0.0, "original_masked": rate, "original_all": 1.0}
        discriminator = flops.training(recipe.model, length, predicted=shares[settings.predict])
        return discriminator + _masked(recipe.generator, length, rate)
    if isinstance(settings, MLMSettings):
        return _masked(recipe.model, length, rate)
    compared, masked = compared_share(settings), rate if settings.mlm_weight else 0.0
    total = flops.training(recipe.model, length, predicted=compared + masked)  # each has a vocabulary head of its own
    if teacher is not None:
        total += sum(flops.forward(teacher, length, predicted=compared).values())
    return total


def compared_share(settings: ObjectiveSettings) -> float:
    """The share of tokens at which a distillation compares logits with the teacher's; 0 for other objectives."""
    if not isinstance(settings, DistillSettings) or not settings.logits_weight:
        return 0.0
    return 1.0 if settings.at == "real" else settings.masking.rate


def _masked(config: ModelConfig, length: int, rate: float) -> float:
    """Operations per token of training on the masked tokens alone."""
    spared = flops.spared(config, length, predicted=rate)
    return flops.training(config, length, predicted=rate) - (1 + flops.BACKWARD) * spared
