"""Existing vocabularies: files and folders of other libraries, broken files, odd fields."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import pytest
import tokenizers
from tokenizers import processors

from encoderlab.corpus import chunks
from encoderlab.corpus.tokenizer import Tokenizer
from encoderlab.corpus.vocabularies import wordpiece
from encoderlab.errors import ConfigError, DataError
from tests.corpus.trained import model_file, sample, write

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


@pytest.mark.parametrize("place", ["tokenizer_config__json", "config__json"])
def test_a_vocab_txt_for_other_words_is_refused(place: str, tmp_path: Path) -> None:
    """BERT's rules would cut Japanese into other words, and most of them would be unknown."""
    folder = write(tmp_path, vocab__txt="\n".join(WORDS[:8]), **{place: {"tokenizer_class": "BertJapaneseTokenizer"}})
    with pytest.raises(DataError, match="vocab.txt: BertJapaneseTokenizer is not implemented"):
        Tokenizer.load(folder)


@pytest.mark.parametrize("kind", ["BertTokenizer", "ElectraTokenizerFast", "PreTrainedTokenizerFast"])
@pytest.mark.parametrize(
    "options",
    [{"do_lower_case": False}, {"do_lower_case": True, "strip_accents": False}, {"tokenize_chinese_chars": False}],
)
def test_settings_of_berts_classes_come_before_tokenizer_json(kind: str, options: dict, tmp_path: Path) -> None:
    """As in ``transformers``, whose class without a family takes the file as it is."""
    transformers = pytest.importorskip("transformers")
    words = [*WORDS[:8], "The", "é", "e", "中", "国", "中国"]
    wordpiece(words, lowercase=True).save(str(tmp_path / "tokenizer.json"))
    special = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
    settings = {"do_lower_case": True, "tokenizer_class": kind} | options | special
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    text = "The cats é 中国"
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)(text, add_special_tokens=False)["input_ids"]
    ours = Tokenizer.load(tmp_path)
    assert ours.encode(text).ids.tolist() == theirs
    ours.save(tmp_path / "ours")
    assert Tokenizer.load(tmp_path / "ours").encode(text).ids.tolist() == theirs


@pytest.mark.parametrize(
    ("family", "kind", "changed"),
    [
        ("bert", None, True),
        ("bert", "BertTokenizer", True),
        ("distilbert", "DistilBertTokenizerFast", True),
        ("convbert", None, True),
        ("convbert", "ConvBertTokenizer", False),
        ("modernbert", "BertTokenizer", False),
    ],
)
def test_defaults_of_berts_classes_come_before_tokenizer_json(
    family: str, kind: str | None, changed: bool, tmp_path: Path
) -> None:
    """As in ``transformers``, whose class of ConvBERT, and every class with ModernBERT, takes the file as it is."""
    transformers = pytest.importorskip("transformers")
    words = [*WORDS[:8], "The", "é", "e", "中", "国", "中国"]
    wordpiece(words, lowercase=False, strip_accents=True, chinese=False).save(str(tmp_path / "tokenizer.json"))
    special = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
    settings = special | {"strip_accents": None} | ({} if kind is None else {"tokenizer_class": kind})
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": family}))
    text = "The cats é 中国"
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)(text, add_special_tokens=False)["input_ids"]
    ids = Tokenizer.load(tmp_path).encode(text).ids.tolist()
    assert ids == theirs
    assert (words.index("中国") not in ids) == (words.index("The") not in ids) == changed


def byte_vocabulary(special: list[str]) -> dict[str, int]:
    letters = sorted(chunks.tokenizers.pre_tokenizers.ByteLevel.alphabet())
    return {token: index for index, token in enumerate([*special, *letters, "Ġt", "he", "Ġthe"])}


MERGES = "#version: 0.2\nĠ t\nh e\nĠt he\n"


def test_vocab_json_with_merges_as_roberta_and_deberta_have_them(tmp_path: Path) -> None:
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


