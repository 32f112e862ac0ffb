"""One layer of the encoder: attention, then feed-forward. Shape letters are those of :mod:`encoderlab.nn.encoder`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from encoderlab.nn import kernels
from encoderlab.nn.architecture import EncoderConfig
from encoderlab.nn.attention import Attention, Keyed
from encoderlab.nn.feedforward import FeedForward
from encoderlab.nn.kernels.cpu.layer import predict_layer
from encoderlab.nn.noise import ATTENTION_OUTPUT, FF_HIDDEN, FF_OUTPUT
from encoderlab.nn.norms import Norm, norm_bias
from encoderlab.nn.packed import Packed, PackedLinear, linear
from encoderlab.nn.positions import DisentangledTerm
from encoderlab.nn.scope import Scope


class Block(nn.Module):
    """One layer: attention, then feed-forward, each with dropout, residual sum and norm.

    The norm follows the sum ("post") or precedes attention and feed-forward ("pre"). ``parts`` ("attention",
    "feed_forward") are taken with their weights from the block ``shared``; other parts are new. ``first``: this is the
    first layer.
    """

    attention: Attention
    attention_norm: Norm | None
    attention_output_norm: Norm | None
    feed_forward: FeedForward
    feed_forward_norm: Norm

    def __init__(
        self, config: EncoderConfig, shared: Block | None = None, parts: Sequence[str] = (), *, first: bool = False
    ) -> None:
        super().__init__()
        self.pre, self.center = config.pre, config.normalization.center
        self.eps, self.dropout = config.eps, config.dropout
        self.output_dropout = config.dropout if config.ff_output_dropout is None else config.ff_output_dropout
        if shared is not None and "attention" in parts:
            self.attention, self.attention_norm = shared.attention, shared.attention_norm
            self.attention_output_norm = shared.attention_output_norm
        else:
            self.attention = Attention(config)
            bare = first and config.norm == "pre_but_first"
            self.attention_norm = None if bare else config.make_norm(config.width)
            self.attention_output_norm = config.make_norm(config.width) if config.inner_norms else None
        if shared is not None and "feed_forward" in parts:
            self.feed_forward, self.feed_forward_norm = shared.feed_forward, shared.feed_forward_norm
        else:
            self.feed_forward = FeedForward(config)
            self.feed_forward_norm = config.make_norm(config.width)

    def forward(self, x: Tensor, source: Tensor | Keyed, scope: Scope) -> tuple[Tensor, Keyed | None]:
        """The layer's output (B, L, D), and its keys and values if the scope keeps them.

        Args:
            x: (B, L, D), the source of the queries; the output of attention is added to it.
            source: the states (B, M, D) from which keys and values are computed, or keys and values themselves.
            scope: masks, positions and dropout seeds.
        """
        if source is x and (predicted := self._predicted(x, scope)) is not None:
            return predicted, None
        seeds, out = scope.seeds, self.attention.out
        if self.pre:
            normed = self.normed(x)
            if isinstance(source, Tensor):
                source = normed if source is x else self.normed(source)
            attended, keyed = self.attention(normed, source, scope)
            if self.attention.head_scale is not None:
                attended = self.attention.head_scale(attended)
            change, norm = linear(attended, out.weight), self.feed_forward_norm
            bias: Tensor | None = out.bias
            if self.attention_output_norm is not None:
                change, bias = self.attention_output_norm(change if bias is None else change + bias), None
            x, normed = kernels.dropout_add_then_norm(
                change, x, norm.weight, norm_bias(norm), self.eps, self.dropout, seeds, ATTENTION_OUTPUT, x_bias=bias,
                center=self.center,
            )  # fmt: skip
            change = self.feed_forward(normed, seeds, FF_HIDDEN)
            return x + kernels.dropout(change, self.output_dropout, seeds, FF_OUTPUT), keyed
        attended, keyed = self.attention(x, source, scope)
        change = linear(attended, out.weight)
        x = self._join(change, out.bias, x, self.attention_norm, self.dropout, seeds, ATTENTION_OUTPUT)
        change, bias = self.feed_forward.without_bias(x, seeds, FF_HIDDEN)
        return self._join(change, bias, x, self.feed_forward_norm, self.output_dropout, seeds, FF_OUTPUT), keyed

    def _predicted(self, x: Tensor, scope: Scope) -> Tensor | None:
        """The output without gradient from one call, if the weights are packed and the kernel supports all parts."""
        attention, ff = self.attention, self.feed_forward
        if not (isinstance(attention.qkv, Packed) and isinstance(ff.up, PackedLinear)) or torch.is_grad_enabled():
            return None
        assert isinstance(attention.out, PackedLinear) and isinstance(ff.down, PackedLinear)
        term = attention.term
        if term is not None and not (isinstance(term, DisentangledTerm) and scope.reach is None):
            return None
        plain = scope.seeds is None and scope.at is None and not scope.keep_keyed and x.dtype == torch.float32
        plain = plain and attention.conv is None and attention.head_scale is None
        plain = plain and self.attention_output_norm is None and ff.norm is None
        if not (plain and scope.one_rotation) or ff.act not in ("gelu", "gelu_tanh") or not x.numel():
            return None
        weights = (
            attention.qkv.at(attention.bias_of_all()), attention.out.weight.at(attention.out.bias),
            ff.up.weight.at(ff.up.bias), ff.down.weight.at(ff.down.bias),
        )  # fmt: skip
        if None in weights:
            return None
        relative = None if term is None else term.relative(scope, attention)
        norms = (
            (None, None) if norm is None else (norm.weight, norm_bias(norm))
            for norm in (self.attention_norm, self.feed_forward_norm)
        )
        return predict_layer(
            x, weights, tuple(norms), attention.heads, visible=scope.visible, rotation=scope.rotation,
            relative=relative, reach=scope.reach, scale=attention.scale, pre=self.pre,
            center=self.center, gated=ff.gated, tanh=ff.act == "gelu_tanh", eps=self.eps,
        )  # fmt: skip

    def normed(self, x: Tensor) -> Tensor:
        """The input of attention for states x (B, L, D): x, or its norm where norms come first."""
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
        seeds: Tensor | None,
        site: int,
    ) -> Tensor:
        """norm(x + dropout(change + bias)), in one pass over memory."""
        assert norm is not None
        how = norm.weight, norm_bias(norm), self.eps, p, seeds, site
        return kernels.dropout_add_norm(change, x, *how, x_bias=bias, center=self.center)
