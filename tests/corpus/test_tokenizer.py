"""Tokenizers: saved and loaded; ids equal to the reference libraries; word starts; rows for fine-tuning."""

from __future__ import annotations

import gzip
import itertools
import json
import pickle
import re
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, models, pre_tokenizers, trainers

from encoderlab.corpus import chunks
from encoderlab.corpus import tokenizer as tokenizer_module
from encoderlab.corpus.tokenizer import Tokenizer, truncate
from encoderlab.errors import ConfigError
from tests.corpus.trained import TRAINED, model_file, odd_text, sample, write


def test_a_saved_tokenizer_is_the_same(trained: dict[str, Tokenizer], tmp_path: Path) -> None:
    text = "Hello, wörld: [MASK] <mask> ``states'' 1,000, 北京大学 don't"
    for name, tokenizer in trained.items():
        tokenizer.save(tmp_path / name)
        assert sorted(path.name for path in (tmp_path / name).iterdir()) == ["tokenizer.json", "tokenizer_config.json"]
        loaded = Tokenizer.load(tmp_path / name)
        assert loaded.hash() == tokenizer.hash()
        assert (loaded.special, loaded.special_tokens, loaded.tokens) == (
            tokenizer.special,
            tokenizer.special_tokens,
            tokenizer.tokens,
        )
        assert loaded.encode(text).ids.tolist() == tokenizer.encode(text).ids.tolist()
        assert pickle.loads(pickle.dumps(tokenizer)).hash() == tokenizer.hash()
    assert len({tokenizer.hash() for tokenizer in trained.values()}) == len(trained)


# Ids equal to the references.

GOLDEN = {
    "bert-base-uncased": {},
    "bert-base-cased": {},
    "bert-base-chinese": {"lowercase": False},
    "gpt2": {"add_special": True},
    "roberta-base": {},
    "albert-style-30k": {},
    "chinese-xlnet": {},
}


@pytest.mark.parametrize("name", GOLDEN)
def test_ids_and_offsets_of_the_reference_tokenizers(name: str, shared: Path) -> None:
    folder = shared / "data" / "vocab"
    merges = folder / "gpt2" / "merges.txt.gz" if name == "roberta-base" else None
    tokenizer = Tokenizer.load(folder / name, merges=merges, **GOLDEN[name])  # type: ignore[arg-type]
    file = next((folder / "golden").glob(f"{name}.*reference.jsonl.gz"))
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        records = [json.loads(line) for line in lines]
    tokens = tokenizer.encode_corpus([record["text"] for record in records])
    assert len(records) > 250
    for index, record in enumerate(records):
        if tokenizer.kind == "wordpiece" or "[MASK]" not in record["text"]:  # only these know special tokens in a text
            encoding = tokenizer.encode(record["text"])
            assert encoding.ids.tolist() == record["ids"]
            if "offsets" in record:
                assert encoding.offsets.tolist() == record["offsets"]
        if tokenizer.kind != "wordpiece" or "[MASK]" not in record["text"]:
            assert tokens.ids[tokens.bounds[index] : tokens.bounds[index + 1]].tolist() == record["ids"]


def test_ids_of_the_squad_questions(shared: Path) -> None:
    folder = shared / "data" / "vocab"
    tokenizer = Tokenizer.load(folder / "bert-base-uncased")
    with gzip.open(folder / "golden" / "bert-base-uncased.squad_questions.jsonl.gz", "rt", encoding="utf-8") as lines:
        records = [json.loads(line) for line in lines]
    tokens = tokenizer.encode_corpus([record["text"] for record in records])
    assert tokens.ids.tolist() == [index for record in records for index in record["ids"]]
    words = [len(record["basic"]) for record in records]
    assert np.add.reduceat(tokens.word_starts, tokens.bounds[:-1]).tolist() == words


@pytest.mark.parametrize("name", ["unigram", "unigram-xlnet", "unigram-deberta"])
def test_unigram_ids_equal_sentencepiece(name: str, trained: dict[str, Tokenizer]) -> None:
    sentencepiece = pytest.importorskip("sentencepiece")
    tokenizer = trained[name]
    reference = sentencepiece.SentencePieceProcessor(model_proto=model_file(tokenizer))
    normalize = tokenizer.backend.normalizer.normalize_str

    @settings(max_examples=150, deadline=None)
    @given(odd_text)
    def equal(text: str) -> None:
        assert tokenizer.encode_corpus([text]).ids.tolist() == reference.encode(normalize(text))

    equal()
    for text in [*sample(), "a <unk> b"]:
        assert tokenizer.encode_corpus([text]).ids.tolist() == reference.encode(normalize(text))


