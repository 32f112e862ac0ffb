"""Special tokens by family: their names, their ids, and how they frame a row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import tokenizers
from tokenizers import AddedToken, processors

Kind = Literal["wordpiece", "bpe", "unigram"]
FramingKind = Literal["bert", "roberta", "xlnet"]
FRAMINGS: tuple[FramingKind, ...] = ("bert", "roberta", "xlnet")


@dataclass(frozen=True, kw_only=True)
class SpecialTokens:
    """Names of the special tokens, and the framing of rows.

    ``bert``: ``[CLS] A [SEP] B [SEP]``; ``roberta``: ``<s> A </s></s> B </s>``; ``xlnet``: ``A <sep> B <sep> <cls>``.
    """

    framing: FramingKind = "bert"
    pad: str = "[PAD]"
    unk: str = "[UNK]"
    cls: str = "[CLS]"
    sep: str = "[SEP]"
    mask: str = "[MASK]"
    eod: str | None = None
    others: tuple[str, ...] = ()  # further special tokens, which no row needs

    def roles(self) -> dict[str, str]:
        """Role -> token, for the roles that a row needs."""
        roles = {role: getattr(self, role) for role in ("pad", "unk", "cls", "sep", "mask")}
        return roles if self.eod is None else roles | {"eod": self.eod}

    def names(self) -> tuple[str, ...]:
        """Every special token once."""
        return tuple(dict.fromkeys((*self.roles().values(), *self.others)))

    def added_tokens(self, kind: str) -> list[AddedToken]:
        """The special tokens for the tokenizer library.

        If white space is part of tokens, the mask includes the space before it, as a word would.
        """
        return [
            AddedToken(name, special=True, normalized=False, lstrip=name == self.mask and kind != "wordpiece")
            for name in self.names()
        ]

    def post_processor(self, ids: dict[str, int]) -> processors.PostProcessor:
        """The framing for other readers of ``tokenizer.json``."""
        single, pair = {
            "bert": ("{cls}:0 $A:0 {sep}:0", "{cls}:0 $A:0 {sep}:0 $B:1 {sep}:1"),
            "roberta": ("{cls}:0 $A:0 {sep}:0", "{cls}:0 $A:0 {sep}:0 {sep}:0 $B:0 {sep}:0"),
            "xlnet": ("$A:0 {sep}:0 {cls}:2", "$A:0 {sep}:0 $B:1 {sep}:1 {cls}:2"),
        }[self.framing]
        names = {"cls": self.cls, "sep": self.sep}
        return processors.TemplateProcessing(
            single=single.format(**names),
            pair=pair.format(**names),
            special_tokens=[(self.cls, ids["cls"]), (self.sep, ids["sep"])],
        )

    def config(self) -> dict[str, Any]:
        """The entries of ``tokenizer_config.json``."""
        config: dict[str, Any] = {f"{role}_token": name for role, name in self.roles().items()}
        config["bos_token"] = "<s>" if "<s>" in self.names() else self.cls
        config["eos_token"] = "</s>" if "</s>" in self.names() else self.sep
        if self.others:
            config["extra_special_tokens"] = [name for name in self.others if name not in ("<s>", "</s>")]
        return config


@dataclass(frozen=True, kw_only=True)
class VocabularyFamily:
    """The special tokens of one family and their ids: ``first`` ones from 0, ``last`` ones at the end of the
    vocabulary."""

    special_tokens: SpecialTokens
    first: tuple[str, ...]
    last: tuple[str, ...] = ()


_BERT = SpecialTokens()
_ROBERTA = SpecialTokens(framing="roberta", pad="<pad>", unk="<unk>", cls="<s>", sep="</s>", mask="<mask>")
_ALBERT = SpecialTokens(pad="<pad>", unk="<unk>")
_XLNET = SpecialTokens(
    framing="xlnet", pad="<pad>", unk="<unk>", cls="<cls>", sep="<sep>", mask="<mask>", eod="<eod>",
    others=("<s>", "</s>"),
)  # fmt: skip

FAMILIES: dict[str, VocabularyFamily] = {
    # BERT, ELECTRA, DistilBERT, ConvBERT, Erlangshen; a trained vocabulary starts with the five tokens.
    "bert": VocabularyFamily(special_tokens=_BERT, first=("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")),
    "roberta": VocabularyFamily(special_tokens=_ROBERTA, first=("<s>", "<pad>", "</s>", "<unk>"), last=("<mask>",)),
    # DeBERTa's first version has RoBERTa's ids with other names, and the first two swapped.
    "deberta": VocabularyFamily(special_tokens=_BERT, first=("[PAD]", "[CLS]", "[SEP]", "[UNK]"), last=("[MASK]",)),
    "deberta-v2": VocabularyFamily(special_tokens=_BERT, first=("[PAD]", "[CLS]", "[SEP]", "[UNK]"), last=("[MASK]",)),
    "albert": VocabularyFamily(special_tokens=_ALBERT, first=("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]")),
    "xlnet": VocabularyFamily(
        special_tokens=_XLNET, first=("<unk>", "<s>", "</s>", "<cls>", "<sep>", "<pad>", "<mask>", "<eod>", "<eop>")
    ),
}

KINDS: dict[str, Kind] = {"WordPiece": "wordpiece", "BPE": "bpe", "Unigram": "unigram"}  # models of the library
DEFAULT_FAMILY: dict[Kind, str] = {"wordpiece": "bert", "bpe": "roberta", "unigram": "albert"}


def guess(backend: tokenizers.Tokenizer) -> SpecialTokens:
    """The family whose special tokens the vocabulary has most of; the kind's first family if it has none."""
    first = FAMILIES[DEFAULT_FAMILY[KINDS[type(backend.model).__name__]]].special_tokens
    candidates = [first, *(family.special_tokens for family in FAMILIES.values())]
    return max(candidates, key=lambda one: sum(backend.token_to_id(name) is not None for name in one.roles().values()))
