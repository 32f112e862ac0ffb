"""Words in text without spaces."""

from __future__ import annotations

import builtins
import gzip
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from encoderlab.corpus.pieces import encode_lines
from encoderlab.corpus.segment import load_segmenter, make_segmenter, word_start_offsets
from encoderlab.corpus.tokenizer import Tokenizer
from encoderlab.errors import ConfigError, DataError, MissingDependency


def test_rjieba_words() -> None:
    pytest.importorskip("rjieba")
    text = "我们在北京大学学习"
    assert load_segmenter("rjieba")(text) == ["我们", "在", "北京大学", "学习"]
    assert make_segmenter("rjieba")(text) == [0, 2, 3, 7]


@given(st.text(alphabet="我们在北京大学学习，。 \n\tabc123ＡＢ\u3000é😀"))
def test_rjieba_keeps_every_character(text: str) -> None:
    rjieba = pytest.importorskip("rjieba")
    offsets = word_start_offsets(text, rjieba.cut)
    assert offsets == sorted(set(offsets))
    assert "".join(rjieba.cut(text)) == text
    assert offsets[:1] == [0][: len(text)]


def test_words_over_tokens_that_are_parts_of_characters() -> None:
    tokenizer = Tokenizer.train("bpe", ["a b c"], 261)  # bytes: three tokens for a character
    encoded = encode_lines(["北京大学 北京ab ", "京"], tokenizer, lambda text: [0, 2, 4, 5, 7][: len(text)])
    tokens = tokenizer.encode_corpus(["北京大学 北京ab ", "京"])
    starts = np.flatnonzero(encoded.words)
    assert tokens.starts[starts].tolist() == [0, 2, 5, 7, 10, 0]
    assert len(encoded.words) == 4 * 3 + 1 + 2 * 3 + 2 + 1 + 3


def test_characters_are_words() -> None:
    assert make_segmenter("characters")("北京 ab") == [0, 1, 2, 3, 4]
    assert make_segmenter("characters")("") == []


def halves(text: str) -> list[str]:
    return text.split()


def test_any_function_by_its_name() -> None:
    segment = make_segmenter(f"{__name__}:halves")
    assert segment("  北京 大学  北京") == [2, 5, 9]  # the function leaves out the spaces
    assert segment("") == []


def test_a_function_of_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "folder_cut.py").write_text("def cut(text):\n    return text.split()\n")
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    assert make_segmenter("folder_cut:cut")("北京 大学") == [0, 3]
    assert sys.path == before


def test_a_function_that_drops_the_end_of_the_text_is_refused() -> None:
    with pytest.raises(DataError, match="stopped before '大学'; it must return the words of the whole text"):
        word_start_offsets("北京 大学", lambda text: ["北京"])
    assert word_start_offsets("北京 ", lambda text: ["北京"]) == [0]


@pytest.mark.parametrize("words", [["京"], ["北", "大"], ["京", "北"], []])
def test_a_function_that_changes_the_text_is_refused(words: list[str]) -> None:
    with pytest.raises(DataError, match="unchanged and in order"):
        word_start_offsets("北京", lambda text: words)


@pytest.mark.parametrize("words", [None, 3, [("北京", 0, 2)]])
def test_a_function_that_gives_no_words_is_refused(words: object) -> None:
    with pytest.raises(DataError, match="the segmenter fails on '北京' .TypeError.*; it must return a list of words"):
        word_start_offsets("北京", lambda text: words)  # type: ignore[arg-type, return-value]


@pytest.mark.parametrize("content", ["def cut(:", "raise KeyError('x')"])
def test_a_module_that_fails_is_named_with_its_error(
    content: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"broken{len(content)}"
    (tmp_path / f"{name}.py").write_text(content)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        ConfigError, match=rf"segmenter '{name}:cut' cannot be imported \((Syntax|Key)Error: .*; correct"
    ):
        load_segmenter(f"{name}:cut")


def test_a_function_that_fails_is_named_with_its_error() -> None:
    with pytest.raises(DataError, match="the segmenter fails on '北京' .KeyError: '北'"):
        word_start_offsets("北京", lambda text: [{}[text[0]]])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("jieba", "unknown segmenter 'jieba'; choose rjieba, characters, or a function"),
        ("no_such_module:cut", "cannot be imported"),
        ("json:no_such_function", "cannot be imported"),
        ("json:__name__", "is str, expected a function"),
    ],
)
def test_unknown_segmenters(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_segmenter(name)


def test_missing_rjieba_names_the_install_line(monkeypatch: pytest.MonkeyPatch) -> None:
    original = builtins.__import__

    def refuse(name: str, *arguments: object, **named: object) -> object:
        if name == "rjieba":
            raise ImportError(name)
        return original(name, *arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(MissingDependency, match=r"pip install 'encoderlab\[zh\]'"):
        load_segmenter("rjieba")


def test_real_text(shared: Path) -> None:
    pytest.importorskip("rjieba")
    segment = make_segmenter("rjieba")
    with gzip.open(shared / "data" / "pretrain_zh" / "tech_articles.txt.gz", "rt", encoding="utf-8") as file:
        lines = [file.readline().rstrip("\n") for _ in range(200)]
    lengths = [later - first for line in lines for first, later in zip(segment(line), segment(line)[1:], strict=False)]
    assert 1.2 < sum(lengths) / len(lengths) < 3  # characters per word
