"""The one encoder of the project, built from typed parts.

Shape letters used throughout: B batch, L query length, M key length (memory included), D width, H heads, K head width,
A = H K, F feed-forward width, E embedding width, V vocabulary, P relative distances, T chosen positions of a row, N
layers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from encoderlab.config import check_least, check_most, check_shares
from encoderlab.errors import ConfigError
from encoderlab.nn import kernels
from encoderlab.nn.attention import Attention, Biases, Keyed
from encoderlab.nn.embeddings import Adaptive, EmbeddingNorm, Embeddings
from encoderlab.nn.feedforward import Activation, FeedForward
from encoderlab.nn.noise import ATTENTION_OUTPUT, FF_HIDDEN, FF_OUTPUT, Noise
from encoderlab.nn.norms import LayerNormalization, Norm, Normalization, make_norm, norm_bias
from encoderlab.nn.positions import (
    Absolute,
    Disentangled,
    Distances,
    DistanceTable,
    Position,
    RelativeShift,
    Rotary,
    Shaw,
    counted,
    places,
    rotations,
)
from encoderlab.nn.scope import (
    Local,
    Nearby,
    Scope,
    continued,
    different_segments,
    visible_by_distance,
    visible_by_document,
    with_itself,
)
from encoderlab.nn.spanconv import Bottleneck, Branch, Convolution, kept_heads
from encoderlab.nn.stem import Stem, StemConvolution


@dataclass(frozen=True, kw_only=True)
class Sharing:
    """Layers with common weights (Lan et al., 2020, section 3.1): layer i of N uses group ``i // (N / groups)``.

    Args:
        groups: how many different sets of weights there are.
        inner: blocks of a group, which each of its layers runs in turn; more than one share both parts.
        parts: what is shared; the other part keeps weights of its own in every layer.
    """

    groups: int = 1
    inner: int = 1
    parts: tuple[Literal["attention", "feed_forward"], ...] = ("attention", "feed_forward")

    def __post_init__(self) -> None:
        if not self.parts or len(set(self.parts)) != len(self.parts):
            raise ConfigError(f"shared parts {list(self.parts)} must name attention, feed_forward or both, each once")
        if self.inner < 1 or self.inner > 1 and not self.whole:
            raise ConfigError(
                f"{self.inner} inner blocks cannot share {list(self.parts)} alone; "
                "set inner to 1, or parts to attention and feed_forward"
            )

    @property
    def whole(self) -> bool:
        """Whether layers of a group have all weights in common."""
        return len(self.parts) == 2


MOST_LAYERS, WIDEST, MOST_TOKENS = 1000, 1 << 17, 1 << 27  # ten times and more beyond what was ever published


@dataclass(frozen=True, kw_only=True)
class EncoderConfig:
    """Everything that determines an :class:`Encoder`. Defaults are BERT-base.

    Args:
        vocab: V, the rows of the word table.
        layers: N, see also ``sharing``.
        width: D, of the states between layers.
        heads: of attention, those that convolve included (``conv``).
        head_width: K; None means ``width / heads``.
        ff_width: of the feed-forward block inside.
        position: how layers know where a token stands.
        local: layers whose tokens see their neighbours only; None where all layers see the whole document.
        causal: tokens see no later ones.
        conv: convolution in the place of some heads (ConvBERT).
        ff_groups: both maps of the feed-forward block are block-diagonal with so many blocks (ConvBERT).
        ff_gated: a second map, as wide as the first, is multiplied with the activations (GLU; with GELU, GeGLU).
        ff_biases: whether the maps of the feed-forward block have biases.
        embed_width: E, of the embedding tables, with a map to D where they differ; None means ``width``.
        embed_map: the map from E to D stands where they are equal too (ALBERT).
        embed_norm: the norm of the embeddings at width E (``embedding``), at width D (``width``), or none.
        adaptive: word tables of several widths by frequency (Transformer-XL).
        types: rows of the segment table; 0 for no table.
        sharing: layers with common weights (ALBERT).
        stem_conv: a convolution over the embeddings (DeBERTa v2).
        norm: the norms stand after the residual sums (``post``), or before attention and feed-forward and after the
            last layer (``pre``); ``pre_but_first`` is without the very first, behind embeddings that have one
            (ModernBERT), ``pre_but_last`` without that after the last layer (Transformer-XL's ``pre_lnorm``).
        normalization: of embeddings, layers and the heads' transforms.
        eps: added to the variance in every norm.
        activation: of the feed-forward block.
        attention_biases: which maps of attention have a bias.
        dropout: of embeddings and of the outputs of attention and feed-forward.
        embed_dropout: of embeddings; None for ``dropout``.
        ff_output_dropout: of the output of feed-forward; None for ``dropout``.
        attention_dropout: of attention's weights.
        ff_dropout: after the feed-forward activation.
        output_dropout: after the last layer (XLNet, Transformer-XL).
        init_std: standard deviation of initial weights.
        truncated_init: initial weights stay within two standard deviations (TensorFlow originals).
        glorot_map: the map from E to D starts Glorot-uniform (ELECTRA, ConvBERT).
        scaled_init: maps whose output is added to the residual stream, and the LM head's, start with ``init_std`` /
            sqrt(2 N) (Radford et al., 2019).
    """

    vocab: int
    layers: int = 12
    width: int = 768
    heads: int = 12
    head_width: int | None = None
    ff_width: int = 3072
    position: Position = Absolute()
    local: Local | None = None
    causal: bool = False
    conv: Convolution | None = None
    ff_groups: int = 1
    ff_gated: bool = False
    ff_biases: bool = True
    embed_width: int | None = None
    embed_map: bool = False
    embed_norm: EmbeddingNorm = "embedding"
    adaptive: Adaptive | None = None
    types: int = 2
    sharing: Sharing | None = None
    stem_conv: StemConvolution | None = None
    norm: Literal["post", "pre", "pre_but_first", "pre_but_last"] = "post"
    normalization: Normalization = LayerNormalization()
    eps: float = 1e-12
    activation: Activation = "gelu"
    attention_biases: Biases = "all"
    dropout: float = 0.1
    embed_dropout: float | None = None
    ff_output_dropout: float | None = None
    attention_dropout: float = 0.1
    ff_dropout: float = 0.0
    output_dropout: float = 0.0
    init_std: float = 0.02
    truncated_init: bool = False
    glorot_map: bool = False
    scaled_init: bool = False

    def __post_init__(self) -> None:
        check_least(self, 1, "vocab", "layers", "width", "heads", "head_width", "ff_width", "ff_groups", "embed_width")
        check_least(self, 0, "types", "eps", "init_std")
        check_shares(self, "dropout", "embed_dropout", "attention_dropout", "ff_dropout", "ff_output_dropout")
        check_shares(self, "output_dropout")
        check_most(self, MOST_LAYERS, "layers")
        check_most(self, WIDEST, "width", "heads", "head_width", "ff_width", "ff_groups", "embed_width", "types")
        check_most(self, MOST_TOKENS, "vocab")
        if self.head_width is None and self.width % self.heads:
            choices = [n for n in range(1, min(self.width, 256) + 1) if self.width % n == 0]
            raise ConfigError(
                f"width {self.width} is not a multiple of heads {self.heads}; choose heads from {choices}"
            )
        if isinstance(self.position, RelativeShift) and self.width % 2:
            raise ConfigError(f"width {self.width} is odd; relative shift needs an even width for its sinusoid")
        if isinstance(self.position, Rotary) and self.key_width % 2:
            raise ConfigError(f"heads of {self.key_width} numbers; rotary positions turn pairs, choose an even width")
        if self.local is not None and self.local.theta is not None and not isinstance(self.position, Rotary):
            raise ConfigError(
                f"local.theta {self.local.theta:g} without rotary positions; set it to null, or position.kind to rotary"
            )
        if self.norm == "pre_but_first" and (self.sharing is not None or self.embed_norm == "none"):
            raise ConfigError(
                "norm pre_but_first needs a first layer of its own and a norm on the embeddings; set norm to pre, or "
                "sharing to null and embed_norm to embedding"
            )
        if isinstance(self.position, Disentangled) and self.causal:
            raise ConfigError(
                "disentangled positions have no left-to-right form; set causal to false or use relative_shift"
            )
        if self.causal and (self.conv_branch is not None or self.stem_conv is not None):
            raise ConfigError(
                "convolutions read later tokens, which a left-to-right model must not see; "
                "set conv and stem_conv to null, or causal to false"
            )
        if self.stem_conv is not None and self.width % self.stem_conv.groups:
            raise ConfigError(
                f"width {self.width} is not a multiple of the stem's {self.stem_conv.groups} groups; choose a divisor"
            )
        sharing = self.sharing
        if sharing is not None and (sharing.groups < 1 or sharing.groups > self.layers):
            raise ConfigError(f"{sharing.groups} groups for {self.layers} layers; choose 1 to {self.layers}")

    @property
    def depth(self) -> int:
        """The number of layers that a forward pass applies: N, times the inner blocks of a shared group."""
        return self.layers * (self.sharing.inner if self.sharing else 1)

    @property
    def key_width(self) -> int:
        """K, the width of a head."""
        return self.head_width or self.width // self.heads

    @property
    def attention_heads(self) -> int:
        """The heads that attend: all of them, or those that are left beside a convolution."""
        return self.heads if self.conv is None else kept_heads(self.heads, self.conv.head_ratio)

    @property
    def conv_branch(self) -> Branch | None:
        """The convolution beside attention; None where heads only fall away (:class:`Bottleneck`), or all attend."""
        return None if isinstance(self.conv, Bottleneck) else self.conv

    @property
    def attention_width(self) -> int:
        """A, the width of the attending heads side by side."""
        return self.attention_heads * self.key_width

    @property
    def word_width(self) -> int:
        """E, the width of the embedding tables."""
        return self.embed_width or self.width

    @property
    def max_length(self) -> int | None:
        """The longest row the positions allow; None where there is no limit."""
        if isinstance(self.position, Absolute) and not self.position.sinusoidal:
            return self.position.length
        if isinstance(self.position, Disentangled) and self.position.input_positions:
            return self.position.input_positions
        return self.position.length if isinstance(self.position, Rotary) else None

    @property
    def pre(self) -> bool:
        """Whether the norms stand before attention and feed-forward."""
        return self.norm != "post"

    def sees_all(self, layer: int) -> bool:
        """Whether tokens of the layer that is applied as number ``layer`` (from 0) see the whole document."""
        return self.local is None or self.local.sees_all(layer)

    def make_norm(self, width: int) -> Norm:
        """A norm over ``width`` numbers."""
        return make_norm(self.normalization, width, self.eps)


@dataclass(frozen=True)
class States:
    """The output of every layer, each (B, L, D), and the scope that they were computed in.

    ``layers[0]`` is the first layer's input, ``layers[i]`` the output of layer i, counted from 1. ``keyed``: the keys
    and values of each layer, if they were asked for (``keep_keyed``).
    """

    layers: tuple[Tensor, ...]
    scope: Scope
    keyed: tuple[Keyed, ...] = ()

    @property
    def last(self) -> Tensor:
        return self.layers[-1]


class Chosen(NamedTuple):
    """S chosen places in the rows of a batch, where rows may have different numbers of them.

    ``at`` (B, T) is a table of places, and ``rows`` (S,) and ``slots`` (S,) say which of its entries count, in any
    order. Entries that do not count may hold any place.
    """

    at: Tensor
    rows: Tensor
    slots: Tensor

    @classmethod
    def among_all(cls, rows: Tensor, places: Tensor, batch: int, length: int) -> Chosen:
        """``places`` (S,) of ``rows`` (S,), with a table that lists all ``length`` places: for where S is large."""
        return cls(torch.arange(length, device=rows.device).expand(batch, -1), rows, places)

    @property
    def places(self) -> Tensor:
        """The chosen places (S,) within their rows."""
        return self.at[self.rows, self.slots]


class Block(nn.Module):
    """One layer: attention, then feed-forward, each with dropout, residual and norm.

    The norm stands after the sum ("post") or before attention and feed-forward ("pre"). The ``parts``, "attention" or
    "feed_forward", are taken from the block ``shared`` with their weights; the others are made anew. ``first``: this is
    the first layer.
    """

    attention: Attention
    attention_norm: Norm | None
    feed_forward: FeedForward
    feed_forward_norm: Norm

    def __init__(
        self, config: EncoderConfig, shared: Block | None = None, parts: Sequence[str] = (), *, first: bool = False
    ) -> None:
        super().__init__()
        self.pre, self.center = config.pre, isinstance(config.normalization, LayerNormalization)
        self.eps, self.dropout = config.eps, config.dropout
        self.output_dropout = config.dropout if config.ff_output_dropout is None else config.ff_output_dropout
        if shared is not None and "attention" in parts:
            self.attention, self.attention_norm = shared.attention, shared.attention_norm
        else:
            self.attention = Attention(
                width=config.width,
                heads=config.attention_heads,
                head_width=config.key_width,
                position=config.position,
                conv=config.conv_branch,
                biases=config.attention_biases,
                dropout=config.attention_dropout,
                position_dropout=config.dropout,
            )
            bare = first and config.norm == "pre_but_first"
            self.attention_norm = None if bare else config.make_norm(config.width)
        if shared is not None and "feed_forward" in parts:
            self.feed_forward, self.feed_forward_norm = shared.feed_forward, shared.feed_forward_norm
        else:
            self.feed_forward = FeedForward(
                config.width,
                config.ff_width,
                groups=config.ff_groups,
                gated=config.ff_gated,
                biases=config.ff_biases,
                act=config.activation,
                dropout=config.ff_dropout,
            )
            self.feed_forward_norm = config.make_norm(config.width)

    def forward(self, x: Tensor, source: Tensor | Keyed, scope: Scope) -> tuple[Tensor, Keyed | None]:
        """The layer's output (B, L, D), and its keys and values if the scope keeps them.

        Args:
            x: (B, L, D), what queries come from and what the output is added to.
            source: the states (B, M, D) that keys and values come from, or these themselves.
        """
        keys, out = scope.keys, self.attention.out
        if self.pre:
            normed = self.normed(x)
            if isinstance(source, Tensor):
                source = normed if source is x else self.normed(source)
            attended, keyed = self.attention(normed, source, scope)
            norm = self.feed_forward_norm
            x, normed = kernels.dropout_add_then_norm(
                F.linear(attended, out.weight), x, norm.weight, norm_bias(norm), self.eps, self.dropout, keys,
                ATTENTION_OUTPUT, x_bias=out.bias, center=self.center,
            )  # fmt: skip
            change = self.feed_forward(normed, keys, FF_HIDDEN)
            return x + kernels.dropout(change, self.output_dropout, keys, FF_OUTPUT), keyed
        attended, keyed = self.attention(x, source, scope)
        change = F.linear(attended, out.weight)
        x = self._join(change, out.bias, x, self.attention_norm, self.dropout, keys, ATTENTION_OUTPUT)
        change, bias = self.feed_forward.without_bias(x, keys, FF_HIDDEN)
        return self._join(change, bias, x, self.feed_forward_norm, self.output_dropout, keys, FF_OUTPUT), keyed

    def normed(self, x: Tensor) -> Tensor:
        """What attention reads of the states x (B, L, D) that enter the layer."""
        norm = self.attention_norm
        if norm is None or not self.pre:
            return x
        how = norm.weight, norm_bias(norm), self.eps, 0.0, None, ATTENTION_OUTPUT
        return kernels.dropout_add_then_norm(None, x, *how, center=self.center)[1]

    def _join(
        self,
        change: Tensor,
        bias: Tensor | None,
        x: Tensor,
        norm: Norm | None,
        p: float,
        keys: Tensor | None,
        site: int,
    ) -> Tensor:
        """norm(x + dropout(change + bias)), one pass over memory."""
        assert norm is not None
        how = norm.weight, norm_bias(norm), self.eps, p, keys, site
        return kernels.dropout_add_norm(change, x, *how, x_bias=bias, center=self.center)


class Encoder(nn.Module):
    """Embeddings and N layers; the configuration says which architecture of the family this is."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config
        self.embeddings = Embeddings(
            vocab=config.vocab,
            embed_width=config.word_width,
            width=config.width,
            mapped=config.embed_map or config.word_width != config.width,
            position=config.position,
            types=config.types,
            norm=config.embed_norm,
            normalization=config.normalization,
            eps=config.eps,
            dropout=config.dropout if config.embed_dropout is None else config.embed_dropout,
            adaptive=config.adaptive,
        )
        self.blocks = nn.ModuleList(self._make_blocks())
        self.distances = None
        if isinstance(config.position, (RelativeShift, Shaw, Disentangled)):
            self.distances = DistanceTable(
                config.position, config.width, config.attention_heads, config.key_width, config.eps
            )
        self.stem = Stem(config.stem_conv, config.width, config.eps, config.dropout) if config.stem_conv else None
        self.norm = config.make_norm(config.width) if config.pre and config.norm != "pre_but_last" else None

    def _make_blocks(self) -> list[Block]:
        config, sharing = self.config, self.config.sharing
        if sharing is None:
            return [Block(config, first=i == 0) for i in range(config.layers)]
        if sharing.whole:
            return [Block(config) for _ in range(sharing.groups * sharing.inner)]
        blocks: list[Block] = []
        firsts: dict[int, Block] = {}  # of each group
        for i in range(config.layers):
            group = i * sharing.groups // config.layers
            blocks.append(Block(config, firsts.get(group), sharing.parts))
            firsts.setdefault(group, blocks[-1])
        return blocks

    @property
    def depth(self) -> int:
        """The number of layers that a forward pass applies."""
        return self.config.depth

    def block(self, index: int) -> Block:
        """The block that layer ``index`` (0-based) applies."""
        sharing = self.config.sharing
        if sharing is not None and sharing.whole:
            layer, inner = divmod(index, sharing.inner)
            index = layer * sharing.groups // self.config.layers * sharing.inner + inner
        return self.blocks[index]  # type: ignore[return-value]

    def forward(
        self,
        ids: Tensor,
        *,
        doc: Tensor | None = None,
        attention_mask: Tensor | None = None,
        positions: Tensor | None = None,
        segments: Tensor | None = None,
        visible: Tensor | None = None,
        memory: Sequence[Tensor] | None = None,
        window: int | None = None,
        reverse: Tensor | None = None,
        noise: Noise | None = None,
        depth: int | None = None,
        keep_keyed: bool = False,
    ) -> States:
        """Run the first ``depth`` layers (all by default).

        Args:
            ids: (B, L) token ids.
            doc: (B, L) document number of each token, -1 for padding; two tokens see each other iff theirs are equal.
                None: all see all.
            attention_mask: (B, L) ones and zeros, as other libraries have it, in place of ``doc``: every token sees the
                ones. Positions are counted as ``transformers`` does: by column, or, where ids start behind the padding
                id (RoBERTa), over the tokens that are not padding.
            positions: (B, L) or (1, L) absolute position of each token, in place of counting.
            segments: (B, L) segment ids; None means all 0.
            visible: (B, L, L) further restriction: True where query i may see key j (permutation language modelling).
            memory: one (B, M, D) tensor per layer, the states before the row, seen by every token (Dai et al., 2019,
                section 3.2).
            window: a token sees at most this many keys back, itself included (Transformer-XL's ``same_length``).
            reverse: (B,) bool, rows whose tokens run backwards (XLNet's bidirectional data).
            noise: dropout masks for training; drawn from torch's generator when the module trains and none is given.
            keep_keyed: keep every layer's keys and values, for a query stream over all layers.

        Raises:
            ConfigError: documents longer than the positions allow, memory without relative positions, or a tensor of
                another shape or kind.
        """
        noise = noise if noise is not None or not self.training else Noise.fresh(ids.shape[0], ids.device)
        _check_shapes(ids, doc, attention_mask, positions, segments, visible, reverse)
        remembered = _remembered(memory)
        self._check_memory(memory)
        masked, given = attention_mask is not None, positions
        if attention_mask is not None:
            doc = torch.where(attention_mask.bool(), 0, -1)
        asking = self._asking(doc, masked)
        positions = self._positions(ids, doc, asking, positions, masked)
        x = self.embeddings(ids, positions, segments, None if noise is None else noise.keys)
        by_document = visible_by_document(doc, asking, visible, remembered)
        if masked and by_document is not None and isinstance(self.config.position, RelativeShift):
            by_document = with_itself(by_document, remembered)
        rotation, nearby = self._rotations(remembered, ids.shape[1], given, x.device)
        scope = Scope(
            doc=doc,
            positions=positions,
            visible=self._mask(by_document, x, remembered, window),
            distances=self._distance_table(x, remembered),
            different=self._different(segments, remembered),
            reverse=reverse,
            keep_keyed=keep_keyed,
            remembered=remembered,
            rotation=rotation,
            nearby=nearby,
        )
        layers, kept = [x], []
        depth = self.depth if depth is None else depth
        for i, scope_of_layer in enumerate(self._of_layers(scope, noise, range(depth), 0)):
            output, keyed = self.block(i)(x, self._source(x, memory, i), scope_of_layer)
            if i == 0 and self.stem is not None:
                output = self.stem(layers[0], output, doc, scope_of_layer.keys)
            x = output
            if i == depth - 1 and depth == self.depth:
                x = self._finish(x, noise)
            layers.append(x)
            if keyed is not None:
                kept.append(keyed)
        return States(tuple(layers), scope, tuple(kept))

    def query_stream(
        self,
        states: States,
        queries: Tensor,
        at: Tensor,
        *,
        layers: Sequence[int],
        visible: Tensor | None = None,
        memory: Sequence[Tensor] | None = None,
        noise: Noise | None = None,
    ) -> Tensor:
        """A second pass of ``layers`` (0-based) with other queries over stored states: (B, T, D) -> (B, T, D).

        The queries stand at places ``at`` (B, T). XLNet's second stream is all layers in turn; DeBERTa's enhanced mask
        decoder is the last layer twice. Layer i reads ``states.layers[i]``, never the query stream, so this is exact.
        Costs T / L of the layers' query side, and nothing more where the states keep keys and values.

        Raises:
            ConfigError: layers with a convolution, which reads neighbours that the queries do not have.
        """
        if self.config.conv_branch is not None:
            raise ConfigError("a query stream has no neighbours to convolve; set encoder.conv to null")
        scope = states.scope.of_queries(at, visible, _remembered(memory))
        x = queries
        keyed: dict[int, Keyed | None] = dict(enumerate(states.keyed))
        scopes = self._of_layers(scope, noise, layers, self.depth + 1)
        for i, scope_of_layer in zip(layers, scopes, strict=True):
            source = keyed.get(i) or self._source(states.layers[i], memory, i)
            x, keyed[i] = self.block(i)(x, source, scope_of_layer)
        return self._finish(x, noise, stream=1)

    def last_at(self, states: States, chosen: Chosen, noise: Noise | None = None) -> Tensor:
        """The last layer's output at chosen places, (S, D).

        It is read from ``states``, or computed at these places alone if ``states`` end one layer earlier (a forward
        pass of ``depth`` - 1).
        """
        if len(states.layers) == self.depth:  # the embeddings and all layers but one
            return self.last_layer_at(states, chosen, noise)
        return states.last[chosen.rows, chosen.places]

    def last_layer_at(self, states: States, chosen: Chosen, noise: Noise | None = None) -> Tensor:
        """The last layer's output at chosen places only, (S, D).

        ``states`` hold the layers before it. Only keys and values are computed at every place; the rest is computed at
        the chosen ones, which is all that a loss on few places needs. A place has the dropout masks of its slot in
        ``chosen.at``. Not for a last layer whose convolution reads neighbours (:attr:`splits_last_layer`).
        """
        at, rows, slots = chosen
        scope = replace(states.scope.of_queries(at), keep_keyed=False)
        x = states.last.gather(1, at[..., None].expand(-1, -1, states.last.shape[-1]))
        (scope,) = self._of_layers(scope, noise, [self.depth - 1], self.depth - 1)
        x, _ = self.block(self.depth - 1)(x, states.last, scope)
        return self._finish(x, noise)[rows, slots]

    @property
    def splits_last_layer(self) -> bool:
        """Whether :meth:`last_layer_at` applies."""
        return self.config.conv is None and (self.stem is None or self.depth > 1)

    @staticmethod
    def _source(states: Tensor, memory: Sequence[Tensor] | None, layer: int) -> Tensor:
        return states if memory is None else torch.cat([memory[layer].to(states.dtype), states], dim=1)

    def attention_scores(self, states: States, layer: int) -> Tensor:
        """Scaled scores before the softmax of ``layer`` (0-based), (B, H, L, L), computed again from its stored input.

        Memory is left out.
        """
        block = self.block(layer)
        (scope,) = self._of_layers(states.scope, None, [layer], 0)
        return block.attention.scores(block.normed(states.layers[layer]), scope)

    def attention_weights(self, states: States, layer: int, memory: Sequence[Tensor] | None = None) -> Tensor:
        """What the heads of ``layer`` (0-based) take of every key, (B, H, L, M), computed again from the stored input:
        see :meth:`encoderlab.nn.attention.Attention.weights`. ``memory`` is that of the pass.
        """
        block = self.block(layer)
        (scope,) = self._of_layers(states.scope, None, [layer], 0)
        x = block.normed(states.layers[layer])
        source = x if memory is None else block.normed(self._source(states.layers[layer], memory, layer))
        return block.attention.weights(x, source, scope)

    def _finish(self, x: Tensor, noise: Noise | None, stream: int = 0) -> Tensor:
        """What follows the last layer; ``stream`` is 1 for queries, whose dropout differs from that of the content."""
        if self.norm is not None:
            x = self.norm(x)
        keys = None if noise is None else noise.layer(self.depth)
        return kernels.dropout(x, self.config.output_dropout, keys, stream)

    def _check_memory(self, memory: Sequence[Tensor] | None) -> None:
        if memory is not None and isinstance(self.config.position, (Absolute, Disentangled)):
            raise ConfigError(
                "memory needs positions relative to the row (relative_shift or shaw), not absolute or disentangled ones"
            )

    def _asking(self, doc: Tensor | None, masked: bool) -> Tensor | None:
        """The document that each token asks in, (B, L).

        Padding asks in none, unless a convolution reads its states (``mask_padding=False``): then, as in the released
        ConvBERT, it continues the document before it. Under an attention mask (``masked``) every token asks in the one
        document, but in DeBERTa, whose code hides everything from padding.
        """
        branch = self.config.conv_branch
        if doc is not None and masked and not isinstance(self.config.position, Disentangled):
            return torch.zeros_like(doc)
        return doc if doc is None or branch is None or branch.mask_padding else continued(doc)

    def _positions(
        self, ids: Tensor, doc: Tensor | None, asking: Tensor | None, given: Tensor | None, masked: bool
    ) -> Tensor | None:
        """The absolute position of each token, (B, L) or (1, L); None where nobody asks.

        Whether they fit is read off the numbers themselves where the row is longer than the table, or they were given.
        """
        embeddings, limit, length = self.embeddings, self.config.max_length, ids.shape[1]
        if given is not None:
            positions = given
        elif masked:
            positions = counted(ids, embeddings.offset)
        elif embeddings.positions is not None or embeddings.sinusoidal or (limit is not None and length > limit):
            positions = places(asking, length, ids.device)
        else:
            return None
        if limit is None or (length <= limit and given is None):
            return positions
        used = positions if doc is None or masked else torch.where(doc >= 0, positions, 0)
        longest = int(used.max()) + 1
        if longest > limit:
            what = "rows" if longest == length else "documents"
            raise ConfigError(
                f"{what} of {longest} tokens exceed the model's {limit} positions; shorten them to {limit}"
            )
        return positions.clamp(max=limit - 1)  # long padding

    def _mask(self, by_document: Tensor | None, x: Tensor, remembered: int, window: int | None) -> Tensor | None:
        """Which keys the queries of x (B, L, D) see, (B|1, 1, L, M); None for all."""
        near = visible_by_distance(x.shape[1], remembered, causal=self.config.causal, window=window, device=x.device)
        mask = by_document if near is None else near if by_document is None else by_document & near
        return None if mask is None else mask[:, None]

    def _distance_table(self, x: Tensor, remembered: int) -> Distances | None:
        if self.distances is None:
            return None
        length = x.shape[1]
        return self.distances(length, length + remembered, causal=self.config.causal, device=x.device, dtype=x.dtype)

    def _different(self, segments: Tensor | None, remembered: int) -> Tensor | None:
        position = self.config.position
        reads_segments = isinstance(position, RelativeShift) and position.segments
        return different_segments(segments, remembered) if reads_segments and segments is not None else None

    def _rotations(
        self, remembered: int, length: int, positions: Tensor | None, device: torch.device
    ) -> tuple[Tensor | None, Nearby | None]:
        """The rotary positions of ``remembered`` states and of a row behind them, which are counted unless they are
        given, and what local layers have instead."""
        position, local, width = self.config.position, self.config.local, self.config.key_width
        rotation = near = None
        if isinstance(position, Rotary):
            places = torch.arange(remembered + length, device=device)
            if positions is not None:
                before = places[None, :remembered].expand(len(positions), -1)
                places = torch.cat([before, positions + remembered], dim=1)[:, None]
            rotation = near = rotations(places, width, position.theta)
            if local is not None and local.theta is not None:
                near = rotations(places, width, local.theta)
        return rotation, None if local is None else Nearby(local.reach, near)

    def _of_layers(self, scope: Scope, noise: Noise | None, layers: Sequence[int], first: int) -> list[Scope]:
        """The scope of each of the ``layers`` (0-based). Its keys of dropout, numbered from ``first`` on, are made for
        all at once: on a GPU every small operation costs a launch. The sinusoid of a relative shift is dropped once for
        all layers and both streams, as in the originals; DeBERTa's table by each layer.
        """
        scopes = [scope if self.config.sees_all(layer) else scope.of_local() for layer in layers]
        if noise is None:
            return scopes
        numbers = range(first, first + len(layers))
        shared: Iterable[Tensor | None] = [None] * len(layers)
        if isinstance(self.config.position, RelativeShift):
            shared = [noise.layers_shared(range(1))[0]] * len(layers)
        elif scope.distances is not None:
            shared = noise.layers_shared(numbers)
        return [
            replace(one, keys=keys, shared_keys=other)
            for one, keys, other in zip(scopes, noise.layers(numbers), shared, strict=True)
        ]


def _check_shapes(
    ids: Tensor,
    doc: Tensor | None,
    attention_mask: Tensor | None,
    positions: Tensor | None,
    segments: Tensor | None,
    visible: Tensor | None,
    reverse: Tensor | None,
) -> None:
    """Refuse what does not fit the rows; one row may stand for all, except for ``reverse``."""
    if ids.ndim != 2:
        raise ConfigError(f"ids of shape {list(ids.shape)}, expected (rows, tokens); of one text give ids[None]")
    rows, length = ids.shape
    given = {
        "doc": (doc, (length,)),
        "attention_mask": (attention_mask, (length,)),
        "positions": (positions, (length,)),
        "segments": (segments, (length,)),
        "visible": (visible, (length, length)),
    }
    for name, (x, shape) in given.items():
        if x is not None and (x.shape[1:] != shape or x.shape[0] not in (1, rows)):
            raise ConfigError(f"{name} of shape {list(x.shape)}, expected {[rows, *shape]} for ids {list(ids.shape)}")
    if doc is not None and doc.dtype == torch.bool:
        raise ConfigError("doc of torch.bool, expected numbers; give a mask of ones and zeros as attention_mask")
    if doc is not None and attention_mask is not None:
        raise ConfigError("doc and attention_mask both say which tokens are padding; give one of them")
    if visible is not None and visible.dtype != torch.bool:
        raise ConfigError(f"visible of {visible.dtype}, expected torch.bool: True where a query may see a key")
    if reverse is not None and reverse.shape != (rows,):
        raise ConfigError(f"reverse of shape {list(reverse.shape)}, expected {[rows]}: a truth value for each row")


def _remembered(memory: Sequence[Tensor] | None) -> int:
    """How many states of each layer stand before the row."""
    return 0 if memory is None else memory[0].shape[1]


def update_memory(
    memory: Sequence[Tensor] | None, inputs: Sequence[Tensor], length: int, *, reuse: int | None = None
) -> tuple[Tensor, ...] | None:
    """The memory of every layer after a row, (B, at most ``length``, D) without gradient; None if ``length`` is 0.

    It is the end of ``memory`` and ``inputs``, the states (B, L, D) that each layer has read; of these only the first
    ``reuse`` positions, if it is given (XLNet, whose next row starts behind them).
    """
    if length == 0:
        return None
    kept = [states[:, :reuse].detach() for states in inputs]
    if memory is not None:
        kept = [torch.cat([old, new], dim=1) for old, new in zip(memory, kept, strict=True)]
    return tuple(states[:, -length:] for states in kept)