def test_a_model_with_other_spaces_is_refused(trained: dict[str, Tokenizer], tmp_path: Path) -> None:
    """Other tokens would be found; pieces of several words need such pieces, not only their setting."""
    whole, path = model_file(trained["unigram"]), tmp_path / "spiece.model"
    several = b"\x12\x03\xb0\x01\x00"  # trainer_spec: split_by_whitespace false
    path.write_bytes(whole + b"\x12\x03\xc0\x01\x01")
    with pytest.raises(DataError, match=r"spiece.model: treat_whitespace_as_suffix is not supported"):
        Tokenizer.load(path)
    path.write_bytes(whole + several)
    assert Tokenizer.load(path).encode("the text").ids.tolist() == trained["unigram"].encode("the text").ids.tolist()
    piece = "a▁b".encode()
    path.write_bytes(whole + several + bytes([0x0A, len(piece) + 2, 0x0A, len(piece)]) + piece)
    with pytest.raises(DataError, match=r"spiece.model: split_by_whitespace false, .* is not supported"):
        Tokenizer.load(path)


def test_a_model_with_a_piece_without_text(trained: dict[str, Tokenizer], tmp_path: Path) -> None:
    whole = model_file(trained["unigram"])
    (tmp_path / "without.model").write_bytes(whole)
    (tmp_path / "with.model").write_bytes(whole + b"\x0a\x02\x0a\x00")
    one, two = (Tokenizer.load(tmp_path / name) for name in ("without.model", "with.model"))
    assert two.token(two.vocab_size - 1) == ""
    for text in sample():
        assert one.encode(text).word_starts.tolist() == two.encode(text).word_starts.tolist()


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


@pytest.mark.parametrize("nested", [False, True])
def test_special_tokens_that_a_template_does_not_define_give_one_line(
    nested: bool, trained: dict[str, Tokenizer], tmp_path: Path
) -> None:
    trained["wordpiece"].save(tmp_path)
    data = json.loads((tmp_path / "tokenizer.json").read_text())
    assert data["post_processor"]["type"] == "TemplateProcessing"
    del data["post_processor"]["special_tokens"]["[SEP]"]
    if nested:
        data["post_processor"] = {"type": "Sequence", "processors": [data["post_processor"]]}
    (tmp_path / "tokenizer.json").write_text(json.dumps(data))
    with pytest.raises(DataError, match=r"tokenizer\.json: its post_processor does not define \[SEP\]; write"):
        Tokenizer.load(tmp_path)


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
    backend = trained["wordpiece"].backend
    data = json.loads(backend.to_str())
    words = data["model"]["vocab"]
    words["xyz"] = len(words) + 1  # the library gives the id after as many tokens as there are
    gap = tokenizers.Tokenizer.from_str(json.dumps(data))
    gap.add_tokens(["<new>"])
    with pytest.raises(DataError, match="'<new>' and 'xyz' have one id|'xyz' and '<new>' have one id"):
        Tokenizer(gap, trained["wordpiece"].special_tokens)


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


@pytest.mark.parametrize("stated", [False, True])
def test_flags_of_the_settings_come_before_tokenizer_json(
    stated: bool, trained: dict[str, Tokenizer], tmp_path: Path
) -> None:
    """As in ``transformers``, if there are any: a name alone states none."""
    tokenizer = trained["bpe-deberta"]
    tokenizer.save(tmp_path)
    text, mask = "the [MASK] of", tokenizer.special.mask
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False) | {"special": True}
    path = tmp_path / "tokenizer_config.json"
    settings = {"added_tokens_decoder": {str(mask): {"content": "[MASK]"} | (flags if stated else {})}}
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))
    again = Tokenizer.load(tmp_path)
    assert (tokenizer.id("Ġ") in again.encode(text).ids) == stated
    assert (again.hash() == tokenizer.hash()) != stated
    again.save(tmp_path / "again")
    assert Tokenizer.load(tmp_path / "again").hash() == again.hash()


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


