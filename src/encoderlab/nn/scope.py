"""Who sees whom in a forward pass, and what else its layers share."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from encoderlab.config import check_least
from encoderlab.errors import ConfigError
from encoderlab.nn.positions import Distances, running_max


@dataclass(frozen=True, kw_only=True)
class Local:
    """Layers whose tokens see their neighbours only (Beltagy et al., 2020), between others that see the whole document
    (ModernBERT; Warner et al., 2024, section 2.1.2).

    Args:
        reach: how many tokens on each side a token of a local layer sees.
        period, full: layer i (from 0) sees all where ``i % period`` is one of ``full``; the other layers are local.
        theta: the base of rotary positions in local layers; None for that of the other layers.
    """

    reach: int = 64
    period: int = 3
    full: tuple[int, ...] = (0,)
    theta: float | None = None

    def __post_init__(self) -> None:
        check_least(self, 0, "reach")
        check_least(self, 1, "period", "theta")
        if any(not 0 <= layer < self.period for layer in self.full):
            raise ConfigError(f"layers {list(self.full)} of a period of {self.period}; give numbers from 0 below it")

    def sees_all(self, layer: int) -> bool:
        """Whether tokens of ``layer`` (from 0) see the whole document."""
        return layer % self.period in self.full


@dataclass(frozen=True)
class Nearby:
    """What local layers have in the place of the others' (:class:`Local`)."""

    reach: int
    rotation: Tensor | None


@dataclass(frozen=True)
class Scope:
    """What the layers of one forward pass share: who sees whom, distances, and the keys of dropout.

    Args:
        doc: (B, L), the document of each token, -1 for padding; None where every row is one document.
        visible: (B|1, 1, L, M) bool, which keys a query sees; None for all.
        distances: between tokens, for relative positions; None for others.
        positions: (B|1, L), the absolute position of each token; None where the encoder reads none.
        different: (B, 1, L, M) bool, where query and key are in different segments.
        reverse: (B,) bool, rows whose tokens run backwards.
        at: (B, T), the places of a query stream's queries; None for the states' own.
        keys: (B,), keys of the layer's dropout, one per row; None outside training.
        shared_keys: (1,), the key for what has no row axis; None outside training.
        keep_keyed: layers hand out their keys and values.
        remembered: states of the memory before the row.
        rotation: (M, K) or, where positions were given, (B|1, 1, M, K), cosines and sines of rotary positions, see
            :func:`encoderlab.nn.positions.rotations`.
        reach: keys further away than this are not seen; None for no limit.
        nearby: the last two of local layers; None where there are none.
    """

    doc: Tensor | None
    visible: Tensor | None
    distances: Distances | None
    positions: Tensor | None = None
    different: Tensor | None = None
    reverse: Tensor | None = None
    at: Tensor | None = None
    keys: Tensor | None = None
    shared_keys: Tensor | None = None
    keep_keyed: bool = False
    remembered: int = 0
    rotation: Tensor | None = None
    reach: int | None = None
    nearby: Nearby | None = None

    def of_local(self) -> Scope:
        """The scope of a local layer."""
        assert self.nearby is not None
        return replace(self, reach=self.nearby.reach, rotation=self.nearby.rotation)

    def seen(self, keys: int) -> tuple[Tensor | None, int | None]:
        """``visible`` and ``reach`` for attention to ``keys`` keys: where queries stand at chosen places, the mask says
        which keys are within reach."""
        if self.at is None or self.reach is None:
            return self.visible, self.reach
        ages = self.at[:, None, :, None] + self.remembered - torch.arange(keys, device=self.at.device)
        near = ages.abs() <= self.reach
        return near if self.visible is None else near & self.visible, None

    def query_rotation(self, queries: int) -> Tensor:
        """``rotation`` at the places of the queries, (L, K) or (B, 1, T, K)."""
        assert self.rotation is not None
        if self.at is None:
            return self.rotation[..., self.rotation.shape[-2] - queries :, :]
        places = self.at + self.remembered
        if self.rotation.dim() == 2:
            return self.rotation[places][:, None]
        rotation = self.rotation.expand(len(places), -1, -1, -1)
        return rotation.gather(2, places[:, None, :, None].expand(-1, -1, -1, rotation.shape[-1]))

    def of_queries(self, at: Tensor, visible: Tensor | None = None, remembered: int = 0) -> Scope:
        """The scope of queries at places ``at`` (B, T), who read keys and values that are kept: the masks are reduced
        to their rows. ``visible`` (B, T, L), if given, takes the mask's place; all of the memory, ``remembered``
        states long, is then seen too.
        """

        def of(mask: Tensor | None) -> Tensor | None:
            if mask is None:
                return None
            index = at[:, None, :, None].expand(-1, -1, -1, mask.shape[-1])
            return mask.expand(at.shape[0], -1, -1, -1).gather(2, index)

        given = None if visible is None else F.pad(visible, (remembered, 0), value=True)[:, None]
        mask = of(self.visible) if given is None else given
        return replace(self, visible=mask, different=of(self.different), at=at, keep_keyed=True)


