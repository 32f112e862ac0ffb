"""The one encoder of the project, built from typed parts.

Shape letters used throughout: B batch, L query length, M key length (memory included), D width, H heads, K head width,
A = H K, F feed-forward width, E embedding width, V vocabulary, P relative distances, T chosen positions of a row, N
layers. Dropout is drawn in :mod:`encoderlab.nn.noise`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from encoderlab.errors import ConfigError
from encoderlab.nn import kernels
from encoderlab.nn.architecture import EncoderConfig
from encoderlab.nn.attention import Keyed
from encoderlab.nn.block import Block
from encoderlab.nn.embeddings import Embeddings
from encoderlab.nn.kernels.operation import exporting
from encoderlab.nn.noise import Noise
from encoderlab.nn.positions import Distances, RelativeShift, Rotary, at_places, counted, places, rotations
from encoderlab.nn.recording import Recordings
from encoderlab.nn.scope import (
    Nearby,
    Scope,
    checked_documents,
    continued,
    different_segments,
    visible_by_distance,
    visible_by_document,
    with_itself,
)
from encoderlab.nn.stem import Stem


@dataclass(frozen=True)
class States:
    """The output of every layer, each (B, L, D), and the scope of the forward pass.

    ``layers[0]`` is the first layer's input, ``layers[i]`` the output of layer i, counted from 1. ``keyed``: keys and
    values of each layer, with ``keep_keyed``.
    """

    layers: tuple[Tensor, ...]
    scope: Scope
    keyed: tuple[Keyed, ...] = ()

    @property
    def last(self) -> Tensor:
        return self.layers[-1]


class Chosen(NamedTuple):
    """S chosen places in the rows of a batch; rows may have different numbers of them.

    ``at`` (B, T) is a table of places. ``rows`` (S,) and ``slots`` (S,) are the indices of the entries that count, in
    any order; other entries may hold any place.
    """

    at: Tensor
    rows: Tensor
    slots: Tensor

    @classmethod
    def among_all(cls, rows: Tensor, places: Tensor, batch: int, length: int) -> Chosen:
        """``places`` (S,) of ``rows`` (S,), with a table that lists all ``length`` places; use it where S is large."""
        return cls(torch.arange(length, device=rows.device).expand(batch, -1), rows, places)

    @property
    def places(self) -> Tensor:
        """The chosen places (S,) within their rows."""
        return self.at[self.rows, self.slots]


class Encoder(nn.Module):
    """Embeddings and N layers; ``config`` says which published architecture it is."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config
        self.embeddings = Embeddings(config)
        self.blocks = nn.ModuleList(self._make_blocks())
        self.distances = config.position.make_table(config)
        self.stem = Stem(config.stem_conv, config) if config.stem_conv else None
        self.norm = config.make_norm(config.width) if config.pre and config.norm != "pre_but_last" else None
        self.recordings: Recordings | None = None  # on a GPU, of the layers in training

    def _make_blocks(self) -> list[Block]:
        config, sharing = self.config, self.config.sharing
        if sharing is None:
            return [Block(config, first=i == 0) for i in range(config.layers)]
        if sharing.whole:
            return [Block(config) for _ in range(sharing.groups * sharing.inner)]
        blocks: list[Block] = []
        firsts: dict[int, Block] = {}  # the first block of each group
        for i in range(config.layers):
            group = i * sharing.groups // config.layers
            blocks.append(Block(config, firsts.get(group), sharing.parts))
            firsts.setdefault(group, blocks[-1])
        return blocks

    @property
    def depth(self) -> int:
        """Number of blocks that a forward pass applies."""
        return self.config.depth

    def block(self, index: int) -> Block:
        """The block that layer ``index`` (from 0) applies."""
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
            doc: (B, L) document number of each token, -1 for padding; tokens see each other if their numbers are equal.
                None: all see all.
            attention_mask: (B, L) ones and zeros, as in other libraries, instead of ``doc``: every token sees the ones.
                Positions are counted as in ``transformers``: by column, or, where positions start after the padding id
                (RoBERTa), over the tokens that are not padding.
            positions: (B, L) or (1, L) absolute position of each token; None counts them.
            segments: (B, L) segment ids; None means all 0.
            visible: (B, L, L) further restriction: True where query i may see key j (permutation language modelling).
            memory: one (B, M, D) tensor per layer, the states before the row, which every token sees (Dai et al., 2019,
                section 3.2).
            window: a token sees at most this many keys back, itself included (Transformer-XL's ``same_length``).
            reverse: (B,) bool, rows whose tokens run backwards (XLNet's bidirectional data).
            noise: seeds of the dropout masks; in training mode, None draws them from torch's default generator.
            depth: number of layers to run.
            keep_keyed: return keys and values of every layer, for a query stream over all layers.

        Raises:
            ConfigError: a document is longer than the positions allow, or stops and comes back (which is seen where
                ``doc`` is on a CPU); memory is given without relative positions; or a tensor has an unexpected shape or
                type.
        """
        _check_shapes(ids, doc, attention_mask, positions, segments, visible, reverse)
        noise = noise if noise is not None or not self.training else Noise.fresh(ids.shape[0], ids.device)
        depth = self.depth if depth is None else depth
        self._check_memory(memory, depth, ids)
        if doc is not None and doc.device.type == "cpu" and not exporting():
            doc = checked_documents(doc)
        masked, remembered = attention_mask is not None, _remembered(memory)
        if attention_mask is not None:
            doc = torch.where(attention_mask.bool(), 0, -1)
        asking = self._asking(doc, masked)
        absolute = self._positions(ids, doc, asking, positions, masked)
        x = self.embeddings(ids, absolute, segments, None if noise is None else noise.seeds)
        rotation, nearby = self._rotations(x, remembered, positions)
        scope = Scope(
            doc=doc,
            positions=absolute,
            visible=self._mask(x, visible_by_document(doc, asking, visible, remembered), remembered, window, masked),
            distances=self._distances(x, remembered),
            different=self._different(segments, remembered),
            reverse=reverse,
            keep_keyed=keep_keyed,
            remembered=remembered,
            rotation=rotation,
            nearby=nearby,
        )
        return self._run_layers(x, scope, memory, noise, depth)

    def _run_layers(
        self, x: Tensor, scope: Scope, memory: Sequence[Tensor] | None, noise: Noise | None, depth: int
    ) -> States:
        """Run the first ``depth`` layers on the embeddings x (B, L, D)."""
        layers, kept = [x], []
        scopes = self._of_layers(scope, noise, range(depth), 0)
        recorded = None
        if self.recordings is not None and memory is None:
            blocks = [self.block(i) for i in range(depth)]
            recorded = self.recordings.of(x, blocks, scopes, chained=self.stem is None)
        for i, scope_of_layer in enumerate(scopes):
            if recorded is not None:
                output, keyed = recorded(i, x)
            else:
                output, keyed = self.block(i)(x, self._source(x, memory, i), scope_of_layer)
            if i == 0 and self.stem is not None:
                output = self.stem(x, output, scope.doc, scope_of_layer.seeds)
            x = output if i < self.depth - 1 else self._finish(output, noise)
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
        """Run ``layers`` (from 0) again with other queries over stored states: (B, T, D) -> (B, T, D).

        The queries are at places ``at`` (B, T). XLNet's second stream runs all layers in turn; DeBERTa's enhanced
        mask decoder runs the last layer twice. Layer i reads keys and values from ``states.layers[i]``, never from the
        query stream, so the result is exact. Costs T / L of the query side of the layers; where ``states`` have no
        stored keys and values, those are computed again.

        Raises:
            ConfigError: a layer has a convolution, which reads neighbours that the queries do not have.
        """
        if self.config.conv_branch is not None:
            raise ConfigError("a query stream has no neighbours for a convolution; set encoder.conv to null")
        scope = states.scope.of_queries(at, visible, _remembered(memory))
        x, keyed = queries, dict(enumerate(states.keyed))
        scopes = self._of_layers(scope, noise, layers, self.depth + 1)
        recorded = None
        if self.recordings is not None and memory is None and layers == range(self.depth):
            sources = [keyed.get(i) or states.layers[i] for i in layers]
            recorded = self.recordings.of_queries(x, [self.block(i) for i in layers], scopes, sources)
        for i, scope_of_layer in zip(layers, scopes, strict=True):
            if recorded is not None:
                x, _ = recorded(i, x)
                continue
            source = keyed.get(i) or self._source(states.layers[i], memory, i)
            x, keyed[i] = self.block(i)(x, source, scope_of_layer)
        return self._finish(x, noise, stream=1)

    def last_at(self, states: States, chosen: Chosen, noise: Noise | None = None) -> Tensor:
        """The last layer's output at chosen places, (S, D).

        If ``states`` include the last layer, its output is read; if they end one layer earlier (a forward pass of
        ``depth`` - 1), the last layer is computed at these places only.
        """
        if len(states.layers) == self.depth:  # the embeddings and all layers but one
            return self.last_layer_at(states, chosen, noise)
        return states.last[chosen.rows, chosen.places]

    def last_layer_at(self, states: States, chosen: Chosen, noise: Noise | None = None) -> Tensor:
        """Compute the last layer at chosen places only: (S, D), from ``states`` of the layers before it.

        Keys and values, also those of a convolution, are computed at every place, everything else at the chosen
        places, which is all that a loss on few places needs. Dropout masks belong to the slots of ``chosen.at``. Works
        only where :attr:`splits_last_layer` is true.
        """
        at, rows, slots = chosen
        scope = replace(states.scope.of_queries(at), keep_keyed=False)
        x = at_places(states.last, at)
        (scope,) = self._of_layers(scope, noise, [self.depth - 1], self.depth - 1)
        x, _ = self.block(self.depth - 1)(x, states.last, scope)
        return self._finish(x, noise)[rows, slots]

    @property
    def splits_last_layer(self) -> bool:
        """:attr:`EncoderConfig.splits_last_layer`."""
        return self.config.splits_last_layer

    @staticmethod
    def _source(states: Tensor, memory: Sequence[Tensor] | None, layer: int) -> Tensor:
        return states if memory is None else torch.cat([memory[layer].to(states.dtype), states], dim=1)

    def attention_scores(self, states: States, layer: int) -> Tensor:
        """Scaled scores before the softmax of ``layer`` (from 0), (B, H, L, L), computed again from the layer's stored
        input.

        Without memory.
        """
        block = self.block(layer)
        (scope,) = self._of_layers(states.scope, None, [layer], 0)
        return block.attention.scores(block.normed(states.layers[layer]), scope)

    def attention_weights(self, states: States, layer: int, memory: Sequence[Tensor] | None = None) -> Tensor:
        """The weight that each head of ``layer`` (from 0) gives to every key, (B, H, L, M), computed from the stored
        input.

        See :meth:`encoderlab.nn.attention.Attention.weights`. ``memory``: the memory of the forward pass that gave
        ``states``.
        """
        block = self.block(layer)
        (scope,) = self._of_layers(states.scope, None, [layer], 0)
        x = block.normed(states.layers[layer])
        source = x if memory is None else block.normed(self._source(states.layers[layer], memory, layer))
        return block.attention.weights(x, source, scope)

    def _finish(self, x: Tensor, noise: Noise | None, stream: int = 0) -> Tensor:
        """Apply norm and dropout after the last layer. ``stream`` is 1 for a query stream, whose masks differ."""
        if self.norm is not None:
            x = self.norm(x)
        if noise is None or self.config.output_dropout == 0:
            return x
        return kernels.dropout(x, self.config.output_dropout, noise.layer(self.depth), stream)

    def _check_memory(self, memory: Sequence[Tensor] | None, depth: int, ids: Tensor) -> None:
        if memory is None:
            return
        if len(memory) < depth or any(len(layer) != len(ids) for layer in memory):
            rows = sorted({len(layer) for layer in memory})
            raise ConfigError(f"memory of {len(memory)} layers and {rows} rows, expected {depth} and {len(ids)}")
        if not self.config.position.takes_memory:
            raise ConfigError(
                "memory needs positions relative to the row (relative_shift, shaw or rotary), "
                f"not {self.config.position.kind} ones"
            )

    def _asking(self, doc: Tensor | None, masked: bool) -> Tensor | None:
        """The document that each token belongs to as a query, (B, L).

        Padding belongs to none, unless a convolution reads its states (``mask_padding=False``): then it belongs to the
        document before it, as in the released ConvBERT. Under an attention mask (``masked``) every token belongs
        to the one document, unless padding sees nothing (``padding_sees``).
        """
        branch = self.config.conv_branch
        if doc is not None and masked and self.config.position.padding_sees != "nothing":
            return torch.zeros_like(doc)
        return doc if doc is None or branch is None or branch.mask_padding else continued(doc)

    def _positions(
        self, ids: Tensor, doc: Tensor | None, asking: Tensor | None, explicit: Tensor | None, masked: bool
    ) -> Tensor | None:
        """The absolute position of each token, (B, L) or (1, L); None where the model reads none.

        The length check reads the position values (and waits for a device) only if the row is longer than the table or
        the caller gave positions.
        """
        embeddings, limit, length = self.embeddings, self.config.max_length, ids.shape[1]
        if explicit is not None:
            positions = explicit
        elif masked:
            positions = counted(ids, embeddings.offset)
        elif embeddings.positions is not None or embeddings.sinusoidal or (limit is not None and length > limit):
            positions = places(asking, length, ids.device)
        else:
            return None
        if limit is None or (length <= limit and explicit is None) or exporting():
            return positions
        used = positions if doc is None or masked else torch.where(doc >= 0, positions, 0)
        longest = int(used.max()) + 1
        if longest > limit:
            what = "rows" if longest == length else "documents"
            raise ConfigError(
                f"{what} of {longest} tokens exceed the model's {limit} positions; shorten them to {limit}"
            )
        return positions.clamp(max=limit - 1)  # padding beyond the table

    def _mask(
        self, x: Tensor, by_document: Tensor | None, remembered: int, window: int | None, masked: bool
    ) -> Tensor | None:
        """Mask (B|1, 1, L, M) for queries x (B, L, D): True where a query may attend to a key; None for everywhere."""
        if masked and by_document is not None and self.config.position.padding_sees == "tokens and itself":
            by_document = with_itself(by_document, remembered)
        near = visible_by_distance(x.shape[1], remembered, causal=self.config.causal, window=window, device=x.device)
        mask = by_document if near is None else near if by_document is None else by_document & near
        return None if mask is None else mask[:, None]

    def _different(self, segments: Tensor | None, remembered: int) -> Tensor | None:
        """Where query and key are in different segments; None where the scores do not depend on it."""
        if segments is None or not self.config.position.segments:
            return None
        return different_segments(segments, remembered)

    def _distances(self, x: Tensor, remembered: int) -> Distances | None:
        """The relative distances between the tokens of x (B, L, D) and all keys; None without relative positions."""
        if self.distances is None:
            return None
        length, causal = x.shape[1], self.config.causal
        return self.distances(length, remembered + length, causal=causal, device=x.device, dtype=x.dtype)

    def _rotations(self, x: Tensor, remembered: int, positions: Tensor | None) -> tuple[Tensor | None, Nearby | None]:
        """Rotary positions of ``remembered`` states and the row x (B, L, D) after them, and those of local layers.

        ``positions`` None counts them.
        """
        position, local, width = self.config.position, self.config.local, self.config.key_width
        rotation = near = None
        if isinstance(position, Rotary):
            places = torch.arange(remembered + x.shape[1], device=x.device)
            if positions is not None:
                before = places[None, :remembered].expand(positions.shape[0], -1)
                places = torch.cat([before, positions + remembered], dim=1)[:, None]
            rotation = near = rotations(places, width, position.theta)
            if local is not None and local.theta is not None:
                near = rotations(places, width, local.theta)
        return rotation, None if local is None else Nearby(local.reach, near)

    def _of_layers(self, scope: Scope, noise: Noise | None, layers: Sequence[int], first: int) -> list[Scope]:
        """The scope of each of the ``layers`` (from 0), with dropout seeds numbered from ``first``.

        Seeds of all layers are made at once, because every small operation costs a launch on a GPU. The sinusoid of a
        relative shift has one dropout mask for all layers and both streams, as in the original code; DeBERTa's table
        has one per layer.
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
            replace(scope, seeds=seeds, shared_seeds=other)
            for scope, seeds, other in zip(scopes, noise.layers(numbers), shared, strict=True)
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
    """Refuse tensors that do not fit ``ids``; a tensor of one row may stand for all rows, except ``reverse``."""
    if not isinstance(ids, Tensor):
        raise ConfigError(f"ids are of type {type(ids).__name__}, expected a tensor of token ids (rows, tokens)")
    if ids.ndim != 2:
        raise ConfigError(f"ids of shape {list(ids.shape)}, expected (rows, tokens); for one text give ids[None]")
    if ids.dtype.is_floating_point or ids.dtype == torch.bool or not ids.shape[1]:
        raise ConfigError(f"ids are {ids.dtype} of shape {list(ids.shape)}, expected whole numbers, at least one token")
    rows, length = ids.shape
    tensors = {
        "doc": (doc, (length,)),
        "attention_mask": (attention_mask, (length,)),
        "positions": (positions, (length,)),
        "segments": (segments, (length,)),
        "visible": (visible, (length, length)),
    }
    for name, (x, shape) in tensors.items():
        if x is not None and (x.shape[1:] != shape or x.shape[0] not in (1, rows)):
            raise ConfigError(f"{name} of shape {list(x.shape)}, expected {[rows, *shape]} for ids {list(ids.shape)}")
    if doc is not None and doc.dtype == torch.bool:
        raise ConfigError("doc is torch.bool, expected numbers; give a mask of ones and zeros as attention_mask")
    if doc is not None and attention_mask is not None:
        raise ConfigError("doc and attention_mask both say which tokens are padding; give one of them")
    if visible is not None and visible.dtype != torch.bool:
        raise ConfigError(f"visible is {visible.dtype}, expected torch.bool: True where a query may see a key")
    if reverse is not None and reverse.shape != (rows,):
        raise ConfigError(f"reverse of shape {list(reverse.shape)}, expected {[rows]}: one boolean per row")


def _remembered(memory: Sequence[Tensor] | None) -> int:
    """Number of memory states before the row."""
    return 0 if memory is None else memory[0].shape[1]


def update_memory(
    memory: Sequence[Tensor] | None, inputs: Sequence[Tensor], length: int, *, reuse: int | None = None
) -> tuple[Tensor, ...] | None:
    """The memory of every layer after a row, (B, at most ``length``, D) without gradient; None if ``length`` is 0.

    Appends ``inputs``, the states (B, L, D) that each layer has read, to ``memory`` and keeps the end. With ``reuse``
    only the first ``reuse`` positions of ``inputs`` count (XLNet, whose next row starts after them).
    """
    if length == 0:
        return None
    kept = [states[:, :reuse].detach() for states in inputs]
    if memory is not None:
        kept = [torch.cat([old, new], dim=1) for old, new in zip(memory, kept, strict=True)]
    return tuple(states[:, -length:] for states in kept)
