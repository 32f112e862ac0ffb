"""A model from its name to a folder and back, what it is used for, and folders that are broken."""

from __future__ import annotations

import functools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import tokenizers
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, models

from encoderlab import inference
from encoderlab.corpus import special_tokens
from encoderlab.corpus.tokenizer import Tokenizer
from encoderlab.errors import ConfigError, DataError
from encoderlab.inference import fill_mask
from encoderlab.interchange.load import load
from encoderlab.model import Model, build, count_parameters
from encoderlab.nn.architecture import Sharing
from encoderlab.nn.heads import Classification, Tagging
from encoderlab.nn.scope import checked_documents

TEXTS = [
    "The river flows past the old mill and the bridge.",
    "A child reads a long book about rivers and ships.",
    "Ships carry grain from the mill to the harbour.",
    "The harbour is closed when the wind is strong.",
]
TINY: dict[str, Any] = {f"encoder.{name}": value for name, value in {"layers": 1, "width": 16, "heads": 2}.items()}
TINY |= {"encoder.ff_width": 24, "encoder.embed_width": 16}
NAMES = ["bert-tiny", "albert-tiny", "deberta-v2-tiny", "xlnet-tiny", "electra-tiny-generator"]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train("wordpiece", TEXTS * 10, 120)


def test_equal_seeds_give_equal_weights_whatever_else_is_built() -> None:
    one, two = build("bert-tiny", seed=3, **TINY), build("bert-tiny", seed=3, **TINY | {"encoder.layers": 2})
    assert one.config.encoder.layers == 1
    for name, parameter in one.named_parameters():
        assert torch.equal(parameter, two.get_parameter(name)), name
        assert parameter.isfinite().all(), name
    assert not torch.equal(one.words, build("bert-tiny", seed=4, **TINY).words)


@pytest.mark.parametrize("name", ["deberta-tiny", "xlnet-tiny"])
def test_a_query_stream_beside_convolution_is_refused(name: str) -> None:
    """Its queries stand side by side as chosen, so a convolution would mix tokens that are no neighbours."""
    with pytest.raises(ConfigError, match="no neighbours for a convolution; set encoder.conv to null, or mask_decoder"):
        build(name, **{"encoder.conv.kind": "span_dynamic"})


def test_a_stem_convolution_beside_permutations_is_refused() -> None:
    """It would show the tokens that are to be predicted to their neighbours."""
    with pytest.raises(ConfigError, match="would read the tokens that a query stream predicts; set encoder.stem_conv"):
        build("xlnet-tiny", **{"encoder.stem_conv": {}})


def test_truncated_weights_keep_two_deviations() -> None:
    words = build("bert-tiny").words
    assert words.abs().max() <= 0.04 and 0.0172 < words.std() < 0.0180  # 0.88 of 0.02: the normal cut at two deviations


def test_the_vocabulary_is_the_tokenizers(tokenizer: Tokenizer) -> None:
    assert build("bert-tiny", tokenizer=tokenizer, **TINY).words.shape == (tokenizer.vocab_size, 16)


@pytest.mark.parametrize(("cutoffs", "kept"), [((20000, 40000, 200000), ()), ((50, 110, 20000), (50, 110))])
def test_cut_offs_beyond_the_tokenizers_vocabulary_go(
    cutoffs: tuple[int, ...], kept: tuple[int, ...], tokenizer: Tokenizer
) -> None:
    settings = TINY | {"encoder.adaptive.cutoffs": cutoffs}
    model = build("transformer-xl-wt103-base", tokenizer=tokenizer, **settings)
    adaptive = model.config.encoder.adaptive
    assert adaptive is not None and adaptive.cutoffs == kept
    with pytest.raises(ConfigError, match=r"do not all lie below vocab 8000; set adaptive.cutoffs to \["):
        build("transformer-xl-wt103-base", **TINY | {"encoder.vocab": 8000, "encoder.adaptive.cutoffs": cutoffs})


