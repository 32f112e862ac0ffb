"""The union of all objectives' settings, the type of a recipe's ``objective``."""

from __future__ import annotations

from encoderlab.objectives.causal import CausalSettings
from encoderlab.objectives.distill import DistillSettings
from encoderlab.objectives.hybrid import HybridSettings
from encoderlab.objectives.mlm import MLMSettings
from encoderlab.objectives.permutation import PermutationSettings
from encoderlab.objectives.rtd import RTDSettings

ObjectiveSettings = MLMSettings | RTDSettings | PermutationSettings | CausalSettings | HybridSettings | DistillSettings
