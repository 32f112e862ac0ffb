from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from encoderlab.corpus.sentences import sentence_starts


def split_sentences(text: str) -> list[str]:
    """The sentences of a paragraph, without the white space between them."""
    starts = sentence_starts(text)
    return [text[start:end].rstrip(" ") for start, end in zip(starts, [*starts[1:], len(text)], strict=True)]


@pytest.mark.parametrize(
    "sentences",
    [
        ["Mr. Smith went to Washington.", "He paid $3.50 for it."],
        ['"Why?" he asked.', '"Because."', "She left!"],
        ["J. R. R. Tolkien wrote it.", "See No. 5 and Fig. 3."],
        ["He joined the U.S. Army in Jan. 1942.", "It was cold."],
        ["It ended in 1990.", "In 1991 it began again.", "(It was late.)", "Then it was over."],
        ["1. Introduction to the subject.", "Nothing more."],
        ["Is it I?", "It is I!", "¿Qué?", "“Quoted.”", "End"],
        ["Wait... what is e.g. this, cf. Dr. No et al. 1999?", "Yes."],
        ["Version 2.0.1 is out. see example.com or a.b."],
        ["我喜欢你。", "你呢？", "“好的。”", "他说！", "真的……", "然后走了。", "3.14是圆周率。"],
        ["一句话!", "第二句?", "第三句"],
        ["他说：“走吧！”", "然后他们走了。", "What is this?", "是的。"],
        ["第一句。", "Second sentence.", "第三句！"],
    ],
)
def test_known_sentences(sentences):
    spaced = [sentence if re.search("[。？！…\u4e00-\u9fff]", sentence) else f"{sentence} " for sentence in sentences]
    assert split_sentences("".join(spaced).strip()) == sentences


@given(st.text(alphabet="aB1 .!?\"')(。！？”…中,-", max_size=80))
def test_starts_increase_and_lose_nothing(text):
    text = " ".join(text.split())
    starts = sentence_starts(text)
    assert starts[0] == 0
    assert all(a < b for a, b in zip(starts, starts[1:], strict=False))
    assert all(start < len(text) and text[start] != " " for start in starts[1:])
    assert "".join(split_sentences(text)).replace(" ", "") == text.replace(" ", "")


@pytest.mark.parametrize("unit", [". ", ".", "!?", "。", "…", "A. ", ". (", ".)", '."', "。”"])
def test_long_runs_of_ends(unit):
    """Work that grows with the square of the length would take hours."""
    text = unit * (200_000 // len(unit))
    assert sentence_starts(text)[0] == 0
