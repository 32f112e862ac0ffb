"""A model in use: token ids and an attention mask in, named arrays out, for rows of any length.

To serve a model, this module is called with torch tensors and our kernels; to export it, it is traced. So both give the
same numbers by construction. Names of inputs and outputs are those of ``transformers``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from encoderlab.errors import ConfigError
from encoderlab.inference import check_fills_masks, limit, limit_of_masks, pooled, reading_apart, tokenizer_of
from encoderlab.model import Model
from encoderlab.nn.encoder import Chosen, States
from encoderlab.nn.heads import Classification, LMHead, SpanHead, TaggingHead, place_before
from encoderlab.nn.kernels.operation import exporting
from encoderlab.nn.positions import Rotary
from encoderlab.tasks.forms.base import takes_means

Use = Literal["states", "fill-mask", "classification", "tagging", "span"]
"""The outputs: the last layer's states, the scores of all tokens, or those of the fine-tuned head."""

Arrays = dict[str, np.ndarray]
Run = Callable[[Arrays], Arrays]
"""A runtime of a graph: inputs by name to outputs by name."""

OUTPUTS: dict[str, tuple[str, ...]] = {
    "states": ("last_hidden_state",),
    "fill-mask": ("logits",),
    "classification": ("logits",),
    "tagging": ("logits",),
    "span": ("start_logits", "end_logits"),
    "span of places": (
        "start_top_log_probs",
        "start_top_index",
        "end_top_log_probs",
        "end_top_index",
        "cls_logits",
    ),
}
BEAM = {"beam": 5, "conditional": 20}  # starts that are tried, as in fine-tuning


def use_of(model: Model, use: Use | Literal["task"] | None = None) -> Use:
    """The use of a model: ``use``, else its fine-tuned head if it has one, else its states.

    Raises:
        ConfigError: the model lacks the head.
    """
    head = model.config.task
    if use in (None, "task") and head is not None:
        return head.kind
    if use == "task":
        raise ConfigError("the model has no task head; fine-tune it first (encoderlab finetune), or use its states")
    if use == "fill-mask":
        check_fills_masks(model)
    return use or "states"


def summary_is_last(model: Model, use: Use) -> bool:
    """Whether the summary token is a row's last: for XLNet, and for classes of left-to-right models, as in
    fine-tuning."""
    return tokenizer_of(model).framing == "xlnet" or (model.config.encoder.causal and use != "span")


