"""All kinds of objectives as one type, that of a recipe's ``objective``; what each does is a method of its settings."""

from __future__ import annotations

from encoderlab.objectives.causal import CausalSettings
from encoderlab.objectives.distill import DistillSettings
from encoderlab.objectives.mlm import MLMSettings
from encoderlab.objectives.permutation import PermutationSettings
from encoderlab.objectives.rtd import RTDSettings

ObjectiveSettings = MLMSettings | RTDSettings | PermutationSettings | CausalSettings | DistillSettings
