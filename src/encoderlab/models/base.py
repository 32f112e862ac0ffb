"""A model as data: an encoder and the heads it was published with."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from encoderlab.config import check_least
from encoderlab.errors import ConfigError
from encoderlab.nn.encoder import EncoderConfig
from encoderlab.nn.heads import LM, RTD, Classification, Pooler, Span, Tagging, TaskHead


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """One model. ``family`` names the module in ``encoderlab.models`` that explains it and maps its weights.

    ``pooler``, ``lm``, ``pair`` (next sentence, sentence order: D -> 2 on the pooled vector), ``rtd``: the pretraining
    heads that it has. ``mask_decoder`` > 0: DeBERTa's enhanced mask decoder with a table of that many absolute
    positions. ``mask_vector``: XLNet's learned start of the query stream. ``task``: the head of a fine-tuned model, its
    labels by name in ``labels``.
    """

    family: str
    encoder: EncoderConfig
    pooler: Pooler | None = None
    lm: LM | None = None
    pair: bool = False
    rtd: RTD | None = None
    mask_decoder: int = 0
    mask_vector: bool = False
    task: TaskHead | None = None
    labels: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_least(self, 0, "mask_decoder")
        if self.pair and self.pooler is None:
            raise ConfigError(
                "the pair head reads the pooled vector, and there is no pooler; set pooler to {}, or pair to false"
            )


@dataclass(frozen=True, kw_only=True)
class Family:
    """What a family module declares: its sizes, and the heads that fine-tuning puts on it.

    ``sizes`` maps a published name to its configuration; ``generators`` maps a discriminator's name to its generator's.
    """

    name: str
    about: str
    sizes: dict[str, ModelConfig]
    generators: dict[str, ModelConfig] = field(default_factory=dict)
    classification: Classification = Classification(labels=2)
    tagging: Tagging = Tagging(labels=2)
    span: Span = Span()


def resized(config: ModelConfig, **changes: Any) -> ModelConfig:
    """The model with fields of its encoder changed; with ``vocab``, cut-offs of an adaptive softmax beyond it go."""
    adaptive = changes.get("adaptive", config.encoder.adaptive)
    if "vocab" in changes and adaptive is not None:
        cutoffs = tuple(cut for cut in adaptive.cutoffs if cut < changes["vocab"])
        changes["adaptive"] = replace(adaptive, cutoffs=cutoffs)
    return replace(config, encoder=replace(config.encoder, **changes))
