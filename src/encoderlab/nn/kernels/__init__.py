"""The operations between matrix products, one function each: the device's kernel if it has one, else plain torch.

:mod:`.cpu`: C++, for float32 and bfloat16 where a compiler is present (see :mod:`.build`). :mod:`.gpu`: Triton, for
float32, bfloat16 and float16 where it is installed. :mod:`.plain`: torch, for everything else and for export. All
compute the same formulas with the same dropout masks, those of :func:`encoderlab.nn.noise.kept`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from encoderlab.nn.kernels import build, cpu, plain
from encoderlab.nn.kernels.functions import packed_heads
from encoderlab.nn.kernels.memory import keep_memory as keep_memory
from encoderlab.nn.kernels.operation import apply, exporting
from encoderlab.nn.kernels.plain import Relative as Relative


def _kernels(x: Tensor, *others: Tensor | None) -> Any:
    """The package whose kernels accept these tensors, or None."""
    fit = all(other is None or (other.dtype == x.dtype and other.numel() > 0) for other in others)
    if not fit or x.numel() == 0 or exporting():
        return None
    if x.device.type == "cpu" and x.dtype in (torch.float32, torch.bfloat16) and build.available():
        return cpu
    if x.is_cuda and x.dtype in (torch.float32, torch.bfloat16, torch.float16) and build.triton_available():
        from encoderlab.nn.kernels import gpu  # which imports Triton

        return gpu
    return None


def _as_products(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The tensors in the precision of matrix products: autocast casts the inputs of torch's products, not of functions
    here.
    """
    device = tensors[0].device.type
    if device == "meta" or not torch.is_autocast_enabled(device):
        return tensors
    dtype = torch.get_autocast_dtype(device)
    return tuple(x if x.dtype == torch.float64 else x.to(dtype) for x in tensors)


def _checked(seeds: Tensor | None, p: float, rows: int) -> Tensor | None:
    """The seeds, one per row; None where nothing is dropped."""
    if seeds is None or p <= 0.0:
        return None
    if seeds.shape[0] != rows:
        raise ValueError(f"dropout got {seeds.shape[0]} seeds for {rows} rows; give one seed per row of the batch")
    return seeds


