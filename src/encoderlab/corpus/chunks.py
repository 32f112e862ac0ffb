"""Tokens of long text at several times the speed of the tokenizer library, with the same result.

Text repeats itself. It is cut at spaces (for BERT's tokenizer also around Chinese characters) into chunks that the
tokenizer treats independently; the library tokenizes a chunk once, and later occurrences are looked up. Whether chunks
are independent depends on the parts of the tokenizer: :meth:`ChunkEncoder.of` accepts only tokenizers for which they
are.
"""

from __future__ import annotations

import json
import re
import unicodedata
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import tokenizers

from encoderlab.ranges import aranges, offsets

Mode = Literal["words", "cjk", "bytes", "pieces"]

MAX_CHUNKS = 1 << 19  # remembered chunks, about 80 MB with their tokens; beyond that the memory starts empty
MAX_TOKENS = 1 << 22
MAX_LENGTH = 64  # characters; longer chunks are tokenized each time

_GROUP = 1000  # new chunks that the library sees as one text; a text of its own costs it ten microseconds each
CHINESE = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_HAS_CJK = re.compile(f"[{CHINESE}]")
_HAS_SPACE = re.compile(r"\s")
_CJK_CHUNKS = re.compile(f"[{CHINESE}]|[^{CHINESE} \n\t\r]+|[ \n\t\r]+")
_LETTERS = r"[^\W_\u1100-\uabff\ud7a4-\U0010ffff]"  # no normaliser of BERT drops them; neither marks nor Chinese
_NOT_ONE_SPACE = re.compile(r"[\s\u180e] |\x00")  # GPT-2 cuts runs of white space by what follows them
_FIRST = "\0"  # marks a chunk without a space before it

# Normalisers that work on a chunk as on the text around it; and the replacements that do, with whether they leave one
# space between words.
_LOCAL = ("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Strip", "Replace", "Precompiled")
_PATTERNS = {"``": False, "''": False, "^ | $": False, " {2,}": True, "^ +| +$| +(?= )": True} | {
    r"[\x00-\x08\x0B\x0E-\x1F\x7F-\x84\x86-\x9F]": False,
    r"[\s\x85\u1680\u200B-\u200F\u2028\u2029\u2581\uFEFF\uFFFD]+": True,
}
_FORMS = ("NFC", "NFD", "NFKC", "NFKD", "Lowercase")  # nothing depends on white space or letters that follow
_IS_SPACE = np.array([chr(code).isspace() for code in range(0x3002)])  # U+3000 is the last space


class Shortened(NamedTuple):
    """A text without the middle of its longest words, and the places of its characters in the whole text."""

    text: str
    ends: np.ndarray  # (words,) where a shortened word ends, in the shortened text
    removed: np.ndarray  # (words + 1,) how many characters were taken out before each, and in all

    def places(self, places: np.ndarray) -> np.ndarray:
        """Places in the shortened text as places in the whole one."""
        originals = places + self.removed[np.searchsorted(self.ends, places, side="right")]
        return originals.astype(places.dtype)


def shortened(text: str, most: int) -> Shortened:
    """``text`` with words of more than ``most`` letters or digits cut to one more.

    WordPiece gives one unknown token for any word that is longer than its limit.
    """
    parts, ends, removed = [], [], [0]
    last = size = 0
    for match in re.finditer(f"{_LETTERS}{{{most + 2},}}", text):
        end = match.start() + most + 1
        parts.append(text[last:end])
        size += end - last
        ends.append(size)
        removed.append(removed[-1] + match.end() - end)
        last = match.end()
    parts.append(text[last:])
    return Shortened("".join(parts), np.array(ends, np.int64), np.array(removed, np.int64))


def batched(texts: Iterable[str], size: int) -> Iterator[list[str]]:
    """The texts in groups of ``size`` characters or a text more; the last may have fewer."""
    batch: list[str] = []
    left = size
    for text in texts:
        batch.append(text)
        left -= len(text)
        if left <= 0:
            yield batch
            batch, left = [], size
    if batch:
        yield batch


