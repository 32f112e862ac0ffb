"""The networks of a pretraining recipe, adapted to a tokenizer, and their objective."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import nn

from encoderlab.corpus.shards import Corpus
from encoderlab.corpus.tokenizer import Tokenizer
from encoderlab.errors import ConfigError
from encoderlab.interchange.load import load
from encoderlab.model import Model
from encoderlab.models import GENERATORS, SIZES
from encoderlab.models.base import ModelConfig, resized
from encoderlab.objectives.base import Objective
from encoderlab.objectives.distill import DistillSettings
from encoderlab.objectives.vocabulary import Vocabulary
from encoderlab.train.continuing import continuing, same_ids, source_of, take
from encoderlab.train.folder import RECIPE, read, recorded
from encoderlab.train.optim import Muon, group_parameters, update_operations
from encoderlab.train.recipe import Phase, Recipe

log = logging.getLogger(__name__)


def fit(recipe: Recipe, tokenizer: Tokenizer, *, resumed: Path | None = None) -> Recipe:
    """The recipe with the vocabulary size of ``tokenizer``; an adaptive softmax loses cut-offs beyond that size.

    A recipe that continues a model adopts the sizes of its weights, such as a larger word table. For a ``resumed`` run
    or the checkpoint that it branches from, their own record determines them.

    Raises:
        ConfigError: a segment table is too short for the rows, a head reads [CLS] where the rows do not have it, or the
            model to continue has another architecture, tokenizer, or no generator.
    """
    check_segments(recipe, tokenizer, model=recipe.model, generator=recipe.generator)
    _check_first(recipe.model, tokenizer)
    fitted = _fitted(recipe, tokenizer, resumed)
    vocab = fitted.model.encoder.vocab
    published = {config.encoder.vocab for config in (*SIZES.values(), *GENERATORS.values())}
    for network, config in (("model", recipe.model), ("generator", recipe.generator)):
        if config is not None and config.encoder.vocab not in (*published, vocab):
            set_to = f"{network}.encoder.vocab {config.encoder.vocab}"
            if vocab == tokenizer.vocab_size:
                why = f"the corpus's tokenizer has {vocab} ids; leave it out, or build another corpus"
            else:
                why = f"the model to continue has {vocab} words; leave it out"
            log.warning("%s has no effect, because %s", set_to, why)
    return fitted


def _fitted(recipe: Recipe, tokenizer: Tokenizer, resumed: Path | None) -> Recipe:
    """The recipe with the sizes of the tokenizer, or of the model that it continues."""
    vocab = tokenizer.vocab_size
    generator = None if recipe.generator is None else resized(recipe.generator, vocab=vocab)
    recipe = replace(recipe, model=resized(recipe.model, vocab=vocab), generator=generator)
    if recipe.init_from is None:
        return recipe
    source, source_generator = _architectures(recipe, tokenizer, resumed)
    if source is None:
        return recipe  # another kind of run; opening the folder will refuse it
    model = continuing(recipe.model, source, recipe.init_from)
    if recipe.generator is None:
        return replace(recipe, model=model)
    if recipe.fresh_generator or source_generator is None:
        return replace(recipe, model=model, generator=resized(recipe.generator, vocab=model.encoder.vocab))
    return replace(recipe, model=model, generator=continuing(recipe.generator, source_generator, recipe.init_from))


def _architectures(
    recipe: Recipe, tokenizer: Tokenizer, resumed: Path | None
) -> tuple[ModelConfig | None, ModelConfig | None]:
    """The architectures of the model and the generator to continue, or None.

    Read from the model in ``init_from``, or from the record in the folder ``resumed``, because that model may have been
    deleted.
    """
    if resumed is None:
        model, generator = source_of(recipe, tokenizer)
        return model.config, None if generator is None else generator.config
    known = read(resumed / RECIPE)
    first, second = (
        known.get(key) and recorded(ModelConfig, known[key], resumed / RECIPE) for key in ("model", "generator")
    )
    return first, second


def check_segments(recipe: Recipe, tokenizer: Tokenizer, **networks: ModelConfig | None) -> None:
    """Refuse networks whose segment table is smaller than the number of segments in the tokenizer's rows."""
    needed = recipe.format.segments(tokenizer.framing)
    for name, config in networks.items():
        if config is not None and 0 < config.encoder.types < needed:
            raise ConfigError(
                f"texts ({recipe.format.kind}) with a tokenizer of kind {tokenizer.framing} have {needed} segments, "
                f"and the {name} {config.encoder.types}; set encoder.types of the {name} to {needed}, or build the "
                "corpus with another tokenizer"
            )


