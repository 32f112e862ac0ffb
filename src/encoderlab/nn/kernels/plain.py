"""The plain twins: what every fast kernel computes, in torch operations; they run on any device and in any precision.

They are also the fallback where no C++ compiler is present, for double precision, and on accelerators. ``keys`` (B,)
int64 are the row keys of :mod:`encoderlab.nn.noise`; None switches dropout off.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from encoderlab.nn import noise


def dropout(x: Tensor, p: float, keys: Tensor | None, site: int) -> Tensor:
    """x (B, ..., D) with every element zeroed at rate p, the others times 1 / (1 - p)."""
    if keys is None or p == 0.0:
        return x
    return torch.where(noise.kept(keys, site, tuple(x.shape), p), x * (1.0 / (1.0 - p)), 0.0)


def dropout_add_norm(
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    eps: float,
    p: float,
    keys: Tensor | None,
    site: int,
    *,
    x_bias: Tensor | None = None,
) -> Tensor:
    """LayerNorm(residual + dropout(x + x_bias)) over the last axis; x, residual (B, ..., D), the others (D,)."""
    if x_bias is not None:
        x = x + x_bias
    dropped = dropout(x, p, keys, site)
    summed = dropped if residual is None else residual + dropped
    return F.layer_norm(summed, weight.shape, weight, bias, eps)


def bias_gelu(x: Tensor, bias: Tensor | None, *, tanh: bool = False) -> Tensor:
    """GELU(x + bias), exact (erf) or with the tanh approximation (Hendrycks and Gimpel 2016); x (..., F), bias (F,)."""
    return F.gelu(x if bias is None else x + bias, approximate="tanh" if tanh else "none")


def softmax_dropout(scores: Tensor, visible: Tensor | None, p: float, keys: Tensor | None, site: int) -> Tensor:
    """Attention probabilities (B, H, L, M) in the precision of ``scores``; a row with nothing visible gives zeros."""
    wide = scores.double() if scores.dtype == torch.float64 else scores.float()
    if visible is None:
        probabilities = torch.softmax(wide, dim=-1)
    else:
        hidden = ~visible
        probabilities = torch.softmax(wide.masked_fill(hidden, torch.finfo(wide.dtype).min), dim=-1)
        probabilities = probabilities.masked_fill(hidden, 0.0)
    if keys is not None and p > 0.0:
        keep = noise.kept_pairs(keys, site, scores.shape[1], scores.shape[2], scores.shape[3], p)
        probabilities = torch.where(keep, probabilities * (1.0 / (1.0 - p)), 0.0)
    return probabilities.to(scores.dtype)


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    bias: Tensor | None = None,
    visible: Tensor | None = None,
    scale: float,
    p: float = 0.0,
    keys: Tensor | None = None,
    site: int = 0,
) -> Tensor:
    """softmax(scale q k^T + bias, over what is visible) v; dropout on the probabilities (Vaswani et al. 2017, 3.2.1).

    q (B, H, L, K), k (B, H, M, K), v (B, H, M, V) -> (B, H, L, V); bias and bool visible broadcast to (B, H, L, M).
    """
    if (keys is None or p == 0.0) and bias is None and q.is_cuda:
        if visible is None:
            return F.scaled_dot_product_attention(q, k, v, scale=scale)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=visible | ~visible.any(-1, keepdim=True), scale=scale)
        return out.masked_fill(~visible.any(-1, keepdim=True), 0.0)
    scores = torch.matmul(q * scale, k.transpose(-1, -2))
    if scores.dtype == torch.float16:  # an overflowed product would turn the whole row into NaN
        scores = scores.clamp(-65504.0, 65504.0)
    if bias is not None:
        scores = scores + bias
    return torch.matmul(softmax_dropout(scores, visible, p, keys, site), v)


def attend_packed(
    qkv: Tensor,
    heads: int,
    *,
    visible: Tensor | None = None,
    scale: float,
    p: float = 0.0,
    keys: Tensor | None = None,
    site: int = 0,
) -> Tensor:
    """Self-attention from the one product that made queries, keys and values: qkv (B, L, 3 A) -> (B, L, A)."""
    q, k, v = (part.unflatten(-1, (heads, -1)).transpose(1, 2) for part in qkv.chunk(3, dim=-1))
    return attend(q, k, v, visible=visible, scale=scale, p=p, keys=keys, site=site).transpose(1, 2).flatten(2)


def feed_forward(x: Tensor, up: Tensor, up_bias: Tensor, down: Tensor, *, tanh: bool = False) -> Tensor:
    """gelu(x up^T + up_bias) down^T: (..., D), (F, D), (F,), (D, F) -> (..., D), no second bias."""
    return F.linear(bias_gelu(F.linear(x, up), up_bias, tanh=tanh), down)


def linear_cross_entropy(
    x: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, *, uniforms: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Cross entropy of softmax(x weight^T + bias): sum of the losses in nats, number of hits, samples.

    x (S, D), weight (V, D), bias (V,), labels (S,) int64. ``uniforms`` (S,) float64 in [0, 1) draws one class per row
    from the softmax by inversion of its cumulative distribution, without gradient: (S,) int64; otherwise None.
    """
    logits = F.linear(x, weight, None if bias is None else bias.to(x.dtype))
    logits = logits if logits.dtype == torch.float64 else logits.float()
    loss = F.cross_entropy(logits, labels, reduction="sum")
    hits = (logits.argmax(-1) == labels).sum()
    if uniforms is None:
        return loss, hits, None
    with torch.no_grad():
        mass = logits.softmax(-1).cumsum(-1, dtype=torch.float64)
        sampled = torch.searchsorted(mass, (uniforms * mass[:, -1])[:, None], right=True).squeeze(1)
        return loss, hits, sampled.clamp(max=len(weight) - 1)
