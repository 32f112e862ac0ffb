"""All kinds of objectives: their settings as one type, and the objective that settings describe."""

from __future__ import annotations

from dataclasses import replace

from encoderlab.model import Model
from encoderlab.objectives.base import Objective
from encoderlab.objectives.causal import Causal, CausalSettings
from encoderlab.objectives.distill import Distill, DistillSettings
from encoderlab.objectives.mlm import MLM, MLMSettings
from encoderlab.objectives.permutation import Permutation, PermutationSettings
from encoderlab.objectives.rtd import RTD, RTDSettings
from encoderlab.objectives.vocabulary import Vocabulary

ObjectiveSettings = MLMSettings | RTDSettings | PermutationSettings | CausalSettings | DistillSettings


def make_objective(
    settings: ObjectiveSettings,
    model: Model,
    second: Model | None,
    vocabulary: Vocabulary,
    *,
    seed: int = 0,
    continued: bool = False,
) -> Objective:
    """The objective of ``settings`` over its networks.

    Args:
        second: the generator of replaced token detection, or the teacher of a distillation; else None.
        seed: of the maps that a distillation lays between states of different widths.
        continued: the networks bring trained weights, which the objective leaves as they are: a student starts from
            none of the teacher's layers, and a discriminator's tables keep their difference to the generator's.
    """
    if isinstance(settings, RTDSettings):
        assert second is not None
        return RTD(second, model, settings, vocabulary, continued=continued)
    if isinstance(settings, DistillSettings):
        assert second is not None
        if continued:
            settings = replace(settings, student_from=())
        return Distill(model, second, settings, vocabulary, seed=seed)
    if isinstance(settings, CausalSettings):
        return Causal(model, settings, vocabulary)
    if isinstance(settings, PermutationSettings):
        return Permutation(model, settings, vocabulary)
    return MLM(model, settings, vocabulary)
