"""Scores of sentences: equal to plain loops over ``transformers``, and to our own models asked one row at a time."""

from __future__ import annotations

import os
import random
from dataclasses import replace
from functools import cache
from pathlib import Path
from pydoc_data import topics
from typing import Any

import numpy as np
import pytest
import torch

from encoderlab.corpus.tokenizer import Encoding, Tokenizer
from encoderlab.errors import ConfigError
from encoderlab.inference import evaluating
from encoderlab.interchange import huggingface
from encoderlab.interchange.load import load
from encoderlab.measure.pairs import scorers
from encoderlab.measure.pairs.scorers import Detector, LeftToRight, Masked, scorers_of, word_ends
from encoderlab.model import Model
from encoderlab.models.base import ModelConfig, resized
from encoderlab.nn.encoder import Chosen
from tests.interchange.tiny_models import CONFIGS, make

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
KINDS: dict[str, tuple[str, str]] = {  # family: kind of tokenizer, its family
    "roberta": ("bpe", "roberta"),
    "albert": ("unigram", "albert"),
    "deberta-v2": ("unigram", "deberta-v2"),
    "deberta-v3": ("unigram", "deberta-v2"),
    "erlangshen": ("unigram", "deberta-v2"),
    "xlnet": ("unigram", "xlnet"),
    "transformer-xl": ("unigram", "xlnet"),
}


@cache
def tokenizer(kind: str, family: str) -> Tokenizer:
    return Tokenizer.train(kind, list(topics.topics.values())[:40], 900, family=family)  # type: ignore[arg-type]


@cache
def sentences() -> list[str]:
    """Short sentences with punctuation, split and unknown words; every other one is the one before it, changed."""
    rng = random.Random(7)
    words = [word for text in list(topics.topics.values())[:5] for word in text.split()][:400]
    found = []
    for _ in range(14):
        good = [rng.choice(words) for _ in range(rng.randint(1, 7))]
        bad = list(good)
        bad[rng.randrange(len(bad))] = rng.choice(words)
        found += [" ".join(good).capitalize() + ".", " ".join(bad) + "."]
    return [*found, "Katherine can't help herself.", "Katherine can't help himself.", " 你好 ☃", "unbelievabilities"]


def model_of(name: str) -> Model:
    """The tiny model of a family, with 96 positions and a trained tokenizer."""
    own = tokenizer(*KINDS.get(name, ("wordpiece", "bert")))
    model = make(longer(resized(CONFIGS[name], vocab=own.vocab_size)))
    model.tokenizer = own
    return model


def longer(config: ModelConfig) -> ModelConfig:
    position: Any = config.encoder.position
    name = {"absolute": "length", "rotary": "length", "disentangled": "span"}.get(position.kind)
    if name is None:
        return config
    config = resized(config, position=replace(position, **{name: 96}))
    return replace(config, mask_decoder=96) if config.mask_decoder else config


MASKED = [
    "bert", "roberta", "albert", "distilbert", "electra-generator", "convbert-groups", "erlangshen", "xlnet",
    "modernbert",
]  # fmt: skip


