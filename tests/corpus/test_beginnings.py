"""Long texts of which little is read, without a change of any token."""

from __future__ import annotations

import random

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from encoderlab.corpus.beginnings import Beginnings, Head
from encoderlab.corpus.tokenizer import Encoding, Tokenizer
from tests.corpus.trained import TRAINED, odd_text


def assert_begins(tokenizer: Tokenizer, text: str, whole: Encoding, limit: int) -> None:
    """With ``limit`` the first tokens of ``text`` are those of ``whole``, and one more than the limit at least."""
    (found,) = tokenizer.encode_batch([text], limit=limit)
    count = min(limit + 1, len(whole))
    assert len(found) >= count
    for field in ("ids", "offsets", "word_starts"):
        np.testing.assert_array_equal(getattr(found, field)[:count], getattr(whole, field)[:count])


@pytest.mark.parametrize("name", TRAINED)
def test_a_limit_reads_less_and_changes_no_token(
    name: str, trained: dict[str, Tokenizer], monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = trained[name]
    monkeypatch.setattr("encoderlab.corpus.tokenizer.CHARACTERS", 1)  # so that short texts are cut
    special = tokenizer.token(tokenizer.special.mask)

    @settings(max_examples=150, deadline=None)
    @given(st.lists(st.tuples(odd_text, st.sampled_from([" ", "  ", f" {special} ", special, "\n"])), max_size=8))
    def equal(parts: list[tuple[str, str]]) -> None:
        text = "".join(word + gap for word, gap in parts) * 2
        whole = tokenizer.encode(text)
        for limit in (1, 2, 5, 12):
            assert_begins(tokenizer, text, whole, limit)

    equal()


@pytest.mark.parametrize("name", TRAINED)
def test_the_end_of_a_text_has_the_tokens_of_the_whole(
    name: str, trained: dict[str, Tokenizer], monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = trained[name]
    monkeypatch.setattr("encoderlab.corpus.tokenizer.CHARACTERS", 1)  # so that short texts are cut
    special = tokenizer.token(tokenizer.special.mask)

    @settings(max_examples=100, deadline=None)
    @given(st.lists(st.one_of(odd_text, st.sampled_from(["the", "cat", "中国", special, " ", "\n"])), max_size=12))
    def equal(parts: list[str]) -> None:
        for text in ("".join(parts) * 2, " ".join(parts) * 2):
            whole = tokenizer.encode(text).ids
            for limit in (1, 5, 12):
                found = tokenizer.encode_end(text, limit)
                assert len(found) >= min(limit + 1, len(whole))
                np.testing.assert_array_equal(found, whole[len(whole) - len(found) :])

    equal()


def test_the_end_of_a_text_is_read_alone(trained: dict[str, Tokenizer], monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer, read = trained["wordpiece"], []
    group = Tokenizer._encode_group
    monkeypatch.setattr(Tokenizer, "_encode_group", lambda self, texts: read.extend(texts) or group(self, texts))
    for text in ("the cat sat on the mat " * 50_000, "生活的真谛是什么" * 100_000):
        read.clear()
        assert len(tokenizer.encode_end(text, 128)) > 128 and sum(map(len, read)) < 100 * 16 * 129


@pytest.mark.parametrize("name", TRAINED)
def test_a_long_text_is_encoded_in_parts_that_change_no_token(
    name: str, trained: dict[str, Tokenizer], monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer, special = trained[name], trained[name].token(trained[name].special.mask)
    group, read = Tokenizer._encode_group, []
    monkeypatch.setattr(Tokenizer, "_encode_group", lambda self, texts: read.extend(texts) or group(self, texts))
    words = st.sampled_from(["the", "cat", "IS", "is 2", "中国", "中", special, "\u0301", "don't", " ", "\n"])

    @settings(max_examples=100, deadline=None)
    @given(st.lists(st.one_of(odd_text, words), max_size=20), st.integers(1, 12))
    def equal(parts: list[str], size: int) -> None:
        for text in ("".join(parts), " ".join(parts)):
            with monkeypatch.context() as whole:
                whole.setattr("encoderlab.corpus.tokenizer.GROUP", 1 << 20)
                expected = tokenizer.encode(text)
            with monkeypatch.context() as cut:
                cut.setattr("encoderlab.corpus.tokenizer.GROUP", size)
                found = tokenizer.encode(text)
            for field in ("ids", "offsets", "word_starts"):
                np.testing.assert_array_equal(getattr(found, field), getattr(expected, field))
                assert getattr(found, field).dtype == getattr(expected, field).dtype

    equal()
    read.clear()
    assert len(tokenizer.encode("the cat sat on the mat " * 100_000)) > 600_000
    assert max(map(len, read)) < 300_000


def test_a_limit_reads_in_proportion_to_it(trained: dict[str, Tokenizer], monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer, read = trained["wordpiece"], []
    group = Tokenizer._encode_group
    monkeypatch.setattr(Tokenizer, "_encode_group", lambda self, texts: read.extend(texts) or group(self, texts))
    for text in (
        "the cat sat on the mat " * 50_000,
        "生活的真谛是什么" * 100_000,
        f"{'x' * 3000} the cat " * 300,
        "the,cat" * 100_000,
    ):
        read.clear()
        (found,) = tokenizer.encode_batch([text], limit=128)
        assert len(found) > 128 and sum(map(len, read)) < 100 * 16 * 129


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(odd_text, st.sampled_from("aé1ßİ中ᄀ가_²ª\u0e01\u0301"), st.integers(90, 260)), max_size=5))
def test_words_beyond_the_limit_of_wordpiece_are_read_no_further(
    trained: dict[str, Tokenizer], parts: list[tuple[str, str, int]]
) -> None:
    """Ids, offsets and word starts are those of the whole text, which the library reads in full."""
    tokenizer = trained["wordpiece"]
    text = "".join(before + letter * count for before, letter, count in parts)
    whole = tokenizer._encode_whole([text])[0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("encoderlab.corpus.tokenizer.LONG", 0)
        found = tokenizer.encode(text)
    for field in ("ids", "offsets", "word_starts"):
        np.testing.assert_array_equal(getattr(found, field), getattr(whole, field))


def test_an_endless_word_costs_the_library_nothing(trained: dict[str, Tokenizer], monkeypatch) -> None:
    tokenizer, read = trained["wordpiece"], []
    whole = Tokenizer._encode_whole
    monkeypatch.setattr(Tokenizer, "_encode_whole", lambda self, texts: read.extend(texts) or whole(self, texts))
    (found,) = tokenizer.encode_batch(["x" * 3_000_000 + " the cat"], limit=128)
    assert tokenizer.token(int(found.ids[0])) == "[UNK]" and found.offsets[0].tolist() == [0, 3_000_000]
    assert sum(map(len, read)) < 5_000


@pytest.mark.parametrize("name", [*TRAINED, "bpe-nfc"])
def test_text_without_an_end_of_a_word_is_read_no_further_and_changes_no_token(
    name: str, trained: dict[str, Tokenizer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Letters, digits and marks without a space: the cut is proved from the vocabulary, and where that fails (here
    MOST has no end) the text is read whole."""
    tokenizer = trained[name.removesuffix("-nfc")]
    if name == "bpe-nfc":  # as ModernBERT's
        backend = tokenizers.Tokenizer.from_str(tokenizer.backend.to_str())
        backend.normalizer = tokenizers.normalizers.NFC()
        tokenizer = Tokenizer(backend, tokenizer.special_tokens)
    special, proved = tokenizer.token(tokenizer.special.mask), []
    monkeypatch.setattr("encoderlab.corpus.tokenizer.CHARACTERS", 4)
    monkeypatch.setattr("encoderlab.corpus.beginnings.MOST", 1 << 30)
    heads = Beginnings.heads

    def counted(self: Beginnings, text: str, length: int) -> Head:
        head = heads(self, text, length)
        proved.append(head.proved and len(head.texts[0]) < len(text))
        return head

    monkeypatch.setattr(Beginnings, "heads", counted)
    alphabets = (
        "thea",
        "abcdefgh",
        "0123",
        "=-_",
        "the中国生活",
        "ñé한글",
        "a'",
        "x" + "\u0301",
        "Aa1=",
        "ﬁＡｶﾞ",
        "«½²",
    )

    @settings(max_examples=60, deadline=None)
    @given(st.data())
    def equal(data: st.DataObject) -> None:
        letters = data.draw(st.sampled_from(alphabets))
        run = "".join(data.draw(st.lists(st.sampled_from(letters), min_size=1, max_size=12))) * 200
        middle, end = data.draw(
            st.tuples(st.integers(0, 600), st.sampled_from(["", " the end", special, "'s", "\u0301"]))
        )
        text = data.draw(odd_text) + run[:middle] + data.draw(st.sampled_from(["", special, "n't "])) + run + end
        whole = tokenizer.encode(text)
        for limit in (3, 40):
            assert_begins(tokenizer, text, whole, limit)

    equal()
    assert sum(proved) > len(proved) / 6


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_a_cut_is_proved_for_any_merges_and_any_scores(data: st.DataObject) -> None:
    """Vocabularies drawn at random over two letters, in which what follows decides as much as it can."""
    merges: list[tuple[str, str]] = []
    vocabulary = {"a": 0, "b": 1, "[UNK]": 2}
    for _ in range(data.draw(st.integers(1, 12))):
        pair = data.draw(st.tuples(*[st.sampled_from([token for token in vocabulary if token != "[UNK]"])] * 2))
        if "".join(pair) not in vocabulary and len("".join(pair)) < 12:
            merges.append(pair)
            vocabulary["".join(pair)] = len(vocabulary)
    if data.draw(st.booleans()):
        backend = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocabulary, merges=merges))
        backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    else:
        scores = [
            (token, -float(data.draw(st.integers(1, 5)))) for token in vocabulary if token != "b" or len(merges) > 3
        ]
        unknown = [token for token, _ in scores].index("[UNK]")
        backend = tokenizers.Tokenizer(tokenizers.models.Unigram(scores, unk_id=unknown))
        backend.normalizer = tokenizers.normalizers.Replace(tokenizers.Regex(" {2,}"), " ")
        backend.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace(prepend_scheme="always", split=True)
    beginnings = Beginnings(backend)
    text = "".join(data.draw(st.lists(st.sampled_from("ab"), min_size=20, max_size=60))) * 3
    whole = backend.encode(text)
    head = beginnings.heads(text, 20)
    assert head.proved and all(len(one) < len(text) for one in head.texts)
    found = [backend.encode(one) for one in head.texts]
    size = beginnings.common([np.array(one.ids) for one in found], [np.array(one.offsets) for one in found])
    assert found[0].ids[:size] == whole.ids[:size] and found[0].offsets[:size] == whole.offsets[:size]


@pytest.mark.parametrize("name", TRAINED)
@pytest.mark.parametrize("letters", ["x", "etaoinshrdlu", "生活的真谛", "0", "=", "e\u0301"])
def test_a_cell_of_letters_costs_what_is_used_of_it(
    letters: str, name: str, trained: dict[str, Tokenizer], monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer, read = trained[name], []
    whole = Tokenizer._encode_whole
    monkeypatch.setattr(Tokenizer, "_encode_whole", lambda self, texts: read.extend(texts) or whole(self, texts))
    text = "".join(random.Random(1).choices(letters, k=600_000))
    (found,) = tokenizer.encode_batch([text], limit=128)
    assert len(found) > 128 or found.offsets[-1][1] == len(text)
    if len(found) > 128:
        assert sum(map(len, read)) < 500_000