@pytest.mark.parametrize("name", NAMES)
def test_parameters_are_counted_as_they_are(name: str) -> None:
    model = build(name, **TINY)
    counts = count_parameters(model.config)
    assert counts["total"] == sum(parameter.numel() for parameter in model.parameters())
    assert counts["encoder"] == sum(parameter.numel() for parameter in model.encoder.parameters())


@pytest.mark.parametrize("name", NAMES)
def test_saved_and_loaded_it_is_the_same(name: str, tokenizer: Tokenizer, tmp_path: Path) -> None:
    model = build(name, tokenizer=tokenizer, **TINY).eval()
    model.save(tmp_path / "model")
    again = load(tmp_path / "model")
    assert again.config == model.config
    assert again.tokenizer is not None and again.tokenizer.hash() == tokenizer.hash()
    state = again.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    np.testing.assert_array_equal(model.encode(TEXTS), again.encode(TEXTS))
    guesses = model.fill_mask("The river flows past the [MASK].", top=3)
    assert guesses == again.fill_mask("The river flows past the [MASK].", top=3)
    assert len(guesses) == 1 and len(guesses[0]) == 3
    scores = [guess.score for guess in guesses[0]]
    assert scores == sorted(scores, reverse=True) and 0 < scores[-1] and sum(scores) <= 1


@pytest.mark.parametrize("pooling", ["mean", "first", "last"])
def test_a_text_is_encoded_the_same_alone_and_among_others(pooling: Any, tokenizer: Tokenizer) -> None:
    model = build("bert-tiny", tokenizer=tokenizer, **TINY)
    together = model.encode([*TEXTS, "Ships."], pooling=pooling)
    assert together.shape == (5, 16) and together.dtype == np.float32
    alone = np.concatenate([model.encode([text], pooling=pooling) for text in [*TEXTS, "Ships."]])
    np.testing.assert_allclose(together, alone, atol=1e-5)
    assert model.encode([], pooling=pooling).shape == (0, 16)


def test_the_published_convbert_encodes_a_text_the_same_among_others(tokenizer: Tokenizer) -> None:
    """Its convolutions read padding (``mask_padding=False``); alone there is none."""
    model = build("convbert-tiny", tokenizer=tokenizer, **TINY, **{"encoder.conv.mask_padding": False})
    together = model.encode([*TEXTS, "Ships."])
    np.testing.assert_allclose(
        together, np.concatenate([model.encode([text]) for text in [*TEXTS, "Ships."]]), atol=1e-5
    )


def test_texts_are_encoded_in_parts(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is held at a time is one part, however many texts there are."""
    monkeypatch.setattr(inference, "PART", 2)
    model = build("bert-tiny", tokenizer=tokenizer, **TINY)
    read: list[str] = []
    parts = inference.encode_parts(model, (read.append(text) or text for text in [*TEXTS, "Ships."]))
    assert len(next(parts)) == 2 and len(read) == 2
    assert [len(part) for part in parts] == [2, 1] and len(read) == 5


def test_filled_texts_are_readable(tokenizer: Tokenizer) -> None:
    model = build("bert-tiny", tokenizer=tokenizer, **TINY)
    first, second = model.fill_mask("The [MASK] carry [MASK].", top=tokenizer.vocab_size)
    assert all("[MASK]" in guess.sequence and guess.token_str for guess in [*first, *second])
    special = next(guess for guess in first if guess.token == tokenizer.special.sep)
    assert special.token_str == "[SEP]" and special.sequence.startswith("the [SEP] carry [MASK]")
    chinese = Tokenizer.train("wordpiece", ["北京是中国的首都。"] * 9, 14)
    (guesses,) = build("bert-tiny", tokenizer=chinese, **TINY).fill_mask("北京是[MASK]国的首都。", top=14)
    assert next(guess.sequence for guess in guesses if guess.token_str == "中") == "北京是中国的首都。"


MIXED = ["The river isn't far, naïve café – 😀😀 ok.", "北京是中国的首都。我在Oslo工作 2019年。", "日本語 ＡＢＣ"]


def byte_fallback() -> Tokenizer:
    """A tokenizer that spells unknown characters as bytes, which are decoded run by run, as Gemma's is."""
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"▁abc北", "▁the", *(f"<0x{i:02X}>" for i in range(256))]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    backend = tokenizers.Tokenizer(models.BPE(vocabulary, [], unk_token="[UNK]", byte_fallback=True))
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return Tokenizer(backend, special_tokens.FAMILIES["bert"].special_tokens)


