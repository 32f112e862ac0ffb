"""Accuracy on minimal pairs as a validation measure, shown in the curves of a run."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from encoderlab.errors import ConfigError
from encoderlab.files import sha256
from encoderlab.inference import tokenizer_of
from encoderlab.measure.pairs.evaluate import evaluate_pairs, survey
from encoderlab.measure.pairs.reading import find, read_all, sample
from encoderlab.measure.pairs.scorers import scorers_of
from encoderlab.objectives.base import Objective
from encoderlab.train.data import Scores
from encoderlab.train.recipe import Recipe


def validation_scores(recipe: Recipe, objective: Objective) -> Scores | None:
    """What scores the sample of pairs in ``recipe.evaluation.pairs``; None if that is unset.

    Raises:
        ConfigError: the objective trains no model that scores sentences.
        DataError: a pair is damaged or too long for the model; raised before the first step.
    """
    settings = recipe.evaluation.pairs
    if settings is None:
        return None
    models = objective.models()
    model = models.get("model") or models.get("discriminator")
    if model is None:
        raise ConfigError("evaluation.pairs: this objective trains no model that scores sentences; set it to null")
    scorers = scorers_of(model, models.get("generator"), official=True)
    files, tokenizer = find([Path(place) for place in settings.data]), tokenizer_of(model)
    survey(files, tokenizer, longest=scorers[0].longest)
    pairs = sample([*read_all(files)], settings.size)

    def scores() -> Mapping[str, float]:
        (table,) = evaluate_pairs(scorers, tokenizer, pairs).values()
        return {"minimal_pairs": table.total.accuracy}

    return Scores(scores, hashlib.sha256("".join(map(sha256, files)).encode()).hexdigest())
