"""The words of plain text for a tagger, for ``predict`` and ``serve``.

Taggers learn from words that are cut as in CoNLL-2003: punctuation around a word is a word of its own, punctuation
inside it (``Oslo-based``, ``3.14``, ``U.N.``) is not.
"""

from __future__ import annotations

import re
import unicodedata

from encoderlab.corpus.words import is_cjk

_SPECIAL = ("[CLS]", "[MASK]", "[PAD]", "[SEP]", "[UNK]")  # tokens that begin and end with a mark
_ABBREVIATION = re.compile(r"[^\W\d_]\.|(?:[^\W\d_]+\.){2,}")  # J. and U.N.
Word = tuple[str, int, int]  # with its first character and one past its last


def words_of(text: str) -> list[Word]:
    """The words of a text: between white space; each Chinese character, and each mark around a word, is its own.

    The full stop of a single letter, or of a word with one inside, is part of it (``J.``, ``U.N.``).
    """
    words: list[Word] = []
    for match in re.finditer(r"\S+", text):
        begin, end = match.span()
        start = begin
        for place in range(begin, end):
            if is_cjk(text[place]) or _is_wide_mark(text[place]):
                words += _stripped(text, start, place)
                words.append((text[place], place, place + 1))
                start = place + 1
        words += _stripped(text, start, end)
    return words


def _stripped(text: str, start: int, end: int) -> list[Word]:
    """A word without the marks around it, which are words of their own."""
    first, last = start, end
    while first < last and _is_mark(text[first]) and not text.startswith(_SPECIAL, first, last):
        first += 1
    while last > first and _is_mark(text[last - 1]) and not _is_whole(text, first, last):
        last -= 1
    marks = [(text[i], i, i + 1) for i in range(start, first)]
    inner = [(text[first:last], first, last)] if first < last else []
    return [*marks, *inner, *((text[i], i, i + 1) for i in range(last, end))]


def _is_whole(text: str, first: int, last: int) -> bool:
    """Whether the mark at the end of a word is part of it. It takes the same time for any number of marks."""
    if text.endswith(_SPECIAL, first, last):
        return True
    return not _is_mark(text[last - 2]) and _ABBREVIATION.fullmatch(text, first, last) is not None


def _is_mark(char: str) -> bool:
    """Whether a mark around a word is cut off: brackets, quotes, stops, dashes, but no hyphen and no sign of a name."""
    return unicodedata.category(char) in ("Ps", "Pe", "Pi", "Pf", "Po", "Pd") and char not in "-#@%&*/\\"


def _is_wide_mark(char: str) -> bool:
    """Whether a mark is Chinese, which also stands between words without white space."""
    return ("\u3000" <= char <= "\u303f" or "\uff00" <= char <= "\uffef") and _is_mark(char)
