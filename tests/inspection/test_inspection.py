"""What heads read, against attention computed by hand; the numbers made of it; the verb and its files."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from encoderlab.errors import ConfigError, DataError
from encoderlab.inspection import folder
from encoderlab.inspection.attention import Attended, attention
from encoderlab.inspection.heads import importance
from encoderlab.inspection.language import batches_of, objective_of
from encoderlab.inspection.neighbours import nearest
from encoderlab.inspection.patterns import Patterns
from encoderlab.inspection.probe import probe
from encoderlab.inspection.texts import sentences
from encoderlab.tasks.data.infer import Given, task_of
from encoderlab.tasks.data.splits import hold_out
from encoderlab.tasks.scoring.linear import LogisticRegression
from tests.tasks.tiny import model
from tests.terminal import answer, messages

FAMILIES = (
    "bert-tiny roberta-tiny albert-tiny distilbert-tiny electra-tiny convbert-tiny deberta-tiny deberta-v2-tiny "
    "deberta-v3-tiny xlnet-tiny transformer-xl-tiny modernbert-tiny"
).split()
TEXT = "the cat sat on the mat and the dog runs under it ."


def by_hand(network, layer: int, states) -> np.ndarray:
    """softmax(scores) of one row without padding: what the encoder gives before the mask, and the mask."""
    scores = network.encoder.attention_scores(states, layer)[0].double()
    length = scores.shape[-1]
    away = torch.arange(length)[:, None] - torch.arange(length)
    config = network.config.encoder
    hidden = torch.zeros(length, length, dtype=torch.bool)
    if config.causal:
        hidden |= away < 0
    if not config.sees_all(layer):
        hidden |= away.abs() > config.local.reach
    return scores.masked_fill(hidden, -torch.inf).softmax(-1).numpy()


@pytest.mark.parametrize("family", FAMILIES)
def test_attention_is_that_computed_by_hand(family: str) -> None:
    network = model(family).eval()
    (read,) = attention(network, [TEXT])
    ids = torch.tensor([[network.tokenizer.id(token) for token in read.tokens]])
    text = network.tokenizer.encode(TEXT).ids
    framed, segments = network.tokenizer.frame(text, max_length=64)
    if network.config.encoder.causal:  # was trained without tokens around a text
        framed, segments = [network.tokenizer.special.cls, *text], np.zeros(len(text) + 1)
    assert ids[0].tolist() == list(framed) and (read.words >= 0).sum() == len(text)
    with torch.no_grad():
        states = network.encoder(ids, segments=torch.as_tensor(np.asarray(segments, np.int64))[None])
        heads = network.config.encoder.attention_heads
        for layer, weights in enumerate(read.layers):
            assert np.abs(weights[:heads] - by_hand(network, layer, states)).max() < 1e-5
            assert weights.shape[1:] == (len(read.tokens),) * 2
            assert (len(weights) > heads) == (family == "convbert-tiny")


def test_a_model_gives_its_attention() -> None:
    network = model().eval()
    (read,), (same,) = network.attention([TEXT]), attention(network, [TEXT])
    assert read.tokens == same.tokens and len(read.layers) == network.encoder.depth
    assert all(np.array_equal(one, other) for one, other in zip(read.layers, same.layers, strict=True))


def test_memory_answers_and_does_not_ask() -> None:
    network = model("transformer-xl-tiny").eval()
    (whole,), (parted,) = attention(network, [TEXT]), attention(network, [TEXT], memory=5)
    assert parted.tokens == whole.tokens and parted.memory == 5
    for one, other in zip(whole.layers, parted.layers, strict=True):
        np.testing.assert_allclose(one[:, 5:], other, atol=1e-5)
    with pytest.raises(ConfigError, match="takes all of text 1"):
        attention(network, ["the cat"], memory=9)
    with pytest.raises(ConfigError, match="only left-to-right models"):
        attention(model(), [TEXT], memory=3)
    with pytest.raises(ConfigError, match="text 2 has no token"):
        attention(model(), [TEXT, " "])


def seen(weights: np.ndarray, words: list[int], tokens: str) -> Attended:
    return Attended(tokens=tuple(tokens.split()), words=np.array(words), memory=0, layers=(weights[None],))


def test_numbers_of_heads_that_are_known() -> None:
    tokens, words = "[CLS] the un ##happy the [SEP]", [-1, 0, 1, 1, 2, -1]
    after = np.eye(6, k=1)
    after[5, 5] = 1
    counted = Patterns(1, 1, 1)
    counted.add(seen(after, words, tokens), heads=[1, -1, 1])
    shares = {name: float(x[0, 0]) for name, x in counted.shares().items()}
    # The queries are the four tokens of words: the, un, ##happy, the.
    assert shares == {
        "itself": 0, "previous": 0, "next": 1, "first": 0, "special": 0.25, "word": 0.25, "same": 0,
        "head": 0.25, "dependents": 0.25,
    }  # fmt: skip
    assert counted.summary()["entropy"] == [[0.0]] and counted.summary()["distance"] == [[1.0]]
    alike = Patterns(1, 1, 1)
    alike.add(seen(np.full((6, 6), 1 / 6), words, tokens))
    assert alike.summary()["entropy"][0][0] == pytest.approx(np.log(6))
    assert {name: float(x[0, 0]) for name, x in alike.shares().items()} == pytest.approx(
        {"itself": 1 / 6, "previous": 1 / 6, "next": 1 / 6, "first": 1 / 6, "special": 2 / 6, "word": 1 / 12,
         "same": 1 / 12}
    )  # fmt: skip
    assert alike.diagonal(0, 1) is None and alike.summary()["diagonal"] == [[None]]  # all tokens are within 4 of a word
    assert np.allclose(alike.average()[0, 0, :6, :6], 1 / 6) and not alike.average()[0, 0, 6:].any()


def test_diagonal_concentration_is_empty_where_nothing_far_is_read() -> None:
    counted, words, tokens = Patterns(1, 2, 1), [-1, 0, 1, 2, 3, 4, 5, -1], "[CLS] a b c d e f [SEP]"
    weights = np.stack([np.full((8, 8), 1 / 8), np.eye(8)])  # a head that attends, and a kernel
    counted.add(replace(seen(np.eye(8), words, tokens), layers=(weights,)))
    # Of the 8 tokens, 6, 7, 8, 8, 7 and 6 are within 4 of the words.
    assert counted.summary()["diagonal"] == [[pytest.approx(42 / 6), None]]
    assert counted.diagonal(0, 1) == pytest.approx(42 / 6) and counted.diagonal(1, 2) is None


def test_texts(tmp_path: Path) -> None:
    assert [s.text for s in sentences("some words", 9)] == ["some words"]
    (tmp_path / "t.txt").write_text("one\n\ntwo\nthree\n")
    assert [s.text for s in sentences(str(tmp_path / "t.txt"), 2)] == ["one", "two"]
    lines = ["1 the _ _ _ _ 2 det _ _", "2-3 cats _ _ _ _ _ _ _ _", "2 cat _ _ _ _ 0 root _ _"]
    rows = "# text\n" + "".join(line.replace(" ", "\t") + "\n" for line in lines)
    (tmp_path / "t.conllu").write_text(rows)
    (sentence,) = sentences(str(tmp_path / "t.conllu"), 5)
    assert sentence.text == "the cat" and sentence.heads == (1, -1)
    (tmp_path / "t.conllu").write_text(rows.replace("\t2\tdet", "\t7\tdet"))
    with pytest.raises(DataError, match="depends on word 7 of 2"):
        sentences(str(tmp_path / "t.conllu"), 5)
    (tmp_path / "t.conllu").write_text(rows.replace("\tcat\t", "\t10\u00a0000\t"))
    (sentence,) = sentences(str(tmp_path / "t.conllu"), 5)
    assert sentence.text == "the 10000"
    (tmp_path / "t.conllu").write_text(rows.replace("\tcat\t", "\t\t"))
    with pytest.raises(DataError, match=r"t.conllu, line 4: the word is '', expected letters"):
        sentences(str(tmp_path / "t.conllu"), 5)
    (tmp_path / "t.conllu").write_text("1\tthe\n")
    with pytest.raises(DataError, match=r"t.conllu, line 1: has 2 columns"):
        sentences(str(tmp_path / "t.conllu"), 5)
    for text in (" ", ""):
        with pytest.raises(DataError, match="the text is empty"):
            sentences(text, 1)
    (tmp_path / "t.csv").write_text("text,label\nthe cat,1\n")
    for name, kind in (("t.csv", "table"), ("", "folder")):
        with pytest.raises(DataError, match=f"is a {kind}; give a file with one text per line"):
            sentences(str(tmp_path / name), 5)


def test_a_tree_of_one_word_has_one_word() -> None:
    """Without white space the tokenizer's words are taken, here three, of which the tree knows one."""
    (read,) = attention(model(), ["don't"])
    assert read.words.tolist() == [-1, 0, 0, 0, 1, 2, -1]
    counted = Patterns(len(read.layers), len(read.layers[0]), len(read.layers[0]))
    counted.add(read, heads=[-1])
    shares = counted.shares()
    assert counted.parsed == 5 and not shares["head"].any() and not shares["dependents"].any()
    others = 1 - sum(shares[name] for name in ("itself", "special"))
    np.testing.assert_allclose(shares["word"], others, atol=1e-6)


