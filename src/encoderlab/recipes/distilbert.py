"""DistilBERT (Sanh et al., 2019; the training scripts of the release)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from encoderlab import models
from encoderlab.batches.pack import SingleDocuments
from encoderlab.objectives.distill import DistillSettings
from encoderlab.recipes.small import is_small, small
from encoderlab.train.optim import AdamW
from encoderlab.train.recipe import Budget, Phase, Recipe
from encoderlab.train.schedule import Polynomial


def recipe(name: str) -> Recipe:
    """Six layers from the teacher's layers 0, 2, 4, 7, 9 and 11; loss weights 5, 2 and 1.

    Texts are cut to length; parts of fewer than 12 tokens are dropped. 13 billion tokens are three epochs of the 3.3
    billion words of Wikipedia and Books. Give the teacher with ``--set objective.teacher=FOLDER``.
    """
    published = Recipe(
        name=name,
        model=models.config(name),
        objective=DistillSettings(student_from=(0, 2, 4, 7, 9, 11)),
        format=SingleDocuments(shortest=10),  # and [CLS] and [SEP]
        optim=AdamW(lr=5e-4, betas=(0.9, 0.98), weight_decay=0.0),
        schedule=Polynomial(warmup=0.05),
        budget=Budget(amount=13e9, unit="tokens"),
        phases=(Phase(length=512, rows=4000),),
        clip=5.0,
    )
    if not is_small(name):
        return published
    # The teachers of these recipes are bert-tiny and bert-mini, with 2 and 4 layers.
    layers = tuple(2 * i for i in range(published.model.encoder.layers))
    return small(replace(published, objective=DistillSettings(student_from=layers)), lr=5e-4)


VARIANTS: dict[str, Callable[[str], Recipe]] = {"distilroberta-base": recipe}  # its parts are those of family roberta