class Graph(nn.Module):
    """A model without dropout, its convolutions stopping at padding, with the head for its use.

    Inputs, int64 (B, L): ``input_ids``; ``attention_mask``, 1 for tokens and 0 for padding on either side; gaps between
    tokens count as positions (in RoBERTa only if they are not padding tokens), as in ``transformers``;
    ``token_type_ids`` if the model reads segments; ``p_mask``, 1 where no answer may start or end, for answer heads
    whose ends depend on the start. A token's result does not depend on the padding around it.

    Outputs, float32: ``last_hidden_state`` (B, L, D); ``logits`` of classes (B, labels), tags (B, L, labels) or tokens
    (B, L, V); ``start_logits`` and ``end_logits`` (B, L). For an answer head whose ends depend on the start, the S best
    starts and the S best ends for each: ``start_top_log_probs`` and ``start_top_index`` (B, S),
    ``end_top_log_probs`` and ``end_top_index`` (B, S, S), and ``cls_logits`` (B,), the log-odds of "no answer".
    """

    def __init__(self, model: Model, use: Use) -> None:
        super().__init__()
        self.model = reading_apart(model).eval()
        self.use = use
        encoder, head = model.config.encoder, model.config.task
        self.reads_segments = encoder.types > 1 or encoder.position.segments
        self.beam = BEAM.get(head.variant) if use == "span" and head is not None and head.kind == "span" else None
        self.summary_last = summary_is_last(model, use)
        self.mask_id = tokenizer_of(model).special.mask

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the inputs, in the order of the arguments."""
        segments = ("token_type_ids",) if self.reads_segments else ()
        return ("input_ids", "attention_mask", *segments, *(("p_mask",) if self.beam else ()))

    @property
    def outputs(self) -> tuple[str, ...]:
        return OUTPUTS["span of places" if self.beam else self.use]

    @property
    def longest(self) -> int:
        """The largest number of tokens that a row should have: the positions, the distinguished distances, or 512."""
        encoder = self.model.config.encoder
        span = encoder.position.span
        most = limit_of_masks(self.model) if self.use == "fill-mask" else limit(self.model)
        return most if encoder.max_length or span is None else min(span, most)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        token_type_ids: Tensor | None = None,
        p_mask: Tensor | None = None,
    ) -> tuple[Tensor, ...]:
        """The outputs, in the order of :attr:`outputs`."""
        model, encoder = self.model, self.model.encoder
        doc = torch.where(attention_mask > 0, 0, -1)
        segments = token_type_ids if self.reads_segments else None
        inputs = {"attention_mask": attention_mask, "positions": self._positions(input_ids, doc), "segments": segments}
        if self.use == "fill-mask":
            return (self._token_logits(input_ids, doc, inputs),)
        if self.use == "classification":
            one = encoder.splits_last_layer and not takes_means(model.config.task)
            less = {"depth": encoder.depth - 1} if one else {}
            return (self._class_logits(encoder(input_ids, **inputs, **less), doc),)
        states = encoder(input_ids, **inputs)
        if self.use == "states":
            return (states.last.float(),)
        if isinstance(model.task, TaggingHead):
            return (model.task(states.last).float(),)
        return self._spans(states, doc, p_mask)

    def _positions(self, ids: Tensor, doc: Tensor) -> Tensor | None:
        """The absolute position of each token (B, L), counted from its row's first token; None if the model reads
        none.

        Rotary ones depend on distances alone, but their angles are rounded, so with padding on the left scores would
        change (by 6e-4 of a trained model's at 512 tokens).
        """
        embeddings, position = self.model.encoder.embeddings, self.model.config.encoder.position
        read = embeddings.positions is not None or embeddings.sinusoidal or self.model.mask_positions is not None
        if not (read or (isinstance(position, Rotary) and exporting())):
            return None
        index = torch.arange(doc.shape[1], device=doc.device)
        counts = index >= torch.where(doc >= 0, index, doc.shape[1] - 1).amin(1, keepdim=True)
        if embeddings.offset:
            counts = counts & ((doc >= 0) | (ids != embeddings.offset - 1))
        return (counts.long().cumsum(1) - 1).clamp(min=0)

    def _summary(self, doc: Tensor) -> Tensor:
        """The place of each row's summary token, (B,): its first or its last (:func:`summary_is_last`)."""
        index = torch.arange(doc.shape[1], device=doc.device)
        if self.summary_last:
            return torch.where(doc >= 0, index, 0).amax(1)
        return torch.where(doc >= 0, index, doc.shape[1] - 1).amin(1)

    def _class_logits(self, states: States, doc: Tensor) -> Tensor:
        model, head = self.model, self.model.config.task
        if takes_means(head):
            x = pooled(states.last, doc >= 0, "mean")
        else:
            rows = torch.arange(doc.shape[0], device=doc.device)
            x = model.encoder.last_at(states, Chosen(self._summary(doc)[:, None], rows, torch.zeros_like(rows)))
        if isinstance(head, Classification) and head.summary == "pooler":
            assert model.pooler is not None
            x = model.pooler(x)
        assert model.task is not None
        logits: Tensor = model.task(x)
        return logits.float()

    def _token_logits(self, ids: Tensor, doc: Tensor, inputs: dict[str, Tensor | None]) -> Tensor:
        """Scores of all tokens at every place, (B, L, V), computed as :func:`encoderlab.inference.fill_mask` does."""
        model, encoder = self.model, self.model.encoder
        assert isinstance(model.lm, LMHead)
        rows, length = ids.shape
        at = torch.arange(length, device=ids.device).expand(rows, -1)
        if model.mask_vector is not None:
            # A permutation model predicts from its query stream; masks are hidden from all other places.
            masked = ids == self.mask_id
            own = torch.eye(length, dtype=torch.bool, device=ids.device)
            seen = ~masked[:, None] | own
            states = encoder(ids, **inputs, visible=seen, depth=encoder.depth - 1, keep_keyed=True)
            queries = model.mask_vector.expand(rows, length, -1)
            seen = ((doc >= 0) & ~masked)[:, None].expand(-1, length, -1)
            last = encoder.query_stream(states, queries, at, layers=range(encoder.depth), visible=seen)
        elif model.mask_positions is not None:
            states = encoder(ids, **inputs, depth=encoder.depth - 1)
            every = Chosen(at, torch.arange(rows, device=ids.device)[:, None], at[:1])
            last = model.decode_masks(states, every)
        else:
            last = encoder(ids, **inputs).last
        if model.config.lm is not None and model.config.lm.next_token:
            last = last.gather(1, place_before(at, doc)[..., None].expand_as(last))
        return model.lm(last, model.words).float()

    def _spans(self, states: States, doc: Tensor, p_mask: Tensor | None) -> tuple[Tensor, ...]:
        head = self.model.task
        assert isinstance(head, SpanHead)
        x, real = head.dropped(states.last, None), doc >= 0
        if self.beam is None:
            any_start = torch.zeros_like(doc[:, :1], dtype=torch.long)
            return head.start_logits(x, real).float(), head.end_logits(x, real, any_start)[:, 0].float()
        assert p_mask is not None
        allowed = real & (p_mask == 0)
        starts = torch.where(real, head.start_logits(x, allowed).float(), -torch.inf)
        start_scores, start_places = _best(starts, allowed, self.beam)
        ends = head.end_logits(x, allowed, start_places).float()
        ends = torch.where(real[:, None], ends, -torch.inf)
        end_scores, end_places = _best(ends, allowed[:, None], self.beam)
        end_scores = torch.where(start_scores[..., None] > -torch.inf, end_scores, -torch.inf)
        first = x[torch.arange(x.shape[0], device=x.device), self._summary(doc)]
        null = head.answer_logits(x, first, starts.to(x.dtype)).float()
        return start_scores, start_places, end_scores, end_places, null


def _best(scores: Tensor, allowed: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The ``count`` largest log-probabilities of the last axis and their places; -inf if there are fewer."""
    shares = torch.where(allowed, scores - scores.logsumexp(-1, keepdim=True), -torch.inf)
    best, places = F.pad(shares, (0, count), value=-torch.inf).topk(count)
    return best, places.clamp(max=scores.shape[-1] - 1)
