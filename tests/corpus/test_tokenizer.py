"""Tokenizers: trained, loaded, saved; ids equal to the reference libraries; word starts; rows for fine-tuning."""

from __future__ import annotations

import argparse
import gzip
import json
import pickle
import random
import re
import statistics
import struct
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from encoderlab.corpus import chunks
from encoderlab.corpus.beginnings import Beginnings, Head
from encoderlab.corpus.tokenizer import Encoding, Tokenizer, truncate
from encoderlab.errors import ConfigError, DataError

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


@pytest.fixture(scope="module")
def trained() -> dict[str, Tokenizer]:
    """A small tokenizer of every kind, by name."""
    made = {}
    for name, arguments in TRAINED.items():
        if arguments["kind"] == "unigram":
            pytest.importorskip("sentencepiece")
        made[name] = Tokenizer.train(texts=sample(), vocab_size=800, **arguments)  # type: ignore[arg-type]
    return made


# Training.


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


# Folders and files.


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


def write(folder: Path, **files: object) -> Path:
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        path = folder / name.replace("__", ".")
        path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return folder


WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "##s", "the"]


def test_vocab_txt_takes_case_from_the_folder_or_the_vocabulary(tmp_path: Path) -> None:
    lines = "\n".join(WORDS[:8]) + "\n"
    assert Tokenizer.load(write(tmp_path / "a", vocab__txt=lines)).encode("The CATS").ids.tolist() == [5, 6, 7]
    cased = Tokenizer.load(write(tmp_path / "b", vocab__txt=lines, tokenizer_config__json={"do_lower_case": False}))
    assert cased.encode("The cats").ids.tolist() == [1, 6, 7]
    with_upper_case = write(tmp_path / "c", vocab__txt=lines + "The\n")
    assert Tokenizer.load(with_upper_case).encode("The cats").ids.tolist() == [8, 6, 7]
    assert Tokenizer.load(with_upper_case, lowercase=True).encode("The cats").ids.tolist() == [5, 6, 7]
    with gzip.open(tmp_path / "vocab.txt.gz", "wt") as file:
        file.write(lines)
    assert Tokenizer.load(tmp_path / "vocab.txt.gz").encode("the cats").ids.tolist() == [5, 6, 7]
    windows = write(tmp_path / "d", vocab__txt=lines.replace("\n", "\r\n"))
    assert Tokenizer.load(windows).encode("the cats").ids.tolist() == [5, 6, 7]


def byte_vocabulary(special: list[str]) -> dict[str, int]:
    letters = sorted(chunks.tokenizers.pre_tokenizers.ByteLevel.alphabet())
    return {token: index for index, token in enumerate([*special, *letters, "Ġt", "he", "Ġthe"])}


MERGES = "#version: 0.2\nĠ t\nh e\nĠt he\n"