@pytest.mark.parametrize("name", MASKED)
def test_pseudo_log_likelihoods_are_those_of_a_plain_loop_over_transformers(name: str, tmp_path: Path) -> None:
    """The official scorer's rule: every token whose characters belong to the sentence, masked one at a time."""
    transformers = pytest.importorskip("transformers", reason="parity needs the extra [hf]")
    huggingface.save(model_of(name), tmp_path / name)
    ours = load(tmp_path / name)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / name)
    lm = transformers.XLNetLMHeadModel if name == "xlnet" else transformers.AutoModelForMaskedLM
    network = lm.from_pretrained(tmp_path / name).eval()
    expected = []
    for text in sentences():
        encoded = theirs(text, return_offsets_mapping=True, return_tensors="pt")
        total = 0.0
        for place, (_, end) in enumerate(encoded.pop("offset_mapping")[0].tolist()):
            if end == 0:
                continue
            ids = encoded["input_ids"].clone()
            target = int(ids[0, place])
            ids[0, place] = theirs.mask_token_id
            more: dict[str, Any] = {}
            if name == "xlnet":
                more = {"perm_mask": torch.zeros(1, ids.shape[1], ids.shape[1])}
                more["target_mapping"] = torch.zeros(1, 1, ids.shape[1])
                more["perm_mask"][:, :, place] = more["target_mapping"][0, 0, place] = 1.0
            with torch.no_grad():
                logits = network(**{**encoded, "input_ids": ids}, **more).logits[0, 0 if name == "xlnet" else place]
            total += float(logits.log_softmax(-1)[target])
        expected.append(total)
    (scorer,) = scorers_of(ours, official=True)
    assert ours.tokenizer is not None
    found = scorer(ours.tokenizer.encode_batch(sentences()))
    assert found.shape == (len(expected), 1)
    np.testing.assert_allclose(found[:, 0], expected, rtol=2e-5, atol=2e-4)
    right = np.array(expected[0::2]) > np.array(expected[1::2])
    assert ((found[0::2, 0] > found[1::2, 0]) == right).all() and 0 < right.sum() < len(right)