def _check_first(model: ModelConfig, tokenizer: Tokenizer) -> None:
    """Refuse heads that read [CLS] as the first token of a text, if the tokenizer's rows have it last."""
    if tokenizer.framing != "xlnet":
        return
    for reads, remedy in (
        (model.pair, "set model.pair to false"),
        (model.rtd is not None and model.rtd.variant == "deberta", "set model.rtd.variant to electra"),
    ):
        if reads:
            raise ConfigError(
                "a head of the model reads the first token of a text, and rows of this tokenizer (of kind xlnet) have "
                f"[CLS] last; {remedy}, or build the corpus with another tokenizer"
            )


def check_length(recipe: Recipe, limit: int | None, whose: str, *, otherwise: str = "") -> None:
    """Refuse rows with more tokens than the positions that ``whose`` names; None for any number.

    Raises:
        ConfigError: a phase has longer rows; ``otherwise`` is added to the remedy.
    """
    beyond = recipe.format.longest(0)
    for number, phase in enumerate(recipe.phases):
        if limit is not None and phase.length + beyond > limit:
            raise ConfigError(
                f"rows of {phase.length + beyond} tokens exceed the {whose}'s {limit} positions; shorten "
                f"phases.{number}.length to {limit - beyond}{otherwise}"
            )


def full_operations(recipe: Recipe, phase: Phase, teacher: ModelConfig | None = None) -> float:
    """Training FLOPs per token of ``phase`` if every row is full: :meth:`Recipe.operations`, and each token's share of
    the products of an update.
    """
    update = 0.0
    if isinstance(recipe.optim, Muon):
        with torch.device("meta"):
            networks = nn.ModuleList(Model(config) for config in filter(None, (recipe.model, recipe.generator)))
        update = update_operations(group_parameters(networks, recipe.optim))
    return recipe.operations(phase.length, teacher) + update / (phase.rows * phase.length)


def build_objective(recipe: Recipe, tokenizer: Tokenizer, corpus: Corpus, *, resumed: bool = False) -> Objective:
    """The objective of a recipe returned by :func:`fit`, with its networks.

    Weights are fresh from the seed or from ``init_from``; a ``resumed`` run does not read ``init_from`` again.
    """
    settings, teacher = recipe.objective, None
    if isinstance(settings, DistillSettings):
        if not settings.teacher:
            raise ConfigError("distillation needs a teacher; give a model folder: --set objective.teacher=FOLDER")
        teacher = same_ids(load(settings.teacher), tokenizer, settings.teacher)
        check_segments(recipe, tokenizer, teacher=teacher.config)
        check_length(recipe, teacher.config.encoder.max_length, "teacher")
    model, generator = _networks(recipe, tokenizer, resumed=resumed)
    second = generator if teacher is None else teacher
    return _objective(recipe, model, second, Vocabulary.of(tokenizer, corpus.counts()))


def bare_objective(recipe: Recipe) -> Objective:
    """The objective of a recipe over networks without weights; it cannot make batches."""
    settings, size = recipe.objective, recipe.model.encoder.vocab
    second = None if recipe.generator is None else Model(recipe.generator)
    if isinstance(settings, DistillSettings):
        with torch.device("cpu"):  # even if the caller makes networks without memory for weights
            second = load(settings.teacher)
    vocabulary = Vocabulary(size=size, pad=0, mask=1, special=(0, 1), counts=np.ones(size))
    return _objective(recipe, Model(recipe.model), second, vocabulary)


def _objective(recipe: Recipe, model: Model, second: Model | None, vocabulary: Vocabulary) -> Objective:
    continued = recipe.init_from is not None
    return recipe.objective.build(model, second, vocabulary, seed=recipe.seed, continued=continued)


def _networks(recipe: Recipe, tokenizer: Tokenizer, *, resumed: bool) -> tuple[Model, Model | None]:
    """The model and, for replaced token detection, its generator."""
    model, generator = Model(recipe.model, tokenizer).initialize(recipe.seed), None
    if recipe.generator is not None:
        generator = Model(recipe.generator, tokenizer).initialize(recipe.seed + 1)
    if recipe.init_from is not None and not resumed:
        source, second = source_of(recipe, tokenizer)
        take(model, source, recipe.init_from)
        if generator is not None and second is not None and not recipe.fresh_generator:
            take(generator, second, recipe.init_from)
    return model, generator
