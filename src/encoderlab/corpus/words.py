"""Where words start among subword tokens, for whole-word masking; one rule for WordPiece, byte-level BPE and Unigram.

A token starts a word if it follows white space, if it is punctuation or a Chinese character, or if it follows one of
these (``world`` in ``hello-world``). So the words are those of BERT's basic tokenizer, as far as tokens allow: a run of
punctuation that is one token is one word. ALBERT's rule for SentencePiece (``_is_start_piece_sp``) differs in two
points: there a piece after punctuation continues the word of the punctuation, and a piece with a digit always starts a
word.

Tokens of these kinds show it themselves (:class:`WordStarts`); for others, such as a BPE of characters, the text does
(:func:`word_starts_in`).
"""

from __future__ import annotations

import string
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from encoderlab.ranges import offsets

# Classes of a token's first and last character: the inside of a character; letters of words; white space; what
# is a word of its own (punctuation, Chinese characters); the end of a token that is but a space.
INSIDE, LETTER, OPEN, OTHER, SPACE = range(5)

# The blocks of ideographs that BERT's tokenizer splits off; kana and hangul are letters.
CJK = ((0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x2EBEF), (0x2F800, 0x2FA1F))


def is_cjk(char: str) -> bool:
    """Whether ``char`` is a CJK ideograph, by the blocks :data:`CJK`."""
    return any(first <= ord(char) <= last for first, last in CJK)


def are_cjk(codes: np.ndarray) -> np.ndarray:
    """:func:`is_cjk` of code points: (n,) -> (n,) bool."""
    inside = np.zeros(len(codes), bool)
    for first, last in CJK:
        inside |= (codes >= first) & (codes <= last)
    return inside


def is_punctuation(char: str) -> bool:
    """Whether BERT's tokenizer splits ``char`` off: every ASCII symbol, and the punctuation of Unicode."""
    return char in string.punctuation if char.isascii() else unicodedata.category(char)[0] == "P"


def char_class(char: str) -> int:
    """OPEN for white space, OTHER for characters that are words of their own, LETTER for characters of words."""
    if char.isspace():
        return OPEN
    return OTHER if is_cjk(char) or is_punctuation(char) else LETTER


def tokens_show_words(parts: dict[str, Any]) -> bool:
    """Whether the tokens of this ``tokenizer.json`` show where words start: ``##`` within words, GPT-2's letters for
    bytes, or ``▁`` before words.
    """
    model, splitter = parts["model"], str(parts["pre_tokenizer"])
    if model["type"] == "WordPiece":
        return model["continuing_subword_prefix"] == "##"
    return ("ByteLevel" if model["type"] == "BPE" else "▁") in splitter


def word_starts_in(texts: Sequence[str], starts: np.ndarray, bounds: np.ndarray) -> np.ndarray:
    """Word starts from the texts: (n,) bool.

    ``starts`` (n,) are the characters at which tokens start, white space before them skipped; those of text i are
    ``bounds[i]`` to ``bounds[i + 1]``.
    """
    firsts = offsets(np.array([len(text) + 1 for text in texts]))[:-1]  # of the texts, with a space before each
    codes = np.frombuffer("".join(f" {text}" for text in texts).encode("utf-32-le", "surrogatepass"), np.uint32)
    present, places = np.unique(codes, return_inverse=True)
    classes = np.array([char_class(chr(code)) for code in present], np.int8)[places]
    classes = np.append(classes, OPEN)  # a token of white space at the end of the last text
    before = np.repeat(firsts, np.diff(bounds)) + starts
    starts_word = (classes[before] != LETTER) | (classes[before + 1] == OTHER)
    starts_word[1:] &= before[1:] != before[:-1]  # parts of one character
    return starts_word