@pytest.mark.parametrize("listed", [False, True])
def test_added_words_are_found_in_the_text_as_it_is_read(listed: bool, tmp_path: Path) -> None:
    """Lower-cased, unless they are special; their flags count."""
    names = {"river": 8, "<b>": 9}
    flags = {"lstrip": False, "rstrip": False, "normalized": True, "single_word": True, "special": False}
    special = flags | {"content": "<b>", "normalized": False, "special": True}
    files = {
        "tokenizer_config": {
            "do_lower_case": True,
            "added_tokens_decoder": {"9": special, "8": flags | {"content": "river"}},
        }
        if listed
        else {"do_lower_case": True, "additional_special_tokens": ["<b>"]},
        "added_tokens": {} if listed else names,
    }
    place = write(
        tmp_path / "a",
        vocab__txt="\n".join(WORDS[:8]) + "\n",
        **{f"{k}__json": json.dumps(v) for k, v in files.items()},
    )
    tokenizer = Tokenizer.load(place)
    assert tokenizer.encode("The River <b> cats").ids.tolist() == [5, 8, 9, 6, 7]
    assert (tokenizer.encode("rivers").ids[0] == 8) != listed
    assert tokenizer.special_tokens.others == ("<b>",) and tokenizer.encode("<B>").ids[0] != 9
    tokenizer.save(tmp_path / "b")
    assert Tokenizer.load(tmp_path / "b").encode("The River <b>").ids.tolist() == [5, 8, 9]


@pytest.mark.parametrize(
    ("frame", "said"),
    [("[CLS] $A [SEP]", None), ("[CLS] $A", r"puts \[CLS\] around a text, and"), (None, "puts no special tokens")],
)
def test_a_model_whose_rows_have_other_special_tokens_is_said(
    frame: str | None, said: str | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    backend = wordpiece(WORDS[:8], lowercase=True)
    special = [("[CLS]", 2), ("[SEP]", 3)]
    if frame is not None:
        backend.post_processor = processors.TemplateProcessing(single=frame, pair=f"{frame} $B", special_tokens=special)
    backend.enable_padding(length=9)
    backend.enable_truncation(1)
    kind = {"tokenizer_class": "PreTrainedTokenizerFast"}
    place = write(tmp_path, tokenizer__json=backend.to_str(), tokenizer_config__json=json.dumps(kind))
    with caplog.at_level("WARNING", "encoderlab"):
        Tokenizer.load(place)
        assert not caplog.messages  # a vocabulary alone has no weights that know other rows
        write(tmp_path, config__json=json.dumps({"model_type": "bert"}))
        assert Tokenizer.load(place).frame([5])[0].tolist() == [2, 5, 3]
    assert len(caplog.messages) == (said is not None) and all(re.search(said or "", text) for text in caplog.messages)


@pytest.mark.parametrize("kind", ["RobertaTokenizer", "RobertaTokenizerFast", "PreTrainedTokenizerFast"])
@pytest.mark.parametrize("asked", [None, False, True])
def test_the_space_before_a_text_is_that_of_transformers(
    trained: dict[str, Tokenizer], kind: str, asked: bool | None, tmp_path: Path
) -> None:
    data = json.loads(trained["bpe"].backend.to_str())
    config = json.dumps({"tokenizer_class": kind} | ({} if asked is None else {"add_prefix_space": asked}))
    for spaced in (False, True):
        data["pre_tokenizer"]["add_prefix_space"] = spaced
        place = write(tmp_path / str(spaced), tokenizer__json=json.dumps(data), tokenizer_config__json=config)
        expected = spaced if kind == "PreTrainedTokenizerFast" else asked is True
        tokenizer = Tokenizer.load(place)
        assert tokenizer.decode(tokenizer.encode("xa").ids) == (" xa" if expected else "xa")
        tokenizer.save(tmp_path / "again")
        again = Tokenizer.load(tmp_path / "again")
        assert again.hash() == tokenizer.hash() and again.options == tokenizer.options
    model = data["model"]
    merges = "\n".join(" ".join(pair) for pair in model["merges"])
    words = json.dumps(model["vocab"])
    place = write(tmp_path / "old", vocab__json=words, merges__txt=merges, tokenizer_config__json=config)
    assert Tokenizer.load(place).encode("xa").ids[0] == trained["bpe"].encode(" xa" if asked else "xa").ids[0]


def test_added_words_of_sentencepiece_leave_no_mark_of_a_space(trained: dict[str, Tokenizer], tmp_path: Path) -> None:
    place = write(tmp_path / "a", config__json={"model_type": "albert"})
    (place / "spiece.model").write_bytes(model_file(trained["unigram"]))
    before = Tokenizer.load(place)
    write(place, added_tokens__json={"river": before.vocab_size})
    ids = Tokenizer.load(place).encode("a river").ids.tolist()
    assert ids == [*before.encode("a").ids.tolist(), before.vocab_size]