def dropout(x: Tensor, p: float, seeds: Tensor | None, site: int) -> Tensor:
    """x (B, ..., D) with elements set to 0 at rate p and the others divided by 1 - p (Srivastava et al., 2014).

    ``seeds`` (B,) int64 and ``site`` determine the mask, see :mod:`encoderlab.nn.noise`; seeds None: no dropout.
    """
    if (seeds := _checked(seeds, p, x.shape[0])) is None:
        return x
    fast = _kernels(x)
    if fast is None:
        return plain.dropout(x, p, seeds, site)
    return apply(fast.rows.Dropout, x.contiguous(), seeds, site, p)


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
    """norm(residual + dropout(x + x_bias)) over the last axis; x, residual (B, ..., D), the others (D,).

    The norm is LayerNorm if ``center``, else RMSNorm. A kernel's result has the precision of x, even where the
    residual's is wider (under autocast, the embeddings).
    """
    seeds = _checked(seeds, p, x.shape[0])
    fast = _kernels(x)
    if fast is None:
        return plain.dropout_add_norm(x, residual, weight, bias, eps, p, seeds, site, x_bias=x_bias, center=center)
    residual = None if residual is None else residual.to(x.dtype).contiguous()
    return apply(fast.rows.AddNorm, x.contiguous(), x_bias, residual, weight, bias, seeds, site, p, eps, center)


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
    """residual + dropout(x + x_bias), and its norm (see :func:`dropout_add_norm`); x None means the residual and its
    norm.

    The kernel exists on CPUs only: its sum has the precision of the residual, its norm the precision of matrix
    products.
    """
    seeds = _checked(None if x is None else seeds, p, residual.shape[0])
    (product,) = _as_products(residual[:0])
    fits = product.dtype in (residual.dtype, torch.bfloat16)
    if _kernels(residual) is not cpu or not fits or (x is not None and x.dtype != product.dtype):
        return plain.dropout_add_then_norm(x, residual, weight, bias, eps, p, seeds, site, x_bias=x_bias, center=center)
    how = site, p, eps, center, product.dtype == torch.bfloat16
    added = None if x is None else x.contiguous()
    made = apply(cpu.rows.SumNorm, added, x_bias, residual.contiguous(), weight, bias, seeds, *how)
    return (residual, made) if x is None else made


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
    """softmax(scale q k^T + bias, over what is visible) v; dropout on the probabilities (Vaswani et al. 2017, 3.2.1).

    q (B, H, L, K), k (B, H, M, K), v (B, H, M, V) -> (B, H, L, V); bias and bool visible broadcast to (B, H, L, M). The
    queries are the last L of the M keys; ``reach`` hides keys further away from a query. The result is stored as
    (B, L, H, V), so ``transpose(1, 2).flatten(2)`` copies nothing. A kernel never stores the scores: the backward pass
    computes them again. On a CPU, keys that no query of a block sees cost nothing.

    Raises:
        ValueError: a bias or mask that does not broadcast to (B, H, L, M), or another number of seeds than rows.
    """
    seeds = _checked(seeds, p, q.shape[0])
    fast = _kernels(q, k, v)
    if fast is None or (relative is not None and bias is not None):
        how: dict[str, Any] = {
            "scale": scale,
            "p": p,
            "seeds": seeds,
            "site": site,
            "relative": relative,
            "reach": reach,
        }
        return plain.attend(q, k, v, bias=bias, visible=visible, **how)
    if fast is cpu:
        return cpu.attention.attend(q, k, v, bias, visible, seeds, scale, p, site, relative, reach)
    visible = plain.within_reach(visible, q.shape[2], k.shape[2], reach, q.device)
    return fast.attention.attend(q, k, v, bias, visible, seeds, scale, p, site, relative)


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
    """Self-attention from one product with queries, keys and values: qkv (B, L, 3 A) -> (B, L, A).

    ``reach`` as in :func:`attend`; ``rotation`` (L, K) rotates queries and keys, see :func:`plain.rotate`. A kernel
    writes the gradient of qkv in place instead of concatenating three.
    """
    seeds = _checked(seeds, p, qkv.shape[0])
    fast = _kernels(qkv)
    how: dict[str, Any] = {"visible": visible, "scale": scale, "p": p, "seeds": seeds, "site": site, "reach": reach}
    if fast is None:
        return plain.attend_packed(qkv, heads, rotation=rotation, **how)
    if fast is cpu:
        return cpu.attention.attend_packed(qkv, heads, visible, seeds, scale, p, site, reach, rotation)
    if rotation is not None or reach is not None:  # on a GPU, torch rotates queries and keys and makes the mask
        q, k, v = packed_heads(qkv, heads).unbind()
        if rotation is not None:
            q, k = plain.rotate(q, rotation), plain.rotate(k, rotation)
        return attend(q, k, v, **how).transpose(1, 2).flatten(2)
    return fast.attention.attend_packed(qkv, heads, visible, seeds, scale, p, site)


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
    """dropout(gelu(x up^T + up_bias)) down^T: (B, ..., D), (F, D), (F,), (D, F) -> (B, ..., D).

    GELU is exact (erf) or the tanh approximation (Hendrycks and Gimpel 2016). ``gated``: up (2 F, D), up_bias (2 F,);
    the activated first half of the product is multiplied with the second half. :func:`dropout_add_norm` adds the second
    bias. A kernel keeps one tensor of width F for the backward pass instead of two or three; the backward pass computes
    activations and masks again.
    """
    seeds = _checked(seeds, p, x.shape[0])
    x, up, down = _as_products(x, up, down)
    fast = _kernels(x, up, down)
    if fast is None:
        return plain.feed_forward(x, up, up_bias, down, tanh=tanh, gated=gated, p=p, seeds=seeds, site=site)
    return apply(fast.rows.FeedForward, x.contiguous(), up, up_bias, down, gated, tanh, seeds, site, p)


def gelu(x: Tensor, *, tanh: bool = False, gated: bool = False) -> Tensor:
    """GELU of x (B, ..., F), exact (erf) or the tanh approximation; ``gated``: of the first half of x (B, ..., 2 F)
    times the second. Without gradient.
    """
    fast = _kernels(x)
    if fast is None:
        inner, gate = x.chunk(2, dim=-1) if gated else (x, None)
        inner = torch.nn.functional.gelu(inner, approximate="tanh" if tanh else "none")
        return inner if gate is None else inner * gate
    out: Tensor = fast.rows.gelu(x.contiguous(), None, gated, tanh, None, 0, 0.0)
    return out


