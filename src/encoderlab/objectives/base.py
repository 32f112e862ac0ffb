"""What the training loop asks of an objective.

It makes batches from rows, says its counts before the forward pass, and gives losses as sums.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor, nn
from torch.utils import _pytree as pytree

from encoderlab.errors import ConfigError
from encoderlab.models import flops

if TYPE_CHECKING:
    from encoderlab.batches.batch import Batch
    from encoderlab.batches.rows import Row
    from encoderlab.model import Model
    from encoderlab.models.base import ModelConfig
    from encoderlab.nn.noise import Noise
    from encoderlab.objectives.vocabulary import Vocabulary

Memory = tuple[Tensor, ...] | None  # what a forward pass leaves for the next: rows first, so that batches can be split


@dataclass(frozen=True)
class Term:
    """One loss as a sum over ``count`` predictions: loss = ``weight * sum / count``, accuracy = ``hits / count``.

    Sums and counts, never means: counts are added over micro-batches and processes before the backward pass, so that
    one batch of 32, four of 8 and two processes of 16 give the same gradient. ``sum`` is a scalar (nats for a
    cross-entropy), ``hits`` an integer scalar.
    """

    sum: Tensor
    count: int
    weight: float = 1.0
    hits: Tensor | None = None


pytree.register_dataclass(Term)  # FSDP2 of torch 2.11 finds only in such outputs the tensors that it hangs its work on


class Settings(ABC):
    """What the settings of every objective know besides their fields: a kind without one of these cannot be made."""

    compared: float = 0.0
    """The share of tokens at which logits are compared with a second network's."""

    @abstractmethod
    def build(
        self, model: Model, second: Model | None, vocabulary: Vocabulary, *, seed: int = 0, continued: bool = False
    ) -> Objective:
        """The objective over its networks.

        Args:
            second: the generator of replaced token detection, or the teacher of a distillation; else None.
            seed: of weights that the objective itself has.
            continued: the networks bring trained weights, which the objective leaves as they are.

        Raises:
            ConfigError: the networks lack what the objective needs.
        """

    @abstractmethod
    def operations(self, model: ModelConfig, second: ModelConfig | None, length: int) -> float:
        """Floating-point operations of training per token of full rows of ``length``, by the convention of
        :mod:`encoderlab.models.flops`: every network, vocabulary heads where tokens are predicted, of the last layer
        what is computed, and the forward pass of a distillation's teacher if it is given.
        """


def masked_operations(config: ModelConfig, length: int, rate: float) -> float:
    """Operations per token of training ``config`` on a share ``rate`` of the tokens, the masked ones, alone."""
    spared = flops.spared(config, length, predicted=rate)
    return flops.training(config, length, predicted=rate) - (1 + flops.BACKWARD) * spared


class Objective(nn.Module):
    """A training task: it owns the networks, makes batches out of rows and turns a batch into :class:`Term` s by name.

    ``per_token`` names the terms that are cross-entropies of corpus tokens, whose loss can be given in bits per byte of
    text.
    """

    per_token: tuple[str, ...] = ()
    stages: int = 1
    """Updates per batch: each stage is a forward pass, a backward pass and an update, and its memory is the next one's.
    """

    def make_batch(self, rows: list[Row], *, seed: int) -> Batch:
        """The batch of ``rows``, a pure function: randomness comes from ``seeds.generator(seed, *row.key)`` alone.

        Runs in the loader's thread.
        """
        raise NotImplementedError

    def counts(self, batch: Batch) -> dict[str, int]:
        """The count of every term of :meth:`forward`, from labels alone; the same names for every batch."""
        raise NotImplementedError

    def forward(
        self, batch: Batch, *, noise: Noise | None = None, memory: Memory = None
    ) -> tuple[dict[str, Term], Memory]:
        """The terms of ``batch``, and the memory to give back with the next batch (detached; None without recurrence).

        ``noise`` keys every random number of the forward pass (dropout, sampling) by row; None outside training.
        """
        raise NotImplementedError

    def models(self) -> dict[str, Model]:
        """What is saved as the result: ``{"model": Model}``, or a model folder's name for each network."""
        raise NotImplementedError


def check_memory(settings: object, *names: str) -> None:
    """Refuse lengths of memory below zero.

    Raises:
        ConfigError: with the name of the length.
    """
    for name in names:
        length = getattr(settings, name)
        if length is not None and length < 0:
            raise ConfigError(f"{name} {length} is negative; give 0 for no memory, or more")


def carried(memory: Memory, batch: Batch) -> Memory:
    """``memory`` where every row of ``batch`` goes on where the row at its place in the batch before ended, else None.

    The packers of streams say so in the label ``continues`` (B,); other rows have no such label and no memory.
    """
    continues = batch.on_host.labels.get("continues")
    return memory if continues is not None and bool(continues.all()) else None
