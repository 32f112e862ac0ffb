"""The parts of a kernel that are the same on every device: schemas, shapes, and gradients as a torch Function.

:mod:`.cpu` and :mod:`.gpu` write raw functions with these shapes, and make their Functions here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable


def comes_again() -> bool:
    """Whether the tensors saved for this backward pass must stay unchanged.

    True while the pass is traced, or if the graph is kept (``retain_graph``) and may run again.
    """
    return torch.compiler.is_compiling() or torch._C._autograd._get_current_graph_task_keep_graph()


def dropout_function(dropout: Callable[..., Tensor]) -> type[Function]:
    """The Function of ``dropout(x, seeds, site, p)``; its backward pass is the same call on the gradient."""

    class DropoutFunction(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, seeds: Tensor, site: int, p: float) -> Tensor:
            ctx.save_for_backward(seeds)
            ctx.site, ctx.p = site, p
            return dropout(x, seeds, site, p)

        @staticmethod
        @once_differentiable
        def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
            return dropout(grad.contiguous(), *ctx.saved_tensors, ctx.site, ctx.p), None, None, None

    return DropoutFunction


# ----------------------------------------------------------------------------------------------------------- attention


def heads_last(x: Tensor, width: int) -> Tensor:
    """An empty (B, H, L, width) stored as (B, L, H, width), so that merging the heads copies nothing."""
    batch, heads, length, _ = x.shape
    return x.new_empty(batch, length, heads, width).transpose(1, 2)


def attend_shapes(q: Tensor, k: Tensor, v: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    """The attended values (B, H, L, V), and the log of each row's softmax denominator (B, H, L)."""
    return heads_last(q, v.shape[-1]), q.new_empty(q.shape[:3], dtype=torch.float32)


def attend_function(
    attend: Callable[..., tuple[Tensor, Tensor]], backward: Callable[..., Any], how: int, keep_out: bool
) -> type[Function]:
    """Attention with the arguments of ``attend``, whose last ``how`` are numbers.

    ``backward`` returns the gradients of the first arguments; ``keep_out``: it reads the attended values.
    """

    class Attend(Function):
        @staticmethod
        def forward(ctx: Any, *inputs: Any) -> Tensor:
            out, log_sum = attend(*inputs)
            ctx.save_for_backward(*inputs[:-how], *[out] * keep_out, log_sum)
            ctx.how = inputs[-how:]
            return out

        @staticmethod
        @once_differentiable
        def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
            inputs = ctx.saved_tensors
            grads = backward(dense(grad), *inputs, *ctx.how)
            grads = (grads,) if isinstance(grads, Tensor) else grads
            fitting = [
                None if x is None else (g if g.shape == x.shape else g.sum_to_size(x.shape)).to(x.dtype)
                for g, x in zip(grads, inputs, strict=False)
            ]
            return *fitting, *[None] * (len(ctx.needs_input_grad) - len(fitting))

    return Attend


def dense(x: Tensor) -> Tensor:
    """x with stride 1 along its last axis, as kernels read rows."""
    return x if x.stride(-1) == 1 else x.contiguous()


def documents(doc: Tensor | None, x: Tensor) -> Tensor | None:
    """``doc`` for the kernels: dense, one number per position of x (B, L, ...). Kernels do not check it.

    Raises:
        ValueError: the shape of ``doc`` is not (B, L).
    """
    if doc is not None and doc.shape != x.shape[:2]:
        raise ValueError(f"doc {tuple(doc.shape)} does not fit x {tuple(x.shape)}; give a document for each position")
    return None if doc is None else doc.contiguous()


def packed_heads(qkv: Tensor, heads: int) -> Tensor:
    """Queries, keys and values by head, (3, B, H, L, K), a view of one product (B, L, 3 H K)."""
    return qkv.contiguous().unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4)


# ------------------------------------------------------------------------------------------- dropout + add + LayerNorm


# Schemas of operations that both devices have.
ADD_NORM = """(Tensor x, Tensor? x_bias, Tensor? residual, Tensor weight, Tensor? bias, Tensor? seeds, int site,
    float p, float eps, bool center) -> (Tensor, Tensor)"""
ADD_NORM_BACKWARD = """(Tensor grad, Tensor x, Tensor? x_bias, Tensor? residual, Tensor weight, Tensor statistics,
    Tensor? seeds, int site, float p, bool center) -> (Tensor, Tensor, Tensor)"""


