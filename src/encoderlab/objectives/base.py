"""The interface between the training loop and an objective.

An objective makes batches from rows, counts its predictions before the forward pass, and returns losses as sums.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from encoderlab.batches.loader import Format
from encoderlab.batches.streams import ContiguousStreams, StreamFormat, XLNetStreams
from encoderlab.config import Bounded
from encoderlab.errors import ConfigError
from encoderlab.models import flops

if TYPE_CHECKING:
    from encoderlab.batches.batch import Batch
    from encoderlab.batches.rows import Row
    from encoderlab.model import Model
    from encoderlab.models.base import ModelConfig
    from encoderlab.nn.noise import Noise
    from encoderlab.objectives.vocabulary import Vocabulary

Memory = tuple[Tensor, ...] | None  # from one forward pass to the next; the first axis is the rows


@dataclass(frozen=True)
class Term:
    """One loss as a sum over ``count`` predictions: loss = ``weight * sum / count``, accuracy = ``hits / count``.

    Sums and counts, never means: counts are added over micro-batches and processes before the backward pass, so that
    one batch of 32 rows, four batches of 8 and two processes with 16 each give the same gradient. ``sum`` is a scalar
    (nats for a cross-entropy), ``hits`` an integer scalar.
    """

    sum: Tensor
    count: int
    weight: float = 1.0
    hits: Tensor | None = None

    def nothing(self) -> Term:
        """The term of no predictions."""
        hits = None if self.hits is None else torch.zeros_like(self.hits)
        return Term(torch.zeros_like(self.sum), 0, self.weight, hits)


pytree.register_dataclass(Term)  # FSDP2 of torch 2.11 finds tensors only in registered output types


Losses = tuple[dict[str, Term], Memory]


class Settings(Bounded, ABC):
    """Base class for the settings of an objective, with the methods that each kind must define or may override."""

    kind: str
    needs_generator: ClassVar[bool] = False
    """Whether the second network is a generator, which is part of the recipe."""
    reads_backwards: ClassVar[bool] = False
    """Whether rows may run backwards (the label ``backwards``)."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        if missing := sorted(cls.__abstractmethods__):
            raise ConfigError(
                f"{cls.__module__}: {cls.__name__} does not define {', '.join(missing)}; every objective needs "
                f"{'it' if len(missing) == 1 else 'them'} (CONTRIBUTING.md, A new objective)"
            )
        return super().__new__(cls)

    @abstractmethod
    def build(
        self, model: Model, second: Model | None, vocabulary: Vocabulary, *, seed: int = 0, continued: bool = False
    ) -> Objective:
        """Build the objective from its networks.

        Args:
            model: the network that is trained.
            second: the generator of replaced token detection, or the teacher of a distillation; else None.
            vocabulary: the tokenizer's ids and their counts.
            seed: for weights that belong to the objective itself.
            continued: the networks have trained weights, which the objective must keep.

        Raises:
            ConfigError: the networks lack something that the objective needs.
        """

    @abstractmethod
    def operations(self, model: ModelConfig, second: ModelConfig | None, length: int) -> float:
        """Training FLOPs per token of full rows of ``length`` tokens, by the convention of
        :mod:`encoderlab.models.flops`.

        Counts every network, vocabulary heads at predicted tokens, the last layer only where it is computed, and the
        forward pass of a distillation's teacher if there is one.
        """

    def check(self, model: ModelConfig, format: Format, lengths: Sequence[int]) -> None:
        """Refuse rows that the objective cannot read; ``lengths`` are those of the phases.

        Raises:
            ConfigError: the objective cannot read these rows.
        """
        if isinstance(format, ContiguousStreams):
            raise ConfigError(
                f"contiguous_streams are for the causal objective, not {self.kind!r}; set format.kind to full_sentences"
            )
        if isinstance(format, XLNetStreams) and format.both_directions and not self.reads_backwards:
            raise ConfigError(
                f"every second row of xlnet_streams runs backwards, which {self.kind!r} would read as forwards; set "
                "format.both_directions to false"
            )

    def compared(self, length: int) -> float:
        """The share of tokens at which logits are compared with those of a second network, in full rows of
        ``length``.
        """
        return 0.0

    @property
    def masking_changes(self) -> bool:
        """Whether the share of masked tokens changes over the run, so that rows must know their place in it."""
        masking = getattr(self, "masking", None)
        return masking is not None and masking.final_rate is not None


def masked_operations(config: ModelConfig, length: int, rate: float) -> float:
    """Training FLOPs per token for ``config`` when only the masked tokens, a share ``rate``, are predicted."""
    config = replace(config, mask_vector=False)  # its query stream belongs to permutation language modelling
    spared = flops.spared(config, length, predicted=rate)
    return flops.training(config, length, predicted=rate) - (1 + flops.BACKWARD) * spared


class Objective(nn.Module):
    """A training task: it owns the networks, makes batches from rows, and computes the terms (:class:`Term`) of a
    batch.

    ``per_token`` names the terms that are cross-entropies of corpus tokens, whose loss can be reported in bits per
    byte.
    """

    model: Any  # what is trained, where that is one network
    per_token: tuple[str, ...] = ()
    stages: int = 1
    """Updates per batch: each stage is a forward pass, a backward pass and an update; its memory goes to the next
    stage.
    """

    def make_batch(self, rows: list[Row], *, seed: int) -> Batch:
        """The batch of ``rows``, a pure function: all randomness comes from ``seeds.generator(seed, *row.key)``.

        Runs in the loader's thread.
        """
        raise NotImplementedError

    def counts(self, batch: Batch) -> dict[str, int]:
        """The count of every term of :meth:`forward`, from labels only; every batch has the same names."""
        raise NotImplementedError

    def forward(self, batch: Batch, *, noise: Noise | None = None, memory: Memory = None) -> Losses:
        """The terms of ``batch``, and the memory for the next batch (detached; None without recurrence).

        ``noise`` keys every random number of the forward pass (dropout, sampling) by row; None outside training.
        ``memory`` is the result of the previous call.
        """
        raise NotImplementedError

    def models(self) -> dict[str, Model]:
        """The networks to save as the result: ``{"model": Model}``, or one name of a model folder per network."""
        return {"model": self.model}


def check_continued(settings: Settings, format: Format, streams: type[StreamFormat], *names: str) -> None:
    """Refuse memory for shuffled rows, because memory belongs to the previous row of a stream.

    Args:
        streams: the rows that fit.
        names: fields of ``settings`` that are lengths of memory.

    Raises:
        ConfigError: a field sets memory, but the rows are shuffled.
    """
    remembered = [f"objective.{name}" for name in names if getattr(settings, name)]
    if remembered and not isinstance(format, StreamFormat):
        raise ConfigError(
            f"shuffled rows ({format.kind}) cannot have memory of earlier rows; set format.kind to {streams.kind}, or "
            f"{' and '.join(remembered)} to 0"
        )


def carried(memory: Memory, batch: Batch) -> Memory:
    """``memory`` if every row of ``batch`` continues the row at the same place of the previous batch, else None.

    Packers of streams write this into the label ``continues`` (B,); other rows have no such label and no memory.
    """
    continues = batch.on_host.labels.get("continues")
    return memory if continues is not None and bool(continues.all()) else None
