"""Plain text as the words that taggers learn from."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from encoderlab.tasks.data.plain_words import words_of
from encoderlab.tasks.forms.tagging import TaggingForm


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Sue lives in Oslo, Norway.", "Sue lives in Oslo , Norway ."),
        ('"Oslo" (Norway)... she said!?', '" Oslo " ( Norway ) . . . she said ! ?'),
        ("«Oslo»—really?", "« Oslo»—really ?"),
        ("The U.N. and J. Doe, of Oslo-based AT&T, paid $3.14 or 5% to @sue #oslo.",
         "The U.N. and J. Doe , of Oslo-based AT&T , paid $3.14 or 5% to @sue #oslo ."),
        ("don't -5 a.b", "don't -5 a.b"),
        ("我在Oslo工作2019年。", "我 在 Oslo 工 作 2019 年 。"),
        ("他说：“Oslo，Bergen”（挪威）", "他 说 ： “ Oslo ， Bergen ” （ 挪 威 ）"),
        ("([MASK]). <mask>, [mask]", "( [MASK] ) . <mask> , [ mask ]"),
        ("𠀀x ...", "𠀀 x . . ."),
        ("  ", ""),
    ],
)  # fmt: skip
def test_marks_around_words_are_words(text: str, words: str) -> None:
    assert [word for word, _, _ in words_of(text)] == words.split()


@given(st.text(st.sampled_from('ab .,-()"我。“#U\n\u3000é'), max_size=20))
def test_words_stand_where_they_are_in_the_text(text: str) -> None:
    words = words_of(text)
    assert all(text[start:end] == word and word for word, start, end in words)
    assert "".join(word for word, _, _ in words) == "".join(text.split())
    read = TaggingForm.of_line("1", text)  # what predict reads
    assert (() if read is None else read.words) == tuple(word for word, _, _ in words)


@pytest.mark.parametrize("text", ["a" + "." * 100_000, "a." * 20_000 + "." * 60_000])
def test_many_marks_take_no_longer_each(text: str) -> None:
    """Else one request for tags would stop a server for minutes."""
    assert "".join(word for word, _, _ in words_of(text)) == text