@pytest.mark.parametrize("byte_fallback", [False, True])
def test_deberta_spm_model_with_its_mask_appended(byte_fallback: bool, tmp_path: Path) -> None:
    sentencepiece = pytest.importorskip("sentencepiece")
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sample()), model_prefix=str(tmp_path / "spm"), vocab_size=900, minloglevel=3,
        pad_id=0, pad_piece="[PAD]", bos_id=1, bos_piece="[CLS]", eos_id=2, eos_piece="[SEP]", unk_id=3,
        unk_piece="[UNK]", byte_fallback=byte_fallback, user_defined_symbols=["--"],
    )  # fmt: skip
    reference = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "spm.model"))
    tokenizer = Tokenizer.load(tmp_path)
    assert (tokenizer.framing, tokenizer.vocab_size, tokenizer.special.mask) == ("bert", 901, 900)
    lines = [line for line in sample() if not re.search("==|--|[)]{3}", line)]  # runs have several best segmentations
    texts = [*lines, "  Two  spaces\tand\u3000more ﬁne ①", "emoji 😀 -- a--b", "control \x07\u200b characters", ""]
    tokens = tokenizer.encode_corpus(texts)
    assert tokens.ids.tolist() == [index for text in texts for index in reference.encode(text)]
    tokenizer.save(tmp_path / "saved")
    assert Tokenizer.load(tmp_path / "saved").encode_corpus(texts).ids.tolist() == tokens.ids.tolist()


def test_albert_and_xlnet_normalise_before_sentencepiece(tmp_path: Path) -> None:
    sentencepiece = pytest.importorskip("sentencepiece")
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([*sample(), *["in 1,000, or 2,000, of"] * 50]), model_prefix=str(tmp_path / "spiece"),
        vocab_size=900, minloglevel=3, unk_id=1, pad_id=0, bos_id=-1, eos_id=-1,
        control_symbols=["[CLS]", "[SEP]", "[MASK]"],
    )  # fmt: skip
    write(tmp_path, config__json={"model_type": "albert"})
    albert = Tokenizer.load(tmp_path)
    same = albert.encode('"the argument"')
    assert albert.encode("``Thé  ARGÜMENT''").ids.tolist() == same.ids.tolist()
    pieces = [albert.token(index) for index in albert.encode("in 1,000, or").ids]
    assert not any(re.search(r"\d,$", piece) for piece in pieces)
    plain = Tokenizer.load(tmp_path / "spiece.model")
    assert plain.encode("Thé").ids.tolist() != plain.encode("the").ids.tolist()
    assert albert.special == plain.special


