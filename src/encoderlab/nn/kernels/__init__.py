"""The model's work between matrix products, one function each: compiled where that applies, else plain.

Compiled: tensors on a CPU in float32 or bfloat16, where a C++ compiler is present (see :mod:`.build`). Plain
(:mod:`.plain`): everything else, and exporting. Both give the same mathematics and the same dropout masks.
"""

from __future__ import annotations

import torch
from torch import Tensor

from encoderlab.nn.kernels import build, plain
from encoderlab.nn.kernels.cpu import attention, convolution, rows, vocabulary
from encoderlab.nn.kernels.memory import keep_memory
from encoderlab.nn.kernels.operation import apply
from encoderlab.nn.kernels.plain import Relative

__all__ = [
    "Relative",
    "attend",
    "attend_packed",
    "depthwise",
    "dropout",
    "dropout_add_norm",
    "dynamic_convolution",
    "feed_forward",
    "keep_memory",
    "linear_cross_entropy",
]


def _compiled(x: Tensor, *others: Tensor | None) -> bool:
    """Whether the compiled version takes these tensors."""
    return (
        x.device.type == "cpu"
        and x.dtype in (torch.float32, torch.bfloat16)
        and all(other is None or other.dtype == x.dtype for other in others)
        and x.numel() > 0
        and not torch.compiler.is_exporting()
        and build.available()
    )


def _as_products(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The tensors in the precision of a product here: that of autocast where it is on, which casts what torch's own
    products read, but nothing for ours."""
    if tensors[0].device.type != "cpu" or not torch.is_autocast_enabled("cpu"):
        return tensors
    dtype = torch.get_autocast_dtype("cpu")
    return tuple(x if x.dtype == torch.float64 else x.to(dtype) for x in tensors)


def _check_keys(keys: Tensor | None, rows: int) -> None:
    if keys is not None and len(keys) != rows:
        raise ValueError(f"dropout got {len(keys)} keys for {rows} rows; give one key per row of the batch")


def dropout(x: Tensor, p: float, keys: Tensor | None, site: int) -> Tensor:
    """x (B, ..., D) with every element zeroed at rate p, the others times 1 / (1 - p)."""
    if keys is None or p == 0.0:
        return x
    _check_keys(keys, len(x))
    if not _compiled(x):
        return plain.dropout(x, p, keys, site)
    return apply(rows.Dropout, x.contiguous(), keys, site, p)


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
    """LayerNorm(residual + dropout(x + x_bias)) over the last axis; x, residual (B, ..., D), the others (D,).

    Compiled: the result is in the precision of x, also where the residual's is wider (under autocast the embeddings').
    """
    keys = keys if p > 0.0 else None
    _check_keys(keys, len(x))
    if not _compiled(x):
        return plain.dropout_add_norm(x, residual, weight, bias, eps, p, keys, site, x_bias=x_bias)
    residual = None if residual is None else residual.to(x.dtype).contiguous()
    return apply(rows.AddNorm, x.contiguous(), x_bias, residual, weight, bias, keys, site, p, eps)


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
    relative: Relative | None = None,
) -> Tensor:
    """softmax(scale q k^T + bias, over what is visible) v; dropout on the probabilities (Vaswani et al. 2017, 3.2.1).

    q (B, H, L, K), k (B, H, M, K), v (B, H, M, V) -> (B, H, L, V); bias and bool visible broadcast to (B, H, L, M). The
    result lies in memory as (B, L, H, V), so ``transpose(1, 2).flatten(2)`` copies nothing. Compiled: scores stay in
    the cache and are computed again in the backward pass; keys that no query of a block sees cost nothing.
    """
    keys = keys if p > 0.0 else None
    _check_keys(keys, len(q))
    if not _compiled(q, k, v) or (relative is not None and bias is not None):
        return plain.attend(
            q, k, v, bias=bias, visible=visible, scale=scale, p=p, keys=keys, site=site, relative=relative
        )
    q, k, v = attention.dense(q), attention.dense(k), attention.dense(v)
    if visible is not None:
        visible = attention.full_rows(visible, k.shape[2])
    if relative is not None:
        terms = attention.relative_arguments(q, k, relative, scale)
        return apply(attention.AttendRelative, q, k, v, *terms, visible, keys, scale, p, site)
    if bias is not None:
        bias = attention.full_rows(bias.to(q.dtype), k.shape[2])
    return apply(attention.Attend, q, k, v, bias, visible, keys, scale, p, site)


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
    """Self-attention from the one product that made queries, keys and values: qkv (B, L, 3 A) -> (B, L, A).

    Compiled: as :func:`attend`, and the gradient of qkv is written in place instead of concatenated.
    """
    keys = keys if p > 0.0 else None
    _check_keys(keys, len(qkv))
    if not _compiled(qkv):
        return plain.attend_packed(qkv, heads, visible=visible, scale=scale, p=p, keys=keys, site=site)
    if visible is not None:
        visible = attention.full_rows(visible, qkv.shape[1])
    parts = qkv.contiguous().unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4)
    return apply(attention.AttendPacked, parts, visible, keys, scale, p, site).transpose(1, 2).flatten(2)


def feed_forward(
    x: Tensor,
    up: Tensor,
    up_bias: Tensor,
    down: Tensor,
    *,
    tanh: bool = False,
    p: float = 0.0,
    keys: Tensor | None = None,
    site: int = 0,
) -> Tensor:
    """dropout(gelu(x up^T + up_bias)) down^T: (B, ..., D), (F, D), (F,), (D, F) -> (B, ..., D).

    GELU exact (erf) or with the tanh approximation (Hendrycks and Gimpel 2016).
    The second bias is left to :func:`dropout_add_norm`. Compiled: keeps one tensor of width F for the backward pass
    instead of two or three; activations and masks are computed again in the pass that makes their gradient.
    """
    keys = keys if p > 0.0 else None
    _check_keys(keys, len(x))
    x, up, down = _as_products(x, up, down)
    if not _compiled(x, up, down):
        return plain.feed_forward(x, up, up_bias, down, tanh=tanh, p=p, keys=keys, site=site)
    return apply(rows.FeedForward, x.contiguous(), up, up_bias, down, tanh, keys, site, p)


def linear_cross_entropy(
    x: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, *, uniforms: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Cross entropy of softmax(x weight^T + bias): sum of the losses in nats, number of hits, samples.

    x (S, D), weight (V, D), bias (V,), labels (S,) int64. ``uniforms`` (S,) float64 in [0, 1) draws one class per row
    from the softmax by inversion of its cumulative distribution, without gradient: (S,) int64; otherwise None.
    Compiled: logits exist for 128 MiB at a time, and the gradients are computed with them, once.
    """
    x, weight = _as_products(x, weight)
    if not _compiled(x, weight):
        return plain.linear_cross_entropy(x, weight, bias, labels, uniforms=uniforms)
    given = (x.contiguous(), weight, bias, labels.contiguous(), uniforms)
    loss, hits, sampled = apply(vocabulary.LinearCrossEntropy, *given)
    return loss, hits, None if uniforms is None else sampled


