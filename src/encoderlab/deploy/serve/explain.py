"""Explanations of a model's answer: integrated gradients, words left out, and attention.

An explanation is of one number: the log-odds of a label, a tag, an answer's place or a guess, the number of a
regression, or the cosine of two texts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call

from encoderlab.corpus.tokenizer import Tokenizer
from encoderlab.deploy.graph import Graph
from encoderlab.deploy.reading import inputs_of
from encoderlab.errors import ConfigError
from encoderlab.inference import BATCH_TOKENS, Pooling, pooled
from encoderlab.nn.heads import LMHead

Method = Literal["gradients", "words", "attention"]
TABLE, BIAS = "model.encoder.embeddings.words", "model.lm.bias"
SCORES = 2**26  # numbers of one output that are held at a time


@dataclass(frozen=True, kw_only=True)
class Target:
    """The number that is explained.

    Args:
        name: for people.
        index: of the label, tag or guess.
        places: of the word, the mask, or the answer's first and last token.
        vector: (D,) of the other text, 1 long.
    """

    name: str
    index: int = 0
    places: tuple[int, ...] = ()
    vector: np.ndarray | None = None


@dataclass(frozen=True, kw_only=True)
class TokenRow:
    """A row of n tokens, and the place of each in the given texts.

    Args:
        ids, segments: (n,) int64.
        part: (n,), the number of each token's text, -1 for special tokens.
        offsets: (n, 2), its first character in that text and one past the last.
    """

    ids: np.ndarray
    segments: np.ndarray
    part: np.ndarray
    offsets: np.ndarray

    @classmethod
    def of(
        cls,
        ids: np.ndarray,
        segments: np.ndarray,
        parts: Sequence[tuple[int, int, int, np.ndarray]],
        tokenizer: Tokenizer,
    ) -> TokenRow:
        """``parts``: number, first place, tokens and offsets of every text in the row; masks are special tokens."""
        part, offsets = np.full(len(ids), -1), np.zeros((len(ids), 2), np.int64)
        for number, start, size, where in parts:
            part[start : start + size], offsets[start : start + size] = number, where[:size]
        part[ids == tokenizer.special.mask] = -1
        return cls(ids=ids.astype(np.int64), segments=segments.astype(np.int64), part=part, offsets=offsets)

    def without(self, places: np.ndarray) -> TokenRow:
        return TokenRow(**{name: np.delete(array, places, axis=0) for name, array in vars(self).items()})


class Explainer:
    """Explains rows of one graph.

    Args:
        graph: with the head whose answers are explained.
        pooling: how states become the vector of a text.
    """

    def __init__(self, graph: Graph, pooling: Pooling) -> None:
        self.graph, self.pooling = graph, pooling
        self.model = graph.model
        head = self.model.config.task
        self.apart = bool(getattr(head, "several", False))  # labels that do not exclude each other

    # The number

    def numbers(self, rows: Sequence[TokenRow], targets: Sequence[Target], ids: Tensor | None = None) -> Tensor:
        """The number of each row, (n,), with ``ids`` instead of the rows' own."""
        outputs, real = self.outputs(rows, ids)
        return torch.stack(
            [self._number([output[i] for output in outputs], real[i], target) for i, target in enumerate(targets)]
        )

    def outputs(self, rows: Sequence[TokenRow], ids: Tensor | None = None) -> tuple[tuple[Tensor, ...], Tensor]:
        """The graph's outputs for rows, and which of their places are tokens: (n, L) bool."""
        pad = self.graph.model.tokenizer.special.pad  # type: ignore[union-attr]
        device = next(self.model.parameters()).device
        arrays = inputs_of([row.ids for row in rows], [row.segments for row in rows], pad)
        tensors = {name: torch.from_numpy(array) for name, array in arrays.items() if name in self.graph.inputs}
        inputs = {name: tensor.to(device) for name, tensor in tensors.items()}
        if ids is not None:
            inputs["input_ids"] = ids.to(device)
        return self.graph(**inputs), inputs["attention_mask"] > 0

    def _number(self, outputs: Sequence[Tensor], real: Tensor, target: Target) -> Tensor:
        scores = outputs[0]
        if target.vector is not None:
            vector = pooled(scores[None], real[None], self.pooling)[0]
            return vector @ torch.from_numpy(target.vector).to(vector) / vector.norm().clamp(min=1e-12)
        if self.graph.use == "span":
            sides = zip(outputs, target.places, strict=True)
            return sum((_log_odds(side[real], place) for side, place in sides), start=scores.new_zeros(()))
        if self.graph.use in ("tagging", "fill-mask"):
            scores = scores[target.places[0]]
        if self.graph.use == "fill-mask":
            scores = scores[: self.model.config.encoder.vocab]
        if self.apart or len(scores) == 1:
            return scores[target.index]
        return _log_odds(scores, target.index)

    # Integrated gradients

    def gradients(self, row: TokenRow, target: Target, steps: int) -> dict[str, Any]:
        """The share of each token in the number, by integrated gradients (Sundararajan et al., 2017, equation 1).

        The path leads from a row in which every word is the mask token to the row itself; the integral is the mean at
        the midpoints of ``steps`` parts. ``gap`` is the difference between the sum of the shares and the change of the
        number along the path; it is 0 for the exact integral.

        Raises:
            ConfigError: words of the model have tables of different widths.
        """
        model = self.model
        if model.encoder.embeddings.words is None:
            raise ConfigError("words with tables of different widths have no gradients here; use the method words")
        table = model.words.detach()
        moving = torch.from_numpy(row.part >= 0)
        places, rows = torch.nonzero(moving)[:, 0], len(table)
        ids = torch.from_numpy(row.ids)
        end = table[ids[places]]
        mask = model.tokenizer.special.mask  # type: ignore[union-attr]
        begin = table[torch.full_like(places, mask)]
        total = torch.zeros(len(places), device=table.device)
        ends: dict[float, float] = {}
        at_once, path = self._rows_at_once(len(ids)), [0.0, 1.0, *((i + 0.5) / steps for i in range(steps))]
        for shares in (path[i : i + at_once] for i in range(0, len(path), at_once)):
            share = torch.tensor(shares, device=table.device)[:, None, None]
            words = (begin + share * (end - begin)).requires_grad_()
            # The words of every step are new rows of a longer word table, so that every family works unchanged.
            longer = torch.cat([table, words.flatten(0, 1)])
            new = ids.repeat(len(shares), 1)
            new[:, places] = rows + torch.arange(words.shape[0] * words.shape[1]).view(len(shares), -1)
            tensors = {f"graph.{TABLE}": longer}
            if isinstance(model.lm, LMHead) and model.lm.bias is not None:  # it has a number for every row
                tensors[f"graph.{BIAS}"] = F.pad(model.lm.bias, (0, len(longer) - rows))
            numbers = functional_call(_NumbersModule(self), tensors, ([row], target, new))
            ends |= {at: float(number) for at, number in zip(shares, numbers.detach(), strict=True) if at in (0.0, 1.0)}
            inner = torch.tensor([at not in (0.0, 1.0) for at in shares], device=table.device)
            if inner.any():
                (slope,) = torch.autograd.grad(numbers[inner].sum(), words)
                total += (slope * (end - begin)).sum((0, 2)) / steps
        attributions = np.zeros(len(row.ids))
        attributions[moving.numpy()] = total.cpu().numpy()
        difference = ends[1.0] - ends[0.0]
        attributed = float(attributions.sum())
        return {
            "attributions": attributions,
            "number": ends[1.0],
            "baseline": ends[0.0],
            "sum": attributed,
            "gap": difference - attributed,
            "steps": steps,
        }

    def _rows_at_once(self, length: int) -> int:
        outputs = self.model.config.encoder.vocab if self.graph.use == "fill-mask" else 1
        return max(1, min(BATCH_TOKENS // length, SCORES // (length * outputs)))

    # Leaving words out

    @torch.inference_mode()
    def words(self, row: TokenRow, target: Target, words: Sequence[tuple[int, int, int]]) -> dict[str, Any]:
        """The share of each word in the number: the number with the word minus the number without it.

        Args:
            words: number of the text, first character and one past the last of every word.
        """
        without, targets = [row], [target]
        known = []
        for number, (part, begin, end) in enumerate(words):
            inside = (row.part == part) & (row.offsets[:, 1] > begin) & (row.offsets[:, 0] < end)
            places = np.flatnonzero(inside & (row.offsets[:, 1] > row.offsets[:, 0]))
            if not len(places) or len(places) == np.sum(row.part >= 0) or set(places) & set(target.places):
                continue  # cut off, the only word, or the explained word itself
            moved = tuple(int(place - np.sum(places < place)) for place in target.places)
            without.append(row.without(places))
            targets.append(replace(target, places=moved))
            known.append(number)
        size = self._rows_at_once(len(row.ids))
        numbers = np.concatenate(
            [
                self.numbers(without[i : i + size], targets[i : i + size]).cpu().numpy()
                for i in range(0, len(without), size)
            ]
        )
        effect: list[float | None] = [None] * len(words)
        for place, number in zip(known, numbers[1:], strict=True):
            effect[place] = float(numbers[0] - number)
        return {"number": float(numbers[0]), "effects": effect}

    # Attention

    @torch.inference_mode()
    def attention(self, row: TokenRow, layer: int, head: int) -> dict[str, Any]:
        """The attention weights of a head, (n, n); rows are queries.

        Raises:
            ConfigError: there is no such layer or head.
        """
        encoder = self.model.encoder
        if not 0 <= layer < encoder.depth:
            raise ConfigError(f"layer {layer + 1}, expected 1 to {encoder.depth}")
        device = next(self.model.parameters()).device
        ids, segments = (torch.from_numpy(array)[None].to(device) for array in (row.ids, row.segments))
        states = encoder(ids, segments=segments if self.graph.reads_segments else None)
        weights = encoder.attention_weights(states, layer)[0].float().cpu().numpy()
        if not 0 <= head < len(weights):
            raise ConfigError(f"head {head + 1}, expected 1 to {len(weights)}")
        return {"layers": encoder.depth, "heads": len(weights), "weights": np.round(weights[head], 4)}


class _NumbersModule(torch.nn.Module):
    """The numbers of an explainer as a module, whose word table can be replaced for one call."""

    def __init__(self, explainer: Explainer) -> None:
        super().__init__()
        self.explainer, self.graph = explainer, explainer.graph

    def forward(self, rows: Sequence[TokenRow], target: Target, ids: Tensor) -> Tensor:
        return self.explainer.numbers(list(rows) * len(ids), [target] * len(ids), ids)


def _log_odds(scores: Tensor, index: int) -> Tensor:
    """The log-odds of one of several exclusive classes."""
    others = torch.cat([scores[:index], scores[index + 1 :]])
    return scores[index] - others.logsumexp(0) if len(others) else scores[index]