@pytest.mark.parametrize(
    ("name", "model_type"),
    [("wordpiece", "bert"), ("wordpiece-cased", "electra"), ("bpe", "roberta"), ("bpe-deberta", "deberta"),
     ("unigram", "albert"), ("unigram-xlnet", "xlnet"), ("unigram-deberta", "deberta-v2"), ("bpe", None)],
)  # fmt: skip
def test_a_saved_folder_gives_the_same_rows_in_transformers(
    name: str, model_type: str | None, trained: dict[str, Tokenizer], tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer = trained[name]
    tokenizer.save(tmp_path)
    if model_type:
        write(tmp_path, config__json={"model_type": model_type})
    other = transformers.AutoTokenizer.from_pretrained(tmp_path)
    special, names = tokenizer.special, ("pad", "unk", "cls", "sep", "mask")
    assert [getattr(other, f"{role}_token_id") for role in names] == [getattr(special, role) for role in names]
    assert sorted(other.all_special_ids) == list(special.all_special)
    assert (other.padding_side, len(other)) == (tokenizer.padding_side, 800)
    for text in (*sample()[:200], "", "Ünï [MASK] ``x'' <mask> 1,000, </s>", "a\u3000b\x00c 中文"):
        ids, _ = tokenizer.frame(tokenizer.encode(text).ids, max_length=4096)
        assert other(text)["input_ids"] == ids.tolist()
        pair = other(text, "a second text")
        ids, segments = tokenizer.frame(tokenizer.encode(text).ids, tokenizer.encode("a second text").ids, 4096)
        assert pair["input_ids"] == ids.tolist()
        assert pair.get("token_type_ids", segments.tolist()) == segments.tolist()


@pytest.mark.parametrize(
    ("class_name", "name"),
    [("BertTokenizer", "wordpiece"), ("RobertaTokenizer", "bpe"), ("DebertaTokenizer", "bpe-deberta"),
     ("AlbertTokenizer", "unigram"), ("XLNetTokenizer", "unigram-xlnet"), ("DebertaV2Tokenizer", "unigram-deberta")],
)  # fmt: skip
def test_folders_of_transformers_give_the_same_ids_here(
    class_name: str, name: str, trained: dict[str, Tokenizer], tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers")
    trained[name].save(tmp_path / "ours")
    other = getattr(transformers, class_name).from_pretrained(tmp_path / "ours")
    other.save_pretrained(tmp_path / "theirs")
    tokenizer = Tokenizer.load(tmp_path / "theirs")
    assert tokenizer.special == trained[name].special
    for text in (*sample()[:100], "Ünï [MASK] 中文 <mask>"):
        first = tokenizer.encode(text).ids
        ids, _ = tokenizer.frame(first, max_length=4096)
        assert other(text)["input_ids"] == ids.tolist()
        pair = other(text, "a second text")
        ids, segments = tokenizer.frame(first, tokenizer.encode("a second text").ids, 4096)
        assert pair["input_ids"] == ids.tolist()  # that of DeBERTa has two separators between texts there
        assert pair.get("token_type_ids", segments.tolist()) == segments.tolist()


# Tokens for a corpus.


@pytest.mark.parametrize("name", TRAINED)
def test_looking_chunks_up_equals_the_library(name: str, trained: dict[str, Tokenizer]) -> None:
    plain = trained[name]._plain
    encoder = chunks.ChunkEncoder.of(plain)
    assert encoder is not None

    @settings(max_examples=100, deadline=None)
    @given(st.lists(odd_text, max_size=4))
    def equal(texts: list[str]) -> None:
        for got, expected in zip(encoder(texts), chunks.tokenize(plain, texts), strict=True):
            np.testing.assert_array_equal(got, expected)

    equal()
    texts = ["\n".join(sample()), *sample(), "", " ", "x" * 1000, "中文" * 500, "a  b\t\tc\n\nd "]
    for _ in range(2):  # new words, known words
        for got, expected in zip(encoder(texts), chunks.tokenize(plain, texts), strict=True):
            np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("name", TRAINED)
@pytest.mark.parametrize("options", [{}, {"single_word": True}, {"normalized": False}])
def test_a_corpus_has_the_added_tokens_that_a_text_has(
    name: str, options: dict[str, bool], trained: dict[str, Tokenizer]
) -> None:
    backend = tokenizers.Tokenizer.from_str(trained[name].backend.to_str())
    added = ["中国", "A股", "<ent>", "foo"]
    backend.add_tokens([AddedToken(token, **options) for token in added])
    tokenizer = Tokenizer(backend, trained[name].special_tokens)
    texts = [f"{token}{after}" for token in added for after in ("", " a", "人", "人 foo", f" {token}", ", the")]
    texts += [f"我爱{text}" for text in texts] + [f"the {text}" for text in texts]
    tokens = tokenizer.encode_corpus(texts)
    found = [tokens.ids[first:end].tolist() for first, end in itertools.pairwise(tokens.bounds)]
    assert found == [tokenizer.encode(text).ids.tolist() for text in texts]


def test_the_memory_of_chunks_is_bounded(trained: dict[str, Tokenizer], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "MAX_CHUNKS", 20)
    encoder = chunks.ChunkEncoder(trained["wordpiece"]._plain, "words")
    for begin in range(0, 300, 10):
        texts = [f"word{number} and" for number in range(begin, begin + 10)]
        np.testing.assert_array_equal(encoder(texts).ids, chunks.tokenize(trained["wordpiece"]._plain, texts).ids)
        assert len(encoder._sizes) <= 20 + 11


def test_tokenizers_whose_chunks_may_depend_on_each_other_use_the_library(trained: dict[str, Tokenizer]) -> None:
    parts = json.loads(trained["bpe"]._plain.to_str())
    assert chunks.mode_of(parts) == "bytes"
    assert chunks.mode_of(parts | {"pre_tokenizer": parts["pre_tokenizer"] | {"add_prefix_space": True}}) is None
    assert chunks.mode_of(parts | {"normalizer": {"type": "NFC"}}) is None
    parts = json.loads(trained["wordpiece"]._plain.to_str())
    assert chunks.mode_of(parts | {"pre_tokenizer": None}) is None
    assert chunks.mode_of(parts | {"normalizer": parts["normalizer"] | {"handle_chinese_chars": False}}) == "words"
    parts = json.loads(trained["unigram"]._plain.to_str())
    assert (
        chunks.mode_of(parts | {"normalizer": {"type": "Replace", "pattern": {"String": "a b"}, "content": "c"}})
        is None
    )


def test_special_tokens_written_in_corpus_text_are_text(trained: dict[str, Tokenizer]) -> None:
    text = " ".join(["[CLS] [SEP] [MASK] [PAD] <s> </s> <cls> <sep> <mask> <pad> <eod> <unk>"] * 2)
    for tokenizer in trained.values():
        found = set(tokenizer.encode_corpus([text]).ids.tolist()) & set(tokenizer.special.all_special)
        assert found <= {tokenizer.special.unk}
        assert tokenizer.special.mask in tokenizer.encode(text).ids


def test_offsets_point_into_the_text(trained: dict[str, Tokenizer]) -> None:
    text = "The cats, however, don't argue (parsers do)."
    for name, tokenizer in trained.items():
        encoding = tokenizer.encode(text)
        assert len(encoding) == len(encoding.ids) == len(encoding.offsets) == len(encoding.word_starts)
        pieces = "".join(text[first:last].strip() for first, last in encoding.offsets)
        assert pieces == text.replace(" ", ""), name
        for spaced in (text, text.replace(" ", "\u3000"), text.replace(" ", "\u2003")):
            tokens = tokenizer.encode_corpus([spaced])
            assert not any(spaced[start].isspace() for start in tokens.starts), name


# Word starts.


def test_half_of_a_surrogate_pair_is_no_character(
    trained: dict[str, Tokenizer], caplog: pytest.LogCaptureFixture
) -> None:
    tokenizer_module._warn_of_surrogates.cache_clear()  # another test may have seen one
    for tokenizer in trained.values():
        broken, whole = (tokenizer.encode_batch([f"the {char} river", "ships"]) for char in "\ud83d\ufffd")
        for one, two in zip(broken, whole, strict=True):
            assert one.ids.tolist() == two.ids.tolist() and one.offsets.tolist() == two.offsets.tolist()
        assert tokenizer.encode("\udcfc").ids.tolist() == tokenizer.encode("\ufffd").ids.tolist()
    assert "halves of surrogate pairs, which are not characters, are read as U+FFFD" in caplog.messages
    with pytest.raises(TypeError):
        tokenizer.encode_batch(["ships", None])  # type: ignore[list-item]


def test_words_are_those_of_berts_basic_tokenizer_for_every_kind(trained: dict[str, Tokenizer]) -> None:
    text = "the parsers' arguments (of sub-commands), e.g. add_argument() 3.14 don't!  two\nlines 龘龘 usage"
    expected = re.findall(r"[a-z0-9]+|龘|[^\sa-z0-9]", text)
    for name, tokenizer in trained.items():
        tokens = tokenizer.encode_corpus([text])
        starts = tokens.starts[tokens.word_starts].tolist()
        found = [text[first:last].strip() for first, last in zip(starts, [*starts[1:], len(text)], strict=True)]
        if tokenizer.kind != "wordpiece":  # a token may hold several marks
            found = [part for word in found for part in ([word] if word.isalnum() else word)]
        if tokenizer.kind == "unigram":  # two unknown characters are one token
            found = [part for word in found for part in ("龘龘" if word == "龘龘" else [word])]
        assert found == expected, name
        assert tokenizer.encode(text).word_starts.tolist() == tokens.word_starts.tolist()


@pytest.mark.parametrize(
    ("splitter", "suffix"),
    [
        (pre_tokenizers.Metaspace(), ""),
        (pre_tokenizers.Whitespace(), ""),
        (pre_tokenizers.BertPreTokenizer(), "</w>"),
    ],
    ids=["metaspace", "whitespace", "suffix"],
)
def test_words_of_other_bpe_are_those_of_the_text(
    splitter: pre_tokenizers.PreTokenizer, suffix: str, tmp_path: Path
) -> None:
    backend = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix=suffix))
    backend.pre_tokenizer = splitter
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=special, end_of_word_suffix=suffix, show_progress=False
    )
    backend.train_from_iterator([*sample(), "żółć naïve"], trainer)
    backend.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer.load(tmp_path)
    text = "the parsers argument (of sub-commands), naïve żółć  two\nlines 价格 usage"
    tokens = tokenizer.encode_corpus(["", text, text])
    own = slice(tokens.bounds[1], tokens.bounds[2])
    starts = tokens.starts[own][tokens.word_starts[own]].tolist()
    words = [text[first:end].strip() for first, end in itertools.pairwise([*starts, len(text)])]
    found = [part for word in words for part in ([word] if word.isalnum() else word)]  # a token may hold several marks
    assert found == re.findall("[价格]|[^\\W价格]+|[^\\w\\s]", text)
    assert len(tokens.ids[own]) > len(words)
    twice = tokenizer.encode(text).word_starts.tolist()
    assert tokens.word_starts.tolist() == twice + twice


