"""SentencePiece models (``spiece.model``, ``spm.model``) as tokenizers of the ``tokenizers`` library.

The file is one protocol-buffer message. The few relevant fields are read here (sentencepiece_model.proto has their
numbers), so neither ``sentencepiece`` nor ``protobuf`` is needed.

The ids are those of sentencepiece, with two exceptions. The library applies the model's character map to grapheme
clusters, sentencepiece to the longest sequences of the map, so a combining mark after a full-width letter is lost. And
if two segmentations have the same score (a line of ``=``), sentencepiece's rounding to single precision decides between
them. On 20,000 random strings of letters, marks, Jamo, kana and full-width forms 1.8% differ.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers

from encoderlab.protobuf import fields

UNIGRAM = 1
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)

_NEVER = -1e6  # a score below that of any path through ordinary pieces


@dataclass(frozen=True, kw_only=True)
class SentencePiece:
    text: str
    score: float = 0.0
    type: int = NORMAL


@dataclass(frozen=True, kw_only=True)
class SentencePieceModel:
    """The fields of a SentencePiece model that determine its ids."""

    pieces: tuple[SentencePiece, ...]
    model_type: int = UNIGRAM
    byte_fallback: bool = False
    character_map: bytes = b""
    dummy_prefix: bool = True
    remove_extra_spaces: bool = True
    space_after: bool = False  # the space after a word belongs to it, not the one before it
    across_words: bool = False  # some pieces go on after a space

    @property
    def unk(self) -> int:
        """The id of the unknown piece."""
        return next(index for index, piece in enumerate(self.pieces) if piece.type == UNKNOWN)

    def control(self) -> tuple[str, ...]:
        """Pieces without text, in the order of ids."""
        return tuple(piece.text for piece in self.pieces if piece.type == CONTROL)


def parse(data: bytes) -> SentencePieceModel:
    """Read a serialised model.

    Raises:
        ValueError: the bytes are not a SentencePiece model.
    """
    pieces = []
    trainer: dict[int, bytes | int] = {}  # the fields of trainer_spec and normalizer_spec by their numbers
    normalizer: dict[int, bytes | int] = {}
    for number, value in fields(data):
        if number == 1 and isinstance(value, bytes):
            pieces.append(_piece(value))
        elif number == 2 and isinstance(value, bytes):
            trainer |= dict(fields(value))
        elif number == 3 and isinstance(value, bytes):
            normalizer |= dict(fields(value))
    if not any(piece.type == UNKNOWN for piece in pieces):
        raise ValueError("no unknown piece among its pieces")
    model_type, character_map = trainer.get(3, UNIGRAM), normalizer.get(2, b"")
    if not isinstance(model_type, int) or not isinstance(character_map, bytes):
        raise ValueError("settings of another type")
    return SentencePieceModel(
        pieces=tuple(pieces),
        model_type=model_type,
        byte_fallback=bool(trainer.get(35, 0)),
        character_map=character_map,
        dummy_prefix=bool(normalizer.get(3, 1)),
        remove_extra_spaces=bool(normalizer.get(4, 1)),
        space_after=bool(trainer.get(24, 0)),
        across_words=not trainer.get(22, 1) and any("▁" in piece.text[1:] for piece in pieces),
    )


def with_ids_of_fairseq(model: SentencePieceModel, front: tuple[str, ...], first: int) -> SentencePieceModel:
    """The model with the ids of fairseq: tokens in ``front``, the pieces from ``first`` on, ``<mask>`` last."""
    score = min(piece.score for piece in model.pieces)
    tokens = [
        SentencePiece(text=text, score=score, type=UNKNOWN if text == "<unk>" else CONTROL)
        for text in (*front, "<mask>")
    ]
    pieces = [*tokens[:-1], *model.pieces[first:], tokens[-1]]
    return replace(model, pieces=tuple(pieces))


def unigram(
    model: SentencePieceModel, *, before: list[normalizers.Normalizer], split_numbers: bool = False
) -> tokenizers.Tokenizer:
    """A tokenizer with the ids of ``model``.

    Args:
        model: a Unigram model.
        before: a family's changes to the text before sentencepiece sees it.
        split_numbers: cut a comma off a number, as ALBERT and XLNet do after sentencepiece: pieces like ``,000,`` lose
            100 points, so they are never chosen.
    """
    ordinary = [piece.score for piece in model.pieces if piece.type == NORMAL]
    highest = max(ordinary, default=0.0)
    vocabulary = []
    for piece in model.pieces:
        score = piece.score
        if piece.type == UNUSED:
            score = _NEVER
        elif piece.type == USER_DEFINED:  # sentencepiece's bonus, by which such a piece always wins
            score = len(piece.text.encode()) * highest - 0.1
        elif split_numbers and len(piece.text) > 1 and piece.text[-1] == "," and piece.text[-2].isdigit():
            score -= 100
        vocabulary.append((piece.text, float(f"{score:.12g}")))  # digits that the library reads back unchanged
    backend = tokenizers.Tokenizer(models.Unigram(vocabulary, unk_id=model.unk, byte_fallback=model.byte_fallback))
    steps = list(before)
    if model.character_map:
        steps.append(normalizers.Precompiled(model.character_map))
    if model.remove_extra_spaces:
        steps += [normalizers.Replace(Regex("^ +| +$| +(?= )"), "")]
    backend.normalizer = normalizers.Sequence(steps)
    scheme = "always" if model.dummy_prefix else "never"
    backend.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme=scheme)
    decoder = decoders.Metaspace(replacement="▁", prepend_scheme=scheme)
    backend.decoder = decoders.Sequence([decoders.ByteFallback(), decoder]) if model.byte_fallback else decoder
    return backend


def _piece(data: bytes) -> SentencePiece:
    text, score, kind = "", 0.0, NORMAL
    for number, value in fields(data):
        if number == 1 and isinstance(value, bytes):
            text = value.decode("utf-8")
        elif number == 2 and isinstance(value, bytes):
            (score,) = struct.unpack("<f", value)
        elif number == 3 and isinstance(value, int):
            kind = value
    return SentencePiece(text=text, score=score, type=kind)
