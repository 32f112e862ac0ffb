"""What all layers of one forward pass share: masks, distances, rotary positions and dropout seeds.

Who sees whom: a query sees a key if all of these allow it.

- its document (``doc``): both have the same number; padding, -1, is seen by none (:func:`visible_by_document`). Or, as
  in other libraries, an attention mask: every token sees the ones, and :func:`with_itself` perhaps itself.
- ``visible``: a table of the caller, such as the order of a permutation.
- distance (:func:`visible_by_distance`): in a causal encoder no later key, with a window none further back.
- in local layers ``reach``, on both sides.

States of memory come before the row; all tokens but padding see them, as far as distance allows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from encoderlab.config import Bounded, Count, Natural
from encoderlab.errors import ConfigError
from encoderlab.nn.kernels.operation import operation
from encoderlab.nn.positions import Distances, RotaryBase, running_max


@dataclass(frozen=True, kw_only=True)
class Local(Bounded):
    """Local layers, whose tokens see only their neighbours (Beltagy et al., 2020), between layers whose tokens see the
    whole document (ModernBERT; Warner et al., 2024, section 2.1.2).

    Args:
        reach: a token of a local layer sees this many tokens on each side.
        period, full: layer i (from 0) sees the whole document if ``i % period`` is in ``full``; other layers are local.
        theta: base of the rotary positions in local layers; None means the base of the other layers.

    Raises:
        ConfigError: a number in ``full`` is not below ``period``.
    """

    reach: Natural = 64
    period: Count = 3
    full: tuple[int, ...] = (0,)
    theta: RotaryBase | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if any(not 0 <= layer < self.period for layer in self.full):
            raise ConfigError(f"layers {list(self.full)} of a period of {self.period}; give numbers from 0 below it")

    def sees_all(self, layer: int) -> bool:
        """Whether tokens of ``layer`` (from 0) see the whole document."""
        return layer % self.period in self.full


@dataclass(frozen=True)
class Nearby:
    """The reach and the rotary positions that local layers use instead of those of other layers (:class:`Local`)."""

    reach: int
    rotation: Tensor | None


@dataclass(frozen=True)
class Scope:
    """Shared by all layers of one forward pass: masks, distances, rotary positions and dropout seeds.

    Args:
        doc: (B, L), the document of each token, -1 for padding; None where every row is one document.
        visible: (B|1, 1, L, M) bool, True where a query may attend to a key; None for everywhere.
        distances: between tokens, for relative positions; None for other positions.
        positions: (B|1, L), the absolute position of each token; None where the encoder reads none.
        different: (B, 1, L, M) bool, True where query and key are in different segments.
        reverse: (B,) bool, rows whose tokens run backwards.
        at: (B, T), the places of the queries of a query stream; None where the queries are the row's own tokens.
        seeds: (B,), dropout seeds of the layer, one per row; None outside training.
        shared_seeds: (1,), dropout seed for tensors without a row axis; None outside training.
        keep_keyed: layers return their keys and values.
        remembered: number of memory states before the row.
        rotation: (M, K) or, where positions were given, (B|1, 1, M, K), cosines and sines of rotary positions, see
            :func:`encoderlab.nn.positions.rotations`.
        reach: a query does not see keys further away than this; None for no limit.
        nearby: ``rotation`` and ``reach`` of local layers; None where no layer is local.
    """

    doc: Tensor | None
    visible: Tensor | None
    distances: Distances | None
    positions: Tensor | None = None
    different: Tensor | None = None
    reverse: Tensor | None = None
    at: Tensor | None = None
    seeds: Tensor | None = None
    shared_seeds: Tensor | None = None
    keep_keyed: bool = False
    remembered: int = 0
    rotation: Tensor | None = None
    reach: int | None = None
    nearby: Nearby | None = None

    def of_local(self) -> Scope:
        """The scope with reach and rotary positions of local layers."""
        assert self.nearby is not None
        return replace(self, reach=self.nearby.reach, rotation=self.nearby.rotation)

    @property
    def one_rotation(self) -> bool:
        """Whether all rows have the same rotary positions, or none."""
        return self.rotation is None or self.rotation.dim() == 2

    def seen(self, keys: int) -> tuple[Tensor | None, int | None]:
        """``visible`` (B|1, 1, L, M) and ``reach`` for attention to M = ``keys`` keys.

        For queries at chosen places (``at``), the reach becomes part of the mask.
        """
        if self.at is None or self.reach is None:
            return self.visible, self.reach
        ages = self.at[:, None, :, None] + self.remembered - torch.arange(keys, device=self.at.device)
        near = ages.abs() <= self.reach
        return near if self.visible is None else near & self.visible, None

    def query_rotation(self, queries: int) -> Tensor:
        """Rows of ``rotation`` for the queries, (L, K) or (B, 1, T, K)."""
        assert self.rotation is not None
        if self.at is None:
            return self.rotation[..., self.rotation.shape[-2] - queries :, :]
        places = self.at + self.remembered
        if self.rotation.dim() == 2:
            return self.rotation[places][:, None]
        rotation = self.rotation.expand(places.shape[0], -1, -1, -1)
        return rotation.gather(2, places[:, None, :, None].expand(-1, -1, -1, rotation.shape[-1]))

    def of_queries(self, at: Tensor, visible: Tensor | None = None, remembered: int = 0) -> Scope:
        """The scope of a second pass whose queries are at places ``at`` (B, T) and read stored keys and values.

        The masks keep only the rows of these queries. ``visible`` (B, T, L), if given, replaces the mask; the queries
        then also see all ``remembered`` memory states.
        """

        def of(mask: Tensor | None) -> Tensor | None:
            if mask is None:
                return None
            index = at[:, None, :, None].expand(-1, -1, -1, mask.shape[-1])
            return mask.expand(at.shape[0], -1, -1, -1).gather(2, index)

        replaced = None if visible is None else F.pad(visible, (remembered, 0), value=True)[:, None]
        mask = of(self.visible) if replaced is None else replaced
        return replace(self, visible=mask, different=of(self.different), at=at, keep_keyed=True)


def visible_by_document(
    doc: Tensor | None, asking: Tensor | None, visible: Tensor | None, remembered: int
) -> Tensor | None:
    """Mask by document: (B, L, M) bool, True where a query may attend to a key; None where all see all.

    Args:
        doc: (B, L), the document of each key.
        asking: (B, L), the document that each query belongs to, see :func:`continued`.
        visible: (B, L, L), a further restriction.
        remembered: number of memory states before the row. All tokens see all of them; padding sees none.
    """
    mask = None
    if doc is not None and asking is not None:
        mask = (asking[:, :, None] == doc[:, None, :]) & (doc >= 0)[:, None, :]
    if visible is not None:
        mask = visible if mask is None else mask & visible
    if remembered and mask is not None:
        batch, length, _ = mask.shape
        real = mask.new_ones(1, length, 1) if doc is None else (doc >= 0)[:, :, None]
        mask = torch.cat([real.expand(batch, length, remembered), mask], dim=2)
    return mask


def with_itself(mask: Tensor, remembered: int) -> Tensor:
    """The mask (B, L, M) with every token also visible to itself; the first ``remembered`` keys are memory."""
    length = mask.shape[1]
    return mask | F.pad(torch.eye(length, dtype=torch.bool, device=mask.device), (remembered, 0))


@operation(torch.empty_like)
def checked_documents(doc: Tensor) -> Tensor:
    """A copy of ``doc`` (B, L), checked: every document is contiguous, because positions restart where a document
    starts.

    Costs a sort of the document numbers (0.3 ms for 32 rows of 512 tokens on one core). On an accelerator it also waits
    for the device. The copy makes a compiled model check too: an operation without a used result would be dropped.

    Raises:
        ConfigError: names the first document that is not contiguous, and its row.
    """
    numbers, places = doc.sort(dim=1, stable=True)
    again = (numbers[:, 1:] == numbers[:, :-1]) & (places[:, 1:] != places[:, :-1] + 1) & (numbers[:, 1:] >= 0)
    if bool(again.any()):
        row, number = (int(x) for x in again.nonzero()[0])
        raise ConfigError(
            f"doc of row {row}: document {int(numbers[row, number])} stops and comes back at token "
            f"{int(places[row, number + 1])}; number each document once, and give a mask with gaps as attention_mask"
        )
    return doc.clone()


def visible_by_distance(
    length: int, remembered: int, *, causal: bool, window: int | None, device: torch.device
) -> Tensor | None:
    """Mask by distance: (1, L, M) bool, True where a query may attend to a key; None where all see all.

    ``causal``: queries see no later keys. ``window``: a query sees at most this many keys back, itself included.
    """
    if not causal and window is None:
        return None
    keys = torch.arange(length + remembered, device=device)
    ages = torch.arange(length, device=device)[:, None] + remembered - keys
    near = ages >= 0 if causal else torch.ones_like(ages, dtype=torch.bool)
    return (near if window is None else near & (ages < window))[None]


def different_segments(segments: Tensor, remembered: int) -> Tensor:
    """(B, 1, L, M) bool, True where query and key are in different segments; memory is segment 0, as in XLNet."""
    return (segments[:, :, None] != F.pad(segments, (remembered, 0))[:, None, :])[:, None]


def continued(doc: Tensor) -> Tensor:
    """``doc`` (B, L) where padding takes the number of the document before it, or of the row's first document."""
    real, index = doc >= 0, torch.arange(doc.shape[1], device=doc.device)
    first = real.int().argmax(dim=1, keepdim=True)
    return doc.gather(1, running_max(torch.where(real, index, first)))