@functools.cache
def mixed_tokenizer(kind: Any) -> Tokenizer:
    sizes = {"wordpiece": 90, "bpe": 290, "unigram": 52}
    return byte_fallback() if kind == "bytes" else Tokenizer.train(kind, MIXED * 9, sizes[kind])


@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "unigram", "bytes"])
@given(data=st.data())
def test_a_filled_text_is_the_text_decoded_as_a_whole(kind: str, data: st.DataObject) -> None:
    """Masks anywhere among any tokens, halves of characters included."""
    text = mixed_tokenizer(kind)
    token = st.integers(0, text.vocab_size - 1)
    whole = text.encode("😀 " * 9).ids.tolist()
    ids = data.draw(st.lists(token, min_size=1, max_size=40) | st.just(whole))
    place = data.draw(st.integers(0, len(ids) - 1))
    ids[place] = text.special.mask
    filled = inference._filler(text, np.array(ids), place)
    for guess in data.draw(st.lists(token, min_size=1, max_size=20)):
        wanted = text.decode([*ids[:place], guess, *ids[place + 1 :]], skip_special=False)
        assert filled(guess) == inference._CHINESE_GAP.sub("", wanted).strip()


def test_every_mask_has_candidates_of_its_own(tokenizer: Tokenizer) -> None:
    found = build("bert-tiny", tokenizer=tokenizer, **TINY).fill_mask("The [MASK] carry [MASK].", top=2)
    assert [len(candidates) for candidates in found] == [2, 2]
    assert all(first.token != second.token and first.score >= second.score for first, second in found)


def test_rows_of_the_word_table_without_a_token_are_no_candidates(tokenizer: Tokenizer) -> None:
    model = build("bert-tiny", **TINY | {"encoder.vocab": tokenizer.vocab_size + 5})
    model.tokenizer = tokenizer
    (guesses,) = model.fill_mask("The [MASK] flows.", top=tokenizer.vocab_size + 5)
    assert sorted(guess.token for guess in guesses) == list(range(tokenizer.vocab_size))


@pytest.mark.parametrize("place", [0, 60, 119])
def test_a_mask_beyond_the_longest_row_is_found(
    place: int, tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inference, "LONGEST", 32)
    words = ["the"] * 120
    words[place] = "[MASK]"
    model = build("bert-tiny", tokenizer=tokenizer, **TINY)
    with caplog.at_level("WARNING", "encoderlab"):
        (guesses,) = model.fill_mask(" ".join(words), top=3)
    assert len(guesses) == 3 and guesses[0].sequence.count("the") in (29, 30)
    first = {0: 1, 60: 46, 119: 91}[place]
    assert caplog.messages == [f"the text has 120 tokens: only tokens {first} to {first + 29} are used"]
    words[0] = words[119] = "[MASK]"
    with pytest.raises(ConfigError, match="the masks are 119 tokens apart, expected fewer than 30"):
        model.fill_mask(" ".join(words))


def test_a_mask_beyond_the_positions_of_a_mask_decoder_is_found(tokenizer: Tokenizer) -> None:
    """The encoder reads longer rows, and so does ``encode``."""
    model = build("deberta-tiny", tokenizer=tokenizer, mask_decoder=32, **TINY)
    (guesses,) = model.fill_mask("the " * 60 + "[MASK]", top=3)
    assert len(guesses) == 3 and guesses[0].sequence.count("the") in (29, 30)
    assert inference.limit(model) == 512


