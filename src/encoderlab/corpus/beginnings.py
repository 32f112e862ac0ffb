"""The beginning of a long text that determines its first tokens, so that only as much as needed is tokenized.

A text is cut where the tokens before do not depend on the text after: between words, and in WordPiece next to marks and
Chinese characters. If no such place is near, as in a cell of letters without a space, the cut rests on this proof.

Let the whole text have a border between two tokens at ``j``, inside a run of solid characters. Then the tokens before
are those of ``text[:j]``: no merge of BPE crosses ``j``, so the merges before it are the same without the text after;
the best path of Unigram to ``j`` does not depend on the text after; and no rule that cuts words looks further than the
character after a run of white space. Take any place ``n``. Either ``n`` is a border, or the token that crosses ``n``
begins at a place ``j`` where ``text[j:n]`` begins a token of the vocabulary. So the tokens that all these texts
``text[:j]`` have in common are the first tokens of the whole. There are few such places.
"""

from __future__ import annotations

import json
import re
import string
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import tokenizers

from encoderlab.corpus.chunks import CHINESE, Mode, mode_of

NEAR = 8  # times the wanted length, within which a border is searched
MOST = 1 << 16  # characters to read if nothing can be proved

# Characters that mean the same next to each other: what a normaliser makes of one does not depend on the next. White
# space and marks that combine are not among them, nor the quotes that BPE and SentencePiece read in pairs or with
# letters.
_SOLID = (
    r"(?:[^\W_\u1100-\U0010ffff]|[!-&(-_a-~]|[\u3001\u3002\u3008-\u3011\u3041-\u3096\u30a1-\u30fa]"
    f"|[{CHINESE}\uac00-\ud7a3]|[\uff01-\uff06\uff08-\uff3f\uff41-\uff5e])"
)
_MARGIN = 4  # characters before a place that are solid too; the longest word with a quote that BPE knows has three
_BYTES = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)


class Head(NamedTuple):
    """Beginnings of a text: one with the text's own tokens, or several of which only the common tokens count."""

    texts: list[str]
    proved: bool = True


class Beginnings:
    """Cuts long texts for one tokenizer.

    Args:
        backend: the tokenizer, with special tokens that are found in texts.
    """

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        self.backend = backend
        parts = json.loads(backend.to_str())
        model = parts["model"]  # several unknown characters may become one token
        self.unknown = model["unk_id"] if "unk_id" in model else backend.token_to_id(model.get("unk_token") or "")
        self._added = [token["content"] for token in parts["added_tokens"]]
        if not any(token["single_word"] for token in parts["added_tokens"]):
            self.mode = mode_of(parts, whole=False)
        else:  # whether it is found depends on the character after it
            self.mode = None
        self._border = self._pattern(self.mode, set("".join(self._added)))
        self._tokens: list[str] | None = None

    @staticmethod
    def _pattern(mode: Mode | None, added: set[str]) -> re.Pattern[str] | None:
        """A place where the tokens before it do not depend on the text after it; ``added`` are the characters of added
        tokens."""
        if mode is None or any(char.isspace() for char in added):
            return None
        spaces, marks = "(?<=[^ \n\t\r])[ \n\t\r]", "".join(sorted(set(string.punctuation) - added))
        beside = f"(?<=[{re.escape(marks)}])" if marks else "(?!)"
        after = "".join(sorted(set(",;:.!?") - added))
        return re.compile(
            {
                "words": f"{spaces}|{beside}",
                "cjk": f"{spaces}|{beside}|(?<=[{CHINESE}])(?=[{CHINESE}])",
                "bytes": r"(?<=\w) (?=\w)" + (f"|(?<=[A-Za-z])(?=[{after}])" if after else ""),
                "pieces": r"(?<=\w) (?=\w)",
            }[mode]
        )

    def heads(self, text: str, length: int) -> Head:
        """Beginnings of ``text`` of ``length`` characters or a few more; the whole text if it cannot be cut there."""
        if len(text) <= length:
            return Head([text])
        border = self._border and self._border.search(text, length, min(len(text), NEAR * length))
        if border:
            return Head([text[: border.start()]])
        places = list(self._places(text, length)) if length < MOST else []
        if places:
            return Head([text[:place] for place in places])
        return Head([text[: max(length, MOST)]], proved=False)

    def _places(self, text: str, length: int) -> Iterator[int]:
        """The possible beginnings of the token that crosses a place near ``length``; none if no place there is
        solid.
        """
        if self.mode not in ("bytes", "pieces"):
            return
        if self._tokens is None:
            vocabulary = self.backend.get_vocab(with_added_tokens=True)
            self._tokens = sorted({*vocabulary, *self._added})
            self._longest = max(map(len, self._tokens))
        window = self._longest + _MARGIN
        run = re.compile(f"{_SOLID}{{{window + 1}}}").search(text, length, min(len(text), NEAR * length + window + 1))
        if run is None:
            return
        end = run.end() - 1  # the character after it is solid too
        for begin in range(end, end - self._longest, -1):
            part = text[begin:end]
            if self._begins_a_token(part) or self._begins_a_token(self._surface(part)):
                yield begin

    def _surface(self, part: str) -> str:
        """``part`` as tokens are written in the vocabulary."""
        if self.backend.normalizer is not None:
            part = self.backend.normalizer.normalize_str(part)
        return "".join(word for word, _ in _BYTES.pre_tokenize_str(part)) if self.mode == "bytes" else part

    def _begins_a_token(self, part: str) -> bool:
        assert self._tokens is not None
        place = bisect_left(self._tokens, part)
        return place < len(self._tokens) and self._tokens[place].startswith(part)

    def common(self, ids: Sequence[np.ndarray], offsets: Sequence[np.ndarray]) -> int:
        """The number of first tokens that the encodings of several heads share, without unknown ones at their ends."""
        sizes = []
        for one in ids:
            known = np.flatnonzero(one != self.unknown)
            sizes.append(int(known[-1]) + 1 if len(known) else 0)
        size = min(sizes)
        for other, places in zip(ids[1:], offsets[1:], strict=True):
            differ = np.flatnonzero((other[:size] != ids[0][:size]) | (places[:size] != offsets[0][:size]).any(1))
            size = int(differ[0]) if len(differ) else size
        return size
