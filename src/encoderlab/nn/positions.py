"""How a layer knows where a token stands: tables added to the input, or terms added to the attention scores.

Every relative term is computed the same way. A score of query i and key j needs one row of a table of signed distances
``d = (i + M) - j`` (M memory length). Queries are multiplied with the rows of all reachable distances, largest first, which gives
``C (..., L, P)`` with column ``c`` for distance ``M + L - 1 - c``. The entry for key j stands at column ``L - 1 - i + j``, so the
scores are a strided view of ``C`` (:func:`skew`): no gather, no copy, and rows and columns of the n x n map are never indexed.

Positions are differences within a row. Documents packed in one row are contiguous, so packing does not change them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from encoderlab.errors import ConfigError
from encoderlab.nn import kernels


@dataclass(frozen=True, kw_only=True)
class Absolute:
    """A table of ``length`` positions added to the input embeddings (BERT); position p of a document reads row p + ``offset``.

    ``sinusoidal`` makes the table fixed (Vaswani et al., 2017), as in Transformer-XL's ablation.
    """

    kind: Literal["absolute"] = "absolute"
    length: int = 512
    offset: int = 0
    sinusoidal: bool = False


@dataclass(frozen=True, kw_only=True)
class RelativeShift:
    """Transformer-XL's term (Dai et al., 2019, section 3.3): ``(q_i + u) k_j + (q_i + v) W_r R_{i-j}`` with a fixed sinusoid R.

    ``segments`` adds XLNet's ``(q_i + s) e_same_or_different`` (Yang et al., 2019, section 2.5). ``shared_biases`` keeps one pair
    u, v for all layers. ``clamp`` > 0 limits the distance.
    """

    kind: Literal["relative_shift"] = "relative_shift"
    segments: bool = False
    shared_biases: bool = False
    clamp: int = 0


@dataclass(frozen=True, kw_only=True)
class Shaw:
    """Learned key offsets per layer and distance (Shaw et al., 2018; Transformer-XL's ``attn_type`` 1), clipped at ``span``.

    Score ``(q_i + u) k_j + q_i a_{i-j} + b_{i-j}``.
    """

    kind: Literal["shaw"] = "shaw"
    span: int = 128


@dataclass(frozen=True, kw_only=True)
class Disentangled:
    """DeBERTa's content-to-position and position-to-content terms (He et al., 2021, section 3.1) over a table of 2 x ``slots`` rows.

    ``buckets`` (DeBERTa v2 and later): distances beyond ``buckets / 2`` share logarithmic buckets up to ``span``, and
    ``slots = buckets``; otherwise ``slots = span``. ``share_projections``: the content maps project the table too. ``norm``: the
    table passes a LayerNorm. ``input_positions`` > 0 also adds an absolute table of that length to the input.

    The index of the position-to-content term is that of the published code (distance i - j for both terms), not the paper's.
    """

    kind: Literal["disentangled"] = "disentangled"
    span: int = 512
    buckets: int | None = None
    share_projections: bool = False
    norm: bool = False
    terms: tuple[Literal["c2p", "p2c"], ...] = ("c2p", "p2c")
    input_positions: int = 0

    def __post_init__(self) -> None:
        if not self.terms or len(set(self.terms)) != len(self.terms):
            raise ConfigError(f"disentangled terms {list(self.terms)} must name c2p, p2c or both, each once")
        if self.buckets is not None and self.buckets // 2 >= self.span:
            raise ConfigError(f"{self.buckets} buckets do not fit span {self.span}; half of them must be smaller than the span")

    @property
    def slots(self) -> int:
        return self.buckets or self.span


Position = Absolute | RelativeShift | Shaw | Disentangled


def places(doc: Tensor | None, length: int, device: torch.device) -> Tensor:
    """Position of each token within its document, (B, L) or (1, L) where there is one document per row; padding counts as one document."""
    index = torch.arange(length, device=device)
    if doc is None:
        return index[None]
    starts = torch.ones_like(doc, dtype=torch.bool)
    starts[:, 1:] = doc[:, 1:] != doc[:, :-1]
    first = torch.where(starts, index, 0).cummax(dim=1).values
    return index - first


def sinusoid(positions: Tensor, width: int) -> Tensor:
    """``[sin(p w_0) .. sin(p w_n) | cos(p w_0) .. cos(p w_n)]`` with ``w_j = 10000^(-2j / width)``: (P,) -> (P, width), halves concatenated."""
    frequency = 10000.0 ** (-torch.arange(0, width, 2, device=positions.device, dtype=torch.float32) / width)
    angle = positions.to(torch.float32)[:, None] * frequency[None]
    return torch.cat([angle.sin(), angle.cos()], dim=1)[:, :width]


def log_bucket(distance: Tensor, buckets: int, span: int) -> Tensor:
    """DeBERTa v2's bucket of signed distances: linear up to ``buckets / 2``, then logarithmic, odd, clamped to the span first.

    ``sign(d) * (mid + ceil(ln(|d| / mid) / ln((span - 1) / mid) * (mid - 1)))`` for ``|d| > mid = buckets / 2``. The clamp is the original
    code's; ``transformers`` does not clamp and differs from |d| = span on.
    """
    mid = buckets // 2
    size = distance.abs().clamp(max=span - 1).to(torch.float64)
    far = mid + torch.ceil(torch.log(size.clamp(min=1) / mid) / math.log((span - 1) / mid) * (mid - 1))
    return torch.where(size <= mid, size, far).to(torch.long) * distance.sign()


class _Skew(torch.autograd.Function):
    @staticmethod
    def forward(ctx, table: Tensor, keys: int) -> Tensor:  # type: ignore[override]
        ctx.shape, ctx.keys = table.shape, keys
        return _skewed(table, keys).clone()

    @staticmethod
    def backward(ctx, grad: Tensor):  # type: ignore[override]
        out = grad.new_zeros(ctx.shape)
        keys = ctx.keys
        if ctx.shape[-1] >= keys + ctx.shape[-2] - 1:
            _skewed(out, keys).copy_(grad)
        else:
            # A one-sided table: entries past the diagonal alias the next row, are masked by the caller and carry no gradient. The last
            # column is the only one that aliases an entry in use, so it is left out, but for its own last row.
            _skewed(out, keys)[..., : keys - 1].copy_(grad[..., : keys - 1])
            out[..., -1, -1] = grad[..., -1, -1]
        return out, None


def _skewed(table: Tensor, keys: int) -> Tensor:
    length, columns = table.shape[-2:]
    strides = (*table.stride()[:-2], columns - 1, 1)
    return table.as_strided((*table.shape[:-1], keys), strides, table.storage_offset() + length - 1)


def skew(table: Tensor, keys: int) -> Tensor:
    """``out[..., i, j] = table[..., i, L - 1 - i + j]``: (..., L, P) contiguous -> (..., L, ``keys``).

    With ``P = keys + L - 1`` every entry is right. With ``P = keys`` (distances >= 0 only) entries with ``j > i + keys - L`` are
    meaningless and must be masked. The backward pass is a skew too: no scatter. This is relative shift (Dai et al., 2019, appendix B).
    """
    return _Skew.apply(table.contiguous(), keys)


def distances(length: int, keys: int, *, causal: bool, device: torch.device) -> Tensor:
    """The signed distance of each column that :func:`skew` expects, largest first: (P,)."""
    smallest = 0 if causal else -(length - 1)
    return torch.arange(keys - 1, smallest - 1, -1, device=device)


def rows_at(table: Tensor, at: Tensor, length: int, keys: int) -> Tensor:
    """The skew of chosen queries: ``out[b, h, t, j] = table[b, h, t, L - 1 - at[b, t] + j]``; (B, H, T, P), (B, T) -> (B, H, T, keys)."""
    index = length - 1 - at[:, :, None] + torch.arange(keys, device=at.device)
    index = index.clamp(0, table.shape[-1] - 1)[:, None].expand(-1, table.shape[1], -1, -1)
    return table.gather(-1, index)


def per_head(states: Tensor, rows: Tensor) -> Tensor:
    """Products of each head's states with its own rows: (B, H, L, K), (P, H, K) -> (B, H, L, P), without repeating rows over the batch."""
    B, H, L, K = states.shape
    flat = states.permute(1, 0, 2, 3).reshape(H, B * L, K)
    if flat.dtype == torch.float16:  # these products leave its range before the softmax can subtract the largest
        flat, rows = flat.float(), rows.float()
    return torch.bmm(flat, rows.permute(1, 2, 0)).view(H, B, L, -1).transpose(0, 1)


@dataclass(frozen=True)
class Distances:
    """What the layers of one forward pass share about distances: made once by :class:`DistanceTable`, read by each layer's term."""

    rows: Tensor | None  # (S, D) sinusoid or learned table, before each layer's projection
    slots: Tensor  # (P,) index into rows for each distance, largest first
    distance: Tensor  # (P,)
    first: int | None  # the smallest slot, where slots are consecutive and so no row is used twice
    length: int
    keys: int
    u: Tensor | None = None  # (H, K) biases shared by all layers
    v: Tensor | None = None


class DistanceTable(nn.Module):
    """The part of a relative position term that all layers share."""

    def __init__(self, position: RelativeShift | Shaw | Disentangled, width: int, heads: int, head_width: int, eps: float) -> None:
        super().__init__()
        self.position, self.width = position, width
        if isinstance(position, Disentangled):
            self.table = nn.Parameter(torch.empty(2 * position.slots, width))
            self.norm = nn.LayerNorm(width, eps=eps) if position.norm else None
        if isinstance(position, RelativeShift) and position.shared_biases:
            self.u = nn.Parameter(torch.empty(heads, head_width))
            self.v = nn.Parameter(torch.empty(heads, head_width))

    def forward(self, length: int, keys: int, *, causal: bool, device: torch.device, dtype: torch.dtype) -> Distances:
        position = self.position
        distance = distances(length, keys, causal=causal, device=device)
        if isinstance(position, Disentangled):
            bucket = log_bucket(distance, position.buckets, position.span) if position.buckets else distance
            slots = (bucket + position.slots).clamp(0, 2 * position.slots - 1)
            reach = position.buckets // 2 if position.buckets else position.slots - 1
            first = position.slots - (length - 1) if keys - 1 <= reach else None
            rows = self.table if self.norm is None else self.norm(self.table)
            return Distances(rows, slots, distance, first, length, keys)
        if isinstance(position, Shaw):
            slots = distance.clamp(-position.span, position.span) + position.span
            return Distances(None, slots, distance, None, length, keys)
        limited = distance.clamp(-position.clamp, position.clamp) if position.clamp else distance
        rows = sinusoid(limited, self.width).to(dtype)
        shared = (self.u, self.v) if position.shared_biases else (None, None)
        return Distances(rows, torch.arange(len(distance), device=device), distance, None, length, keys, *shared)


class ShiftTerm(nn.Module):
    """One layer's :class:`RelativeShift`: ``W_r``, its own u and v unless shared, and the segment vectors of XLNet."""

    def __init__(self, position: RelativeShift, width: int, heads: int, head_width: int) -> None:
        super().__init__()
        self.heads, self.head_width = heads, head_width
        self.project = nn.Linear(width, heads * head_width, bias=False)
        if not position.shared_biases:
            self.u = nn.Parameter(torch.empty(heads, head_width))
            self.v = nn.Parameter(torch.empty(heads, head_width))
        if position.segments:
            self.s = nn.Parameter(torch.empty(heads, head_width))
            self.segment = nn.Parameter(torch.empty(2, heads, head_width))
        self.segments = position.segments

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        shared: Distances,
        scale: float,
        *,
        at: Tensor | None,
        different: Tensor | None,
        reverse: Tensor | None,
        keys: Tensor | None,
        p: float,
        site: int,
    ) -> tuple[Tensor, Tensor]:
        """The content query ``q + u`` (B, H, L, K) and the scaled bias (B, H, L, M). ``different`` (B, 1, L, M): segments differ."""
        u, v = (self.u, self.v) if shared.u is None else (shared.u, shared.v)
        assert shared.rows is not None and v is not None
        query = (q + v[:, None]) * scale
        table = self._table(query, shared.rows, keys, p, site)
        if reverse is not None:
            # A reversed row reads the sinusoid of the negated distance: the sine half changes its sign.
            half = shared.rows.shape[1] // 2
            mirrored = torch.cat([-shared.rows[:, :half], shared.rows[:, half:]], dim=1)
            table = torch.where(reverse[:, None, None, None], self._table(query, mirrored, keys, p, site), table)
        bias = skew(table, shared.keys) if at is None else rows_at(table, at, shared.length, shared.keys)
        if self.segments and different is not None:
            same, other = torch.einsum("bhld,shd->sbhl", (q + self.s[:, None]) * scale, self.segment).unsqueeze(-1)
            bias = bias + torch.where(different, other, same)
        return q + u[:, None], bias

    def _table(self, query: Tensor, rows: Tensor, keys: Tensor | None, p: float, site: int) -> Tensor:
        if keys is not None and p > 0:
            rows = kernels.dropout(rows[None], p, keys, site)[0]
        return per_head(query, self.project(rows).view(-1, self.heads, self.head_width).to(query.dtype))


