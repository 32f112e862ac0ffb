"""Near duplicates: shingles against sets of Python, the share that is found against the formula, and whole builds."""

from __future__ import annotations

import random
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from encoderlab.corpus import near_duplicates, pieces
from encoderlab.corpus.build import GivenTokenizer, build_corpus
from encoderlab.corpus.manifest import read_manifest
from encoderlab.corpus.merge import merge_corpora
from encoderlab.corpus.near_duplicates import SHINGLE, banding, document_bands
from encoderlab.corpus.tokenizer import Tokenizer
from encoderlab.corpus.words import is_cjk
from encoderlab.errors import ConfigError
from tests.corpus.corpora import digests, settings

TEXTS = st.lists(st.text("abAB12 .,\n中文é\u200dß", max_size=40), max_size=6)


def split(text: str) -> list[str]:
    words, run = [], ""
    for char in text.lower():
        if char.isalnum() and not is_cjk(char):
            run += char
            continue
        words += [run] if run else []
        words += [] if char.isspace() else [char]
        run = ""
    return words + ([run] if run else [])


@given(TEXTS)
def test_words_are_runs_of_letters_and_single_characters(texts):
    hashes, counts = near_duplicates._words(texts)
    words = [split(text) for text in texts]
    assert counts.tolist() == [len(found) for found in words]
    flat = [word for found in words for word in found]
    pairs = set(zip(flat, hashes.tolist(), strict=True))
    assert len(pairs) == len(set(flat)) == len(set(hashes.tolist()))


@given(TEXTS)
def test_shingles_are_runs_of_five_words(texts):
    hashes, sizes = near_duplicates._shingles([[text] for text in texts])
    expected = []
    for words in map(split, texts):
        runs = [tuple(words[place : place + SHINGLE]) for place in range(max(1, len(words) - SHINGLE + 1))]
        assert len(runs) == sizes[len(expected)] if runs else True
        expected.append(runs)
    flat = [run for runs in expected for run in runs]
    assert sizes.tolist() == [len(runs) for runs in expected]
    assert len(set(zip(flat, hashes.tolist(), strict=True))) == len(set(flat)) == len(set(hashes.tolist()))


@given(st.lists(st.text("ab .\n", max_size=30), min_size=1, max_size=8), st.sampled_from([1, 7, 1000]))
@hypothesis_settings(max_examples=25)
def test_numbers_belong_to_the_document_alone(texts, batch):
    """Not to its neighbours, nor to how many characters are hashed at once; lines do not matter."""
    whole = document_bands([text.split("\n") for text in texts], 0.7)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(near_duplicates, "BATCH", batch)
        again = document_bands([text.split("\n") for text in texts], 0.7)
    alone = [document_bands([[text.replace("\n", " ")]], 0.7)[0] for text in texts]
    assert (whole == again).all() and (whole == np.stack(alone)).all()


@pytest.mark.parametrize("similarity", [0.5, 0.8, 0.95])
def test_the_share_found_is_that_of_the_formula(similarity):
    """Pairs of documents that share a part of their words, by their true similarity: as often as 1 - (1 - J^r)^b."""
    draw = random.Random(1)
    bands, rows = banding(similarity)
    assert bands * rows <= near_duplicates.HASHES
    assert abs(1 - (1 - similarity**rows) ** bands - 0.5) < 0.1
    left, right, alike = [], [], []
    for number in range(1500):
        words = [f"{number}w{place}" for place in range(104)]
        other = list(words)
        for place in range(draw.randrange(60)):
            other[100 - place] = f"{number}x{place}"
        first, second = ({tuple(text[i : i + SHINGLE]) for i in range(100)} for text in (words, other))
        left.append([" ".join(words)])
        right.append([" ".join(other)])
        alike.append(len(first & second) / len(first | second))
    found = (document_bands(left, similarity) == document_bands(right, similarity)).any(1)
    expected = 1 - (1 - np.array(alike) ** rows) ** bands
    # Each is found or not by itself: the number of those found is within four standard deviations of its mean.
    for low, high in ((0, 0.4), (0.4, 0.6), (0.6, 0.8), (0.8, 0.9), (0.9, 1.01)):
        inside = np.array([low <= value < high for value in alike])
        spread = np.sqrt((expected[inside] * (1 - expected[inside])).sum()) + 1
        assert abs(found[inside].sum() - expected[inside].sum()) < 4 * spread
    both = np.concatenate([document_bands(left, similarity), document_bands(right, similarity)])
    assert len(np.unique(both[:1500])) == 1500 * bands  # no two of different words share a number


@pytest.fixture
def text(tmp_path, monkeypatch):
    """60 documents of 80 words, after every third a copy with another word and a longer end; and an equal copy."""
    monkeypatch.setattr(pieces, "PIECE", 4000)
    draw = random.Random(3)
    documents = []
    for number in range(60):
        words = [f"{draw.choice('abcdefgh')}{draw.randrange(100)}" for _ in range(80)]
        documents.append(" ".join(words))
        if number % 3 == 0:
            words[40] = "other"
            documents.append(" ".join([*words, "end"]))
    documents.append(documents[1])
    (tmp_path / "text.txt").write_text("\n\n".join(documents))
    Tokenizer.train("wordpiece", documents, 300).save(tmp_path / "tokenizer")
    return tmp_path


def chosen(text, **selection):
    return settings(
        text / "text.txt",
        tokenizer=GivenTokenizer(path=str(text / "tokenizer")),
        selection={"validation": 0.1, **selection},
    )


def test_the_first_of_similar_documents_stays(text):
    build_corpus(chosen(text), text / "all")
    build_corpus(chosen(text, near_duplicates=0.5), text / "out")
    assert read_manifest(text / "all").read["duplicate_documents"] == 1
    read = read_manifest(text / "out").read
    assert read["duplicate_documents"] == 1
    assert read["near_duplicate_documents"] == 20
    kept = sum(split.documents for split in read_manifest(text / "out").splits.values())
    assert kept == 60
    build_corpus(chosen(text, near_duplicates=0.5, drop_documents=False), text / "both")
    assert read_manifest(text / "both").read["near_duplicate_documents"] == 21


def test_same_bytes_for_any_number_of_workers_and_machines(text):
    one = chosen(text, near_duplicates=0.5)
    build_corpus(one, text / "one")
    build_corpus(one, text / "two", workers=2)
    for index in range(3):
        build_corpus(one, text / f"part{index}", shard_index=index, num_shards=3)
    merge_corpora([text / f"part{index}" for index in range(3)], text / "merged")
    assert digests(text / "one") == digests(text / "two") == digests(text / "merged")
    build_corpus(one, text / "one")  # verified, and left as it is
    with pytest.raises(ConfigError, match=re.escape("selection.near_duplicates is 0.5 there, null here")):
        build_corpus(chosen(text), text / "one")


@pytest.mark.parametrize("similarity", [0, -1, 1.5, float("nan")])
def test_a_similarity_that_is_none_is_refused(text, similarity):
    with pytest.raises(ConfigError, match="near_duplicates"):
        chosen(text, near_duplicates=similarity)