def test_texts_that_are_cut_are_counted(
    tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inference, "LONGEST", 32)
    monkeypatch.setattr(inference, "PART", 2)  # counted over all parts
    model = build("bert-tiny", tokenizer=tokenizer, **TINY)
    with caplog.at_level("WARNING", "encoderlab"):
        model.encode(["the " * 30])
        model.encode(["the " * 30, "the " * 31, "the " * 99])
    assert caplog.messages == ["2 of 3 texts are longer than 30 tokens: only their beginning is used"]


def test_use_leaves_a_model_in_training_as_it_was(tokenizer: Tokenizer) -> None:
    model = build("bert-tiny", tokenizer=tokenizer, **TINY).train()
    model.encoder.embeddings.eval()  # say, frozen
    before = [part.training for part in model.modules()]
    assert np.array_equal(model.encode(TEXTS), model.encode(TEXTS))
    model.fill_mask("The [MASK] flows.")
    with pytest.raises(ConfigError):
        model.fill_mask("no mask")
    assert [part.training for part in model.modules()] == before and any(before)


def test_a_model_called_is_its_encoder(tokenizer: Tokenizer) -> None:
    model = build("deberta-tiny", tokenizer=tokenizer, **TINY).eval()
    ids, doc = torch.randint(5, 100, (2, 7)), torch.tensor([[0] * 7, [0] * 4 + [-1] * 3])
    assert torch.equal(model(ids, doc=doc).last, model.encoder(ids, doc=doc).last)


def test_the_package_shows_its_names() -> None:
    import encoderlab

    assert {"build", "load"} <= set(dir(encoderlab)) and (Path(encoderlab.__file__).parent / "py.typed").exists()


class Frame(list[str]):
    """Like a data frame of pandas: its entries are the names of its columns."""

    columns = ("text",)


def test_what_cannot_be_used_says_so(tokenizer: Tokenizer) -> None:
    wrong: Any
    model = build("bert-tiny", **TINY)
    with pytest.raises(ConfigError, match="no tokenizer"):
        model.encode(TEXTS)
    model = build("electra-tiny", tokenizer=tokenizer, **TINY)
    with pytest.raises(ConfigError, match="without LM head cannot fill masks"):
        model.fill_mask("[MASK]")
    model = build("bert-tiny", tokenizer=tokenizer, pair=False, **{**TINY, "encoder.causal": True})
    with pytest.raises(ConfigError, match="left-to-right model cannot fill masks"):
        model.fill_mask("The [MASK] of a list.")
    model = build("bert-tiny", tokenizer=tokenizer, **TINY)
    with pytest.raises(ConfigError, match=r"has no \[MASK\]"):
        model.fill_mask("The river.")
    with pytest.raises(ConfigError, match="top -1, expected at least 1"):
        model.fill_mask("The [MASK].", top=-1)
    for wrong in ([], "river"):
        with pytest.raises(ConfigError, match="expected a list of words"):
            fill_mask(model, "The [MASK].", targets=wrong)
    once, twice = (fill_mask(model, "The [MASK].", targets=["a", *more]) for more in ((), ("a",)))
    assert once == twice and len(once[0]) == 1
    with pytest.raises(ConfigError, match="got one text, expected a list"):
        model.encode(TEXTS[0])
    with pytest.raises(ConfigError, match="got nan as text 1 of 2, expected a string; convert it, or leave it out"):
        model.encode(["The river.", float("nan")])  # type: ignore[list-item]
    for wrong in (None, 3, {"text": TEXTS}, Frame(["text"])):
        for read in (model.encode, model.attention):
            name = f"{read.__name__} got {type(wrong).__name__}"
            with pytest.raises(ConfigError, match=f"{name}, expected a list of texts"):
                read(wrong)
    with pytest.raises(ConfigError, match="attention got one text, expected a list"):
        model.attention(TEXTS[0])
    with pytest.raises(ConfigError, match="attention got 1 as text 0 of 1"):
        model.attention([1])  # type: ignore[list-item]
    assert np.array_equal(model.encode(text for text in TEXTS), model.encode(TEXTS))
    for wrong in (["The river."], "The river.", np.zeros((1, 2), np.int64)):
        with pytest.raises(ConfigError, match=f"ids are of type {type(wrong).__name__}, expected a tensor"):
            model(wrong)
    with pytest.raises(ConfigError, match="load got None, expected the folder or the name of a model"):
        load(None)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="build got 3, expected the name of an architecture"):
        build(3)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"ids of shape \[7\], expected \(rows, tokens\)"):
        model(torch.arange(7))
    with pytest.raises(ConfigError, match="fill_mask got list, expected one text"):
        model.fill_mask(["The [MASK]."])  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="pooling 'max' is unknown"):
        model.encode(TEXTS, pooling="max")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="unknown model 'bert-bas'; did you mean 'bert-base'?"):
        build("bert-bas")
    with pytest.raises(ConfigError, match="needs width 16 and embed_width 8 equal"):
        build("xlnet-tiny", **TINY | {"encoder.embed_width": 8})


