"""How a layer knows the position of a token: tables added to the input, or terms added to the attention scores.

Every relative term is computed the same way. The L queries are the last of the M keys (memory comes first), so query i
and key j are ``d = M - L + i - j`` apart, and their score needs the row of a table for that signed distance. Queries
are multiplied with the rows of all reachable distances, largest first, which gives ``C (..., L, P)`` with column c for
distance ``M - 1 - c``. The entry for key j is in column ``L - 1 - i + j``, so the scores are a strided view of C
(:func:`skew`): nothing is gathered, and no index of size L x M exists.

Positions are differences within a row. Documents packed into one row are contiguous, so packing does not change them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from encoderlab.config import Bounded
from encoderlab.errors import ConfigError
from encoderlab.nn import kernels, noise
from encoderlab.nn.kernels import Relative
from encoderlab.nn.kernels.operation import exporting
from encoderlab.nn.kernels.plain import chosen_per_head, per_head, segment_scores, skew
from encoderlab.nn.packed import Packed, linear

if TYPE_CHECKING:
    from encoderlab.nn.architecture import EncoderConfig
    from encoderlab.nn.attention import Attention
    from encoderlab.nn.scope import Scope

LONGEST = 1 << 24  # largest row and largest distance, in tokens
Length = Annotated[int, Field(ge=1, le=LONGEST)]
Distance = Annotated[int, Field(ge=0, le=LONGEST)]
RotaryBase = Annotated[float, Field(ge=1, allow_inf_nan=False)]


class PositionSettings(Bounded, ABC):
    """Base class for the settings of positions: what an encoder asks of every kind."""

    kind: str
    offset: int = 0
    """The row of the input table that position 0 reads."""
    sinusoidal: bool = False
    """Whether a fixed sinusoid is added to the input instead of a learned table."""
    segments: bool = False
    """Whether attention scores depend on whether query and key are in the same segment."""
    products: int = 0
    """Number of products with rows for distances in every attention score."""
    span: int | None = None
    """The largest distance that attention scores tell apart, in tokens; None for no limit or no distances."""
    takes_memory: ClassVar[bool] = True
    """Whether states of earlier rows keep their positions relative to the row."""
    padding_sees: ClassVar[Literal["tokens", "tokens and itself", "nothing"]] = "tokens"
    """What padding sees under an attention mask, as in the published code."""

    @abstractmethod
    def make_table(self, encoder: EncoderConfig) -> nn.Module | None:
        """The module that gives the :class:`Distances` of a forward pass; None without relative distances."""

    @abstractmethod
    def make_term(self, encoder: EncoderConfig) -> nn.Module | None:
        """The position term of one layer's attention scores; None for no term.

        The module maps (q, scope, attention) to the content query (B, H, L, K) and either rows for distances
        (:class:`Relative`) or the scaled bias (B, H, L, M).
        """

    def check(self, encoder: EncoderConfig) -> None:
        """Refuse an encoder with which these positions do not work, by ConfigError."""

    @property
    def max_length(self) -> int | None:
        """The longest row, in tokens; None for no limit."""
        return None

    @property
    def input_rows(self) -> int:
        """Number of rows of the learned table that is added to the input; 0 for no table."""
        return 0

    def scale(self, head_width: int) -> float:
        """The factor of attention scores for heads of ``head_width`` K."""
        return head_width**-0.5


@dataclass(frozen=True, kw_only=True)
class Absolute(PositionSettings):
    """A table of ``length`` positions added to the input embeddings (BERT; Devlin et al., 2019, section 3).

    Position p of a document reads row p + ``offset``. ``sinusoidal`` makes the table fixed (Vaswani et al., 2017,
    section 3.5), as in Transformer-XL's ablation.
    """

    kind: Literal["absolute"] = "absolute"
    length: Length = 512
    offset: Distance = 0
    sinusoidal: bool = False
    takes_memory = False  # remembered states would keep the positions that they had in their row

    def make_table(self, encoder: EncoderConfig) -> None:
        return None

    def make_term(self, encoder: EncoderConfig) -> None:
        return None

    @property
    def max_length(self) -> int | None:
        return None if self.sinusoidal else self.length

    @property
    def input_rows(self) -> int:
        return 0 if self.sinusoidal else self.length + self.offset


@dataclass(frozen=True, kw_only=True)
class RelativeShift(PositionSettings):
    """Transformer-XL's term (Dai et al., 2019, section 3.3): ``(q_i + u) k_j + (q_i + v) W_r R_{i-j}``.

    u and v are learned biases, R is a fixed sinusoid.

    Args:
        segments: add XLNet's term ``(q_i + s) e_same_or_different`` (Yang et al., 2019, section 2.5).
        shared_biases: one pair u, v for all layers.
        clamp: the largest distance; larger ones count as this one; 0 for no limit.
    """

    kind: Literal["relative_shift"] = "relative_shift"
    segments: bool = False
    shared_biases: bool = False
    clamp: Distance = 0
    products = 1
    padding_sees = "tokens and itself"

    def make_table(self, encoder: EncoderConfig) -> ShiftTable:
        return ShiftTable(self, encoder)

    def make_term(self, encoder: EncoderConfig) -> ShiftTerm:
        return ShiftTerm(self, encoder)

    def check(self, encoder: EncoderConfig) -> None:
        if encoder.width % 2:
            raise ConfigError(f"width {encoder.width} is odd; relative shift needs an even width for its sinusoid")


@dataclass(frozen=True, kw_only=True)
class Shaw(PositionSettings):
    """Learned key offsets per layer and distance (Shaw et al., 2018; Transformer-XL's ``attn_type`` 1).

    Score ``(q_i + u) k_j + q_i a_{i-j} + b_{i-j}`` with learned u, a and b.
    """

    kind: Literal["shaw"] = "shaw"
    span: Length = 128
    products = 1

    def make_table(self, encoder: EncoderConfig) -> ShawTable:
        return ShawTable(self)

    def make_term(self, encoder: EncoderConfig) -> ShawTerm:
        return ShawTerm(self, encoder)


@dataclass(frozen=True, kw_only=True)
class Disentangled(PositionSettings):
    """DeBERTa's content-to-position and position-to-content terms (He et al., 2021, section 3.1).

    The table of relative positions has 2 x ``slots`` rows. The position-to-content term is indexed as in the published
    code (distance i - j for both terms), not as in the paper.

    Args:
        span: the largest distance, in tokens, with a row of its own; larger ones share that row.
        buckets: number of ``slots``; distances beyond ``buckets / 2`` share logarithmic buckets up to ``span`` (DeBERTa
            v2 and later). None: ``slots`` is ``span``, one per distance.
        share_projections: the content maps also project the table.
        norm: apply a LayerNorm to the table.
        terms: content-to-position, position-to-content, or both.
        input_positions: rows of an absolute table that is also added to the input; 0 for none.

    Raises:
        ConfigError: unknown or repeated terms, or buckets that do not fit the span.
    """

    kind: Literal["disentangled"] = "disentangled"
    span: Length = 512
    buckets: int | None = None
    share_projections: bool = False
    norm: bool = False
    terms: tuple[Literal["c2p", "p2c"], ...] = ("c2p", "p2c")
    input_positions: Distance = 0
    takes_memory = False
    padding_sees = "nothing"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.terms or len(set(self.terms)) != len(self.terms):
            raise ConfigError(f"disentangled terms {list(self.terms)} must name c2p, p2c or both, each once")
        if self.buckets is not None and not 1 <= self.buckets // 2 < self.span:
            raise ConfigError(
                f"{self.buckets} buckets do not fit span {self.span}; choose at least 2, half of them below the span"
            )

    def make_table(self, encoder: EncoderConfig) -> DisentangledTable:
        return DisentangledTable(self, encoder)

    def make_term(self, encoder: EncoderConfig) -> DisentangledTerm:
        return DisentangledTerm(self, encoder)

    def check(self, encoder: EncoderConfig) -> None:
        if encoder.causal:
            raise ConfigError(
                "disentangled positions have no left-to-right form; set causal to false or use relative_shift"
            )

    @property
    def max_length(self) -> int | None:
        return self.input_positions or None

    @property
    def input_rows(self) -> int:
        return self.input_positions

    @property
    def products(self) -> int:  # type: ignore[override]
        return len(self.terms)

    def scale(self, head_width: int) -> float:
        return (head_width * (1 + len(self.terms))) ** -0.5

    @property
    def slots(self) -> int:
        return self.buckets or self.span


@dataclass(frozen=True, kw_only=True)
class Rotary(PositionSettings):
    """Rotary positions (Su et al., 2021, section 3.2.2): rotate queries and keys by angles that grow with their
    position, so that their product depends on their distance.

    Position m rotates the pair (x_j, x_{j + K / 2}) of a head of width K by the angle ``m theta^(-2 j / K)``.

    Args:
        theta: the base; a larger base distinguishes larger distances.
        length: the longest row of the model, in tokens.
    """

    kind: Literal["rotary"] = "rotary"
    theta: RotaryBase = 10000.0
    length: Length = 8192

    def make_table(self, encoder: EncoderConfig) -> None:
        return None

    def make_term(self, encoder: EncoderConfig) -> None:
        return None

    def check(self, encoder: EncoderConfig) -> None:
        if encoder.key_width % 2:
            raise ConfigError(f"head width {encoder.key_width} is odd; rotary positions need an even head width")

    @property
    def max_length(self) -> int | None:
        return self.length


Position = Absolute | RelativeShift | Shaw | Disentangled | Rotary


def places(doc: Tensor | None, length: int, device: torch.device) -> Tensor:
    """Position of each token within its document: (B, L), or (1, L) if every row is one document.

    A run of padding counts as one document.
    """
    index = torch.arange(length, device=device)
    return index[None] if doc is None else index - document_starts(doc)


def at_places(x: Tensor, at: Tensor | None) -> Tensor:
    """``x`` (B, L, ...) at places ``at`` (B, T) of each row: (B, T, ...); ``x`` itself if ``at`` is None.

    Places are from 0 to L - 1: any other would be read from another row, because no device is waited for to check.
    """
    if at is None:
        return x
    first = torch.arange(x.shape[0], device=x.device)[:, None] * x.shape[1]
    return x.flatten(0, 1).index_select(0, (first + at).flatten()).unflatten(0, at.shape)


def counted(ids: Tensor, offset: int) -> Tensor:
    """Position of each token as ``transformers`` counts it, (B, L) or (1, L).

    It is the column. Where the table starts at ``offset``, after the row of the padding id (RoBERTa), it is the number
    of earlier tokens that are not padding, and -1 for padding.
    """
    if offset == 0:
        return torch.arange(ids.shape[1], device=ids.device)[None]
    real = ids != offset - 1
    return torch.where(real, real.cumsum(dim=1), 0) - 1


def document_starts(doc: Tensor) -> Tensor:
    """The place of the first token of each token's document: (B, L) -> (B, L)."""
    index = torch.arange(doc.shape[1], device=doc.device)
    opens = doc != F.pad(doc, (1, 0), value=-2)[:, :-1]
    return running_max(torch.where(opens, index, 0))


def running_max(x: Tensor) -> Tensor:
    """Running maximum along a row: (B, L) -> (B, L), for numbers of at least 0.

    ONNX has no such operation: an exported graph compares all pairs, which costs L numbers per token, once per pass.
    """
    if not exporting():
        return x.cummax(dim=1).values
    index = torch.arange(x.shape[1], device=x.device)
    return torch.where(index <= index[:, None], x[:, None], 0).amax(-1)


def sinusoid(positions: Tensor, width: int) -> Tensor:
    """The sinusoid of Vaswani et al. (2017), all sines before all cosines: positions (P,) -> (P, width).

    ``[sin(p w_0) .. sin(p w_n) | cos(p w_0) .. cos(p w_n)]`` with ``w_j = 10000^(-2j / width)``.
    """
    frequency = 10000.0 ** (-torch.arange(0, width, 2, device=positions.device, dtype=torch.float32) / width)
    angle = positions.to(torch.float32)[:, None] * frequency[None]
    return torch.cat([angle.sin(), angle.cos()], dim=1)[:, :width]


def rotations(places: Tensor, width: int, theta: float) -> Tensor:
    """Cosines and sines of :class:`Rotary` at ``places`` (..., M) for heads of ``width`` K.

    (..., M, K) float32: K / 2 cosines, then K / 2 sines.
    """
    frequency = 1.0 / theta ** (torch.arange(0, width, 2, device=places.device, dtype=torch.float32) / width)
    angle = places.to(torch.float32)[..., None] * frequency
    return torch.cat([angle.cos(), angle.sin()], dim=-1)


def log_bucket(distance: Tensor, buckets: int, span: int) -> Tensor:
    """DeBERTa v2's bucket of signed distances (P,): linear up to ``buckets / 2``, then logarithmic up to the span.

    ``sign(d) * (mid + ceil(ln(|d| / mid) / ln((span - 1) / mid) * (mid - 1)))`` for ``|d| > mid = buckets / 2``. The
    clamp is in the original code; ``transformers`` does not clamp and differs where |d| >= span.
    """
    mid = buckets // 2
    size = distance.abs().clamp(max=span - 1).to(torch.float64)
    # A logarithm is rounded in its own way by each runtime, and a factor to float32 by the exporter, which would move
    # distances on the border of two buckets, as span - 1 is.
    steps = torch.log(size.clamp(min=1) / mid) / torch.log(size.new_full((), span - 1) / mid) * (mid - 1)
    far = mid + torch.ceil(steps - 1e-6)
    return torch.where(size <= mid, size, far).to(torch.long) * distance.sign()


def distances(length: int, keys: int, *, causal: bool, device: torch.device) -> Tensor:
    """The signed distance of each column of :func:`skew`'s input, largest first: (P,)."""
    smallest = 0 if causal else -(length - 1)
    return torch.arange(keys - 1, smallest - 1, -1, device=device)


def bias_at(q: Tensor, k: Tensor, relative: Relative, scale: float, at: Tensor, length: int) -> Tensor:
    """The scaled bias (B, H, T, M) of queries q (B, H, T, K) at places ``at`` (B, T) of rows of ``length`` tokens.

    T is small, so the bias is gathered.
    """
    heads, keys = k.shape[1], k.shape[2]
    column = length - 1 - at[:, :, None] + torch.arange(keys, device=at.device)  # (B, T, M)
    terms = []
    if relative.query_rows is not None:
        query = q if relative.position_query is None else relative.position_query
        table = chosen_per_head(query * scale, relative.query_rows, relative.table)
        terms.append(table.gather(-1, _for_heads(column.clamp(0, table.shape[-1] - 1), heads)))
    if relative.key_rows is not None:
        table = chosen_per_head(k * scale, relative.key_rows, relative.table)  # (B, H, M, P)
        terms.append(table.gather(-1, _for_heads(column.transpose(1, 2), heads)).transpose(-1, -2))
    if relative.segment is not None:
        terms.append(segment_scores(relative, scale))
    return sum(terms[1:], terms[0])


def _for_heads(index: Tensor, heads: int) -> Tensor:
    return index[:, None].expand(-1, heads, -1, -1)


@dataclass(frozen=True)
class Distances:
    """The distances between the last ``length`` of ``keys`` tokens, the queries, and all ``keys`` tokens.

    All layers of one forward pass share them: a table makes them, the terms read them.
    """

    rows: Tensor | None  # (S, D) sinusoid or learned table, before each layer's projection
    slots: Tensor  # (P,) index into rows for each distance, largest first
    distance: Tensor  # (P,)
    first: int | None  # the smallest slot if slots are consecutive; None if distances share slots
    length: int
    keys: int
    u: Tensor | None = None  # (H, K) biases shared by all layers
    v: Tensor | None = None


class ShiftTable(nn.Module):
    """The sinusoid of :class:`RelativeShift`, with u and v if layers share them."""

    def __init__(self, position: RelativeShift, encoder: EncoderConfig) -> None:
        super().__init__()
        self.clamp, self.width = position.clamp, encoder.width
        self.u = self.v = None
        if position.shared_biases:
            self.u, self.v = _head_vectors(encoder), _head_vectors(encoder)

    def forward(self, length: int, keys: int, *, causal: bool, device: torch.device, dtype: torch.dtype) -> Distances:
        distance = distances(length, keys, causal=causal, device=device)
        limited = distance.clamp(-self.clamp, self.clamp) if self.clamp else distance
        rows = sinusoid(limited, self.width).to(dtype)
        slots = torch.arange(distance.shape[0], device=device)
        return Distances(rows, slots, distance, None, length, keys, self.u, self.v)


class ShawTable(nn.Module):
    """The slots of :class:`Shaw`, whose rows belong to the layers."""

    def __init__(self, position: Shaw) -> None:
        super().__init__()
        self.span = position.span

    def forward(self, length: int, keys: int, *, causal: bool, device: torch.device, dtype: torch.dtype) -> Distances:
        distance = distances(length, keys, causal=causal, device=device)
        slots = distance.clamp(-self.span, self.span) + self.span
        return Distances(None, slots, distance, None, length, keys)


class DisentangledTable(nn.Module):
    """The learned table of :class:`Disentangled`, (2 x ``slots``, D), and its norm."""

    def __init__(self, position: Disentangled, encoder: EncoderConfig) -> None:
        super().__init__()
        self.position = position
        self.table = nn.Parameter(torch.empty(2 * position.slots, encoder.width))
        self.norm = nn.LayerNorm(encoder.width, eps=encoder.eps) if position.norm else None

    def forward(self, length: int, keys: int, *, causal: bool, device: torch.device, dtype: torch.dtype) -> Distances:
        position = self.position
        distance = distances(length, keys, causal=causal, device=device)
        bucket = log_bucket(distance, position.buckets, position.span) if position.buckets else distance
        slots = (bucket + position.slots).clamp(0, 2 * position.slots - 1)
        reach = position.buckets // 2 if position.buckets else position.slots - 1
        # An exported graph must serve all lengths, so it must not depend on whether this length is within reach.
        in_reach = not exporting() and keys - 1 <= reach
        first = position.slots - (length - 1) if in_reach else None
        rows = self.table if self.norm is None else self.norm(self.table)
        return Distances(rows, slots, distance, first, length, keys)


def _head_vectors(encoder: EncoderConfig) -> nn.Parameter:
    """A vector of every attention head, (H, K)."""
    return nn.Parameter(torch.empty(encoder.attention_heads, encoder.key_width))


class ShiftTerm(nn.Module):
    """:class:`RelativeShift` of one layer: ``W_r``, u and v unless layers share them, and XLNet's segment vectors."""

    def __init__(self, position: RelativeShift, encoder: EncoderConfig) -> None:
        super().__init__()
        self.heads, self.head_width = encoder.attention_heads, encoder.key_width
        self.project = nn.Linear(encoder.width, encoder.attention_width, bias=False)
        if not position.shared_biases:
            self.u, self.v = _head_vectors(encoder), _head_vectors(encoder)
        if position.segments:
            self.s = _head_vectors(encoder)
            self.segment = nn.Parameter(torch.empty(2, self.heads, self.head_width))
        self.segments = position.segments

    def forward(self, q: Tensor, scope: Scope, attention: Attention) -> tuple[Tensor, Relative]:
        """The content query ``q + u`` (B, H, L, K) and the position terms.

        Rows whose tokens run backwards (``scope.reverse``) read the sinusoid of the negated distance.
        """
        shared, seeds, p = scope.distances, scope.shared_seeds, attention.position_dropout
        assert shared is not None and shared.rows is not None
        u, v = (self.u, self.v) if shared.u is None else (shared.u, shared.v)
        assert v is not None
        # Dropout seeds belong to distances: the number of rows depends on padding, which differs between processes.
        each = None if seeds is None else noise.stream(seeds, shared.distance)
        rows = self._rows(shared.rows, each, p).to(q.dtype)
        if scope.reverse is not None:
            half = shared.rows.shape[1] // 2
            mirrored = torch.cat([-shared.rows[:, :half], shared.rows[:, half:]], dim=1)
            rows = torch.stack([rows, self._rows(mirrored, each, p).to(q.dtype)])
        segment = None
        if self.segments and scope.different is not None:
            segment = torch.einsum("bhld,shd->bhls", _biased(q, self.s), self.segment)
        return _biased(q, u), Relative(
            query_rows=rows,
            position_query=_biased(q, v),
            segment=segment,
            different=None if segment is None else scope.different,
            table=None if scope.reverse is None else scope.reverse.long(),
        )

    def _rows(self, rows: Tensor, seeds: Tensor | None, p: float) -> Tensor:
        """Projected rows with dropout: rows (P, D), seeds (P,) -> (P, H, K)."""
        rows = kernels.dropout(rows, p, seeds, noise.DISTANCES)
        return self.project(rows).view(-1, self.heads, self.head_width)


def _biased(q: Tensor, bias: Tensor) -> Tensor:
    """q (B, H, L, K) + bias (H, K) in the precision of q, as autocast adds the bias of a matrix product."""
    return q + bias.to(q.dtype)[:, None]


class ShawTerm(nn.Module):
    """:class:`Shaw` of one layer: rows and biases for distances -span .. span, and u."""

    def __init__(self, position: Shaw, encoder: EncoderConfig) -> None:
        super().__init__()
        heads, head_width = encoder.attention_heads, encoder.key_width
        self.rows = nn.Parameter(torch.empty(2 * position.span + 1, heads, head_width))
        self.bias = nn.Parameter(torch.empty(2 * position.span + 1, heads))
        self.u = _head_vectors(encoder)

    def forward(self, q: Tensor, scope: Scope, attention: Attention) -> tuple[Tensor, Tensor]:
        """The content query ``q + u`` and the scaled bias (B, H, L, M)."""
        shared, at, scale = scope.distances, scope.at, attention.scale
        assert shared is not None
        table = per_head(q * scale, self.rows[shared.slots]) + self.bias[shared.slots].T[:, None] * scale
        content = _biased(q, self.u)
        if at is None:
            return content, skew(table, shared.keys)
        column = shared.length - 1 - at[:, :, None] + torch.arange(shared.keys, device=at.device)
        return content, table.gather(-1, _for_heads(column.clamp(0, table.shape[-1] - 1), q.shape[1]))


class DisentangledTerm(nn.Module):
    """:class:`Disentangled` of one layer, with projections of the table unless the content maps are shared."""

    def __init__(self, position: Disentangled, encoder: EncoderConfig) -> None:
        super().__init__()
        self.terms, self.heads, self.head_width = position.terms, encoder.attention_heads, encoder.key_width
        self.share = position.share_projections
        if not self.share:
            width, inner = encoder.width, encoder.attention_width
            if "c2p" in self.terms:  # DeBERTa v1 has no key biases
                self.key = nn.Linear(width, inner, bias=encoder.attention_biases == "all")
            if "p2c" in self.terms:
                self.query = nn.Linear(width, inner)

    def forward(self, q: Tensor, scope: Scope, attention: Attention) -> tuple[Tensor, Relative]:
        """``q_i K_r[d] + k_j Q_r[d]`` with d = i - j in both terms; the content query is q."""
        return q, self.relative(scope, attention)

    def relative(self, scope: Scope, attention: Attention) -> Relative:
        """The rows of all distances, which do not depend on the states."""
        shared, seeds, p = scope.distances, scope.shared_seeds, attention.position_dropout
        assert shared is not None and shared.rows is not None
        rows = shared.rows
        if seeds is not None and p > 0:
            rows = kernels.dropout(rows[None], p, seeds, noise.DISTANCES)[0]
        query_rows = key_rows = None
        if "c2p" in self.terms:
            key = attention.content_map(1) if self.share else (self.key.weight, self.key.bias)
            query_rows = self._project(rows, shared, *key)
        if "p2c" in self.terms:
            query = attention.content_map(0) if self.share else (self.query.weight, self.query.bias)
            key_rows = self._project(rows, shared, *query)
        return Relative(query_rows=query_rows, key_rows=key_rows)

    def _project(self, rows: Tensor, shared: Distances, weight: Tensor | Packed, bias: Tensor | None) -> Tensor:
        """The projected row of each distance, largest first: (P, H, K).

        Without buckets, only rows within reach are multiplied.
        """
        if shared.first is not None:
            used = rows.narrow(0, shared.first, shared.distance.shape[0]).flip(0)
            return linear(used, weight, bias).view(-1, self.heads, self.head_width)
        return linear(rows, weight, bias).view(-1, self.heads, self.head_width)[shared.slots]
