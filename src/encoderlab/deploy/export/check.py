"""Check that an exported graph computes the model's outputs: at short, long and odd lengths, padded on either side.

One row of several has a gap in its mask. The reference is each row alone, without padding, through our own kernels; the
graph reads rows together. So any difference comes from the exporter, the runtime, or attention to padding.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from encoderlab.deploy.graph import Arrays, Graph, Run
from encoderlab.errors import EncoderlabError
from encoderlab.seeds import generator

LENGTHS = (1, 2, 3, 129, 130)  # and the longest; beyond 128, distances share DeBERTa's buckets
LARGEST_DIFFERENCE = 1e-4
ROUNDINGS, MOST = 10, 1e-2  # or so many times the model's own rounding, at most
SCORES = 2**28  # numbers of one output that are held at a time
OfRow = Callable[[int], Arrays]


@dataclass(frozen=True, kw_only=True)
class CheckedRows:
    """Rows of mixed lengths, padded on one side: inputs by name, and the tokens of each row."""

    side: Literal["left", "right"]
    inputs: Arrays
    lengths: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Difference:
    """The largest difference of the outputs at one length and side of padding.

    ``largest`` is absolute for values up to 1 and relative to larger ones.
    """

    length: int
    side: str
    rows: int
    largest: float


def batches(graph: Graph, longest: int) -> Iterator[CheckedRows]:
    """Batches of 1, 3 and 5 rows at the lengths to check, with random tokens, segments and masks."""
    encoder = graph.model.config.encoder
    for length in sorted({*(n for n in LENGTHS if n < longest), longest}):
        for side in ("right", "left"):
            most = max(2, SCORES // (length * encoder.vocab)) if graph.use == "fill-mask" else 5
            for rows in (1, 3, 5):
                lengths = tuple(max(1, length - i * length // 4) for i in range(min(rows, most)))
                yield CheckedRows(side=side, inputs=_inputs(graph, side, length, lengths), lengths=lengths)


def _inputs(graph: Graph, side: str, length: int, lengths: tuple[int, ...]) -> Arrays:
    rng = generator("export", side, length, len(lengths))
    arrays = {name: np.zeros((len(lengths), length), np.int64) for name in graph.inputs}
    for row, tokens in enumerate(lengths):
        part = _part(side, length, tokens)
        ids = rng.integers(0, graph.model.config.encoder.vocab, tokens)
        if graph.use == "fill-mask":
            ids[rng.integers(tokens)] = graph.mask_id
        arrays["input_ids"][row, part] = ids
        arrays["attention_mask"][row, part] = 1
        if row == 1 and tokens > 3:
            arrays["attention_mask"][row, part][tokens // 3 : tokens // 2] = 0
        if "token_type_ids" in arrays:
            arrays["token_type_ids"][row, part] = np.arange(tokens) >= (tokens + 1) // 2
        if "p_mask" in arrays:
            arrays["p_mask"][row, part] = rng.random(tokens) < 0.3
            arrays["p_mask"][row, part][0] = 0  # at least one place is allowed
    return arrays


def _part(side: str, length: int, tokens: int) -> slice:
    return slice(length - tokens, length) if side == "left" else slice(0, tokens)


def compare(graph: Graph, run: Run, longest: int) -> list[Difference]:
    """The differences of a runtime's outputs from the model's.

    Raises:
        EncoderlabError: one is not finite, or larger than the :func:`tolerance`.
    """
    differences, allowed = [], None
    for batch in batches(graph, longest):
        length = batch.inputs["input_ids"].shape[1]
        largest = _apart(graph, batch, _together(graph, run, batch), _alone(graph, batch))
        if not largest <= LARGEST_DIFFERENCE:
            allowed = allowed or tolerance(graph, longest)
            if not largest <= allowed:
                raise EncoderlabError(
                    f"the exported graph differs from the model by {largest:.2g} at length {length}, padded on the "
                    f"{batch.side}; at most {allowed:.1g} is allowed. Nothing was written; report this"
                )
        differences.append(Difference(length=length, side=batch.side, rows=len(batch.lengths), largest=largest))
    return differences


def tolerance(graph: Graph, longest: int) -> float:
    """The largest difference that is allowed: more than :data:`LARGEST_DIFFERENCE` for a model that rounds much itself.

    Its rounding is the largest difference between itself in float32 and in float64 on the batches of :func:`compare`.
    """
    if graph.beam:  # its places may change with rounding
        return LARGEST_DIFFERENCE
    exact = copy.deepcopy(graph).double()
    rounding = max(
        _apart(graph, batch, _alone(exact, batch), _alone(graph, batch)) for batch in batches(graph, longest)
    )
    return max(LARGEST_DIFFERENCE, min(ROUNDINGS * rounding, MOST))


def _together(graph: Graph, run: Run, batch: CheckedRows) -> OfRow:
    """The outputs of a row, of its own tokens where there is one for each, from a run of the whole batch."""
    length, outputs = batch.inputs["input_ids"].shape[1], run(batch.inputs)
    whole = graph.use == "classification" or graph.beam

    def of_row(row: int) -> Arrays:
        part = ... if whole else _part(batch.side, length, batch.lengths[row])
        return {name: array[row][part] for name, array in outputs.items()}

    return of_row


def _alone(graph: Graph, batch: CheckedRows) -> OfRow:
    """The model's own outputs of a row that it reads by itself, without padding."""
    length, run = batch.inputs["input_ids"].shape[1], own(graph)

    def of_row(row: int) -> Arrays:
        part = _part(batch.side, length, batch.lengths[row])
        outputs = run({name: array[row : row + 1, part] for name, array in batch.inputs.items()})
        return {name: array[0] for name, array in outputs.items()}

    return of_row