class EncodedTexts(NamedTuple):
    """Tokens of several texts, one after the other."""

    ids: np.ndarray  # (n,) int32
    starts: np.ndarray  # (n,) int32: the character of its text at which a token starts; white space is skipped
    bounds: np.ndarray  # (texts + 1,) int64: the tokens of text i are bounds[i] to bounds[i + 1]


def tokenize(backend: tokenizers.Tokenizer, texts: Sequence[str]) -> EncodedTexts:
    """Tokens of ``texts`` by the library alone."""
    encodings = backend.encode_batch(list(texts), add_special_tokens=False)
    bounds = offsets(np.array([len(encoding) for encoding in encodings], np.int64))
    ids = np.empty(bounds[-1], np.int32)
    starts = np.empty(bounds[-1], np.int32)
    for index, (text, encoding) in enumerate(zip(texts, encodings, strict=True)):
        span = slice(bounds[index], bounds[index + 1])
        ids[span] = encoding.ids
        starts[span] = skip_space(text, np.fromiter((start for start, _ in encoding.offsets), np.int32, len(encoding)))
    return EncodedTexts(ids, starts, bounds)


class ChunkEncoder:
    """Looks tokens up by chunk; for one thread at a time.

    Args:
        backend: a tokenizer that treats the chunks of ``mode`` independently.
        mode: ``"words"`` (BERT: chunks between white space), ``"cjk"`` (and around Chinese characters), ``"bytes"``
            (GPT-2: chunks with the space before them), ``"pieces"`` (SentencePiece: chunks between spaces).
    """

    def __init__(self, backend: tokenizers.Tokenizer, mode: Mode) -> None:
        self.backend = backend
        self.mode = mode
        self._forget()

    @classmethod
    def of(cls, backend: tokenizers.Tokenizer) -> ChunkEncoder | None:
        """An encoder for ``backend``; None if its chunks may depend on each other."""
        mode = mode_of(json.loads(backend.to_str()))
        return None if mode is None else cls(backend, mode)

    def __call__(self, texts: Sequence[str]) -> EncodedTexts:
        """As :func:`tokenize`. A known word costs 0.1 to 0.2 microseconds, a new one 5."""
        if len(self._sizes) > MAX_CHUNKS or len(self._ids) > MAX_TOKENS:
            self._forget()
        numbers = array("q")
        counts = np.zeros(len(texts), np.int64)  # chunks of each text
        gaps = np.zeros(len(texts), np.int64)  # characters between two of them
        for index, text in enumerate(texts):
            chunks, gaps[index] = self._cut(text)
            counts[index] = len(chunks)
            if self.mode == "bytes" and chunks:
                chunks[0] = _FIRST + chunks[0]
            numbers.extend(map(self._numbers.__getitem__, chunks))
        self._learn()
        return self._look_up(texts, np.array(numbers, np.int64), counts, gaps)

    def _cut(self, text: str) -> tuple[list[str], int]:
        """Chunks of ``text`` and the characters between two of them; no chunks if it must be tokenized whole."""
        if self.mode == "bytes":
            return ([], 0) if _NOT_ONE_SPACE.search(text) else (text.split(" "), 1)
        if self.mode == "pieces":
            return text.split(" "), 1
        if self.mode == "cjk" and _HAS_CJK.search(text):
            return _CJK_CHUNKS.findall(text), 0
        return text.replace("\n", " ").replace("\t", " ").replace("\r", " ").split(" "), 1

    def _forget(self) -> None:
        self._numbers = _Numbers()
        self._ids, self._starts = array("i"), array("i")  # tokens of the chunks, one after the other
        self._begins, self._sizes = array("q"), array("q")  # start and number of each chunk's tokens; -1: see _cut
        self._widths = array("q")  # characters of a chunk

    def _learn(self) -> None:
        """Tokenize the new chunks, many at a time; one at a time those whose tokens differ next to other chunks."""
        new = self._numbers.new
        joined: list[int] = []
        alone: list[int] = []
        for place, chunk in enumerate(new):
            if self.mode == "pieces" and not self._is_independent(chunk):
                continue
            is_edge = self.mode == "bytes" and (not chunk or chunk[0] == _FIRST or chunk[-1].isspace())
            (alone if is_edge else joined).append(place)
        tokenized = [(alone, self._tokenize_alone([new[place] for place in alone]))]
        for begin in range(0, len(joined), _GROUP):
            group = joined[begin : begin + _GROUP]
            tokenized.append((group, self._tokenize_joined([new[place] for place in group])))
        begins, sizes = np.zeros(len(new), np.int64), np.full(len(new), -1, np.int64)
        for places, tokens in tokenized:
            begins[places] = len(self._ids) + tokens.bounds[:-1]
            sizes[places] = np.diff(tokens.bounds)
            self._ids.frombytes(tokens.ids.astype(np.int32).tobytes())
            self._starts.frombytes(tokens.starts.astype(np.int32).tobytes())
        marked = self.mode == "bytes"
        self._widths.extend(len(chunk) - (marked and chunk[:1] == _FIRST) for chunk in new)
        self._begins.frombytes(begins.tobytes())
        self._sizes.frombytes(sizes.tobytes())
        for chunk in new:
            if len(chunk) > MAX_LENGTH:
                del self._numbers[chunk]
        new.clear()

    def _tokenize_joined(self, chunks: Sequence[str]) -> EncodedTexts:
        """The tokens of each chunk, which the library sees as one text with a space before each."""
        firsts = offsets(np.array([len(chunk) + 1 for chunk in chunks]))[:-1] + 1  # characters, after the space
        ids, starts, _ = tokenize(self.backend, [" " + " ".join(chunks)])
        owners = np.searchsorted(firsts, starts, side="right") - 1
        return EncodedTexts(ids, starts - firsts[owners], np.searchsorted(owners, np.arange(len(chunks) + 1)))

    def _tokenize_alone(self, chunks: Sequence[str]) -> EncodedTexts:
        """The tokens of each chunk as a text of its own, with a space before it unless it is the first of a text."""
        texts = [chunk[1:] if chunk[:1] == _FIRST else " " + chunk for chunk in chunks]
        ids, starts, bounds = tokenize(self.backend, texts)
        spaces = np.array([text[:1] == " " for text in texts], np.int32)
        return EncodedTexts(ids, starts - np.repeat(spaces, np.diff(bounds)), bounds)

    def _is_independent(self, chunk: str) -> bool:
        """Whether a chunk of SentencePiece text has the same tokens in any context.

        It may not if it begins or ends with a mark, which may combine with the space next to it, or with a character
        whose normal form is white space or nothing, because the spaces around it would merge; nor if it has a double
        quote as in TeX, which ALBERT and XLNet replace: the library then places the space before it differently at the
        start of a text.
        """
        if "``" in chunk or "''" in chunk:
            return False
        return (chunk.isascii() and chunk.isprintable()) or (self._is_solid(chunk[0]) and self._is_solid(chunk[-1]))

    def _is_solid(self, char: str) -> bool:
        if unicodedata.category(char)[0] in "MCZ":
            return False
        normal = self.backend.normalizer.normalize_str(f"x{char}x")
        return len(normal) > 2 and not any(one.isspace() or one == "\u2581" for one in normal)

    def _look_up(self, texts: Sequence[str], numbers: np.ndarray, counts: np.ndarray, gaps: np.ndarray) -> EncodedTexts:
        """The tokens of ``texts``, each of so many chunks of these numbers, so many characters apart."""
        sizes = np.array(self._sizes)[numbers]
        edges = offsets(counts)  # chunks of text i: edges[i] to edges[i + 1]
        unknown = offsets(sizes < 0)
        whole = np.flatnonzero((unknown[edges[1:]] > unknown[edges[:-1]]) | (counts == 0))
        sizes = np.maximum(sizes, 0)
        # Where a chunk starts in its text: the chunks and gaps before it, less those of the texts before.
        ends = offsets(np.array(self._widths)[numbers] + np.repeat(gaps, counts))
        positions = ends[:-1] - np.repeat(ends[edges[:-1]], counts)
        before = offsets(sizes)  # tokens before a chunk
        places = aranges(np.array(self._begins)[numbers], sizes)
        starts = (np.array(self._starts)[places] + np.repeat(positions, sizes)).astype(np.int32)
        tokens = EncodedTexts(np.array(self._ids)[places], starts, before[edges])
        if not len(whole):
            return tokens
        return _insert(tokens, whole, tokenize(self.backend, [texts[int(index)] for index in whole]))


