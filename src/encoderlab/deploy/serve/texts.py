"""The words of a text, and requests that are refused."""

from __future__ import annotations

import re

from encoderlab.corpus.words import is_cjk


class Refused(Exception):
    """A request that cannot be answered; the message says what to change."""


def words_of(text: str) -> list[tuple[str, int, int]]:
    """The words of a text for a tagger, each with its first character and one past its last; Chinese is tagged
    character by character."""
    words = []
    for match in re.finditer(r"\S+", text):
        word, start = match.group(), match.start()
        if any(map(is_cjk, word)):
            words += [(letter, start + i, start + i + 1) for i, letter in enumerate(word)]
        else:
            words.append((word, start, match.end()))
    return words