class WordStarts:
    """Word starts from token ids alone, by table: 10 to 20 ns per token.

    Args:
        tokens: the vocabulary in the order of ids.
        kind: ``"wordpiece"``, ``"bpe"`` or ``"unigram"``.
    """

    def __init__(self, tokens: Sequence[str], kind: str, special: Iterable[int] = ()) -> None:
        if kind == "wordpiece":
            self.head = np.array([INSIDE if token.startswith("##") else OPEN for token in tokens], np.int8)
            self.tail = np.full(len(tokens), LETTER, np.int8)
            self.has_parts = False
            return
        classes = (_bpe_classes if kind == "bpe" else _unigram_classes)(tokens)
        self.head = np.array([head for head, _ in classes], np.int8)
        self.tail = np.array([tail for _, tail in classes], np.int8)
        for index in special:
            self.head[index], self.tail[index] = OTHER, OTHER
        self.has_parts = bool((self.tail == INSIDE).any())

    def __call__(self, ids: np.ndarray, firsts: np.ndarray | None = None) -> np.ndarray:
        """A flag per token: (n,) integer ids -> (n,) bool.

        ``firsts`` are the places where a text begins, by default 0; a text begins with a word.
        """
        if not len(ids):
            return np.zeros(0, bool)
        firsts = np.zeros(1, np.int64) if firsts is None else firsts[firsts < len(ids)]
        head, tail = self.head[ids], self.tail[ids]
        starts = head >= OPEN
        if self.has_parts:  # parts of one character: the last whole character decides
            known = tail != INSIDE
            known[firsts] = True
            tail = tail[np.maximum.accumulate(np.where(known, np.arange(len(ids)), 0))]
        starts[1:] |= (head[1:] == LETTER) & (tail[:-1] == OTHER)
        starts[1:] &= (head[1:] == OPEN) | (tail[:-1] != SPACE)
        starts[firsts] = True
        return starts


def _unigram_classes(tokens: Sequence[str]) -> list[tuple[int, int]]:
    classes = []
    for token in tokens:
        if token in ("▁", ""):
            classes.append((OPEN, SPACE))
        elif len(token) == 6 and token.startswith("<0x"):  # byte fallback
            classes.append((LETTER, LETTER))
        else:
            head = OPEN if token[0] == "▁" else char_class(token[0])
            classes.append((head, LETTER if char_class(token[-1]) == LETTER else OTHER))
    return classes


def _bpe_classes(tokens: Sequence[str]) -> list[tuple[int, int]]:
    classes = []
    for token in tokens:
        try:
            data = bytes(BYTE_OF[char] for char in token)
        except KeyError:  # a special token
            data = b""
        if not data:
            classes.append((OTHER, OTHER))
            continue
        if data == b" ":
            classes.append((OPEN, SPACE))
            continue
        head = _first_class(data)
        if 0x80 <= data[-1] < 0xC0 and (len(data) == 1 or all(0x80 <= byte < 0xC0 for byte in data)):
            tail = INSIDE  # the inside or the end of a character that began in an earlier token
        else:
            tail = _last_class(data)
        classes.append((head, tail))
    return classes


def _first_class(data: bytes) -> int:
    if 0x80 <= data[0] < 0xC0:
        return INSIDE
    text = data.decode("utf-8", "ignore")
    if len(data) >= _length(data[0]) and text:
        return char_class(text[0])
    return OTHER if 0xE4 <= data[0] <= 0xE9 else LETTER  # the first bytes of a character; E4..E9 are ideographs


def _last_class(data: bytes) -> int:
    start = len(data) - 1
    while start > 0 and 0x80 <= data[start] < 0xC0:
        start -= 1
    if 0x80 <= data[start] < 0xC0 or len(data) - start < _length(data[start]):
        return OTHER if 0xE4 <= data[start] <= 0xE9 else LETTER
    return LETTER if char_class(data[start:].decode("utf-8", "replace")[-1]) == LETTER else OTHER


def _length(lead: int) -> int:
    """The bytes of a UTF-8 character, from its first."""
    return 1 if lead < 0x80 else 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4


def _byte_letters() -> dict[str, int]:
    """GPT-2's letters for bytes: printable bytes are themselves, the others the letters from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    letters = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(256) if byte not in set(printable))
    return letters | {chr(0x100 + index): byte for index, byte in enumerate(others)}


BYTE_OF = _byte_letters()