class _Numbers(dict[str, int]):
    """Chunk -> its number. A new chunk gets the next one and is listed in ``new``."""

    def __init__(self) -> None:
        self.new: list[str] = []
        self.next = 0

    def __missing__(self, chunk: str) -> int:
        number = self[chunk] = self.next
        self.next += 1
        self.new.append(chunk)
        return number


def _insert(tokens: EncodedTexts, places: np.ndarray, others: EncodedTexts) -> EncodedTexts:
    """``tokens`` with the texts at ``places`` replaced."""
    where = {int(place): index for index, place in enumerate(places)}
    ids, starts, sizes = [], [], []
    for index in range(len(tokens.bounds) - 1):
        source, row = (others, where[index]) if index in where else (tokens, index)
        span = slice(source.bounds[row], source.bounds[row + 1])
        ids.append(source.ids[span])
        starts.append(source.starts[span])
        sizes.append(span.stop - span.start)
    return EncodedTexts(np.concatenate(ids), np.concatenate(starts), offsets(np.array(sizes)))


def skip_space(text: str, starts: np.ndarray) -> np.ndarray:
    """The first character that is not white space from each of ``starts`` on; the end of the text if there is none."""
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    solid = np.flatnonzero(~_IS_SPACE[np.minimum(codes, 0x3001)])
    solid = np.append(solid, len(text))
    return solid[np.searchsorted(solid, starts)]


