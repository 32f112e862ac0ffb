"""The recipe of continued training: the family's own objective, with a low rate and a limited length.

The rate is warmed up again over 6% of the steps and decays to 0 (re-warming and re-decaying; Gupta et al., 2023;
Ibrahim et al., 2024). It is at most a third of the pretraining rate for the same size: 1e-4 at a width of 768 and more,
up to 3e-4 for narrower models. Dropout is 0.1, because the text of a domain is read several times. The weights with the
lowest held-out loss are the result, and training ends after four validations in a row without a better loss.
"""

from __future__ import annotations

from dataclasses import replace

from encoderlab import models, recipes
from encoderlab.batches.pack import FullSentences
from encoderlab.batches.streams import StreamFormat
from encoderlab.errors import ConfigError
from encoderlab.model import Model
from encoderlab.models.base import ModelConfig
from encoderlab.objectives.causal import CausalSettings
from encoderlab.objectives.distill import DistillSettings
from encoderlab.objectives.hybrid import HybridSettings
from encoderlab.objectives.mlm import MLMSettings
from encoderlab.objectives.rtd import RTDSettings
from encoderlab.train.optim import AdamW
from encoderlab.train.recipe import Budget, Checkpoints, Evaluation, Phase, Recipe
from encoderlab.train.schedule import Polynomial

DROPOUT = 0.1
WARMUP = 0.06
CAUSAL = 0.5  # share of rows that are read from left to right, where a model predicts both ways, as small-en does
PATIENCE = 4
VALIDATIONS = 20


def published(config: ModelConfig) -> Recipe:
    """The family's recipe, at a size for a CPU, whose objective fits the model's heads.

    Raises:
        ConfigError: the model has no pretraining head.
    """
    remedy = "give the pretrained model, with its head, instead of the encoder alone or a fine-tuned one"
    if config.task is not None:
        raise ConfigError(f"the model has a fine-tuned head and none that predicts tokens; {remedy}")
    family = config.family
    if config.rtd is not None:
        name = {"deberta": "deberta-v3-mini"}.get(family, f"{family}-mini")
    elif config.lm is None:
        raise ConfigError(f"the model ({family}) has no head that predicts tokens; {remedy}")
    elif family == "deberta":
        name = "deberta-v2-mini" if config.encoder.stem_conv is not None else "deberta-mini"
    elif family == "bert":
        name = "bert-mini-no-nsp"
    else:
        name = f"{family.replace('_', '-')}-mini"
    recipe = recipes.recipe(name)
    if isinstance(recipe.objective, DistillSettings):  # DistilBERT's teacher is missing
        recipe = replace(recipe, objective=MLMSettings())
    if config.rtd is None and isinstance(recipe.objective, RTDSettings):  # a generator by itself
        recipe = replace(recipe, objective=MLMSettings(masking=recipe.objective.masking), generator=None)
    if config.encoder.causal and not isinstance(recipe.objective, CausalSettings):
        recipe = replace(recipe, objective=CausalSettings())
    if isinstance(recipe.objective, MLMSettings) and config.reads_both_ways:
        recipe = replace(recipe, objective=HybridSettings(masking=recipe.objective.masking, causal=CAUSAL))
    return recipe


def recipe_of(model: Model, generator: Model | None, *, tokens: float, passes: float, seed: int) -> Recipe:
    """The recipe for a model (and its generator) on a text of ``tokens`` tokens, read ``passes`` times.

    Raises:
        ConfigError: the objective of the model's family cannot run.
    """
    base, config = published(model.config), model.config
    objective, format, phase = base.objective, base.format, base.phases[0]
    if not isinstance(format, StreamFormat):
        limit = config.encoder.max_length or 128
        phase = Phase(length=min(128, limit, config.mask_decoder or limit), rows=16)
        format = FullSentences()
    if isinstance(objective, RTDSettings):
        trained = _trained(_new_generator(config) if generator is None else generator.config)
        base = replace(base, fresh_generator=generator is None, generator=trained)
    lr = min(3e-4, max(1e-4, 1e-4 * 768 / config.encoder.width))
    recipe = replace(
        base,
        name="adapt",
        model=_trained(replace(config, pair=False)),
        objective=objective,
        format=format,
        phases=(phase,),
        optim=AdamW(lr=lr, weight_decay=0.01),
        schedule=Polynomial(warmup=WARMUP),
        evaluation=Evaluation(rows=256, best="loss", patience=PATIENCE),
        checkpoints=Checkpoints(minutes=5.0),
        clip=1.0,
        seed=seed,
    )
    return for_passes(recipe, tokens, passes)


def for_passes(recipe: Recipe, tokens: float, passes: float) -> Recipe:
    """The recipe with the steps that its phases need for ``passes`` over ``tokens`` tokens, and their validations."""
    of_step = sum(phase.share * phase.length * phase.rows for phase in recipe.phases)
    steps = max(1, round(tokens * passes / of_step))
    evaluation = replace(recipe.evaluation, every=max(1, steps // VALIDATIONS))
    return replace(recipe, budget=Budget(amount=steps), evaluation=evaluation)


def _trained(config: ModelConfig) -> ModelConfig:
    """The configuration with the dropout of continued training; dropout of attention weights, if used, keeps its
    rate."""
    return replace(config, encoder=replace(config.encoder, dropout=DROPOUT))


def _new_generator(config: ModelConfig) -> ModelConfig:
    """A generator for a discriminator without one: that of the published size with the nearest width, with the
    discriminator's embeddings.
    """
    encoder = config.encoder
    sizes = {name: models.SIZES[name] for name in models.FAMILIES[config.family].generators if name in models.SIZES}
    same = (encoder.width, encoder.word_width)
    name = min(
        sizes,
        key=lambda one: (
            abs(sizes[one].encoder.width - same[0]) + abs(sizes[one].encoder.word_width - same[1]),
            abs(sizes[one].encoder.layers - encoder.layers),
        ),
    )
    generator = models.GENERATORS[name]
    kept = {field: getattr(encoder, field) for field in ("vocab", "types", "position", "embed_norm")}
    return replace(generator, encoder=replace(generator.encoder, embed_width=encoder.word_width, **kept))