def test_vocab_json_with_merges_in_the_layouts_of_roberta_and_deberta(tmp_path: Path) -> None:
    vocabulary = byte_vocabulary(["<s>", "<pad>", "</s>", "<unk>"])
    vocabulary["<mask>"] = 265  # two ids before it have no token, as in the published file
    roberta = Tokenizer.load(write(tmp_path / "roberta", vocab__json=vocabulary, merges__txt=MERGES))
    assert (roberta.framing, roberta.vocab_size, roberta.special.mask) == ("roberta", 266, 265)
    assert [roberta.token(index) for index in roberta.encode("a the").ids] == ["a", "Ġthe"]
    assert roberta.token(263) == "madeupword0000"

    vocabulary = byte_vocabulary(["[PAD]", "[CLS]", "[SEP]", "[UNK]"]) | {"[MASK]": 263}
    folder = write(
        tmp_path / "deberta", vocab__json=vocabulary, merges__txt=MERGES, config__json={"model_type": "deberta"}
    )
    deberta = Tokenizer.load(folder)
    assert (deberta.framing, deberta.special.cls, deberta.special.mask) == ("bert", 1, 263)

    bare = write(tmp_path / "gpt2", vocab__json=byte_vocabulary(["<|endoftext|>"]), merges__txt=MERGES)
    with pytest.raises(DataError, match="lacks <pad>, <unk>, <s>, </s>, <mask>"):
        Tokenizer.load(bare)
    grown = Tokenizer.load(bare, add_special=True)
    assert grown.special.all_special == tuple(range(260, 265))


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "no tokenizer in this folder"),
        ({"vocab__txt": ""}, "empty"),
        ({"vocab__txt": "[PAD]\n[UNK]\n[CLS]\n[SEP]\nthe\n"}, r"lacks \[MASK\], .* \(a line each in vocab.txt\)"),
        ({"vocab__json": "{"}, "not valid JSON"),
        ({"vocab__json": "[1]"}, "contains list"),
        ({"vocab__json": {"a": "b"}, "merges__txt": ""}, "expected a mapping of tokens to ids"),
        ({"vocab__json": {"a": 0, "b": 5000}, "merges__txt": ""}, "4999 ids of 5001 have no token"),
        ({"vocab__json": {"a": 0}}, "merges.txt is missing"),
        ({"vocab__json": {"a": 0}, "merges__txt": "a b c\n"}, "expected two tokens per line"),
        ({"vocab__json": {"a": 0}, "merges__txt": "x y\n"}, "does not fit vocab.json"),
        ({"tokenizer__json": {"model": {"type": "WordLevel"}}}, "a WordLevel tokenizer"),
        ({"tokenizer__json": {"model": {"type": "BPE"}}}, "not a tokenizer"),
        ({"spiece__model": "no model"}, "not a SentencePiece model"),
        ({"vocab__txt": "\n".join(WORDS), "tokenizer_config__json": {"framing": "brt"}}, "did you mean 'bert'"),
        ({"vocab__txt": "\n".join(WORDS), "added_tokens__json": {"<x>": 99}}, "'<x>' has id 99, expected"),
        (
            {"vocab__txt": "\n".join(WORDS), "added_tokens__json": {"<x>": 9, "<y>": "9"}},
            "not a mapping of tokens to ids",
        ),
        ({"vocab__txt": "\n".join(WORDS), "tokenizer_config__json": {"do_lower_case": "no"}}, "expected true or false"),
    ],
)
def test_broken_files_give_one_line(files: dict[str, object], message: str, tmp_path: Path) -> None:
    with pytest.raises((DataError, ConfigError), match=message) as error:
        Tokenizer.load(write(tmp_path / "x", **files))
    assert "\n" not in str(error.value)
    assert str(tmp_path / "x") in str(error.value)


