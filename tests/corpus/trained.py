"""Small tokenizers of every kind, and texts for them."""

from __future__ import annotations

import argparse
import json
import statistics
import struct
from pathlib import Path

from hypothesis import strategies as st

from encoderlab.corpus.tokenizer import Tokenizer

CHINESE = "生活的真谛是什么？我们在北京大学学习，hello世界 iPhone16 的价格是5999元。 " * 20
# White space of all kinds, control characters, marks, full-width and other forms that NFKC changes, Chinese.
ODD = (
    " \t\n\r\x00\x07\x0b\x1c\x85\xa0\u1680\u180e\u2003\u200b\u200d\u2028\u3000\ufeff\ufffd\u2581\xad\u0301\u0300\u0345"
    + ("ﬁ①Ａｶﾞ～′″½´¨ﾞㇰé한한́中文豈𠀀😀👨‍👩‍👧İßΣςǅ\ue000\u0600`'\"-_,.()[]{}<>/\\|@#$%^&*+=~!?;:0123aAbBzZ")
)
odd_text = st.text(st.one_of(st.sampled_from(ODD), st.sampled_from("  abcde the and"), st.characters(codec="utf-8")))


def sample() -> list[str]:
    files = [Path(str(module.__file__)) for module in (argparse, statistics)]
    return [line for file in files for line in file.read_text(encoding="utf-8").split("\n")] + [CHINESE]


TRAINED = {
    "wordpiece": {"kind": "wordpiece"},
    "wordpiece-cased": {"kind": "wordpiece", "lowercase": False},
    "bpe": {"kind": "bpe"},
    "bpe-deberta": {"kind": "bpe", "family": "deberta"},
    "unigram": {"kind": "unigram"},
    "unigram-xlnet": {"kind": "unigram", "family": "xlnet"},
    "unigram-deberta": {"kind": "unigram", "family": "deberta-v2", "lowercase": True},
}


def model_file(tokenizer: Tokenizer) -> bytes:
    """A Unigram tokenizer as a SentencePiece model without normalisation (sentencepiece_model.proto)."""

    def field(number: int, data: bytes) -> bytes:
        return varint(number << 3 | 2) + varint(len(data)) + data

    def varint(value: int) -> bytes:
        return bytes([value]) if value < 128 else bytes([value & 127 | 128]) + varint(value >> 7)

    pieces = b""
    model = json.loads(tokenizer.backend.to_str())["model"]
    for index, (piece, score) in enumerate(model["vocab"]):
        kind = 2 if index == tokenizer.special.unk else 3 if index in tokenizer.special.all_special else 1
        number = varint(2 << 3 | 5) + struct.pack("<f", score)
        pieces += field(1, field(1, piece.encode()) + number + varint(3 << 3) + varint(kind))
    trainer = varint(3 << 3) + varint(1) + varint(40 << 3) + varint(tokenizer.special.unk)
    return pieces + field(2, trainer) + field(3, field(1, b"identity"))


def write(folder: Path, **files: object) -> Path:
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        path = folder / name.replace("__", ".")
        path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return folder
