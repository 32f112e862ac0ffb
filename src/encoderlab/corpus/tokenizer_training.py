"""Train a tokenizer on a sample of text: WordPiece and byte-level BPE by ``tokenizers``, Unigram by
``sentencepiece``."""

from __future__ import annotations

import dataclasses
import io
import json
import re
from collections.abc import Iterable, Sequence

import numpy as np
import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, trainers

from encoderlab.corpus import sentencepiece_model, vocabularies
from encoderlab.corpus.sentencepiece_model import CONTROL, NORMAL, UNKNOWN, SentencePiece, SentencePieceModel
from encoderlab.corpus.special_tokens import DEFAULT_FAMILY, FAMILIES, Kind, VocabularyFamily
from encoderlab.corpus.vocabularies import TokenizerParts
from encoderlab.corpus.words import LETTER, char_class
from encoderlab.errors import ConfigError, DataError, nearest, optional

MIN_FREQUENCY = 2  # pairs rarer than this are not merged


def train(
    kind: Kind,
    texts: Iterable[str],
    vocab_size: int,
    *,
    family: str | None = None,
    lowercase: bool | None = None,
) -> TokenizerParts:
    """The vocabulary of a tokenizer with exactly ``vocab_size`` tokens, the same for the same texts on every machine;
    :meth:`encoderlab.corpus.tokenizer.Tokenizer.train` makes the tokenizer from it.

    Args:
        kind: ``"wordpiece"``, ``"bpe"`` (byte-level) or ``"unigram"``.
        texts: the sample, kept in memory; 20 to 100 MB are enough.
        vocab_size: tokens, special tokens included.
        family: family of special tokens, ids and framing; by default BERT's, RoBERTa's and ALBERT's for the three
            kinds.
        lowercase: lower-case the text, and strip its accents; by default yes for WordPiece, no for the others
            (byte-level BPE never does).

    Raises:
        ConfigError: the text supports fewer tokens than ``vocab_size``, or ``vocab_size`` is too small for its
            alphabet.
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
        raise DataError("the tokenizer cannot be trained without text; give a source with text")
    if kind == "wordpiece":
        return _wordpiece(sample, vocab_size, FAMILIES[family], lowercase is not False)
    if kind == "bpe":
        if lowercase:
            raise ConfigError("byte-level BPE keeps every byte of the text; lowercase is for WordPiece and Unigram")
        return _byte_bpe(sample, vocab_size, FAMILIES[family])
    return _unigram(sample, vocab_size, family, bool(lowercase))


def _wordpiece(sample: Sequence[str], vocab_size: int, family: VocabularyFamily, lowercase: bool) -> TokenizerParts:
    supported = vocab_size
    while len(learned := _wordpieces(sample, supported, family, lowercase)) < supported:
        supported = len(learned)  # then fewer letters are tokens (_alphabet), and the text may support even fewer
    if supported < vocab_size:
        raise _too_large(vocab_size, supported)
    edges = {*family.first, *family.last}
    vocabulary = [*family.first, *(token for token in learned if token not in edges), *family.last]
    return TokenizerParts(
        vocabularies.wordpiece(vocabulary, unk=family.special_tokens.unk, lowercase=lowercase),
        family.special_tokens,
        {"do_lower_case": lowercase, "strip_accents": None, "tokenize_chinese_chars": True},
    )


def _wordpieces(sample: Sequence[str], vocab_size: int, family: VocabularyFamily, lowercase: bool) -> list[str]:
    """The tokens in the order of learning, ``vocab_size`` or as many as the text supports."""
    unk = family.special_tokens.unk
    backend = vocabularies.wordpiece([unk], unk=unk, lowercase=lowercase)
    alphabet = _alphabet(sample, backend, vocab_size, len(family.first) + len(family.last))
    letters = [*alphabet, *(f"##{char}" for char in alphabet if char_class(char) == LETTER)]
    # The library numbers the letters inside words in the order of a hash table, and breaks ties between pairs by these
    # numbers. Letters given as special tokens have fixed numbers, so the result is the same every time.
    reserved = [*family.first, *family.last, *letters]
    trainer = trainers.WordPieceTrainer(
        vocab_size=_bounded(vocab_size, sample, len(reserved)),
        min_frequency=MIN_FREQUENCY,
        special_tokens=reserved,
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        show_progress=False,
    )
    trained = tokenizers.Tokenizer(models.WordPiece(unk_token=unk))
    trained.normalizer, trained.pre_tokenizer = backend.normalizer, backend.pre_tokenizer
    trained.train_from_iterator(iter(sample), trainer)
    vocabulary = trained.get_vocab()
    return sorted(vocabulary, key=vocabulary.__getitem__)


def _byte_bpe(sample: Sequence[str], vocab_size: int, family: VocabularyFamily) -> TokenizerParts:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    smallest = len(family.first) + len(letters) + len(family.last)
    if vocab_size < smallest:
        raise TooSmall(f"--vocab-size {vocab_size} does not hold the 256 bytes; choose at least {smallest}")
    trainer = trainers.BpeTrainer(
        vocab_size=_bounded(vocab_size - len(family.last), sample, smallest),
        min_frequency=MIN_FREQUENCY,
        special_tokens=list(family.first),
        initial_alphabet=letters,
        show_progress=False,
    )
    trained = vocabularies.byte_bpe({}, [])
    trained.train_from_iterator(iter(sample), trainer)
    model = json.loads(trained.to_str())["model"]
    vocabulary = model["vocab"]
    if len(vocabulary) + len(family.last) < vocab_size:
        raise _too_large(vocab_size, len(vocabulary) + len(family.last))
    vocabulary |= {token: len(vocabulary) + index for index, token in enumerate(family.last)}
    return TokenizerParts(
        vocabularies.byte_bpe(vocabulary, [tuple(pair) for pair in model["merges"]]), family.special_tokens
    )


def _unigram(sample: Sequence[str], vocab_size: int, name: str, lowercase: bool) -> TokenizerParts:
    """Trained on normalised text, so that both libraries cut the same text.

    Scores are rounded to 1/1024, so every sum is exact in single precision, and sentencepiece and the ``tokenizers``
    library agree on the best segmentation, ties included.
    """
    with optional("sentencepiece", "spm", "training a Unigram tokenizer"):
        import sentencepiece
    family = FAMILIES[name]
    normalizer = normalizers.Sequence(
        [*vocabularies.unigram_normalizers(name, lowercase=lowercase), *vocabularies.unigram_cleaning()]
    )
    reserved = [*family.first, *family.last]
    lines = (line for text in sample for part in text.split("\n") if (line := normalizer.normalize_str(part)))
    output = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=lines,
            model_writer=output,
            model_type="unigram",
            vocab_size=min(max(1, vocab_size - len(reserved) + 1), 1 << 30),  # and the unknown piece; it takes 31 bits
            normalization_rule_name="identity",
            character_coverage=0.9999,
            max_sentence_length=1 << 30,  # it would silently leave out longer lines
            unk_id=0,
            bos_id=-1,
            eos_id=-1,
            pad_id=-1,
            num_threads=4,  # part of the result: sums are rounded per thread
            minloglevel=3,
        )
    except (RuntimeError, OSError) as error:
        limit = re.search(r"value <= (\d+)", str(error))
        if limit:
            raise _too_large(vocab_size, int(limit[1]) - 1 + len(reserved)) from None
        smallest = re.search(r"smaller than required_chars. \d+ vs (\d+)", str(error))
        if smallest:
            raise _too_small(vocab_size, int(smallest[1]) - 1 + len(reserved)) from None
        raise ConfigError(f"sentencepiece cannot train on this text: {str(error).splitlines()[-1]}") from None
    pieces = [piece for piece in sentencepiece_model.parse(output.getvalue()).pieces if piece.type == NORMAL]
    learned = [dataclasses.replace(piece, score=round(piece.score * 1024) / 1024) for piece in pieces]
    unk = family.special_tokens.unk
    edges = {token: SentencePiece(text=token, type=UNKNOWN if token == unk else CONTROL) for token in reserved}
    model = SentencePieceModel(
        pieces=(*(edges[token] for token in family.first), *learned, *(edges[token] for token in family.last)),
        remove_extra_spaces=False,  # already done by the normaliser
    )
    backend = sentencepiece_model.unigram(model, before=[normalizer], split_numbers=name in ("albert", "xlnet"))
    special_tokens = dataclasses.replace(
        family.special_tokens,
        others=tuple(token for token in reserved if token not in family.special_tokens.roles().values()),
    )
    return TokenizerParts(backend, special_tokens, {"do_lower_case": lowercase})


def _bounded(vocab_size: int, sample: Sequence[str], reserved: int) -> int:
    """``vocab_size``, or a smaller number that the text cannot reach: the library allocates memory for that many
    tokens, and ends the process if there is none. Each token besides the ``reserved`` ones joins two letters of a
    word.
    """
    return min(vocab_size, reserved + sum(len(text.encode("utf-8", "surrogatepass")) for text in sample))


def _alphabet(sample: Sequence[str], backend: tokenizers.Tokenizer, vocab_size: int, reserved: int) -> list[str]:
    """The characters of the normalised text that become tokens, sorted.

    They cover 98% of the text. Beyond that they take at most three quarters of the vocabulary (a letter takes two
    tokens, because it also occurs inside words): the 1,000 most frequent, or as many as cover 99.99% (Chinese has
    thousands).

    Raises:
        ConfigError: 98% of the text need more than the vocabulary.
    """
    counts = np.zeros(0x110000, np.int64)
    for text in sample:
        codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
        present, times = np.unique(codes, return_counts=True)
        counts[present] += times
    totals: dict[str, int] = {}
    for code in np.flatnonzero(counts):
        for char in backend.normalizer.normalize_str(chr(code)):
            if not char.isspace():
                totals[char] = totals.get(char, 0) + int(counts[code])
    ranked = sorted(totals, key=lambda char: (-totals[char], char))
    if not ranked:
        raise ConfigError("the tokenizer cannot be trained: the text is only white space; give a source with text")
    covered = np.cumsum([totals[char] for char in ranked]) / sum(totals.values())
    tokens = np.cumsum([1 + (char_class(char) == LETTER) for char in ranked])
    needed = int(np.searchsorted(covered, 0.98)) + 1
    if tokens[needed - 1] > vocab_size - reserved:
        raise _too_small(vocab_size, reserved + int(tokens[needed - 1]))
    usual = min(max(1000, int(np.searchsorted(covered, 0.9999)) + 1), len(ranked))
    affordable = int(np.searchsorted(tokens, 3 * (vocab_size - reserved) // 4, side="right"))
    number = max(needed, min(usual, affordable))
    return sorted(ranked[:number])


class TooLarge(ConfigError):
    """The text supports only a vocabulary of ``supported`` tokens."""

    def __init__(self, message: str, supported: int = 0) -> None:
        super().__init__(message)
        self.supported = supported


def _too_large(vocab_size: int, supported: int) -> TooLarge:
    return TooLarge(
        f"--vocab-size {vocab_size} is larger than the text supports; choose at most {supported}, or give more text",
        supported,
    )


class TooSmall(ConfigError):
    """The letters of the text do not fit the size of the vocabulary."""


def _too_small(vocab_size: int, smallest: int) -> TooSmall:
    return TooSmall(f"--vocab-size {vocab_size} does not hold the alphabet of the text; choose at least {smallest}")
