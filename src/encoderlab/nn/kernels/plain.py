"""Plain versions of all kernels, in torch operations: they run on any device and in any precision.

Arguments, shapes and formulas are those of :mod:`encoderlab.nn.kernels`.

They run where a device has no kernels (no compiler, another accelerator) and in double precision, and tests compare the
kernels with them. ``seeds`` (B,) int64 are the row seeds of :mod:`encoderlab.nn.noise`; None switches dropout off.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from encoderlab.nn import noise
from encoderlab.nn.kernels.operation import exporting


def dropout(x: Tensor, p: float, seeds: Tensor | None, site: int) -> Tensor:
    """As :func:`encoderlab.nn.kernels.dropout`."""
    if seeds is None or p == 0.0:
        return x
    return torch.where(noise.kept(seeds, site, tuple(x.shape), p), x * (1.0 / (1.0 - p)), 0.0)


def dropout_add_norm(
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    eps: float,
    p: float,
    seeds: Tensor | None,
    site: int,
    *,
    x_bias: Tensor | None = None,
    center: bool = True,
) -> Tensor:
    """As :func:`encoderlab.nn.kernels.dropout_add_norm`."""
    if x_bias is not None:
        x = x + x_bias
    dropped = dropout(x, p, seeds, site)
    return norm(dropped if residual is None else residual + dropped, weight, bias, eps, center)


def dropout_add_then_norm(
    x: Tensor | None,
    residual: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    eps: float,
    p: float,
    seeds: Tensor | None,
    site: int,
    *,
    x_bias: Tensor | None = None,
    center: bool = True,
) -> tuple[Tensor, Tensor]:
    """As :func:`encoderlab.nn.kernels.dropout_add_then_norm`."""
    if x is not None:
        residual = residual + dropout(x if x_bias is None else x + x_bias, p, seeds, site)
    return residual, norm(residual, weight, bias, eps, center)


def norm(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float, center: bool) -> Tensor:
    """LayerNorm if ``center``, else RMSNorm, over the last axis of x (..., D)."""
    if center:
        return F.layer_norm(x, weight.shape, weight, bias, eps)
    return F.rms_norm(x, weight.shape, weight, eps)


def softmax_dropout(scores: Tensor, visible: Tensor | None, p: float, seeds: Tensor | None, site: int) -> Tensor:
    """Attention probabilities (B, H, L, M) in the precision of ``scores``; rows with no visible key are zero."""
    wide = scores.double() if scores.dtype == torch.float64 else scores.float()
    if visible is None:
        probabilities = torch.softmax(wide, dim=-1)
    else:
        hidden = ~visible
        probabilities = torch.softmax(wide.masked_fill(hidden, torch.finfo(wide.dtype).min), dim=-1)
        probabilities = probabilities.masked_fill(hidden, 0.0)
    if seeds is not None and p > 0.0:
        keep = noise.kept_pairs(seeds, site, scores.shape[1], scores.shape[2], scores.shape[3], p)
        probabilities = torch.where(keep, probabilities * (1.0 / (1.0 - p)), 0.0)
    return probabilities.to(scores.dtype)


@dataclass(frozen=True)
class Relative:
    """Relative positions in attention, as rows of a table, so that no bias (B, H, L, M) has to be made.

    score[i, j] += scale * (position_query[i] . query_rows[c] + k[j] . key_rows[c] + segment[i, different[i, j]]), c = L
    - 1 - i + j: row c belongs to distance M - 1 - c, the largest first, so P = L + M - 1 rows. A table without negative
    distances has P = M rows and no key_rows; columns past its end must be masked.

    The first term is Transformer-XL's and XLNet's (position_query is q plus a bias) and DeBERTa's content-to-position,
    the second DeBERTa's position-to-content, the third XLNet's segments.

    Shapes: query_rows and key_rows (P, H, K), or (S, P, H, K) with ``table`` (B,) int64 choosing one for each row of
    the batch; position_query (B, H, L, K), None for q; segment (B, H, L, 2), without the scale; different bool,
    broadcastable to (B, H, L, M).
    """

    query_rows: Tensor | None = None
    key_rows: Tensor | None = None
    position_query: Tensor | None = None
    segment: Tensor | None = None
    different: Tensor | None = None
    table: Tensor | None = None


def relative_bias(q: Tensor, k: Tensor, relative: Relative, scale: float) -> Tensor:
    """The sum of the terms, (B, H, L, M)."""
    length, keys = q.shape[2], k.shape[2]
    terms = []
    if relative.query_rows is not None:
        query = q if relative.position_query is None else relative.position_query
        terms.append(skew(chosen_per_head(query * scale, relative.query_rows, relative.table), keys))
    if relative.key_rows is not None:
        # For a key, the columns run the other way, with the query.
        products = chosen_per_head(k * scale, relative.key_rows.flip(-3), relative.table)
        terms.append(skew(products, length).transpose(-1, -2))
    if relative.segment is not None:
        terms.append(segment_scores(relative, scale))
    return sum(terms[1:], terms[0])


def segment_scores(relative: Relative, scale: float) -> Tensor:
    """The segment term (B, H, L, M): each query has one score for keys of the same segment and one for other keys."""
    assert relative.segment is not None and relative.different is not None
    same, other = (relative.segment * scale).unsqueeze(-2).unbind(-1)
    return torch.where(relative.different, other, same)


def per_head(states: Tensor, rows: Tensor) -> Tensor:
    """Products of each head's states with its own rows: (B, H, L, K), (P, H, K) -> (B, H, L, P).

    Rows are not repeated over the batch.
    """
    B, H, L, K = states.shape
    flat = states.transpose(0, 1).reshape(H, B * L, K)
    if flat.dtype == torch.float16:  # these products overflow before the softmax can subtract the maximum
        with as_they_are(flat.device):
            products = torch.bmm(flat.float(), rows.float().permute(1, 2, 0))
    else:
        products = torch.bmm(flat, rows.permute(1, 2, 0))
    return products.view(H, B, L, rows.shape[0]).transpose(0, 1)


def as_they_are(device: torch.device) -> AbstractContextManager:
    """A context in which products have the precision of their operands, also under autocast."""
    return nullcontext() if device.type == "meta" else torch.autocast(device.type, enabled=False)


def chosen_per_head(states: Tensor, rows: Tensor, table: Tensor | None) -> Tensor:
    """:func:`per_head` with rows (P, H, K), or with rows (S, P, H, K) of which ``table`` (B,) chooses one per batch
    row.
    """
    if rows.dim() == 3:
        return per_head(states, rows)
    out = per_head(states, rows[0])
    for number in range(1, len(rows)):
        assert table is not None
        out = torch.where((table == number)[:, None, None, None], per_head(states, rows[number]), out)
    return out


def skew(table: Tensor, keys: int) -> Tensor:
    """``out[..., i, j] = table[..., i, L - 1 - i + j]``: (..., L, P) -> (..., L, ``keys``), a view of the table.

    With ``P = keys + L - 1`` every entry is right. With ``P = keys`` (distances >= 0 only) entries with ``j > i + keys
    - L`` are undefined and must be masked. Read with rows of P - 1 entries, each row of the table starts one place
    further left than the row above: the relative shift of Dai et al. (2019, appendix B), without a gather.
    """
    if exporting() or table.shape[-1] <= keys:  # a graph serves all lengths
        table = F.pad(table, (0, 1))
    length, columns = table.shape[-2:]
    shifted = table.flatten(-2)[..., length - 1 : length * columns - 1].unflatten(-1, (length, columns - 1))
    if exporting():  # in a graph of any length, a view may not be contiguous
        return shifted.index_select(-1, torch.arange(keys, device=table.device))
    return shifted[..., :keys]


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    bias: Tensor | None = None,
    visible: Tensor | None = None,
    scale: float,
    p: float = 0.0,
    seeds: Tensor | None = None,
    site: int = 0,
    relative: Relative | None = None,
    reach: int | None = None,
) -> Tensor:
    """As :func:`encoderlab.nn.kernels.attend`."""
    visible = within_reach(visible, q.shape[2], k.shape[2], reach, q.device)
    if relative is not None:
        positions = relative_bias(q, k, relative, scale)
        bias = positions if bias is None else bias + positions
    if (seeds is None or p == 0.0) and bias is None and q.is_cuda:
        if visible is None:
            return F.scaled_dot_product_attention(q, k, v, scale=scale)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=visible | ~visible.any(-1, keepdim=True), scale=scale)
        return out.masked_fill(~visible.any(-1, keepdim=True), 0.0)
    if q.dtype == torch.float16 and not q.is_cuda:  # a CPU sums half-precision products in half precision: inf - inf
        with as_they_are(q.device):
            scores = torch.matmul(q.float() * scale, k.float().transpose(-1, -2))
    else:
        scores = torch.matmul(q * scale, k.transpose(-1, -2))
    if scores.dtype == torch.float16:  # an overflow would turn the whole row into NaN
        scores = scores.clamp(-65504.0, 65504.0).float()
    if bias is not None:
        scores = scores + bias
    return torch.matmul(softmax_dropout(scores, visible, p, seeds, site).to(v.dtype), v)


def attend_packed(
    qkv: Tensor,
    heads: int,
    *,
    visible: Tensor | None = None,
    scale: float,
    p: float = 0.0,
    seeds: Tensor | None = None,
    site: int = 0,
    reach: int | None = None,
    rotation: Tensor | None = None,
) -> Tensor:
    """As :func:`encoderlab.nn.kernels.attend_packed`."""
    q, k, v = (part.unflatten(-1, (heads, -1)).transpose(1, 2) for part in qkv.chunk(3, dim=-1))
    if rotation is not None:
        q, k = rotate(q, rotation), rotate(k, rotation)
    attended = attend(q, k, v, visible=visible, scale=scale, p=p, seeds=seeds, site=site, reach=reach)
    return attended.transpose(1, 2).flatten(2)


def rotate(x: Tensor, rotation: Tensor) -> Tensor:
    """Apply rotary positions (Su et al., 2021): rotate each pair (x_j, x_{j + K / 2}) by the angle of its position.

    x (B, H, L, K); ``rotation`` (L, K), or (B, 1, L, K), float32, holds the cosines of the K / 2 angles, then their
    sines. Computed in at least float32.
    """
    cosine, sine = rotation.to(torch.promote_types(x.dtype, torch.float32)).chunk(2, dim=-1)
    first, second = x.to(cosine.dtype).chunk(2, dim=-1)
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], dim=-1).to(x.dtype)


def within_reach(
    visible: Tensor | None, queries: int, keys: int, reach: int | None, device: torch.device
) -> Tensor | None:
    """``visible`` (B|1, 1, L, M) without the keys further than ``reach`` from each query.

    The L = ``queries`` are the last of the M = ``keys``.
    """
    if reach is None:
        return visible
    ages = torch.arange(keys - queries, keys, device=device)[:, None] - torch.arange(keys, device=device)
    near = ages.abs() <= reach
    return near[None, None] if visible is None else visible & near


def feed_forward(
    x: Tensor,
    up: Tensor,
    up_bias: Tensor | None,
    down: Tensor,
    *,
    tanh: bool = False,
    gated: bool = False,
    p: float = 0.0,
    seeds: Tensor | None = None,
    site: int = 0,
) -> Tensor:
    """As :func:`encoderlab.nn.kernels.feed_forward`."""
    inner = F.linear(x, up) if up_bias is None else F.linear(x, up) + up_bias
    inner, gate = inner.chunk(2, dim=-1) if gated else (inner, None)
    inner = F.gelu(inner, approximate="tanh" if tanh else "none")
    return F.linear(dropout(inner if gate is None else inner * gate, p, seeds, site), down)


def linear_cross_entropy(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    labels: Tensor,
    *,
    uniforms: Tensor | None = None,
    z_loss: float = 0.0,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """As :func:`encoderlab.nn.kernels.linear_cross_entropy`."""
    logits = F.linear(x, weight, None if bias is None else bias.to(x.dtype))
    logits = logits if logits.dtype == torch.float64 else logits.float()
    loss = F.cross_entropy(logits, labels, reduction="sum")
    if z_loss:
        penalty = z_loss * logits.logsumexp(-1).square().sum()
        loss = loss + (penalty - penalty.detach())
    hits = (logits.argmax(-1) == labels).sum()
    return loss, hits, None if uniforms is None else draw(logits, uniforms)


@torch.no_grad()
def draw(logits: Tensor, uniforms: Tensor) -> Tensor:
    """One class (S,) from each softmax(logits) (S, V): where its cumulative distribution passes ``uniforms`` (S,)."""
    mass = logits.softmax(-1).cumsum(-1, dtype=torch.float64)
    sampled = torch.searchsorted(mass, (uniforms * mass[:, -1])[:, None], right=True).squeeze(1)
    return sampled.clamp(max=logits.shape[1] - 1)


def divergence(logits: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """As :func:`encoderlab.nn.kernels.divergence`."""
    ours, theirs = (
        ((x if x.dtype == torch.float64 else x.float()) / temperature).log_softmax(-1) for x in (logits, targets)
    )
    loss = F.kl_div(ours, theirs, log_target=True, reduction="sum")
    return loss, (logits.argmax(-1) == targets.argmax(-1)).sum()


MIDDLE = 128  # zero as an unsigned number of 8 bits
EXACT = 1024  # products of two numbers of 8 bits whose sum float32 holds exactly
SMALLEST = 1e-30  # largest magnitude of a row below which it counts as zeros


def quantise_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Rows x (S, K) float32 in 8 bits: ``128 + round(127 x / m)`` (S, K) uint8 with each row's largest magnitude m, and
    scales m / 127 (S,).

    Rounded to the nearest integer, ties to even. The scale of a row that is not finite is NaN.
    """
    largest = x.abs().amax(1)
    whole = largest.isfinite()
    factor = torch.where(whole & (largest > SMALLEST), torch.full_like(largest, 127) / largest, 0.0)
    values = torch.where(whole[:, None], (x * factor[:, None]).round() + MIDDLE, MIDDLE)
    return values.to(torch.uint8), torch.where(whole, largest / 127, torch.nan)


