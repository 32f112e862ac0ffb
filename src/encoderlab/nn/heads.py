"""Heads: the small networks that turn the encoder's states into scores.

Every head except the span head takes S chosen vectors (S, D), never whole (B, L, D) blocks, because the loss needs only
those. Dropout seeds are one per chosen vector (:meth:`Noise.at`), so masks do not depend on which other vectors were
chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from encoderlab.config import Bounded, Count, Rate
from encoderlab.errors import ConfigError
from encoderlab.nn import kernels
from encoderlab.nn.embeddings import Adaptive, Embeddings
from encoderlab.nn.feedforward import Activation, activation
from encoderlab.nn.norms import Norm
from encoderlab.nn.positions import at_places


@dataclass(frozen=True, kw_only=True)
class LM:
    """Prediction of tokens through the tied word table: ``x W^T + b``.

    ``transform`` puts a dense map D -> E, an activation (None: that of the layers) and a norm before it.
    ``dense_bias``: whether the dense map has a bias. ``output_bias``: whether b exists. ``next_token``:
    a token is predicted from the state of the token before it, masked or not (GPT-BERT; Charpentier and Samuel, 2024);
    the first token of a text from its own.
    """

    transform: bool = True
    activation: Activation | None = None
    dense_bias: bool = True
    output_bias: bool = True
    next_token: bool = False


def place_before(at: Tensor, doc: Tensor | None) -> Tensor:
    """The places before ``at`` (B, T), which an LM head with ``next_token`` reads. The first token of a text has none
    before it, but perhaps padding or another text, so its own place is taken.

    ``doc`` (B, L) are the documents of the rows, -1 for padding; None if each row is one text.
    """
    before = (at - 1).clamp(min=0)
    return before if doc is None else torch.where(doc.gather(1, before) == doc.gather(1, at), before, at)


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """ModernBERT's prediction head, which precedes the last map of every task: dense map D -> D, activation, norm.

    In a model that was pretrained with an LM head, it starts from the weights of that head's transform, which has the
    same shape.
    """

    activation: Activation = "gelu"
    bias: bool = False


@dataclass(frozen=True, kw_only=True)
class Pooler(Bounded):
    """Dense map D -> D and an activation on one vector per text (BERT's [CLS] pooler)."""

    activation: Activation = "tanh"
    dropout: Rate = 0.0


@dataclass(frozen=True, kw_only=True)
class RTD:
    """Replaced token detection (Clark et al., 2020): is this token the original? Dense map D -> D, activation,
    dense map to 1.

    ``variant``: ``electra`` reads the state h of the token; ``deberta`` reads LayerNorm(h + h_[CLS]).
    """

    variant: Literal["electra", "deberta"] = "electra"


@dataclass(frozen=True, kw_only=True)
class Classification(Bounded):
    """One score per label for each text; regression has one label.

    A vector of the text, its summary, dropout, then an affine map to the labels.

    Args:
        labels: number of labels.
        pooling: the vector is that of the summary ``token``, or the ``mean`` over all tokens, special ones included.
        summary: ``pooler``, the pretrained pooler; ``dense``, a new map D -> D; ``raw``, the vector itself.
        prediction: a prediction head before the dropout, only with summary ``raw``; None for none.
        activation: of the summary ``dense``.
        input_dropout: rate for the vector before the summary ``dense``.
        dropout: rate for the summary.
        glorot: draw the initial affine map Glorot-uniform.
        several: a text may have any number of labels: each score is the log-odds of its label, without a softmax.

    Raises:
        ConfigError: a prediction head with another summary than ``raw``.
    """

    kind: Literal["classification"] = "classification"
    labels: Count = 2
    pooling: Literal["token", "mean"] = "token"
    summary: Literal["pooler", "dense", "raw"] = "pooler"
    prediction: Prediction | None = None
    activation: Activation = "tanh"
    input_dropout: Rate = 0.0
    dropout: Rate = 0.1
    glorot: bool = False
    several: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.prediction is not None and self.summary != "raw":
            raise ConfigError(f"summary {self.summary!r} excludes a prediction head; set summary to raw")


@dataclass(frozen=True, kw_only=True)
class Tagging(Bounded):
    """One score per tag for each chosen token: dropout, then an affine map (``dense``: after DeBERTa's dense map and
    GELU).

    ``prediction``: a prediction head before the dropout; None for none.
    """

    kind: Literal["tagging"] = "tagging"
    labels: Count = 2
    dropout: Rate = 0.1
    dense: bool = False
    prediction: Prediction | None = None
    glorot: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dense and self.prediction is not None:
            raise ConfigError("a dense map excludes a prediction head; set dense to false, or prediction to null")


@dataclass(frozen=True, kw_only=True)
class Span(Bounded):
    """Start and end of an answer in a text.

    Args:
        variant: ``independent`` (BERT) is an affine map D -> 2. ``conditional`` (ELECTRA, ConvBERT) and ``beam``
            (XLNet, ALBERT v2) score the end given a start, and whether there is an answer.
        dropout: rate before the map of ``independent`` (DistilBERT), or in the answer score of ``beam``.
        prediction: a prediction head before the dropout of ``independent``; None for none.

    Raises:
        ConfigError: a prediction head with another variant than ``independent``.
    """

    kind: Literal["span"] = "span"
    variant: Literal["independent", "conditional", "beam"] = "independent"
    dropout: Rate = 0.0
    prediction: Prediction | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.variant != "independent" and self.prediction is not None:
            raise ConfigError(f"variant {self.variant!r} has no prediction head; set variant to independent")


TaskHead = Classification | Tagging | Span


class LMHead(nn.Module):
    """(S, D) -> logits (S, V). The caller passes the encoder's word table (V, E), so that it is stored once."""

    def __init__(
        self, config: LM, vocab: int, width: int, embed_width: int, act: Activation, norm: Callable[[int], Norm]
    ) -> None:
        super().__init__()
        self.act = config.activation or act
        self.dense = nn.Linear(width, embed_width, bias=config.dense_bias) if config.transform else None
        self.norm = norm(embed_width) if config.transform else None
        self.bias = nn.Parameter(torch.zeros(vocab)) if config.output_bias else None

    def forward(self, x: Tensor, words: Tensor) -> Tensor:
        return F.linear(self.transform(x), words, self.bias)

    def transform(self, x: Tensor) -> Tensor:
        """(S, D) -> (S, E): the vectors that are multiplied with the word table."""
        if self.dense is None or self.norm is None:
            return x
        return self.norm(activation(self.act)(self.dense(x)))

    def losses(
        self, x: Tensor, words: Tensor, targets: Tensor, *, uniforms: Tensor | None = None, z_loss: float = 0.0
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Sum of cross-entropies in nats, number of correct first choices, and one sampled class (S,) per row for
        ``uniforms``.

        x (S, D), words (V, E), targets (S,), ``uniforms`` (S,) in [0, 1) or None. With a kernel, the logits of all S
        places never exist at once. ``z_loss``: see :func:`encoderlab.nn.kernels.linear_cross_entropy`.
        """
        x = self.transform(x)
        return kernels.linear_cross_entropy(x, words, self.bias, targets, uniforms=uniforms, z_loss=z_loss)


class AdaptiveLMHead(nn.Module):
    """Adaptive softmax over the clusters of the input tables, or of its own (Grave et al., 2017), with biases.

    ``log p(w) = log p(cluster) + log p(w | cluster)``. A cluster's table is multiplied only with the rows whose target
    lies in the cluster, which makes it fast. Results are in the order of the input.
    """

    def __init__(self, adaptive: Adaptive, vocab: int, width: int, embed_width: int) -> None:
        super().__init__()
        self.clusters = adaptive.sizes(vocab)
        self.divisor = adaptive.divisor
        tails = len(self.clusters) - 1
        self.cluster_weight = nn.Parameter(torch.empty(tails, embed_width)) if tails else None
        self.cluster_bias = nn.Parameter(torch.zeros(tails)) if tails else None
        self.biases = nn.ParameterList(torch.zeros(stop - start) for start, stop in self.clusters)
        spans = self.clusters if adaptive.divisor > 1 else [(0, vocab)]
        self.tables = None
        if not adaptive.tied_tables:
            self.tables = nn.ParameterList(
                torch.empty(stop - start, embed_width // adaptive.divisor**i) for i, (start, stop) in enumerate(spans)
            )
        owned = {"all": [], "all_but_first": [0], "none": range(len(self.clusters))}[adaptive.tied_projections]
        owned = owned if adaptive.has_maps(embed_width, width) else []
        self.maps = nn.ParameterDict({str(i): torch.empty(width, embed_width // adaptive.divisor**i) for i in owned})

    def members(self, targets: Tensor) -> list[Tensor]:
        """For each cluster except the first, the indices of the ``targets`` (S,) in it.

        On an accelerator this waits for the device.
        """
        return [((targets >= start) & (targets < stop)).nonzero().squeeze(1) for start, stop in self.clusters[1:]]

    def losses(
        self, x: Tensor, targets: Tensor, embeddings: Embeddings, members: Sequence[Tensor] | None = None
    ) -> Tensor:
        """Negative log-likelihoods (S,) in nats of ``targets`` (S,) from x (S, D).

        ``members``: the result of :meth:`members`, where the caller already has it.
        """
        members = self.members(targets) if members is None else members
        head = self._head(x, embeddings)
        first = self.clusters[0][1]
        inside = targets < first
        loss = -head.gather(1, torch.where(inside, targets, 0)[:, None]).squeeze(1)
        for i, chosen in enumerate(members, start=1):
            tail = self._tail(x[chosen], i, embeddings)
            nll = -head[chosen, first + i - 1] - tail.gather(
                1, (targets[chosen] - self.clusters[i][0])[:, None]
            ).squeeze(1)
            loss = loss.index_copy(0, chosen, nll)
        return loss

    def _head(self, x: Tensor, embeddings: Embeddings) -> Tensor:
        weight, bias = self._table(0, embeddings), self.biases[0]
        if self.cluster_weight is not None and self.cluster_bias is not None:
            weight, bias = torch.cat([weight, self.cluster_weight]), torch.cat([bias, self.cluster_bias])
        return _log_softmax(F.linear(self._mapped(x, 0, embeddings), weight, bias))

    def _tail(self, x: Tensor, cluster: int, embeddings: Embeddings) -> Tensor:
        table = self._table(cluster, embeddings)
        return _log_softmax(F.linear(self._mapped(x, cluster, embeddings), table, self.biases[cluster]))

    def _table(self, cluster: int, embeddings: Embeddings) -> Tensor:
        assert embeddings.clusters is not None
        tables = embeddings.clusters.tables if self.tables is None else self.tables
        if self.divisor > 1:
            return tables[cluster]
        start, stop = self.clusters[cluster]
        return tables[0][start:stop]

    def _mapped(self, x: Tensor, cluster: int, embeddings: Embeddings) -> Tensor:
        if str(cluster) in self.maps:
            return x @ self.maps[str(cluster)]
        assert embeddings.clusters is not None
        maps = embeddings.clusters.maps  # one map for all clusters if the divisor is 1
        return x if maps is None else x @ maps[cluster if self.divisor > 1 else 0]


def _log_softmax(logits: Tensor) -> Tensor:
    """Log-softmax over the last axis in at least float32: half precision would round a loss of 10 nats to 0.06."""
    return logits.log_softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32))


class PredictionHead(nn.Module):
    """:class:`Prediction` as a module, ``norm(act(W x + b))``: (..., D) -> (..., D)."""

    def __init__(self, config: Prediction, width: int, norm: Callable[[int], Norm]) -> None:
        super().__init__()
        self.act = config.activation
        self.dense = nn.Linear(width, width, bias=config.bias)
        self.norm = norm(width)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(activation(self.act)(self.dense(x)))


def _prediction(config: TaskHead, width: int, norm: Callable[[int], Norm]) -> PredictionHead | None:
    return PredictionHead(config.prediction, width, norm) if config.prediction else None


class PoolerHead(nn.Module):
    """:class:`Pooler` as a module, ``act(W dropout(x) + b)``: (S, D) -> (S, D)."""

    def __init__(self, config: Pooler, width: int) -> None:
        super().__init__()
        self.config = config
        self.dense = nn.Linear(width, width)

    def forward(self, x: Tensor, seeds: Tensor | None = None) -> Tensor:
        return activation(self.config.activation)(self.dense(kernels.dropout(x, self.config.dropout, seeds, 0)))


class RTDHead(nn.Module):
    """Logit that a token was replaced: (S, D) -> (S,).

    ``first`` (S, D) is the [CLS] vector of each token's text, needed by variant ``deberta``.
    """

    def __init__(self, config: RTD, width: int, act: Activation, eps: float) -> None:
        super().__init__()
        self.variant, self.act = config.variant, act
        self.norm = nn.LayerNorm(width, eps=eps) if config.variant == "deberta" else None
        self.dense = nn.Linear(width, width)
        self.out = nn.Linear(width, 1)

    def forward(self, x: Tensor, first: Tensor | None = None) -> Tensor:
        if self.norm is not None:
            assert first is not None
            x = self.norm(x + first)
        return self.out(activation(self.act)(self.dense(x))).squeeze(-1)


class ClassificationHead(nn.Module):
    """:class:`Classification` as a module: (S, D) -> (S, labels). If the summary is the pooler, x is the pooler's
    output.
    """

    def __init__(self, config: Classification, width: int, norm: Callable[[int], Norm] = nn.LayerNorm) -> None:
        super().__init__()
        self.config = config
        self.prediction = _prediction(config, width, norm)
        self.dense = nn.Linear(width, width) if config.summary == "dense" else None
        self.out = nn.Linear(width, config.labels)

    def forward(self, x: Tensor, seeds: Tensor | None = None) -> Tensor:
        if self.dense is not None:
            x = activation(self.config.activation)(self.dense(kernels.dropout(x, self.config.input_dropout, seeds, 1)))
        x = x if self.prediction is None else self.prediction(x)
        return self.out(kernels.dropout(x, self.config.dropout, seeds, 2))


class TaggingHead(nn.Module):
    """:class:`Tagging` as a module: (S, D) -> (S, labels)."""

    def __init__(self, config: Tagging, width: int, norm: Callable[[int], Norm] = nn.LayerNorm) -> None:
        super().__init__()
        self.config = config
        self.prediction = _prediction(config, width, norm)
        self.dense = nn.Linear(width, width) if config.dense else None
        self.out = nn.Linear(width, config.labels)

    def forward(self, x: Tensor, seeds: Tensor | None = None) -> Tensor:
        x = x if self.dense is None else F.gelu(self.dense(x))
        x = x if self.prediction is None else self.prediction(x)
        return self.out(kernels.dropout(x, self.config.dropout, seeds, 1))


class SpanHead(nn.Module):
    """:class:`Span` as a module: logits of start, end and "no answer" for windows x (B, L, D).

    ``allowed`` (B, L) bool is True where an answer may start or end.
    """

    HIDDEN = 512  # inner width of ELECTRA's conditional head
    FORBIDDEN = {"conditional": -1000.0, "beam": -1e30}  # logits where not allowed, as in the originals

    def __init__(self, config: Span, width: int, eps: float, norm: Callable[[int], Norm] = nn.LayerNorm) -> None:
        super().__init__()
        self.config = config
        self.prediction = _prediction(config, width, norm)
        if config.variant == "independent":
            self.out = nn.Linear(width, 2)
            return
        self.start = nn.Linear(width, 1)
        if config.variant == "conditional":
            self.end_dense, self.end_out = nn.Linear(2 * width, self.HIDDEN), nn.Linear(self.HIDDEN, 1)
            self.answer_dense, self.answer_out = nn.Linear(2 * width, self.HIDDEN), nn.Linear(self.HIDDEN, 1)
        else:
            self.end_dense, self.end_out = nn.Linear(2 * width, width), nn.Linear(width, 1)
            self.end_norm = nn.LayerNorm(width, eps=eps)
            self.answer_dense, self.answer_out = nn.Linear(2 * width, width), nn.Linear(width, 1, bias=False)

    def dropped(self, x: Tensor, seeds: Tensor | None) -> Tensor:
        """The input (B, L, D) of the map of ``independent``: x after the prediction head, if any, and dropout.

        Other variants return x.
        """
        if self.config.variant != "independent":
            return x
        x = x if self.prediction is None else self.prediction(x)
        return kernels.dropout(x, self.config.dropout, seeds, 0)

    def start_logits(self, x: Tensor, allowed: Tensor) -> Tensor:
        """Start logits (B, L) from x (B, L, D)."""
        logits = self.out(x)[..., 0] if self.config.variant == "independent" else self.start(x)[..., 0]
        return self._masked(logits, allowed)

    def end_logits(self, x: Tensor, allowed: Tensor, starts: Tensor) -> Tensor:
        """End logits (B, S, L) for each of S ``starts`` (B, S); variant ``independent`` ignores the starts."""
        if self.config.variant == "independent":
            return self.out(x)[..., 1][:, None].expand(-1, starts.shape[1], -1)
        chosen = at_places(x, starts)
        # A dense map of two concatenated vectors is the sum of two maps, so every token is mapped once, not once per
        # start.
        conditional, width = self.config.variant == "conditional", x.shape[-1]
        first, second = self.end_dense.weight[:, :width], self.end_dense.weight[:, width:]
        of_start, of_end = (first, second) if conditional else (second, first)
        joined = F.linear(chosen, of_start)[:, :, None] + F.linear(x, of_end, self.end_dense.bias)[:, None]
        hidden = F.gelu(joined) if conditional else self.end_norm(torch.tanh(joined))
        return self._masked(self.end_out(hidden)[..., 0], allowed[:, None])

    def answer_logits(self, x: Tensor, first: Tensor, start_logits: Tensor, seeds: Tensor | None = None) -> Tensor:
        """Logit (B,) that the text has no answer; ``first`` (B, D) is the [CLS] vector."""
        summary = torch.einsum("bl,bld->bd", start_logits.softmax(-1), x)
        if self.config.variant == "conditional":
            return self.answer_out(F.gelu(self.answer_dense(torch.cat([first, summary], dim=-1))))[..., 0]
        hidden = torch.tanh(self.answer_dense(torch.cat([summary, first], dim=-1)))
        return self.answer_out(kernels.dropout(hidden, self.config.dropout, seeds, 1))[..., 0]

    def _masked(self, logits: Tensor, allowed: Tensor) -> Tensor:
        if self.config.variant == "independent":
            return logits
        floor = max(self.FORBIDDEN[self.config.variant], torch.finfo(logits.dtype).min)
        return torch.where(allowed, logits, floor) if self.config.variant == "beam" else logits + floor * ~allowed