def test_a_task_head_on_the_same_encoder() -> None:
    model = build("bert-tiny", seed=1, **TINY)
    tuned = model.with_task(Classification(labels=3), ["a", "b", "c"], seed=2)
    assert tuned.config.labels == ("a", "b", "c") and tuned.lm is None and tuned.pair is None
    for part in ("encoder", "pooler"):
        state = getattr(tuned, part).state_dict()
        assert all(torch.equal(value, state[name]) for name, value in getattr(model, part).state_dict().items())
    assert tuned.encoder.embeddings.words is not model.encoder.embeddings.words
    again = tuned.with_task(Classification(labels=3), ["a", "b", "c"], seed=3)
    assert tuned.task is not None and again.task is not None
    assert not torch.equal(tuned.task.out.weight, again.task.out.weight), "a new task has a new head"
    assert model.with_task(Tagging(labels=2), ["O", "B"], seed=2).pooler is None
    with pytest.raises(ConfigError, match="'electra' has no pooler for summary 'pooler'"):
        build("electra-tiny", **TINY).with_task(Classification(labels=2), ["a", "b"], seed=1)


def test_a_model_of_one_segment_gives_it_to_both_texts_of_a_pair() -> None:
    encoder = build("bert-tiny", **TINY, **{"encoder.types": 1}).eval().encoder
    ids, segments = torch.tensor([[2, 7, 3, 8, 3]]), torch.tensor([[0, 0, 0, 1, 1]])
    assert torch.equal(encoder(ids, segments=segments).last, encoder(ids).last)


def test_layers_that_share_one_part_have_no_inner_blocks() -> None:
    with pytest.raises(ConfigError, match="2 inner blocks cannot share"):
        Sharing(inner=2, parts=("attention",))
    with pytest.raises(ConfigError, match="must name attention, feed_forward or both"):
        Sharing(parts=())
    shared = build("bert-tiny", **TINY | {"encoder.layers": 2, "encoder.sharing": {"parts": ["attention"]}}).encoder
    assert shared.block(0).attention is shared.block(1).attention
    assert shared.block(0).feed_forward is not shared.block(1).feed_forward


@pytest.fixture
def folder(tmp_path: Path, unrecorded: None) -> Path:
    build("bert-tiny", **TINY).save(tmp_path / "model")
    return tmp_path / "model"


def rewrite(folder: Path, **changes: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))