def add_norm_shapes(x: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    """The normalised sum, and mean and 1 / deviation of every position, (positions, 2)."""
    return torch.empty_like(x), x.new_empty(x.numel() // x.shape[-1], 2, dtype=torch.float32)


def add_norm_backward_shapes(
    grad: Tensor, x: Tensor, x_bias: Tensor | None, residual: Tensor | None, *_: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x and residual, and, in (3, D), of weight, bias and x_bias.

    Gradients of absent arguments are empty or undefined.
    """
    dresidual = x.new_empty(0) if residual is None else torch.empty_like(x)
    return torch.empty_like(x), dresidual, x.new_empty(3, x.shape[-1], dtype=torch.float32)


def add_norm_function(
    add_norm: Callable[..., tuple[Tensor, Tensor]], add_norm_backward: Callable[..., tuple[Tensor, Tensor, Tensor]]
) -> type[Function]:
    """norm(residual + dropout(x + x_bias)). Saves its arguments and the statistics of :func:`add_norm_shapes`.

    ``how`` is site, p, eps and center.
    """

    class AddNorm(Function):
        @staticmethod
        def forward(
            ctx: Any,
            x: Tensor,
            x_bias: Tensor | None,
            residual: Tensor | None,
            weight: Tensor,
            bias: Tensor | None,
            seeds: Tensor | None,
            *how: Any,
        ) -> Tensor:
            out, statistics = add_norm(x, x_bias, residual, weight, bias, seeds, *how)
            ctx.save_for_backward(x, x_bias, residual, weight, statistics, seeds)
            site, p, _, center = how
            ctx.how = site, p, center
            ctx.bias_dtype = None if bias is None else bias.dtype
            return out

        @staticmethod
        @once_differentiable
        def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
            x, x_bias, residual, weight, statistics, seeds = ctx.saved_tensors
            dx, dresidual, sums = add_norm_backward(
                grad.contiguous(), x, x_bias, residual, weight, statistics, seeds, *ctx.how
            )
            dweight, dbias, dx_bias = sums.unbind()
            return (
                dx,
                None if x_bias is None else dx_bias.to(x_bias.dtype),
                None if residual is None else dresidual,
                dweight.to(weight.dtype),
                None if ctx.bias_dtype is None else dbias.to(ctx.bias_dtype),
                *[None] * 5,
            )

    return AddNorm


# -------------------------------------------------------------------------------------------------------- feed-forward


GELU_BACKWARD = """(Tensor(a!) grad, Tensor x, Tensor? bias, Tensor(b!) out, bool gated, bool tanh, Tensor? seeds,
    int site, float p) -> Tensor"""


def gelu_shapes(x: Tensor, bias: Tensor | None, gated: bool, *_: Any) -> Tensor:
    """The activations; with gates they are half as wide as x."""
    return x.new_empty(*x.shape[:-1], x.shape[-1] // 2) if gated else torch.empty_like(x)


def gelu_backward_shapes(grad: Tensor, x: Tensor, bias: Tensor | None, *_: Any) -> Tensor:
    """The gradient of the bias. The kernel overwrites two more tensors.

    Without gates the gradient of x replaces ``grad``, and the activations are written to ``out``, which may be x. With
    gates the gradient of x is written to ``out`` and the activations, half as wide, replace ``grad``.
    """
    return x.new_empty(0 if bias is None else x.shape[-1], dtype=torch.float32)


def feed_forward_function(gelu: Callable[..., Tensor], gelu_backward_: Callable[..., Tensor]) -> type[Function]:
    """dropout(gelu(x up^T + up_bias)) down^T, or gated; x (B, ..., D). Saves x up^T and computes the rest again."""

    class FeedForwardFunction(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, up: Tensor, up_bias: Tensor | None, down: Tensor, *how: Any) -> Tensor:
            """``how`` is gated, tanh, seeds, site, p of ``gelu``."""
            inner = x @ up.T
            gated, tanh, seeds, site, p = how
            ctx.save_for_backward(x, up, up_bias, down, inner, seeds)
            ctx.gated, ctx.tanh, ctx.site, ctx.p = gated, tanh, site, p
            return gelu(inner, up_bias, *how) @ down.T

        @staticmethod
        @once_differentiable
        def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
            x, up, up_bias, down, inner, seeds = ctx.saved_tensors
            dinner = grad @ down
            activated = torch.empty_like(inner) if comes_again() else inner
            dbias = gelu_backward_(dinner, inner, up_bias, activated, ctx.gated, ctx.tanh, seeds, ctx.site, ctx.p)
            if ctx.gated:
                dinner, activated = activated, dinner
            need_x, need_up, _, need_down = ctx.needs_input_grad[:4]
            return (
                dinner @ up if need_x else None,
                dinner.flatten(0, -2).T @ x.flatten(0, -2) if need_up else None,
                None if up_bias is None else dbias.to(up_bias.dtype),
                grad.flatten(0, -2).T @ activated.flatten(0, -2) if need_down else None,
                *[None] * 5,
            )

    return FeedForwardFunction


# ------------------------------------------------------------------------------------------- cross entropy of products


LINEAR_CROSS_ENTROPY = """(Tensor x, Tensor weight, Tensor? bias, Tensor labels, Tensor? uniforms, bool gradients,
    float z_loss=0.0) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"""


def linear_cross_entropy_shapes(
    x: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, uniforms: Tensor | None, gradients: bool, *_: Any
) -> tuple[Tensor, ...]:
    """Sum of the losses, number of hits, samples, and the gradients of the sum with respect to x, weight and bias."""
    return (
        x.new_empty((), dtype=torch.float32),
        labels.new_empty(()),
        labels.new_empty(0 if uniforms is None else len(x)),
        torch.empty_like(x) if gradients else x.new_empty(0),
        torch.empty_like(weight) if gradients else x.new_empty(0),
        x.new_empty(len(weight) if gradients and bias is not None else 0, dtype=torch.float32),
    )


def linear_cross_entropy_function(linear_cross_entropy: Callable[..., tuple[Tensor, ...]]) -> type[Function]:
    """Computes gradients in the forward pass, chunk by chunk, so that the logits of all rows never exist at once."""

    class LinearCrossEntropy(Function):
        @staticmethod
        def forward(
            ctx: Any,
            x: Tensor,
            weight: Tensor,
            bias: Tensor | None,
            labels: Tensor,
            uniforms: Tensor | None,
            z_loss: float = 0.0,
        ) -> tuple[Tensor, Tensor, Tensor]:
            gradients = any(ctx.needs_input_grad[:3])
            loss, hits, sampled, *grads = linear_cross_entropy(x, weight, bias, labels, uniforms, gradients, z_loss)
            ctx.save_for_backward(*grads)
            ctx.bias_dtype = None if bias is None else bias.dtype
            ctx.mark_non_differentiable(hits, sampled)
            return loss, hits, sampled

        @staticmethod
        @once_differentiable
        def backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
            dx, dweight, dbias = ctx.saved_tensors
            scaled = None if ctx.bias_dtype is None else (dbias * grad).to(ctx.bias_dtype)
            if comes_again():
                return dx * grad.to(dx.dtype), dweight * grad.to(dx.dtype), scaled, None, None, None
            return dx.mul_(grad), dweight.mul_(grad), scaled, None, None, None

    return LinearCrossEntropy


# --------------------------------------------------------------------------------------- divergence of rows of logits


DIVERGENCE = "(Tensor logits, Tensor targets, float temperature, bool gradients) -> (Tensor, Tensor, Tensor)"


def divergence_shapes(
    logits: Tensor, targets: Tensor, temperature: float, gradients: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Sum of the divergences, number of hits, and the gradient of the sum with respect to the logits."""
    gradient = torch.empty_like(logits) if gradients else logits.new_empty(0)
    return logits.new_empty((), dtype=torch.float32), logits.new_empty((), dtype=torch.int64), gradient


def divergence_function(divergence: Callable[..., tuple[Tensor, ...]]) -> type[Function]:
    """Computes the gradient in the forward pass, where the exponentials are at hand. The targets have none."""

    class Divergence(Function):
        @staticmethod
        def forward(ctx: Any, logits: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
            loss, hits, gradient = divergence(logits, targets, temperature, ctx.needs_input_grad[0])
            ctx.save_for_backward(gradient)
            ctx.mark_non_differentiable(hits)
            return loss, hits

        @staticmethod
        @once_differentiable
        def backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
            (gradient,) = ctx.saved_tensors
            return gradient * grad if comes_again() else gradient.mul_(grad), None, None

    return Divergence