def test_word_starts_of_many_texts_are_those_of_each(trained: dict[str, Tokenizer]) -> None:
    texts = [*sample()[:100], "", "京", "é", "(", "a"]
    for tokenizer in trained.values():
        tokens = tokenizer.encode_corpus(texts)
        alone = [tokenizer.encode_corpus([text]).word_starts for text in texts]
        assert tokens.word_starts.tolist() == np.concatenate(alone).tolist()


def test_a_character_of_several_byte_tokens_is_one_word(trained: dict[str, Tokenizer]) -> None:
    tokenizer = trained["bpe"]
    encoding = tokenizer.encode("naïveté 龘龘 x")
    assert encoding.word_starts.sum() == 4  # naïveté, twice the rare character, x
    assert len(encoding.ids) > 6


# Rows for fine-tuning.


def test_frames(trained: dict[str, Tokenizer]) -> None:
    a, b = [11, 12, 13], [21, 22]
    bert, roberta, xlnet = trained["wordpiece"], trained["bpe"], trained["unigram-xlnet"]
    one, two = bert.special, roberta.special
    ids, segments = bert.frame(a, b)
    assert ids.tolist() == [one.cls, 11, 12, 13, one.sep, 21, 22, one.sep]
    assert segments.tolist() == [0, 0, 0, 0, 0, 1, 1, 1]
    assert bert.frame(a)[0].tolist() == [one.cls, 11, 12, 13, one.sep]
    ids, segments = roberta.frame(a, b)
    assert ids.tolist() == [two.cls, 11, 12, 13, two.sep, two.sep, 21, 22, two.sep]
    assert segments.tolist() == [0] * 9
    ids, segments = xlnet.frame(a, b)
    assert ids.tolist() == [11, 12, 13, xlnet.special.sep, 21, 22, xlnet.special.sep, xlnet.special.cls]
    assert segments.tolist() == [0, 0, 0, 0, 1, 1, 1, 2]
    ids, segments = xlnet.frame(a)
    assert (ids.tolist(), segments.tolist()) == ([11, 12, 13, xlnet.special.sep, xlnet.special.cls], [0, 0, 0, 0, 2])
    assert (bert.padding_side, xlnet.padding_side) == ("right", "left")
    with pytest.raises(ConfigError, match="max_length 4 leaves no place .* choose at least 5"):
        bert.frame(a, b, max_length=4)