def break_weights(folder: Path, how: str) -> None:
    path = folder / "model.safetensors"
    if how == "truncated":
        path.write_bytes(path.read_bytes()[:-100])
        return
    weights = safetensors.torch.load_file(path)
    if how == "nan":
        weights["encoder.embeddings.words"][5, 3] = float("nan")
    elif how == "shape":
        weights["lm.bias"] = weights["lm.bias"][:-1].clone()
    elif how == "missing":
        del weights["lm.bias"]
    elif how == "extra":
        weights["lm.scale"] = torch.ones(1)
    safetensors.torch.save_file(weights, path)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("truncated", "model.safetensors"),
        ("nan", "encoder.embeddings.words has values that are not finite"),
        ("shape", r"lm.bias has shape \(30521,\), the configuration says \(30522,\)"),
        ("missing", "missing lm.bias"),
        ("extra", "unexpected lm.scale"),
    ],
)
def test_broken_weights(folder: Path, how: str, message: str) -> None:
    break_weights(folder, how)
    with pytest.raises(DataError, match=message) as caught:
        load(folder)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"version": 99}, "format version 99, this release reads 1"),
        ({"version": None}, "format version None"),
        ({"encodr": {}}, "unknown key 'encodr'; did you mean 'encoder'"),
        ({"encoder": {"vocab": 30, "position": {"kind": "absolut"}}}, "encoder.position has unknown kind 'absolut'"),
        ({"encoder": {"vocab": "many"}}, "encoder.vocab: expected a whole number"),
        ({"encoder": {"vocab": 30, "width": 17}}, "width 17 is not a multiple of heads 12"),
        ({"encoder": {}}, "key 'encoder.vocab' is missing"),
    ],
)
def test_broken_configurations(folder: Path, changes: dict[str, Any], message: str) -> None:
    rewrite(folder, **changes)
    with pytest.raises(DataError, match=message) as caught:
        load(folder)
    assert "\n" not in str(caught.value)


def test_more_layers_than_weights_are_refused_before_they_are_laid_out(folder: Path) -> None:
    encoder = json.loads((folder / "config.json").read_text())["encoder"]
    rewrite(folder, encoder=encoder | {"layers": 900})
    with pytest.raises(DataError, match="has 900 blocks of layers, but there are"):
        load(folder)