def linear_cross_entropy(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    labels: Tensor,
    *,
    uniforms: Tensor | None = None,
    z_loss: float = 0.0,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Cross entropy of softmax(x weight^T + bias): sum of the losses in nats, number of hits, samples.

    x (S, D), weight (V, D), bias (V,), labels (S,) int64. ``uniforms`` (S,) float64 in [0, 1) draw one class per row
    from the softmax by inverting its cumulative distribution, without gradient: samples (S,) int64; without
    ``uniforms`` None. A kernel holds a bounded chunk of logits at a time and computes their gradients at once. The
    gradient includes ``z_loss`` log(Z)^2, with the softmax's denominator Z; the sum does not, so losses stay
    comparable.
    """
    x, weight = _as_products(x, weight)
    fast = _kernels(x, weight)
    if fast is None:
        return plain.linear_cross_entropy(x, weight, bias, labels, uniforms=uniforms, z_loss=z_loss)
    inputs = (x.contiguous(), weight, bias, labels.contiguous(), uniforms, z_loss)
    loss, hits, sampled = apply(fast.vocabulary.LinearCrossEntropy, *inputs)
    return loss, hits, None if uniforms is None else sampled


def divergence(logits: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """KL(softmax(targets / T) || softmax(logits / T)) with temperature T: its sum in nats, and the number of rows whose
    first choices are equal.

    logits, targets (S, V); targets have no gradient. A kernel computes the gradient at once, and stores nothing else.
    """
    fast = _kernels(logits, targets)
    if fast is None:
        return plain.divergence(logits, targets, temperature)
    made: tuple[Tensor, Tensor] = apply(
        fast.vocabulary.Divergence, logits.contiguous(), targets.detach().contiguous(), temperature
    )
    return made


def depthwise(x: Tensor, weight: Tensor, doc: Tensor | None = None) -> Tensor:
    """``out[b, t, c] = sum_j weight[c, j] x[b, t + j - J // 2, c]``: (B, L, C), (C, J), J odd -> (B, L, C).

    Taps outside the row read zero; with ``doc`` (B, L) so do taps on another document or on padding (``doc`` < 0). A
    kernel makes one pass over x for any number of taps.
    """
    fast = _kernels(x)
    if fast is None or weight.shape[1] > fast.convolution.MOST_TAPS:
        return plain.depthwise(x, weight, doc)
    return apply(fast.convolution.Depthwise, x.contiguous(), weight, fast.convolution.documents(doc, x))


def dynamic_convolution(x: Tensor, logits: Tensor, heads: int, doc: Tensor | None = None) -> Tensor:
    """``out[b, t, h] = sum_j softmax(logits[b, t, h])_j x[b, t + j - J // 2, h]``: x (B, L, H K), logits (B, L, H J).

    Taps outside the row or document (see :func:`depthwise`) read zero, but count in the softmax.

    Raises:
        ValueError: the positions of logits and x differ; kernels would read beyond the end.
    """
    if x.shape[:2] != logits.shape[:2]:
        raise ValueError(f"logits {tuple(logits.shape)} do not fit x {tuple(x.shape)}; give a kernel for each position")
    fast = _kernels(x, logits)
    if fast is None or logits.shape[-1] > heads * fast.convolution.MOST_TAPS:
        return plain.dynamic_convolution(x, logits, heads, doc)
    documents = fast.convolution.documents(doc, x)
    return apply(fast.convolution.DynamicConvolution, x.contiguous(), logits.contiguous(), documents, heads)


def mixed_attention(
    qkv: Tensor,
    value: Tensor,
    span: Tensor,
    weight: Tensor,
    bias: Tensor,
    heads: int,
    *,
    visible: Tensor | None = None,
    doc: Tensor | None = None,
    scale: float,
    p: float = 0.0,
    seeds: Tensor | None = None,
    site: int = 0,
) -> Tensor:
    """Attention heads and span-dynamic convolution heads, concatenated (Jiang et al., 2020, section 3.3): (B, L, 2 A).

    First :func:`attend_packed` of qkv (B, L, 3 A), then :func:`dynamic_convolution` of value (B, L, A) with logits
    (span * queries) weight^T + bias, from span (B, L, A), weight (H J, A), bias (H J,).
    """
    seeds = _checked(seeds, p, qkv.shape[0])
    span, weight = _as_products(span, weight)
    fast = _kernels(qkv, value, span, weight)
    if fast is cpu and len(weight) <= heads * cpu.convolution.MOST_TAPS:
        inputs = (value.contiguous(), span.contiguous(), weight, bias)
        by_head = packed_heads(qkv, heads)
        seen = (cpu.attention.full_rows(visible, *by_head[:2]), cpu.convolution.documents(doc, value), seeds)
        return apply(cpu.mixed.MixedAttention, by_head, *inputs, *seen, scale, p, site)
    q, k, v = packed_heads(qkv, heads).unbind()
    attended = attend(q, k, v, visible=visible, scale=scale, p=p, seeds=seeds, site=site).transpose(1, 2).flatten(2)
    logits = torch.nn.functional.linear(span * q.transpose(1, 2).flatten(2), weight, bias)
    return torch.cat([attended, dynamic_convolution(value, logits, heads, doc)], dim=-1)