@given(st.integers(0, 30), st.integers(0, 30), st.integers(2, 40))
def test_truncation_drops_the_last_token_of_the_longer_text(len_a: int, len_b: int, room: int) -> None:
    a, b = len_a, len_b
    while a + b > room:
        a, b = (a - 1, b) if a > b else (a, b - 1)
    assert truncate(len_a, len_b, room) == (a, b)


@given(st.integers(0, 40), st.integers(0, 40), st.integers(2, 20))
def test_what_is_left_of_two_texts_depends_on_no_more_than_the_room(a: int, b: int, room: int) -> None:
    assert truncate(a, b, room) == truncate(min(a, room), min(b, room), room)


@given(st.integers(0, 30), st.one_of(st.none(), st.integers(0, 30)), st.integers(8, 40))
def test_spans_say_where_the_texts_are(len_a: int, len_b: int | None, max_length: int) -> None:
    a, b = np.arange(100, 100 + len_a), None if len_b is None else np.arange(200, 200 + len_b)
    for tokenizer in FRAMED:
        spans = tokenizer.spans(len_a, len_b, max_length=max_length)
        ids, segments = tokenizer.frame(a, b, max_length)
        assert len(ids) == len(segments) == spans.length <= max_length
        assert ids[spans.a_start : spans.a_start + spans.a].tolist() == a[: spans.a].tolist()
        if b is not None:
            assert ids[spans.b_start : spans.b_start + spans.b].tolist() == b[: spans.b].tolist()
        special = np.isin(ids, tokenizer.special.all_special)
        assert special.sum() == spans.length - spans.a - spans.b


FRAMED = [
    Tokenizer.train("wordpiece", ["a b c"], 11),
    Tokenizer.train("bpe", ["a b c"], 261),
]
