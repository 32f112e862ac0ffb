"""The ids of a tokenizer and their counts in a corpus, as objectives need them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from encoderlab.corpus.tokenizer import Tokenizer


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """The ids 0 .. ``size`` - 1. Ids in ``special``, which include ``pad`` and ``mask``, are never text.

    ``counts`` (V,): how often each id occurs in the corpus, if known.
    """

    size: int
    pad: int
    mask: int
    special: tuple[int, ...]
    counts: np.ndarray | None = None

    @classmethod
    def of(cls, tokenizer: Tokenizer, counts: np.ndarray | None = None) -> Vocabulary:
        """The vocabulary of a tokenizer."""
        special = tokenizer.special
        return cls(
            size=tokenizer.vocab_size,
            pad=special.pad,
            mask=special.mask,
            special=tuple(special.all_special),
            counts=counts,
        )
