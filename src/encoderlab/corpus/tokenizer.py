"""The tokenizer of all families: WordPiece, byte-level BPE and Unigram, with the ``tokenizers`` library.

A tokenizer is a folder with ``tokenizer.json`` and ``tokenizer_config.json``, which ``transformers`` reads too. Token
ids of a text have no special tokens; :meth:`Tokenizer.frame` adds those of the family.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import logging
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import tokenizers

from encoderlab.corpus import tokenizer_training, vocabularies
from encoderlab.corpus.beginnings import Beginnings, Head
from encoderlab.corpus.chunks import CHINESE, ChunkEncoder, batched, shortened, skip_space, tokenize
from encoderlab.corpus.documents import SURROGATE
from encoderlab.corpus.special_tokens import KINDS, FramingKind, Kind, SpecialTokens
from encoderlab.corpus.words import WordStarts, tokens_show_words, word_starts_in
from encoderlab.errors import ConfigError, DataError
from encoderlab.files import write_text

log = logging.getLogger(__name__)

MOST_GAPS = 100_000  # ids without a token; more are damage, and would take memory like tokens
CHARACTERS = 16  # characters of a text to read first for each wanted token
LONG = 4096  # characters of a text in which very long words are searched
GROUP = 1 << 18  # characters per call of the library
# A word or Chinese character after which a text can be cut: tokens before the cut do not depend on the text after it,
# and the tokens after it are the same if the text begins with this match.
LINK = re.compile(" [A-Za-z]{1,64}(?= [A-Za-z])")
LINK_OR_CHINESE = re.compile(f"{LINK.pattern}|[{CHINESE}](?=[{CHINESE}])")


@dataclass(frozen=True, kw_only=True)
class Special:
    """Ids of the special tokens; ``eod`` is the end-of-document token of XLNet."""

    pad: int
    unk: int
    cls: int
    sep: int
    mask: int
    eod: int | None = None
    all_special: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Encoding:
    """Tokens of one text, without special tokens."""

    ids: np.ndarray  # (n,) int32
    offsets: np.ndarray  # (n, 2) int32: first and one past the last character in the text
    word_starts: np.ndarray  # (n,) bool

    def __len__(self) -> int:
        return len(self.ids)


class CorpusTokens(NamedTuple):
    """Tokens of several texts as a corpus stores them, one text after the other."""

    ids: np.ndarray  # (n,) int32
    starts: np.ndarray  # (n,) int32: the character of its text at which a token starts, white space before it skipped
    word_starts: np.ndarray  # (n,) bool
    bounds: np.ndarray  # (texts + 1,) int64: the tokens of text i are bounds[i] to bounds[i + 1]


class FramedSpans(NamedTuple):
    """The places of the tokens of one or two texts in a framed row: the first ``a`` tokens of the first text from
    ``a_start`` on."""

    length: int
    a_start: int
    a: int
    b_start: int
    b: int


class Tokenizer:
    """Text to token ids and back.

    Args:
        backend: a tokenizer of the ``tokenizers`` library whose vocabulary has the ``special_tokens``.
        special_tokens: names of the special tokens and the framing of rows.
        options: further entries of ``tokenizer_config.json`` (``do_lower_case`` and so on), kept for ``transformers``.

    Raises:
        DataError: the vocabulary lacks a special token, or has two tokens with one id.
    """

    def __init__(
        self, backend: tokenizers.Tokenizer, special_tokens: SpecialTokens, options: dict[str, Any] | None = None
    ) -> None:
        self.kind: Kind = KINDS[type(backend.model).__name__]
        self.special_tokens = special_tokens
        self.options = dict(options or {})
        backend.no_truncation()
        backend.no_padding()
        missing = [name for name in special_tokens.roles().values() if backend.token_to_id(name) is None]
        if missing:
            raise DataError(
                f"the vocabulary lacks {', '.join(missing)}, which an encoder needs; "
                "add them to the vocabulary (a line each in vocab.txt), or give another tokenizer"
            )
        known = {token.content for token in backend.get_added_tokens_decoder().values() if token.special}
        backend.add_special_tokens(
            [token for token in special_tokens.added_tokens(self.kind) if token.content not in known]
        )
        vocabulary = backend.get_vocab(with_added_tokens=True)
        ids = {role: vocabulary[name] for role, name in special_tokens.roles().items()}
        self.special = Special(**ids, all_special=tuple(sorted(vocabulary[name] for name in special_tokens.names())))
        backend.post_processor = special_tokens.post_processor(ids)
        self.backend = backend
        self.vocab_size = 1 + max(vocabulary.values())
        if self.vocab_size > len(vocabulary) + MOST_GAPS:
            raise DataError(
                f"the vocabulary has {len(vocabulary):,} tokens and ids up to {self.vocab_size - 1:,}; restore the file"
            )
        self._tokens = [""] * self.vocab_size
        for token, index in vocabulary.items():
            if self._tokens[index]:
                raise DataError(f"{token!r} and {self._tokens[index]!r} have one id, {index}; restore the file")
            self._tokens[index] = token

    # Text to ids.

    def encode(self, text: str) -> Encoding:
        """Ids, character offsets and word starts of ``text``. A special token written in the text (``[MASK]``) is that
        token; half of a surrogate pair is read as U+FFFD."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str], *, limit: int | None = None) -> list[Encoding]:
        """:meth:`encode` of every text, on all cores.

        With ``limit``, only as much of a text is read as so many tokens need: an encoding of more than ``limit`` tokens
        may end before its text does, and its first ``limit`` + 1 tokens are those of the whole text. If that cannot be
        guaranteed, as for one endlessly repeated letter in Unigram, or for a tokenizer of unknown parts, they are
        those of the text's first 65,536 characters (more for a limit above 4,096): see
        :mod:`encoderlab.corpus.beginnings`.
        """
        if limit is None:
            return self._encode_batch(texts)
        done: list[Encoding | None] = [None] * len(texts)
        left, length = list(range(len(texts))), CHARACTERS * (limit + 1)
        while left:
            heads = [self._beginnings.heads(texts[i], length) for i in left]
            encodings = iter(self._encode_batch([text for head in heads for text in head.texts]))
            for i, head in zip(left, heads, strict=True):
                done[i] = self._decided([next(encodings) for _ in head.texts], head, texts[i], limit)
            left = [i for i in left if done[i] is None]
            length *= 8
        return [encoding for encoding in done if encoding is not None]

    def encode_end(self, text: str, limit: int) -> np.ndarray:
        """The ids of ``text``, or more than ``limit`` of its last ids.

        Of a long text, only as much is read as so many tokens need, if its words are independent of each other.
        """
        length = CHARACTERS * (limit + 1)
        while self._link is not None and length < len(text):
            if (link := self._link.search(text, len(text) - length)) is not None:
                end = self.encode(text[link.start() :])
                ids = end.ids[end.offsets[:, 0] >= link.end() - link.start()]
                if len(ids) > limit:
                    return ids
            length *= 8
        return self.encode(text).ids

    def _decided(self, encodings: list[Encoding], head: Head, text: str, limit: int) -> Encoding | None:
        """The encoding of ``text`` as far as its beginning determines it; None if more must be read."""
        first = encodings[0]
        if len(head.texts[0]) == len(text):
            return first
        if not head.proved:
            return first if len(first) > 2 * limit + 1 else None
        size = self._beginnings.common(
            [encoding.ids for encoding in encodings], [encoding.offsets for encoding in encodings]
        )
        if size <= limit:
            return None
        return Encoding(ids=first.ids[:size], offsets=first.offsets[:size], word_starts=first.word_starts[:size])

    @functools.cached_property
    def _beginnings(self) -> Beginnings:
        return Beginnings(self.backend)

    @functools.cached_property
    def _link(self) -> re.Pattern[str] | None:
        """Where a long text can be cut; None if the tokenizer may read over every such place."""
        if self._chunks is None or any(char.isspace() for token in self._added_tokens for char in token):
            return None
        return LINK_OR_CHINESE if self._chunks.mode == "cjk" else LINK

    @functools.cached_property
    def _longest_word(self) -> int | None:
        """The number of characters beyond which a word is unknown and not read further; None if every word is read
        whole.
        """
        if self._chunks is None or self._chunks.mode not in ("words", "cjk"):
            return None
        if any(token.isalnum() for token in self._added_tokens):  # it is found within words too
            return None
        return int(json.loads(self.backend.to_str())["model"]["max_input_chars_per_word"])

    @functools.cached_property
    def _added_tokens(self) -> list[str]:
        return [token.content for token in self.backend.get_added_tokens_decoder().values()]

    def _encode_batch(self, texts: Sequence[str]) -> list[Encoding]:
        """:meth:`encode_batch` of whole texts, a group at a time, since the encodings of the library are large."""
        encodings: list[Encoding] = []
        for group in batched(texts, GROUP):
            long = group.pop() if len(group[-1]) > GROUP else None  # only the last of a group can be
            encodings += self._encode_group(group) if group else []
            encodings += [] if long is None else [self._encode_long(long)]
        return encodings

    def _encode_long(self, text: str) -> Encoding:
        """:meth:`encode` of a text in parts, if it can be cut: in bounded memory, and soon interrupted."""
        parts: list[Encoding] = []
        begin = read = 0  # where the text of a part begins, which tokens before ``read`` belong to the part before
        while begin < len(text):
            link = self._link.search(text, read + GROUP) if self._link else None
            end = link.end() if link else len(text)
            part = self._encode_group([text[begin:end]])[0]
            own = part.offsets[:, 0] >= read - begin
            offsets, word_starts = part.offsets[own] + begin, part.word_starts[own]
            parts.append(Encoding(ids=part.ids[own], offsets=offsets, word_starts=word_starts))
            begin, read = (link.start(), end) if link else (end, end)
        ids, offsets, word_starts = (
            np.concatenate([getattr(part, name) for part in parts]) for name in ("ids", "offsets", "word_starts")
        )
        return Encoding(ids=ids, offsets=offsets, word_starts=word_starts)

    def _encode_group(self, texts: list[str]) -> list[Encoding]:
        most = self._longest_word
        if most is None or max(map(len, texts)) <= LONG:
            return self._encode_whole(texts)
        parts = [shortened(text, most) for text in texts]
        encodings = self._encode_whole([part.text for part in parts])
        return [
            dataclasses.replace(encoding, offsets=part.places(encoding.offsets)) if len(part.ends) else encoding
            for encoding, part in zip(encodings, parts, strict=True)
        ]

    def _encode_whole(self, texts: list[str]) -> list[Encoding]:
        try:
            encodings = self.backend.encode_batch(texts, add_special_tokens=False)
        except TypeError:  # the library's error for surrogates, which JSON and file names may contain
            whole = [SURROGATE.sub("\ufffd", text) for text in texts]
            if whole == texts:
                raise
            _warn_of_surrogates()
            encodings = self.backend.encode_batch(whole, add_special_tokens=False)
        return [self._encoding(text, item) for text, item in zip(texts, encodings, strict=True)]

    def encode_corpus(self, texts: Sequence[str]) -> CorpusTokens:
        """Tokens of many texts, for building a corpus, on one core; a special token written in a text is ordinary text
        here.

        Known words are looked up, which is 2 to 5 times as fast as the tokenizer library, and faster the more text was
        read. Give about a megabyte at a time.
        """
        tokens = self._chunks(texts) if self._chunks else tokenize(self._plain, texts)
        if self._word_starts is None:
            word_starts = word_starts_in(texts, tokens.starts, tokens.bounds)
        else:
            word_starts = self._word_starts(tokens.ids, tokens.bounds[:-1])
        return CorpusTokens(tokens.ids, tokens.starts, word_starts, tokens.bounds)

    def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
        """Text of token ids."""
        return self.backend.decode([int(index) for index in ids], skip_special_tokens=skip_special)

    def token(self, index: int) -> str:
        """The token with this id; the empty string for an unused id."""
        return self._tokens[index]

    def id(self, token: str) -> int | None:
        """The id of ``token``, None if the vocabulary lacks it."""
        return self.backend.token_to_id(token)

    @property
    def tokens(self) -> tuple[str, ...]:
        """The vocabulary in the order of ids."""
        return tuple(self._tokens)

    # Rows for fine-tuning.

    @property
    def framing(self) -> FramingKind:
        return self.special_tokens.framing

    @property
    def padding_side(self) -> Literal["left", "right"]:
        """XLNet reads its summary at the last position, so its rows are padded on the left."""
        return "left" if self.framing == "xlnet" else "right"

    def spans(self, len_a: int, len_b: int | None = None, *, max_length: int) -> FramedSpans:
        """How texts of ``len_a`` and ``len_b`` tokens share a row of ``max_length`` tokens.

        The last token of the longer text is dropped until both fit (ties: of the second), as in every family.

        Raises:
            ConfigError: ``max_length`` leaves no place for a token of each text.
        """
        extra = {"bert": (2, 3), "roberta": (2, 4), "xlnet": (2, 3)}[self.framing][len_b is not None]
        room = max_length - extra
        if room < (1 if len_b is None else 2):
            raise ConfigError(
                f"max_length {max_length} leaves no place for text besides {extra} special tokens; "
                f"choose at least {extra + (1 if len_b is None else 2)}"
            )
        a, b = truncate(len_a, len_b or 0, room)
        first = 0 if self.framing == "xlnet" else 1
        second = first + a + (2 if self.framing == "roberta" else 1)
        return FramedSpans(length=a + b + extra, a_start=first, a=a, b_start=second, b=b)

    def frame(
        self, ids_a: Sequence[int] | np.ndarray, ids_b: Sequence[int] | np.ndarray | None = None, max_length: int = 512
    ) -> tuple[np.ndarray, np.ndarray]:
        """One or two texts with the family's special tokens: ids (n,) int64 and segments (n,) int8, ``n <=
        max_length``.

        ``bert``: ``[CLS] A [SEP] B [SEP]``, segments 0 and 1; ``roberta``: ``<s> A </s></s> B </s>``, one segment;
        ``xlnet``: ``A <sep> B <sep> <cls>``, segments 0, 1 and 2. :meth:`spans` says where the tokens of each text
        went.
        """
        spans = self.spans(len(ids_a), None if ids_b is None else len(ids_b), max_length=max_length)
        ids = np.full(spans.length, self.special.sep, np.int64)
        ids[spans.a_start : spans.a_start + spans.a] = np.asarray(ids_a)[: spans.a]
        if ids_b is not None:
            ids[spans.b_start : spans.b_start + spans.b] = np.asarray(ids_b)[: spans.b]
        segments = np.zeros(spans.length, np.int8)
        if self.framing == "xlnet":
            ids[-1] = self.special.cls
            segments[spans.b_start :] = 1
            segments[-1] = 2
        else:
            ids[0] = self.special.cls
            if self.framing == "bert":
                segments[spans.b_start :] = 1
        return ids, segments

    # Training and folders.

    @classmethod
    def train(cls, kind: Kind, texts: Iterable[str], vocab_size: int, **settings: Any) -> Tokenizer:
        """Train a new tokenizer: see :func:`encoderlab.corpus.tokenizer_training.train`."""
        trained = tokenizer_training.train(kind, texts, vocab_size, **settings)
        return cls(trained.backend, trained.special_tokens, trained.options)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        merges: str | os.PathLike[str] | None = None,
        family: str | None = None,
        lowercase: bool | None = None,
        add_special: bool = False,
    ) -> Tokenizer:
        """Read a tokenizer folder, or one file: see :func:`encoderlab.corpus.vocabularies.read`."""
        merges = None if merges is None else Path(merges)
        parts = vocabularies.read(
            Path(path), merges=merges, family=family, lowercase=lowercase, add_special=add_special
        )
        try:
            return cls(parts.backend, parts.special_tokens, parts.options)
        except DataError as error:
            raise DataError(f"{path}: {error}") from None

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write ``tokenizer.json`` and ``tokenizer_config.json`` into ``folder``, which is made if missing."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        segments = [] if self.framing == "roberta" else ["token_type_ids"]
        config = {
            **self.options,
            # The class that takes tokenizer.json as it is. A class of a family (BertTokenizer) would build its own from
            # the vocabulary and drop what differs from its defaults.
            "tokenizer_class": "PreTrainedTokenizerFast",
            "backend": "tokenizers",
            "clean_up_tokenization_spaces": False,
            "framing": self.framing,
            "model_input_names": ["input_ids", *segments, "attention_mask"],
            "padding_side": self.padding_side,
            **self.special_tokens.config(),
        }
        write_text(folder / "tokenizer.json", self.backend.to_str(pretty=True))
        write_text(folder / "tokenizer_config.json", json.dumps(config, indent=2, ensure_ascii=False) + "\n")

    def hash(self) -> str:
        """SHA-256 of everything that determines ids and framing: the tokenizer and its special tokens."""
        state = {"tokenizer": json.loads(self.backend.to_str()), "layout": dataclasses.asdict(self.special_tokens)}
        if self.kind == "unigram":  # the library reads a number of 17 digits back with another last digit
            model = state["tokenizer"]["model"]
            model["vocab"] = [(token, round(score, 6)) for token, score in model["vocab"]]
        return hashlib.sha256(json.dumps(state, sort_keys=True, ensure_ascii=False).encode()).hexdigest()

    def __repr__(self) -> str:
        return f"Tokenizer(kind={self.kind!r}, vocab_size={self.vocab_size}, framing={self.framing!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return Tokenizer, (self.backend, self.special_tokens, self.options)

    # Inside.

    def _encoding(self, text: str, item: tokenizers.Encoding) -> Encoding:
        ids = np.array(item.ids, np.int32)
        offsets = np.array(item.offsets, np.int32).reshape(-1, 2)
        if self._word_starts is None:
            word_starts = word_starts_in([text], skip_space(text, offsets[:, 0]), np.array([0, len(ids)]))
        else:
            word_starts = self._word_starts(ids)
        return Encoding(ids=ids, offsets=offsets, word_starts=word_starts)

    @functools.cached_property
    def _word_starts(self) -> WordStarts | None:
        """Word starts from token ids; None if they follow from the text alone."""
        if not tokens_show_words(json.loads(self.backend.to_str())):
            return None
        return WordStarts(self._tokens, self.kind, self.special.all_special)

    @functools.cached_property
    def _chunks(self) -> ChunkEncoder | None:
        return ChunkEncoder.of(self._plain)

    @functools.cached_property
    def _plain(self) -> tokenizers.Tokenizer:
        """The backend for text in which special tokens have no meaning."""
        parts = json.loads(self.backend.to_str())
        parts["post_processor"] = None
        if self.kind == "unigram":  # would find them among its pieces; a piece with a space is never found
            control = set(self.special.all_special)
            pieces = parts["model"]["vocab"]
            parts["model"]["vocab"] = [
                (f" {piece}" if index in control else piece, score) for index, (piece, score) in enumerate(pieces)
            ]
            parts["added_tokens"] = [
                item for item in parts["added_tokens"] if not item["special"] or item["id"] >= len(pieces)
            ]
        plain = tokenizers.Tokenizer.from_str(json.dumps(parts))
        plain.encode_special_tokens = True
        return plain


def truncate(len_a: int, len_b: int, room: int) -> tuple[int, int]:
    """Two lengths after dropping the last token of the longer text (ties: of the second) until they sum to ``room``."""
    kept = min(len_a, max(room - len_b, room - room // 2))  # half of the room, and more if the second text leaves it
    return kept, min(len_b, room - kept)


@functools.cache
def _warn_of_surrogates() -> None:
    """Once in a process, because a file may have many."""
    log.warning("halves of surrogate pairs, which are not characters, are read as U+FFFD")
