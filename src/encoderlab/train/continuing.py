"""Continue a model: compare architectures, and copy weights."""

from __future__ import annotations

import logging
from dataclasses import fields, replace

import torch

from encoderlab.corpus.tokenizer import Tokenizer
from encoderlab.errors import ConfigError
from encoderlab.interchange.load import load_pair
from encoderlab.model import Model
from encoderlab.models.base import ModelConfig
from encoderlab.nn.architecture import EncoderConfig
from encoderlab.nn.positions import Absolute, Rotary
from encoderlab.train.recipe import Recipe

log = logging.getLogger(__name__)


def source_of(recipe: Recipe, tokenizer: Tokenizer) -> tuple[Model, Model | None]:
    """The model in ``init_from``, and its generator or None."""
    assert recipe.init_from is not None
    model, generator = load_pair(recipe.init_from)
    if recipe.generator is not None and not recipe.fresh_generator and generator is None:
        raise ConfigError(f"{recipe.init_from}: has no generator; set fresh_generator=true to continue with a new one")
    sharing = getattr(recipe.objective, "sharing", "none")
    if generator is not None and model.config.family in ("electra", "convbert") and sharing in ("block", "tables"):
        if generator.encoder.embeddings.words is not model.encoder.embeddings.words:
            raise ConfigError(
                f"{recipe.init_from}: generator and discriminator have different embeddings, which objective.sharing "
                f"{sharing} would make one; set objective.sharing=none, or continue with a pair that shares them"
            )
    for network in filter(None, (model, generator)):
        same_ids(network, tokenizer, recipe.init_from)
        if network.config.encoder.vocab < tokenizer.vocab_size:
            raise ConfigError(
                f"{recipe.init_from}: its word table has {network.config.encoder.vocab} rows and the corpus's "
                f"tokenizer {tokenizer.vocab_size} ids; build the corpus with the model's own tokenizer"
            )
    return model, generator


def continuing(config: ModelConfig, source: ModelConfig, name: str) -> ModelConfig:
    """``config`` with the encoder of ``source``, whose weights are continued; fields that matter only in training
    stay.
    """
    here, there = (_architecture(model.encoder) for model in (config, source))
    differ = [
        f"{f.name} {getattr(there, f.name)}, here {getattr(here, f.name)}"
        for f in fields(here)
        if getattr(here, f.name) != getattr(there, f.name)
    ]
    if differ:
        raise ConfigError(
            f"{name}: its encoder differs from the recipe's ({'; '.join(differ[:3])}); "
            "use the recipe of its architecture and size"
        )
    kept = {field: getattr(config.encoder, field) for field in ("conv", *TRAINING_ONLY)}  # convolutions: mask_padding
    if isinstance(config.encoder.position, Rotary):  # a run may extend the context with another base
        kept |= {field: getattr(config.encoder, field) for field in ("position", "local")}
        for field in ("position", "local"):
            mine, theirs = getattr(config.encoder, field), getattr(source.encoder, field)
            if mine != theirs:
                log.warning("%s has %s %s; training continues with %s", name, field, theirs, mine)
    if config.encoder.causal != source.encoder.causal:  # a left-to-right model is a good start for a masked one
        log.warning("%s %s; from here on it %s", name, *(READING[c.encoder.causal] for c in (source, config)))
        kept["causal"] = config.encoder.causal
    if config.lm is not None and source.lm is not None and not source.encoder.causal:
        mine, theirs = config.lm.next_token, source.lm.next_token
        if mine != theirs:
            log.warning("%s predicts a token %s; from here on %s", name, PREDICTED[theirs], PREDICTED[mine])
    return replace(config, encoder=replace(source.encoder, **kept))


READING = {True: "reads from left to right", False: "reads in both directions"}
PREDICTED = {
    True: "from the state of the token before it (model.lm.next_token=true)",
    False: "from its own state (model.lm.next_token=false)",
}


def _architecture(encoder: EncoderConfig) -> EncoderConfig:
    """The encoder with default values for all fields that change neither shape nor meaning of its weights."""
    position, conv = encoder.position, encoder.conv
    if isinstance(position, Absolute):  # rows before the offset are never read
        position = replace(position, offset=0)
    local = encoder.local
    if isinstance(position, Rotary):  # the recipe's bases and length apply
        position = Rotary()
        local = None if local is None else replace(local, theta=None)
    if encoder.conv_branch is not None:
        conv = replace(encoder.conv_branch, mask_padding=True)
    return replace(
        encoder,
        vocab=1,
        causal=False,
        position=position,
        local=local,
        conv=conv,
        embed_width=encoder.word_width,
        head_width=encoder.key_width,
        types=max(encoder.types, 1),  # a table of one row only adds a constant: RoBERTa's files have one
        **{name: getattr(NEUTRAL, name) for name in TRAINING_ONLY},
    )


NEUTRAL = EncoderConfig(vocab=1)
TRAINING_ONLY = (
    "dropout",
    "embed_dropout",
    "ff_output_dropout",
    "attention_dropout",
    "ff_dropout",
    "output_dropout",
    "init_std",
    "truncated_init",
    "glorot_map",
    "scaled_init",
)
"""Fields of an encoder that matter only in training."""


@torch.no_grad()
def take(model: Model, source: Model, name: str) -> None:
    """Copy the weights of ``source`` into ``model``; heads that only one of them has are reported."""
    ours, theirs = dict(model.named_parameters()), dict(source.named_parameters())
    if missing := sorted(ours.keys() - theirs.keys()):
        log.warning("%s has no %s; these start fresh", name, ", ".join(missing))
    if unused := sorted(theirs.keys() - ours.keys()):
        log.warning("%s has %s, which the recipe does not use", name, ", ".join(unused))
    for key in ours.keys() & theirs.keys():
        if ours[key].shape != theirs[key].shape:
            raise ConfigError(
                f"{name}: {key} is {tuple(theirs[key].shape)} there and {tuple(ours[key].shape)} in the recipe; "
                "use the recipe of its architecture and size"
            )
        ours[key].copy_(theirs[key])


def same_ids(model: Model, tokenizer: Tokenizer, name: str) -> Model:
    if model.tokenizer is None:
        log.warning("%s has no tokenizer; its ids are taken to be those of the corpus", name)
    elif model.tokenizer.hash() != tokenizer.hash():
        raise ConfigError(f"{name}: its tokenizer differs from the corpus's; build the corpus with --tokenizer {name}")
    return model