def test_log_probabilities_are_those_of_a_causal_model_of_transformers(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="parity needs the extra [hf]")
    own = tokenizer("wordpiece", "bert")
    fields = {"vocab_size": own.vocab_size, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = transformers.BertConfig(**fields, intermediate_size=48, initializer_range=0.3, is_decoder=True)
    network = transformers.BertLMHeadModel(config).eval()
    network.save_pretrained(tmp_path)
    own.save(tmp_path)
    scorer = scorers_of(load(tmp_path))[0]
    assert isinstance(scorer, LeftToRight)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    expected = []
    for text in sentences():
        ids = theirs(text, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            logits = network(ids).logits[0].log_softmax(-1)
        expected.append(sum(float(logits[i, ids[0, i + 1]]) for i in range(ids.shape[1] - 2)))  # without [SEP]
    found = scorer(scorer.tokenizer.encode_batch(sentences()))
    np.testing.assert_allclose(found[:, 0], expected, rtol=2e-5, atol=2e-4)


@pytest.mark.parametrize("name", ["bert", "roberta", "deberta-v2", "xlnet", "convbert-groups"])
def test_both_measures_are_those_of_one_row_at_a_time(name: str) -> None:
    """DeBERTa with its mask decoder; the word-wise measure masks the later tokens of the word as well."""
    model = model_of(name)
    assert model.tokenizer is not None
    encoded = model.tokenizer.encode_batch(sentences()[:12])
    found = Masked(model)(encoded)
    with evaluating(model), torch.no_grad():
        expected = [[_one_by_one(model, sentence, word=word) for word in (False, True)] for sentence in encoded]
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-4)
    assert (found[:, 0] != found[:, 1]).any()


def _one_by_one(model: Model, sentence: Encoding, *, word: bool) -> float:
    tokenizer = model.tokenizer
    assert tokenizer is not None
    total, ends = 0.0, word_ends(sentence)
    for place in np.flatnonzero(sentence.offsets[:, 1] > 0).tolist():
        shown = sentence.ids.copy()
        shown[place : int(ends[place]) if word else place + 1] = tokenizer.special.mask
        ids, segments = (torch.from_numpy(part)[None].long() for part in tokenizer.frame(shown))
        at = torch.tensor([[place + tokenizer.spans(len(sentence), max_length=512).a_start]])
        if model.mask_vector is not None:
            seen = (ids != tokenizer.special.mask)[0]
            itself = torch.eye(len(seen), dtype=torch.bool)
            states = model.encoder(ids, segments=segments, visible=(seen | itself)[None])
            start, every = model.mask_vector.expand(1, 1, -1), range(model.encoder.depth)
            query = model.encoder.query_stream(states, start, at, layers=every, visible=seen[None, None])
            logits = model.lm(query[:, 0], model.words)  # type: ignore[misc, operator]
        else:
            one = torch.zeros(1, dtype=torch.long)
            logits = model.token_logits(model.encoder(ids, segments=segments), Chosen(at, one, one))
        total += float(logits[0].log_softmax(-1)[sentence.ids[place]])
    return total


def test_a_transformer_xl_predicts_from_the_end_of_document_token() -> None:
    model = model_of("transformer-xl")
    assert model.tokenizer is not None and model.tokenizer.special.eod is not None
    (scorer,) = scorers_of(model)
    encoded = model.tokenizer.encode_batch(sentences())
    for sentence, score in zip(encoded, scorer(encoded)[:, 0], strict=True):
        ids = torch.tensor([[model.tokenizer.special.eod, *sentence.ids.tolist()]])
        with torch.no_grad():
            last = model.encoder(ids[:, :-1]).last[0]
            losses = model.lm.losses(last, ids[0, 1:], model.encoder.embeddings)  # type: ignore[union-attr, call-arg]
        counted = torch.from_numpy(sentence.offsets[:, 1] > 0)
        assert np.isclose(score, -float(losses[counted].sum()), rtol=1e-5, atol=1e-4)


def test_a_head_that_reads_the_token_before_is_asked_both_ways() -> None:
    """GPT-BERT: with masks, predicted from the token before the mask, and from left to right."""
    model = model_of("roberta")
    assert model.tokenizer is not None and model.config.lm is not None
    model = model.with_config(replace(model.config, lm=replace(model.config.lm, next_token=True)))
    masked, causal = scorers_of(model)
    assert (*masked.measures, *causal.measures) == ("pll", "pll_word", "log_probability")
    assert [scorer.measures for scorer in scorers_of(model, official=True)] == [("pll",)]
    encoded = model.tokenizer.encode_batch(sentences()[:8])
    found = np.concatenate([masked(encoded), causal(encoded)], axis=1)
    with evaluating(model), torch.no_grad():
        for sentence, scores in zip(encoded, found, strict=True):
            ids, _ = model.tokenizer.frame(sentence.ids)
            ids = torch.from_numpy(ids)[None].long()
            length, n = ids.shape[1], len(sentence)
            earlier = torch.ones(1, length, length, dtype=torch.bool).tril()
            left = model.lm(model.encoder(ids, visible=earlier).last[0], model.words).log_softmax(-1)  # type: ignore
            counted = [place for place in range(n) if sentence.offsets[place, 1] > 0]
            assert scores[2] == pytest.approx(sum(float(left[p, ids[0, p + 1]]) for p in counted), abs=1e-3)
            hidden = 0.0
            for place in counted:
                shown = ids.clone()
                shown[0, place + 1] = model.tokenizer.special.mask
                logits = model.lm(model.encoder(shown).last[0, place : place + 1], model.words)  # type: ignore
                hidden += float(logits.log_softmax(-1)[0, ids[0, place + 1]])
            assert scores[0] == pytest.approx(hidden, abs=1e-3)


def reading_the_token_before(name: str, **changes: Any) -> Model:
    known = model_of(name)
    assert known.config.lm is not None
    model = make(replace(known.config, lm=replace(known.config.lm, next_token=True), **changes))
    model.tokenizer = known.tokenizer
    return model


def test_a_head_that_reads_the_token_before_does_not_read_padding() -> None:
    """Padding is on the left, and no special token comes before the text."""
    model = reading_the_token_before("xlnet", mask_vector=False)
    encoded = model.tokenizer.encode_batch(sentences())  # type: ignore[union-attr]
    scorer = Masked(model)
    alone = np.concatenate([scorer([sentence]) for sentence in encoded])
    np.testing.assert_allclose(scorer(encoded), alone, atol=1e-4)


def test_convolutions_have_no_score_from_left_to_right() -> None:
    """They read later tokens."""
    (scorer,) = scorers_of(reading_the_token_before("convbert-groups"))
    assert isinstance(scorer, Masked)


@pytest.mark.parametrize("name", ["electra", "deberta-v3"])
def test_a_discriminator_sums_what_it_holds_for_original(name: str) -> None:
    model = model_of(name)
    assert model.tokenizer is not None and model.rtd is not None
    found = Detector(model)(model.tokenizer.encode_batch(sentences()))
    for text, score in zip(sentences(), found[:, 0], strict=True):
        sentence = model.tokenizer.encode(text)
        ids, segments = (torch.from_numpy(part)[None].long() for part in model.tokenizer.frame(sentence.ids))
        with torch.no_grad():
            last = model.encoder(ids, segments=segments).last[0]
            p = torch.sigmoid(model.rtd(last, last[:1].expand_as(last)).double())
        inside = torch.from_numpy(np.flatnonzero(sentence.offsets[:, 1] > 0) + 1)
        assert np.isclose(score, float(torch.log1p(-p[inside]).sum()), rtol=1e-5, atol=1e-4)


def test_equal_tokens_have_equal_scores_wherever_they_stand() -> None:
    """So a tie is a tie: not lost to the rounding of another batch."""
    count = len(sentences())
    texts = [*sentences(), "KATHERINE can't help herself.", *reversed(sentences())]
    for scorer in (Masked(model_of("bert")), Detector(model_of("electra"))):
        found = scorer(scorer.tokenizer.encode_batch(texts))
        assert (found[:count] == found[count + 1 :][::-1]).all()
        assert (found[count] == found[texts.index("Katherine can't help herself.")]).all()


def test_a_row_that_two_sentences_share_is_computed_once() -> None:
    scorer = Masked(model_of("bert"))
    one, two = scorer.tokenizer.encode_batch(["a b c", "a b d"])
    rows, _, queries = scorer._rows([one, two])
    assert len(one) == len(two) == 3 and len(queries) == 12 and len(rows) == 5


def test_long_sentences_are_scored_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Because a sentence of n tokens has n rows of n tokens."""
    scorer = Masked(model_of("bert"))
    texts = [*sentences(), sentences()[0]]
    whole, calls = scorer(scorer.tokenizer.encode_batch(texts)), []
    monkeypatch.setattr(scorers, "HELD", 100)
    monkeypatch.setattr(scorer, "_rows", lambda part: calls.append(len(part)) or Masked._rows(scorer, part))
    parts = scorer(scorer.tokenizer.encode_batch(texts))
    assert len(calls) > 5 and max(calls) < 10 and (parts[0] == parts[-1]).all()
    np.testing.assert_allclose(parts, whole, atol=1e-4)


def test_a_mask_decoder_reads_no_further_than_its_positions() -> None:
    """DeBERTa's encoder itself has no limit."""
    model = model_of("deberta-v2")
    scorer = Masked(model)
    (sentence,) = scorer.tokenizer.encode_batch(["a " * 94])
    assert model.config.encoder.max_length is None and scorer.longest == len(sentence) == 94
    assert np.isfinite(scorer([sentence])).all()
    assert Masked(model_of("bert")).longest == 94 and Masked(model_of("xlnet")).longest is None


def test_which_measures_a_model_has() -> None:
    generator, discriminator = model_of("electra-generator"), model_of("electra")
    measures = [scorer.measures for scorer in scorers_of(discriminator, generator)]
    assert measures == [("pll", "pll_word"), ("not_replaced",)]
    assert [scorer.measures for scorer in scorers_of(discriminator, generator, official=True)] == [("pll",)]
    assert [scorer.measures for scorer in scorers_of(discriminator)] == [("not_replaced",)]
    discriminator.rtd = None
    with pytest.raises(ConfigError, match="cannot score sentences"):
        scorers_of(discriminator)


def test_words_end_where_the_next_begins() -> None:
    sentence = tokenizer("wordpiece", "bert").encode("unbelievabilities are, well")
    ends, starts = word_ends(sentence), np.flatnonzero(sentence.word_starts)
    assert starts[0] == 0 and ends[0] == starts[1] > 1 and ends[-1] == len(sentence)
