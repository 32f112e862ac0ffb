"""Embeddings: from token ids to the first layer's input."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from encoderlab.config import Bounded, Count
from encoderlab.errors import ConfigError
from encoderlab.nn import kernels
from encoderlab.nn.positions import sinusoid

if TYPE_CHECKING:
    from encoderlab.nn.architecture import EncoderConfig

EmbeddingNorm = Literal["embedding", "width", "none"]
TiedMaps = Literal["all", "all_but_first", "none"]


@dataclass(frozen=True, kw_only=True)
class Adaptive(Bounded):
    """Adaptive input and output (Grave et al., 2017; Baevski and Auli, 2019) for vocabularies sorted by frequency.

    Args:
        cutoffs: the ids at which a new cluster begins.
        divisor: cluster i has width ``embed_width / divisor**i``.
        tied_projections: numbers of the clusters whose output projection is the projection of the input.
        tied_tables: whether the output reads the tables of the input, or has its own.

    Raises:
        ConfigError: cut-offs are not increasing.
    """

    cutoffs: tuple[int, ...]
    divisor: Count = 1
    tied_projections: TiedMaps = "all_but_first"
    tied_tables: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if any(stop <= start for start, stop in itertools.pairwise((0, *self.cutoffs))):
            raise ConfigError(
                f"adaptive cut-offs {list(self.cutoffs)} are not increasing; give ids above 0, each larger than "
                "the one before"
            )

    def sizes(self, vocab: int) -> list[tuple[int, int]]:
        """First id and last id + 1 of each cluster.

        Raises:
            ConfigError: a cut-off is not below ``vocab``.
        """
        inside = [cut for cut in self.cutoffs if cut < vocab]
        if len(inside) < len(self.cutoffs):
            raise ConfigError(
                f"adaptive cut-offs {list(self.cutoffs)} do not all lie below vocab {vocab}; "
                f"set adaptive.cutoffs to {inside}"
            )
        edges = [0, *self.cutoffs, vocab]
        return list(zip(edges[:-1], edges[1:], strict=True))

    def has_maps(self, embed_width: int, width: int) -> bool:
        """Whether maps to ``width`` follow the tables, and precede them in the output."""
        return self.divisor > 1 or embed_width != width


class AdaptiveTable(nn.Module):
    """Word embeddings by cluster: ids (B, L) -> (B, L, D).

    With divisor 1 there is one table, and a map only if E differs from D.
    """

    def __init__(self, adaptive: Adaptive, vocab: int, embed_width: int, width: int) -> None:
        super().__init__()
        self.clusters = adaptive.sizes(vocab) if adaptive.divisor > 1 else [(0, vocab)]
        widths = [embed_width // adaptive.divisor**i for i in range(len(self.clusters))]
        if widths[-1] < 1:
            tails = len(adaptive.cutoffs)
            largest = round(embed_width ** (1 / tails))
            largest -= largest**tails > embed_width
            raise ConfigError(
                f"divisor {adaptive.divisor} gives the last of {tails + 1} clusters width 0 of embed_width "
                f"{embed_width}; set adaptive.divisor to at most {largest}"
            )
        self.tables = nn.ParameterList(
            torch.empty(stop - start, e) for (start, stop), e in zip(self.clusters, widths, strict=True)
        )
        mapped = adaptive.has_maps(embed_width, width)
        self.maps = nn.ParameterList(torch.empty(width, e) for e in widths) if mapped else None

    def forward(self, ids: Tensor) -> Tensor:
        if len(self.clusters) == 1:
            return self._mapped(0, F.embedding(ids, self.tables[0]))
        # Look every token up in every table: the later tables are narrow, and selecting the tokens of each cluster
        # would wait for an accelerator.
        parts = []
        for i, (start, stop) in enumerate(self.clusters):
            inside = (ids >= start) & (ids < stop)
            rows = self._mapped(i, F.embedding(torch.where(inside, ids - start, 0), self.tables[i]))
            parts.append(torch.where(inside[..., None], rows, 0.0).to(self.tables[0].dtype))
        return sum(parts[1:], parts[0])

    def _mapped(self, cluster: int, rows: Tensor) -> Tensor:
        return rows if self.maps is None else F.linear(rows, self.maps[cluster])


class Embeddings(nn.Module):
    """Sum of word, position and segment tables of width E, then norm and dropout, and a map from E to D if they differ.

    The norm is at width E before the map (BERT, ALBERT, ELECTRA), at width D after it (DeBERTa, whose map has no bias),
    or none (XLNet, Transformer-XL). ``types`` 0 leaves the segment table out; with 1, as in RoBERTa, both texts of a
    pair are segment 0.
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        vocab, embed_width, width = config.vocab, config.word_width, config.width
        position, norm, adaptive = config.position, config.embed_norm, config.adaptive
        self.dropout = config.dropout if config.embed_dropout is None else config.embed_dropout
        self.norm_place, self.width = norm, width
        # Gradient-disentangled sharing: the generator's embeddings. The tables here are differences from its word and
        # position tables, which get no gradient. A tuple hides them from torch's list of submodules.
        self.base: tuple[Embeddings, ...] = ()
        self.words: nn.Parameter | None = None
        self.clusters: AdaptiveTable | None = None
        if adaptive is None:
            self.words = nn.Parameter(torch.empty(vocab, embed_width))
        else:
            self.clusters = AdaptiveTable(adaptive, vocab, embed_width, width)
        self.sinusoidal, self.offset, rows = position.sinusoidal, position.offset, position.input_rows
        summed = embed_width if adaptive is None else width  # adaptive words already have width D
        self.positions = nn.Parameter(torch.empty(rows, summed)) if rows else None
        self.types = nn.Parameter(torch.empty(config.types, summed)) if config.types else None
        self.norm = None if norm == "none" else config.make_norm(summed if norm == "embedding" else width)
        self.map = None
        if config.mapped and adaptive is None:
            self.map = nn.Linear(embed_width, width, bias=norm == "embedding")

    def forward(self, ids: Tensor, positions: Tensor | None, segments: Tensor | None, seeds: Tensor | None) -> Tensor:
        """ids (B, L), positions (B, L) or (1, L), segments (B, L) or None for all 0 -> (B, L, D)."""
        x = self.look_up(ids)
        if self.positions is not None:
            assert positions is not None
            row = positions + self.offset
            x = x + F.embedding(row, self.positions)
            if self.base_positions is not None:
                x = x + F.embedding(row, self.base_positions)
        elif self.sinusoidal:
            assert positions is not None
            x = x + sinusoid(positions.flatten(), x.shape[-1]).view(*positions.shape, -1).to(x.dtype)
        if self.types is not None:
            if segments is None or len(self.types) == 1:
                x = x + self.types[0]
            else:
                x = x + F.embedding(segments, self.types)
        if self.norm_place == "width" and self.map is not None:
            x = self.map(x)
        if self.norm is not None:
            x = self.norm(x)
        x = kernels.dropout(x, self.dropout, seeds, 0)
        return self.map(x) if self.norm_place != "width" and self.map is not None else x

    def look_up(self, ids: Tensor) -> Tensor:
        """The word vectors only, (B, L) -> (B, L, E); adaptive ones are scaled by sqrt(D) as in Transformer-XL."""
        if self.clusters is not None:
            return self.clusters(ids) * self.width**0.5
        assert self.words is not None
        x = F.embedding(ids, self.words)
        return x if self.base_words is None else x + F.embedding(ids, self.base_words)

    @property
    def base_words(self) -> Tensor | None:
        """The word table of ``base`` (V, E), without gradient; None if there is no base.

        Read at every call, because a sharded module replaces its parameters.
        """
        return self.base[0].words.detach() if self.base and self.base[0].words is not None else None

    @property
    def base_positions(self) -> Tensor | None:
        """The position table of ``base``, read as :attr:`base_words` is, or None."""
        return self.base[0].positions.detach() if self.base and self.base[0].positions is not None else None