def test_texts_that_are_too_long_are_counted_once_and_one_without_tokens_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model(positions=16).save(tmp_path / "model")
    words = "inspect", tmp_path / "model", tmp_path / "texts.txt", "--out", tmp_path / "seen"
    (tmp_path / "texts.txt").write_text("the cat\n" + "the " * 30 + "\n" + "cat " * 30 + "\n")
    said = messages(capsys, 0, *words)
    assert said.count("longer than") == 1 and "2 of 3 texts are longer than 16 tokens" in said
    (tmp_path / "texts.txt").write_text("the cat\n\u200b\n")
    assert "text 2 has no token" in messages(capsys, 2, *words)


def test_nearest_words() -> None:
    network = model()
    with torch.no_grad():
        table = network.words
        cat, dog = network.tokenizer.id("cat"), network.tokenizer.id("dog")
        table[dog] = 2 * table[cat]
    near = nearest(network, ["cat", "cat", "nowhere"], count=3)
    assert list(near) == ["cat"] and near["cat"][0][0] == "dog" and near["cat"][0][1] == pytest.approx(1)
    assert len(near["cat"]) == 3


def test_the_verb_writes_page_numbers_and_arrays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("bert-tiny", "convbert-tiny"):
        model(name).save(tmp_path / name)
    file = tmp_path / "texts.txt"
    file.write_text("the cat sat </script><b>on</b> the mat\nthe dog runs\n")
    out = tmp_path / "seen"
    places = tmp_path / "bert-tiny", tmp_path / "convbert-tiny"
    found, _ = answer(capsys, "inspect", places[0], file, "--against", places[1], "--out", out)
    record = json.loads((out / "inspect.json").read_text())
    assert found["texts"] == 2 and [m["model"] for m in record["models"]] == ["bert-tiny", "convbert-tiny"]
    assert record["models"][1]["heads"]["convolution"] > 0
    assert set(record["models"][1]["diagonal_concentration"]) == {"attention heads", "convolution heads"}
    with np.load(out / "attention.npz") as arrays:
        network = model("bert-tiny")
        (read,) = attention(network, [file.read_text().splitlines()[0]])
        assert arrays["layer_1"].shape == read.layers[1].shape
        np.testing.assert_allclose(arrays["layer_1"], read.layers[1], atol=1e-6)
        assert "text_1_layer_0" in arrays
    page = (out / "index.html").read_text()
    assert "{{" not in page and page.count("</script>") == 3
    data = re.search(r'id="data">(.*?)</script>', page, re.S)
    assert data is not None and len(json.loads(data[1])["models"]) == 2
    assert (out / "attention-2.npz").is_file()
    answer(capsys, "inspect", places[0], file, "--out", out)
    assert not (out / "attention-2.npz").exists()


