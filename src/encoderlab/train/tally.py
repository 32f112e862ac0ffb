"""Sums of losses, counts and hits over steps, kept on the device until they are read."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from encoderlab.batches.batch import Batch
from encoderlab.objectives.base import Memory, Objective, Term
from encoderlab.train.distributed import World
from encoderlab.train.precision import precision, products
from encoderlab.train.recipe import Precision


class Tally:
    """Adds up terms in double precision without waiting for the device."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._sums: dict[str, Tensor] = {}  # (2,) loss and hits
        self._counts: dict[str, int] = {}
        self._weights: dict[str, float] = {}
        self._with_hits: set[str] = set()

    def add(self, terms: Mapping[str, Term]) -> None:
        """Add the terms of one forward pass."""
        for name, term in terms.items():
            if name not in self._sums:
                self._sums[name] = torch.zeros(2, dtype=torch.float64, device=self.device)
            self._sums[name][0] += term.sum.detach()
            if term.hits is not None:
                self._sums[name][1] += term.hits
                self._with_hits.add(name)
            self._counts[name] = self._counts.get(name, 0) + term.count
            self._weights[name] = term.weight

    def totals(self, world: World) -> dict[str, dict[str, float]]:
        """Plain numbers over all processes, from which :meth:`restore` continues exactly; waits for the device."""
        names = sorted(self._sums)
        numbers = [number for name in names for number in (*self._sums[name].tolist(), self._counts[name])]
        added = world.sum(numbers) if names else []
        totals = {}
        for name, total, hits, count in zip(names, added[::3], added[1::3], added[2::3], strict=True):
            hits = hits if name in self._with_hits else -1.0
            totals[name] = {"sum": total, "hits": hits, "count": count, "weight": self._weights[name]}
        return totals

    def restore(self, totals: Mapping[str, Mapping[str, float]], world: World) -> None:
        """Restore the totals of an earlier tally; the first process holds the sums of all processes."""
        for name, term in totals.items():
            hits, share = max(term["hits"], 0.0), float(world.main)
            self._sums[name] = torch.tensor([term["sum"], hits], dtype=torch.float64, device=self.device) * share
            self._counts[name], self._weights[name] = int(term["count"] * share), term["weight"]
            if term["hits"] >= 0:
                self._with_hits.add(name)


def summary(totals: Mapping[str, Mapping[str, float]], bytes_per_token: Mapping[str, float]) -> dict[str, Any]:
    """Mean losses (nats), their weighted total, accuracies, counts, and bits per byte for the terms in
    ``bytes_per_token``. The total is not a number where nothing was predicted.

    Bits per byte: loss / ln 2 / bytes of text per token; independent of the vocabulary. For masked targets this assumes
    that they are as long as other tokens on average.
    """
    losses = {name: term["sum"] / term["count"] for name, term in totals.items() if term["count"]}
    line: dict[str, Any] = {
        "loss": sum(totals[name]["weight"] * loss for name, loss in losses.items()) if losses else math.nan,
        "losses": losses,
        "counts": {name: int(term["count"]) for name, term in totals.items()},
    }
    accuracy = {
        name: term["hits"] / term["count"] for name, term in totals.items() if term["count"] and term["hits"] >= 0
    }
    bits = {name: losses[name] / math.log(2) / size for name, size in bytes_per_token.items() if name in losses}
    return line | ({"accuracy": accuracy} if accuracy else {}) | ({"bits_per_byte": bits} if bits else {})


@torch.no_grad()
def measure(
    objective: Objective, batches: Iterable[Batch], world: World, mode: Precision
) -> dict[str, dict[str, float]]:
    """Totals of an objective in evaluation mode over whole batches; each process gets them all and computes its rows.

    A batch with fewer rows than processes is computed by all and counted once. Memory is carried from batch to batch.
    """
    tally = Tally(world.device)
    memory: Memory = None
    for batch in batches:
        shared = len(batch) >= world.size
        part = batch.slice(*world.share(len(batch))) if shared else batch
        with products(mode, world.device), precision(mode, world.device):
            terms, memory = objective(part.to(world.device), memory=memory)
        if not (shared or world.main):
            terms = {name: term.nothing() for name, term in terms.items()}
        tally.add(terms)  # the same names on all processes
    return tally.totals(world)
