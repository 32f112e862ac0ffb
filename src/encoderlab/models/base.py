"""A model as data: an encoder and its published heads."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

from encoderlab.config import Bounded
from encoderlab.errors import ConfigError
from encoderlab.nn.architecture import EncoderConfig
from encoderlab.nn.heads import LM, RTD, Classification, Pooler, Span, Tagging, TaskHead
from encoderlab.nn.positions import Distance


@dataclass(frozen=True, kw_only=True)
class ModelConfig(Bounded):
    """A model: an encoder, and its heads.

    Args:
        encoder: the encoder's configuration.
        family: names the module in ``encoderlab.models`` that explains the architecture.
        pooler: the head that gives a text's vector (BERT's [CLS] pooler); None for no pooler.
        lm: the head that predicts tokens.
        pair: whether it has the head for next sentence or sentence order, D -> 2 on the pooled vector.
        rtd: the head that detects replaced tokens.
        mask_decoder: rows of the table of absolute positions in DeBERTa's enhanced mask decoder; 0 for no decoder.
        mask_vector: whether it has XLNet's learned vector that starts the query stream.
        task: the head of a fine-tuned model.
        labels: of the task, in the order of the head's scores.
        model_type: its name in ``transformers``, if it differs from its family only in the tokenizer.

    Raises:
        ConfigError: a pair head without a pooler, or a ``model_type`` of another family.
    """

    family: str
    encoder: EncoderConfig
    pooler: Pooler | None = None
    lm: LM | None = None
    pair: bool = False
    rtd: RTD | None = None
    mask_decoder: Distance = 0
    mask_vector: bool = False
    task: TaskHead | None = None
    labels: tuple[str, ...] = ()
    model_type: Literal["xlm-roberta", "camembert"] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.model_type is not None and self.family != "roberta":
            raise ConfigError(
                f"model_type {self.model_type} belongs to RoBERTa, and the family is {self.family}; leave it out"
            )
        if self.lm is not None and self.lm.next_token and (self.mask_decoder or self.mask_vector):
            raise ConfigError(
                "a query stream is at the predicted token, but an LM head with next_token reads the one before; "
                "set model.lm.next_token to false, or mask_decoder to 0 and mask_vector to false"
            )
        if self.pair and self.pooler is None:
            raise ConfigError(
                "the pair head needs a pooler, and there is no pooler; set pooler to {}, or pair to false"
            )

    @property
    def longest_masked(self) -> int | None:
        """The longest row, in tokens, in which masked tokens are predicted; None for no limit. A mask decoder may have
        fewer positions than the encoder reads.
        """
        return min((most for most in (self.encoder.max_length, self.mask_decoder) if most), default=None)

    @property
    def reads_both_ways(self) -> bool:
        """Whether the model predicts masked tokens and, of a text read from left to right, the next one (GPT-BERT).
        Convolutions would read later tokens.
        """
        return self.lm is not None and self.lm.next_token and not self.encoder.causal and not self.encoder.convolves


@dataclass(frozen=True, kw_only=True)
class Family:
    """The declarations of a family's module.

    Args:
        about: a description of the family.
        sizes: published names and their configurations.
        generators: names of discriminators and the configurations of their generators.
        classification, tagging, span: the heads that fine-tuning adds to the family's models.
    """

    name: str
    about: str
    sizes: dict[str, ModelConfig]
    generators: dict[str, ModelConfig] = field(default_factory=dict)
    classification: Classification = Classification(labels=2)
    tagging: Tagging = Tagging(labels=2)
    span: Span = Span()


def resized(config: ModelConfig, **changes: Any) -> ModelConfig:
    """The model with fields of its encoder changed; a smaller ``vocab`` drops cut-offs of an adaptive softmax beyond
    it.
    """
    adaptive = changes.get("adaptive", config.encoder.adaptive)
    if "vocab" in changes and adaptive is not None:
        cutoffs = tuple(cut for cut in adaptive.cutoffs if cut < changes["vocab"])
        changes["adaptive"] = replace(adaptive, cutoffs=cutoffs)
    return replace(config, encoder=replace(config.encoder, **changes))
