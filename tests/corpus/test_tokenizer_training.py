"""Training of tokenizers: the same again, sizes, special ids, refusals."""

from __future__ import annotations

import re

import pytest

from encoderlab.corpus.tokenizer import Tokenizer
from encoderlab.errors import ConfigError, DataError
from tests.corpus.trained import CHINESE, TRAINED, sample


@pytest.mark.parametrize("name", ["wordpiece", "bpe", "unigram"])
def test_training_gives_the_same_tokenizer_again(name: str, trained: dict[str, Tokenizer]) -> None:
    again = Tokenizer.train(texts=sample(), vocab_size=800, **TRAINED[name])  # type: ignore[arg-type]
    assert again.tokens == trained[name].tokens
    assert again.hash() == trained[name].hash()


def test_trained_sizes_and_special_ids(trained: dict[str, Tokenizer]) -> None:
    assert all(tokenizer.vocab_size == 800 for tokenizer in trained.values())
    ids = {name: trained[name].special for name in trained}
    assert (ids["wordpiece"].pad, ids["wordpiece"].unk, ids["wordpiece"].mask) == (0, 1, 4)
    assert (ids["bpe"].cls, ids["bpe"].pad, ids["bpe"].sep, ids["bpe"].unk, ids["bpe"].mask) == (0, 1, 2, 3, 799)
    deberta = ids["bpe-deberta"]
    assert (deberta.pad, deberta.cls, deberta.sep, deberta.unk, deberta.mask) == (0, 1, 2, 3, 799)
    xlnet = ids["unigram-xlnet"]
    assert (xlnet.unk, xlnet.cls, xlnet.sep, xlnet.pad, xlnet.mask, xlnet.eod) == (0, 3, 4, 5, 6, 7)
    assert xlnet.all_special == tuple(range(9))
    assert ids["unigram"].all_special == (0, 1, 2, 3, 4)


@pytest.mark.parametrize("size", [30_000, 10**12])  # memory for the second ends a process
@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "unigram"])
def test_vocabulary_larger_than_the_text_supports_names_the_largest(kind: str, size: int) -> None:
    if kind == "unigram":
        pytest.importorskip("sentencepiece")
    texts = ["the cat sat on the mat and the dog sat on the log"] * 50
    if kind == "wordpiece":  # rare characters, of which a smaller vocabulary has fewer
        texts += ["".join(chr(0x4E00 + number) for number in range(300))]
    with pytest.raises(ConfigError, match=rf"{size} is larger than the text supports; choose at most \d+") as error:
        Tokenizer.train(kind, texts, size)  # type: ignore[arg-type]
    largest = int(re.findall(r"at most (\d+)", str(error.value))[0])
    assert Tokenizer.train(kind, texts, largest).vocab_size == largest  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [20, 0, -5])
@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "unigram"])
def test_vocabulary_too_small_names_the_smallest(kind: str, size: int) -> None:
    if kind == "unigram":
        pytest.importorskip("sentencepiece")
    with pytest.raises(ConfigError, match=rf"vocab-size {size} does not hold .* choose at least \d+") as error:
        Tokenizer.train(kind, sample(), size)  # type: ignore[arg-type]
    smallest = int(re.findall(r"at least (\d+)", str(error.value))[0])
    assert Tokenizer.train(kind, sample(), smallest).vocab_size == smallest  # type: ignore[arg-type]


def test_training_refuses_what_makes_no_sense() -> None:
    with pytest.raises(ConfigError, match="did you mean 'wordpiece'"):
        Tokenizer.train("wordpieces", ["text"], 100)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="did you mean 'roberta'"):
        Tokenizer.train("bpe", ["text"], 300, family="robert")
    with pytest.raises(DataError, match="without text"):
        Tokenizer.train("wordpiece", ["", ""], 100)
    with pytest.raises(ConfigError, match="only white space"):
        Tokenizer.train("wordpiece", ["  \n"], 100)
    with pytest.raises(ConfigError, match="keeps every byte"):
        Tokenizer.train("bpe", ["text"], 300, lowercase=True)


def test_chinese_characters_are_tokens_of_their_own() -> None:
    tokenizer = Tokenizer.train("wordpiece", [CHINESE], 60)
    encoding = tokenizer.encode("生活是学习")
    assert [tokenizer.token(index) for index in encoding.ids] == list("生活是学习")
    assert encoding.word_starts.all()