def int8_product(values: Tensor, scales: Tensor, weight: Tensor, weight_scales: Tensor, bias: Tensor | None) -> Tensor:
    """Rows (S, K) of :func:`quantise_rows` times a weight (N, K) int8 with a scale for each output: (S, N) float32.

    The sum of integers is exact; ``sum weight_scale scale + bias`` is rounded after each operation.
    """
    total = torch.zeros(len(values), len(weight), dtype=torch.int32)
    for start in range(0, values.shape[1], EXACT):
        part = slice(start, start + EXACT)
        total += ((values[:, part].float() - MIDDLE) @ weight[:, part].float().T).to(torch.int32)
    out = total.float() * weight_scales * scales[:, None]
    return out if bias is None else out + bias


def depthwise(x: Tensor, weight: Tensor, doc: Tensor | None = None) -> Tensor:
    """As :func:`encoderlab.nn.kernels.depthwise`."""
    inside = None if doc is None else _inside(doc, weight.shape[1])
    out = torch.zeros_like(x)
    for tap, moved in enumerate(shifted(x, weight.shape[1])):
        out = out + (moved if inside is None else moved * inside[..., tap, None]) * weight[:, tap]
    return out


def dynamic_convolution(x: Tensor, logits: Tensor, heads: int, doc: Tensor | None = None) -> Tensor:
    """As :func:`encoderlab.nn.kernels.dynamic_convolution`."""
    kernels = logits.unflatten(-1, (heads, -1)).softmax(-1)
    if doc is not None:
        kernels = kernels * _inside(doc, kernels.shape[-1])[:, :, None]
    return convolve(x.unflatten(-1, (heads, -1)), kernels).flatten(2)


def convolve(x: Tensor, kernels: Tensor) -> Tensor:
    """``out[b, t, h] = sum_j kernels[b, t, h, j] x[b, t + j - J // 2, h]``: x (B, L, H, K), kernels (B, L, H, J)."""
    out = torch.zeros_like(x)
    for tap, moved in enumerate(shifted(x, kernels.shape[-1])):
        out = out + kernels[..., tap, None] * moved
    return out


def _inside(doc: Tensor, taps: int) -> Tensor:
    """Which taps of which token fall on its own document: (B, L) -> (B, L, taps) bool."""
    same = [moved == doc for moved in shifted(doc, taps, outside=-2)]
    return torch.stack(same, dim=-1) & (doc >= 0)[..., None]


def shifted(x: Tensor, taps: int, outside: int = 0) -> list[Tensor]:
    """The views of ``x`` (B, L, ...) shifted by -taps // 2 .. taps // 2; ``outside`` is the value beyond the row."""
    padded = F.pad(x, (0, 0) * (x.ndim - 2) + (taps // 2, taps // 2), value=outside)
    return [padded[:, tap : tap + x.shape[1]] for tap in range(taps)]
