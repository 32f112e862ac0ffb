"""The configuration of an encoder: its sizes and the types of its parts. Defaults are BERT-base.

The letters of shapes are those of :mod:`encoderlab.nn.encoder`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from encoderlab.config import Bounded, Count, NonNegative, Rate
from encoderlab.errors import ConfigError
from encoderlab.nn.attention import Biases
from encoderlab.nn.embeddings import Adaptive, EmbeddingNorm
from encoderlab.nn.feedforward import Activation
from encoderlab.nn.norms import LayerNormalization, Norm, Normalization
from encoderlab.nn.positions import Absolute, Position, Rotary
from encoderlab.nn.scope import Local
from encoderlab.nn.spanconv import Bottleneck, Branch, Convolution, kept_heads
from encoderlab.nn.stem import StemConvolution


@dataclass(frozen=True, kw_only=True)
class Sharing(Bounded):
    """Layers with common weights (Lan et al., 2020, section 3.1): layer i of N uses group ``i // (N / groups)``.

    Args:
        groups: number of different sets of weights.
        inner: number of blocks in a group; each layer of the group runs all of them. More than 1 needs both ``parts``.
        parts: the shared parts; for other parts every layer has its own weights.

    Raises:
        ConfigError: unknown or repeated parts, or several inner blocks that share only one part.
    """

    groups: Count = 1
    inner: Count = 1
    parts: tuple[Literal["attention", "feed_forward"], ...] = ("attention", "feed_forward")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.parts or len(set(self.parts)) != len(self.parts):
            raise ConfigError(f"shared parts {list(self.parts)} must name attention, feed_forward or both, each once")
        if self.inner > 1 and not self.whole:
            raise ConfigError(
                f"{self.inner} inner blocks cannot share {list(self.parts)} alone; "
                "set inner to 1, or parts to attention and feed_forward"
            )

    @property
    def whole(self) -> bool:
        """Whether the layers of a group share all weights."""
        return len(self.parts) == 2


WIDEST = 1 << 17  # this and the other limits: at least ten times larger than any published model
Width = Annotated[int, Field(ge=1, le=WIDEST)]


@dataclass(frozen=True, kw_only=True)
class EncoderConfig(Bounded):
    """Everything that determines an :class:`encoderlab.nn.encoder.Encoder`.

    Args:
        vocab: V, number of rows of the word table.
        layers: N, number of layers; with ``sharing.inner`` each applies several blocks.
        width: D, width of the states between layers.
        heads: number of heads, convolution heads included (``conv``).
        head_width: K; None means ``width / heads``.
        ff_width: F, inner width of the feed-forward block.
        position: how layers know the position of a token.
        local: which layers see only neighbours; None where all layers see the whole document.
        causal: tokens do not see later tokens.
        conv: convolution that replaces some attention heads (ConvBERT).
        ff_groups: number of blocks in both maps of the feed-forward block (ConvBERT); 1 for dense maps.
        ff_gated: multiply the activations with a second map of the same width (GLU; with GELU, GeGLU).
        ff_biases: whether the maps of the feed-forward block have biases.
        embed_width: E, width of the embedding tables; a map from E to D follows if they differ. None means ``width``.
        embed_map: have the map from E to D even if E equals D (ALBERT).
        embed_norm: the norm of the embeddings at width E (``embedding``), at width D (``width``), or none.
        adaptive: word tables of several widths by frequency (Transformer-XL).
        types: number of rows of the segment table; 0 for no table.
        sharing: layers with common weights (ALBERT).
        stem_conv: a convolution over the embeddings (DeBERTa v2).
        norm: ``post``: norms follow the residual sums. ``pre``: norms precede attention and feed-forward, one follows
            the last layer. ``pre_but_first``: as ``pre``, but without the first norm, because the embeddings have one
            (ModernBERT). ``pre_but_last``: as ``pre``, without the norm after the last layer (Transformer-XL's
            ``pre_lnorm``). ``ltg``: as ``pre``, and norms of the output of attention and of the feed-forward
            activations (LTG-BERT; Samuel et al., 2023). ``normformer``: as ``ltg``, and a learned factor for the
            output of each head (Shleifer et al., 2021).
        normalization: kind of norm in embeddings, layers and the transforms of heads.
        eps: added to the variance in every norm.
        activation: of the feed-forward block.
        attention_biases: which maps of attention have a bias.
        dropout: rate for embeddings and for the outputs of attention and feed-forward.
        embed_dropout: rate for embeddings; None means ``dropout``.
        ff_output_dropout: rate for the output of feed-forward; None means ``dropout``.
        attention_dropout: rate for the attention weights.
        ff_dropout: rate after the feed-forward activation.
        output_dropout: rate after the last layer (XLNet, Transformer-XL).
        init_std: standard deviation of initial weights.
        truncated_init: draw initial weights within two standard deviations (original code in TensorFlow).
        glorot_map: draw the initial map from E to D Glorot-uniform (ELECTRA, ConvBERT).
        scaled_init: draw the maps that write to the residual stream, and the LM head's, with standard deviation
            ``init_std`` / sqrt(2 N) (Radford et al., 2019).

    Raises:
        ConfigError: values that do not fit together; the message says which, and what to set.
    """

    vocab: Annotated[int, Field(ge=1, le=1 << 27)]
    layers: Annotated[int, Field(ge=1, le=1000)] = 12
    width: Width = 768
    heads: Width = 12
    head_width: Width | None = None
    ff_width: Width = 3072
    position: Position = Absolute()
    local: Local | None = None
    causal: bool = False
    conv: Convolution | None = None
    ff_groups: Width = 1
    ff_gated: bool = False
    ff_biases: bool = True
    embed_width: Width | None = None
    embed_map: bool = False
    embed_norm: EmbeddingNorm = "embedding"
    adaptive: Adaptive | None = None
    types: Annotated[int, Field(ge=0, le=WIDEST)] = 2
    sharing: Sharing | None = None
    stem_conv: StemConvolution | None = None
    norm: Literal["post", "pre", "pre_but_first", "pre_but_last", "ltg", "normformer"] = "post"
    normalization: Normalization = LayerNormalization()
    eps: NonNegative = 1e-12
    activation: Activation = "gelu"
    attention_biases: Biases = "all"
    dropout: Rate = 0.1
    embed_dropout: Rate | None = None
    ff_output_dropout: Rate | None = None
    attention_dropout: Rate = 0.1
    ff_dropout: Rate = 0.0
    output_dropout: Rate = 0.0
    init_std: NonNegative = 0.02
    truncated_init: bool = False
    glorot_map: bool = False
    scaled_init: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.head_width is None and self.width % self.heads:
            choices = [n for n in range(1, min(self.width, 256) + 1) if self.width % n == 0]
            raise ConfigError(
                f"width {self.width} is not a multiple of heads {self.heads}; choose heads from {choices}"
            )
        self.position.check(self)
        if self.local is not None and self.local.theta is not None and not isinstance(self.position, Rotary):
            raise ConfigError(
                f"local.theta {self.local.theta:g} without rotary positions; set it to null, or position.kind to rotary"
            )
        if self.norm == "pre_but_first" and (self.sharing is not None or self.embed_norm == "none"):
            raise ConfigError(
                "norm pre_but_first needs an unshared first layer and a norm on the embeddings; set norm to pre, or "
                "sharing to null and embed_norm to embedding"
            )
        if self.causal and self.convolves:
            raise ConfigError(
                "convolutions read later tokens, which a left-to-right model must not see; "
                "set conv and stem_conv to null, or causal to false"
            )
        if self.stem_conv is not None and self.width % self.stem_conv.groups:
            raise ConfigError(
                f"width {self.width} is not a multiple of the stem's {self.stem_conv.groups} groups; choose a divisor"
            )
        if self.sharing is not None and self.sharing.groups > self.layers:
            raise ConfigError(f"{self.sharing.groups} groups for {self.layers} layers; choose 1 to {self.layers}")

    @property
    def depth(self) -> int:
        """Number of blocks that a forward pass applies: N, times the inner blocks of a shared group."""
        return self.layers * (self.sharing.inner if self.sharing else 1)

    @property
    def key_width(self) -> int:
        """K, the width of a head."""
        return self.head_width or self.width // self.heads

    @property
    def attention_heads(self) -> int:
        """Number of attention heads: all heads, except those that a convolution replaces."""
        return self.heads if self.conv is None else kept_heads(self.heads, self.conv.head_ratio)

    @property
    def conv_branch(self) -> Branch | None:
        """The convolution next to attention; None if all heads attend or heads are only left out
        (:class:`Bottleneck`).
        """
        return None if isinstance(self.conv, Bottleneck) else self.conv

    @property
    def convolves(self) -> bool:
        """Whether there is a convolution, which reads later tokens whatever attention sees."""
        return self.conv_branch is not None or self.stem_conv is not None

    @property
    def splits_last_layer(self) -> bool:
        """Whether the last layer can be computed at chosen places only: the stem's convolution does not follow it."""
        return self.stem_conv is None or self.depth > 1

    @property
    def attention_width(self) -> int:
        """A, the width of all attending heads together."""
        return self.attention_heads * self.key_width

    @property
    def word_width(self) -> int:
        """E, the width of the embedding tables."""
        return self.embed_width or self.width

    @property
    def mapped(self) -> bool:
        """Whether a map from E to D follows the embedding tables."""
        return self.embed_map or self.word_width != self.width

    @property
    def max_length(self) -> int | None:
        """The longest row, in tokens, that the positions allow; None for no limit."""
        return self.position.max_length

    @property
    def pre(self) -> bool:
        """Whether the norms precede attention and feed-forward."""
        return self.norm != "post"

    @property
    def inner_norms(self) -> bool:
        """Whether the output of attention and the feed-forward activations have norms."""
        return self.norm in ("ltg", "normformer")

    def sees_all(self, layer: int) -> bool:
        """Whether tokens of layer ``layer`` (from 0, in order of application) see the whole document."""
        return self.local is None or self.local.sees_all(layer)

    def make_norm(self, width: int) -> Norm:
        """A norm for states of ``width``."""
        return self.normalization.make(width, self.eps)