def test_missing_files(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file or folder"):
        load(tmp_path / "nowhere")
    (folder / "model.safetensors").unlink()
    with pytest.raises(DataError, match="model.safetensors: does not exist"):
        load(folder)
    (folder / "config.json").write_text("{")
    with pytest.raises(DataError, match="config.json"):
        load(folder)
    (folder / "config.json").unlink()
    with pytest.raises(DataError, match="has no config.json"):
        load(folder)


def test_a_model_is_made_on_the_device_that_is_asked_for() -> None:
    config = replace(build("bert-tiny", **TINY).config, pair=False)
    with torch.device("meta"):
        assert Model(config).words.is_meta
    assert Model(config).words.device.type == "cpu"


# Documents and masks


@pytest.mark.parametrize(
    ("doc", "words"),
    [
        ([[0, 0, 1, 1, 0, 0]], "row 0: document 0 stops and comes back at token 4"),
        ([[0, 0, 0, 1, 1, 1], [0, 0, -1, 0, 0, -1]], "row 1: document 0 stops and comes back at token 3"),
        ([[-1, 5, 2, 5, 2, 2]], "comes back at token"),
    ],
)
def test_a_document_that_comes_back_is_refused(doc: list[list[int]], words: str) -> None:
    model = build("bert-tiny", **TINY)
    torch.compiler.reset()
    for call in (model, model.encoder, torch.compile(model, backend="eager", fullgraph=True)):
        with pytest.raises(ConfigError, match=words):
            call(torch.ones(len(doc), 6, dtype=torch.long), doc=torch.tensor(doc))


@given(
    lengths=st.lists(st.integers(1, 4), min_size=1, max_size=5), numbers=st.permutations(range(5)), left=st.booleans()
)
def test_documents_in_any_order_of_numbers_are_taken(lengths: list[int], numbers: list[int], left: bool) -> None:
    """With padding on either side, and between them."""
    runs = [[numbers[i]] * length + [-1] * (i % 2) for i, length in enumerate(lengths)]
    doc = [-1] * 2 * left + [number for run in runs for number in run]
    assert torch.equal(checked_documents(torch.tensor([doc])), torch.tensor([doc]))


def test_what_is_no_mask_of_ones_and_zeros_is_refused() -> None:
    model, ids = build("bert-tiny", **TINY), torch.ones(2, 3, dtype=torch.long)
    with pytest.raises(ConfigError, match="other values than 0 and 1"):
        model(ids, attention_mask=torch.tensor([[0.0, 0.0, -1e9]] * 2))
    with pytest.raises(ConfigError, match=r"attention_mask of shape \[2, 1, 1, 3\], expected \[2, 3\]"):
        model(ids, attention_mask=torch.ones(2, 1, 1, 3))
    with pytest.raises(ConfigError, match="give one of them"):
        model(ids, attention_mask=torch.ones(2, 3), doc=torch.zeros(2, 3))
    with pytest.raises(ConfigError, match="give a mask of ones and zeros as attention_mask"):
        model(ids, doc=torch.ones(2, 3, dtype=torch.bool))


def test_packed_rows_may_be_longer_than_the_table() -> None:
    """Where each document fits, it is computed as it is alone; padding may be longer than the table too."""
    model = build("bert-tiny", **TINY, **{"encoder.position.length": 8}).eval()
    lengths, ids = (8, 3, 6), torch.randint(0, 99, (1, 30), generator=torch.Generator().manual_seed(1))
    doc = torch.tensor([[n for n, length in enumerate(lengths) for _ in range(length)] + [-1] * 13])
    with torch.no_grad():
        packed, start = model(ids, doc=doc).last[0], 0
        for length in lengths:
            alone = model(ids[:, start : start + length]).last[0]
            torch.testing.assert_close(packed[start : start + length], alone, atol=1e-5, rtol=1e-5)
            start += length
    for doc, length in ((torch.zeros(1, 30), 30), (torch.arange(30)[None] // 9, 9), (None, 30)):
        with pytest.raises(ConfigError, match=f"of {length} tokens exceed the model's 8 positions; shorten"):
            model(ids, doc=doc)
    with pytest.raises(ConfigError, match="of 30 tokens exceed"):
        model(ids, attention_mask=torch.ones(1, 30))


def test_positions_under_a_mask_are_counted_from_the_tokenizers_padding() -> None:
    """As ``transformers`` counts them in the converted folder, whatever ids the tokenizer has."""
    tokenizer = Tokenizer.train("wordpiece", TEXTS * 10, 120)
    model = build("roberta-tiny", tokenizer=tokenizer, **TINY | {"encoder.embed_width": 16}).eval()
    assert tokenizer.special.pad == 0 and model.encoder.embeddings.offset == 2
    ids = torch.randint(6, 99, (1, 9), generator=torch.Generator().manual_seed(1))
    padded, mask = torch.cat([torch.zeros(1, 4, dtype=torch.long), ids], dim=1), torch.tensor([[0] * 4 + [1] * 9])
    with torch.no_grad():
        torch.testing.assert_close(model(padded, attention_mask=mask).last[:, 4:], model(ids).last)


def test_a_model_is_traced_without_looking_at_its_input() -> None:
    model = build("bert-tiny", **TINY).eval()

    class Last(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return model(ids, attention_mask=mask).last

    ids, mask = torch.ones(2, 5, dtype=torch.long), torch.tensor([[1, 1, 1, 0, 0], [0, 1, 1, 1, 1]])
    program = torch.export.export(Last(), (ids, mask))
    with torch.no_grad():
        torch.testing.assert_close(program.module()(ids, mask), model(ids, attention_mask=mask).last)
