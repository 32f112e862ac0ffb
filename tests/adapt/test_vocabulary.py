"""Added words and new vocabularies."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from encoderlab.adapt import measure, vocabulary
from encoderlab.corpus.tokenizer import Tokenizer
from encoderlab.errors import ConfigError
from encoderlab.interchange.load import load
from encoderlab.model import build
from tests.adapt.small import TINY, varied, words_of
from tests.terminal import answer


def test_a_new_vocabulary_keeps_what_is_shared(place: Path, tmp_path: Path) -> None:
    old = load(place / "model")
    sample = [*(place / "law.txt").read_text().split("\n\n")]
    new = vocabulary.retrain(old.tokenizer, sample, "bert")
    assert new.kind == "wordpiece" and new.special == old.tokenizer.special
    made = vocabulary.rows(old.tokenizer, new, sample, neighbours=True)
    assert made.kept + made.neighbours + made.pieces == new.vocab_size and made.neighbours > 0
    found = vocabulary.transplant(old, new, made)
    for index, token in enumerate(new.tokens):
        if (before := old.tokenizer.id(token)) is not None:
            assert torch.equal(found.words[index], old.words[before])
            assert found.lm.bias[index] == old.lm.bias[before]
    for ids, weights in made.parts:
        assert len(ids) == len(weights) <= 1000 and abs(weights.sum() - 1) < 1e-6 and (weights >= 0).all()
    rest = {name for name in old.state_dict() if name not in vocabulary.TABLES}
    assert all(torch.equal(old.state_dict()[name], found.state_dict()[name]) for name in rest)


def test_fewer_words_than_asked_for_are_said(place: Path, tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.setattr(measure, "PIECES", 2)
    found, said = answer(capsys, *words_of(place, tmp_path / "out", "--vocabulary", "extend:5000"))
    added = found["vocabulary"]["tokens"][1] - found["vocabulary"]["tokens"][0]
    assert f"the text has {added} frequent words that the vocabulary lacks, not 5,000" in said


def test_an_added_word_is_the_mean_of_its_pieces(place: Path) -> None:
    old = load(place / "model")
    sample = (place / "law.txt").read_text().split("\n\n")
    new = vocabulary.extend(old.tokenizer, sample, 3)
    made = vocabulary.rows(old.tokenizer, new, sample, neighbours=False)
    found = vocabulary.transplant(old, new, made)
    word = new.token(new.vocab_size - 1)
    pieces = old.tokenizer.encode(word).ids
    assert len(pieces) > 1 and new.encode(word).ids.tolist() == [new.vocab_size - 1]
    torch.testing.assert_close(found.words[-1], old.words[torch.from_numpy(pieces).long()].mean(0))
    assert new.encode("the river").ids.tolist() == old.tokenizer.encode("the river").ids.tolist()


def test_added_words_leave_the_ids_of_added_tokens_alone(place: Path, tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.setattr(measure, "PIECES", 2)
    model = load(place / "model")
    size = model.tokenizer.vocab_size
    model.tokenizer.backend.add_tokens(["[DRUG]", "[USER]"])
    tokenizer = Tokenizer(model.tokenizer.backend, model.tokenizer.special_tokens)
    build("bert-tiny", tokenizer=tokenizer, **TINY).save(tmp_path / "model")
    words = words_of(place, tmp_path / "out", "--vocabulary", "extend:3")
    words[1] = str(tmp_path / "model")
    found, _ = answer(capsys, *words)
    new = load(tmp_path / "out")
    assert new.tokenizer.tokens[size : size + 2] == ("[DRUG]", "[USER]") and new.tokenizer.vocab_size == size + 5
    assert found["vocabulary"]["kept"] == size + 2 and len(set(new.tokenizer.tokens)) == size + 5
    assert found["parameters"] == sum(parameter.numel() for parameter in new.parameters())


def test_words_with_marks_are_words_too(place: Path) -> None:
    """As those of Devanagari, whose vowel signs are no letters."""
    words = "\u0939\u093f\u0928\u094d\u0926\u0940 \u0905\u0927\u093f\u0915\u093e\u0930".split()
    tokenizer = Tokenizer.train("wordpiece", ["the river", " ".join(sorted(set("".join(words))))], 39, lowercase=False)
    new = vocabulary.extend(tokenizer, [" ".join(words * 6) + " 12 12 12 12 12 12 + + + + + +"], 5)
    assert new.tokens[tokenizer.vocab_size :] == tuple(sorted(words))


def test_a_model_with_more_words_than_its_tokenizer_keeps_them(place: Path, tmp_path: Path, capsys, monkeypatch):
    monkeypatch.setattr(measure, "PIECES", 2)
    tokenizer = load(place / "model").tokenizer
    padded = build("bert-tiny", **TINY | {"encoder.vocab": 128})
    padded.tokenizer = tokenizer
    padded.save(tmp_path / "model")
    words = words_of(place, tmp_path / "out")
    words[1] = str(tmp_path / "model")
    _, said = answer(capsys, *words)
    assert load(tmp_path / "out").config.encoder.vocab == 128 and "has no effect" not in said


def test_a_new_vocabulary_is_as_large_as_the_text_supports(place: Path, tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.setattr(measure, "PIECES", 2)
    tokenizer = Tokenizer.train("wordpiece", [*varied(300), *(place / "law.txt").read_text().split("\n\n")], 600)
    size = {"encoder.layers": 1, "encoder.width": 32, "encoder.heads": 2, "encoder.ff_width": 64}
    build("bert-tiny", tokenizer=tokenizer, **size).save(tmp_path / "large")
    words = words_of(place, tmp_path / "out", "--vocabulary", "new")
    words[1] = str(tmp_path / "large")
    found, said = answer(capsys, *words)
    old, new = found["vocabulary"]["tokens"]
    assert old == 600 > new and f"the text supports a vocabulary of {new} tokens, fewer than 600" in said
    assert load(tmp_path / "out").tokenizer.vocab_size == new
    kept = [json.loads(line)["text"] for line in (tmp_path / "out/text/domain.jsonl").read_text().splitlines()]
    kept += [json.loads(line)["text"] for line in (tmp_path / "out/text/general.jsonl").read_text().splitlines()]
    again = vocabulary.retrain(tokenizer, kept, "bert")  # of the training text alone
    assert load(tmp_path / "out").tokenizer.hash() == again.hash()


@pytest.mark.parametrize(
    ("kind", "family", "model_family"),
    [
        ("wordpiece", "bert", "electra"),
        ("bpe", "roberta", "roberta"),
        ("bpe", "deberta", "deberta"),
        ("unigram", "albert", "albert"),
        ("unigram", "xlnet", "xlnet"),
        ("unigram", "deberta-v2", "deberta"),
        ("unigram", "roberta", "roberta"),
    ],
)
def test_a_new_vocabulary_for_every_tokenizer_of_our_own(kind: str, family: str, model_family: str) -> None:
    sample = varied(150)
    old = Tokenizer.train(kind, sample, 420, family=family)
    assert vocabulary.family_of(old, model_family) == family
    new = vocabulary.retrain(old, sample, model_family)
    assert new.tokens == old.tokens and new.special == old.special and new.special_tokens == old.special_tokens


def test_further_special_tokens_do_not_matter_to_a_new_vocabulary(place: Path) -> None:
    old = load(place / "model").tokenizer
    more = Tokenizer(old.backend, replace(old.special_tokens, others=("the", "of")))  # as CamemBERT's, say
    assert vocabulary.family_of(more, "bert") == "bert"
    unigram = Tokenizer.train("unigram", varied(150), 200, family="xlnet")
    without = Tokenizer(unigram.backend, replace(unigram.special_tokens, eod=None))
    assert vocabulary.family_of(without, "xlnet") == "xlnet"
    with pytest.raises(ConfigError, match="no tokenizer can be trained with the model's special tokens"):
        vocabulary.family_of(Tokenizer(old.backend, replace(old.special_tokens, pad="the")), "bert")
