"""Multi-head attention with position terms, memory, a query stream and convolution heads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from encoderlab.nn import kernels, noise
from encoderlab.nn.kernels.plain import attend, relative_bias, rotate
from encoderlab.nn.norms import HeadScale
from encoderlab.nn.packed import Packed, linear
from encoderlab.nn.positions import bias_at
from encoderlab.nn.scope import Scope
from encoderlab.nn.spanconv import ConvolutionHeads

if TYPE_CHECKING:
    from encoderlab.nn.architecture import EncoderConfig

Biases = Literal["all", "query_value", "none"]


class Keyed(NamedTuple):
    """Keys and values of a layer, (B, M, A) each; a second pass over the same states reuses them."""

    key: Tensor
    value: Tensor


class Attention(nn.Module):
    """Multi-head attention (Vaswani et al., 2017, section 3.2) with the parts that a family adds.

    Queries come from ``x`` (B, L, D). Keys and values come from ``source`` (B, M, D): x itself, memory and x, or the
    stored states of a query stream. ``source`` may also be keys and values (:class:`Keyed`). If queries, keys and
    values have the same source, one matrix product computes all three. ``heads`` counts the heads that attend; with
    ``conv``, as many channels convolve next to them. The block multiplies the outputs of each head with
    ``head_scale``, if there is one. Costs memory of O(L) per head with a kernel, O(L M) without.
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        width, heads, head_width = config.width, config.attention_heads, config.key_width
        biases = config.attention_biases
        self.heads, self.head_width, self.inner = heads, head_width, heads * head_width
        self.biases, self.dropout, self.position_dropout = biases, config.attention_dropout, config.dropout
        self.qkv: nn.Parameter | Packed = nn.Parameter(torch.empty(3 * self.inner, width))
        self.bias = None
        if biases != "none":
            self.bias = nn.Parameter(torch.zeros((3 if biases == "all" else 2) * self.inner))
        self.term = config.position.make_term(config)
        self.scale = config.position.scale(head_width)
        self.conv = None
        outputs = self.inner
        if config.conv_branch is not None:
            self.conv = ConvolutionHeads(config.conv_branch, width, heads, head_width)
            outputs *= 2
        self.out = nn.Linear(outputs, width, bias=biases != "none")
        self.head_scale = HeadScale(outputs // head_width) if config.norm == "normformer" else None

    def forward(self, x: Tensor, source: Tensor | Keyed, scope: Scope) -> tuple[Tensor, Keyed | None]:
        """Outputs of the heads, (B, L, A), or (B, L, 2 A) with convolution heads; keys and values too, if the scope
        keeps them.

        The output map belongs to the block, which fuses it with the next operation.
        """
        how: dict[str, Any] = {
            "scale": self.scale,
            "p": self.dropout,
            "seeds": scope.seeds,
            "site": noise.ATTENTION_WEIGHTS,
        }
        if source is x and self.term is None and not scope.keep_keyed:
            how["visible"] = scope.visible
            if self.conv is None and scope.one_rotation:
                packed = linear(x, self.qkv, self.bias_of_all())
                return kernels.attend_packed(
                    packed, self.heads, reach=scope.reach, rotation=scope.rotation, **how
                ), None
            if self.conv is not None and self.conv.mixes and scope.reach is None and scope.rotation is None:
                packed = linear(x, self.qkv, self.bias_of_all())
                return self.conv.mixed(x, packed, scope.doc, **how), None
        query, key, value = self._project(x, source)
        q, k, v = (self._split(part) for part in (query, key, value))
        q, k = self._rotated(q, k, scope)
        content, terms = self._terms(q, k, scope)
        how["visible"], how["reach"] = scope.seen(k.shape[2])
        attended = kernels.attend(content, k, v, **terms, **how)
        attended = attended.transpose(1, 2).flatten(2)
        if self.conv is not None:
            if scope.at is not None:
                assert isinstance(source, Tensor)  # a query stream has no convolution
                x = source[:, scope.remembered :]
            attended = torch.cat([attended, self.conv(x, query, value, scope.doc, scope.at)], dim=-1)
        return attended, Keyed(key, value) if scope.keep_keyed else None

    def scores(self, x: Tensor, scope: Scope) -> Tensor:
        """Scaled scores (B, H, L, L) before mask and softmax, for inspection and for distillation."""
        query, key, _ = self._project(x, x)
        q, k = self._rotated(self._split(query), self._split(key), scope)
        content, terms = self._terms(q, k, scope)
        scores = content @ k.transpose(-1, -2) * self.scale
        if "relative" in terms:
            return scores + relative_bias(content, k, terms["relative"], self.scale)
        return scores + terms["bias"] if terms else scores

    def weights(self, x: Tensor, source: Tensor, scope: Scope) -> Tensor:
        """The weight that every head gives to every key, (B, H, L, M), without dropout.

        First the probabilities of attention heads, whose rows add up to 1, then the kernels of convolution heads laid
        out over the keys. Outputs are linear in the values, so the weights are the outputs for values that are the
        identity matrix; masks, positions and windows are those of :meth:`forward`. Costs memory for every pair of
        query and key.
        """
        query, key, value = self._project(x, source)
        q, k = self._rotated(self._split(query), self._split(key), scope)
        content, terms = self._terms(q, k, scope)
        visible, reach = scope.seen(k.shape[2])
        identity = torch.eye(k.shape[2], dtype=k.dtype, device=k.device).expand(*k.shape[:2], -1, -1)
        weights = attend(content, k, identity, visible=visible, reach=reach, scale=self.scale, **terms)
        if self.conv is None:
            return weights
        beside = self.conv.weights(x, query, value, scope.doc)
        return torch.cat([weights, F.pad(beside, (k.shape[2] - x.shape[1], 0))], dim=1)

    def _project(self, x: Tensor, source: Tensor | Keyed) -> tuple[Tensor, Tensor, Tensor]:
        bias = self.bias_of_all()
        if source is x:
            return linear(x, self.qkv, bias).chunk(3, dim=-1)  # type: ignore[return-value]
        a = self.inner
        query = linear(x, self.qkv[:a], None if bias is None else bias[:a])
        if isinstance(source, Keyed):
            return query, *source
        key, value = linear(source, self.qkv[a:], None if bias is None else bias[a:]).chunk(2, dim=-1)
        return query, key, value

    def bias_of_all(self) -> Tensor | None:
        """The bias of queries, keys and values, (3 A,), with zeros for keys that have none; None without biases."""
        if self.bias is None or self.biases == "all":
            return self.bias
        query, value = self.bias.chunk(2)
        return torch.cat([query, torch.zeros_like(query), value])

    def _split(self, states: Tensor) -> Tensor:
        return states.unflatten(-1, (self.heads, self.head_width)).transpose(1, 2)

    @staticmethod
    def _rotated(q: Tensor, k: Tensor, scope: Scope) -> tuple[Tensor, Tensor]:
        """Queries and keys, rotated by rotary positions if the scope has them."""
        if scope.rotation is None:
            return q, k
        return rotate(q, scope.query_rotation(q.shape[2])), rotate(k, scope.rotation)

    def _terms(self, q: Tensor, k: Tensor, scope: Scope) -> tuple[Tensor, dict[str, Any]]:
        """The content query, and the position term as an argument of kernels.attend."""
        if self.term is None:
            return q, {}
        content, term = self.term(q, scope, self)
        if isinstance(term, Tensor):
            return content, {"bias": term}
        if scope.at is None:
            return content, {"relative": term}
        assert scope.distances is not None
        return content, {"bias": bias_at(q, k, term, self.scale, scope.at, scope.distances.length)}

    def content_map(self, part: int) -> tuple[Tensor | Packed, Tensor | None]:
        """Weight (A, D) and bias (A,) of the queries (part 0) or the keys (1)."""
        rows, biases = slice(part * self.inner, (part + 1) * self.inner), self.bias_of_all()
        return self.qkv[rows], None if biases is None else biases[rows]