def test_binary_missing_and_truncated_files(trained: dict[str, Tokenizer], tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "vocab.bin").write_bytes(b"x")
    packed = gzip.compress("\n".join(WORDS).encode())
    (tmp_path / "cut.txt.gz").write_bytes(packed[:-12])
    (tmp_path / "flipped.txt.gz").write_bytes(packed[:20] + bytes([packed[20] ^ 0xFF]) + packed[21:])
    for name, message in (
        ("vocab.txt", "not UTF-8 at byte 0"),
        ("vocab.bin", "not a vocabulary"),
        ("cut.txt.gz", "cannot be read"),
        ("flipped.txt.gz", "cannot be read"),
        ("nowhere", "no such file or folder"),
    ):
        with pytest.raises(DataError, match=message):
            Tokenizer.load(tmp_path / name)
    trained["bpe"].save(tmp_path / "whole")
    text = (tmp_path / "whole" / "tokenizer.json").read_text(encoding="utf-8")
    (tmp_path / "whole" / "tokenizer.json").write_text(text[: len(text) // 2], encoding="utf-8")
    with pytest.raises(DataError, match="not valid JSON"):
        Tokenizer.load(tmp_path / "whole")
    with pytest.raises(ConfigError, match="did you mean 'albert'"):
        Tokenizer.load(tmp_path, family="alberta")
    with pytest.raises(ConfigError, match="leave lowercase=True out"):
        Tokenizer.load(tmp_path / "whole", lowercase=True)


def test_an_option_that_is_null_is_as_usual(tmp_path: Path) -> None:
    nothing = {"do_lower_case": None, "strip_accents": None, "tokenize_chinese_chars": None}
    bare, given = (
        Tokenizer.load(write(tmp_path / name, vocab__txt="\n".join(WORDS), **more)).encode("The cats 生活")
        for name, more in (("bare", {}), ("given", {"tokenizer_config__json": nothing}))
    )
    assert bare.ids.tolist() == given.ids.tolist()


@pytest.mark.parametrize(
    "fields", [b"\x1a\x02\x10\x01", b"\x12\x03\x1a\x01x", b"\x1a\x04\x12\x02xx"], ids=["map", "type", "broken map"]
)
def test_a_model_with_wrong_settings_is_refused(fields: bytes, trained: dict[str, Tokenizer], tmp_path: Path) -> None:
    """A character map that is a number, a type of model that is a text, and a map that is none."""
    (tmp_path / "spiece.model").write_bytes(model_file(trained["unigram"]) + fields)
    with pytest.raises(DataError, match=r"spiece.model: not a SentencePiece model"):
        Tokenizer.load(tmp_path / "spiece.model")


def test_a_model_with_a_piece_without_text(trained: dict[str, Tokenizer], tmp_path: Path) -> None:
    whole = model_file(trained["unigram"])
    (tmp_path / "without.model").write_bytes(whole)
    (tmp_path / "with.model").write_bytes(whole + b"\x0a\x02\x0a\x00")
    one, two = (Tokenizer.load(tmp_path / name) for name in ("without.model", "with.model"))
    assert two.token(two.vocab_size - 1) == ""
    for text in sample():
        assert one.encode(text).word_starts.tolist() == two.encode(text).word_starts.tolist()


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
    lines = [line for line in sample() if "==" not in line and "--" not in line]  # runs have several best segmentations
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


@pytest.mark.parametrize(
    ("name", "file", "key", "value", "message"),
    [
        ("bpe", "tokenizer_config.json", "pad_token", {"type": "AddedToken"}, "expected a text"),
        ("bpe", "tokenizer_config.json", "framing", 3, "unknown framing 3"),
        ("bpe", "tokenizer_config.json", "added_tokens_decoder", {"first": "<s>"}, "not a mapping of ids"),
        ("unigram", "tokenizer.json", "unk_id", None, "names no unk_id"),
        ("wordpiece", "tokenizer.json", "vocab", {}, r"its vocabulary lacks \[UNK\], the token for unknown words"),
    ],
)
def test_odd_fields_give_one_line(
    name: str, file: str, key: str, value: object, message: str, trained: dict[str, Tokenizer], tmp_path: Path
) -> None:
    trained[name].save(tmp_path)
    data = json.loads((tmp_path / file).read_text())
    (data if key in data or key == "added_tokens_decoder" else data["model"])[key] = value
    (tmp_path / file).write_text(json.dumps(data))
    with pytest.raises(DataError, match=message) as caught:
        Tokenizer.load(tmp_path)
    assert "\n" not in str(caught.value)


def test_two_tokens_with_one_id_are_refused(trained: dict[str, Tokenizer], tmp_path: Path) -> None:
    """Only one of them would have a name, and the other's words would be read as its."""
    for name in ("wordpiece", "bpe"):
        trained[name].save(tmp_path / name)
        data = json.loads((tmp_path / name / "tokenizer.json").read_text())
        *_, one, other = data["model"]["vocab"]
        data["model"]["vocab"][other] = data["model"]["vocab"][one]
        (tmp_path / name / "tokenizer.json").write_text(json.dumps(data))
        with pytest.raises(DataError, match="have one id, "):
            Tokenizer.load(tmp_path / name)


def test_special_tokens_take_the_space_before_them_as_the_file_says(
    trained: dict[str, Tokenizer], tmp_path: Path
) -> None:
    tokenizer = trained["bpe-deberta"]
    tokenizer.save(tmp_path)
    text, mask = "the [MASK] of", tokenizer.special.mask
    assert tokenizer.id("Ġ") not in tokenizer.encode(text).ids
    data = json.loads((tmp_path / "tokenizer.json").read_text())
    for token in data["added_tokens"]:
        token["lstrip"] = False
    (tmp_path / "tokenizer.json").write_text(json.dumps(data))
    ids = Tokenizer.load(tmp_path).encode(text).ids.tolist()
    assert ids[ids.index(mask) - 1] == tokenizer.id("Ġ")


@pytest.mark.parametrize("name", ["bpe", "wordpiece"])
def test_ids_without_a_token(name: str, trained: dict[str, Tokenizer], tmp_path: Path) -> None:
    tokenizer = trained[name]
    tokenizer.save(tmp_path)
    data = json.loads((tmp_path / "tokenizer.json").read_text())
    gap = max(data["model"]["vocab"].values()) + 5
    data["model"]["vocab"]["zebra"] = gap
    (tmp_path / "tokenizer.json").write_text(json.dumps(data))
    again = Tokenizer.load(tmp_path)
    assert again.vocab_size == gap + 1 and again.token(gap - 1) == ""
    assert again.encode("the text").word_starts.tolist() == tokenizer.encode("the text").word_starts.tolist()


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


# Long texts of which little is read.


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


@given(st.integers(0, 40), st.integers(0, 40), st.integers(2, 20))
def test_what_is_left_of_two_texts_depends_on_no_more_than_the_room(a: int, b: int, room: int) -> None:
    assert truncate(a, b, room) == truncate(min(a, room), min(b, room), room)


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
