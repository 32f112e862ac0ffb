"""Words in text without spaces, for whole-word masking of Chinese.

The text is segmented once, while a corpus is built, and the words are mapped to the tokens by their characters
(BERT-wwm; Erlangshen's script segments the joined tokens instead, and loses the words around unknown characters).
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Sequence
from itertools import accumulate

from encoderlab.errors import ConfigError, DataError, optional

Segment = Callable[[str], Sequence[str]]


def load_segmenter(name: str) -> Segment:
    """A function that cuts a text into words, by name.

    Args:
        name: ``"rjieba"`` (jieba's words with its hidden Markov model, 30 MB/s), ``"characters"`` (every character is a
            word, so that n-grams of words are n-grams of characters), or any function as ``"module:function"``, of a
            module that is installed or in the current folder.

    Raises:
        ConfigError: there is no such function.
        MissingDependency: ``rjieba`` is not installed.
    """
    if name == "characters":
        return list
    if name == "rjieba":
        with optional("rjieba", "zh", "the segmenter 'rjieba'"):
            import rjieba
        return rjieba.cut
    module, _, function = name.partition(":")
    if not module or not function:
        raise ConfigError(f"unknown segmenter {name!r}; choose rjieba, characters, or a function as module:function")
    folder = os.getcwd()
    sys.path.append(folder)  # as the last place that modules are imported from; python -m has it as the first
    try:
        segment = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"segmenter {name!r} cannot be imported ({error}); put the module in the current folder, or install it"
        ) from None
    except Exception as error:  # the module is the user's
        reason = f"{type(error).__name__}: {error}"
        raise ConfigError(f"segmenter {name!r} cannot be imported ({reason}); correct the module") from error
    finally:
        sys.path.remove(folder)
    if not callable(segment):
        raise ConfigError(
            f"segmenter {name!r} is {type(segment).__name__}, expected a function from a text to its words"
        )
    return segment


def word_start_offsets(text: str, segment: Segment) -> list[int]:
    """The characters at which the words of ``text`` start, in rising order.

    A segmenter may leave out white space between words.

    Raises:
        DataError: the segmenter fails, gives no words, gives a word that does not come next in the text, or stops
            before the end.
    """
    try:
        words = [word for word in segment(text) if word]
        joined = "".join(words)
    except Exception as error:  # the function is the user's
        reason = f"{type(error).__name__}: {error}"
        raise DataError(f"the segmenter fails on {text[:20]!r} ({reason}); it must return a list of words") from error
    if joined == text:
        return list(accumulate(map(len, words[:-1]), initial=0)) if words else []
    offsets, position = [], 0
    for word in words:
        place = text.find(word, position)
        if place < 0 or text[position:place].strip():
            raise DataError(
                f"the segmenter gave {word!r}, which does not come next in {text[position : position + 20]!r}; "
                "it must return the words of the text unchanged and in order"
            )
        offsets.append(place)
        position = place + len(word)
    if rest := text[position:].strip():
        raise DataError(
            f"the segmenter stopped before {rest[:20]!r}; "
            "it must return the words of the whole text, unchanged and in order"
        )
    return offsets


def make_segmenter(name: str) -> Callable[[str], list[int]]:
    """A function from a text to :func:`word_start_offsets` by the segmenter ``name``."""
    segment = load_segmenter(name)
    return lambda text: word_start_offsets(text, segment)