def depthwise(x: Tensor, weight: Tensor, doc: Tensor | None = None) -> Tensor:
    """``out[b, t, c] = sum_j weight[c, j] x[b, t + j - J // 2, c]``: (B, L, C), (C, J), J odd -> (B, L, C).

    Taps outside the row read zero; with ``doc`` (B, L) so do those on another document, or where ``doc`` is negative.
    Compiled: one pass over x, whatever the number of taps.
    """
    if not _compiled(x) or weight.shape[1] > convolution.MOST_TAPS:
        return plain.depthwise(x, weight, doc)
    return apply(convolution.Depthwise, x.contiguous(), weight, convolution.documents(doc, x))


def dynamic_convolution(x: Tensor, logits: Tensor, heads: int, doc: Tensor | None = None) -> Tensor:
    """``out[b, t, h] = sum_j softmax(logits[b, t, h])_j x[b, t + j - J // 2, h]``: x (B, L, H K), logits (B, L, H J).

    Taps outside the row or document (see :func:`depthwise`) read zero; they keep their share of the softmax.
    """
    if not _compiled(x, logits) or logits.shape[-1] > heads * convolution.MOST_TAPS:
        return plain.dynamic_convolution(x, logits, heads, doc)
    return apply(convolution.Dynamic, x.contiguous(), logits.contiguous(), convolution.documents(doc, x), heads)