def mode_of(parts: dict[str, Any], *, whole: bool = True) -> Mode | None:
    """How text may be cut for the tokenizer of this ``tokenizer.json``; None if chunks may depend on each other.

    Without ``whole`` only the tokens before a cut must be those of the text, not those after it.
    """
    added = [token for token in parts["added_tokens"] if not token["special"]]
    if whole and any(token["lstrip"] or token["rstrip"] or _HAS_SPACE.search(token["content"]) for token in added):
        return None
    kind, normalizer, splitter = parts["model"]["type"], parts["normalizer"] or {}, parts["pre_tokenizer"] or {}
    if kind == "WordPiece" and (normalizer.get("type"), splitter.get("type")) == ("BertNormalizer", "BertPreTokenizer"):
        if not normalizer["clean_text"]:
            return None
        beside = any(token["single_word"] or _HAS_CJK.search(token["content"]) for token in added)  # found across a cut
        return "cjk" if normalizer["handle_chinese_chars"] and not beside else "words"
    if kind == "BPE" and splitter.get("type") == "ByteLevel" and splitter["use_regex"]:
        if not whole:
            forms = _flat(normalizer, "normalizers") if normalizer else []
            settings = [parts["model"].get(name) for name in ("dropout", "end_of_word_suffix")]
            return "bytes" if all(form.get("type") in _FORMS for form in forms) and not any(settings) else None
        return "bytes" if not normalizer and not splitter["add_prefix_space"] else None
    if kind == "Unigram" and _cuts_at_spaces(_flat(normalizer, "normalizers"), _flat(splitter, "pretokenizers")):
        return "pieces" if not (whole and added) else None  # the space before an added token depends on its place
    return None


def _cuts_at_spaces(steps: list[dict[str, Any]], splits: list[dict[str, Any]]) -> bool:
    """Whether a Unigram tokenizer reads words one by one, each after one space, and normalises each separately."""
    if not splits or splits[-1].get("type") != "Metaspace":
        return False
    *earlier, last = splits
    if last["prepend_scheme"] != "always" or not last["split"]:
        return False
    patterns = [list(step["pattern"].values())[0] for step in steps if step.get("type") == "Replace"]
    if not all(step.get("type") in _LOCAL for step in steps) or not all(pattern in _PATTERNS for pattern in patterns):
        return False
    if not earlier:
        return any(_PATTERNS[pattern] for pattern in patterns)
    return [split.get("type") for split in earlier] == ["WhitespaceSplit"]


def _flat(part: dict[str, Any], key: str) -> list[dict[str, Any]]:
    """The parts of a sequence, also of nested ones."""
    return [item for inner in part[key] for item in _flat(inner, key)] if key in part else [part]