def _apart(graph: Graph, batch: CheckedRows, theirs: OfRow, ours: OfRow) -> float:
    """The largest difference of the outputs of all rows."""
    length, largest = batch.inputs["input_ids"].shape[1], 0.0
    for row, tokens in enumerate(batch.lengths):
        part, one, other = _part(batch.side, length, tokens), theirs(row), ours(row)
        if graph.beam:
            largest = max(largest, _of_places(one, other, part.start))
            continue
        real = ... if graph.use == "classification" else batch.inputs["attention_mask"][row, part] == 1
        largest = max(largest, *(_largest(one[name][real], array[real]) for name, array in other.items()))
    return largest


def _of_places(theirs: Arrays, ours: Arrays, shift: int) -> float:
    """The largest difference of the best starts and ends of a row that begins at place ``shift`` in ``theirs``.

    Starts with equal scores may come in any order; ends are compared for equal starts.
    """
    scores, same = ours["start_top_log_probs"], theirs["start_top_index"] - shift == ours["start_top_index"]
    with np.errstate(invalid="ignore"):
        gaps = np.abs(np.diff(scores, prepend=np.inf, append=-np.inf))
    apart = np.isfinite(scores) & (np.minimum(gaps[:-1], gaps[1:]) > 10 * LARGEST_DIFFERENCE)
    if (apart & ~same).any():
        return float("inf")
    ends = "end_top_log_probs"
    names = ("start_top_log_probs", "cls_logits")
    return max(*(_largest(theirs[name], ours[name]) for name in names), _largest(theirs[ends][same], ours[ends][same]))


def _largest(theirs: np.ndarray, ours: np.ndarray) -> float:
    """The largest difference; infinite if only one of two values is finite."""
    if theirs.shape != ours.shape:
        return float("inf")
    same = theirs == ours  # also of infinities
    with np.errstate(invalid="ignore"):
        difference = np.where(same, 0.0, np.abs(theirs - ours) / np.maximum(1.0, np.abs(ours)))
    return float(np.nan_to_num(difference, nan=np.inf).max(initial=0.0))


def own(graph: Graph, traced: torch.nn.Module | None = None) -> Run:
    """The model itself, or what was ``traced`` of it, as a runtime."""
    module = graph if traced is None else traced

    @torch.inference_mode()
    def run(inputs: Arrays) -> Arrays:
        read = {name: np.ascontiguousarray(array) for name, array in inputs.items() if name in graph.inputs}
        outputs = module(**{name: torch.from_numpy(array) for name, array in read.items()})
        return {name: output.numpy() for name, output in zip(graph.outputs, outputs, strict=True)}

    return run
