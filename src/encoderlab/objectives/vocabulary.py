"""What an objective has to know of a tokenizer and a corpus."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from encoderlab.errors import ConfigError

if TYPE_CHECKING:
    from encoderlab.corpus.tokenizer import Tokenizer


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """The ids 0 .. ``size`` - 1, of which ``special`` are never text.

    ``counts`` (V,): how often each occurs in the corpus, if known.
    """

    size: int
    pad: int
    mask: int | None
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

    def require_mask(self) -> int:
        """The id of [MASK].

        Raises:
            ConfigError: the tokenizer has none.
        """
        if self.mask is None:
            raise ConfigError("the tokenizer has no [MASK] token; give one that has, or choose the causal objective")
        return self.mask