def visible_by_document(
    doc: Tensor | None, asking: Tensor | None, visible: Tensor | None, remembered: int
) -> Tensor | None:
    """Which keys each query sees for its document, (B, L, M) bool; None where all see all.

    Args:
        doc: (B, L), the document of each key.
        asking: (B, L), the document of each query, see :func:`continued`.
        visible: (B, L, L), a further restriction.
        remembered: states of the memory before the row. All tokens see all of them, padding sees none.
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
    """The mask (B, L, M) in which every token sees itself too; the ``remembered`` states come first."""
    length = mask.shape[1]
    return mask | F.pad(torch.eye(length, dtype=torch.bool, device=mask.device), (remembered, 0))


def check_documents(doc: Tensor) -> None:
    """Refuse a document that comes back after another, or after padding: its positions would start again at 0.

    Costs a sort of the numbers (0.3 ms for 32 rows of 512 tokens on one core), and on an accelerator a wait for them.

    Raises:
        ConfigError: names the first such document and its row.
    """
    numbers, places = doc.sort(dim=1, stable=True)
    again = (numbers[:, 1:] == numbers[:, :-1]) & (places[:, 1:] != places[:, :-1] + 1) & (numbers[:, 1:] >= 0)
    if bool(again.any()):
        row, number = (int(x) for x in again.nonzero()[0])
        raise ConfigError(
            f"doc of row {row}: document {int(numbers[row, number])} stops and comes back at token "
            f"{int(places[row, number + 1])}; number each document once, and give a mask with gaps as attention_mask"
        )


def visible_by_distance(
    length: int, remembered: int, *, causal: bool, window: int | None, device: torch.device
) -> Tensor | None:
    """Which keys each query sees for where they stand, (1, L, M) bool; None where all see all.

    ``causal``: no later ones. ``window``: at most so many back, its own included.
    """
    if not causal and window is None:
        return None
    keys = torch.arange(length + remembered, device=device)
    ages = torch.arange(length, device=device)[:, None] + remembered - keys
    near = ages >= 0 if causal else torch.ones_like(ages, dtype=torch.bool)
    return (near if window is None else near & (ages < window))[None]


def different_segments(segments: Tensor, remembered: int) -> Tensor:
    """Whether query and key lie in different segments, (B, 1, L, M); memory is segment 0, as in XLNet's code."""
    return (segments[:, :, None] != F.pad(segments, (remembered, 0))[:, None, :])[:, None]


def continued(doc: Tensor) -> Tensor:
    """``doc`` (B, L) with padding that continues the document before it, or begins the row's first."""
    real, index = doc >= 0, torch.arange(doc.shape[1], device=doc.device)
    first = real.int().argmax(dim=1, keepdim=True)
    return doc.gather(1, running_max(torch.where(real, index, first)))