def test_models_in_folders_of_one_name_are_told_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in ("masks/seed-1", "spans/seed-1/model"):
        model().save(tmp_path / place)
    monkeypatch.chdir(tmp_path / "masks" / "seed-1")
    for place, other, named in (
        (".", "../../spans/seed-1/model", ["masks/seed-1", "spans/seed-1"]),
        (".", "../seed-1", ["seed-1", "seed-1"]),
    ):
        found, _ = answer(capsys, "inspect", place, "the cat", "--against", other, "--out", tmp_path / "seen")
        assert [one["model"] for one in found["models"]] == named
        strongest = found["models"][0]["strongest"]
        assert "next" in strongest and "same" not in strongest  # no word occurs twice


@pytest.mark.parametrize("family", ["albert-tiny", "convbert-tiny"])
def test_the_importance_of_heads_stands_on_the_page(
    family: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    network = model(family)
    network.save(tmp_path / "m")
    file = tmp_path / "texts.txt"
    file.write_text("the cat sat on the mat and the dog runs under it .\n" * 40)
    objective = objective_of(network) if network.lm is not None else None
    found, printed = answer(capsys, "inspect", tmp_path / "m", file, "--texts", "8", "--out", tmp_path / "seen")
    numbers = found["models"][0]["by_head"]
    if objective is None:  # a discriminator without generator
        assert "importance" not in numbers and "no importance of heads" in printed
        return
    scores = importance(objective, network.encoder, batches_of(objective, network, str(file), 8))
    wanted = np.repeat(scores, network.encoder.depth, axis=0) if len(scores) == 1 else scores  # shared layers
    np.testing.assert_allclose(numbers["importance"], wanted, rtol=1e-6)
    assert '"importance"' in (tmp_path / "seen" / "index.html").read_text()


def test_the_importance_of_heads_follows_from_one_long_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model().save(tmp_path / "m")
    (tmp_path / "text.txt").write_text("the cat sat on the mat and the dog runs under it . " * 40 + "\n")
    found, _ = answer(capsys, "inspect", tmp_path / "m", tmp_path / "text.txt", "--out", tmp_path / "seen")
    assert np.all(found["models"][0]["by_head"]["importance"])


def test_the_average_is_left_out_of_short_texts() -> None:
    counted = Patterns(1, 1, 1)
    counted.add(seen(np.eye(2), [0, 1], "a b"))
    counted.add(seen(np.full((3, 3), 1 / 3), [0, 1, 2], "a b c"))
    mean = counted.average()[0, 0]
    assert mean[0, 0] == pytest.approx((1 + 1 / 3) / 2) and mean[2, 2] == pytest.approx(1 / 3)
    assert folder.SHOWN >= 1


# Probes


def tagged(count: int, seed: int) -> str:
    """Sentences whose tags follow from the word: colours, numbers, and others."""
    rng = np.random.default_rng(seed)
    lines = []
    for _ in range(count):
        for word in rng.choice(["red", "blue", "one", "two", "cat", "mat", "the", "runs"], 6):
            kind = "colour" if word in ("red", "blue") else "number" if word in ("one", "two") else "other"
            lines.append(f"{word}\t{kind}\tO")
        lines.append("")
    return "\n".join(lines) + "\n"


def test_a_probe_finds_what_the_embeddings_tell(tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text(tagged(120, 0))
    task, _ = task_of(tmp_path / "words.txt", Given(form="tagging", label="1"))
    train, dev = hold_out(task.read([tmp_path / "words.txt"], "train"))
    network = model().eval()
    found = probe(network, task, train, dev)
    assert found.measure == "accuracy" and found.labels == 3 and len(found.layers) == network.encoder.depth + 1
    assert found.layers[0]["accuracy"] == 1.0 == found.baselines["dictionary"]["accuracy"]
    assert found.baselines["majority"]["accuracy"] < 0.7
    # By hand: the same regression on the states of first tokens, one sentence at a time.
    parts = []
    for split in (train, dev):
        states, tags = [], []
        for example in split.examples:
            ids, segments = network.tokenizer.frame(network.tokenizer.encode(" ".join(example.words)).ids)
            with torch.no_grad():
                out = network.encoder(
                    torch.as_tensor(ids)[None].long(), segments=torch.as_tensor(segments)[None].long()
                )
            states.append(out.layers[2][0, 1:-1].double().numpy())
            tags += example.tags
        parts.append((np.concatenate(states), np.array(tags)))
    (x, own), (y, gold) = parts
    names = sorted(set(own))
    fitted = LogisticRegression(3).fit((x - x.mean(0)) / x.std(0), np.searchsorted(names, own))
    guess = np.array(names)[fitted.scores((y - x.mean(0)) / x.std(0)).argmax(1)]
    assert found.layers[2]["accuracy"] == pytest.approx((guess == gold).mean(), abs=0.01)


def test_probes_stand_on_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model().save(tmp_path / "model")
    (tmp_path / "words.txt").write_text(tagged(60, 1))
    words = ("inspect", tmp_path / "model", "the cat sat", "--out", tmp_path / "seen")
    found, said = answer(capsys, *words, "--probe", f"{tmp_path / 'words.txt'}:1")
    (one,) = found["models"][0]["probes"]
    assert one["task"] == "words, column 1" and len(one["layers"]) == 3 and "probe of words, column 1" in said
    page = (tmp_path / "seen/index.html").read_text()
    assert "What each layer knows about tags" in page and "words, column 1" in page
    assert "What each layer knows about tags" not in folder.page([])
    assert "no such file" in messages(capsys, 2, *words, "--probe", "none.txt")
    assert "give the folder" in messages(capsys, 2, *words, "--probe", "conll2003")
    assert "sst2 is classification" in messages(capsys, 2, *words, "--probe", "sst2", "--data", tmp_path)
    assert "leave it out" in messages(capsys, 2, *words, "--data", tmp_path)
    (tmp_path / "untagged.txt").write_text("the cat\nthe dog\n")
    told = messages(capsys, 3, *words, "--probe", tmp_path / "untagged.txt")
    assert "--dev (options of finetune; give a file that needs none)" in told
