"""Learning-rate schedules: each gives the share of the peak rate after ``spent`` of a budget of ``total``.

The loop multiplies it with ``optim.lr`` (:meth:`encoderlab.train.loop._Run._step`).

The unit is the budget's (steps, tokens, FLOPs or hours), so the rate decays to the end of the budget. ``warmup`` is a
share of the budget, or a number of steps if it is at least 1 (for a budget in steps). The first update has ``spent`` 0,
as in the reference codes, and the last one of a budget of T steps has T - 1. Below, t is ``spent``, T ``total`` and w
the warm-up. Sources: Devlin et al. (google-research/bert, optimization.py), Clark et al. (google-research/electra,
optimization.py), fairseq (polynomial_decay_schedule.py).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from encoderlab.config import Bounded, NonNegative, Positive, PositiveShare, Share


@dataclass(frozen=True, kw_only=True)
class _Schedule(Bounded):
    """The field of all schedules: ``warmup``, in steps if it is at least 1, else as a share of the budget."""

    warmup: NonNegative = 0.0

    def warm(self, total: float) -> float:
        """The length of the warm-up in the unit of ``total``."""
        return self.warmup if self.warmup >= 1 else self.warmup * total

    def share(self, spent: float, total: float) -> float:
        """The share of the peak rate after ``spent`` of ``total``: ``t / w`` while t < w."""
        warm = self.warm(total)
        return spent / warm if spent < warm else self.after(spent, warm, total)

    def after(self, spent: float, warm: float, total: float) -> float:
        """The share after the warm-up."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Bert(_Schedule):
    """BERT, ALBERT, DeBERTa: ``t / w`` while t < w, then ``1 - t / T``, so the rate drops by w / T after
    the warm-up.
    """

    kind: Literal["bert"] = "bert"

    def after(self, spent: float, warm: float, total: float) -> float:
        return max(0.0, 1 - spent / total)


@dataclass(frozen=True, kw_only=True)
class Electra(_Schedule):
    """ELECTRA, ConvBERT: ``(1 - t / T) min(1, t / w)``, the product of decay and warm-up."""

    kind: Literal["electra"] = "electra"

    def share(self, spent: float, total: float) -> float:
        warm = self.warm(total)
        return max(0.0, 1 - spent / total) * (min(1.0, spent / warm) if warm else 1.0)


@dataclass(frozen=True, kw_only=True)
class Polynomial(_Schedule):
    """RoBERTa, XLNet: ``t / w`` up to w, then ``end + (1 - end) (1 - (t - w) / (T - w)) ** power``, without a jump.

    ``end`` is a share of the peak.
    """

    kind: Literal["polynomial"] = "polynomial"
    power: Positive = 1.0
    end: Share = 0.0

    def after(self, spent: float, warm: float, total: float) -> float:
        left = 1 - (spent - warm) / (total - warm) if total > warm else 0.0
        return self.end + (1 - self.end) * max(0.0, left) ** self.power


@dataclass(frozen=True, kw_only=True)
class Cosine(_Schedule):
    """Transformer-XL: ``t / w`` up to w, then half a cosine from 1 to ``end`` (Loshchilov and Hutter, 2017)."""

    kind: Literal["cosine"] = "cosine"
    end: Share = 0.0

    def after(self, spent: float, warm: float, total: float) -> float:
        done = min(1.0, (spent - warm) / (total - warm)) if total > warm else 1.0
        return self.end + (1 - self.end) * 0.5 * (1 + math.cos(math.pi * done))


@dataclass(frozen=True, kw_only=True)
class Constant(_Schedule):
    """``t / w`` up to w, then 1."""

    kind: Literal["constant"] = "constant"

    def after(self, spent: float, warm: float, total: float) -> float:
        return 1.0


@dataclass(frozen=True, kw_only=True)
class WarmupStableDecay(_Schedule):
    """ModernBERT: ``t / w`` up to w, then 1, then down to ``end`` over the last ``decay`` of the budget.

    With x the finished share of the decay: ``1 - (1 - end) x`` (Hu et al., 2024, section 4), or ``1 - (1 - end)
    sqrt(x)`` (Haegele et al., 2024). Before the decay the rate does not depend on the budget, so one run can be decayed
    at several lengths.
    """

    kind: Literal["wsd"] = "wsd"
    decay: PositiveShare = 0.2
    shape: Literal["linear", "sqrt"] = "linear"
    end: Share = 0.0

    def after(self, spent: float, warm: float, total: float) -> float:
        done = min(1.0, max(0.0, 1 - (1 - spent / total) / self.decay))
        return 1 - (1 - self.end) * (done if self.shape == "linear" else done**0.5)


Schedule = Bert | Electra | Polynomial | Cosine | Constant | WarmupStableDecay