class ShawTerm(nn.Module):
    """One layer's :class:`Shaw` offsets: rows and biases for distances -span .. span, and u."""

    def __init__(self, position: Shaw, heads: int, head_width: int) -> None:
        super().__init__()
        self.rows = nn.Parameter(torch.empty(2 * position.span + 1, heads, head_width))
        self.bias = nn.Parameter(torch.empty(2 * position.span + 1, heads))
        self.u = nn.Parameter(torch.empty(heads, head_width))

    def forward(self, q: Tensor, k: Tensor, shared: Distances, scale: float, *, at: Tensor | None) -> tuple[Tensor, Tensor]:
        """The content query ``q + u`` and the scaled bias (B, H, L, M)."""
        table = per_head(q * scale, self.rows[shared.slots]) + self.bias[shared.slots].T[:, None] * scale
        bias = skew(table, shared.keys) if at is None else rows_at(table, at, shared.length, shared.keys)
        return q + self.u[:, None], bias


class DisentangledTerm(nn.Module):
    """One layer's :class:`Disentangled` terms. Its own projections of the table, unless the content maps are shared."""

    def __init__(self, position: Disentangled, width: int, heads: int, head_width: int, *, key_bias: bool) -> None:
        super().__init__()
        self.terms, self.heads, self.head_width = position.terms, heads, head_width
        self.share = position.share_projections
        if not self.share:
            if "c2p" in self.terms:
                self.key = nn.Linear(width, heads * head_width, bias=key_bias)  # DeBERTa v1 has no key biases
            if "p2c" in self.terms:
                self.query = nn.Linear(width, heads * head_width)

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        shared: Distances,
        scale: float,
        *,
        query_map: tuple[Tensor, Tensor | None],
        key_map: tuple[Tensor, Tensor | None],
        at: Tensor | None,
        keys: Tensor | None,
        p: float,
        site: int,
    ) -> Tensor:
        """The scaled bias (B, H, L, M): ``q_i K_r[d] + k_j Q_r[d]`` with d = i - j for both."""
        assert shared.rows is not None
        rows = shared.rows
        if keys is not None and p > 0:
            rows = kernels.dropout(rows[None], p, keys, site)[0]
        bias: Tensor | None = None
        if "c2p" in self.terms:
            table = per_head(q * scale, self._project(rows, shared, *(key_map if self.share else (self.key.weight, self.key.bias))))
            bias = skew(table, shared.keys) if at is None else rows_at(table, at, shared.length, shared.keys)
        if "p2c" in self.terms:
            projected = self._project(rows, shared, *(query_map if self.share else (self.query.weight, self.query.bias)))
            # Seen from key j the columns run with the query: distance i - j grows, so the rows are taken in reverse.
            table = per_head(k * scale, projected.flip(0))
            if at is None:
                term = skew(table, shared.length).transpose(-1, -2)
            else:
                index = shared.keys - 1 + at[:, None, :] - torch.arange(shared.keys, device=at.device)[:, None]
                term = table.gather(-1, index[:, None].expand(-1, self.heads, -1, -1)).transpose(-1, -2)
            bias = term if bias is None else bias + term
        assert bias is not None
        return bias

    def _project(self, rows: Tensor, shared: Distances, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The projected row of each distance, largest first: (P, H, K). Where distances are not bucketed only the rows in reach are multiplied."""
        if shared.first is not None:
            used = rows.narrow(0, shared.first, len(shared.distance)).flip(0)
            return F.linear(used, weight, bias).view(-1, self.heads, self.head_width)
        return F.linear(rows, weight, bias).view(-1, self.heads, self.head_width)[shared.slots]
