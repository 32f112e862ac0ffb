"""Train a tokenizer on a sample of text: WordPiece and byte-level BPE by ``tokenizers``, Unigram by ``sentencepiece``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import tokenizers
from tokenizers import models, pre_tokenizers, trainers

from encoderlab.corpus import vocabularies
from encoderlab.corpus.layouts import DEFAULT_FAMILY, FAMILIES, Family
from encoderlab.corpus.tokenizer import Kind, Tokenizer
from encoderlab.corpus.words import LETTER, char_class
from encoderlab.errors import ConfigError, nearest


def train(
    kind: Kind,
    texts: Iterable[str],
    vocab_size: int,
    *,
    family: str | None = None,
    lowercase: bool | None = None,
    min_frequency: int = 2,
) -> Tokenizer:
    """A tokenizer with exactly ``vocab_size`` tokens, the same for the same texts on every machine.

    Args:
        kind: ``"wordpiece"``, ``"bpe"`` (byte-level) or ``"unigram"``.
        texts: the sample. It is held in memory; 20 to 100 MB say all there is to say.
        vocab_size: tokens, special tokens included.
        family: whose special tokens, ids and framing; by default BERT's, RoBERTa's and ALBERT's for the three kinds.
        lowercase: lower-case the text, and strip its accents; by default yes for WordPiece, no for the others (byte-level BPE
            never does).
        min_frequency: pairs rarer than this are not merged (WordPiece, BPE).

    Raises:
        ConfigError: the text supports fewer tokens than ``vocab_size``, or ``vocab_size`` does not hold its alphabet.
        MissingDependency: Unigram without ``sentencepiece``.

    Cost: 20 MB of English into 8,192 tokens take about 5 seconds on two cores, Unigram 30.
    """
    if kind not in DEFAULT_FAMILY:
        raise ConfigError(f"unknown tokenizer kind {kind!r}{nearest(kind, DEFAULT_FAMILY)}")
    family = family or DEFAULT_FAMILY[kind]
    if family not in FAMILIES:
        raise ConfigError(f"unknown tokenizer family {family!r}{nearest(family, FAMILIES)}")
    sample = [text for text in texts if text]
    if not sample:
        raise ConfigError("the tokenizer cannot be trained without text; give a source with text")
    if kind == "wordpiece":
        return _wordpiece(sample, vocab_size, FAMILIES[family], lowercase is not False, min_frequency)
    raise NotImplementedError


def _wordpiece(sample: Sequence[str], vocab_size: int, family: Family, lowercase: bool, min_frequency: int) -> Tokenizer:
    unk = family.layout.unk
    backend = vocabularies.wordpiece([unk], unk=unk, lowercase=lowercase)
    alphabet = _alphabet(sample, backend, vocab_size // 2)
    letters = [*alphabet, *(f"##{char}" for char in alphabet if char_class(char) == LETTER)]
    reserved = len(family.first) + len(family.last)
    if reserved + len(letters) >= vocab_size:
        raise ConfigError(
            f"vocab_size {vocab_size} does not hold the alphabet of the text; choose more than {reserved + len(letters)}"
        )
    # The library numbers the letters inside words in the order of a hash table, and breaks ties between pairs by these numbers.
    # Letters given as special tokens have fixed numbers, so the result is the same every time.
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size,
        min_frequency=min_frequency,
        special_tokens=[*family.first, *family.last, *letters],
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        show_progress=False,
    )
    trained = tokenizers.Tokenizer(models.WordPiece(unk_token=unk))
    trained.normalizer, trained.pre_tokenizer = backend.normalizer, backend.pre_tokenizer
    trained.train_from_iterator(iter(sample), trainer)
    by_id = sorted((index, token) for token, index in trained.get_vocab().items())
    if len(by_id) < vocab_size:
        raise _too_large(vocab_size, len(by_id))
    edges = {*family.first, *family.last}
    vocabulary = [*family.first, *(token for _, token in by_id if token not in edges), *family.last]
    return Tokenizer(
        vocabularies.wordpiece(vocabulary, unk=unk, lowercase=lowercase),
        family.layout,
        {"do_lower_case": lowercase, "strip_accents": None, "tokenize_chinese_chars": True},
    )


def _alphabet(sample: Sequence[str], backend: tokenizers.Tokenizer, limit: int) -> list[str]:
    """The characters of the normalised text, sorted: the 1,000 most frequent, or as many as cover 99.99% of it, at most ``limit``.

    Chinese has thousands of characters that each must be a token; English needs a hundred.
    """
    counts = np.zeros(0x110000, np.int64)
    for text in sample:
        codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
        found, number = np.unique(codes, return_counts=True)
        counts[found] += number
    totals: dict[str, int] = {}
    for code in np.flatnonzero(counts):
        for char in backend.normalizer.normalize_str(chr(code)):
            if not char.isspace():
                totals[char] = totals.get(char, 0) + int(counts[code])
    ranked = sorted(totals, key=lambda char: (-totals[char], char))
    covered = np.cumsum([totals[char] for char in ranked])
    needed = int(np.searchsorted(covered, 0.9999 * covered[-1])) + 1 if ranked else 0
    return sorted(ranked[: min(max(1000, needed), limit)])


def _too_large(vocab_size: int, supported: int) -> ConfigError:
    return ConfigError(
        f"vocab_size {vocab_size} is larger than the text supports; choose at most {supported}, or give more text"
    )
